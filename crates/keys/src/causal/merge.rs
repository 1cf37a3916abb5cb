//! Updates of other regions: each is an RMW of Hermes that changes nothing where something later is
//! held. It is applied once that is committed.
//!
//! The RMW has the name of the update, so all replicas know of it, and its answer is the update.
//! They keep that until all regions have applied it ([`super::lost`]). Whoever is asked for
//! the same once more finds that it has happened.

use super::change::Change;
use super::make::{merge_name, merged_stamp};
use super::message::Output;
use super::mutation::Mutation;
use super::node::{Asked, Causal};
use meridian_core::{ClientId, Event, MessageId, Outbox, RegionId, Time};
use meridian_eunomia::{self as eunomia, Peer, Role, Timestamp};
use meridian_hermes::{self as hermes, Action, Answer, Completion, Modify, Refusal};

impl<M: Modify> Causal<M> {
    /// The receiver is told that these are applied.
    pub(super) fn tell_applied(
        &mut self,
        now: Time,
        origin: RegionId,
        stamps: Vec<Timestamp>,
        out: &mut Outbox<Self>,
    ) {
        if stamps.is_empty() {
            return;
        }
        let from = Peer { region: self.region, role: Role::Shard(self.number) };
        let message = eunomia::Message::Applied { origin, stamps };
        self.step_receiver(now, Event::Message { from, message }, out);
    }

    /// What the group knows of updates of other regions that others may lack, behind a point.
    pub(super) fn noted_after(
        &self,
        after: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, &Completion)> {
        let noted = self.replica.requests(Some(merge_name(after)));
        noted.map_while(|(client, known)| Some((merged_stamp(client)?, known)))
    }

    fn noted_as(&self, name: ClientId) -> Option<&Completion> {
        let mut known = self.replica.requests(Some(ClientId(name.0 - 1)));
        known.next().filter(|(client, _)| *client == name).map(|(_, known)| known)
    }

    /// Hermes is asked to hold what was made elsewhere.
    pub(super) fn merge(
        &mut self,
        now: Time,
        updates: Vec<eunomia::Update>,
        out: &mut Outbox<Self>,
    ) {
        for update in updates {
            let (origin, ts, key) = (update.origin, update.label.ts, update.key.clone());
            let known = self.noted_as(merge_name(ts));
            if known.is_some_and(|known| self.replica.happened(&key, known) == Some(true)) {
                self.has_merged(now, (origin, ts), false, out);
                continue;
            }
            let token = self.ask(Asked::Merge(Box::new(update.clone())));
            let id = Some(MessageId { client: merge_name(ts), sequence: 1 });
            let (change, id) = match self.regions.keeps() {
                _ if self.mutation.is(Mutation::ReplacesAnything) => {
                    (Change::Replace(update), None)
                }
                true => (Change::Note(update), id),
                false => (Change::Merge(update), None),
            };
            if self.mutation.is(Mutation::SaysEarly) {
                self.tell_applied(now, origin, vec![ts], out);
            }
            let action = Action::Modify(change);
            let request = hermes::Request { token, key, id, action };
            self.step_replica(now, Event::Command(hermes::Command::Update(request)), out);
        }
    }

    pub(super) fn on_merged(
        &mut self,
        now: Time,
        update: eunomia::Update,
        answer: &Answer,
        out: &mut Outbox<Self>,
    ) {
        let (origin, ts) = (update.origin, update.label.ts);
        match answer {
            Answer::Refused(Refusal::NotServing) if !self.receiver.is_silenced(origin) => {
                self.deferred.push(update);
            }
            Answer::Modified(noted) => {
                let changed = noted.is_empty() || self.has_changed(&update);
                self.has_merged(now, (origin, ts), changed, out);
            }
            Answer::Kept { .. } => self.has_merged(now, (origin, ts), false, out),
            _ => self.inbox.failed(update),
        }
    }

    /// Whether this node was the one that had the key hold the update.
    fn has_changed(&self, update: &eunomia::Update) -> bool {
        let known = self.noted_as(merge_name(update.label.ts));
        let is_own = known.is_some_and(|known| known.ts.modifier == self.replica.me());
        is_own && self.latest(&update.key).order == update.order
    }

    /// An update of another region is applied, for good.
    fn has_merged(
        &mut self,
        now: Time,
        (origin, ts): (RegionId, Timestamp),
        changed: bool,
        out: &mut Outbox<Self>,
    ) {
        self.inbox.applied((origin, ts));
        out.output(Output::Applied { origin, ts, changed });
        self.tell_applied(now, origin, vec![ts], out);
    }

    /// A replica that has a lease again goes on with what it could not take.
    pub(super) fn merge_deferred(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.wants_lease &= !self.replica.serves(now);
        if !self.deferred.is_empty() && self.replica.serves(now) {
            let deferred = std::mem::take(&mut self.deferred);
            self.merge(now, deferred, out);
        }
    }
}
