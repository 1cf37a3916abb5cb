//! What each process claims, one by one.

use bytes::Bytes;
use meridian_core::{Effect, Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::{
    Batch, Label, Message, Options, Peer, Receiver, Replica, Role, Seen, Shard, Site, Timer,
    Timestamp, Topology, Update, Vector, receiver, shard,
};
use std::sync::Arc;

const HERE: RegionId = RegionId(0);
const THERE: RegionId = RegionId(1);
const ELSEWHERE: RegionId = RegionId(2);
const RECEIVER: Peer = Peer { region: HERE, role: Role::Receiver };

fn topology() -> Arc<Topology> {
    Arc::new(Topology::new(vec![Site { shards: 1, replicas: 2 }; 3]))
}

fn replica_of(region: RegionId, number: u16) -> Peer {
    Peer { region, role: Role::Replica(number) }
}

fn shard_of(region: RegionId) -> Peer {
    Peer { region, role: Role::Shard(0) }
}

fn step<P: Process>(process: &mut P, now: u64, event: Event<P>) -> Vec<Effect<P>> {
    let mut out = Outbox::new();
    process.step(Time(now), event, &mut out);
    process.step(Time(now), Event::Idle, &mut out);
    out.drain().collect()
}

/// What is sent in answer to a message.
fn hear<P: Process<Peer = Peer, Message = Message>>(
    process: &mut P,
    now: u64,
    from: Peer,
    message: Message,
) -> Vec<(Peer, Message)> {
    sends(step(process, now, Event::Message { from, message }))
}

fn sends<P: Process>(effects: Vec<Effect<P>>) -> Vec<(P::Peer, P::Message)> {
    let send = |effect| match effect {
        Effect::Send { to, message } => Some((to, message)),
        _ => None,
    };
    effects.into_iter().filter_map(send).collect()
}

/// A label of `THERE` that depends on `dep` there, and on `elsewhere`.
fn label(ts: u64, dep: u64, elsewhere: u64) -> Label {
    let mut vector = Vector::default();
    (vector[THERE], vector[ELSEWHERE]) = (Timestamp(ts), Timestamp(elsewhere));
    Label { ts: Timestamp(ts), dep: Timestamp(dep), place: 0, vector }
}

fn stream(after: u64, upto: u64, labels: Vec<Label>) -> Message {
    let (after, upto) = (Timestamp(after), Timestamp(upto));
    let (applied, everywhere) = (Timestamp::ZERO, Timestamp::ZERO);
    Message::Stream { after, upto, labels, applied, everywhere }
}

fn receiver() -> Receiver {
    Receiver::new(HERE, topology(), Options::default())
}

/// A receiver asks for updates of `THERE`.
fn apply(stamps: Vec<Timestamp>) -> Message {
    let (origin, applied, everywhere) = (THERE, Timestamp::ZERO, Timestamp::ZERO);
    Message::Apply { origin, round: 0, applied, everywhere, stamps }
}

/// The timestamps that shards are asked to apply.
fn asked(sent: &[(Peer, Message)]) -> Vec<u64> {
    let stamps = |message: &Message| match message {
        Message::Apply { stamps, .. } => stamps.iter().map(|ts| ts.0).collect(),
        _ => Vec::new(),
    };
    sent.iter().flat_map(|(_, message)| stamps(message)).collect()
}

fn applied(origin: RegionId, stamps: &[u64]) -> Message {
    Message::Applied { origin, stamps: stamps.iter().copied().map(Timestamp).collect() }
}

/// Beyond Algorithm 5, which applies one after the other.
#[test]
fn updates_that_do_not_depend_on_each_other_are_applied_at_once() {
    let mut receiver = receiver();
    let labels = vec![label(1024, 0, 0), label(2048, 0, 0), label(3072, 1024, 0)];
    let sent = hear(&mut receiver, 0, replica_of(THERE, 0), stream(0, 5000, labels));
    assert_eq!(asked(&sent), [1024, 2048]);
    assert_eq!(asked(&hear(&mut receiver, 0, shard_of(HERE), applied(THERE, &[2048]))), []);
    assert_eq!(receiver.site_time(THERE), Timestamp(1023), "only what is applied without gaps");
    let sent = hear(&mut receiver, 0, shard_of(HERE), applied(THERE, &[1024]));
    assert_eq!((asked(&sent), receiver.site_time(THERE)), (vec![3072], Timestamp(3071)));
    hear(&mut receiver, 0, shard_of(HERE), applied(THERE, &[3072]));
    assert_eq!(receiver.site_time(THERE), Timestamp(5000), "and nothing else is there");
}

#[test]
fn an_update_waits_for_what_its_session_saw_of_a_third_region() {
    let mut receiver = receiver();
    let first = stream(0, 2000, vec![label(1024, 0, 700)]);
    assert_eq!(asked(&hear(&mut receiver, 0, replica_of(THERE, 0), first)), []);
    let third = hear(&mut receiver, 0, replica_of(ELSEWHERE, 1), stream(0, 699, vec![]));
    assert_eq!(asked(&third), []);
    let third = hear(&mut receiver, 0, replica_of(ELSEWHERE, 1), stream(699, 700, vec![]));
    assert_eq!(asked(&third), [1024]);
}

#[test]
fn a_gap_is_told_and_what_comes_again_changes_nothing() {
    let mut receiver = receiver();
    let late = stream(2000, 3000, vec![label(2048, 0, 0)]);
    let sent = hear(&mut receiver, 0, replica_of(THERE, 0), late.clone());
    let lacks = |message: &Message| matches!(message, Message::Follow { lacks: true, .. });
    assert!(sent.iter().any(|(to, message)| *to == replica_of(THERE, 0) && lacks(message)));
    assert_eq!(receiver.queued(THERE), 0);
    let first = stream(0, 2000, vec![label(1024, 0, 0)]);
    for message in [first.clone(), late.clone()] {
        hear(&mut receiver, 0, replica_of(THERE, 0), message);
    }
    let before = receiver.clone();
    for message in [first, late] {
        assert_eq!(asked(&hear(&mut receiver, 0, replica_of(THERE, 1), message)), []);
    }
    assert_eq!(receiver, before);
}

#[test]
fn a_receiver_follows_another_replica_when_the_stream_does_not_go_on() {
    let mut receiver = receiver();
    let leader = |sent: Vec<(Peer, Message)>| {
        let leads = |(to, message): &(Peer, Message)| {
            to.region == THERE && matches!(message, Message::Follow { leads: true, .. })
        };
        sent.into_iter().find(leads).map(|(to, _)| to)
    };
    assert_eq!(leader(sends(step(&mut receiver, 0, Event::Started))), Some(replica_of(THERE, 0)));
    hear(&mut receiver, 400_000_000, replica_of(THERE, 0), stream(0, 9, vec![]));
    let tick = |receiver: &mut Receiver, now| {
        leader(sends(step(receiver, now, Event::Timer(Timer::Tick))))
    };
    assert_eq!(tick(&mut receiver, 899_000_000), Some(replica_of(THERE, 0)));
    hear(&mut receiver, 899_000_000, replica_of(THERE, 0), stream(0, 9, vec![]));
    assert_eq!(tick(&mut receiver, 900_000_000), Some(replica_of(THERE, 1)), "nothing new came");
}

/// Eunomia, section 3.4.2.3.
#[test]
fn a_session_goes_on_where_all_that_it_saw_is_applied() {
    let mut receiver = receiver();
    let mut seen = Vector::default();
    (seen[HERE], seen[THERE]) = (Timestamp(1 << 50), Timestamp(1024));
    let ask = Event::Command(receiver::Command::Await { token: 7, seen });
    assert!(step(&mut receiver, 0, ask).is_empty(), "it was never here");
    let first = stream(0, 2000, vec![label(1024, 0, 0)]);
    hear(&mut receiver, 0, replica_of(THERE, 0), first);
    let done = Event::Message { from: shard_of(HERE), message: applied(THERE, &[1024]) };
    let reached = |effect: &Effect<Receiver>| {
        matches!(effect, Effect::Output(receiver::Output::Reached { token: 7 }))
    };
    assert!(step(&mut receiver, 0, done).iter().any(reached));
}

fn follow(applied: u64, received: u64) -> Message {
    let (applied, received) = (Timestamp(applied), Timestamp(received));
    Message::Follow { applied, received, leads: true, lacks: true }
}

/// Against Algorithm 4, in which followers drop what the leader has sent.
#[test]
fn a_label_stays_until_all_regions_have_applied_it() {
    let mut replica = Replica::new(HERE, 0, topology(), Options::default());
    let labels = vec![label(1024, 0, 0)];
    let batch = Batch {
        roster: 0,
        incarnation: Timestamp::ZERO,
        base: 0,
        first: 0,
        labels,
        promise: Some(Timestamp(5000)),
        goes_on: true,
    };
    hear(&mut replica, 0, shard_of(HERE), Message::Batch(batch));
    let far = |region| Peer { region, role: Role::Receiver };
    let mut streams = |region, message| {
        hear(&mut replica, 0, far(region), message);
        let sent = sends(step(&mut replica, 0, Event::Timer(Timer::Tick)));
        let to = |(to, message): (Peer, Message)| match message {
            Message::Stream { labels, upto, .. } if to == far(region) => Some((labels.len(), upto)),
            _ => None,
        };
        sent.into_iter().find_map(to)
    };
    let (all, nothing) = (Some((1, Timestamp(5000))), Some((0, Timestamp(5000))));
    assert_eq!(streams(THERE, follow(0, 0)), all);
    assert_eq!(streams(THERE, follow(0, 0)), all, "it was lost, or another replica sent it");
    assert_eq!(streams(THERE, follow(1024, 1024)), nothing);
    assert_eq!(streams(ELSEWHERE, follow(0, 0)), all);
    assert_eq!(streams(ELSEWHERE, follow(1024, 1024)), nothing);
    assert_eq!(replica.held(), (0, 0));
}

/// A replica of a service with two sources, which the receiver of `THERE` follows.
fn replica_of_two() -> Replica {
    let site = Site { shards: 2, replicas: 1 };
    let topology = Arc::new(Topology::new(vec![site; 2]));
    let mut replica = Replica::new(HERE, 0, topology, Options::default());
    hear(&mut replica, 0, Peer { region: THERE, role: Role::Receiver }, follow(0, 0));
    replica
}

/// What a replica says when it hears a batch of a source: how many labels go to other regions, if
/// any do, and the sources that are asked for a promise.
fn heard(
    replica: &mut Replica,
    now: u64,
    source: u16,
    (labels, promise): (Vec<Label>, u64),
    goes_on: bool,
) -> (Option<usize>, Vec<u16>) {
    let (roster, incarnation, base, first) = (0, Timestamp::ZERO, 0, 0);
    let promise = Some(Timestamp(promise));
    let batch = Batch { roster, incarnation, base, first, labels, promise, goes_on };
    let from = Peer { region: HERE, role: Role::Shard(source) };
    let (mut streamed, mut woken) = (None, Vec::new());
    for (to, message) in hear(replica, now, from, Message::Batch(batch)) {
        match (to.role, message) {
            (_, Message::Stream { labels, .. }) => streamed = Some(labels.len()),
            (Role::Shard(source), Message::Ack { waits: true, .. }) => woken.push(source),
            _ => {}
        }
    }
    (streamed, woken)
}

#[test]
fn what_is_stable_is_sent_when_the_last_source_has_spoken() {
    let mut replica = replica_of_two();
    heard(&mut replica, 1000, 0, (vec![], 900), true);
    assert_eq!(heard(&mut replica, 1000, 1, (vec![], 900), true), (Some(0), vec![]));
    let labels = vec![label(1024, 0, 0)];
    assert_eq!(heard(&mut replica, 2000, 0, (labels, 2000), true), (None, vec![]));
    assert_eq!(heard(&mut replica, 2000, 1, (vec![], 2000), true), (Some(1), vec![]));
}

/// Who sends its next batch by itself is not asked for it.
#[test]
fn a_source_is_woken_that_is_silent_while_labels_wait_for_it() {
    let second = 1_000_000_000;
    for (goes_on, now, woken) in
        [(true, 2000, vec![]), (false, 2000, vec![1]), (true, second, vec![1])]
    {
        let mut replica = replica_of_two();
        heard(&mut replica, 1000, 0, (vec![], 900), true);
        heard(&mut replica, 1000, 1, (vec![], 900), goes_on);
        let labels = vec![label(1024, 0, 0)];
        let said = heard(&mut replica, now, 0, (labels, 2000), true);
        assert_eq!(said, (None, woken), "it goes on: {goes_on}, heard of at 1000, now {now}");
    }
}

fn update_of(shard: &mut Shard, token: u64, seen: Seen) -> Update {
    let (key, value) = (Bytes::from("k"), Some(Bytes::from(token.to_string())));
    let request = shard::Request { token, key, value, seen };
    let sent = sends(step(shard, 0, Event::Command(shard::Command::Update(request))));
    let data = |(to, message): (Peer, Message)| match message {
        Message::Data(mut updates) if to == shard_of(HERE) => updates.pop(),
        _ => None,
    };
    sent.into_iter().find_map(data).expect("data goes to all other regions")
}

#[test]
fn an_update_is_applied_once_with_label_and_data_in_any_order_and_again() {
    let mut origin = Shard::new(THERE, 0, topology(), Options::default());
    let update = update_of(&mut origin, 1, Seen::default());
    let data = Message::Data(vec![update.clone()]);
    let stamps = vec![update.label.ts];
    let apply = apply(stamps);
    let both = [(shard_of(THERE), data), (RECEIVER, apply)];
    let mut ends = Vec::new();
    for order in [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 1, 0]] {
        let mut shard = Shard::new(HERE, 0, topology(), Options::default());
        let mut changed = 0;
        for message in order {
            let (from, message) = both[message].clone();
            let effects = step(&mut shard, 0, Event::Message { from, message });
            let change = |effect: &&Effect<Shard>| {
                matches!(effect, Effect::Output(shard::Output::Applied { changed: true, .. }))
            };
            changed += effects.iter().filter(change).count();
        }
        assert_eq!(changed, 1);
        ends.push(shard);
    }
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(ends[0].entries().count(), 1);
}

