//! Causal consistency with convergence, of reads and writes of keys, where each value is written
//! once.
//!
//! An operation is *causally before* another if its session did it earlier, if the other reads what
//! it wrote, or over any number of such steps (Ahamad et al. 1995). What may not be (Bouajjani et
//! al. 2017, "On verifying causal consistency", where the names are from):
//!
//! - an operation is before itself (CyclicCO), or a value is read that nobody wrote (ThinAirRead);
//! - a read sees nothing, or a value, though a write of another value to that key lies causally
//!   between (WriteCOInitRead, WriteCORead): the violated session guarantee (Terry et al. 1994)
//!   is named;
//! - no one order of all writes explains what all sessions saw (CyclicCF): replicas would not
//!   converge to one last writer.
//!
//! At the end of a run all replicas hold the same, and not what was causally overwritten:
//! [`check_final`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};

/// What a session did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<K, V> {
    /// It read this; `None` where there was nothing.
    Read(K, Option<V>),
    /// It wrote this. Also where the outcome is unknown: the write may be seen.
    Write(K, V),
}

/// What each session did, in order.
pub type Sessions<K, V> = Vec<Vec<Operation<K, V>>>;

/// An operation: the session, and the how-manieth there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    session: usize,
    at: usize,
}

/// The history with what follows from it.
struct Order<'a, K, V> {
    sessions: &'a [Vec<Operation<K, V>>],
    writers: BTreeMap<(&'a K, &'a V), Place>,
    /// The places of writes, by key and session, ascending.
    writes: BTreeMap<&'a K, BTreeMap<usize, Vec<usize>>>,
    /// For each operation how many of each session are causally before it, itself among them.
    past: Vec<Vec<Vec<usize>>>,
}

/// Judges a history.
///
/// # Errors
/// The first violation.
pub fn check<K: Ord + Debug, V: Ord + Debug>(
    sessions: &[Vec<Operation<K, V>>],
) -> Result<(), String> {
    let order = Order::new(sessions)?;
    for place in order.places() {
        if let Operation::Read(key, value) = order.operation(place) {
            order.check_read(place, key, value.as_ref())?;
        }
    }
    order.check_arbitration()
}

/// Judges what replicas hold at the end of a run, after a history that is causally consistent.
///
/// # Errors
/// Two replicas differ, or hold what was overwritten by an operation that knew of it.
pub fn check_final<K: Ord + Debug, V: Ord + Debug, R: Display>(
    sessions: &[Vec<Operation<K, V>>],
    replicas: &[(R, BTreeMap<K, V>)],
) -> Result<(), String> {
    let order = Order::new(sessions)?;
    for pair in replicas.windows(2) {
        if pair[0].1 != pair[1].1 {
            let (a, b) = (&pair[0].0, &pair[1].0);
            return Err(format!("convergence: {a} and {b} differ"));
        }
    }
    let Some((_, held)) = replicas.first() else { return Ok(()) };
    for (key, by_session) in &order.writes {
        let value = held.get(key);
        let writer = value.and_then(|value| order.writers.get(&(*key, value)));
        let Some(writer) = writer else {
            return Err(format!("convergence: {key:?} is {value:?} in the end, never written"));
        };
        for (session, places) in by_session {
            let last = Place { session: *session, at: places[places.len() - 1] };
            if last != *writer && order.is_before(*writer, last) {
                let (value, last) = (value, order.operation(last));
                return Err(format!(
                    "convergence: {key:?} is {value:?} in the end, after {last:?}"
                ));
            }
        }
    }
    Ok(())
}

impl<'a, K: Ord + Debug, V: Ord + Debug> Order<'a, K, V> {
    fn new(sessions: &'a [Vec<Operation<K, V>>]) -> Result<Self, String> {
        let (mut writers, mut writes) = (BTreeMap::new(), BTreeMap::new());
        for (session, operations) in sessions.iter().enumerate() {
            for (at, operation) in operations.iter().enumerate() {
                let Operation::Write(key, value) = operation else { continue };
                if writers.insert((key, value), Place { session, at }).is_some() {
                    return Err(format!("values: {value:?} is written to {key:?} twice"));
                }
                let by_session: &mut BTreeMap<_, Vec<_>> = writes.entry(key).or_default();
                by_session.entry(session).or_default().push(at);
            }
        }
        let mut order = Order { sessions, writers, writes, past: vec![Vec::new(); sessions.len()] };
        order.follow()?;
        Ok(order)
    }

