//! What a member does for senders that are in no group.

use super::{CLIENTS_MAX, GIVE_UP_MAX, Mutation, Refusal, Say};
use crate::message::{Start, Timestamp};
use meridian_core::{ClientId, GroupId, MessageId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module. `C` names a connection.
#[derive(Clone, Debug)]
pub struct Desk<C> {
    group: GroupId,
    /// Who is told of what was passed on and is not delivered.
    waiting: BTreeMap<MessageId, C>,
    /// The same, by connection.
    connections: BTreeMap<C, BTreeSet<MessageId>>,
    /// Clients that were new lately, in order, and when.
    fresh: VecDeque<(Time, ClientId)>,
    known: BTreeSet<ClientId>,
    mutation: Mutation,
}

impl<C: Copy + Ord> Desk<C> {
    /// That of a member of `group`.
    pub fn new(group: GroupId) -> Desk<C> {
        Desk {
            group,
            waiting: BTreeMap::new(),
            connections: BTreeMap::new(),
            fresh: VecDeque::new(),
            known: BTreeSet::new(),
            mutation: Mutation::Correct,
        }
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Desk<C> {
        Desk { mutation, ..self }
    }

    /// How many messages are passed on and not delivered.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A sender asks for this: the message, if it is to be multicast now; nothing, if it is under
    /// way. There are so many `members` of all groups together, and `exists` tells whether there is
    /// a group.
    ///
    /// # Errors
    /// The answer, if the message is refused.
    pub fn on_start(
        &mut self,
        now: Time,
        from: C,
        start: Start,
        members: usize,
        exists: impl Fn(GroupId) -> bool,
    ) -> Result<Option<Start>, Say> {
        let id = start.id;
        let refused = |why| Err(Say::Refused { id, why });
        let ascending = start.dest.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || !start.dest.contains(&self.group) || start.config.is_some() {
            return refused(Refusal::NotForUs);
        }
        if let Some(unknown) = start.dest.iter().find(|group| !exists(**group)) {
            return refused(Refusal::NoGroup(*unknown));
        }
        if let Some(before) = self.waiting.get(&id).copied() {
            // It is under way. Who asks again is answered, and not refused: it was passed on.
            if self.mutation.is(Mutation::RefusesPassedOn) {
                return refused(Refusal::Busy);
            }
            self.forget(before, id);
            self.note(from, id);
            return Ok(None);
        }
        if !self.admits(now, id.client, members) {
            return refused(Refusal::Busy);
        }
        if self.mutation.is(Mutation::AnswersAtOnce) {
            return Err(Say::Delivered { id, ts: Timestamp(0) });
        }
        self.note(from, id);
        Ok(Some(start))
    }

    /// Whether a client is one that was heard of lately, or there is room for one more.
    fn admits(&mut self, now: Time, client: ClientId, members: usize) -> bool {
        let old = |first: &(Time, ClientId)| now.since(first.0) >= 2 * GIVE_UP_MAX;
        while let Some((_, gone)) = self.fresh.pop_front_if(|first| old(first)) {
            self.known.remove(&gone);
        }
        if self.known.contains(&client) {
            return true;
        }
        if self.fresh.len() >= (CLIENTS_MAX / members.max(1)).max(1) {
            return false;
        }
        self.known.insert(client);
        self.fresh.push_back((now, client));
        true
    }

    fn note(&mut self, connection: C, id: MessageId) {
        self.waiting.insert(id, connection);
        self.connections.entry(connection).or_default().insert(id);
    }

    fn forget(&mut self, connection: C, id: MessageId) {
        if let Some(ids) = self.connections.get_mut(&connection) {
            ids.remove(&id);
            if ids.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }

    fn end(&mut self, id: MessageId) -> Option<C> {
        let connection = self.waiting.remove(&id)?;
        self.forget(connection, id);
        Some(connection)
    }

    /// The member has delivered this, now or before: who is told, and what.
    pub fn on_delivered(&mut self, id: MessageId, ts: Timestamp) -> Option<(C, Say)> {
        Some((self.end(id)?, Say::Delivered { id, ts }))
    }

    /// The member has not multicast this, as that group cannot be reached: who is told, and what.
    pub fn on_refused(&mut self, id: MessageId, group: GroupId) -> Option<(C, Say)> {
        let why = Refusal::Unreachable(group);
        Some((self.end(id)?, Say::Refused { id, why }))
    }

    /// A sender's connection is gone.
    pub fn on_disconnected(&mut self, connection: C) {
        for id in self.connections.remove(&connection).unwrap_or_default() {
            self.waiting.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: GroupId = GroupId(1);
    const MEMBERS: usize = 8;

    fn start(client: u64, sequence: u64, dest: &[u16]) -> Start {
        let id = MessageId { client: ClientId(client), sequence };
        let dest: Vec<_> = dest.iter().copied().map(GroupId).collect();
        Start::new(id, dest, "text")
    }

    fn ask(desk: &mut Desk<u8>, now: Time, from: u8, start: Start) -> Result<bool, Refusal> {
        match desk.on_start(now, from, start, MEMBERS, |group| group.0 < 3) {
            Ok(pass) => Ok(pass.is_some()),
            Err(Say::Refused { why, .. }) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_for_this_group_or_changes_members_is_refused() {
        let (mut desk, now) = (Desk::new(HERE), Time(0));
        assert_eq!(ask(&mut desk, now, 1, start(7, 1, &[0, 2])), Err(Refusal::NotForUs));
        assert_eq!(ask(&mut desk, now, 1, start(7, 1, &[1, 0])), Err(Refusal::NotForUs));
        let unknown = Err(Refusal::NoGroup(GroupId(9)));
        assert_eq!(ask(&mut desk, now, 1, start(7, 1, &[1, 9])), unknown);
        let id = MessageId { client: ClientId(7), sequence: 1 };
        let change = Start::configure(id, HERE, 1, []);
        assert_eq!(ask(&mut desk, now, 1, change), Err(Refusal::NotForUs));
        assert_eq!((ask(&mut desk, now, 1, start(7, 1, &[0, 1])), desk.waiting()), (Ok(true), 1));
    }

    #[test]
    fn who_asked_last_is_told_and_what_is_under_way_is_passed_on_once() {
        let (mut desk, now) = (Desk::new(HERE), Time(0));
        let message = start(7, 1, &[1]);
        assert_eq!(ask(&mut desk, now, 1, message.clone()), Ok(true));
        assert_eq!(ask(&mut desk, now, 2, message.clone()), Ok(false));
        desk.on_disconnected(1);
        let told = desk.on_delivered(message.id, Timestamp(4)).unwrap();
        assert_eq!(told, (2, Say::Delivered { id: message.id, ts: Timestamp(4) }));
        assert_eq!(desk.on_delivered(message.id, Timestamp(4)), None);
        assert_eq!(ask(&mut desk, now, 2, message.clone()), Ok(true), "the process knows it");
        desk.on_disconnected(2);
        assert_eq!((desk.on_refused(message.id, HERE), desk.waiting()), (None, 0));
    }

    /// So that nobody who may still repeat is forgotten.
    #[test]
    fn new_clients_are_as_many_as_are_remembered() {
        let mut desk = Desk::new(HERE);
        let max = (CLIENTS_MAX / MEMBERS) as u64;
        for client in 0..max {
            assert_eq!(ask(&mut desk, Time(client), 1, start(client, 1, &[1])), Ok(true));
        }
        let late = Time(0) + 2 * GIVE_UP_MAX;
        let just_before = Time(late.0 - 1);
        assert_eq!(ask(&mut desk, just_before, 1, start(max, 1, &[1])), Err(Refusal::Busy));
        assert_eq!(ask(&mut desk, just_before, 1, start(0, 2, &[1])), Ok(true), "not new");
        assert_eq!(ask(&mut desk, late, 1, start(max, 1, &[1])), Ok(true));
    }
}
