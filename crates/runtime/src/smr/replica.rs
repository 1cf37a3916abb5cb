//! Starts, watches and ends a replica.

use crate::clock::Clock;
use crate::delay::Delay;
use crate::error::MemberError;
use crate::handle::{self, Handle, Listen, Worker};
use crate::names::Names;
use crate::peer::Counters;
use crate::smr::alone::{Alone, Ask};
use crate::smr::wire::PAYLOAD_MAX;
use crate::storage::Storage;
use meridian_core::{GroupId, NodeId, ProcessId};
use meridian_paxos::{Configuration, Options as PaxosOptions, Paxos, Recovery, Service, Status};
use meridian_transport::Security;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// What a new leader is told may be so long, in bytes: all instances that may be under way in one
/// message. So the window times the longest batch, or request, must not be more.
pub const UNDER_WAY_MAX: u64 = 24 << 20;

/// How a replica takes part.
#[derive(Debug)]
pub struct Options {
    /// The name of the cluster: replicas and clients of another are turned away.
    pub cluster: String,
    /// How connections with replicas and clients are secured: TLS at all of them, or plain text.
    pub security: Security,
    /// What replicas are called in their certificates, those too that may be added later. With
    /// TLS a replica that has no name here is turned away.
    pub names: BTreeMap<NodeId, String>,
    /// Which replica this is. An identity is never given to another.
    pub me: NodeId,
    /// Tells services of one cluster apart that share replicas.
    pub group: GroupId,
    /// Where it listens, for other replicas and for clients.
    pub listen: Listen,
    /// The members that the service began with, the same for all of them, and where they listen;
    /// for a replica that is added later, those that are members now.
    pub members: BTreeMap<NodeId, String>,
    /// Where it keeps what survives a crash. Nowhere will do with [`Recovery::CrashStop`] only.
    pub storage: Storage,
    /// What is added to the way to other replicas.
    pub delays: BTreeMap<NodeId, Delay>,
    /// The time that its process is given.
    pub clock: Clock,
    /// So many connections of clients at most; more are turned away.
    pub clients_max: usize,
    /// How the protocol behaves.
    pub paxos: PaxosOptions,
}

impl Options {
    /// Replica `me` of these members, listening where they say, with its data in a directory.
    pub fn new(
        cluster: impl Into<String>,
        me: NodeId,
        members: BTreeMap<NodeId, String>,
        storage: Storage,
    ) -> Options {
        let address = members.get(&me).cloned().unwrap_or_default();
        let id = ProcessId { group: GroupId::GLOBAL, node: me };
        let handle::Options { cluster, listen, storage, clock, clients_max, .. } =
            handle::Options {
                storage,
                ..handle::Options::new(cluster, id, address, BTreeMap::new())
            };
        let (delays, paxos, group) = (BTreeMap::new(), PaxosOptions::default(), id.group);
        let (security, names) = (Security::default(), BTreeMap::new());
        Options {
            cluster,
            security,
            names,
            me,
            group,
            listen,
            members,
            storage,
            delays,
            clock,
            clients_max,
            paxos,
        }
    }

    /// Those of so many replicas that all run on this machine, for tests and trying out: they
    /// listen on free ports of the loopback device, which are taken when this returns. `storage`
    /// tells where each keeps its data.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn on_this_machine(
        cluster: &str,
        replicas: u16,
        mut storage: impl FnMut(NodeId) -> Storage,
    ) -> io::Result<Vec<Options>> {
        let (mut members, mut sockets) = (BTreeMap::new(), Vec::new());
        for me in (0..replicas).map(NodeId) {
            let socket = TcpListener::bind("127.0.0.1:0")?;
            members.insert(me, socket.local_addr()?.to_string());
            sockets.push((me, socket));
        }
        let options = sockets.into_iter().map(|(me, socket)| {
            let options = Options::new(cluster, me, members.clone(), storage(me));
            Options { listen: Listen::Socket(socket), ..options }
        });
        Ok(options.collect())
    }

    /// Looks for contradictions.
    fn validate(&self) -> Result<(), String> {
        self.paxos.validate().map_err(|error| error.to_string())?;
        let (recovery, paxos) = (self.paxos.recovery, &self.paxos);
        if self.storage == Storage::Memory && recovery != Recovery::CrashStop {
            let name = recovery.name();
            return Err(format!(
                "{name} needs a directory; without one only crash-stop is possible"
            ));
        }
        if paxos.request_bytes_max > PAYLOAD_MAX {
            let max = paxos.request_bytes_max;
            return Err(format!("requests of {max} bytes do not fit into a frame: {PAYLOAD_MAX}"));
        }
        let longest = paxos.batch_bytes.max(paxos.request_bytes_max) as u64;
        if paxos.window * longest > UNDER_WAY_MAX {
            return Err(format!(
                "a window of {} instances of up to {longest} bytes: together at most {UNDER_WAY_MAX}",
                paxos.window
            ));
        }
        Ok(())
    }
}

