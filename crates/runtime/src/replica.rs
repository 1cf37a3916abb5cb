//! The application behind a [`crate::Member`], on the member's thread.

use crate::application::{Application, At};
use crate::clients::ConnectionId;
use crate::error::MulticastError;
use crate::hosted::{Hosted, Told};
use crate::member::{Delivered, Outgoing, Patience, Waiting};
use crate::wire::{WireError, take};
use bytes::Bytes;
use meridian_core::hello::ServiceId;
use meridian_core::room::Room;
use meridian_core::{ClientId, GroupId, MessageId, Position, ProcessId, Time};
use meridian_multicast::outside::{Desk, Say};
use meridian_multicast::{Delivery, Dest, Start, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// So many messages of one sender are under way at most, those that it has given up included: their
/// names must be remembered everywhere.
const UNDER_WAY_MAX: usize = 100_000;
/// So many messages of clients are under way at most; then clients are not read.
const CLIENTS_UNDER_WAY_MAX: usize = 100_000;
/// So many bytes of deliveries are kept since the program last gave its state. Beyond that the
/// oldest are dropped, and nothing can be offered until it gives another.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// What a kept delivery takes beside its payload, about.
const DELIVERY_BYTES: usize = 200;

type Done = oneshot::Sender<Result<Timestamp, MulticastError>>;

/// What a member asks its replica.
pub(crate) enum Ask<P: Hosted> {
    Multicast {
        message: Outgoing,
        done: Done,
    },
    SafeTs(oneshot::Sender<Timestamp>),
    LogBytes(oneshot::Sender<usize>),
    Keep {
        position: Position,
        state: Bytes,
    },
    #[allow(dead_code)] // Never made: it only says of which protocol this is.
    Never(std::convert::Infallible, PhantomData<fn(P)>),
}

/// One's own message that was not delivered.
struct UnderWay {
    dest: Dest,
    /// `None` once its sender has been told that it is held up.
    done: Option<Done>,
}

/// The program's state, as others are given it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// What the program gave, and how many deliveries that contains.
    position: Position,
    state: Bytes,
    /// The deliveries since.
    since: VecDeque<Delivery>,
}

/// See the module's documentation.
pub(crate) struct Replica<P: Hosted> {
    me: ProcessId,
    client: ClientId,
    patience: Patience,
    /// The number of the next message.
    sequence: u64,
    /// By number.
    under_way: BTreeMap<u64, UnderWay>,
    /// When senders are told that their messages are held up, earliest first.
    due: VecDeque<(Time, u64)>,
    told: Option<mpsc::UnboundedSender<Delivered>>,
    waiting: Arc<Waiting>,
    kept: Kept,
    kept_bytes: usize,
    /// Whether `kept` has lost deliveries.
    gap: bool,
    /// Own messages that the installed state may contain, as the process knows of their delivery;
    /// it is sure when all up to this position is told.
    overtaken: Option<(Position, Vec<(u64, Timestamp)>)>,
    /// Who needs the program's state.
    wanted: Vec<ProcessId>,
    /// Senders that are in no group.
    desk: Desk<ConnectionId>,
    protocol: PhantomData<fn(P)>,
}

impl<P: Hosted> Replica<P> {
    pub(crate) fn new(
        me: ProcessId,
        patience: Patience,
        told: mpsc::UnboundedSender<Delivered>,
        waiting: Arc<Waiting>,
    ) -> Replica<P> {
        Replica {
            me,
            client: ClientId(RandomState::new().hash_one(me)),
            patience,
            sequence: 1,
            under_way: BTreeMap::new(),
            due: VecDeque::new(),
            told: Some(told),
            waiting,
            kept: Kept::default(),
            kept_bytes: 0,
            gap: false,
            overtaken: None,
            wanted: Vec::new(),
            desk: Desk::new(me.group),
            protocol: PhantomData,
        }
    }

    fn multicast(&mut self, at: &mut At<'_, P>, message: Outgoing, done: Done) {
        let Outgoing { mut dest, payload, touches, after } = message;
        dest.sort_unstable();
        dest.dedup();
        if let Some(error) = self.objection(at, &dest) {
            let _ = done.send(Err(error)); // Who asked has given up.
            return;
        }
        let dest = Dest::from_vec(dest);
        let sequence = self.sequence;
        self.sequence += 1;
        self.under_way.insert(sequence, UnderWay { dest: dest.clone(), done: Some(done) });
        self.due.push_back((at.now + self.patience.give_up_after, sequence));
        // Those given up still wait: what is below may be forgotten by all.
        let low = self.under_way.first_key_value().map_or(sequence, |(first, _)| *first);
        let id = MessageId { client: self.client, sequence };
        let start = Start { id, low, after, dest, touches, payload, config: None };
        at.command(P::multicast(start));
    }

