//! What the tasks of one member share. All run on one thread: cells, no locks.

use crate::application::{Application, Networked};
use crate::clients::{ConnectionId, Form, Signals as ClientSignals};
use crate::connection;
use crate::engine::Engine;
use crate::error::MemberError;
use crate::handle::Input;
use crate::introduction;
use crate::lanes::{Door, Lanes};
use crate::names::Names;
use crate::peer::Signals;
use crate::plain;
use crate::wire::WireError;
use meridian_core::GroupId;
use meridian_core::hello::{Answer, Caller, Hello, HelloError, Identity, Lane, ServiceId};
use meridian_core::introduction::{Forgotten, Introduction, Member, Verdict};
use meridian_core::principal::Speaker;
use meridian_core::standing::{Standing, Start};
use meridian_transport::{Security, Stream, WriteHalf};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep_until;

/// So many requests are taken at once.
const REQUESTS: usize = 1024;
/// So much is read from a client at once at most.
const READ_LEN: usize = 256 << 10;
/// So many senders of bad frames are remembered, so that each is logged once.
const BLAMED_MAX: usize = 1024;

/// See the module's documentation.
pub(crate) struct Local<P: Networked, A> {
    pub(crate) me: P::Peer,
    pub(crate) engine: RefCell<Engine<P, A>>,
    /// The batch is to be ended; wakes the driver, also from other threads.
    pub(crate) wake: Arc<Notify>,
    /// Sockets may be read again; from other threads, too.
    pub(crate) room: Arc<Notify>,
    /// A socket is not read, as the engine is full.
    held_up: Cell<bool>,
    /// The same for sockets of clients.
    client_room: Arc<Notify>,
    clients_held_up: Cell<bool>,
    pub(crate) clients_max: usize,
    pub(crate) read_buffer: RefCell<Box<[u8]>>,
    /// Connections that have not said who they are.
    pub(crate) strangers: Cell<usize>,
    /// There are too many of them: one is to go.
    pub(crate) crowded: Notify,
    /// A cut was mended, or a peer has come.
    mended: Notify,
    pub(crate) cluster: String,
    pub(crate) security: Security,
    names: Arc<Names<P::Peer>>,
    pub(crate) lane: Lane,
    /// The other threads of this server that are called at the same port.
    pub(crate) lanes: Lanes,
    /// Whether others remember more of it than it does.
    pub(crate) introduction: RefCell<Introduction<P::Peer>>,
    /// It has asked the others whether they do, and begins.
    begun: Cell<bool>,
    begin: Notify,
    tasks: RefCell<Vec<AbortHandle>>,
    /// A bug has shown itself.
    failed: Cell<bool>,
    blamed: RefCell<BTreeSet<IpAddr>>,
}

/// How a member takes part, as far as its connections must know.
pub(crate) struct Terms<I> {
    pub(crate) cluster: String,
    pub(crate) security: Security,
    pub(crate) names: Arc<Names<I>>,
    pub(crate) lane: Lane,
    pub(crate) lanes: Lanes,
    pub(crate) durable: bool,
    pub(crate) standing: Standing,
    pub(crate) starts: Vec<Start>,
    pub(crate) clients_max: usize,
}

/// Stops its member if it is dropped by a panic.
struct Fuse<P: Networked, A: Application<P>>(Rc<Local<P, A>>);

impl<P: Networked, A: Application<P>> Drop for Fuse<P, A> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.set(true);
            self.0.tasks.borrow().iter().for_each(AbortHandle::abort);
            self.0.wake.notify_one();
        }
    }
}

impl<P: Networked, A: Application<P>> Local<P, A> {
    pub(crate) fn new(
        engine: Engine<P, A>,
        wake: Arc<Notify>,
        terms: Terms<P::Peer>,
    ) -> Rc<Local<P, A>> {
        let Terms { cluster, security, names, lane, lanes, durable, .. } = terms;
        let Terms { standing, starts, clients_max, .. } = terms;
        let (room, client_room) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let member = Member { me: engine.me, durable, standing, starts };
        let others = engine.peers.iter().map(|peer| peer.id);
        let introduction =
            Introduction::new(member, others.filter(|id| engine.index(*id).is_some()));
        let local = Local {
            me: engine.me,
            engine: RefCell::new(engine),
            wake,
            room: room.clone(),
            held_up: Cell::new(false),
            client_room: client_room.clone(),
            clients_held_up: Cell::new(false),
            clients_max,
            read_buffer: RefCell::new(vec![0; READ_LEN].into()),
            strangers: Cell::new(0),
            crowded: Notify::new(),
            mended: Notify::new(),
            cluster,
            security,
            names,
            lane,
            lanes,
            introduction: RefCell::new(introduction),
            begun: Cell::new(false),
            begin: Notify::new(),
            tasks: RefCell::default(),
            failed: Cell::new(false),
            blamed: RefCell::default(),
        };
        let waker = local.wake.clone();
        local.engine.borrow_mut().on_waker(Arc::new(move || waker.notify_one()));
        local.engine.borrow_mut().on_room(Box::new(move || {
            room.notify_waiters();
            client_room.notify_waiters();
        }));
        Rc::new(local)
    }

