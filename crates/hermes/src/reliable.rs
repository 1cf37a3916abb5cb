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
//! A voter that starts again has forgotten its grants; it first waits as long as any may last.
//! Nobody waits for a change of the Paxos leader, or to add a replica.

use crate::attention::Attention;
use crate::members::{Epoch, Membership};
use crate::registry::{Registry, Request};
use meridian_core::{
    ClientId, Embedding, Event, GroupId, NodeId, Outbox, PLANTED_BUGS, Process, ProcessId, Time,
};
use meridian_paxos::{self as paxos, ClientIds, Configuration, Paxos, Routing};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use crate::attention::Doze;

/// How long leases last, and how silence is judged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// How long a grant lasts. Together with `suspect_after` it bounds how long writes stand still
    /// when a replica has died.
    pub lease: Duration,
    /// How often a lease is asked for: some times in a lease, so that one lost message costs none.
    pub beat: Duration,
    /// A member that asks for nothing so long is suspected; some beats.
    pub suspect_after: Duration,
    /// By how much a clock may run fast or slow, in parts of a million.
    pub drift_ppm: u32,
    /// When a replica that nobody uses dozes; never, if there is nothing here.
    pub doze: Option<Doze>,
    /// Of the registry's replication.
    pub paxos: paxos::Options,
}

impl Default for Options {
    fn default() -> Self {
        let ms = Duration::from_millis;
        let paxos = paxos::Options {
            routing: Routing::Forward,
            client_ids: ClientIds::Counted,
            heartbeat: ms(20),
            suspect_after: ms(80),
            retransmit: ms(40),
            ..paxos::Options::default()
        };
        Options {
            lease: ms(60),
            beat: ms(10),
            suspect_after: ms(40),
            drift_ppm: 2_000,
            doze: Some(Doze { after: ms(1_000), beat: ms(2_000) }),
            paxos,
        }
    }
}

impl Options {
    fn drift(&self) -> Duration {
        self.lease * self.drift_ppm / 1_000_000
    }

    /// How long a replica uses a grant, from when it asked, by its clock.
    fn used(&self) -> Duration {
        self.lease.saturating_sub(self.drift())
    }

    /// How long a voter must wait, from when it granted, by its own.
    fn lasts(&self) -> Duration {
        self.lease + self.drift()
    }
}

/// A bug planted in the membership, for the tests of the checkers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None.
    #[default]
    Correct,
    /// Says at once that grants have run out.
    BreaksGrants,
    /// Uses a grant from when it has come, and for longer than it was given.
    StretchesLease,
    /// Takes the silence of those that have dozed for that of dead ones (against W1).
    SuspectsDozing,
}

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
    /// The owner has use of the replica, or waits for others; it need not say so more often than
    /// [`ReliableMembership::wants_use`].
    Use,
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
    request: Request,
}

/// One replica of the reliable membership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReliableMembership {
    me: NodeId,
    options: Options,
    fault: Fault,
    paxos: Paxos<Registry>,
    incarnation: u64,
    /// Whether all that this replica acknowledged is on its disk.
    holds: bool,
    /// When each was granted a lease last, by the own clock.
    granted: BTreeMap<NodeId, Time>,
    /// Grants of an earlier start may last until then.
    forgotten_until: Time,
    /// Until when each voter's grant may be used.
    held: BTreeMap<NodeId, Time>,
    heard: BTreeMap<NodeId, Time>,
    /// Told to the owner.
    told: Epoch,
    complete: Option<Epoch>,
    client: Option<ClientId>,
    sequence: u64,
    under_way: Option<UnderWay>,
    attention: Attention,
    /// An earlier beat has been replaced.
    beats_at: Time,
    /// Whether a timer of the registry's replica is withheld.
    withheld: bool,
}

/// The only group of the registry.
const GROUP: GroupId = GroupId(0);

