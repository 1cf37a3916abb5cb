//! Replies that wait for holders of capabilities, holders that wait for recalls, and leases of
//! capabilities that run out: decision 57.
//!
//! Invariant C1: an update is answered only if nobody else holds what it changed that was granted
//! before it: whoever asks, and however often.

use super::along::Looks;
use super::leases::Vigil;
use super::{ConnectionId, Replica, Waiter, Wish};
use crate::api::{Refusal, ReplyBody, UpdatedAlong};
use crate::mutation::Mutation;
use crate::sessions::Outcome;
use crate::update::{Payload, lapse_session};
use meridian_core::{ClientId, GroupId, MessageId, Stamp, Time};
use meridian_fs::types::Rank;
use meridian_fs::{CapStep, Ino, Operation, Subject, Timestamp, Update, Vector};
use meridian_multicast::{Role, Start};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{EXPIRED_MAX, WAITING_MAX};

/// How long a client may hold capabilities without saying that it lives: so long it delays others
/// when it is dead. Some elections, so that a change of the primary does not cost it all it keeps.
pub const CAP_LEASE: Duration = Duration::from_secs(6);

/// How long a holder waits for a recall until it is answered all the same: less than the patience
/// after which it asks another node.
pub const POLL_MAX: Duration = Duration::from_millis(500);

/// So many inodes a client may hold: twice as many as a session keeps to, as what it lets go may be
/// under way. What is asked for beyond them is refused; grants under way, and those that come with
/// what a client makes, may go beyond.
const CAPS_MAX: usize = 262_144;

/// So many capabilities and leases a partition gives, in some hundred MiB. Beyond them no lease is
/// renewed, and without one no client asks to hold what it makes. Grants under way may go beyond.
const ALL_MAX: u64 = 524_288;

/// So many directories end at once that a client holds exclusively.
const ALONE_EXPIRED_MAX: usize = 64;

/// Whom to answer when an update is decided, and what it changes here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub waiters: Vec<Waiter>,
    /// What is to come along with the reply.
    looks: Looks,
    subject: Option<Subject>,
    /// The other groups that it concerns.
    others: Vec<GroupId>,
}

impl Asked {
    pub fn new(start: &Start, payload: Option<&Payload>, group: GroupId) -> Asked {
        let others = start.dest.iter().copied().filter(|of| *of != group).collect();
        let subject = payload.and_then(|payload| payload.subject(group));
        Asked { waiters: Vec::new(), looks: Looks::default(), subject, others }
    }

    /// With that along with the reply.
    pub fn with(self, looks: Looks) -> Asked {
        Asked { looks, ..self }
    }

    /// One who asks again for what is decided.
    pub fn known(waiter: Waiter, start: &Start, group: GroupId) -> Asked {
        let payload = Payload::read(start).ok();
        Asked { waiters: vec![waiter], ..Asked::new(start, payload.as_ref(), group) }
    }
}

/// A reply that waits until others have let go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Withheld {
    waiters: Vec<Waiter>,
    looks: Looks,
    subject: Subject,
    outcome: Outcome,
    and: Vec<GroupId>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Caps {
    withheld: BTreeMap<MessageId, Withheld>,
    /// Holders that wait for recalls, and since when.
    polls: BTreeMap<ClientId, Vec<(Waiter, Time)>>,
    /// Leases, as they were last renewed.
    leases: Vigil<ClientId, Rank>,
    pub mutation: Mutation,
}

impl Caps {
    /// Nobody waits on that connection any more.
    pub fn close(&mut self, connection: ConnectionId) {
        self.withheld.retain(|_, withheld| {
            withheld.waiters.retain(|waiter| waiter.connection != connection);
            !withheld.waiters.is_empty()
        });
        self.polls.retain(|_, waiters| {
            waiters.retain(|(waiter, _)| waiter.connection != connection);
            !waiters.is_empty()
        });
    }
}

impl Replica {
    /// With a planted bug.
    pub(crate) fn plant(&mut self, mutation: Mutation) {
        self.caps.mutation = mutation;
        self.snapshots.plant(mutation);
        self.votes.mutation = mutation;
    }

    /// How many updates wait here.
    pub(super) fn waiting(&self) -> usize {
        self.updates.len() + self.caps.withheld.len()
    }

