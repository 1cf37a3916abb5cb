//! All commands, in the order of their names.

use super::parse::{self, Parse};
use std::cmp::Ordering;

/// A command, as clients ask about it and as it is parsed.
#[derive(Debug)]
pub struct Description {
    /// Its name, in small letters.
    pub name: &'static str,
    /// With how many arguments, its name among them; if negative at least so many.
    pub arity: i8,
    /// What kind of command it is.
    pub flags: &'static [Flag],
    /// Which arguments are keys.
    pub keys: Keys,
    /// What it is for.
    pub summary: &'static str,
    pub(super) parse: Parse,
}

/// What kind of command it is, in words that client libraries know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// It changes nothing.
    ReadOnly,
    /// It may change something.
    Write,
    /// It is refused when there is no memory.
    DenyOom,
    /// It takes a time that does not grow with anything.
    Fast,
    /// It is answered while data is loaded.
    Loading,
    /// It is answered before anybody has shown a password.
    NoAuth,
}

impl Flag {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Flag::ReadOnly => "readonly",
            Flag::Write => "write",
            Flag::DenyOom => "denyoom",
            Flag::Fast => "fast",
            Flag::Loading => "loading",
            Flag::NoAuth => "no_auth",
        }
    }
}

/// Which arguments are keys, by their places in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first; 0 if there is none.
    pub first: i8,
    /// The last; if negative counted from the end.
    pub last: i8,
    /// Each of so many.
    pub step: i8,
}

const NO_KEY: Keys = Keys { first: 0, last: 0, step: 0 };
const ONE_KEY: Keys = Keys { first: 1, last: 1, step: 1 };
const ALL_KEYS: Keys = Keys { first: 1, last: -1, step: 1 };
const PAIRS: Keys = Keys { first: 1, last: -1, step: 2 };

const READ: &[Flag] = &[Flag::ReadOnly, Flag::Fast];
const SCAN: &[Flag] = &[Flag::ReadOnly];
const GROW: &[Flag] = &[Flag::Write, Flag::DenyOom];
const CHANGE: &[Flag] = &[Flag::Write, Flag::Fast];
const TALK: &[Flag] = &[Flag::Fast, Flag::Loading];
const GREET: &[Flag] = &[Flag::Fast, Flag::Loading, Flag::NoAuth];

impl Description {
    /// Whether a request of `len` arguments, the name among them, can be of this command.
    pub fn takes(&self, len: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { len >= arity } else { len == arity }
    }

    /// How many keys a request of `len` arguments names, the command's name among them.
    pub(super) fn keys_of(&self, len: usize) -> usize {
        let place = |place: i8| usize::from(place.unsigned_abs());
        let Keys { first, last, step } = self.keys;
        let end = if last < 0 { (len + 1).saturating_sub(place(last)) } else { place(last) + 1 };
        if step == 0 { 0 } else { end.saturating_sub(place(first)).div_ceil(place(step)) }
    }
}

/// The command of this name, in letters of any size.
pub(super) fn find(name: &[u8]) -> Option<&'static Description> {
    let order = |known: &str| -> Ordering {
        let (mut ours, mut theirs) = (known.bytes(), name.iter().map(u8::to_ascii_lowercase));
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Ordering::Equal,
                (ours, theirs) if ours == theirs => {}
                (ours, theirs) => return ours.cmp(&theirs),
            }
        }
    };
    let place = TABLE.binary_search_by(|description| order(description.name)).ok()?;
    Some(&TABLE[place])
}

macro_rules! table {
    ($($name:literal $arity:literal $flags:ident $keys:ident $parse:expr, $summary:literal;)*) => {
        &[$(Description {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            summary: $summary,
            parse: $parse,
        }),*]
    };
}

