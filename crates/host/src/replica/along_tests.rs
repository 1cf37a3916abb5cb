use super::*;
use crate::configuration::tests::{US_1, file};
use crate::replica::{ConnectionId, Waiter};
use crate::sessions;
use crate::update::{NOBODY, Payload};
use meridian_cluster::Topology;
use meridian_core::{GroupId, MessageId, Position, Stamp, Time};
use meridian_fs::operation::NewNode;
use meridian_fs::{CapStep, Ino, Timestamp, Update, Vector, access};
use meridian_multicast::{self as multicast, Delivery};
use std::ops::Range;

const US: GroupId = GroupId(1);

/// A replica, and how many messages it was delivered.
struct One {
    replica: Replica,
    count: u64,
}

impl One {
    fn new() -> One {
        let topology = Topology::new(&file()).unwrap();
        One { replica: Replica::new(&topology, US, US_1), count: 0 }
    }

    /// What the update makes, if it makes something.
    fn delivers(&mut self, update: Update) -> Place {
        self.count += 1;
        let id = MessageId { client: sessions::name(7 << 32, &[US]), sequence: self.count };
        let payload = Payload::new(Vector::default(), Timestamp::default(), update);
        let start = payload.into_start(id, self.count, &[US]).into();
        let (ts, position) = (multicast::Timestamp(self.count), Position(self.count));
        self.replica.on_delivery(Delivery { start, position, ts }, &mut Vec::new());
        Place { ino: Ino::made(US, id), partition: US }
    }

    fn makes(&mut self, parent: Place, name: &str, kind: Kind, mode: u16) -> Place {
        let (name, node) = (Name::copy_from_slice(name.as_bytes()), NewNode::new(kind, mode));
        self.delivers(Update::Create { parent, name, node })
    }

    fn makes_directory(&mut self, parent: Place, name: &str) -> Place {
        self.makes(parent, name, Kind::Directory, 0o755)
    }

    fn makes_file(&mut self, parent: Place, name: &str) -> Place {
        self.makes(parent, name, Kind::File, 0o644)
    }

    fn makes_files(&mut self, parent: Place, numbers: Range<usize>) {
        for number in numbers {
            self.makes_file(parent, &format!("f{number:03}"));
        }
    }

    fn holds(&mut self, step: CapStep) {
        self.delivers(Update::Caps { client: ClientId(5), partition: US, step });
    }

    /// What comes along with the answer that shows a directory.
    fn brings(&self, inode: Place, rights: Option<Rights>) -> Vec<Listed> {
        let waiter = Waiter { connection: ConnectionId(1), request: 1 };
        let (query, seen, since) = (Query::Attributes { inode }, Stamp(0), Time(0));
        let read = Read { waiter, by: NOBODY, query, along: true, rights, seen, since };
        let shown = self.replica.partition.read_as(&read.query, NOBODY, read.rights.as_ref());
        match self.replica.entries_along(&read, &shown.unwrap()).as_deref() {
            Some(Answer::Directory { entries, .. }) => entries.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn top() -> Place {
    Place { ino: Ino::top(US), partition: US }
}

fn names(entries: &[Listed]) -> Vec<String> {
    entries.iter().map(|(name, ..)| String::from_utf8_lossy(name).into_owned()).collect()
}

/// The directories of which all entries have come along.
fn whole(entries: &[Listed]) -> Vec<Place> {
    let begins = entries.iter().filter(|(name, ..)| &name[..] == HERE);
    begins.map(|(_, entry, _)| entry.place).collect()
}

#[test]
fn what_is_below_comes_along_breadth_first() {
    let mut one = One::new();
    let d = one.makes_directory(top(), "d");
    one.makes_file(top(), "f");
    let e = one.makes_directory(d, "e");
    one.makes_file(d, "x");
    one.makes_file(e, "y");
    let brought = one.brings(top(), None);
    assert_eq!(names(&brought), ["d", "f", ".", "e", "x", ".", "y"]);
    assert_eq!(whole(&brought), [d, e]);
    assert!(brought.iter().all(|(name, _, of)| of.is_some() == (&name[..] != HERE)));
    assert_eq!(names(&one.brings(e, None)), ["y"]);
}

#[test]
fn a_directory_comes_along_whole_or_not_at_all() {
    let mut one = One::new();
    let (big, small) = (one.makes_directory(top(), "big"), one.makes_directory(top(), "small"));
    let room = ENTRIES_MAX - 2;
    one.makes_files(small, 0..3);
    one.makes_files(big, 0..room - 3);
    let brought = one.brings(top(), None);
    assert_eq!((brought.len(), whole(&brought)), (ENTRIES_MAX + 2, vec![big, small]));
    one.makes_files(big, room - 3..room - 2);
    assert_eq!(whole(&one.brings(top(), None)), [big], "two of three are not all");
    one.makes_files(big, room - 2..room);
    assert_eq!(whole(&one.brings(top(), None)), [big]);
    one.makes_files(big, room..room + 1);
    let brought = one.brings(top(), None);
    assert_eq!(whole(&brought), [small], "what is too large is left out, not what comes after it");
    assert_eq!(names(&brought), ["big", "small", ".", "f000", "f001", "f002"]);
}

#[test]
fn of_a_large_directory_the_first_entries_come_along() {
    let mut one = One::new();
    let directory = one.makes_directory(top(), "a directory");
    one.makes_files(top(), 0..ENTRIES_MAX + 9);
    let brought = one.brings(top(), None);
    assert_eq!(brought.len(), ENTRIES_MAX + 1);
    assert_eq!(whole(&brought), [directory], "what is empty needs no room");
    one.makes_file(directory, "file");
    let brought = one.brings(top(), None);
    assert_eq!((brought.len(), whole(&brought)), (ENTRIES_MAX, Vec::new()));
}

#[test]
fn nothing_comes_along_of_what_a_client_may_not_list_or_go_through() {
    let mut one = One::new();
    for (name, mode) in [("listed", 0o744), ("open", 0o755), ("searched", 0o711)] {
        let directory = one.makes(top(), name, Kind::Directory, mode);
        one.makes_file(directory, "file");
    }
    let rights = Rights { squash: access::NOBODY, ..Rights::default() };
    let brought = one.brings(top(), Some(rights));
    assert_eq!(names(&brought), ["listed", "open", "searched", ".", "file"]);
    assert_eq!(whole(&brought)[..], [brought[1].1.place]);
    assert_eq!(whole(&one.brings(top(), None)).len(), 3, "root may");
}

#[test]
fn nothing_comes_along_of_what_another_holds_exclusively() {
    let mut one = One::new();
    let directory = one.makes_directory(top(), "d");
    one.makes_file(directory, "file");
    one.holds(CapStep::Grant(vec![directory.ino]));
    assert_eq!(whole(&one.brings(top(), None)), [directory]);
    one.holds(CapStep::GrantExclusive(vec![directory.ino]));
    let brought = one.brings(top(), None);
    assert!(matches!(&brought[..], [(_, _, None)]), "{brought:?}");
}
