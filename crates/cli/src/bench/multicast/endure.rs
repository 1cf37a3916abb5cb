//! `meridian bench multicast endure`: very many messages, with one replica away for a part of them.
//!
//! | module | what |
//! | --- | --- |
//! | `replica` | one replica, in a process of its own |
//! | `processes` | those processes: started, killed, looked at |
//! | `report` | what came of it, as JSON and as a table |

mod processes;
mod replica;
mod report;

use super::PAYLOAD_MIN;

use crate::bench::flatness::{self, SAMPLES, Sample, Usage};
use crate::bench::{Room, stop_on_signal};
use crate::speakers::SpeakersArg;
use anyhow::{bail, ensure};
use clap::Args;
use meridian_core::GroupId;
use processes::Processes;
use replica::{Ask, Said, Setup, Status, Tally};
use report::{Group, Outage, Report, Snapshot};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use replica::run as run_replica;

/// How often it is looked how much memory and disk the replicas take.
const LOOK: Duration = Duration::from_millis(250);
/// Nothing was delivered for so long: nothing more will be.
const STALLED: Duration = Duration::from_secs(150);
/// Of a replica's deliveries, it tells so many times how far it is.
const TOLD: u64 = 400;

/// How to endure.
#[derive(Debug, Args)]
pub struct EndureArgs {
    /// How many messages are multicast, in all
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
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
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(PAYLOAD_MIN as i64..=1 << 20))]
    payload: u32,
    /// How many messages each replica keeps under way
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
    #[arg(long, value_enum, default_value = "primary")]
    speakers: SpeakersArg,
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

impl EndureArgs {
    fn nodes(&self) -> u16 {
        self.groups * self.replicas
    }

    fn setups(&self, room: &Path) -> anyhow::Result<Vec<Setup>> {
        ensure!(self.dest <= self.groups, "--dest {} of {} groups", self.dest, self.groups);
        let (nodes, down) = (self.nodes(), self.down_node);
        ensure!(down < nodes, "--down-node {down}: nodes are 0 to {}", nodes - 1);
        // About how many messages each group is sent.
        let each = self.messages * u64::from(self.dest) / u64::from(self.groups);
        let senders = u64::from(nodes) - 1;
        let setup = |node: u16| {
            let number = u64::from(node) - u64::from(node > down);
            let extra = u64::from(number < self.messages % senders);
            // What it has under way when it is killed may be delivered or not, so it has nothing.
            let share = if node == down { 0 } else { self.messages / senders + extra };
            Setup {
                node,
                groups: self.groups,
                replicas: self.replicas,
                dest: self.dest,
                payload: self.payload as usize,
                outstanding: self.outstanding,
                share,
                mark: (each / SAMPLES).max(1),
                tell: (each / TOLD).max(1),
                // Of its own, so that no other connection is given its port while it is down.
                listen: format!("127.0.0.{}:0", 2 + node),
                speakers: self.speakers,
                dir: (!self.in_memory).then(|| room.join(format!("node-{node}"))),
                mistaken_at: (self.plant_difference && node == 1).then_some(each / 2),
            }
        };
        Ok((0..nodes).map(setup).collect())
    }

    fn freezes(&self) -> bool {
        self.freeze || self.in_memory
    }
}

/// Runs `meridian bench multicast endure`.
pub fn run(args: &EndureArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let room = Room::make(&args.dir)?;
    let setups = args.setups(&room.path)?;
    let mut run = Run::new(args, Processes::start(setups)?, stop);
    let ended = run.until_all_is_delivered();
    let Run { processes, .. } = &run;
    ended?;
    let names: Vec<String> = (0..args.nodes()).map(|node| processes.id(node).to_string()).collect();
    let report = run.report(&names)?;
    run.processes.close()?;
    room.remove()?;
    report.print(&names, args.json)?;
    report.ensure_flat()?;
    Ok(ExitCode::SUCCESS)
}

/// When the replica went and came, and how.
#[derive(Clone, Copy, Debug, Default)]
struct Away {
    /// When, after how many messages, and how many deliveries its group had then.
    gone: Option<(Instant, u64, u64)>,
    back: Option<(Instant, u64, u64)>,
    /// It got another's state, which contained so many deliveries.
    snapshot: Option<(Instant, u64)>,
    /// What it multicast when it was back was delivered there.
    returned: Option<Instant>,
}

/// What is delivered in a group when the number of deliveries is a multiple of the mark.
type Marks = BTreeMap<(GroupId, u64), (u64, u16)>;

/// A run.
struct Run<'a> {
    args: &'a EndureArgs,
    processes: Processes,
    stop: Arc<AtomicBool>,
    begin: Instant,
    statuses: Vec<Status>,
    marks: Marks,
    away: Away,
    usage: Vec<Usage>,
    samples: Vec<Sample>,
    looked: Instant,
    /// When something was delivered last.
    moved: Instant,
}

