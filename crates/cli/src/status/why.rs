//! `meridian status --why PATH`: what keeps a path from being used, or makes it slow.
//!
//! What the mount says is asked by a process of its own, as a mount that is cut off answers late or
//! never; the nodes are asked meanwhile. All of it has a deadline.

mod judge;
mod walk;

use super::asking::Asking;
use super::report::{Answered, GroupReport, NodeReport, PATIENCE, Report};
use super::verdict::{Finding, Level, Seen, time_for_people};
use crate::certificates::Shown;
use crate::cluster::Of;
use crate::fs::not_here;
use crate::quota::Quota;
use crate::{cluster, configuration, mount, output};
use anyhow::bail;
use judge::{Facts, Judgement};
use meridian_client::Client;
use meridian_cluster::Topology;
use meridian_core::{GroupId, NodeId};
use meridian_mount::about::State;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
pub use walk::tell;
use walk::{Lock, Place, Walk};

/// How long the mount may take to say which cluster it is of.
const FIRST: Duration = Duration::from_secs(1);
/// How long it may take to say all.
const WALK: Duration = Duration::from_secs(4);
/// So many calls that are under way are shown to people.
const CALLS_SHOWN: usize = 5;

/// What is asked, perhaps again and again.
pub struct Question {
    place: Place,
    /// Who asked the mount last.
    asking: Option<Asking>,
}

/// What is told of a path.
#[derive(Debug, Serialize)]
pub struct Why {
    /// For people.
    sentence: String,
    /// How bad it is.
    pub level: Level,
    /// What is wrong, the worst first.
    findings: Vec<Finding>,
    /// The path from the mount's top on.
    path: String,
    mount: MountSeen,
    /// The group that has it.
    placement: String,
    /// Who says so: `its mount`, or what it is taken from.
    placed_by: String,
    /// What a look-up asks, in order, as far as the mount has told it.
    way: Vec<Step>,
    /// Where it went no further, and why.
    stuck: Option<Stuck>,
    /// The groups of these, and its own.
    groups: Vec<GroupReport>,
    /// The nodes of its own.
    nodes: Vec<NodeReport>,
    /// How long the nearest of these takes to answer, in milliseconds.
    answers_in_ms: Option<f64>,
    /// The groups of the path's name and of the path, if these are two: a rename, a link and a
    /// removal take both.
    several: Option<[String; 2]>,
    durability: Option<String>,
    /// None if there is none, or nobody tells.
    quota: Option<Quota>,
    /// The lock of `fcntl` that somebody has; none if nobody has one, or nobody tells.
    lock: Option<Lock>,
    /// Whether locks of `fcntl` were told.
    lock_told: bool,
}

/// The mount that the path is in.
#[derive(Debug, Serialize)]
struct MountSeen {
    dir: PathBuf,
    region: Option<String>,
    #[serde(flatten)]
    state: Option<State>,
}

/// A directory or the path itself, and which group is asked for it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Step {
    path: String,
    group: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Stuck {
    path: String,
    why: String,
}

/// Where a path is placed, and who says so.
struct Placed {
    group: String,
    by: String,
    /// The names of the group's members.
    members: Vec<String>,
}

impl Question {
    /// About a path in a mount of this machine.
    ///
    /// # Errors
    /// If it is in none.
    pub fn new(path: &Path) -> anyhow::Result<Question> {
        Ok(Question { place: Place::of(path, &mount::all_here()?)?, asking: None })
    }

    /// Asks the mount and the nodes.
    ///
    /// # Errors
    /// If the path does not exist, or there is no cluster to ask.
    pub async fn answer(&mut self, of: &Of, seen: &mut Seen) -> anyhow::Result<Why> {
        let (begun, mut walk) = (Instant::now(), Walk::default());
        // One that was killed and waits for its mount all the same is not joined by others.
        if self.asking.as_mut().is_none_or(Asking::stop) {
            self.asking = Some(Asking::start(walk::words(&self.place))?);
        }
        let first = |walk: &Walk| walk.cluster.is_some() && walk.region.is_some();
        self.hear(&mut walk, begun + FIRST, first);
        let path = match (&of.cluster, &walk.cluster) {
            (None, Some(cluster)) => cluster.clone(),
            (named, _) => cluster::named_or_known(named.as_deref())?,
        };
        let newest = configuration::newest(&path, &of.tls, Shown::Client).await?;
        let (client, topology) = (newest.client_in(walk.region.as_deref())?, newest.topology);
        let answers = super::answers(&client, &topology).await;
        self.hear(&mut walk, begun + WALK, |_| false);
        self.check(&walk)?;
        let placed = self.placed(&topology, &walk.placements);
        let nearest = nearest(&client, &topology, &placed.group, &answers).await;
        let report = Report::new(&topology, &answers);
        let ended = self.asking.as_ref().is_some_and(Asking::is_over);
        Ok(self.why((report, nearest), (walk, ended), placed, seen))
    }

