//! What happens in the worlds of the multicast, in words: names of messages, groups and timestamps
//! in the place of structures. What processes say to each other has the names of
//! `docs/multicast.md`.

use crate::of::multicast::replica::{Kept, Replica};
use crate::trace::Teller;
use crate::words::{list, of_nodes};
use crate::world::{Happened, Way, What};
use meridian_core::{GroupId, MessageId, ProcessId};
use meridian_multicast::message::{
    Entry, EpochMessage, FenceMessage, Horizon, NormalMessage, OrderMessage, RecoveryMessage,
    RemoteMessage, StabilityMessage, Stable,
};
use meridian_multicast::{
    Command, Config, Epoch, Message, Output, Record, Start, Timestamp, Touches,
};
use std::collections::BTreeMap;

/// The words, and where messages stand: an ACK says up to where it holds `T`, and is about those
/// that it has not acknowledged before.
#[derive(Debug, Default)]
pub struct Words {
    places: BTreeMap<(GroupId, u64), MessageId>,
    /// Up to where a process has acknowledged to another; apart for what was sent and what came.
    acknowledged: BTreeMap<(bool, ProcessId, ProcessId), (Epoch, u64)>,
}

impl Words {
    /// The messages that an event is about.
    pub fn messages(&mut self, event: &Happened<'_, Replica>) -> Vec<MessageId> {
        if let Some((sent, way, message)) = event.said() {
            return self.said(sent, way, message);
        }
        match event.what {
            What::Record(record) => kept(record),
            What::Output(output) => told(output),
            _ => event.asked().map(asked).unwrap_or_default(),
        }
    }

    /// Those that are meant where a process says this to another: as it is sent, or as it comes.
    pub fn said(&mut self, sent: bool, way: Way<ProcessId>, message: &Message) -> Vec<MessageId> {
        let Way { from, to } = way;
        self.learn(from.group, message);
        let mut about = message.subjects();
        let acknowledges = match message {
            Message::Normal(NormalMessage::Ack(ack)) => Some((ack.epoch, ack.len)),
            Message::Normal(NormalMessage::Relayed(relayed)) => {
                about.extend(relayed.locals.iter().map(|local| local.id));
                about.extend(relayed.finals.iter().map(|last| last.id));
                Some((relayed.epoch, relayed.len))
            }
            Message::Remote(RemoteMessage::RemoteAck(ack)) => Some((ack.epoch, ack.len)),
            Message::Remote(RemoteMessage::RemoteDecided(ack)) => Some((ack.epoch, ack.len)),
            Message::Recovery(RecoveryMessage::ForwardedFinals(finals)) => {
                about.extend(finals.iter().map(|(id, _)| *id));
                None
            }
            _ => None,
        };
        if let Some((epoch, len)) = acknowledges {
            let known = self.acknowledged.insert((sent, from, to), (epoch, len));
            let before = known.filter(|(of, _)| *of == epoch).map_or(0, |(_, before)| before);
            if before < len {
                let places = self.places.range((from.group, before)..(from.group, len));
                about.extend(places.map(|(_, id)| *id));
            }
        }
        about
    }

    /// Notes where messages stand in the `T` of the sender's group.
    fn learn(&mut self, group: GroupId, message: &Message) {
        let (from, entries) = match message {
            Message::Normal(NormalMessage::Append(append)) => (append.from, &*append.entries),
            Message::Epoch(EpochMessage::NewState(state)) => {
                (state.part.from, &*state.part.entries)
            }
            Message::Remote(RemoteMessage::RemoteAppend(append)) => {
                let places = append.entries.iter().map(|entry| ((group, entry.index), entry.id));
                return self.places.extend(places);
            }
            _ => return,
        };
        let places = (from..).zip(entries).map(|(index, entry)| ((group, index), entry.start.id));
        self.places.extend(places);
    }
}

impl Teller<Replica> for Words {
    fn name(&self, peer: ProcessId) -> String {
        peer.to_string()
    }

    fn message(&self, _way: Way<ProcessId>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        of_command(command)
    }

    fn record(&self, record: &Kept) -> String {
        of_kept(record)
    }

    fn output(&self, output: &Output) -> String {
        of_output(output)
    }

    fn about(&mut self, event: &Happened<'_, Replica>) -> Vec<String> {
        self.messages(event).iter().map(ToString::to_string).collect()
    }
}

