//! The coordinator: updates from their requests to their answers (Hermes, sections 3.2 and 3.6).

use crate::busy::{Parked, Pending, State};
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
use meridian_core::{NodeId, Outbox, Slot, Time};
use std::collections::VecDeque;

/// What an update is made of before it has a place.
struct Draft {
    kind: Kind,
    ts: Timestamp,
    value: Option<Bytes>,
    answer: Bytes,
}

impl<M: Modify> Hermes<M> {
    /// Begins an update of a key that is Valid; it was tried before so often (M1).
    pub(crate) fn start(
        &mut self,
        now: Time,
        request: Request<M>,
        attempt: u32,
        out: &mut Outbox<Self>,
    ) {
        let slot = self.store.find(&request.key);
        let held = slot.map(|slot| &self.store.get(slot).update);
        let (base, found) =
            held.map_or((Timestamp::NONE, None), |held| (held.ts, held.value.clone()));
        if attempt == 0 && self.is_answered(&request, base, out) {
            return;
        }
        let draft = match &request.action {
            Action::Write(value) => {
                let (value, ts) = (value.clone(), self.place(base, Kind::Write));
                Draft {
                    kind: Kind::Write,
                    ts: ts.expect("of a write"),
                    value,
                    answer: Bytes::new(),
                }
            }
            Action::Modify(modify) => match modify.modify(found.as_ref()) {
                Modified::Keep { answer } => return self.answer_kept(now, request, answer, out),
                Modified::Change { value, answer } => {
                    let Some(ts) = self.place(base, Kind::Rmw) else {
                        return self.answer(request.token, Answer::Aborted, out);
                    };
                    Draft { kind: Kind::Rmw, ts, value, answer }
                }
            },
        };
        self.issue(now, (request, attempt), base, draft, out);
    }

    /// Whether the request was asked before and its answer is known, or none is due.
    fn is_answered(
        &mut self,
        request: &Request<M>,
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
        (request, attempt): (Request<M>, u32),
        base: Timestamp,
        draft: Draft,
        out: &mut Outbox<Self>,
    ) {
        let Draft { kind, ts, value, answer } = draft;
        let completed = request.id.map(|id| Completed { id, answer: answer.clone() });
        let key = request.key.clone();
        let update = Update { key, ts, base, kind, value, request: completed };
        let slot = self.store.slot(&request.key, self.me);
        let entry = self.store.get_mut(slot);
        assert!(entry.valid && ts > base, "an update of {:?} begins on {base:?}", update.key);
        self.completions.record(&update);
        (entry.valid, entry.last_writer) = (false, self.me);
        self.store.hold(slot, update.clone());
        self.record(|| Record::Held { update: update.clone(), from: self.me }, out);
        let acks = self.own_ack(&update.key, ts, out);
        let due = self.due_of(now, &update);
        let busy = self.unsettled.at(slot, due);
        (busy.heard, busy.due) = (acks, due);
        let (losing, own) = (false, update.clone());
        let own = Pending { update: own, acks, losing, request, attempt, answer };
        let bytes = own.bytes();
        busy.own = Some(own);
        self.unsettled.bytes += bytes;
        self.broadcast(&Body::Inv(update), out);
        self.look_at_own(now, slot, out);
    }

