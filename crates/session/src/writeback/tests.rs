use super::birth::{BIRTH_AGE, Birth};
use super::flush::{BATCHES, Landed, Sent, Step};
use super::*;
use crate::blocks::Block;
use bytes::Bytes;
use meridian_core::BlockId;
use meridian_fs::operation::{Changes, NewNode, Piece, WriteAt};
use meridian_fs::settled::Made;
use meridian_fs::types::{Attributes, Data, INLINE_MAX, Ino, Kind, Place};
use meridian_fs::{FsError, Update};

const NOW: Time = Time(7);
const TIME: Timestamp = Timestamp { seconds: 3, nanos: 0 };
const FILE: Place = Place { ino: Ino::ROOT, partition: meridian_core::GroupId(1) };

type File = WriteBack<u8, FsError>;

fn long() -> Vec<u8> {
    vec![b'l'; INLINE_MAX + 1]
}

fn put(file: &mut File, offset: Option<u64>, data: &[u8]) -> Accepted {
    file.accept(offset, data, TIME, NOW)
}

/// The next step that is seen outside: a batch is packed on the way.
fn step(file: &mut File) -> Step {
    match file.next_step() {
        Step::Pack(packing) => {
            let mut last = 0;
            let packed = packing.pack(FILE, || {
                last += 1;
                BlockId(last)
            });
            file.on_packed(packed);
            file.next_step()
        }
        step => step,
    }
}

/// What the next step is, in words.
fn doing(file: &mut File) -> String {
    match step(file) {
        Step::Pack(_) => "packs again".into(),
        Step::Store(blocks) => format!("stores {}", blocks.len()),
        Step::Send { update: Update::Write { at, pieces, .. }, .. } => {
            let bytes: u32 = pieces.iter().map(|piece| piece.extent.len).sum();
            match at {
                WriteAt::Offset(offset) => format!("sends {bytes} at {offset}"),
                WriteAt::End => format!("appends {bytes}"),
            }
        }
        Step::Send { update, .. } => panic!("{update:?}"),
        Step::Again => "again".into(),
        Step::Done => "done".into(),
    }
}

fn land(file: &mut File, size: u64) -> u64 {
    match file.on_answer(Sent::Written { size }) {
        Ok(Landed::Written { span }) => span,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_leave_in_the_order_in_which_they_came() {
    let mut file = File::default();
    assert_eq!(put(&mut file, Some(5), b"a"), Accepted::Buffered);
    assert_eq!(put(&mut file, None, b"bb"), Accepted::Buffered);
    assert_eq!(put(&mut file, Some(0), b"c"), Accepted::FlushFirst);
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "sends 1 at 5");
    assert_eq!(put(&mut file, Some(0), b"c"), Accepted::FlushFirst);
    assert_eq!(land(&mut file, 6), 1);
    assert_eq!(doing(&mut file), "appends 2");
    assert_eq!(put(&mut file, Some(0), b"ccc"), Accepted::Buffered);
    assert_eq!(land(&mut file, 8), 2);
    assert_eq!(doing(&mut file), "sends 3 at 0");
    land(&mut file, 8);
    assert_eq!((doing(&mut file), file.held()), ("done".into(), 0));
}

#[test]
fn an_update_is_sent_only_after_its_blocks_are_stored() {
    let mut file = File::default();
    put(&mut file, Some(0), &long());
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "stores 1");
    assert_eq!(doing(&mut file), "stores 1", "W2");
    assert_eq!(file.on_stored(Ok(())), Ok(()));
    let Step::Send { update: Update::Write { pieces, .. }, time } = step(&mut file) else {
        panic!("it is stored");
    };
    assert_eq!(
        (&pieces[0].extent.data, time),
        (&Data::Block { block: BlockId(1), start: 0 }, TIME)
    );
}

