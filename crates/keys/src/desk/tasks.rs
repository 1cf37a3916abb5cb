//! What is asked of the replica of a shard, by clients of any thread: the questions under way, and
//! what their answers mean.

use super::passing::{Part, Walk, Wish};
use super::{ClientNumber, Counter, Now, Replica, not_serving};
use crate::access::{Access, Modify, Read};
use crate::change::{Rmw, unpack};
use crate::glob::matches;
use crate::item::{Item, Moment};
use crate::resp::Reply;
use crate::slots::Shard;
use bytes::Bytes;
use meridian_core::{Key, MessageId, NodeId, Time, Value};
use meridian_hermes::{Action, Answer, Command as Asked, Epoch, Refusal, Request};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long a request waits for a replica that has no lease, as after a pause or a start, before
/// it is refused: many round trips within a region.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// So many keys are looked at for one SCAN at most.
const SCAN_MAX: usize = 10_000;

/// What is asked of the replica.
#[derive(Debug)]
struct Waiting {
    /// Whose desk is to be told.
    from: Shard,
    part: Part,
    key: Bytes,
    id: Option<MessageId>,
    step: Step,
}

/// What the replica was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// What the client wants.
    Access(Access),
    /// To remove a key that has expired, since the client wants to read it.
    Expire(Read),
    /// To say that it has a lease, for a walk over its keys.
    Walk(Walk),
}

/// The reply to a part of a request.
#[derive(Debug)]
pub(super) struct Settled {
    /// Whose desk is to be told.
    pub from: Shard,
    pub part: Part,
    pub reply: Reply,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    waiting: BTreeMap<u64, Waiting>,
    /// What a client wants of a key while an earlier wish of it on that key is with the replica:
    /// that answers reads before updates, and refuses some. So one is asked after the other (D3).
    behind: BTreeMap<(Shard, ClientNumber, Bytes), VecDeque<(Part, Wish)>>,
    /// Tokens of what the replica did not take for want of a lease, and since when, in order.
    unserved: VecDeque<(Time, u64)>,
    tokens: u64,
}

