//! A toy process, to judge the world itself: each process tells all others what it was asked.

use super::disks::{DiskBug, write_alone};
use crate::{Faults, Logs, Owner, Random, Setup, Stimulus, World, each_seed, one_seed};
use meridian_core::{Event, Outbox, Process, Time};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PEERS: u8 = 4;

/// Numbers each message to each peer, within one life. Asserts what links promise.
#[derive(Clone, Debug)]
struct Toy {
    life: u64,
    values: Vec<u64>,
    sent: BTreeMap<u8, u64>,
    /// The life and number of the last message from each peer, unless it restarted since.
    seen: BTreeMap<u8, (u64, u64)>,
    last_now: Time,
    idle: bool,
    /// A planted bug: it speaks before it persists.
    careless: bool,
}

#[derive(Clone, Debug)]
struct Said {
    life: u64,
    number: u64,
    value: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kept {
    Life(u64),
    Value(u64),
}

#[derive(Clone, Debug)]
enum Told {
    Kept(u64),
    Heard(u64),
}

impl Toy {
    fn new(careless: bool) -> Self {
        let (sent, seen) = (BTreeMap::new(), BTreeMap::new());
        Toy { life: 0, values: vec![], sent, seen, last_now: Time(0), idle: true, careless }
    }

    fn on_message(&mut self, from: u8, said: Said, out: &mut Outbox<Self>) {
        if let Some((life, number)) = self.seen.get(&from) {
            assert_eq!((said.life, said.number), (*life, number + 1), "the link lost something");
        }
        self.seen.insert(from, (said.life, said.number));
        out.output(Told::Heard(said.value));
    }
}

impl Process for Toy {
    type Peer = u8;
    type Message = Said;
    type Record = Kept;
    type Command = u64;
    type Output = Told;
    /// When it was set.
    type Timer = Time;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        assert!(now >= self.last_now, "time goes back");
        self.last_now = now;
        self.idle = matches!(event, Event::Idle);
        match event {
            Event::Started => {
                self.life += 1;
                out.persist(Kept::Life(self.life));
                out.timer(now + Duration::from_millis(10), now);
            }
            Event::Message { from, message } => self.on_message(from, message, out),
            Event::Command(value) => {
                self.values.push(value);
                if !self.careless {
                    out.persist(Kept::Value(value));
                }
                for peer in 0..PEERS {
                    let number = self.sent.entry(peer).or_default();
                    *number += 1;
                    out.send(peer, Said { life: self.life, number: *number, value });
                }
                out.output(Told::Kept(value));
                if self.careless {
                    out.persist(Kept::Value(value));
                }
            }
            Event::Timer(set) => {
                assert!(now >= set + Duration::from_millis(10), "a timer fires too early");
                out.timer(now + Duration::from_millis(10), now);
            }
            Event::Restarted(peer) => {
                self.seen.remove(&peer);
            }
            Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Kept) {
        match record {
            Kept::Life(life) => self.life = life,
            Kept::Value(value) => self.values.push(value),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Kept> + Send> {
        let life = std::iter::once(Kept::Life(self.life));
        Box::new(life.chain(self.values.clone().into_iter().map(Kept::Value)))
    }
}

/// Asks for value after value, and holds the processes to what they said.
struct Asker {
    random: Random,
    next: u64,
    limit: u64,
    kept: BTreeMap<u8, BTreeSet<u64>>,
    heard: BTreeMap<u8, BTreeSet<u64>>,
    crashes: u32,
}

impl Asker {
    fn new(seed: u64) -> Self {
        Asker {
            random: Random::seed_from_u64(seed),
            next: 0,
            limit: 300,
            kept: BTreeMap::new(),
            heard: BTreeMap::new(),
            crashes: 0,
        }
    }
}

impl Owner<Toy> for Asker {
    fn output(&mut self, at: u8, output: Told, _now: Time) -> Vec<Stimulus<Toy>> {
        match output {
            Told::Kept(value) => drop(self.kept.entry(at).or_default().insert(value)),
            Told::Heard(value) => drop(self.heard.entry(at).or_default().insert(value)),
        }
        vec![]
    }

    fn wake(&mut self, _token: u64, _now: Time) -> Vec<Stimulus<Toy>> {
        if self.next == self.limit {
            return vec![];
        }
        self.next += 1;
        let to = self.random.random_range(0..PEERS);
        let after = Duration::from_millis(self.random.random_range(1..20));
        let command = Stimulus::Command { to, command: self.next, after };
        vec![command, Stimulus::Wake { token: 0, after }]
    }

    fn crashed(&mut self, _at: u8, _now: Time) {
        self.crashes += 1;
    }

    fn started(&mut self, at: u8, process: &Toy, _now: Time) {
        let found: BTreeSet<_> = process.values.iter().copied().collect();
        let said = self.kept.entry(at).or_default();
        assert!(said.is_subset(&found), "{at} said what it has lost: {said:?}, {found:?}");
    }
}

fn world(seed: u64, faults: Faults, deep: bool) -> World<Toy, Asker> {
    world_of(seed, faults, deep, false)
}

fn world_of(seed: u64, faults: Faults, deep: bool, careless: bool) -> World<Toy, Asker> {
    let mut setup = Setup::lan((0..PEERS).collect(), move |_| Toy::new(careless));
    setup.faults = faults;
    setup.deep = deep;
    let mut world = World::new(seed, setup, Asker::new(seed));
    world.inject(Stimulus::Wake { token: 0, after: Duration::ZERO });
    world
}

#[test]
fn the_world_keeps_its_promises() {
    let mut crashes = 0;
    each_seed(0..30, |seed| {
        let mut world = world(seed, Faults::all(Duration::from_millis(200)), false);
        world.run_for(Duration::from_secs(5));
        world.heal();
        world.run_for(Duration::from_secs(1));
        assert!(world.processes().all(|(_, process)| process.idle), "waits without Idle");
        assert_eq!(world.processes().count(), usize::from(PEERS));
        crashes += world.owner.crashes;
        // Whatever was heard anywhere is still known to the one who said it.
        let values: BTreeSet<_> = world.processes().flat_map(|(_, p)| p.values.clone()).collect();
        assert!(world.owner.heard.values().flatten().all(|value| values.contains(value)));
    });
    assert!(crashes > 0 || one_seed());
}

#[test]
#[should_panic(expected = "said what it has lost")]
fn who_speaks_before_it_persists_is_caught() {
    each_seed(0..30, |seed| {
        let mut world = world_of(seed, Faults::all(Duration::from_millis(200)), false, true);
        world.run_for(Duration::from_secs(5));
    });
}

#[test]
fn without_faults_all_is_heard_by_all() {
    each_seed(0..5, |seed| {
        let mut world = world(seed, Faults::none(), false);
        world.run_for(Duration::from_secs(10));
        let all: BTreeSet<u64> = (1..=300).collect();
        assert!((0..PEERS).all(|peer| world.owner.heard[&peer] == all));
    });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let hash = |seed| {
        let mut world = world(seed, Faults::all(Duration::from_millis(100)), true);
        world.run_for(Duration::from_secs(5));
        world.trace_hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn messages_wait_while_the_way_is_cut() {
    let mut world = world(7, Faults::none(), false);
    let cut = world.cut(&[0, 1], &[2, 3], false);
    world.run_for(Duration::from_secs(10));
    let of = |world: &World<Toy, Asker>, peer: u8| world.owner.heard[&peer].len();
    assert!(of(&world, 2) < 300 && of(&world, 0) == 300, "cut one way only");
    world.mend_cut(cut);
    world.run_for(Duration::from_secs(1));
    assert!((0..PEERS).all(|peer| of(&world, peer) == 300));
}

#[test]
fn an_exact_world_counts_steps() {
    let unit = Duration::from_millis(1);
    let setup = Setup::exact((0..PEERS).collect(), unit, |_| Toy::new(false));
    let mut world = World::new(0, setup, Asker::new(0));
    world.inject(Stimulus::Command { to: 1, command: 5, after: Duration::ZERO });
    world.run_for(unit - Duration::from_nanos(1));
    assert!(!world.owner.heard.contains_key(&0) && world.owner.heard.contains_key(&1));
    world.run_for(Duration::from_nanos(1));
    assert!((0..PEERS).all(|peer| world.owner.heard[&peer].contains(&5)));
}

#[test]
fn clocks_are_ahead_as_the_setup_says() {
    let ms = Duration::from_millis(1);
    let mut setup = Setup::exact((0..PEERS).collect(), ms, |_| Toy::new(false));
    setup.ahead = Box::new(move |peer| ms * 10 * u32::from(peer));
    let mut world = World::new(0, setup, Asker::new(0));
    world.run_for(ms);
    world.crash(2);
    world.restart(2);
    world.inject(Stimulus::Command { to: 1, command: 5, after: ms * 2 });
    world.run_for(ms * 3);
    // The others hear it one unit later, and that is the last that has happened to them.
    for (peer, process) in world.processes().filter(|(peer, _)| *peer != 1) {
        assert_eq!(process.last_now, Time(0) + ms * 10 * u32::from(peer) + ms * 4, "{peer}");
    }
}

/// A process is stopped, its disk copied, and the process started again. What it says then is not
/// on the copy, on which it makes the same start alone, and writes more than is lost.
fn begins_anew_from_a_copy(bug: Option<DiskBug>) -> World<Toy, Asker> {
    let second = Duration::from_secs(1);
    let mut setup = Setup::lan((0..PEERS).collect(), move |_| Toy::new(false));
    (setup.logs, setup.bug) = (Logs::on_disks(), bug);
    let mut world = World::new(1, setup, Asker::new(1));
    let say = |world: &mut World<Toy, Asker>, by| {
        world.inject(Stimulus::Command { to: by, command: by.into(), after: Duration::ZERO });
        world.run_for(second);
    };
    world.run_for(second);
    (0..PEERS).for_each(|peer| say(&mut world, peer));
    world.copy_disk(0);
    world.crash(0);
    world.restart(0);
    say(&mut world, 0);
    world.put_copy_back(0);
    let log = &mut world.slots[0].log;
    write_alone(&mut **log, 9).unwrap();
    log.crash(0, 1);
    world.restart(0);
    world
}

/// Seed 288 of `of/drain` found it: the log was as long again, and nobody minded.
#[test]
fn who_makes_the_same_start_of_an_older_disk_is_refused() {
    let world = begins_anew_from_a_copy(None);
    let [(0, why)] = world.refused() else { panic!("{:?}", world.refused()) };
    assert!(why.contains("has lost its memory"), "{why}");
}

#[test]
#[should_panic(expected = "begins with less than")]
fn starts_without_marks_are_noticed() {
    begins_anew_from_a_copy(Some(DiskBug::SameStart));
}
