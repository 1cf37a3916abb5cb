//! What a session sends for its capabilities, as calls of its own.

use super::{Errand, WINDOW};
use crate::calls::{CallId, Output};
use crate::session::{Call, Session, Work};
use crate::update::Update;
use meridian_core::{GroupId, Outbox, Time};
use meridian_fs::types::Timestamp;
use meridian_fs::{Answer, CapStep, Done, FsError, Ino, Query, Update as Change, Vector};
use meridian_host::api::{ReplyBody, RequestBody};
use meridian_host::update;
use std::time::Duration;

/// The bit that tells the session's own calls from those of its owner.
pub(crate) const OWN: u64 = 1 << 63;
/// After how long one is given up, and begun anew if it is still of use.
const PATIENCE: Duration = Duration::from_secs(5);

impl CallId {
    /// Whether it is a session's own.
    pub(crate) fn is_own(self) -> bool {
        self.0 & OWN != 0
    }
}

impl Session {
    /// Sends what is to be sent for capabilities, and says what is to be dropped.
    pub(crate) fn run_errands(&mut self, now: Time, out: &mut Outbox<Session>) {
        let surplus = self.caps.surplus();
        self.tell_dropped(surplus, out);
        while let Some((group, errand)) = self.caps.next_errand(now) {
            self.last_errand += 1;
            let (id, deadline) = (CallId(OWN | self.last_errand), now + PATIENCE);
            let step = match &errand {
                Errand::Grant(inodes)
                | Errand::Sweep(_, inodes)
                | Errand::Ahead { inodes, .. }
                | Errand::Window { inodes, .. } => Some(CapStep::Grant(inodes.clone())),
                Errand::Release(inodes) => Some(CapStep::Release(inodes.clone())),
                Errand::Renew => Some(CapStep::Renew),
                Errand::GrantExclusive(ino) => Some(CapStep::GrantExclusive(vec![*ino])),
                Errand::ReleaseExclusive(inodes) => Some(CapStep::ReleaseExclusive(inodes.clone())),
                Errand::Poll | Errand::List(..) | Errand::Survey(..) | Errand::Recall => None,
            };
            let listed = match &errand {
                Errand::List(inode, after) | Errand::Survey(inode, after) => {
                    Some((*inode, after.clone()))
                }
                _ => None,
            };
            let queries = match &errand {
                Errand::Ahead { queries, .. } | Errand::Window { queries, .. } => queries.clone(),
                _ => Vec::new(),
            };
            self.errands.insert(id, (group, errand, now));
            if let Some(step) = step {
                self.send_step(now, id, group, (step, queries), out);
                continue;
            }
            if let Some((inode, after)) = listed {
                let query = Query::Directory { inode, after, limit: WINDOW as u32 };
                self.ask(now, id, query, deadline, out);
                continue;
            }
            let body = RequestBody::Recalls { group, by: self.caps.by };
            let inquiry = self.inquiries.begin(now, id, group, body, &mut self.nodes, out);
            self.deadlines.insert((deadline, id));
            let call = Call { deadline, inquiries: vec![inquiry], work: Work::Poll };
            self.calls.insert(id, call);
        }
    }

    /// Sends a step as the call `id`, which an errand is noted for.
    pub(crate) fn send_step(
        &mut self,
        now: Time,
        id: CallId,
        partition: GroupId,
        (step, queries): (CapStep, Vec<Query>),
        out: &mut Outbox<Session>,
    ) {
        let change = Change::Caps { client: self.caps.by, partition, step };
        let change = update::Change::new(Timestamp::default(), change);
        let drawn = (now, self.random.next());
        let holder = (self.caps.by, false);
        let update = Update::named(change, holder, &self.vector, &mut self.names, drawn);
        let update = update.with(queries);
        let (work, deadline) = (Work::Update(Box::new(update)), now + PATIENCE);
        self.go_on(now, id, Call { deadline, inquiries: Vec::new(), work }, out);
    }

    /// A replica has told what is recalled.
    pub(crate) fn on_polled(
        &mut self,
        now: Time,
        (id, mut call): (CallId, Call),
        vector: &Vector,
        out: &mut Outbox<Session>,
    ) {
        self.vector.merge(vector);
        self.stop_asking(id, &mut call);
        self.end_errand(now, id, Some(Vec::new()), out);
    }

