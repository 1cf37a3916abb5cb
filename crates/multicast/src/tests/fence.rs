//! Groups that are lost, and go on as groups of heirs. Group 1 is lost; its heirs are the nodes 15,
//! 16 and 17.

use super::*;
use crate::state::fences::{Estate, Report, Reported};

fn heir(n: u16) -> ProcessId {
    process(1, 5 + n)
}

/// The heirs of group 1, with these reporters.
fn fence(reporters: &[ProcessId]) -> Fence {
    let members = (0..3).map(|n| heir(n).node).collect();
    let config = Config { group: GroupId(1), number: 1, members };
    Fence { config, reporters: reporters.to_vec(), lost: Vec::new() }
}

fn sealed(reporters: &[ProcessId]) -> Message {
    FenceMessage::Sealed(fence(reporters).into()).into()
}

fn last(sequence: u64, ts: u64, delivered: bool) -> Message {
    Message::from(Final { id: id(sequence), ts: Timestamp(ts), delivered })
}

/// The first epoch that an heir leads.
fn e_heirs() -> Epoch {
    Epoch { config: 1, number: 2, leader: heir(0).node }
}

impl One {
    fn is_told(&mut self, fence: &Fence) -> Vec<Did> {
        self.step(Event::Command(Command::Fence(fence.clone())))
    }

    /// What it has reported on group 1.
    fn report(&self) -> Report {
        self.process.fences.seals[&GroupId(1)].decode().unwrap()
    }

    fn final_ts(&self, sequence: u64) -> Option<u64> {
        self.process.log.slot(id(sequence)).unwrap().entry.final_ts.map(|ts| ts.0)
    }
}

impl Net {
    /// Group 1 is gone; its heirs start, and the others are told.
    fn loses(&mut self, fence: &Fence) {
        self.loses_with(fence, Mutation::Correct);
    }

    /// The same; the heirs have a bug.
    fn loses_with(&mut self, fence: &Fence, mutation: Mutation) {
        let old: Vec<_> = self.all.keys().copied().filter(|me| me.group == GroupId(1)).collect();
        self.away.extend(&old);
        for reporter in &fence.reporters {
            self.step(*reporter, Event::Command(Command::Fence(fence.clone())));
        }
        let (now, configs) = self
            .all
            .get(&fence.reporters[0])
            .map(|one| (one.now, one.process.members().configs().collect::<Vec<_>>()))
            .unwrap();
        for me in (0..3).map(heir) {
            let process = PrimCast::inheriting(me, fence.clone(), configs.clone());
            self.all.insert(me, One { process: process.with_mutation(mutation), now });
            self.step(me, Event::Started);
        }
        self.run();
    }

    fn heirs_lead(&self) -> bool {
        (0..3).any(|n| self.of(heir(n)).role() == Role::Primary)
    }
}

/// Whatever nobody had heard of is proposed anew; what somebody had is taken over, delivered or
/// not.
#[test]
fn heirs_deliver_what_was_reported_and_what_is_waited_for() {
    let mut net = Net::settled(&[3, 3]);
    let reporters = [0, 1, 2].map(|n| process(0, n));
    let [a, b, c] = reporters;
    net.multicast(start(1, &[0, 1]), &[a, process(1, 0)]);
    assert_eq!(net.delivered(1).len(), 6);
    net.away.extend((0..3).map(|n| process(1, n)));
    net.multicast(start(2, &[0, 1]), &[a]);
    net.multicast(start(3, &[0]), &[b]);
    assert_eq!(net.delivered(3), [], "it waits for 2");
    net.loses(&fence(&reporters));
    net.run_for(Duration::from_secs(6));
    assert!(net.heirs_lead());
    let heirs = [0, 1, 2].map(heir);
    for sequence in [1, 2] {
        let delivered = net.delivered(sequence);
        assert!(heirs.iter().all(|heir| delivered.contains(heir)), "{sequence}: {delivered:?}");
    }
    assert_eq!(net.delivered(3), [a, b, c]);
    net.multicast(start(4, &[0, 1]), &[c]);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.delivered(4), [a, b, c, heirs[0], heirs[1], heirs[2]]);
    let finals = net.told.iter().filter_map(|(_, output)| match output {
        Output::Deliver(delivery) => Some((delivery.start.id, delivery.ts)),
        _ => None,
    });
    let finals: BTreeSet<_> = finals.collect();
    assert_eq!(finals.len(), 4, "each has one timestamp: {finals:?}");
}

