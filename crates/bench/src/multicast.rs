//! `meridian bench multicast`: throughput and latency of multicast protocols over TCP, all members
//! in this process, one client with each (thesis, section 4.5).
//!
//! | module | what |
//! | --- | --- |
//! | `cluster` | members started, loaded, checked, stopped; which protocols there are |
//! | `client` | who sends and measures |
//! | `layout` | how far members are from each other |
//! | `soak` | very many messages, while a replica is away: each in a process of its own |
//! | `figures` | the thesis's figures |

mod client;
mod cluster;
mod figures;
mod layout;
mod soak;

use crate::dissemination::DisseminationArg;
use crate::harness::Machine;
use crate::harness::latency::{HEADS, Latency};
use anyhow::ensure;
use clap::{Args, Subcommand};
use client::{PAYLOAD_MIN, Part};
use cluster::{Outcome, Protocol, Setup};
use layout::{Distances, Layout, Rule};
use meridian_terminal::note;
use meridian_terminal::output::{self, Row};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// More members than this would be more connections than a process may have descriptors.
const MEMBERS_MAX: u64 = 60;
/// Nearer to each other than this round trip, the members of a group save messages rather than
/// steps.
const NEAR: Duration = Duration::from_millis(1);
/// So much of a run is warming up: a tenth of it, at most this.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

/// What else can be done.
#[derive(Debug, Subcommand)]
pub enum MulticastCommand {
    /// Measure and draw what Figures 4.2 to 4.5 of the thesis show, as SVG
    #[command(after_help = "\
Eight groups of three replicas, over TCP. 4.2: all in one place. 4.3: each group over three
regions, and all primaries in one of them. 4.4: each group in a region of its own. 4.5: all
latencies at two points of 4.4a, and drawn with it. What is measured for a diagram is written
beside it: figure-4.2.jsonl and so on.

Examples:
  meridian bench multicast figures --out figures
  meridian bench multicast figures --out figures --quick
  meridian bench multicast figures --out figures --only 4.3c,4.3d
  meridian bench multicast figures --out figures --only 4.2 --protocols primcast,linearizable")]
    Figures(figures::FiguresArgs),
    /// Very many messages, while one replica is down for half of them: memory, disk, and its
    /// return; about 40 s
    #[command(after_help = "\
Each replica is a process of its own with a write-ahead log, over TCP on 127.0.0.0/8. All but one
multicast. That one is killed (SIGKILL) after a quarter of the messages and started again after
three quarters, on the log that it had; the others drop what it lacks when that is long, and then
one of them sends it a snapshot. It then multicasts a message itself: it has returned when that is
delivered at it. With --freeze it is stopped and goes on with what it held in memory.

Each replica keeps a count and a digest of its deliveries: position, timestamp and name of each
message, in order. That is its state, which a snapshot carries. The command fails if
  - two replicas of a group have different digests at the same position: both are named, and the
    position
  - a replica has not delivered exactly what was multicast to its group
  - the replica does not return
  - memory or disk of a replica are not flat, in runs of 500000 messages or more. Over the last
    three quarters of the samples the greatest value may be twice the median, and the trend
    (Theil-Sen, between samples with the replica or without it) may add a quarter of the median;
    16 MiB count as nothing. The replica that was down is measured by the others' medians once it
    has returned: while it reads its log it takes several times that log.

Examples:
  meridian bench multicast soak
  meridian bench multicast soak --messages 10000000 --dir /var/tmp
  meridian bench multicast soak --freeze --down 0.8 --down-node 2
  meridian bench multicast soak --in-memory --json")]
    #[command(alias = "endure")]
    Soak(soak::SoakArgs),
    /// One replica of `soak`, which starts it
    #[command(hide = true)]
    Replica,
}

/// Who speaks if nothing is said: where a step inside a group costs next to nothing, its primary.
fn usual_dissemination(distances: &Distances, replicas: u16) -> DisseminationArg {
    if distances.inside(replicas) < NEAR {
        DisseminationArg::ViaLeader
    } else {
        DisseminationArg::AllToAll
    }
}