/// Those that a process is asked about.
pub fn asked(command: &Command) -> Vec<MessageId> {
    match command {
        Command::Start(start) | Command::Multicast(start) => vec![start.id],
        Command::Learn(_) | Command::Fence(_) | Command::FetchState | Command::Snapshot { .. } => {
            Vec::new()
        }
    }
}

/// Those that a record of a replica names.
pub fn kept(record: &Kept) -> Vec<MessageId> {
    match record {
        Kept::Protocol(record) => recorded(record),
        Kept::Application(_) => Vec::new(),
    }
}

/// Those that a record names.
pub fn recorded(record: &Record) -> Vec<MessageId> {
    match record {
        Record::Append { entries, .. } => ids(entries),
        Record::NewState { entries, .. } => ids(entries),
        Record::Delivered { id, .. } => vec![*id],
        _ => Vec::new(),
    }
}

/// Those that an output names.
pub fn told(output: &Output) -> Vec<MessageId> {
    match output {
        Output::Deliver(delivery) => vec![delivery.start.id],
        Output::Duplicate(id) | Output::Ended { id, .. } | Output::Refused { id, .. } => vec![*id],
        Output::Settled(ids) => ids.clone(),
        Output::SnapshotWanted { .. } | Output::Install { .. } => Vec::new(),
    }
}

fn ids(entries: &[Entry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.start.id).collect()
}

/// Groups, as `g0 g1`.
pub fn of_groups<'a>(groups: impl IntoIterator<Item = &'a GroupId>) -> String {
    let names: Vec<_> = groups.into_iter().map(|group| format!("g{}", group.0)).collect();
    names.join(" ")
}

/// An epoch, with its configuration if that is not the first.
pub fn of_epoch(epoch: Epoch) -> String {
    let Epoch { config, number, leader } = epoch;
    let config = if config > 0 { format!(" in configuration {config}") } else { String::new() };
    format!("epoch {number} of n{}{config}", leader.0)
}

fn at(id: MessageId, ts: Timestamp) -> String {
    format!("{id} at {}", ts.0)
}

/// What is multicast, and where to.
pub fn of_start(start: &Start) -> String {
    let mut text = format!("{} to {}", start.id, of_groups(&start.dest));
    if start.after > Timestamp(0) {
        text += &format!(" after {}", start.after.0);
    }
    text += &of_touches(&start.touches);
    if let Some(config) = &start.config {
        text += &format!(", g{} becomes {}", config.group.0, of_nodes(&config.members));
    }
    text
}

/// What a message must be ordered with, unless that is all.
pub fn of_touches(touches: &Touches) -> String {
    match touches {
        Touches::Keys(keys) => format!(", touches {}", list(keys.iter())),
        Touches::All => String::new(),
    }
}

fn of_entries(entries: &[Entry]) -> String {
    list(entries.iter().map(|entry| at(entry.start.id, entry.ts)))
}

/// What one process says to another.
pub fn of_message(message: &Message) -> String {
    match message {
        Message::Normal(message) => of_normal(message),
        Message::Remote(message) => of_remote(message),
        Message::Epoch(message) => of_change(message),
        Message::Stability(message) => of_stability(message),
        Message::Order(OrderMessage::Horizons(horizons)) => {
            let shown = list(horizons.shown.iter().map(of_horizon));
            let (closed, clock) = (horizons.closed.0, horizons.clock.0);
            format!("Horizons: {shown}; closed for you up to {closed}, clock {clock}")
        }
        Message::Order(OrderMessage::Ready(ids)) => format!("Ready: {}", list(ids)),
        Message::Recovery(message) => of_recovery(message),
        Message::Fence(message) => of_fence(message),
    }
}

fn of_horizon(horizon: &Horizon) -> String {
    let links = horizon.links.iter().map(|(group, ts)| format!("g{} from {}", group.0, ts.0));
    let (group, stable) = (horizon.group.0, horizon.stable.0);
    format!("g{group} is stable up to {stable}, linked with {}", list(links))
}

