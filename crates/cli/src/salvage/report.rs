//! What is told of what a node had.

use super::choice::Choice;
use super::copy::Copied;
use crate::nodes::kind_name;
use crate::output;
use meridian_cluster::Topology;
use meridian_cluster::lost::in_utc;
use meridian_fs::Update;
use meridian_fs::inventory::{Inventory, Partitions, Why};
use meridian_fs::types::{Kind, Place, Timestamp};
use meridian_host::replica::{Doubtful, Stage};
use meridian_node::Salvage;
use serde::Serialize;

/// See the module.
#[derive(Debug, Serialize)]
pub struct Report {
    node: String,
    region: String,
    /// Since when its region is lost, in milliseconds since 1970.
    lost_since_ms: Option<u64>,
    partitions: Vec<PartitionReport>,
    items: Vec<ItemReport>,
    /// Names that lead to nothing here.
    astray: Vec<AstrayReport>,
    /// Updates of which the log does not say what came of them.
    doubtful: Vec<DoubtfulReport>,
    copied: Option<Copied>,
    /// Whether all is here that should be.
    whole: bool,
}

#[derive(Debug, Serialize)]
struct PartitionReport {
    name: String,
    inodes: u64,
    names: u64,
    bytes: u64,
    /// How many messages it had applied.
    applied: u64,
    /// When anything in it was changed last, by the clocks of clients, in milliseconds since 1970.
    changed_ms: i64,
}

#[derive(Debug, Serialize)]
struct ItemReport {
    path: String,
    kind: &'static str,
    size: u64,
    mtime_ms: i64,
    /// The path of the same file that came before.
    same_as: Option<String>,
    /// The runs of bytes that are missing: from the first to before the last.
    missing: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize)]
struct AstrayReport {
    path: String,
    kind: &'static str,
    /// Where it leads.
    partition: String,
    why: &'static str,
}

#[derive(Debug, Serialize)]
struct DoubtfulReport {
    message: String,
    partition: String,
    /// When its client asked for it, in milliseconds since 1970.
    time_ms: Option<i64>,
    what: &'static str,
    paths: Vec<String>,
    /// How far it got.
    stage: &'static str,
    waits_for: Vec<String>,
}

fn ms(time: Timestamp) -> i64 {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000))
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn words(why: Why) -> &'static str {
    match why {
        Why::Elsewhere => "is not on this node",
        Why::Missing => "is not in its partition",
        Why::Twice => "is a directory that stands under another name",
    }
}

fn when(ms: i64) -> String {
    u64::try_from(ms).map_or_else(|_| "before 1970".into(), in_utc)
}

impl Report {
    /// What is told of what was asked for, and was copied, if it was.
    pub fn new(
        salvage: &Salvage,
        partitions: &Partitions<'_>,
        (inventory, choice): (&Inventory, &Choice),
        copied: Option<Copied>,
    ) -> Report {
        let topology = &salvage.topology;
        let of = topology.node(salvage.me);
        let items: Vec<_> =
            choice.items.iter().map(|at| item(salvage, partitions, inventory, *at)).collect();
        let astray: Vec<_> = choice.astray.iter().map(|at| &inventory.astray[*at]).collect();
        let whole = items.iter().all(|item| item.missing.is_empty())
            && !astray.iter().any(|name| name.why == Why::Missing)
            && copied.as_ref().is_none_or(|copied| copied.flaws.is_empty());
        let doubtful = salvage.doubtful.iter();
        let doubtful = doubtful.map(|(group, of)| {
            doubtful_report(topology, inventory, topology.group_name(*group), of)
        });
        Report {
            node: of.name.clone(),
            region: topology.regions[usize::from(of.region.0)].name.clone(),
            lost_since_ms: topology.lost_region(of.region).map(|lost| lost.since_ms),
            partitions: partitions.values().map(|of| partition(topology, of)).collect(),
            items,
            astray: astray
                .into_iter()
                .map(|name| AstrayReport {
                    path: text(&name.path),
                    kind: kind_name(name.entry.kind),
                    partition: topology.group_name(name.entry.place.partition),
                    why: words(name.why),
                })
                .collect(),
            doubtful: doubtful.collect(),
            copied,
            whole,
        }
    }

