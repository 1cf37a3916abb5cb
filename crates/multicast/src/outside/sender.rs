//! A sender that is in no group, as a process: its peers are the members of all groups.

use super::{Failure, GIVE_UP_MAX, Mutation, PAYLOAD_MAX, Refusal, Say};
use crate::message::{Dest, Start, Timestamp, Touches};
use crate::options::Groups;
use bytes::Bytes;
use meridian_core::{ClientId, Event, GroupId, MessageId, Outbox, Process, ProcessId, Time, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

/// How long a member has to answer before another is asked, too: at first, and at most. A delivery
/// takes some round trips; a change of primary a second or so.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// After a connection broke or a member was busy, so long passes before another is asked.
const PAUSE: Duration = Duration::from_millis(50);

/// Names something that the owner waits for.
pub type CallId = u64;

/// A message to be multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The groups that it goes to, in any order; if a member multicasts it, its own must be among
    /// them.
    pub dest: Vec<GroupId>,
    /// What it says; [`PAYLOAD_MAX`] bytes at most.
    pub payload: Bytes,
    /// What it must be ordered with.
    pub touches: Touches,
    /// Its timestamp is to be greater than this.
    pub after: Timestamp,
}

/// What the owner asks.
#[derive(Clone, Debug)]
pub enum Command {
    /// Multicast this; [`Output`] tells what came of it.
    Multicast {
        /// To be given back; of no other call under way.
        call: CallId,
        /// The message.
        message: Outgoing,
        /// After so long it is given up: [`GIVE_UP_MAX`] at most.
        give_up_after: Duration,
    },
}

/// What came of a call: once it is delivered, its final timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The call, which is over.
    pub call: CallId,
    /// What came of it.
    pub outcome: Result<Timestamp, Failure>,
}

/// What a timer is for: something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Due;

#[derive(Clone, Debug)]
struct Call {
    start: Start,
    /// Those that may be asked, in order, and the next of them.
    members: Vec<ProcessId>,
    turn: usize,
    /// Those that were asked, and have not said that they did not pass it on.
    asked: BTreeSet<ProcessId>,
    /// One of those asked cannot say so any more: the connection broke.
    lost: bool,
    /// What the last refusal said.
    refusal: Option<Failure>,
    /// When the next is asked, and when it is given up.
    again: Time,
    patience: Duration,
    deadline: Time,
}

