//! What is set of a file together with what was written to it is as if each came for itself.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{Rng, World, name, top};
use meridian_fs::mutation::Mutation;
use meridian_fs::operation::{Changes, Piece, WriteAt, XattrMode};
use meridian_fs::settled::SETTINGS_MAX;
use meridian_fs::types::Data;
use meridian_fs::{
    Answer, Attributes, Done, Extent, FsError, Kind, Operation, Place, Query, Rights, Setting,
    Timestamp, Update,
};

const ACCESS: &str = "system.posix_acl_access";
const CAPABILITY: &str = "security.capability";

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn pieces(bytes: &'static [u8]) -> Vec<Piece> {
    let data = Data::Inline(Bytes::from_static(bytes));
    vec![Piece { offset: 0, extent: Extent { len: bytes.len() as u32, data } }]
}

fn changes(changes: Changes) -> Setting {
    Setting::Attributes(changes)
}

fn xattr(of: &str, value: Bytes) -> Setting {
    Setting::Xattr { name: name(of), value, drops_set_gid: of == ACCESS }
}

/// A list of access rights: owner, a named user, owning group, mask, others.
fn access_list(bits: [u8; 5]) -> Bytes {
    let mut list = vec![2, 0, 0, 0];
    for ((tag, id), bits) in [(1, 0), (2, 9), (4, 0), (16, 0), (32, 0)].into_iter().zip(bits) {
        list.extend([tag, 0, bits, 0, id, 0, 0, 0]);
    }
    list.into()
}

/// A list that says no more than the mode.
fn plain_list(mode: u16) -> Bytes {
    let mut list = vec![2, 0, 0, 0];
    for (tag, shift) in [(1, 6), (4, 3), (32, 0)] {
        list.extend([tag, 0, (mode >> shift & 7) as u8, 0, 255, 255, 255, 255]);
    }
    list.into()
}

fn random_setting(rng: &mut Rng) -> Setting {
    let mode = *rng.pick(&[0o4755, 0o2755, 0o2744, 0o640, 0o600, 0o6777]);
    match rng.below(9) {
        0 => changes(Changes { mode: Some(mode), ..Changes::default() }),
        1 => changes(Changes { uid: Some(rng.below(3) as u32), ..Changes::default() }),
        2 => changes(Changes { gid: Some(rng.below(3) as u32), ..Changes::default() }),
        3 => changes(Changes { mtime: Some(at(rng.below(9) as i64)), ..Changes::default() }),
        4 => {
            let (uid, atime) = (Some(7), Some(at(3)));
            changes(Changes { mode: Some(mode), uid, atime, ..Changes::default() })
        }
        5 => xattr(ACCESS, access_list([6, 7, rng.below(8) as u8, rng.below(8) as u8, 4])),
        6 => xattr(ACCESS, plain_list(mode)),
        7 => xattr(CAPABILITY, name("rights")),
        _ => xattr("user.x", Bytes::from(vec![rng.below(9) as u8])),
    }
}

/// The update that does only this.
fn alone(inode: Place, setting: Setting) -> Update {
    match setting {
        Setting::Attributes(changes) => Update::SetAttributes { inode, changes },
        Setting::Xattr { name, value, drops_set_gid } => {
            Update::SetXattr { inode, name, value, mode: XattrMode::Any, drops_set_gid }
        }
    }
}

fn file() -> (World, Place) {
    let mut world = World::new(1);
    let file = world.create(top(1), "f", Kind::File).unwrap();
    (world, file)
}

fn submit(world: &mut World, time: Timestamp, update: Update) -> Result<Done, FsError> {
    let id = world.next_id();
    let operation = Operation { time, ..world.operation(update) };
    world.submit_as(id, operation)
}

type Shown = (Attributes, Vec<u8>, Vec<(Bytes, Bytes)>);

fn shown(world: &World, inode: Place) -> Shown {
    let Ok(Answer::Names(names)) = world.read(&Query::Xattrs { inode }) else { panic!() };
    let value = |name: Bytes| match world.read(&Query::Xattr { inode, name: name.clone() }) {
        Ok(Answer::Bytes(value)) => (name, value),
        other => panic!("{other:?}"),
    };
    let contents = world.contents(inode).unwrap();
    (world.attributes(inode).unwrap(), contents, names.into_iter().map(value).collect())
}

/// When the file was changed last.
fn each_time(world: &World, file: Place) -> Timestamp {
    world.attributes(file).unwrap().ctime
}

