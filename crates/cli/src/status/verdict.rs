//! Whether anything is wrong, and where: the sentence that `meridian status` begins with.

use super::report::{GroupReport, NodeReport};
use meridian_cluster::lost::in_utc;
use meridian_transport::ENDS_SOON;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many things are named in the sentence; the tables have all.
const NAMED_MAX: usize = 3;
/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    Well,
    /// Something is, and all that is in the cluster can be read and written.
    Degraded,
    /// Some of it cannot be written.
    Down,
}

impl Level {
    /// What the command exits with; 1 also if nobody could be asked, 2 is for wrong usage.
    pub fn exit_code(self) -> u8 {
        match self {
            Level::Well => 0,
            Level::Degraded => 1,
            Level::Down => 3,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub(super) level: Level,
    /// The node, group or region.
    pub(super) at: String,
    pub(super) what: String,
    /// For how long at least, in milliseconds, where anybody knows.
    pub(super) for_ms: Option<u64>,
}

/// What is to be said of all.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub level: Level,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Groups of so few members that each of them is needed: none of these may fail.
    frail: Vec<String>,
    nodes: usize,
    groups: usize,
}

impl Verdict {
    /// Of nodes and groups that are so, and of regions that were lost: what is found of these comes
    /// first.
    pub(super) fn new(
        nodes: &[NodeReport],
        groups: &[GroupReport],
        of_lost: Vec<Finding>,
    ) -> Verdict {
        let groups_nodes =
            groups.iter().filter_map(of_group).chain(nodes.iter().filter_map(of_node));
        let frail = groups.iter().filter(|of| quorum(of.members) == of.members);
        let frail = frail.map(|of| of.group.clone()).collect();
        let (level, findings) = (Level::Well, Vec::new());
        let (nodes, groups) = (nodes.len(), groups.len());
        let mut verdict = Verdict { level, findings, frail, nodes, groups };
        verdict.add(of_lost.into_iter().chain(groups_nodes).collect());
        verdict
    }

    /// More is found.
    pub(super) fn add(&mut self, findings: Vec<Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        self.level = self.findings.first().map_or(Level::Well, |worst| worst.level);
    }

    /// For people, in one line. Of what was seen before is told for how long.
    pub fn sentence(&self, seen: &Seen) -> String {
        let Verdict { level, findings, frail, nodes, groups } = self;
        let begin = match level {
            Level::Well => {
                let well = format!(
                    "All is well: {nodes} nodes answer, and each of the {groups} groups has a \
                     primary."
                );
                return match frail.join(", ") {
                    none if none.is_empty() => well,
                    frail => format!(
                        "{well} No node of {frail} may fail, as there are so few: `meridian \
                         cluster add-node` makes more."
                    ),
                };
            }
            Level::Degraded => "Something is wrong, and all can be read and written",
            Level::Down => "Not all can be written",
        };
        format!("{begin}: {}", named(findings, seen))
    }
}

/// The first of what is wrong, in words that end the sentence.
pub(super) fn named(findings: &[Finding], seen: &Seen) -> String {
    let named = findings.iter().take(NAMED_MAX).map(|finding| {
        let Finding { at, what, for_ms, .. } = finding;
        let known = for_ms.map(Duration::from_millis).max(seen.since(finding));
        match known {
            Some(time) => format!("{at} {what}, for at least {}", time_for_people(time)),
            None => format!("{at} {what}"),
        }
    });
    let named = named.collect::<Vec<_>>().join("; ");
    match findings.len().saturating_sub(NAMED_MAX) {
        0 => format!("{named}."),
        more => format!("{named}; and {more} more."),
    }
}

/// Since when something has been wrong, as who goes on looking has seen it.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<(String, String), Instant>);

impl Seen {
    /// That is wrong now, and nothing else is.
    pub fn note(&mut self, findings: &[Finding]) {
        let key = |finding: &Finding| (finding.at.clone(), finding.what.clone());
        let now: Vec<_> = findings.iter().map(key).collect();
        self.0.retain(|known, _| now.contains(known));
        for key in now {
            self.0.entry(key).or_insert_with(Instant::now);
        }
    }