    /// Why a message cannot go there.
    fn objection(&self, at: &At<'_, P>, dest: &[GroupId]) -> Option<MulticastError> {
        if let Some(unknown) = dest.iter().find(|group| !at.knows(**group)) {
            return Some(MulticastError::NoGroup(*unknown));
        }
        if !dest.contains(&self.me.group) {
            return Some(MulticastError::NotAmong(self.me.group));
        }
        let mut far = dest.iter();
        let far = far.find(|group| at.is_unreachable(**group, self.patience.refuse_after));
        if let Some(far) = far {
            return Some(MulticastError::Unreachable(*far));
        }
        if self.under_way.len() >= UNDER_WAY_MAX {
            let (_, oldest) = self.under_way.first_key_value()?;
            return Some(MulticastError::Timeout(self.culprit(at, &oldest.dest)));
        }
        None
    }

    /// Which group holds a message up.
    fn culprit(&self, at: &At<'_, P>, dest: &[GroupId]) -> GroupId {
        let mut far = dest.iter().filter(|group| at.is_unreachable(**group, Default::default()));
        far.next().copied().unwrap_or(self.me.group)
    }

    fn tell(&mut self, told: Delivered) {
        let Some(sender) = &self.told else { return };
        self.waiting.add(&told);
        if sender.send(told).is_err() {
            self.told = None; // Nobody wants it.
            self.waiting.clear();
        }
    }

    fn on_told(&mut self, told: Told) {
        match told {
            Told::Delivered(delivery) => {
                self.remember(&delivery);
                let (id, ts) = (delivery.start.id, delivery.ts);
                self.tell(Delivered::Message(delivery));
                self.end(id, Ok(ts));
            }
            Told::Install { position: _, state } => match postcard::from_bytes(&state) {
                Ok(kept) => self.install(kept),
                Err(error) => tracing::error!(%error, "a peer's state cannot be read"),
            },
            Told::Wanted(to) => self.wanted.push(to),
            Told::Refused(id, group) => self.end(id, Err(MulticastError::Unreachable(group))),
            // Who asked for it is in no group, and is told by the desk.
            Told::Duplicate(_) | Told::Nothing => {}
        }
    }

    /// Whom of the senders that are in no group the process's word concerns, and what they are
    /// told.
    fn answer(&mut self, at: &At<'_, P>, told: &Told) -> Option<(ConnectionId, Say)> {
        match told {
            Told::Delivered(delivery) => self.desk.on_delivered(delivery.start.id, delivery.ts),
            Told::Duplicate(id) => self.desk.on_delivered(*id, at.process.delivered_at(*id)?),
            Told::Refused(id, group) => self.desk.on_refused(*id, *group),
            Told::Install { .. } | Told::Wanted(_) | Told::Nothing => None,
        }
    }

    /// A sender that is in no group asks for a message to be multicast.
    fn on_start(&mut self, at: &mut At<'_, P>, client: ConnectionId, start: Start) {
        let members = at.peers.iter().count() + 1;
        match self.desk.on_start(at.now, client, start, members, |group| at.knows(group)) {
            Ok(Some(start)) => at.command(P::multicast(start)),
            Ok(None) => {}
            Err(answer) => drop(at.answer(client, &answer)), // Who has gone is told nothing.
        }
    }

    /// Tells the sender of an own message what became of it.
    fn end(&mut self, id: MessageId, what: Result<Timestamp, MulticastError>) {
        if id.client == self.client
            && let Some(UnderWay { done: Some(done), .. }) = self.under_way.remove(&id.sequence)
        {
            let _ = done.send(what); // Who asked has given up.
        }
    }

    /// Nobody tells of deliveries that an installed state contains.
    fn find_overtaken(&mut self, at: &At<'_, P>) {
        let known = self.under_way.keys().filter_map(|sequence| {
            let id = MessageId { client: self.client, sequence: *sequence };
            Some((*sequence, at.process.delivered_at(id)?))
        });
        self.overtaken = Some((at.process.position(), known.collect()));
    }

    fn end_overtaken(&mut self) {
        let last = self.last();
        if let Some((_, known)) = self.overtaken.take_if(|(position, _)| *position <= last) {
            for (sequence, ts) in known {
                self.end(MessageId { client: self.client, sequence }, Ok(ts));
            }
        }
    }

