//! Changing the members of groups.

use super::*;

fn configure(sequence: u64, number: u64, nodes: &[u16]) -> Start {
    let nodes: Vec<_> = nodes.iter().map(|node| NodeId(*node)).collect();
    Start { low: 1, ..Start::configure(id(sequence), GroupId(0), number, nodes) }
}

fn config(group: u16, number: u64, nodes: &[u16]) -> Message {
    let members = nodes.iter().map(|node| NodeId(*node)).collect();
    Message::Epoch(EpochMessage::Config(Config { group: GroupId(group), number, members }.into()))
}

fn promise(epoch: Epoch, e_cur: Epoch) -> Message {
    let progress = Progress { e_cur, len: 0, base: 0, runs: Runs::default() };
    Message::from(Promise { epoch, clock: Timestamp(0), progress })
}

impl Net {
    /// These will start later.
    fn expect(&mut self, new: &[ProcessId]) {
        self.away.extend(new);
    }

    /// A process starts that joins, with what `from` knows.
    fn join(&mut self, me: ProcessId, from: ProcessId) {
        let configs: Vec<_> = self.of(from).members().configs().collect();
        let now = self.all[&from].now;
        self.all.insert(me, One { process: PrimCast::joining(me, configs), now });
        self.away.remove(&me);
        self.step(me, Event::Started);
        let others: Vec<_> = self.all.keys().copied().filter(|other| *other != me).collect();
        others.into_iter().for_each(|other| self.step(other, Event::Restarted(me)));
        self.run();
    }

    fn primary(&self, group: u16, config: u64) -> Option<ProcessId> {
        let leads = |process: &PrimCast| {
            process.role() == Role::Primary && process.epoch().config == config
        };
        let of = |me: &ProcessId| me.group == GroupId(group) && !self.away.contains(me);
        self.all.keys().copied().find(|me| of(me) && leads(self.of(*me)))
    }
}

#[test]
fn a_configuration_takes_force_with_the_next_epoch() {
    let mut net = Net::settled(&[3]);
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| process(0, n));
    net.expect(&[d]);
    net.multicast(start(1, &[0]), &[a]);
    net.multicast(configure(2, 1, &[0, 1, 3]), &[a]);
    let e2 = Epoch { config: 1, number: 2, leader: a.node };
    assert_eq!((net.of(a).epoch(), net.of(a).role()), (e2, Role::Primary));
    assert_eq!((net.of(b).epoch(), net.of(b).role()), (e2, Role::Follower));
    assert!(!net.of(c).is_member() && net.of(b).is_member());
    net.away.insert(c);
    net.join(d, b);
    net.run_for(Duration::from_secs(1));
    assert_eq!((net.of(d).epoch(), net.of(d).role()), (e2, Role::Follower));
    net.multicast(start(3, &[0]), &[b]);
    assert_eq!(net.delivered(1), [a, b, c], "what it led to has come with the state");
    assert_eq!(net.delivered(3), [a, b, d]);
    assert_eq!(net.of(d).delivered(), net.of(b).delivered());
}

/// Its quorum alone knows nothing of what the one before it decided, and that one's alone leaves
/// others who know nothing of the epoch.
#[test]
fn promises_of_quorums_of_both_configurations_are_needed() {
    let [a, b, d, e] = [0, 1, 3, 4].map(|n| process(0, n));
    let e2 = Epoch { config: 1, number: 2, leader: a.node };
    let stands = || {
        let mut one = Net::one(&[3], a);
        one.hears(b, config(0, 1, &[0, 3, 4]));
        one.idle();
        assert_eq!((one.process.role(), one.process.epochs.prom), (Role::Candidate, e2));
        one
    };
    let fresh = epoch(0, d);
    let mut one = stands();
    one.hears(d, promise(e2, fresh));
    one.hears(e, promise(e2, fresh));
    assert_eq!(one.process.epoch(), e1(0), "no quorum of the old one");
    one.hears(b, promise(e2, e1(0)));
    assert_eq!(one.process.epoch(), e2);
    let mut one = stands();
    one.hears(b, promise(e2, e1(0)));
    assert_eq!(one.process.epoch(), e1(0), "no quorum of the new one");
    one.hears(d, promise(e2, fresh));
    assert_eq!(one.process.epoch(), e2);
    let mut one = stands();
    one.process.planted = Planted::new(Mutation::NewQuorumOnly);
    one.hears(d, promise(e2, fresh));
    assert_eq!(one.process.epoch(), e2);
}

