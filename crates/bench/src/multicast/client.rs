//! One client, on the thread of the replica that it is with: keeps so many messages in flight, and
//! measures what its replica delivers, its own and others'.

use super::cluster::Setup;
use crate::harness::latency::histogram;
use bytes::{BufMut, BytesMut};
use hdrhistogram::Histogram;
use meridian_core::{ClientId, GroupId, MessageId, ProcessId, Time};
use meridian_multicast::{Delivery, Protocol, Start, Timestamp, Touches};
use meridian_runtime::{Application, At, Networked};
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// What a payload holds for the bench: when it was sent, and whether it goes to the cut group.
pub const PAYLOAD_MIN: usize = 9;

/// The part of a run; messages count in the part in which they are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Each client has sent one message to all groups, and waits for it.
    Meet = 0,
    /// Under load, not measured.
    WarmUp = 1,
    /// Measured; the only part unless there is a cut.
    Before = 2,
    /// While a group is cut off.
    During = 3,
    /// After that was mended.
    After = 4,
    /// Nothing more is sent.
    Drain = 5,
}

/// How many parts are measured.
pub const MEASURED: usize = 3;

/// What all clients of a run share.
#[derive(Debug)]
pub struct Control {
    phase: AtomicU8,
    /// Messages that their clients have got, for the display while it runs.
    pub completed: Vec<AtomicU64>,
}

impl Control {
    pub fn new(clients: usize) -> Control {
        let completed = std::iter::repeat_with(AtomicU64::default).take(clients).collect();
        Control { phase: AtomicU8::new(Phase::Meet as u8), completed }
    }

    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn measured(phase: u8) -> Option<usize> {
        let at = usize::from(phase.checked_sub(Phase::Before as u8)?);
        Some(at).filter(|at| *at < MEASURED)
    }
}

/// What a client is asked.
pub enum Ask {
    /// Send the first message, to all groups.
    Meet,
    /// Keep as many in flight as was asked for.
    Begin,
    /// Tell how it stands.
    Report(oneshot::Sender<Report>),
}

/// How a client and its replica stand.
#[derive(Clone, Debug)]
pub struct Report {
    pub me: ProcessId,
    /// Of the client's messages, those not delivered.
    pub pending: u64,
    /// How many its replica has delivered, and a hash of their sequence.
    pub delivered: u64,
    pub hash: u64,
    pub parts: [Part; MEASURED],
}

/// What was measured in one part of the run.
#[derive(Clone, Debug)]
pub struct Part {
    /// From sending to delivery at the client's own replica.
    pub client_ns: Histogram<u64>,
    /// From sending to delivery here, of all messages, while the replica led its group.
    pub leader_ns: Histogram<u64>,
    /// The same while it followed.
    pub follower_ns: Histogram<u64>,
    /// Of the client's messages to the cut group, how many were delivered.
    pub across: u64,
    /// How many of its messages were refused, as a group was out of reach.
    pub refused: u64,
}

impl Part {
    pub fn new() -> Part {
        let [client_ns, leader_ns, follower_ns] = std::array::from_fn(|_| histogram());
        Part { client_ns, leader_ns, follower_ns, across: 0, refused: 0 }
    }

    pub fn merge(&mut self, other: &Part) {
        self.client_ns += &other.client_ns;
        self.leader_ns += &other.leader_ns;
        self.follower_ns += &other.follower_ns;
        self.across += other.across;
        self.refused += other.refused;
    }
}

/// How to ask a protocol what not all protocols tell.
pub struct Ways<P: Networked + Protocol> {
    /// Whether the process leads its group.
    pub leads: fn(&P) -> bool,
    /// The message that was not sent, and will not be, as a group is out of reach.
    pub refused: fn(&P::Output) -> Option<MessageId>,
}

impl<P: Networked + Protocol> Clone for Ways<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Networked + Protocol> Copy for Ways<P> {}

/// After how long a client sends again when a message was refused.
const RETRY: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub struct Client<P: Networked + Protocol> {
    setup: Arc<Setup>,
    control: Arc<Control>,
    /// Which of the clients this is.
    number: usize,
    me: ProcessId,
    id: ClientId,
    ways: Ways<P>,
    /// Whether the refused messages to be replaced go to the cut group, and when.
    refused: VecDeque<(Time, bool)>,
    random: ChaCha8Rng,
    /// The lowest sequence number not delivered, and whether those from it on are.
    low: u64,
    done: VecDeque<bool>,
    /// Those of them that go to the cut group.
    across: BTreeSet<u64>,
    pending: u64,
    delivered: u64,
    hash: u64,
    parts: [Part; MEASURED],
}

impl<P: Networked + Protocol> Client<P> {
    pub fn new(
        setup: Arc<Setup>,
        control: Arc<Control>,
        number: usize,
        me: ProcessId,
        ways: Ways<P>,
    ) -> Client<P> {
        let seed = 1 + number as u64;
        Client {
            setup,
            control,
            number,
            me,
            id: ClientId(seed << 32 | u64::from(std::process::id())),
            ways,
            refused: VecDeque::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            low: 1,
            done: VecDeque::new(),
            across: BTreeSet::new(),
            pending: 0,
            delivered: 0,
            hash: 0,
            parts: std::array::from_fn(|_| Part::new()),
        }
    }

    fn phase(&self) -> u8 {
        self.control.phase.load(Ordering::Relaxed)
    }

