//! How a lost region is fenced, and when not.

use super::super::*;
use crate::levels::Levels;
use crate::topology::{CLUSTER_FORMAT, Kept, NodeEntry};
use meridian_core::level::Level;
use meridian_core::{GroupId, NodeId, RegionId};
use meridian_eunomia::{Standing, Word};
use std::collections::BTreeMap;

const US: GroupId = GroupId(1);
const AP: GroupId = GroupId(3);

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Three regions of three nodes; one of each keeps the configuration.
fn file() -> ClusterFile {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        region: name[..2].into(),
        pid: None,
        address: name.into(),
        groups: vec!["global".into(), name[..2].into()],
        draining: None,
    };
    let names = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3", "ap-1", "ap-2", "ap-3"];
    let levels = Levels { now: Level::FENCES, ..Levels::default() };
    let replicas = set(&["us-1", "eu-1", "ap-1"]);
    ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 7,
        nodes: names.map(node).into(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Kept { levels, replicas, ..Kept::default() },
    }
}

fn of(file: &ClusterFile) -> Configuration {
    let mut cluster = Configuration::default();
    did(&mut cluster, Request::Initialise(text(file)));
    cluster
}

fn did(cluster: &mut Configuration, request: Request) {
    let reply = cluster.change(request);
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
}

fn refused(cluster: &mut Configuration, request: Request) -> String {
    let before = cluster.clone();
    let Reply::Refused(why) = cluster.change(request) else { panic!("it was done") };
    assert_eq!(*cluster, before, "nothing is changed");
    why
}

fn topology(cluster: &Configuration) -> Topology {
    Topology::new(cluster.file().unwrap()).unwrap()
}

fn left() -> BTreeSet<String> {
    set(&["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3"])
}

fn fence_with(region: &str, up: BTreeSet<String>) -> Request {
    Request::FenceRegion { region: region.into(), up, keyless: true, now_ms: 9 }
}

fn fence(region: &str) -> Request {
    fence_with(region, left())
}

fn in_force(group: &str, number: u64) -> Request {
    Request::InForce { group: group.into(), number }
}

fn add(region: &str, up: BTreeSet<String>) -> Request {
    let (region, address) = (region.into(), format!("{region}-new"));
    Request::AddNode { region, name: None, address, up }
}

fn remove(name: &str, keeper: Option<&str>) -> Request {
    let (name, keeper) = (name.into(), keeper.map(String::from));
    Request::RemoveNode { name, up: left(), keeper, reason: Some("it is lost".into()) }
}

