//! The example of docs/simulator.md: a register on one server's disk, as a subject of all that the
//! simulator has.

use meridian_core::{Event, Outbox, Process, Time};
use meridian_sim::checkers::linearizable::{Call, CallOf, Specification, check};
use meridian_sim::explore::{self, Begun, Crash, Input, Model, Set};
use meridian_sim::of::first_failure;
use meridian_sim::trial::{Counts, Made, Stage, Violation, WorldOf};
use meridian_sim::{Faults, Owner, Random, Setup, Stimulus, Subject, each_seed, run};
use rand::{RngExt, SeedableRng};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// The protocol: a write is durable before it is answered, unless the bug is planted.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Server {
    value: u64,
    forgets: bool,
}

impl Process for Server {
    type Peer = u8;
    type Message = ();
    type Record = u64;
    type Command = (usize, Option<u64>); // The number of a call; a write has a value.
    type Output = (usize, u64);
    type Timer = ();

    fn step(&mut self, _now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        let Event::Command((call, write)) = event else { return };
        self.value = write.unwrap_or(self.value);
        if let Some(value) = write.filter(|_| !self.forgets) {
            out.persist(value);
        }
        out.output((call, self.value));
    }

    fn replay(&mut self, record: u64) {
        self.value = record;
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = u64> + Send> {
        Box::new(std::iter::once(self.value))
    }
}

/// What it should do: the specification that the checker of histories searches with.
struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = Option<u64>;
    type Outcome = u64;

    fn initial(&self) -> u64 {
        0
    }

    fn apply(&self, state: &u64, write: &Option<u64>) -> (u64, u64) {
        let value = write.unwrap_or(*state);
        (value, value)
    }

    fn changes_nothing(&self, write: &Option<u64>, _outcome: &u64) -> bool {
        write.is_none()
    }
}

/// The workload: calls at random; what is never answered may have happened.
struct Clients {
    random: Random,
    calls: Vec<CallOf<Register>>,
}

const CALLS: usize = 100;

impl Owner<Server> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<Server>> {
        vec![Stimulus::Wake { token: 0, after: MS }]
    }

    fn wake(&mut self, token: u64, now: Time) -> Vec<Stimulus<Server>> {
        let call = self.calls.len();
        let operation = self.random.random_bool(0.5).then_some(call as u64);
        self.calls.push(Call { operation, called: now.0, answered: None });
        let after = MS * self.random.random_range(1..20);
        let command = Stimulus::Command { to: 0, command: (call, operation), after };
        let next = Stimulus::Wake { token, after: MS * self.random.random_range(1..30) };
        if call + 1 < CALLS { vec![command, next] } else { vec![command] }
    }

    fn output(&mut self, _at: u8, (call, value): (usize, u64), now: Time) -> Vec<Stimulus<Server>> {
        self.calls[call].answered = Some((now.0, value));
        Vec::new()
    }
}

/// The subject: all that a trial needs to know.
struct Trial {
    forgets: bool,
}

impl Subject for Trial {
    type Process = Server;
    type Owner = Clients;
    type Drawn = String;
    type Operator = ();

    const FAULTS: Duration = Duration::from_secs(1);
    const HEALING: Duration = Duration::from_secs(5);

    fn draw(&self, _seed: u64) -> String {
        "one server".into()
    }

    fn make(&self, seed: u64, _drawn: &String) -> Made<Self> {
        let forgets = self.forgets;
        let setup = Setup::lan(vec![0], move |_| Server { value: 0, forgets });
        let faults = Faults { crash: Some(100 * MS), outage: 20 * MS, ..Faults::none() };
        let owner = Clients { random: Random::seed_from_u64(seed), calls: Vec::new() };
        Made { setup: Setup { faults, ..setup }, owner, operator: () }
    }

    fn is_quiet(world: &WorldOf<Self>) -> bool {
        world.owner.calls.len() == CALLS
    }

    fn judge(stage: &mut Stage<Self>) -> Result<(), Violation> {
        check(&Register, &stage.world.owner.calls)
    }

    fn describe(world: &WorldOf<Self>) -> String {
        format!("only {} calls", world.owner.calls.len())
    }

    fn counts(world: &WorldOf<Self>) -> Counts {
        let mut counts = Counts::default();
        let answered = world.owner.calls.iter().filter(|call| call.answered.is_some());
        counts.add("answered", answered.count() as u64);
        counts
    }

    fn planted() -> Vec<(String, Self)> {
        vec![("Forgets".into(), Trial { forgets: true })]
    }
}

#[test]
fn what_is_answered_is_linearizable_over_crashes() {
    each_seed(0..50, |seed| match run(seed, &Trial { forgets: false }) {
        Ok(report) => assert!(report.counts.of("answered") > 50),
        Err(failure) => panic!("{failure}"),
    });
}

#[test]
fn the_planted_bug_is_found() {
    for (bug, trial) in Trial::planted() {
        assert!(first_failure(0..20, &trial).is_some(), "nobody noticed {bug}");
    }
}

/// The same code in all orders: two writes, a read, and a crash at any moment.
impl Model for Trial {
    type Process = Server;
    type Observed = u64; // The last value answered.

    fn processes(&self) -> Vec<Begun<Server>> {
        vec![Begun { peer: 0, process: self.restarted(0), disk: Vec::new() }]
    }

    fn now(&self) -> Time {
        Time(0)
    }

    fn timer(&self) -> Event<Server> {
        Event::Timer(())
    }

    fn inputs(&self) -> Vec<Input<Server>> {
        let call = |(call, write)| {
            let event = Event::Command((call, write));
            Input { at: 0, event, cause: 0, after: None, after_crash: false }
        };
        [Some(1), Some(2), None].into_iter().enumerate().map(call).collect()
    }

    fn observe(&self, seen: &mut u64, _at: usize, _: Set, _: &Server, outputs: &[(usize, u64)]) {
        *seen = outputs.last().map_or(*seen, |(_, value)| *value);
    }

    fn violated(&self, seen: &u64, up: &[&Server]) -> Option<&'static str> {
        let lost = up.iter().any(|server| server.value != *seen);
        lost.then_some("what was answered is there")
    }

    fn is_goal(&self, seen: &u64, _up: &[&Server]) -> bool {
        *seen == 2
    }

    fn restarted(&self, _at: usize) -> Server {
        Server { value: 0, forgets: self.forgets }
    }
}

#[test]
fn all_orders_of_two_writes_a_read_and_a_crash_hold() {
    let crash = Some(Crash { who: 1, loses: false, restarts: true });
    let how = || explore::Options { crash, ..explore::Options::default() };
    let found = explore::search(&Trial { forgets: false }, how());
    assert!(found.violated.is_none() && found.reached && found.states > 10, "{found}");
    let found = explore::search(&Trial { forgets: true }, how());
    assert_eq!(found.violated.map(|(property, _)| property), Some("what was answered is there"));
}