    fn hear(&mut self, walk: &mut Walk, end: Instant, enough: fn(&Walk) -> bool) {
        self.asking.iter_mut().for_each(|asking| walk.hear(asking, end, enough));
    }

    /// What the mount says that is an answer in itself.
    fn check(&self, walk: &Walk) -> anyhow::Result<()> {
        let Some(error) = walk.error else { return Ok(()) };
        let (error, count) = (Errno::from_raw_os_error(error), walk.placements.len());
        let at =
            self.place.top.join(self.place.below.components().take(count).collect::<PathBuf>());
        let shown = at.display();
        match error {
            Errno::NOENT if count > 0 => {
                let above = self.place.first(count - 1);
                let placement = &walk.placements[count - 1];
                bail!(
                    "{shown} does not exist: nothing is called so in {above}, which answers. What \
                     is made there is placed in {placement}: ask --why of that directory"
                )
            }
            Errno::NOTDIR => bail!("{shown} does not exist: what is above it is no directory"),
            Errno::ACCESS => {
                bail!("{shown}: you may not look into the directory above it: ask as its owner")
            }
            Errno::NOTCONN => bail!(
                "{}: its mount is dead, as its process has ended: `umount -l {0}`, and mount again",
                self.place.top.display()
            ),
            Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM => {
                Err(not_here(&at, error))
            }
            _ => Ok(()),
        }
    }

    /// Where the path is, by what the mount has told, or else by what it is below or called.
    fn placed(&self, topology: &Topology, told: &[String]) -> Placed {
        let depth = self.place.depth();
        let first = self.place.below.iter().next().and_then(|name| name.to_str());
        let is_region = topology.region_groups().any(|(_, region)| Some(region) == first);
        let (group, by) = match (told.last(), first) {
            (Some(last), _) if told.len() > depth => (last.clone(), "its mount".into()),
            (Some(last), _) => {
                let above = self.place.first(told.len() - 1);
                (last.clone(), format!("the directory {above} above it"))
            }
            (None, Some(first)) if is_region => (first.into(), "its first name".into()),
            (None, _) => {
                let global = topology.group_name(GroupId::GLOBAL);
                (global, "that it is called as no region is, which need not be so".into())
            }
        };
        let id = topology.group_named(&group);
        let members = id.iter().flat_map(|id| &topology.group(*id).members);
        let members = members.map(|node| topology.node(*node).name.clone()).collect();
        Placed { group, by, members }
    }

    fn why(
        &self,
        (report, answers_in_ms): (Report, Option<f64>),
        (walk, ended): (Walk, bool),
        placed: Placed,
        seen: &mut Seen,
    ) -> Why {
        let path = self.place.first(self.place.depth());
        let way = self.way(&walk.placements);
        let stuck = (walk.placements.len() <= self.place.depth()).then(|| Stuck {
            path: self.place.first(walk.placements.len()),
            why: match walk.error {
                Some(error) => Errno::from_raw_os_error(error).to_string(),
                None if ended => "it says nothing of it".into(),
                None => format!("no answer within {} s", WALK.as_secs()),
            },
        });
        let Placed { group: placement, by: placed_by, members } = placed;
        let global = report.groups.first().map(|group| group.group.clone());
        let needed = |name: &String| {
            *name == placement
                || way.iter().any(|step| step.group == *name)
                || (way.is_empty() && global.as_ref() == Some(name))
        };
        let Report { groups, nodes, .. } = report;
        let groups: Vec<_> = groups.into_iter().filter(|group| needed(&group.group)).collect();
        let own = |node: &NodeReport| members.contains(&node.node);
        let nodes: Vec<_> = nodes.into_iter().filter(own).collect();
        let quota = walk.quota.flatten();
        let facts = Facts {
            path: &path,
            placement: &placement,
            groups: &groups,
            nodes: &nodes,
            answers_in_ms,
            mount: walk.state.as_ref(),
            stuck: stuck.as_ref().map(|stuck| (stuck.path.as_str(), stuck.why.as_str())),
            quota: quota.as_ref(),
        };
        let judged = Judgement::new(&facts);
        seen.note(&judged.findings);
        let sentence = judged.sentence(&facts, seen);
        let (dir, region, state) = (self.place.top.clone(), walk.region, walk.state);
        let lock_told = walk.lock.is_some();
        let (level, findings, lock) = (judged.level, judged.findings, walk.lock.flatten());
        Why {
            sentence,
            level,
            findings,
            several: several(&walk.placements),
            path,
            mount: MountSeen { dir, region, state },
            placement,
            placed_by,
            way,
            stuck,
            groups,
            nodes,
            answers_in_ms,
            durability: walk.durability,
            quota,
            lock,
            lock_told,
        }
    }

