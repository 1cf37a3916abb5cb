//! Reads the arguments of each command.

use super::{Combined, Command, Connection, Describe, KEY_MAX, Scan, Watch, wrong_number};
use crate::access::{Access, Answer, Condition, ExpireCondition, Expiry, Modify, Read, Unit};
use crate::causal::desk::{AWAIT, AWAIT_MAX};
use crate::item::{Item, Moment};
use crate::resp::{Reply, Request, integer};
use bytes::Bytes;
use meridian_core::{ClientId, NodeId};
use meridian_hermes::Epoch;
use std::str::FromStr;
use std::time::Duration;

pub(super) type Parse = for<'a> fn(&Request<'a>, Moment) -> Parsed<'a>;
type Parsed<'a> = Result<Command<'a>, Reply>;

/// How many keys SCAN looks at unless it is told.
const SCAN_COUNT: usize = 10;

fn syntax() -> Reply {
    Reply::error("syntax error")
}

fn not_an_integer() -> Reply {
    Reply::error("value is not an integer or out of range")
}

/// An argument that is known to be there by the command's number of arguments.
fn at<'a>(request: &Request<'a>, index: usize) -> &'a [u8] {
    request.get(index).unwrap_or_default()
}

fn key<'a>(request: &Request<'a>) -> Result<&'a [u8], Reply> {
    checked(at(request, 1))
}

fn checked(key: &[u8]) -> Result<&[u8], Reply> {
    if key.len() > KEY_MAX {
        return Err(Reply::error(format!("a key is longer than {KEY_MAX} bytes")));
    }
    Ok(key)
}

fn number(request: &Request<'_>, index: usize) -> Result<i64, Reply> {
    integer(at(request, index)).ok_or_else(not_an_integer)
}

fn owned(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn read<'a>(request: &Request<'a>, read: Read) -> Parsed<'a> {
    Ok(Command::One { key: key(request)?, access: Access::Read(read) })
}

fn modify<'a>(request: &Request<'a>, modify: Modify) -> Parsed<'a> {
    Ok(Command::One { key: key(request)?, access: Access::Modify(modify) })
}

fn of_all<'a>(request: &Request<'a>, access: Access, combined: Combined) -> Parsed<'a> {
    let each = request.from(1).map(|key| Ok((checked(key)?, access.clone())));
    Ok(Command::Many { each: each.collect::<Result<_, Reply>>()?, combined })
}

pub(super) fn get<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::Get)
}

pub(super) fn strlen<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::Length)
}

pub(super) fn kind<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::Type)
}

pub(super) fn ttl<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::TimeLeft(Unit::Seconds))
}

pub(super) fn pttl<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::TimeLeft(Unit::Milliseconds))
}

pub(super) fn expiretime<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::Expires(Unit::Seconds))
}

pub(super) fn pexpiretime<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    read(request, Read::Expires(Unit::Milliseconds))
}

pub(super) fn mget<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    of_all(request, Access::Read(Read::Get), Combined::List)
}

pub(super) fn exists<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    of_all(request, Access::Read(Read::Exists), Combined::Sum)
}

pub(super) fn del<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    of_all(request, Access::Modify(Modify::Remove), Combined::Sum)
}

pub(super) fn mset<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    if request.len().is_multiple_of(2) {
        return Err(wrong_number("mset"));
    }
    let (keys, values) = (request.from(1).step_by(2), request.from(2).step_by(2));
    let set = |(key, value)| Ok((checked(key)?, Access::Write(Item::new(owned(value)))));
    let each = keys.zip(values).map(set).collect::<Result<_, Reply>>()?;
    Ok(Command::Many { each, combined: Combined::Done })
}

pub(super) fn incr<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Add(1))
}

pub(super) fn decr<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Add(-1))
}

pub(super) fn incrby<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Add(number(request, 2)?))
}

pub(super) fn decrby<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let amount = number(request, 2)?.checked_neg();
    modify(request, Modify::Add(amount.ok_or_else(|| Reply::error("decrement would overflow"))?))
}

pub(super) fn append<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Append(owned(at(request, 2))))
}

pub(super) fn getdel<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Take)
}

pub(super) fn persist<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    modify(request, Modify::Persist)
}