#[test]
fn heirs_wait_for_all_reports() {
    for mutation in [Mutation::Correct, Mutation::InheritsFromMajority] {
        let mut net = Net::settled(&[3, 3]);
        let reporters = [0, 1, 2].map(|n| process(0, n));
        net.away.insert(reporters[2]);
        net.loses_with(&fence(&reporters), mutation);
        net.run_for(Duration::from_secs(8));
        assert_eq!(net.heirs_lead(), mutation != Mutation::Correct, "{mutation:?}");
        net.back(reporters[2]);
        net.run_for(Duration::from_secs(8));
        assert!(net.heirs_lead(), "{mutation:?}");
    }
}

/// F1: what it knew is a record before anybody hears that it is sealed, and is not changed by what
/// comes later; what old members say later is dropped.
#[test]
fn a_sealed_process_hears_the_lost_no_more() {
    let reporters = [process(0, 0)];
    let [p, q, r] = [0, 1, 2].map(|n| process(1, n));
    let mut one = Net::one(&[1, 3], reporters[0]);
    (1..=3).for_each(|n| drop(one.asked(start(n, &[0, 1]))));
    one.idle();
    for (n, acks) in [(1, &[p, q][..]), (2, &[p])] {
        one.hears(p, remote_append(n, e1(1), 40 + n));
        acks.iter().for_each(|from| drop(one.hears(*from, remote_ack(n, e1(1), 40 + n))));
        one.idle();
    }
    assert_eq!((one.final_ts(1), one.final_ts(2)), (Some(41), None));
    let did = one.is_told(&fence(&reporters));
    let record = place(&did, |did| matches!(did, Did::Persisted(Record::Fence { .. })));
    assert!(record < place(&did, |did| matches!(did, Did::Sent(..))));
    let reported = one.report();
    let of = |reported: &Reported| {
        (reported.start.id, reported.local, reported.last.map(|Timestamp(ts)| ts))
    };
    assert_eq!(reported.messages.iter().map(of).collect::<Vec<_>>(), [(id(1), None, Some(41))]);
    assert!(reported.clock >= Timestamp(41));
    one.hears(r, remote_ack(2, e1(1), 42));
    one.hears(q, remote_ack(2, e1(1), 42));
    one.hears(q, last(3, 50, true));
    one.idle();
    assert_eq!((one.final_ts(2), one.final_ts(3)), (None, None));
    assert!(sent(&one.hears(q, remote_ack(2, e1(1), 42))).is_empty(), "it was told a moment ago");
    assert_eq!(one.report(), reported);
    assert!(one.is_told(&fence(&reporters)).is_empty(), "once");
}

#[test]
fn with_the_bug_it_hears_them() {
    let reporters = [process(0, 0)];
    let [p, q] = [0, 1].map(|n| process(1, n));
    let mut one = Net::one(&[1, 3], reporters[0]);
    one.process.planted = Planted::new(Mutation::HearsTheLost);
    one.asked(start(2, &[0, 1]));
    one.hears(p, remote_append(2, e1(1), 42));
    one.hears(p, remote_ack(2, e1(1), 42));
    one.is_told(&fence(&reporters));
    one.hears(q, remote_ack(2, e1(1), 42));
    one.idle();
    assert_eq!(one.final_ts(2), Some(42));
}

