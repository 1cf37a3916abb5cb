use super::*;
use crate::session::tests::topology;
use bytes::Bytes;
use meridian_fs::operation::{NewNode, RenameMode};
use meridian_fs::{Ino, Kind, Mode, Place};

const NODES: [&str; 9] = ["us-1", "us-2", "us-3", "eu-1", "eu-2", "eu-3", "ap-1", "ap-2", "ap-3"];
const GLOBAL: GroupId = GroupId::GLOBAL;
const US: GroupId = GroupId(1);
const EU: GroupId = GroupId(2);
const AP: GroupId = GroupId(3);
/// There and back between regions, in milliseconds: us, eu, ap.
const FAR_MS: [[u64; 3]; 3] = [[2, 80, 160], [80, 2, 200], [160, 200, 2]];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn far(a: u16, b: u16) -> Duration {
    ms(FAR_MS[usize::from(a / 3)][usize::from(b / 3)])
}

/// All that a client in us has measured; the first node of each group's region leads.
fn measured(global: u16) -> Measured {
    let leader = |node| Leader { node: NodeId(node), clock: 0 };
    let pairs = (0..9).flat_map(|a| (0..9).map(move |b| (a, b))).filter(|(a, b)| a != b);
    Measured {
        leaders: [(GLOBAL, global), (US, 0), (EU, 3), (AP, 6)]
            .map(|(group, node)| (group, leader(node)))
            .into(),
        nodes: pairs.map(|(a, b)| ((NodeId(a), NodeId(b)), far(a, b))).collect(),
        client: (0..9).map(|node| (NodeId(node), far(0, node))).collect(),
        flushes: BTreeMap::new(),
    }
}

fn around(measured: Measured) -> Surroundings {
    Surroundings::new(topology(&NODES), RegionId(0), measured)
}

fn at(partition: GroupId) -> Place {
    Place { ino: Ino(100 + u64::from(partition.0)), partition }
}

fn create(partition: GroupId) -> Update {
    let node = NewNode::new(Kind::File, 0o644);
    Update::Create { parent: at(partition), name: Bytes::from_static(b"f"), node }
}

fn rename(from: GroupId, to: GroupId) -> Update {
    let (from, to) = (at(from), at(to));
    Update::Rename {
        from,
        from_name: Bytes::from_static(b"a"),
        to,
        to_name: Bytes::from_static(b"b"),
        moved: Place { ino: Ino(7), ..from },
        replaced: None,
        mode: RenameMode::Replace,
        ancestors: Vec::new(),
        keep_for: None,
        whiteout: None,
    }
}

fn total(around: &Surroundings, update: &Update) -> Duration {
    around.update(update).unwrap().total
}

#[test]
fn one_group_takes_the_way_to_it_and_a_quorum_of_it() {
    let near = around(measured(0));
    assert_eq!(create(US).mode(), Mode::SinglePartition);
    let forecast = near.update(&create(US)).unwrap();
    assert_eq!(forecast.parts, [Part { group: US, asked: NodeId(0), primary: NodeId(0) }]);
    let told: Vec<_> = forecast.steps.iter().map(|step| (step.milestone, step.at)).collect();
    let milestones = [
        (Milestone::Asked, ms(1)),
        (Milestone::Proposed, ms(1)),
        (Milestone::Acknowledged, ms(3)),
        (Milestone::Ordered, ms(3)),
        (Milestone::Answered, ms(4)),
    ];
    assert_eq!(told, milestones);
    assert_eq!(total(&near, &create(EU)), ms(82), "there and back, and a quorum there");
    // Five of nine: three in us, two in eu.
    assert_eq!(total(&near, &create(GLOBAL)), ms(82));
    // The primary is in eu: its proposal is in us after 80 ms, with all that acknowledged it there.
    assert_eq!(total(&around(measured(3)), &create(GLOBAL)), ms(83));
    // In ap: 80 ms there, 80 back, where three have it, and two more of ap have said so.
    assert_eq!(total(&around(measured(6)), &create(GLOBAL)), ms(163));
}

