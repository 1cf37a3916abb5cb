//! The names of a client's updates, and what it has given up.
//!
//! A client sends in one session for each set of destinations (decision 0018). So what waits for a
//! region that is cut off holds up no session but those that need that region.
//!
//! An update that its caller gives up may be anywhere, and nobody sends it again. Its session gets
//! a successor, and the next message to the same groups cancels it: after that one it has no
//! effect. An update to other groups, or of another shard, that touches the same is sent only once
//! a message of the former shard has done so: see [`Names::to_cancel_before`].
//!
//! A shard's messages are in one order, so one that waits for what is undecided holds up the
//! others. A client whose message is delayed goes on in another shard, but for what touches the
//! same as that one: it would wait in any shard, and hold that up, too.
//!
//! Invariants:
//! - N1: no name is given twice.
//! - N2: an update given up is remembered until a message that cancels it was acknowledged.

use crate::mutation::Mutation;
use meridian_core::{ClientId, GroupId, MessageId, Time};
use meridian_host::sessions::{self, CANCELS_MAX, WINDOW};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many updates given up are remembered for one set of destinations; with more, the next update
/// to these waits until some are cancelled. They are sent to groups that cannot be reached, so
/// there is no hurry.
pub const GIVEN_UP_MAX: usize = 1024;

/// A message that has waited for longer is delayed, perhaps for as long as a region is cut off, and
/// with it its shard: the next is sent in another.
const DELAYED: Duration = Duration::from_secs(1);

/// How many updates given up a message cancels though it touches nothing that they touch.
const CANCELLED_BESIDE: usize = 16;

/// The name of a message, and what it says of its client's others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub id: MessageId,
    /// The lowest number of its session that the client still waits for.
    pub low: u64,
    /// What it cancels.
    pub cancels: Vec<MessageId>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// By destinations.
    sessions: BTreeMap<Vec<GroupId>, Session>,
    /// By destinations: those with delayed messages.
    delayed: BTreeMap<Vec<GroupId>, Vec<Session>>,
    given_up: BTreeMap<Shard, BTreeMap<MessageId, BTreeSet<u64>>>,
    pub(crate) mutation: Mutation,
}

/// Messages to the same groups, which all deliver them in one order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// The groups.
    pub dest: Vec<GroupId>,
    number: u64,
}

