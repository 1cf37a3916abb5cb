//! How keys of all regions follow the cluster.

use super::super::*;
use crate::topology::{CLUSTER_FORMAT, Kept, NodeEntry};
use meridian_core::RegionId;
use meridian_core::level::Level;
use meridian_eunomia::{Standing, Word};
use std::collections::BTreeMap;

const SA: RegionId = RegionId(2);

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// A cluster of two regions, of one node each.
fn cluster() -> Configuration {
    let node = |name: &str, region: &str| NodeEntry {
        name: name.into(),
        region: region.into(),
        pid: None,
        address: name.into(),
        groups: vec!["global".into(), region.into()],
        draining: None,
    };
    let levels = crate::levels::Levels { now: Level::REGIONS, ..Default::default() };
    let file = ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 7,
        nodes: vec![node("us-1", "us"), node("eu-1", "eu")],
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Kept { levels, ..Kept::default() },
    };
    let mut cluster = Configuration::default();
    did(&mut cluster, Request::Initialise(text(&file)));
    cluster
}

fn did(cluster: &mut Configuration, request: Request) {
    let reply = cluster.change(request);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

fn topology(cluster: &Configuration) -> Topology {
    Topology::new(cluster.file().unwrap()).unwrap()
}

fn standing(cluster: &Configuration, region: RegionId) -> Standing {
    topology(cluster).key_regions().standing(region).clone()
}

fn say(cluster: &mut Configuration, name: &str, word: Word) {
    did(cluster, Request::Word { name: name.into(), word });
}

fn all_hear(cluster: &mut Configuration, names: &[&str]) {
    let epoch = topology(cluster).key_regions().epoch();
    names.iter().for_each(|name| say(cluster, name, Word::Heard(epoch)));
}

fn add_region(cluster: &mut Configuration) {
    let up = set(&["us-1", "eu-1"]);
    let (region, address) = ("sa".into(), "sa-1".into());
    did(cluster, Request::AddRegion { region, name: None, address, up, now_ms: 5 });
    assert_eq!(standing(cluster, SA), Standing::Absent, "nobody is there");
    did(cluster, Request::Up { name: "sa-1".into() });
    for group in ["global", "sa"] {
        cluster.change(Request::InForce { group: group.into(), number: 1 });
    }
}

fn remove_region(cluster: &mut Configuration, region: &str) {
    let (region, keepers) = (region.into(), BTreeMap::new());
    let up = set(&["us-1", "eu-1", "sa-1"]);
    did(cluster, Request::RemoveRegion { region, up, keepers, now_ms: 9 });
}

fn close(cluster: &mut Configuration, region: &str) -> Reply {
    let up = set(&["us-1", "eu-1", "sa-1"]);
    cluster.change(Request::CloseRegion { region: region.into(), up })
}

#[test]
fn a_region_that_comes_has_all_keys_before_it_serves() {
    let mut cluster = cluster();
    assert!(cluster.file().unwrap().configuration.standings.is_none(), "all serve");
    add_region(&mut cluster);
    let us = RegionId(0);
    assert_eq!(standing(&cluster, SA), Standing::Comes { from: us });
    assert_eq!(topology(&cluster).key_nodes_behind().len(), 3);
    all_hear(&mut cluster, &["us-1", "sa-1"]);
    assert_eq!(standing(&cluster, SA), Standing::Comes { from: us });
    let said = topology(&cluster).key_moves();
    assert_eq!(said, ["keys of all regions: sa is to copy those of us; not heard of by eu-1"]);
    all_hear(&mut cluster, &["eu-1"]);
    assert_eq!(standing(&cluster, SA), Standing::Copies { from: us });
    say(&mut cluster, "sa-1", Word::Copied);
    assert_eq!(standing(&cluster, SA), Standing::Serves);
    // As text, and as replicas send it to one another.
    let mut again = Configuration::default();
    again.restore(&cluster.snapshot()).unwrap();
    assert_eq!(again, cluster);
    let version = topology(&cluster).version;
    all_hear(&mut again, &["us-1"]);
    assert!(topology(&again).version > version);
    let version = topology(&again).version;
    all_hear(&mut again, &["us-1"]);
    assert_eq!(topology(&again).version, version, "it was known");
}

#[test]
fn the_nodes_of_a_region_leave_when_its_keys_are_elsewhere() {
    let mut cluster = cluster();
    remove_region(&mut cluster, "eu");
    let eu = RegionId(1);
    assert_eq!(standing(&cluster, eu), Standing::Leaves);
    did(&mut cluster, Request::InForce { group: "eu".into(), number: 1 });
    let Reply::Refused(why) = close(&mut cluster, "eu") else { panic!("nobody has heard of it") };
    assert!(why.contains("us-1, eu-1 do not know"), "{why}");
    all_hear(&mut cluster, &["us-1", "eu-1"]);
    let Reply::Refused(why) = close(&mut cluster, "eu") else { panic!("it is not drained") };
    assert!(why.contains("kv lag"), "{why}");
    say(&mut cluster, "us-1", Word::Drained);
    assert_eq!(standing(&cluster, eu), Standing::Leaves, "another region has no say in it");
    say(&mut cluster, "eu-1", Word::Drained);
    assert!(matches!(standing(&cluster, eu), Standing::Gone { .. }));
    assert!(matches!(close(&mut cluster, "eu"), Reply::Done { .. }));
}

#[test]
fn a_region_that_is_taken_back_while_it_joins_is_gone_at_once() {
    let mut cluster = cluster();
    add_region(&mut cluster);
    all_hear(&mut cluster, &["us-1", "eu-1", "sa-1"]);
    remove_region(&mut cluster, "sa");
    assert!(matches!(standing(&cluster, SA), Standing::Gone { .. }));
}
