//! What clients multicast and are told, and what members deliver: the owner of a world of
//! [`Station`]s.

use super::station::{NOWHERE, Station, Told, Travels};
use crate::trial::Counts;
use crate::world::{Owner, Random, Stimulus};
use bytes::Bytes;
use meridian_core::{GroupId, MessageId, NodeId, ProcessId, Time};
use meridian_multicast::outside::{CallId, Command, Failure, Outgoing, Say};
use meridian_multicast::{Output, Role, Timestamp, Touches};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many messages of a client are under way at most.
const WINDOW: usize = 6;
/// How long a client waits between two messages at most.
const THINK: Duration = Duration::from_millis(60);

/// Something that a client multicasts.
struct Call {
    client: ProcessId,
    dest: Vec<GroupId>,
    outcome: Option<Result<Timestamp, Failure>>,
    /// The client has crashed, or was down when it was asked: nobody is told.
    is_lost: bool,
}

/// See the module.
pub struct Clients {
    /// What happened.
    pub counts: Counts,
    groups: BTreeMap<GroupId, Vec<NodeId>>,
    clients: Vec<ProcessId>,
    random: Random,
    calls: BTreeMap<CallId, Call>,
    /// The calls that messages are of, by what these say.
    messages: BTreeMap<MessageId, CallId>,
    ends: bool,
    wrong: Option<String>,
}

impl Clients {
    /// So many clients of these groups.
    pub fn new(groups: BTreeMap<GroupId, Vec<NodeId>>, count: u16, random: Random) -> Clients {
        let clients = (0..count).map(|node| ProcessId { group: NOWHERE, node: NodeId(node) });
        Clients {
            counts: Counts::default(),
            groups,
            clients: clients.collect(),
            random,
            calls: BTreeMap::new(),
            messages: BTreeMap::new(),
            ends: false,
            wrong: None,
        }
    }

    /// No client begins anything any more.
    pub fn end(&mut self) {
        self.ends = true;
    }

    fn under_way(&self) -> impl Iterator<Item = (&CallId, &Call)> {
        self.calls.iter().filter(|(_, call)| call.outcome.is_none() && !call.is_lost)
    }

    /// Whether all that clients wait for has ended.
    pub fn is_done(&self) -> bool {
        self.ends && self.under_way().next().is_none()
    }

    /// What clients wait for.
    pub fn unanswered(&self) -> Vec<CallId> {
        self.under_way().map(|(id, _)| *id).collect()
    }

    fn begin_one(&mut self, client: ProcessId) -> Stimulus<Station> {
        let all: Vec<_> = self.groups.keys().copied().collect();
        let count = self.random.random_range(1..=all.len());
        let dest: Vec<_> = all.sample(&mut self.random, count).copied().collect();
        let call = self.calls.len() as CallId + 1;
        let payload = Bytes::copy_from_slice(&call.to_be_bytes());
        let touches = Touches::All;
        let message = Outgoing { dest: dest.clone(), payload, touches, after: Timestamp(0) };
        let give_up_after = Duration::from_millis(self.random.random_range(300..6000));
        // It is lost unless it arrives: see `commanded`.
        self.calls.insert(call, Call { client, dest, outcome: None, is_lost: true });
        let command = Command::Multicast { call, message, give_up_after };
        Stimulus::Command { to: client, command, after: Duration::ZERO }
    }

