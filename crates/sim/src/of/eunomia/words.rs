//! What sources, replicas of the service and receivers say and keep, in words. A label is named by
//! its timestamp, which names its source, too; an update by that of its label, and by its key.

use super::Member;
use crate::lossy::Timer;
use crate::trace::Teller;
use crate::words::{list, of_key, of_value};
use crate::world::{Happened, Way, What};
use meridian_core::RegionId;
use meridian_eunomia::member::{Command, Output, Record};
use meridian_eunomia::{
    self as eunomia, Batch, Label, Message, Peer, Regions, Role, Timestamp, Update, Vector, Word,
    receiver, shard,
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words;

impl Teller<Member> for Words {
    /// As `r2/shard0`.
    fn name(&self, peer: Peer) -> String {
        format!("r{}/{}", peer.region.0, of_role(peer.role))
    }

    fn message(&self, _way: Way<Peer>, message: &Message) -> String {
        of_message(message)
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Shard(command) => of_command(command),
            Command::Receiver(command) => of_wanted(command),
            Command::Regions(regions) => of_regions(regions),
        }
    }

    fn record(&self, record: &Record) -> String {
        match record {
            Record::Shard(record) => of_record(record),
            Record::Receiver(record) => of_received(record),
        }
    }

    fn output(&self, output: &Output) -> String {
        match output {
            Output::Shard(output) => of_output(output),
            Output::Receiver(output) => of_reached(output),
            Output::Regions(word) => of_word(word),
        }
    }

    fn timer(&self, timer: Timer<eunomia::Timer>) -> String {
        timer.words()
    }

    fn about(&mut self, event: &Happened<'_, Member>) -> Vec<String> {
        if let Some((_, _, message)) = event.said() {
            return said(message);
        }
        match event.what {
            What::Record(Record::Shard(record)) => recorded(record),
            What::Output(Output::Shard(shard::Output::Applied { ts, .. })) => vec![of_ts(*ts)],
            _ => match event.asked() {
                Some(Command::Shard(command)) => asked(command),
                Some(Command::Receiver(_) | Command::Regions(_)) | None => Vec::new(),
            },
        }
    }
}

/// The labels and keys that a message names.
pub fn said(message: &Message) -> Vec<String> {
    let labels = |labels: &[Label]| labels.iter().map(|label| of_ts(label.ts)).collect();
    let stamps = |stamps: &[Timestamp]| stamps.iter().map(|ts| of_ts(*ts)).collect();
    match message {
        Message::Batch(batch) => labels(&batch.labels),
        Message::Stream { labels: all, .. } | Message::Sealed { labels: all, .. } => labels(all),
        Message::Data(updates) | Message::Page { updates, .. } => {
            updates.iter().flat_map(changed).collect()
        }
        Message::Pull(all)
        | Message::Trimmed(all)
        | Message::Fetch { stamps: all, .. }
        | Message::Forgotten { stamps: all, .. }
        | Message::Apply { stamps: all, .. }
        | Message::Applied { stamps: all, .. } => stamps(all),
        Message::Ack { .. }
        | Message::Follow { .. }
        | Message::Seal { .. }
        | Message::Copy { .. }
        | Message::Copied(_)
        | Message::AskPage { .. } => Vec::new(),
    }
}

/// The label and the key of an update.
pub fn changed(update: &Update) -> Vec<String> {
    vec![of_ts(update.label.ts), of_key(&update.key)]
}

fn asked(command: &shard::Command) -> Vec<String> {
    match command {
        shard::Command::Read { key, .. } => vec![of_key(key)],
        shard::Command::Update(request) | shard::Command::Begin(request) => {
            vec![of_key(&request.key)]
        }
        shard::Command::Commit { .. }
        | shard::Command::Abort { .. }
        | shard::Command::Regions(_) => Vec::new(),
    }
}

fn recorded(record: &shard::Record) -> Vec<String> {
    match record {
        shard::Record::Committed { update, .. }
        | shard::Record::Held(update)
        | shard::Record::Applied(update) => changed(update),
        shard::Record::Reserved { .. }
        | shard::Record::Trimmed(_)
        | shard::Record::Forgotten(..)
        | shard::Record::Regions(_)
        | shard::Record::Fenced(..)
        | shard::Record::Copied(_) => Vec::new(),
    }
}

/// A point in the time of a region, which may be a label's name.
pub fn of_ts(ts: Timestamp) -> String {
    match ts {
        Timestamp::NEVER => "the end".into(),
        Timestamp(number) => number.to_string(),
    }
}

/// A region by its number.
pub fn of_region(region: RegionId) -> String {
    format!("r{}", region.0)
}

/// What a process does in its region.
pub fn of_role(role: Role) -> String {
    match role {
        Role::Shard(number) => format!("shard{number}"),
        Role::Replica(number) => format!("replica{number}"),
        Role::Receiver => "receiver".into(),
    }
}

