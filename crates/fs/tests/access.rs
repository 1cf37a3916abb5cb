//! What clients may do that may not do all: abuse cases 7 (escape from a prefix), 8 (foreign
//! files), 9 (root of a squashed machine) and what 11 says of inodes.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{ME, Rng, World, name, top};
use meridian_core::GroupId;
use meridian_fs::access::NOBODY;
use meridian_fs::operation::{Changes, NewNode, Piece, RenameMode, Whiteout, WriteAt, XattrMode};
use meridian_fs::quota::Limits;
use meridian_fs::types::{Data, Extent, Lock, LockFamily, LockOwner};
use meridian_fs::{
    Answer, CapStep, Done, Durability, FsError, Ino, Kind, Operation, Place, Query, Rights, Update,
};

type Result<T> = std::result::Result<T, FsError>;

/// A machine whose users are these.
fn machine(users: &[u32]) -> Rights {
    Rights { users: users.iter().copied().collect(), squash: NOBODY, ..Rights::default() }
}

/// Partitions, and a client that has rights.
struct Tenant {
    world: World,
    rights: Rights,
}

impl Tenant {
    fn new(rights: Rights) -> Tenant {
        Tenant { world: World::new(2), rights }
    }

    /// A client that works below `/us/mine`, beside `/us/theirs`.
    fn below() -> (Tenant, Place, Place) {
        let mut world = World::new(2);
        let [mine, theirs] = ["mine", "theirs"].map(|of| directory(&mut world, top(1), of));
        let limits = Some(Limits::default());
        world.submit(Update::SetQuota { inode: mine, parent: top(1), limits }).unwrap();
        let rights = Rights { below: Some(mine), ..machine(&[]) };
        (Tenant { world, rights }, mine, theirs)
    }

    /// As the client does it.
    fn submit(&mut self, update: Update) -> Result<Done> {
        submit(&mut self.world, Some(&self.rights), update)
    }

    /// As it is done on a machine that may do all.
    fn trusted(&mut self, update: Update) -> Result<Done> {
        submit(&mut self.world, None, update)
    }

    fn read(&self, query: &Query) -> Result<Answer> {
        self.world.partitions[&query.partition()].read_as(
            query,
            meridian_core::ClientId(0),
            Some(&self.rights),
        )
    }

    fn create(&mut self, parent: Place, text: &str, node: NewNode) -> Result<Place> {
        match self.submit(Update::Create { parent, name: name(text), node })? {
            Done::Attributes(made) => Ok(made.place),
            other => panic!("{other:?}"),
        }
    }

    fn rename(&mut self, from: (Place, &str), to: (Place, &str)) -> Result<Done> {
        let mut update = self.world.rename_update(from, to, RenameMode::Replace, None)?;
        if let (Update::Rename { ancestors, .. }, Some(below)) = (&mut update, self.rights.below)
            && let Some(at) = ancestors.iter().position(|place| *place == below)
        {
            ancestors.truncate(at + 1); // It sees nothing above.
        }
        self.submit(update)
    }

    fn chmod(&mut self, inode: Place, mode: u16) -> Result<Done> {
        set(self, inode, Changes { mode: Some(mode), ..Changes::default() })
    }
}

/// Names the quotas that are told.
fn submit(world: &mut World, rights: Option<&Rights>, update: Update) -> Result<Done> {
    let mut quotas = Vec::new();
    loop {
        let of = world.operation(update.clone());
        let operation = Operation { rights: rights.cloned(), quotas: quotas.clone(), ..of };
        let id = world.next_id();
        match world.submit_as(id, operation) {
            Err(FsError::UnnamedQuota { quota }) => quotas.push(quota),
            result => return result,
        }
    }
}

fn set(client: &mut Tenant, inode: Place, changes: Changes) -> Result<Done> {
    client.submit(Update::SetAttributes { inode, changes })
}

fn directory(world: &mut World, parent: Place, text: &str) -> Place {
    world.create(parent, text, Kind::Directory).unwrap()
}

/// A node that somebody owns.
fn of(kind: Kind, (uid, gid): (u32, u32), mode: u16) -> NewNode {
    NewNode { uid, gid, ..NewNode::new(kind, mode) }
}