/// Who knows configuration 2 knows that one of 1 stood: its quorum may have decided what that of 0
/// has not seen.
#[test]
fn a_process_that_is_two_configurations_behind_asks_the_one_between() {
    let [a, b, d, e] = [0, 1, 3, 4].map(|n| process(0, n));
    let mut one = Net::one(&[3], a);
    one.hears(b, config(0, 2, &[0, 1, 5]));
    one.tick(Duration::from_secs(9));
    one.idle();
    assert!(!one.process.may_stand(), "it does not know whom to ask");
    one.hears(b, config(0, 1, &[0, 3, 4]));
    one.idle();
    let e2 = Epoch { config: 2, number: 2, leader: a.node };
    assert_eq!((one.process.role(), one.process.epochs.prom), (Role::Candidate, e2));
    one.hears(b, promise(e2, e1(0)));
    assert_eq!(one.process.epoch(), e1(0), "quorums of 0 and 2");
    one.hears(d, promise(e2, epoch(0, d)));
    assert_eq!(one.process.epoch(), e2, "and of 1");
    assert!(!one.process.peers().any(|peer| peer == e), "it has left");
}

#[test]
fn a_configuration_that_is_not_the_next_has_no_effect() {
    let mut net = Net::settled(&[3]);
    let a = process(0, 0);
    net.multicast(configure(1, 2, &[0, 1]), &[a]);
    let keys = Start { touches: Touches::keys([1]), ..configure(2, 1, &[0, 1]) };
    net.multicast(keys, &[a]);
    net.multicast(Start { dest: [GroupId(0)].into_iter().collect(), ..configure(3, 1, &[]) }, &[a]);
    assert_eq!(net.delivered(3).len(), 3);
    assert!(net.all.values().all(|one| one.process.members().number(GroupId(0)) == 0));
    net.multicast(configure(4, 1, &[0, 1]), &[a]);
    net.multicast(configure(5, 1, &[0, 2]), &[a]);
    net.run_for(Duration::from_secs(1));
    let nodes = [NodeId(0), NodeId(1)];
    assert_eq!(net.of(a).members().of(GroupId(0)), nodes, "the first of a number counts");
    assert_eq!(net.primary(0, 1), Some(a));
}

#[test]
fn a_removed_primary_falls_silent_and_the_first_that_stays_stands() {
    let mut net = Net::settled(&[3]);
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| process(0, n));
    net.expect(&[d]);
    net.multicast(configure(1, 1, &[3, 1, 2]), &[a]);
    assert_eq!(net.primary(0, 1), Some(b));
    assert_ne!(net.of(a).role(), Role::Primary);
    net.join(d, b);
    net.away.insert(c);
    net.run_for(Duration::from_secs(1));
    net.multicast(start(2, &[0]), &[d]);
    assert_eq!(net.delivered(2), [b, d]);
}

/// None of the new members has seen anything: they are told whom to ask.
#[test]
fn all_members_are_replaced() {
    let mut net = Net::settled(&[3]);
    let old = [0, 1, 2].map(|n| process(0, n));
    let new = [3, 4, 5].map(|n| process(0, n));
    net.expect(&new);
    net.multicast(start(1, &[0]), &old[..1]);
    net.multicast(configure(2, 1, &[3, 4, 5]), &old[..1]);
    assert_eq!(net.primary(0, 1), None);
    new.into_iter().for_each(|me| net.join(me, old[1]));
    net.run_for(Duration::from_secs(5));
    let primary = net.primary(0, 1).expect("one of them stands");
    assert!(new.contains(&primary));
    net.away.extend(old);
    net.multicast(start(3, &[0]), &[primary]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.delivered(3), new);
    assert!(new.into_iter().all(|me| net.delivered(1).contains(&me)));
}

/// A new member to whom the log tells nothing any more.
#[test]
fn a_new_member_is_brought_up_by_a_snapshot() {
    let mut net = Net::settled(&[3]);
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| process(0, n));
    net.multicast(start(1, &[0]), &[a]);
    net.run_for(Duration::from_secs(12));
    assert!(net.of(a).log.base() > 0, "still held");
    net.expect(&[d]);
    net.multicast(configure(2, 1, &[0, 1, 2, 3]), &[a]);
    net.join(d, c);
    net.run_for(Duration::from_secs(2));
    let installs =
        |(me, output): &(ProcessId, Output)| *me == d && matches!(output, Output::Install { .. });
    assert!(net.told.iter().any(installs));
    assert_eq!(net.of(d).delivered(), net.of(a).delivered());
    net.away.insert(c);
    net.multicast(start(3, &[0]), &[d]);
    assert_eq!(net.delivered(3), [a, b, d], "three of four");
}

