//! `meridian bench multicast soak`: very many messages, with one replica away for a part of them.
//!
//! `replica` is one replica, in a process of its own.

mod replica;

use super::PAYLOAD_MIN;

use crate::dissemination::DisseminationArg;
use crate::harness::flatness::SAMPLES;
use crate::harness::processes::Processes;
use crate::harness::soak::{self, How, Plan, Subject};
use crate::harness::{Scratch, stop_on_signal};
use anyhow::{bail, ensure};
use clap::Args;
use meridian_core::{GroupId, ProcessId};
use meridian_terminal::output;
use replica::{Report, Request, Setup, Soaked, Status, Tally};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use replica::run as run_replica;

/// Of a replica's deliveries, it tells so many times how far it is.
const TOLD: u64 = 400;

/// How to test.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// How many messages are multicast, in all
    #[arg(long, default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    messages: u64,
    /// How many groups
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    groups: u16,
    /// How many replicas each group has: each is a process of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=9))]
    replicas: u16,
    /// To how many groups each message goes: the sender's own, and others at random
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    dest: u16,
    /// Bytes of each message
    #[arg(long, default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(PAYLOAD_MIN as i64..=1 << 20))]
    payload: u32,
    /// How many messages each replica keeps in flight
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    outstanding: u64,
    /// For which part of the messages the replica is down, in the middle of the run
    #[arg(long, default_value_t = 0.5, value_parser = part)]
    down: f64,
    /// Which replica goes down, by its node: groups follow each other; 0 leads group 0 at first
    #[arg(long, default_value_t = 0, value_name = "NODE")]
    down_node: u16,
    /// Freeze the replica (SIGSTOP, SIGCONT) in place of killing it
    #[arg(long)]
    freeze: bool,
    /// Who of a group speaks with the other groups
    #[arg(long, value_enum, default_value = "via-leader")]
    dissemination: DisseminationArg,
    /// Keep no logs on disk. A member without a disk that ends cannot come back, so it is frozen
    #[arg(long)]
    in_memory: bool,
    /// Where the logs are: in a directory of its own in DIR, which is removed at the end
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Print JSON instead of a table; sizes are in bytes
    #[arg(long)]
    json: bool,
    /// Let node 1 take one message for another, which the check must notice
    #[arg(long, hide = true)]
    plant_difference: bool,
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok().filter(|part| (0.05..=0.9).contains(part));
    part.ok_or_else(|| "from 0.05 to 0.9".into())
}

impl SoakArgs {
    fn nodes(&self) -> u16 {
        self.groups * self.replicas
    }

    fn setups(&self) -> anyhow::Result<Vec<Setup>> {
        ensure!(self.dest <= self.groups, "--dest {} of {} groups", self.dest, self.groups);
        let (nodes, down) = (self.nodes(), self.down_node);
        ensure!(down < nodes, "--down-node {down}: nodes are 0 to {}", nodes - 1);
        // About how many messages each group is sent.
        let each = self.messages * u64::from(self.dest) / u64::from(self.groups);
        let senders = u64::from(nodes) - 1;
        let setup = |node: u16| {
            let number = u64::from(node) - u64::from(node > down);
            let extra = u64::from(number < self.messages % senders);
            // What it has in flight when it is killed may be delivered or not, so it has nothing.
            let share = if node == down { 0 } else { self.messages / senders + extra };
            Setup {
                groups: self.groups,
                replicas: self.replicas,
                dest: self.dest,
                payload: self.payload as usize,
                outstanding: self.outstanding,
                share,
                mark: (each / SAMPLES).max(1),
                tell: (each / TOLD).max(1),
                dissemination: self.dissemination,
                mistaken_at: (self.plant_difference && node == 1).then_some(each / 2),
            }
        };
        Ok((0..nodes).map(setup).collect())
    }

    fn plan(&self) -> Plan {
        Plan {
            operations: self.messages,
            away: self.down_node,
            how: if self.freeze || self.in_memory { How::Frozen } else { How::Killed },
            gone_at: (1.0 - self.down) / 2.0,
            back_at: (1.0 + self.down) / 2.0,
            dead: None,
            slow: None,
            quiet: self.json,
        }
    }
}

