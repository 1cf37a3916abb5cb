//! Reliable membership (Hermes, section 2.4): epochs that `meridian-paxos` decides, and leases.
//!
//! Each replica asks all voters for a lease again and again, which also shows that it is alive. A
//! voter grants it for [`Options::lease`] if the replica is live and not suspended as far as the
//! voter has executed the [`Registry`]. A replica serves while it has grants of a majority.
//!
//! **Clocks.** None is compared with another. The replica counts from when it asked, and the
//! [`Options::drift_ppm`] less; the voter counts from when it granted, which is later, and so much
//! more. So if each clock gains or loses at most so many parts in a million, the voter says that a
//! grant has run out only after the replica has stopped to use it. Clocks must count while the
//! machine sleeps.
//!
//! **Dozing.** While nobody uses the keys, nobody asks for a lease, and the registry rests
//! ([`Doze`]). The owner says when it has use of the replica ([`Command::Use`]); it has a lease one
//! round trip later. Only the silence of those who had reason to be awake counts.
//!
//! A voter that starts again has forgotten its grants; it first waits as long as any may last. It
//! may also not know yet all that it knew: it grants nothing before it has executed its own *Join*,
//! which is decided after all that it has said in earlier starts relies on.
//!
//! **Who takes part** follows what the owner knows of the cluster ([`Command::Configure`],
//! decision 59). The leader adds to the registry's replicas whoever should hold keys and asks for
//! leases, and takes out who was let go; all else is the registry's (`voters`).
//! Nobody waits for a change of the Paxos leader.

use crate::attention::Attention;
use crate::leases::Leases;
use crate::members::{Epoch, Membership};
use crate::registry::Registry;
use crate::wishes::Wish;
use meridian_core::{
    ClientId, Embedding, Event, GroupId, NodeId, Outbox, PLANTED_BUGS, Process, ProcessId, Time,
};
use meridian_paxos::{self as paxos, Configuration, Paxos, Stopped};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub use crate::attention::Doze;
pub use crate::leases::{Fault, Options};

/// What replicas say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Of the registry's replication.
    Paxos(paxos::Message),
    /// The sender is alive, and asks for a lease.
    Ask {
        /// When it asked, by its own clock.
        sent: Time,
        /// Whether it is active, and the others are to stay awake.
        active: bool,
        /// In which of its starts: the clock of another may have shown anything.
        incarnation: u64,
    },
    /// It has one.
    Grant {
        /// Of the question.
        sent: Time,
        /// Of the question.
        incarnation: u64,
    },
}

/// What is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// Of the registry's replication.
    Paxos(paxos::Record),
    /// The replica has started so often.
    Started(u64),
}

/// What the owner tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// All shards of this shadow replica have everything ([`crate::Output::Complete`]).
    Complete {
        /// The epoch in which they followed.
        epoch: Epoch,
    },
    /// The cluster is configured so.
    Configure(Configured),
    /// The owner has use of the replica, or waits for others; it need not say so more often than
    /// [`ReliableMembership::wants_use`].
    Use,
}

/// Who should hold keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Configured {
    /// As of this version of the cluster's configuration.
    pub version: u64,
    /// These should.
    pub nodes: BTreeSet<NodeId>,
    /// These should not, and may be wanted again: they stay replicas of the registry, as nobody who
    /// has gone from these comes again.
    pub may_return: BTreeSet<NodeId>,
}

/// What the owner is told, and tells all shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// An m-update: [`crate::Command::Install`].
    Install(Membership),
    /// A lease: [`crate::Command::Lease`].
    Lease {
        /// When it ends, by the own clock.
        until: Time,
    },
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// Of the registry's replication.
    Paxos(paxos::Timer),
    /// To ask for a lease, and to look who is silent.
    Beat,
}

/// A request to the registry that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct UnderWay {
    sequence: u64,
    wish: Wish,
}

/// One replica of the reliable membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReliableMembership {
    pub(crate) me: NodeId,
    pub(crate) options: Options,
    fault: Fault,
    pub(crate) paxos: Paxos<Registry>,
    pub(crate) incarnation: u64,
    /// Whether all that this replica acknowledged is on its disk.
    pub(crate) holds: bool,
    pub(crate) leases: Leases,
    /// Whom it speaks with before it knows who the replicas of the registry are.
    guides: BTreeSet<NodeId>,
    /// Who should hold keys, as far as the owner knows.
    pub(crate) configured: Configured,
    pub(crate) heard: BTreeMap<NodeId, Time>,
    /// Told to the owner.
    told: Epoch,
    pub(crate) complete: Option<Epoch>,
    client: Option<ClientId>,
    sequence: u64,
    under_way: Option<UnderWay>,
    pub(crate) attention: Attention,
    /// An earlier beat has been replaced.
    beats_at: Time,
    /// Whether a timer of the registry's replica is withheld.
    withheld: bool,
}