/// What the kernel of a machine that is trusted makes.
fn made(world: &mut World, parent: Place, text: &str, node: NewNode) -> Place {
    match world.submit(Update::Create { parent, name: name(text), node }).unwrap() {
        Done::Attributes(made) => made.place,
        other => panic!("{other:?}"),
    }
}

fn write(inode: Place) -> Update {
    let data = Data::Inline(Bytes::from_static(b"x"));
    let pieces = vec![Piece { offset: 0, extent: Extent { len: 1, data } }];
    Update::Write { inode, at: WriteAt::Offset(0), pieces }
}

fn contents(inode: Place) -> Query {
    Query::Contents { inode, offset: 0, len: 1 }
}

fn xattr(inode: Place, text: &str) -> Update {
    let (name, value, mode) = (name(text), Bytes::from_static(b"v"), XattrMode::Any);
    Update::SetXattr { inode, name, value, mode, drops_set_gid: false }
}

fn unlink(parent: Place, text: &str, child: Place) -> Update {
    Update::Unlink { parent, name: name(text), child, keep_for: None }
}

fn link(target: Place, parent: Place, text: &str) -> Update {
    Update::Link { target, parent, name: name(text) }
}

const FILE: Kind = Kind::File;
const DENIED: FsError = FsError::Denied;
const EPERM: FsError = FsError::NotPermitted;

/// Abuse 7: within the directory all goes, and nothing leads out of it.
#[test]
fn a_prefix_holds_through_links_renames_and_parents() {
    let (mut client, mine, theirs) = Tenant::below();
    let foreign = made(&mut client.world, theirs, "secret", of(FILE, (1000, 1000), 0o666));
    client
        .trusted(Update::SetAttributes {
            inode: theirs,
            changes: Changes { mode: Some(0o777), ..Changes::default() },
        })
        .unwrap();
    client.chmod(mine, 0o777).unwrap_err(); // It is root's.
    let changes = Changes { mode: Some(0o777), ..Changes::default() };
    client.trusted(Update::SetAttributes { inode: mine, changes }).unwrap();
    let dir = client.create(mine, "dir", of(Kind::Directory, (1000, 1000), 0o755)).unwrap();
    let deep = client.create(dir, "deep", of(Kind::Directory, (1000, 1000), 0o755)).unwrap();
    let file = client.create(deep, "file", of(FILE, (1000, 1000), 0o644)).unwrap();
    client.submit(write(file)).unwrap();
    client.rename((deep, "file"), (mine, "file")).unwrap();
    client.rename((dir, "deep"), (mine, "deep")).unwrap();
    assert_eq!(client.rename((mine, "dir"), (deep, "dir")).map(|_| ()), Ok(()));
    // Cycles are found though what is above cannot be named.
    assert_eq!(client.rename((mine, "deep"), (dir, "deep")), Err(FsError::Invalid));
    client.submit(link(file, deep, "link")).unwrap();

    assert_eq!(client.submit(link(foreign, mine, "escape")), Err(DENIED));
    assert_eq!(client.submit(link(file, theirs, "escape")), Err(DENIED));
    assert_eq!(client.rename((theirs, "secret"), (mine, "taken")), Err(DENIED));
    assert_eq!(client.rename((mine, "file"), (theirs, "given")), Err(DENIED));
    assert_eq!(client.rename((top(1), "mine"), (top(1), "other")), Err(DENIED));
    assert_eq!(client.submit(unlink(theirs, "secret", foreign)), Err(DENIED));
    assert_eq!(client.submit(unlink(mine, "file", foreign)), Err(DENIED));
    assert_eq!(client.create(theirs, "new", of(FILE, (1000, 1000), 0o644)), Err(DENIED));
    assert_eq!(client.create(top(2), "new", of(FILE, (1000, 1000), 0o644)), Err(DENIED));
    // A symbolic link is nothing but text: what it names is looked up like anything else.
    let target = name("../theirs/secret");
    let symlink = NewNode { target, ..of(Kind::Symlink, (1000, 1000), 0o777) };
    client.create(mine, "symlink", symlink).unwrap();
    let above = Query::Lookup { parent: top(1), name: name("theirs") };
    assert_eq!(client.read(&above), Err(DENIED));
    client.world.check();
}

