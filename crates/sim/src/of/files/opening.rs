//! A program that has files open while their names go, and reads them: a file that is open outlives
//! its last name.
//!
//! Where nothing goes wrong that holds from the moment in which it was opened. Otherwise the
//! partition may hear too late what is open, and it is held to it once it has said that it knows
//! and has shown the file after that.

use super::client::deadline;
use super::saving::expect;
use crate::world::Random;
use meridian_core::{ClientId, GroupId, Time};
use meridian_fs::{Answer, FsError, Place, Query, Timestamp};
use meridian_host::update::Change;
use meridian_session::{CallId, Command, Mutation, Opens, Output};
use rand::RngExt;
use std::collections::BTreeMap;
use std::time::Duration;

/// So many files are open at a time, at most.
const OPEN_MAX: usize = 3;
/// How long a file is open before its partition is told.
const LAZY: Duration = Duration::from_millis(300);
/// How long a file is open, in milliseconds: at most some times as long as one stays after its last
/// name has gone.
const OPEN_MS: u64 = 12_000;
/// How long after the last renewal of what is held it is renewed again.
const RENEW: Duration = Duration::from_secs(5);

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Open {
    file: Place,
    closes: Time,
    /// It was there when its partition surely held it.
    certain: bool,
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A partition is told what is open.
    Told(GroupId),
    /// A file is read; whether it was held when that was asked.
    Read(Place, bool),
    /// A partition is told that the client lives.
    Renewed,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Opening {
    client: ClientId,
    opens: Opens,
    open: Vec<Open>,
    asked: BTreeMap<CallId, Asked>,
    renewed: Time,
}

impl Opening {
    /// Of client `number`, with nothing open.
    pub fn new(number: u64, mutation: Mutation) -> Opening {
        let client = ClientId(number + 1);
        let opens = Opens::new(client, LAZY).with_mutation(mutation);
        Opening { client, opens, open: Vec::new(), asked: BTreeMap::new(), renewed: Time(0) }
    }

    /// Whether all is closed, and all partitions know.
    pub fn is_done(&self) -> bool {
        self.open.is_empty() && self.asked.is_empty() && self.opens.is_empty()
    }

    /// Whether that is its call.
    pub fn waits_for(&self, call: CallId) -> bool {
        self.asked.contains_key(&call)
    }

    /// Opens `file`, perhaps, closes what has been open for long, and reads something; `last` is
    /// the last call of the client.
    pub fn go_on(
        &mut self,
        file: Option<Place>,
        now: Time,
        last: &mut CallId,
        random: &mut Random,
        calm: bool,
    ) -> Vec<Command> {
        if let Some(file) = file.filter(|_| self.open.len() < OPEN_MAX && random.random_bool(0.2)) {
            self.opens.open(file, now);
            let closes = now + Duration::from_millis(random.random_range(0..OPEN_MS));
            self.open.push(Open { file, closes, certain: calm });
        }
        for closed in self.open.extract_if(.., |open| open.closes <= now) {
            self.opens.close(closed.file.ino);
        }
        let mut commands = Vec::new();
        let mut next = |asked| {
            last.0 += 1;
            self.asked.insert(*last, asked);
            (*last, deadline(now, random))
        };
        let update = |update| Change::new(Timestamp::default(), update);
        for (partition, told) in self.opens.due(now) {
            let (call, deadline) = next(Asked::Told(partition));
            commands.push(Command::Update { call, change: update(told), deadline });
        }
        if now.since(self.renewed) >= RENEW {
            self.renewed = now;
            for partition in self.opens.partitions() {
                let (call, deadline) = next(Asked::Renewed);
                let renew = meridian_fs::Update::Renew { client: self.client, partition };
                commands.push(Command::Update { call, change: update(renew), deadline });
            }
        }
        for Open { file, .. } in &self.open {
            let (call, deadline) = next(Asked::Read(*file, self.opens.is_held(file.ino)));
            let query = Query::Attributes { inode: *file };
            commands.push(Command::Read { call, query, deadline });
        }
        commands
    }

    /// The session has told what came of a call. `held` counts files without a name that were read.
    pub fn on_output(&mut self, output: Output, held: &mut u64) -> Vec<Command> {
        let call = output.call().expect("it keeps nothing");
        let asked = self.asked.remove(&call).expect("it waits for that");
        let result = match (asked, output) {
            (Asked::Told(partition), Output::GaveUp { failure, .. }) => {
                expect(&failure);
                self.opens.told(partition, false);
                return vec![Command::Release(call)];
            }
            (Asked::Told(partition), Output::Updated { result, .. }) => {
                assert!(result.is_ok(), "told what is open: {result:?}");
                self.opens.told(partition, true);
                return Vec::new();
            }
            (Asked::Read(file, held), Output::Answered { result, .. }) => (file, held, result),
            (_, Output::GaveUp { failure, .. }) => {
                expect(&failure);
                return vec![Command::Release(call)];
            }
            (Asked::Renewed, Output::Updated { .. }) => return Vec::new(),
            (asked, output) => panic!("{asked:?}: {output:?}"),
        };
        *held += u64::from(self.on_read(result));
        Vec::new()
    }

    fn on_read(&mut self, read: (Place, bool, Result<Answer, FsError>)) -> bool {
        let (file, held, result) = read;
        // It may be closed by now.
        let Some(open) = self.open.iter_mut().find(|open| open.file == file) else { return false };
        match result {
            Ok(Answer::Attributes(attributes)) => {
                open.certain |= held;
                attributes.nlink == 0
            }
            Err(FsError::Gone) if !open.certain => false,
            other => panic!("open: {file:?} is open, and a read of it is answered by {other:?}"),
        }
    }
}
