// Judges a recorded history of an everdram server with Porcupine, an independent linearizability checker.
//
//	go run . [-html FILE] [-timeout 5m] HISTORY.jsonl...
//
// A history is JSON lines, one operation each (crates/cli/tests/support/history.rs writes it):
//
//	{"client":3,"call":12,"return":19,"known":true,"steps":[{"command":"INCR","key":"a","argument":"","answer":":5"}]}
//
// Times are nanoseconds of one clock. An operation is its steps at one moment: one command, or the commands of a
// MULTI/EXEC. Answers are as RESP writes them: "+OK", ":5", "$text", "_" for nothing, "-ERR ...". With
// "known":false the server was killed before it answered: the operation happened at some moment before "return",
// when the process was gone, or never; its answers are empty.
//
// Keys that some operation uses together are judged together, all others apart. The last line of output is
// "linearizable" (exit code 0), "NOT linearizable" (1) or "undecided" (3, time ran out). 2 = the input is no
// history.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is a line of a history.
type operation struct {
	Client int    `json:"client"`
	Call   int64  `json:"call"`
	Return int64  `json:"return"`
	Known  bool   `json:"known"`
	Steps  []step `json:"steps"`
}

func main() {
	html := flag.String("html", "violation.html", "where the picture of a violation goes")
	timeout := flag.Duration("timeout", 5*time.Minute, "for each group of keys; then the verdict is \"undecided\"")
	flag.Parse()
	if flag.NArg() == 0 {
		fail(fmt.Errorf("which history? linearizability [flags] HISTORY.jsonl"))
	}
	verdict := porcupine.Ok
	for _, path := range flag.Args() {
		history, err := read(path)
		if err != nil {
			fail(fmt.Errorf("%s: %w", path, err))
		}
		judged, err := judge(history, *timeout, *html)
		if err != nil {
			fail(err)
		}
		verdict = worse(verdict, judged)
	}
	switch verdict {
	case porcupine.Ok:
		fmt.Println("linearizable")
	case porcupine.Illegal:
		fmt.Println("NOT linearizable")
		os.Exit(1)
	default:
		fmt.Println("undecided")
		os.Exit(3)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "linearizability:", err)
	os.Exit(2)
}

// worse keeps a conviction; only a verdict on everything is a good one.
func worse(a, b porcupine.CheckResult) porcupine.CheckResult {
	if a == porcupine.Illegal || b == porcupine.Ok {
		return a
	}
	return b
}

func read(path string) ([]operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var history []operation
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		if one.Return < one.Call || len(one.Steps) == 0 {
			return nil, fmt.Errorf("line %d: an operation without steps, or that ends before it begins", len(history)+1)
		}
		history = append(history, one)
	}
	return history, lines.Err()
}

// judge checks each group of keys by itself, and draws the first one that is not linearizable.
func judge(history []operation, timeout time.Duration, html string) (porcupine.CheckResult, error) {
	groups := partition(history)
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	verdict, model := porcupine.Ok, model()
	for _, name := range names {
		group := groups[name]
		judged, information := porcupine.CheckOperationsVerbose(model, group, timeout)
		if judged != porcupine.Ok {
			fmt.Printf("keys with %s: %s, %d operations\n", name, judged, len(group))
		}
		if judged == porcupine.Illegal && verdict != porcupine.Illegal {
			if err := porcupine.VisualizePath(model, information, html); err != nil {
				return judged, err
			}
			fmt.Println("picture:", html)
		}
		verdict = worse(verdict, judged)
	}
	fmt.Printf("%d operations in %d groups of keys\n", len(history), len(names))
	return verdict, nil
}

// partition gives the operations of keys that some operation uses together; a group is named after one of them.
func partition(history []operation) map[string][]porcupine.Operation {
	parent := map[string]string{}
	var find func(key string) string
	find = func(key string) string {
		above, known := parent[key]
		if !known || above == key {
			parent[key] = key
			return key
		}
		root := find(above)
		parent[key] = root
		return root
	}
	for _, one := range history {
		for _, s := range one.Steps {
			parent[find(s.Key)] = find(one.Steps[0].Key)
		}
	}
	groups := map[string][]porcupine.Operation{}
	for _, one := range history {
		root := find(one.Steps[0].Key)
		groups[root] = append(groups[root], porcupine.Operation{
			ClientId: one.Client,
			Input:    one.Steps,
			Call:     one.Call,
			Output:   one.Known,
			Return:   one.Return,
		})
	}
	return groups
}