    /// Whether all is here that should be, and was copied as it was.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// As tables. What was copied is not listed again, but for what is incomplete.
    pub fn for_people(&self) -> String {
        let Report { node, region, .. } = self;
        let since = self.lost_since_ms.map(|ms| format!(", lost at {}", in_utc(ms)));
        let heading = format!("{node} of region {region}{}", since.unwrap_or_default());
        let rows = self.partitions.iter().map(PartitionReport::row);
        let head = ["partition", "inodes", "names", "bytes", "updates", "last change"];
        let mut parts = vec![heading, output::table(&head, rows)];
        let listed = |item: &&ItemReport| self.copied.is_none() || !item.missing.is_empty();
        let items: Vec<_> = self.items.iter().filter(listed).map(ItemReport::row).collect();
        if !items.is_empty() {
            parts.push(output::table(&["path", "is a", "length", "changed", "missing"], items));
        }
        if !self.astray.is_empty() {
            let row = |name: &AstrayReport| {
                let AstrayReport { path, kind, partition, why } = name;
                vec![path.clone(), format!("{kind} of {partition}"), why.to_string()]
            };
            let rows = self.astray.iter().map(row);
            parts.push(output::table(&["name", "leads to a", "which"], rows));
        }
        if !self.doubtful.is_empty() {
            let rows = self.doubtful.iter().map(DoubtfulReport::row);
            let head = ["in doubt", "partition", "asked for", "what", "how far it got"];
            parts.push(output::table(&head, rows));
        }
        if let Some(copied) = &self.copied {
            let rows = copied.flaws.iter().map(|flaw| vec![flaw.path.clone(), flaw.why.clone()]);
            if !copied.flaws.is_empty() {
                parts.push(output::table(&["not as it was", "why"], rows));
            }
        }
        parts.push(self.summary());
        parts.join("\n\n")
    }

    fn summary(&self) -> String {
        let lacks = self.items.iter().filter(|item| !item.missing.is_empty()).count();
        let mut lines = vec![match lacks {
            0 => "no bytes are missing in files".to_string(),
            count => format!(
                "{count} files lack bytes: --blocks with the folders of other nodes may have them"
            ),
        }];
        if !self.doubtful.is_empty() {
            let count = self.doubtful.len();
            lines.push(format!("of {count} updates the log does not say what came of them"));
        }
        if let Some(copied) = &self.copied {
            lines.push(format!("copied {copied}; {} flaws", copied.flaws.len()));
        }
        lines.join("\n")
    }
}

impl PartitionReport {
    fn row(&self) -> output::Row {
        let PartitionReport { name, inodes, names, bytes, applied, changed_ms } = self;
        let numbers = [inodes, names, bytes, applied].map(ToString::to_string);
        [name.clone()].into_iter().chain(numbers).chain([when(*changed_ms)]).collect()
    }
}

impl ItemReport {
    fn row(&self) -> output::Row {
        let what = match &self.same_as {
            Some(first) => format!("{}, {first}", self.kind),
            None => self.kind.to_string(),
        };
        let runs = self.missing.iter().map(|(from, to)| format!("{from}-{to}"));
        let missing = runs.collect::<Vec<_>>().join(" ");
        vec![self.path.clone(), what, self.size.to_string(), when(self.mtime_ms), missing]
    }
}

impl DoubtfulReport {
    fn row(&self) -> output::Row {
        let what = format!("{} {}", self.what, self.paths.join(", "));
        let waits = match self.waits_for.is_empty() {
            true => self.stage.to_string(),
            false => format!("{}, waits for {}", self.stage, self.waits_for.join(", ")),
        };
        let time = self.time_ms.map(when).unwrap_or_default();
        vec![self.message.clone(), self.partition.clone(), time, what, waits]
    }
}

fn partition(topology: &Topology, of: &meridian_fs::Partition) -> PartitionReport {
    let holdings = of.holdings();
    PartitionReport {
        name: topology.group_name(of.group()),
        inodes: holdings.inodes,
        names: of.names(),
        bytes: holdings.bytes,
        applied: of.applied().0,
        changed_ms: of.changed().map(ms).unwrap_or_default(),
    }
}

