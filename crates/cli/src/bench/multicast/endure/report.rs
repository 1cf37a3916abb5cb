//! What came of a run, as JSON and as a table.

use crate::bench::flatness::{Flatness, JUDGED_FROM, Sample};
use crate::output::{self, Row};
use anyhow::ensure;
use serde::Serialize;

/// What all replicas of a group have delivered.
#[derive(Debug, Serialize)]
pub struct Group {
    pub group: u16,
    pub delivered: u64,
    pub digest: String,
}

/// How a replica was away and came back.
#[derive(Debug, Serialize)]
pub struct Outage {
    pub replica: String,
    /// `killed` or `frozen`.
    pub how: &'static str,
    pub from_message: u64,
    pub until_message: u64,
    /// What its group delivered meanwhile.
    pub missed: u64,
    /// The state of another that it was given; `None` if the others still had all that it lacked.
    pub snapshot: Option<Snapshot>,
    /// From its start to the delivery, at itself, of a message that it then multicast.
    pub returned_seconds: f64,
}

/// A state that was given to a replica.
#[derive(Debug, Serialize)]
pub struct Snapshot {
    /// How many deliveries it contained.
    pub position: u64,
    /// How long after the replica's start.
    pub seconds: f64,
}

/// What came of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub messages: u64,
    pub groups: u16,
    pub replicas: u16,
    pub dest: u16,
    pub payload: u32,
    pub outstanding: u64,
    pub on_disk: bool,
    pub seconds: f64,
    pub messages_per_second: f64,
    pub delivered: Vec<Group>,
    pub outage: Outage,
    pub samples: Vec<Sample>,
    pub flatness: Vec<Flatness>,
    /// `None` if the run was too short to tell.
    pub flat: Option<bool>,
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

impl Report {
    /// Prints it; `names` are those of the replicas.
    pub fn print(&self, names: &[String], json: bool) -> anyhow::Result<()> {
        if json {
            return output::print(&serde_json::to_string_pretty(self)?);
        }
        self.print_samples(names)?;
        output::print("")?;
        let head = ["", "median", "greatest", "growth", ""];
        let rows = self.flatness.iter().map(|one| -> Row {
            let verdict = if one.flat || self.flat.is_none() { "" } else { "NOT FLAT" };
            let growth = mib(one.growth);
            vec![one.what.clone(), mib(one.median), mib(one.greatest), growth, verdict.into()]
        });
        output::print(&output::table(&head, rows))?;
        output::print("")?;
        output::print(&format!(
            "{} messages in {:.0} s: {:.0} messages/s",
            self.messages, self.seconds, self.messages_per_second
        ))?;
        for Group { group, delivered, digest } in &self.delivered {
            output::print(&format!(
                "group {group}: all replicas have delivered the same {delivered} messages, digest {digest}"
            ))?;
        }
        self.print_outage()?;
        output::print(match self.flat {
            Some(true) => "memory and disk are flat",
            Some(false) => "memory or disk are NOT FLAT",
            None => "too few messages to tell whether memory and disk are flat",
        })
    }

    fn print_samples(&self, names: &[String]) -> anyhow::Result<()> {
        let mut head = vec!["messages".to_string(), "messages/s".into(), "longest log".into()];
        head.extend(names.iter().map(|name| format!("{name} memory, disk")));
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let rows = self.samples.iter().map(|sample| -> Row {
            let log = sample.replicas.iter().map(|usage| usage.log).max().unwrap_or_default();
            let mut row = vec![
                sample.messages.to_string(),
                format!("{:.0}", sample.messages_per_second),
                mib(log as f64),
            ];
            row.extend(
                sample
                    .replicas
                    .iter()
                    .map(|usage| format!("{}, {}", usage.memory >> 20, usage.disk >> 20)),
            );
            row
        });
        output::print(&output::table(&head, rows))?;
        output::print("(memory and disk in MiB, at most since the row before)")
    }

    fn print_outage(&self) -> anyhow::Result<()> {
        let Outage { replica, how, from_message, until_message, missed, .. } = &self.outage;
        let by = match &self.outage.snapshot {
            Some(Snapshot { position, seconds }) => {
                format!("brought up to {position} by a snapshot in {seconds:.1} s")
            }
            None => "brought up by the log of the others".into(),
        };
        output::print(&format!(
            "{replica} was {how} from message {from_message} to {until_message}, missed {missed} deliveries, was {by}, \
             and delivered a message of its own {:.1} s after its start",
            self.outage.returned_seconds
        ))
    }

    /// # Errors
    /// If memory or disk are not flat: what, and by how much.
    pub fn ensure_flat(&self) -> anyhow::Result<()> {
        let wrong = self.flatness.iter().filter(|one| !one.flat);
        let wrong: Vec<String> = wrong
            .map(|one| {
                let (median, greatest, growth) =
                    (mib(one.median), mib(one.greatest), mib(one.growth));
                format!("{} (median {median}, greatest {greatest}, growth {growth})", one.what)
            })
            .collect();
        let judged = self.messages >= JUDGED_FROM;
        ensure!(!judged || wrong.is_empty(), "not flat: {}", wrong.join(", "));
        Ok(())
    }
}
