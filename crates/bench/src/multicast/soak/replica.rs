//! One replica, in a process of its own: a member with a program on top that multicasts, and keeps
//! a digest of what is delivered.

use crate::dissemination::DisseminationArg;
use crate::harness::processes::{Order, Place, Program};
use crate::harness::replica::{self, Joined, report};
use anyhow::{Context, bail};
use bytes::Bytes;
use meridian_core::{GroupId, NodeId, Position, ProcessId};
use meridian_multicast::{self as multicast, Delivery, PrimCast, Timestamp, Touches};
use meridian_runtime::{
    Delivered, Deliveries, Listen, Member, Options, Outgoing, Patience, Storage, Worker,
};
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// After so many deliveries the program gives its member its state anew.
const KEEP_EVERY: u64 = 4096;
/// How often it is told how far the replica is, though little happens.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Nobody is cut off for good here: what takes longer than this is a bug.
const PATIENCE: Patience =
    Patience { refuse_after: Duration::from_secs(60), give_up_after: Duration::from_secs(120) };

/// What a replica does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub groups: u16,
    /// In each group; groups follow each other.
    pub replicas: u16,
    /// To how many groups each message goes.
    pub dest: u16,
    /// Bytes of each message.
    pub payload: usize,
    /// How many messages it keeps in flight.
    pub outstanding: u64,
    /// How many messages it multicasts of its own accord.
    pub share: u64,
    /// It reports its digest whenever the number of deliveries is a multiple of this.
    pub mark: u64,
    /// It reports how far it is whenever the number of deliveries is a multiple of this.
    pub tell: u64,
    /// Who of its group speaks with others.
    pub dissemination: DisseminationArg,
    /// The delivery that it takes for another one: a planted fault.
    pub mistaken_at: Option<u64>,
}

impl Setup {
    /// Which process of the protocol a node is.
    pub fn id(&self, node: u16) -> ProcessId {
        ProcessId { group: GroupId(node / self.replicas), node: NodeId(node) }
    }
}

/// What a replica is asked: to multicast one message more.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Request;

/// What a replica says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// How far it is.
    Status(Status),
    /// So much was delivered when the number of deliveries was a multiple of the mark.
    Mark(Tally),
    /// It goes on from this state, which came from its own disk or from another replica.
    Installed(Tally),
}

/// How far a replica is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    pub tally: Tally,
    /// How many messages it has multicast to each group.
    pub sent: Vec<u64>,
    /// How many of those were delivered here.
    pub completed: u64,
    /// What its part of the protocol keeps to order and repeat messages.
    pub log_bytes: u64,
}

/// What was delivered: the replica's state, as far as others see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How many messages.
    pub count: u64,
    /// Of their positions, timestamps and names, in order.
    pub digest: u64,
}