#[test]
fn a_batch_whose_blocks_are_not_stored_begins_anew() {
    let mut file = File::default();
    file.open(1);
    put(&mut file, None, &long());
    file.begin_flush(Some(1));
    assert_eq!(doing(&mut file), "stores 1");
    assert_eq!(file.on_stored(Err(FsError::NoSpace)), Err(FsError::NoSpace));
    assert!(!file.append_flies() && file.appends(), "no replica can have heard of it");
    file.begin_flush(Some(1));
    assert_eq!(doing(&mut file), "stores 1");
    // The owner goes away, and another takes it up.
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "stores 1");
}

/// A file with a batch whose blocks are stored.
fn stored() -> File {
    let mut file = File::default();
    put(&mut file, Some(0), &long());
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "stores 1");
    file.on_stored(Ok(())).unwrap();
    file
}

#[test]
fn blocks_that_no_update_will_name_are_discarded() {
    let block = [BlockId(1)];
    let mut file = File::default();
    put(&mut file, Some(0), &long());
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "stores 1");
    file.on_stored(Err(FsError::NoSpace)).unwrap_err();
    assert_eq!(file.take_discarded(), block, "some nodes may have stored it");
    assert_eq!(file.take_discarded(), []);

    let endings: [fn(&mut File); 4] = [
        |file| file.clear(),
        |file| file.lose(FsError::LockLost),
        |file| drop(file.set_aside()),
        |file| file.begin_flush(None),
    ];
    for end in endings {
        let mut file = stored();
        end(&mut file);
        assert_eq!(file.take_discarded(), block);
    }
    let refused = [FsError::OverQuota, FsError::Gone, FsError::LockLost, FsError::InlineFull];
    for error in refused.into_iter().chain([FsError::Denied]) {
        let mut file = stored();
        assert_eq!(doing(&mut file), format!("sends {} at 0", long().len()));
        let _ended = file.on_answer(Sent::Refused(error));
        assert_eq!(file.take_discarded(), block, "{error:?}");
    }
}

#[test]
fn blocks_that_an_update_may_yet_name_are_not_discarded() {
    for answer in [Sent::Unknown(FsError::Invalid), Sent::Refused(FsError::Expired)] {
        let mut file = stored();
        assert_eq!(doing(&mut file), format!("sends {} at 0", long().len()));
        file.on_answer(answer).unwrap_err();
        file.begin_flush(None);
        file.clear();
        assert_eq!(file.take_discarded(), [], "W5");
    }
    let mut file = stored();
    let _sent = step(&mut file);
    land(&mut file, long().len() as u64);
    file.begin_flush(None);
    assert_eq!((doing(&mut file), file.take_discarded()), ("done".into(), vec![]));
}

/// What may have happened keeps its name, and what was written later waits for it.
#[test]
fn a_batch_without_an_answer_is_sent_again_before_any_other() {
    let mut file = File::default();
    put(&mut file, None, b"a");
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "appends 1");
    assert_eq!(file.on_answer(Sent::Unknown(FsError::Invalid)), Err(FsError::Invalid));
    put(&mut file, None, b"bb");
    assert!(file.append_flies() && file.set_aside().is_none());
    assert_eq!(doing(&mut file), "done", "the flush has ended");
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "again", "W3");
    land(&mut file, 1);
    assert_eq!(doing(&mut file), "appends 2", "W1");
}

#[test]
fn what_is_refused_stays_and_what_has_no_file_goes() {
    let mut file = File::default();
    put(&mut file, Some(0), b"a");
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "sends 1 at 0");
    assert_eq!(file.on_answer(Sent::Refused(FsError::NoSpace)), Err(FsError::NoSpace));
    assert_eq!(file.held(), 1);
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "sends 1 at 0", "under another name");
    assert_eq!(file.on_answer(Sent::Refused(FsError::Gone)), Err(FsError::Gone));
    assert_eq!(file.held(), 0);
}

#[test]
fn what_the_client_may_not_write_is_told_once_and_dropped() {
    for error in [FsError::Denied, FsError::NotPermitted, FsError::ReadOnly] {
        let mut file = File::default();
        put(&mut file, Some(0), b"a");
        file.begin_flush(None);
        assert_eq!(doing(&mut file), "sends 1 at 0");
        assert_eq!(file.on_answer(Sent::Refused(error)), Err(error));
        assert_eq!((file.held(), doing(&mut file).as_str()), (0, "done"));
        put(&mut file, Some(0), b"b");
        file.begin_flush(None);
        assert_eq!(doing(&mut file), "sends 1 at 0", "what is written next is tried");
    }
}

