//! The coordinator: updates from their requests to their answers (Hermes, sections 3.2 and 3.6).

use crate::busy::{Attempt, Parked, Pending, State};
use crate::completions::Known;
use crate::members::NodeSet;
use crate::message::{
    Action, Answer, Body, Completed, Completion, Kind, Modified, Modify, Output, Record, Refusal,
    Request, Update,
};
use crate::mutation::Mutation;
use crate::options::Acks;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use bytes::Bytes;
use meridian_core::{Key, NodeId, Outbox, Slot, Time, Value};
use std::collections::VecDeque;

/// What an update is made of before it has a place.
struct Draft {
    kind: Kind,
    ts: Timestamp,
    value: Option<Value>,
    answer: Bytes,
}

/// What is known of a request that begins.
#[derive(Default)]
pub(crate) struct Tried {
    /// So often it was tried before.
    attempt: u32,
    /// The writes that take effect directly before it.
    before: Vec<u64>,
}

impl<M: Modify> Hermes<M> {
    /// Begins an update of a key that is Valid, and is at this place if it is there (M1).
    pub(crate) fn start(
        &mut self,
        now: Time,
        (mut request, tried): (Request<M>, Tried),
        slot: Option<Slot>,
        out: &mut Outbox<Self>,
    ) {
        let held = slot.map(|slot| self.store.get(slot));
        let base = held.map_or(Timestamp::NONE, |held| held.ts);
        let found = match request.action {
            Action::Write(_) => None,
            Action::Modify(_) => held.and_then(|held| held.value.as_ref()).map(Value::to_bytes),
        };
        if self.is_answered(&request, tried.attempt, base, out) {
            return;
        }
        let draft = match &mut request.action {
            Action::Write(value) => {
                let (value, ts) = (value.take(), self.place(base, Kind::Write));
                Draft {
                    kind: Kind::Write,
                    ts: ts.expect("of a write"),
                    value: value.map(Value::from),
                    answer: Bytes::new(),
                }
            }
            Action::Modify(modify) => match modify.modify(found.as_ref()) {
                Modified::Keep { answer } => return self.answer_kept(now, request, answer, out),
                Modified::Change { value, answer } => {
                    let Some(ts) = self.place(base, Kind::Rmw) else {
                        return self.answer(request.token, Answer::Aborted, out);
                    };
                    Draft { kind: Kind::Rmw, ts, value: value.map(Value::from), answer }
                }
            },
        };
        let slot = slot.unwrap_or_else(|| self.store.slot(&request.key, self.me));
        self.issue(now, (request, tried), (slot, base), draft, out);
    }

    /// Whether the request was asked before and its answer is known, or none is due. What defeated
    /// an earlier attempt may be the same request, which another replica was asked.
    fn is_answered(
        &mut self,
        request: &Request<M>,
        attempt: u32,
        held: Timestamp,
        out: &mut Outbox<Self>,
    ) -> bool {
        let Some(id) = request.id.filter(|_| !self.mutation.is(Mutation::ForgetsRequests)) else {
            return false;
        };
        match self.completions.find(id) {
            Known::Old => self.refuse(request.token, Refusal::Old, out),
            Known::Asked(Completion { kind: Kind::Write, .. }) => {
                self.answer(request.token, Answer::Written, out);
            }
            Known::Asked(Completion { ts, answer, committed, .. }) if committed || ts == held => {
                self.answer(request.token, Answer::Modified(answer), out);
            }
            // What it led to was aborted: it is defeated for good, as the key is Valid.
            Known::Asked(_) => return false,
            Known::No if attempt > 0 => return false,
            Known::No => {
                let full = self.completions.len() >= self.options.clients_max;
                if !full || self.completions.knows(id.client) {
                    return false;
                }
                self.refuse(request.token, Refusal::Full, out);
            }
        }
        true
    }

    /// The place of an update on a base; none for an RMW if too many follow each other.
    fn place(&mut self, base: Timestamp, kind: Kind) -> Option<Timestamp> {
        let paper = self.mutation.is(Mutation::PaperTimestamps);
        match kind {
            Kind::Write if paper => Some(base.of_paper(self.writer(), 2)),
            Kind::Rmw if paper => Some(base.of_paper(self.writer(), 1)),
            Kind::Write => Some(base.written(self.writer())),
            Kind::Rmw => base.extended(self.me),
        }
    }

