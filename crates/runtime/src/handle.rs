//! Members on threads, and how other threads speak with them.

use crate::application::{Application, Networked};
use crate::clients::Clients;
use crate::clock::Clock;
use crate::delay::Delay;
use crate::engine::Engine;
use crate::error::MemberError;
use crate::lanes::{Arrivals, Door, Lanes};
use crate::local::{Local, Terms};
use crate::names::Names;
use crate::peer::Counters;
use crate::peers::Peers;
use crate::storage::{self, Owner, Storage};
use meridian_core::hello::{Lane, ServiceId};
use meridian_core::standing::Standing;
use meridian_core::{Endpoint, GroupId, NodeId, ProcessId};
use meridian_storage::{Disk, RealDisk};
use meridian_transport::Security;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::LocalSet;

/// So many requests to one member wait at most; then senders wait.
const REQUESTS_MAX: usize = 4096;
/// So many clients one member serves unless its options say otherwise: each is a descriptor, some
/// buffers and its share of a batch.
const CLIENTS_MAX: usize = 10_000;
/// So many bytes are kept for clients with a protocol of their own, if nothing else is wanted.
const PLAIN_BYTES_MAX: usize = 256 << 20;
/// So many members wait at most to be hosted by one thread.
const JOBS_MAX: usize = 1024;

/// Where a member is listening.
#[derive(Debug)]
pub enum Listen {
    /// On this address.
    Address(String),
    /// On a socket that listens already: so members can know each other's ports before any starts.
    Socket(TcpListener),
    /// At the port of the server's main thread, which hands over whoever wants this one.
    Lane(Arrivals),
}

/// How a member takes part.
pub struct Options<I = ProcessId> {
    /// The name of the cluster: members of another are turned away.
    pub cluster: String,
    /// How connections are secured: TLS at all members, or plain text.
    pub security: Security,
    /// What members are called in their certificates, if there are such; who fills it may change it
    /// at any time.
    pub names: Arc<Names<I>>,
    /// Who this is.
    pub me: I,
    /// Where it listens.
    pub listen: Listen,
    /// Where all the others listen.
    pub peers: BTreeMap<I, String>,
    /// What is added to the way to some of them.
    pub delays: BTreeMap<I, Delay>,
    /// Where records are kept.
    pub storage: Storage,
    /// The disk that it is on.
    pub disk: Arc<dyn Disk>,
    /// The time that its process is given.
    pub clock: Clock,
    /// What its records mean, in a word: a directory with records of another kind is refused.
    pub kind: String,
    /// What it keeps does not tell what it said before: another start counts as one of another
    /// member with its name, which the others refuse.
    pub forgetful: bool,
    /// So many clients are served at most; more are turned away.
    pub clients_max: usize,
    /// The other threads of this server that are called at this one's port.
    pub lanes: Lanes,
    /// Where clients call that speak a protocol of their own, and which service they want.
    pub plain: Vec<(ServiceId, TcpListener)>,
    /// So many bytes are kept for all these clients together at most, of requests that are not
    /// whole and answers that are not taken. It should be as much as one request and one answer of
    /// the greatest length.
    pub plain_bytes_max: usize,
}

impl<I: Endpoint> Options<I> {
    /// A member at `address` that keeps its records in memory only, and speaks plain text.
    pub fn new(
        cluster: impl Into<String>,
        me: I,
        address: impl Into<String>,
        peers: BTreeMap<I, String>,
    ) -> Options<I> {
        Options {
            cluster: cluster.into(),
            security: Security::default(),
            names: Arc::default(),
            me,
            listen: Listen::Address(address.into()),
            peers,
            delays: BTreeMap::new(),
            storage: Storage::Memory,
            disk: Arc::new(RealDisk),
            clock: Clock::start(),
            kind: String::new(),
            forgetful: false,
            clients_max: CLIENTS_MAX,
            lanes: Lanes::default(),
            plain: Vec::new(),
            plain_bytes_max: PLAIN_BYTES_MAX,
        }
    }
}

