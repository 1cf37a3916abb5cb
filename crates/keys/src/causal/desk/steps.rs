//! What is asked of the keys for a part of a request, and what their answers mean.

use super::{Counter, Keys};
use crate::access::{Access, Modify, Read};
use crate::causal::message::{Command, Found, Output, Update};
use crate::causal::token::Token;
use crate::change::{Rmw, unpack};
use crate::desk::passing::Walk;
use crate::desk::tasks::page_of;
use crate::desk::{Now, not_serving};
use crate::item::{Item, Moment};
use crate::resp::Reply;
use bytes::Bytes;
use meridian_core::{Time, Value};
use meridian_eunomia::{self as eunomia, Order, Seen, Timestamp};
use meridian_hermes::{Action, Refusal};

/// What the keys are asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// What the client wants of a key.
    Access(Bytes, Access),
    /// The values of several keys.
    Snapshot(Vec<Bytes>),
    /// To show no value of an update of this key that has expired; then this is done.
    Lapse(Bytes, Order, Box<Step>),
    /// To say when this region has all that the session saw; until then.
    GoOn(Box<Token>, Time),
}

/// What comes next.
pub(super) enum Next {
    /// This is the reply; what the session has seen with it.
    Done(Reply, Seen),
    /// The keys are to be asked for this.
    Ask(Step),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Came {
    Value(Vec<Found>, Time),
    Updated(Bytes, Seen),
    Kept(Bytes, Seen, Time),
    Lapsed,
    Reached,
    Aborted,
    Refused(Refusal),
    Denied(eunomia::Refusal),
    Unknown,
}

impl Came {
    pub fn is_not_serving(&self) -> bool {
        matches!(self, Came::Refused(Refusal::NotServing))
    }

    pub fn is_reached(&self) -> bool {
        matches!(self, Came::Reached)
    }
}

/// To which question an output is the answer, and what it is.
pub(super) fn came_of(output: Output) -> Option<(u64, Came)> {
    Some(match output {
        Output::Value { token, found, until } => (token, Came::Value(vec![found], until)),
        Output::Values { token, found, until } => (token, Came::Value(found, until)),
        Output::Updated { token, answer, seen } => (token, Came::Updated(answer, seen)),
        Output::Kept { token, answer, seen, until } => (token, Came::Kept(answer, seen, until)),
        Output::Lapsed { token } => (token, Came::Lapsed),
        Output::Reached { token } => (token, Came::Reached),
        Output::Aborted { token } => (token, Came::Aborted),
        Output::Refused { token, refusal } => (token, Came::Refused(refusal)),
        Output::Denied { token, why } => (token, Came::Denied(why)),
        Output::Unknown { token } => (token, Came::Unknown),
        Output::Replica(_) | Output::Applied { .. } | Output::Word(_) => return None,
    })
}

/// Whether a value has expired.
fn has_expired(found: &Found, now: Moment) -> bool {
    let item = found.value.as_ref().map(Item::decode);
    item.is_some_and(|item| item.is_ok_and(|item| item.is_expired(now)))
}

/// What a read of this value answers.
fn read_of(read: Read, found: &Found, now: Moment) -> Reply {
    match found.value.as_ref().map(Item::decode) {
        None => read.answer(None, now),
        Some(Ok(item)) => read.answer(Some(&item), now),
        Some(Err(error)) => Reply::error(error.to_string()),
    }
}

impl Step {
    fn lapse(self, key: &Bytes, found: &Found) -> Next {
        Next::Ask(Step::Lapse(key.clone(), found.order, Box::new(self)))
    }

    /// Does it with what is in memory if that can be, and says what is to be asked if not.
    pub fn at_once(self, now: Now, keys: &Keys, counter: &impl Counter) -> Next {
        match &self {
            Step::Access(key, Access::Read(_)) => match keys.read(now.time, key) {
                Some(found) => self.show(now, vec![found], keys.lease(), counter),
                None => Next::Ask(self),
            },
            // An RMW finds what is held now, most likely; what has expired is no more (S3).
            Step::Access(key, Access::Modify(_)) => {
                let latest = keys.latest(key);
                if has_expired(&latest, now.moment) {
                    let key = key.clone();
                    return self.lapse(&key, &latest);
                }
                Next::Ask(self)
            }
            Step::Access(_, Access::Write(_))
            | Step::Snapshot(_)
            | Step::Lapse(..)
            | Step::GoOn(..) => Next::Ask(self),
        }
    }

