//! What nodes with keys of all regions say and keep, in words: those of Hermes within a region,
//! those of Eunomia between regions.

use super::Member;
use super::node::{Command, Message, Record, Rmw, Timer};
use crate::lossy;
use crate::of::eunomia::words::{self as eunomia, of_ts, of_vector};
use crate::of::hermes::words::{self as hermes, Replicas};
use crate::trace::Teller;
use crate::words::{list, of_key, of_node, of_nodes, of_value};
use crate::world::{Happened, Way, What};
use meridian_core::NodeId;
use meridian_eunomia::Order;
use meridian_hermes::Action;
use meridian_keys::causal::{self, Change, Found, Make};

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Words {
    replicas: Replicas,
}

impl Teller<Member> for Words {
    fn name(&self, peer: NodeId) -> String {
        of_node(peer)
    }

    fn message(&self, way: Way<NodeId>, message: &Message) -> String {
        match message {
            Message::Membership(message) => hermes::of_membership(message),
            Message::Keys(message) => self.of_message(way, message),
        }
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Keys(command) => of_command(command),
            Command::Configure { version, nodes, .. } => {
                format!("hears that {} should hold keys, version {version}", of_nodes(nodes))
            }
        }
    }

    fn record(&self, record: &Record) -> String {
        match record {
            Record::Membership(record) => hermes::of_kept(record),
            Record::Keys(causal::Record::Replica(record)) => hermes::of_record(record),
            Record::Keys(causal::Record::Receiver(record)) => eunomia::of_received(record),
            Record::Keys(causal::Record::Reserved(ts)) => format!("may promise {}", of_ts(*ts)),
        }
    }

    fn output(&self, output: &causal::Output) -> String {
        of_output(output)
    }

    fn timer(&self, timer: lossy::Timer<Timer>) -> String {
        match timer {
            lossy::Timer::Inner(Timer::Membership(timer)) => hermes::of_timer(timer),
            lossy::Timer::Inner(Timer::Keys(timer)) => of_timer(timer),
            late => late.words(),
        }
    }

    fn about(&mut self, event: &Happened<'_, Member>) -> Vec<String> {
        match event.said() {
            Some((_, way, Message::Keys(message))) => return self.said(way, message),
            Some((_, _, Message::Membership(_))) => return Vec::new(),
            None => {}
        }
        match event.what {
            What::Record(Record::Keys(causal::Record::Replica(record))) => hermes::recorded(record),
            What::Output(causal::Output::Applied { ts, .. }) => vec![of_ts(*ts)],
            _ => match event.asked() {
                Some(Command::Keys(command)) => asked(command),
                Some(Command::Configure { .. }) | None => Vec::new(),
            },
        }
    }
}

impl Words {
    fn said(&mut self, way: Way<NodeId>, message: &causal::Message) -> Vec<String> {
        match message {
            causal::Message::Replica(message) => {
                self.replicas.learn(way, message);
                self.replicas.said(way, message)
            }
            causal::Message::Eunomia { message, .. } => eunomia::said(message),
            causal::Message::Page { updates, .. } | causal::Message::Kept { updates, .. } => {
                updates.iter().flat_map(eunomia::changed).collect()
            }
            causal::Message::SiteTimes(_)
            | causal::Message::AskPage { .. }
            | causal::Message::Copied(_)
            | causal::Message::Everywhere(_)
            | causal::Message::AskKept { .. }
            | causal::Message::Settled { .. } => Vec::new(),
        }
    }

    fn of_message(&self, way: Way<NodeId>, message: &causal::Message) -> String {
        match message {
            causal::Message::Replica(message) => self.replicas.of_message(way, message),
            causal::Message::Eunomia { from, to, message } => {
                let (from, to) = (eunomia::of_role(*from), eunomia::of_role(*to));
                format!("{from} to {to}: {}", eunomia::of_message(message))
            }
            causal::Message::SiteTimes(applied) => {
                format!("SiteTimes: applied {}", of_vector(applied))
            }
            causal::Message::AskPage { place, .. } => format!("AskPage from place {place} on"),
            causal::Message::Page { place, updates, next, .. } => {
                let next = next.map_or(", the last".into(), |next| format!(", next {next}"));
                let updates = list(updates.iter().map(eunomia::of_update));
                format!("Page from place {place} on{next}: {updates}")
            }
            causal::Message::Copied(vector) => {
                format!("Copied, which depends on {}", of_vector(vector))
            }
            causal::Message::Everywhere(applied) => {
                format!("Everywhere: all others have applied {}", of_vector(applied))
            }
            causal::Message::AskKept { lost, round, after } => {
                let lost = eunomia::of_region(*lost);
                format!("AskKept of {lost}, round {round}, after {}", of_ts(*after))
            }
            causal::Message::Kept { lost, round, after, updates, next } => {
                let next = next.map_or(", the last".into(), |ts| format!(", up to {}", of_ts(ts)));
                let (lost, after) = (eunomia::of_region(*lost), of_ts(*after));
                let updates = list(updates.iter().map(eunomia::of_update));
                format!("Kept of {lost}, round {round}, after {after}{next}: {updates}")
            }
            causal::Message::Settled { lost, round } => {
                let lost = eunomia::of_region(*lost);
                format!("Settled: has applied what is kept of {lost}, round {round}")
            }
        }
    }
}