    fn issue(
        &mut self,
        now: Time,
        (request, Tried { attempt, before }): (Request<M>, Tried),
        (slot, base): (Slot, Timestamp),
        draft: Draft,
        out: &mut Outbox<Self>,
    ) {
        let Draft { kind, ts, value, answer } = draft;
        let (token, id) = (request.token, request.id);
        let completed = id.map(|id| Box::new(Completed { id, answer: answer.clone() }));
        let rmw = match kind {
            Kind::Write => None,
            Kind::Rmw => Some(Box::new(Attempt { request, attempt, answer })),
        };
        let entry = self.store.get(slot);
        assert!(entry.is_valid() && ts > base, "an update of {:?} begins on {base:?}", entry.key);
        let key = entry.key.clone();
        let update = Update { key, ts, base, kind, value, request: completed };
        self.completions.record(&update);
        self.store.hold(slot, update.clone(), self.me);
        self.record(|| Record::Held { update: update.clone(), from: self.me }, out);
        // With a log the own ACK is a message that comes when the record is durable: else a key
        // could be Valid, and read, that a crash takes back.
        let acks = if self.is_on_disk() { NodeSet::default() } else { self.members.me };
        let bytes = update.bytes();
        let due = self.due_of(now, bytes);
        let number = Some(self.send_inv(slot, update, out));
        let busy = self.unsettled.at(slot, self.store.get_mut(slot), due);
        (busy.heard, busy.due) = (acks, due);
        let (named, losing, superseded) = (false, false, None);
        let own =
            Pending { ts, number, named, acks, losing, token, before, id, bytes, superseded, rmw };
        busy.own = Some(own);
        self.unsettled.bytes += bytes;
        if self.is_enough(acks) {
            self.look_at_own(now, slot, out);
        }
    }

