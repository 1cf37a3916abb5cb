//! What would be done if a region were fenced: what the configuration decides on a copy of itself.

use super::some_names;
use crate::nodes::lost::Names;
use anyhow::{Context, bail};
use meridian_cluster::configuration::{Reply, Request};
use meridian_cluster::topology::ClusterFile;
use meridian_cluster::{Configuration, Topology};
use meridian_core::NodeId;
use meridian_paxos::Service as _;
use serde::Serialize;
use std::collections::BTreeSet;

/// So many of the names that lead to what is lost are told to people.
const NAMES_MAX: usize = 20;

/// See the module's documentation.
#[derive(Debug, Serialize)]
pub struct Plan {
    region: String,
    /// Who goes on with its group.
    heirs: Vec<String>,
    /// Who has to tell these what it knows.
    reporters: Vec<String>,
    /// The nodes that are lost.
    nodes: Vec<String>,
    /// Who keeps the configuration no more, and who does in their place.
    keepers_lost: Vec<String>,
    keepers_new: Vec<String>,
    /// Who of the lost nodes keeps the configuration, with nobody to do so in its place until a
    /// node is added; and how many nodes are to keep it.
    seats_empty: Vec<String>,
    seats: usize,
    /// The groups whose members change.
    groups: Vec<GroupPlan>,
    /// No node that answers has keys of all regions.
    keyless: bool,
    /// The others agree on what is kept of the region's keys of all regions; else they keep for it
    /// what they change, for ever.
    keys_agreed: bool,
    /// What names elsewhere lead to what is lost, once that was looked at.
    #[serde(flatten)]
    pub found: Option<Names>,
}

#[derive(Debug, Serialize)]
struct GroupPlan {
    group: String,
    members: Vec<String>,
    next: Vec<String>,
}

impl Plan {
    /// What `request` would do to the cluster.
    ///
    /// # Errors
    /// If it would be refused: why.
    pub fn new(file: &ClusterFile, request: &Request) -> anyhow::Result<Plan> {
        let Request::FenceRegion { region, keyless, .. } = request else {
            bail!("{request:?} fences no region");
        };
        let before = Topology::new(file)?;
        let mut copy = Configuration::default();
        copy.restore(serde_json::to_string(file)?.as_bytes()).map_err(anyhow::Error::msg)?;
        done(copy.change(request.clone()))?;
        let open = Topology::new(copy.file().context("it is gone")?)?;
        let lost = open.open_fence().context("no fence is open")?.clone();
        let number = lost.number;
        done(copy.change(Request::InForce { group: region.clone(), number }))?;
        let after = copy.file().context("it is gone")?;
        let stands = Topology::new(after)?;
        let name = |node: &NodeId| stands.node(*node).name.clone();
        let names = |nodes: &[NodeId]| nodes.iter().map(name).collect::<Vec<_>>();
        let changed = before.group_ids().filter_map(|id| {
            let next = match (id == lost.group, &stands.group(id).next) {
                (true, _) => names(&lost.heirs),
                (false, next) => names(next.as_ref()?),
            };
            let (group, members) = (before.group_name(id), names(&before.group(id).members));
            Some(GroupPlan { group, members, next })
        });
        let reporters: BTreeSet<_> = lost.reporters.iter().map(|process| process.node).collect();
        let (kept, keeps) = (&file.configuration.replicas, &after.configuration.replicas);
        Ok(Plan {
            region: region.clone(),
            heirs: names(&lost.heirs),
            reporters: reporters.iter().map(name).collect(),
            nodes: names(&lost.nodes),
            keepers_lost: kept.difference(keeps).cloned().collect(),
            keepers_new: keeps.difference(kept).cloned().collect(),
            seats_empty: stands.lost_seats().map(|node| name(&node)).collect(),
            seats: keeps.len(),
            groups: changed.collect(),
            keyless: *keyless,
            keys_agreed: !lost.keys_stay,
            found: None,
        })
    }