fn asked(command: &causal::Command<Rmw>) -> Vec<String> {
    match command {
        causal::Command::Replica(command) => hermes::asked(command),
        causal::Command::Read { key, .. } | causal::Command::Lapse { key, .. } => {
            vec![of_key(key)]
        }
        causal::Command::ReadAll { keys, .. } => keys.iter().map(|key| of_key(key)).collect(),
        causal::Command::Update(update) => vec![of_key(&update.key)],
        causal::Command::Await { .. }
        | causal::Command::Forget { .. }
        | causal::Command::Configure(_) => Vec::new(),
    }
}

fn of_rmw(rmw: &Rmw) -> String {
    match rmw {
        Rmw::Swap(value) => format!("swap for {}", of_value(Some(value))),
        Rmw::Create(value) => format!("create {}", of_value(Some(value))),
    }
}

fn of_action(action: &Action<Rmw>) -> String {
    match action {
        Action::Write(value) => format!("write {}", of_value(value.as_deref())),
        Action::Modify(rmw) => of_rmw(rmw),
    }
}

fn of_order(order: Order) -> String {
    format!("what r{} made at {}", order.region, of_ts(order.ts))
}

fn of_change(change: &Change<Rmw>) -> String {
    match change {
        Change::Local(rmw) => of_rmw(rmw),
        Change::Make(Make { label, action, .. }) => {
            format!("make {}: {}", of_ts(label.ts), of_action(action))
        }
        Change::Merge(update) | Change::Note(update) => {
            format!("merge {}", eunomia::of_update(update))
        }
        Change::Lapse(order) => format!("lapse {}", of_order(*order)),
        Change::Replace(update) => format!("replace by {}", eunomia::of_update(update)),
    }
}

fn of_command(command: &causal::Command<Rmw>) -> String {
    match command {
        causal::Command::Replica(command) => hermes::of_command(command, of_change),
        causal::Command::Read { token, key } => {
            format!("is to read {}, token {token}", of_key(key))
        }
        causal::Command::ReadAll { token, keys } => {
            let keys = list(keys.iter().map(|key| of_key(key)));
            format!("is to read {keys} at one moment, token {token}")
        }
        causal::Command::Update(causal::Update { token, key, action, seen }) => {
            let (key, what, seen) = (of_key(key), of_action(action), of_vector(&seen.vector));
            format!("is to update {key}, token {token}, having seen {seen}: {what}")
        }
        causal::Command::Lapse { token, key, order } => {
            format!("is to lapse {}, token {token}: {}", of_key(key), of_order(*order))
        }
        causal::Command::Await { token, seen } => {
            format!("is to await {}, token {token}", of_vector(seen))
        }
        causal::Command::Forget { token } => format!("is to await nothing more, token {token}"),
        causal::Command::Configure(regions) => eunomia::of_regions(regions.standings()),
    }
}

fn of_found(found: &Found) -> String {
    format!("{}, seen {}", of_value(found.value.as_deref()), of_vector(&found.seen.vector))
}

fn of_output(output: &causal::Output) -> String {
    let answer = |token: &u64, what: String| format!("answers token {token}: {what}");
    match output {
        causal::Output::Replica(output) => of_replica(output),
        causal::Output::Value { token, found, .. } => answer(token, of_found(found)),
        causal::Output::Values { token, found, .. } => {
            answer(token, list(found.iter().map(of_found)))
        }
        causal::Output::Lapsed { token } => answer(token, "lapsed".into()),
        causal::Output::Updated { token, seen, .. } => {
            answer(token, format!("updated, seen {}", of_vector(&seen.vector)))
        }
        causal::Output::Kept { token, seen, .. } => {
            answer(token, format!("nothing changed, seen {}", of_vector(&seen.vector)))
        }
        causal::Output::Aborted { token } => answer(token, "aborted".into()),
        causal::Output::Refused { token, refusal } => answer(token, format!("refused: {refusal}")),
        causal::Output::Denied { token, why } => answer(token, format!("denied: {why}")),
        causal::Output::Unknown { token } => answer(token, "unknown".into()),
        causal::Output::Reached { token } => answer(token, "reached".into()),
        causal::Output::Applied { origin, ts, changed } => {
            eunomia::of_applied(*origin, *ts, *changed)
        }
        causal::Output::Word(word) => eunomia::of_word(word),
    }
}

/// What the replica of Hermes tells of keys of one region only.
fn of_replica(output: &meridian_hermes::Output) -> String {
    match output {
        meridian_hermes::Output::Answer { token, answer } => {
            format!("answers token {token}: {}", hermes::of_answer(answer))
        }
        meridian_hermes::Output::Complete { epoch } => {
            format!("has everything, as of epoch {}", epoch.0)
        }
        meridian_hermes::Output::Watching => "tells of changes".into(),
        meridian_hermes::Output::Committed { key } => format!("{} has changed", of_key(key)),
    }
}

fn of_timer(timer: causal::Timer) -> String {
    match timer {
        causal::Timer::Replica(timer) => format!("{timer:?} of the replica"),
        causal::Timer::Source(timer) => format!("{timer:?} of the source"),
        causal::Timer::Service(timer) => format!("{timer:?} of the service"),
        causal::Timer::Receiver(timer) => format!("{timer:?} of the receiver"),
    }
}
