//! Files that have lost their last names, and are removed in the end.
//!
//! A client says only of a file that it has had open for some time that it has it open. So a file
//! without a name stays for a while, in which those may yet say so who opened it before. The
//! primary counts that as it does leases; what it finds is ordered like all else.

use super::leases::Vigil;
use super::{Replica, Wish};
use crate::sessions;
use crate::update::{Change, Payload};
use meridian_core::{GroupId, MessageId, Stamp, mix};
use meridian_fs::{Ino, Timestamp, Update, Vector};
use meridian_multicast::{Role, Start};
use std::time::Duration;

/// In the name of the sessions in which a group removes files.
const REAP_SESSION: u64 = 0x7265_6170_0000_0000;
/// So many files one message removes: some milliseconds' work, and with one message each second
/// more than a group can unlink.
const REAPED_MAX: usize = 8192;

/// What a primary knows of the files without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Nameless {
    /// Each with the message that took its last name, and whether somebody holds it.
    seen: Vigil<(Ino, Stamp), bool>,
    /// The last message: said again it must be the same.
    said: Option<Start>,
}

impl Replica {
    /// The primary has those files removed that have had no name, and that nobody is known to have
    /// had open, for as long as `linger`.
    pub fn reap(&mut self, counted: Duration, linger: Duration, out: &mut Vec<Wish>) {
        if self.multicast.role() != Role::Primary {
            self.nameless = Nameless::default();
            return;
        }
        if !self.nameless.seen.is_due(counted, linger / 10) {
            return; // There may be very many.
        }
        let old = self.nameless.seen.look(self.partition.nameless(), linger);
        let unused = old.into_iter().filter(|(_, is_held)| !is_held);
        let due: Vec<_> = unused.map(|(name, _)| name).take(REAPED_MAX).collect();
        if !due.is_empty() {
            out.push(Wish::Multicast(self.reaping(due)));
        }
    }

    fn reaping(&mut self, inodes: Vec<(Ino, Stamp)>) -> Start {
        let update = Update::Reap { partition: self.group, inodes };
        let change = Change::new(Timestamp::default(), update);
        let start =
            self.said_once((REAP_SESSION, &[self.group]), self.nameless.said.as_ref(), change);
        self.nameless.said = Some(start.clone());
        start
    }

    /// The message in which the group itself does that. Named after what is decided, in a session
    /// of this epoch's: until something has come of anything it is the same as before.
    pub(super) fn said_once(
        &self,
        (session, dest): (u64, &[GroupId]),
        said: Option<&Start>,
        change: Change,
    ) -> Start {
        let sequence = self.partition.vector().get(self.group).0 + 1;
        let epoch = self.multicast.epoch();
        let session = mix(mix(session ^ epoch.config) ^ epoch.number);
        let client = sessions::name(mix(session ^ u64::from(epoch.leader.0)), dest);
        let id = MessageId { client, sequence };
        if let Some(said) = said.filter(|said| said.id == id) {
            return said.clone();
        }
        let mut vector = Vector::default();
        vector.raise(self.group, Stamp(sequence - 1));
        Payload::of(vector, change).into_start(id, sequence, dest)
    }
}