    fn way(&self, placements: &[String]) -> Vec<Step> {
        let step = |(names, group): (usize, &String)| {
            let (path, group) = (self.place.first(names), group.clone());
            Step { path, group }
        };
        placements.iter().enumerate().map(step).collect()
    }
}

/// The groups of the last name and of what it leads to, if these are two.
fn several(placements: &[String]) -> Option<[String; 2]> {
    match placements {
        [.., above, own] if above != own => Some([above.clone(), own.clone()]),
        _ => None,
    }
}

/// How long the nearest member of a group takes to answer that has answered before.
async fn nearest(
    client: &Client,
    topology: &Topology,
    group: &str,
    answers: &BTreeMap<NodeId, Answered>,
) -> Option<f64> {
    let members = &topology.group(topology.group_named(group)?).members;
    let mut asked = JoinSet::new();
    for node in members.iter().copied() {
        if answers.get(&node).is_some_and(Result::is_ok) {
            let client = client.clone();
            asked.spawn(async move {
                let begun = Instant::now();
                client.status(node, PATIENCE).await.ok().map(|_| begun.elapsed())
            });
        }
    }
    let mut best: Option<Duration> = None;
    while let Some(took) = asked.join_next().await {
        if let Ok(Some(took)) = took {
            best = Some(best.map_or(took, |best| best.min(took)));
        }
    }
    best.map(|took| took.as_secs_f64() * 1e3)
}

impl Why {
    /// The sentence, and what it comes from.
    pub fn for_people(&self) -> String {
        let lines = [
            ("mounted", self.mounted()),
            ("placed", format!("in {}, says {}", self.placement, self.placed_by)),
            ("looked up", self.looked_up()),
            ("takes", self.takes()),
            ("durable", self.durability.clone().unwrap_or("not told".into())),
            ("quota", self.quota.as_ref().map_or("none is told".into(), Quota::to_string)),
            ("disks", self.disks()),
            ("locks", self.locks()),
        ];
        let mut lines: Vec<_> =
            lines.iter().map(|(what, text)| format!("  {what:<11}{text}")).collect();
        lines.extend(self.calls());
        let head = ["group", "primary", "members that answer", "waiting", "oldest", "which"];
        let groups = output::table(&head, self.groups.iter().map(row));
        format!("{}\n\n{}\n\n{groups}", self.sentence, lines.join("\n"))
    }

