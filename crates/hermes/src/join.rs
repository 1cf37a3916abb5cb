//! A shadow replica becomes whole while updates go on (Hermes, section 3.4, recovery).
//!
//! It follows from the epoch on that names it. A donor sends what it holds only when all live
//! replicas have installed that epoch: from then on nothing is committed without the shadow
//! replica's ACK, and what was committed before is at the donor. What it is sent takes effect where
//! it is later than what came by INVs meanwhile.
//!
//! Invariant:
//! - J1: of no RMW that a complete replica knows and does not hold it doubts whether it was
//!   committed. An RMW is decided where it is held, by its VAL or by what follows it. A shadow
//!   replica that was told of one by its donor may hold what follows already. So of all those that
//!   the donor doubts it asks again, until the donor has decided them.

use crate::message::{Body, Chunk, Completion, Cursor, Modify, Output, Record, Update};
use crate::mutation::Mutation;
use crate::process::Hermes;
use crate::timestamp::Timestamp;
use meridian_core::{ClientId, NodeId, Outbox, Slot, Time};
use std::collections::BTreeMap;
use std::ops::Bound;

/// So many clients' last answers go in one message.
const CLIENTS_CHUNK: usize = 1024;
/// The longest wait for an answer is `2.pow(ASKED_MAX)` message-loss timeouts.
const ASKED_MAX: u32 = 6;

/// How far a shadow replica is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Joining {
    donor: NodeId,
    /// What it asks for next; `None` if it has everything.
    next: Option<Cursor>,
    /// When it asks again.
    due: Time,
    /// So often it has asked in vain. From the third time on it waits twice as long each time, as
    /// an entry may be long.
    asked: u32,
    /// The RMWs that a donor doubts (J1): by client, the number of the request and the place.
    undecided: BTreeMap<ClientId, (u64, Timestamp)>,
}

impl Joining {
    fn begin(donor: NodeId, now: Time, undecided: BTreeMap<ClientId, (u64, Timestamp)>) -> Joining {
        Joining { donor, next: Some(Cursor::Entries(0)), due: now, asked: 0, undecided }
    }

    pub fn is_complete(&self) -> bool {
        self.next.is_none()
    }

    /// Takes note of what the donor doubts.
    fn doubt(&mut self, clients: &[(ClientId, Completion)]) {
        let doubted = clients.iter().filter(|(_, known)| !known.committed);
        let places = doubted.map(|(client, known)| (*client, (known.sequence, known.ts)));
        self.undecided.extend(places);
    }

    /// The donor was asked again of this client: the RMW that it doubts no more. Of a later request
    /// this replica has had the INV, or will have it.
    fn decide(&mut self, client: ClientId, told: Option<&Completion>) -> Option<(u64, Timestamp)> {
        let place = self.undecided.get_mut(&client)?;
        match told {
            Some(told) if !told.committed && told.sequence == place.0 => {
                place.1 = told.ts;
                None
            }
            Some(_) | None => self.undecided.remove(&client),
        }
    }

    /// Whom to ask of after this, in turn.
    fn next_undecided(&self, after: Cursor) -> Option<Cursor> {
        let behind = match after {
            Cursor::Client(client) => Bound::Excluded(client),
            Cursor::Entries(_) | Cursor::Clients(_) => Bound::Unbounded,
        };
        let mut behind = self.undecided.range((behind, Bound::Unbounded));
        let (client, _) = behind.next().or_else(|| self.undecided.first_key_value())?;
        Some(Cursor::Client(*client))
    }
}

impl<M: Modify> Hermes<M> {
    /// Whether this shadow replica has all that there is.
    pub(crate) fn has_joined(&self) -> bool {
        self.joining.as_ref().is_some_and(Joining::is_complete)
    }

    /// In a new epoch: a shadow replica goes on asking, or begins anew with another donor.
    pub(crate) fn follow_or_serve(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.is_live() {
            self.joining = None;
            return;
        }
        let Some(donor) = self.members.now.live.first().copied() else { return };
        match &mut self.joining {
            Some(joining) if joining.is_complete() => self.say_complete(out),
            Some(joining) if self.members.is_live(joining.donor) => {}
            joining => {
                // What the last donor doubted the next one may have forgotten as defeated.
                let undecided = joining.take().map(|joining| joining.undecided);
                *joining = Some(Joining::begin(donor, now, undecided.unwrap_or_default()));
            }
        }
        self.fetch_again(now, out);
    }

    fn say_complete(&self, out: &mut Outbox<Self>) {
        out.output(Output::Complete { epoch: self.members.epoch() });
    }

