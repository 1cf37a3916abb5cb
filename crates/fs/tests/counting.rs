//! Directories that are not empty get quotas, and lose them, while others work below.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::counted::{make, set, submit, write};
use common::{Rng, World, name, top};
use meridian_core::GroupId;
use meridian_fs::mutation::Mutation;
use meridian_fs::operation::RenameMode;
use meridian_fs::quota::{Limits, Quota, Stage};
use meridian_fs::{Answer, Done, FsError, Kind, Place, Query, Update};
use std::collections::{BTreeMap, BTreeSet};

const US: GroupId = GroupId(1);
const NO_LIMITS: Option<Limits> = Some(Limits { bytes: None, inodes: None });

fn rename(world: &mut World, from: (Place, &str), to: (Place, &str)) -> Result<Done, FsError> {
    let update = world.rename_update(from, to, RenameMode::Replace, None)?;
    submit(world, update)
}

fn quota(world: &World, inode: Place) -> Option<Quota> {
    match world.read(&Query::Quota { inode }).unwrap() {
        Answer::Quota(quota) => quota,
        other => panic!("{other:?}"),
    }
}

/// Does a step with so many directories and entries at most; answers whether there was one to do.
fn step(world: &mut World, most: usize) -> bool {
    step_in(world, US, most)
}

fn step_in(world: &mut World, partition: GroupId, most: usize) -> bool {
    let Some(next) = world.partitions[&partition].next_count(most) else { return false };
    do_step(world, next);
    true
}

fn do_step(world: &mut World, (update, quotas): (Update, Vec<Place>)) {
    let id = world.next_id();
    let mut operation = world.operation(update);
    operation.quotas = quotas;
    world.submit_as(id, operation).unwrap();
    world.check();
}

fn count_all(world: &mut World) {
    for _ in 0..1000 {
        if !step(world, 2) {
            return;
        }
    }
    panic!("it is counted for ever");
}

/// What lives below a directory and in its partition, each once, the directory itself among it;
/// but for what is below others of these.
fn below(world: &World, root: Place, others: &BTreeSet<Place>) -> BTreeMap<Place, u64> {
    let mut all = BTreeMap::from([(root, 0)]);
    let mut directories = vec![root];
    while let Some(directory) = directories.pop() {
        for (_, child, kind) in world.list(directory).unwrap() {
            if child.partition != root.partition || others.contains(&child) {
                continue;
            }
            all.insert(child, world.attributes(child).unwrap().stored);
            if kind == Kind::Directory {
                directories.push(child);
            }
        }
    }
    all
}

fn used(world: &World, inode: Place) -> (u64, u64) {
    let Quota { bytes, inodes, .. } = quota(world, inode).unwrap();
    (bytes, inodes)
}

fn sums(of: &BTreeMap<Place, u64>) -> (u64, u64) {
    (of.values().sum(), of.len() as u64)
}

/// `us/q` with `d/e` and files of 10 bytes in each.
fn tree() -> (World, [Place; 3], [Place; 3]) {
    let mut world = World::new(2);
    let q = make(&mut world, top(1), "q", Kind::Directory).unwrap();
    let d = make(&mut world, q, "d", Kind::Directory).unwrap();
    let e = make(&mut world, d, "e", Kind::Directory).unwrap();
    let files = [q, d, e].map(|directory| {
        let file = make(&mut world, directory, "f", Kind::File).unwrap();
        write(&mut world, file, 10).unwrap();
        file
    });
    (world, [q, d, e], files)
}