/// Abuse 7: a directory with a quota of its own is another's, wherever it lies.
#[test]
fn a_quota_below_is_out_of_reach_and_its_attributes_too() {
    let (mut client, mine, _) = Tenant::below();
    let inner = {
        let update = Update::Create {
            parent: mine,
            name: name("inner"),
            node: of(Kind::Directory, (1000, 1000), 0o777),
        };
        client.rights.root = true;
        client.submit(update).unwrap();
        client.world.lookup(mine, "inner").unwrap().0
    };
    let limits = Some(Limits::default());
    client.trusted(Update::SetQuota { inode: inner, parent: mine, limits }).unwrap();
    assert_eq!(client.create(inner, "new", of(FILE, (1000, 1000), 0o644)), Err(DENIED));
    let listed = Query::Directory { inode: mine, after: Bytes::new(), limit: 9 };
    let Ok(Answer::Directory { entries, .. }) = client.read(&listed) else { panic!() };
    assert!(entries.iter().any(|(of, _, shown)| &of[..] == b"inner" && shown.is_none()));
    let Ok(Answer::Entry { attributes, .. }) =
        client.read(&Query::Lookup { parent: mine, name: name("inner") })
    else {
        panic!()
    };
    assert_eq!(attributes, None);
}

/// Abuse 11: the number of a foreign inode is of no use, whatever is asked.
#[test]
fn foreign_inodes_named_by_number_are_refused() {
    let (mut client, mine, theirs) = Tenant::below();
    let world = &mut client.world;
    let inode = made(world, theirs, "secret", of(FILE, (1000, 1000), 0o666));
    let mine_file = made(world, top(1), "public", of(FILE, (1000, 1000), 0o666));
    let owner = LockOwner { client: ME, owner: 1 };
    let (start, end, exclusive, pid) = (0, 9, true, 1);
    let lock = Lock { owner, family: LockFamily::Posix, start, end, exclusive, pid };
    let (partition, inodes) = (GroupId(1), vec![inode.ino]);
    client.rights.root = true; // Not even then.
    let updates = [
        write(inode),
        write(mine_file),
        Update::Extend { inode, size: 9 },
        Update::PunchHole { inode, offset: 0, len: 9 },
        Update::SetAttributes { inode, changes: Changes { size: Some(0), ..Changes::default() } },
        xattr(inode, "user.a"),
        Update::RemoveXattr { inode, name: name("user.a") },
        Update::Lock { inode, lock, ticket: None },
        Update::Hold { client: ME, partition, inodes: inodes.clone() },
        Update::Caps { client: ME, partition, step: CapStep::Grant(inodes) },
        Update::CreateUnnamed { parent: theirs, node: of(FILE, (1000, 1000), 0o600) },
        Update::Rmdir { parent: top(1), name: name("theirs"), child: theirs },
    ];
    for update in updates {
        assert_eq!(client.submit(update.clone()), Err(DENIED), "{update:?}");
    }
    let queries = [
        contents(inode),
        Query::Attributes { inode },
        Query::Directory { inode: theirs, after: Bytes::new(), limit: 9 },
        Query::Lookup { parent: theirs, name: name("secret") },
        Query::Xattrs { inode },
        Query::LockInTheWay { inode, lock },
        Query::Quota { inode },
    ];
    for query in queries {
        assert_eq!(client.read(&query), Err(DENIED), "{query:?}");
    }
    assert!(client.read(&Query::Attributes { inode: mine }).is_ok());
    assert!(client.read(&Query::Totals { partition }).is_ok());
}

