//! One client: a session, the same that the embeddable client drives, and a program that asks it
//! for one thing after the other, while at times a file is written and stored beside.
//!
//! The program gives up at times. Then nobody can say whether the update happens, until a later one
//! that touches the same has been acknowledged: from then on it has happened or never will. So the
//! program touches the same inode, looks what came of it, and holds the tree to that.

use super::handing::{Came, Taking};
use super::model::{Action, File, Model};
use super::opening::Opening;
use super::posix::Posix;
use super::reading::Reading;
use super::saving::{self, Saving};
use crate::world::Random;
use meridian_cluster::Topology;
use meridian_core::{RegionId, Time};
use meridian_fs::{Answer, Done, FsError, Place, Query, Update};
use meridian_host::update::Change;
use meridian_session::{CallId, Command, Mutation, Output, Session};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// How long the program waits when it is patient.
const PATIENT: Duration = Duration::from_secs(30);
/// How long it waits at most when it is not, in milliseconds: some round trips between regions.
const IMPATIENT_MS: u64 = 700;
/// One in so many parts of blocks is asked for as if a hostile client had made it longer.
const FORGED: u32 = 8;

/// What the program waits for.
#[derive(Debug)]
pub(super) enum Doing {
    Act(Action),
    /// That the inode of an action that was given up is touched.
    Touch(Action),
    /// What came of that action.
    Look(Action),
    Name {
        query: Query,
        found: Option<Place>,
    },
    Attributes {
        query: Query,
        file: File,
    },
    /// All bytes of a file are read: first where they lie.
    Contents(File),
    /// Then those that lie in blocks.
    Fetch(File, Reading),
}

impl Doing {
    /// What is asked to look at one thing.
    pub fn query(&self) -> Option<Query> {
        match self {
            Doing::Name { query, .. } | Doing::Attributes { query, .. } => Some(query.clone()),
            Doing::Act(_) | Doing::Touch(_) | Doing::Look(_) => None,
            Doing::Contents(_) | Doing::Fetch(..) => None,
        }
    }
}

/// What the clients have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Updates that were answered.
    pub updates: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Updates that were given up.
    pub given_up: u64,
    /// Updates that were sent again after that, under their name.
    pub again: u64,
    /// Blocks that were stored.
    pub blocks: u64,
    /// Blocks that were discarded.
    pub discarded: u64,
    /// Updates that were refused as their blocks were named too long ago.
    pub late: u64,
    /// Files of which all bytes were read.
    pub files: u64,
    /// Readings of more than a block has, which failed.
    pub beyond: u64,
    /// Files without a name that were read by who had them open.
    pub held: u64,
    /// Tokens that were taken over.
    pub taken: u64,
    /// Facts of what POSIX has beyond names and bytes that were looked at.
    pub facts: u64,
}

/// See the module.
pub(super) struct Client {
    pub session: Session,
    pub model: Model,
    doing: Option<Doing>,
    /// The file that is being written and stored.
    saving: Option<Saving>,
    /// The files that it has open.
    opening: Opening,
    /// What it does with lists of access rights and the like.
    pub posix: Posix,
    /// What another has seen, from which it goes on.
    pub taking: Option<Taking>,
    /// Another goes on from what it has seen; it waits for that.
    pub hands_over: bool,
    /// Who waits for it no more.
    pub thanks: Vec<usize>,
    mutation: Mutation,
    /// What the program waits for.
    call: CallId,
    /// The last call.
    last: CallId,
    /// How many things are left to be done.
    pub left: u64,
}

impl Client {
    /// Number `number`, in one of the regions.
    pub fn new(number: u64, topology: &Arc<Topology>, seed: u64, mutation: Mutation) -> Client {
        let regions = topology.regions.len() as u64;
        let region = RegionId(u16::try_from(number % regions).expect("there are few regions"));
        Client {
            opening: Opening::new(number, mutation),
            posix: Posix::new(number, topology.group_ids()),
            session: Session::new(topology.clone(), region, seed).with_mutation(mutation),
            model: Model::new(number, topology.group_ids().collect()),
            doing: None,
            saving: None,
            taking: None,
            hands_over: false,
            thanks: Vec::new(),
            mutation,
            call: CallId(0),
            last: CallId(0),
            left: 0,
        }
    }