#[test]
fn data_that_was_lost_is_asked_of_its_source() {
    let mut origin = Shard::new(THERE, 0, topology(), Options::default());
    let lost: Vec<_> = (1..4).map(|token| update_of(&mut origin, token, Seen::default())).collect();
    let mut shard = Shard::new(HERE, 0, topology(), Options::default());
    let stamps = vec![lost[0].label.ts];
    let apply = apply(stamps);
    hear(&mut shard, 0, RECEIVER, apply);
    let second = 1_000_000_000;
    step(&mut shard, second, Event::Timer(Timer::Tick));
    let sent = sends(step(&mut shard, 2 * second, Event::Timer(Timer::Tick)));
    let pull = sent.into_iter().find(|(to, _)| *to == shard_of(THERE)).expect("it is asked for").1;
    let [(_, data)] = &hear(&mut origin, 0, shard_of(HERE), pull)[..] else { panic!("no data") };
    assert_eq!(*data, Message::Data(lost), "with what comes after it");
    let sent = hear(&mut shard, 0, shard_of(THERE), data.clone());
    assert!(matches!(&sent[..], [(RECEIVER, Message::Applied { .. })]));
}

/// With a checkpoint, or without one.
#[test]
fn who_starts_again_has_its_keys_its_outbox_and_its_promises() {
    let mut shard = Shard::new(THERE, 0, topology(), Options::default());
    let mut records = Vec::new();
    let request = |token| {
        let (key, seen) = (Bytes::from("k"), Seen::default());
        shard::Request { token, key, value: Some(Bytes::from("v")), seen }
    };
    let update = |token| Event::Command(shard::Command::Update(request(token)));
    for event in [Event::Started, update(1), update(2), Event::Timer(Timer::Tick)] {
        for effect in step(&mut shard, 5000, event) {
            match effect {
                Effect::Persist(record) | Effect::Note(record) => records.push(record),
                Effect::Send { .. } | Effect::Output(_) | Effect::Timer { .. } => {}
            }
        }
    }
    let batch = |shard: &mut Shard| {
        let sent = sends(step(shard, 0, Event::Started)).into_iter();
        let mut batches = sent.filter_map(|(_, message)| match message {
            Message::Batch(batch) => Some(batch),
            _ => None,
        });
        batches.next().expect("it begins with one")
    };
    for records in [records, shard.checkpoint().collect()] {
        let mut again = Shard::new(THERE, 0, topology(), Options::default());
        records.into_iter().for_each(|record| again.replay(record));
        assert!(again.entries().eq(shard.entries()));
        let batch = batch(&mut again);
        assert_eq!((batch.base, batch.first, batch.labels.len()), (0, 0, 2));
        assert!(batch.promise >= Some(Timestamp(5000)), "its clock has gone back");
    }
}