#[test]
fn the_group_of_a_lost_region_goes_on_with_heirs_and_its_nodes_leave() {
    let mut cluster = of(&file());
    did(&mut cluster, fence("ap"));
    let open = topology(&cluster);
    let lost = open.open_fence().unwrap().clone();
    assert_eq!((lost.region, lost.group, lost.number), (RegionId(2), AP, 2));
    assert_eq!(lost.heirs, [3, 4, 5].map(NodeId), "of one other region");
    let processes = |group: u16, nodes: std::ops::Range<u16>| {
        nodes.map(move |node| GroupId(group).of(NodeId(node)))
    };
    let all = [processes(0, 0..6), processes(1, 0..3), processes(2, 3..6)];
    assert!(all.into_iter().flatten().eq(lost.reporters.clone()));
    assert_eq!(lost.beside, [6, 7, 8].map(|node| GroupId::GLOBAL.of(NodeId(node))));
    assert!(open.has_lost(AP) && !open.has_lost(US));
    assert!((0..9).all(|node| open.is_lost(NodeId(node)) == (node > 5)));
    assert!(open.lost_nodes().eq([6, 7, 8].map(NodeId)));
    let group = open.group(AP);
    assert_eq!((group.number, group.members.clone()), (2, lost.heirs.clone()));
    assert!(group.before.is_none() && group.next.is_none());
    assert!(open.groups_of(NodeId(3)).eq([GroupId(0), GroupId(2), AP]));
    assert!(open.groups_of(NodeId(6)).eq([GroupId(0)]), "until the fence stands");
    assert!(!open.staying_regions().any(|region| region == lost.region));
    assert!(open.nodes_in(lost.region).next().is_none());
    assert_eq!(open.regions[2].leaves_ms, None);
    assert!(refused(&mut cluster, in_force("ap", 3)).contains("no configuration 3"));

    did(&mut cluster, in_force("ap", 2));
    let standing = topology(&cluster);
    assert!(standing.open_fence().is_none() && standing.lost()[&AP].stands);
    assert_eq!(standing.regions[2].leaves_ms, Some(9), "its directory goes");
    let global = standing.group(GroupId::GLOBAL);
    assert_eq!(global.next.as_deref(), Some(&[0, 1, 2, 3, 4, 5].map(NodeId)[..]));
    assert!(standing.node(NodeId(7)).leaves && !standing.is_gone(NodeId(7)));
    let version = standing.version;
    did(&mut cluster, in_force("ap", 2));
    assert_eq!(topology(&cluster).version, version, "said twice");
    did(&mut cluster, in_force("global", 1));
    let gone = topology(&cluster);
    assert!(gone.is_gone(NodeId(8)) && gone.is_lost(NodeId(8)), "for ever");
    let region = "ap".to_string();
    let (name, address, up) = (None, "here".into(), left());
    let again = Request::AddRegion { region, name, address, up, now_ms: 10 };
    assert!(refused(&mut cluster, again).contains("never given again"));
    assert!(refused(&mut cluster, add("ap", left())).contains("no region ap"));
    did(&mut cluster, add("us", left()));
}

#[test]
fn who_kept_the_configuration_there_is_replaced() {
    let mut cluster = of(&file());
    did(&mut cluster, fence("ap"));
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!(kept.replicas, set(&["us-1", "us-2", "eu-1"]));
    assert_eq!((&kept.joining, &kept.replaced), (&set(&["us-2"]), &set(&["ap-1"])));
    let asked: Vec<_> = cluster.file().unwrap().keepers().collect();
    assert_eq!(asked, ["us-1", "us-2", "eu-1"], "nobody asks who is lost");
}

/// A cluster of these nodes, of which some keep the configuration.
fn small(nodes: &[&str], keepers: &[&str]) -> ClusterFile {
    let mut small = file();
    small.nodes.retain(|node| nodes.contains(&&*node.name));
    small.configuration.replicas = set(keepers);
    small.configuration.levels.now = Level::SEATS;
    small
}

/// The fence of `region` ends, and `global` goes on without its nodes.
fn stands(cluster: &mut Configuration, region: &str) {
    did(cluster, in_force(region, 2));
    let number = topology(cluster).group(GroupId::GLOBAL).number + 1;
    did(cluster, in_force("global", number));
}

/// A node comes to `region`, and into its groups.
fn comes(cluster: &mut Configuration, region: &str, up: &[&str]) -> String {
    let Reply::Done { added: Some(name), .. } = cluster.change(add(region, set(up))) else {
        panic!("no node comes: {:?}", cluster.file())
    };
    did(cluster, Request::Up { name: name.clone() });
    for group in ["global", region] {
        let id = topology(cluster).group_named(group).unwrap();
        let number = topology(cluster).group(id).number + 1;
        did(cluster, in_force(group, number));
    }
    name
}

