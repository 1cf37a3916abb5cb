//! Scenarios, message by message: what the report tells in words, and what went wrong once.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

use bytes::Bytes;
use meridian_core::{ClientId, Effect, Event, GroupId, NodeId, Outbox, Process, ProcessId, Time};
use meridian_paxos::message::CatchUpQuery;
use meridian_paxos::{
    Answer, Change, Changed, ClientIds, Command, Configuration, Consistency, Instance, Kind,
    Leases, Message, Options, Output, Paxos, Record, Recovery, Request, Routing, Service, Stopped,
    Timer, change_payload,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Keeps all that it was asked; replies how much that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Diary {
    lines: Vec<Bytes>,
    /// Planted: what is added to replies.
    wrong: u8,
}

impl Service for Diary {
    fn execute(&mut self, request: &Bytes) -> Bytes {
        self.lines.push(request.clone());
        Bytes::from(vec![u8::try_from(self.lines.len() % 256).unwrap() + self.wrong])
    }

    fn query(&self, _question: &[u8]) -> Bytes {
        self.lines.last().cloned().unwrap_or_default()
    }

    fn snapshot(&self) -> Bytes {
        let lines = self.lines.iter().flat_map(|line| {
            std::iter::once(u8::try_from(line.len()).unwrap()).chain(line.iter().copied())
        });
        lines.collect()
    }

    fn restore(&mut self, mut snapshot: &[u8]) -> Result<(), String> {
        self.lines.clear();
        while let Some((len, rest)) = snapshot.split_first() {
            let (line, rest) = rest.split_at_checked(usize::from(*len)).ok_or("too short")?;
            self.lines.push(Bytes::copy_from_slice(line));
            snapshot = rest;
        }
        Ok(())
    }
}

type Replica = Paxos<Diary>;

/// Replicas on links that keep what they are told to; time passes when it is told to.
struct World {
    now: Time,
    options: Options,
    replicas: BTreeMap<u16, Replica>,
    disks: BTreeMap<u16, Vec<Record>>,
    links: BTreeMap<(u16, u16), VecDeque<Message>>,
    /// What is put on these links is lost.
    cut: BTreeSet<(u16, u16)>,
    outputs: Vec<(u16, Output)>,
    starts: u64,
}

fn id(node: u16) -> ProcessId {
    ProcessId { group: GroupId(0), node: NodeId(node) }
}

fn members(nodes: impl IntoIterator<Item = u16>) -> Configuration {
    let members = nodes.into_iter().map(|node| (NodeId(node), format!("host-{node}")));
    Configuration { members: members.collect() }
}

fn client(number: u64) -> ClientId {
    ClientId(number << 16 | 0xff)
}

impl World {
    /// So many replicas that have not started.
    fn new(options: Options) -> World {
        World {
            now: Time(1_000_000_000_000),
            options,
            replicas: BTreeMap::new(),
            disks: BTreeMap::new(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            outputs: Vec::new(),
            starts: 0,
        }
    }

    /// Replicas 0 up to `count`, of which 0 leads.
    fn led(count: u16, options: Options) -> World {
        let mut world = World::new(options);
        (0..count).for_each(|node| world.start(node, members(0..count)));
        world.settle();
        assert_eq!(world.leader(), 0);
        world
    }

    /// Starts a replica on what is on its disk.
    fn start(&mut self, node: u16, configuration: Configuration) {
        self.start_as(node, configuration, Diary::default());
    }

    fn start_as(&mut self, node: u16, configuration: Configuration, service: Diary) {
        self.starts += 1;
        let mut replica =
            Paxos::new(id(node), configuration, self.options.clone(), service, self.starts);
        let disk = self.disks.entry(node).or_default();
        disk.iter().cloned().for_each(|record| replica.replay(record));
        self.replicas.insert(node, replica);
        self.step(node, Event::Started);
    }

    /// What it has not on its disk is lost, and what is under way from and to it.
    fn crash(&mut self, node: u16) {
        self.replicas.remove(&node);
        self.links.retain(|(from, to), _| *from != node && *to != node);
    }

    fn step(&mut self, node: u16, event: Event<Replica>) {
        let Some(replica) = self.replicas.get_mut(&node) else { return };
        let mut out = Outbox::new();
        replica.step(self.now, event, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => {
                    let link = (node, to.node.0);
                    let down =
                        self.disks.contains_key(&link.1) && !self.replicas.contains_key(&link.1);
                    if !self.cut.contains(&link) && !down {
                        self.links.entry(link).or_default().push_back(message);
                    }
                }
                Effect::Persist(record) | Effect::Note(record) => {
                    self.disks.entry(node).or_default().push(record);
                }
                Effect::Output(output) => self.outputs.push((node, output)),
                Effect::Timer { .. } => {}
            }
        }
    }

    fn arrive(&mut self, from: u16, to: u16) -> bool {
        let Some(message) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.step(to, Event::Message { from: id(from), message });
        true
    }

    /// Lets all messages arrive, link by link, and those that follow.
    fn settle(&mut self) {
        loop {
            let links: Vec<_> = self.links.keys().copied().collect();
            let came = links.into_iter().filter(|(from, to)| self.arrive(*from, *to)).count();
            let nodes: Vec<u16> = self.replicas.keys().copied().collect();
            nodes.into_iter().for_each(|node| self.step(node, Event::Idle));
            if came == 0 && self.links.values().all(VecDeque::is_empty) {
                return;
            }
        }
    }

    /// Lets time pass, in ticks, with all that follows.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + self.options.heartbeat / 2;
            let nodes: Vec<u16> = self.replicas.keys().copied().collect();
            nodes.into_iter().for_each(|node| self.step(node, Event::Timer(Timer::Tick)));
            self.settle();
        }
    }

    fn leader(&self) -> u16 {
        let leaders = self.replicas.iter().filter(|(_, replica)| replica.is_leading());
        let leaders: Vec<u16> = leaders.map(|(node, _)| *node).collect();
        assert_eq!(leaders.len(), 1, "{leaders:?} lead");
        leaders[0]
    }

    fn ask(&mut self, node: u16, number: u64, sequence: u64, line: &'static str) {
        let command = Command::execute(client(number), sequence, line);
        self.step(node, Event::Command(command));
    }

    fn change(&mut self, node: u16, sequence: u64, change: &Change) {
        let (client, payload) = (client(99), change_payload(change));
        let request = Request { client, sequence, kind: Kind::Reconfigure, payload };
        self.step(node, Event::Command(Command::Request(request)));
    }

    fn lines(&self, node: u16) -> Vec<&str> {
        let lines = &self.replicas[&node].service().lines;
        lines.iter().map(|line| std::str::from_utf8(line).unwrap()).collect()
    }

    fn replies(&mut self) -> Vec<(u16, u64, Answer)> {
        let mut replies = Vec::new();
        self.outputs.retain(|(node, output)| match output {
            Output::Reply { client, answer, .. } => {
                replies.push((*node, client.0 >> 16, answer.clone()));
                false
            }
            _ => true,
        });
        replies
    }

    fn stopped(&self, node: u16) -> Option<Stopped> {
        self.replicas[&node].status().stopped
    }
}