pub(super) fn setnx<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    set_if(request, 2, Condition::Absent, Answer::Count)
}

pub(super) fn getset<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    set_if(request, 2, Condition::Always, Answer::Previous)
}

pub(super) fn cas<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    set_if(request, 3, Condition::Equals(owned(at(request, 2))), Answer::Count)
}

fn set_if<'a>(
    request: &Request<'a>,
    value: usize,
    condition: Condition,
    answer: Answer,
) -> Parsed<'a> {
    let (data, expiry) = (owned(at(request, value)), Expiry::Never);
    modify(request, Modify::Set { data, expiry, condition, answer })
}

pub(super) fn setex<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    set_expiring(request, now, Unit::Seconds, "setex")
}

pub(super) fn psetex<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    set_expiring(request, now, Unit::Milliseconds, "psetex")
}

fn set_expiring<'a>(request: &Request<'a>, now: Moment, unit: Unit, name: &str) -> Parsed<'a> {
    let expires = Some(positive(request.get(2), unit, now, name)?);
    let item = Item { data: owned(at(request, 3)), expires };
    Ok(Command::One { key: key(request)?, access: Access::Write(item) })
}

/// The time that is meant by an argument which counts from `from`, and must be above zero.
fn positive(
    argument: Option<&[u8]>,
    unit: Unit,
    from: Moment,
    name: &str,
) -> Result<Moment, Reply> {
    let amount = integer(argument.ok_or_else(syntax)?).ok_or_else(not_an_integer)?;
    let time = if amount > 0 { after(amount, unit, from) } else { None };
    time.ok_or_else(|| Reply::error(format!("invalid expire time in '{name}' command")))
}

/// So much after `from`; before 1970 is 1970.
fn after(amount: i64, unit: Unit, from: Moment) -> Option<Moment> {
    let millis = i128::from(amount) * i128::from(unit.millis()) + i128::from(from.0);
    u64::try_from(millis.max(0)).ok().filter(|at| i64::try_from(*at).is_ok()).map(Moment)
}

/// The options of commands that set when a key expires: the time, if `option` is one of them.
fn expiry(
    option: &[u8],
    argument: Option<&[u8]>,
    now: Moment,
    name: &str,
) -> Result<Option<Expiry>, Reply> {
    let (unit, from) = match option {
        b"EX" => (Unit::Seconds, now),
        b"PX" => (Unit::Milliseconds, now),
        b"EXAT" => (Unit::Seconds, Moment(0)),
        b"PXAT" => (Unit::Milliseconds, Moment(0)),
        _ => return Ok(None),
    };
    Ok(Some(Expiry::At(positive(argument, unit, from, name)?)))
}

/// Gives `slot` its only value.
fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), Reply> {
    if slot.replace(value).is_some() { Err(syntax()) } else { Ok(()) }
}

pub(super) fn set<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    let (mut condition, mut expires, mut answer) = (None, None, None);
    let mut options = request.from(3);
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => once(&mut condition, Condition::Absent)?,
            b"XX" => once(&mut condition, Condition::Present)?,
            b"IFEQ" => {
                let expected = options.next().ok_or_else(syntax)?;
                once(&mut condition, Condition::Equals(owned(expected)))?;
            }
            b"GET" => once(&mut answer, Answer::Previous)?,
            b"KEEPTTL" => once(&mut expires, Expiry::Kept)?,
            option @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") => {
                let at = expiry(option, options.next(), now, "set")?;
                once(&mut expires, at.ok_or_else(syntax)?)?;
            }
            _ => return Err(syntax()),
        }
    }
    let data = owned(at(request, 2));
    let access = match (condition, expires, answer) {
        (None, None, None) => Access::Write(Item::new(data)),
        (None, Some(Expiry::At(at)), None) => Access::Write(Item { data, expires: Some(at) }),
        (condition, expires, answer) => Access::Modify(Modify::Set {
            data,
            expiry: expires.unwrap_or(Expiry::Never),
            condition: condition.unwrap_or(Condition::Always),
            answer: answer.unwrap_or(Answer::Done),
        }),
    };
    Ok(Command::One { key: key(request)?, access })
}