/// S8. Three regions of one node each.
#[test]
fn where_all_keep_the_configuration_a_lost_node_leaves_an_empty_seat() {
    let all = ["us-1", "eu-1", "ap-1"];
    let mut cluster = of(&small(&all, &all));
    did(&mut cluster, fence_with("ap", set(&["us-1", "eu-1"])));
    stands(&mut cluster, "ap");
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!((&kept.replicas, kept.joining.len()), (&set(&all), 0));
    assert!(cluster.file().unwrap().keepers().eq(["us-1", "eu-1"]));
    let standing = topology(&cluster);
    assert!(standing.lost_seats().eq([NodeId(2)]) && standing.is_gone(NodeId(2)));
    assert_eq!(standing.group(GroupId::GLOBAL).members, [0, 1].map(NodeId));
    // The next that comes takes it, as soon as it is up; one that comes later finds none.
    let added = comes(&mut cluster, "us", &["us-1", "eu-1"]);
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!(kept.replicas, set(&["us-1", "eu-1", "us-2"]));
    assert_eq!((&kept.joining, &kept.replaced), (&set(&["us-2"]), &set(&["ap-1"])));
    assert_eq!((added.as_str(), topology(&cluster).lost_seats().count()), ("us-2", 0));
    did(&mut cluster, Request::Keeps { name: added });
    comes(&mut cluster, "eu", &["us-1", "us-2", "eu-1"]);
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!(kept.replicas, set(&["us-1", "eu-1", "us-2"]));
    assert!(kept.joining.is_empty() && kept.replaced.is_empty());
}

/// Three regions of two nodes each: five of them keep the configuration.
#[test]
fn seats_are_taken_as_far_as_there_are_nodes() {
    let all = ["us-1", "us-2", "eu-1", "eu-2", "ap-1", "ap-2"];
    let keepers = ["us-1", "us-2", "eu-1", "eu-2", "ap-1"];
    let mut cluster = of(&small(&all, &keepers));
    did(&mut cluster, fence_with("us", set(&all[2..])));
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!(kept.replicas, set(&["us-2", "eu-1", "eu-2", "ap-1", "ap-2"]));
    assert_eq!((&kept.joining, &kept.replaced), (&set(&["ap-2"]), &set(&["us-1"])));
    assert!(topology(&cluster).lost_seats().eq([NodeId(1)]));
    let mut cluster = of(&small(&all, &keepers));
    did(&mut cluster, fence_with("ap", set(&all[..4])));
    stands(&mut cluster, "ap");
    assert!(topology(&cluster).lost_seats().eq([NodeId(4)]));
    assert_eq!(comes(&mut cluster, "eu", &all[..4]), "eu-3");
    assert!(topology(&cluster).lost_seats().next().is_none());
    let kept = &cluster.file().unwrap().configuration;
    assert_eq!(kept.replicas, set(&["us-1", "us-2", "eu-1", "eu-2", "eu-3"]));
}

#[test]
fn a_seat_does_not_stay_empty_where_that_would_stop_the_others() {
    let all = ["us-1", "eu-1", "ap-1"];
    let mut old = small(&all, &all);
    old.configuration.levels.now = Level::KEPT;
    let why = refused(&mut of(&old), fence_with("ap", set(&all[..2])));
    assert!(why.contains("ap-1 is to keep the configuration") && why.contains("add"), "{why}");
    // S8: nodes that are drained take none.
    let all = ["us-1", "us-2", "us-3", "ap-1", "ap-2"];
    let mut cluster = of(&small(&all, &["us-1", "ap-1", "ap-2"]));
    let drain = |name: &str, keeper: Option<&str>, up: &[&str]| Request::RemoveNode {
        name: name.into(),
        up: set(up),
        keeper: keeper.map(String::from),
        reason: Some("it is a test".into()),
    };
    did(&mut cluster, drain("us-2", None, &all));
    did(&mut cluster, drain("us-3", None, &all));
    let why = refused(&mut cluster, fence_with("ap", set(&all[..3])));
    assert!(why.contains("1 of the 3 nodes that keep the configuration"), "{why}");
    // Who was about to take part would be waited for.
    let all = ["us-1", "us-2", "eu-1", "eu-2", "ap-1", "ap-2"];
    let mut cluster = of(&small(&all, &["us-1", "us-2", "eu-1", "eu-2", "ap-1"]));
    did(&mut cluster, drain("us-2", Some("ap-2"), &all));
    let why = refused(&mut cluster, fence_with("ap", set(&all[..4])));
    assert!(why.contains("node ap-2 is to keep the configuration"), "{why}");
}

