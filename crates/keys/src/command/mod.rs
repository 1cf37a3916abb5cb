//! Commands: what a request asks for.
//!
//! [`TABLE`] has all of them, with the function that reads the arguments of each. A command on a
//! key is an [`Access`]; one on several keys is an access to each, and a way to combine the
//! answers. Each key is linearizable by itself; several keys of one command are not one step.

mod describe;
mod parse;
mod table;

use crate::access::Access;
use crate::item::Moment;
use crate::resp::{Reply, Request};
use bytes::Bytes;
pub use describe::{describe, settings};
use meridian_core::{ClientId, NodeId};
use meridian_hermes::Epoch;
use std::time::Duration;
pub use table::{Description, Flag, Keys, TABLE};

/// The longest key, in bytes.
pub const KEY_MAX: usize = 64 << 10;

/// So many keys one command names at most. Each is an operation of its own, and the replica does
/// nothing else until all have begun: more would take it longer than a lease, and much memory.
pub const KEYS_MAX: usize = 10_000;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<'a> {
    /// Something of one key.
    One {
        /// The key.
        key: &'a [u8],
        /// What is done to it.
        access: Access,
    },
    /// Something of several keys.
    Many {
        /// The keys, in order, and what is done to each.
        each: Vec<(&'a [u8], Access)>,
        /// How the answers become one.
        combined: Combined,
    },
    /// A change of one key that is made once, however often it is asked.
    Once {
        /// The client's number for it.
        sequence: u64,
        /// The key.
        key: &'a [u8],
        /// What is done to it.
        access: Access,
    },
    /// The requests of this connection are of that client.
    Named(ClientId),
    /// Whether nothing more comes of what that node was asked for a key. It was live then, in that
    /// epoch. If so, what it was asked may be asked again here.
    Settled {
        /// The node.
        node: NodeId,
        /// The epoch.
        epoch: Epoch,
        /// The key.
        key: &'a [u8],
    },
    /// The token of the connection's session; or to go on as the session that gave this one, when
    /// the region has all that it saw, for which to wait so long.
    Session(Option<&'a [u8]>, Duration),
    /// To be told of changes.
    Watch(Watch<'a>),
    /// The hash slot of a key.
    Slot(&'a [u8]),
    /// Some of the keys.
    Scan(Scan),
    /// How many keys there are.
    Size,
    /// Something of the connection itself.
    Connection(Connection<'a>),
    /// What the server has to say of itself: these sections, all if there are none.
    Info(Vec<&'a [u8]>),
    /// Something about commands.
    Describe(Describe<'a>),
    /// The settings that match one of these patterns.
    Settings(Vec<&'a [u8]>),
}

/// Of which keys a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch<'a> {
    /// This one.
    Key(&'a [u8]),
    /// All that begin so.
    Prefix(&'a [u8]),
}

/// How the answers of several keys become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// Their sum.
    Sum,
    /// All, in order.
    List,
    /// OK, if none is an error.
    Done,
    /// That of the only one.
    First,
}

impl Combined {
    /// One answer of those of all keys, in their order. The first error is the answer of all.
    pub fn combine(self, replies: Vec<Reply>) -> Reply {
        if let Some(error) = replies.iter().find(|reply| reply.is_error()) {
            return error.clone();
        }
        match self {
            Combined::List => Reply::Array(replies),
            Combined::Done => Reply::OK,
            Combined::First => replies.into_iter().next().unwrap_or(Reply::Null),
            Combined::Sum => {
                let count = |reply| if let Reply::Integer(count) = reply { count } else { 0 };
                Reply::Integer(replies.into_iter().map(count).sum())
            }
        }
    }
}

/// Asks for some keys, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Where to go on; 0 at the beginning and at the end.
    pub cursor: u64,
    /// Only keys that match it.
    pub pattern: Option<Bytes>,
    /// About so many are looked at.
    pub count: usize,
    /// Whether only keys of another type than there is are asked for: none has it.
    pub none: bool,
}

/// Something of the connection itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection<'a> {
    /// Is anybody there?
    Ping(Option<&'a [u8]>),
    /// The same bytes back.
    Echo(&'a [u8]),
    /// Which version is spoken from now on, and the connection's name.
    Hello {
        /// None: the one that is spoken.
        version: Option<i64>,
        /// Its name from now on.
        name: Option<&'a [u8]>,
        /// Whether it also shows a password.
        authenticates: bool,
    },
    /// Another database; there is one.
    Select(i64),
    /// As if it were new.
    Reset,
    /// It ends.
    Quit,
    /// Shows a password; there are none.
    Authenticate,
    /// Its number.
    Id,
    /// Its name.
    Name,
    /// Its name from now on.
    SetName(&'a [u8]),
    /// What the client says of itself, which nobody needs.
    SetInfo,
}

/// Something about commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Describe<'a> {
    /// All.
    All,
    /// How many there are.
    Count,
    /// Their names.
    List,
    /// These.
    Info(Vec<&'a [u8]>),
    /// What these are for; all if there are none.
    Docs(Vec<&'a [u8]>),
    /// Which arguments of this request are keys.
    Keys(Vec<&'a [u8]>),
}

impl<'a> Command<'a> {
    /// What `request` asks for; times of expiry count from `now`.
    ///
    /// # Errors
    /// The error to answer with, if there is no such command or its arguments are not in order.
    pub fn parse(request: &Request<'a>, now: Moment) -> Result<Command<'a>, Reply> {
        let Some(description) = table::find(request.name()) else {
            return Err(unknown(request));
        };
        if !description.takes(request.len()) {
            return Err(wrong_number(description.name));
        }
        if description.keys_of(request.len()) > KEYS_MAX {
            return Err(Reply::error(format!("too many keys: a command names at most {KEYS_MAX}")));
        }
        (description.parse)(request, now)
    }

    /// Whether it can make the store take more memory.
    pub fn grows(&self) -> bool {
        let grows = |access: &Access| match access {
            Access::Read(_) => false,
            Access::Write(_) => true,
            Access::Modify(modify) => modify.grows(),
        };
        match self {
            Command::One { access, .. } | Command::Once { access, .. } => grows(access),
            Command::Many { each, .. } => each.iter().any(|(_, access)| grows(access)),
            _ => false,
        }
    }
}

fn wrong_number(name: &str) -> Reply {
    Reply::error(format!("wrong number of arguments for '{name}' command"))
}

fn unknown(request: &Request<'_>) -> Reply {
    /// So much of what was asked is quoted.
    const QUOTED_MAX: usize = 128;
    let quote = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(QUOTED_MAX)]).into_owned();
        format!("'{text}'")
    };
    let name = quote(request.name());
    match request.get(1) {
        None => Reply::error(format!("unknown command {name}")),
        Some(first) => Reply::error(format!(
            "unknown command {name}, with arguments that begin with {}",
            quote(first)
        )),
    }
}

#[cfg(test)]
mod tests;