fn options(recovery: Recovery) -> Options {
    Options { recovery, ..Options::default() }
}

fn done(bytes: &[u8]) -> Answer {
    Answer::Done(Bytes::copy_from_slice(bytes))
}

/// Report, Figure 8.
#[test]
fn a_request_that_is_decided_twice_is_executed_once() {
    let mut world = World::led(3, Options { batch_bytes: 1, ..options(Recovery::FullSs) });
    // 0 proposes <0:B>, which nobody receives.
    world.cut = BTreeSet::from([(0, 1), (0, 2)]);
    world.ask(0, 2, 1, "B");
    world.settle();
    // 1 leads, and proposes <0:C> and <1:B>; all PROPOSE of <0:C> are lost, <1:B> is decided.
    world.cut.extend([(1, 0), (2, 0)]);
    world.pass(Duration::from_secs(2));
    assert!(world.replicas[&1].is_leading());
    world.cut.insert((1, 2));
    world.ask(1, 3, 1, "C");
    world.step(1, Event::Idle);
    world.cut.remove(&(1, 2));
    world.ask(1, 2, 1, "B");
    world.step(1, Event::Idle);
    world.settle();
    let decided = |world: &World, node: u16| -> Vec<u64> {
        world.replicas[&node].decisions().map(|(instance, _)| instance.0).collect()
    };
    assert_eq!(decided(&world, 2), [1], "decided, and not executed: there is a gap");
    assert_eq!(world.lines(2), [""; 0]);
    // 1 fails, 0 leads again: it has <0:B>, and learns of <1:B>.
    world.crash(1);
    world.cut.clear();
    world.pass(Duration::from_secs(3));
    assert_eq!(decided(&world, 2), [0, 1]);
    for node in [0, 2] {
        assert_eq!(world.lines(node), ["B"]);
    }
}