    /// A question was answered: the owner's, or one of the session's own.
    pub(crate) fn on_answered(
        &mut self,
        now: Time,
        (id, mut call): (CallId, Call),
        result: Result<Answer, FsError>,
        out: &mut Outbox<Session>,
    ) {
        let deadline = call.deadline;
        self.stop_asking(id, &mut call);
        match call.work {
            Work::Read { .. } if id.is_own() => match self.errands.remove(&id) {
                Some((_, Errand::List(directory, _), _)) => {
                    self.caps.on_listed(now, directory, &result);
                }
                Some((_, Errand::Survey(directory, _), _)) => self.caps.on_surveyed(directory.ino),
                _ => {}
            },
            Work::Read { query, .. } if matches!(result, Err(FsError::Held)) => {
                self.recall_for_read(now, (id, query, deadline), out);
            }
            Work::Read { seen, .. } => out.output(Output::Answered { call: id, seen, result }),
            _ => {}
        }
    }

    /// The owner is to drop these.
    pub(crate) fn tell_dropped(&mut self, gone: Vec<(GroupId, Ino)>, out: &mut Outbox<Session>) {
        if !gone.is_empty() {
            out.output(Output::Recalled { gone });
        }
    }

    /// A reply of the group may tell what is recalled.
    pub(crate) fn heard(
        &mut self,
        now: Time,
        group: GroupId,
        reply: &ReplyBody,
        out: &mut Outbox<Session>,
    ) {
        let (ReplyBody::Answer { vector, recalled, .. }
        | ReplyBody::Updated { vector, recalled, .. }
        | ReplyBody::Recalled { vector, inodes: recalled }) = reply
        else {
            return;
        };
        let gone = self.caps.heard(now, group, vector.get(group), recalled);
        self.tell_dropped(gone, out);
    }

    /// An own update was decided; whether it was one.
    pub(crate) fn on_errand_done(
        &mut self,
        now: Time,
        id: CallId,
        result: &Result<Done, FsError>,
        out: &mut Outbox<Session>,
    ) -> bool {
        let granted = match result {
            Ok(Done::Granted(inodes)) => Some(inodes.clone()),
            Ok(_) => Some(Vec::new()),
            Err(_) => None,
        };
        self.end_errand(now, id, granted, out)
    }

    /// A call of the session's own has ended; whether it was one.
    pub(crate) fn end_errand(
        &mut self,
        now: Time,
        id: CallId,
        granted: Option<Vec<Ino>>,
        out: &mut Outbox<Session>,
    ) -> bool {
        let Some((group, errand, sent)) = self.errands.remove(&id) else { return false };
        if errand == Errand::Recall {
            self.on_recall_ended(id);
        }
        let ahead = matches!(errand, Errand::Ahead { .. } | Errand::Window { .. });
        let gone = self.caps.on_ended(now, group, (errand, sent), granted);
        self.tell_dropped(gone, out);
        if ahead {
            self.answer_waiting(now, out);
        }
        true
    }

    /// What has come along with the reply to an update, if that is one of the session's own.
    pub(crate) fn note_along(&mut self, id: CallId, along: Vec<Result<Answer, FsError>>) {
        if let Some((_, Errand::Ahead { told, .. } | Errand::Window { told, .. }, _)) =
            self.errands.get_mut(&id)
        {
            *told = along;
        }
    }

    /// More is kept now: what waits for a replica may be answered from it.
    fn answer_waiting(&mut self, now: Time, out: &mut Outbox<Session>) {
        let reads = self.calls.iter().filter(|(id, _)| !id.is_own());
        let reads = reads.filter_map(|(id, call)| match &call.work {
            Work::Read { seen, query, .. } => Some((*id, *seen, query.clone())),
            _ => None,
        });
        for (id, seen, query) in reads.collect::<Vec<_>>() {
            if !self.holds(now, &query) {
                continue;
            }
            let result = self.caps.answer(now, &query, &self.vector).expect("it holds it");
            if let Some(mut call) = self.calls.remove(&id) {
                self.stop_asking(id, &mut call);
            }
            out.output(Output::Answered { call: id, seen, result });
        }
    }
}