/// F1: over a restart.
#[test]
fn a_seal_and_a_report_outlive_a_restart() {
    let reporters = [process(0, 0)];
    let p = process(1, 0);
    let mut one = Net::one(&[1, 1], reporters[0]);
    let (groups, asked) = (groups_of(&one.process), one.asked(start(1, &[0, 1])));
    let mut did = [asked, one.idle(), one.hears_remote(p, 1, e1(1), 41), one.idle()].concat();
    assert_eq!(delivered(&did), [1]);
    did.extend(one.is_told(&fence(&reporters)));
    let mut again = PrimCast::new(reporters[0], groups);
    for did in did {
        if let Did::Persisted(record) | Did::Noted(record) = did {
            again.recover(record);
        }
    }
    let restarted = One { process: again, now: one.now };
    assert_eq!(restarted.process.fenced(GroupId(1)), Some(1));
    assert_eq!((restarted.report(), restarted.report().messages.len()), (one.report(), 1));
    assert!(restarted.process.members.is_lost(p));
}

/// F3, with F2: who is not sealed may forget what it says.
#[test]
fn timestamps_of_others_count_once_they_are_sealed() {
    let [a, b] = [0, 1].map(|n| process(0, n));
    let reporters = [a, b, process(0, 2)];
    let relayed = |len, n, ts| {
        let local = RelayedLocal { index: n - 1, id: id(n), group: GroupId(1), ts: Timestamp(ts) };
        let (epoch, clock) = (e1(0), Timestamp(ts));
        let (locals, finals) = ([local].into(), [].into());
        Message::from(Relayed { epoch, len, clock, locals, finals })
    };
    let known = |one: &One, n| one.process.log.slot(id(n)).unwrap().locals.len();
    for mutation in [Mutation::Correct, Mutation::TrustsUnsealed] {
        let mut one = Net::one(&[3, 1], b);
        let entries = |n| vec![Entry { final_ts: Some(Timestamp(60)), ..of(n) }];
        fn of(n: u64) -> Entry {
            entry(e1(0), n, start(n, &[0, 1]))
        }
        one.hears(a, append(e1(0), 0, vec![of(1), of(2), of(3)], 3));
        one.is_told(&fence(&reporters));
        one.process.planted = Planted::new(mutation);
        let trusts = mutation == Mutation::TrustsUnsealed;
        one.hears(a, relayed(3, 1, 51));
        one.hears(a, last(2, 52, true));
        one.hears(a, append(e1(0), 3, entries(4), 4));
        let expected = (usize::from(trusts), trusts.then_some(52));
        assert_eq!((known(&one, 1), one.final_ts(2)), expected, "{mutation:?}");
        assert_eq!(one.final_ts(4), trusts.then_some(60), "{mutation:?}");
        one.hears(a, sealed(&reporters));
        one.hears(a, relayed(4, 1, 51));
        one.hears(a, last(2, 52, true));
        one.hears(a, append(e1(0), 4, entries(5), 5));
        assert_eq!((known(&one, 1), one.final_ts(2), one.final_ts(5)), (1, Some(52), Some(60)));
    }
}

#[test]
fn a_snapshot_of_who_is_not_sealed_is_refused() {
    let mut net = Net::settled(&[3, 1]);
    let [a, b] = [0, 1].map(|n| process(0, n));
    let reporters = [a, b, process(0, 2)];
    let unsealed = net.of(a).state();
    let one = net.all.get_mut(&b).unwrap();
    one.is_told(&fence(&reporters));
    one.process.recovery.transfers.needed = true;
    let mut out = Outbox::new();
    let install = |one: &mut One, state, out: &mut _| {
        one.process.recovery.transfers.needed = true;
        one.process.install_snapshot(one.now, a, state, out)
    };
    assert!(!install(one, unsealed, &mut out));
    let report = one.report();
    net.all.get_mut(&a).unwrap().is_told(&fence(&reporters));
    let state = net.of(a).state();
    let one = net.all.get_mut(&b).unwrap();
    assert!(install(one, state, &mut out));
    assert_eq!(one.report(), report, "its own");
}

