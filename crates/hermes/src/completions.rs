//! The last request of each client and its answer, so that a request which is asked again is
//! executed once (RIFL; here a completion record travels with the update itself).
//!
//! An INV carries the name of the request and the answer ([`crate::message::Completed`]); whoever
//! applies or replays it has both. A write that was superseded took effect just before what
//! superseded it. An RMW that met something later did or did not: it was committed if and only if
//! the next update that this replica applies names it as its base, because an update begins only
//! where its base is Valid. A shadow replica may have applied that one before it is told of the
//! RMW, and asks its donor until that knows (`join`, J1).
//!
//! Each question is answered, also if the same request is asked several times at once: it waits
//! directly behind itself, and finds its answer. Where live replicas are asked at once, those that
//! are defeated look whether what defeated them was the same request.
//!
//! **What the owner must do.** A client has one update outstanding, and numbers them upward; who
//! wants several at once takes several [`ClientId`]s. A request is asked again of the replica that
//! had it first while that one is live. After it was removed, it is asked of another that has
//! [settled](crate::Hermes::is_settled) in a later epoch, in which the first one is not live:
//! until then an INV of the removed one may still be replayed somewhere. One that starts again with
//! all that it held ([`crate::Durability::Disk`]) stays live, and is asked again itself.
//! [`crate::Command::Forget`] ends a client.

use crate::message::{Completion, Kind, Update};
use crate::store::Entry;
use crate::timestamp::Timestamp;
use meridian_core::{ClientId, MessageId};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What is known of a request that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: it is to be executed.
    No,
    /// The client has asked for something later.
    Old,
    /// It has led to this.
    Asked(Completion),
}

/// By client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Completions(BTreeMap<ClientId, Completion>);

impl Completions {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn find(&self, id: MessageId) -> Known {
        match self.0.get(&id.client) {
            Some(known) if known.sequence > id.sequence => Known::Old,
            Some(known) if known.sequence == id.sequence => Known::Asked(known.clone()),
            Some(_) | None => Known::No,
        }
    }

    /// The last request of a client.
    pub fn of(&self, client: ClientId) -> Option<&Completion> {
        self.0.get(&client)
    }

    pub fn knows(&self, client: ClientId) -> bool {
        self.0.contains_key(&client)
    }

    /// The request of this update has led to it.
    pub fn record(&mut self, update: &Update) {
        let Some(request) = &update.request else { return };
        let (ts, kind) = (update.ts, update.kind);
        let (sequence, answer) = (request.id.sequence, request.answer.clone());
        self.put(
            request.id.client,
            Completion { sequence, ts, kind, answer, committed: kind == Kind::Write },
        );
    }

    /// Keeps the later one.
    pub fn put(&mut self, client: ClientId, completion: Completion) {
        match self.0.get_mut(&client) {
            Some(known) => {
                let place = |c: &Completion| (c.sequence, c.ts, c.committed);
                if place(known) < place(&completion) {
                    *known = completion;
                }
            }
            None => drop(self.0.insert(client, completion)),
        }
    }

    /// An update that was held here is followed by one that began on `base`.
    pub fn followed(&mut self, held: &Entry, base: Timestamp) {
        let Some(request) = &held.request else { return };
        let Some(known) = self.0.get_mut(&request.id.client) else { return };
        if known.ts != held.ts || known.committed {
            return;
        }
        if base >= held.ts {
            known.committed = true;
        } else {
            self.0.remove(&request.id.client);
        }
    }

    /// The update that is held here is committed.
    pub fn committed(&mut self, held: &Entry) {
        let Some(request) = &held.request else { return };
        let known = self.0.get_mut(&request.id.client);
        if let Some(known) = known.filter(|known| known.ts == held.ts) {
            known.committed = true;
        }
    }

    pub fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    pub fn forget_before(&mut self, client: ClientId) {
        self.0 = self.0.split_off(&client);
    }

    /// All, in order.
    pub fn into_all(self) -> impl Iterator<Item = (ClientId, Completion)> + Send {
        self.0.into_iter()
    }

    /// Those behind a client, in order.
    pub fn since(&self, client: Option<ClientId>) -> impl Iterator<Item = (ClientId, &Completion)> {
        let from = client.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range((from, Bound::Unbounded)).map(|(client, known)| (*client, known))
    }
}