    /// The same in words.
    pub fn for_people(&self) -> String {
        let region = &self.region;
        let mut lines = vec![
            format!("region {region} is to be declared lost: {}", self.nodes.join(", ")),
            format!("  its group goes on with       {}", self.heirs.join(", ")),
            format!("  they gather what is known by {}", self.reporters.join(", ")),
        ];
        for GroupPlan { group, members, next } in &self.groups {
            let (now, then) = (members.len(), next.len());
            lines
                .push(format!("  members of {group}: {now} now, {then} then: {}", next.join(", ")));
        }
        if !self.keepers_lost.is_empty() {
            let (lost, new) = (self.keepers_lost.join(", "), self.keepers_new.join(", "));
            lines.push(format!("  the configuration is kept by {new} instead of {lost}"));
        }
        if !self.seats_empty.is_empty() {
            let (seats, empty) = (self.seats, self.seats_empty.join(", "));
            let left = seats - self.seats_empty.len();
            lines.push(format!(
                "  the configuration is kept by {left} nodes of {seats}: nobody can do so instead of \
                 {empty}\n  until a node is added"
            ));
        }
        lines.push(format!(
            "\nWhat only these nodes have is lost to the others: all that is placed in {region} \
             (/{region} and all\nbelow it), its local keys, and changes that nobody else has heard \
             of. Their directories stay as they\nare. There is no way back."
        ));
        if !self.keyless && self.keys_agreed {
            lines.push(format!(
                "\nThere are keys of all regions. What any other region has applied of those of \
                 {region} is kept, in all of\nthem; the rest is dropped, and a session that has \
                 seen of it is told so when it moves. Each node\nof the others has to say so."
            ));
        }
        if !self.keys_agreed {
            lines.push(format!(
                "\nThere are keys of all regions: those of {region} stay open for ever. The others \
                 keep for it what they\nchange, until sources take no more (`meridian kv lag`)."
            ));
        }
        if let Some(found) = &self.found {
            lines.push(say_names(found));
        }
        lines.join("\n")
    }
}

fn say_names(found: &Names) -> String {
    let count = found.names.len();
    let so_far = if found.all_looked_at { "" } else { ", as far as was looked" };
    if count == 0 {
        return format!("\nNo names elsewhere lead to it{so_far}.");
    }
    let mut lines = vec![format!("\n{count} names elsewhere lead to it{so_far}:")];
    lines.extend(some_names(found, NAMES_MAX).into_iter().map(|path| format!("  {path}")));
    if count > NAMES_MAX {
        lines.push(format!("  and {} more (--json has all)", count - NAMES_MAX));
    }
    lines.join("\n")
}

fn done(reply: Reply) -> anyhow::Result<()> {
    match reply {
        Reply::Done { .. } => Ok(()),
        Reply::Refused(why) => bail!("{why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, new_cluster};
    use meridian_core::level::Level;

    fn plan(up: &[&str]) -> anyhow::Result<Plan> {
        plan_of(3, Level::KEPT, up)
    }

    fn plan_of(nodes: u16, level: Level, up: &[&str]) -> anyhow::Result<Plan> {
        let regions = ["us", "eu", "ap"].map(String::from).into();
        let shape = Shape { regions, nodes_per_region: Some(nodes), ..Shape::default() };
        let up = up.iter().map(|name| name.to_string()).collect();
        let region = "ap".to_string();
        let request = Request::FenceRegion { region, up, keyless: false, now_ms: 9 };
        let mut file = new_cluster(&shape)?;
        file.configuration.levels.now = level;
        Plan::new(&file, &request)
    }

    #[test]
    fn a_plan_says_who_inherits_what_and_what_is_lost() {
        let up = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3"];
        let plan = plan(&up).unwrap();
        assert_eq!(plan.heirs, ["eu-1", "eu-2", "eu-3"]);
        assert_eq!((plan.reporters.len(), plan.nodes.len()), (6, 3));
        let groups: Vec<_> = plan.groups.iter().map(|of| (&*of.group, of.next.len())).collect();
        assert_eq!(groups, [("global", 6), ("ap", 3)]);
        assert_eq!((plan.keepers_lost.len(), plan.keepers_new.len()), (1, 1));
        let text = plan.for_people();
        for words in ["its group goes on with       eu-1", "/ap and all", "the rest is dropped"] {
            assert!(text.contains(words), "{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn a_plan_says_which_seats_are_left_empty() {
        let plan = plan_of(1, Level::SEATS, &["us-1", "eu-1"]).unwrap();
        assert_eq!((plan.seats_empty.join(" "), plan.seats), ("ap-1".to_string(), 3));
        assert!(plan.keepers_lost.is_empty() && plan.keepers_new.is_empty());
        let text = plan.for_people();
        assert!(text.contains("kept by 2 nodes of 3: nobody can do so instead of ap-1"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn below_their_level_a_plan_says_that_keys_of_all_regions_stay_open() {
        let up = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3"];
        let plan = plan_of(3, Level::FENCES, &up).unwrap();
        let text = plan.for_people();
        assert!(!plan.keys_agreed && text.contains("stay open for ever"), "{text}");
        assert!(!text.contains("the rest is dropped"), "{text}");
    }

    #[test]
    fn what_would_be_refused_has_no_plan() {
        let up = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3", "ap-3"];
        let why = plan(&up).unwrap_err().to_string();
        assert!(why.contains("ap-3 of region ap answers"), "{why}");
        let why = plan(&up[1..6]).unwrap_err().to_string();
        assert!(why.contains("us-1 does not answer"), "{why}");
    }
}
