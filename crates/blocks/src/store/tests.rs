use super::*;
use meridian_storage::disk::read_all;
use meridian_storage::sim_disk::SimDisk;
use proptest::prelude::*;

const DIR: &str = "/blocks";
const SALT: u64 = 77;

fn open(disk: &SimDisk) -> Result<(Store, Findings), OpenError> {
    let options = Options { segment_bytes: 4096, salt: SALT, reserve_bytes: 0 };
    Store::open(Arc::new(disk.clone()), Path::new(DIR), options)
}

fn segment(number: u64) -> PathBuf {
    Path::new(DIR).join(name_of(number))
}

/// The data of a block; of 1 to some hundred bytes.
fn data(block: u128) -> Vec<u8> {
    vec![block as u8; 1 + (block as usize * 131) % 900]
}

fn get(store: &Store, block: u128) -> Result<Bytes, BlockError> {
    store.blocks().get(BlockId(block), 0, u32::MAX)
}

/// Opens, checks what must be there, puts some more with a sync now and then.
fn live(disk: &SimDisk, put: &mut u128, durable: &mut u128) -> Option<()> {
    let mut store = match open(disk) {
        Ok((store, _)) => store,
        Err(_) if disk.is_off() => return None,
        Err(error) => panic!("{error}"),
    };
    for block in 0..*put {
        match get(&store, block) {
            Ok(found) => assert_eq!(found, data(block)),
            Err(BlockError::NoBlock(_)) => assert!(block >= *durable, "block {block} is lost"),
            Err(error) => panic!("{error}"),
        }
    }
    // Those that were never acknowledged are put again, as their clients would.
    for block in *durable..*durable + 25 {
        *put = (*put).max(block + 1);
        store.put(BlockId(block), &data(block)).ok()?;
        if block % 4 == 0 {
            store.sync().ok()?;
            *durable = block + 1;
        }
    }
    Some(())
}

/// S1, when writes that were not synced are lost, kept in part, torn or reordered.
#[test]
fn after_a_crash_at_any_operation_all_synced_blocks_are_there() {
    for seed in 0..10 {
        for cut in 1.. {
            let (disk, mut put, mut durable) = (SimDisk::new(), 0, 0);
            disk.cut_power_at(cut);
            let ended = live(&disk, &mut put, &mut durable);
            for again in 0..3 {
                disk.restart(seed * 1_000 + cut * 10 + again);
                if again == 0 {
                    disk.cut_power_at(disk.operations() + 1 + (cut + seed) % 30);
                }
                let lived = live(&disk, &mut put, &mut durable);
                assert!(again == 0 || lived.is_some());
            }
            if ended.is_some() {
                assert!(cut > 30, "only {cut} operations");
                break;
            }
        }
    }
}

/// Three blocks, each synced.
fn three() -> (SimDisk, Vec<u64>) {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let mut offsets = Vec::new();
    for block in 0..3 {
        offsets.push(store.end);
        store.put(BlockId(block), &data(block)).unwrap();
        store.sync().unwrap();
    }
    (disk, offsets)
}

#[test]
fn a_damaged_block_is_never_served_and_can_be_put_again() {
    let (disk, offsets) = three();
    disk.flip(&segment(1), offsets[1] + HEADER_LEN as u64 + 5, 2);
    for _ in 0..2 {
        let (store, _) = open(&disk).unwrap();
        assert!(matches!(get(&store, 1), Err(BlockError::Damaged(BlockId(1)))));
        assert_eq!(get(&store, 0).unwrap(), data(0));
        assert_eq!(get(&store, 2).unwrap(), data(2));
    }
    let (mut store, _) = open(&disk).unwrap();
    store.put(BlockId(1), &data(1)).unwrap();
    store.sync().unwrap();
    assert_eq!(get(&store, 1).unwrap(), data(1));
    assert_eq!(store.blocks().counters().blocks, 3);
    assert_eq!(get(&open(&disk).unwrap().0, 1).unwrap(), data(1));
}