/// What nodes say on behalf of a partition, and what others would believe.
#[test]
fn what_only_nodes_say_is_refused() {
    let mut client = Tenant::new(Rights { root: true, ..Rights::default() });
    let (partition, root) = (GroupId(1), top(1));
    let Ok(Answer::Attributes(attributes)) = client.read(&Query::Attributes { inode: root }) else {
        panic!()
    };
    let ts = meridian_core::Stamp(1);
    let expire = CapStep::Expire { renewed: None, inodes: Vec::new() };
    let renewed = (ts, client.world.next_id());
    let updates = [
        Update::Reap { partition, inodes: vec![(Ino(5), ts)] },
        Update::RaiseHorizon { partition, horizon_ms: u64::MAX },
        Update::Count { root, number: 0, stretches: Vec::new(), rest: Vec::new() },
        Update::NoteTop { partition: GroupId::GLOBAL, attributes, ts },
        Update::Expire { client: ME, partition, renewed, inodes: Vec::new() },
        Update::Caps { client: ME, partition, step: expire },
    ];
    for update in updates {
        assert_eq!(client.submit(update.clone()), Err(EPERM), "{update:?}");
    }
    client.rights.root = false;
    let limits = Some(Limits::default());
    let quota = Update::SetQuota { inode: root, parent: Place::ROOT, limits };
    assert_eq!(client.submit(quota), Err(EPERM));
}

/// A backup shows all of the tree, and changes nothing.
#[test]
fn who_may_look_at_all_may_mark_a_snapshot() {
    let mark =
        |world: &World| Update::Mark { partitions: world.partitions.keys().copied().collect() };
    let (mut client, mine, _) = Tenant::below();
    let update = mark(&client.world);
    client.rights.root = true;
    assert_eq!(client.submit(update.clone()), Err(EPERM), "below {mine:?}");
    (client.rights.below, client.rights.read_only) = (None, true);
    assert_eq!(client.submit(update.clone()), Ok(Done::Nothing));
    client.rights.root = false;
    assert_eq!(client.submit(update), Err(EPERM));
}

/// Abuse 8: the errno of a local file system for what belongs to another.
#[test]
fn foreign_files_are_guarded_by_their_modes() {
    let mut client = Tenant::new(machine(&[1000]));
    let world = &mut client.world;
    let home = made(world, top(1), "home", of(Kind::Directory, (2000, 2000), 0o777));
    let [secret, shown, shared] = [("secret", 0o600), ("shown", 0o644), ("shared", 0o666)]
        .map(|(text, mode)| made(world, home, text, of(FILE, (2000, 2000), mode)));
    assert_eq!(client.read(&contents(secret)), Err(DENIED));
    assert!(client.read(&contents(shown)).is_ok());
    assert_eq!(client.submit(write(shown)), Err(DENIED));
    client.submit(write(shared)).unwrap();
    assert_eq!(client.chmod(shared, 0o777), Err(EPERM));
    for (uid, gid) in [(Some(1000), None), (None, Some(1000))] {
        assert_eq!(
            set(&mut client, shared, Changes { uid, gid, ..Changes::default() }),
            Err(EPERM)
        );
    }
    assert_eq!(client.submit(xattr(shown, "user.a")), Err(DENIED));
    assert_eq!(client.submit(xattr(shared, "system.posix_acl_access")), Err(EPERM));
    assert_eq!(client.submit(link(shown, home, "hard")), Err(EPERM));
    client.submit(link(shared, home, "hard")).unwrap();
    // Its own, whatever their modes: what is open stays so.
    let own = client.create(home, "own", of(FILE, (1000, 1000), 0o600)).unwrap();
    client.chmod(own, 0).unwrap();
    client.submit(write(own)).unwrap();
    assert!(client.read(&contents(own)).is_ok());
    assert_eq!(client.create(home, "as", of(FILE, (2000, 1000), 0o600)), Err(EPERM));
}

/// Abuse 8: only owners remove from a sticky directory, whichever partition knows what.
#[test]
fn sticky_directories_guard_names_in_one_partition_and_in_two() {
    let mut client = Tenant::new(machine(&[1000]));
    let world = &mut client.world;
    let tmp = made(world, top(1), "tmp", of(Kind::Directory, (0, 0), 0o1777));
    let theirs = made(world, tmp, "theirs", of(FILE, (2000, 2000), 0o666));
    let far = made(world, top(2), "far", of(FILE, (2000, 2000), 0o666));
    world.submit(link(far, tmp, "far")).unwrap();
    let placed = made(world, tmp, "placed", of(Kind::Directory, (2000, 2000), 0o777));
    world.place(tmp, "placed", 2).unwrap();
    let placed = Place { partition: GroupId(2), ..placed };
    assert_eq!(client.submit(unlink(tmp, "theirs", theirs)), Err(EPERM));
    assert_eq!(client.submit(unlink(tmp, "far", far)), Err(EPERM));
    let rmdir = Update::Rmdir { parent: tmp, name: name("placed"), child: placed };
    assert_eq!(client.submit(rmdir.clone()), Err(EPERM));
    assert_eq!(client.rename((tmp, "far"), (top(1), "near")), Err(EPERM));
    let own = client.create(tmp, "own", of(FILE, (1000, 1000), 0o600)).unwrap();
    assert_eq!(client.rename((tmp, "own"), (tmp, "far")), Err(EPERM));
    client.submit(unlink(tmp, "own", own)).unwrap();
    client.rights = machine(&[1000, 2000]);
    client.submit(unlink(tmp, "far", far)).unwrap();
    client.submit(rmdir).unwrap();
    client.world.check();
}

