//! Abuse 11: names of blocks that are guessed, taken or forged, and what they lead to.

use crate::harness::eventually;
use crate::random::Random;
use crate::secured::{NODES, Port};
use crate::tenancy::{Program, Tenancy, US, create, place, write};
use meridian_core::BlockId;
use meridian_fs::types::Data;
use meridian_fs::{FsError, Place, Query, Vector};
use meridian_host::api::{Refusal, ReplyBody, RequestBody, SnapshotStep};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is drawn from.
const SEED: u64 = 11;
/// So many names are guessed near each that there is, at each node.
const GUESSES: usize = 40;
/// What is in files of others; a block has a megabyte.
const SECRET: u8 = 0x5a;
const LEN: usize = 3 << 20;
/// A file whose bytes are nowhere is known to be lost long before a client gives up, in 30 s.
const SOON: Duration = Duration::from_secs(10);
/// What the tenant has in its own.
const OWN: u8 = 0x11;

#[test]
fn names_of_blocks_lead_to_nothing_of_others() {
    let tenancy = Tenancy::start(&["--none"]);
    let other = tenancy.all.room.path("mnt/us/other");
    store(&other.join("secret"), LEN);
    let foreign = all_blocks(&tenancy);
    assert!(foreign.len() >= LEN >> 20, "{foreign:?}");
    nobody_tells_a_name(&tenancy, place(&other.join("secret")));
    a_guess_finds_nothing(&tenancy, &foreign);
    what_is_taken_stays_as_it_is(&tenancy, &foreign, &other.join("secret"));
    who_may_only_look_stores_nothing(&tenancy);
    a_forged_file_shows_nothing(&tenancy, &foreign);
    what_was_freed_is_gone(&tenancy, &other);
    assert!(fs::read(other.join("secret")).unwrap() == vec![SECRET; LEN]);
    tenancy.end();
}