    /// Whether the program may do the next thing.
    pub fn is_idle(&self) -> bool {
        self.doing.is_none() && !self.hands_over
    }

    /// Whether it has done all it had to.
    pub fn is_done(&self) -> bool {
        let waits = self.hands_over || self.taking.is_some() || self.doing.is_some();
        let saves = self.saving.is_some();
        self.left == 0 && !waits && !saves && self.opening.is_done() && self.posix.is_done()
    }

    /// What it waits for, in words.
    pub fn waiting(&self) -> Option<String> {
        let (doing, saving, opening) = (&self.doing, &self.saving, &self.opening);
        let (taking, posix) = (&self.taking, &self.posix);
        (!self.is_done()).then(|| {
            let vector = self.session.vector();
            let call = self.call;
            format!(
                "{call:?}: {doing:?}, {saving:?}, {opening:?}, {taking:?}, {posix:?}, {vector:?}"
            )
        })
    }

    /// Begins to do something, unless the program has nothing to do just now.
    pub fn start(&mut self, now: Time, random: &mut Random) -> Vec<Command> {
        self.left -= 1;
        self.doing = match random.random_range(0..14) {
            0..6 => self.model.choose(random).map(Doing::Act),
            6..8 => return self.save(now, random),
            8..10 => self.model.any_file(random).map(Doing::Contents),
            _ => self.any_look(random),
        };
        self.ask(now, random)
    }

    /// Something to look at, and what is to be seen.
    pub fn any_look(&self, random: &mut Random) -> Option<Doing> {
        if random.random_bool(0.5) {
            let file = self.model.any_file(random)?;
            let query = Query::Attributes { inode: file.place };
            return Some(Doing::Attributes { query, file });
        }
        let (parent, name, found) = self.model.any_name(random)?;
        Some(Doing::Name { query: Query::Lookup { parent, name }, found })
    }

    /// Goes on from what another has seen, as soon as it can.
    pub fn take(&mut self, taking: Taking, now: Time, random: &mut Random) -> Command {
        self.taking.insert(taking).ask(now, &mut self.last, random)
    }

    /// What comes next of that; who has handed over what it has seen, once it is over.
    fn on_taking(
        &mut self,
        output: Output,
        now: Time,
        random: &mut Random,
        done: &mut Tally,
    ) -> Vec<Command> {
        let Some(taking) = &mut self.taking else { return Vec::new() };
        match taking.on_output(output, now, &mut self.last, random) {
            Came::Ask(command) => return vec![command],
            Came::Looked(shown, Output::Answered { result, .. }) => {
                done.taken += 1;
                self.on_answered(shown, result);
            }
            Came::Looked(_, other) => panic!("a look is answered by {other:?}"),
            Came::Left => {}
        }
        self.thanks.extend(self.taking.take().map(|taken| taken.from));
        Vec::new()
    }

    /// Opens and closes files, and reads those that are open, unless it is just doing so; and goes
    /// on with lists of access rights and the like. `calm`: partitions always hear in time what is
    /// open.
    pub fn open(&mut self, now: Time, random: &mut Random, calm: bool) -> Vec<Command> {
        // What is being done may be what takes the name of a file.
        let may_open = self.left > 0 && self.doing.is_none();
        let file = self.model.any_file(random).filter(|_| may_open);
        let file = file.map(|file| file.place);
        let mut commands = self.opening.go_on(file, now, &mut self.last, random, calm);
        commands.extend(self.posix.go_on(self.left > 0, now, &mut self.last, random));
        commands
    }