    fn operation(&self, place: Place) -> &'a Operation<K, V> {
        &self.sessions[place.session][place.at]
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<K, V> {
        let lengths: Vec<_> = self.sessions.iter().map(Vec::len).collect();
        let each = lengths.into_iter().enumerate();
        each.flat_map(|(session, length)| (0..length).map(move |at| Place { session, at }))
    }

    /// What is before each operation: those go on whose reads are of what is known.
    fn follow(&mut self) -> Result<(), String> {
        loop {
            let (mut open, mut moved) = (None, false);
            for session in 0..self.sessions.len() {
                while self.past[session].len() < self.sessions[session].len() {
                    let place = Place { session, at: self.past[session].len() };
                    match self.past_of(place)? {
                        Some(past) => self.past[session].push(past),
                        None => {
                            open = Some(place);
                            break;
                        }
                    }
                    moved = true;
                }
            }
            match open {
                None => return Ok(()),
                Some(place) if !moved => {
                    let operation = self.operation(place);
                    return Err(format!("causality: {operation:?} is before itself"));
                }
                Some(_) => {}
            }
        }
    }

    /// None if the writer of what is read there was not followed yet.
    fn past_of(&self, place: Place) -> Result<Option<Vec<usize>>, String> {
        let Place { session, at } = place;
        let none = || vec![0; self.sessions.len()];
        let mut past = at.checked_sub(1).map_or_else(none, |at| self.past[session][at].clone());
        past[session] = at + 1;
        let Operation::Read(key, Some(value)) = self.operation(place) else {
            return Ok(Some(past));
        };
        let Some(writer) = self.writers.get(&(key, value)) else {
            return Err(format!("thin air: {value:?} is read of {key:?}, and was never written"));
        };
        if writer.session == session && writer.at > at {
            return Err(format!("causality: {value:?} is read of {key:?} before it is written"));
        }
        let Some(theirs) = self.past[writer.session].get(writer.at) else {
            return Ok(if writer.session == session { Some(past) } else { None });
        };
        past.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        Ok(Some(past))
    }

    fn is_before(&self, a: Place, b: Place) -> bool {
        a != b && self.past[b.session][b.at][a.session] > a.at
    }

    /// Of each session the last write to that key before an operation.
    fn last_writes(&self, key: &K, before: Place) -> impl Iterator<Item = Place> {
        let by_session = self.writes.get(key).into_iter().flatten();
        by_session.filter_map(move |(session, places)| {
            let known = self.past[before.session][before.at][*session];
            let known = &places[..places.partition_point(|at| *at < known)];
            Some(Place { session: *session, at: *known.last()? })
        })
    }

    fn check_read(&self, read: Place, key: &K, value: Option<&V>) -> Result<(), String> {
        let writer = value.map(|value| self.writers[&(key, value)]);
        for between in self.last_writes(key, read) {
            let stale = match writer {
                Some(writer) => between != writer && self.is_before(writer, between),
                None => true,
            };
            if stale {
                let (guarantee, session) = (self.guarantee(between, read), read.session);
                let (read, between) = (self.operation(read), self.operation(between));
                return Err(format!(
                    "{guarantee}: session {session} does {read:?} after {between:?}"
                ));
            }
        }
        Ok(())
    }