#[test]
fn what_is_there_is_counted_by_steps_and_limited_as_far_as_it_is() {
    let (mut world, [q, d, _], [_, in_d, _]) = tree();
    set(&mut world, q, Some(Limits { bytes: Some(25), inodes: None })).unwrap();
    assert_eq!((used(&world, q), quota(&world, q).unwrap().stage), ((0, 1), Stage::Counts));
    assert_eq!(set(&mut world, d, NO_LIMITS), Err(FsError::Busy), "one at a time");
    assert_eq!(set(&mut world, q, None), Err(FsError::Busy));
    assert!(step(&mut world, 1));
    assert_eq!(used(&world, q), (0, 2), "a directory");
    write(&mut world, in_d, 10).unwrap();
    count_all(&mut world);
    assert_eq!((used(&world, q), quota(&world, q).unwrap().stage), ((40, 6), Stage::Complete));
    assert_eq!(write(&mut world, in_d, 1), Err(FsError::OverQuota));
    set(&mut world, d, NO_LIMITS).unwrap();
    count_all(&mut world);
    assert_eq!((used(&world, q), used(&world, d)), ((10, 2), (30, 4)));
}

#[test]
fn a_quota_is_taken_away_and_what_was_below_counts_above() {
    let (mut world, [q, d, e], [_, _, in_e]) = tree();
    for directory in [q, d] {
        set(&mut world, directory, NO_LIMITS).unwrap();
        count_all(&mut world);
    }
    set(&mut world, d, None).unwrap();
    assert_eq!(quota(&world, d).unwrap().stage, Stage::Leaves);
    assert_eq!(set(&mut world, d, NO_LIMITS), Err(FsError::Busy));
    let new = make(&mut world, e, "new", Kind::File).unwrap();
    count_all(&mut world);
    assert_eq!(used(&world, q), (30, 7));
    assert_eq!(
        (used(&world, d), used(&world, new), used(&world, in_e)),
        ((30, 7), (30, 7), (30, 7))
    );
    set(&mut world, q, None).unwrap();
    count_all(&mut world);
    assert_eq!((quota(&world, q), quota(&world, in_e)), (None, None));
    assert_eq!(set(&mut world, q, None), Err(FsError::NoAttribute));
    let plain = make(&mut world, q, "plain", Kind::Directory).unwrap();
    set(&mut world, plain, NO_LIMITS).unwrap();
    set(&mut world, plain, None).unwrap();
    assert_eq!(quota(&world, plain), None, "at once");
}

#[test]
fn what_moves_meanwhile_is_not_missed() {
    let (mut world, [q, d, e], _) = tree();
    let other = make(&mut world, top(1), "other", Kind::Directory).unwrap();
    let z = make(&mut world, q, "z", Kind::Directory).unwrap();
    make(&mut world, z, "f", Kind::File).unwrap();
    set(&mut world, q, NO_LIMITS).unwrap();
    step(&mut world, 2); // `d` and the file.
    rename(&mut world, (q, "z"), (q, "a")).unwrap(); // To before what was counted.
    rename(&mut world, (e, "f"), (q, "b")).unwrap();
    rename(&mut world, (d, "e"), (q, "c")).unwrap();
    rename(&mut world, (q, "f"), (e, "f")).unwrap();
    assert_eq!(rename(&mut world, (q, "d"), (other, "d")), Err(FsError::OtherQuota));
    rename(&mut world, (q, "b"), (other, "b")).unwrap(); // A file may leave until all is counted.
    count_all(&mut world);
    assert_eq!(used(&world, q), sums(&below(&world, q, &BTreeSet::new())));
}

/// A directory that was counted goes below one that was not: all above it is counted, too.
#[test]
fn what_was_counted_stays_below() {
    let (mut world, [q, d, e], _) = tree();
    let z = make(&mut world, q, "a", Kind::Directory).unwrap();
    make(&mut world, z, "f", Kind::File).unwrap();
    set(&mut world, q, NO_LIMITS).unwrap();
    step(&mut world, 2); // `a` and `d`, and not `e`.
    rename(&mut world, (q, "a"), (e, "a")).unwrap();
    let other = make(&mut world, top(1), "other", Kind::Directory).unwrap();
    assert_eq!(rename(&mut world, (d, "e"), (other, "e")), Err(FsError::OtherQuota));
    count_all(&mut world);
    assert_eq!(used(&world, q), sums(&below(&world, q, &BTreeSet::new())));
}