/// An update: its label, where it was made, its key and value.
pub fn of_update(update: &Update) -> String {
    let Update { origin, label, key, value, .. } = update;
    let (ts, region) = (of_ts(label.ts), of_region(*origin));
    format!("{ts} of {region}, {} {}", of_key(key), of_value(value.as_deref()))
}

fn of_labels(labels: &[Label]) -> String {
    list(labels.iter().map(|label| of_ts(label.ts)))
}

fn of_stamps(stamps: &[Timestamp]) -> String {
    list(stamps.iter().map(|ts| of_ts(*ts)))
}

/// Points in the time of all regions, from the first on, without those at the end that are 0.
pub fn of_vector(vector: &Vector) -> String {
    let all: Vec<_> =
        (0..eunomia::REGIONS_MAX as u16).map(|region| vector[RegionId(region)]).collect();
    let last = all.iter().rposition(|ts| *ts > Timestamp::ZERO).map_or(0, |last| last + 1);
    all[..last].iter().map(|ts| of_ts(*ts)).collect::<Vec<_>>().join("/")
}

fn of_batch(batch: &Batch) -> String {
    let Batch { first, labels, promise, goes_on, .. } = batch;
    let end = first + labels.len() as u64;
    let promise = promise.map_or("no promise".into(), |ts| format!("promise {}", of_ts(ts)));
    let more = if *goes_on { ", goes on" } else { "" };
    format!("labels {first}..{end}, {promise}{more}: {}", of_labels(labels))
}

/// What one process says to another.
pub fn of_message(message: &Message) -> String {
    match message {
        Message::Batch(batch) => of_batch(batch),
        Message::Ack { next, lacks, ahead, waits, applied } => {
            let lacks = if *lacks { ", lacks some" } else { "" };
            let waits = if *waits { ", waits for a promise" } else { "" };
            let (ahead, applied) = (of_ts(*ahead), of_ts(*applied));
            format!("Ack below {next}{lacks}{waits}, ahead {ahead}, all regions have {applied}")
        }
        Message::Follow { applied, received, leads, lacks } => {
            let leads = if *leads { ", wants the stream" } else { "" };
            let lacks = if *lacks { ", lacks some" } else { "" };
            let (applied, received) = (of_ts(*applied), of_ts(*received));
            format!("Follow: applied {applied}, received {received}{leads}{lacks}")
        }
        Message::Stream { after, upto, labels, everywhere, .. } => {
            let (after, upto, all) = (of_ts(*after), of_ts(*upto), of_ts(*everywhere));
            format!("Stream {after} to {upto}, all regions have {all}: {}", of_labels(labels))
        }
        Message::Data(updates) => format!("Data {}", list(updates.iter().map(of_update))),
        Message::Pull(stamps) => format!("Pull {}", of_stamps(stamps)),
        Message::Trimmed(stamps) => format!("Trimmed {}", of_stamps(stamps)),
        Message::Fetch { origin, stamps } => {
            format!("Fetch of {}: {}", of_region(*origin), of_stamps(stamps))
        }
        Message::Forgotten { origin, stamps } => {
            format!("Forgotten of {}: {}", of_region(*origin), of_stamps(stamps))
        }
        Message::Apply { origin, applied, stamps, .. } => {
            let (region, applied) = (of_region(*origin), of_ts(*applied));
            format!("Apply of {region}, applied up to {applied}: {}", of_stamps(stamps))
        }
        Message::Applied { origin, stamps } => {
            format!("Applied of {}: {}", of_region(*origin), of_stamps(stamps))
        }
        Message::Seal { lost, round } => format!("Seal {}, round {round}", of_region(*lost)),
        Message::Sealed { lost, round, labels } => {
            let region = of_region(*lost);
            format!("Sealed {region}, round {round}, has applied {}", of_labels(labels))
        }
        Message::Copy { from } => format!("Copy the keys of {}", of_region(*from)),
        Message::Copied(vector) => format!("Copied, which depends on {}", of_vector(vector)),
        Message::AskPage { after } => {
            let after = after.as_ref().map_or("nothing".into(), |key| of_key(key));
            format!("AskPage after {after}")
        }
        Message::Page { updates, more, .. } => {
            let more = if *more { "" } else { ", the last" };
            format!("Page{more}: {}", list(updates.iter().map(of_update)))
        }
    }
}

fn of_command(command: &shard::Command) -> String {
    let of = |what: &str, request: &shard::Request| {
        let shard::Request { token, key, value, seen } = request;
        let (key, value, seen) = (of_key(key), of_value(value.as_deref()), of_vector(&seen.vector));
        format!("is to {what} {key}, {value}, token {token}, having seen {seen}")
    };
    match command {
        shard::Command::Read { token, key } => {
            format!("is to read {}, token {token}", of_key(key))
        }
        shard::Command::Update(request) => of("update", request),
        shard::Command::Begin(request) => of("begin to update", request),
        shard::Command::Commit { token } => format!("is to commit token {token}"),
        shard::Command::Abort { token } => format!("is to abort token {token}"),
        shard::Command::Regions(regions) => of_regions(regions),
    }
}

