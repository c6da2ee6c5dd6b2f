// What everdram's commands do to a few keys, written from the Redis documentation and not from everdram's code.

package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// step is a command and its answer.
type step struct {
	Command  string `json:"command"`
	Key      string `json:"key"`
	Argument string `json:"argument"`
	Answer   string `json:"answer"`
}

// state is the keys that have a value. It is never changed, only copied.
type state map[string]string

// model is nondeterministic for operations that nobody saw the answer of: they may not have happened.
func model() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{}} },
		Step: func(before, input, output interface{}) []interface{} {
			steps, known := input.([]step), output.(bool)
			after, agrees := apply(before.(state), steps, known)
			switch {
			case !known:
				return []interface{}{after, before}
			case agrees:
				return []interface{}{after}
			default:
				return nil
			}
		},
		Equal:             func(a, b interface{}) bool { return describe(a) == describe(b) },
		DescribeOperation: describeOperation,
		DescribeState:     describe,
	}
	return model.ToModel()
}

// apply does all steps, and says whether each would have been answered as it was.
func apply(before state, steps []step, known bool) (state, bool) {
	after := make(state, len(before)+1)
	for key, value := range before {
		after[key] = value
	}
	for _, one := range steps {
		if answer := after.do(one); known && answer != one.Answer {
			return nil, false
		}
	}
	return after, true
}

// do changes the state as the command does, and answers as it would.
func (now state) do(one step) string {
	value, exists := now[one.Key]
	bulk := "_"
	if exists {
		bulk = "$" + value
	}
	switch one.Command {
	case "GET":
		return bulk
	case "SET":
		now[one.Key] = one.Argument
		return "+OK"
	case "GETSET":
		now[one.Key] = one.Argument
		return bulk
	case "GETDEL":
		delete(now, one.Key)
		return bulk
	case "DEL":
		delete(now, one.Key)
		if exists {
			return ":1"
		}
		return ":0"
	case "SETNX":
		if exists {
			return ":0"
		}
		now[one.Key] = one.Argument
		return ":1"
	case "INCR":
		if !exists {
			value = "0"
		}
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return "-ERR value is not an integer or out of range"
		}
		now[one.Key] = strconv.FormatInt(number+1, 10)
		return ":" + now[one.Key]
	case "APPEND":
		now[one.Key] = value + one.Argument
		return ":" + strconv.Itoa(len(now[one.Key]))
	default:
		panic("the model does not know the command " + one.Command)
	}
}

func describe(any interface{}) string {
	now := any.(state)
	pairs := make([]string, 0, len(now))
	for key, value := range now {
		pairs = append(pairs, fmt.Sprintf("%q=%q", key, value))
	}
	sort.Strings(pairs)
	return "{" + strings.Join(pairs, " ") + "}"
}

func describeOperation(input, output interface{}) string {
	words := []string{}
	for _, one := range input.([]step) {
		word := strings.TrimSpace(one.Command + " " + one.Key + " " + one.Argument)
		if output.(bool) {
			word += " -> " + one.Answer
		}
		words = append(words, word)
	}
	if !output.(bool) {
		words = append(words, "(killed before it answered)")
	}
	return strings.Join(words, "; ")
}