#[test]
fn a_full_inode_sends_the_same_bytes_to_blocks() {
    let mut file = File::default();
    put(&mut file, Some(0), b"a");
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "sends 1 at 0");
    assert_eq!(file.on_answer(Sent::Refused(FsError::InlineFull)), Ok(Landed::Elsewhere));
    assert_eq!(doing(&mut file), "stores 1");
}

#[test]
fn each_open_file_is_told_of_a_failure_once() {
    let mut file = File::default();
    (1..=3).for_each(|handle| file.open(handle));
    put(&mut file, Some(0), b"a");
    file.begin_flush(Some(2));
    assert_eq!(doing(&mut file), "sends 1 at 0");
    assert!(file.on_answer(Sent::Unknown(FsError::Invalid)).is_err());
    assert_eq!(file.take_failure(2), None, "W4: the result told it");
    assert_eq!(file.take_failure(1), Some(FsError::Invalid));
    assert_eq!(file.take_failure(1), None);
    file.forget_failures();
    assert_eq!(file.take_failure(3), None);
}

/// A flush ends though a program goes on writing.
#[test]
fn a_flush_sends_no_more_than_was_there() {
    let mut file = File::default();
    file.begin_flush(None);
    for number in 0..BATCHES as u64 {
        put(&mut file, Some(number), b"a");
        assert_eq!(doing(&mut file), format!("sends 1 at {number}"));
        land(&mut file, number + 1);
    }
    put(&mut file, Some(0), b"a");
    assert_eq!(doing(&mut file), "done");
    assert!(!file.is_old(NOW) && file.is_old(NOW + FLUSH_AGE));
    file.postpone(NOW + FLUSH_AGE);
    assert!(!file.is_old(NOW + FLUSH_AGE));
}

#[test]
fn a_full_buffer_waits_and_an_empty_one_takes_anything() {
    let mut file = File::default();
    assert_eq!(put(&mut file, Some(0), &vec![0; WAITING_MAX + 1]), Accepted::Much);
    assert_eq!(put(&mut file, Some(0), b"a"), Accepted::FlushFirst);
}

#[test]
fn as_much_again_is_written_while_a_batch_is_in_flight() {
    let mut file = File::default();
    put(&mut file, Some(0), &vec![0; WAITING_MAX]);
    assert_eq!(put(&mut file, Some(0), b"a"), Accepted::FlushFirst);
    file.begin_flush(None);
    let _sent = step(&mut file);
    assert_eq!(put(&mut file, Some(0), &vec![0; WAITING_MAX]), Accepted::Much);
    assert_eq!(put(&mut file, Some(0), b"a"), Accepted::FlushFirst);
    assert_eq!(file.held(), 2 * WAITING_MAX, "it is bounded");
}

#[test]
fn a_write_meanwhile_lies_over_the_batch_in_flight() {
    let mut file = File::default();
    put(&mut file, Some(0), b"old");
    file.begin_flush(None);
    let _sent = step(&mut file);
    put(&mut file, Some(1), b"N");
    let mut bytes = *b"___";
    for (offset, part) in file.over(0..3, 3).1 {
        bytes[offset as usize..][..part.len()].copy_from_slice(&part);
    }
    assert_eq!(&bytes, b"oNd");
}

#[test]
fn what_was_set_aside_comes_back_under_what_was_written_since() {
    let mut file = File::default();
    put(&mut file, Some(0), b"old");
    let aside = file.set_aside().unwrap();
    assert_eq!(file.held(), 0);
    put(&mut file, Some(1), b"N");
    file.put_back(aside, NOW);
    assert_eq!(file.whole(0..3), Some(b"oNd".to_vec()));
}

#[test]
fn blocks_hold_all_bytes_in_order() {
    let mut file = File::default();
    put(&mut file, Some(9), &long());
    file.begin_flush(None);
    let Step::Store(blocks) = step(&mut file) else { panic!("it is long") };
    let all: Vec<u8> = blocks.iter().flat_map(|Block { data, .. }| data.to_vec()).collect();
    assert_eq!(all, long());
}