    fn mounted(&self) -> String {
        let MountSeen { dir, region, state } = &self.mount;
        let region = region.as_ref().map_or(String::new(), |region| format!(" in region {region}"));
        let begin = format!("at {}{region}", dir.display());
        let Some(state) = state else {
            return format!("{begin}, and it does not tell how it is");
        };
        let on_cut = match state.on_cut_ms {
            0 => "fail if it needs a group that is".into(),
            ms => format!("wait {} for a group that is", for_people(ms)),
        };
        let cut = state.cut_off.iter();
        let cut = cut.map(|cut| format!("{} for {}", cut.group, for_people(cut.for_ms)));
        let cut = match cut.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "cut off from no group".into(),
            cut => format!("CUT OFF from {cut}"),
        };
        format!("{begin}, {cut}; a call would {on_cut}; {} under way", state.under_way)
    }

    /// The calls that wait, if the mount tells them to who asks.
    fn calls(&self) -> Vec<String> {
        let calls = self.mount.state.iter().flat_map(|state| &state.calls).take(CALLS_SHOWN);
        let line = |call: &meridian_mount::slowest::Slow| {
            let so_far = for_people(call.took_us / 1000);
            format!("  {:<11}{} of {} for {so_far} so far", "under way", call.call, call.path)
        };
        calls.map(line).collect()
    }

    fn looked_up(&self) -> String {
        let step = |step: &Step| format!("{} in {}", step.path, step.group);
        let way = self.way.iter().map(step).collect::<Vec<_>>().join(", ");
        match &self.stuck {
            Some(Stuck { path, why }) if way.is_empty() => format!("not even {path}: {why}"),
            Some(Stuck { path, why }) => format!("{way}; then {path}: {why}"),
            None => way,
        }
    }

    fn takes(&self) -> String {
        match &self.several {
            Some([above, own]) => format!(
                "{above} and {own} to rename, link or remove it, as its name is in the one and it \
                 is in the other; else {own} alone"
            ),
            None => format!(
                "{} alone, but to move or link it to what is placed elsewhere",
                self.placement
            ),
        }
    }

    fn disks(&self) -> String {
        let disk = |node: &NodeReport| {
            let full = match (node.takes_nothing, node.full) {
                (true, _) => ", FULL: takes nothing that needs room",
                (_, true) => ", FULL: stores no more blocks",
                _ => "",
            };
            let free = node.disk_free_bytes.map(|bytes| format!("{} MiB free", bytes >> 20));
            format!("{} {}{full}", node.node, free.unwrap_or("unknown".into()))
        };
        self.nodes.iter().map(disk).collect::<Vec<_>>().join(", ")
    }

    fn locks(&self) -> String {
        match (&self.lock, self.lock_told) {
            (Some(lock), _) => format!("{lock}; those of flock are not told"),
            (None, true) => "none of fcntl; those of flock are not told".into(),
            (None, false) => "not told".into(),
        }
    }
}

fn for_people(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => time_for_people(Duration::from_millis(ms)),
    }
}