    /// The position of the last delivery that was told.
    fn last(&self) -> Position {
        self.kept.since.back().map_or(self.kept.position, |last| last.position)
    }

    fn remember(&mut self, delivery: &Delivery) {
        self.kept_bytes += delivery.start.payload.len() + DELIVERY_BYTES;
        self.kept.since.push_back(delivery.clone());
        while self.kept_bytes > KEPT_BYTES_MAX {
            self.gap = true;
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.kept.since.pop_front() {
            self.kept_bytes -= first.start.payload.len() + DELIVERY_BYTES;
            self.kept.since.give_back();
        }
    }

    /// Another's state takes the place of all that was delivered here.
    fn install(&mut self, kept: Kept) {
        self.kept = Kept { position: kept.position, state: kept.state.clone(), ..Kept::default() };
        (self.kept_bytes, self.gap) = (0, false);
        if kept.position > Position(0) {
            self.tell(Delivered::State { position: kept.position, state: kept.state });
        }
        for delivery in kept.since {
            self.on_told(Told::Delivered(delivery));
        }
    }

    /// The program's state after its first `position` deliveries.
    fn keep(&mut self, position: Position, state: Bytes) {
        let last = self.last();
        if position < self.kept.position || position > last {
            tracing::warn!(?position, ?last, "no state that could be kept");
            return;
        }
        while self.kept.since.front().is_some_and(|first| first.position <= position) {
            self.drop_first();
        }
        // What was dropped before, this state contains.
        let next = self.kept.since.front().map(|first| first.position);
        self.gap = next.is_some_and(|next| next.0 != position.0 + 1);
        (self.kept.position, self.kept.state) = (position, state);
    }

    /// Gives those who need it the program's state, if it is that of this moment: they ask again.
    fn offer(&mut self, at: &mut At<'_, P>) {
        let last = self.last();
        if self.wanted.is_empty() || last != at.process.position() {
            return;
        }
        if self.gap {
            tracing::warn!("a peer needs the program's state, which has not been kept");
            return self.wanted.clear();
        }
        let state: Bytes = postcard::to_stdvec(&self.kept).expect("writing to memory").into();
        for to in self.wanted.drain(..) {
            at.command(P::offer(to, last, state.clone()));
        }
    }
}

impl<P: Hosted> Application<P> for Replica<P> {
    type Request = Ask<P>;

    fn on_request(&mut self, at: &mut At<'_, P>, ask: Ask<P>) {
        match ask {
            Ask::Multicast { message, done } => self.multicast(at, message, done),
            Ask::SafeTs(answer) => {
                let _ = answer.send(at.process.safe_ts()); // Who asked has given up.
            }
            Ask::LogBytes(answer) => {
                let _ = answer.send(at.process.log_bytes()); // Who asked has given up.
            }
            Ask::Keep { position, state } => self.keep(position, state),
            Ask::Never(never, _) => match never {},
        }
    }

    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output) {
        let told = P::told(output);
        let installed = matches!(told, Told::Install { .. });
        if let Some((client, answer)) = self.answer(at, &told) {
            at.answer(client, &answer);
        }
        self.on_told(told);
        if installed {
            self.find_overtaken(at);
        }
    }

    fn on_told(&mut self, at: &mut At<'_, P>) {
        self.end_overtaken();
        self.offer(at);
    }

    fn on_due(&mut self, at: &mut At<'_, P>) {
        while let Some((_, sequence)) = self.due.pop_front_if(|(due, _)| *due <= at.now) {
            let Some(under_way) = self.under_way.get_mut(&sequence) else { continue };
            let (dest, done) = (under_way.dest.clone(), under_way.done.take());
            if let Some(done) = done {
                let _ = done.send(Err(MulticastError::Timeout(self.culprit(at, &dest))));
            }
        }
    }

    fn due(&self) -> Option<Time> {
        self.due.front().map(|(due, _)| *due)
    }

    fn is_full(&self) -> bool {
        self.told.is_some() && self.waiting.is_full()
    }

    fn serves_clients(&self, _service: ServiceId) -> bool {
        true
    }