#[test]
fn a_damaged_header_hurts_no_other_block() {
    let (disk, offsets) = three();
    disk.flip(&segment(1), offsets[1] + 5, 2);
    let (store, findings) = open(&disk).unwrap();
    assert_eq!(findings.damaged, [(segment(1), offsets[1])]);
    assert_eq!(findings.cut, None);
    assert!(matches!(get(&store, 1), Err(BlockError::NoBlock(_))));
    assert_eq!(get(&store, 2).unwrap(), data(2));
}

#[test]
fn a_torn_tail_is_cut() {
    let (disk, offsets) = three();
    disk.flip(&segment(1), offsets[2] + HEADER_LEN as u64, 2);
    let (mut store, findings) = open(&disk).unwrap();
    assert_eq!(findings.cut, Some((segment(1), offsets[2])));
    assert_eq!(findings.damaged, []);
    assert!(findings.reach > store.blocks().reach(), "what was cut shows how far it went");
    assert!(matches!(get(&store, 2), Err(BlockError::NoBlock(_))));
    store.put(BlockId(2), &data(2)).unwrap();
    store.sync().unwrap();
    let (store, findings) = open(&disk).unwrap();
    assert_eq!((findings.cut, findings.damaged.len()), (None, 0));
    assert_eq!(findings.reach, store.blocks().reach());
    assert_eq!(get(&store, 2).unwrap(), data(2));
}

/// After a sync that failed the page cache may hold what the disk never got.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_written_again_before_it_counts() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    store.put(BlockId(0), &data(0)).unwrap();
    store.sync().unwrap();
    store.put(BlockId(1), &data(1)).unwrap();
    disk.fail_sync_at(disk.syncs() + 1);
    assert!(matches!(store.sync(), Err(BlockError::Io { .. })));
    assert!(matches!(store.put(BlockId(2), &data(2)), Err(BlockError::Closed)));
    let (mut store, _) = open(&disk).unwrap();
    store.put(BlockId(1), &data(1)).unwrap();
    store.sync().unwrap();
    disk.restart(4);
    assert_eq!(get(&open(&disk).unwrap().0, 1).unwrap(), data(1));
}

#[test]
fn lengths_are_checked() {
    let (mut store, _) = open(&SimDisk::new()).unwrap();
    assert!(matches!(store.put(BlockId(1), b""), Err(BlockError::Length(0))));
    let long = vec![0; MAX_BLOCK + 1];
    assert!(matches!(store.put(BlockId(1), &long), Err(BlockError::Length(_))));
    store.put(BlockId(1), &long[1..]).unwrap(); // Longer than a segment.
    assert_eq!(get(&store, 1).unwrap().len(), MAX_BLOCK);
    assert_eq!(store.blocks().get(BlockId(1), 10, 4).unwrap(), vec![0; 4]);
    assert_eq!(store.blocks().get(BlockId(1), MAX_BLOCK as u32, 4).unwrap(), vec![]);
}

/// Moves and removes until nothing is to be done.
fn tidy(store: &mut Store) {
    while store.is_untidy() {
        store.move_some(1_000).unwrap();
        store.sync().unwrap();
        store.remove_empty().unwrap();
    }
}

/// Churn: of what is written all but the last few are freed.
#[test]
fn the_room_of_freed_blocks_comes_back() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let mut most = 0;
    for block in 0..2_000 {
        store.put(BlockId(block), &data(block)).unwrap();
        if let Some(old) = block.checked_sub(10).filter(|old| old % 50 != 0) {
            assert_eq!(store.free([BlockId(old), BlockId(old)]), 1);
        }
        tidy(&mut store);
        let held = store.blocks().counters().bytes;
        most = most.max(store.blocks().disk_bytes().saturating_sub(2 * held));
    }
    assert!(most <= 5 * 4096, "{most} bytes more than twice what is held");
    let on_disk: u64 = disk.files().iter().map(|(_, len)| *len).sum();
    assert!(on_disk <= store.blocks().disk_bytes() + 100, "{on_disk} bytes on the disk");
    let (store, _) = open(&disk).unwrap();
    for block in (0..2_000).filter(|block| block % 50 == 0 || *block > 1_989) {
        assert_eq!(get(&store, block).unwrap(), data(block));
    }
}