fn mode(bits: u16) -> Setting {
    Setting::Attributes(Changes { mode: Some(bits), ..Changes::default() })
}

fn mtime(seconds: i64) -> Setting {
    let mtime = Some(Timestamp { seconds, nanos: 0 });
    Setting::Attributes(Changes { mtime, ..Changes::default() })
}

fn value() -> Setting {
    let (name, value) = (Bytes::from_static(b"user.x"), Bytes::from_static(b"v"));
    Setting::Xattr { name, value, drops_set_gid: false }
}

const LATER: Timestamp = Timestamp { seconds: 5, nanos: 0 };

/// One that was made here and is open, with these settings.
fn made(settings: &[Setting]) -> File {
    let mut file = File::default();
    file.open(1);
    file.made();
    settings.iter().for_each(|setting| assert!(file.set(setting.clone(), LATER, NOW)));
    file
}

/// What the next step sends: how many bytes, what is set, and when.
fn settles(file: &mut File) -> (u32, Vec<Setting>, Timestamp) {
    let Step::Send { update, time } = step(file) else { panic!("something is to be sent") };
    let bytes = |pieces: &[Piece]| pieces.iter().map(|piece| piece.extent.len).sum();
    match update {
        Update::Settle { pieces, settings, .. } => (bytes(&pieces), settings, time),
        Update::Write { pieces, .. } => (bytes(&pieces), Vec::new(), time),
        other => panic!("{other:?}"),
    }
}

fn attributes() -> Attributes {
    Attributes { mode: 0o644, ..Attributes::bare(FILE, Kind::File) }
}

#[test]
fn what_is_set_goes_with_what_is_written() {
    let mut file = made(&[]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(mode(0o600), LATER, NOW) && file.set(value(), LATER, NOW));
    file.begin_flush(None);
    assert_eq!(settles(&mut file), (4, vec![mode(0o600), value()], LATER));
    assert!(!file.is_clean() && file.sets());
    land(&mut file, 4);
    assert_eq!((doing(&mut file).as_str(), file.is_clean(), file.sets()), ("done", true, false));
    assert!(!file.set(mode(0o644), LATER, NOW), "nothing is kept that it could go with");
}

#[test]
fn what_is_set_of_an_empty_new_file_goes_alone() {
    let mut file = made(&[mode(0o600)]);
    assert!(!file.is_clean() && file.held() == 0 && file.is_old(NOW + FLUSH_AGE));
    file.begin_flush(None);
    assert_eq!(settles(&mut file), (0, vec![mode(0o600)], LATER));
    land(&mut file, 0);
    assert!(file.is_clean() && !file.is_old(NOW + FLUSH_AGE));
    let mut closed = made(&[]);
    closed.close(1);
    assert!(!closed.set(mode(0o600), LATER, NOW), "nobody will close it");
    assert!(closed.join(mode(0o600), LATER, NOW), "its owner sends it all the same");
}

/// W6: else others would see bytes without the mode that they were written under.
#[test]
fn what_is_written_later_does_not_leave_before_what_was_set() {
    let mut file = made(&[mode(0o600)]);
    put(&mut file, Some(0), b"secret");
    file.begin_flush(None);
    assert_eq!(settles(&mut file), (6, vec![mode(0o600)], LATER));
    land(&mut file, 6);
    let mut file = made(&[]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(mode(0o600), LATER, NOW));
    assert_eq!(put(&mut file, None, b"more"), Accepted::FlushFirst, "that is another batch");
    let mut file = made(&[]);
    put(&mut file, Some(0), b"data");
    put(&mut file, None, b"more");
    assert!(!file.set(mode(0o600), LATER, NOW), "so are these");
}