    /// Whether a client's message may be ordered.
    pub(super) fn admit(&self, start: &Start, is_full: bool) -> Result<Payload, Refusal> {
        let payload = Payload::admit(start, is_full)?;
        let may = match payload.update() {
            Some(Update::Caps { client, step: CapStep::Grant(inodes), .. }) => {
                let many = inodes.len() > 1;
                // Who lists a directory does not take the room of those who come back to few.
                let all_max = if many { ALL_MAX / 2 } else { ALL_MAX };
                let has_room = self.partition.caps() < all_max;
                has_room
                    && self.partition.kept(*client) < CAPS_MAX
                    && (!many || self.is_settled(start, inodes))
            }
            Some(Update::Caps { step: CapStep::Renew, .. }) => self.partition.caps() < ALL_MAX,
            _ => true,
        };
        may.then_some(payload).ok_or_else(|| Refusal::Bad("as much is held as may be".into()))
    }

    /// Whether nothing is under way here that these wait for. A message that asks for many waits
    /// for what any of them waits for, and later updates of the others wait for it.
    fn is_settled(&self, start: &Start, inodes: &[Ino]) -> bool {
        let settled = |ino: &Ino| self.partition.is_settled(*ino, Stamp(u64::MAX));
        self.multicast.is_idle(&start.touches) && inodes.iter().all(settled)
    }

    /// Answers those who asked for an update, or does so once others have let go what it changed
    /// (C1). `held` names the other groups where others hold something; who asks again is told to
    /// ask all.
    pub(super) fn tell(
        &mut self,
        id: MessageId,
        asked: Asked,
        outcome: Outcome,
        held: Option<Vec<GroupId>>,
        out: &mut Vec<Wish>,
    ) {
        let Asked { waiters, looks, subject, others } = asked;
        let subject = subject.unwrap_or(Subject { by: crate::update::NOBODY, inodes: Vec::new() });
        let withheld = Withheld { waiters, looks, subject, outcome, and: held.unwrap_or(others) };
        if !self.is_held_back(id, &withheld) {
            return self.let_through(id, withheld, out);
        }
        match self.caps.withheld.get_mut(&id) {
            Some(before) => {
                before.waiters.extend(withheld.waiters);
                before.and.extend(withheld.and);
            }
            None => drop(self.caps.withheld.insert(id, withheld)),
        }
    }

    fn is_held_back(&self, id: MessageId, withheld: &Withheld) -> bool {
        let rank = (withheld.outcome.0, id);
        self.partition.holds_back(&withheld.subject, rank)
            && !self.caps.mutation.is(Mutation::AnswersAtOnce)
    }

    fn let_through(&self, id: MessageId, withheld: Withheld, out: &mut Vec<Wish>) {
        let Withheld { waiters, looks, subject, outcome: (ts, result), and } = withheld;
        let along = self.looks_along(subject.by, &result, &looks);
        for waiter in waiters {
            let (vector, recalled) = self.told_to(subject.by);
            let (and, result, along) = (and.clone(), result.clone(), along.clone());
            let reply = match along.is_empty() {
                true => ReplyBody::Updated { id, ts, vector, recalled, and, result },
                false => {
                    let told = UpdatedAlong { id, ts, vector, recalled, and, result, along };
                    ReplyBody::UpdatedAlong(Box::new(told))
                }
            };
            out.push(Wish::Reply(waiter, reply));
        }
    }

    /// What a client has seen with a reply, and what it is to let go.
    fn told_to(&self, by: ClientId) -> (Vector, Vec<Ino>) {
        (self.partition.vector().clone(), self.partition.recalled(by).collect())
    }

    /// Capabilities have gone: updates are answered that waited for no others.
    pub(super) fn on_let_go(&mut self, out: &mut Vec<Wish>) {
        let all = std::mem::take(&mut self.caps.withheld);
        for (id, withheld) in all {
            match self.is_held_back(id, &withheld) {
                true => drop(self.caps.withheld.insert(id, withheld)),
                false => self.let_through(id, withheld, out),
            }
        }
    }

    /// A holder waits until something that it holds is recalled.
    pub fn on_poll(&mut self, waiter: Waiter, by: ClientId, out: &mut Vec<Wish>) {
        let full = self.caps.polls.len() >= WAITING_MAX;
        let polls = self.caps.polls.entry(by).or_default();
        // A holder has one question here; more are left over from connections that it lost.
        if full || polls.len() >= POLLS_MAX {
            polls.clear();
        }
        polls.push((waiter, self.ticked));
        if self.partition.recalled(by).next().is_some() {
            self.on_recalled(&[by], out);
        }
    }