/// Compares both ways on a file that some settings have made what it is; what `stat` shows after
/// the settings must be what they say of it before.
fn compare(seed: u64, mutation: Mutation) {
    let mut rng = Rng(seed);
    let (mut world, file) = file();
    for _ in 0..rng.below(4) {
        let update = alone(file, random_setting(&mut rng));
        submit(&mut world, at(10), update).unwrap();
    }
    let mut other = world.view();
    world.partitions.values_mut().for_each(|partition| partition.plant(mutation));
    let count = rng.below(SETTINGS_MAX as u64 + 1);
    let settings: Vec<_> = (0..count).map(|_| random_setting(&mut rng)).collect();
    let pieces = if rng.chance(70) { pieces(b"data") } else { Vec::new() };
    let write = Update::Write { inode: file, at: WriteAt::End, pieces: pieces.clone() };
    submit(&mut other, at(20), write).unwrap();
    let mut told = other.attributes(file).unwrap();
    settings.iter().for_each(|setting| setting.show(&mut told, at(30)));
    for setting in &settings {
        submit(&mut other, at(30), alone(file, setting.clone())).unwrap();
    }
    let (written, at_end) = (at(20), WriteAt::End);
    let settle = Update::Settle { inode: file, at: at_end, pieces, written, settings };
    let time = if count == 0 { each_time(&other, file) } else { at(30) };
    let done = submit(&mut world, time, settle.clone()).unwrap();
    let (one, each) = (shown(&world, file), shown(&other, file));
    let Done::Written { attributes, .. } = done else { panic!("{done:?}") };
    assert_eq!(attributes, one.0);
    assert_eq!(one, each, "{settle:?}");
    assert_eq!(Attributes { ctime: told.ctime, ..each.0 }, told, "as it was shown: {settle:?}");
    world.check();
}

#[test]
fn all_at_once_is_each_in_its_order() {
    (0..2000).for_each(|seed| compare(seed, Mutation::Correct));
}

#[test]
fn another_order_is_noticed() {
    let notices =
        |seed| std::panic::catch_unwind(|| compare(seed, Mutation::SettlesBackwards)).is_err();
    assert!((0..200).any(notices));
}

#[test]
fn what_is_refused_changes_nothing() {
    let (mut world, file) = file();
    let before = shown(&world, file);
    let mode = changes(Changes { mode: Some(0o600), ..Changes::default() });
    let mut settle = |settings| {
        let (at, pieces, written) = (WriteAt::End, pieces(b"data"), Timestamp::default());
        world.submit(Update::Settle { inode: file, at, pieces, written, settings })
    };
    let list = xattr(ACCESS, name("junk"));
    assert_eq!(settle(vec![mode.clone(), list]), Err(FsError::Invalid));
    let size = changes(Changes { size: Some(9), ..Changes::default() });
    assert_eq!(settle(vec![mode.clone(), size]), Err(FsError::Invalid), "bytes are no setting");
    assert_eq!(settle(vec![mode.clone(); SETTINGS_MAX + 1]), Err(FsError::Invalid));
    let long: Vec<_> =
        (0..5).map(|at| xattr(&format!("user.{at}"), Bytes::from(vec![0; 64 << 10]))).collect();
    assert_eq!(settle(long), Err(FsError::NoSpace));
    assert_eq!(shown(&world, file), before);
    let written = Timestamp::default();
    let (at, settings) = (WriteAt::End, vec![mode]);
    let settle = Update::Settle { inode: top(1), at, pieces: Vec::new(), written, settings };
    assert_eq!(world.submit(settle), Err(FsError::IsDirectory));
    world.check();
}

#[test]
fn what_cannot_be_is_known_before() {
    assert_eq!(xattr(ACCESS, name("junk")).check(), Err(FsError::Invalid));
    assert_eq!(xattr(ACCESS, access_list([7; 5])).check(), Ok(()));
    assert_eq!(
        xattr("system.posix_acl_default", access_list([7; 5])).check(),
        Err(FsError::Invalid)
    );
    assert_eq!(xattr("user.x", vec![0; (64 << 10) + 1].into()).check(), Err(FsError::NoSpace));
    assert_eq!(xattr("user.meridian.quota", Bytes::new()).check(), Err(FsError::NotPermitted));
    assert_eq!(xattr(&"x".repeat(256), Bytes::new()).check(), Err(FsError::NameTooLong));
}

/// Whoever may not do each may not do all.
#[test]
fn rights_count_for_each_setting() {
    let (mut world, file) = file();
    submit(&mut world, at(1), alone(file, changes(owner(1000)))).unwrap();
    let rights = Rights { users: [1000].into(), ..Rights::default() };
    let mut settle = |pieces, settings| {
        let id = world.next_id();
        let (at, written) = (WriteAt::End, Timestamp::default());
        let update = Update::Settle { inode: file, at, pieces, written, settings };
        let rights = Some(rights.clone());
        world.submit_as(id, Operation { rights, ..world.operation(update) })
    };
    let mode = || changes(Changes { mode: Some(0o600), ..Changes::default() });
    settle(pieces(b"data"), vec![mode()]).unwrap();
    let refused = settle(pieces(b"data"), vec![mode(), changes(owner(1001))]);
    assert_eq!(refused, Err(FsError::NotPermitted));
    let trusted = settle(Vec::new(), vec![xattr("trusted.x", name("v"))]);
    assert_eq!(trusted, Err(FsError::NotPermitted));
    let read_only = Rights { read_only: true, ..rights };
    let id = world.next_id();
    let written = Timestamp::default();
    let (at, settings) = (WriteAt::End, vec![mode()]);
    let update = Update::Settle { inode: file, at, pieces: Vec::new(), written, settings };
    let operation = Operation { rights: Some(read_only), ..world.operation(update) };
    assert_eq!(world.submit_as(id, operation), Err(FsError::ReadOnly));
}

fn owner(uid: u32) -> Changes {
    Changes { uid: Some(uid), ..Changes::default() }
}