#[test]
fn a_request_is_answered_by_whom_it_was_asked_and_again_from_the_cache() {
    let mut world =
        World::led(3, Options { routing: Routing::Forward, ..options(Recovery::EpochSs) });
    world.ask(2, 5, 1, "one");
    world.settle();
    assert_eq!(world.replies(), [(2, 5, done(&[1]))]);
    world.ask(1, 5, 1, "one");
    world.settle();
    assert_eq!(world.replies(), [(1, 5, done(&[1]))], "another replica, the same reply");
    assert_eq!(world.lines(0), ["one"]);
    world.ask(0, 5, 2, "two");
    world.settle();
    world.ask(0, 5, 1, "one");
    world.settle();
    assert_eq!(world.replies(), [(0, 5, done(&[2]))], "nobody waits for the first any more");
}

#[test]
fn a_follower_redirects_and_answers_nothing_that_it_did_not_own() {
    let mut world = World::led(3, options(Recovery::FullSs));
    world.ask(2, 5, 1, "one");
    world.settle();
    assert_eq!(world.replies(), [(2, 5, Answer::Redirect(Some(NodeId(0))))]);
    assert_eq!(world.lines(0), [""; 0]);
}

/// Algorithm 2.
#[test]
fn batches_wait_to_get_full_and_the_window_bounds_what_is_under_way() {
    let delay = Duration::from_millis(10);
    let small =
        Options { batch_bytes: 60, batch_delay: delay, window: 2, ..options(Recovery::CrashStop) };
    let mut world = World::led(3, small);
    let proposed = |world: &World| world.replicas[&0].status().under_way;
    world.ask(0, 1, 1, "a");
    world.step(0, Event::Idle);
    assert_eq!(proposed(&world), 0, "it waits to get full");
    world.now = world.now + delay;
    world.step(0, Event::Idle);
    assert_eq!(proposed(&world), 1, "it has waited");
    for number in 2..9 {
        world.ask(0, number, 1, "b");
        world.step(0, Event::Idle);
    }
    assert_eq!(proposed(&world), 2, "the window is full, whatever waits");
    world.settle();
    world.now = world.now + delay;
    world.settle();
    assert_eq!(world.lines(0).len(), 8);
    let batches = world.replicas[&0].decisions().map(|(_, batch)| batch.requests().count());
    assert_eq!(batches.max(), Some(2), "two requests are 44 bytes, three 66");
}

/// With five members a follower needs the others' votes; with three the leader's is enough.
#[test]
fn followers_of_three_do_not_hear_each_other() {
    for (count, between) in [(3, 0), (5, 4)] {
        let mut world = World::led(count, options(Recovery::CrashStop));
        world.ask(0, 1, 1, "a");
        world.step(0, Event::Idle);
        assert!(world.arrive(0, 1));
        let accepts = (1..count).filter(|to| world.links.contains_key(&(1, *to)));
        let accepts = accepts.filter(|to| !world.links[&(1, *to)].is_empty()).count();
        assert_eq!(accepts, usize::from(between > 0) * usize::from(count - 2));
        assert_eq!(world.lines(1).len(), usize::from(between == 0));
        world.settle();
        assert!((0..count).all(|node| world.lines(node) == ["a"]), "{count} members");
    }
}