#[test]
fn who_was_lost_is_told_and_takes_no_step() {
    let mut net = Net::settled(&[1, 3]);
    let (a, q) = (process(0, 0), process(1, 1));
    net.loses(&fence(&[a]));
    let did = net.all.get_mut(&a).unwrap().hears(q, remote_ack(0, e1(1), 9));
    assert_eq!(sent(&did), [(q, &sealed(&[a]))]);
    let old = net.all.get_mut(&q).unwrap();
    let did = old.hears(a, sealed(&[a]));
    assert!(matches!(did.first(), Some(Did::Persisted(Record::Fence { .. }))));
    let told: BTreeSet<_> = sent(&did).into_iter().map(|(to, _)| to).collect();
    assert!([0, 2].map(|n| process(1, n)).iter().all(|peer| told.contains(peer)), "{told:?}");
    assert!(old.process.is_lost());
    assert!(old.tick(ELECTION_TIMEOUT * 3).is_empty() && old.idle().is_empty());
    assert!(old.asked(start(9, &[1])).is_empty());
}

/// A node of the lost region is a member of another group, too: that goes on without it.
#[test]
fn members_of_other_groups_are_lost_beside() {
    let mut net = Net::settled(&[3, 3]);
    let [a, b, c] = [0, 1, 2].map(|n| process(0, n));
    net.loses(&Fence { lost: vec![c], ..fence(&[a, b]) });
    net.run_for(Duration::from_secs(6));
    assert!(net.heirs_lead());
    assert!(net.of(c).is_lost() && !net.of(a).is_lost() && net.of(a).members.is_lost(c));
    assert_eq!(net.of(a).fences().collect::<Vec<_>>(), [(GroupId(1), 1)]);
    net.multicast(start(1, &[0, 1]), &[b]);
    net.run_for(Duration::from_secs(3));
    assert_eq!(net.delivered(1), [a, b, heir(0), heir(1), heir(2)]);
    // Whoever gets to know of the group's members from another knows who of them is lost.
    let mut members = Members::new(&groups_of(net.of(c)), 0);
    members.merge(net.of(a).members());
    assert!(members.is_lost(c) && !members.is_lost(a) && members.of(c.group).contains(&c.node));
    let again = net.all.get_mut(&a).unwrap();
    again.now = again.now + Duration::from_secs(1);
    let did = again.step(Event::Restarted(c));
    assert!(matches!(sent(&did)[..], [(to, Message::Fence(FenceMessage::Sealed(_)))] if to == c));
}

/// It would forget what it alone has delivered.
#[test]
fn without_a_disk_nobody_is_sealed() {
    let a = process(0, 0);
    let mut one = Net::one(&[1, 3], a);
    one.process = one.process.clone().in_memory(1);
    assert!(one.is_told(&fence(&[a])).is_empty());
    assert_eq!(one.process.fenced(GroupId(1)), None);
}

/// The heirs of group 1 are lost before all have reported: other heirs, and fewer reporters.
#[test]
fn a_later_fence_replaces_one_that_cannot_end() {
    let mut net = Net::settled(&[1, 1, 1]);
    let [a, c] = [0, 2].map(|group| process(group, 0));
    net.away.insert(c);
    net.multicast(start(1, &[0, 1]), &[a, process(1, 0)]);
    net.loses(&fence(&[a, c]));
    net.run_for(Duration::from_secs(4));
    assert!(!net.heirs_lead());
    let members = (0..2).map(|n| process(1, 8 + n).node).collect();
    let config = Config { group: GroupId(1), number: 2, members };
    let second = Fence { config, reporters: vec![a], lost: Vec::new() };
    let (now, configs) = (net.all[&a].now, net.of(a).members().configs().collect::<Vec<_>>());
    net.step(a, Event::Command(Command::Fence(second.clone())));
    for me in (0..2).map(|n| process(1, 8 + n)) {
        let process = PrimCast::inheriting(me, second.clone(), configs.clone());
        net.all.insert(me, One { process, now });
        net.step(me, Event::Started);
    }
    net.run_for(Duration::from_secs(6));
    assert_eq!(net.delivered(1), [a, process(1, 0), process(1, 8), process(1, 9)]);
    assert!(net.of(heir(0)).is_lost() && !net.heirs_lead());
}

