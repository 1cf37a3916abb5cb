//! Regions join and leave while all serve (decision 88).
//!
//! Which regions there are each node is told ([`Regions::standings`]), and its receiver writes it
//! down. The first live node of a region that joins copies the keys of another, page by page, into
//! its group of Hermes, each as it is merged later: so what comes twice changes nothing, and who
//! begins anew with another page, another node or another region does no harm.
//!
//! Invariants:
//! - J1: a page is of a node with a lease: what was committed in its region before is in it.
//! - J2: a region has copied when its group holds, for good, all that a node of another showed in
//!   one run from the first place to the last. All that its group holds then counts as copied.
//! - J3: a node says that its region has nothing left when its source has not, and its group, once
//!   it has settled, knows of no update of the region that others lack.

use super::change::{Change, held};
use super::message::{Message, Output, Record};
use super::mutation::Mutation;
use super::node::{Asked, Causal};
use super::regions::Regions;
use bytes::Bytes;
use meridian_core::{Event, NodeId, Outbox, RegionId, Time};
use meridian_eunomia::{
    self as eunomia, Peer, Refusal, Role, Standing, Timestamp, Vector, Word, receiver, replica,
};
use meridian_hermes::{self as hermes, Action, Answer, Modify};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A page has no more when it has so many bytes of values.
const PAGE_BYTES: usize = 1 << 20;

/// How far a copy is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Copying {
    from: RegionId,
    /// Its nodes are asked by turns, if they do not answer.
    turn: usize,
    /// The start of that node of which the place is.
    run: Option<Timestamp>,
    /// Where the next page begins.
    place: u32,
    /// When a page was asked for last, and when the copy went on last.
    asked: Time,
    went_on: Time,
    /// What Hermes was asked to hold of the last page, and has not yet.
    open: BTreeSet<u64>,
    /// Something of it is not held: it is asked for again.
    failed: bool,
    /// Where the page behind that begins.
    next: Option<u32>,
}

impl<M: Modify> Causal<M> {
    /// A session has to go to another region.
    pub(super) fn deny(&self, token: u64, out: &mut Outbox<Self>) {
        out.output(Output::Denied { token, why: Refusal::NotServing });
    }

    /// Others take part than before, and regions are so now.
    pub(super) fn configure(&mut self, now: Time, regions: Arc<Regions>, out: &mut Outbox<Self>) {
        let (topology, standings) = (regions.topology().clone(), regions.standings().clone());
        (self.regions, self.sweeps) = (regions, true);
        let configure = replica::Command::Configure(topology.clone());
        self.step_service(now, Event::Command(configure), out);
        let standing = replica::Command::Regions(standings.clone());
        self.step_service(now, Event::Command(standing), out);
        let configure = receiver::Command::Configure(topology);
        self.step_receiver(now, Event::Command(configure), out);
        // The last, as it says for all that they go by this.
        let standing = receiver::Command::Regions(standings);
        self.step_receiver(now, Event::Command(standing), out);
        self.say_drained(out);
    }

    /// A node that starts goes by what it had heard, or by what it was made with: that is on disk
    /// before it says so.
    pub(super) fn recall_regions(&mut self, now: Time, out: &mut Outbox<Self>) {
        let regions = self.receiver.regions().clone();
        out.persist(Record::Receiver(receiver::Record::Regions((*regions).clone())));
        self.step_service(now, Event::Command(replica::Command::Regions(regions)), out);
    }

    /// While its region joins or leaves, or another is lost, it says again and again how far it is.
    pub(super) fn say_words(&mut self, now: Time, out: &mut Outbox<Self>) {
        let regions = self.receiver.regions().clone();
        if regions.joins(self.region) || regions.is_open() {
            let standing = receiver::Command::Regions(regions);
            self.step_receiver(now, Event::Command(standing), out);
        }
        self.say_drained(out);
    }

    /// Says that others have all that its region has made, if it leaves (J3).
    fn say_drained(&self, out: &mut Outbox<Self>) {
        if *self.receiver.regions().standing(self.region) != Standing::Leaves {
            return;
        }
        let settled = self.recovered && self.replica.is_settled();
        let nothing = self.outstanding() == 0 && self.known().next().is_none();
        if (settled && nothing) || self.mutation.is(Mutation::LeavesAtOnce) {
            out.output(Output::Word(Word::Drained));
        }
    }

    /// The receiver wants the keys of that region copied: so it does again and again.
    pub(super) fn copy(&mut self, now: Time, from: RegionId, out: &mut Outbox<Self>) {
        if !self.leads() {
            self.copying = None;
            return;
        }
        let copying = self.copying.take().filter(|copying| copying.from == from);
        let mut copying = copying.unwrap_or_else(|| Copying::begin(from, self.options.retry, now));
        if copying.open.is_empty() && now.since(copying.asked) >= self.options.retry {
            if now.since(copying.went_on) >= self.options.suspect_after {
                let turn = copying.turn + 1;
                copying = Copying { turn, ..Copying::begin(from, self.options.retry, now) };
            }
            copying.asked = now;
            self.ask_page(&copying, out);
        }
        self.copying = Some(copying);
    }

    /// Whom it asks.
    fn shower(&self, copying: &Copying) -> Option<NodeId> {
        let nodes = self.regions.nodes(copying.from);
        nodes.get(copying.turn.checked_rem(nodes.len())?).copied()
    }