pub(super) fn getex<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    let mut expires = None;
    let mut options = request.from(2);
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"PERSIST" => once(&mut expires, Expiry::Never)?,
            option @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") => {
                let at = expiry(option, options.next(), now, "getex")?;
                once(&mut expires, at.ok_or_else(syntax)?)?;
            }
            _ => return Err(syntax()),
        }
    }
    match expires {
        None => read(request, Read::Get),
        Some(expiry) => modify(request, Modify::GetAndExpire(expiry)),
    }
}

pub(super) fn expire<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    expire_after(request, Unit::Seconds, now, "expire")
}

pub(super) fn pexpire<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    expire_after(request, Unit::Milliseconds, now, "pexpire")
}

pub(super) fn expireat<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    expire_after(request, Unit::Seconds, Moment(0), "expireat")
}

pub(super) fn pexpireat<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    expire_after(request, Unit::Milliseconds, Moment(0), "pexpireat")
}

fn expire_after<'a>(request: &Request<'a>, unit: Unit, from: Moment, name: &str) -> Parsed<'a> {
    let condition = match request.get(3).map(<[u8]>::to_ascii_uppercase).as_deref() {
        None => ExpireCondition::Always,
        Some(b"NX") => ExpireCondition::None,
        Some(b"XX") => ExpireCondition::Some,
        Some(b"GT") => ExpireCondition::Later,
        Some(b"LT") => ExpireCondition::Earlier,
        Some(_) => return Err(syntax()),
    };
    if request.len() > 4 {
        return Err(syntax());
    }
    let at = after(number(request, 2)?, unit, from);
    let at = at.ok_or_else(|| Reply::error(format!("invalid expire time in '{name}' command")))?;
    modify(request, Modify::ExpireAt(at, condition))
}

pub(super) fn scan<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let cursor = std::str::from_utf8(at(request, 1)).ok().and_then(|cursor| cursor.parse().ok());
    let cursor = cursor.ok_or_else(|| Reply::error("invalid cursor"))?;
    let mut scan = Scan { cursor, pattern: None, count: SCAN_COUNT, none: false };
    let mut options = request.from(2);
    while let Some(option) = options.next() {
        let argument = options.next().ok_or_else(syntax)?;
        match option.to_ascii_uppercase().as_slice() {
            b"MATCH" => scan.pattern = Some(Bytes::copy_from_slice(argument)),
            b"TYPE" => scan.none = !argument.eq_ignore_ascii_case(b"string"),
            b"COUNT" => {
                let count = integer(argument).ok_or_else(not_an_integer)?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                scan.count = count.ok_or_else(syntax)?;
            }
            _ => return Err(syntax()),
        }
    }
    Ok(Command::Scan(scan))
}

pub(super) fn dbsize<'a>(_: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Size)
}

pub(super) fn ping<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    if request.len() > 2 {
        return Err(wrong_number("ping"));
    }
    Ok(Command::Connection(Connection::Ping(request.get(1))))
}

pub(super) fn echo<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Connection(Connection::Echo(at(request, 1))))
}

pub(super) fn hello<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let version = match request.get(1) {
        None => None,
        Some(version) => {
            let why = || Reply::error("Protocol version is not an integer or out of range");
            Some(integer(version).ok_or_else(why)?)
        }
    };
    let (mut name, mut authenticates) = (None, false);
    let mut options = request.from(2);
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"AUTH" => {
                options.nth(1).ok_or_else(syntax)?;
                authenticates = true;
            }
            b"SETNAME" => name = Some(options.next().ok_or_else(syntax)?),
            _ => return Err(syntax()),
        }
    }
    Ok(Command::Connection(Connection::Hello { version, name, authenticates }))
}

pub(super) fn auth<'a>(_: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Connection(Connection::Authenticate))
}

pub(super) fn select<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Connection(Connection::Select(number(request, 1)?)))
}

pub(super) fn reset<'a>(_: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Connection(Connection::Reset))
}

pub(super) fn quit<'a>(_: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Connection(Connection::Quit))
}

/// The second word of a command that has several forms.
fn form(request: &Request<'_>) -> Vec<u8> {
    at(request, 1).to_ascii_uppercase()
}