/// What came of a run.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    soak: &'a soak::Report,
    groups: u16,
    replicas: u16,
    dest: u16,
    payload: u32,
    outstanding: u64,
    on_disk: bool,
    delivered: Vec<Group>,
    /// The state of another that the replica that was away was given; `None` if the others still
    /// had all that it lacked.
    snapshot: Option<Snapshot>,
}

/// What all replicas of a group have delivered.
#[derive(Debug, Serialize)]
struct Group {
    group: u16,
    delivered: u64,
    digest: String,
}

/// A state that was given to a replica.
#[derive(Debug, Serialize)]
struct Snapshot {
    /// How many deliveries it contained.
    position: u64,
    /// How long after the replica's start.
    seconds: f64,
}

/// Runs `meridian bench multicast soak`.
///
/// # Errors
/// If replicas differ, one does not return, or memory or disk are not flat.
pub fn run(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let scratch = Scratch::make(&args.dir)?;
    let processes = Processes::start(args.setups()?, &scratch, args.in_memory)?;
    let mut messages = Messages::new(args, processes);
    let soak = soak::run(&mut messages, args.plan(), &stop)?;
    let outcome = Outcome {
        groups: args.groups,
        replicas: args.replicas,
        dest: args.dest,
        payload: args.payload,
        outstanding: args.outstanding,
        on_disk: !args.in_memory,
        delivered: messages.delivered()?,
        snapshot: messages.snapshot(&soak),
        soak: &soak,
    };
    messages.processes.close()?;
    scratch.remove()?;
    if args.json {
        output::print(&serde_json::to_string_pretty(&outcome)?)?;
    } else {
        print(&outcome)?;
    }
    soak.ensure_flat()?;
    Ok(ExitCode::SUCCESS)
}

fn print(outcome: &Outcome<'_>) -> anyhow::Result<()> {
    outcome.soak.print(Messages::UNIT)?;
    for Group { group, delivered, digest } in &outcome.delivered {
        output::print(&format!(
            "group {group}: all replicas have delivered the same {delivered} messages, digest {digest}"
        ))?;
    }
    let replica = &outcome.soak.outage.replica;
    output::print(&match &outcome.snapshot {
        Some(Snapshot { position, seconds }) => {
            format!("{replica} was brought up to {position} by a snapshot in {seconds:.1} s")
        }
        None => format!("{replica} was brought up without a snapshot"),
    })
}

/// The subject: replicas that multicast.
struct Messages {
    processes: Processes<Soaked>,
    ids: Vec<ProcessId>,
    groups: u16,
    away: u16,
    statuses: Vec<Status>,
    /// The longest log of each replica since it was asked last, in bytes.
    logs: Vec<u64>,
    /// What is delivered in a group when the number of deliveries is a multiple of the mark, and at
    /// whom.
    marks: BTreeMap<(GroupId, u64), (u64, u16)>,
    /// The states that the replica that was away has gone on from.
    installed: Vec<(Instant, Tally)>,
    is_back: bool,
}

impl Messages {
    fn new(args: &SoakArgs, processes: Processes<Soaked>) -> Messages {
        let nodes = args.nodes();
        let sent = vec![0; args.groups.into()];
        Messages {
            ids: (0..nodes).map(|node| processes.setup(node).id(node)).collect(),
            processes,
            groups: args.groups,
            away: args.down_node,
            statuses: vec![Status { sent, ..Status::default() }; nodes.into()],
            logs: vec![0; nodes.into()],
            marks: BTreeMap::new(),
            installed: Vec::new(),
            is_back: false,
        }
    }

    /// How many messages were multicast to a group.
    fn sent(&self, group: GroupId) -> u64 {
        self.statuses.iter().map(|status| status.sent[usize::from(group.0)]).sum()
    }

    /// The replicas of a group: their processes and what they have delivered.
    fn tallies(&self, group: GroupId) -> impl Iterator<Item = (ProcessId, Tally)> {
        let all = self.ids.iter().zip(&self.statuses);
        all.filter(move |(id, _)| id.group == group).map(|(id, status)| (*id, status.tally))
    }

    fn on_status(&mut self, node: u16, status: Status) {
        let log = &mut self.logs[usize::from(node)];
        *log = status.log_bytes.max(*log);
        self.statuses[usize::from(node)] = status;
    }