    fn since(&self, finding: &Finding) -> Option<Duration> {
        let since = self.0.get(&(finding.at.clone(), finding.what.clone()))?;
        Some(since.elapsed()).filter(|time| *time >= Duration::from_secs(1))
    }
}

/// So many of the members of a group must answer.
fn quorum(members: usize) -> usize {
    members / 2 + 1
}

pub(super) fn of_group(group: &GroupReport) -> Option<Finding> {
    let (up, all) = (group.answering, group.members);
    let quorum = quorum(all);
    let ages = group.replicas.iter().map(|replica| replica.head_age_ms);
    let for_ms = ages.max().filter(|age| *age >= 1000);
    let finding = |level, what: String, for_ms| {
        Some(Finding { level, at: format!("group {}", group.group), what, for_ms })
    };
    match &group.primary {
        _ if up < quorum => {
            finding(Level::Down, format!("has {up} of {all} members, and needs {quorum}"), for_ms)
        }
        None => {
            finding(Level::Down, format!("has no primary ({up} of {all} members answer)"), for_ms)
        }
        Some(_) if up < all && up == quorum => {
            let what = format!("has {up} of {all} members and survives no further failure");
            finding(Level::Degraded, what, None)
        }
        Some(_) => None,
    }
}

pub(super) fn of_node(node: &NodeReport) -> Option<Finding> {
    let copies = node.copies.unwrap_or_default();
    let what = match &node.error {
        Some(error) => format!("does not answer ({error})"),
        None if node.takes_nothing => "has a full disk and takes nothing that needs room".into(),
        None if node.full => "has a full disk and stores no more blocks".into(),
        None if copies.missing + copies.damaged > 0 => format!(
            "lacks {} blocks and has {} damaged ones, of which {} are being copied",
            copies.missing, copies.damaged, copies.copying
        ),
        None => return None,
    };
    Some(Finding { level: Level::Degraded, at: node.node.clone(), what, for_ms: None })
}

/// What is to be said at `now` of a certificate that counts until then, both in seconds since 1970.
pub(super) fn of_certificate(at: &str, until: u64, now: u64) -> Option<Finding> {
    let date = in_utc(until.saturating_mul(1000));
    let what = match until {
        ended if ended <= now => format!("has a certificate that ended on {date}"),
        ends if ends - now <= ENDS_SOON.as_secs() => {
            format!("has a certificate that ends on {date}")
        }
        _ => return None,
    };
    Some(Finding { level: Level::Degraded, at: at.into(), what, for_ms: None })
}

pub(super) fn time_for_people(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Report, tests::status};
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_cluster::Topology;
    use meridian_host::api::NodeStatus;
    use meridian_host::drain::keep::Report as Copies;

