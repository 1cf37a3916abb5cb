//! What is below a directory that got a quota while it was not empty, or loses it, is counted by
//! steps. The primary has one after the other ordered, so it goes on whoever dies.

use super::{Replica, Wish};
use crate::mutation::Mutation;
use crate::update::Change;
use meridian_fs::{Timestamp, Update};
use meridian_multicast::{Role, Start};

/// In the name of the sessions in which a group counts.
const COUNT_SESSION: u64 = 0x636f_756e_0000_0000;
/// So many directories and entries a step counts: some milliseconds' work and some 40 KiB, and with
/// one step at each tick 16,000 in a second.
const STEP_MAX: usize = 2048;

/// What a primary knows of what it counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Counted {
    /// The number of the last step that it had ordered, and the message: said again it must be the
    /// same. As long as no step is done there is no other, however long that one waits.
    said: Option<(u64, Start)>,
    /// How much a step counts.
    pub step_max: usize,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted { said: None, step_max: STEP_MAX }
    }
}

impl Replica {
    /// The primary has the next step ordered, if something is being counted.
    pub fn count(&mut self, out: &mut Vec<Wish>) {
        let primary = self.multicast.role() == Role::Primary;
        let Some(number) = self.partition.counting().filter(|_| primary) else {
            self.counted.said = None;
            return;
        };
        let said = self.counted.said.as_ref();
        let start = match said {
            Some((said, start)) if *said == number => start.clone(),
            said => {
                let next = self.partition.next_count(self.counted.step_max);
                let (update, quotas) = next.expect("something is being counted");
                let abandons = self.caps.mutation.is(Mutation::AbandonsCounts);
                if abandons && said.is_none() && !is_first(&update) {
                    return;
                }
                let change = Change { quotas, ..Change::new(Timestamp::default(), update) };
                self.said_once((COUNT_SESSION, &[self.group]), said.map(|(_, start)| start), change)
            }
        };
        self.counted.said = Some((number, start.clone()));
        out.push(Wish::Multicast(start));
    }

    /// A step counts so many directories and entries at most.
    pub(crate) fn set_count_step(&mut self, most: usize) {
        self.counted.step_max = most;
    }
}

/// Whether nothing below the directory has been counted before that.
fn is_first(step: &Update) -> bool {
    match step {
        Update::Count { root, stretches, .. } => {
            stretches.iter().all(|stretch| stretch.directory == root.ino)
        }
        _ => false,
    }
}