impl Shard {
    /// That of a message.
    fn of(dest: &[GroupId], id: MessageId) -> Shard {
        Shard { dest: dest.to_vec(), number: sessions::shard(id.client) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    name: ClientId,
    last: u64,
    /// By number.
    unfinished: BTreeMap<u64, Unfinished>,
    /// Of one with delayed messages: what they touch, and what was sent after them.
    touched: BTreeSet<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Unfinished {
    since: Time,
    keys: BTreeSet<u64>,
}

impl Session {
    fn new(name: ClientId) -> Session {
        Session { name, last: 0, unfinished: BTreeMap::new(), touched: BTreeSet::new() }
    }

    /// The name of its next message.
    fn next(&self) -> MessageId {
        MessageId { client: self.name, sequence: self.last + 1 }
    }

    fn has_room(&self) -> bool {
        self.last + 1 - self.low() < WINDOW
    }

    fn begin(&mut self, since: Time, keys: BTreeSet<u64>) {
        self.last += 1;
        self.unfinished.insert(self.last, Unfinished { since, keys });
    }

    fn low(&self) -> u64 {
        self.unfinished.first_key_value().map_or(self.last + 1, |(number, _)| *number)
    }

    fn is_delayed(&self, now: Time) -> bool {
        let oldest = self.unfinished.first_key_value();
        oldest.is_some_and(|(_, oldest)| now.since(oldest.since) > DELAYED)
    }

    /// The same as one with delayed messages.
    fn put_off(mut self) -> Session {
        let keys = self.unfinished.values().flat_map(|message| &message.keys);
        self.touched = keys.copied().collect();
        self
    }
}

impl Names {
    /// Names a message to `dest`, with what it touches; `keys` tells that of any name, and `random`
    /// is drawn anew.
    pub fn begin(
        &mut self,
        dest: &[GroupId],
        now: Time,
        random: u64,
        keys: impl Fn(MessageId) -> BTreeSet<u64>,
    ) -> (Name, BTreeSet<u64>) {
        let detours = !self.mutation.is(Mutation::NeverDetours);
        let session = self.session(dest, random);
        if session.is_delayed(now) && detours {
            let fresh = Session::new(sessions::detour(random, session.name));
            let delayed = std::mem::replace(session, fresh).put_off();
            self.delayed.entry(dest.to_vec()).or_default().push(delayed);
        } else if !session.has_room() {
            *session = Session::new(sessions::successor(random, session.name));
        }
        let own = keys(self.session(dest, random).next());
        let session = match self.holding_up(dest, &own) {
            Some(at) => &mut self.delayed.get_mut(dest).expect("it is there")[at],
            None => self.session(dest, random),
        };
        let id = session.next();
        let own = keys(id);
        if !session.touched.is_empty() {
            session.touched.extend(&own);
        }
        session.begin(now, own.clone());
        let low = session.low();
        (Name { id, low, cancels: self.cancels(&Shard::of(dest, id), &own) }, own)
    }

    /// Which session of those with delayed messages is to be used for what touches `keys`.
    fn holding_up(&self, dest: &[GroupId], keys: &BTreeSet<u64>) -> Option<usize> {
        let all = self.delayed.get(dest).filter(|_| !self.mutation.is(Mutation::DetoursAlways))?;
        let touches = |one: &Session| keys.iter().any(|key| one.touched.contains(key));
        all.iter().position(|one| one.has_room() && touches(one))
    }

    fn session(&mut self, dest: &[GroupId], random: u64) -> &mut Session {
        let fresh = || Session::new(sessions::name(random, dest));
        self.sessions.entry(dest.to_vec()).or_insert_with(fresh)
    }

    /// What a message of `shard` that touches `keys` cancels: all that touches the same, and some
    /// more.
    fn cancels(&self, shard: &Shard, keys: &BTreeSet<u64>) -> Vec<MessageId> {
        let Some(given_up) = self.given_up.get(shard) else { return Vec::new() };
        let same = given_up.iter().filter(|(_, of)| !of.is_disjoint(keys));
        let other = given_up.iter().filter(|(_, of)| of.is_disjoint(keys));
        let all = same.chain(other.take(CANCELLED_BESIDE)).map(|(id, _)| *id);
        all.take(CANCELS_MAX).collect()
    }

    /// The message has an answer: what it cancels takes no effect any more. The answer of one group
    /// is enough for an update, since that has the votes of all.
    pub fn end(&mut self, dest: &[GroupId], name: &Name) {
        self.forget(dest, name.id);
        let shard = Shard::of(dest, name.id);
        if !name.cancels.is_empty()
            && let Some(given_up) = self.given_up.get_mut(&shard)
        {
            name.cancels.iter().for_each(|id| drop(given_up.remove(id)));
            if given_up.is_empty() {
                self.given_up.remove(&shard);
            }
        }
    }

    /// The message was never sent.
    pub fn forget(&mut self, dest: &[GroupId], id: MessageId) {
        let current = self.sessions.get_mut(dest);
        let delayed = self.delayed.get_mut(dest).into_iter().flatten();
        if let Some(session) = current.into_iter().chain(delayed).find(|of| of.name == id.client) {
            session.unfinished.remove(&id.sequence);
        }
        self.keep_delayed(dest, |session| !session.unfinished.is_empty());
    }

    fn keep_delayed(&mut self, dest: &[GroupId], kept: impl Fn(&Session) -> bool) {
        let Some(all) = self.delayed.get_mut(dest) else { return };
        all.retain(kept);
        if all.is_empty() {
            self.delayed.remove(dest);
        }
    }

    /// Nobody waits any more for the message, which was sent and touches `keys`; it may still
    /// happen.
    pub fn give_up(&mut self, dest: &[GroupId], id: MessageId, keys: BTreeSet<u64>, random: u64) {
        if self.sessions.get(dest).is_some_and(|of| of.name == id.client) {
            self.succeed(dest, random);
        }
        self.keep_delayed(dest, |session| session.name != id.client);
        self.given_up.entry(Shard::of(dest, id)).or_default().insert(id, keys);
    }

    /// The next message to `dest` is the first of another session: the groups may have forgotten
    /// the present ones.
    pub fn renew(&mut self, dest: &[GroupId], random: u64) {
        self.succeed(dest, random);
        self.delayed.remove(dest);
    }

    fn succeed(&mut self, dest: &[GroupId], random: u64) {
        let session = self.session(dest, random);
        *session = Session::new(sessions::successor(random, session.name));
    }

    /// In which shard a message must be sent, and be answered by all its groups, that cancels some
    /// of what was given up, before the update `id` to `dest` is sent, which touches `keys`. The
    /// update cancels what it can itself.
    pub fn to_cancel_before(
        &self,
        dest: &[GroupId],
        id: MessageId,
        keys: &BTreeSet<u64>,
    ) -> Option<Shard> {
        let own = Shard::of(dest, id);
        let forgets = self.mutation.is(Mutation::DetoursUncancelled);
        let mut all = self.given_up.iter().filter(|(shard, given_up)| {
            let same = || given_up.values().filter(|of| !of.is_disjoint(keys));
            match **shard == own {
                true => given_up.len() >= GIVEN_UP_MAX || same().count() > CANCELS_MAX,
                false if forgets && shard.dest == dest => false,
                false => {
                    shard.dest.iter().any(|group| dest.contains(group)) && same().next().is_some()
                }
            }
        });
        all.next().map(|(shard, _)| shard.clone())
    }

    /// Names a message of `shard` that does nothing but cancel: what touches `keys` first. It has a
    /// session of its own.
    pub fn cancel(&self, shard: &Shard, keys: &BTreeSet<u64>, random: u64) -> Name {
        let client = sessions::successor(random, ClientId(shard.number));
        let mut cancels = self.cancels(shard, keys);
        let others = self.given_up.get(shard).into_iter().flat_map(BTreeMap::keys);
        let others: Vec<_> = others.filter(|id| !cancels.contains(id)).copied().collect();
        cancels.extend(others);
        cancels.truncate(CANCELS_MAX);
        Name { id: MessageId { client, sequence: 1 }, low: 1, cancels }
    }

    /// How many updates given up may still happen.
    pub fn given_up(&self) -> usize {
        self.given_up.values().map(BTreeMap::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: [GroupId; 1] = [GroupId(1)];
    const BOTH: [GroupId; 2] = [GroupId(1), GroupId(2)];

    fn keys(keys: &[u64]) -> BTreeSet<u64> {
        keys.iter().copied().collect()
    }

    fn begin(names: &mut Names, dest: &[GroupId], touches: &[u64], random: u64) -> Name {
        begin_at(names, (dest, Time(0)), touches, random)
    }

    fn begin_at(
        names: &mut Names,
        (dest, now): (&[GroupId], Time),
        touches: &[u64],
        random: u64,
    ) -> Name {
        names.begin(dest, now, random << 32, |_| keys(touches)).0
    }

    #[test]
    fn low_is_the_lowest_that_has_not_ended() {
        let mut names = Names::default();
        let all: Vec<_> = (1..=3).map(|n| begin(&mut names, &US, &[n], n)).collect();
        assert!(all.iter().all(|name| name.low == 1 && name.id.client == all[0].id.client));
        names.end(&US, &all[0]);
        names.end(&US, &all[2]);
        let next = begin(&mut names, &US, &[], 4);
        assert_eq!((next.id.sequence, next.low), (4, 2));
        names.end(&US, &all[1]);
        names.end(&US, &next);
        assert_eq!(begin(&mut names, &US, &[], 5).low, 5);
    }

    /// Known fault 3: what waits for one set of groups holds up no other.
    #[test]
    fn each_set_of_groups_has_a_session_of_its_own() {
        let mut names = Names::default();
        let stuck = begin(&mut names, &BOTH, &[1], 1);
        for number in 1..3 * WINDOW {
            let name = begin(&mut names, &US, &[2], number);
            assert!(name.id.client != stuck.id.client);
            assert_eq!((name.id.sequence, name.low), (number, number));
            names.end(&US, &name);
        }
    }

    #[test]
    fn what_was_given_up_is_cancelled_by_the_next_message_that_is_answered() {
        let mut names = Names::default();
        let first = begin(&mut names, &US, &[1], 1);
        names.give_up(&US, first.id, keys(&[1]), 2 << 32);
        let second = begin(&mut names, &US, &[1], 3);
        assert_ne!(second.id.client, first.id.client);
        assert_eq!(sessions::shard(second.id.client), sessions::shard(first.id.client));
        assert_eq!((second.low, &second.cancels), (1, &vec![first.id]));
        let third = begin(&mut names, &US, &[1], 4);
        assert_eq!(third.cancels, [first.id], "the second has no answer yet");
        names.end(&US, &third);
        assert_eq!(names.given_up(), 0);
        assert!(begin(&mut names, &US, &[1], 5).cancels.is_empty());
    }

    #[test]
    fn an_update_to_other_groups_waits_until_what_touches_the_same_is_cancelled() {
        let mut names = Names::default();
        let first = begin(&mut names, &BOTH, &[1, 2], 1);
        names.give_up(&BOTH, first.id, keys(&[1, 2]), 2 << 32);
        let before = |names: &mut Names, dest: &[GroupId], touches: &[u64]| {
            let next = begin(names, dest, touches, 9);
            names.to_cancel_before(dest, next.id, &keys(touches))
        };
        assert_eq!(before(&mut names, &US, &[3]), None);
        assert_eq!(before(&mut names, &[GroupId(3)], &[1]), None);
        assert_eq!(before(&mut names, &BOTH, &[1]), None, "it does that itself");
        let shard = before(&mut names, &US, &[2]).unwrap();
        assert_eq!(shard, Shard::of(&BOTH, first.id));
        let cancel = names.cancel(&shard, &keys(&[2]), 3 << 32);
        assert_eq!((cancel.low, &cancel.cancels), (1, &vec![first.id]));
        assert_eq!(Shard::of(&BOTH, cancel.id), shard);
        names.end(&BOTH, &cancel);
        assert_eq!(before(&mut names, &US, &[2]), None);
    }

    /// What waits for an undecided rename holds up its shard: the client goes on in another, and
    /// what touches nothing of it needs nothing of that shard.
    #[test]
    fn what_is_delayed_holds_up_nothing_that_comes_later() {
        let mut names = Names::default();
        let late = Time(0) + DELAYED * 2;
        let stuck = begin(&mut names, &US, &[1], 1);
        let next = begin_at(&mut names, (&US, late), &[2], 1);
        assert_ne!(Shard::of(&US, next.id), Shard::of(&US, stuck.id));
        assert!(sessions::goes_to(next.id.client, &US) && next.cancels.is_empty());
        // Given up, it is cancelled in its own shard by what touches the same, and by nothing else.
        names.give_up(&US, stuck.id, keys(&[1]), 2 << 32);
        names.end(&US, &next);
        let other = begin_at(&mut names, (&US, late), &[2], 3);
        assert_eq!(names.to_cancel_before(&US, other.id, &keys(&[2])), None);
        let same = begin_at(&mut names, (&US, late), &[1], 3);
        assert!(same.cancels.is_empty() && same.id.client == other.id.client);
        let shard = names.to_cancel_before(&US, same.id, &keys(&[1])).unwrap();
        assert_eq!(shard, Shard::of(&US, stuck.id));
        let cancel = names.cancel(&shard, &keys(&[1]), 4 << 32);
        assert_eq!((Shard::of(&US, cancel.id), &cancel.cancels), (shard, &vec![stuck.id]));
        names.end(&US, &cancel);
        assert_eq!(
            (names.to_cancel_before(&US, same.id, &keys(&[1])), names.given_up()),
            (None, 0)
        );
    }

    #[test]
    fn what_touches_the_same_as_what_is_delayed_waits_with_it() {
        let mut names = Names::default();
        let stuck = begin(&mut names, &US, &[1], 1);
        let late = (&US[..], Time(0) + DELAYED * 2);
        let behind = begin_at(&mut names, late, &[1, 2], 2);
        assert_eq!((behind.id.client, behind.id.sequence, behind.low), (stuck.id.client, 2, 1));
        let behind_that = begin_at(&mut names, late, &[2], 3);
        assert_eq!(behind_that.id.client, stuck.id.client);
        let free = begin_at(&mut names, late, &[3], 4);
        assert_ne!(Shard::of(&US, free.id), Shard::of(&US, stuck.id));
        names.end(&US, &stuck);
        names.end(&US, &behind);
        let still = begin_at(&mut names, late, &[1], 5);
        assert_eq!((still.id.client, still.low), (stuck.id.client, 3));
        names.end(&US, &still);
        names.end(&US, &behind_that);
        assert_eq!(begin_at(&mut names, late, &[1], 6).id.client, free.id.client);
    }

    /// Its groups may have forgotten who sent it.
    #[test]
    fn nothing_more_is_sent_in_the_session_of_what_was_given_up() {
        let mut names = Names::default();
        let stuck = begin(&mut names, &US, &[1], 1);
        let late = (&US[..], Time(0) + DELAYED * 2);
        let behind = begin_at(&mut names, late, &[1], 2);
        names.give_up(&US, stuck.id, keys(&[1]), 3 << 32);
        let next = begin_at(&mut names, late, &[1], 4);
        assert_ne!(next.id.client, behind.id.client);
        names.end(&US, &behind);
        let shard = names.to_cancel_before(&US, next.id, &keys(&[1])).unwrap();
        assert_eq!(shard, Shard::of(&US, stuck.id));
    }

    #[test]
    fn what_is_given_up_is_bounded() {
        let mut names = Names::default();
        for number in 1..=GIVEN_UP_MAX as u64 {
            let name = begin(&mut names, &US, &[number], number);
            assert_eq!(names.to_cancel_before(&US, name.id, &keys(&[0])), None);
            assert!(name.cancels.len() <= CANCELS_MAX);
            names.give_up(&US, name.id, keys(&[number]), number << 32 | 1 << 20);
        }
        let next = begin(&mut names, &US, &[0], 7);
        let shard = names.to_cancel_before(&US, next.id, &keys(&[0])).unwrap();
        let other = [GroupId(2)];
        let elsewhere = begin(&mut names, &other, &[0], 7);
        assert_eq!(names.to_cancel_before(&other, elsewhere.id, &keys(&[0])), None);
        for number in 0..4 {
            let cancel = names.cancel(&shard, &keys(&[0]), number << 32 | 3 << 20);
            assert_eq!(cancel.cancels.len(), CANCELS_MAX);
            names.end(&US, &cancel);
        }
        assert_eq!(names.given_up(), 0);
    }
}