    /// What is said of a region of three nodes, with room and all copies, that answer so.
    fn verdict(answers: [Result<NodeStatus, String>; 3]) -> Verdict {
        let shape =
            Shape { regions: vec!["us".into()], nodes_per_region: Some(3), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        Report::new(&topology, &topology.node_ids().zip(answers).collect()).verdict
    }

    fn well(node: u16, role: &str) -> Result<NodeStatus, String> {
        let status = status(node, &[(0, role, 1, 5), (1, role, 1, 5)]);
        Ok(NodeStatus { copies: Copies::default(), room: None, full: false, ..status })
    }

    fn gone() -> Result<NodeStatus, String> {
        Err("connection refused".into())
    }

    #[test]
    fn the_sentence_names_what_is_wrong_the_worst_first() {
        let seen = Seen::default();
        let all = verdict([well(0, "primary"), well(1, "follower"), well(2, "follower")]);
        assert_eq!(all.level.exit_code(), 0);
        assert!(all.sentence(&seen).starts_with("All is well: 3 nodes answer"));
        let one = verdict([well(0, "primary"), well(1, "follower"), gone()]);
        let said = one.sentence(&seen);
        assert_eq!(one.level.exit_code(), 1);
        for part in ["survives no further failure", "us-3 does not answer (connection refused)"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let two = verdict([well(0, "primary"), gone(), gone()]);
        let said = two.sentence(&seen);
        assert_eq!(two.level.exit_code(), 3);
        let begin =
            "Not all can be written: group global has 1 of 3 members, and needs 2; group us";
        assert!(said.starts_with(begin) && said.ends_with("; and 1 more."), "{said}");
        let led = verdict([well(0, "promised"), well(1, "promised"), well(2, "promised")]);
        assert_eq!(led.level, Level::Down);
        assert!(led.sentence(&seen).contains("has no primary (3 of 3 members answer)"));
    }

    #[test]
    fn groups_in_which_no_node_may_fail_are_named_though_all_is_well() {
        let said = |nodes| {
            let (regions, nodes_per_region) = (vec!["us".into(), "eu".into()], Some(nodes));
            let shape = Shape { regions, nodes_per_region, ..Shape::default() };
            let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
            let answers = topology.node_ids().map(|node| {
                let own = topology.groups_of(node);
                let first = |group| topology.group(group).members.first() == Some(&node);
                let role = |group| if first(group) { "primary" } else { "follower" };
                let replicas: Vec<_> = own.map(|group| (group.0, role(group), 1, 5)).collect();
                let status = status(node.0, &replicas);
                let copies = Copies::default();
                (node, Ok(NodeStatus { copies, room: None, full: false, ..status }))
            });
            let report = Report::new(&topology, &answers.collect());
            assert_eq!(report.verdict.level, Level::Well, "{}", report.sentence);
            report.verdict.sentence(&Seen::default())
        };
        assert!(said(1).contains("No node of global, us, eu may fail"), "{}", said(1));
        assert!(said(2).contains("No node of us, eu may fail"), "{}", said(2));
        assert!(said(3).ends_with("has a primary."), "{}", said(3));
    }

    #[test]
    fn a_certificate_is_told_of_from_two_weeks_before_its_end_on() {
        let (day, until) = (24 * 3600, 1_800_000_000);
        let said = |now| of_certificate("us-1", until, now).map(|found| (found.level, found.what));
        assert_eq!((said(0), said(until - 14 * day - 1)), (None, None));
        let ends = "has a certificate that ends on 2027-01-15 08:00 UTC".to_string();
        assert_eq!(said(until - 14 * day), Some((Level::Degraded, ends.clone())));
        assert_eq!(said(until - 1), Some((Level::Degraded, ends)));
        let ended = "has a certificate that ended on 2027-01-15 08:00 UTC".to_string();
        assert_eq!(said(until), Some((Level::Degraded, ended)));
        let mut all = verdict([well(0, "primary"), well(1, "follower"), well(2, "follower")]);
        all.add(of_certificate("us-1", until, until - day).into_iter().collect());
        let said = all.sentence(&Seen::default());
        let whole = "Something is wrong, and all can be read and written: us-1 has a certificate \
                     that ends on 2027-01-15 08:00 UTC.";
        assert_eq!((all.level.exit_code(), said.as_str()), (1, whole));
    }

    #[test]
    fn full_disks_and_lost_blocks_are_named() {
        let full = status(1, &[(0, "follower", 1, 5), (1, "follower", 1, 5)]);
        let lacks = NodeStatus { full: false, room: None, ..full.clone() };
        let said = verdict([well(0, "primary"), Ok(full), Ok(lacks)]);
        assert_eq!(said.level, Level::Degraded);
        let said = said.sentence(&Seen::default());
        assert!(said.contains("us-2 has a full disk and takes nothing"), "{said}");
        assert!(said.contains("us-3 lacks 11 blocks and has 22 damaged ones"), "{said}");
    }

    #[test]
    fn for_how_long_is_what_members_say_or_what_was_seen() {
        let old = |node| {
            let mut status = well(node, "promised").unwrap();
            status.replicas[0].head_age_ms = 150_000;
            Ok(status)
        };
        let said = verdict([old(0), old(1), old(2)]).sentence(&Seen::default());
        assert!(said.contains("members answer), for at least 2 min"), "{said}");
        let one = verdict([well(0, "primary"), well(1, "follower"), gone()]);
        let mut seen = Seen::default();
        seen.note(&one.findings);
        seen.0.values_mut().for_each(|since| *since -= Duration::from_secs(7));
        assert!(one.sentence(&seen).contains("(connection refused), for at least 7 s"));
        let all = verdict([well(0, "primary"), well(1, "follower"), well(2, "follower")]);
        seen.note(&all.findings);
        assert!(seen.0.is_empty(), "what is over is forgotten");
    }
}
