use super::*;
use crate::grants::Grant;
use crate::topology::{CLUSTER_FORMAT, Draining, NodeEntry};
use meridian_core::level::Level;
use meridian_core::{GroupId, NodeId, RegionId};
use std::collections::BTreeMap;

fn file() -> ClusterFile {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        region: name[..2].into(),
        pid: Some(7),
        address: format!("{name}:1"),
        groups: vec!["global".into(), name[..2].into()],
        draining: None,
    };
    ClusterFile {
        insecure_plain_text: true,
        format: CLUSTER_FORMAT,
        created_ms: 0,
        cluster: 7,
        nodes: ["us-1", "us-2", "us-3", "eu-1"].map(node).into(),
        rtt_ms: BTreeMap::new(),
        order: Default::default(),
        configuration: Default::default(),
    }
}

fn up(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn all() -> BTreeSet<String> {
    up(&["us-1", "us-2", "us-3", "us-4", "eu-1"])
}

fn initialised() -> Configuration {
    let mut cluster = Configuration::default();
    assert_eq!(cluster.change(Request::Initialise(text(&file()))), done(1, None));
    cluster
}

fn done(version: u64, added: Option<&str>) -> Reply {
    Reply::Done { version, added: added.map(String::from) }
}

fn add(region: &str, name: Option<&str>, address: &str) -> Request {
    let (region, name, address) = (region.into(), name.map(String::from), address.into());
    Request::AddNode { region, name, address, up: all() }
}

fn remove(name: &str) -> Request {
    Request::RemoveNode { name: name.into(), up: all(), keeper: None, reason: None }
}

fn drained(name: &str, since: u64) -> Request {
    Request::Drained { name: name.into(), since }
}

/// A node that is up reports that it is drained, and then that nothing relies on it.
fn goes(cluster: &mut Configuration, name: &str, since: u64) {
    for _ in 0..2 {
        cluster.change(drained(name, since));
    }
}

fn in_force_all(cluster: &mut Configuration, number: u64) {
    for group in ["us", "global"] {
        cluster.change(in_force(group, number));
    }
}

fn is_up(name: &str) -> Request {
    Request::Up { name: name.into() }
}

fn in_force(group: &str, number: u64) -> Request {
    Request::InForce { group: group.into(), number }
}

fn topology(cluster: &Configuration) -> Topology {
    Topology::new(cluster.file().unwrap()).unwrap()
}

/// A node comes, and goes, and another comes.
fn history() -> Vec<Request> {
    vec![
        Request::Initialise(text(&file())),
        add("us", None, "here:4"),
        is_up("us-4"),
        in_force("us", 1),
        in_force("global", 1),
        remove("us-2"),
        drained("us-2", 6),
        drained("us-2", 6),
        in_force("global", 2),
        in_force("us", 2),
        Request::SetAddress { name: "us-3".into(), address: "here:9".into() },
        add("eu", None, "here:5"),
        Request::SetRtt(BTreeMap::from([("us-eu".into(), 80)])),
        remove("nobody"),
    ]
}

#[test]
fn a_node_counts_when_its_groups_say_so_and_its_identity_is_its_own_for_ever() {
    let mut cluster = initialised();
    assert_eq!(cluster.change(add("us", None, "here:4")), done(2, Some("us-4")));
    let (us, us_4) = (GroupId(1), NodeId(4));
    let coming = topology(&cluster);
    assert_eq!(coming.groups_of(us_4).collect::<Vec<_>>(), [GroupId::GLOBAL, us]);
    assert_eq!(coming.group(us).members.len(), 3, "not yet");
    assert_eq!(coming.group(us).waits_for, Some(us_4));
    assert_eq!(cluster.change(is_up("us-4")), done(3, None));
    assert_eq!(topology(&cluster).group(us).waits_for, None);
    assert_eq!(cluster.change(in_force("us", 1)), done(4, None));
    assert_eq!(cluster.change(in_force("us", 1)), done(4, None), "said twice");
    assert_eq!(cluster.change(in_force("global", 1)), done(5, None));
    assert_eq!(topology(&cluster).group(us).members.len(), 4);
    assert_eq!(cluster.change(remove("us-2")), done(6, None));
    assert_eq!(cluster.change(drained("us-2", 6)), done(7, None));
    assert_eq!(cluster.change(drained("us-2", 6)), done(8, None));
    for group in ["us", "global"] {
        assert!(!topology(&cluster).is_gone(NodeId(1)));
        cluster.change(in_force(group, 2));
    }
    let left = topology(&cluster);
    assert!(left.is_gone(NodeId(1)));
    assert_eq!(left.group(us).members, [NodeId(0), NodeId(2), us_4]);
    assert_eq!(cluster.change(add("us", None, "us-2:1")), done(11, Some("us-5")));
    assert_eq!(topology(&cluster).node_named("us-5"), Some(NodeId(5)));
}

#[test]
fn a_node_that_never_comes_up_can_be_removed_again() {
    let mut cluster = initialised();
    cluster.change(add("us", None, "here:4"));
    let Reply::Refused(why) = cluster.change(in_force("us", 1)) else { panic!() };
    assert!(why.contains("no configuration 1"), "{why}");
    let Reply::Refused(why) = cluster.change(remove("us-2")) else { panic!() };
    assert!(why.contains("waits for us-4"), "{why}");
    assert_eq!(cluster.change(remove("us-4")), done(3, None));
    let left = topology(&cluster);
    assert!(left.node(NodeId(4)).added && !left.node(NodeId(0)).added);
    assert!(left.is_gone(NodeId(4)) && left.group(GroupId(1)).next.is_none());
    assert_eq!(cluster.change(add("us", None, "here:4")), done(4, Some("us-5")));
}

#[test]
fn what_cannot_be_is_refused_with_the_reason_and_changes_nothing() {
    let mut cluster = initialised();
    let mut refused = |request: Request| {
        let before = cluster.clone();
        let Reply::Refused(why) = cluster.change(request) else { panic!("{cluster:?}") };
        assert_eq!(cluster, before);
        why
    };
    assert!(refused(add("mars", None, "x:1")).contains("no region mars: there are us, eu"));
    assert!(refused(add("us", Some("us-1"), "x:1")).contains("never given again"));
    assert!(refused(add("us", Some("../x"), "x:1")).contains("letters"));
    assert!(refused(add("us", None, "us-1:1")).contains("us-1 listens at us-1:1 already"));
    assert!(refused(remove("us-9")).contains("no node us-9"));
    assert!(refused(remove("eu-1")).contains("last of region eu"));
    let few = up(&["us-1", "eu-1"]);
    let few = Request::RemoveNode { name: "us-1".into(), up: few, keeper: None, reason: None };
    assert!(refused(few).contains("2 of the 4 members that group global has now"));
    assert!(refused(in_force("us", 1)).contains("never changed"));
    let other = ClusterFile { cluster: 8, ..file() };
    assert!(refused(Request::Initialise(text(&other))).contains("this is cluster 7, not 8"));
    cluster.change(remove("us-2"));
    goes(&mut cluster, "us-2", 2);
    let Reply::Refused(why) = cluster.change(remove("us-3")) else { panic!("{cluster:?}") };
    assert!(why.contains("are changing"), "{why}");
    let Reply::Refused(why) = cluster.change(in_force("us", 2)) else { panic!("{cluster:?}") };
    assert!(why.contains("no configuration 2"), "{why}");
    let Reply::Refused(why) = Configuration::default().change(remove("us-1")) else { panic!() };
    assert!(why.contains("no configuration yet"));
}

#[test]
fn a_region_keeps_as_many_nodes_as_blocks_need_unless_the_reason_is_on_record() {
    let remove = |name: &str, reason: Option<&str>| {
        let reason = reason.map(String::from);
        Request::RemoveNode { name: name.into(), up: all(), keeper: None, reason }
    };
    let forced = |cluster: &Configuration| cluster.file().unwrap().configuration.forced.clone();
    let mut cluster = initialised();
    assert_eq!(cluster.change(remove("us-1", Some("not needed"))), done(2, None));
    assert!(forced(&cluster).is_empty(), "two are left");
    goes(&mut cluster, "us-1", 2);
    for group in ["us", "global"] {
        cluster.change(in_force(group, 1));
    }
    let before = cluster.clone();
    let long = "x".repeat(REASON_MAX + 1);
    for (reason, words) in [
        (None, "without us-2 region us has 1 of the 2 nodes"),
        (Some(" "), "say --force and --reason"),
        (Some(&long[..]), "1024 at most are kept"),
    ] {
        let Reply::Refused(why) = cluster.change(remove("us-2", reason)) else {
            panic!("{reason:?}")
        };
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(cluster, before);
    let why = "the region is given up";
    assert_eq!(cluster.change(remove("us-2", Some(why))), done(7, None));
    assert_eq!(forced(&cluster), BTreeMap::from([("us-2".into(), why.into())]));
    assert_eq!(cluster.change(remove("us-2", None)), done(7, None), "said again");
    cluster.change(Request::KeepNode { name: "us-2".into() });
    assert!(forced(&cluster).is_empty(), "it was taken back");
    // One that never came is none that the region needs.
    cluster.change(add("us", None, "here:4"));
    assert!(matches!(cluster.change(remove("us-4", None)), Reply::Done { .. }));
}

fn drains(cluster: &Configuration, name: &str) -> Option<Draining> {
    let topology = topology(cluster);
    topology.node(topology.node_named(name).unwrap()).draining.clone()
}

#[test]
fn a_node_stays_in_its_groups_until_what_it_holds_is_on_others() {
    let mut cluster = initialised();
    assert_eq!(cluster.change(remove("us-2")), done(2, None));
    let (us, us_2) = (GroupId(1), NodeId(1));
    let draining = topology(&cluster);
    assert!(draining.group(us).members.contains(&us_2) && draining.group(us).next.is_none());
    let region = draining.node(us_2).region;
    assert!(draining.nodes_in(region).eq([NodeId(0), NodeId(2)]), "it gets no more");
    assert_eq!(cluster.change(remove("us-2")), done(2, None), "asked again");
    assert_eq!(cluster.change(drained("us-1", 2)), done(2, None), "only its own report counts");
    assert_eq!(cluster.change(drained("us-2", 1)), done(2, None), "not one of another time");
    assert_eq!(cluster.change(drained("us-2", 2)), done(3, None));
    let going = topology(&cluster);
    assert!(going.group(us).next.is_none(), "it has to give up what nobody can give it again");
    assert_eq!(cluster.change(drained("us-2", 2)), done(4, None));
    let leaving = topology(&cluster);
    assert!(leaving.node(us_2).leaves && leaving.group(us).next.is_some());
    assert_eq!(drains(&cluster, "us-2"), None);
    assert_eq!(cluster.change(drained("us-2", 2)), done(4, None), "said again");
}

#[test]
fn a_removal_is_taken_back_until_the_node_has_left() {
    let keep = |name: &str| Request::KeepNode { name: name.into() };
    let mut cluster = initialised();
    cluster.change(remove("us-2"));
    assert_eq!(cluster.change(keep("us-2")), done(3, None));
    assert_eq!(drains(&cluster, "us-2"), None);
    assert_eq!(cluster.change(keep("us-2")), done(3, None), "said twice");
    assert_eq!(cluster.change(drained("us-2", 2)), done(3, None), "it is drained no longer");
    assert!(!topology(&cluster).node(NodeId(1)).leaves);
    cluster.change(remove("us-2"));
    assert_eq!(cluster.change(drained("us-2", 2)), done(4, None), "not for that removal");
    let refused = |cluster: &mut Configuration, words: &str| match cluster.change(keep("us-2")) {
        Reply::Refused(why) => assert!(why.contains(words), "{why}"),
        done => panic!("{done:?}"),
    };
    assert_eq!(cluster.change(drained("us-2", 4)), done(5, None));
    refused(&mut cluster, "goes for good");
    cluster.change(add("us", None, "here:4"));
    assert_eq!(cluster.change(is_up("us-4")), done(7, None));
    refused(&mut cluster, "goes for good");
    let since = drains(&cluster, "us-2").unwrap().since;
    in_force_all(&mut cluster, 1);
    cluster.change(drained("us-2", since));
    refused(&mut cluster, "has left");
    assert!(matches!(cluster.change(keep("us-9")), Reply::Refused(_)));
}

#[test]
fn all_that_stay_report_for_a_node_that_is_down() {
    let mut cluster = initialised();
    cluster.change(remove("us-2"));
    let without = up(&["us-1", "us-3", "eu-1"]);
    let again =
        Request::RemoveNode { name: "us-2".into(), up: without, keeper: None, reason: None };
    assert_eq!(cluster.change(again), done(3, None), "it has gone down meanwhile");
    assert_eq!(cluster.change(drained("us-1", 2)), done(3, None), "it did not look for us-2's");
    assert_eq!(cluster.change(drained("us-1", 3)), done(4, None));
    assert!(drains(&cluster, "us-2").is_some(), "what us-3 holds may be there alone");
    assert_eq!(cluster.change(drained("eu-1", 3)), done(4, None), "of another region");
    assert_eq!(cluster.change(drained("us-3", 3)), done(5, None));
    assert_eq!(drains(&cluster, "us-2"), None);
}

#[test]
fn a_report_that_counts_on_a_node_that_goes_is_made_anew() {
    let mut cluster = initialised();
    cluster.change(add("us", None, "here:4"));
    cluster.change(is_up("us-4"));
    for group in ["us", "global"] {
        cluster.change(in_force(group, 1));
    }
    cluster.change(remove("us-1"));
    let first = drains(&cluster, "us-1").unwrap().since;
    cluster.change(remove("us-2"));
    let both = drains(&cluster, "us-2").unwrap().since;
    assert_eq!(drains(&cluster, "us-1").unwrap().since, both);
    cluster.change(drained("us-1", first));
    assert!(drains(&cluster, "us-1").is_some(), "it counted on us-2");
    goes(&mut cluster, "us-1", both);
    goes(&mut cluster, "us-2", both);
    assert!(drains(&cluster, "us-1").is_none());
    assert!(drains(&cluster, "us-2").is_some(), "the groups are changing");
    for group in ["us", "global"] {
        cluster.change(in_force(group, 2));
    }
    cluster.change(drained("us-2", both));
    assert!(drains(&cluster, "us-2").is_none());
}

/// The cluster with us-1 alone to keep its configuration.
fn kept_by_one() -> Configuration {
    let mut file = file();
    file.configuration.replicas = up(&["us-1"]);
    let mut cluster = Configuration::default();
    assert_eq!(cluster.change(Request::Initialise(text(&file))), done(1, None));
    cluster
}

#[test]
fn another_keeps_the_configuration_before_a_node_leaves() {
    let mut cluster = kept_by_one();
    let Reply::Refused(why) = cluster.change(remove("us-1")) else { panic!("{cluster:?}") };
    assert!(why.contains("keeps the configuration"), "{why}");
    let remove = |name: &str, keeper: &str| Request::RemoveNode {
        name: name.into(),
        up: all(),
        keeper: Some(keeper.into()),
        reason: Some("it is a test".into()),
    };
    for unfit in ["us-1", "us-9"] {
        assert!(matches!(cluster.change(remove("us-1", unfit)), Reply::Refused(_)), "{unfit}");
    }
    assert_eq!(cluster.change(remove("us-1", "us-2")), done(2, None));
    let kept = cluster.file().unwrap().configuration.clone();
    assert_eq!((kept.replicas, kept.first), (up(&["us-2"]), up(&["us-1"])));
    assert_eq!((kept.joining, kept.replaced), (up(&["us-2"]), up(&["us-1"])));
    let keeping = topology(&cluster).keeping;
    assert!([0, 1].map(NodeId).iter().all(|node| keeping.goes_on(*node)), "until it is done");
    assert_eq!(cluster.file().unwrap().keepers().count(), 2, "both may be asked");
    goes(&mut cluster, "us-1", 2);
    assert!(drains(&cluster, "us-1").is_some(), "nobody else keeps the configuration yet");
    assert_eq!(cluster.change(remove("us-1", "us-3")), done(4, None), "asked again");
    cluster.change(Request::Keeps { name: "us-2".into() });
    assert!(cluster.file().unwrap().keepers().eq(["us-2:1"]));
    cluster.change(drained("us-1", 2));
    assert!(drains(&cluster, "us-1").is_none());
}

#[test]
fn who_is_to_keep_the_configuration_and_goes_is_replaced_too() {
    let mut cluster = kept_by_one();
    let remove = |name: &str, keeper: &str| Request::RemoveNode {
        name: name.into(),
        up: all(),
        keeper: Some(keeper.into()),
        reason: Some("it is a test".into()),
    };
    cluster.change(remove("us-1", "us-2"));
    assert!(matches!(cluster.change(remove("us-2", "us-1")), Reply::Refused(_)), "it goes");
    assert_eq!(cluster.change(remove("us-2", "eu-1")), done(3, None));
    let kept = cluster.file().unwrap().configuration.clone();
    assert_eq!((kept.replicas, kept.joining), (up(&["eu-1"]), up(&["eu-1"])));
    assert_eq!((kept.first, kept.replaced), (up(&["us-1"]), up(&["us-1", "us-2"])));
}

#[test]
fn the_same_requests_give_the_same_state_and_a_snapshot_is_exact() {
    let requests: Vec<_> = history().iter().map(encode).collect();
    let mut whole = Configuration::default();
    let replies: Vec<_> = requests.iter().map(|request| whole.execute(request)).collect();
    for cut in 0..=requests.len() {
        let mut before = Configuration::default();
        requests[..cut].iter().for_each(|request| drop(before.execute(request)));
        let mut after = Configuration::default();
        after.restore(&before.snapshot()).unwrap();
        assert_eq!(after, before, "after {cut} requests");
        let rest: Vec<_> = requests[cut..].iter().map(|r| after.execute(r)).collect();
        assert_eq!((rest, &after), (replies[cut..].to_vec(), &whole));
    }
    assert!(Configuration::default().restore(b"{").is_err());
}

#[test]
fn only_what_is_newer_is_shown() {
    let cluster = initialised();
    let shown: Shown = postcard::from_bytes(&cluster.query(&encode(&Show { since: 0 }))).unwrap();
    let (_, file) = Topology::parse(&shown.0.unwrap()).unwrap();
    assert_eq!((file.configuration.version, file.nodes[0].pid), (1, None));
    assert_eq!(cluster.show(1), Shown(None));
    let mut cluster = cluster;
    let garbage: Reply = postcard::from_bytes(&cluster.execute(&Bytes::from("\u{7f}"))).unwrap();
    assert!(matches!(garbage, Reply::Refused(why) if why.contains("this version")));
}

#[test]
fn a_node_has_no_name_that_another_certificate_has() {
    assert_eq!(check_node_name("us-1"), Ok(()));
    for name in ["ca", "admin", "client", "", "-a", "US", "a_b"] {
        assert!(check_node_name(name).is_err(), "{name}");
    }
}

/// Decisions 93 and 94.
#[test]
fn grants_and_revoked_principals_are_kept_and_nonsense_is_refused() {
    let mut secured = file();
    secured.insecure_plain_text = false;
    let mut cluster = Configuration::default();
    cluster.change(Request::Initialise(text(&secured)));
    let allow = |name: &str, grant| Request::Allow { name: name.into(), grant };
    let revoke = |principal: &str| Request::Revoke { principal: principal.into() };
    let users = Grant { users: [1000].into(), ..Grant::default() };
    assert_eq!(cluster.change(allow("lab", Some(users.clone()))), done(2, None));
    assert_eq!(cluster.change(allow("lab", Some(users.clone()))), done(2, None), "it is so");
    assert_eq!(cluster.change(revoke("client/old")), done(3, None));
    let Shown(Some(shown)) = cluster.show(0) else { panic!("there is a configuration") };
    let topology = Topology::parse(&shown).unwrap().0;
    assert_eq!(topology.grants, [("lab".to_string(), users.clone())].into());
    assert_eq!(topology.revoked, ["client/old".to_string()].into());
    let is_root = Grant { root: true, ..users.clone() };
    let as_root = Grant { users: [0].into(), ..Grant::default() };
    let to_root = Grant { squash: Some((0, 5)), ..Grant::default() };
    let many = Grant { groups: (1..=65).collect(), ..Grant::default() };
    let bad = [
        allow("lab", Some(is_root)),
        allow("lab", Some(as_root)),
        allow("lab", Some(to_root)),
        allow("lab", Some(many)),
        allow("two words", Some(users.clone())),
        allow("nobody", None),
        revoke("old"),
        revoke("boss/old"),
        revoke("client/a/b"),
    ];
    for request in bad {
        let reply = cluster.change(request.clone());
        assert!(matches!(reply, Reply::Refused(_)), "{request:?}");
    }
    assert_eq!(cluster.change(allow("lab", None)), done(4, None));
    let mut plain = initialised();
    for request in [allow("lab", Some(users)), revoke("client/old")] {
        assert!(matches!(plain.change(request), Reply::Refused(_)));
    }
    // Programs that keep the configuration and know no watchers would refuse it.
    let Reply::Refused(why) = cluster.change(revoke("watcher/old")) else { panic!("too early") };
    assert!(why.contains("feature level"), "{why}");
    secured.configuration.levels.now = Level::WATCHERS;
    let mut cluster = Configuration::default();
    cluster.change(Request::Initialise(text(&secured)));
    assert_eq!(cluster.change(revoke("watcher/old")), done(2, None));
}

/// Decision 93.
#[test]
fn clients_with_grants_have_keys_from_a_level_on() {
    let mut secured = file();
    secured.insecure_plain_text = false;
    let begun = |file: &ClusterFile| {
        let mut cluster = Configuration::default();
        cluster.change(Request::Initialise(text(file)));
        cluster
    };
    let reads = Grant { read_only: true, ..Grant::default() };
    let keys = |prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|prefix| prefix.to_string()).collect();
        Request::AllowKeys { name: "lab".into(), grant: reads.clone(), prefixes }
    };
    let allow = |grant| Request::Allow { name: "lab".into(), grant };
    let why = why_not(&mut begun(&secured), keys(&["lab:"]));
    assert!(why.contains("goes by feature level 1"), "{why}");
    secured.configuration.levels.now = Level::KEY_GRANTS;
    let mut cluster = begun(&secured);
    assert_eq!(cluster.change(keys(&["lab:", "b:"])), done(2, None));
    let shown = |cluster: &Configuration| {
        let Shown(Some(shown)) = cluster.show(0) else { panic!("there is a configuration") };
        (Topology::parse(&shown).unwrap().0, shown.contains("key_prefixes"))
    };
    let (topology, _) = shown(&cluster);
    let prefixes = ["b:", "lab:"].map(String::from).into();
    assert_eq!(topology.key_prefixes, [("lab".to_string(), prefixes)].into());
    assert_eq!(topology.grants, [("lab".to_string(), reads.clone())].into());
    let many: Vec<_> = (0..17).map(|number| format!("{number}:")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let long = "x".repeat(257);
    let bad: [(&[&str], &str); 4] = [
        (&[], "0 prefixes"),
        (&many, "17 prefixes"),
        (&["lab:", ""], "empty prefix"),
        (&[&long], "256 bytes"),
    ];
    for (prefixes, why) in bad {
        let refused = why_not(&mut cluster, keys(prefixes));
        assert!(refused.contains(why), "{refused}");
    }
    // Another grant takes the place of the whole, and older programs read what they know.
    assert_eq!(cluster.change(allow(Some(reads.clone()))), done(3, None));
    let (topology, has_prefixes) = shown(&cluster);
    assert!(topology.grants.len() == 1 && topology.key_prefixes.is_empty() && !has_prefixes);
    assert_eq!(cluster.change(keys(&many[..16])), done(4, None));
    assert_eq!(cluster.change(allow(None)), done(5, None));
    let (topology, _) = shown(&cluster);
    assert!(topology.grants.is_empty() && topology.key_prefixes.is_empty());
    secured.insecure_plain_text = true;
    assert!(why_not(&mut begun(&secured), keys(&["lab:"])).contains("plain text"));
}

/// Programs of levels before read and write a grant so: a field more, and they would not decode it.
#[test]
fn a_request_for_a_grant_is_encoded_as_ever() {
    let request = Request::Allow { name: "a".into(), grant: Some(Grant::default()) };
    assert_eq!(encode(&request)[..], [12, 1, b'a', 1, 0, 0, 0, 0, 0, 0]);
}

fn speaks(name: &str, newest: u16) -> Request {
    Request::Speaks { name: name.into(), newest: Level(newest) }
}

fn why_not(cluster: &mut Configuration, request: Request) -> String {
    match cluster.change(request) {
        Reply::Refused(why) => why,
        done => panic!("{done:?}"),
    }
}

fn level(cluster: &Configuration) -> Level {
    cluster.file().unwrap().configuration.levels.now
}

#[test]
fn the_level_rises_when_all_nodes_speak_it() {
    let mut cluster = initialised();
    for name in ["us-1", "us-2", "us-3"] {
        cluster.change(speaks(name, 3));
    }
    assert_eq!(level(&cluster), Level(1), "eu-1 has not reported");
    cluster.change(speaks("eu-1", 2));
    assert_eq!(level(&cluster), Level(2), "as far as all do");
    assert!(why_not(&mut cluster, speaks("eu-1", 1)).contains("by level 2"), "no way back");
    assert!(why_not(&mut cluster, speaks("mars-1", 2)).contains("no node mars-1"));
    // One that comes holds it back until it has reported.
    cluster.change(add("eu", None, "eu-2:1"));
    cluster.change(speaks("eu-1", 3));
    assert_eq!(level(&cluster), Level(2));
    cluster.change(speaks("eu-2", 3));
    assert_eq!(level(&cluster), Level(3));
}

#[test]
fn a_node_that_is_removed_holds_the_level_back_until_it_has_gone() {
    let mut cluster = initialised();
    cluster.change(add("us", None, "us-4:1"));
    cluster.change(Request::Up { name: "us-4".into() });
    in_force_all(&mut cluster, 1);
    for name in ["us-1", "us-2", "us-4", "eu-1"] {
        cluster.change(speaks(name, 2));
    }
    cluster.change(remove("us-3"));
    let since = cluster.file().unwrap().nodes[2].draining.clone().unwrap().since;
    goes(&mut cluster, "us-3", since);
    assert_eq!(level(&cluster), Level(1), "it is a member still");
    in_force_all(&mut cluster, 2);
    assert_eq!(level(&cluster), Level(2));
}

#[test]
fn the_level_is_held_back_and_let_go() {
    let mut cluster = initialised();
    cluster.change(Request::LevelAtMost(Some(Level(1))));
    for name in ["us-1", "us-2", "us-3", "eu-1"] {
        cluster.change(speaks(name, 2));
    }
    assert_eq!(level(&cluster), Level(1));
    cluster.change(Request::LevelAtMost(None));
    assert_eq!(level(&cluster), Level(2));
    let why = why_not(&mut cluster, Request::LevelAtMost(Some(Level(1))));
    assert!(why.contains("does not fall to 1"), "{why}");
}

#[test]
fn a_level_that_is_not_spoken_here_is_named() {
    let mut file = file();
    file.configuration.levels.now = Level(99);
    // A later version may have written what this one does not know.
    let text = text(&file).replace("\"format\"", "\"later\":1,\"format\"");
    let why = Topology::parse(&text).unwrap_err().to_string();
    assert!(why.contains("feature level 99") && why.contains("older"), "{why}");
}

fn add_region(region: &str, name: Option<&str>, address: &str) -> Request {
    let (region, name, address) = (region.into(), name.map(String::from), address.into());
    Request::AddRegion { region, name, address, up: all(), now_ms: 5 }
}

fn remove_region(region: &str) -> Request {
    let (up, keepers) = (up(&["us-1", "us-2", "us-3", "eu-1", "sa-1"]), BTreeMap::new());
    Request::RemoveRegion { region: region.into(), up, keepers, now_ms: 9 }
}

fn of_level(level: Level) -> Configuration {
    let mut file = file();
    file.configuration.levels.now = level;
    let mut cluster = Configuration::default();
    cluster.change(Request::Initialise(text(&file)));
    cluster
}

fn refused(cluster: &mut Configuration, request: Request) -> String {
    match cluster.change(request) {
        Reply::Refused(why) => why,
        done => panic!("{done:?}"),
    }
}

#[test]
fn a_region_begins_with_one_node_and_may_be_taken_back_until_that_is_up() {
    let mut old = of_level(Level::SETTLE);
    assert!(refused(&mut old, add_region("sa", None, "here:5")).contains("level"));
    let mut cluster = of_level(Level::REGIONS);
    for name in ["global", "Sa", ""] {
        refused(&mut cluster, add_region(name, None, "here:5"));
    }
    assert!(refused(&mut cluster, add_region("eu", None, "here:5")).contains("is a region eu"));
    assert_eq!(cluster.change(add_region("sa", None, "here:5")), done(2, Some("sa-1")));
    let (sa, sa_1) = (GroupId(3), NodeId(4));
    let coming = topology(&cluster);
    assert_eq!(coming.group(sa).members, [sa_1]);
    assert!(!coming.has_begun(sa) && coming.has_begun(GroupId(1)));
    assert_eq!(coming.staying_regions().collect::<Vec<_>>(), [RegionId(0), RegionId(1)]);
    assert!(refused(&mut cluster, add("sa", None, "here:6")).contains("no region sa"));
    assert_eq!(cluster.change(remove("sa-1")), done(3, None), "it never came");
    assert!(topology(&cluster).is_gone(sa_1) && !topology(&cluster).has_begun(sa));
    assert_eq!(cluster.change(add_region("sa", None, "here:5")), done(4, Some("sa-2")));
    cluster.change(is_up("sa-2"));
    let begun = topology(&cluster);
    assert!(begun.has_begun(sa), "as the same group");
    assert_eq!(begun.first_regions().map(|(group, _)| group.0).collect::<Vec<_>>(), [1, 2]);
    cluster.change(in_force("global", 1));
    assert!(refused(&mut cluster, remove("sa-2")).contains("remove-region"));
}

#[test]
fn a_region_goes_when_others_have_taken_over_its_group() {
    let mut cluster = of_level(Level::REGIONS);
    cluster.change(add_region("sa", None, "here:5"));
    assert!(refused(&mut cluster, remove_region("mars")).contains("no region mars"));
    assert!(refused(&mut cluster, remove_region("sa")).contains("waits for sa-1"));
    cluster.change(is_up("sa-1"));
    cluster.change(in_force("global", 1));
    let close = || Request::CloseRegion { region: "sa".into(), up: all() };
    assert!(refused(&mut cluster, close()).contains("is not to go"));
    let (sa, us_1, sa_1) = (GroupId(3), NodeId(0), NodeId(4));
    cluster.change(remove_region("sa"));
    let going = topology(&cluster);
    assert_eq!(going.group(sa).next.as_ref().map(Vec::len), Some(4), "its own and three of us");
    assert!(going.groups_of(us_1).any(|group| group == sa));
    assert!(!going.staying_regions().any(|region| region == RegionId(2)));
    assert!(refused(&mut cluster, close()).contains("are changing"));
    assert!(refused(&mut cluster, add("sa", None, "here:6")).contains("no region sa"));
    cluster.change(in_force("sa", 1));
    cluster.change(close());
    let left = topology(&cluster);
    assert!(left.node(sa_1).leaves && !left.is_gone(sa_1));
    cluster.change(in_force("sa", 2));
    cluster.change(in_force("global", 2));
    let gone = topology(&cluster);
    assert!(gone.is_gone(sa_1));
    assert_eq!(gone.group(sa).members, [NodeId(0), NodeId(1), NodeId(2)]);
    assert!(refused(&mut cluster, add_region("sa", None, "here:6")).contains("never given again"));

    let (version, _) = (topology(&cluster).version, cluster.change(remove("us-1")));
    goes(&mut cluster, "us-1", version + 1);
    let next = topology(&cluster).group(sa).next.clone().unwrap();
    assert_eq!(next, [NodeId(1), NodeId(2), NodeId(3)], "eu-1 takes the place of us-1");
    assert!(topology(&cluster).groups_of(NodeId(3)).any(|group| group == sa));
}

/// The first regions may go as well; whoever keeps the configuration there needs a successor.
#[test]
fn who_keeps_the_configuration_in_a_region_that_goes_is_replaced() {
    let mut cluster = of_level(Level::REGIONS);
    let mut file = cluster.file().unwrap().clone();
    file.configuration.replicas = up(&["us-1", "eu-1", "us-2"]);
    let mut kept = Configuration::default();
    kept.change(Request::Initialise(text(&file)));
    assert!(refused(&mut kept, remove_region("eu")).contains("a node elsewhere"));
    let keepers = BTreeMap::from([("eu-1".to_string(), "us-3".to_string())]);
    let request = Request::RemoveRegion { region: "eu".into(), up: all(), keepers, now_ms: 9 };
    kept.change(request);
    let file = kept.file().unwrap();
    assert_eq!(file.configuration.replicas, up(&["us-1", "us-2", "us-3"]));
    assert!(
        refused(&mut kept, Request::CloseRegion { region: "eu".into(), up: all() })
            .contains("who keeps the configuration")
    );
    cluster.change(remove_region("us"));
    assert!(topology(&cluster).regions[0].leaves_ms.is_some(), "eu stays");
}