/// How to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct MulticastArgs {
    #[command(subcommand)]
    command: Option<MulticastCommand>,
    /// The protocol
    #[arg(long, value_enum, default_value = "primcast")]
    protocol: Protocol,
    /// How many groups
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    groups: u16,
    /// How many replicas each group has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: u16,
    /// To how many groups each message goes: the client's own, and others at random
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    dest: u16,
    /// Bytes of each message
    #[arg(long, default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(PAYLOAD_MIN as i64..=1 << 20))]
    payload: u32,
    /// How many messages each client keeps in flight
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    outstanding: u64,
    /// For how many seconds it is measured
    #[arg(long, default_value_t = 5.0, value_parser = crate::harness::positive_seconds)]
    seconds: f64,
    /// How far members are from each other (thesis, Table 4.1)
    #[arg(long, value_enum, default_value = "lan")]
    layout: Layout,
    /// Round trips in milliseconds in place of the layout's: g=90 between groups, r=30 inside them,
    /// g0-g3=120 between two groups, r0-r1=60 between first and second replicas of all groups
    #[arg(long, value_name = "WHOM=MS,..", value_delimiter = ',')]
    rtt: Vec<Rule>,
    /// Cut this group off after a third of the time, and mend it after two thirds. No message
    /// conflicts with another then; each client always has one in flight to the cut group
    #[arg(long, value_name = "GROUP")]
    cut: Option<u16>,
    /// PrimCast: who of a group speaks with other groups. If not given, the primary where the
    /// members of a group are nearer to each other than a millisecond, as on a server
    #[arg(long, value_enum)]
    dissemination: Option<DisseminationArg>,
    /// How many threads the members share
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Print JSON instead of a table; latencies are in microseconds
    #[arg(long)]
    json: bool,
}

impl MulticastArgs {
    fn setup(&self) -> anyhow::Result<Setup> {
        let members = u64::from(self.groups) * u64::from(self.replicas);
        ensure!(members <= MEMBERS_MAX, "{members} members, at most {MEMBERS_MAX} are possible");
        ensure!(self.dest <= self.groups, "--dest {} of {} groups", self.dest, self.groups);
        if let Some(cut) = self.cut {
            ensure!(cut < self.groups, "--cut {cut}: groups are 0 to {}", self.groups - 1);
            ensure!(
                self.groups > self.dest,
                "--cut: too few other groups for --dest {}",
                self.dest
            );
        }
        let mut distances = self.layout.distances();
        if !self.rtt.is_empty() {
            distances.rules.clone_from(&self.rtt);
        }
        let length = Duration::from_secs_f64(self.seconds);
        let usual = usual_dissemination(&distances, self.replicas);
        Ok(Setup {
            protocol: self.protocol,
            groups: self.groups,
            replicas: self.replicas,
            dest: self.dest,
            payload: self.payload as usize,
            outstanding: self.outstanding,
            warm_up: (length / 10).min(WARM_UP_MAX) + distances.longest() * 3,
            length,
            distances,
            cut: self.cut,
            dissemination: self.dissemination.unwrap_or(usual),
            threads: usize::from(self.threads),
        })
    }
}

/// The figures of one part of a run.
#[derive(Debug, Serialize)]
pub struct PartFigures {
    /// `all`, or `before`, `during` or `after` a cut.
    part: &'static str,
    seconds: f64,
    messages_per_second: f64,
    /// From sending to delivery at the client's own replica.
    client: Latency,
    /// From sending to delivery at any leader.
    leaders: Latency,
    /// From sending to delivery at any follower.
    followers: Latency,
    /// With a cut: messages to the cut group that came back to their clients.
    across: u64,
    /// Messages that were refused, as a group was out of reach.
    refused: u64,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    protocol: Protocol,
    groups: u16,
    replicas: u16,
    dest: u16,
    payload: usize,
    outstanding: u64,
    threads: usize,
    /// Who spoke with other groups; of PrimCast only.
    dissemination: Option<DisseminationArg>,
    cut: Option<u16>,
    /// Of all threads, clients among them, for each message that a client got.
    cpu_us_per_message: f64,
    /// Of the thread that used the most. With a thread for each member (`--threads`): of the
    /// busiest member, what would bound the throughput if each had a machine of its own.
    busiest_us_per_message: f64,
    frames_per_message: f64,
    bytes_per_message: f64,
    /// Over all groups, with what was not measured.
    delivered: u64,
    parts: Vec<PartFigures>,
}