/// Who acknowledges has flushed: the slower of the two fastest disks of three decides.
#[test]
fn disks_count_where_a_quorum_must_hold_something() {
    let mut measured = measured(0);
    measured.flushes = [(0, 5), (1, 9), (2, 40), (3, 7), (4, 7), (5, 7)]
        .map(|(node, took)| (NodeId(node), ms(took)))
        .into();
    let near = around(measured);
    assert_eq!(total(&near, &create(US)), ms(4 + 9));
    assert_eq!(total(&near, &create(EU)), ms(82 + 7));
    assert_eq!(near.look(US).unwrap().1, ms(2), "who looks waits for no disk");
}

#[test]
fn several_groups_take_the_longest_way_between_them_and_their_votes() {
    let near = around(measured(0));
    assert_eq!(rename(US, EU).mode(), Mode::Coordinated);
    let forecast = near.update(&rename(US, EU)).unwrap();
    let when = |milestone, group| {
        let mut steps = forecast.steps.iter();
        steps.find(|step| (step.milestone, step.group) == (milestone, group)).unwrap().at
    };
    assert_eq!((when(Milestone::Proposed, US), when(Milestone::Proposed, EU)), (ms(1), ms(40)));
    assert_eq!(when(Milestone::Ordered, EU), ms(43), "what us holds is said there at once");
    assert_eq!(when(Milestone::Ordered, US), ms(82), "what eu holds comes back");
    assert_eq!(when(Milestone::Applied, US), ms(83), "the vote of eu");
    assert_eq!(when(Milestone::Applied, EU), ms(122), "the vote of us");
    assert_eq!(forecast.total, ms(84));
    assert_eq!(total(&near, &rename(US, US)), ms(4));
    assert_eq!(total(&near, &rename(US, GLOBAL)), ms(82), "votes without a network");
    assert_eq!(total(&near, &rename(EU, AP)), ms(282));
}

/// A group whose clock is behind must follow, which takes as long as another acknowledgement.
#[test]
fn a_group_whose_clock_is_behind_waits_for_its_members_to_follow() {
    let mut measured = measured(0);
    let with = |measured: &Measured| total(&around(measured.clone()), &rename(GLOBAL, AP));
    measured.leaders.get_mut(&GLOBAL).unwrap().clock = 9;
    let ahead = with(&measured);
    measured.leaders.get_mut(&AP).unwrap().clock = 10;
    assert!(with(&measured) > ahead, "{:?} {ahead:?}", with(&measured));
}

#[test]
fn what_is_not_measured_is_taken_from_other_nodes_of_the_regions_or_is_unknown() {
    let mut all = measured(0);
    all.nodes.retain(|(a, b), _| (a.0, b.0) == (1, 2) || a.0 / 3 != b.0 / 3);
    assert_eq!(total(&around(all.clone()), &create(US)), ms(4));
    all.nodes.remove(&(NodeId(1), NodeId(2)));
    let unknown = around(all.clone()).update(&create(US)).unwrap_err();
    assert!(matches!(unknown, Unknown::Way(NodeId(0), _)), "{unknown:?}");
    all.leaders.remove(&EU);
    assert_eq!(around(all.clone()).update(&create(EU)), Err(Unknown::Leader(EU)));
    all.client.remove(&NodeId(3));
    assert_eq!(around(all).look(EU), Err(Unknown::Client(NodeId(3))));
}

#[test]
fn a_look_asks_the_nearest_and_a_block_is_stored_in_all_regions_of_its_file() {
    let near = around(measured(0));
    assert_eq!(near.look(GLOBAL), Ok((NodeId(0), ms(2))));
    assert_eq!(near.look(AP), Ok((NodeId(6), ms(160))));
    assert_eq!((near.store(US), near.store(GLOBAL)), (Ok(ms(2)), Ok(ms(160))));
}