#[test]
fn a_file_with_a_name_elsewhere_counts_as_long_as_it_has_one() {
    let (mut world, [q, ..], [file, ..]) = tree();
    let link = |parent| Update::Link { target: file, parent, name: name("l") };
    submit(&mut world, link(top(1))).unwrap();
    set(&mut world, q, NO_LIMITS).unwrap();
    count_all(&mut world);
    let unlink = |parent, text: &str, child| Update::Unlink {
        parent,
        name: name(text),
        child,
        keep_for: None,
    };
    submit(&mut world, unlink(q, "f", file)).unwrap();
    assert_eq!(used(&world, q), (30, 6));
    // All else is removed; the directory must not go before its quota has.
    let d = world.lookup(q, "d").unwrap().0;
    rename(&mut world, (q, "d"), (q, "g")).unwrap();
    let inside = below(&world, d, &BTreeSet::new());
    assert_eq!(inside.len(), 4);
    let e = world.lookup(d, "e").unwrap().0;
    for parent in [e, d] {
        let child = world.lookup(parent, "f").unwrap().0;
        submit(&mut world, unlink(parent, "f", child)).unwrap();
    }
    let rmdir = |parent, text: &str, child| Update::Rmdir { parent, name: name(text), child };
    submit(&mut world, rmdir(d, "e", e)).unwrap();
    submit(&mut world, rmdir(q, "g", d)).unwrap();
    assert_eq!(submit(&mut world, rmdir(top(1), "q", q)), Err(FsError::Busy));
    set(&mut world, q, None).unwrap();
    count_all(&mut world);
    assert_eq!((quota(&world, q), quota(&world, file)), (None, None));
    submit(&mut world, rmdir(top(1), "q", q)).unwrap();
}

#[test]
fn a_directory_that_is_removed_is_counted_no_more() {
    let (mut world, [q, ..], _) = tree();
    let other = make(&mut world, top(1), "other", Kind::Directory).unwrap();
    make(&mut world, other, "f", Kind::File).unwrap();
    set(&mut world, other, NO_LIMITS).unwrap();
    let child = world.lookup(other, "f").unwrap().0;
    let unlink = Update::Unlink { parent: other, name: name("f"), child, keep_for: None };
    submit(&mut world, unlink).unwrap();
    let rmdir = Update::Rmdir { parent: top(1), name: name("other"), child: other };
    submit(&mut world, rmdir).unwrap();
    count_all(&mut world);
    set(&mut world, q, NO_LIMITS).unwrap();
    count_all(&mut world);
    assert_eq!(used(&world, q), (30, 6));
}

/// In `global` the way up ends at the root of all, which is its own parent.
#[test]
fn what_was_counted_does_not_leave_for_the_root() {
    let mut world = World::new(2);
    let q = make(&mut world, Place::ROOT, "q", Kind::Directory).unwrap();
    let d = make(&mut world, q, "d", Kind::Directory).unwrap();
    make(&mut world, d, "f", Kind::File).unwrap();
    let z = make(&mut world, q, "z", Kind::Directory).unwrap();
    set(&mut world, q, NO_LIMITS).unwrap();
    step_in(&mut world, GroupId::GLOBAL, 2);
    assert_eq!(used(&world, q), (0, 2), "`d`");
    assert_eq!(rename(&mut world, (q, "d"), (Place::ROOT, "d")), Err(FsError::OtherQuota));
    rename(&mut world, (q, "d"), (z, "d")).unwrap();
    while step_in(&mut world, GroupId::GLOBAL, 2) {}
    assert_eq!(used(&world, q), (0, 4));
}

/// Two primaries have the same step ordered, or one that another is too late for.
#[test]
fn a_step_is_done_once_and_only_by_what_it_was_made_up_from() {
    let (mut world, [q, d, _], _) = tree();
    set(&mut world, q, NO_LIMITS).unwrap();
    let first = world.partitions[&US].next_count(2).unwrap();
    let all = world.partitions[&US].next_count(100).unwrap();
    do_step(&mut world, first.clone());
    let done = used(&world, q);
    do_step(&mut world, first);
    do_step(&mut world, all);
    assert_eq!(used(&world, q), done);
    count_all(&mut world);
    let late = {
        set(&mut world, q, None).unwrap();
        world.partitions[&US].next_count(100).unwrap()
    };
    count_all(&mut world);
    set(&mut world, q, NO_LIMITS).unwrap();
    make(&mut world, d, "new", Kind::File).unwrap();
    let before = used(&world, q);
    do_step(&mut world, late);
    assert_eq!(used(&world, q), before, "a step of a count that has ended");
    count_all(&mut world);
    assert_eq!(used(&world, q), sums(&below(&world, q, &BTreeSet::new())));
}