#[test]
fn a_write_after_a_time_was_set_gives_the_file_its_own() {
    let mut file = made(&[mtime(99), mode(0o600)]);
    assert_eq!(file.overlay(attributes()).unwrap().mtime.seconds, 99);
    put(&mut file, Some(0), b"data");
    let seen = file.overlay(attributes()).unwrap();
    assert_eq!((seen.mtime, seen.ctime, seen.mode, seen.size), (TIME, LATER, 0o600, 4));
    file.begin_flush(None);
    assert_eq!(settles(&mut file), (4, vec![mode(0o600)], LATER));
    assert_eq!(file.overlay(attributes()), None, "a replica may have it, or not yet");
    assert!(file.set(mtime(7), LATER, NOW));
    land(&mut file, 4);
    assert_eq!(file.overlay(attributes()).unwrap().mtime.seconds, 7);
}

#[test]
fn what_is_set_survives_that_locks_are_lost() {
    let mut file = made(&[]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(mode(0o600), LATER, NOW));
    file.lose(FsError::LockLost);
    assert_eq!((file.held(), file.sets()), (0, true));
    let mut file = made(&[mode(0o600)]);
    put(&mut file, Some(0), b"data");
    file.begin_flush(None);
    let _sent = settles(&mut file);
    file.on_answer(Sent::Refused(FsError::LockLost)).unwrap_err();
    file.begin_flush(None);
    assert_eq!(settles(&mut file), (0, vec![mode(0o600)], LATER));
}

/// What is refused for what is set takes no bytes with it.
#[test]
fn bytes_outlive_settings_that_are_refused() {
    let mut file = made(&[]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(value(), LATER, NOW) && file.set(mtime(99), LATER, NOW));
    file.begin_flush(Some(1));
    assert_eq!(settles(&mut file), (4, vec![value(), mtime(99)], LATER));
    assert_eq!(file.on_answer(Sent::Refused(FsError::NoSpace)), Ok(Landed::Elsewhere));
    put(&mut file, Some(4), b"more");
    assert_eq!(settles(&mut file), (0, vec![value()], LATER), "alone, and before the bytes");
    assert_eq!(file.on_answer(Sent::Refused(FsError::NoSpace)), Err(FsError::NoSpace));
    assert_eq!(file.held(), 8);
    file.begin_flush(Some(1));
    assert_eq!(settles(&mut file).0, 8);
    land(&mut file, 8);
    assert!(file.is_clean());
    // If it was not for what is set, that is done, and the bytes wait for room.
    let mut file = made(&[mode(0o600), mtime(99)]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(mtime(99), LATER, NOW));
    file.begin_flush(Some(1));
    assert_eq!(settles(&mut file).0, 4);
    assert_eq!(file.on_answer(Sent::Refused(FsError::NoSpace)), Ok(Landed::Elsewhere));
    assert_eq!(settles(&mut file), (0, vec![mode(0o600)], LATER));
    land(&mut file, 0);
    assert_eq!(settles(&mut file), (4, vec![mtime(99)], LATER));
    assert_eq!(file.on_answer(Sent::Refused(FsError::NoSpace)), Err(FsError::NoSpace));
    assert_eq!((file.held(), file.sets()), (4, true));
}

#[test]
fn a_cut_file_keeps_what_was_set() {
    let mut file = made(&[mode(0o600)]);
    put(&mut file, Some(0), b"data");
    assert!(file.set(mtime(99), LATER, NOW));
    let aside = file.set_aside().unwrap();
    assert_eq!((file.held(), file.overlay(attributes()).unwrap().mode), (0, 0o600));
    assert_eq!(file.overlay(attributes()).unwrap().mtime, Timestamp::default(), "the cut's");
    file.put_back(aside, NOW);
    assert_eq!(file.held(), 4);
}

const DIRECTORY: Place = Place { ino: Ino(5), ..FILE };

fn newborn() -> File {
    let mut file = File::default();
    file.open(1);
    let node = NewNode::new(Kind::File, 0o644);
    let (name, ino) = (Bytes::from_static(b"new"), Ino(9));
    file.born(Birth { parent: DIRECTORY, name, node, ino, made: TIME }, NOW);
    file
}