impl Tally {
    /// Takes the next message.
    fn take(&mut self, delivery: &Delivery, mistaken: bool) -> anyhow::Result<()> {
        let Delivery { position, ts, start, .. } = delivery;
        if position.0 != self.count + 1 {
            bail!("delivery {} follows delivery {}", position.0, self.count);
        }
        self.count += 1;
        let sequence = start.id.sequence + u64::from(mistaken);
        for word in [position.0, ts.0, start.id.client.0, sequence] {
            let mixed = (self.digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.digest = mixed ^ (mixed >> 29);
        }
        Ok(())
    }

    fn to_bytes(self) -> Bytes {
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend(self.digest.to_le_bytes());
        bytes.into()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Tally> {
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let (digest, _) = rest.split_first_chunk::<8>()?;
        Some(Tally { count: u64::from_le_bytes(*count), digest: u64::from_le_bytes(*digest) })
    }
}

/// The program that the replicas run.
#[derive(Debug)]
pub struct Soaked;

impl Program for Soaked {
    type Setup = Setup;
    type Request = Request;
    type Report = Report;
    const ARGS: &'static [&'static str] = &["bench", "multicast", "replica"];

    fn name(place: &Place<Setup>) -> String {
        place.setup.id(place.node).to_string()
    }
}

/// Runs one replica until standard input ends.
pub fn run() -> anyhow::Result<ExitCode> {
    replica::run(async |joined: Joined<Soaked>| {
        let Joined { place, socket, addresses, requests } = joined;
        let (member, deliveries) = join(&place, socket, addresses).await?;
        let setup = place.setup;
        let (failed, failures) = mpsc::channel(1);
        let me = setup.id(place.node);
        let sender = Arc::new(Sender::new(setup.clone(), me, member.clone(), failed));
        (0..setup.outstanding.min(setup.share)).for_each(|_| sender.start());
        let replica = Replica { setup, member, sender, tally: Tally::default() };
        replica.run(deliveries, requests, failures).await
    })
}

async fn join(
    place: &Place<Setup>,
    socket: TcpListener,
    addresses: Vec<String>,
) -> anyhow::Result<(Member<PrimCast>, Deliveries)> {
    let setup = &place.setup;
    let mut groups: BTreeMap<GroupId, Vec<NodeId>> = BTreeMap::new();
    let mut peers = BTreeMap::new();
    for (node, address) in (0..).zip(addresses) {
        let id = setup.id(node);
        groups.entry(id.group).or_default().push(id.node);
        peers.insert(id, address);
    }
    let me = setup.id(place.node);
    let storage = place.dir.as_ref().map_or(Storage::Memory, Storage::directory);
    let options =
        Options { listen: Listen::Socket(socket), storage, ..Options::new("soak", me, "", peers) };
    let worker = Worker::start("member")?;
    let dissemination = setup.dissemination.into();
    let used = multicast::Options { dissemination, ..multicast::Options::default() };
    let process = PrimCast::new(me, Arc::new(groups)).with_options(used);
    Ok(Member::start_on(&worker, options, process, PATIENCE).await?)
}

/// Who multicasts.
struct Sender {
    setup: Setup,
    me: ProcessId,
    member: Member<PrimCast>,
    /// How many of its share it has begun.
    begun: AtomicU64,
    sent: Vec<AtomicU64>,
    completed: AtomicU64,
    failed: mpsc::Sender<anyhow::Error>,
}

impl Sender {
    fn new(
        setup: Setup,
        me: ProcessId,
        member: Member<PrimCast>,
        failed: mpsc::Sender<anyhow::Error>,
    ) -> Sender {
        let sent = std::iter::repeat_with(AtomicU64::default).take(setup.groups.into()).collect();
        let (begun, completed) = (AtomicU64::new(0), AtomicU64::new(0));
        Sender { setup, me, member, begun, sent, completed, failed }
    }

    /// Multicasts one message after the other until the share is used up.
    fn start(self: &Arc<Self>) {
        let sender = self.clone();
        tokio::spawn(async move {
            let mut failed = false;
            while !failed && sender.begun.fetch_add(1, Ordering::Relaxed) < sender.setup.share {
                failed = !sender.send_one().await;
            }
        });
    }

    /// Multicasts one message beside the share.
    fn speak(self: &Arc<Self>) {
        let sender = self.clone();
        tokio::spawn(async move { sender.send_one().await });
    }

    /// To the own group and others at random; whether it was delivered.
    async fn send_one(&self) -> bool {
        let own = self.me.group;
        let others = (0..self.setup.groups).map(GroupId).filter(|group| *group != own);
        let others: Vec<GroupId> = others.collect();
        let seed = self.begun.load(Ordering::Relaxed) << 16 | u64::from(self.me.node.0);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let chosen = index::sample(&mut random, others.len(), usize::from(self.setup.dest) - 1);
        let mut dest: Vec<GroupId> = chosen.iter().map(|at| others[at]).collect();
        dest.push(own);
        for group in &dest {
            self.sent[usize::from(group.0)].fetch_add(1, Ordering::Relaxed);
        }
        let payload = Bytes::from(vec![b'm'; self.setup.payload]);
        let message = Outgoing { dest, payload, touches: Touches::All, after: Timestamp(0) };
        match self.member.send(message).await {
            Ok(_) => {
                self.completed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => {
                let _ = self.failed.try_send(error.into()); // Another was told already.
                false
            }
        }
    }
}

/// What runs on top of the member.
struct Replica {
    setup: Setup,
    member: Member<PrimCast>,
    sender: Arc<Sender>,
    tally: Tally,
}

impl Replica {
    async fn run(
        mut self,
        mut deliveries: Deliveries,
        mut requests: mpsc::UnboundedReceiver<Order<Setup, Request>>,
        mut failures: mpsc::Receiver<anyhow::Error>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TELL_EVERY);
        loop {
            tokio::select! {
                delivered = deliveries.next() => match delivered {
                    Some(delivered) => self.on_delivered(delivered).await?,
                    None => bail!("the member has stopped"),
                },
                request = requests.recv() => match request {
                    Some(Order::Request(Request)) => self.sender.speak(),
                    Some(Order::Be(_) | Order::Join(_)) => bail!("it has joined already"),
                    None => return Ok(self.member.close().await?),
                },
                failure = failures.recv() => {
                    return Err(failure.context("the sender holds one end")?);
                }
                _ = tick.tick() => self.tell().await?,
            }
        }
    }

