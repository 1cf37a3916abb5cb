//! What replicas of Hermes and their membership say and keep, in words: those of the paper. An
//! update is named by its key and its place, as `k3@4.1`: the fourth version, which node 1 wrote.
//!
//! ACKs and VALs of a batch name numbers, and are about the updates that INVs had said these are.

use super::node::{Command, Message, Node, Passed, Record, Timer};
use super::register::Change;
use crate::of::paxos::words as paxos;
use crate::trace::Teller;
use crate::words::{list, of_bytes, of_key, of_node, of_nodes, of_request, of_value};
use crate::world::{Happened, Way, What};
use meridian_core::{ClientId, MessageId, NodeId};
use meridian_hermes::message::{Chunk, Completion, Cursor};
use meridian_hermes::reliable::{self, Configured};
use meridian_hermes::{
    self as hermes, Action, Answer, Body, Epoch, Kind, Membership, Modify, Numbers, Request,
    Timestamp, Update,
};
use meridian_keys::steward::{Found, Report};
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Words {
    replicas: Replicas,
}

/// What the numbers of updates stand for, as their coordinators have said.
#[derive(Clone, Debug, Default)]
pub struct Replicas {
    updates: BTreeMap<(NodeId, Epoch, u64), (String, Timestamp)>,
}

impl Teller<Node> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, way: Way<NodeId>, message: &Message) -> String {
        match message {
            Message::Steward(message) => of_membership(message),
            Message::Replica(message) => self.replicas.of_message(way, message),
            Message::Passed(Passed::Report(report)) => {
                format!("to the steward: {}", of_report(report))
            }
            Message::Passed(Passed::Told(output)) => format!("to the replica: {}", of_told(output)),
        }
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Keys(command) => of_command(command, of_change),
            Command::Configure(configured) => of_configured(configured),
        }
    }

    fn record(&self, record: &Record) -> String {
        match record {
            Record::Steward(record) => of_kept(record),
            Record::Replica(record) => of_record(record),
        }
    }

    fn output(&self, (token, answer): &(u64, Answer)) -> String {
        format!("answers token {token}: {}", of_answer(answer))
    }

    fn timer(&self, timer: Timer) -> String {
        match timer {
            Timer::Steward(crate::lossy::Timer::Inner(timer)) => of_timer(timer),
            Timer::Steward(late) => late.words(),
            Timer::Replica(timer) => timer.words(),
            Timer::Hears => "of what one thread has told the other".into(),
        }
    }

    fn about(&mut self, event: &Happened<'_, Node>) -> Vec<String> {
        match event.said() {
            Some((_, way, Message::Replica(message))) => {
                self.replicas.learn(way, message);
                return self.replicas.said(way, message);
            }
            Some((_, _, Message::Steward(_) | Message::Passed(_))) => return Vec::new(),
            None => {}
        }
        match event.what {
            What::Record(Record::Replica(record)) => recorded(record),
            _ => match event.asked() {
                Some(Command::Keys(command)) => asked(command),
                Some(Command::Configure(_)) | None => Vec::new(),
            },
        }
    }
}

impl Replicas {
    /// Notes what numbers stand for; to be told of all messages.
    pub fn learn(&mut self, way: Way<NodeId>, message: &hermes::Message) {
        if let Body::Invs { first, updates, .. } = &message.body {
            for (number, update) in (*first..).zip(updates.iter()) {
                let named = (of_key(&update.key), update.ts);
                self.updates.insert((way.from, message.epoch, number), named);
            }
        }
    }

    /// The keys and updates that a message is about.
    pub fn said(&self, way: Way<NodeId>, message: &hermes::Message) -> Vec<String> {
        let numbered = |coordinator, numbers| {
            let known = self.known(coordinator, message.epoch, numbers);
            known.flat_map(|(key, ts)| [key.clone(), of_place(key, *ts)]).collect()
        };
        match &message.body {
            Body::Inv(update) => changed(update),
            Body::Ack { key, ts } | Body::Val { key, ts } | Body::Probe { key, ts } => {
                named(key, *ts)
            }
            Body::Invs { updates, .. } => updates.iter().flat_map(changed).collect(),
            Body::Acks(numbers) => numbered(way.to, numbers),
            Body::Vals(numbers) => numbered(way.from, numbers),
            Body::Chunk(chunk) => {
                chunk.entries.iter().flat_map(|(update, _)| changed(update)).collect()
            }
            Body::Installed { .. } | Body::Check { .. } | Body::CheckOk { .. } | Body::Fetch(_) => {
                Vec::new()
            }
        }
    }