/// S4, with power cut at each operation.
#[test]
fn nothing_that_is_held_is_lost_while_segments_are_emptied() {
    assert!(emptying_loses(Mutation::Correct).is_none());
    assert!(emptying_loses(Mutation::RemovesEarly).is_some(), "a planted bug");
}

fn emptying_loses(mutation: Mutation) -> Option<u128> {
    let kept = |block: &u128| block.is_multiple_of(4);
    for cut in 1..500 {
        let disk = SimDisk::new();
        let options = Options { segment_bytes: 4096, salt: SALT, reserve_bytes: 0 };
        let dir = Path::new(DIR);
        let opened = Store::open_mutated(Arc::new(disk.clone()), dir, options, mutation);
        let mut store = opened.unwrap().0;
        (0..40).for_each(|block| store.put(BlockId(block), &data(block)).unwrap());
        store.sync().unwrap();
        disk.cut_power_at(disk.operations() + cut);
        store.free((0..40).filter(|block| !kept(block)).map(BlockId));
        let mut ended = true;
        while ended && store.is_untidy() {
            ended = store.move_some(1_000).is_ok();
            ended &= (mutation == Mutation::RemovesEarly || store.sync().is_ok())
                && store.remove_empty().is_ok();
        }
        disk.restart(cut);
        let (store, _) = open(&disk).unwrap();
        let lost = |block: &u128| !get(&store, *block).is_ok_and(|found| found == data(*block));
        if let Some(lost) = (0..40).filter(kept).find(lost) {
            return Some(lost);
        }
        if ended {
            return None;
        }
    }
    None
}

/// What is left of a damaged segment is not thrown away: it may be all that there is.
#[test]
fn a_segment_that_cannot_be_read_stays() {
    segment_damaged_at(HEADER_LEN as u64);
}

/// The place of the block is known, and what follows is found.
#[test]
fn a_segment_of_which_a_header_cannot_be_read_stays() {
    segment_damaged_at(8);
}

/// What is left of the first segment when so many bytes behind the start of a block are damaged.
fn segment_damaged_at(after: u64) {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let mut offsets = Vec::new();
    for block in 0..40 {
        offsets.push((store.newest, store.end));
        store.put(BlockId(block), &data(block)).unwrap();
    }
    store.sync().unwrap();
    let in_first = offsets.iter().filter(|(newest, _)| *newest == offsets[1].0).count();
    disk.flip(&segment(offsets[1].0), offsets[1].1 + after, 1);
    store.free((2..in_first as u128).map(BlockId));
    tidy(&mut store);
    assert!(disk.files().iter().any(|(path, _)| *path == segment(offsets[1].0)));
    assert!(matches!(get(&store, 1), Err(BlockError::Damaged(BlockId(1)))));
    assert_eq!(get(&store, 0).unwrap(), data(0));
}

/// A full disk stops the moving and nothing else, until something is freed.
#[test]
fn on_a_full_disk_segments_that_are_empty_still_go() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    (0..60).for_each(|block| store.put(BlockId(block), &data(block)).unwrap());
    store.sync().unwrap();
    disk.set_capacity(Some(disk.files().iter().map(|(_, len)| *len).sum()));
    let before = store.blocks().disk_bytes();
    store.free((1..60).filter(|block| block % 3 != 0).map(BlockId));
    tidy(&mut store);
    store.free((0..57).map(BlockId));
    tidy(&mut store);
    assert!(
        store.blocks().disk_bytes() < before / 2,
        "{} of {before} bytes left",
        store.blocks().disk_bytes()
    );
    assert_eq!(get(&store, 57).unwrap(), data(57));
}