/// A file of somebody else's, in blocks.
fn store(path: &Path, len: usize) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(&vec![SECRET; len]).and(file.sync_all()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A program that may do all that clients may.
fn trusted(tenancy: &Tenancy, node: &str) -> Program {
    Program::call(&tenancy.all, tenancy.all.port(Port::Node, node), "client")
}

/// The names of all blocks that there are.
fn all_blocks(tenancy: &Tenancy) -> Vec<BlockId> {
    let named = |node| match trusted(tenancy, node).ask(&RequestBody::ListBlocks { after: None }) {
        ReplyBody::Blocks(blocks) => blocks,
        other => panic!("{other:?}"),
    };
    let mut blocks: Vec<_> = NODES.into_iter().flat_map(named).collect();
    blocks.sort();
    blocks.dedup();
    blocks
}

fn get(block: BlockId) -> RequestBody {
    RequestBody::GetBlock { block, offset: 0, len: 1 << 20 }
}

/// Whether it is refused so.
fn refused(answer: &ReplyBody, why: &str) -> bool {
    matches!(answer, ReplyBody::Refused(Refusal::Bad(said)) if said.contains(why))
}

/// The file itself, a list of blocks, a snapshot.
fn nobody_tells_a_name(tenancy: &Tenancy, secret: Place) {
    for node in NODES {
        let mut program = tenancy.call(node);
        let contents = Query::Contents { inode: secret, offset: 0, len: 1 << 20 };
        let answer = program.read(&Vector::default(), contents.clone());
        let denied = matches!(&answer, ReplyBody::Answer { result: Err(FsError::Denied), .. });
        assert!(denied, "{answer:?}");
        let answer = program.ask(&RequestBody::ListBlocks { after: None });
        assert!(refused(&answer, "may not list blocks"), "{answer:?}");
        for step in [SnapshotStep::Keep, SnapshotStep::Renew] {
            let asked = RequestBody::Snapshot { group: US, name: 1, step };
            let answer = program.ask(&asked);
            assert!(refused(&answer, "a snapshot shows all"), "{answer:?}");
        }
    }
}

/// Near a name that there is: of the same moment, or of the next.
fn a_guess_finds_nothing(tenancy: &Tenancy, foreign: &[BlockId]) {
    let mut random = Random::new(SEED);
    for node in NODES {
        let mut program = tenancy.call(node);
        for block in foreign {
            for number in 0..GUESSES {
                let (born, drawn) = match number % 4 {
                    0 => (block.born_ms(), block.0 as u64 ^ 1 << random.below(64)),
                    1 => (block.born_ms(), random.next()),
                    2 => (block.born_ms() + 1, block.0 as u64),
                    _ => (block.born_ms(), (block.0 as u64).wrapping_add(number as u64)),
                };
                let guess = BlockId::named(US, born, drawn);
                let answer = program.ask(&get(guess));
                assert_eq!(answer, ReplyBody::Refused(Refusal::NoBlock(guess)));
            }
        }
    }
}

/// Who has learnt a name in whatever way stores something else under it, also at nodes that do not
/// have the block, and says that nobody needs it.
fn what_is_taken_stays_as_it_is(tenancy: &Tenancy, foreign: &[BlockId], path: &Path) {
    for node in NODES {
        let mut program = tenancy.call(node);
        for block in foreign {
            let data = vec![OWN; 1 << 20].into();
            let answer = program.ask(&RequestBody::PutBlock { block: *block, data });
            assert!(refused(&answer, "in use"), "{answer:?} at {node}");
        }
        let blocks = foreign.to_vec();
        assert_eq!(program.ask(&RequestBody::Discard { blocks }), ReplyBody::Discarded);
    }
    let mut copies = 0;
    for node in NODES {
        for block in foreign {
            match trusted(tenancy, node).ask(&get(*block)) {
                ReplyBody::Block(data) => {
                    assert!(data.iter().all(|byte| *byte == SECRET), "{block} at {node}");
                    copies += 1;
                }
                other => assert_eq!(other, ReplyBody::Refused(Refusal::NoBlock(*block))),
            }
        }
    }
    assert_eq!(copies, 2 * foreign.len(), "each is on two nodes as before");
    assert!(fs::read(path).unwrap() == vec![SECRET; LEN]);
}

fn who_may_only_look_stores_nothing(tenancy: &Tenancy) {
    let of = |words: &[&str]| {
        tenancy
            .all
            .changed(&[&["allow", "lab", "--below", "/us/lab", "--uid", "1000"], words].concat());
    };
    of(&["--read-only"]);
    let block = BlockId::named(US, 1 << 40, 1);
    let data = vec![OWN; 100].into();
    let answer = tenancy.call("us-1").ask(&RequestBody::PutBlock { block, data });
    assert!(refused(&answer, "read-only"), "{answer:?}");
    of(&[]);
}

/// A block that is read beyond its end, and files whose extents lie in it and in none.
fn a_forged_file_shows_nothing(tenancy: &Tenancy, foreign: &[BlockId]) {
    let mut program = tenancy.call("us-1");
    let own = BlockId::named(US, foreign[0].born_ms() + 1, 5);
    for node in NODES {
        let mut program = tenancy.call(node);
        let data = vec![OWN; 100].into();
        let stored = program.ask(&RequestBody::PutBlock { block: own, data });
        assert_eq!(stored, ReplyBody::Stored);
        let mut beyond =
            |offset| match program.ask(&RequestBody::GetBlock { block: own, offset, len: 1 << 20 })
            {
                ReplyBody::Block(data) => data.to_vec(),
                other => panic!("{other:?}"),
            };
        assert_eq!(beyond(90), vec![OWN; 10]);
        assert!([100, 5000, u32::MAX].map(beyond).concat().is_empty());
    }
    is_lost(tenancy, &mut program, (400, "beyond"), own);
    let nowhere = BlockId::named(US, foreign[0].born_ms(), foreign[0].0 as u64 ^ 1);
    is_lost(tenancy, &mut program, (300, "nowhere"), nowhere);
}

/// A new file that is forged to lie in that block cannot be read.
fn is_lost(
    tenancy: &Tenancy,
    program: &mut Program,
    (session, name): (u64, &'static str),
    block: BlockId,
) {
    let file = program.made(&tenancy.update(session, 1, create(tenancy.lab, name)));
    let data = Data::Block { block, start: 0 };
    let (ended, _) = program.done(&tenancy.update(session, 2, write(file, 5000, data)));
    assert!(ended.2.is_ok(), "nobody knows yet: {ended:?}");
    let mount = tenancy.all.mount("lab", "lab");
    let begun = Instant::now();
    let shown = fs::read(mount.mount().join(name));
    assert_eq!(shown.map(drop).unwrap_err().raw_os_error(), Some(libc::EIO), "{name}");
    assert!(begun.elapsed() < SOON, "{name}: {:?}", begun.elapsed());
    mount.stop();
}

/// The name of a block that somebody has removed, whatever way it was learnt, leads nowhere once
/// the block is freed; nor does a file that is made of it.
fn what_was_freed_is_gone(tenancy: &Tenancy, other: &Path) {
    let before = all_blocks(tenancy);
    store(&other.join("removed"), 1 << 20);
    let mut blocks = all_blocks(tenancy);
    blocks.retain(|block| !before.contains(block));
    let block = *blocks.first().expect("it lies in a block");
    fs::remove_file(other.join("removed")).unwrap();
    eventually("the block is freed", || !all_blocks(tenancy).contains(&block));
    let mut program = tenancy.call("us-1");
    for node in NODES {
        let answer = tenancy.call(node).ask(&get(block));
        assert_eq!(answer, ReplyBody::Refused(Refusal::NoBlock(block)));
    }
    is_lost(tenancy, &mut program, (500, "freed"), block);
}
