//! What Eunomia is compared with, under random work: GentleRain and Cure are causally consistent,
//! and with eventual consistency all regions hold the same in the end. Clocks differ, and nothing
//! fails: that is all that the baselines are made for.

use bytes::Bytes;
use meridian_baselines::regions::{Command, Mutation, Options, Output, Rule};
use meridian_baselines::{Cure, Eventual, GentleRain, Partition};
use meridian_core::{RegionId, Time};
use meridian_eunomia::{Peer, Site, Topology, place_of};
use meridian_sim::checkers::causal::Operation;
use meridian_sim::of::{self, first_failure};
use meridian_sim::sessions::{self, Held, delays, value_of, written};
use meridian_sim::trial::{Counts, Made, Stage, Violation, WorldOf};
use meridian_sim::{Delay, Faults, Owner, Random, Setup, Stimulus, Subject, World, one_seed};
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// What a session has asked.
#[derive(Clone, Copy)]
enum Asked {
    Read(u8),
    Write,
}

/// Sessions, each in its region, with one operation at a time.
struct Clients<R: Rule> {
    all: sessions::Sessions<Asked>,
    seen: Vec<R::Seen>,
    keys: u8,
    topology: Arc<Topology>,
}

impl<R: Rule> Clients<R> {
    fn saw(&mut self, client: usize, seen: &R::Seen) {
        R::join(&mut self.seen[client], seen);
    }
}

impl<R: Rule> Owner<Partition<R>> for Clients<R> {
    fn begin(&mut self) -> Vec<Stimulus<Partition<R>>> {
        self.all.begin()
    }

    fn wake(&mut self, token: u64, _: Time) -> Vec<Stimulus<Partition<R>>> {
        let client = match self.all.woken(token) {
            Some((client, false)) if !self.all.ends => client,
            Some((_, true)) => panic!("no answer has come, though nothing fails"),
            _ => return Vec::new(),
        };
        let token = self.all.token(client);
        let key = self.all.random.random_range(0..self.keys);
        let name = Bytes::copy_from_slice(&[key]);
        let seen = self.seen[client];
        let (command, asked) = if self.all.happens(55) {
            (Command::Read { token, key: name, seen }, Asked::Read(key))
        } else {
            self.all.note(client, Operation::Write(key, token));
            let value = Some(written(token));
            (Command::Update { token, key: name, value, seen }, Asked::Write)
        };
        let to = self.topology.home(self.all.region(client), place_of(&[key]));
        let after = Duration::from_micros(self.all.random.random_range(50..500));
        vec![Stimulus::Command { to, command, after }, self.all.ask(client, token, asked)]
    }

    fn output(
        &mut self,
        at: Peer,
        output: Output<R::Seen>,
        _: Time,
    ) -> Vec<Stimulus<Partition<R>>> {
        let client = match output {
            Output::Value { token, value, seen } => {
                let (client, asked) = self.all.answered(token).expect("it was asked");
                let Asked::Read(key) = asked else { panic!("a write was answered like a read") };
                let value = value.map(|value| value_of(&value).expect("eight bytes were written"));
                self.all.counts.add("reads", 1);
                self.all.note(client, Operation::Read(key, value));
                self.saw(client, &seen);
                client
            }
            Output::Updated { token, seen } => {
                let (client, _) = self.all.answered(token).expect("it was asked");
                self.all.counts.add("writes", 1);
                self.saw(client, &seen);
                client
            }
            Output::Applied { origin, ts, changed } => {
                self.all.on_applied(at.region, (origin, ts), changed);
                return Vec::new();
            }
        };
        vec![self.all.think(client)]
    }

    fn check(&mut self, _: Peer, _: &Partition<R>, _: bool) -> Result<(), String> {
        self.all.check()
    }
}

/// What a trial was, once all is drawn.
#[derive(Clone, Debug)]
struct Drawn {
    regions: u16,
    partitions: u16,
    sessions: usize,
    keys: u8,
    think: Duration,
    /// Between two regions, one way, at most.
    far: Duration,
    /// One in ten messages takes so much longer at most, and those behind it.
    jam: Duration,
    /// So far clocks are apart.
    skew: Duration,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

struct Trial<R: Rule> {
    mutation: Mutation,
    rule: PhantomData<R>,
}

impl<R: Rule> Trial<R> {
    fn with(mutation: Mutation) -> Self {
        Trial { mutation, rule: PhantomData }
    }
}

/// What each region holds.
fn all_held<R: Rule>(world: &World<Partition<R>, Clients<R>>) -> Vec<(String, Held)> {
    let of = |region: RegionId| {
        let here = world.processes().filter(move |(peer, _)| peer.region == region);
        let entries = here.flat_map(|(_, partition)| partition.entries());
        let entry = |(key, value, _): (&Bytes, Option<&Bytes>, _)| {
            Some((key[0], value_of(value?).expect("eight bytes were written")))
        };
        (format!("{region:?}"), entries.filter_map(entry).collect())
    };
    world.owner.topology.regions().map(of).collect()
}

/// A partition may hear late of some others, so that what is stable differs among partitions.
fn jammed(drawn: &Drawn) -> Delay<Peer> {
    let mut usual = delays(|peer: Peer| peer.region, drawn.far);
    let jam = drawn.jam.as_micros() as u64;
    Box::new(move |from, to, random| {
        let late = if random.random_ratio(1, 10) { random.random_range(0..=jam) } else { 0 };
        usual(from, to, random) + Duration::from_micros(late)
    })
}

impl<R: Rule> Subject for Trial<R> {
    type Process = Partition<R>;
    type Owner = Clients<R>;
    type Drawn = Drawn;
    type Operator = ();