/// A replica of a service, from any thread. It ends when all clones are gone.
pub struct Replica<S: Service> {
    handle: Handle<Ask<S>>,
    stopped: watch::Receiver<Option<String>>,
}

impl<S: Service> Clone for Replica<S> {
    fn clone(&self) -> Self {
        Replica { handle: self.handle.clone(), stopped: self.stopped.clone() }
    }
}

impl<S: Service> Replica<S> {
    /// Starts one on a thread of its own; `service` is as the service begins.
    ///
    /// # Errors
    /// If the address cannot be listened on, the options contradict each other, the directory is of
    /// another replica, cluster or recovery mode, or the replica has lost what it promised.
    pub async fn start(options: Options, service: S) -> Result<Replica<S>, MemberError> {
        let worker = Worker::start(&format!("replica-{}", options.me.0))?;
        Replica::start_on(&worker, options, service).await
    }

    /// Starts one on a thread that may host others.
    ///
    /// # Errors
    /// As [`Replica::start`].
    pub async fn start_on(
        worker: &Worker,
        options: Options,
        service: S,
    ) -> Result<Replica<S>, MemberError> {
        options.validate().map_err(MemberError::Options)?;
        let Options { cluster, group, members, storage, clock, clients_max, paxos, .. } = options;
        let process = |node| ProcessId { group, node };
        let me = process(options.me);
        let recovery = paxos.recovery;
        let names = Names::default();
        names.set(options.names.into_iter().map(|(node, name)| (process(node), name)).collect());
        let host = handle::Options {
            security: options.security,
            names: Arc::new(names),
            listen: options.listen,
            delays: options.delays.into_iter().map(|(k, v)| (process(k), v)).collect(),
            storage,
            clock,
            kind: format!("recovery {}", recovery.name()),
            forgetful: recovery == Recovery::CrashStop,
            clients_max,
            ..handle::Options::new(cluster, me, "", BTreeMap::new())
        };
        let seed = RandomState::new().hash_one(me);
        let paxos = Paxos::new(me, Configuration { members }, paxos, service, seed);
        let (stopping, stopped) = watch::channel(None);
        let handle = worker.host(host, paxos, Alone::new(me, stopping)).await?;
        let replica = Replica { handle, stopped };
        replica.status().await?; // It has begun, or has found that it must not.
        Ok(replica)
    }

    /// Which replica this is.
    pub fn me(&self) -> NodeId {
        self.handle.me().node
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.handle.address()
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        self.handle.counters()
    }

    /// What it tells of itself.
    ///
    /// # Errors
    /// If it has stopped: why.
    pub async fn status(&self) -> Result<Status, MemberError> {
        self.look(Paxos::status).await
    }

    /// Asks its process something.
    ///
    /// # Errors
    /// If it has stopped: why.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Paxos<S>) -> T + Send + 'static,
    ) -> Result<T, MemberError> {
        let (tell, told) = oneshot::channel();
        let look = move |process: &Paxos<S>| drop(tell.send(look(process)));
        self.ask(Ask::Look(Box::new(look))).await?;
        self.unless_ended(told.await).await
    }

    /// Waits until it has its memory and takes part.
    ///
    /// # Errors
    /// If it has stopped: why.
    pub async fn serving(&self) -> Result<(), MemberError> {
        let (tell, told) = oneshot::channel();
        self.ask(Ask::Serving(tell)).await?;
        self.unless_ended(told.await).await
    }

    async fn ask(&self, ask: Ask<S>) -> Result<(), MemberError> {
        self.unless_ended(self.handle.request(ask).await).await
    }

    /// What it answered; if nothing, since it has stopped: why.
    async fn unless_ended<T, E>(&self, answered: Result<T, E>) -> Result<T, MemberError> {
        if let Ok(answer) = answered {
            return Ok(answer);
        }
        let why = self.stopped.borrow().clone();
        Err(match why {
            Some(why) => MemberError::Halted(why),
            None => self.handle.ended().await.err().unwrap_or(MemberError::Stopped),
        })
    }

    /// Waits until it serves no more; why, if it was not closed. One that was removed from the
    /// members is to be closed when the others do well without it: until then they may ask it what
    /// was decided.
    pub async fn stopped(&self) -> Option<String> {
        let mut stopped = self.stopped.clone();
        while stopped.borrow().is_none() && stopped.changed().await.is_ok() {}
        stopped.borrow().clone()
    }

    /// Stops it: when this returns, its sockets are closed and all that it persisted is on disk.
    ///
    /// # Errors
    /// If it had stopped before, or the disk failed.
    pub async fn close(&self) -> Result<(), MemberError> {
        self.unless_ended(self.handle.close().await).await
    }
}