/// What comes into an open directory between a step and what it was made up from counts already.
#[test]
fn who_makes_names_all_the_time_does_not_keep_it_from_ending() {
    let (mut world, [q, ..], _) = tree();
    for number in 0..10 {
        make(&mut world, q, &format!("z{number}"), Kind::File).unwrap();
    }
    set(&mut world, q, NO_LIMITS).unwrap();
    let mut steps = 0;
    while let Some(next) = world.partitions[&US].next_count(4) {
        make(&mut world, q, &format!("a{:03}", 100 - steps), Kind::File).unwrap();
        do_step(&mut world, next);
        steps += 1;
        assert!(steps < 20, "it goes on for ever");
    }
    assert_eq!(used(&world, q), sums(&below(&world, q, &BTreeSet::new())));
}

#[test]
fn a_step_counts_many_small_directories() {
    let (mut world, [q, ..], _) = tree();
    for number in 0..100 {
        let small = make(&mut world, q, &format!("{number}"), Kind::Directory).unwrap();
        make(&mut world, small, "f", Kind::File).unwrap();
    }
    set(&mut world, q, NO_LIMITS).unwrap();
    let mut steps = 0;
    while step(&mut world, 128) {
        steps += 1;
    }
    assert_eq!(used(&world, q), (30, 206));
    assert!(steps <= 5, "{steps} steps");
}

/// Else it could come back with what was never counted, and be taken for counted.
#[test]
fn an_open_directory_is_not_placed_elsewhere_and_gets_no_quota() {
    let (mut world, [q, d, _], _) = tree();
    let empty = make(&mut world, d, "empty", Kind::Directory).unwrap();
    set(&mut world, q, NO_LIMITS).unwrap();
    step(&mut world, 3);
    rename(&mut world, (d, "empty"), (q, "empty")).unwrap();
    let (parent, name, to) = (q, name("empty"), GroupId(2));
    let place = Update::PlaceDirectory { parent, name, child: empty, to };
    assert_eq!(submit(&mut world, place.clone()), Err(FsError::Busy));
    assert_eq!(set(&mut world, empty, NO_LIMITS), Err(FsError::Busy));
    count_all(&mut world);
    submit(&mut world, place).unwrap();
    assert_eq!(used(&world, q), sums(&below(&world, q, &BTreeSet::new())));
}

/// Somebody works in `us`, below the directory and beside it.
struct Worker {
    rng: Rng,
    root: Place,
    links: bool,
    nested: BTreeSet<Place>,
    made: u64,
}