/// Lines 9-10 with the members of the epoch of the ACKs.
#[test]
fn another_group_counts_with_the_configuration_of_the_epoch() {
    let me = process(0, 0);
    let mut one = Net::one(&[1, 3], me);
    let old = [0, 1, 2].map(|n| process(1, n));
    let new = [3, 4].map(|n| process(1, n));
    let e2 = Epoch { config: 1, number: 2, leader: old[0].node };
    one.asked(start(1, &[0, 1]));
    one.idle();
    one.hears(old[0], remote_append(1, e2, 5));
    old.into_iter().for_each(|old| drop(one.hears(old, remote_ack(1, e2, 5))));
    let known = |one: &One| !one.process.log.slot(id(1)).unwrap().locals.is_empty();
    let decided = |one: &mut One| {
        let did = one.idle();
        known(one) && delivered(&did) == [1]
    };
    assert!(!decided(&mut one), "it is not known who counts");
    one.hears(old[0], config(1, 1, &[10, 13, 14]));
    assert_eq!(delivered(&one.idle()), NONE, "one of three");
    one.hears(new[0], remote_ack(1, e2, 5));
    assert_eq!(delivered(&one.idle()), [1]);
}

/// Its ACK may overtake the news of its membership, and is not said again.
#[test]
fn an_ack_that_comes_before_the_configuration_counts_after_it() {
    let (x, y) = (process(1, 0), process(1, 3));
    let mut one = Net::one(&[1, 3], process(0, 0));
    let e2 = Epoch { config: 1, number: 2, leader: x.node };
    one.asked(start(1, &[0, 1]));
    one.idle();
    one.hears(y, remote_ack(1, e2, 5));
    one.hears(x, config(1, 1, &[10, 13, 14]));
    one.hears_remote(x, 1, e2, 5);
    assert_eq!(delivered(&one.idle()), [1]);
}

#[test]
fn other_groups_hear_of_a_configuration_before_its_epoch() {
    let mut net = Net::settled(&[3, 1]);
    let (a, other, d) = (process(0, 0), process(1, 0), process(0, 3));
    net.expect(&[d]);
    net.multicast(configure(1, 1, &[0, 1, 3]), &[a]);
    assert_eq!(net.of(other).members().number(GroupId(0)), 1);
    net.away.insert(process(0, 2));
    net.join(d, a);
    net.away.insert(process(0, 1));
    net.multicast(start(2, &[0, 1]), &[other]);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.delivered(2), [a, d, other]);
}

/// What another told is durable before the epoch that needs it.
#[test]
fn a_restart_knows_the_members_of_its_epoch() {
    let (b, c) = (process(0, 1), process(0, 2));
    let mut one = Net::one(&[3], c);
    let e2 = Epoch { config: 1, number: 2, leader: b.node };
    one.hears(b, Message::from(NewEpoch { epoch: e2 }));
    assert_eq!(one.process.epochs.prom, e1(0), "whose quorums count is not known");
    let mut did = one.hears(b, config(0, 1, &[1, 2, 3, 4, 5]));
    did.extend(one.hears(b, Message::from(NewEpoch { epoch: e2 })));
    did.extend(one.hears(b, new_state(e2, 7, 0, vec![])));
    let mut again = PrimCast::new(c, groups_of(&Net::one(&[3], c).process));
    for did in did {
        if let Did::Persisted(record) | Did::Noted(record) = did {
            again.recover(record);
        }
    }
    assert_eq!((again.epoch(), again.voters().len()), (e2, 5));
}

#[test]
fn a_group_is_added() {
    let mut net = Net::settled(&[3, 1]);
    let (a, other) = (process(0, 0), process(1, 0));
    let new = [0, 1, 2].map(|n| process(2, n));
    net.expect(&new);
    let nodes: Vec<_> = new.iter().map(|new| new.node).collect();
    let all = [GroupId(0), GroupId(1)];
    let add = Start { low: 1, ..Start::add_group(id(1), all, GroupId(2), nodes) };
    net.multicast(add, &[a, other]);
    assert!(net.all.values().all(|one| one.process.members().has(GroupId(2))));
    let again = Start::add_group(id(2), all, GroupId(2), [NodeId(77)]);
    net.multicast(again, &[a, other]);
    assert_eq!(net.of(a).members().of(GroupId(2)).len(), 3, "the first counts");
    new.into_iter().for_each(|me| net.join(me, a));
    net.run_for(Duration::from_secs(3));
    net.multicast(start(3, &[0, 2]), &[new[1]]);
    net.multicast(start(4, &[0, 1, 2]), &[other]);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.delivered(3).len(), 6);
    assert_eq!(net.delivered(4).len(), 7);
}