impl Options<ProcessId> {
    /// Those of all members of these groups, which all run on this machine, for tests and trying
    /// out: they listen on free ports of the loopback device, which are taken when this returns.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn on_this_machine(
        cluster: &str,
        groups: &BTreeMap<GroupId, Vec<NodeId>>,
    ) -> std::io::Result<Vec<Options>> {
        let (mut addresses, mut sockets) = (BTreeMap::new(), Vec::new());
        for (group, nodes) in groups {
            for node in nodes {
                let me = ProcessId { group: *group, node: *node };
                let socket = TcpListener::bind("127.0.0.1:0")?;
                addresses.insert(me, socket.local_addr()?.to_string());
                sockets.push((me, socket));
            }
        }
        let options = sockets.into_iter().map(|(me, socket)| {
            let options = Options::new(cluster, me, "", addresses.clone());
            Options { listen: Listen::Socket(socket), ..options }
        });
        Ok(options.collect())
    }
}

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A thread that hosts members; it ends when this and all members on it are gone.
#[derive(Clone, Debug)]
pub struct Worker {
    jobs: mpsc::Sender<Job>,
}

impl Worker {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(name: &str) -> Result<Worker, MemberError> {
        let failed = |error: std::io::Error| MemberError::Thread(error.to_string());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (jobs, mut waiting) = mpsc::channel::<Job>(JOBS_MAX);
        let run = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let mut members = tokio::task::JoinSet::new();
                while let Some(job) = waiting.recv().await {
                    members.spawn_local(job());
                    while members.try_join_next().is_some() {}
                }
                while members.join_next().await.is_some() {}
            });
        };
        std::thread::Builder::new().name(name.into()).spawn(run).map_err(failed)?;
        Ok(Worker { jobs })
    }

    /// Hosts a member: `process` with `application` on top of it. It runs when this returns.
    ///
    /// # Errors
    /// If the address cannot be listened on, the options contradict each other, or what is on disk
    /// cannot be used.
    pub async fn host<P: Networked + Send, A: Application<P> + Send>(
        &self,
        options: Options<P::Peer>,
        process: P,
        application: A,
    ) -> Result<Handle<A::Request, P::Peer>, MemberError> {
        let (inputs, requests) = mpsc::channel(REQUESTS_MAX);
        let counters = Arc::new(Counters::default());
        let (me, counted) = (options.me, counters.clone());
        let (started, starting) = oneshot::channel();
        let (ending, ended) = watch::channel(None);
        let job: Job = Box::new(move || {
            Box::pin(async move {
                let made = make(options, process, application, counted).await;
                let (local, doors, address) = match made {
                    Ok(made) => made,
                    Err(error) => return drop(started.send(Err(error))),
                };
                if started.send(Ok(address)).is_err() {
                    return;
                }
                let how = local.run(doors, requests).await;
                if let Err(error) = &how {
                    tracing::error!(%me, %error, "stopped");
                }
                ending.send_replace(Some(how));
            })
        });
        let gone = || MemberError::Thread("it has ended".into());
        self.jobs.send(job).await.map_err(|_| gone())?;
        let address = starting.await.map_err(|_| gone())??;
        Ok(Handle { me, address, counters, inputs, ended })
    }
}

/// Where others call, and where clients do that speak a protocol of their own.
type Doors = (Door, Vec<(ServiceId, tokio::net::TcpListener)>);

/// Opens what a member needs, on its thread.
async fn make<P: Networked, A: Application<P>>(
    options: Options<P::Peer>,
    mut process: P,
    mut application: A,
    counters: Arc<Counters>,
) -> Result<(std::rc::Rc<Local<P, A>>, Doors, SocketAddr), MemberError> {
    let Options { cluster, me, listen, peers, delays, storage, clock, .. } = options;
    let Options { kind, forgetful, clients_max, disk, lanes, plain, .. } = options;
    let Options { plain_bytes_max, security, names, .. } = options;
    let (door, lane, address) = open_door(listen)?;
    let plain = plain.into_iter().map(open_plain).collect::<Result<_, _>>()?;
    let wake = Arc::new(Notify::new());
    let owner = Owner { cluster: &cluster, me, kind: &kind };
    let opened = storage::open((storage, disk), &owner, &wake, &mut process, &mut application)?;
    let durable = opened.store.is_some() && !forgetful;
    // Without a memory two of one name should differ, no more: the peers remember the first.
    let standing = match durable {
        true => opened.standing,
        false => Standing { incarnation: clock.now().0.max(1), ..Standing::default() },
    };
    let mut others = Peers::new(standing.incarnation, delays);
    others.set(clock.now(), me, &peers);
    let near = (others, Clients::new(plain_bytes_max));
    let mut engine = Engine::new(me, (process, application, opened.store), clock, near, counters);
    engine.restore(standing, opened.acquaintances);
    let starts = opened.starts;
    let terms =
        Terms { cluster, security, names, lane, lanes, standing, starts, durable, clients_max };
    Ok((Local::new(engine, wake, terms), (door, plain), address))
}