    fn ask_page(&self, copying: &Copying, out: &mut Outbox<Self>) {
        let Copying { run, place, .. } = *copying;
        if let Some(node) = self.shower(copying) {
            out.send(node, Message::AskPage { run, place });
        }
    }

    /// A node of a region that joins asks for keys from that place on (J1).
    pub(super) fn on_ask_page(
        &mut self,
        now: Time,
        to: NodeId,
        (run, place): (Option<Timestamp>, u32),
        out: &mut Outbox<Self>,
    ) {
        if !self.replica.serves(now) {
            self.wants_lease = true; // It will be asked again.
            return;
        }
        let start = if run == Some(self.reserved) { place } else { 0 };
        match self.page(now, start) {
            Ok((updates, next)) => {
                out.send(to, Message::Page { run: self.reserved, place: start, updates, next });
            }
            // When it has been changed, the page begins with it.
            Err(key) => {
                let token = self.ask(Asked::Page(to, (run, place)));
                let read = hermes::Command::Read { token, key };
                self.step_replica(now, Event::Command(read), out);
            }
        }
    }

    /// What keys hold from a place on, and where the next page begins if there is one.
    ///
    /// # Errors
    /// The first key is being changed.
    fn page(&self, now: Time, start: u32) -> Result<(Vec<eunomia::Update>, Option<u32>), Bytes> {
        let (mut updates, mut bytes, mut upto) = (Vec::new(), 0, start);
        for (after, key, _) in self.replica.walk(start) {
            if updates.len() >= self.options.labels_max.max(1) || bytes >= PAGE_BYTES {
                return Ok((updates, Some(upto)));
            }
            let Some(found) = self.replica.read(now, key) else {
                let first = upto == start;
                return if first {
                    Err(Bytes::copy_from_slice(key))
                } else {
                    Ok((updates, Some(upto)))
                };
            };
            if let Some(update) = held(found) {
                bytes += update.key.len() + update.value.as_ref().map_or(0, Bytes::len);
                updates.push(update);
            }
            upto = after;
        }
        Ok((updates, None))
    }

    /// A page has come: Hermes is to hold what is on it.
    pub(super) fn on_page(
        &mut self,
        now: Time,
        from: NodeId,
        (run, place): (Timestamp, u32),
        (updates, next): (Vec<eunomia::Update>, Option<u32>),
        out: &mut Outbox<Self>,
    ) {
        let Some(mut copying) = self.copying.take() else { return };
        let anew = place == 0 && copying.run != Some(run);
        let is_next = anew || (copying.run == Some(run) && copying.place == place);
        if self.shower(&copying) != Some(from) || !copying.open.is_empty() || !is_next {
            self.copying = Some(copying);
            return;
        }
        (copying.run, copying.place, copying.next) = (Some(run), place, next);
        let mut requests = Vec::new();
        for update in updates {
            let (key, token) = (update.key.clone(), self.ask(Asked::Copy));
            copying.open.insert(token);
            let action = Action::Modify(Change::Merge(update));
            requests.push(hermes::Request { token, key, id: None, action });
        }
        let empty = requests.is_empty();
        self.copying = Some(copying);
        for request in requests {
            self.step_replica(now, Event::Command(hermes::Command::Update(request)), out);
        }
        if empty {
            self.end_page(now, out);
        }
    }

    /// Hermes holds something that was copied, or does not.
    pub(super) fn on_copied(
        &mut self,
        now: Time,
        token: u64,
        answer: &Answer,
        out: &mut Outbox<Self>,
    ) {
        let Some(copying) = &mut self.copying else { return };
        if !copying.open.remove(&token) {
            return; // Of a copy that was given up.
        }
        copying.failed |= !matches!(answer, Answer::Modified(_) | Answer::Kept { .. });
        if copying.open.is_empty() {
            self.end_page(now, out);
        }
    }

    /// All of a page is held, or the page is asked for again after a while.
    fn end_page(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(mut copying) = self.copying.take() else { return };
        if std::mem::take(&mut copying.failed) {
            copying.went_on = now; // It is not the other node's fault.
            self.copying = Some(copying);
            return;
        }
        let Some(place) = copying.next.take() else { return self.end_copy(now, out) };
        (copying.place, copying.asked, copying.went_on) = (place, now, now);
        self.ask_page(&copying, out);
        self.copying = Some(copying);
    }

    /// Also what was copied of another node or region before counts as copied (J2).
    fn end_copy(&mut self, now: Time, out: &mut Outbox<Self>) {
        let mut seen = Vector::default();
        for update in self.replica.entries().filter_map(|(_, _, value, _)| held(value)) {
            seen.join(&update.label.vector);
        }
        self.has_copied(now, seen, out);
    }

    /// The keys of its group are copied.
    pub(super) fn has_copied(&mut self, now: Time, seen: Vector, out: &mut Outbox<Self>) {
        let from = Peer { region: self.region, role: Role::Shard(0) };
        let message = eunomia::Message::Copied(seen);
        self.step_receiver(now, Event::Message { from, message }, out);
    }
}

impl Copying {
    /// It begins, with the first page at once.
    fn begin(from: RegionId, retry: std::time::Duration, now: Time) -> Copying {
        Copying {
            from,
            turn: 0,
            run: None,
            place: 0,
            asked: Time(now.0.saturating_sub(retry.as_nanos() as u64)),
            went_on: now,
            open: BTreeSet::new(),
            failed: false,
            next: None,
        }
    }
}
