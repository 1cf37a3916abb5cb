//! Whether anything keeps a path from being used, and what: the sentence that `meridian status
//! --why` begins with.

use super::super::report::{GroupReport, NodeReport};
use super::super::verdict::{Finding, Level, Seen, named, of_group, of_node};
use crate::quota::Quota;
use meridian_mount::about::State;

/// A message that has waited for so long is told of, in milliseconds.
const WAITS_MS: u64 = 1000;
/// A quota of which so much is used is nearly used up, in percent.
const NEARLY: u64 = 95;

/// What is known of a path.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// As it is called from the mount's top on.
    pub path: &'a str,
    /// The group that has it.
    pub placement: &'a str,
    /// The groups that a look-up of it asks, and its own.
    pub groups: &'a [GroupReport],
    /// The members of its own.
    pub nodes: &'a [NodeReport],
    /// How fast the nearest of these answers, in milliseconds.
    pub answers_in_ms: Option<f64>,
    /// What the mount says of itself, if it answers.
    pub mount: Option<&'a State>,
    /// Where the mount went no further in time, and why.
    pub stuck: Option<(&'a str, &'a str)>,
    pub quota: Option<&'a Quota>,
}

/// What can be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    All,
    /// All, and something is wrong.
    Change,
    /// Not by who asked.
    Elsewhere,
    /// Only by who holds it already.
    Held,
    /// It can be read, at most.
    Read,
}

/// What is to be said.
#[derive(Debug)]
pub struct Judgement {
    pub level: Level,
    /// The worst first.
    pub findings: Vec<Finding>,
    can: Use,
}

impl Judgement {
    pub fn new(facts: &Facts<'_>) -> Judgement {
        // Its own comes last in the way to it, and is told first.
        let groups = || facts.groups.iter().rev();
        let mut findings: Vec<_> = groups().filter_map(|of| facts.of(of)).collect();
        let is_down = |at: &str| {
            let at = format!("group {at}");
            findings.iter().any(|of| of.level == Level::Down && of.at == at)
        };
        let (own, any) = (is_down(facts.placement), findings.iter().any(is_worst));
        let here = facts.of_mount(is_down, any);
        let is_elsewhere = !here.is_empty();
        findings.extend(here);
        let waits = groups().filter_map(waiting);
        let waits: Vec<_> = waits.filter(|of| !findings.iter().any(|f| f.at == of.at)).collect();
        findings.extend(waits);
        findings.extend(facts.nodes.iter().filter_map(of_node));
        findings.extend(facts.quota.and_then(of_quota));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        let can = match (own, any, is_elsewhere, findings.is_empty()) {
            (true, ..) => Use::Read,
            (_, true, ..) => Use::Held,
            (_, _, true, _) => Use::Elsewhere,
            (.., false) => Use::Change,
            (.., true) => Use::All,
        };
        let level = findings.first().map_or(Level::Well, |worst| worst.level);
        Judgement { level, findings, can }
    }

    /// For people, in one line. Of what was seen before is told for how long.
    pub fn sentence(&self, facts: &Facts<'_>, seen: &Seen) -> String {
        let Facts { path, placement, answers_in_ms, .. } = facts;
        let begin = match self.can {
            Use::All => {
                let fast = answers_in_ms.map(|ms| format!(" and answers in {ms:.1} ms"));
                let fast = fast.unwrap_or_default();
                return format!(
                    "All is well with {path}: it is placed in {placement}, whose group has a \
                     primary{fast}."
                );
            }
            Use::Change => format!("{path} can be changed, and something is wrong"),
            Use::Elsewhere => format!("{path} cannot be used through this mount"),
            Use::Held => format!("{path} cannot be looked up by who does not hold it"),
            Use::Read => format!("{path} cannot be changed"),
        };
        format!("{begin}: {}", named(&self.findings, seen))
    }
}

fn is_worst(finding: &Finding) -> bool {
    finding.level == Level::Down
}

impl Facts<'_> {
    /// What is wrong with a group, for this path: only the path's own has to decide on changes; of
    /// the others one member that answers is enough.
    fn of(&self, group: &GroupReport) -> Option<Finding> {
        let found = of_group(group)?;
        let is_enough = group.group == self.placement || group.answering == 0;
        Some(Finding { level: if is_enough { found.level } else { Level::Degraded }, ..found })
    }

    /// What is wrong with the mount, and does not follow from what is wrong with the cluster.
    fn of_mount(&self, is_down: impl Fn(&str) -> bool, any_down: bool) -> Vec<Finding> {
        let finding = |at: &str, what: String, for_ms| {
            let (level, at) = (Level::Degraded, at.to_string());
            Finding { level, at, what, for_ms }
        };
        let Some(state) = self.mount else {
            return vec![finding("its mount", "does not answer".into(), None)];
        };
        let cut = state.cut_off.iter().filter(|cut| {
            !is_down(&cut.group) && self.groups.iter().any(|of| of.group == cut.group)
        });
        let mut found: Vec<_> = cut
            .map(|cut| {
                let what = format!("is cut off from {}, whose nodes answer here", cut.group);
                finding("its mount", what, Some(cut.for_ms))
            })
            .collect();
        if let Some((at, why)) = self.stuck.filter(|_| found.is_empty() && !any_down) {
            found.push(finding(at, format!("is not told by the mount: {why}"), None));
        }
        found
    }
}