    fn on_asked(
        &mut self,
        at: &mut At<'_, P>,
        client: ConnectionId,
        body: Bytes,
    ) -> Result<(), WireError> {
        let mut rest = &body[..];
        while !rest.is_empty() {
            let said;
            (said, rest) = take(rest)?;
            match said {
                Say::Start(start) => self.on_start(at, client, start),
                Say::Delivered { .. } | Say::Refused { .. } => {
                    return Err(WireError::Refused("a sender says what members say".into()));
                }
            }
        }
        Ok(())
    }

    fn on_disconnected(&mut self, _at: &mut At<'_, P>, client: ConnectionId) {
        self.desk.on_disconnected(client);
    }

    fn holds_clients(&self, _process: &P) -> bool {
        self.desk.waiting() >= CLIENTS_UNDER_WAY_MAX
    }

    fn on_room(&mut self, room: Box<dyn Fn() + Send + Sync>) {
        let _ = self.waiting.room.set(room); // A member starts once.
    }

    fn replay(&mut self, process: &mut P, record: P::Record) {
        let told = process.recover(record);
        self.on_told(told);
    }

    fn checkpoint(&mut self) -> Option<Bytes> {
        let kept = (!self.gap).then(|| postcard::to_stdvec(&self.kept).expect("writing to memory"));
        kept.map(Bytes::from)
    }

    fn restore(&mut self, state: Bytes) {
        match postcard::from_bytes(&state) {
            Ok(kept) => self.install(kept),
            Err(error) => tracing::error!(%error, "the program's state on disk cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::application::Wishes;
    use crate::clients::Clients;
    use crate::peers::Peers;
    use meridian_core::{Effect, Event, NodeId, Outbox, Process};
    use meridian_multicast::{Output, PrimCast};

    const ME: ProcessId = ProcessId { group: GroupId(0), node: NodeId(0) };

    fn process() -> PrimCast {
        PrimCast::new(ME, Arc::new(BTreeMap::from([(ME.group, vec![ME.node])])))
    }

    /// Steps the only process of its group until it delivers what it is commanded to multicast.
    fn deliver(process: &mut PrimCast, command: meridian_multicast::Command) -> Timestamp {
        let (mut now, mut out) = (Time(0), Outbox::new());
        process.step(now, Event::Started, &mut out);
        process.step(now, Event::Command(command), &mut out);
        for _ in 0..1000 {
            process.step(now, Event::Idle, &mut out);
            for effect in std::mem::take(&mut out).drain() {
                match effect {
                    Effect::Output(Output::Deliver(delivery)) => return delivery.ts,
                    Effect::Send { message, .. } => {
                        process.step(now, Event::Message { from: ME, message }, &mut out);
                    }
                    Effect::Timer { at, timer } => {
                        now = now.max(at);
                        process.step(now, Event::Timer(timer), &mut out);
                    }
                    _ => {}
                }
            }
        }
        panic!("nothing is delivered");
    }

    #[test]
    fn the_sender_of_a_message_that_an_installed_state_contains_is_told() {
        let (told, _deliveries) = mpsc::unbounded_channel();
        let mut replica =
            Replica::<PrimCast>::new(ME, Patience::default(), told, Arc::new(Waiting::default()));
        let (mut ours, mut other) = (process(), process());
        let (done, mut ended) = oneshot::channel();
        let (dest, payload) = (vec![ME.group], Bytes::new());
        let touches = meridian_multicast::Touches::All;
        let message = Outgoing { dest, payload, touches, after: Timestamp(0) };
        let (now, me, counters) = (Time(0), ME, &crate::peer::Counters::default());
        let clock = crate::clock::Clock::start();
        let peers = &Peers::new(1, BTreeMap::new());
        let (clients, wishes) = (&mut Clients::default(), &mut Wishes::default());
        let mut at =
            At { now, process: &ours, clock, me, peers, counters, store: None, clients, wishes };
        replica.on_request(&mut at, Ask::Multicast { message, done });
        let ts = deliver(&mut other, wishes.commands.pop().unwrap());
        other.checkpoint().for_each(|record| drop(ours.recover(record)));
        let kept = Kept { position: Position(1), state: Bytes::new(), since: VecDeque::new() };
        let application = postcard::to_stdvec(&kept).unwrap().into();
        let mut at =
            At { now, process: &ours, clock, me, peers, counters, store: None, clients, wishes };
        replica.on_output(&mut at, Output::Install { position: Position(1), application });
        assert!(ended.try_recv().is_err(), "others may be on their way to be told");
        Application::on_told(&mut replica, &mut at);
        assert_eq!(ended.try_recv().unwrap(), Ok(ts));
        assert!(replica.under_way.is_empty(), "it would be remembered everywhere");
    }
}