    /// The session guarantee that a read violates which does not see that write.
    fn guarantee(&self, write: Place, read: Place) -> &'static str {
        if write.session == read.session {
            return "read your writes";
        }
        // The first operation of the session that had the write in its past is a read.
        let mut earlier = (0..=read.at).map(|at| Place { at, ..read });
        let first = earlier.find(|place| self.is_before(write, *place));
        let Some(Operation::Read(key, Some(value))) = first.map(|place| self.operation(place))
        else {
            return "causality";
        };
        match self.writers[&(key, value)] {
            seen if seen == write => "monotonic reads",
            seen if seen.session == write.session => "monotonic writes",
            _ => "writes follow reads",
        }
    }

    /// Whether one order of all writes explains all: a read decides that what it could have seen
    /// besides is earlier than what it saw.
    fn check_arbitration(&self) -> Result<(), String> {
        let mut after: BTreeMap<Place, BTreeSet<Place>> = BTreeMap::new();
        let mut edge = |a: Place, b: Place| {
            after.entry(a).or_default().insert(b);
        };
        for place in self.places() {
            let Place { session, at } = place;
            if at > 0 {
                edge(Place { session, at: at - 1 }, place);
            }
            if let Operation::Read(key, Some(value)) = self.operation(place) {
                let writer = self.writers[&(key, value)];
                edge(writer, place);
                let others = self.last_writes(key, place).filter(|other| *other != writer);
                others.for_each(|other| edge(other, writer));
            }
        }
        let mut before: BTreeMap<Place, usize> = BTreeMap::new();
        after.values().flatten().for_each(|place| *before.entry(*place).or_default() += 1);
        let mut free: Vec<_> = self.places().filter(|place| !before.contains_key(place)).collect();
        while let Some(place) = free.pop() {
            for next in after.get(&place).into_iter().flatten() {
                let Some(count) = before.get_mut(next) else { continue };
                *count -= 1;
                if *count == 0 {
                    before.remove(next);
                    free.push(*next);
                }
            }
        }
        let writes = |place: &&Place| matches!(self.operation(**place), Operation::Write(..));
        let Some(place) = before.keys().find(writes) else { return Ok(()) };
        let write = self.operation(*place);
        Err(format!("convergence: no order of all writes explains all reads, {write:?} among them"))
    }
}

#[cfg(test)]
mod tests {
    use super::Operation::{Read, Write};
    use super::*;
    use crate::world::Random;
    use rand::{RngExt, SeedableRng};

    type History = Sessions<char, u8>;

    fn violated(sessions: &History) -> String {
        check(sessions).expect_err("it is violated")
    }

    #[test]
    fn a_causal_history_is_fine() {
        let a = vec![Write('x', 1), Write('y', 2)];
        let b = vec![Read('x', None), Read('y', Some(2)), Read('x', Some(1)), Write('x', 3)];
        let c = vec![Read('x', Some(3)), Read('y', Some(2))];
        assert_eq!(check(&[a, b, c]), Ok(()));
    }

    /// Concurrent writes may be seen by two sessions in two moments, but in one order.
    #[test]
    fn concurrent_writes_have_one_order() {
        let writers = || vec![vec![Write('x', 1)], vec![Write('x', 2)]];
        let mut sessions = writers();
        sessions.push(vec![Read('x', Some(1)), Read('x', Some(2))]);
        assert_eq!(check(&sessions), Ok(()));
        sessions.push(vec![Read('x', Some(2)), Read('x', Some(1))]);
        assert!(violated(&sessions).starts_with("convergence: "));
    }

    #[test]
    fn each_violated_guarantee_is_named() {
        let of = |sessions: History| violated(&sessions).split(": ").next().map(String::from);
        let is = |sessions, name: &str| assert_eq!(of(sessions).as_deref(), Some(name));
        is(vec![vec![Write('x', 1), Read('x', None)]], "read your writes");
        is(vec![vec![Write('x', 1), Write('x', 2), Read('x', Some(1))]], "read your writes");
        let one = || vec![Write('x', 1)];
        is(vec![one(), vec![Read('x', Some(1)), Read('x', None)]], "monotonic reads");
        let two = vec![Write('x', 1), Write('y', 2)];
        is(vec![two, vec![Read('y', Some(2)), Read('x', None)]], "monotonic writes");
        let follows = vec![Read('x', Some(1)), Write('y', 2)];
        let sees = vec![Read('y', Some(2)), Read('x', None)];
        is(vec![one(), follows, sees], "writes follow reads");
        is(vec![one(), vec![Read('x', Some(7))]], "thin air");
        let (a, b) =
            (vec![Read('y', Some(2)), Write('x', 1)], vec![Read('x', Some(1)), Write('y', 2)]);
        is(vec![a, b], "causality");
        is(vec![vec![Read('x', Some(1)), Write('x', 1)]], "causality");
        is(vec![one(), one()], "values");
    }