fn no_such_form(request: &Request<'_>, name: &str) -> Reply {
    let form =
        String::from_utf8_lossy(&at(request, 1)[..at(request, 1).len().min(64)]).into_owned();
    Reply::error(format!("unknown subcommand or wrong number of arguments for '{name} {form}'"))
}

pub(super) fn client<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let connection = match (form(request).as_slice(), request.len()) {
        (b"ID", 2) => Connection::Id,
        (b"GETNAME", 2) => Connection::Name,
        (b"SETNAME", 3) => Connection::SetName(at(request, 2)),
        (b"SETINFO", 4) => Connection::SetInfo,
        _ => return Err(no_such_form(request, "client")),
    };
    Ok(Command::Connection(connection))
}

pub(super) fn command<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    if request.len() == 1 {
        return Ok(Command::Describe(Describe::All));
    }
    let rest = || request.from(2).collect::<Vec<_>>();
    let describe = match (form(request).as_slice(), request.len()) {
        (b"COUNT", 2) => Describe::Count,
        (b"LIST", 2) => Describe::List,
        (b"INFO", 2) => Describe::All,
        (b"INFO", _) => Describe::Info(rest()),
        (b"DOCS", _) => Describe::Docs(rest()),
        (b"GETKEYS", 3..) => Describe::Keys(rest()),
        _ => return Err(no_such_form(request, "command")),
    };
    Ok(Command::Describe(describe))
}

pub(super) fn config<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    match (form(request).as_slice(), request.len()) {
        (b"GET", 3..) => Ok(Command::Settings(request.from(2).collect())),
        _ => Err(no_such_form(request, "config")),
    }
}

pub(super) fn info<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Info(request.from(1).collect()))
}

/// An argument that is a number without a sign.
fn natural<T: FromStr>(request: &Request<'_>, index: usize) -> Result<T, Reply> {
    let text = std::str::from_utf8(at(request, index)).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(not_an_integer)
}

pub(super) fn cluster<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    match (form(request).as_slice(), request.len()) {
        (b"KEYSLOT", 3) => Ok(Command::Slot(at(request, 2))),
        _ => Err(no_such_form(request, "cluster")),
    }
}

pub(super) fn named<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    Ok(Command::Named(ClientId(natural(request, 1)?)))
}

pub(super) fn made_once<'a>(request: &Request<'a>, now: Moment) -> Parsed<'a> {
    let sequence = natural(request, 1)?;
    let inner = request.rest(2).ok_or_else(syntax)?;
    match Command::parse(&inner, now)? {
        Command::One { key, access: access @ (Access::Write(_) | Access::Modify(_)) } => {
            Ok(Command::Once { sequence, key, access })
        }
        // Of one key DEL is a change of one key.
        Command::Many { mut each, combined: Combined::Sum } if each.len() == 1 => {
            match each.pop() {
                Some((key, access @ Access::Modify(_))) => {
                    Ok(Command::Once { sequence, key, access })
                }
                _ => Err(not_once()),
            }
        }
        _ => Err(not_once()),
    }
}

fn not_once() -> Reply {
    Reply::error("MERIDIAN.ONCE takes a command that changes one key")
}

pub(super) fn settled<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let (node, epoch) = (NodeId(natural(request, 1)?), Epoch(natural(request, 2)?));
    Ok(Command::Settled { node, epoch, key: checked(at(request, 3))? })
}

/// The token of a session, and how long to wait in milliseconds.
pub(super) fn session<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    if request.len() > 3 {
        return Err(wrong_number("meridian.session"));
    }
    let wait = match request.get(2) {
        None => AWAIT,
        Some(_) => Duration::from_millis(natural(request, 2)?).min(AWAIT_MAX),
    };
    Ok(Command::Session(request.get(1), wait))
}

pub(super) fn watch<'a>(request: &Request<'a>, _: Moment) -> Parsed<'a> {
    let keys = checked(at(request, 2))?;
    match form(request).as_slice() {
        b"KEY" => Ok(Command::Watch(Watch::Key(keys))),
        b"PREFIX" => Ok(Command::Watch(Watch::Prefix(keys))),
        _ => Err(syntax()),
    }
}