/// What a receiver is asked.
fn of_wanted(command: &receiver::Command) -> String {
    match command {
        receiver::Command::Await { token, seen } => {
            format!("is to await {}, token {token}", of_vector(seen))
        }
        receiver::Command::Forget { token } => format!("is to await nothing more, token {token}"),
        receiver::Command::Follow(true) => "is to follow other regions".into(),
        receiver::Command::Follow(false) => "is to follow no other regions".into(),
        receiver::Command::Learn(applied) => {
            format!("hears that its region has applied {}", of_vector(applied))
        }
        receiver::Command::Configure(_) => "hears where the service is".into(),
        receiver::Command::Regions(regions) => of_regions(regions),
        receiver::Command::Keep { lost, round, labels } => {
            let (lost, labels) = (of_region(*lost), of_labels(labels));
            format!("hears that of {lost} this is kept, round {round}: {labels}")
        }
    }
}

/// What each region is to the others.
pub fn of_regions(regions: &Regions) -> String {
    let standings = regions.standings().iter().enumerate();
    let all = standings.map(|(region, standing)| format!("r{region} {}", of_standing(standing)));
    format!("regions of epoch {}: {}", regions.epoch(), list(all))
}

/// How far a process is with the regions.
pub fn of_word(word: &Word) -> String {
    match word {
        Word::Heard(epoch) => format!("goes by the regions of epoch {epoch}"),
        Word::Copied => "its region has all that it needs to serve".into(),
        Word::Drained => "all others have applied what it has made".into(),
        Word::Sealed { lost, round, report } => {
            let (region, applied) = (of_region(*lost), of_labels(&report.applied));
            format!("applies nothing more of {region}, round {round}; has applied {applied}")
        }
        Word::Settled { lost, round } => {
            format!("has applied what is kept of {}, round {round}", of_region(*lost))
        }
    }
}

fn of_standing(standing: &eunomia::Standing) -> String {
    match standing {
        eunomia::Standing::Absent => "is absent".into(),
        eunomia::Standing::Comes { from } => format!("comes, of {}", of_region(*from)),
        eunomia::Standing::Copies { from } => format!("copies {}", of_region(*from)),
        eunomia::Standing::Serves => "serves".into(),
        eunomia::Standing::Leaves => "leaves".into(),
        eunomia::Standing::Lost { round } => format!("is lost, round {round}"),
        eunomia::Standing::Settles { round, kept } => {
            format!("settles up to {}, round {round}", of_ts(kept.upto))
        }
        eunomia::Standing::Gone { kept } => format!("is gone after {}", of_ts(*kept)),
    }
}

/// What a shard writes to its log.
fn of_record(record: &shard::Record) -> String {
    match record {
        shard::Record::Reserved { upto, base } => {
            format!("may promise {}, labels from {base} on", of_ts(*upto))
        }
        shard::Record::Committed { number, update } => {
            format!("label {number} is committed: {}", of_update(update))
        }
        shard::Record::Held(update) => format!("holds {}", of_update(update)),
        shard::Record::Trimmed(ts) => format!("all regions have applied up to {}", of_ts(*ts)),
        shard::Record::Applied(update) => format!("applied {}", of_update(update)),
        shard::Record::Forgotten(region, ts) => {
            format!("all have applied {} up to {}", of_region(*region), of_ts(*ts))
        }
        shard::Record::Regions(regions) => of_regions(regions),
        shard::Record::Fenced(region, round) => {
            format!("{} is fenced in round {round}", of_region(*region))
        }
        shard::Record::Copied(vector) => format!("copied, which depends on {}", of_vector(vector)),
    }
}

/// What a receiver writes to its log.
pub fn of_received(record: &receiver::Record) -> String {
    match record {
        receiver::Record::SiteTime { origin, upto } => {
            format!("{} is applied up to {}", of_region(*origin), of_ts(*upto))
        }
        receiver::Record::Regions(regions) => of_regions(regions),
    }
}

fn of_output(output: &shard::Output) -> String {
    match output {
        shard::Output::Value { token, value, .. } => {
            format!("answers token {token}: {}", of_value(value.as_deref()))
        }
        shard::Output::Updated { token, seen } => {
            format!("answers token {token}: updated, seen {}", of_vector(&seen.vector))
        }
        shard::Output::Refused { token, why } => format!("answers token {token}: {why}"),
        shard::Output::Applied { origin, ts, changed } => of_applied(*origin, *ts, *changed),
        shard::Output::Regions(word) => of_word(word),
    }
}

/// An update of another region is applied.
pub fn of_applied(origin: RegionId, ts: Timestamp, changed: bool) -> String {
    let late = if changed { "" } else { ", nothing changed" };
    format!("applied {} of {}{late}", of_ts(ts), of_region(origin))
}

fn of_reached(output: &receiver::Output) -> String {
    match output {
        receiver::Output::Reached { token } => format!("answers token {token}: reached"),
        receiver::Output::Refused { token, why } => format!("answers token {token}: {why}"),
        receiver::Output::Regions(word) => of_word(word),
    }
}