fn of_normal(message: &NormalMessage) -> String {
    match message {
        NormalMessage::Start(start) => format!("Start {}", of_start(start)),
        NormalMessage::Starts(starts) => {
            format!("Starts {}", list(starts.iter().map(|start| of_start(start))))
        }
        NormalMessage::Append(append) => format!(
            "Append from {}, clock {}, {}: {}",
            append.from,
            append.clock.0,
            of_epoch(append.epoch),
            of_entries(&append.entries)
        ),
        NormalMessage::Ack(ack) => {
            format!("Ack below {}, clock {}, {}", ack.len, ack.clock.0, of_epoch(ack.epoch))
        }
        NormalMessage::Bump(bump) => format!("Bump to {}, {}", bump.clock.0, of_epoch(bump.epoch)),
        NormalMessage::Resend(resend) => format!("Resend from {}", resend.from),
        NormalMessage::Relayed(relayed) => {
            let of = |local: &meridian_multicast::message::RelayedLocal| {
                format!("{} of g{}", at(local.id, local.ts), local.group.0)
            };
            let locals = list(relayed.locals.iter().map(of));
            let finals = list(relayed.finals.iter().map(|last| at(last.id, last.ts)));
            let (len, clock) = (relayed.len, relayed.clock.0);
            format!("Relayed below {len}, clock {clock}: {locals}; final: {finals}")
        }
        NormalMessage::Unreachable(groups) => format!("Unreachable: {}", of_groups(groups)),
    }
}

fn of_remote(message: &RemoteMessage) -> String {
    match message {
        RemoteMessage::RemoteAppend(append) => {
            let entries = list(append.entries.iter().map(|entry| at(entry.id, entry.ts)));
            let whole = if append.whole { ", the whole" } else { "" };
            let (from, upto, epoch) = (append.from, append.upto, of_epoch(append.epoch));
            format!("RemoteAppend {from}..{upto}{whole}, {epoch}: {entries}")
        }
        RemoteMessage::RemoteAck(ack) => {
            format!("RemoteAck below {}, clock {}, {}", ack.len, ack.clock.0, of_epoch(ack.epoch))
        }
        RemoteMessage::RemoteDecided(ack) => {
            format!("RemoteDecided below {}, {}", ack.len, of_epoch(ack.epoch))
        }
        RemoteMessage::RemoteWanted => "RemoteWanted".into(),
        RemoteMessage::Final(last) => {
            let delivered = if last.delivered { ", delivered" } else { "" };
            format!("Final {}{delivered}", at(last.id, last.ts))
        }
        RemoteMessage::Pull(pull) => format!("Pull {}", pull.id),
    }
}

fn of_change(message: &EpochMessage) -> String {
    match message {
        EpochMessage::Suspect(suspect) => format!("Suspect {}", of_epoch(suspect.epoch)),
        EpochMessage::Suspected(suspect) => format!("Suspected {}", of_epoch(suspect.epoch)),
        EpochMessage::NewEpoch(new) => format!("NewEpoch {}", of_epoch(new.epoch)),
        EpochMessage::Promise(promise) => {
            let (len, cur) = (promise.progress.len, of_epoch(promise.progress.e_cur));
            let (epoch, clock) = (of_epoch(promise.epoch), promise.clock.0);
            format!("Promise {epoch}, clock {clock}; holds below {len}, of {cur}")
        }
        EpochMessage::Fetch(fetch) => format!("Fetch from {}", fetch.from),
        EpochMessage::Fetched(fetched) => {
            let entries = of_entries(&fetched.part.entries);
            format!("Fetched from {}: {entries}", fetched.part.from)
        }
        EpochMessage::NewState(state) => {
            let (from, entries) = (state.part.start, of_entries(&state.part.entries));
            let (epoch, clock) = (of_epoch(state.epoch), state.clock.0);
            format!("NewState {epoch}, clock {clock}, from {from}: {entries}")
        }
        EpochMessage::Accept(accept) => {
            format!("Accept {}, clock {}", of_epoch(accept.epoch), accept.clock.0)
        }
        EpochMessage::Config(config) => format!("Config: {}", of_config(config)),
    }
}

fn of_stable(stable: &Stable) -> String {
    let (ts, id) = stable.delivered;
    format!("up to {}, but for {}", at(id, ts), list(stable.except.iter()))
}

fn of_stability(message: &StabilityMessage) -> String {
    match message {
        StabilityMessage::Stable(stable) => format!("Stable {}", of_stable(stable)),
        StabilityMessage::StableFor(told) => {
            format!("StableFor {}: {}", of_groups(&told.groups), of_stable(&told.stable))
        }
        StabilityMessage::Forwarded(all) => {
            let of = |one: &meridian_multicast::message::StableOf| {
                format!("{} {}", one.process, of_stable(&one.stable))
            };
            format!("Forwarded: {}", list(all.iter().map(of)))
        }
        StabilityMessage::StableWanted => "StableWanted".into(),
    }
}