    /// Begins to write a file, unless one is being written.
    fn save(&mut self, now: Time, random: &mut Random) -> Vec<Command> {
        if self.saving.is_some() {
            return Vec::new();
        }
        let Some(file) = self.model.any_file(random) else { return Vec::new() };
        let before = self.model.begin_saving(file.place.ino);
        let saving = self.saving.insert(Saving::new(file.place, before, self.mutation, random));
        saving.go_on(now, &mut self.last, random)
    }

    /// Asks for what is to be done, as a new call.
    fn ask(&mut self, now: Time, random: &mut Random) -> Vec<Command> {
        let Some(doing) = &mut self.doing else { return Vec::new() };
        self.last.0 += 1;
        self.call = self.last;
        let (call, deadline) = (self.call, deadline(now, random));
        let update = |update: Update| {
            let change = Change::new(saving::time(now), update);
            vec![Command::Update { call, change, deadline }]
        };
        let read = |query: Query| vec![Command::Read { call, query, deadline }];
        match doing {
            Doing::Contents(File { place, .. }) => read(contents_of(*place)),
            Doing::Fetch(File { place, .. }, reading) => {
                let forged = random.random_ratio(1, FORGED);
                // A node that has gone for good may have all of it, and is waited for.
                let soon = now + Duration::from_millis(IMPATIENT_MS);
                let deadline = if forged { deadline.min(soon) } else { deadline };
                let part = reading.ask(forged);
                vec![Command::Fetch { call, partition: place.partition, part, deadline }]
            }
            Doing::Act(action) => update(self.model.update(action)),
            Doing::Touch(action) => update(self.model.touch(action)),
            Doing::Look(action) => read(self.model.look(action)),
            Doing::Name { query, .. } | Doing::Attributes { query, .. } => read(query.clone()),
        }
    }

    /// The session has said something: what the program asks for next about the same thing.
    pub fn on_output(
        &mut self,
        output: Output,
        now: Time,
        random: &mut Random,
        done: &mut Tally,
    ) -> Vec<Command> {
        let call = output.call().expect("it keeps nothing");
        if self.saving.as_ref().is_some_and(|saving| saving.waits_for(call)) {
            return self.on_saving(output, now, random, done);
        }
        if self.taking.as_ref().is_some_and(|taking| taking.waits_for(call)) {
            return self.on_taking(output, now, random, done);
        }
        if self.opening.waits_for(call) {
            return self.opening.on_output(output, &mut done.held);
        }
        if self.posix.waits_for(call) {
            return self.posix.on_output(output, now, random, &mut done.facts);
        }
        assert_eq!(call, self.call, "an output of a call that is over: {output:?}");
        let doing = self.doing.take().expect("a call has one output");
        match (doing, output) {
            (Doing::Fetch(file, reading), Output::GaveUp { failure, .. })
                if reading.had_to_fail(&failure) =>
            {
                done.beyond += 1;
                self.doing = Some(Doing::Fetch(file, reading));
            }
            (doing, Output::GaveUp { failure, .. }) => {
                saving::expect(&failure);
                return self.on_gave_up(doing, now, random, done);
            }
            (Doing::Act(action), Output::Updated { result, .. }) => {
                done.updates += 1;
                self.on_updated(action, result);
            }
            (Doing::Touch(action), Output::Updated { result, .. }) => {
                assert!(result.is_ok(), "touched after {action:?}: {result:?}");
                self.doing = Some(Doing::Look(action));
            }
            (Doing::Contents(file), Output::Answered { result, .. }) => {
                done.reads += 1;
                let answer = result.unwrap_or_else(|error| panic!("{file:?}: {error:?}"));
                self.on_reading(file, Reading::of(answer), done);
            }
            (Doing::Fetch(file, mut reading), Output::Fetched { data, .. }) => {
                reading.on_part(&data);
                self.on_reading(file, reading, done);
            }
            (doing, Output::Answered { result, .. }) => {
                done.reads += 1;
                self.on_answered(doing, result);
            }
            (doing, output) => panic!("{doing:?}: {output:?}"),
        }
        self.ask(now, random)
    }