    /// Whether a replica has delivered what others of its group had when they were as far.
    fn check_mark(&mut self, node: u16, tally: Tally) -> anyhow::Result<()> {
        let id = self.ids[usize::from(node)];
        let at = (id.group, tally.count);
        let (digest, other) = *self.marks.entry(at).or_insert((tally.digest, node));
        if digest == tally.digest {
            return Ok(());
        }
        let agreed = self.marks.range(..at).next_back();
        let agreed = agreed.filter(|((group, _), _)| *group == id.group);
        let agreed = agreed.map_or(0, |((_, at), _)| *at);
        bail!(
            "{id} and {} have delivered different messages up to position {}; up to {agreed} they were the same",
            self.ids[usize::from(other)],
            tally.count
        )
    }

    /// What was delivered, if all replicas of each group have delivered the same: what was
    /// multicast to it.
    fn delivered(&self) -> anyhow::Result<Vec<Group>> {
        let mut groups = Vec::new();
        for group in (0..self.groups).map(GroupId) {
            let sent = self.sent(group);
            let mut first = None;
            for (id, tally) in self.tallies(group) {
                let count = tally.count;
                ensure!(
                    count == sent,
                    "{id} has delivered {count} messages, but {sent} were multicast to its group"
                );
                ensure!(
                    tally == *first.get_or_insert(tally),
                    "{id} differs from another replica of its group at position {sent}, the last"
                );
            }
            let digest = first.map_or(0, |tally| tally.digest);
            groups.push(Group {
                group: group.0,
                delivered: sent,
                digest: format!("{digest:016x}"),
            });
        }
        Ok(groups)
    }

    /// The snapshot that the replica that was away got. From its own disk it has at most what it
    /// had when it went.
    fn snapshot(&self, soak: &soak::Report) -> Option<Snapshot> {
        let outage = &soak.outage;
        let own = outage.executed_at_gone + outage.missed / 2;
        let got = self.installed.iter().rfind(|(_, tally)| tally.count > own);
        got.map(|(at, tally)| Snapshot {
            position: tally.count,
            seconds: at.saturating_duration_since(outage.back).as_secs_f64(),
        })
    }
}

impl Subject for Messages {
    type Program = Soaked;
    const UNIT: &'static str = "messages";
    const STALLED: Duration = Duration::from_secs(150);

    fn processes(&mut self) -> &mut Processes<Soaked> {
        &mut self.processes
    }

    fn hear(&mut self, until: Instant) -> anyhow::Result<()> {
        match self.processes.next(until)? {
            Some((node, Report::Status(status))) => self.on_status(node, status),
            Some((node, Report::Mark(tally))) => self.check_mark(node, tally)?,
            Some((node, Report::Installed(tally))) if node == self.away && self.is_back => {
                self.installed.push((Instant::now(), tally));
            }
            Some((_, Report::Installed(_))) | None => {}
        }
        Ok(())
    }

    /// Messages that were delivered where they were sent, but for the one of the replica that was
    /// away.
    fn completed(&self) -> u64 {
        let all: u64 = self.statuses.iter().map(|status| status.completed).sum();
        all - self.statuses[usize::from(self.away)].completed
    }

    fn progress(&self) -> u64 {
        self.statuses.iter().map(|status| status.tally.count).sum()
    }

    fn executed_by_others(&self, away: u16) -> u64 {
        let group = self.ids[usize::from(away)].group;
        self.tallies(group).map(|(_, tally)| tally.count).max().unwrap_or_default()
    }

    fn take_log_bytes(&mut self, node: u16) -> u64 {
        std::mem::take(&mut self.logs[usize::from(node)])
    }

    /// It sends nothing of its own accord.
    fn setup_after_kill(&mut self, node: u16) -> Setup {
        Setup { share: 0, ..self.processes.setup(node).clone() }
    }

    fn on_back(&mut self, node: u16) -> anyhow::Result<()> {
        self.is_back = true;
        self.processes.request(node, Request)
    }

    /// What it multicast when it was back was delivered there.
    fn has_returned(&mut self, node: u16) -> anyhow::Result<bool> {
        Ok(self.statuses[usize::from(node)].completed > 0)
    }

    fn is_over(&self) -> bool {
        let mut all = self.ids.iter().zip(&self.statuses);
        all.all(|(id, status)| status.tally.count >= self.sent(id.group))
    }
}
