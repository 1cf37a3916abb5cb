//! The process: all parts of a replica, and who handles what.

use crate::batch::Batch;
use crate::configuration::{ALPHA, Configuration, Configurations};
use crate::log::Log;
use crate::machine::Machine;
use crate::message::{Beat, Command, Epochs, Message, Output, Record, Stopped, Timer, Vote};
use crate::mutation::Mutation;
use crate::options::{Options, Recovery};
use crate::service::Service;
use crate::state::catch_up::CatchUp;
use crate::state::detector::Detector;
use crate::state::proposer::Proposer;
use crate::state::reads::Reads;
use crate::state::recovery::Recovering;
use crate::state::requests::Requests;
use crate::status::Phase;
use crate::status::Status;
use crate::view::{Instance, View};
use bytes::Bytes;
use meridian_core::{Event, GroupId, NodeId, Outbox, PLANTED_BUGS, Process, ProcessId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// A replica of a service `S`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Paxos<S> {
    pub(crate) me: NodeId,
    group: GroupId,
    pub(crate) options: Options,
    pub(crate) mutation: Mutation,
    /// Tells its starts apart.
    pub(crate) seed: u64,
    pub(crate) phase: Phase,
    pub(crate) view: View,
    /// Its own epoch, and those of all that it knows.
    pub(crate) epoch: u64,
    pub(crate) epochs: Epochs,
    pub(crate) log: Log,
    pub(crate) machine: Machine<S>,
    /// What it has as leader of its view, until it steps down.
    pub(crate) proposer: Option<Proposer>,
    pub(crate) detector: Detector,
    pub(crate) requests: Requests,
    pub(crate) reads: Reads,
    pub(crate) catch_up: CatchUp,
    /// Whom it speaks with: the members of all open instances but itself.
    pub(crate) peers: Vec<NodeId>,
    /// Found on disk.
    found: Option<(NodeId, Recovery)>,
    /// What was said of decisions on disk.
    noted: Instance,
}

impl<S: Service> Paxos<S> {
    /// A replica that has nothing on its disk yet.
    ///
    /// `configuration` are the members that the service begins with; for a replica that comes
    /// later, others that are members now and not itself: it begins with a snapshot of one of them,
    /// and is none until it is added ([`crate::Change`]). At later starts it need only name some
    /// that are members now. `seed` must differ between any two starts of replicas.
    ///
    /// # Panics
    /// If the options contradict each other: see [`Options::validate`].
    pub fn new(
        me: ProcessId,
        configuration: Configuration,
        options: Options,
        service: S,
        seed: u64,
    ) -> Paxos<S> {
        options.validate().unwrap_or_else(|error| panic!("{error}"));
        let comes_later = !configuration.contains(me.node);
        let guides = configuration.members.keys().filter(|_| comes_later).copied().collect();
        Paxos {
            me: me.node,
            group: me.group,
            options,
            mutation: Mutation::Correct,
            seed,
            phase: Phase::New,
            view: View::NONE,
            epoch: 0,
            epochs: Epochs::new(),
            log: Log::default(),
            machine: Machine::new(service, Configurations::new(configuration), comes_later),
            proposer: None,
            detector: Detector::default(),
            requests: Requests::default(),
            reads: Reads::default(),
            catch_up: CatchUp { guides, ..CatchUp::default() },
            peers: Vec::new(),
            found: None,
            noted: Instance(0),
        }
    }

    /// The same with a planted bug.
    ///
    /// # Panics
    /// In a release build, which contains none ([`meridian_core::PLANTED_BUGS`]).
    #[doc(hidden)]
    pub fn with_mutation(mut self, mutation: Mutation) -> Paxos<S> {
        assert!(
            PLANTED_BUGS || mutation == Mutation::Correct,
            "a release build has no bug planted"
        );
        self.mutation = mutation;
        self
    }

    /// The same with another service in the place of its own.
    #[doc(hidden)]
    pub fn with_service(mut self, other: impl FnOnce(S) -> S) -> Paxos<S> {
        self.machine = self.machine.with_service(other);
        self
    }

    /// Others may know more now than those with whom a replica that comes later began.
    pub fn guide(&mut self, others: impl IntoIterator<Item = NodeId>) {
        self.catch_up.guides = others.into_iter().collect();
    }