/// The oldest message that waits in a group, if it has waited for long.
fn waiting(group: &GroupReport) -> Option<Finding> {
    let age = group.replicas.iter().map(|replica| replica.head_age_ms).max()?;
    let for_what = group.held_up.as_ref().map(|held_up| match held_up.by.is_empty() {
        true => held_up.waits_for.to_string(),
        false => format!("{} of {}", held_up.waits_for, held_up.by.join(", ")),
    });
    let for_what = for_what.unwrap_or("its turn".into());
    (age >= WAITS_MS).then(|| Finding {
        level: Level::Degraded,
        at: format!("group {}", group.group),
        what: format!("has a message that waits for {for_what}"),
        for_ms: Some(age),
    })
}

fn of_quota(quota: &Quota) -> Option<Finding> {
    let what = match quota.used_percent()? {
        0..NEARLY => return None,
        used @ NEARLY..100 => format!("is nearly used up, {used} % of it"),
        _ => "is used up: what needs more is refused".into(),
    };
    Some(Finding { level: Level::Degraded, at: "its quota".into(), what, for_ms: None })
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Report;
    use super::super::super::tests::status;
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_cluster::Topology;
    use meridian_host::api::{HeldUp, NodeStatus};
    use meridian_host::drain::keep::Report as Copies;
    use meridian_mount::about::CutOff;

    /// Two regions of three nodes, of which those of `down` do not answer, with `change` made to
    /// what the others say.
    fn report(down: &[u16], change: impl Fn(&mut NodeStatus)) -> Report {
        let regions = ["us", "eu"].map(String::from).into();
        let shape = Shape { regions, nodes_per_region: Some(3), ..Shape::default() };
        let topology = Topology::new(&new_cluster(&shape).unwrap()).unwrap();
        let answer = |node: u16| {
            let role = |leads| if leads { "primary" } else { "follower" };
            let own = (1 + node / 3, role(node.is_multiple_of(3)), 1, 5);
            let status = status(node, &[(0, role(node == 0), 1, 5), own]);
            let mut well = NodeStatus { copies: Copies::default(), room: None, ..status };
            well.full = false;
            well.replicas.iter_mut().for_each(|replica| replica.held_up = None);
            change(&mut well);
            if down.contains(&node) { Err("connection refused".into()) } else { Ok(well) }
        };
        let answers = topology.node_ids().map(|node| (node, answer(node.0))).collect();
        Report::new(&topology, &answers)
    }

    /// The sentence on `/eu/x`, placed in `eu`, and how bad it is.
    fn said(
        report: Report,
        mount: Option<&State>,
        rest: impl Fn(&mut Facts<'_>),
    ) -> (Level, String) {
        let groups: Vec<_> =
            report.groups.into_iter().filter(|group| group.group != "us").collect();
        let nodes: Vec<_> = report.nodes.into_iter().filter(|node| node.region == "eu").collect();
        let (path, placement, answers_in_ms) = ("/eu/x", "eu", Some(0.34));
        let (groups, nodes) = (&groups[..], &nodes[..]);
        let (stuck, quota) = (None, None);
        let mut facts =
            Facts { path, placement, groups, nodes, answers_in_ms, mount, stuck, quota };
        rest(&mut facts);
        let judged = Judgement::new(&facts);
        (judged.level, judged.sentence(&facts, &Seen::default()))
    }

    fn same(_: &mut Facts<'_>) {}

    #[test]
    fn a_path_whose_groups_are_well_is_so_whatever_other_regions_are() {
        let state = State::default();
        let well = "All is well with /eu/x: it is placed in eu, whose group has a primary and \
                    answers in 0.3 ms.";
        for down in [&[][..], &[1]] {
            let said = said(report(down, |_| {}), Some(&state), same);
            assert_eq!(said, (Level::Well, well.to_string()), "{down:?}");
        }
        let other = State { cut_off: vec![CutOff { group: "us".into(), for_ms: 9 }], ..state };
        assert_eq!(said(report(&[], |_| {}), Some(&other), same).0, Level::Well);
    }

    #[test]
    fn a_group_without_a_majority_is_named_with_how_long_it_has_been_so() {
        let state = State::default();
        let old = |status: &mut NodeStatus| status.replicas[1].head_age_ms = 12_000;
        let (level, words) = said(report(&[4, 5], old), Some(&state), same);
        let begin = "/eu/x cannot be changed: group eu has 1 of 3 members, and needs 2, for at \
                     least 12 s; ";
        assert!(words.starts_with(begin), "{words}");
        assert!(words.contains("eu-2 does not answer (connection refused)"), "{words}");
        assert_eq!(level.exit_code(), 3);
        let leaderless = |status: &mut NodeStatus| status.replicas[1].role = "promised".into();
        let (_, words) = said(report(&[], leaderless), Some(&state), same);
        assert!(words.starts_with("/eu/x cannot be changed: group eu has no primary"), "{words}");
    }

    #[test]
    fn of_a_group_above_one_member_that_answers_is_enough() {
        let state = State::default();
        let (level, words) = said(report(&[0, 1, 2, 4], |_| {}), Some(&state), same);
        assert_eq!(level, Level::Degraded, "eu has two of three left: {words}");
        let begin = "/eu/x can be changed, and something is wrong: group eu has 2 of 3 members and \
                     survives no further failure; group global has 2 of 6 members, and needs 4";
        assert!(words.starts_with(begin), "{words}");
        let mut all = report(&[], |_| {});
        let global = all.groups.iter_mut().find(|group| group.group == "global").unwrap();
        (global.answering, global.primary) = (0, None);
        let (level, words) = said(all, Some(&state), same);
        let begin = "/eu/x cannot be looked up by who does not hold it: group global has 0 of 6";
        assert!(level == Level::Down && words.starts_with(begin), "{words}");
    }

    #[test]
    fn what_the_mount_meets_alone_is_told_as_such() {
        let cut = State {
            cut_off: vec![CutOff { group: "eu".into(), for_ms: 7000 }],
            ..State::default()
        };
        let begin = "/eu/x cannot be used through this mount: its mount ";
        let (level, words) = said(report(&[], |_| {}), Some(&cut), same);
        let whole =
            format!("{begin}is cut off from eu, whose nodes answer here, for at least 7 s.");
        assert_eq!((level.exit_code(), words), (1, whole));
        let (_, words) = said(report(&[], |_| {}), None, same);
        assert_eq!(words, format!("{begin}does not answer."));
        let (_, words) = said(report(&[3, 4, 5], |_| {}), Some(&cut), same);
        assert!(!words.contains("cut off"), "that follows from what eu is: {words}");
        let state = State::default();
        let stuck = |facts: &mut Facts<'_>| facts.stuck = Some(("/eu", "no answer within 4 s"));
        let (_, words) = said(report(&[], |_| {}), Some(&state), stuck);
        let whole = "/eu/x cannot be used through this mount: /eu is not told by the mount: no \
                     answer within 4 s.";
        assert_eq!(words, whole);
    }

    #[test]
    fn what_makes_a_path_slow_or_refused_is_named() {
        let state = State::default();
        let waits = |status: &mut NodeStatus| {
            let replica = &mut status.replicas[1];
            replica.head_age_ms = 3000;
            let by = vec![meridian_core::GroupId(0)];
            let message = "7b.9".parse().unwrap();
            replica.held_up = Some(HeldUp { message, votes: true, by });
        };
        let (level, words) = said(report(&[], waits), Some(&state), same);
        let whole = "/eu/x can be changed, and something is wrong: group eu has a message that \
                     waits for votes of global, for at least 3 s.";
        assert_eq!((level, words.as_str()), (Level::Degraded, whole));
        let full = |status: &mut NodeStatus| status.full = status.node.0 == 4;
        let (_, words) = said(report(&[], full), Some(&state), same);
        assert!(words.contains("eu-2 has a full disk and takes nothing"), "{words}");
        let elsewhere = |status: &mut NodeStatus| status.full = status.node.0 == 1;
        assert_eq!(said(report(&[], elsewhere), Some(&state), same).0, Level::Well);
        for (words, wanted) in [
            ("bytes=94/100 inodes=1/none", None),
            ("bytes=95/100 inodes=1/none", Some("its quota is nearly used up, 95 % of it.")),
            ("bytes=0/none inodes=7/7", Some("its quota is used up: what needs more is refused.")),
        ] {
            let quota = Quota::read(words).unwrap();
            let groups = report(&[], |_| {}).groups;
            let facts = Facts {
                path: "/eu/x",
                placement: "eu",
                groups: &groups,
                nodes: &[],
                answers_in_ms: None,
                mount: Some(&state),
                stuck: None,
                quota: Some(&quota),
            };
            let judged = Judgement::new(&facts);
            let words = judged.sentence(&facts, &Seen::default());
            assert_eq!(judged.level == Level::Well, wanted.is_none(), "{words}");
            assert!(wanted.is_none_or(|wanted| words.ends_with(wanted)), "{words}");
        }
    }
}