impl<'a> Run<'a> {
    fn new(args: &'a EndureArgs, processes: Processes, stop: Arc<AtomicBool>) -> Run<'a> {
        let nodes = usize::from(args.nodes());
        let now = Instant::now();
        let sent = vec![0; args.groups.into()];
        Run {
            args,
            processes,
            stop,
            begin: now,
            statuses: vec![Status { sent, ..Status::default() }; nodes],
            marks: Marks::new(),
            away: Away::default(),
            usage: vec![Usage::default(); nodes],
            samples: Vec::new(),
            looked: now,
            moved: now,
        }
    }

    /// Messages that were delivered where they were sent, but for the one of the replica that was away.
    fn completed(&self) -> u64 {
        let all: u64 = self.statuses.iter().map(|status| status.completed).sum();
        all - self.statuses[usize::from(self.args.down_node)].completed
    }

    fn nodes_of(&self, group: GroupId) -> impl Iterator<Item = u16> {
        (0..self.args.nodes()).filter(move |node| self.processes.id(*node).group == group)
    }

    /// How many deliveries the group of the replica that goes down has had, anywhere.
    fn group_delivered(&self) -> u64 {
        let nodes = self.nodes_of(self.processes.id(self.args.down_node).group);
        let counts = nodes.map(|node| self.statuses[usize::from(node)].tally.count);
        counts.max().unwrap_or_default()
    }

    /// How many messages were multicast to a group.
    fn sent(&self, group: GroupId) -> u64 {
        self.statuses.iter().map(|status| status.sent[usize::from(group.0)]).sum()
    }

    fn is_over(&self) -> bool {
        self.completed() == self.args.messages && self.away.returned.is_some() && {
            let nodes = 0..self.args.nodes();
            let sent = nodes.map(|node| self.sent(self.processes.id(node).group));
            self.statuses.iter().zip(sent).all(|(status, sent)| status.tally.count >= sent)
        }
    }

    fn until_all_is_delivered(&mut self) -> anyhow::Result<()> {
        while !self.is_over() {
            ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
            if let Some((node, said)) = self.processes.next(self.looked + LOOK)? {
                self.on_said(node, said)?;
            }
            if self.looked.elapsed() >= LOOK {
                self.look();
            }
            self.take_down_and_bring_back()?;
            let due = (self.samples.len() as u64 + 1) * self.args.messages / SAMPLES;
            if self.completed() >= due && (self.samples.len() as u64) < SAMPLES {
                self.look();
                self.sample();
            }
            if self.moved.elapsed() > STALLED {
                bail!("nothing was delivered for {} s: {}", STALLED.as_secs(), self.counts());
            }
        }
        Ok(())
    }

    fn counts(&self) -> String {
        let count = |node: u16| {
            let status = &self.statuses[usize::from(node)];
            format!("{} {}", self.processes.id(node), status.tally.count)
        };
        (0..self.args.nodes()).map(count).collect::<Vec<_>>().join(", ")
    }

    fn on_said(&mut self, node: u16, said: Said) -> anyhow::Result<()> {
        let is_away = node == self.args.down_node;
        match said {
            Said::Status(status) => {
                let known = &mut self.statuses[usize::from(node)];
                if status.tally.count != known.tally.count {
                    self.moved = Instant::now();
                }
                let log = &mut self.usage[usize::from(node)].log;
                *log = status.log_bytes.max(*log);
                if is_away && status.completed > 0 && self.away.back.is_some() {
                    self.away.returned.get_or_insert(Instant::now());
                }
                *known = status;
            }
            Said::Mark(tally) => check(&mut self.marks, &self.processes, node, tally)?,
            Said::Installed(tally) => {
                // From its own disk it has at most what it had when it went.
                if is_away
                    && let (Some((_, _, gone)), Some((_, _, back))) =
                        (self.away.gone, self.away.back)
                    && tally.count > gone.midpoint(back)
                {
                    self.away.snapshot = Some((Instant::now(), tally.count));
                }
            }
            Said::Listening(_) | Said::Failed(_) => {}
        }
        Ok(())
    }

    fn take_down_and_bring_back(&mut self) -> anyhow::Result<()> {
        let (node, freezes) = (self.args.down_node, self.args.freezes());
        let done = self.completed();
        let at = |part: f64| (self.args.messages as f64 * part) as u64;
        let stamp = |run: &Run<'_>| Some((Instant::now(), done, run.group_delivered()));
        if self.away.gone.is_none() && done >= at((1.0 - self.args.down) / 2.0) {
            if freezes {
                self.processes.freeze(node)?
            } else {
                self.processes.kill(node)
            }
            self.away.gone = stamp(self);
            self.say(&format!("{} is {}", self.processes.id(node), self.how()));
        }
        if self.away.gone.is_some()
            && self.away.back.is_none()
            && done >= at((1.0 + self.args.down) / 2.0)
        {
            self.away.back = stamp(self);
            if freezes {
                self.processes.thaw(node)?
            } else {
                self.processes.start_again(node)?
            }
            self.processes.ask(node, &Ask::Speak)?;
            self.say(&format!("{} is back", self.processes.id(node)));
        }
        Ok(())
    }

    fn how(&self) -> &'static str {
        if self.args.freezes() { "frozen" } else { "killed" }
    }