#[test]
fn what_was_delivered_is_durable_before_it_is_told_where_that_is_asked_for() {
    for deliveries in [Deliveries::Noted, Deliveries::Durable] {
        let (a, p) = (process(0, 0), process(1, 0));
        let options = Options { deliveries, ..Options::default() };
        let mut one = Net::one_with(&[1, 1], options, a);
        one.asked(start(1, &[0, 1]));
        let mut did = one.idle();
        did.extend(one.hears_remote(p, 1, e1(1), 41));
        did.extend(one.idle());
        assert_eq!(delivered(&did), [1]);
        let told = place(&did, |did| matches!(did, Did::Told(Output::Deliver(_))));
        let durable = |did: &Did| matches!(did, Did::Persisted(Record::Delivered { .. }));
        let durable = did.iter().position(durable).is_some_and(|at| at < told);
        assert_eq!(durable, deliveries == Deliveries::Durable);
    }
}

#[test]
fn what_reports_say_together_does_not_depend_on_their_order() {
    let of = |n: u64, local: Option<u64>, last: Option<u64>| {
        let (local, last) = (local.map(Timestamp), last.map(Timestamp));
        Reported { start: start(n, &[0, 1]).into(), local, last }
    };
    let report = |clock, messages: Vec<Reported>, done: &[(u64, u64)], low| {
        let mut all = crate::done::Done::default();
        done.iter().for_each(|(n, ts)| all.truncated(id(*n), Timestamp(*ts)));
        all.ended_below(id(0).client, low);
        Report { clock: Timestamp(clock), messages, done: all }
    };
    let reports = vec![
        report(7, vec![of(5, Some(4), None), of(6, None, Some(9)), of(1, Some(2), None)], &[], 2),
        report(8, vec![of(6, Some(6), None), of(2, Some(3), Some(3))], &[(7, 5)], 3),
        report(3, vec![of(7, Some(1), None)], &[(5, 8)], 0),
    ];
    let together = |reports| {
        let estate = Estate::new(reports);
        let clock = estate.clock.0;
        let of = |(ts, last, start): (Timestamp, Option<Timestamp>, Arc<Start>)| {
            (start.id.sequence, ts.0, last.map(|ts| ts.0))
        };
        (clock, estate.messages().into_iter().map(of).collect::<Vec<_>>())
    };
    let expected = vec![(7, 1, Some(5)), (2, 3, Some(3)), (5, 4, Some(8)), (6, 6, Some(9))];
    assert_eq!(together(reports.clone()), (8, expected.clone()), "1 has ended");
    assert_eq!(together(reports.into_iter().rev().collect()), (8, expected));
}

/// The heirs' epoch is like any other: who has its stream needs no report.
#[test]
fn a_report_is_dropped_when_the_heirs_go_on() {
    let (a, first) = (process(0, 0), heir(0));
    let mut one = Net::one(&[1, 3], a);
    one.is_told(&fence(&[a]));
    let wanted = ReportWanted { fence: fence(&[a]).into(), offset: 0 };
    let wanted = Message::from(FenceMessage::ReportWanted(wanted));
    assert_eq!(sent(&one.hears(first, wanted.clone())).len(), 1);
    one.hears(first, remote_append(0, e_heirs(), 99));
    assert!(sent(&one.hears(first, wanted)).is_empty());
}

impl Net {
    /// It has crashed, and goes on from these records.
    fn restarts(&mut self, me: ProcessId, groups: Groups, records: &[Record]) {
        let mut process = PrimCast::new(me, groups);
        records.iter().for_each(|record| drop(process.recover(record.clone())));
        let now = self.all[&me].now;
        self.all.insert(me, One { process, now });
        self.step(me, Event::Started);
    }
}

