//! Regions that join, leave and are lost, written out: decision 88.

use bytes::Bytes;
use meridian_core::{Effect, Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::regions::Kept;
use meridian_eunomia::{
    Label, Message, Mutation, Options, Order, Peer, Receiver, Refusal, Regions, Replica, Role,
    Seen, Shard, Site, Standing, Timer, Timestamp, Topology, Update, Vector, Word, receiver,
    replica, shard,
};
use std::sync::Arc;

const HERE: RegionId = RegionId(0);
const THERE: RegionId = RegionId(1);
const ELSEWHERE: RegionId = RegionId(2);
const RECEIVER: Peer = Peer { region: HERE, role: Role::Receiver };
const SECOND: u64 = 1_000_000_000;

fn topology() -> Arc<Topology> {
    Arc::new(Topology::new(vec![Site { shards: 1, replicas: 1 }; 3]))
}

fn shard_of(region: RegionId) -> Peer {
    Peer { region, role: Role::Shard(0) }
}

fn receiver_of(region: RegionId) -> Peer {
    Peer { region, role: Role::Receiver }
}

/// All serve but `THERE`.
fn regions(epoch: u64, there: Standing) -> Arc<Regions> {
    let standings = |there| vec![Standing::Serves, there, Standing::Serves];
    let (mut known, mut number) = (Regions::first(standings(there)), 1);
    while number < epoch {
        known = known.next(known.standings().to_vec());
        number += 1;
    }
    Arc::new(known)
}

fn step<P: Process>(process: &mut P, now: u64, event: Event<P>) -> Vec<Effect<P>> {
    let mut out = Outbox::new();
    process.step(Time(now), event, &mut out);
    process.step(Time(now), Event::Idle, &mut out);
    out.drain().collect()
}

fn sends<P: Process>(effects: &[Effect<P>]) -> Vec<(P::Peer, P::Message)> {
    let send = |effect: &Effect<P>| match effect {
        Effect::Send { to, message } => Some((*to, message.clone())),
        _ => None,
    };
    effects.iter().filter_map(send).collect()
}

fn hear<P: Process<Peer = Peer, Message = Message>>(
    process: &mut P,
    now: u64,
    from: Peer,
    message: Message,
) -> Vec<Effect<P>> {
    step(process, now, Event::Message { from, message })
}

fn label(ts: u64, dep: u64) -> Label {
    let mut vector = Vector::default();
    vector[THERE] = Timestamp(ts);
    Label { ts: Timestamp(ts), dep: Timestamp(dep), place: 0, vector }
}

fn update(ts: u64, dep: u64) -> Update {
    let order = Order { version: Timestamp(ts), region: THERE.0, ts: Timestamp(ts) };
    let (key, value) = (Bytes::from("k"), Some(Bytes::from(ts.to_string())));
    Update { origin: THERE, label: label(ts, dep), key, value, order }
}

fn apply(round: u64, stamps: &[u64]) -> Message {
    let stamps = stamps.iter().copied().map(Timestamp).collect();
    let (applied, everywhere) = (Timestamp::ZERO, Timestamp::ZERO);
    Message::Apply { origin: THERE, round, applied, everywhere, stamps }
}

/// The timestamps that a shard of `THERE` was seen to apply.
fn applied(effects: &[Effect<Shard>]) -> Vec<u64> {
    let one = |effect: &Effect<Shard>| match effect {
        Effect::Output(shard::Output::Applied { ts, .. }) => Some(ts.0),
        _ => None,
    };
    effects.iter().filter_map(one).collect()
}

fn shard(mutation: Mutation) -> Shard {
    let first = regions(1, Standing::Serves);
    let shard = Shard::new(HERE, 0, topology(), Options::default());
    shard.with_regions(first).with_mutation(mutation)
}

fn sealed(effects: &[Effect<Shard>]) -> Vec<u64> {
    let labels = |(_, message): (Peer, Message)| match message {
        Message::Sealed { labels, .. } => Some(labels),
        _ => None,
    };
    let labels = sends(effects).into_iter().find_map(labels).expect("it answers");
    labels.iter().map(|label| label.ts.0).collect()
}

const SEAL: Message = Message::Seal { lost: THERE, round: 2 };

/// A seed had a shard that was asked to apply something before the loss, and whose data came after
/// it had said what it has.
#[test]
fn what_is_awaited_of_a_lost_region_is_not_applied_when_it_comes() {
    let late = |mutation| {
        let mut shard = shard(mutation);
        hear(&mut shard, 0, RECEIVER, apply(0, &[1024]));
        assert!(sealed(&hear(&mut shard, 0, RECEIVER, SEAL)).is_empty());
        let data = Message::Data(vec![update(1024, 0)]);
        let mut seen = applied(&hear(&mut shard, 0, shard_of(THERE), data));
        seen.extend(applied(&hear(&mut shard, 0, RECEIVER, apply(0, &[1024]))));
        (shard, seen)
    };
    let (mut shard, seen) = late(Mutation::Correct);
    assert!(seen.is_empty());
    assert_eq!(applied(&hear(&mut shard, 0, RECEIVER, apply(2, &[1024]))), [1024], "it is kept");
    assert_eq!(late(Mutation::AppliesOfTheGone).1, [1024]);
}

/// After a crash the fence is there, and what was applied is known, also what is superseded.
#[test]
fn a_shard_that_starts_again_keeps_its_word_of_a_lost_region() {
    let mut shard = shard(Mutation::Correct);
    let mut records = Vec::new();
    let data = Message::Data(vec![update(1024, 0), update(2048, 1024), update(3072, 0)]);
    for (from, message) in
        [(shard_of(THERE), data), (RECEIVER, apply(0, &[2048, 1024])), (RECEIVER, SEAL)]
    {
        for effect in hear(&mut shard, 0, from, message) {
            match effect {
                Effect::Persist(record) | Effect::Note(record) => records.push(record),
                Effect::Send { .. } | Effect::Output(_) | Effect::Timer { .. } => {}
            }
        }
    }
    for records in [records, shard.checkpoint().collect()] {
        let mut again = self::shard(Mutation::Correct);
        records.into_iter().for_each(|record| again.replay(record));
        assert_eq!(sealed(&hear(&mut again, 0, RECEIVER, SEAL)), [1024, 2048]);
        hear(&mut again, 0, shard_of(THERE), Message::Data(vec![update(3072, 0)]));
        assert!(applied(&hear(&mut again, 0, RECEIVER, apply(0, &[3072]))).is_empty());
        let stamps = vec![Timestamp(1024), Timestamp(3072)];
        let fetch = Message::Fetch { origin: THERE, stamps };
        let sent = sends(&hear(&mut again, 0, shard_of(ELSEWHERE), fetch));
        assert_eq!(sent, [(shard_of(ELSEWHERE), Message::Data(vec![update(1024, 0)]))]);
    }
}

fn receiver(there: Standing) -> Receiver {
    let receiver = Receiver::new(HERE, topology(), Options::default());
    receiver.with_regions(regions(1, there))
}

fn tell(receiver: &mut Receiver, regions: Arc<Regions>) -> Vec<Effect<Receiver>> {
    step(receiver, 0, Event::Command(receiver::Command::Regions(regions)))
}

fn words(effects: &[Effect<Receiver>]) -> Vec<Word> {
    let word = |effect: &Effect<Receiver>| match effect {
        Effect::Output(receiver::Output::Regions(word)) => Some(word.clone()),
        _ => None,
    };
    effects.iter().filter_map(word).collect()
}

fn stream(after: u64, upto: u64, labels: Vec<Label>) -> Message {
    let (after, upto) = (Timestamp(after), Timestamp(upto));
    let (applied, everywhere) = (Timestamp::ZERO, Timestamp::ZERO);
    Message::Stream { after, upto, labels, applied, everywhere }
}

fn asked(effects: &[Effect<Receiver>]) -> Vec<(u64, u64)> {
    let stamps = |(_, message): (Peer, Message)| match message {
        Message::Apply { round, stamps, .. } => {
            stamps.iter().map(|ts| (round, ts.0)).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    sends(effects).into_iter().flat_map(stamps).collect()
}

const FIRST: Peer = Peer { region: THERE, role: Role::Replica(0) };

/// One label is applied here, one elsewhere, and one nowhere.
#[test]
fn what_one_region_has_applied_is_applied_by_all_and_the_rest_by_none() {
    let mut receiver = receiver(Standing::Serves);
    let labels = vec![label(1024, 0), label(2048, 0), label(3072, 2048), label(4096, 0)];
    hear(&mut receiver, 0, FIRST, stream(0, 5000, labels));
    let done = Message::Applied { origin: THERE, stamps: vec![Timestamp(1024)] };
    hear(&mut receiver, 0, shard_of(HERE), done);
    let told = tell(&mut receiver, regions(2, Standing::Lost { round: 2 }));
    assert_eq!(words(&told), [Word::Heard(2)], "its shard has not answered");
    assert!(sends(&told).contains(&(shard_of(HERE), SEAL)));
    hear(&mut receiver, 0, FIRST, stream(5000, 9000, vec![label(6144, 0)]));
    let answer = Message::Sealed { lost: THERE, round: 2, labels: vec![label(1024, 0)] };
    hear(&mut receiver, 0, shard_of(HERE), answer);
    let told = words(&tell(&mut receiver, regions(2, Standing::Lost { round: 2 })));
    let Some(Word::Sealed { report, .. }) = told.last() else { panic!("{told:?}") };
    let waiting: Vec<_> = report.waiting.iter().map(|ts| ts.0).collect();
    assert_eq!((report.known.0, waiting), (5000, vec![2048, 3072, 4096]));

    let labels = vec![label(1024, 0), label(2048, 0), label(3072, 2048)];
    let kept = Kept { upto: Timestamp(4095), labels };
    let settles = regions(3, Standing::Settles { round: 2, kept });
    let told = tell(&mut receiver, settles.clone());
    assert_eq!(asked(&told), [(2, 2048)], "and not 4096");
    let mut done = |ts| {
        let message = Message::Applied { origin: THERE, stamps: vec![Timestamp(ts)] };
        asked(&hear(&mut receiver, 0, shard_of(HERE), message))
    };
    assert_eq!(done(2048), [(2, 3072)]);
    assert_eq!(done(3072), []);
    let settled = Word::Settled { lost: THERE, round: 2 };
    assert_eq!(words(&tell(&mut receiver, settles)), [Word::Heard(3), settled]);
}

fn await_of(there: u64) -> Event<Receiver> {
    let mut seen = Vector::default();
    seen[THERE] = Timestamp(there);
    Event::Command(receiver::Command::Await { token: there, seen })
}

fn answers(effects: &[Effect<Receiver>]) -> Vec<(u64, Option<Refusal>)> {
    let answer = |effect: &Effect<Receiver>| match effect {
        Effect::Output(receiver::Output::Reached { token }) => Some((*token, None)),
        Effect::Output(receiver::Output::Refused { token, why }) => Some((*token, Some(*why))),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

#[test]
fn a_session_that_may_have_seen_what_was_dropped_waits_and_is_refused() {
    let mut receiver = receiver(Standing::Serves);
    let kept = Kept { upto: Timestamp(4095), labels: vec![] };
    tell(&mut receiver, regions(2, Standing::Settles { round: 2, kept }));
    assert_eq!(answers(&step(&mut receiver, 0, await_of(4000))), [(4000, None)]);
    assert_eq!(answers(&step(&mut receiver, 0, await_of(4096))), [], "it may be restored yet");
    let gone = regions(3, Standing::Gone { kept: Timestamp(4095) });
    let dropped = Some(Refusal::Dropped(THERE));
    assert_eq!(answers(&tell(&mut receiver, gone.clone())), [(4096, dropped)]);

    let started = |mutation| {
        let first = Receiver::new(HERE, topology(), Options::default());
        let mut again = first.with_regions(gone.clone()).with_mutation(mutation);
        step(&mut again, 0, Event::Started);
        answers(&step(&mut again, 0, await_of(4096)))
    };
    assert_eq!(started(Mutation::Correct), [(4096, dropped)]);
    assert_eq!(started(Mutation::MovesPastTheDropped), [(4096, None)]);
}

/// Labels that depend on what a gone region has made wait for nothing.
#[test]
fn an_update_of_who_stays_does_not_wait_for_a_region_that_is_gone() {
    let mut receiver = receiver(Standing::Serves);
    let mut vector = Vector::default();
    (vector[ELSEWHERE], vector[THERE]) = (Timestamp(1024), Timestamp(7000));
    let waits = Label { ts: Timestamp(1024), dep: Timestamp::ZERO, place: 0, vector };
    let replica = Peer { region: ELSEWHERE, role: Role::Replica(0) };
    assert_eq!(asked(&hear(&mut receiver, 0, replica, stream(0, 2000, vec![waits]))), []);
    let told = tell(&mut receiver, regions(2, Standing::Gone { kept: Timestamp(7000) }));
    assert_eq!(asked(&told).into_iter().filter(|(_, ts)| *ts == 1024).count(), 1);
}

/// The replica that has started again does not know of the region that joins.
#[test]
fn a_replica_keeps_everything_until_it_is_told_which_regions_there_are() {
    let replica = Replica::new(ELSEWHERE, 0, topology(), Options::default());
    let mut replica = replica.without_regions();
    let follow = |applied| {
        let (applied, received) = (Timestamp(applied), Timestamp(applied));
        Message::Follow { applied, received, leads: true, lacks: false }
    };
    hear(&mut replica, 0, receiver_of(HERE), follow(5000));
    assert_eq!(replica.applied(), Timestamp::ZERO);
    let command = |regions| Event::Command(replica::Command::Regions(regions));
    step(&mut replica, 0, command(regions(1, Standing::Absent)));
    assert_eq!(replica.applied(), Timestamp(5000), "nobody else is there");
    step(&mut replica, 0, command(regions(2, Standing::Comes { from: HERE })));
    assert_eq!(replica.applied(), Timestamp::ZERO, "it lacks everything");
    step(&mut replica, 0, command(regions(1, Standing::Absent)));
    assert_eq!(replica.applied(), Timestamp::ZERO, "that was before");
    hear(&mut replica, 0, receiver_of(THERE), follow(3000));
    assert_eq!(replica.applied(), Timestamp(3000));
    step(&mut replica, 0, command(regions(3, Standing::Lost { round: 3 })));
    assert_eq!(replica.applied(), Timestamp(5000));
}

/// From page to page, with a page that comes twice; and what it has is there after a crash.
#[test]
fn a_shard_that_joins_copies_all_keys_and_says_what_they_depend_on() {
    let options = Options { labels_max: 2, ..Options::default() };
    let mut source = Shard::new(HERE, 0, topology(), options.clone());
    for number in 0..5_u64 {
        let (key, value) = (Bytes::from(format!("k{number}")), Some(Bytes::from("v")));
        let request = shard::Request { token: number, key, value, seen: Seen::default() };
        step(&mut source, 0, Event::Command(shard::Command::Update(request)));
    }
    let copies = regions(1, Standing::Copies { from: HERE });
    let mut joiner = Shard::new(THERE, 0, topology(), options.clone()).with_regions(copies.clone());
    let copy = Message::Copy { from: HERE };
    let mut records = Vec::new();
    let mut sent = sends(&hear(&mut joiner, 0, receiver_of(THERE), copy.clone()));
    let mut copied = None;
    while let Some((to, message)) = sent.pop() {
        if to == receiver_of(THERE) {
            let Message::Copied(seen) = message else { panic!("{message:?}") };
            copied = Some(seen);
            continue;
        }
        let [(_, page)] = &sends(&hear(&mut source, 0, shard_of(THERE), message))[..] else {
            panic!("one page")
        };
        for _ in 0..2 {
            let effects = hear(&mut joiner, 0, shard_of(HERE), page.clone());
            sent.extend(sends(&effects));
            let record = |effect| match effect {
                Effect::Persist(record) => Some(record),
                _ => None,
            };
            records.extend(effects.into_iter().filter_map(record));
        }
    }
    assert!(joiner.entries().eq(source.entries()));
    let seen = copied.expect("it says so");
    assert!(seen[HERE] > Timestamp::ZERO, "who made the keys: {seen:?}");
    let mut again = Shard::new(THERE, 0, topology(), options).with_regions(copies);
    records.into_iter().for_each(|record| again.replay(record));
    assert!(again.entries().eq(source.entries()));
    let sent = sends(&hear(&mut again, 0, receiver_of(THERE), copy));
    assert_eq!(sent, [(receiver_of(THERE), Message::Copied(seen))]);
}

/// A service may keep labels for a region that joins whose data was dropped as all others had it.
#[test]
fn data_that_all_regions_had_before_is_not_waited_for() {
    let mut shard = shard(Mutation::Correct);
    hear(&mut shard, 0, RECEIVER, apply(0, &[1024]));
    step(&mut shard, SECOND, Event::Timer(Timer::Tick));
    let sent = sends(&step(&mut shard, 2 * SECOND, Event::Timer(Timer::Tick)));
    let pull = sent.into_iter().find(|(to, _)| *to == shard_of(THERE)).expect("it is asked for").1;
    let mut source = Shard::new(THERE, 0, topology(), Options::default());
    let [(_, trimmed)] = &sends(&hear(&mut source, 0, shard_of(HERE), pull))[..] else {
        panic!("one answer")
    };
    let sent = sends(&hear(&mut shard, 0, shard_of(THERE), trimmed.clone()));
    let stamps = vec![Timestamp(1024)];
    assert_eq!(sent, [(RECEIVER, Message::Applied { origin: THERE, stamps })]);
}

/// Seed 194 of its day: a region that had joined was to apply what a lost one had made, and all
/// that stayed had dropped that, as all before it had applied it. It is in its copy.
#[test]
fn who_joins_does_not_wait_for_what_all_had_of_a_lost_region() {
    let mut there = shard(Mutation::Correct);
    let data = Message::Data(vec![update(1024, 0), update(2048, 1024)]);
    hear(&mut there, 0, shard_of(THERE), data);
    hear(&mut there, 0, RECEIVER, apply(0, &[1024, 2048]));
    let (applied, stamps) = (Timestamp(2048), Vec::new());
    let everywhere = Timestamp(1024);
    let all = Message::Apply { origin: THERE, round: 0, applied, everywhere, stamps };
    let mut records: Vec<_> = there.checkpoint().collect();
    for effect in hear(&mut there, 0, RECEIVER, all) {
        if let Effect::Persist(record) | Effect::Note(record) = effect {
            records.push(record);
        }
    }
    let mut again = shard(Mutation::Correct);
    records.into_iter().for_each(|record| again.replay(record));
    let mut from_checkpoint = shard(Mutation::Correct);
    there.checkpoint().for_each(|record| from_checkpoint.replay(record));
    let (asked, gone) = (vec![Timestamp(1024), Timestamp(3072)], vec![Timestamp(1024)]);
    for mut shard in [there, again, from_checkpoint] {
        let fetch = Message::Fetch { origin: THERE, stamps: asked.clone() };
        let sent = sends(&hear(&mut shard, 0, shard_of(ELSEWHERE), fetch));
        let forgotten = Message::Forgotten { origin: THERE, stamps: gone.clone() };
        assert_eq!(sent, [(shard_of(ELSEWHERE), forgotten)], "3072 was never here");
    }
    let mut joiner = shard(Mutation::Correct);
    hear(&mut joiner, 0, RECEIVER, apply(0, &[1024]));
    let forgotten = Message::Forgotten { origin: THERE, stamps: gone.clone() };
    let sent = sends(&hear(&mut joiner, 0, shard_of(ELSEWHERE), forgotten));
    assert_eq!(sent, [(RECEIVER, Message::Applied { origin: THERE, stamps: gone })]);
}

#[test]
fn a_region_that_leaves_refuses_updates_and_is_drained_when_others_have_all() {
    let mut leaver = Shard::new(THERE, 0, topology(), Options::default())
        .with_regions(regions(1, Standing::Serves));
    let ask = |token| {
        let (key, seen) = (Bytes::from("k"), Seen::default());
        let request = shard::Request { token, key, value: Some(Bytes::from("v")), seen };
        Event::Command(shard::Command::Update(request))
    };
    step(&mut leaver, 0, ask(1));
    let leaves = || Event::Command(shard::Command::Regions(regions(2, Standing::Leaves)));
    let drained = |effects: &[Effect<Shard>]| {
        let is = |effect: &Effect<Shard>| {
            matches!(effect, Effect::Output(shard::Output::Regions(Word::Drained)))
        };
        effects.iter().any(is)
    };
    assert!(!drained(&step(&mut leaver, 0, leaves())));
    let refused = step(&mut leaver, 0, ask(2));
    let why = Refusal::NotServing;
    assert!(refused.iter().any(|effect| {
        matches!(effect, Effect::Output(shard::Output::Refused { token: 2, why: told })
            if *told == why)
    }));
    let read = shard::Command::Read { token: 3, key: Bytes::from("k") };
    let read = step(&mut leaver, 0, Event::Command(read));
    assert!(matches!(read[0], Effect::Output(shard::Output::Value { token: 3, .. })));
    let ack = Message::Ack {
        next: 1,
        lacks: false,
        ahead: Timestamp::ZERO,
        waits: false,
        applied: Timestamp(1 << 40),
    };
    hear(&mut leaver, 0, Peer { region: THERE, role: Role::Replica(0) }, ack);
    assert!(drained(&step(&mut leaver, 0, leaves())));
}