impl Figures {
    fn of(setup: &Setup, outcome: &Outcome) -> Figures {
        let names: &[&str] = match setup.cut {
            None => &["all"],
            Some(_) => &["before", "during", "after"],
        };
        let parts = outcome.parts.iter().zip(names).map(|((length, part), name)| {
            let Part { client_ns, leader_ns, follower_ns, across, refused } = part;
            PartFigures {
                part: name,
                seconds: length.as_secs_f64(),
                messages_per_second: client_ns.len() as f64 / length.as_secs_f64(),
                client: Latency::of(client_ns),
                leaders: Latency::of(leader_ns),
                followers: Latency::of(follower_ns),
                across: *across,
                refused: *refused,
            }
        });
        let parts: Vec<_> = parts.collect();
        let messages: u64 = parts.iter().map(|part| part.client.count + part.across).sum();
        let per_message = |quantity: f64| quantity / messages.max(1) as f64;
        Figures {
            machine: None,
            protocol: setup.protocol,
            groups: setup.groups,
            replicas: setup.replicas,
            dest: setup.dest,
            payload: setup.payload,
            outstanding: setup.outstanding,
            threads: setup.threads,
            dissemination: setup.protocol.is_primcast().then_some(setup.dissemination),
            cut: setup.cut,
            cpu_us_per_message: per_message(outcome.cpu.as_secs_f64() * 1e6),
            busiest_us_per_message: per_message(outcome.busiest.as_secs_f64() * 1e6),
            frames_per_message: per_message(outcome.frames as f64),
            bytes_per_message: per_message(outcome.bytes as f64),
            delivered: outcome.delivered,
            parts,
        }
    }
}

/// Runs `meridian bench multicast`.
pub fn run(args: &MulticastArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(MulticastCommand::Figures(args)) => return figures::run(args),
        Some(MulticastCommand::Soak(args)) => return soak::run(args),
        Some(MulticastCommand::Replica) => return soak::run_replica(),
        None => {}
    }
    let setup = args.setup()?;
    let json = args.json;
    let progress = move |seconds: f64, messages: f64| {
        if !json {
            note!("{seconds:>4.0} s  {messages:.0} messages/s");
        }
    };
    let machine = Machine::look_and_warn();
    let outcome = cluster::run(setup.clone(), progress)?;
    let figures = Figures { machine: Some(machine), ..Figures::of(&setup, &outcome) };
    let empty = figures.parts.iter().any(|part| part.client.count == 0);
    if args.json {
        output::print(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        print(&figures)?;
    }
    ensure!(!empty, "in a part of the run no message was delivered");
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &Figures) -> anyhow::Result<()> {
    let mut head = vec!["", "", "messages/s"];
    head.extend(HEADS);
    let rows = figures.parts.iter().flat_map(|part| {
        let name = if part.part == "all" { "" } else { part.part };
        let all =
            [("client", part.client), ("leaders", part.leaders), ("followers", part.followers)];
        all.map(|(whose, latency)| -> Row {
            let rate = latency.count as f64 / part.seconds;
            let mut row = vec![name.into(), whose.into(), format!("{rate:.0}")];
            row.extend(latency.cells());
            row
        })
    });
    output::print(&output::table(&head, rows))?;
    output::print(&format!(
        "{:.1} us of CPU ({:.1} on the busiest thread), {:.2} frames and {:.0} bytes for each message, \
         over all replicas and clients",
        figures.cpu_us_per_message,
        figures.busiest_us_per_message,
        figures.frames_per_message,
        figures.bytes_per_message
    ))?;
    if let Some(machine) = &figures.machine {
        output::print(&machine.to_string())?;
    }
    if let Some(cut) = figures.cut {
        let across = figures
            .parts
            .iter()
            .map(|part| format!("{} {} (refused: {})", part.part, part.across, part.refused));
        let across: Vec<String> = across.collect();
        output::print(&format!("messages to group {cut} that came back: {}", across.join(", ")))?;
    }
    Ok(())
}