/// Report, section 5.3.5.
#[test]
fn what_is_missing_is_asked_for_in_ranges_and_single_instances() {
    let far = Options { batch_bytes: 1, window: 20, ..options(Recovery::CrashStop) };
    let mut world = World::led(3, far);
    for number in 0..13 {
        // Of 13 instances replica 2 misses 1, 2, 4, 6, 7, 8, 9 and 11.
        let lost = [1, 2, 4, 6, 7, 8, 9, 11].contains(&number);
        world.cut = if lost { BTreeSet::from([(0, 2)]) } else { BTreeSet::new() };
        world.ask(0, number + 1, 1, "x");
        world.settle();
    }
    assert_eq!(world.lines(2).len(), 1);
    assert_eq!(world.lines(0).len(), 13);
    world.cut.clear();
    let mut asked = Vec::new();
    for _ in 0..40 {
        world.now = world.now + world.options.heartbeat / 2;
        (0..3).for_each(|node| world.step(node, Event::Timer(Timer::Tick)));
        for (link, messages) in &world.links {
            asked.extend(messages.iter().filter_map(|message| match message {
                Message::CatchUpQuery(CatchUpQuery { missing, .. }) if link.0 == 2 => {
                    Some(missing.clone())
                }
                _ => None,
            }));
        }
        world.settle();
    }
    let first = asked.iter().find(|missing| !missing.ranges.is_empty()).unwrap();
    let pair = |(a, b): &(Instance, Instance)| (a.0, b.0);
    assert_eq!(first.ranges.iter().map(pair).collect::<Vec<_>>(), [(1, 2), (6, 9)]);
    assert_eq!(first.singles.iter().map(|one| one.0).collect::<Vec<_>>(), [4, 11]);
    assert_eq!(first.after, Instance(13));
    assert_eq!(world.lines(2), world.lines(0));
}

#[test]
fn who_was_away_for_long_gets_a_snapshot_amid_an_instance_and_the_replies() {
    let small = Options { snapshot_bytes_min: 500, ..options(Recovery::CrashStop) };
    let mut world = World::led(3, small);
    world.cut = BTreeSet::from([(0, 2), (1, 2), (2, 0), (2, 1)]);
    for number in 1..60 {
        // Three requests in each instance.
        (0..3).for_each(|at| world.ask(0, number * 3 + at, 1, "line"));
        world.settle();
    }
    world.cut.clear();
    world.pass(Duration::from_secs(3));
    assert_eq!(world.lines(2).len(), 59 * 3);
    assert_eq!(world.replicas[&2].digest(), world.replicas[&0].digest());
    assert!(world.replicas[&0].decisions().next().unwrap().0 > Instance(0), "the log was cut");
    world.crash(0);
    world.pass(Duration::from_secs(2));
    let leader = world.leader();
    world.replies();
    world.ask(leader, 3, 1, "line");
    assert_eq!(world.replies(), [(leader, 3, done(&[1]))], "the reply came with the snapshot");
}

#[test]
fn a_replica_that_returns_deposes_nobody() {
    let mut world = World::led(3, options(Recovery::FullSs));
    let view = world.replicas[&0].status().view;
    world.cut = BTreeSet::from([(0, 2), (1, 2), (2, 0), (2, 1)]);
    world.pass(Duration::from_secs(20));
    world.cut.clear();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.leader(), 0);
    assert!((0..3).all(|node| world.replicas[&node].status().view == view));
}

#[test]
fn a_leader_without_a_majority_steps_down_and_sends_its_clients_away() {
    let mut world = World::led(3, options(Recovery::CrashStop));
    world.cut = BTreeSet::from([(0, 1), (0, 2), (1, 0), (2, 0)]);
    world.ask(0, 1, 1, "lost?");
    world.settle();
    world.pass(Duration::from_secs(3));
    assert!(matches!(world.replies()[..], [(0, 1, Answer::Redirect(_))]));
    let leader = world.leader();
    assert_ne!(leader, 0);
    world.cut.clear();
    world.ask(leader, 1, 1, "lost?");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.replies(), [(leader, 1, done(&[1]))]);
    assert_eq!(world.lines(0), ["lost?"]);
}

