//! The linearizable order: what breaks it, and that nothing breaks it where it is promised. A
//! scenario written out, and many random runs.

use meridian_baselines::skeen::{Skeen, Variant};
use meridian_core::{ClientId, Effect, Event, GroupId, MessageId, NodeId, Outbox, ProcessId, Time};
use meridian_multicast::Groups;
use meridian_multicast::{
    Dissemination, Mutation, Options, Order, PrimCast, Protocol, Start, Timestamp, Touches,
};
use meridian_sim::each_seed;
use meridian_sim::of::multicast::checkers::{End, check_agreement, check_prefix, check_real_time};
use meridian_sim::of::multicast::history::{Entry, History};
use meridian_sim::of::multicast::short::{Cluster, Links, Profile, judge, judge_real_time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Groups of one process each, and some processes that only send.
fn skeen(groups: usize, variant: Variant) -> Cluster<Skeen> {
    let make = |me: ProcessId, groups: &Groups| Skeen::new(me, groups.clone(), variant);
    Cluster::new(&[1].repeat(groups), 2, make)
}

/// Each group has its primary.
fn primcast(sizes: &[u16], order: Order) -> Cluster<PrimCast> {
    primcast_with(sizes, Options { order, ..Options::default() })
}

fn primcast_with(sizes: &[u16], options: Options) -> Cluster<PrimCast> {
    mutated(sizes, options, Mutation::Correct)
}

/// The linearizable order with a planted bug.
fn planted(sizes: &[u16], mutation: Mutation) -> Cluster<PrimCast> {
    mutated(sizes, Options { order: Order::Linearizable, ..Options::default() }, mutation)
}

fn mutated(sizes: &[u16], options: Options, mutation: Mutation) -> Cluster<PrimCast> {
    let make = |me, groups: &Groups| {
        let process = PrimCast::new(me, groups.clone()).with_options(options);
        process.with_mutation(mutation)
    };
    Cluster::new(sizes, 2, make).settle(Duration::from_secs(3))
}

/// A run by hand: messages arrive at once, unless their way is held.
struct Script<P: Protocol> {
    processes: BTreeMap<ProcessId, P>,
    wire: VecDeque<(ProcessId, ProcessId, P::Message)>,
    held: BTreeSet<(ProcessId, ProcessId)>,
    now: Time,
    history: History,
}

impl<P: Protocol + Clone> Script<P> {
    fn new(cluster: &Cluster<P>) -> Self {
        let processes = cluster.processes().map(|(id, process)| (id, process.clone()));
        let processes: BTreeMap<_, _> = processes.collect();
        let mut members: BTreeMap<GroupId, Vec<ProcessId>> = BTreeMap::new();
        processes.keys().for_each(|id| members.entry(id.group).or_default().push(*id));
        let (wire, held, now) = (VecDeque::new(), BTreeSet::new(), cluster.now());
        Script { processes, wire, held, now, history: History::new(members) }
    }

    fn step(&mut self, at: ProcessId, event: Event<P>) {
        self.now = self.now + Duration::from_nanos(1);
        let mut out = Outbox::new();
        let process = self.processes.get_mut(&at).expect("a process of the cluster");
        process.step(self.now, event, &mut out);
        process.step(self.now, Event::Idle, &mut out);
        for effect in out.drain() {
            match effect {
                Effect::Send { to, message } => self.wire.push_back((at, to, message)),
                Effect::Output(output) => {
                    if let Some(delivery) = P::delivery(output) {
                        let (id, ts) = (delivery.start.id, delivery.ts);
                        let position = delivery.position;
                        self.history.push(Entry::Deliver {
                            process: at,
                            id,
                            ts,
                            position,
                            t: self.now,
                        });
                    }
                }
                Effect::Persist(_) | Effect::Note(_) | Effect::Timer { .. } => {}
            }
        }
    }

    /// Until nothing is under way but on ways that are held.
    fn run(&mut self) {
        for _ in 0..1000 {
            let is_held = |from, to| self.held.contains(&(from, to));
            let next = self.wire.iter().position(|(from, to, _)| !is_held(*from, *to));
            let Some(at) = next else { return };
            self.take(at);
        }
        panic!("this never ends: {:?}", self.wire);
    }

    fn take(&mut self, at: usize) {
        let (from, to, message) = self.wire.remove(at).expect("it was found there");
        self.step(to, Event::Message { from, message });
    }

    /// The first message on a way that is held arrives.
    fn arrives(&mut self, from: ProcessId, to: ProcessId) {
        let is = |(a, b, _): &(ProcessId, ProcessId, P::Message)| (*a, *b) == (from, to);
        let at = self.wire.iter().position(is).expect("it is under way");
        self.take(at);
        self.run();
    }

    /// A message is multicast, and all happens that can.
    fn multicast(&mut self, sender: ProcessId, name: u64, dest: &[u16], after: u64) {
        self.multicast_touching(sender, name, dest, after, Touches::All);
    }

    /// The same with a message that does not conflict with all others.
    fn multicast_touching(
        &mut self,
        sender: ProcessId,
        name: u64,
        dest: &[u16],
        after: u64,
        touches: Touches,
    ) {
        let id = MessageId { client: ClientId(name), sequence: 1 };
        let dest: Vec<_> = dest.iter().map(|group| GroupId(*group)).collect();
        self.now = self.now + Duration::from_nanos(1);
        self.history.push(Entry::Multicast {
            id,
            dest: dest.clone(),
            touches: touches.clone(),
            after: Timestamp(after),
            t: self.now,
        });
        let after = Timestamp(after);
        let start = Start { after, touches, ..Start::new(id, dest, Vec::new()) };
        self.step(sender, Event::Command(P::multicast(start)));
        self.run();
    }

    /// What the group delivered, by name.
    fn delivered(&self, group: u16) -> Vec<u64> {
        let of = self.history.entries.iter().filter_map(|entry| match entry {
            Entry::Deliver { process, id, .. } if process.group.0 == group => Some(id.client.0),
            _ => None,
        });
        of.collect()
    }
}

/// The groups f, g, h of decision 8; 3 only sends.
const F: u16 = 0;
const G: u16 = 1;
const H: u16 = 2;

fn first(group: u16) -> ProcessId {
    ProcessId { group: GroupId(group), node: NodeId(group * 100) }
}

/// The counterexample to Algorithm 4 (docs of [`Variant::Ack`]). 1 to 4 form a chain of deliveries,
/// and 4 ended before 1 was multicast. Returns whether 4 had ended by then.
fn chain_over_three_groups<P: Protocol + Clone>(script: &mut Script<P>) -> bool {
    let (client, f, g) = (first(3), first(F), first(G));
    // Clocks: g is at 4, h at 9, f at the beginning.
    script.multicast(client, 8, &[G], 3);
    script.multicast(client, 9, &[H], 8);
    // g gives 2 its next timestamp; f hears nothing of it.
    script.held = BTreeSet::from([(client, f), (g, f)]);
    script.multicast(client, 2, &[F, G], 0);
    // g and h know the final timestamp of 3, which is h's. 2 comes before it at g.
    script.multicast(g, 3, &[G, H], 0);
    // Its client sees it delivered at h, and sends 4; sees that, and sends 1.
    script.multicast(first(H), 4, &[H], 0);
    let ended = script.delivered(H).contains(&4);
    script.multicast(f, 1, &[F], 0);
    script.held.clear();
    script.run();
    ended
}

/// Decision 8: each pair of messages with a common destination is in order, the chain is not.
#[test]
fn acks_do_not_order_a_chain_over_three_groups() {
    for variant in [Variant::Plain, Variant::Ack] {
        let mut script = Script::new(&skeen(3, variant));
        assert!(chain_over_three_groups(&mut script));
        assert_eq!(script.delivered(F), [1, 2]);
        assert_eq!(script.delivered(G), [8, 2, 3]);
        assert_eq!(script.delivered(H), [9, 3, 4]);
        assert_eq!(check_prefix(&script.history), Ok(()));
        let why = check_real_time(&script.history, End::Completed).unwrap_err();
        for link in ["1.1 < (at g0/n0) 2.1", "2.1 < (at g1/n100) 3.1", "3.1 < (at g2/n200) 4.1"] {
            assert!(why.contains(link), "{why}");
        }
        assert!(check_real_time(&script.history, End::Delivered).is_err());
    }
}

/// The same with READY: 3 and 4 wait for 2.
#[test]
fn readiness_orders_a_chain_over_three_groups() {
    let mut script = Script::new(&skeen(3, Variant::Ready));
    assert!(!chain_over_three_groups(&mut script));
    assert_eq!(script.delivered(F), [1, 2]);
    assert_eq!(script.delivered(G), [8, 2, 3]);
    assert_eq!(script.delivered(H), [9, 3, 4]);
    assert_eq!(check_real_time(&script.history, End::Delivered), Ok(()));
}

/// PrimCast's own order promises nothing of real time.
#[test]
fn sequential_order_does_not_order_a_chain_over_three_groups() {
    for sizes in [[1; 3], [3; 3]] {
        let mut script = Script::new(&primcast(&sizes, Order::Sequential));
        assert!(chain_over_three_groups(&mut script), "{:?}", script.history);
        assert!(check_real_time(&script.history, End::Completed).is_err());
    }
}

/// With PrimCast 3 and 4 wait for 2 as well.
#[test]
fn linearizable_order_orders_a_chain_over_three_groups() {
    for sizes in [[1; 3], [3; 3]] {
        let mut script = Script::new(&primcast(&sizes, Order::Linearizable));
        assert!(!chain_over_three_groups(&mut script));
        assert_eq!(check_agreement(&script.history), Ok(()));
        assert_eq!(check_real_time(&script.history, End::Delivered), Ok(()));
    }
}

/// g delivers 5 and tells h, which must still wait: 7, known to g and later than 5 in the end, may
/// have something before it at f. Once g knows that it has not, h is told, though h shares no
/// message with g any more.
#[test]
fn a_group_tells_those_who_wait_for_what_it_has_delivered() {
    let mut script = Script::new(&primcast(&[1; 3], Order::Linearizable));
    let (f, g, h) = (first(F), first(G), first(H));
    script.multicast(f, 8, &[F], 19);
    script.multicast(h, 9, &[H], 8);
    script.held = BTreeSet::from([(f, g)]);
    script.multicast(g, 7, &[F, G], 0);
    script.multicast(g, 5, &[G, H], 0);
    assert!(script.delivered(G).is_empty());
    // The timestamp of 7, and the ACK for it; what f says of its stability is still under way.
    script.arrives(f, g);
    script.arrives(f, g);
    assert_eq!((script.delivered(G), script.delivered(H)), (vec![5], vec![9]));
    script.held.clear();
    script.run();
    assert_eq!((script.delivered(F), script.delivered(G)), (vec![8, 7], vec![5, 7]));
    assert_eq!(script.delivered(H), [9, 5]);
}

/// START comes to h last, and nothing is before 4 there: it is delivered at once. g is told how far
/// h is. (h has heard how far g is, and its clock with that: so 3 is before 4.)
#[test]
fn a_group_that_delivers_at_once_tells_the_others() {
    let mut script = Script::new(&primcast(&[1; 3], Order::Linearizable));
    let (client, g, h) = (first(3), first(G), first(H));
    script.held = BTreeSet::from([(client, h)]);
    script.multicast(client, 4, &[G, H], 0);
    script.multicast(g, 3, &[G], 3);
    assert_eq!((script.delivered(G), script.delivered(H)), (vec![], vec![]));
    script.held.clear();
    script.run();
    assert_eq!((script.delivered(G), script.delivered(H)), (vec![3, 4], vec![4]));
}

/// f and g share a message that waits for one between f and h, and h is cut off: they have nothing
/// new to say.
#[test]
fn groups_that_wait_are_quiet() {
    let mut script = Script::new(&primcast(&[1; 3], Order::Linearizable));
    let (client, f, g, h) = (first(3), first(F), first(G), first(H));
    script.held = BTreeSet::from([(client, h), (f, h), (h, f), (g, h), (h, g)]);
    script.multicast(client, 1, &[F, H], 0);
    script.multicast(client, 2, &[F, G], 0);
    assert_eq!((script.delivered(F), script.delivered(G)), (vec![], vec![]));
    script.held.clear();
    script.run();
    assert_eq!((script.delivered(F), script.delivered(G)), (vec![1, 2], vec![2]));
}

/// At h, 5 passes 2 and 3, with which it does not conflict. But 4, which is before it at g, comes
/// after 3 at k, and 3 after 2, which has not come to l: if 5 is delivered, 1 is ordered before all
/// of them though it is multicast later.
fn passed_by_what_leads_back(sizes: &[u16; 4], mutation: Mutation) -> Script<PrimCast> {
    let (g, h, k, l) = (0, 1, 2, 3);
    let mut script = Script::new(&planted(sizes, mutation));
    let client = first(4);
    let to_l = script.processes.keys().filter(|process| process.group.0 == l);
    script.held = to_l.flat_map(|to| [(client, *to), (first(h), *to)]).collect();
    script.multicast_touching(client, 2, &[h, l], 0, Touches::keys([12, 23]));
    script.multicast_touching(client, 3, &[h, k], 0, Touches::keys([23, 34]));
    script.multicast_touching(client, 4, &[g, k], 0, Touches::keys([34, 45]));
    script.multicast_touching(client, 6, &[k], 10, Touches::keys([6]));
    script.multicast_touching(client, 5, &[g, h], 0, Touches::keys([45]));
    script.multicast_touching(first(l), 1, &[l], 0, Touches::keys([12]));
    script.held.clear();
    script.run();
    assert_eq!(script.delivered(l).first(), Some(&1));
    script
}

#[test]
fn what_passes_others_waits_for_chains_that_lead_back_to_them() {
    for sizes in [[1; 4], [3; 4]] {
        let script = passed_by_what_leads_back(&sizes, Mutation::Correct);
        assert_eq!(check_real_time(&script.history, End::Delivered), Ok(()), "{sizes:?}");
        let script = passed_by_what_leads_back(&sizes, Mutation::PassesUnclosed);
        let why = check_real_time(&script.history, End::Delivered).unwrap_err();
        assert!(why.contains("1.1 < (at g3"), "{why}");
    }
}

/// h is cut off from l and can never deliver 2; 5 passes it there and nothing elsewhere, and the
/// others say that they are ready for it, though they wait for nobody that they have passed.
#[test]
fn what_passes_others_does_not_wait_for_them() {
    for (sizes, dissemination) in [
        ([1; 4], Dissemination::AllToAll),
        ([3; 4], Dissemination::AllToAll),
        ([3; 4], Dissemination::ViaLeader),
    ] {
        let options = Options { order: Order::Linearizable, dissemination, ..Options::default() };
        let mut script = Script::new(&primcast_with(&sizes, options));
        let (client, all) = (first(4), script.processes.keys().copied());
        let (of_l, others): (Vec<_>, Vec<_>) = all.partition(|process| process.group.0 == 3);
        let ways = of_l.iter().flat_map(|a| others.iter().flat_map(|b| [(*a, *b), (*b, *a)]));
        script.held = ways.collect();
        script.multicast_touching(client, 2, &[1, 3], 0, Touches::keys([1]));
        script.multicast_touching(client, 5, &[0, 1, 2], 0, Touches::keys([2]));
        for group in 0..3 {
            let delivered = script.delivered(group);
            assert_eq!(delivered, vec![5; sizes[usize::from(group)].into()], "g{group}");
        }
        script.held.clear();
        script.run();
        assert_eq!(script.delivered(1).len(), 2 * usize::from(sizes[1]));
        assert_eq!(check_real_time(&script.history, End::Delivered), Ok(()));
    }
}

/// How many runs break which order.
#[derive(Debug, Default)]
struct Broken {
    /// Atomic global order.
    global: u64,
    /// Linearizability.
    linear: u64,
    /// The first run, and what happened.
    first: Option<String>,
}

fn search<P: Protocol + Clone>(
    cluster: &Cluster<P>,
    profile: Profile,
    seeds: Range<u64>,
) -> Broken {
    let mut broken = Broken::default();
    each_seed(seeds, |seed| {
        let history = cluster.run(seed, profile);
        assert_eq!(judge(&history), Ok(()), "seed {seed}");
        if let Err(why) = judge_real_time(&history) {
            broken.global += 1;
            broken.first.get_or_insert_with(|| format!("seed {seed}: {why}"));
            broken.linear += u64::from(check_real_time(&history, End::Completed).is_err());
        }
    });
    eprintln!("{broken:?}");
    broken
}

const FEW: Profile =
    Profile { messages: 7, dest_max: 2, links: Links::FifoOrNot, keys: 0, chain: false };
const FIFO: Profile = Profile { links: Links::Fifo, ..FEW };
const CHAIN: Profile = Profile { chain: true, ..FIFO };

#[test]
fn random_runs_break_skeen() {
    let broken = search(&skeen(4, Variant::Plain), FEW, 0..2_000);
    assert!(broken.global > 0 && broken.linear > 0);
}

#[test]
fn random_runs_break_acks() {
    let broken = search(&skeen(4, Variant::Ack), FEW, 0..15_000);
    assert!(broken.global > 0 && broken.linear > 0);
}

fn nothing_breaks<P: Protocol + Clone>(cluster: &Cluster<P>, profile: Profile, seeds: Range<u64>) {
    let broken = search(cluster, profile, seeds);
    assert_eq!(broken.first, None);
}

#[test]
fn no_random_run_breaks_readiness_with_three_groups() {
    nothing_breaks(&skeen(3, Variant::Ready), FEW, 0..40_000);
}

#[test]
fn no_random_run_breaks_readiness_with_four_groups() {
    nothing_breaks(&skeen(4, Variant::Ready), Profile { dest_max: 3, ..FEW }, 100_000..140_000);
}

#[test]
fn no_random_run_breaks_readiness_with_five_groups() {
    nothing_breaks(&skeen(5, Variant::Ready), FEW, 200_000..240_000);
}

#[test]
fn random_runs_break_sequential_order() {
    let broken = search(&primcast(&[1; 3], Order::Sequential), FIFO, 0..200);
    assert!(broken.global > 0);
    let broken = search(&primcast(&[3; 3], Order::Sequential), FIFO, 0..2000);
    assert!(broken.global > 0);
}

#[test]
fn no_random_run_breaks_linearizable_order_of_single_processes() {
    let cluster = primcast(&[1; 3], Order::Linearizable);
    nothing_breaks(&cluster, FIFO, 300_000..306_000);
    let cluster = primcast(&[1; 5], Order::Linearizable);
    nothing_breaks(&cluster, Profile { dest_max: 3, ..FIFO }, 310_000..316_000);
}

#[test]
fn no_random_run_breaks_linearizable_order_of_groups() {
    let cluster = primcast(&[3; 3], Order::Linearizable);
    nothing_breaks(&cluster, FIFO, 320_000..321_500);
    let cluster = primcast(&[3, 1, 2, 3, 1], Order::Linearizable);
    nothing_breaks(&cluster, FIFO, 330_000..331_500);
}

#[test]
fn no_random_run_breaks_linearizable_order_of_groups_whose_primaries_speak() {
    let order = Order::Linearizable;
    let options = Options { order, dissemination: Dissemination::ViaLeader, ..Options::default() };
    nothing_breaks(&primcast_with(&[3; 3], options), FIFO, 340_000..341_500);
    nothing_breaks(&primcast_with(&[3, 1, 2, 3, 1], options), FIFO, 350_000..351_500);
}

/// A planted bug: pairs of messages are in order, chains are not.
#[test]
fn random_runs_break_an_order_that_ignores_links() {
    let cluster = planted(&[1; 4], Mutation::IgnoresLinks);
    let broken = search(&cluster, FIFO, 300_000..320_000);
    assert!(broken.global > 0);
}

/// A planted bug that needs five messages over four groups.
#[test]
fn random_chains_break_an_order_that_lets_pass_what_leads_back() {
    let cluster = planted(&[1; 4], Mutation::PassesUnclosed);
    let broken = search(&cluster, CHAIN, 360_000..363_000);
    assert!(broken.global > 0);
}

#[test]
fn no_random_chain_breaks_linearizable_order() {
    for dissemination in [Dissemination::AllToAll, Dissemination::ViaLeader] {
        let options = Options { order: Order::Linearizable, dissemination, ..Options::default() };
        nothing_breaks(&primcast_with(&[1; 4], options), CHAIN, 370_000..374_000);
        nothing_breaks(&primcast_with(&[3, 1, 2, 3], options), CHAIN, 374_000..375_000);
    }
}

/// Messages that do not conflict pass each other.
#[test]
fn no_random_run_breaks_linearizable_order_of_keys() {
    let cluster = primcast(&[1; 4], Order::Linearizable);
    nothing_breaks(&cluster, Profile { keys: 4, ..FIFO }, 340_000..346_000);
    let broken =
        search(&primcast(&[1; 4], Order::Sequential), Profile { keys: 4, ..FIFO }, 0..2000);
    assert!(broken.global > 0);
}