    const FAULTS: Duration = Duration::from_millis(1200);
    const HEALING: Duration = Duration::from_secs(5);

    fn draw(&self, seed: u64) -> Drawn {
        let random = &mut Random::seed_from_u64(seed ^ 0x9e47);
        Drawn {
            regions: [3, 3, 2, 4][random.random_range(0..4)],
            partitions: [1, 2, 3, 5][random.random_range(0..4)],
            sessions: random.random_range(4..12),
            keys: [3, 5, 20][random.random_range(0..3)],
            think: MS * random.random_range(2..20),
            far: MS * random.random_range(4..100),
            jam: MS * [0, 30, 150][random.random_range(0..3)],
            skew: MS * [0, 3, 60][random.random_range(0..3)],
        }
    }

    fn make(&self, seed: u64, drawn: &Drawn) -> Made<Self> {
        let site = Site { shards: drawn.partitions, replicas: 1 };
        let topology = Arc::new(Topology::new(vec![site; usize::from(drawn.regions)]));
        let regions: Vec<_> = topology.regions().collect();
        let partitions = |region: &RegionId| topology.shards(*region).collect();
        let peers: Vec<Vec<Peer>> = regions.iter().map(partitions).collect();
        let (of, mutation) = (topology.clone(), self.mutation);
        let make = move |me: Peer| {
            let meridian_eunomia::Role::Shard(number) = me.role else { panic!("{me} is none") };
            let partition = Partition::new(me.region, number, of.clone(), Options::default());
            partition.with_mutation(mutation)
        };
        let mut clocks = Random::seed_from_u64(seed ^ 0xc10c);
        let skew = drawn.skew.as_micros() as u64;
        let setup = Setup {
            faults: Faults::none(),
            delay: jammed(drawn),
            ahead: Box::new(move |_| Duration::from_micros(clocks.random_range(0..=skew))),
            regions: peers.clone(),
            ..Setup::lan(peers.concat(), make)
        };
        let random = Random::seed_from_u64(seed ^ 0xc11e);
        let clients = (drawn.sessions, drawn.think);
        let owner = Clients {
            all: sessions::Sessions::new(random, clients, &regions),
            seen: vec![R::Seen::default(); drawn.sessions],
            keys: drawn.keys,
            topology,
        };
        Made { setup, owner, operator: () }
    }

    fn heal(stage: &mut Stage<Self>) {
        stage.world.owner.all.ends = true;
    }

    /// All is answered, nothing waits, and all regions hold the same.
    fn is_quiet(world: &WorldOf<Self>) -> bool {
        let nothing_waits = world.processes().all(|(_, partition)| partition.waiting() == 0);
        let held: BTreeSet<_> = all_held(world).into_iter().map(|(_, held)| held).collect();
        world.owner.all.is_done() && nothing_waits && held.len() == 1
    }

    /// Whoever finds out nothing of what is stable promises nothing more than that all are even.
    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        if R::STABILIZES { causal(stage) } else { Ok(()) }
    }

    fn describe(world: &WorldOf<Self>) -> String {
        let waiting: Vec<_> =
            world.processes().map(|(peer, partition)| (peer, partition.waiting())).collect();
        let held = all_held(world);
        format!("sessions are done: {}; {waiting:?}; {held:?}", world.owner.all.is_done())
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        world.owner.all.counts.clone()
    }
}

fn causal<R: Rule>(stage: &Stage<Trial<R>>) -> Result<(), Violation> {
    stage.world.owner.all.judge(&all_held(&stage.world))
}

fn holds<R: Rule>() {
    let counts = of::trials_hold(0..150, &Trial::<R>::with(Mutation::Correct));
    let happened = ["reads", "writes", "applied", "superseded"];
    let often = happened.iter().all(|what| counts.of(what) > 1000);
    assert!(one_seed() || often, "{counts:?}");
}

fn each_is_found<R: Rule>() {
    let planted = [
        Mutation::SeesAtOnce,
        Mutation::HearsNobody,
        Mutation::LearnsNothing,
        Mutation::CarriesNothing,
    ];
    for bug in planted {
        let found = first_failure(0..300, &Trial::<R>::with(bug));
        let found = found.unwrap_or_else(|| panic!("nobody noticed {bug:?}"));
        println!("{bug:?}, seed {}: {}", found.seed, found.violated.lines().next().unwrap_or(""));
    }
}

#[test]
fn gentle_rain_is_causally_consistent() {
    holds::<GentleRain>();
}

#[test]
fn cure_is_causally_consistent() {
    holds::<Cure>();
}

#[test]
fn with_eventual_consistency_all_regions_hold_the_same_in_the_end() {
    holds::<Eventual>();
}

#[test]
fn bugs_planted_in_gentle_rain_are_found() {
    each_is_found::<GentleRain>();
}

#[test]
fn bugs_planted_in_cure_are_found() {
    each_is_found::<Cure>();
}

/// What the others promise and eventual consistency does not: the checker tells the two apart.
#[test]
fn eventual_consistency_is_not_causal() {
    let judged = |seed| {
        let trial = Trial::<Eventual>::with(Mutation::Correct);
        let mut stage = Stage::new(&trial, seed, &trial.draw(seed), Default::default());
        stage.world.run_for(Trial::<Eventual>::FAULTS);
        Trial::heal(&mut stage);
        assert!(stage.world.run_until(Trial::<Eventual>::is_quiet, Trial::<Eventual>::HEALING));
        causal(&stage)
    };
    assert!((0..50).any(|seed| judged(seed).is_err()), "nothing was seen out of order");
}

#[test]
fn equal_seeds_give_equal_runs() {
    of::equal_seeds_give_equal_runs(&Trial::<Cure>::with(Mutation::Correct), 2);
}
