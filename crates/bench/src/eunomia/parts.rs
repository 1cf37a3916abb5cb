//! The processes around the service of Eunomia: partitions that update as fast as they may, and the
//! receiver of another region, which applies all at once.

use meridian_core::{Embedding, Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::{
    Batch, Message, Options, Peer, Replica, Role, Source, Timer, Timestamp, Topology, Vector,
};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;

/// The region whose updates are ordered.
pub const HERE: RegionId = RegionId(0);
/// The region that receives them.
pub const ELSEWHERE: RegionId = RegionId(1);

/// So many labels have come to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrived(pub u64);

/// Nothing is written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {}

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant)] // There is one of it for a process.
pub enum Part {
    /// A replica of the service.
    Service(Replica),
    /// A source.
    Partition(Partition),
    /// The receiver.
    Remote(Remote),
}

impl Part {
    /// The process of that name; a partition has at most so many updates on their way.
    pub fn new(me: Peer, topology: &Arc<Topology>, outstanding: u32) -> Part {
        let options = Options::default();
        match me.role {
            Role::Replica(number) => {
                Part::Service(Replica::new(me.region, number, topology.clone(), options))
            }
            Role::Shard(number) => Part::Partition(Partition {
                source: Source::new(me.region, number),
                topology: topology.clone(),
                options,
                outstanding: outstanding as usize,
            }),
            Role::Receiver => {
                let (topology, received) = (topology.clone(), Timestamp::ZERO);
                Part::Remote(Remote { topology, options, received, leader: 0, heard: None })
            }
        }
    }
}

/// A partition that has always another update to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    source: Source,
    topology: Arc<Topology>,
    options: Options,
    outstanding: usize,
}

impl Partition {
    fn on_tick(&mut self, now: Time, out: &mut Outbox<Part>) {
        while self.source.outstanding() < self.outstanding {
            let label = self.source.begin(now, &Vector::default(), 0);
            self.source.commit(label);
        }
        // Nothing is on disk: what a promise would reserve is not needed.
        let (promise, _) = self.source.promise(now, u64::MAX >> 1);
        for (number, replica) in (0..).zip(self.topology.replicas(HERE)) {
            let batch = self.source.batch(number, self.options.labels_max, promise);
            let batch = Batch { goes_on: true, ..batch };
            out.send(replica, Message::Batch(batch));
        }
        out.timer(self.options.next_batch(now), Timer::Tick);
    }
}

/// The receiver of another region: it takes streams, and has nothing else to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    topology: Arc<Topology>,
    options: Options,
    received: Timestamp,
    /// The replica that is to send the stream: the next one, if it does not go on.
    leader: u16,
    heard: Option<Time>,
}

impl Remote {
    fn on_tick(&mut self, now: Time, out: &mut Outbox<Part>) {
        let heard = *self.heard.get_or_insert(now);
        if now.since(heard) > self.options.suspect_after {
            self.leader = self.topology.replica_after(HERE, self.leader);
            self.heard = Some(now);
        }
        for replica in self.topology.replicas(HERE) {
            self.follow(replica, false, out);
        }
        out.timer(now + self.options.tell, Timer::Tick);
    }

    fn follow(&self, replica: Peer, lacks: bool, out: &mut Outbox<Part>) {
        let (applied, received) = (self.received, self.received);
        let leads = replica.role == Role::Replica(self.leader);
        out.send(replica, Message::Follow { applied, received, leads, lacks });
    }
}

/// How the effects of a replica are those of a part.
struct Inner;

impl Embedding<Replica, Part> for Inner {
    fn message(&mut self, to: Peer, message: Message) -> (Peer, Message) {
        (to, message)
    }

    fn record(&mut self, record: meridian_eunomia::replica::Record) -> Record {
        match record {}
    }

    fn timer(&mut self, timer: Timer) -> Timer {
        timer
    }

    // Regions do not change here.
    fn output(&mut self, _: meridian_eunomia::replica::Output, _: &mut Outbox<Part>) {}
}

impl Process for Part {
    type Peer = Peer;
    type Message = Message;
    type Record = Record;
    type Command = Infallible;
    type Output = Arrived;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match (self, event) {
            (_, Event::Command(never)) => match never {},
            (Part::Service(replica), event) => {
                let event = match event {
                    Event::Started => Event::Started,
                    Event::Message { from, message } => Event::Message { from, message },
                    Event::Timer(timer) => Event::Timer(timer),
                    Event::Restarted(peer) => Event::Restarted(peer),
                    Event::Idle => Event::Idle,
                    Event::Command(never) => match never {},
                };
                let mut inner = Outbox::new();
                replica.step(now, event, &mut inner);
                out.absorb(&mut inner, &mut Inner);
            }
            (Part::Partition(partition), Event::Started | Event::Timer(_)) => {
                partition.on_tick(now, out);
            }
            (Part::Partition(partition), Event::Message { from, message }) => {
                if let (Role::Replica(number), Message::Ack { next, lacks, ahead, applied, .. }) =
                    (from.role, message)
                {
                    partition.source.on_ack(number, next, lacks, ahead);
                    partition.source.trim(applied);
                }
            }
            (Part::Remote(remote), Event::Started | Event::Timer(_)) => {
                remote.on_tick(now, out);
            }
            (Part::Remote(remote), Event::Message { from, message }) => {
                let Message::Stream { after, upto, labels, .. } = message else { return };
                if after > remote.received {
                    return remote.follow(from, true, out);
                }
                if from.role == Role::Replica(remote.leader) {
                    remote.heard = Some(now);
                }
                let known = labels.partition_point(|label| label.ts <= remote.received);
                remote.received = remote.received.max(upto);
                out.output(Arrived((labels.len() - known) as u64));
                remote.follow(from, false, out);
            }
            (_, Event::Restarted(_) | Event::Idle) => {}
        }
    }

    fn replay(&mut self, record: Record) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        Box::new(std::iter::empty())
    }
}