/// Abuse 8: bits that run a file as another go when it is changed.
#[test]
fn set_id_bits_go_when_another_writes() {
    let mut client = Tenant::new(machine(&[1000]));
    let file = made(&mut client.world, top(1), "su", of(FILE, (2000, 2000), 0o6777));
    let Ok(Done::Written { attributes, .. }) = client.submit(write(file)) else { panic!() };
    assert_eq!(attributes.mode, 0o777);
    assert_eq!(client.world.attributes(file).unwrap().mode, 0o777);
    let link_to = made(&mut client.world, top(1), "runs", of(FILE, (2000, 2000), 0o4777));
    assert_eq!(client.submit(link(link_to, top(1), "kept")), Err(EPERM));
}

/// Access lists count: a user that is named, a group, and the mask.
#[test]
fn lists_of_access_rights_are_asked() {
    let mut client = Tenant::new(Rights { groups: [50].into(), ..machine(&[1000]) });
    let file = made(&mut client.world, top(1), "listed", of(FILE, (2000, 2000), 0o600));
    let entry = |tag: u16, bits: u16, id: u32| {
        [tag.to_le_bytes().to_vec(), bits.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()]
            .concat()
    };
    let list = |client: &mut Tenant, user: u16, group: u16, mask: u16| {
        let none = u32::MAX;
        let entries = [
            entry(1, 6, none),
            entry(2, user, 1000),
            entry(4, 0, none),
            entry(8, group, 50),
            entry(0x10, mask, none),
            entry(0x20, 0, none),
        ];
        let value = [2_u32.to_le_bytes().to_vec(), entries.concat()].concat();
        let (name, mode) = (name("system.posix_acl_access"), XattrMode::Any);
        let value = Bytes::from(value);
        let update = Update::SetXattr { inode: file, name, value, mode, drops_set_gid: false };
        client.world.submit(update).unwrap();
    };
    assert_eq!(client.read(&contents(file)), Err(DENIED));
    list(&mut client, 4, 0, 7);
    assert!(client.read(&contents(file)).is_ok());
    assert_eq!(client.submit(write(file)), Err(DENIED));
    list(&mut client, 0, 6, 7);
    client.submit(write(file)).unwrap();
    list(&mut client, 6, 6, 4);
    assert_eq!(client.submit(write(file)), Err(DENIED), "the mask takes it");
}