#[test]
fn nobody_comes_or_goes_while_a_fence_is_open() {
    let mut cluster = of(&file());
    did(&mut cluster, remove("us-3", None));
    did(&mut cluster, fence("ap"));
    let (region, name, address, up) = ("sa".to_string(), None, "sa".to_string(), left());
    let keepers = BTreeMap::new();
    let requests = [
        add("us", left()),
        remove("us-2", None),
        Request::AddRegion { region, name, address, up, now_ms: 9 },
        Request::RemoveRegion { region: "eu".into(), up: left(), keepers, now_ms: 9 },
        Request::CloseRegion { region: "eu".into(), up: left() },
        fence("eu"),
    ];
    for request in requests {
        let why = refused(&mut cluster, request);
        assert!(why.contains("region ap is being fenced"), "{why}");
    }
    // A node that is drained stays in its groups so long.
    let drained = || Request::Drained { name: "us-3".into(), since: 2 };
    (0..3).for_each(|_| did(&mut cluster, drained()));
    assert!(topology(&cluster).group(US).next.is_none());
    did(&mut cluster, Request::Keeps { name: "us-2".into() });
    did(&mut cluster, in_force("ap", 2));
    did(&mut cluster, drained());
    assert!(topology(&cluster).group(US).next.is_none(), "global is changing");
    did(&mut cluster, in_force("global", 1));
    did(&mut cluster, drained());
    assert!(topology(&cluster).group(US).next.is_some());
}

#[test]
fn what_is_not_lost_or_cannot_be_done_without_is_not_fenced() {
    let mut old = file();
    old.configuration.levels.now = Level::BATCHES;
    assert!(refused(&mut of(&old), fence("ap")).contains("fenced from 7 on"));
    let mut cluster = of(&file());
    assert!(refused(&mut cluster, fence("mars")).contains("no region mars"));
    let mut up = left();
    up.insert("ap-2".into());
    let why = refused(&mut cluster, fence_with("ap", up));
    assert!(why.contains("node ap-2 of region ap answers"), "{why}");
    let mut up = left();
    up.remove("us-2");
    let why = refused(&mut cluster, fence_with("ap", up));
    assert!(why.contains("us-2 does not answer") && why.contains("remove-node us-2"), "{why}");
    let mut alone = file();
    alone.nodes.truncate(3);
    alone.configuration.replicas.clear();
    assert!(refused(&mut of(&alone), fence_with("us", set(&[]))).contains("the only one"));
    // Two halves cannot fence each other.
    let mut halves = file();
    halves.nodes.truncate(6);
    halves.configuration.replicas.clear();
    let why = refused(&mut of(&halves), fence_with("eu", set(&["us-1", "us-2", "us-3"])));
    assert!(why.contains("3 of the 6 members of group global would stay"), "{why}");
    did(&mut cluster, fence("ap"));
    did(&mut cluster, in_force("ap", 2));
    did(&mut cluster, in_force("global", 1));
    assert!(refused(&mut cluster, fence("ap")).contains("declared lost already"));
}