impl Tasks {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.behind.is_empty()
    }

    /// Answers from the replica's memory if it can, and else asks the replica, after what the
    /// client wanted of the key before.
    pub fn begin(
        &mut self,
        now: Now,
        (from, part): (Shard, Part),
        wish: Wish,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Option<Reply> {
        if !self.behind.is_empty()
            && let Some(behind) = self.behind.get_mut(&(from, part.client, wish.key.clone()))
        {
            behind.push_back((part, wish));
            return None;
        }
        self.start(now, (from, part), wish, replica, counter)
    }

    fn start(
        &mut self,
        now: Now,
        (from, part): (Shard, Part),
        wish: Wish,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Option<Reply> {
        let Wish { key, id, access } = wish;
        let mut step = Step::Access(access);
        if let Step::Access(Access::Read(read)) = step
            && let Some(found) = replica.read(now.time, &key)
        {
            let found = found.map(Value::to_bytes);
            match shown(now, read, found.as_ref(), replica.lease(), counter) {
                Ok(reply) => return Some(reply),
                Err(first) => step = first,
            }
        }
        self.behind.entry((from, part.client, key.clone())).or_default();
        self.ask(now, Waiting { from, part, key, id, step }, counter);
        None
    }

    /// Some keys of the replica, and where to go on, now or when it has a lease. A key that is
    /// there all the time is shown by a walk from the beginning to the end; one that comes or goes
    /// meanwhile may be.
    pub fn walk(
        &mut self,
        now: Now,
        (from, part): (Shard, Part),
        walk: Walk,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Option<Reply> {
        if replica.serves(now.time) {
            return Some(some_keys(now.moment, &walk, replica));
        }
        let (key, id, step) = (Bytes::new(), None, Step::Walk(walk));
        self.ask(now, Waiting { from, part, key, id, step }, counter);
        None
    }

    fn ask(&mut self, now: Now, waiting: Waiting, counter: &mut impl Counter) {
        self.tokens += 1;
        let token = self.tokens;
        counter.ask(waiting.step.ask(token, &waiting.key, waiting.id, now.moment));
        self.waiting.insert(token, waiting);
    }

    /// What was asked has this reply; so has what waited behind it and could be answered at once.
    fn settle(
        &mut self,
        now: Now,
        (token, reply): (u64, Reply),
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<Settled> {
        let Some(Waiting { from, part, key, step, .. }) = self.waiting.remove(&token) else {
            return Vec::new();
        };
        let mut settled = vec![Settled { from, part, reply }];
        if matches!(step, Step::Walk(_)) {
            return settled;
        }
        let of = (from, part.client, key);
        while let Some((part, wish)) = self.behind.get_mut(&of).and_then(VecDeque::pop_front) {
            match self.start(now, (from, part), wish, replica, counter) {
                Some(reply) => settled.push(Settled { from, part, reply }),
                None => return settled,
            }
        }
        self.behind.remove(&of);
        settled
    }

    /// What was asked has waited for too long, and what waited behind it, too.
    fn refuse(&mut self, token: u64) -> Vec<Settled> {
        let Some(Waiting { from, part, key, step, .. }) = self.waiting.remove(&token) else {
            return Vec::new();
        };
        let refused = |part| Settled { from, part, reply: not_serving() };
        let behind = match step {
            Step::Walk(_) => None,
            Step::Access(_) | Step::Expire(_) => self.behind.remove(&(from, part.client, key)),
        };
        let behind = behind.into_iter().flatten().map(|(part, _)| part);
        [part].into_iter().chain(behind).map(refused).collect()
    }

    /// The replica has answered: replies, or else more is asked of it.
    pub fn on_answer(
        &mut self,
        now: Now,
        token: u64,
        answer: Answer,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<Settled> {
        let Some(waiting) = self.waiting.get_mut(&token) else { return Vec::new() };
        // What has a name is not taken by a replica that was away meanwhile (N1).
        let may_wait = waiting.id.is_none() || replica.is_live();
        if answer == Answer::Refused(Refusal::NotServing) && may_wait {
            self.unserved.push_back((now.time, token));
            return Vec::new();
        }
        match reply_to(now, &waiting.step, answer, replica, counter) {
            Ok(reply) => self.settle(now, (token, reply), replica, counter),
            Err(step) => {
                counter.ask(step.ask(token, &waiting.key, waiting.id, now.moment));
                waiting.step = step;
                Vec::new()
            }
        }
    }

    /// When [`Tasks::look_again`] must be called.
    pub fn due(&self) -> Option<Time> {
        self.unserved.front().map(|(since, _)| *since + PATIENCE)
    }

    /// Asks once more for what the replica did not take, if it serves now, and refuses what has
    /// waited for too long.
    pub fn look_again(
        &mut self,
        now: Now,
        replica: &Replica,
        counter: &mut impl Counter,
    ) -> Vec<Settled> {
        let mut refused = Vec::new();
        if self.unserved.is_empty() {
            return refused;
        }
        let (serves, live) = (replica.serves(now.time), replica.is_live());
        for (since, token) in std::mem::take(&mut self.unserved) {
            let Some(waiting) = self.waiting.get(&token) else { continue };
            if serves {
                counter.ask(waiting.step.ask(token, &waiting.key, waiting.id, now.moment));
            } else if now.time < since + PATIENCE && (live || waiting.id.is_none()) {
                self.unserved.push_back((since, token));
            } else {
                refused.extend(self.refuse(token));
            }
        }
        refused
    }
}

impl Step {
    fn ask(&self, token: u64, key: &Bytes, id: Option<MessageId>, now: Moment) -> Asked<Rmw> {
        let key = key.clone();
        let (id, action) = match self {
            Step::Access(Access::Read(_)) | Step::Walk(_) => return Asked::Read { token, key },
            Step::Access(Access::Write(item)) => (id, Action::Write(Some(item.encode()))),
            Step::Access(Access::Modify(modify)) => {
                (id, Action::Modify(Rmw { modify: modify.clone(), now }))
            }
            Step::Expire(_) => (None, Action::Modify(Rmw { modify: Modify::Expire, now })),
        };
        Asked::Update(Request { token, key, id, action })
    }
}

/// The reply to a read of `found`, or what must be asked first.
fn shown(
    now: Now,
    read: Read,
    found: Option<&Bytes>,
    until: Time,
    counter: &impl Counter,
) -> Result<Reply, Step> {
    if counter.time() >= until {
        return Err(Step::Access(Access::Read(read)));
    }
    let item = match found.map(Item::decode) {
        None => None,
        Some(Ok(item)) if item.is_expired(now.moment) => return Err(Step::Expire(read)),
        Some(Ok(item)) => Some(item),
        Some(Err(error)) => return Ok(Reply::error(error.to_string())),
    };
    Ok(read.answer(item.as_ref(), now.moment))
}

/// The reply when the replica has answered, or what must be asked next.
fn reply_to(
    now: Now,
    step: &Step,
    answer: Answer,
    replica: &Replica,
    counter: &impl Counter,
) -> Result<Reply, Step> {
    match (answer, step) {
        (Answer::Value { value, until }, Step::Access(Access::Read(read))) => {
            shown(now, *read, value.as_ref(), until, counter)
        }
        (Answer::Value { .. }, Step::Walk(walk)) => Ok(some_keys(now.moment, walk, replica)),
        // It is gone, by this change.
        (Answer::Modified(_), Step::Expire(read)) => Ok(read.answer(None, now.moment)),
        // Somebody else was faster: what there is now is to be read.
        (Answer::Kept { .. } | Answer::Aborted, Step::Expire(read)) => {
            Err(Step::Access(Access::Read(*read)))
        }
        (Answer::Written, Step::Access(Access::Write(_))) => Ok(Reply::OK),
        (Answer::Modified(answer), Step::Access(Access::Modify(_))) => Ok(unpack(&answer)),
        // An RMW that changes nothing is a read.
        (Answer::Kept { until, .. }, step) if counter.time() >= until => Err(step.clone()),
        (Answer::Kept { answer, .. }, Step::Access(Access::Modify(_))) => Ok(unpack(&answer)),
        (Answer::Aborted, _) => {
            Ok(Reply::Error("TRYAGAIN others changed the key each time; nothing was done".into()))
        }
        (Answer::Refused(Refusal::NotServing), _) => Ok(not_serving()),
        (Answer::Refused(why), _) => Ok(Reply::Error(format!("BUSY {why}").into())),
        (Answer::Unknown, _) => Ok(Reply::Error(
            "UNKNOWN this node was removed; the change may have been made or not".into(),
        )),
        // The name was given to another kind of change before.
        (
            Answer::Written | Answer::Modified(_),
            Step::Access(Access::Write(_) | Access::Modify(_)),
        ) => Ok(Reply::error("another change was made under this name")),
        (answer, step) => panic!("D1: {answer:?} in answer to {step:?}"),
    }
}

/// Where to go on, 0 at the end, and some keys.
fn some_keys(now: Moment, walk: &Walk, replica: &Replica) -> Reply {
    let live = |value: &Value| Item::is_live(value, now);
    page_of(walk, replica.walk(walk.from), live)
}

/// A page of a walk through what a replica has: of keys whose values are `live`.
pub(crate) fn page_of<'a>(
    walk: &Walk,
    held: impl Iterator<Item = (u32, &'a Key, Option<&'a Value>)>,
    live: impl Fn(&Value) -> bool,
) -> Reply {
    let (mut next, mut keys) = (0, Vec::new());
    let seen = walk.count.min(SCAN_MAX);
    for (place, (after, key, value)) in held.enumerate() {
        if place == seen {
            next = after - 1;
            break;
        }
        let wanted = walk.pattern.as_ref().is_none_or(|pattern| matches(pattern, key));
        let may = walk.grant.as_ref().is_none_or(|grant| grant.has(key));
        if wanted && may && value.is_some_and(&live) {
            keys.push(Reply::Bulk(key.to_bytes()));
        }
    }
    Reply::Array(vec![Reply::Integer(next.into()), Reply::Array(keys)])
}

/// Whether nothing more comes of what a node was asked in an epoch in which it was live: it has
/// gone since, and what it began was replayed. Of this node that holds, too: what it has of the
/// request it will find.
pub(super) fn is_settled(node: NodeId, epoch: Epoch, replica: &Replica) -> Reply {
    let members = replica.membership();
    let over = node == replica.me() || !members.live.contains(&node);
    let settled = over && members.epoch >= epoch && replica.is_settled();
    Reply::Integer(i64::from(settled))
}