/// Abuse 9: root of a squashed machine is nobody.
#[test]
fn root_of_a_squashed_machine_is_nobody() {
    let mut client = Tenant::new(machine(&[]));
    let file = client.create(top(1), "made", of(FILE, (0, 0), 0o6755)).unwrap();
    let shown = client.world.attributes(file).unwrap();
    assert_eq!(((shown.uid, shown.gid), shown.mode), (NOBODY, 0o755));
    let theirs = made(&mut client.world, top(1), "root's", of(FILE, (0, 0), 0o600));
    assert_eq!(client.read(&contents(theirs)), Err(DENIED));
    assert_eq!(client.submit(write(theirs)), Err(DENIED));
    assert_eq!(client.chmod(theirs, 0o666), Err(EPERM));
    for changes in [
        Changes { uid: Some(0), ..Changes::default() },
        Changes { gid: Some(0), ..Changes::default() },
        Changes { uid: Some(1000), ..Changes::default() },
    ] {
        assert_eq!(set(&mut client, file, changes), Err(EPERM));
    }
    for kind in [Kind::BlockDevice, Kind::CharDevice] {
        let device = NewNode { rdev: 0x801, ..of(kind, (0, 0), 0o666) };
        assert_eq!(client.create(top(1), "device", device), Err(EPERM));
    }
    assert_eq!(client.submit(xattr(file, "trusted.a")), Err(EPERM));
    assert_eq!(client.submit(xattr(file, "security.capability")), Err(EPERM));
    client.world.submit(xattr(file, "trusted.b")).unwrap();
    let asked = Query::Xattr { inode: file, name: name("trusted.b") };
    assert_eq!(client.read(&asked), Err(FsError::NoAttribute));
    assert_eq!(client.read(&Query::Xattrs { inode: file }), Ok(Answer::Names(Vec::new())));
    let whiteout = Some(Whiteout { uid: 0, gid: 0 });
    let mut update =
        client.world.rename_update((top(1), "made"), (top(1), "moved"), RenameMode::Replace, None);
    if let Ok(Update::Rename { whiteout: of, .. }) = &mut update {
        *of = whiteout;
    }
    client.submit(update.unwrap()).unwrap();
    let left = client.world.lookup(top(1), "made").unwrap().0;
    assert_eq!(client.world.attributes(left).unwrap().uid, NOBODY.0);
    client.rights.root = true;
    let own = client.create(top(1), "real", of(FILE, (0, 0), 0o4755)).unwrap();
    assert_eq!(client.world.attributes(own).unwrap().uid, 0);
}

#[test]
fn only_its_owner_says_when_what_is_done_in_a_directory_is_durable() {
    let mut client = Tenant::new(machine(&[1000]));
    let [own, theirs] = [("own", 1000), ("theirs", 1001)].map(|(text, uid)| {
        made(&mut client.world, top(1), text, of(Kind::Directory, (uid, uid), 0o777))
    });
    let set = |inode| Update::SetDurability { inode, durability: Some(Durability::Fsync) };
    client.submit(set(own)).unwrap();
    assert_eq!(client.submit(set(theirs)), Err(EPERM), "who may write there may not set it");
    assert_eq!(client.world.attributes(theirs).unwrap().durability(), None);
    client.rights.read_only = true;
    assert_eq!(client.submit(set(own)), Err(FsError::ReadOnly));
    client.rights = Rights { root: true, ..machine(&[]) };
    client.submit(set(theirs)).unwrap();
}

#[test]
fn who_may_only_read_changes_nothing() {
    let mut client = Tenant::new(Rights { read_only: true, ..machine(&[]) });
    let file = made(&mut client.world, top(1), "file", of(FILE, (1000, 1000), 0o666));
    let read_only = Err(FsError::ReadOnly);
    let before = client.world.partitions[&GroupId(1)].clone();
    let updates = [
        write(file),
        unlink(top(1), "file", file),
        link(file, top(1), "more"),
        xattr(file, "user.a"),
        Update::Create { parent: top(1), name: name("new"), node: of(FILE, (1, 1), 0o600) },
        Update::SetAttributes { inode: file, changes: Changes::default() },
    ];
    for update in updates {
        assert_eq!(client.submit(update.clone()), read_only, "{update:?}");
    }
    let shown = Query::Directory { inode: top(1), after: Bytes::new(), limit: 9 };
    assert_eq!(client.read(&shown), before.read(&shown));
    assert!(client.read(&contents(file)).is_ok());
    let partition = GroupId(1);
    client.submit(Update::Hold { client: ME, partition, inodes: vec![file.ino] }).unwrap();
}