    /// The service, as far as it has executed.
    pub fn service(&self) -> &S {
        self.machine.service()
    }

    /// Whether clients are not to be read for now: too much waits, or the log is too long.
    pub fn is_full(&self) -> bool {
        self.requests.bytes() > self.options.queue_bytes_max
            || self.log.bytes() > self.options.log_bytes_max
    }

    /// What it tells of itself.
    pub fn status(&self) -> Status {
        let next = self.machine.next();
        Status {
            node: self.me,
            view: self.view,
            leading: self.is_leading(),
            active: self.phase == Phase::Active,
            stopped: self.stopped().cloned(),
            executed: next,
            position: self.machine.position(),
            log_bytes: self.log.bytes(),
            under_way: self.proposer.as_ref().map_or(0, |p| p.next.0.saturating_sub(next.0)),
            members: self.machine.configurations().last().clone(),
        }
    }

    /// Why it serves no more, if it does not.
    pub fn stopped(&self) -> Option<&Stopped> {
        match &self.phase {
            Phase::Stopped(stopped) => Some(stopped),
            _ => None,
        }
    }

    /// The members of all instances that are open here: a majority of each must keep its memory.
    pub fn open_members(&self) -> impl Iterator<Item = &Configuration> + '_ {
        self.machine.configurations().since(self.machine.next())
    }

    /// The digest of all replies until now: equal at replicas that have executed equally many
    /// requests.
    pub fn digest(&self) -> u64 {
        self.machine.chain()
    }

    /// The decisions that are in its log, also those that are not executed yet.
    pub fn decisions(&self) -> impl Iterator<Item = (Instance, &Batch)> + '_ {
        let decided = self.log.since(Instance(0)).filter(|(_, entry)| entry.decided);
        decided.filter_map(|(instance, entry)| Some((instance, &entry.vote.as_ref()?.1)))
    }

    /// The first instance that is in its log: all before are in a snapshot.
    pub fn log_base(&self) -> Instance {
        self.log.base()
    }

    /// Whether it leads its view and has finished Phase 1.
    pub fn is_leading(&self) -> bool {
        self.proposer.as_ref().is_some_and(|proposer| proposer.prepared)
    }

    /// Whether it was a member and is none any more: it has executed all instances that it was
    /// asked for.
    pub(crate) fn is_removed(&self) -> bool {
        self.phase == Phase::Stopped(Stopped::Removed)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Whether it is a member of the next instance to be decided.
    pub(crate) fn is_member(&self) -> bool {
        self.members().contains(self.me)
    }

    /// The members of the next instance to be decided.
    pub(crate) fn members(&self) -> &Configuration {
        self.members_of(self.machine.next())
    }

    /// The members of an instance less than [`ALPHA`] after the next to be decided.
    pub(crate) fn members_of(&self, instance: Instance) -> &Configuration {
        if self.mutation.is(Mutation::ConfiguresAtOnce) {
            return self.machine.configurations().last();
        }
        self.machine.configurations().of(instance)
    }

    /// Whether what is said of this instance can be judged and is worth keeping.
    pub(crate) fn is_near(&self, instance: Instance) -> bool {
        let next = self.machine.next();
        instance >= next && instance.0 < next.0 + ALPHA
    }

    pub(crate) fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Self>) {
        out.send(ProcessId { group: self.group, node: to }, message);
    }

    pub(crate) fn broadcast(&self, message: &Message, out: &mut Outbox<Self>) {
        for peer in &self.peers {
            self.send(*peer, message.clone(), out);
        }
    }

    /// What the leader says of itself.
    pub(crate) fn beat(&self, now: Time) -> Beat {
        Beat { sent: now, decided: self.machine.next(), digest: self.machine.digest() }
    }

    fn tick_after(&self) -> Duration {
        self.options.heartbeat.min(self.options.retransmit) / 2
    }

    fn on_started(&mut self, now: Time, out: &mut Outbox<Self>) {
        let ours = (self.me, self.options.recovery);
        if let Phase::Stopped(stopped) = &self.phase {
            return out.output(Output::Stopped(stopped.clone())); // Replay has found something.
        }
        if let Some(found) = self.found.filter(|found| *found != ours) {
            return self.stop(Stopped::Foreign { found, wanted: ours }, out);
        }
        self.meet_members(out);
        if self.is_removed() {
            return;
        }
        let again = self.found.is_some();
        if !again {
            out.persist(Record::Started { node: self.me, recovery: self.options.recovery });
            if self.options.recovery == Recovery::FullSs && !self.machine.is_blank() {
                // Who the first members are.
                out.persist(Record::Snapshot(self.machine.checkpoint()));
            }
        }
        if self.options.recovery == Recovery::EpochSs {
            self.epoch += 1;
            self.epochs.insert(self.me, self.epoch);
            out.persist(Record::Epoch(self.epoch));
        }
        self.requests.start_identities(now, self.epoch, self.options.client_ids);
        self.detector.start(now, again, &self.options);
        let forgetful = self.options.recovery != Recovery::FullSs;
        if again && forgetful && !self.mutation.is(Mutation::RejoinsAtOnce) {
            if self.options.recovery == Recovery::CrashStop {
                return self.stop(Stopped::LostMemory, out);
            }
            self.phase = Phase::Recovering(Recovering::default());
            self.machine.begin_with_snapshot();
        } else if self.machine.is_blank() {
            self.phase = Phase::Joining;
        } else {
            self.take_part(out);
            self.execute(now, out);
        }
        self.on_tick(now, out);
    }

    fn on_tick(&mut self, now: Time, out: &mut Outbox<Self>) {
        match &self.phase {
            Phase::New | Phase::Stopped(_) => return,
            Phase::Joining => {}
            Phase::Recovering(_) => self.ask_for_memory(now, out),
            Phase::Active => {
                self.watch(now, out);
                self.propose_again(now, out);
                self.forward_again(now, out);
                self.ask_index_again(now, out);
            }
        }
        self.catch_up_on_tick(now, out);
        if self.log.bytes() > self.options.log_bytes_max {
            // It did not want one after any request; without one there will be no more requests.
            self.machine.ask_for_snapshot(&self.options, self.mutation, true);
        }
        self.truncate_log();
        out.timer(now + self.tick_after(), Timer::Tick);
    }

    /// All that it has promised and accepted is known here.
    pub(crate) fn take_part(&mut self, out: &mut Outbox<Self>) {
        self.phase = Phase::Active;
        // Also if its clock was set back.
        let last = self.machine.last_client_of(self.me);
        last.into_iter().for_each(|client| self.requests.skip_identity(client));
        out.output(Output::Recovered);
    }

    /// Serves no more.
    pub(crate) fn stop(&mut self, stopped: Stopped, out: &mut Outbox<Self>) {
        self.phase = Phase::Stopped(stopped.clone());
        self.proposer = None;
        self.requests = Requests::default();
        self.reads = Reads::default();
        out.output(Output::Stopped(stopped));
    }

    /// Goes to a later view.
    pub(crate) fn advance_view(&mut self, now: Time, view: View, out: &mut Outbox<Self>) {
        assert!(view > self.view, "{view} after {}", self.view);
        self.view = view;
        let kept = matches!(self.options.recovery, Recovery::FullSs | Recovery::ViewSs);
        if kept && !self.mutation.is(Mutation::ForgetsPromise) {
            out.persist(Record::View(view));
        }
        self.step_down(now, out);
        self.detector.waits_since(now);
    }

    /// Leads no more.
    pub(crate) fn step_down(&mut self, now: Time, out: &mut Outbox<Self>) {
        if self.proposer.take().is_some() {
            let leader = self.view.leader().filter(|leader| *leader != self.me);
            self.requests.lose_leadership(leader, &self.options, out);
            self.reads.lose_leadership(leader, out);
            self.detector.waits_since(now);
        }
        out.output(Output::View { view: self.view, leading: false });
    }

    /// `instance` is decided as voted here.
    pub(crate) fn decide(&mut self, instance: Instance) {
        let entry = self.log.entry(instance);
        debug_assert!(entry.vote.is_some(), "a decision without a value");
        entry.decided = true;
    }

    /// Learns from others that `instance` is decided with `batch`.
    pub(crate) fn learn(&mut self, instance: Instance, batch: Batch, out: &mut Outbox<Self>) {
        if instance < self.machine.next() {
            return;
        }
        let entry = self.log.entry(instance);
        if let (true, Some((_, ours))) = (entry.decided, &entry.vote) {
            assert!(*ours == batch, "two decisions for {instance:?}");
            return;
        }
        let view = match &entry.vote {
            Some((view, ours)) if *ours == batch => *view,
            // Greater than that of what was voted here and not decided.
            _ => self.view,
        };
        if self.options.recovery == Recovery::FullSs {
            let batch = batch.clone();
            out.note(Record::Accepted(Vote { instance, view, batch, decided: true }));
        }
        self.log.vote(instance, view, batch);
        self.decide(instance);
    }

    /// Executes what can be, and what follows from that.
    pub(crate) fn execute(&mut self, now: Time, out: &mut Outbox<Self>) {
        let before = self.machine.next();
        loop {
            let next = self.machine.next();
            let decided = |instance| self.log.get(instance).filter(|entry| entry.decided);
            let batch = match decided(next).and_then(|entry| entry.vote.as_ref()) {
                Some((_, batch)) => batch.clone(),
                None if self.mutation.is(Mutation::SkipsGaps) && decided(next.next()).is_some() => {
                    Batch::default()
                }
                None => break,
            };
            let Paxos { machine, requests, options, mutation, .. } = self;
            machine.execute(&batch, options, *mutation, &mut |client, sequence, answer| {
                requests.on_executed(client, sequence, answer, out);
            });
        }
        if self.machine.next() > before {
            self.after_execution(now, out);
        }
    }

    /// The state has moved on, by execution or by a snapshot.
    pub(crate) fn after_execution(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.truncate_log();
        if self.machine.take_members_changed() {
            self.meet_members(out);
        }
        self.answer_reads(out);
        self.confirm_reads(now, out);
        self.end_recovery(out);
        self.try_lead(now, out);
    }

    /// Forgets what only those need who are behind the snapshot before the last; of a log that is
    /// too long also what those need who are behind the last.
    fn truncate_log(&mut self) {
        if self.machine.snapshots.len() > 1 {
            self.log.truncate(self.machine.snapshots[0].instance);
        }
        if let Some(last) = self.machine.snapshots.back()
            && self.log.bytes() > self.options.log_bytes_max
        {
            self.log.truncate(last.instance);
        }
    }

    /// Learns who the members are.
    fn meet_members(&mut self, out: &mut Outbox<Self>) {
        let mut members = BTreeMap::new();
        for configuration in self.machine.configurations().since(self.machine.next()) {
            members.extend(configuration.members.iter().map(|(k, v)| (*k, v.clone())));
        }
        self.peers = members.keys().copied().filter(|node| *node != self.me).collect();
        out.output(Output::Members(members));
        if self.machine.configurations().is_gone(self.me) {
            self.stop(Stopped::Removed, out);
        }
    }

    fn on_message(&mut self, now: Time, from: NodeId, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Prepare(prepare) => self.on_prepare(now, from, &prepare, out),
            Message::PrepareOk(ok) => self.on_prepare_ok(now, from, ok, out),
            Message::Propose(propose) => self.on_propose(now, from, propose, out),
            Message::Accept(accept) => self.on_accept(now, from, &accept, out),
            Message::Alive(alive) => self.on_alive(now, from, &alive, out),
            Message::AliveOk(ok) => self.on_alive_ok(now, from, &ok, out),
            Message::Higher { view } => self.on_higher(now, view, out),
            Message::PreVote(question) => self.on_pre_vote(now, from, &question, out),
            Message::PreVoteOk { round } => self.on_pre_vote_ok(now, from, round, out),
            Message::CatchUpQuery(query) => self.on_query(from, &query, out),
            Message::CatchUpResponse(response) => self.on_response(now, from, response, out),
            Message::CatchUpSnapshot(snapshot) => self.on_snapshot(now, from, &snapshot, out),
            Message::Recovery(query) => self.on_recovery(now, from, &query, out),
            Message::RecoveryAnswer(answer) => self.on_recovery_answer(now, from, answer, out),
            Message::Forward(requests) => self.on_forward(now, requests),
            Message::ReadIndex { id } => self.on_read_index(now, from, id, out),
            Message::ReadIndexOk { id, index } => self.on_read_index_ok(id, index, out),
            Message::Gone => self.stop(Stopped::Removed, out),
        }
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Self>) {
        match command {
            Command::Connect { token } => self.on_connect(token, out),
            Command::Request(request) => self.on_request(now, request, out),
            Command::Read { token, question, consistency } => {
                self.on_read(now, token, question, consistency, out);
            }
            Command::Disconnected(client) => self.requests.disown(client),
        }
    }

    fn on_idle(&mut self, now: Time, out: &mut Outbox<Self>) {
        self.propose_ready(now, out);
        self.forward(now, out);
        self.ask_whether_leader(now, out);
        let next = self.machine.next();
        if self.options.recovery == Recovery::FullSs && self.noted < next {
            self.noted = next;
            out.note(Record::Decided(next));
        }
    }

    fn replay_decided(&mut self, upto: Instance) {
        while self.machine.next() < upto {
            let next = self.machine.next();
            let batch = match self.log.get(next).and_then(|entry| entry.vote.as_ref()) {
                Some((_, batch)) => batch.clone(),
                None => panic!("{next:?} is decided on disk, and its value is not there"),
            };
            self.decide(next);
            let Paxos { machine, options, mutation, .. } = self;
            machine.execute(&batch, options, *mutation, &mut |_, _, _| {});
        }
        self.truncate_log();
        self.noted = self.noted.max(upto);
    }
}