/// The records among effects.
fn records(did: &[Did]) -> Vec<Record> {
    let of = |did: &Did| match did {
        Did::Persisted(record) | Did::Noted(record) => Some(record.clone()),
        _ => None,
    };
    did.iter().filter_map(of).collect()
}

/// A process hears a timestamp of the lost group, so that others pass the message, and forgets it.
/// What the heirs propose must not come before those.
#[test]
fn what_heirs_propose_comes_after_all_that_was_delivered() {
    for mutation in [Mutation::Correct, Mutation::ForgetsReportedClock] {
        let mut net = Net::settled(&[1, 1, 1]);
        let [a, p, c] = [0, 1, 2].map(|group| process(group, 0));
        let (groups, before) = (groups_of(net.of(a)), net.of(a).state());
        net.away.extend([p, c]);
        let one = net.all.get_mut(&a).unwrap();
        let mut did = one.asked(start(1, &[0, 1, 2]));
        // Far from the clock of heirs that have heard of the first one.
        let after = Timestamp(100_000);
        (2..=20).for_each(|n| did.extend(one.asked(Start { after, ..start(n, &[0]) })));
        did.extend(one.idle());
        did.extend(one.hears_remote(p, 1, e1(1), 200_000));
        did.extend(one.idle());
        assert_eq!(delivered(&did), (2..=20).collect::<Vec<_>>());
        let kept: Vec<_> =
            [Record::State(before.into())].into_iter().chain(records(&did)).collect();
        net.restarts(a, groups, &kept);
        net.away.remove(&c);
        net.loses_with(&fence(&[a, c]), mutation);
        net.run_for(Duration::from_secs(8));
        let at = net.told.iter().find_map(|(me, output)| match output {
            Output::Deliver(delivery) if *me == a && delivery.start.id == id(1) => {
                Some(delivery.ts)
            }
            _ => None,
        });
        let after = at.expect("it is delivered") > Timestamp(100_019);
        assert_eq!(after, mutation == Mutation::Correct, "{at:?}");
    }
}

/// Found by a seed: a record had the timestamp of the lost group, the report only the final one,
/// which the heirs take for it; and the process that had reported it was back at the record.
#[test]
fn what_was_reported_is_known_after_a_restart() {
    let [a, p, c] = [0, 1, 2].map(|group| process(group, 0));
    let mut one = Net::one(&[1, 1, 1], a);
    let groups = groups_of(&one.process);
    one.asked(start(1, &[0, 2]));
    one.asked(start(2, &[0, 1, 2]));
    one.idle();
    one.hears_remote(p, 2, e1(1), 41);
    one.idle();
    let before = Record::State(one.process.state().into());
    one.hears_remote(c, 2, e1(2), 60);
    one.idle();
    assert_eq!(one.final_ts(2), Some(60));
    let sealed = records(&one.is_told(&fence(&[a, c])));
    assert!(one.process.log.slot(id(2)).is_some_and(|slot| !slot.delivered), "1 is before it");
    let mut again = PrimCast::new(a, groups);
    [before].into_iter().chain(sealed).for_each(|record| drop(again.recover(record)));
    let again = One { process: again, now: one.now };
    assert_eq!((again.final_ts(2), again.report()), (Some(60), one.report()));
}

/// Logs of programs from before there were fences end where these would begin.
#[test]
fn a_state_from_before_there_were_fences_is_read() {
    let state = Net::one(&[1, 3], process(0, 0)).process.state();
    let encoded = postcard::to_allocvec(&state).unwrap();
    let earlier = &encoded[..encoded.len() - 2];
    assert!(encoded.ends_with(&[0, 0]), "neither is there");
    assert_eq!(postcard::from_bytes::<crate::record::State>(earlier).unwrap(), state);
    let cut = postcard::from_bytes::<crate::record::State>(&earlier[..earlier.len() - 1]);
    assert!(cut.is_err(), "what an earlier program has written is all there");
}