#[test]
fn with_full_ss_all_may_crash_at_once() {
    let mut world = World::led(3, options(Recovery::FullSs));
    for number in 1..20 {
        world.ask(0, number, 1, "kept");
        world.settle();
    }
    (0..3).for_each(|node| world.crash(node));
    (1..3).for_each(|node| world.start(node, members(0..3)));
    world.pass(Duration::from_secs(2));
    let leader = world.leader();
    assert_eq!(world.lines(leader).len(), 19);
    world.replies();
    world.ask(leader, 7, 1, "kept");
    assert_eq!(world.replies(), [(leader, 7, done(&[7]))]);
}

#[test]
fn with_crash_stop_who_has_crashed_is_refused() {
    let mut world = World::led(3, options(Recovery::CrashStop));
    world.crash(2);
    world.start(2, members(0..3));
    assert_eq!(world.stopped(2), Some(Stopped::LostMemory));
    world.ask(2, 1, 1, "x");
    world.settle();
    assert_eq!(world.replies(), []);
}

#[test]
fn a_disk_of_another_replica_or_mode_is_refused() {
    let mut world = World::led(3, options(Recovery::FullSs));
    world.crash(1);
    world.disks.insert(1, world.disks[&2].clone());
    world.start(1, members(0..3));
    let found = (NodeId(2), Recovery::FullSs);
    let wanted = (NodeId(1), Recovery::FullSs);
    assert_eq!(world.stopped(1), Some(Stopped::Foreign { found, wanted }));
    world.options.recovery = Recovery::ViewSs;
    world.crash(2);
    world.start(2, members(0..3));
    let why = world.stopped(2).unwrap().to_string();
    assert_eq!(why, "the data is of replica n2 with full-ss, not of n2 with view-ss");
}

#[test]
fn with_epoch_ss_and_view_ss_one_comes_back_and_a_majority_does_not() {
    for recovery in [Recovery::EpochSs, Recovery::ViewSs] {
        let mut world = World::led(3, options(recovery));
        for (number, victim) in (1..=6).zip([2, 1, 0, 1, 2, 0]) {
            let leader = world.leader();
            world.ask(leader, number, 1, "kept");
            world.settle();
            world.crash(victim);
            world.start(victim, members(0..3));
            assert!(!world.replicas[&victim].status().active, "it must ask first");
            world.pass(Duration::from_secs(3));
            assert!(world.replicas[&victim].status().active, "{recovery:?}, {number}: {victim}");
            assert_eq!(world.lines(victim).len() as u64, number);
        }
        (0..2).for_each(|node| world.crash(node));
        (0..2).for_each(|node| world.start(node, members(0..3)));
        world.pass(Duration::from_secs(30));
        let active = |node: u16| world.replicas[&node].status().active;
        assert_eq!([0, 1, 2].map(active), [false, false, true], "{recovery:?}: refused");
        world.ask(2, 50, 1, "x");
        world.settle();
        assert_eq!(world.lines(2).len(), 6, "no majority has a memory");
    }
}