fn open_door(listen: Listen) -> Result<(Door, Lane, SocketAddr), MemberError> {
    let (name, listener) = match listen {
        Listen::Lane(arrivals) => {
            let (lane, address) = (arrivals.lane, arrivals.address);
            return Ok((Door::Lane(arrivals), lane, address));
        }
        Listen::Address(address) => {
            let bound = TcpListener::bind(&address);
            (address.clone(), bound.map_err(|error| MemberError::address(&address, &error))?)
        }
        Listen::Socket(socket) => ("the socket given".to_string(), socket),
    };
    let open = || {
        let address = listener.local_addr()?;
        Ok((Door::Port(listening(listener)?), Lane::MAIN, address))
    };
    open().map_err(|error| MemberError::address(&name, &error))
}

fn open_plain(
    (service, listener): (ServiceId, TcpListener),
) -> Result<(ServiceId, tokio::net::TcpListener), MemberError> {
    let listener = listening(listener);
    Ok((service, listener.map_err(|error| MemberError::address("a socket given", &error))?))
}

fn listening(listener: TcpListener) -> std::io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// What a member is asked.
pub(crate) enum Input<R> {
    Request(R),
    Cut(BTreeSet<GroupId>),
    Close(oneshot::Sender<()>),
}

/// Speaks with a member from any thread. The member ends when all its handles are gone.
#[derive(Debug)]
pub struct Handle<R, I = ProcessId> {
    me: I,
    address: SocketAddr,
    counters: Arc<Counters>,
    inputs: mpsc::Sender<Input<R>>,
    ended: watch::Receiver<Option<Result<(), MemberError>>>,
}

impl<R, I: Endpoint> Clone for Handle<R, I> {
    fn clone(&self) -> Self {
        let Handle { me, address, counters, inputs, ended } = self;
        let (counters, inputs, ended) = (counters.clone(), inputs.clone(), ended.clone());
        Handle { me: *me, address: *address, counters, inputs, ended }
    }
}

impl<R: Send + 'static, I: Endpoint> Handle<R, I> {
    /// Which member this is.
    pub fn me(&self) -> I {
        self.me
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Asks the application for something.
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn request(&self, request: R) -> Result<(), MemberError> {
        let sent = self.inputs.send(Input::Request(request)).await;
        sent.map_err(|_| MemberError::Stopped)
    }

    /// From now on there is no network between these groups and all others, as this member sees it;
    /// without groups all is mended. For tests and benches.
    ///
    /// # Errors
    /// If the member has stopped.
    pub async fn cut(&self, groups: BTreeSet<GroupId>) -> Result<(), MemberError> {
        self.inputs.send(Input::Cut(groups)).await.map_err(|_| MemberError::Stopped)
    }

    /// Waits until the member has ended, however that comes.
    ///
    /// # Errors
    /// Why, if it was not closed: [`MemberError::Stopped`] if a bug has shown itself.
    pub async fn ended(&self) -> Result<(), MemberError> {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await.map_err(|_| MemberError::Stopped)?;
        how.clone().unwrap_or(Err(MemberError::Stopped))
    }

    /// Stops the member: when this returns, its sockets are closed and all that it persisted is on
    /// disk.
    ///
    /// # Errors
    /// If it had stopped before, or the disk failed.
    pub async fn close(&self) -> Result<(), MemberError> {
        let (done, closed) = oneshot::channel();
        self.inputs.send(Input::Close(done)).await.map_err(|_| MemberError::Stopped)?;
        closed.await.map_err(|_| MemberError::Stopped)
    }
}