    /// An ACK counts for what this replica coordinates, and, if ACKs go to all, for what it holds.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        from: NodeId,
        key: &Key,
        ts: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        let Some(slot) = self.store.find(key) else { return self.heard_early(from, key, ts) };
        if ts > self.store.get(slot).ts {
            return self.heard_early(from, key, ts);
        }
        self.count_ack(now, self.members.of(&[from]), slot, ts, out);
    }

    /// An ACK for what is held at a place, or was.
    pub(crate) fn count_ack(
        &mut self,
        now: Time,
        from: NodeSet,
        slot: Slot,
        ts: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        let entry = self.store.get(slot);
        let Some(busy) = self.unsettled.get_mut(entry) else { return };
        let mut acks = NodeSet::default();
        if let Some(own) = busy.own.as_mut().filter(|own| own.ts == ts && !own.losing) {
            own.acks.join(from);
            acks = own.acks;
        }
        let counts_held = busy.replay.is_some() || self.options.acks == Acks::All;
        if counts_held && ts == entry.ts {
            busy.heard.join(from);
            if let Some(acks) = &mut busy.replay {
                acks.join(from);
            }
        }
        if self.is_enough(acks) {
            self.look_at_own(now, slot, out);
        }
        if counts_held {
            self.look_at_held(now, slot, out);
        }
    }

    fn is_enough(&self, acks: NodeSet) -> bool {
        let missing = u32::from(self.mutation.is(Mutation::MissesAnAck));
        self.members.is_all(acks) || acks.len() + missing >= self.members.followers().len() as u32
    }

    /// Commits the own update if all have acknowledged it.
    pub(crate) fn look_at_own(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let own = self.unsettled.own(self.store.get(slot));
        let Some(own) = own.filter(|own| !own.losing && self.is_enough(own.acks)) else { return };
        let number = own.number.filter(|_| !own.named);
        if own.superseded.is_none() {
            let kind = if own.rmw.is_some() { Kind::Rmw } else { Kind::Write };
            match number {
                Some(number) if !self.goes_to_all(kind) => self.batches.commit(number),
                _ => self.validate(kind, slot, out),
            }
            return self.become_valid(now, slot, out);
        }
        // Trans: whoever has superseded it sends the VAL (O1).
        let own = self.end_own(slot);
        let tokens = own.iter().flat_map(Pending::tokens);
        tokens.for_each(|token| self.answer(token, Answer::Written, out));
    }

    /// The own update of a key is no more under way.
    pub(crate) fn end_own(&mut self, slot: Slot) -> Option<Pending<M>> {
        let own = self.unsettled.end_own(self.store.get(slot))?;
        own.number.into_iter().for_each(|number| self.batches.end(number));
        Some(own)
    }

    /// Whether ACKs of such an update go to all, who then need no VAL (O3).
    pub(crate) fn goes_to_all(&self, kind: Kind) -> bool {
        self.options.acks == Acks::All && kind == Kind::Write
    }

    /// Commits what is held, if it is being replayed and all have acknowledged it; or if all are
    /// known to hold it (O3).
    pub(crate) fn look_at_held(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let entry = self.store.get(slot);
        let Some(busy) = self.unsettled.get(entry) else { return };
        let heard = self.goes_to_all(entry.kind);
        if busy.replay.is_some_and(|acks| self.is_enough(acks)) {
            self.validate(Kind::Rmw, slot, out);
            self.become_valid(now, slot, out);
        } else if heard && self.is_enough(busy.heard) && busy.state(entry) != State::Write {
            self.become_valid(now, slot, out);
        }
    }

    /// Tells the followers that what is held is committed, unless they have heard all ACKs.
    fn validate(&self, kind: Kind, slot: Slot, out: &mut Outbox<Self>) {
        if self.goes_to_all(kind) {
            return;
        }
        let held = self.store.get(slot);
        self.broadcast(&Body::Val { key: held.key.clone(), ts: held.ts }, out);
    }

    /// What is held is committed: the own update is, too, or it is defeated; then who waits.
    pub(crate) fn become_valid(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let entry = self.store.get_mut(slot);
        let Some(busy) = self.unsettled.remove(entry) else { return };
        self.completions.committed(entry);
        let entry = self.store.get(slot);
        let held = entry.ts;
        if self.watched {
            out.output(Output::Committed { key: entry.key.to_bytes() });
        }
        self.note(|| Record::Valid { key: entry.key.clone(), ts: held }, out);
        let mut parked = busy.parked;
        if let Some(own) = busy.own {
            own.number.into_iter().for_each(|number| self.batches.end(number));
            match own.rmw {
                None => own.tokens().for_each(|token| self.answer(token, Answer::Written, out)),
                Some(rmw) if own.ts == held => {
                    self.answer(own.token, Answer::Modified(rmw.answer), out);
                }
                // All live replicas hold something later: it can no more be replayed (M4).
                Some(rmw) => {
                    let Attempt { mut request, attempt, .. } = *rmw;
                    request.token = own.token;
                    self.try_again(request, attempt + 1, &mut parked, out);
                }
            }
        }
        self.replays_end(slot, out);
        if !parked.is_empty() {
            self.serve_parked(now, slot, parked, out);
        }
    }

    fn try_again(
        &mut self,
        request: Request<M>,
        attempt: u32,
        parked: &mut VecDeque<Parked<M>>,
        out: &mut Outbox<Self>,
    ) {
        if attempt >= self.options.attempts_max {
            self.answer(request.token, Answer::Aborted, out);
        } else {
            parked.push_front(Parked::Update(request, attempt));
        }
    }

    /// Reads first, so that no stream of updates can starve them; then updates, until one has
    /// begun.
    fn serve_parked(
        &mut self,
        now: Time,
        slot: Slot,
        parked: VecDeque<Parked<M>>,
        out: &mut Outbox<Self>,
    ) {
        let mut updates = VecDeque::new();
        for parked in parked {
            match parked {
                Parked::Read { token } => {
                    let entry = self.store.get(slot);
                    let value = entry.value.as_ref().map(Value::to_bytes);
                    let key = entry.key.to_bytes();
                    self.answer_read(now, token, key, value, out);
                }
                Parked::Update(..) => updates.push_back(parked),
            }
        }
        while self.store.get(slot).is_valid() {
            let mut before = combine(&mut updates);
            if self.mutation.is(Mutation::AnswersCombined) {
                let early = std::mem::take(&mut before).into_iter();
                early.for_each(|token| self.answer(token, Answer::Written, out));
            }
            let Some(Parked::Update(request, attempt)) = updates.pop_front() else { return };
            self.start(now, (request, Tried { attempt, before }), Some(slot), out);
        }
        if !updates.is_empty() {
            let due = self.due(now);
            self.unsettled.park((slot, self.store.get_mut(slot)), due, updates);
        }
    }
}

/// Takes out the writes that wait in front of another write. They have all been asked and none is
/// answered, so they may take effect directly before it, where nobody reads: they need no INV.
/// Those with names stay, as their answers travel with their INVs.
fn combine<M: Modify>(updates: &mut VecDeque<Parked<M>>) -> Vec<u64> {
    let is_write = |parked: Option<&Parked<M>>| match parked {
        Some(Parked::Update(Request { action: Action::Write(_), token, id, .. }, _)) => {
            Some((*token, id.is_some()))
        }
        Some(Parked::Update(..) | Parked::Read { .. }) | None => None,
    };
    let mut before = Vec::new();
    while let Some((token, false)) = is_write(updates.front())
        && is_write(updates.get(1)).is_some()
    {
        updates.pop_front();
        before.push(token);
    }
    before
}