    /// The updates of a coordinator with these numbers, as far as an INV of them was seen.
    fn known<'a>(
        &'a self,
        coordinator: NodeId,
        epoch: Epoch,
        numbers: &'a Numbers,
    ) -> impl Iterator<Item = &'a (String, Timestamp)> + 'a {
        let numbers = numbers.runs().flatten();
        numbers.filter_map(move |number| self.updates.get(&(coordinator, epoch, number)))
    }

    /// What one replica says to another.
    pub fn of_message(&self, way: Way<NodeId>, message: &hermes::Message) -> String {
        let epoch = message.epoch.0;
        let numbered = |coordinator, numbers: &Numbers| {
            let runs =
                numbers.runs().map(|run| format!("{} to {}", run.start, run.end.saturating_sub(1)));
            let known = self.known(coordinator, message.epoch, numbers);
            let names = list(known.map(|(key, ts)| of_place(key, *ts)));
            format!("{} in epoch {epoch}: {names}", list(runs))
        };
        match &message.body {
            Body::Inv(update) => format!("INV {}, epoch {epoch}", of_update(update)),
            Body::Ack { key, ts } => format!("ACK {}, epoch {epoch}", of_place(&of_key(key), *ts)),
            Body::Val { key, ts } => format!("VAL {}, epoch {epoch}", of_place(&of_key(key), *ts)),
            Body::Invs { first, updates, .. } => {
                let all = list(updates.iter().map(of_update));
                format!("INVs from {first} on in epoch {epoch}: {all}")
            }
            Body::Acks(numbers) => format!("ACKs {}", numbered(way.to, numbers)),
            Body::Vals(numbers) => format!("VALs {}", numbered(way.from, numbers)),
            Body::Probe { key, ts } => {
                format!("Probe {}, epoch {epoch}", of_place(&of_key(key), *ts))
            }
            Body::Installed { asks, settled } => {
                let settled = if *settled { ", settled" } else { "" };
                format!("Installed epoch {epoch}{settled}{}", if *asks { ", asks" } else { "" })
            }
            Body::Check { round } => format!("Check {round}, epoch {epoch}"),
            Body::CheckOk { round } => format!("CheckOk {round}, epoch {epoch}"),
            Body::Fetch(cursor) => format!("Fetch {}, epoch {epoch}", of_cursor(*cursor)),
            Body::Chunk(chunk) => of_chunk(chunk),
        }
    }
}

/// The place of an update: version and writer; `r` counts RMWs behind it, with the last one's
/// coordinator, and `d` is a draw that decides before the writer.
fn of_timestamp(ts: Timestamp) -> String {
    let writer = ts.writer;
    let mut text = format!("{}.{}", ts.version, writer.node.0);
    if writer.draw > 0 {
        text += &format!("d{}", writer.draw);
    }
    if ts.extension > 0 {
        text += &format!("r{}.{}", ts.extension, ts.modifier.0);
    }
    text
}

/// The name of an update.
pub fn of_place(key: &str, ts: Timestamp) -> String {
    format!("{key}@{}", of_timestamp(ts))
}

fn named(key: &[u8], ts: Timestamp) -> Vec<String> {
    let key = of_key(key);
    let place = of_place(&key, ts);
    vec![key, place]
}

fn changed(update: &Update) -> Vec<String> {
    named(&update.key, update.ts)
}

/// An update: what it is called, its rule, its value.
pub fn of_update(update: &Update) -> String {
    let kind = match update.kind {
        Kind::Write => "",
        Kind::Rmw => " RMW",
    };
    let place = of_place(&of_key(&update.key), update.ts);
    format!("{place}{kind}, {}", of_value(update.value.as_deref()))
}