    pub(crate) fn fetch_again(&mut self, now: Time, out: &mut Outbox<Self>) {
        let timeout = self.options.message_loss_timeout;
        let Some(joining) = self.joining.as_mut().filter(|joining| joining.due <= now) else {
            return;
        };
        let Some(cursor) = joining.next else { return };
        joining.due = now + timeout * (1 << joining.asked.saturating_sub(2).min(ASKED_MAX));
        joining.asked += 1;
        let donor = joining.donor;
        self.send(donor, Body::Fetch(cursor), out);
    }

    pub(crate) fn on_fetch(&self, from: NodeId, cursor: Cursor, out: &mut Outbox<Self>) {
        let everywhere = self.installed.is_everywhere(&self.members, self.me)
            || self.mutation.is(Mutation::DonatesEarly);
        // Where it is not, the timer of either asks again.
        if self.is_live() && everywhere {
            self.send(from, Body::Chunk(self.chunk(cursor)), out);
        }
    }

    fn chunk(&self, cursor: Cursor) -> Chunk {
        let (mut entries, mut clients) = (Vec::new(), Vec::new());
        let next = match cursor {
            Cursor::Entries(from) => {
                let (mut bytes, mut next) = (0, None);
                for (slot, entry) in self.store.since(Slot(from)) {
                    if bytes >= self.options.chunk_bytes {
                        next = Some(Cursor::Entries(slot.0));
                        break;
                    }
                    bytes += 1 + entry.key.len() + entry.bytes();
                    entries.push((entry.update(), entry.is_valid()));
                }
                next.or(Some(Cursor::Clients(None)))
            }
            Cursor::Clients(after) => {
                let some = self.completions.since(after).take(CLIENTS_CHUNK);
                clients.extend(some.map(|(client, known)| (client, known.clone())));
                let full = clients.len() == CLIENTS_CHUNK;
                let last = clients.last().map(|(client, _)| *client);
                full.then_some(Cursor::Clients(last))
            }
            Cursor::Client(client) => {
                clients.extend(self.completions.of(client).map(|known| (client, known.clone())));
                None
            }
        };
        Chunk { cursor, entries, clients, next }
    }

    pub(crate) fn on_chunk(
        &mut self,
        now: Time,
        from: NodeId,
        chunk: Chunk,
        out: &mut Outbox<Self>,
    ) {
        let Chunk { cursor, entries, clients, next } = chunk;
        let wanted = |joining: &&mut Joining| joining.donor == from && joining.next == Some(cursor);
        let Some(joining) = self.joining.as_mut().filter(wanted) else { return };
        (joining.due, joining.asked) = (now, 0);
        let mut defeated = None;
        match cursor {
            Cursor::Entries(_) => {}
            Cursor::Clients(_) => joining.doubt(&clients),
            Cursor::Client(client) => {
                let told = clients.first().map(|(_, known)| known);
                match joining.decide(client, told) {
                    Some(place) if told.is_none() => defeated = Some((client, place)),
                    Some(_) => {}
                    None => joining.due = now + self.options.message_loss_timeout,
                }
            }
        }
        joining.next = next.or_else(|| joining.next_undecided(cursor));
        if self.mutation.is(Mutation::LeavesUndecided) {
            joining.next = next;
        }
        let complete = joining.is_complete();
        for (update, valid) in entries {
            self.take_entry(now, from, update, valid, out);
        }
        for (client, known) in clients {
            self.record(|| Record::Completed(client, known.clone()), out);
            self.completions.put(client, known);
        }
        if let Some((client, place)) = defeated {
            self.forget_defeated(client, place, out);
        }
        if complete {
            return self.say_complete(out);
        }
        self.fetch_again(now, out);
    }

    /// The donor has forgotten this RMW, as it was defeated: nobody may doubt it for ever.
    fn forget_defeated(
        &mut self,
        client: ClientId,
        place: (u64, Timestamp),
        out: &mut Outbox<Self>,
    ) {
        let known = self.completions.of(client);
        if known.is_some_and(|known| !known.committed && (known.sequence, known.ts) == place) {
            self.record(|| Record::Forgotten(client), out);
            self.completions.forget(client);
        }
    }

    /// Takes an entry of the donor if it is later than what is held, or as late and Valid.
    fn take_entry(
        &mut self,
        now: Time,
        from: NodeId,
        update: Update,
        valid: bool,
        out: &mut Outbox<Self>,
    ) {
        let slot = self.store.slot(&update.key, self.me);
        let (held, ts) = (self.store.get(slot).ts, update.ts);
        if ts > held {
            self.apply(now, from, slot, update, out);
        }
        if valid && ts >= held {
            self.become_valid(now, slot, out);
        }
    }
}