    /// Runs a task as long as the member runs. If it panics a bug has shown itself, and the member
    /// stops rather than go on: nothing that followed from the bug has left it.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let fuse = Fuse(self.clone());
        let task = async move {
            task.await;
            drop(fuse);
        };
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::task::spawn_local(task).abort_handle());
    }

    pub(crate) fn index(&self, id: P::Peer) -> Option<usize> {
        self.engine.borrow().index(id)
    }

    pub(crate) fn peer(&self, peer: usize) -> P::Peer {
        self.engine.borrow().peers[peer].id
    }

    pub(crate) fn address(&self, peer: usize) -> String {
        self.engine.borrow().peers[peer].address.clone()
    }

    /// Opens a connection to a peer, which shows that it is the one.
    pub(crate) async fn call(&self, peer: usize) -> Result<Stream, WireError> {
        let address = self.address(peer);
        let called = self.security.connect(&address).await.map_err(WireError::from);
        let called = called.and_then(|stream| {
            self.authorize(self.peer(peer), stream.speaker())?;
            Ok(stream)
        });
        let at = || address.parse().map_or(Ipv4Addr::UNSPECIFIED.into(), |at: SocketAddr| at.ip());
        called.inspect_err(|error| self.blame(at(), error))
    }

    /// Whether whoever is at the other end of a connection may speak for a member.
    pub(crate) fn authorize(&self, member: P::Peer, speaker: &Speaker) -> Result<(), WireError> {
        let name = self.names.get(member);
        if speaker.is_node(name.as_deref()) {
            return Ok(());
        }
        let name = name.unwrap_or_else(|| format!("{member}, whose name nobody knows"));
        Err(WireError::Unauthorized(format!("{speaker} cannot speak for {name}")))
    }

    pub(crate) fn signals(&self, peer: usize) -> Rc<Signals> {
        self.engine.borrow().peers[peer].signals.clone()
    }

    /// Whether there is no network between us, or the peer is not wanted.
    pub(crate) fn is_cut(&self, peer: usize) -> bool {
        let engine = self.engine.borrow();
        !engine.peers[peer].present || engine.is_cut(engine.peers[peer].id)
    }

    /// Waits until a peer may be called.
    pub(crate) async fn until_wanted(&self, peer: usize) {
        while self.is_cut(peer) {
            self.mended.notified().await;
        }
    }

    /// Waits until sockets may be read.
    pub(crate) async fn room(&self) {
        self.until(&self.room, &self.held_up, Engine::is_full).await;
    }

    /// Waits until sockets of clients may be read.
    pub(crate) async fn client_room(&self) {
        self.until(&self.client_room, &self.clients_held_up, Engine::holds_clients).await;
    }

    async fn until(&self, room: &Notify, held_up: &Cell<bool>, full: fn(&Engine<P, A>) -> bool) {
        while full(&self.engine.borrow()) {
            held_up.set(true);
            let mut room = pin!(room.notified());
            // Whoever makes room after this is heard.
            room.as_mut().enable();
            if !full(&self.engine.borrow()) {
                break;
            }
            room.await;
        }
    }

    pub(crate) fn identity(&self, to: P::Peer) -> Identity<P::Peer> {
        let engine = self.engine.borrow();
        let (logged, known) = (engine.peers.logged(), engine.acquaintances.get(to));
        self.introduction.borrow().identity(to, logged, known)
    }

    /// Waits until the member has asked the others what they know of it.
    pub(crate) async fn until_begun(&self) {
        while !self.begun.get() {
            self.begin.notified().await;
        }
    }

    /// Whether the member may begin.
    pub(crate) fn verdict(&self) -> Verdict {
        self.introduction.borrow().verdict()
    }

    /// Who has lost its memory, in words.
    pub(crate) fn describe(&self, forgotten: &Forgotten<P::Peer>) -> String {
        let engine = self.engine.borrow();
        forgotten.describe(|member| engine.name_of(*member))
    }

    /// Why a connection ends, in words.
    pub(crate) fn tell(&self, error: HelloError<P::Peer>) -> WireError {
        WireError::Refused(match error {
            HelloError::Refused(why) => why,
            HelloError::Forgot(forgotten) => self.describe(&forgotten),
        })
    }

    pub(crate) fn hello(&self, to: P::Peer) -> Hello<P::Peer> {
        Hello::new(&self.cluster, Caller::Member(self.identity(to))).to_lane(self.lane)
    }

    /// The peer has said who it is, and what it remembers of this member: if that is more than the
    /// member does itself, it stops.
    pub(crate) fn meet(
        &self,
        peer: usize,
        theirs: &Identity<P::Peer>,
    ) -> Result<(), HelloError<P::Peer>> {
        let ours = self.identity(self.peer(peer));
        let met = self.introduction.borrow_mut().on_met(&ours, theirs);
        if self.verdict() == Verdict::Stops {
            self.wake.notify_one();
        }
        met?;
        self.engine.borrow_mut().peers[peer].greeted = Some(theirs.standing);
        Ok(())
    }

    pub(crate) fn serves_clients(&self, service: ServiceId) -> bool {
        self.engine.borrow().serves_clients(service)
    }

    /// Whether one more may call that says no hello.
    pub(crate) fn has_room(&self) -> bool {
        self.clients() + self.strangers.get() < self.clients_max
    }

    /// So many clients are connected.
    pub(crate) fn clients(&self) -> usize {
        self.engine.borrow().clients.len()
    }

    pub(crate) fn add_client(
        &self,
        (socket, speaker): (Rc<WriteHalf>, Speaker),
        service: ServiceId,
        form: Form,
    ) -> (ConnectionId, Rc<ClientSignals>) {
        let engine = &mut *self.engine.borrow_mut();
        let (client, signals) = engine.clients.add(socket, speaker, form);
        if form == Form::Framed {
            engine.clients.answer(client, &Answer::<P::Peer>::Client);
        }
        engine.clients.transmit_to(client, &engine.counters);
        engine.on_connected(client, service);
        self.wake.notify_one();
        (client, signals)
    }

    /// A client's connection ends.
    pub(crate) fn remove_client(&self, client: ConnectionId) {
        let engine = &mut *self.engine.borrow_mut();
        engine.on_disconnected(client);
        engine.clients.transmit_to(client, &engine.counters);
        engine.clients.remove(client);
        self.wake.notify_one();
    }

    pub(crate) fn is_client_full(&self, client: ConnectionId) -> bool {
        self.engine.borrow_mut().clients.is_full(client)
    }

    /// A client's connection is to end because of what came on it: it is told why.
    pub(crate) fn blame_client(&self, client: ConnectionId, why: &WireError) {
        self.engine.borrow_mut().on_bad(client, why);
    }

    /// Why a client's connection ends: for what it is to be blamed for, or else for this.
    pub(crate) fn ended(&self, client: ConnectionId, why: WireError) -> WireError {
        self.engine.borrow_mut().clients.blamed(client).unwrap_or(why)
    }

    /// Whether a client is still to take something.
    pub(crate) fn waits(&self, client: ConnectionId) -> bool {
        self.engine.borrow_mut().clients.waits(client)
    }

    /// Writes to a client whose connection takes more; whether there still is such a one.
    pub(crate) fn answer_client(&self, client: ConnectionId) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        engine.clients.transmit_to(client, &engine.counters)
    }

    pub(crate) fn connect(
        &self,
        peer: usize,
        socket: Rc<WriteHalf>,
        answer: Option<&Answer<P::Peer>>,
    ) -> Result<u64, WireError> {
        let mut engine = self.engine.borrow_mut();
        let now = engine.clock.now();
        let connection = engine.peers[peer].connect(now, socket, answer)?;
        engine.transmit_to(peer);
        Ok(connection)
    }

    pub(crate) fn disconnect(&self, peer: usize, connection: u64) {
        let mut engine = self.engine.borrow_mut();
        let now = engine.clock.now();
        engine.peers[peer].disconnect(now, connection);
    }

    pub(crate) fn transmit(&self, peer: usize) {
        self.engine.borrow_mut().transmit_to(peer);
    }

    /// Counts and logs a connection that is closed for what came on it.
    pub(crate) fn blame(&self, from: IpAddr, error: &WireError) {
        if !error.is_bad() {
            return;
        }
        self.engine.borrow().counters.bad.fetch_add(1, Ordering::Relaxed);
        if matches!(error, WireError::Unauthorized(_)) {
            self.security.count_refused();
        }
        let mut blamed = self.blamed.borrow_mut();
        if blamed.len() < BLAMED_MAX && blamed.insert(from) {
            tracing::warn!(%from, %error, "connection closed; more from there are only counted");
        }
    }

    fn cut(&self, groups: BTreeSet<GroupId>) {
        let mut engine = self.engine.borrow_mut();
        engine.cut = groups;
        for peer in engine.peers.iter() {
            if engine.is_cut(peer.id) {
                peer.signals.close.notify_waiters();
            }
        }
        drop(engine);
        self.mended.notify_waiters();
    }

    /// Runs the member until its handle closes it or is gone.
    pub(crate) async fn run(
        self: Rc<Self>,
        doors: (Door, Vec<(ServiceId, TcpListener)>),
        mut inputs: mpsc::Receiver<Input<A::Request>>,
    ) -> Result<(), MemberError> {
        let (door, plain) = doors;
        self.spawn(connection::accept(self.clone(), door));
        for (service, listener) in plain {
            self.spawn(plain::accept(self.clone(), service, listener));
        }
        let _fuse = Fuse(self.clone());
        introduction::introduce(&self).await;
        if self.verdict() == Verdict::Begins {
            self.begun.set(true);
            self.begin.notify_waiters();
            self.engine.borrow_mut().start();
        }
        let ended = self.drive(&mut inputs).await;
        for task in self.tasks.borrow().iter() {
            task.abort();
        }
        while self.tasks.borrow().iter().any(|task| !task.is_finished()) {
            tokio::task::yield_now().await; // What they hold is dropped when they next run.
        }
        let closed = self.engine.borrow_mut().close();
        let done = ended?;
        closed?;
        if let Some(done) = done {
            let _ = done.send(()); // Nobody waits for it: no matter.
        }
        Ok(())
    }

    /// Calls peers that have come.
    fn call_new(self: &Rc<Self>) {
        let new = std::mem::take(&mut self.engine.borrow_mut().new_peers);
        for peer in new.into_iter().filter(|peer| self.peer(*peer) > self.me) {
            self.spawn(connection::call(self.clone(), peer));
        }
        self.mended.notify_waiters(); // For those that come back.
    }

    /// Tells who wants to know that it has ended.
    async fn drive(
        self: &Rc<Self>,
        inputs: &mut mpsc::Receiver<Input<A::Request>>,
    ) -> Result<Option<oneshot::Sender<()>>, MemberError> {
        let mut taken = Vec::with_capacity(REQUESTS);
        let mut alarm = tokio::time::Instant::now();
        let mut sleep = pin!(sleep_until(alarm));
        loop {
            if self.failed.get() {
                return Err(MemberError::Stopped);
            }
            if let Some(forgotten) = self.introduction.borrow().forgotten() {
                return Err(MemberError::Forgot(self.describe(&forgotten)));
            }
            let (again, due) = {
                let mut engine = self.engine.borrow_mut();
                let again = engine.finish()?;
                if self.held_up.get() && !engine.is_full() {
                    self.held_up.set(false);
                    self.room.notify_waiters();
                }
                if self.clients_held_up.get() && !engine.holds_clients() {
                    self.clients_held_up.set(false);
                    self.client_room.notify_waiters();
                }
                if std::mem::take(&mut engine.peers_changed) {
                    drop(engine);
                    self.call_new();
                    engine = self.engine.borrow_mut();
                }
                (again, engine.due().map(|due| engine.clock.instant(due)))
            };
            if again {
                self.wake.notify_one(); // Others have their turn before.
                tokio::task::yield_now().await;
            }
            // A timer that is early costs one look; one that is set again costs more.
            if let Some(due) = due
                && (due < alarm || sleep.is_elapsed())
            {
                alarm = due;
                sleep.as_mut().reset(due);
            }
            tokio::select! {
                () = self.wake.notified() => (),
                count = inputs.recv_many(&mut taken, REQUESTS) => {
                    if count == 0 {
                        return Ok(None);
                    }
                }
                () = sleep.as_mut(), if !sleep.is_elapsed() => (),
            }
            // The sockets are asked once more: what has arrived meanwhile, for this or another
            // member, is part of the batch.
            tokio::task::yield_now().await;
            for input in taken.drain(..) {
                match input {
                    Input::Request(request) => self.engine.borrow_mut().on_request(request),
                    Input::Cut(groups) => self.cut(groups),
                    Input::Close(done) => return Ok(Some(done)),
                }
            }
        }
    }
}