    async fn on_delivered(&mut self, delivered: Delivered) -> anyhow::Result<()> {
        match delivered {
            Delivered::Message(delivery) => {
                let mistaken = self.setup.mistaken_at == Some(delivery.position.0);
                self.tally.take(&delivery, mistaken)?;
                let count = self.tally.count;
                if count.is_multiple_of(self.setup.mark) {
                    report::<Soaked>(Report::Mark(self.tally))?;
                }
                if count.is_multiple_of(KEEP_EVERY) {
                    self.member.keep(Position(count), self.tally.to_bytes()).await?;
                }
                if count.is_multiple_of(self.setup.tell) {
                    self.tell().await?;
                }
            }
            Delivered::State { position, state } => {
                let tally = Tally::from_bytes(&state).context("a state of the wrong length")?;
                if tally.count != position.0 || tally.count < self.tally.count {
                    let (at, own) = (position.0, self.tally.count);
                    bail!("at delivery {own} the state of {} came as that of {at}", tally.count);
                }
                self.tally = tally;
                report::<Soaked>(Report::Installed(tally))?;
            }
        }
        Ok(())
    }

    async fn tell(&self) -> anyhow::Result<()> {
        let sent = self.sender.sent.iter().map(|sent| sent.load(Ordering::Relaxed));
        report::<Soaked>(Report::Status(Status {
            tally: self.tally,
            sent: sent.collect(),
            completed: self.sender.completed.load(Ordering::Relaxed),
            log_bytes: self.member.log_bytes().await? as u64,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{ClientId, MessageId};
    use meridian_multicast::Start;

    fn delivery(position: u64, ts: u64, sequence: u64) -> Delivery {
        let id = MessageId { client: ClientId(1), sequence };
        let start = Start::new(id, [GroupId(0)], Vec::new());
        Delivery { position: Position(position), ts: Timestamp(ts), start: start.into() }
    }

    fn tally_of(deliveries: &[Delivery]) -> Tally {
        let mut tally = Tally::default();
        deliveries.iter().for_each(|delivery| tally.take(delivery, false).unwrap());
        tally
    }

    #[test]
    fn a_digest_tells_orders_names_and_timestamps_apart() {
        let good = tally_of(&[delivery(1, 4, 1), delivery(2, 5, 2)]);
        assert_eq!(good.count, 2);
        assert_eq!(good, tally_of(&[delivery(1, 4, 1), delivery(2, 5, 2)]));
        for other in [
            [delivery(1, 4, 2), delivery(2, 5, 1)],
            [delivery(1, 4, 1), delivery(2, 6, 2)],
            [delivery(1, 4, 1), delivery(2, 5, 3)],
        ] {
            assert_ne!(good.digest, tally_of(&other).digest, "{other:?}");
        }
    }

    #[test]
    fn a_delivery_that_is_missing_or_comes_twice_is_noticed() {
        let mut tally = tally_of(&[delivery(1, 4, 1)]);
        assert!(tally.take(&delivery(1, 4, 1), false).is_err());
        assert!(tally.take(&delivery(3, 6, 3), false).is_err());
        assert!(tally.take(&delivery(2, 5, 2), false).is_ok());
    }

    #[test]
    fn a_state_is_read_as_it_was_given() {
        let tally = tally_of(&[delivery(1, 4, 1)]);
        assert_eq!(Tally::from_bytes(&tally.to_bytes()), Some(tally));
        assert_eq!(Tally::from_bytes(&tally.to_bytes()[1..]), None);
    }
}