    /// The file that is being saved goes on, or is saved.
    fn on_saving(
        &mut self,
        output: Output,
        now: Time,
        random: &mut Random,
        done: &mut Tally,
    ) -> Vec<Command> {
        let Some(mut saving) = self.saving.take() else { return Vec::new() };
        let mut commands = saving.on_output(output, now, done);
        if !saving.waits() {
            commands.extend(saving.go_on(now, &mut self.last, random));
        }
        if let Some(Command::Discard { partition, blocks }) = saving.discard() {
            done.discarded += blocks.len() as u64;
            commands.push(Command::Discard { partition, blocks });
        }
        match saving.is_done() {
            true => self.model.saved(saving.file.ino, saving.contents, saving.shown),
            false => self.saving = Some(saving),
        }
        commands
    }

    /// What is still to be read of a file, or that all is what it should be.
    fn on_reading(&mut self, file: File, reading: Reading, done: &mut Tally) {
        if reading.next().is_some() {
            self.doing = Some(Doing::Fetch(file, reading));
            return;
        }
        done.files += 1;
        let should = self.model.contents(file.place.ino);
        reading.compare(should).unwrap_or_else(|what| panic!("{file:?}: {what}"));
    }

    fn on_updated(&mut self, action: Action, result: Result<Done, FsError>) {
        match (result, self.model.expected(&action)) {
            (Ok(done), Ok(())) => self.model.done(action, &done),
            (Err(error), Err(expected)) if error == expected => {}
            (Err(error), _) if matches!(action, Action::Shared { .. }) => {
                assert_ne!(error, FsError::Expired, "nobody gave up {action:?}");
            }
            (result, expected) => panic!("{action:?}: {result:?}, expected {expected:?}"),
        }
    }

    fn on_answered(&mut self, doing: Doing, result: Result<Answer, FsError>) {
        match (doing, result) {
            (Doing::Look(action), result) => self.model.settle(action, &result),
            (Doing::Name { found: None, .. }, Err(FsError::NotFound)) => {}
            (Doing::Name { found: Some(place), .. }, Ok(Answer::Entry { entry, .. })) => {
                assert_eq!(entry.place, place, "a name leads elsewhere");
            }
            (Doing::Attributes { file, .. }, Ok(Answer::Attributes(attributes))) => {
                let told = (attributes.size, attributes.nlink);
                assert_eq!(told, (file.size, file.nlink), "an old state of {:?}", file.place);
            }
            (doing, result) => panic!("{doing:?}: answered {result:?}"),
        }
    }

    /// A read is asked again; an update is sent again under its name, or given up for good.
    fn on_gave_up(
        &mut self,
        doing: Doing,
        now: Time,
        random: &mut Random,
        done: &mut Tally,
    ) -> Vec<Command> {
        let is_update = matches!(doing, Doing::Act(_) | Doing::Touch(_));
        if is_update && random.random_bool(0.5) {
            done.again += 1;
            self.doing = Some(doing);
            return vec![Command::Again { call: self.call, deadline: deadline(now, random) }];
        }
        let mut commands = vec![Command::Release(self.call)];
        done.given_up += u64::from(is_update);
        self.doing = match doing {
            // Others change what it names, too: whatever comes of it is right.
            Doing::Act(Action::Shared { .. }) => None,
            Doing::Act(action) => Some(Doing::Touch(action)),
            other => Some(other),
        };
        commands.extend(self.ask(now, random));
        commands
    }
}

/// Asks for all bytes of a file.
pub(super) fn contents_of(inode: Place) -> Query {
    Query::Contents { inode, offset: 0, len: u64::MAX }
}

pub(super) fn deadline(now: Time, random: &mut Random) -> Time {
    let impatient = Duration::from_millis(random.random_range(20..IMPATIENT_MS));
    now + if random.random_ratio(1, 4) { impatient } else { PATIENT }
}
