//! What the command COMMAND answers.

use super::Describe;
use super::table::{Description, TABLE, find};
use crate::glob::matches;
use crate::resp::{BULK_MAX, Reply};

/// The answer of COMMAND, in the form in which it was asked.
pub fn describe(what: &Describe<'_>) -> Reply {
    match what {
        Describe::All => Reply::Array(TABLE.iter().map(info).collect()),
        Describe::Count => integer(TABLE.len()),
        Describe::List => {
            Reply::Array(TABLE.iter().map(|command| Reply::bulk(command.name)).collect())
        }
        Describe::Info(names) => {
            let of = |name: &&[u8]| find(name).map_or(Reply::Null, info);
            Reply::Array(names.iter().map(of).collect())
        }
        Describe::Docs(names) if names.is_empty() => Reply::Map(TABLE.iter().map(docs).collect()),
        Describe::Docs(names) => {
            Reply::Map(names.iter().filter_map(|name| find(name)).map(docs).collect())
        }
        Describe::Keys(request) => keys(request),
    }
}

/// Settings that match one of the patterns: what clients ask when they connect.
pub fn settings(patterns: &[&[u8]], bytes_max: usize) -> Reply {
    let known = [
        ("appendonly", "no".to_string()), // Of files as those of Redis there are none.
        ("databases", "1".to_string()),
        ("maxmemory", bytes_max.to_string()),
        ("maxmemory-policy", "noeviction".to_string()),
        ("proto-max-bulk-len", BULK_MAX.to_string()),
        ("save", String::new()),
    ];
    let wanted = |name: &str| {
        let small = patterns.iter().map(|pattern| pattern.to_ascii_lowercase());
        small.into_iter().any(|pattern| matches(&pattern, name.as_bytes()))
    };
    let found = known.into_iter().filter(|(name, _)| wanted(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::Bulk(value.into()))).collect())
}

fn integer(value: usize) -> Reply {
    Reply::Integer(i64::try_from(value).expect("a small number"))
}

fn info(command: &Description) -> Reply {
    let Description { name, arity, flags, keys, .. } = command;
    let flags = flags.iter().map(|flag| Reply::Simple(flag.word())).collect();
    let number = |value: i8| Reply::Integer(value.into());
    Reply::Array(vec![
        Reply::bulk(name),
        number(*arity),
        Reply::Set(flags),
        number(keys.first),
        number(keys.last),
        number(keys.step),
        Reply::Set(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

fn docs(command: &Description) -> (Reply, Reply) {
    let group = match command.keys.first {
        0 => "server",
        _ => "string",
    };
    let text = vec![
        (Reply::bulk("summary"), Reply::bulk(command.summary)),
        (Reply::bulk("group"), Reply::bulk(group)),
    ];
    (Reply::bulk(command.name), Reply::Map(text))
}

fn keys(request: &[&[u8]]) -> Reply {
    let Some(command) = request.first().and_then(|name| find(name)) else {
        return Reply::error("Invalid command specified");
    };
    if !command.takes(request.len()) {
        return Reply::error("Invalid number of arguments specified for command");
    }
    let (first, step) = (index(command.keys.first), index(command.keys.step));
    if first == 0 {
        return Reply::error("The command has no key arguments");
    }
    let back = usize::from(command.keys.last.unsigned_abs());
    let last = if command.keys.last < 0 { request.len() - back } else { back };
    let keys = request[first..=last].iter().step_by(step);
    Reply::Array(keys.map(|key| Reply::Bulk(bytes::Bytes::copy_from_slice(key))).collect())
}

fn index(place: i8) -> usize {
    usize::from(place.unsigned_abs())
}