    /// An ACK counts for what this replica coordinates, and, if ACKs go to all, for what it holds.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        from: NodeId,
        key: &Bytes,
        ts: Timestamp,
        out: &mut Outbox<Self>,
    ) {
        let Some(slot) = self.store.find(key) else { return self.heard_early(from, key, ts) };
        let held = self.store.get(slot).update.ts;
        if ts > held {
            return self.heard_early(from, key, ts);
        }
        let Some(busy) = self.unsettled.keys.get_mut(&slot) else { return };
        let members = &self.members;
        if let Some(own) = busy.own.as_mut().filter(|own| own.update.ts == ts && !own.losing) {
            members.add(&mut own.acks, from);
        }
        if ts == held {
            members.add(&mut busy.heard, from);
            if let Some(acks) = &mut busy.replay {
                members.add(acks, from);
            }
        }
        self.look_at_own(now, slot, out);
        self.look_at_held(now, slot, out);
    }

    fn is_enough(&self, acks: NodeSet) -> bool {
        let missing = u32::from(self.mutation.is(Mutation::MissesAnAck));
        self.members.is_all(acks) || acks.len() + missing >= self.members.followers().len() as u32
    }

    /// Commits the own update if all have acknowledged it.
    pub(crate) fn look_at_own(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let own = self.unsettled.own(slot);
        let Some(own) = own.filter(|own| !own.losing && self.is_enough(own.acks)) else { return };
        let held = &self.store.get(slot).update;
        if own.update.ts == held.ts {
            self.validate(held.kind, slot, out);
            return self.become_valid(now, slot, out);
        }
        // Trans: it was superseded, and whoever has superseded it sends the VAL (O1).
        let token = own.request.token;
        self.unsettled.end_own(slot);
        self.answer(token, Answer::Written, out);
    }

    /// Commits what is held, if it is being replayed and all have acknowledged it; or if all are
    /// known to hold it (O3).
    pub(crate) fn look_at_held(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let Some(busy) = self.unsettled.keys.get(&slot) else { return };
        let entry = self.store.get(slot);
        let kind = entry.update.kind;
        let heard = self.options.acks == Acks::All && kind == Kind::Write;
        if busy.replay.is_some_and(|acks| self.is_enough(acks)) {
            self.validate(Kind::Rmw, slot, out);
            self.become_valid(now, slot, out);
        } else if heard && self.is_enough(busy.heard) && busy.state(entry) != State::Write {
            self.become_valid(now, slot, out);
        }
    }

    /// Tells the followers that what is held is committed, unless they have heard all ACKs.
    fn validate(&self, kind: Kind, slot: Slot, out: &mut Outbox<Self>) {
        if self.options.acks == Acks::All && kind == Kind::Write {
            return;
        }
        let held = &self.store.get(slot).update;
        self.broadcast(&Body::Val { key: held.key.clone(), ts: held.ts }, out);
    }

    /// What is held is committed: the own update is, too, or it is defeated; then who waits.
    pub(crate) fn become_valid(&mut self, now: Time, slot: Slot, out: &mut Outbox<Self>) {
        let Some(busy) = self.unsettled.remove(slot) else { return };
        let entry = self.store.get_mut(slot);
        entry.valid = true;
        self.completions.committed(&entry.update);
        let (key, held) = (entry.update.key.clone(), entry.update.ts);
        if self.watched {
            out.output(Output::Committed { key: key.clone() });
        }
        self.note(|| Record::Valid { key, ts: held }, out);
        let mut parked = busy.parked;
        if let Some(Pending { update, request, attempt, answer, .. }) = busy.own {
            match update.kind {
                Kind::Write => self.answer(request.token, Answer::Written, out),
                Kind::Rmw if update.ts == held => {
                    self.answer(request.token, Answer::Modified(answer), out);
                }
                // All live replicas hold something later: it can no more be replayed (M4).
                Kind::Rmw => self.try_again(request, attempt + 1, &mut parked, out),
            }
        }
        self.replays_end(slot, out);
        self.serve_parked(now, slot, parked, out);
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
                    let update = &self.store.get(slot).update;
                    let (key, value) = (update.key.clone(), update.value.clone());
                    self.answer_read(now, token, key, value, out);
                }
                Parked::Update(..) => updates.push_back(parked),
            }
        }
        while self.store.get(slot).valid {
            let Some(Parked::Update(request, attempt)) = updates.pop_front() else { return };
            self.start(now, request, attempt, out);
        }
        if !updates.is_empty() {
            let due = self.due(now);
            self.unsettled.park(slot, due, updates);
        }
    }
}
