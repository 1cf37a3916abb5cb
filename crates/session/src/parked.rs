//! Calls that wait until something else has ended, before they are sent, or sent again: until what
//! the client itself keeps back has landed, or until others have let go what they hold exclusively
//! (decision 102).

use crate::calls::{CallId, Command, Failure, Output};
use crate::caps::{Errand, OWN};
use crate::session::{Call, Session, Work};
use meridian_core::{GroupId, Outbox, Time};
use meridian_fs::{CapStep, Ino, Query};
use meridian_host::update::Change;
use std::collections::{BTreeMap, BTreeSet};

/// What is done when that has ended.
#[derive(Clone, Debug)]
enum Then {
    /// A replica is asked.
    Read(Query),
    /// An update is sent for the first time.
    Update(Change),
    /// An update that was refused is sent again, under another name.
    Again(Box<Call>),
}

/// What a call waits for.
#[derive(Clone, Debug)]
enum For {
    /// These files land.
    Landing(BTreeSet<Ino>),
    /// These errands end.
    Recalls(BTreeSet<CallId>),
}

#[derive(Clone, Debug)]
struct Parked {
    then: Then,
    waits: For,
    group: GroupId,
    /// When it is given up; an update that was given up waits until its owner says more.
    deadline: Option<Time>,
}

/// All calls that wait so.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParkedCalls {
    all: BTreeMap<CallId, Parked>,
}

impl ParkedCalls {
    /// When the first is given up.
    pub fn next_due(&self) -> Option<Time> {
        self.all.values().filter_map(|parked| parked.deadline).min()
    }

    /// Nobody waits for the call any more.
    pub fn release(&mut self, call: CallId) {
        self.all.remove(&call);
    }
}

impl Session {
    /// A question about what is kept back waits until that has landed; whether it does.
    pub(crate) fn parks_read(&mut self, call: CallId, query: &Query, deadline: Time) -> bool {
        let unlanded = self.caps.unlanded_of_query(query);
        let then = Then::Read(query.clone());
        self.parks(call, (then, query.partition()), unlanded, deadline)
    }

    /// The same of an update.
    pub(crate) fn parks_update(&mut self, call: CallId, change: &Change, deadline: Time) -> bool {
        let unlanded = self.caps.unlanded_before(&change.update);
        let group = change.update.partitions().first().copied();
        let group = group.unwrap_or(GroupId::GLOBAL);
        self.parks(call, (Then::Update(change.clone()), group), unlanded, deadline)
    }

    fn parks(
        &mut self,
        call: CallId,
        (then, group): (Then, GroupId),
        unlanded: BTreeSet<Ino>,
        deadline: Time,
    ) -> bool {
        if unlanded.is_empty() {
            return false;
        }
        self.caps.call_to_land(unlanded.iter().copied());
        let waits = For::Landing(unlanded);
        self.parked.all.insert(call, Parked { then, waits, group, deadline: Some(deadline) });
        true
    }

    /// A replica has refused to tell something of a directory that another holds exclusively: that
    /// one is to let go first.
    pub(crate) fn recall_for_read(
        &mut self,
        now: Time,
        (call, query, deadline): (CallId, Query, Time),
        out: &mut Outbox<Session>,
    ) {
        let group = query.partition();
        let inodes = query.inode().into_iter().collect();
        let recalls = BTreeSet::from([self.recall(now, group, inodes, out)]);
        let (then, waits) = (Then::Read(query), For::Recalls(recalls));
        self.parked.all.insert(call, Parked { then, waits, group, deadline: Some(deadline) });
    }

    /// The same of an update that was refused.
    pub(crate) fn recall_for_update(
        &mut self,
        now: Time,
        id: CallId,
        call: Call,
        out: &mut Outbox<Session>,
    ) {
        let Work::Update(update) = &call.work else { return };
        let mut by_group = BTreeMap::<GroupId, Vec<Ino>>::new();
        for place in update.alters() {
            by_group.entry(place.partition).or_default().push(place.ino);
        }
        let group = by_group.keys().next().copied().unwrap_or(GroupId::GLOBAL);
        let recalls =
            by_group.into_iter().map(|(group, inodes)| self.recall(now, group, inodes, out));
        let (waits, deadline) = (For::Recalls(recalls.collect()), Some(call.deadline));
        let then = Then::Again(Box::new(call));
        self.parked.all.insert(id, Parked { then, waits, group, deadline });
    }

    fn recall(
        &mut self,
        now: Time,
        group: GroupId,
        inodes: Vec<Ino>,
        out: &mut Outbox<Session>,
    ) -> CallId {
        self.last_errand += 1;
        let id = CallId(OWN | self.last_errand);
        self.errands.insert(id, (group, Errand::Recall, now));
        self.send_step(now, id, group, (CapStep::Recall(inodes), Vec::new()), out);
        id
    }

    /// An errand for which a call may wait has ended.
    pub(crate) fn on_recall_ended(&mut self, errand: CallId) {
        for parked in self.parked.all.values_mut() {
            if let For::Recalls(waits) = &mut parked.waits {
                waits.remove(&errand);
            }
        }
    }

    /// Goes on with what waits for nothing any more.
    pub(crate) fn resume(&mut self, now: Time, out: &mut Outbox<Session>) {
        let over = |parked: &Parked| match &parked.waits {
            For::Landing(inodes) => !inodes.iter().any(|ino| self.caps.is_unlanded(*ino)),
            For::Recalls(errands) => errands.is_empty(),
        };
        let ready = self.parked.all.iter().filter(|(_, of)| of.deadline.is_some() && over(of));
        for id in ready.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(Parked { then, deadline: Some(deadline), .. }) = self.parked.all.remove(&id)
            else {
                continue;
            };
            match then {
                Then::Read(query) => self.on_read(now, id, query, deadline, out),
                Then::Update(change) => {
                    self.on_command(now, Command::Update { call: id, change, deadline }, out);
                }
                Then::Again(mut call) => {
                    call.deadline = deadline;
                    if let Work::Update(update) = &mut call.work {
                        let drawn = (now, self.random.next());
                        update.rename(&self.vector, &mut self.names, drawn);
                        update.renamed = 0; // It was refused under its name, not forgotten.
                    }
                    self.go_on(now, id, *call, out);
                }
            }
        }
    }

    /// Gives up what has waited for too long.
    pub(crate) fn give_up_parked(&mut self, now: Time, out: &mut Outbox<Session>) {
        let due = |parked: &Parked| parked.deadline.is_some_and(|at| at <= now);
        let late = self.parked.all.iter().filter(|(_, parked)| due(parked));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            let parked = self.parked.all.get_mut(&id).expect("it was there");
            let failure = Failure::Timeout { group: parked.group };
            parked.deadline = None;
            if matches!(parked.then, Then::Read(_)) {
                self.parked.all.remove(&id);
            }
            out.output(Output::GaveUp { call: id, failure });
        }
    }

    /// An update that waits here is waited for until later; whether it is one.
    pub(crate) fn waits_on(&mut self, call: CallId, deadline: Time) -> bool {
        let parked = self.parked.all.get_mut(&call);
        parked.map(|parked| parked.deadline = Some(deadline)).is_some()
    }
}