impl Call {
    /// Whether a member may have passed it on.
    fn may_be_under_way(&self) -> bool {
        self.lost || !self.asked.is_empty()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Sender {
    groups: Groups,
    seed: u64,
    /// How many names were drawn.
    drawn: u64,
    client: ClientId,
    sequence: u64,
    calls: BTreeMap<CallId, Call>,
    by_id: BTreeMap<MessageId, CallId>,
    /// The member of each group that answered last.
    answered: BTreeMap<GroupId, ProcessId>,
    /// When the next timer comes, if one is set.
    armed: Option<Time>,
    mutation: Mutation,
}

impl Sender {
    /// A sender to these groups. No two senders may ever have the same seed, nor one before and
    /// after a restart: names are drawn from it.
    pub fn new(groups: Groups, seed: u64) -> Sender {
        let mut sender = Sender {
            groups,
            seed,
            drawn: 0,
            client: ClientId(0),
            sequence: 0,
            calls: BTreeMap::new(),
            by_id: BTreeMap::new(),
            answered: BTreeMap::new(),
            armed: None,
            mutation: Mutation::Correct,
        };
        sender.renew();
        sender
    }

    /// With a planted bug.
    #[doc(hidden)]
    pub fn with_mutation(self, mutation: Mutation) -> Sender {
        Sender { mutation, ..self }
    }

    /// How many calls are under way.
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Takes another name, which nobody has heard of.
    fn renew(&mut self) {
        self.drawn += 1;
        self.client = ClientId(mix(mix(self.seed) ^ self.drawn));
        self.sequence = 0;
    }

    fn on_command(&mut self, now: Time, command: Command, out: &mut Outbox<Sender>) {
        let Command::Multicast { call, mut message, give_up_after } = command;
        message.dest.sort_unstable();
        message.dest.dedup();
        if let Some(failure) = self.objection(&message) {
            return out.output(Output { call, outcome: Err(failure) });
        }
        self.sequence += 1;
        let id = MessageId { client: self.client, sequence: self.sequence };
        self.by_id.insert(id, call);
        let Outgoing { dest, payload, touches, after } = message;
        let low = self.low(id);
        let dest = Dest::from_vec(dest);
        let members = self.candidates(&dest, id);
        let start = Start { id, low, after, dest, touches, payload, config: None };
        let call_state = Call {
            start,
            members,
            turn: 0,
            asked: BTreeSet::new(),
            lost: false,
            refusal: None,
            again: now,
            patience: PATIENCE.0,
            deadline: now + give_up_after.min(GIVE_UP_MAX),
        };
        self.calls.insert(call, call_state);
        self.ask_next(now, call, out);
        self.arm(now, now + PATIENCE.0.min(give_up_after), out);
    }

    /// The lowest number under the present name that is waited for.
    fn low(&self, of: MessageId) -> u64 {
        let first = MessageId { client: of.client, sequence: 0 };
        self.by_id.range(first..=of).next().map_or(of.sequence, |(id, _)| id.sequence)
    }

    fn objection(&self, message: &Outgoing) -> Option<Failure> {
        let (dest, len) = (&message.dest, message.payload.len());
        let unknown = dest.iter().find(|group| !self.groups.contains_key(group));
        match (dest.first(), unknown) {
            (None, _) => Some(Failure::NoDestination),
            (_, Some(group)) => Some(Failure::NoGroup(*group)),
            _ if len > PAYLOAD_MAX => Some(Failure::TooLong(len)),
            _ => None,
        }
    }

    /// The members of the destinations, those first that answered last; which of the others come
    /// first differs from message to message.
    fn candidates(&self, dest: &[GroupId], id: MessageId) -> Vec<ProcessId> {
        let of = |group: &GroupId| {
            let group = *group;
            self.groups[&group].iter().map(move |node| ProcessId { group, node: *node })
        };
        let mut all: Vec<_> = dest.iter().flat_map(of).collect();
        let salt = mix(id.client.0);
        all.sort_by_key(|one| {
            let place = u64::from(one.group.0) << 16 | u64::from(one.node.0);
            (self.answered.get(&one.group) != Some(one), mix(salt ^ place))
        });
        all
    }

    /// Asks the next member for a call.
    fn ask_next(&mut self, now: Time, id: CallId, out: &mut Outbox<Sender>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if self.mutation.is(Mutation::RenamesRepeats) && call.turn > 0 {
            self.drawn += 1;
            let client = ClientId(mix(mix(self.seed) ^ self.drawn));
            call.start.id = MessageId { client, ..call.start.id };
            self.by_id.insert(call.start.id, id);
        }
        let to = call.members[call.turn % call.members.len()];
        call.turn += 1;
        call.asked.insert(to);
        call.again = now + call.patience;
        call.patience = (call.patience * 2).min(PATIENCE.1);
        out.send(to, Say::Start(call.start.clone()));
    }

    fn on_message(&mut self, now: Time, from: ProcessId, said: Say, out: &mut Outbox<Sender>) {
        match said {
            Say::Start(_) => {} // Members send none.
            Say::Delivered { id, ts } => {
                self.answered.insert(from.group, from);
                if let Some(call) = self.by_id.get(&id).copied() {
                    self.end(call, Ok(ts), out);
                }
            }
            Say::Refused { id, why } => {
                if let Some(call) = self.by_id.get(&id).copied() {
                    self.on_refused(now, from, call, why, out);
                }
            }
        }
    }

    fn on_refused(
        &mut self,
        now: Time,
        from: ProcessId,
        id: CallId,
        why: Refusal,
        out: &mut Outbox<Sender>,
    ) {
        self.answered.remove(&from.group);
        let believes = self.mutation.is(Mutation::BelievesRefusals);
        let Some(call) = self.calls.get_mut(&id) else { return };
        // It did not pass it on, unless an earlier connection to it broke: that is `lost`.
        call.asked.remove(&from);
        let failure = match why {
            Refusal::Unreachable(group) => Failure::Unreachable(group),
            Refusal::NoGroup(group) => Failure::NoGroup(group),
            // Its groups are others than ours, or it has no room: the next may do.
            Refusal::NotForUs | Refusal::Busy => Failure::Busy,
        };
        call.refusal = Some(failure);
        if failure != Failure::Busy && (believes || !call.may_be_under_way()) {
            return self.end(id, Err(failure), out);
        }
        call.again = call.again.min(now + PAUSE);
        self.arm(now, now + PAUSE, out);
    }

    /// The connection to a member broke: what was asked there may be passed on, or not.
    fn on_lost(&mut self, now: Time, member: ProcessId, out: &mut Outbox<Sender>) {
        if self.answered.get(&member.group) == Some(&member) {
            self.answered.remove(&member.group);
        }
        for call in self.calls.values_mut() {
            if call.asked.remove(&member) {
                call.lost = true;
                call.again = call.again.min(now + PAUSE);
            }
        }
        self.arm(now, now + PAUSE, out);
    }

    fn on_due(&mut self, now: Time, out: &mut Outbox<Sender>) {
        self.armed = self.armed.filter(|at| *at > now); // A later one may have been set before.
        let over: Vec<_> = self.calls.iter().filter(|(_, call)| call.deadline <= now).collect();
        let over: Vec<_> = over.into_iter().map(|(id, _)| *id).collect();
        for id in over {
            self.give_up(id, out);
        }
        let late = self.calls.iter().filter(|(_, call)| call.again <= now).map(|(id, _)| *id);
        for id in late.collect::<Vec<_>>() {
            self.ask_next(now, id, out);
        }
        let due = self.calls.values().map(|call| call.again.min(call.deadline)).min();
        if let Some(due) = due {
            self.arm(now, due, out);
        }
    }

    /// Nobody asks for it any more. If it may be under way, messages of this name must not say that
    /// it is over: so the next have another name.
    fn give_up(&mut self, id: CallId, out: &mut Outbox<Sender>) {
        let call = &self.calls[&id];
        let failure = match call.refusal {
            Some(failure) if !call.may_be_under_way() => failure,
            _ => Failure::Unknown,
        };
        if !failure.is_certain()
            && call.start.id.client == self.client
            && !self.mutation.is(Mutation::ForgetsGivenUp)
        {
            self.renew();
        }
        self.end(id, Err(failure), out);
    }

    fn end(&mut self, id: CallId, outcome: Result<Timestamp, Failure>, out: &mut Outbox<Sender>) {
        if let Some(call) = self.calls.remove(&id) {
            self.by_id.remove(&call.start.id);
            out.output(Output { call: id, outcome });
        }
    }

    /// Sets a timer, unless one comes before.
    fn arm(&mut self, now: Time, due: Time, out: &mut Outbox<Sender>) {
        let due = due.max(now);
        if self.armed.is_none_or(|armed| due < armed) {
            self.armed = Some(due);
            out.timer(due, Due);
        }
    }
}

impl Process for Sender {
    type Peer = ProcessId;
    type Message = Say;
    type Record = Infallible;
    type Command = Command;
    type Output = Output;
    type Timer = Due;

    fn step(&mut self, now: Time, event: Event<Self>, out: &mut Outbox<Self>) {
        match event {
            Event::Message { from, message } => self.on_message(now, from, message, out),
            Event::Command(command) => self.on_command(now, command, out),
            Event::Timer(Due) => self.on_due(now, out),
            Event::Restarted(member) => self.on_lost(now, member, out),
            Event::Started | Event::Idle => {}
        }
    }

    fn replay(&mut self, record: Infallible) {
        match record {}
    }

    fn checkpoint(&self) -> Box<dyn Iterator<Item = Infallible> + Send> {
        Box::new(std::iter::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::{Effect, NodeId};
    use std::sync::Arc;

    const GREEN: GroupId = GroupId(0);
    const BLUE: GroupId = GroupId(1);

    struct One {
        sender: Sender,
        out: Outbox<Sender>,
        now: Time,
    }

    /// What a sender did.
    #[derive(Debug, PartialEq)]
    enum Did {
        Asked(ProcessId, MessageId, u64),
        Ended(CallId, Result<Timestamp, Failure>),
    }

    impl One {
        fn new() -> One {
            let groups = [(GREEN, vec![NodeId(1), NodeId(2)]), (BLUE, vec![NodeId(11)])];
            let sender = Sender::new(Arc::new(groups.into()), 7);
            One { sender, out: Outbox::new(), now: Time(0) }
        }

        fn step(&mut self, event: Event<Sender>) -> Vec<Did> {
            self.sender.step(self.now, event, &mut self.out);
            let did = self.out.drain().filter_map(|effect| match effect {
                Effect::Send { to, message: Say::Start(start) } => {
                    Some(Did::Asked(to, start.id, start.low))
                }
                Effect::Output(Output { call, outcome }) => Some(Did::Ended(call, outcome)),
                _ => None,
            });
            did.collect()
        }

        fn multicast(&mut self, call: CallId, dest: &[GroupId]) -> Vec<Did> {
            let (dest, touches, after) = (dest.to_vec(), Touches::All, Timestamp(0));
            let message = Outgoing { dest, payload: "text".into(), touches, after };
            let give_up_after = Duration::from_secs(3);
            self.step(Event::Command(Command::Multicast { call, message, give_up_after }))
        }

        fn later(&mut self, after: Duration) -> Vec<Did> {
            self.now = self.now + after;
            self.step(Event::Timer(Due))
        }

        fn says(&mut self, from: ProcessId, message: Say) -> Vec<Did> {
            self.step(Event::Message { from, message })
        }
    }

    fn asked(did: &[Did]) -> (ProcessId, MessageId, u64) {
        match did {
            [Did::Asked(to, id, low)] => (*to, *id, *low),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_asks_one_after_the_other_under_one_name() {
        let mut one = One::new();
        let (first, id, low) = asked(&one.multicast(5, &[BLUE, GREEN]));
        assert_eq!((id.sequence, low), (1, 1));
        let (second, again, _) = asked(&one.later(PATIENCE.0));
        assert!(first != second && again == id);
        one.step(Event::Restarted(second));
        let (third, again, _) = asked(&one.later(PAUSE));
        assert!(third != first && third != second && again == id);
        let told = one.says(first, Say::Delivered { id, ts: Timestamp(9) });
        assert_eq!(told, [Did::Ended(5, Ok(Timestamp(9)))]);
        assert_eq!(one.later(GIVE_UP_MAX), []);
        let (to, id, low) = asked(&one.multicast(6, &[first.group]));
        assert_eq!((to, id.sequence, low), (first, 2, 2), "who answered last is asked first");
    }

    #[test]
    fn a_refusal_is_certain_only_if_nobody_else_was_asked() {
        let mut one = One::new();
        let refused = |id| Say::Refused { id, why: Refusal::Unreachable(BLUE) };
        let (to, id, _) = asked(&one.multicast(1, &[GREEN, BLUE]));
        let failed = Failure::Unreachable(BLUE);
        assert_eq!(one.says(to, refused(id)), [Did::Ended(1, Err(failed))]);
        let (first, id, _) = asked(&one.multicast(2, &[GREEN, BLUE]));
        let (second, ..) = asked(&one.later(PATIENCE.0));
        assert_eq!(one.says(second, refused(id)), []);
        assert_eq!(one.says(first, refused(id)), [Did::Ended(2, Err(failed))]);
        let (first, id, _) = asked(&one.multicast(3, &[GREEN, BLUE]));
        one.step(Event::Restarted(first));
        let (second, ..) = asked(&one.later(PAUSE));
        assert_eq!(one.says(second, refused(id)), [], "the first may have passed it on");
        let told = one.later(Duration::from_secs(3));
        assert!(told.contains(&Did::Ended(3, Err(Failure::Unknown))), "{told:?}");
    }

    #[test]
    fn what_was_given_up_is_under_a_name_of_its_own() {
        let mut one = One::new();
        let (_, lost, _) = asked(&one.multicast(1, &[GREEN]));
        let (_, beside, _) = asked(&one.multicast(2, &[BLUE]));
        assert_eq!((lost.sequence, beside.sequence), (1, 2));
        let told = one.later(Duration::from_secs(3));
        assert!(told.contains(&Did::Ended(1, Err(Failure::Unknown))), "{told:?}");
        let (_, next, low) = asked(&one.multicast(3, &[GREEN]));
        assert!(next.client != lost.client && (next.sequence, low) == (1, 1));
    }

    #[test]
    fn what_cannot_be_sent_is_not() {
        let mut one = One::new();
        assert_eq!(one.multicast(1, &[]), [Did::Ended(1, Err(Failure::NoDestination))]);
        let unknown = Err(Failure::NoGroup(GroupId(9)));
        assert_eq!(one.multicast(2, &[GREEN, GroupId(9)]), [Did::Ended(2, unknown)]);
        assert_eq!(one.sender.under_way(), 0);
        assert!(Failure::NoDestination.is_certain() && !Failure::Unknown.is_certain());
    }
}
