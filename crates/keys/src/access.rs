//! What a command does to one key, as a function of what the key has. Replicas agree on results,
//! not on commands: one of them computes, so the time of day may be an argument.
//!
//! A key that has expired is as one that has nothing. It must be removed by an agreed change before
//! anybody is answered so: another replica's clock may not have got there yet. Hence
//! [`Modify::Expire`], and hence no change ever leaves an expired item in place.

use crate::item::{Item, Moment};
use crate::resp::{BULK_MAX, Reply, integer, write_integer};
use bytes::Bytes;

/// What a command does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It looks.
    Read(Read),
    /// It replaces whatever there is.
    Write(Item),
    /// What it does depends on what there is.
    Modify(Modify),
}

/// Looks at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The value.
    Get,
    /// The value's length in bytes.
    Length,
    /// 1 or 0.
    Exists,
    /// The type's name.
    Type,
    /// How long until it expires.
    TimeLeft(Unit),
    /// When it expires.
    Expires(Unit),
}

/// Units of time in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

impl Unit {
    /// How many milliseconds it has.
    pub fn millis(self) -> u64 {
        match self {
            Unit::Seconds => 1000,
            Unit::Milliseconds => 1,
        }
    }

    /// So many of it are nearest to so many milliseconds.
    fn of(self, millis: u64) -> Reply {
        let rounded = (millis + self.millis() / 2) / self.millis();
        Reply::Integer(i64::try_from(rounded).unwrap_or(i64::MAX))
    }
}

/// Changes a key, depending on what it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Modify {
    /// Replaces the value on a condition.
    Set {
        /// The new value.
        data: Bytes,
        /// When the new value expires.
        expiry: Expiry,
        /// On which condition.
        condition: Condition,
        /// What is answered.
        answer: Answer,
    },
    /// Adds to the number that the value spells.
    Add(i64),
    /// Appends to the value.
    Append(Bytes),
    /// Removes the key; 1 if there was one.
    Remove,
    /// Removes the key and answers with its value.
    Take,
    /// Answers with the value and changes when it expires.
    GetAndExpire(Expiry),
    /// Changes when it expires; 1 if so.
    ExpireAt(Moment, ExpireCondition),
    /// It does not expire any more; 1 if it would have.
    Persist,
    /// Removes the key if it has expired. Whoever finds an expired key asks for this first.
    Expire,
}

/// When a value expires that replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Never.
    Never,
    /// When that one would have.
    Kept,
    /// At this time.
    At(Moment),
}

/// On which condition a value is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// None.
    Always,
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There is this one.
    Equals(Bytes),
}

/// With what a conditional set is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// OK if it was set, nothing if not.
    Done,
    /// 1 if it was set, 0 if not.
    Count,
    /// The value that there was.
    Previous,
}

/// On which condition the time of expiry is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpireCondition {
    /// None.
    Always,
    /// It has none.
    None,
    /// It has one.
    Some,
    /// It has an earlier one.
    Later,
    /// It has a later one, or none.
    Earlier,
}

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has what it had.
    Keep,
    /// It has this.
    Put(Item),
    /// It has nothing.
    Remove,
}

impl Read {
    /// The answer if the key has `item`, which has not expired.
    pub fn answer(self, item: Option<&Item>, now: Moment) -> Reply {
        match (self, item) {
            (Read::Get, None) => Reply::Null,
            (Read::Get, Some(item)) => Reply::Bulk(item.data.clone()),
            (Read::Length | Read::Exists, None) => Reply::Integer(0),
            (Read::Length, Some(item)) => length(item.data.len()),
            (Read::Exists, Some(_)) => Reply::Integer(1),
            (Read::Type, None) => Reply::Simple("none"),
            (Read::Type, Some(_)) => Reply::Simple("string"),
            (Read::TimeLeft(_) | Read::Expires(_), None) => Reply::Integer(-2),
            (Read::TimeLeft(unit), Some(item)) => item.expires.map_or(Reply::Integer(-1), |at| {
                unit.of(u64::try_from(at.left_at(now).as_millis()).unwrap_or(u64::MAX))
            }),
            (Read::Expires(unit), Some(item)) => {
                item.expires.map_or(Reply::Integer(-1), |at| unit.of(at.0))
            }
        }
    }
}

impl Modify {
    /// What becomes of a key that has `item`, and the answer.
    pub fn apply(&self, item: Option<&Item>, now: Moment) -> (Change, Reply) {
        let live = item.filter(|item| !item.is_expired(now));
        let (change, reply) = self.apply_to(live, now);
        match change {
            Change::Keep if item.is_some() && live.is_none() => (Change::Remove, reply),
            change => (change, reply),
        }
    }

