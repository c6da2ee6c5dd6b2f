//! What the commands of a history do to a few keys: the sequential truth that histories are compared with.

use super::history::Step;
use std::collections::BTreeMap;

/// The keys that have a value.
pub(crate) type State = BTreeMap<String, String>;

/// The state after all steps, if each would have been answered as it was. Answers nobody saw are right.
pub(crate) fn apply(before: &State, steps: &[Step], known: bool) -> Option<State> {
    let mut state = before.clone();
    for step in steps {
        let answer = execute(&mut state, step);
        if known && answer != step.answer {
            return None;
        }
    }
    Some(state)
}

/// Changes the state as the command does, and answers as it would.
fn execute(state: &mut State, step: &Step) -> String {
    let bulk = |value: Option<String>| value.map_or("_".to_owned(), |value| format!("${value}"));
    let (key, argument) = (step.key.clone(), step.argument.clone());
    match step.command {
        "GET" => bulk(state.get(&key).cloned()),
        "SET" => {
            state.insert(key, argument);
            "+OK".to_owned()
        }
        "GETSET" => bulk(state.insert(key, argument)),
        "GETDEL" => bulk(state.remove(&key)),
        "DEL" => format!(":{}", u8::from(state.remove(&key).is_some())),
        "SETNX" => {
            let absent = !state.contains_key(&key);
            state.entry(key).or_insert(argument);
            format!(":{}", u8::from(absent))
        }
        "INCR" => match state.get(&key).map_or(Ok(0), |value| value.parse::<i64>()) {
            Ok(number) => {
                state.insert(key, (number + 1).to_string());
                format!(":{}", number + 1)
            }
            Err(_) => "-ERR value is not an integer or out of range".to_owned(),
        },
        "APPEND" => {
            let value = state.entry(key).or_default();
            value.push_str(&argument);
            format!(":{}", value.len())
        }
        other => panic!("the model does not know {other}"),
    }
}