/// Decision 13: the leader of the next view has not heard of what 1 accepted.
#[test]
fn a_candidate_does_not_answer_one_that_lost_its_memory() {
    let mut world = World::led(3, options(Recovery::EpochSs));
    world.cut = BTreeSet::from([(0, 2)]);
    world.ask(0, 1, 1, "decided by 0 and 1");
    world.settle();
    assert_eq!(world.lines(1).len(), 1);
    // 2 becomes a candidate with the votes of 1, its PREPARE is on the way.
    world.cut = BTreeSet::from([(0, 1), (0, 2), (1, 0), (2, 0)]);
    for _ in 0..40 {
        world.now = world.now + world.options.heartbeat / 2;
        world.step(2, Event::Timer(Timer::Tick));
        while world
            .links
            .get(&(2, 1))
            .and_then(|link| link.front())
            .is_some_and(|message| !matches!(message, Message::Prepare(_)))
        {
            world.arrive(2, 1);
            while world.arrive(1, 2) {}
        }
    }
    let is_prepare = |message: &Message| matches!(message, Message::Prepare(_));
    assert!(world.links[&(2, 1)].iter().any(is_prepare));
    world.crash(1);
    world.start(1, members(0..3));
    world.pass(Duration::from_millis(400));
    assert!(!world.replicas[&1].status().active, "0 is cut off, and 2 does not lead");
    world.cut.clear();
    world.pass(Duration::from_secs(5));
    let leader = world.leader();
    world.ask(leader, 2, 1, "after");
    world.pass(Duration::from_secs(1));
    assert!((0..3).all(|node| world.lines(node) == ["decided by 0 and 1", "after"]));
}

#[test]
fn members_change_while_it_serves_and_who_is_removed_stops() {
    let mut world = World::led(3, options(Recovery::FullSs));
    world.ask(0, 1, 1, "before");
    world.settle();
    world.start(7, members(0..3));
    let address = "host-7".to_string();
    world.change(0, 1, &Change::Replace { old: NodeId(1), new: NodeId(7), address });
    world.pass(Duration::from_secs(4));
    let [(0, 99, Answer::Done(reply))] = &world.replies()[1..] else { panic!("not answered") };
    assert_eq!(postcard::from_bytes::<Changed>(reply).unwrap(), Changed::Now(members([0, 2, 7])));
    assert_eq!(world.stopped(1), Some(Stopped::Removed));
    assert_eq!(world.lines(7), ["before"]);
    world.crash(2);
    world.ask(0, 2, 1, "with 7");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.lines(7), ["before", "with 7"], "0 and 7 are a majority now");
    // The leader goes, too.
    world.start(2, members(0..3));
    world.pass(Duration::from_secs(1));
    world.change(0, 2, &Change::Remove { node: NodeId(0) });
    world.pass(Duration::from_secs(5));
    assert_eq!(world.stopped(0), Some(Stopped::Removed));
    let leader = world.leader();
    world.ask(leader, 3, 1, "without 0");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.lines(leader), ["before", "with 7", "without 0"]);
}

/// Decision 14: a follower has decided and answered before the leader knows.
#[test]
fn a_read_sees_what_a_follower_has_answered_already() {
    let forward = Options { routing: Routing::Forward, ..options(Recovery::EpochSs) };
    let mut world = World::led(3, forward);
    world.ask(1, 1, 1, "answered");
    world.step(1, Event::Idle);
    world.arrive(1, 0);
    world.step(0, Event::Idle);
    world.arrive(0, 1);
    assert_eq!(world.replies(), [(1, 1, done(&[1]))]);
    assert_eq!(world.lines(0), [""; 0], "the leader has no ACCEPT yet");
    let (token, question) = (4, Bytes::new());
    let read = Command::Read { token, question, consistency: Consistency::Linearizable };
    world.step(0, Event::Command(read));
    world.settle();
    let answer = Answer::Done("answered".into());
    assert!(world.outputs.contains(&(0, Output::Read { token, answer })));
}

#[test]
fn with_a_lease_reads_need_no_message_and_no_other_leads_meanwhile() {
    let leases = Leases::For(Duration::from_millis(400));
    let mut world = World::led(3, Options { leases, ..options(Recovery::FullSs) });
    world.pass(Duration::from_secs(1));
    let read =
        Command::Read { token: 1, question: Bytes::new(), consistency: Consistency::Linearizable };
    world.step(0, Event::Command(read.clone()));
    assert!(matches!(world.outputs.last(), Some((0, Output::Read { token: 1, .. }))), "at once");
    // Cut off: 1 and 2 elect nobody before the lease is over, and the leader then answers no more.
    world.cut = BTreeSet::from([(0, 1), (0, 2), (1, 0), (2, 0)]);
    let cut_at = world.now;
    while !(1..3).any(|node| world.replicas[&node].is_leading()) {
        world.pass(Duration::from_millis(50));
        assert!(world.now.since(cut_at) < Duration::from_secs(5), "nobody leads");
    }
    assert!(world.now.since(cut_at) >= Duration::from_millis(400));
    world.outputs.clear();
    world.step(0, Event::Command(read));
    assert_eq!(world.outputs, [], "it must ask first");
}

