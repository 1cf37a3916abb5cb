use super::*;
use crate::update::NOBODY;
use meridian_core::ClientId;
use meridian_fs::operation::NewNode;
use meridian_fs::types::{Kind, Timestamp};
use meridian_fs::{Answer, Ino, Place, Vector};

const US: GroupId = GroupId(1);
const TOP: Place = Place { ino: Ino(1 << 52 | 1), partition: US };

/// A message that makes a file of that name, or one of both regions that waits for a vote.
fn message(sequence: u64, ts: u64, update: Update) -> Heard {
    let operation = Operation {
        vector: Vector::default(),
        time: Timestamp::default(),
        quotas: Vec::new(),
        update,
        by: NOBODY,
        keeps: false,
        under: None,
        rights: None,
    };
    Heard::Execute(MessageId { client: ClientId(7), sequence }, Stamp(ts), operation)
}

fn create(name: &'static str) -> Update {
    Update::Create { parent: TOP, name: name.into(), node: NewNode::new(Kind::File, 0o644) }
}

fn begun() -> Snapshot {
    let tree = Partition::new(US, [], Timestamp::default());
    Snapshot { tree, at: None, held: Vec::new(), settled: false, idle: Duration::ZERO }
}

fn names(of: &Snapshot) -> Vec<String> {
    let query = Query::Directory { inode: TOP, after: Default::default(), limit: 9 };
    let Ok(Answer::Directory { entries, .. }) = of.tree.read(&query) else { panic!("no top") };
    entries.iter().map(|(name, _, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn it_has_what_comes_before_its_timestamp_in_whatever_order_that_came() {
    let mut snapshot = begun();
    let hear = |snapshot: &mut Snapshot, sequence, ts, name| {
        snapshot.hear(message(sequence, ts, create(name)), Mutation::Correct);
    };
    hear(&mut snapshot, 1, 3, "a");
    hear(&mut snapshot, 2, 6, "b");
    assert!(names(&snapshot).is_empty(), "nothing before the timestamp is told");
    snapshot.cut(Stamp(5), Mutation::Correct);
    assert_eq!(names(&snapshot), ["a"]);
    // What does not conflict with what came may come later.
    let apart = Update::Renew { client: ClientId(3), partition: US };
    snapshot.hear(message(3, 4, apart), Mutation::Correct);
    assert_eq!((snapshot.tree.latest(), snapshot.held.len()), (Stamp(4), 1));
    // A later timestamp takes what was held back.
    snapshot.cut(Stamp(6), Mutation::Correct);
    assert_eq!(names(&snapshot), ["a", "b"]);
    hear(&mut snapshot, 4, 7, "c");
    assert_eq!(names(&snapshot), ["a", "b"]);
}

#[test]
fn a_message_of_two_groups_is_decided_by_the_votes_that_were_heard() {
    let other = Place { ino: Ino::top(GroupId(2)), partition: GroupId(2) };
    let link = Update::Link { target: other, parent: TOP, name: "l".into() };
    let mut snapshot = begun();
    let id = MessageId { client: ClientId(7), sequence: 1 };
    let vote = Vote { result: Err(meridian_fs::FsError::NotFound), held: false };
    // The vote comes first, and is of a message that is held back.
    snapshot.hear(Heard::Vote(id, GroupId(2), vote), Mutation::Correct);
    snapshot.hear(message(1, 9, link), Mutation::Correct);
    snapshot.cut(Stamp(8), Mutation::Correct);
    assert_eq!(snapshot.tree.delivered().0, 0);
    snapshot.cut(Stamp(9), Mutation::Correct);
    assert_eq!((snapshot.tree.delivered().0, snapshot.tree.applied().0), (1, 1));
}

#[test]
fn one_that_nobody_asks_for_goes_and_so_does_one_that_holds_back_too_much() {
    let mut all = Snapshots::default();
    all.kept.insert(1, begun());
    all.age(SNAPSHOT_LEASE / 2);
    assert_eq!(all.kept.len(), 1);
    all.kept.insert(2, Snapshot { settled: true, ..begun() });
    all.age(SNAPSHOT_LEASE / 2);
    assert_eq!(all.kept.keys().copied().collect::<Vec<_>>(), [2]);
    all.kept.insert(3, begun());
    let skipped = || Heard::Skip(MessageId { client: ClientId(7), sequence: 1 }, Stamp(1));
    (0..=HELD_MAX).for_each(|_| all.hear(skipped));
    assert_eq!(all.kept.keys().copied().collect::<Vec<_>>(), [2], "what is settled holds nothing");
    all.kept.insert(4, begun());
    all.lose();
    assert_eq!(all.kept.keys().copied().collect::<Vec<_>>(), [2], "the other may lack something");
}
