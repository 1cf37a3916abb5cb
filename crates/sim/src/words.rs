//! Words that tellers of several protocols use.

use meridian_core::{ClientId, MessageId, NodeId};
use std::fmt::Display;

/// So many names of one kind stand in a line.
const NAMES_MAX: usize = 8;
/// A line of a trace has no more columns.
const COLUMNS: usize = 160;
/// So many of them are for what says how much was cut off.
const CUT: usize = 20;
/// A key is told as it is up to so many bytes.
const KEY_MAX: usize = 40;

/// The first of them, and how many more there are.
pub fn list<T: Display>(names: impl IntoIterator<Item = T>) -> String {
    first(NAMES_MAX, names)
}

/// So many of them, and how many more there are.
pub fn first<T: Display>(most: usize, names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let first: Vec<_> = names.by_ref().take(most).map(|name| name.to_string()).collect();
    match (first.len(), names.count()) {
        (0, 0) => "nothing".into(),
        (_, 0) => first.join(", "),
        (_, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// The line; of a long one the beginning, and how many words more there were.
pub fn cut(line: String) -> String {
    if line.chars().count() <= COLUMNS {
        return line;
    }
    let end = line.char_indices().nth(COLUMNS - CUT).map_or(line.len(), |(at, _)| at);
    let end = line[..end].rfind(' ').unwrap_or(end);
    let more = line[end..].split_whitespace().count();
    format!("{} … {more} more words", &line[..end])
}

/// The name of a node.
pub fn of_node(node: NodeId) -> String {
    format!("n{}", node.0)
}

/// Nodes by their names.
pub fn of_nodes<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> String {
    list(nodes.into_iter().map(|node| of_node(*node)))
}

/// The name of a request: its client, and the client's number for it.
pub fn of_request(client: ClientId, sequence: u64) -> String {
    MessageId { client, sequence }.to_string()
}

/// The name of a key: itself if it can be read, else `k` and its bytes. One word.
pub fn of_key(key: &[u8]) -> String {
    let readable = key.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(byte));
    if readable && !key.is_empty() && key.len() <= KEY_MAX {
        return String::from_utf8_lossy(key).into_owned();
    }
    let bytes: Vec<_> = key.iter().map(ToString::to_string).collect();
    format!("k{}", bytes.join("."))
}

/// The name of an entry of a directory, in quotes.
pub fn of_name(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

/// How long a value is.
pub fn of_value(value: Option<&[u8]>) -> String {
    value.map_or("no value".into(), |value| format!("value of {}", of_bytes(value.len())))
}

/// So many bytes.
pub fn of_bytes(len: usize) -> String {
    format!("{len} byte{}", if len == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
        assert_eq!(list([1, 2]), "1, 2");
        assert_eq!(list([0; 0]), "nothing");
        assert_eq!(first(1, [1, 2, 3]), "1 and 2 more");
        let short = "word ".repeat(32).trim_end().to_string();
        assert_eq!(cut(short.clone()), short);
        let long = "wörd ".repeat(100);
        let told = cut(long);
        assert!(told.chars().count() <= COLUMNS, "{told}");
        let (begins, more) = told.split_once(" … ").expect("it says so");
        let kept = begins.split(' ').count();
        assert_eq!(more, format!("{} more words", 100 - kept));
    }

    #[test]
    fn names_of_keys_are_one_word() {
        let keys: [&[u8]; 5] = [b"apple", b"a b", b"user:3", &[3], &[255, 0]];
        let names: Vec<_> = keys.iter().map(|key| of_key(key)).collect();
        assert_eq!(names, ["apple", "k97.32.98", "user:3", "k3", "k255.0"]);
        assert!(names.iter().all(|name| !name.contains(char::is_whitespace)));
    }
}
