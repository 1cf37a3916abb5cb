//! A shadow replica becomes whole while updates go on (Hermes, section 3.4, recovery).
//!
//! It follows from the epoch on that names it. A donor sends what it holds only when all live
//! replicas have installed that epoch: from then on nothing is committed without the shadow
//! replica's ACK, and what was committed before is at the donor. What it is sent takes effect where
//! it is later than what came by INVs meanwhile.

use crate::message::{Body, Chunk, Cursor, Modify, Output, Record, Update};
use crate::mutation::Mutation;
use crate::process::Hermes;
use meridian_core::{NodeId, Outbox, Slot, Time};

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
}

impl Joining {
    pub fn is_complete(&self) -> bool {
        self.next.is_none()
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
                *joining =
                    Some(Joining { donor, next: Some(Cursor::Entries(0)), due: now, asked: 0 })
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
                    let Update { key, value, .. } = &entry.update;
                    bytes += 1 + key.len() + value.as_ref().map_or(0, |value| value.len());
                    entries.push((entry.update.clone(), entry.valid));
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
        let wanted =
            |joining: &&mut Joining| joining.donor == from && joining.next == Some(chunk.cursor);
        let Some(joining) = self.joining.as_mut().filter(wanted) else { return };
        (joining.next, joining.due, joining.asked) = (chunk.next, now, 0);
        let complete = joining.is_complete();
        for (update, valid) in chunk.entries {
            self.take_entry(now, from, update, valid, out);
        }
        for (client, known) in chunk.clients {
            self.record(|| Record::Completed(client, known.clone()), out);
            self.completions.put(client, known);
        }
        if complete {
            return self.say_complete(out);
        }
        self.fetch_again(now, out);
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
        let (held, ts) = (self.store.get(slot).update.ts, update.ts);
        if ts > held {
            self.apply(now, from, slot, update, out);
        }
        if valid && ts >= held {
            self.become_valid(now, slot, out);
        }
    }
}