#[test]
fn nothing_is_fenced_while_other_groups_change() {
    let mut all = left();
    all.extend(set(&["ap-1", "ap-2", "ap-3"]));
    let mut cluster = of(&file());
    did(&mut cluster, add("us", all.clone()));
    assert!(refused(&mut cluster, fence("ap")).contains("waits for us-4"));
    did(&mut cluster, Request::Up { name: "us-4".into() });
    assert!(refused(&mut cluster, fence("ap")).contains("are changing"));
    did(&mut cluster, in_force("us", 1));
    did(&mut cluster, in_force("global", 1));
    let mut up = left();
    up.insert("us-4".into());
    did(&mut cluster, fence_with("ap", up));
    // Who is to keep the configuration is one of those that are needed.
    let mut cluster = of(&file());
    did(&mut cluster, remove("us-1", Some("us-2")));
    assert!(refused(&mut cluster, fence("ap")).contains("us-2 is to keep the configuration"));
    let mut cluster = of(&file());
    let keepers = BTreeMap::from([("ap-1".to_string(), "us-2".to_string())]);
    let removal = Request::RemoveRegion { region: "ap".into(), up: all, keepers, now_ms: 5 };
    did(&mut cluster, removal);
    assert!(refused(&mut cluster, fence("ap")).contains("is being removed"));
}

/// The change of its own group has no end: the heirs come after it.
#[test]
fn a_region_is_lost_while_its_own_group_changes() {
    let mut all = left();
    all.extend(set(&["ap-1", "ap-2", "ap-3"]));
    let mut cluster = of(&file());
    did(&mut cluster, add("ap", all));
    did(&mut cluster, Request::Up { name: "ap-4".into() });
    did(&mut cluster, in_force("global", 1));
    assert!(topology(&cluster).group(AP).next.is_some());
    did(&mut cluster, fence("ap"));
    let open = topology(&cluster);
    assert_eq!((open.group(AP).number, open.group(AP).next.clone()), (2, None));
    assert!(open.is_lost(NodeId(9)), "it came");
    did(&mut cluster, in_force("ap", 2));
    did(&mut cluster, in_force("global", 2));
    assert!(topology(&cluster).is_gone(NodeId(9)));
}

/// Its nodes had taken over the group of a region that was removed.
#[test]
fn a_region_with_the_majority_of_another_group_is_not_fenced() {
    let mut with_sa = file();
    let mut first = with_sa.nodes[0].clone();
    (first.name, first.region, first.address) = ("sa-1".into(), "sa".into(), "sa-1".into());
    first.groups = vec!["global".into(), "sa".into()];
    with_sa.nodes.push(first);
    let mut all = left();
    all.extend(set(&["ap-1", "ap-2", "ap-3", "sa-1"]));
    let mut cluster = of(&with_sa);
    let keepers = BTreeMap::new();
    let (region, up) = ("sa".to_string(), all.clone());
    did(&mut cluster, Request::RemoveRegion { region, up, keepers, now_ms: 5 });
    did(&mut cluster, in_force("sa", 1));
    let (region, up) = ("sa".to_string(), all);
    let peers = (0..10).map(|node| topology(&cluster).nodes[node].name.clone());
    for name in peers.collect::<Vec<_>>() {
        let epoch = topology(&cluster).key_regions().epoch();
        did(&mut cluster, Request::Word { name, word: Word::Heard(epoch) });
    }
    did(&mut cluster, Request::Word { name: "sa-1".into(), word: Word::Drained });
    did(&mut cluster, Request::CloseRegion { region, up });
    did(&mut cluster, in_force("sa", 2));
    did(&mut cluster, in_force("global", 1));
    let why = refused(&mut cluster, fence("ap"));
    assert!(why.contains("0 of the 3 members of group sa would stay"), "{why}");
}

