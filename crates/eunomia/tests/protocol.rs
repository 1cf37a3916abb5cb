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
    let (after, upto, applied) = (Timestamp(after), Timestamp(upto), Timestamp::ZERO);
    Message::Stream { after, upto, labels, applied }
}

fn receiver() -> Receiver {
    Receiver::new(HERE, topology(), Options::default())
}

/// The timestamps that shards are asked to apply.
fn asked(sent: &[(Peer, Message)]) -> Vec<u64> {
    let stamps = |message: &Message| match message {
        Message::Apply { labels, .. } => labels.iter().map(|label| label.ts.0).collect(),
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
    let labels = vec![update.label];
    let apply = Message::Apply { origin: THERE, applied: Timestamp::ZERO, labels };
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
    let labels = vec![lost[0].label];
    let apply = Message::Apply { origin: THERE, applied: Timestamp::ZERO, labels };
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