fn of_recovery(message: &RecoveryMessage) -> String {
    match message {
        RecoveryMessage::Behind => "Behind".into(),
        RecoveryMessage::SnapshotRequest(wanted) => {
            format!("SnapshotRequest from byte {}", wanted.offset)
        }
        RecoveryMessage::SnapshotPart(part) => {
            let (from, total) = (part.offset, part.total);
            format!("SnapshotPart from byte {from}, {} of {total} bytes", part.bytes.len())
        }
        RecoveryMessage::ForwardedFinals(finals) => {
            format!("ForwardedFinals: {}", list(finals.iter().map(|(id, ts)| at(*id, *ts))))
        }
        RecoveryMessage::Incarnations(known) => {
            let of = |(process, number): &(ProcessId, u64)| format!("{process} the {number}.");
            let wanted = if known.wanted { ", wants the same" } else { "" };
            format!("Incarnations: {}{wanted}", list(known.known.iter().map(of)))
        }
        RecoveryMessage::Recover(recover) => format!("Recover the {}.", recover.incarnation),
        RecoveryMessage::Recovered(told) => {
            format!("Recovered {}, clock {}", of_epoch(told.e_prom), told.clock.0)
        }
        RecoveryMessage::NewIncarnation(new) => {
            format!("NewIncarnation of {}, the {}.", new.member, new.incarnation)
        }
    }
}

fn of_fence(message: &FenceMessage) -> String {
    match message {
        FenceMessage::Sealed(fence) => format!("Sealed by {}", of_config(&fence.config)),
        FenceMessage::ReportWanted(wanted) => {
            let config = of_config(&wanted.fence.config);
            format!("ReportWanted from byte {}, by {config}", wanted.offset)
        }
        FenceMessage::ReportPart(part) => {
            let (from, len, total) = (part.offset, part.bytes.len(), part.total);
            format!("ReportPart from byte {from}, {len} of {total} bytes")
        }
    }
}

/// Who is in a group, by number.
pub fn of_config(config: &Config) -> String {
    let members = of_nodes(&config.members);
    format!("configuration {} of g{}: {members}", config.number, config.group.0)
}

/// What a process is asked.
pub fn of_command(command: &Command) -> String {
    match command {
        Command::Multicast(start) => format!("is to multicast {}", of_start(start)),
        Command::Start(start) => format!("Start {}", of_start(start)),
        Command::Learn(config) => format!("hears that {} is there", of_groups([&config.group])),
        Command::Fence(fence) => {
            format!("hears that a group is lost: {}", of_config(&fence.config))
        }
        Command::FetchState => "is to fetch the state of another".into(),
        Command::Snapshot { to, position, .. } => {
            format!("the state for {to}, after {} deliveries", position.0)
        }
    }
}

/// What a replica writes to its log.
pub fn of_kept(record: &Kept) -> String {
    match record {
        Kept::Protocol(record) => of_record(record),
        Kept::Application(delivered) => {
            format!("the list of {} that were delivered", delivered.len())
        }
    }
}

/// What a process writes to its log.
pub fn of_record(record: &Record) -> String {
    match record {
        Record::Promised(epoch) => format!("promised {}", of_epoch(*epoch)),
        Record::Append { from, entries } => format!("T from {from}: {}", of_entries(entries)),
        Record::NewState { epoch, from, entries } => {
            format!("{}, T from {from} is {}", of_epoch(*epoch), of_entries(entries))
        }
        Record::Ceiling(ceiling) => format!("no clock above {}", ceiling.0),
        Record::Delivered { id, ts } => format!("delivered {}", at(*id, *ts)),
        Record::Mark => "a mark".into(),
        Record::State(_) => "the whole state".into(),
        Record::Fence { fence, report } => {
            format!("sealed by {}, {} bytes of report", of_config(&fence.config), report.len())
        }
        Record::Config(config) => {
            format!("configuration {} of {}", config.number, of_groups([&config.group]))
        }
    }
}

/// What a process tells its owner.
pub fn of_output(output: &Output) -> String {
    match output {
        Output::Deliver(delivery) => {
            let place = delivery.position.0;
            format!("delivers {}, as number {place}", at(delivery.start.id, delivery.ts))
        }
        Output::Duplicate(id) => format!("has delivered {id} before"),
        Output::Settled(ids) => format!("is delivered everywhere for good: {}", list(ids)),
        Output::SnapshotWanted { to } => format!("wants the state, for {to}"),
        Output::Ended { id, ts } => format!("hears that {} was delivered", at(*id, *ts)),
        Output::Refused { id, group } => format!("refuses {id}: g{} is out of reach", group.0),
        Output::Install { position, .. } => {
            format!("takes over a state after {} deliveries", position.0)
        }
    }
}