/// A file that has lost its name, or never had one, stays in reach of those who had it in reach.
#[test]
fn files_without_a_name_stay_in_reach() {
    let (mut client, mine, theirs) = Tenant::below();
    let changes = Changes { mode: Some(0o777), ..Changes::default() };
    client.trusted(Update::SetAttributes { inode: mine, changes }).unwrap();
    let file = client.create(mine, "file", of(FILE, (1000, 1000), 0o644)).unwrap();
    let keep_for = Some(ME);
    client
        .submit(Update::Unlink { parent: mine, name: name("file"), child: file, keep_for })
        .unwrap();
    client.submit(write(file)).unwrap();
    let node = of(FILE, (1000, 1000), 0o644);
    let Ok(Done::Attributes(unnamed)) = client.submit(Update::CreateUnnamed { parent: mine, node })
    else {
        panic!()
    };
    client.submit(write(unnamed.place)).unwrap();
    client.submit(link(unnamed.place, mine, "named")).unwrap();
    client.submit(write(unnamed.place)).unwrap();
    let foreign = client.world.create(theirs, "gone", FILE).unwrap();
    let gone = Update::Unlink { parent: theirs, name: name("gone"), child: foreign, keep_for };
    client.world.submit(gone).unwrap();
    assert_eq!(client.submit(write(foreign)), Err(DENIED));
    assert_eq!(client.read(&contents(foreign)), Err(DENIED));
    client.world.check();
}

/// Whatever a hostile client draws, nothing changes that it does not reach, nothing becomes
/// root's, and no partition panics.
#[test]
fn forged_updates_change_nothing_out_of_reach() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let (mut client, mine, theirs) = Tenant::below();
        let world = &mut client.world;
        let changes = Changes { mode: Some(0o777), ..Changes::default() };
        submit(world, None, Update::SetAttributes { inode: mine, changes }).unwrap();
        let foreign = made(world, theirs, "a", of(FILE, (1000, 1000), 0o666));
        let far = made(world, top(2), "a", of(FILE, (1000, 1000), 0o666));
        let mut places = vec![mine, theirs, foreign, far, top(1), top(2), Place::ROOT];
        let shown: Vec<_> = places[1..].iter().map(|of| world.attributes(*of).unwrap()).collect();
        for step in 0..60 {
            let update = forged(&mut rng, &places, step);
            if let Ok(Done::Attributes(made)) = client.submit(update)
                && !places.contains(&made.place)
            {
                places.push(made.place);
            }
        }
        for before in shown {
            assert_eq!(client.world.attributes(before.place), Ok(before), "seed {seed}");
        }
        for place in &places[7..] {
            let uid = client.world.attributes(*place).map(|of| of.uid);
            assert_ne!(uid, Ok(0), "seed {seed}: {place:?}");
        }
        client.world.check();
    }
}

fn forged(rng: &mut Rng, places: &[Place], step: u64) -> Update {
    let names = ["a", "b", "mine", "theirs", "us"];
    let word = |rng: &mut Rng| names[usize::try_from(rng.below(5)).unwrap()];
    let text = |rng: &mut Rng| name(word(rng));
    let (inode, parent) = (*rng.pick(places), *rng.pick(places));
    let uid = u32::try_from(rng.below(3) * 1000).unwrap();
    match rng.below(9) {
        0 => {
            let kind = *rng.pick(&[FILE, Kind::Directory, Kind::CharDevice]);
            let name = name(&format!("n{step}"));
            Update::Create { parent, name, node: of(kind, (uid, uid), 0o6777) }
        }
        1 => link(inode, parent, word(rng)),
        2 => unlink(parent, word(rng), inode),
        3 => Update::Rmdir { parent, name: text(rng), child: inode },
        4 => write(inode),
        5 => {
            let all = ["user.a", "trusted.a", "security.capability"];
            xattr(inode, all[usize::try_from(rng.below(3)).unwrap()])
        }
        6 => {
            let changes = Changes { uid: Some(uid), mode: Some(0o6777), ..Changes::default() };
            Update::SetAttributes { inode, changes }
        }
        7 => Update::CreateUnnamed { parent, node: of(FILE, (uid, uid), 0o777) },
        _ => {
            let (from_name, to_name) = (text(rng), text(rng));
            let replaced = rng.chance(50).then(|| *rng.pick(places));
            let mode = *rng.pick(&[RenameMode::Replace, RenameMode::Exchange]);
            let ancestors = (0..rng.below(3)).map(|_| *rng.pick(places)).collect();
            let (from, to, moved) = (parent, *rng.pick(places), inode);
            let (keep_for, whiteout) = (None, None);
            Update::Rename {
                from,
                from_name,
                to,
                to_name,
                moved,
                replaced,
                mode,
                ancestors,
                keep_for,
                whiteout,
            }
        }
    }
}
