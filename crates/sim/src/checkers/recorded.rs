//! Recorded histories of clients of keys: JSON lines that the simulator, a benchmark or a test
//! client wrote.
//!
//! One line for each operation, written when it ends:
//!
//! ```json
//! {"process":"c1","op":"write","key":"x","value":7,"start_ns":10,"end_ns":25,"result":"ok"}
//! ```
//!
//! | op | value | result |
//! | --- | --- | --- |
//! | read | | the value, null when absent |
//! | write | new value | "ok" |
//! | swap | new value | the old value |
//! | cas | `[expected, new]` | true or false |
//! | add | integer | the new value |
//! | append | element | "ok" |
//! | delete | | whether it existed |
//!
//! `status` may be "ok"; "fail", where certainly nothing happened; or "info" (also where there is
//! no `end_ns`), where nobody knows: the client goes on under another process name. Other lines,
//! those with "ev" or "type", are passed over.

use super::causal::{self, Sessions};
use super::linearizable::{self, Call, Specification};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a client may ask of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Its value.
    Read,
    /// It has this value from now on.
    Write(Value),
    /// The same, and the value before.
    Swap(Value),
    /// It has the second value if it had the first.
    CompareAndSwap(Value, Value),
    /// It is so much more.
    Add(i64),
    /// Its list has one more element.
    Append(Value),
    /// It is absent.
    Delete,
}

/// A key that may be absent, whose value is JSON. The state is the text of the value, null if
/// absent.
#[derive(Clone, Copy, Debug)]
pub struct Key;

impl Specification for Key {
    type State = String;
    type Operation = Operation;
    type Outcome = Value;

    fn initial(&self) -> String {
        Value::Null.to_string()
    }

    fn apply(&self, state: &String, operation: &Operation) -> (String, Value) {
        let value: Value = serde_json::from_str(state).expect("written by this function");
        let ok = || Value::from("ok");
        let (next, outcome) = match operation {
            Operation::Read => (value.clone(), value),
            Operation::Write(new) => (new.clone(), ok()),
            Operation::Swap(new) => (new.clone(), value),
            Operation::CompareAndSwap(old, new) if *old == value => (new.clone(), true.into()),
            Operation::CompareAndSwap(..) => (value, false.into()),
            Operation::Add(more) => {
                let sum = Value::from(value.as_i64().unwrap_or_default().wrapping_add(*more));
                (sum.clone(), sum)
            }
            Operation::Append(element) => {
                let mut list = value.as_array().cloned().unwrap_or_default();
                list.push(element.clone());
                (list.into(), ok())
            }
            Operation::Delete => (Value::Null, (!value.is_null()).into()),
        };
        (next.to_string(), outcome)
    }

    fn changes_nothing(&self, operation: &Operation, outcome: &Value) -> bool {
        match operation {
            Operation::Read => true,
            Operation::CompareAndSwap(..) | Operation::Delete => outcome.as_bool() == Some(false),
            Operation::Write(_) | Operation::Swap(_) | Operation::Add(_) | Operation::Append(_) => {
                false
            }
        }
    }
}

/// What clients did.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The process, the key, and the call; by the order of the lines.
    pub calls: Vec<(String, String, Call<Operation, Value>)>,
}

#[derive(Deserialize)]
struct Line {
    process: String,
    op: String,
    key: String,
    #[serde(default)]
    value: Value,
    start_ns: u64,
    end_ns: Option<u64>,
    #[serde(default)]
    result: Value,
    status: Option<String>,
}

impl Recorded {
    /// Reads lines; empty ones are passed over.
    ///
    /// # Errors
    /// The number of the first line that is none of an operation, and why.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Recorded, String> {
        let mut recorded = Recorded::default();
        for (number, line) in (1..).zip(lines) {
            recorded.add(line).map_err(|what| format!("line {number}: {what}"))?;
        }
        Ok(recorded)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if line.trim().is_empty() {
            return Ok(());
        }
        let json: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if json.get("ev").is_some() || json.get("type").is_some() {
            return Ok(());
        }
        let line: Line = serde_json::from_value(json).map_err(|error| error.to_string())?;
        let answered = match line.status.as_deref() {
            Some("fail") => return Ok(()),
            Some("info") => None,
            _ => line.end_ns.map(|end| (end, line.result.clone())),
        };
        let operation = operation(&line)?;
        let call = Call { operation, called: line.start_ns, answered };
        self.calls.push((line.process, line.key, call));
        Ok(())
    }

    /// Judges whether each key is linearizable.
    ///
    /// # Errors
    /// As [`linearizable::check_each`].
    pub fn check_linearizable(&self) -> Result<(), String> {
        linearizable::check_each(&Key, self.calls.iter().map(|(_, key, call)| (key, call)))
    }

    /// Judges whether reads and writes are causally consistent; each process is a session. What was
    /// not answered may be seen if it wrote.
    ///
    /// # Errors
    /// As [`causal::check`]; or there are other operations than reads and writes.
    pub fn check_causal(&self) -> Result<(), String> {
        let mut sessions: BTreeMap<&str, Vec<(u64, _)>> = BTreeMap::new();
        for (process, key, call) in &self.calls {
            let operation = match (&call.operation, &call.answered) {
                (Operation::Read, None) => continue,
                (Operation::Read, Some((_, value))) => {
                    let value = (!value.is_null()).then(|| value.to_string());
                    causal::Operation::Read(key, value)
                }
                (Operation::Write(value), _) => causal::Operation::Write(key, value.to_string()),
                (other, _) => return Err(format!("causality says nothing of {other:?}")),
            };
            sessions.entry(process).or_default().push((call.called, operation));
        }
        let in_order = |mut session: Vec<(u64, _)>| {
            session.sort_by_key(|(called, _)| *called);
            session.into_iter().map(|(_, operation)| operation).collect()
        };
        let sessions: Sessions<_, _> = sessions.into_values().map(in_order).collect();
        causal::check(&sessions)
    }
}