impl Worker {
    fn work(&mut self, world: &mut World) {
        let all: Vec<_> = world.entries().into_iter().filter(|of| of.0.partition == US).collect();
        let mut directories: Vec<Place> =
            all.iter().filter(|of| of.3 == Kind::Directory).map(|of| of.2).collect();
        directories.retain(|place| place.partition == US);
        directories.push(top(1));
        let parent = *self.rng.pick(&directories);
        self.made += 1;
        let new = format!("{}-{}", self.rng.below(10), self.made);
        let (from, text, child, kind) = self.rng.pick(&all).clone();
        match self.rng.below(12) {
            0 | 1 => drop(make(world, parent, &new, Kind::File)),
            2 | 3 => drop(make(world, parent, &new, Kind::Directory)),
            4 if kind == Kind::File => drop(write(world, child, 3)),
            5 if kind == Kind::Directory && child != self.root => {
                let update = Update::Rmdir { parent: from, name: name(&text), child };
                if submit(world, update).is_ok() {
                    self.nested.remove(&child);
                }
            }
            5 if kind == Kind::File => {
                let (name, keep_for) = (name(&text), None);
                drop(submit(world, Update::Unlink { parent: from, name, child, keep_for }));
            }
            6 if self.links && kind == Kind::File => {
                drop(submit(world, Update::Link { target: child, parent, name: name(&new) }));
            }
            7 if child != self.root && kind == Kind::Directory && child.partition == US => {
                // Empty ones have quotas of their own; others must wait.
                if world.list(child).unwrap().is_empty() && set(world, child, NO_LIMITS).is_ok() {
                    self.nested.insert(child);
                }
            }
            8 if child != self.root && kind == Kind::Directory && self.rng.chance(30) => {
                let update = Update::PlaceDirectory {
                    parent: from,
                    name: name(&text),
                    child,
                    to: GroupId(2),
                };
                drop(submit(world, update));
            }
            _ if child == self.root => {}
            _ => self.rename(world, (from, &text, child), (parent, &new)),
        }
    }

    fn rename(&self, world: &mut World, from: (Place, &str, Place), to: (Place, &str)) {
        let (parent, text, child) = from;
        let above = [world.ancestors(parent), world.ancestors(to.0)];
        let moved = rename(world, (parent, text), to);
        let below = |above: &Vec<Place>| {
            let own = above.iter().find(|of| self.nested.contains(*of) || **of == self.root);
            own == Some(&self.root)
        };
        let whole = above.iter().flatten().chain([&child]).all(|of| of.partition == US);
        if whole && above.iter().all(below) {
            assert_ne!(moved, Err(FsError::OtherQuota), "{from:?} to {to:?} is all below it");
        }
    }
}

/// Counts a tree in which somebody works, and gives it back; what is counted must be what is there.
fn count_while_others_work(seed: u64, links: bool, mutation: Mutation) {
    let (mut world, [root, ..], _) = tree();
    world.partitions.get_mut(&US).unwrap().plant(mutation);
    let mut worker = Worker { rng: Rng(seed), root, links, nested: BTreeSet::new(), made: 0 };
    for _ in 0..60 {
        worker.work(&mut world);
    }
    for limits in [NO_LIMITS, None] {
        set(&mut world, root, limits).unwrap();
        let mut steps = 0;
        loop {
            (0..worker.rng.below(4)).for_each(|_| worker.work(&mut world));
            let most = 1 + worker.rng.below(3) as usize;
            if !step(&mut world, most) {
                break;
            }
            steps += 1;
            assert!(steps < 10_000, "it is counted for ever");
        }
        let found = below(&world, root, &worker.nested);
        match limits {
            Some(_) if links => {
                let (own, least) = (used(&world, root), sums(&found));
                assert!(own.0 >= least.0 && own.1 >= least.1, "seed {seed}: {own:?}, {least:?}");
            }
            Some(_) => assert_eq!(used(&world, root), sums(&found), "seed {seed}"),
            None => found.keys().for_each(|of| assert_eq!(quota(&world, *of), None, "seed {seed}")),
        }
        let own = quota(&world, root);
        found.keys().for_each(|of| assert_eq!(quota(&world, *of), own, "seed {seed}: {of:?}"));
    }
}

#[test]
fn a_count_is_exact_whatever_others_do() {
    for seed in 0..300 {
        count_while_others_work(seed, false, Mutation::Correct);
    }
}

#[test]
fn with_links_all_that_is_below_counts() {
    for seed in 1_000..1_300 {
        count_while_others_work(seed, true, Mutation::Correct);
    }
}

#[test]
fn a_count_that_is_wrong_is_noticed() {
    for mutation in [Mutation::MissesMoved, Mutation::ClosesEarly] {
        let noticed = (0..60).find(|seed| {
            let run = || count_while_others_work(*seed, false, mutation);
            std::panic::catch_unwind(run).is_err()
        });
        assert!(noticed.is_some(), "nobody noticed {mutation:?}");
    }
}
