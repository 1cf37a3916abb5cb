//! With whom keys begin, and who comes later.

use super::*;
use crate::config::prepare;
use meridian_cluster::topology::{
    CLUSTER_FORMAT, ClusterFile, Kept as Configured, NodeEntry, RegionEntry,
};
use meridian_core::RegionId;

/// A cluster of these nodes in one region, of which these were added.
fn topology(nodes: &[&str], added: &[&str]) -> Topology {
    topology_without(&[], nodes, added)
}

/// As [`topology`], from which these nodes were removed.
fn topology_without(gone: &[&str], nodes: &[&str], added: &[&str]) -> Topology {
    let entry = |name: &&str, groups: &[&str]| NodeEntry {
        name: name.to_string(),
        region: "us".into(),
        pid: None,
        address: "127.0.0.1:0".into(),
        groups: groups.iter().map(ToString::to_string).collect(),
        draining: None,
    };
    let gone = gone.iter().map(|name| entry(name, &[]));
    let nodes = gone.chain(nodes.iter().map(|name| entry(name, &["global", "us"])));
    let added = added.iter().map(ToString::to_string).collect();
    Topology::new(&ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 7,
        nodes: nodes.collect(),
        rtt_ms: Default::default(),
        order: Default::default(),
        configuration: Configured { version: 5, added, ..Configured::default() },
    })
    .unwrap()
}

fn wanted(shards: Option<usize>, causal: Option<&str>, first: Option<&[&str]>) -> KeysOptions {
    let (address, durability) = ("127.0.0.1:0".into(), None);
    let first = first.map(|first| first.iter().map(ToString::to_string).collect());
    KeysOptions { address, shards, durability, causal: causal.map(String::from), first }
}

/// How keys begin at a new node of that name.
fn began(name: &str, topology: &Topology, wanted: &KeysOptions) -> Result<Began, String> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(name);
    prepare(&path, 7, name).unwrap();
    let dir = NodeDir::open(&path).unwrap();
    let me = topology.node_named(name).unwrap();
    let began = begin(&dir, topology, me, wanted).map_err(|error| error.to_string())?;
    let again = begin(&dir, topology, me, &wanted.clone()).unwrap();
    assert_eq!(again, began, "it is so at the next start, too");
    Ok(began)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Also one that was added long ago, and had no keys at its first starts.
#[test]
fn a_node_that_was_added_never_begins_keys() {
    let all = topology(&["us-1", "us-2", "us-3"], &["us-3"]);
    let first = began("us-1", &all, &wanted(Some(2), None, None)).unwrap();
    assert_eq!(first.replicas, names(&["us-1", "us-2"]), "nobody waits for who was added");
    let later = began("us-3", &all, &wanted(Some(2), None, None)).unwrap();
    assert_eq!(later.replicas, names(&["us-1", "us-2"]), "these tell it what it must know");
    let alone = topology(&["us-3"], &["us-3"]);
    let later = began("us-3", &alone, &wanted(Some(2), None, None)).unwrap();
    assert!(later.replicas.is_empty(), "nobody is there to tell it, and it does not serve");
}

/// It cannot know in how many shards they are. Of causal keys it has the same in mind.
#[test]
fn a_node_that_comes_later_says_how_keys_are_there() {
    let all = topology(&["us-1", "us-2"], &["us-2"]);
    let refused = began("us-2", &all, &wanted(None, None, None)).unwrap_err();
    assert!(refused.contains("--keys-shards"), "{refused}");
    let causal = |node: &str| {
        let began = began(node, &all, &wanted(Some(1), Some("c:"), None)).unwrap();
        began.causal.unwrap()
    };
    assert_eq!(causal("us-1"), causal("us-2"));
    assert_eq!(causal("us-1").regions, ["us"]);
    let nodes = regions(&all).nodes(RegionId(0)).to_vec();
    assert_eq!(nodes, [NodeId(0), NodeId(1)]);
}

/// The cluster names the node with which a region was added. The others of the cluster hear it, as
/// it has the same causal keys in mind.
#[test]
fn keys_of_a_region_that_was_added_begin_with_its_first_node() {
    let node = |name: &str, region: &str| NodeEntry {
        name: name.into(),
        region: region.into(),
        pid: None,
        address: "127.0.0.1:0".into(),
        groups: vec!["global".into(), region.into()],
        draining: None,
    };
    let first = Some("sa-1".to_string());
    let sa = RegionEntry { added_ms: Some(9), leaves_ms: None, first, lost: None };
    let all = Topology::new(&ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 7,
        nodes: vec![node("us-1", "us"), node("sa-1", "sa"), node("sa-2", "sa")],
        rtt_ms: Default::default(),
        order: Default::default(),
        configuration: Configured {
            version: 5,
            added: names(&["sa-1", "sa-2"]),
            regions: [("sa".to_string(), sa)].into(),
            ..Configured::default()
        },
    })
    .unwrap();
    let began = |name| began(name, &all, &wanted(Some(2), Some("c:"), None)).unwrap();
    assert_eq!(began("sa-1").replicas, names(&["sa-1"]));
    assert_eq!(began("sa-2").replicas, names(&["sa-1"]), "it never begins any");
    assert_eq!(began("sa-1").causal, began("us-1").causal);
    assert_eq!(regions(&all).nodes(RegionId(1)), [NodeId(1), NodeId(2)]);
}

/// Who was started with another number never spoke with the others, and need not stop them.
#[test]
fn another_number_of_shards_is_refused_with_what_to_do() {
    let all = topology(&["us-1", "us-2"], &["us-2"]);
    let why = |name: &str| {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path(), 7, name).unwrap();
        let dir = NodeDir::open(root.path()).unwrap();
        let me = all.node_named(name).unwrap();
        begin(&dir, &all, me, &wanted(Some(2), None, None)).unwrap();
        begin(&dir, &all, me, &wanted(Some(1), None, None)).unwrap_err().to_string()
    };
    assert!(why("us-1").contains("--keys-shards 2, or give up the keys of the region"));
    assert!(why("us-2").contains("if the others have 1, this node never had part in them"));
}

/// Where all the first nodes have gone, somebody must say that keys begin anew.
#[test]
fn keys_begin_with_the_nodes_that_are_named() {
    let all = ["us-4", "us-5", "us-6"];
    let left = topology_without(&["us-1", "us-2", "us-3"], &all, &all);
    let options = wanted(Some(1), Some("c:"), Some(&["us-4", "us-5"]));
    let first = began("us-4", &left, &options).unwrap();
    assert_eq!(first.replicas, names(&["us-4", "us-5"]));
    assert!(first.causal.is_some());
    let named = |causal| wanted(Some(1), causal, Some(&["us-4", "us-5"]));
    let later = began("us-6", &left, &named(None)).unwrap();
    assert_eq!(later.replicas, names(&["us-4", "us-5"]));
    let strange = began("us-4", &left, &wanted(Some(1), None, Some(&["eu-1"]))).unwrap_err();
    assert!(strange.contains("eu-1"), "{strange}");
}