fn operation(line: &Line) -> Result<Operation, String> {
    let value = line.value.clone();
    Ok(match line.op.as_str() {
        "read" => Operation::Read,
        "write" => Operation::Write(value),
        "swap" => Operation::Swap(value),
        "cas" => match value.as_array().map(Vec::as_slice) {
            Some([old, new]) => Operation::CompareAndSwap(old.clone(), new.clone()),
            _ => return Err("cas needs [expected, new]".into()),
        },
        "add" => Operation::Add(value.as_i64().ok_or("add needs an integer")?),
        "append" => Operation::Append(value),
        "delete" => Operation::Delete,
        other => return Err(format!("{other} is not judged")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(process: &str, op: &str, value: &str, times: (u64, u64), result: &str) -> String {
        let (start, end) = times;
        format!(
            r#"{{"process":"{process}","op":"{op}","key":"x","value":{value},"start_ns":{start},"end_ns":{end},"result":{result}}}"#
        )
    }

    fn read(lines: &[String]) -> Recorded {
        Recorded::read(lines.iter().map(String::as_str)).unwrap()
    }

    #[test]
    fn each_operation_does_what_the_table_says() {
        let lines = [
            ("read", "null", "null"),
            ("delete", "null", "false"),
            ("write", "7", "\"ok\""),
            ("swap", "8", "7"),
            ("cas", "[7, 9]", "false"),
            ("cas", "[8, 9]", "true"),
            ("add", "3", "12"),
            ("delete", "null", "true"),
            ("append", "\"a\"", "\"ok\""),
            ("read", "null", "[\"a\"]"),
        ];
        let lines: Vec<_> = (0..)
            .zip(lines)
            .map(|(at, (op, value, result))| line("c1", op, value, (at * 2, at * 2 + 1), result))
            .collect();
        assert_eq!(read(&lines).check_linearizable(), Ok(()));
        for at in 0..lines.len() {
            let mut wrong: Value = serde_json::from_str(&lines[at]).unwrap();
            wrong["result"] = Value::from("wrong");
            let mut all = lines.clone();
            all[at] = wrong.to_string();
            assert!(read(&all).check_linearizable().is_err(), "{}", lines[at]);
        }
    }

    #[test]
    fn unknown_outcomes_may_have_happened_and_failures_have_not() {
        let info =
            r#"{"process":"c1","op":"write","key":"x","value":1,"start_ns":1,"status":"info"}"#;
        let fail = info.replace("info", "fail");
        let of = |first: &str, seen| {
            let lines = [first.to_string(), line("c2", "read", "null", (5, 6), seen)];
            read(&lines).check_linearizable().is_ok()
        };
        assert!(of(info, "1") && of(info, "null") && of(&fail, "null"));
        assert!(!of(&fail, "1"));
    }

    #[test]
    fn a_read_may_be_causal_and_not_linearizable() {
        let lines = [
            line("c1", "write", "1", (1, 2), "\"ok\""),
            line("c2", "read", "null", (3, 4), "null"),
            line("c1", "read", "null", (3, 4), "1"),
        ];
        let recorded = read(&lines);
        assert!(recorded.check_linearizable().is_err());
        assert_eq!(recorded.check_causal(), Ok(()));
        let own = [lines[0].clone(), line("c1", "read", "null", (3, 4), "null")];
        assert!(read(&own).check_causal().unwrap_err().starts_with("read your writes"));
    }

    #[test]
    fn other_lines_are_passed_over_and_broken_ones_are_told() {
        let other = [r#"{"ev":"crash","p":"p1"}"#, "", r#"{"type":"final","key":"x","value":7}"#];
        assert!(Recorded::read(other).unwrap().calls.is_empty());
        for broken in ["{", r#"{"process":"c1"}"#, &line("c1", "txn", "[]", (1, 2), "[]")] {
            let told = Recorded::read(["", broken]).unwrap_err();
            assert!(told.starts_with("line 2: "), "{told}");
        }
    }
}