    /// Looks at what the replicas take, which counts if it is more than before.
    fn look(&mut self) {
        self.looked = Instant::now();
        for node in 0..self.args.nodes() {
            let memory = self.processes.memory(node).unwrap_or_default();
            let now = Usage { memory, disk: self.processes.disk(node), log: 0 };
            let usage = &mut self.usage[usize::from(node)];
            *usage = usage.max(now);
        }
    }

    fn sample(&mut self) {
        let (messages, seconds) = (self.completed(), self.begin.elapsed().as_secs_f64());
        let (before, since) =
            self.samples.last().map_or((0, 0.0), |last| (last.messages, last.seconds));
        let messages_per_second = (messages - before) as f64 / (seconds - since).max(1e-3);
        let replicas =
            std::mem::replace(&mut self.usage, vec![Usage::default(); self.statuses.len()]);
        let memory: u64 = replicas.iter().map(|usage| usage.memory).sum();
        let disk: u64 = replicas.iter().map(|usage| usage.disk).sum();
        self.say(&format!(
            "{:>5.1} %  {messages_per_second:.0} messages/s, {} MiB of memory, {} MiB on disk",
            messages as f64 * 100.0 / self.args.messages as f64,
            memory >> 20,
            disk >> 20,
        ));
        let last = self.begin + Duration::from_secs_f64(since);
        let away = self.away.gone.is_some() && self.away.returned.is_none_or(|at| at >= last);
        self.samples.push(Sample { messages, seconds, messages_per_second, away, replicas });
    }

    fn say(&self, text: &str) {
        if !self.args.json {
            note!("{:>6.1} s  {text}", self.begin.elapsed().as_secs_f64());
        }
    }

    /// What came of it, if all replicas of each group have delivered the same: what was multicast to it.
    fn report(&self, names: &[String]) -> anyhow::Result<Report> {
        let mut groups = Vec::new();
        for group in (0..self.args.groups).map(GroupId) {
            let sent = self.sent(group);
            let mut delivered = Tally::default();
            for node in self.nodes_of(group) {
                let tally = self.statuses[usize::from(node)].tally;
                ensure!(
                    tally.count == sent,
                    "{} has delivered {} messages, but {sent} were multicast to its group",
                    names[usize::from(node)],
                    tally.count
                );
                if delivered == Tally::default() {
                    delivered = tally;
                }
                ensure!(
                    tally == delivered,
                    "{} differs from another replica of its group at position {sent}, the last",
                    names[usize::from(node)]
                );
            }
            let digest = format!("{:016x}", delivered.digest);
            groups.push(Group { group: group.0, delivered: delivered.count, digest });
        }
        let outage = self.outage(names).ok_or_else(|| anyhow::anyhow!("no replica was away"))?;
        let seconds = self.begin.elapsed().as_secs_f64();
        let messages = self.args.messages;
        let judged = flatness::judge(names, self.args.down_node.into(), &self.samples);
        Ok(Report {
            messages,
            groups: self.args.groups,
            replicas: self.args.replicas,
            dest: self.args.dest,
            payload: self.args.payload,
            outstanding: self.args.outstanding,
            on_disk: !self.args.in_memory,
            seconds,
            messages_per_second: messages as f64 / seconds,
            delivered: groups,
            outage,
            samples: self.samples.clone(),
            flat: (messages >= flatness::JUDGED_FROM).then(|| judged.iter().all(|one| one.flat)),
            flatness: judged,
        })
    }

    fn outage(&self, names: &[String]) -> Option<Outage> {
        let Away { gone, back, snapshot, returned } = self.away;
        let ((_, from, gone_at), (back, until, back_at)) = (gone?, back?);
        let after = |at: Instant| at.saturating_duration_since(back).as_secs_f64();
        Some(Outage {
            replica: names[usize::from(self.args.down_node)].clone(),
            how: self.how(),
            from_message: from,
            until_message: until,
            missed: back_at - gone_at,
            snapshot: snapshot.map(|(at, count)| Snapshot { position: count, seconds: after(at) }),
            returned_seconds: after(returned?),
        })
    }
}

/// Whether a replica has delivered what others of its group had when they were as far.
fn check(marks: &mut Marks, processes: &Processes, node: u16, tally: Tally) -> anyhow::Result<()> {
    let id = processes.id(node);
    let (digest, other) = *marks.entry((id.group, tally.count)).or_insert((tally.digest, node));
    if digest == tally.digest {
        return Ok(());
    }
    let agreed = marks.range(..(id.group, tally.count)).next_back();
    let agreed = agreed.filter(|((group, _), _)| *group == id.group).map_or(0, |((_, at), _)| *at);
    bail!(
        "{id} and {} have delivered different messages up to position {}; up to {agreed} they were the same",
        processes.id(other),
        tally.count
    )
}