fn row(group: &GroupReport) -> Vec<String> {
    let pending = group.replicas.iter().map(|replica| replica.pending).max().unwrap_or(0);
    let oldest = group.replicas.iter().map(|replica| replica.head_age_ms).max().unwrap_or(0);
    let which = group.held_up.as_ref().map_or("-".into(), |held_up| {
        let by = match held_up.by.is_empty() {
            true => String::new(),
            false => format!(" of {}", held_up.by.join(", ")),
        };
        format!("{} for {}{by}", held_up.message, held_up.waits_for)
    });
    vec![
        group.group.clone(),
        group.primary.clone().unwrap_or("NONE".into()),
        format!("{} of {}", group.answering, group.members),
        pending.to_string(),
        for_people(oldest),
        which,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};

    fn question(below: &str) -> Question {
        Question { place: Place { top: "/mnt".into(), below: below.into() }, asking: None }
    }

    fn topology() -> Topology {
        let regions = ["us", "eu"].map(String::from).into();
        let shape = Shape { regions, nodes_per_region: Some(3), ..Shape::default() };
        Topology::new(&new_cluster(&shape).unwrap()).unwrap()
    }

    /// What is told if no node answers, and the mount has told so much.
    fn told(below: &str, placements: &[&str]) -> Why {
        let (topology, question) = (topology(), question(below));
        let placements: Vec<_> = placements.iter().map(ToString::to_string).collect();
        let placed = question.placed(&topology, &placements);
        let gone = |node| (node, Err("connection refused".to_string()));
        let report = Report::new(&topology, &topology.node_ids().map(gone).collect());
        let walk = Walk { placements, ..Walk::default() };
        question.why((report, None), (walk, false), placed, &mut Seen::default())
    }

    fn groups(why: &Why) -> Vec<&str> {
        why.groups.iter().map(|group| group.group.as_str()).collect()
    }

    #[test]
    fn a_path_that_hangs_is_placed_as_far_as_is_known() {
        let whole = told("eu/a", &["global", "eu", "eu"]);
        assert_eq!((&*whole.placement, &*whole.placed_by), ("eu", "its mount"));
        assert_eq!((groups(&whole), whole.stuck.is_none()), (vec!["global", "eu"], true));
        let part = told("eu/a/b", &["global", "eu"]);
        assert_eq!((&*part.placement, &*part.placed_by), ("eu", "the directory /eu above it"));
        let stuck = part.stuck.as_ref().unwrap();
        assert_eq!((&*stuck.path, &*stuck.why), ("/eu/a", "no answer within 4 s"));
        assert!(part.looked_up().ends_with("/eu in eu; then /eu/a: no answer within 4 s"));
        let none = told("eu/a", &[]);
        assert_eq!((&*none.placement, &*none.placed_by), ("eu", "its first name"));
        assert_eq!(groups(&none), ["global", "eu"], "its first name is in global");
        assert_eq!(
            (&*told("x", &[]).placement, groups(&told("x", &[]))),
            ("global", vec!["global"])
        );
        assert_eq!(groups(&told("", &["global"])), ["global"]);
        assert_eq!(none.level.exit_code(), 3);
        let begin = "/eu/a cannot be changed: group eu has 0 of 3 members";
        assert!(none.sentence.starts_with(begin), "{}", none.sentence);
    }

    #[test]
    fn what_takes_two_groups_is_told() {
        let top = told("eu", &["global", "eu"]);
        assert_eq!(top.several, Some(["global".into(), "eu".into()]));
        assert!(top.takes().starts_with("global and eu to rename, link or remove it"));
        let below = told("eu/a", &["global", "eu", "eu"]);
        assert_eq!(below.several, None);
        let text = below.for_people();
        for part in [
            "placed     in eu, says its mount",
            "looked up  / in global, /eu in eu, /eu/a in eu",
            "takes      eu alone, but to move",
            "disks      eu-1 unknown, eu-2 unknown, eu-3 unknown",
            "mounted    at /mnt, and it does not tell how it is",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = text.lines().find(|line| line.trim_start().starts_with("eu ")).unwrap();
        assert!(row.contains("NONE") && row.contains("0 of 3"), "{text}");
    }

    #[test]
    fn what_the_mount_does_is_told() {
        let mut why = told("eu/a", &["global", "eu", "eu"]);
        let cut = meridian_mount::about::CutOff { group: "eu".into(), for_ms: 12_000 };
        let (call, path, took_us) = ("open".into(), "/eu/a".into(), 11_500_000);
        let calls = vec![meridian_mount::slowest::Slow { call, path, took_us }];
        let (cut_off, under_way, oldest_us) = (vec![cut], 1, Some(took_us));
        why.mount.state = Some(State { on_cut_ms: 30_000, cut_off, under_way, oldest_us, calls });
        let text = why.for_people();
        let line = "at /mnt, CUT OFF from eu for 12 s; a call would wait 30 s for a group that is; 1 \
                    under way";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("under way  open of /eu/a for 11 s so far"), "{text}");
        why.mount.state = Some(State::default());
        assert!(why.mounted().contains("cut off from no group; a call would fail if"));
        assert_eq!((for_people(1250), for_people(0)), ("1.2 s".into(), "0.0 s".into()));
    }

    #[test]
    fn what_is_not_there_is_said_to_be_missing_by_its_name() {
        let said = |placements: &[&str], error: Errno| {
            let placements = placements.iter().map(ToString::to_string).collect();
            let error = Some(error.raw_os_error());
            let checked = question("eu/a/b").check(&Walk { placements, error, ..Walk::default() });
            checked.map_err(|error| error.to_string())
        };
        let missing = said(&["global", "eu"], Errno::NOENT).unwrap_err();
        assert!(
            missing.starts_with("/mnt/eu/a does not exist: nothing is called so in /eu, which")
        );
        assert!(missing.contains("is placed in eu: ask --why of that directory"), "{missing}");
        let forbidden = said(&["global", "eu", "eu"], Errno::ACCESS).unwrap_err();
        assert!(forbidden.starts_with("/mnt/eu/a/b: you may not look"), "{forbidden}");
        let dead = said(&[], Errno::NOTCONN).unwrap_err();
        assert!(dead.contains("`umount -l /mnt`"), "{dead}");
        assert_eq!(said(&["global"], Errno::TIMEDOUT), Ok(()), "that is what is asked for");
    }
}