    /// What a member has delivered, once all is quiet: by call.
    ///
    /// # Errors
    /// Something is there twice, out of order, or not for this group.
    fn delivered(
        &self,
        at: ProcessId,
        station: &Station,
    ) -> Result<BTreeMap<CallId, Timestamp>, String> {
        let mut delivered = BTreeMap::new();
        let list = &station.member().expect("clients deliver nothing").delivered;
        if let Some(pair) = list.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("order: {at} delivers {:?} before {:?}", pair[0], pair[1]));
        }
        for (ts, id) in list {
            let call = self.messages[id];
            if !self.calls[&call].dest.contains(&at.group) {
                return Err(format!("integrity: {at} delivers call {call}, which is not for it"));
            }
            if delivered.insert(call, *ts).is_some() {
                return Err(format!("once: {at} delivers call {call} again, as {id}"));
            }
        }
        Ok(delivered)
    }

    /// Judges what all members have delivered, and what clients were told.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn judge<'a>(
        &self,
        members: impl Iterator<Item = (ProcessId, &'a Station)>,
    ) -> Result<(), String> {
        let mut at = BTreeMap::new();
        for (process, station) in members {
            at.insert(process, self.delivered(process, station)?);
        }
        for (id, call) in &self.calls {
            let concerned = at.iter().filter(|(process, _)| call.dest.contains(&process.group));
            let found: BTreeSet<_> = concerned.map(|(_, all)| all.get(id).copied()).collect();
            let Some(found) = found.first().filter(|_| found.len() == 1).copied() else {
                return Err(format!("agreement: call {id} is delivered with {found:?}"));
            };
            match call.outcome {
                Some(Ok(ts)) if found != Some(ts) => {
                    return Err(format!("told: call {id} is delivered with {ts:?}, not {found:?}"));
                }
                Some(Err(failure)) if failure.is_certain() && found.is_some() => {
                    return Err(format!("told: call {id} failed with {failure:?}; it did not"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Owner<Station> for Clients {
    fn begin(&mut self) -> Vec<Stimulus<Station>> {
        let wake = |client| Stimulus::Wake { token: client, after: Duration::ZERO };
        (0..self.clients.len() as u64).map(wake).collect()
    }

    fn output(&mut self, at: ProcessId, told: Told, _now: Time) -> Vec<Stimulus<Station>> {
        match told {
            Told::Member(Output::Deliver(_)) => self.counts.add("deliveries", 1),
            Told::Member(Output::Duplicate(_)) => self.counts.add("repeated", 1),
            Told::Member(Output::Install { .. }) => self.counts.add("snapshots", 1),
            Told::Member(_) => {}
            Told::Client(ended) => {
                let call = self.calls.get_mut(&ended.call).expect("it was asked for");
                let name = match ended.outcome {
                    Ok(_) => "delivered",
                    Err(Failure::Unknown) => "unknown",
                    Err(_) => "refused",
                };
                self.counts.add(name, 1);
                if call.outcome.replace(ended.outcome).is_some() || call.client != at {
                    self.wrong = Some(format!("told: call {} ends twice", ended.call));
                }
            }
        }
        Vec::new()
    }

    fn wake(&mut self, token: u64, _now: Time) -> Vec<Stimulus<Station>> {
        if self.ends {
            return Vec::new();
        }
        let client = self.clients[usize::try_from(token).expect("an index")];
        let waits = self.under_way().filter(|(_, call)| call.client == client).count();
        let after = self.random.random_range(Duration::ZERO..=THINK);
        let again = Stimulus::Wake { token, after };
        if waits >= WINDOW { vec![again] } else { vec![self.begin_one(client), again] }
    }

    fn commanded(&mut self, _at: ProcessId, command: &Command, _now: Time) {
        let Command::Multicast { call, .. } = command;
        self.calls.get_mut(call).expect("it was asked for").is_lost = false;
    }

    fn crashed(&mut self, at: ProcessId, _now: Time) {
        let whose = if at.group == NOWHERE { "clients_crashed" } else { "crashes" };
        self.counts.add(whose, 1);
        let of = self.calls.values_mut().filter(|call| call.client == at);
        of.filter(|call| call.outcome.is_none()).for_each(|call| call.is_lost = true);
    }

    /// Of each message it is known here which call it is of: who delivers it may crash before it
    /// says so, and then tells nobody.
    fn traffic(&mut self, _at: ProcessId, message: &Travels) {
        if let Travels::Outside(Say::Start(start)) = message {
            let payload = start.payload[..].try_into().expect("clients say eight bytes");
            self.messages.insert(start.id, u64::from_be_bytes(payload));
        }
    }

    fn leads(&self, process: &Station) -> bool {
        process.member().is_some_and(|replica| replica.multicast.role() == Role::Primary)
    }

    fn check(&mut self, _: ProcessId, _: &Station, _: bool) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}