/// The keys that a record of a replica is about, and updates of them.
pub fn recorded(record: &hermes::Record) -> Vec<String> {
    match record {
        hermes::Record::Held { update, .. } | hermes::Record::Entry { update, .. } => {
            changed(update)
        }
        hermes::Record::Valid { key, ts } | hermes::Record::Replayed { key, ts } => named(key, *ts),
        hermes::Record::Begun
        | hermes::Record::Ended
        | hermes::Record::Completed(..)
        | hermes::Record::Forgotten(_)
        | hermes::Record::ForgottenBefore(_) => Vec::new(),
    }
}

/// The key that a replica is asked about.
pub fn asked<M>(command: &hermes::Command<M>) -> Vec<String> {
    match command {
        hermes::Command::Read { key, .. } => vec![of_key(key)],
        hermes::Command::Update(request) => vec![of_key(&request.key)],
        hermes::Command::Install(_)
        | hermes::Command::Lease { .. }
        | hermes::Command::Forget(_)
        | hermes::Command::ForgetBefore(_)
        | hermes::Command::Watch(_) => Vec::new(),
    }
}

fn of_client(client: ClientId) -> String {
    format!("client {:x}", client.0)
}

fn of_cursor(cursor: Cursor) -> String {
    match cursor {
        Cursor::Entries(place) => format!("entries from place {place} on"),
        Cursor::Clients(None) => "clients".into(),
        Cursor::Clients(Some(client)) => format!("clients after {:x}", client.0),
        Cursor::Client(client) => of_client(client),
    }
}

fn of_chunk(chunk: &Chunk) -> String {
    let Chunk { cursor, entries, clients, next } = chunk;
    let entry = |(update, valid): &(Update, bool)| {
        let state = if *valid { "" } else { ", not Valid" };
        format!("{}{state}", of_place(&of_key(&update.key), update.ts))
    };
    let entries = list(entries.iter().map(entry));
    let more = next.map_or("the last".into(), |next| format!("next {}", of_cursor(next)));
    format!("Chunk, {}: {entries}; {} clients; {more}", of_cursor(*cursor), clients.len())
}

fn of_change(change: &Change) -> String {
    match change {
        Change::Append(more) => format!("append {}", of_bytes(more.len())),
        Change::Swap(old, new) => {
            format!("swap {} for {}", of_value(old.as_deref()), of_value(new.as_deref()))
        }
    }
}

/// What a replica is asked; `modify` has words for its RMWs.
pub fn of_command<M: Modify>(
    command: &hermes::Command<M>,
    modify: impl Fn(&M) -> String,
) -> String {
    match command {
        hermes::Command::Read { token, key } => {
            format!("is to read {}, token {token}", of_key(key))
        }
        hermes::Command::Update(Request { token, key, id, action }) => {
            let what = match action {
                Action::Write(value) => format!("write {}", of_value(value.as_deref())),
                Action::Modify(rmw) => modify(rmw),
            };
            let id = id.map(of_id).unwrap_or_default();
            format!("is to update {}, token {token}{id}: {what}", of_key(key))
        }
        hermes::Command::Install(membership) => of_install(membership),
        hermes::Command::Lease { until } => format!("has a lease until {}", until.0),
        hermes::Command::Forget(client) => format!("hears that {} is gone", of_client(*client)),
        hermes::Command::ForgetBefore(client) => {
            format!("hears that all before {} are gone", of_client(*client))
        }
        hermes::Command::Watch(true) => "is watched".into(),
        hermes::Command::Watch(false) => "is watched no more".into(),
    }
}

fn of_id(id: MessageId) -> String {
    format!(", request {}", of_request(id.client, id.sequence))
}

fn of_install(membership: &Membership) -> String {
    let Membership { epoch, live, shadows } = membership;
    let shadows = if shadows.is_empty() {
        String::new()
    } else {
        format!(", shadows {}", of_nodes(shadows.keys()))
    };
    format!("m-update: epoch {}, live {}{shadows}", epoch.0, of_nodes(live))
}