#[test]
fn keys_of_all_regions_end_with_the_region_only_where_nobody_has_any() {
    let mut cluster = of(&file());
    did(&mut cluster, fence("ap"));
    let standing =
        |cluster: &Configuration| topology(cluster).key_regions().standing(RegionId(2)).clone();
    let Standing::Lost { round } = standing(&cluster) else { panic!("{:?}", standing(&cluster)) };
    did(&mut cluster, in_force("ap", 2));
    for name in ["us-1", "eu-1"] {
        let (name, lost) = (name.into(), RegionId(2));
        let word = Word::Sealed { lost, round, report: Default::default() };
        did(&mut cluster, Request::Word { name, word });
    }
    assert!(matches!(standing(&cluster), Standing::Settles { .. }));
    for name in ["us-1", "eu-1"] {
        let word = Word::Settled { lost: RegionId(2), round };
        did(&mut cluster, Request::Word { name: name.into(), word });
    }
    assert!(matches!(standing(&cluster), Standing::Gone { .. }));
    // Else nobody says what is kept of them.
    let mut cluster = of(&file());
    let region = "ap".to_string();
    did(&mut cluster, Request::FenceRegion { region, up: left(), keyless: false, now_ms: 9 });
    did(&mut cluster, in_force("ap", 2));
    assert_eq!(standing(&cluster), Standing::Serves);
    assert!(cluster.file().unwrap().configuration.standings.is_none());
    assert!(topology(&cluster).key_moves()[0].contains("ap is lost, and what others keep"));
}

/// A region whose keys somebody has ends, too, once each node of the others has said that it
/// applies nothing more, and has what is kept.
#[test]
fn each_node_speaks_of_the_keys_of_a_lost_region() {
    let mut file = file();
    file.configuration.levels.now = Level::KEPT;
    let mut cluster = of(&file);
    let (lost, region) = (RegionId(2), "ap".to_string());
    did(&mut cluster, Request::FenceRegion { region, up: left(), keyless: false, now_ms: 9 });
    let standing = |cluster: &Configuration| topology(cluster).key_regions().standing(lost).clone();
    let Standing::Lost { round } = standing(&cluster) else { panic!("{:?}", standing(&cluster)) };
    let say = |cluster: &mut Configuration, names: &[&str], word: Word| {
        for name in names {
            did(cluster, Request::Word { name: name.to_string(), word: word.clone() });
        }
    };
    let sealed = Word::Sealed { lost, round, report: Default::default() };
    say(&mut cluster, &["us-1", "us-2", "us-3", "eu-1", "eu-3"], sealed.clone());
    assert_eq!(standing(&cluster), Standing::Lost { round });
    let moves = topology(&cluster).key_moves();
    assert!(moves[0].contains("nothing more is applied: eu-2 must say so"), "{moves:?}");
    did(&mut cluster, in_force("ap", 2));
    say(&mut cluster, &["eu-2"], sealed);
    assert!(matches!(standing(&cluster), Standing::Settles { .. }));
    let mut again = Configuration::default();
    again.restore(&cluster.snapshot()).unwrap();
    assert_eq!(again, cluster);
    say(&mut cluster, &["us-1", "us-3", "eu-1", "eu-2", "eu-3"], Word::Settled { lost, round });
    let moves = topology(&cluster).key_moves();
    assert!(moves[0].contains("all take what is kept: us-2 must say so"), "{moves:?}");
    say(&mut cluster, &["us-2"], Word::Settled { lost, round });
    assert!(matches!(standing(&cluster), Standing::Gone { .. }));
    assert!(topology(&cluster).key_moves().is_empty());
}

#[test]
fn a_fence_is_kept_in_the_file_and_by_replicas() {
    let mut cluster = of(&file());
    assert!(!text(cluster.file().unwrap()).contains("lost"));
    did(&mut cluster, fence("ap"));
    for _ in 0..2 {
        let mut again = Configuration::default();
        again.restore(&cluster.snapshot()).unwrap();
        assert_eq!(again, cluster);
        assert_eq!(topology(&again).lost(), topology(&cluster).lost());
        did(&mut cluster, in_force("ap", 2));
    }
    let mut wrong = cluster.file().unwrap().clone();
    let lost = wrong.configuration.regions.get_mut("ap").and_then(|of| of.lost.as_mut()).unwrap();
    lost.heirs.push("mars-1".into());
    assert!(Topology::new(&wrong).unwrap_err().to_string().contains("no node mars-1"));
}