/// Blocks leave what is reserved, those that are moved half of it, and all goes on by itself when
/// there is room.
#[test]
fn blocks_leave_what_is_reserved_for_others() {
    const RESERVE: u64 = 3 * 4096;
    let filled = |mutation| {
        let disk = SimDisk::new();
        disk.set_capacity(Some(20 * 4096));
        let options = Options { segment_bytes: 4096, salt: SALT, reserve_bytes: RESERVE };
        let dir = Path::new(DIR);
        let opened = Store::open_mutated(Arc::new(disk.clone()), dir, options, mutation);
        let mut store = opened.unwrap().0;
        let stored = (0..).take_while(|block| store.put(BlockId(*block), &data(*block)).is_ok());
        (stored.count() as u128, store, disk)
    };
    let (stored, mut store, disk) = filled(Mutation::Correct);
    assert!((RESERVE..RESERVE + 4096).contains(&store.blocks().room().unwrap().free));
    assert!(matches!(store.put(BlockId(stored), &data(stored)), Err(BlockError::Full)));
    // Every other block goes, so that no segment is empty.
    store.free((0..stored).filter(|block| block % 2 == 0).map(BlockId));
    tidy(&mut store);
    assert!(store.blocks().room().unwrap().free >= RESERVE + 4096, "the reserve is whole again");
    assert!((1..stored).step_by(2).all(|block| get(&store, block).unwrap() == data(block)));
    store.put(BlockId(stored), &data(stored)).unwrap();
    assert!(store.blocks().room().unwrap().free >= RESERVE);
    disk.set_capacity(Some(0));
    let mut put = |block| store.put(BlockId(block), &data(block));
    assert!((stored + 1..stored + 100).any(|block| put(block).is_err()));
    disk.set_capacity(None);
    store.put(BlockId(stored + 200), &data(0)).unwrap();
    // The checker notices who does not mind.
    let (_, store, _) = filled(Mutation::TakesReserve);
    assert!(!PLANTED_BUGS || store.blocks().room().unwrap().free < RESERVE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_put_is_got_whatever_is_opened_between(
        steps in proptest::collection::vec((0..20u128, 0..10u8), 1..60)
    ) {
        let disk = SimDisk::new();
        let (mut store, _) = open(&disk).unwrap();
        let mut held = BTreeMap::new();
        for (block, what) in steps {
            match what {
                0 => store = open(&disk).unwrap().0,
                1 => {
                    store.sync().unwrap();
                    disk.restart(block as u64);
                    store = open(&disk).unwrap().0;
                }
                _ => {
                    store.put(BlockId(block), &data(block)).unwrap();
                    held.insert(block, data(block));
                }
            }
            let bytes = held.values().map(|data| data.len() as u64).sum();
            let counters = Counters { blocks: held.len() as u64, bytes };
            prop_assert_eq!(store.blocks().counters(), counters);
            for (block, data) in &held {
                prop_assert_eq!(&get(&store, *block).unwrap()[..], &data[..]);
            }
        }
    }

    /// S2: whatever the disk does to its bytes.
    #[test]
    fn no_damage_makes_wrong_data(at: u64, bit in 0..8u8) {
        let (disk, _) = three();
        let len = read_all(&*disk.open(&segment(1)).unwrap()).unwrap().len() as u64;
        disk.flip(&segment(1), at % len, bit);
        let (store, _) = open(&disk).unwrap();
        for block in 0..3 {
            if let Ok(found) = get(&store, block) {
                prop_assert_eq!(&found[..], &data(block)[..]);
            }
        }
    }
}

/// Decision 106.
#[test]
fn the_disk_is_told_of_long_blocks_and_of_no_byte_beside_them() {
    let disk = SimDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let long = vec![1; long::LONG_LEN as usize];
    for (block, data) in [(1, &long[1..]), (2, &long[..]), (3, &long[1..])] {
        store.put(BlockId(block), data).unwrap();
    }
    for block in [1, 3, 4] {
        store.blocks().will_read(BlockId(block));
        assert_eq!(disk.told(), 0);
    }
    store.blocks().will_read(BlockId(2));
    assert_eq!(disk.told(), (HEADER_LEN + long.len()) as u64);
}