    /// Shows what was read by a lease that ends then (S2).
    fn show(self, now: Now, found: Vec<Found>, until: Time, counter: &impl Counter) -> Next {
        if counter.time() >= until {
            return Next::Ask(self);
        }
        let keys: Vec<Bytes> = match &self {
            Step::Access(key, _) => vec![key.clone()],
            Step::Snapshot(keys) => keys.clone(),
            Step::Lapse(..) | Step::GoOn(..) => Vec::new(),
        };
        let mut shown = keys.iter().zip(&found);
        if let Some((key, expired)) = shown.find(|(_, found)| has_expired(found, now.moment)) {
            return self.lapse(key, expired);
        }
        let mut seen = Seen::default();
        found.iter().for_each(|found| seen.join(&found.seen));
        let reply = match &self {
            Step::Access(_, Access::Read(read)) => read_of(*read, &found[0], now.moment),
            _ => Reply::Array(
                found.iter().map(|found| read_of(Read::Get, found, now.moment)).collect(),
            ),
        };
        Next::Done(reply, seen)
    }

    /// What the keys are asked.
    pub fn command(&self, token: u64, seen: &Seen, now: Now) -> Command<Rmw> {
        match self {
            Step::Access(key, Access::Read(_)) => Command::Read { token, key: key.clone() },
            Step::Access(key, Access::Write(item)) => {
                let action = Action::Write(Some(item.encode()));
                Command::Update(Update { token, key: key.clone(), action, seen: *seen })
            }
            Step::Access(key, Access::Modify(modify)) => {
                let modify: Modify = modify.clone();
                let action = Action::Modify(Rmw { modify, now: now.moment });
                Command::Update(Update { token, key: key.clone(), action, seen: *seen })
            }
            Step::Snapshot(keys) => Command::ReadAll { token, keys: keys.clone() },
            Step::Lapse(key, order, _) => Command::Lapse { token, key: key.clone(), order: *order },
            Step::GoOn(moved, _) => Command::Await { token, seen: moved.keys.seen().vector },
        }
    }

    /// What comes next when the keys have answered.
    pub fn after(self, now: Now, came: Came, keys: &Keys, counter: &impl Counter) -> Next {
        let done = |reply| Next::Done(reply, Seen::default());
        let error = |why: &str| done(Reply::Error(why.to_string().into()));
        match (came, self) {
            (Came::Value(found, until), step) => step.show(now, found, until, counter),
            (Came::Updated(_, seen), Step::Access(_, Access::Write(_))) => {
                Next::Done(Reply::OK, seen)
            }
            (Came::Updated(answer, seen), _) => Next::Done(unpack(&answer), seen),
            // An RMW that changes nothing is a read.
            (Came::Kept(_, _, until), step) if counter.time() >= until => Next::Ask(step),
            (Came::Kept(answer, seen, _), _) => Next::Done(unpack(&answer), seen),
            (Came::Lapsed, Step::Lapse(_, _, then)) => then.at_once(now, keys, counter),
            (Came::Lapsed, step) => Next::Ask(step),
            (Came::Reached, _) => done(Reply::OK),
            (Came::Aborted, _) => {
                error("TRYAGAIN others changed the keys each time; nothing was done")
            }
            (Came::Refused(Refusal::NotServing), _) => done(not_serving()),
            (Came::Refused(Refusal::Full), _) if keys.is_full() => {
                error("BUSY other regions lack so many updates of this node that it takes no more")
            }
            (Came::Refused(why), _) => error(&format!("BUSY {why}")),
            (Came::Denied(why), _) => error(&denied(why)),
            (Came::Unknown, _) => {
                error("UNKNOWN this node was removed; the change may have been made or not")
            }
        }
    }
}

/// Why a session cannot go on in this region.
fn denied(why: eunomia::Refusal) -> String {
    let code = match why {
        eunomia::Refusal::Full => "BUSY",
        eunomia::Refusal::NotServing => "NOTSERVING",
        eunomia::Refusal::Dropped(_) => "DROPPED",
    };
    format!("{code} {why}")
}

/// Why a session cannot go on here yet.
pub(super) fn lacks(step: &Step, keys: &Keys) -> Reply {
    let Step::GoOn(moved, _) = step else { return not_serving() };
    let behind = |ts: Timestamp, has: Timestamp| ts.0.saturating_sub(has.0) / 1_000_000;
    let seen = &moved.keys.seen().vector;
    let others = keys.regions().topology().others(keys.region());
    let lacking: Vec<String> = others
        .filter_map(|region| {
            let (has, _) = keys.site_time(region);
            let lacks = behind(seen[region], has);
            (has < seen[region]).then(|| format!("{lacks} ms of region {}", region.0))
        })
        .collect();
    let lacking = if lacking.is_empty() { "nothing any more".into() } else { lacking.join(", ") };
    let why = format!(
        "TIMEOUT this region does not have all that the session saw: it lacks {lacking}; ask again, \
         or for longer: MERIDIAN.SESSION TOKEN MILLISECONDS"
    );
    Reply::Error(why.into())
}

/// Where to go on, 0 at the end, and some keys.
pub(super) fn some_keys(now: Now, walk: &Walk, keys: &Keys) -> Reply {
    let replica = keys.replica();
    let live = |value: &Value| {
        let held = crate::causal::held(Some(value)).and_then(|update| update.value);
        held.is_some_and(|item| Item::is_live(&item, now.moment))
    };
    page_of(walk, replica.walk(walk.from), live)
}