    /// These are to let go something.
    pub(super) fn on_recalled(&mut self, clients: &[ClientId], out: &mut Vec<Wish>) {
        for by in clients {
            for (waiter, _) in self.caps.polls.remove(by).unwrap_or_default() {
                let (vector, inodes) = self.told_to(*by);
                out.push(Wish::Reply(waiter, ReplyBody::Recalled { vector, inodes }));
            }
        }
    }

    /// Answers holders that have waited for long; the primary looks whose lease has run out.
    pub(super) fn on_caps_tick(&mut self, now: Time, counted: Duration, out: &mut Vec<Wish>) {
        let old = |polls: &Vec<(Waiter, Time)>| {
            polls.iter().any(|(_, since)| now.since(*since) >= POLL_MAX)
        };
        let polls = self.caps.polls.iter().filter(|(_, polls)| old(polls));
        let clients: Vec<_> = polls.map(|(by, _)| *by).collect();
        self.on_recalled(&clients, out);
        if self.multicast.role() != Role::Primary {
            self.caps.leases.clear();
        } else if self.partition.caps() > 0 || !self.caps.leases.is_empty() {
            self.expire_caps(counted, out);
        }
    }

    /// What the primary finds is ordered like all else, and does nothing if the client renewed
    /// before. It says so until the lease has ended. What is held without a lease, nobody uses.
    fn expire_caps(&mut self, counted: Duration, out: &mut Vec<Wish>) {
        self.caps.leases.is_due(counted, Duration::ZERO);
        let leases = self.partition.holders().filter_map(|(of, lease)| Some((of, lease?)));
        let ended = self.caps.leases.look(leases, CAP_LEASE).into_iter();
        let ended = ended.map(|(client, renewed)| (client, Some(renewed)));
        let without = self.partition.holders().filter(|(_, lease)| lease.is_none());
        for (client, renewed) in ended.chain(without) {
            // What is held exclusively is ordered with all that touches it, and goes first: one by
            // one, as each may wait for something.
            let alone: BTreeSet<_> = self.partition.kept_alone_by(client).collect();
            for ino in alone.iter().take(ALONE_EXPIRED_MAX) {
                let step = CapStep::ExpireExclusive { renewed, inodes: vec![*ino] };
                out.push(Wish::Multicast(self.lapse(client, ino.0, step)));
            }
            // First what others wait for.
            let recalled: BTreeSet<_> = self.partition.recalled(client).collect();
            let rest = self.partition.kept_by(client).filter(|ino| !recalled.contains(ino));
            let all = recalled.iter().copied().chain(rest);
            let inodes: Vec<_> = all.filter(|ino| !alone.contains(ino)).take(EXPIRED_MAX).collect();
            if renewed.is_some() || !inodes.is_empty() {
                let step = CapStep::Expire { renewed, inodes };
                out.push(Wish::Multicast(self.lapse(client, 0, step)));
            }
        }
    }

    /// Named after the client, what ends and what is decided: said again it is the same message,
    /// until something has come of anything.
    fn lapse(&self, client: ClientId, of: u64, step: CapStep) -> Start {
        let sequence = self.partition.vector().get(self.group).0 + 1;
        let update = Update::Caps { client, partition: self.group, step };
        let named = ClientId(client.0 ^ of.rotate_left(32));
        let id = MessageId { client: lapse_session(named, sequence, self.group), sequence };
        let mut vector = Vector::default();
        vector.raise(self.group, Stamp(sequence - 1));
        let payload = Payload::new(vector, Timestamp::default(), update);
        payload.into_start(id, sequence, &[self.group])
    }

    /// The operation, as a planted bug does it.
    pub(super) fn planted(&self, mut operation: Operation) -> Operation {
        if let Update::Caps { client, step: CapStep::Expire { renewed, .. }, .. } =
            &mut operation.update
            && self.caps.mutation.is(Mutation::ExpiresAnyhow)
            && let Some((_, now)) = self.partition.holders().find(|(of, _)| of == client)
        {
            *renewed = now;
        }
        operation
    }
}

/// So many questions of one holder may wait here.
const POLLS_MAX: usize = 8;