impl ReliableMembership {
    /// One of these replicas, which are voters and the first members. `seed` must differ between
    /// any two starts of replicas.
    pub fn new(me: NodeId, voters: &BTreeSet<NodeId>, options: Options, seed: u64) -> Self {
        let members = voters.iter().map(|node| (*node, String::new())).collect();
        let registry = Registry::new(voters.clone());
        let configuration = Configuration { members };
        let paxos = Paxos::new(GROUP.of(me), configuration, options.paxos.clone(), registry, seed);
        ReliableMembership {
            me,
            options,
            fault: Fault::Correct,
            paxos,
            incarnation: 0,
            holds: false,
            granted: BTreeMap::new(),
            forgotten_until: Time(0),
            held: BTreeMap::new(),
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

    fn is(&self, fault: Fault) -> bool {
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
        let ours = registry.has_joined(self.me, self.incarnation) || self.told > Epoch(0);
        if members.epoch > self.told && ours {
            if self.told < Epoch::FIRST && !self.holds && members.live.contains(&self.me) {
                // One of the first members, which has missed that, or one that begins with nothing:
                // nothing was committed without it.
                let live = registry.voters().clone();
                let first = Membership { epoch: Epoch::FIRST, live, ..Membership::default() };
                out.output(Output::Install(first));
            }
            self.told = members.epoch;
            out.output(Output::Install(members.clone()));
        }
    }

    /// What is to be asked of the registry now.
    fn wanted(&self, now: Time) -> Option<Request> {
        let (registry, node) = (self.paxos.service(), self.me);
        let members = registry.members();
        if !registry.has_joined(node, self.incarnation) {
            let (incarnation, holds) = (self.incarnation, self.holds);
            return Some(Request::Join { node, incarnation, holds });
        }
        // Before its own wish, which may wait for that: a suspended replica does not become live.
        let over = |(node, _): &(NodeId, u64)| self.has_expired(now, *node);
        if let Some((node, suspension)) = registry.awaited_of(self.me).find(over) {
            return Some(Request::Expired { voter: self.me, node, suspension });
        }
        let follows =
            |epoch: &Epoch| members.shadows.get(&node).is_some_and(|since| since <= epoch);
        if let Some(epoch) = self.complete.filter(follows) {
            return Some(Request::Complete { node, epoch });
        }
        if !self.paxos.is_leading() {
            return None;
        }
        let dozed = self.is(Fault::SuspectsDozing).then_some(Time(0));
        let since = dozed.or(self.attention.since(now, &self.options))?;
        let silent = |node: &&NodeId| {
            let heard = self.heard.get(node).copied().unwrap_or_default().max(since);
            now.since(heard) > self.options.suspect_after && registry.may_suspect(**node)
        };
        let mut others = members.live.iter().chain(members.shadows.keys());
        let node = *others.find(|node| **node != self.me && silent(node))?;
        Some(Request::Suspect { node, epoch: members.epoch })
    }

    /// Whether no lease can be in use any more that this voter has granted.
    fn has_expired(&self, now: Time, node: NodeId) -> bool {
        let granted = self.granted.get(&node).map(|granted| *granted + self.options.lasts());
        let over = now >= self.forgotten_until && granted.is_none_or(|until| now >= until);
        over || self.is(Fault::BreaksGrants)
    }

    /// Whether the others are to stay awake.
    fn is_active(&self, now: Time) -> bool {
        let registry = self.paxos.service();
        self.attention.is_used(now, &self.options)
            || self.under_way.is_some()
            || !registry.may_serve(self.me)
            || registry.awaited_of(self.me).next().is_some()
            || self.wanted(now).is_some()
    }

    fn on_beat(&mut self, now: Time, out: &mut Outbox<Self>) {
        if now < self.beats_at {
            return; // It was awakened since.
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
            for voter in self.paxos.service().voters() {
                out.send(*voter, Message::Ask { sent: now, active, incarnation });
            }
            self.ask_registry(now, out);
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
            let Some(request) = self.wanted(now) else { return };
            self.sequence += 1;
            self.under_way = Some(UnderWay { sequence: self.sequence, request });
        }
        let Some(UnderWay { sequence, request }) = &self.under_way else { return };
        let payload = postcard::to_stdvec(request).expect("writing to memory");
        let command = paxos::Command::execute(client, *sequence, payload);
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
        if self.paxos.service().may_serve(from) {
            self.granted.insert(from, now);
            out.send(from, Message::Grant { sent, incarnation });
        }
    }

    fn on_grant(&mut self, now: Time, from: NodeId, sent: Time, out: &mut Outbox<Self>) {
        let until = if self.is(Fault::StretchesLease) {
            now + self.options.lease * 4
        } else {
            sent + self.options.used()
        };
        let held = self.held.entry(from).or_default();
        *held = until.max(*held);
        let majority = self.paxos.service().voters().len() / 2;
        let mut all: Vec<_> = self.held.values().copied().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        // As late as a majority allows.
        if let Some(until) = all.get(majority) {
            out.output(Output::Lease { until: *until });
        }
    }

    fn on_started(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.incarnation += 1;
        out.persist(Record::Started(self.incarnation));
        self.forgotten_until = now + self.options.lasts();
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