    fn apply_to(&self, item: Option<&Item>, now: Moment) -> (Change, Reply) {
        match self {
            Modify::Set { data, expiry, condition, answer } => {
                set(item, data, *expiry, condition, *answer)
            }
            Modify::Add(amount) => add(item, *amount),
            Modify::Append(tail) => append(item, tail),
            Modify::Remove => match item {
                None => (Change::Keep, Reply::Integer(0)),
                Some(_) => (Change::Remove, Reply::Integer(1)),
            },
            Modify::Take => match item {
                None => (Change::Keep, Reply::Null),
                Some(item) => (Change::Remove, Reply::Bulk(item.data.clone())),
            },
            Modify::GetAndExpire(expiry) => match item {
                None => (Change::Keep, Reply::Null),
                Some(item) => (expire(item, *expiry, now), Reply::Bulk(item.data.clone())),
            },
            Modify::ExpireAt(at, condition) => match item {
                Some(item) if condition.holds(item.expires, *at) => {
                    (expire(item, Expiry::At(*at), now), Reply::Integer(1))
                }
                _ => (Change::Keep, Reply::Integer(0)),
            },
            Modify::Persist => match item {
                Some(Item { data, expires: Some(_) }) => {
                    (Change::Put(Item::new(data.clone())), Reply::Integer(1))
                }
                _ => (Change::Keep, Reply::Integer(0)),
            },
            Modify::Expire => (Change::Keep, Reply::OK),
        }
    }

    /// Whether it can make the key take more memory.
    pub fn grows(&self) -> bool {
        matches!(self, Modify::Set { .. } | Modify::Add(_) | Modify::Append(_))
    }
}

impl Condition {
    fn holds(&self, item: Option<&Item>) -> bool {
        match self {
            Condition::Always => true,
            Condition::Absent => item.is_none(),
            Condition::Present => item.is_some(),
            Condition::Equals(data) => item.is_some_and(|item| item.data == *data),
        }
    }
}

impl ExpireCondition {
    fn holds(self, before: Option<Moment>, after: Moment) -> bool {
        match self {
            ExpireCondition::Always => true,
            ExpireCondition::None => before.is_none(),
            ExpireCondition::Some => before.is_some(),
            ExpireCondition::Later => before.is_some_and(|before| before < after),
            ExpireCondition::Earlier => before.is_none_or(|before| before > after),
        }
    }
}

fn length(len: usize) -> Reply {
    Reply::Integer(i64::try_from(len).expect("a length in memory"))
}

fn set(
    item: Option<&Item>,
    data: &Bytes,
    expiry: Expiry,
    condition: &Condition,
    answer: Answer,
) -> (Change, Reply) {
    let is_set = condition.holds(item);
    let reply = match answer {
        Answer::Done if is_set => Reply::OK,
        Answer::Done => Reply::Null,
        Answer::Count => Reply::Integer(i64::from(is_set)),
        Answer::Previous => item.map_or(Reply::Null, |item| Reply::Bulk(item.data.clone())),
    };
    if !is_set {
        return (Change::Keep, reply);
    }
    let expires = match expiry {
        Expiry::Never => None,
        Expiry::Kept => item.and_then(|item| item.expires),
        Expiry::At(at) => Some(at),
    };
    (Change::Put(Item { data: data.clone(), expires }), reply)
}

fn add(item: Option<&Item>, amount: i64) -> (Change, Reply) {
    let before = match item {
        None => Some(0),
        Some(item) => integer(&item.data),
    };
    let Some(before) = before else {
        return (Change::Keep, Reply::error("value is not an integer or out of range"));
    };
    let Some(after) = before.checked_add(amount) else {
        return (Change::Keep, Reply::error("increment or decrement would overflow"));
    };
    let mut data = Vec::with_capacity(20);
    write_integer(after, &mut data);
    let expires = item.and_then(|item| item.expires);
    (Change::Put(Item { data: data.into(), expires }), Reply::Integer(after))
}

fn append(item: Option<&Item>, tail: &Bytes) -> (Change, Reply) {
    let before = item.map_or(&[][..], |item| &item.data);
    if before.len() + tail.len() > BULK_MAX {
        let why = format!("the value would be longer than {BULK_MAX} bytes");
        return (Change::Keep, Reply::error(why));
    }
    let data = Bytes::from([before, tail].concat());
    let reply = length(data.len());
    (Change::Put(Item { data, expires: item.and_then(|item| item.expires) }), reply)
}

/// A key whose time is set to one that has passed is removed.
fn expire(item: &Item, expiry: Expiry, now: Moment) -> Change {
    let expires = match expiry {
        Expiry::Never => None,
        Expiry::Kept => item.expires,
        Expiry::At(at) if at <= now => return Change::Remove,
        Expiry::At(at) => Some(at),
    };
    if expires == item.expires {
        return Change::Keep;
    }
    Change::Put(Item { data: item.data.clone(), expires })
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