#[test]
fn replicas_that_differ_stop_and_name_the_position() {
    let often = Options { digest_every: 8, batch_bytes: 1, ..options(Recovery::CrashStop) };
    let mut world = World::new(often);
    (0..2).for_each(|node| world.start(node, members(0..3)));
    world.start_as(2, members(0..3), Diary { wrong: 1, ..Diary::default() });
    world.settle();
    for number in 1..20 {
        world.ask(0, number, 1, "x");
        world.settle();
    }
    world.pass(Duration::from_secs(1));
    let why = world.stopped(2).unwrap().to_string();
    assert!(why.contains("after position 8 (instance 8)"), "{why}");
    assert!([0, 1].iter().all(|node| world.stopped(*node).is_none()));
}

#[test]
fn identities_are_never_given_twice() {
    for (recovery, client_ids) in [
        (Recovery::FullSs, ClientIds::Counted),
        (Recovery::EpochSs, ClientIds::Counted),
        (Recovery::EpochSs, ClientIds::Time),
        (Recovery::ViewSs, ClientIds::Time),
    ] {
        let mut world = World::led(3, Options { client_ids, ..options(recovery) });
        let mut given = BTreeSet::new();
        for _ in 0..5 {
            for node in (0..3).flat_map(|node| [node; 3]) {
                world.step(node, Event::Command(Command::Connect { token: 1 }));
            }
            for (_, output) in std::mem::take(&mut world.outputs) {
                if let Output::Connected { client, .. } = output {
                    assert!(given.insert(client), "{recovery:?} {client_ids:?}: {client:?} twice");
                }
            }
            world.crash(1);
            world.now = world.now + Duration::from_millis(1);
            world.start(1, members(0..3));
            world.pass(Duration::from_secs(3));
        }
        assert_eq!(given.len(), 5 * 9);
    }
}

#[test]
fn a_client_that_is_forgotten_is_told_so_and_not_served_twice() {
    let few = Options { clients_max: 10, ..options(Recovery::CrashStop) };
    let mut world = World::led(3, few);
    for number in 1..40 {
        world.ask(0, number, 1, "x");
        world.settle();
    }
    world.replies();
    world.ask(0, 1, 1, "x");
    world.ask(0, 1, 2, "y");
    world.ask(0, 39, 1, "x");
    world.settle();
    let replies = world.replies();
    assert_eq!(replies[..2], [(0, 1, Answer::Forgotten), (0, 1, Answer::Forgotten)]);
    assert_eq!(replies[2], (0, 39, done(&[39])));
    assert_eq!(world.lines(0).len(), 39);
}

#[test]
fn requests_that_are_too_long_or_too_many_are_refused() {
    let tight =
        Options { request_bytes_max: 10, queue_bytes_max: 2000, ..options(Recovery::CrashStop) };
    let mut world = World::led(3, tight);
    world.ask(0, 1, 1, "longer than ten bytes");
    assert_eq!(world.replies(), [(0, 1, Answer::TooLong(10))]);
    world.cut = BTreeSet::from([(0, 1), (0, 2)]);
    let mut asked = 1;
    while !world.replicas[&0].is_full() {
        asked += 1;
        world.ask(0, asked, 1, "x");
        assert!(asked < 100, "it is never full");
    }
    assert_eq!(world.replies(), [], "none of those is refused: they wait");
    (0..100).for_each(|number| world.ask(0, 1000 + number, 1, "x"));
    let refused = world.replies();
    assert!(refused.iter().all(|(_, _, answer)| *answer == Answer::Busy) && refused.len() > 50);
    world.cut.clear();
    world.pass(Duration::from_secs(1));
    assert!(!world.replicas[&0].is_full());
}