/// The next update, which makes a file.
fn birth_of(file: &mut File) -> Made {
    match step(file) {
        Step::Send { update: Update::Make(made), .. } => *made,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_file_comes_with_all_that_it_has() {
    let mut file = newborn();
    assert!(!file.is_clean() && file.is_old(NOW + BIRTH_AGE));
    put(&mut file, Some(0), b"bytes");
    assert!(file.set(mode(0o600), TIME, NOW));
    file.begin_flush(Some(1));
    let sent = birth_of(&mut file);
    assert_eq!((sent.parent, sent.ino, sent.pieces.len()), (DIRECTORY, Ino(9), 1));
    assert_eq!(sent.settings, [mode(0o600)]);
    assert!(file.is_kept_whole(), "all is on its way");
    assert!(matches!(step(&mut file), Step::Again), "W3");
    land(&mut file, 5);
    assert!(file.is_clean() && !file.is_kept_whole());
    put(&mut file, Some(5), b"more");
    file.begin_flush(None);
    assert_eq!(doing(&mut file), "sends 4 at 5", "it is made once");
}

#[test]
fn a_new_file_is_not_whole_if_more_was_written_since_it_was_sent() {
    let mut file = newborn();
    put(&mut file, Some(0), b"bytes");
    assert!(file.is_kept_whole());
    file.begin_flush(None);
    birth_of(&mut file);
    put(&mut file, Some(5), b"more");
    assert!(!file.is_kept_whole());
}

#[test]
fn a_new_file_is_read_from_what_is_kept_until_it_may_have_been_sent() {
    let mut file = newborn();
    put(&mut file, None, b"first");
    put(&mut file, Some(7), b"at");
    put(&mut file, None, b"last");
    let all = b"first\0\0atlast";
    assert_eq!(file.whole(0..4096).as_deref(), Some(&all[..]), "with a hole, up to its end");
    assert_eq!(file.whole(8..10).as_deref(), Some(&b"tl"[..]));
    assert_eq!(file.whole(13..20), Some(Vec::new()), "nothing is after its end");
    assert_eq!(file.whole(40..41), Some(Vec::new()));
    file.begin_flush(None);
    birth_of(&mut file);
    put(&mut file, None, b"more");
    assert_eq!(file.whole(0..4096), None, "others may know of it now, and append to it");
    land(&mut file, 13);
    assert_eq!(doing(&mut file), "appends 4");
}

#[test]
fn a_new_file_without_bytes_is_made_too() {
    let mut file = newborn();
    file.begin_flush(None);
    assert!(birth_of(&mut file).pieces.is_empty());
    land(&mut file, 0);
    assert_eq!((doing(&mut file), file.is_clean()), ("done".into(), true));
}

#[test]
fn a_new_file_is_made_alone_if_there_is_no_room_for_its_bytes() {
    let mut file = newborn();
    put(&mut file, Some(0), b"bytes");
    file.set(mode(0o600), TIME, NOW);
    file.begin_flush(Some(1));
    assert_eq!(birth_of(&mut file).pieces.len(), 1);
    let split = file.on_answer(Sent::Refused(FsError::OverQuota));
    assert_eq!(split, Ok(Landed::Elsewhere));
    let bare = birth_of(&mut file);
    assert!(bare.pieces.is_empty() && bare.settings.is_empty());
    land(&mut file, 0);
    let Step::Send { update: Update::Settle { pieces, settings, .. }, .. } = step(&mut file) else {
        panic!("its bytes come after it");
    };
    assert_eq!((pieces.len(), settings), (1, vec![mode(0o600)]));
    let refused = file.on_answer(Sent::Refused(FsError::OverQuota));
    assert_eq!(refused, Err(FsError::OverQuota), "as for any file");
}

#[test]
fn a_new_file_whose_name_is_taken_is_lost_and_all_hear_of_it() {
    let mut file = newborn();
    file.open(2);
    put(&mut file, Some(0), b"bytes");
    file.begin_flush(Some(1));
    birth_of(&mut file);
    let refused = file.on_answer(Sent::Refused(FsError::Exists));
    assert_eq!(refused, Err(FsError::Unmade));
    assert_eq!(file.take_failure(2), Some(FsError::Unmade));
    assert!(file.is_clean());
}