fn item(
    salvage: &Salvage,
    partitions: &Partitions<'_>,
    inventory: &Inventory,
    at: usize,
) -> ItemReport {
    let item = &inventory.items[at];
    let Place { ino, partition } = item.attributes.place;
    let contents = (item.attributes.kind == Kind::File)
        .then(|| partitions.get(&partition).and_then(|partition| partition.contents(ino)))
        .flatten();
    let missing = contents.map(|contents| contents.missing(|block| salvage.holds(block)));
    ItemReport {
        path: text(&item.path),
        kind: kind_name(item.attributes.kind),
        size: item.attributes.size,
        mtime_ms: ms(item.attributes.mtime),
        same_as: item.first.map(|first| text(&inventory.items[first].path)),
        missing: missing.unwrap_or_default(),
    }
}

fn doubtful_report(
    topology: &Topology,
    inventory: &Inventory,
    partition: String,
    of: &Doubtful,
) -> DoubtfulReport {
    let update = of.change.as_ref().map(|(_, update)| update);
    let paths = update.map(|update| inventory.about(update)).unwrap_or_default();
    DoubtfulReport {
        message: of.id.to_string(),
        partition,
        time_ms: of.change.as_ref().map(|(time, _)| ms(*time)),
        what: update.map_or("nothing with files", Update::name),
        paths: paths.iter().map(|path| text(path)).collect(),
        stage: match of.stage {
            Stage::Assumed => "taken as done",
            Stage::Delivered => "delivered, not done",
            Stage::Proposed => "proposed, not done",
        },
        waits_for: of.waits_for.iter().map(|group| topology.group_name(*group)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &str, missing: Vec<(u64, u64)>) -> ItemReport {
        let (path, kind, same_as) = (path.to_string(), "file", None);
        ItemReport { path, kind, size: 9, mtime_ms: 1_500_000_000_000, same_as, missing }
    }

    fn report() -> Report {
        Report {
            node: "ap-1".into(),
            region: "ap".into(),
            lost_since_ms: Some(1_500_000_000_000),
            partitions: vec![PartitionReport {
                name: "ap".into(),
                inodes: 5,
                names: 4,
                bytes: 18,
                applied: 77,
                changed_ms: -1,
            }],
            items: vec![item("/ap/whole", vec![]), item("/ap/torn", vec![(0, 4), (6, 9)])],
            astray: vec![AstrayReport {
                path: "/us".into(),
                kind: "directory",
                partition: "us".into(),
                why: words(Why::Elsewhere),
            }],
            doubtful: vec![DoubtfulReport {
                message: "7.1".into(),
                partition: "ap".into(),
                time_ms: Some(1_500_000_000_000),
                what: "rename",
                paths: vec!["/ap/a".into(), "/us/b".into()],
                stage: "proposed, not done",
                waits_for: vec!["us".into()],
            }],
            copied: None,
            whole: false,
        }
    }

    #[test]
    fn a_person_sees_what_is_there_and_what_is_not() {
        let text = report().for_people();
        let has = |words: &str| assert!(text.contains(words), "{words}: {text}");
        has("ap-1 of region ap, lost at 2017-07-14 02:40 UTC");
        has("before 1970");
        has("/ap/whole");
        has("0-4 6-9");
        has("directory of us");
        has("rename /ap/a, /us/b");
        has("proposed, not done, waits for us");
        has("1 files lack bytes");
        has("of 1 updates the log does not say what came of them");
    }

    #[test]
    fn what_was_copied_is_not_listed_again() {
        let mut copied = Copied::default();
        copied.flaws.push(super::super::copy::Flaw { path: "/ap/torn".into(), why: "gone".into() });
        let text = Report { copied: Some(copied), ..report() }.for_people();
        assert!(!text.contains("/ap/whole") && text.contains("/ap/torn"), "{text}");
        assert!(text.contains("copied 0 directories") && text.contains("1 flaws"), "{text}");
    }
}