/// The only group of the registry.
const GROUP: GroupId = GroupId(0);

impl ReliableMembership {
    /// One of the replicas that are voters and members at `first`; or another, which becomes one
    /// when it should hold keys, and then is told by those. `seed` must differ between any two
    /// starts of replicas.
    pub fn new(me: NodeId, first: &BTreeSet<NodeId>, options: Options, seed: u64) -> Self {
        let members = first.iter().map(|node| (*node, String::new())).collect();
        let comes_later = !first.contains(&me);
        let registry = Registry::new(first.iter().filter(|_| !comes_later).copied().collect());
        let guides = first.iter().filter(|_| comes_later).copied().collect();
        let configuration = Configuration { members };
        let paxos = Paxos::new(GROUP.of(me), configuration, options.paxos.clone(), registry, seed);
        ReliableMembership {
            me,
            options,
            fault: Fault::Correct,
            paxos,
            incarnation: 0,
            holds: false,
            leases: Leases::default(),
            guides,
            configured: Configured::default(),
            heard: BTreeMap::new(),
            told: Epoch(0),
            complete: None,
            client: None,
            sequence: 0,
            under_way: None,
            attention: Attention::default(),
            beats_at: Time(0),
            withheld: false,
        }
    }

    /// The same with a planted bug.
    ///
    /// # Panics
    /// In a release build, which contains none.
    #[doc(hidden)]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        assert!(PLANTED_BUGS || fault == Fault::Correct, "a release build has no bug planted");
        self.fault = fault;
        self.paxos = self.paxos.with_service(|registry| registry.with_fault(fault));
        self
    }

    /// Whether the replica, with all its shards, has found all on its disk that it acknowledged
    /// ([`crate::Hermes::holds`]); to be said before [`Event::Started`].
    pub fn set_holds(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// What is decided of the members, as far as is known here.
    pub fn registry(&self) -> &Registry {
        self.paxos.service()
    }

    /// Whether nothing relies on this node any more: it should hold no keys, and is no replica of
    /// the registry. What it was asked by others it has told them.
    pub fn has_left(&self) -> bool {
        let (registry, me) = (self.paxos.service(), self.me);
        let dispensable = registry.is_dispensable(me) && !self.is_replica();
        self.has_stopped() || dispensable || self.never_came()
    }

    /// Whether nothing relies on this node for keys: it should hold none, holds none, and does not
    /// vote. Until it [has left](ReliableMembership::has_left) it may be wanted again.
    pub fn is_released(&self) -> bool {
        self.has_left() || self.paxos.service().is_dispensable(self.me)
    }

    /// Whether this node should hold keys, as far as the owner knows.
    pub fn should_hold(&self) -> bool {
        let Configured { version, nodes, .. } = &self.configured;
        *version == 0 || nodes.contains(&self.me)
    }

    fn is_replica(&self) -> bool {
        self.paxos.open_members().any(|members| members.contains(self.me))
    }

    /// Whether this node should hold no keys, and knows of none that it ever held.
    fn never_came(&self) -> bool {
        let begun = self.paxos.service().members().epoch >= Epoch::FIRST;
        !self.should_hold() && !begun
    }

    fn has_stopped(&self) -> bool {
        self.paxos.stopped() == Some(&Stopped::Removed)
    }

    /// Whether it leads the registry.
    pub fn is_leading(&self) -> bool {
        self.paxos.is_leading()
    }

    /// Whether [`Command::Use`] would make a difference.
    pub fn wants_use(&self, now: Time) -> bool {
        self.attention.wants_use(now, &self.options)
    }

    /// Whether it asks for no leases, because nobody uses it or others.
    pub fn is_dozing(&self) -> bool {
        self.attention.dozes
    }

    pub(crate) fn is(&self, fault: Fault) -> bool {
        PLANTED_BUGS && self.fault == fault
    }

    fn step_paxos(&mut self, now: Time, event: Event<Paxos<Registry>>, out: &mut Outbox<Self>) {
        let mut inner = Outbox::new();
        self.paxos.step(now, event, &mut inner);
        let mut said = Within { said: Vec::new() };
        out.absorb(&mut inner, &mut said);
        for output in said.said {
            self.on_output(output);
        }
        self.look_at_registry(out);
    }

    fn on_output(&mut self, output: paxos::Output) {
        match output {
            paxos::Output::Connected { client, .. } => self.client = Some(client),
            paxos::Output::Reply { sequence, answer, .. } => {
                let ours = self.under_way.take_if(|under_way| under_way.sequence == sequence);
                if ours.is_some() && answer == paxos::Answer::Forgotten {
                    self.client = None;
                }
            }
            paxos::Output::Read { .. }
            | paxos::Output::Members(_)
            | paxos::Output::View { .. }
            | paxos::Output::Recovered
            | paxos::Output::Stopped(_) => {}
        }
    }

    /// Tells the owner what has changed, unless it is about an earlier start of this replica.
    fn look_at_registry(&mut self, out: &mut Outbox<Self>) {
        let registry = self.paxos.service();
        let members = registry.members();
        self.leases.follow(registry.changes());
        let ours = registry.has_joined(self.me, self.incarnation) || self.told > Epoch(0);
        if members.epoch > self.told && ours {
            if self.told < Epoch::FIRST && !self.holds && members.live.contains(&self.me) {
                // One of the first members, which has missed that, or one that begins with nothing:
                // nothing was committed without it.
                let mut live = registry.voters().clone();
                live.insert(self.me);
                let first = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
                out.output(Output::Install(first));
            }
            self.told = members.epoch;
            out.output(Output::Install(members.clone()));
        }
    }

    /// Whether what this start of the node has asked first is executed: all that it said before
    /// then is, too.
    pub(crate) fn is_known(&self) -> bool {
        self.paxos.service().knows(self.me, self.incarnation)
    }

    /// The replicas of the registry, also those that come or go.
    pub fn replicas(&self) -> BTreeSet<NodeId> {
        self.paxos.open_members().flat_map(|members| members.members.keys().copied()).collect()
    }

    /// Whether no lease can be in use any more that this voter has granted.
    pub(crate) fn has_expired(&self, now: Time, node: NodeId) -> bool {
        self.leases.has_expired(now, node, &self.options) || self.is(Fault::BreaksGrants)
    }

    /// Whether the others are to stay awake.
    fn is_active(&self, now: Time) -> bool {
        let registry = self.paxos.service();
        self.attention.is_used(now, &self.options)
            || self.under_way.is_some()
            || !registry.may_serve(self.me)
            || registry.awaited_of(self.me).next().is_some()
            || self.wish(now).is_some()
    }

    fn on_beat(&mut self, now: Time, out: &mut Outbox<Self>) {
        if now < self.beats_at || self.has_stopped() {
            return; // It was awakened since, or has nothing to do any more.
        }
        let active = self.is_active(now);
        if active {
            self.attention.stir(now, &self.options);
        }
        let doze = self.attention.may_doze(now, &self.options);
        self.attention.dozes = doze.is_some();
        self.beats_at = now + doze.unwrap_or(self.options.beat);
        out.timer(self.beats_at, Timer::Beat);
        if std::mem::take(&mut self.withheld) {
            self.paxos.resume(now);
            self.step_paxos(now, Event::Timer(paxos::Timer::Tick), out);
        }
        if doze.is_none() {
            let incarnation = self.incarnation;
            for other in self.others() {
                out.send(other, Message::Ask { sent: now, active, incarnation });
            }
            self.ask_registry(now, out);
        }
    }

    /// Who is to hear that it is there: voters, and whoever leads the registry or may.
    fn others(&self) -> BTreeSet<NodeId> {
        if self.never_came() && !self.is_replica() {
            return BTreeSet::new(); // Nobody is to wait for it, and it will be gone.
        }
        let mut others = self.replicas();
        others.extend(self.paxos.service().voters());
        if !others.contains(&self.me) {
            others.extend(&self.guides);
        }
        others
    }

    fn on_configure(&mut self, configured: Configured) {
        if configured.version > self.configured.version {
            let nodes = configured.nodes.iter().copied();
            self.guides = nodes.filter(|node| *node != self.me).collect();
            self.paxos.guide(self.guides.clone());
            self.configured = configured;
        }
    }

    /// What is due at the next beat is done now.
    fn beat_at_once(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.beats_at = now;
        self.on_beat(now, out);
    }

    fn on_use(&mut self, now: Time, out: &mut Outbox<Self>) {
        let was_used = self.attention.is_used(now, &self.options);
        self.attention.use_at(now);
        if self.attention.dozes || !was_used {
            self.beat_at_once(now, out);
        }
    }

    fn ask_registry(&mut self, now: Time, out: &mut Outbox<Self>) {
        let Some(client) = self.client else {
            let connect = paxos::Command::Connect { token: 0 };
            return self.step_paxos(now, Event::Command(connect), out);
        };
        if self.under_way.is_none() {
            let Some(wish) = self.wish(now) else { return };
            self.sequence += 1;
            self.under_way = Some(UnderWay { sequence: self.sequence, wish });
        }
        let Some(UnderWay { sequence, wish }) = &self.under_way else { return };
        let command = wish.command(client, *sequence);
        self.step_paxos(now, Event::Command(command), out);
    }

    fn on_ask(
        &mut self,
        now: Time,
        from: NodeId,
        (sent, incarnation, active): (Time, u64, bool),
        out: &mut Outbox<Self>,
    ) {
        self.heard.insert(from, now);
        if active {
            self.attention.stir(now, &self.options);
            if self.attention.dozes {
                self.beat_at_once(now, out);
            }
        }
        let knows = self.is_known() || self.is(Fault::GrantsAtOnce);
        if knows && self.paxos.service().may_serve(from) && !self.has_stopped() {
            self.leases.grant(now, from);
            out.send(from, Message::Grant { sent, incarnation });
        }
    }

    fn on_grant(&mut self, now: Time, from: NodeId, sent: Time, out: &mut Outbox<Self>) {
        let until = if self.is(Fault::StretchesLease) {
            now + self.options.lease * 4
        } else {
            sent + self.options.used()
        };
        self.leases.hold(from, until);
        // What it has executed before may be of voters long ago.
        if self.is_known() {
            let any = self.is(Fault::CountsAnyGrant);
            let lease = self.leases.by(self.paxos.service().voters(), any);
            if let Some(until) = lease {
                self.leases.tell(until);
                out.output(Output::Lease { until });
            }
        }
    }

    fn on_started(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.incarnation += 1;
        out.persist(Record::Started(self.incarnation));
        self.leases.start(now, &self.options);
        for node in self.paxos.service().voters() {
            self.heard.insert(*node, now);
        }
        self.step_paxos(now, Event::Started, out);
        self.on_beat(now, out);
    }
}

