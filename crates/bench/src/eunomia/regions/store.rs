//! The stores that are compared: EunomiaKV, GentleRain, Cure and eventual consistency, as the bench
//! asks them.

use bytes::Bytes;
use meridian_baselines::Partition;
use meridian_baselines::regions::{self, Rule};
use meridian_core::{Embedding, Event, Outbox, Process, RegionId, Time};
use meridian_eunomia::{Member, Peer, Seen, Timestamp, Topology, member, shard};
use meridian_runtime::Networked;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A protocol that keeps keys in several regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Eunomia: shards, a service that orders labels, receivers
    Eunomia,
    /// No order: what has come is seen
    Eventual,
    /// GentleRain: a global stable time
    GentleRain,
    /// Cure: a stable snapshot
    Cure,
}

impl Protocol {
    /// All, in the order of figures.
    pub const ALL: [Protocol; 4] =
        [Protocol::Eventual, Protocol::Eunomia, Protocol::GentleRain, Protocol::Cure];

    /// What it is called in tables and figures.
    pub fn title(self) -> &'static str {
        match self {
            Protocol::Eunomia => "Eunomia",
            Protocol::Eventual => "eventual",
            Protocol::GentleRain => "GentleRain",
            Protocol::Cure => "Cure",
        }
    }
}

/// What a server tells.
pub enum Told<S> {
    /// A question is answered: the value if it was read, and what the session has seen now.
    Answer { token: u64, value: Option<Bytes>, seen: S },
    /// Too much is under way: it is to be asked again.
    Refused { token: u64 },
    /// An update of another region may be seen from now on.
    Visible { origin: RegionId, ts: Timestamp },
}

/// How the bench asks a process.
pub trait Store: Networked<Peer = Peer> + Send {
    /// What a session has seen.
    type Seen: Copy + Debug + Default + Serialize + DeserializeOwned + Send;

    /// Its processes in these regions.
    fn members(topology: &Topology) -> Vec<Peer>;

    /// To read, or to write a value.
    fn ask(token: u64, key: Bytes, value: Option<Bytes>, seen: Self::Seen) -> Self::Command;

    /// What an output means.
    fn told(output: Self::Output) -> Option<Told<Self::Seen>>;

    /// A session has seen that, too.
    fn join(mine: &mut Self::Seen, other: &Self::Seen);

    /// Steps it as a part of a server.
    fn step_within<S: Process>(
        &mut self,
        now: Time,
        event: Event<Self>,
        server: &mut impl Embedding<Self, S>,
        out: &mut Outbox<S>,
    ) {
        let mut inner = Outbox::new();
        self.step(now, event, &mut inner);
        out.absorb(&mut inner, server);
    }
}

impl Store for Member {
    type Seen = Seen;

    fn members(topology: &Topology) -> Vec<Peer> {
        topology.peers()
    }

    fn ask(token: u64, key: Bytes, value: Option<Bytes>, seen: Seen) -> member::Command {
        member::Command::Shard(match value {
            None => shard::Command::Read { token, key },
            value => shard::Command::Update(shard::Request { token, key, value, seen }),
        })
    }

    fn told(output: member::Output) -> Option<Told<Seen>> {
        use shard::Output::{Applied, Refused, Regions, Updated, Value};
        let member::Output::Shard(output) = output else { return None };
        Some(match output {
            Value { token, value, seen } => Told::Answer { token, value, seen },
            Updated { token, seen } => Told::Answer { token, value: None, seen },
            Refused { token, .. } => Told::Refused { token },
            Applied { origin, ts, .. } => Told::Visible { origin, ts },
            Regions(_) => return None, // They do not change here.
        })
    }

    fn join(mine: &mut Seen, other: &Seen) {
        mine.join(other);
    }

    fn step_within<S: Process>(
        &mut self,
        now: Time,
        event: Event<Member>,
        server: &mut impl Embedding<Member, S>,
        out: &mut Outbox<S>,
    ) {
        Member::step_within(self, now, event, server, out);
    }
}

impl<R: Rule + Send> Store for Partition<R>
where
    R::Carried: Send,
{
    type Seen = R::Seen;

    fn members(topology: &Topology) -> Vec<Peer> {
        topology.regions().flat_map(|region| topology.shards(region)).collect()
    }

    fn ask(
        token: u64,
        key: Bytes,
        value: Option<Bytes>,
        seen: R::Seen,
    ) -> regions::Command<R::Seen> {
        match value {
            None => regions::Command::Read { token, key, seen },
            value => regions::Command::Update { token, key, value, seen },
        }
    }

    fn told(output: regions::Output<R::Seen>) -> Option<Told<R::Seen>> {
        use regions::Output::{Applied, Updated, Value};
        Some(match output {
            Value { token, value, seen } => Told::Answer { token, value, seen },
            Updated { token, seen } => Told::Answer { token, value: None, seen },
            Applied { origin, ts, .. } => Told::Visible { origin, ts },
        })
    }

    fn join(mine: &mut R::Seen, other: &R::Seen) {
        R::join(mine, other);
    }
}