impl<S: Service> Process for Paxos<S> {
    type Peer = ProcessId;
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Output = Output;
    type Timer = Timer;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        // What it knows of the instances that it was a member of, others may still need.
        let query = matches!(event, Event::Message { message: Message::CatchUpQuery(_), .. });
        let heard = matches!(event, Event::Started) || (query && self.is_removed());
        if matches!(self.phase, Phase::Stopped(_)) && !heard {
            return;
        }
        match event {
            Event::Started => self.on_started(now, out),
            Event::Message { from, message } => self.on_message(now, from.node, message, out),
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Timer::Tick) => self.on_tick(now, out),
            // What follows every batch of events sends it.
            Event::Timer(Timer::Batch) => {}
            Event::Restarted(_) => self.send_all_again(),
            Event::Idle => self.on_idle(now, out),
        }
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Started { node, recovery } => self.found = Some((node, recovery)),
            Record::Epoch(epoch) => self.epoch = epoch,
            Record::View(view) => self.view = view,
            Record::Accepted(Vote { instance, view, batch, decided }) => {
                if instance >= self.machine.next() {
                    self.view = self.view.max(view);
                    self.log.vote(instance, view, batch);
                    self.log.entry(instance).decided |= decided;
                }
            }
            Record::Decided(upto) => self.replay_decided(upto),
            Record::Snapshot(bytes) => match self.machine.install(&bytes) {
                Ok(_) => self.log.truncate(self.machine.next()),
                Err(stopped) => self.phase = Phase::Stopped(stopped),
            },
            Record::Clients(upto) => self.requests.found_identities(upto),
        }
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Record> + Send> {
        let mut records = vec![Record::Started { node: self.me, recovery: self.options.recovery }];
        match self.options.recovery {
            Recovery::CrashStop => {}
            Recovery::EpochSs => records.push(Record::Epoch(self.epoch)),
            Recovery::ViewSs => records.push(Record::View(self.view)),
            Recovery::FullSs => {
                records.push(Record::View(self.view));
                records.push(Record::Clients(self.requests.identities_upto()));
                if !self.machine.is_blank() {
                    records.push(Record::Snapshot(self.machine.checkpoint()));
                }
                let next = self.machine.next();
                let votes = self.log.since(next).filter_map(|(instance, entry)| {
                    let (view, batch) = entry.vote.clone()?;
                    Some(Vote { instance, view, batch, decided: entry.decided })
                });
                records.extend(votes.map(Record::Accepted));
            }
        }
        Box::new(records.into_iter())
    }
}

/// The bytes of a change of the members, as the payload of a request of
/// [`crate::Kind::Reconfigure`].
pub fn change_payload(change: &crate::Change) -> Bytes {
    postcard::to_stdvec(change).expect("writing to memory").into()
}