impl Process for ReliableMembership {
    type Peer = NodeId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Started => self.on_started(now, out),
            Event::Message { from, message: Message::Paxos(message) } => {
                let from = GROUP.of(from);
                self.step_paxos(now, Event::Message { from, message }, out);
            }
            Event::Message { from, message: Message::Ask { sent, active, incarnation } } => {
                self.on_ask(now, from, (sent, incarnation, active), out);
            }
            Event::Message { from, message: Message::Grant { sent, incarnation } } => {
                if incarnation == self.incarnation {
                    self.on_grant(now, from, sent, out);
                }
            }
            Event::Command(Command::Complete { epoch }) => self.complete = Some(epoch),
            Event::Command(Command::Configure(configured)) => self.on_configure(configured),
            Event::Command(Command::Use) => self.on_use(now, out),
            Event::Timer(Timer::Paxos(paxos::Timer::Tick)) if self.attention.dozes => {
                self.withheld = true;
            }
            Event::Timer(Timer::Paxos(timer)) => self.step_paxos(now, Event::Timer(timer), out),
            Event::Timer(Timer::Beat) => self.on_beat(now, out),
            Event::Restarted(peer) => {
                self.step_paxos(now, Event::Restarted(GROUP.of(peer)), out);
            }
            Event::Idle => self.step_paxos(now, Event::Idle, out),
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Paxos(record) => self.paxos.replay(record),
            Record::Started(incarnation) => self.incarnation = self.incarnation.max(incarnation),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let started = std::iter::once(Record::Started(self.incarnation));
        Box::new(started.chain(self.paxos.checkpoint().map(Record::Paxos)))
    }
}

/// The registry's replication, as seen from outside.
struct Within {
    said: Vec<paxos::Output>,
}

impl Embedding<Paxos<Registry>, ReliableMembership> for Within {
    fn message(&mut self, to: ProcessId, message: paxos::Message) -> (NodeId, Message) {
        (to.node, Message::Paxos(message))
    }

    fn record(&mut self, record: paxos::Record) -> Record {
        Record::Paxos(record)
    }

    fn timer(&mut self, timer: paxos::Timer) -> Timer {
        Timer::Paxos(timer)
    }

    fn output(&mut self, output: paxos::Output, _: &mut Outbox<ReliableMembership>) {
        self.said.push(output);
    }
}