/// All commands, in the order of their names.
pub static TABLE: &[Description] = table! {
    "append" 3 GROW ONE_KEY parse::append, "Appends to a value; its length afterwards.";
    "auth" -2 GREET NO_KEY parse::auth, "Refused: there are no passwords.";
    "client" -2 TALK NO_KEY parse::client, "ID, GETNAME, SETNAME and SETINFO of the connection.";
    "cluster" -2 TALK NO_KEY parse::cluster, "KEYSLOT: the hash slot of a key.";
    "command" -1 TALK NO_KEY parse::command, "What commands there are.";
    "config" -2 TALK NO_KEY parse::config, "GET: settings that match patterns.";
    "dbsize" 1 SCAN NO_KEY parse::dbsize, "How many keys there are, about.";
    "decr" 2 GROW ONE_KEY parse::decr,
        "Subtracts one from a number. Of a causal key: as INCR.";
    "decrby" 3 GROW ONE_KEY parse::decrby,
        "Subtracts from a number. Of a causal key: as INCR.";
    "del" -2 CHANGE ALL_KEYS parse::del, "Removes keys, each by itself; how many there were.";
    "echo" 2 TALK NO_KEY parse::echo, "The same bytes back.";
    "exists" -2 READ ALL_KEYS parse::exists, "How many of the keys there are.";
    "expire" -3 CHANGE ONE_KEY parse::expire, "A key expires after so many seconds.";
    "expireat" -3 CHANGE ONE_KEY parse::expireat, "A key expires at a time in seconds.";
    "expiretime" 2 READ ONE_KEY parse::expiretime, "When a key expires, in seconds.";
    "get" 2 READ ONE_KEY parse::get, "The value of a key.";
    "getdel" 2 CHANGE ONE_KEY parse::getdel, "Removes a key; the value that it had.";
    "getex" -2 CHANGE ONE_KEY parse::getex, "The value of a key; changes when it expires.";
    "getset" 3 GROW ONE_KEY parse::getset, "Sets a key; the value that it had.";
    "hello" -1 GREET NO_KEY parse::hello, "Which version of the protocol is spoken.";
    "incr" 2 GROW ONE_KEY parse::incr,
        "Adds one to a number. Of a causal key: to what this region has; of two at once in two \
         regions one result stays.";
    "incrby" 3 GROW ONE_KEY parse::incrby,
        "Adds to a number. Of a causal key: as INCR.";
    "info" -1 TALK NO_KEY parse::info, "What the server has to say of itself.";
    "meridian.cas" 4 GROW ONE_KEY parse::cas,
        "Compare and set: KEY EXPECTED NEW; 1 if the key had the expected value, else 0. Of a \
         causal key: in this region; another may change it at the same time, and one of both stays.";
    "meridian.client" 2 TALK NO_KEY parse::named,
        "ID: the connection is of that client; the node's number, and its epoch.";
    "meridian.once" -4 GROW NO_KEY parse::made_once,
        "SEQUENCE COMMAND...: makes a change of a key once, however often the client asks.";
    "meridian.session" -1 SCAN NO_KEY parse::session,
        "The token of this session, which has seen what this connection read and wrote of keys of \
         all regions; TOKEN [MILLISECONDS]: goes on as the session that gave it, in any region, \
         once that has all that the session saw of keys. What it saw of files is handed on in the \
         next token: `meridian fs after` has a mount wait for that, and `meridian fs token` prints \
         the token of a mount.";
    "meridian.settled" 4 SCAN NO_KEY parse::settled,
        "NODE EPOCH KEY: 1 if what that node was asked for a key may be asked again here.";
    "meridian.watch" 3 SCAN NO_KEY parse::watch,
        "KEY KEY or PREFIX PREFIX: tells what keys have, and each change.";
    "mget" -2 READ ALL_KEYS parse::mget,
        "The values of keys, each read by itself; of causal keys all at one moment.";
    "mset" -3 GROW PAIRS parse::mset, "Sets keys, each by itself.";
    "persist" 2 CHANGE ONE_KEY parse::persist, "A key does not expire any more.";
    "pexpire" -3 CHANGE ONE_KEY parse::pexpire, "A key expires after so many milliseconds.";
    "pexpireat" -3 CHANGE ONE_KEY parse::pexpireat, "A key expires at a time in milliseconds.";
    "pexpiretime" 2 READ ONE_KEY parse::pexpiretime, "When a key expires, in milliseconds.";
    "ping" -1 TALK NO_KEY parse::ping, "PONG.";
    "psetex" 4 GROW ONE_KEY parse::psetex, "Sets a key that expires after so many milliseconds.";
    "pttl" 2 READ ONE_KEY parse::pttl, "In how many milliseconds a key expires.";
    "quit" -1 GREET NO_KEY parse::quit, "Ends the connection.";
    "reset" 1 GREET NO_KEY parse::reset, "The connection is as if it were new.";
    "scan" -2 SCAN NO_KEY parse::scan, "Some keys, and the cursor for the next ones.";
    "select" 2 TALK NO_KEY parse::select, "Chooses database 0, the only one.";
    "set" -3 GROW ONE_KEY parse::set,
        "Sets a key: NX, XX or IFEQ VALUE; GET; EX, PX, EXAT, PXAT or KEEPTTL.";
    "setex" 4 GROW ONE_KEY parse::setex, "Sets a key that expires after so many seconds.";
    "setnx" 3 GROW ONE_KEY parse::setnx, "Sets a key that there is not; 1 if so.";
    "strlen" 2 READ ONE_KEY parse::strlen, "The length of a value.";
    "ttl" 2 READ ONE_KEY parse::ttl, "In how many seconds a key expires.";
    "type" 2 READ ONE_KEY parse::kind, "string, or none if there is no such key.";
    "unlink" -2 CHANGE ALL_KEYS parse::del, "The same as DEL.";
};