    /// Over any number of sessions.
    #[test]
    fn causality_is_transitive() {
        let mut sessions: History = vec![vec![Write('a', 0)]];
        for (step, key) in (0..20).zip('a'..) {
            let next = char::from(key as u8 + 1);
            sessions.push(vec![Read(key, Some(step)), Write(next, step + 1)]);
        }
        sessions.push(vec![Read('u', Some(20)), Read('a', Some(0))]);
        assert_eq!(check(&sessions), Ok(()));
        sessions.push(vec![Read('u', Some(20)), Read('a', None)]);
        assert!(violated(&sessions).starts_with("writes follow reads: "));
    }

    #[test]
    fn replicas_converge_to_what_was_not_overwritten() {
        let sessions: History = vec![vec![Write('x', 1)], vec![Read('x', Some(1)), Write('x', 2)]];
        let holds = |value| BTreeMap::from([('x', value)]);
        let of = |a, b| check_final(&sessions, &[("us", holds(a)), ("eu", holds(b))]);
        assert_eq!(of(2, 2), Ok(()));
        assert!(of(2, 1).unwrap_err().contains("us and eu differ"));
        assert!(of(1, 1).unwrap_err().contains("in the end, after Write('x', 2)"));
        assert!(of(9, 9).unwrap_err().contains("never written"));
        assert!(check_final(&sessions, &[("us", BTreeMap::new())]).is_err());
    }

    /// By the definition: some order of all operations that respects what is causally before
    /// explains each read by the last write among those before it.
    fn brute_force(sessions: &History) -> bool {
        let all: Vec<(usize, usize)> = (0..sessions.len())
            .flat_map(|s| (0..sessions[s].len()).map(move |at| (s, at)))
            .collect();
        let of = |at: usize| &sessions[all[at].0][all[at].1];
        let count = all.len();
        let mut before = vec![vec![false; count]; count];
        for a in 0..count {
            for b in 0..count {
                let session = all[a].0 == all[b].0 && all[a].1 < all[b].1;
                let reads = match (of(a), of(b)) {
                    (Write(x, v), Read(y, w)) => x == y && Some(v) == w.as_ref(),
                    _ => false,
                };
                before[a][b] = session || reads;
            }
        }
        for via in 0..count {
            for a in 0..count {
                for b in 0..count {
                    before[a][b] |= before[a][via] && before[via][b];
                }
            }
        }
        let mut order = Vec::new();
        extend(&mut order, count, &before, &|order, next| {
            let Read(key, value) = of(next) else { return true };
            let last = order.iter().rev().find_map(|at| match of(*at) {
                Write(other, value) if other == key && before[*at][next] => Some(*value),
                _ => None,
            });
            last == *value
        })
    }

    fn extend(
        order: &mut Vec<usize>,
        count: usize,
        before: &[Vec<bool>],
        fits: &dyn Fn(&[usize], usize) -> bool,
    ) -> bool {
        order.len() == count
            || (0..count).any(|next| {
                let due = (0..count).all(|a| !before[a][next] || order.contains(&a));
                if order.contains(&next) || !due || !fits(order, next) {
                    return false;
                }
                order.push(next);
                let found = extend(order, count, before, fits);
                order.pop();
                found
            })
    }

    #[test]
    fn small_histories_are_judged_as_by_trying_all_orders() {
        let random = &mut Random::seed_from_u64(3);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..30_000 {
            let (mut sessions, mut value): (History, u8) = (vec![Vec::new(); 3], 0);
            for _ in 0..random.random_range(2..8) {
                let key = ['x', 'y'][random.random_range(0..2)];
                let session = &mut sessions[random.random_range(0..3)];
                if random.random_bool(0.5) {
                    value += 1;
                    session.push(Write(key, value));
                } else {
                    let seen = random.random_range(0..4);
                    session.push(Read(key, (seen > 0).then_some(seen)));
                }
            }
            let explained = brute_force(&sessions);
            assert_eq!(check(&sessions).is_ok(), explained, "{sessions:?}");
            *(if explained { &mut good } else { &mut bad }) += 1;
        }
        assert!(good > 2000 && bad > 2000, "{good} and {bad}");
    }
}