/// What a client is answered.
pub fn of_answer(answer: &Answer) -> String {
    match answer {
        Answer::Value { value, .. } => of_value(value.as_deref()),
        Answer::Written => "written".into(),
        Answer::Modified(answer) => format!("changed, answers {}", of_bytes(answer.len())),
        Answer::Kept { answer, .. } => {
            format!("nothing changed, answers {}", of_bytes(answer.len()))
        }
        Answer::Aborted => "aborted".into(),
        Answer::Refused(refusal) => format!("refused: {refusal}"),
        Answer::Unknown => "unknown".into(),
    }
}

fn of_completion(client: ClientId, completion: &Completion) -> String {
    let Completion { sequence, ts, committed, .. } = completion;
    let known = if *committed { ", committed" } else { "" };
    format!("{} was last, at {}{known}", of_request(client, *sequence), of_timestamp(*ts))
}

/// What a replica writes to its log.
pub fn of_record(record: &hermes::Record) -> String {
    match record {
        hermes::Record::Begun => "takes part from here on".into(),
        hermes::Record::Ended => "what follows is not recorded".into(),
        hermes::Record::Held { update, from } => {
            format!("holds {}, from {}", of_update(update), of_node(*from))
        }
        hermes::Record::Valid { key, ts } => format!("Valid {}", of_place(&of_key(key), *ts)),
        hermes::Record::Replayed { key, ts } => format!("replays {}", of_place(&of_key(key), *ts)),
        hermes::Record::Completed(client, completion) => of_completion(*client, completion),
        hermes::Record::Forgotten(client) => format!("{} is gone", of_client(*client)),
        hermes::Record::ForgottenBefore(client) => {
            format!("all before {} are gone", of_client(*client))
        }
        hermes::Record::Entry { update, from, valid } => {
            let state = if *valid { "Valid" } else { "not Valid" };
            format!("holds {}, {state}, from {}", of_update(update), of_node(*from))
        }
    }
}

/// What stewards say to each other.
pub fn of_membership(message: &reliable::Message) -> String {
    match message {
        reliable::Message::Paxos(message) => format!("registry: {}", paxos::of_message(message)),
        reliable::Message::Ask { sent, active, incarnation } => {
            let active = if *active { ", active" } else { "" };
            format!("asks for a lease at {}, start {incarnation}{active}", sent.0)
        }
        reliable::Message::Grant { sent, incarnation } => {
            format!("grants the lease asked for at {}, start {incarnation}", sent.0)
        }
    }
}

/// What a steward writes to its log.
pub fn of_kept(record: &reliable::Record) -> String {
    match record {
        reliable::Record::Paxos(record) => format!("registry: {}", paxos::of_record(record)),
        reliable::Record::Started(times) => format!("start {times}"),
    }
}

/// What the membership tells.
fn of_told(output: &reliable::Output) -> String {
    match output {
        reliable::Output::Install(membership) => of_install(membership),
        reliable::Output::Lease { until } => format!("a lease until {}", until.0),
    }
}

/// What a timer of the membership is for.
pub fn of_timer(timer: reliable::Timer) -> String {
    match timer {
        reliable::Timer::Paxos(timer) => format!("{timer:?} of the registry"),
        reliable::Timer::Beat => "Beat".into(),
    }
}

fn of_report(report: &Report) -> String {
    match report {
        Report::Found(Found::NoLog) => "keys are in memory".into(),
        Report::Found(Found::NotAll) => "its log does not have all".into(),
        Report::Found(Found::All) => "its log has all".into(),
        Report::Began => "its log has all from now on".into(),
        Report::Complete(epoch) => format!("it has everything, as of epoch {}", epoch.0),
        Report::Used => "it is used".into(),
    }
}

/// Who should hold keys.
fn of_configured(configured: &Configured) -> String {
    let Configured { version, nodes, may_return } = configured;
    let back = if may_return.is_empty() {
        String::new()
    } else {
        format!(", {} may return", of_nodes(may_return))
    };
    format!("hears that {} should hold keys, version {version}{back}", of_nodes(nodes))
}