    fn send(&mut self, at: &mut At<'_, P>, dest: Vec<GroupId>, across: bool) {
        let sequence = self.low + self.done.len() as u64;
        self.done.push_back(false);
        if across {
            self.across.insert(sequence);
        }
        self.pending += 1;
        let len = self.setup.payload.max(PAYLOAD_MIN);
        let mut payload = BytesMut::with_capacity(len);
        payload.put_u64_le(at.now.0);
        payload.put_u8(u8::from(across));
        payload.put_bytes(b'm', len - PAYLOAD_MIN);
        let touches = match self.setup.cut {
            None => Touches::All,
            // Each its own key: none conflicts with another.
            Some(_) => Touches::Keys([self.id.0 ^ sequence << 16].into()),
        };
        let start = Start {
            id: MessageId { client: self.id, sequence },
            low: self.low,
            after: Timestamp(0),
            dest: dest.into(),
            touches,
            payload: payload.freeze(),
            config: None,
        };
        at.command(P::multicast(start));
    }

    /// A message to the own group and others at random (thesis, section 4.5.2), not to the cut one.
    fn send_next(&mut self, at: &mut At<'_, P>) {
        let own = self.me.group;
        let cut = self.setup.cut.map(GroupId);
        let others = (0..self.setup.groups).map(GroupId);
        let others = others.filter(|group| *group != own && Some(*group) != cut);
        let others: Vec<GroupId> = others.collect();
        let more = if Some(own) == cut { 0 } else { usize::from(self.setup.dest) - 1 };
        let chosen = index::sample(&mut self.random, others.len(), more.min(others.len()));
        let mut dest: Vec<GroupId> = chosen.iter().map(|at| others[at]).collect();
        dest.push(own);
        dest.sort_unstable();
        self.send(at, dest, false);
    }

    /// With a cut: one message to the own and the cut group is always in flight.
    fn send_across(&mut self, at: &mut At<'_, P>) {
        if let Some(cut) = self.setup.cut.map(GroupId)
            && cut != self.me.group
        {
            let mut dest = vec![cut, self.me.group];
            dest.sort_unstable();
            self.send(at, dest, true);
        }
    }

    fn on_delivery(&mut self, at: &mut At<'_, P>, delivery: &Delivery) {
        let Delivery { start, .. } = delivery;
        let id = start.id;
        self.delivered += 1;
        let mixed = (id.client.0 ^ id.sequence.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = match self.setup.cut {
            None => (self.hash.rotate_left(7) ^ mixed).wrapping_mul(0x2545_f491_4f6c_dd1d),
            // What does not conflict may come in any order.
            Some(_) => self.hash.wrapping_add(mixed ^ (mixed >> 31)),
        };
        let Some((sent, rest)) = start.payload.split_first_chunk::<8>() else { return };
        let sent = Time(u64::from_le_bytes(*sent));
        let across = rest.first() == Some(&1);
        let latency = at.now.0.saturating_sub(sent.0).max(1);
        let phase = self.phase();
        let leads = (self.ways.leads)(at.process);
        let own = id.client == self.id;
        let measured = Control::measured(phase).filter(|_| self.setup.cut != Some(self.me.group.0));
        if let Some(part) = measured.map(|part| &mut self.parts[part]) {
            if across {
                part.across += u64::from(own);
            } else {
                let replica = if leads { &mut part.leader_ns } else { &mut part.follower_ns };
                replica.saturating_record(latency);
                if own {
                    part.client_ns.saturating_record(latency);
                }
            }
        }
        if own {
            self.on_own(at, id.sequence, phase, across);
        }
    }

    /// A message of the client's was delivered here.
    fn on_own(&mut self, at: &mut At<'_, P>, sequence: u64, phase: u8, across: bool) {
        self.end(sequence);
        self.control.completed[self.number].fetch_add(1, Ordering::Relaxed);
        if phase == Phase::Meet as u8 || phase == Phase::Drain as u8 {
            return;
        }
        if across { self.send_across(at) } else { self.send_next(at) }
    }

    /// A message was refused: another takes its place, later.
    fn on_refused(&mut self, at: &mut At<'_, P>, id: MessageId) {
        let across = self.across.contains(&id.sequence);
        self.end(id.sequence);
        self.refused.push_back((at.now + RETRY, across));
        if let Some(part) = Control::measured(self.phase()) {
            self.parts[part].refused += 1;
        }
    }

    /// Nothing more is to come of a message.
    fn end(&mut self, sequence: u64) {
        self.across.remove(&sequence);
        self.done[(sequence - self.low) as usize] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.low += 1;
        }
        self.pending -= 1;
    }
}

impl<P: Networked + Protocol> Application<P> for Client<P> {
    type Request = Ask;

    fn on_request(&mut self, at: &mut At<'_, P>, ask: Ask) {
        match ask {
            Ask::Meet => {
                let all = (0..self.setup.groups).map(GroupId).collect();
                self.send(at, all, false);
            }
            Ask::Begin => {
                (0..self.setup.outstanding).for_each(|_| self.send_next(at));
                self.send_across(at);
            }
            Ask::Report(answer) => {
                let report = Report {
                    me: self.me,
                    pending: self.pending,
                    delivered: self.delivered,
                    hash: self.hash,
                    parts: self.parts.clone(),
                };
                let _ = answer.send(report); // Who asked has given up.
            }
        }
    }

    fn on_output(&mut self, at: &mut At<'_, P>, output: P::Output) {
        if let Some(id) = (self.ways.refused)(&output) {
            self.on_refused(at, id);
        } else if let Some(delivery) = P::delivery(output) {
            self.on_delivery(at, &delivery);
        }
    }

    fn on_due(&mut self, at: &mut At<'_, P>) {
        while let Some((_, across)) = self.refused.pop_front_if(|(due, _)| *due <= at.now) {
            if self.phase() == Phase::Meet as u8 || self.phase() == Phase::Drain as u8 {
                continue;
            }
            if across { self.send_across(at) } else { self.send_next(at) }
        }
    }

    fn due(&self) -> Option<Time> {
        self.refused.front().map(|(due, _)| *due)
    }
}
