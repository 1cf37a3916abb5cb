//! Calls that wait for groups which are cut off, or out of reach of one another: see
//! [`crate::cuts`].

use crate::calls::{CallId, Failure};
use crate::caps::{Errand, OWN};
use crate::cuts;
use crate::inquiries::InquiryId;
use crate::mutation::Mutation;
use crate::session::{Call, Session, Work};
use meridian_core::{Outbox, Time};
use meridian_fs::Query;
use meridian_host::api::RequestBody;
use meridian_host::update::NOBODY;

impl Session {
    /// A question has failed. If nodes that were asked for an update cannot reach another of its
    /// groups they may be asked again later: whether they are. What the session itself would begin
    /// anew at once always is, or it would be asked as often as nodes can answer.
    pub(crate) fn waits(
        &mut self,
        now: Time,
        (id, inquiry): (CallId, InquiryId),
        failure: &Failure,
    ) -> bool {
        let Failure::OutOfReach { group: other } = *failure else { return false };
        let is_begun_anew = self.is_begun_anew(id);
        let call = self.calls.get_mut(&id).expect("an inquiry belongs to a call");
        let deadline = match is_begun_anew {
            true => call.deadline,
            false => self.nodes.cuts.refused(other, now, call.deadline),
        };
        if deadline <= now {
            return false;
        }
        self.deadlines.remove(&(call.deadline, id));
        call.deadline = deadline;
        self.deadlines.insert((deadline, id));
        self.inquiries.wait_for(now, inquiry, other);
        true
    }

    /// Whether a call is an errand that follows upon itself if it fails. It may need groups of what
    /// was given up, which must be cancelled before.
    fn is_begun_anew(&self, id: CallId) -> bool {
        let Some((_, errand, _)) = self.errands.get(&id) else { return false };
        match errand {
            Errand::Release(_) | Errand::ReleaseExclusive(_) | Errand::Recall | Errand::Renew => {
                !self.mutation.is(Mutation::RepeatsAtOnce)
            }
            // There are pauses between two of these.
            Errand::Grant(_)
            | Errand::Sweep(..)
            | Errand::List(..)
            | Errand::Survey(..)
            | Errand::Ahead { .. }
            | Errand::Window { .. }
            | Errand::GrantExclusive(_)
            | Errand::Poll => false,
        }
    }

    /// Calls that wait for a group which is cut off from now on are given up earlier; it is looked
    /// whether those that are can be reached again.
    pub(crate) fn on_cuts(&mut self, now: Time, out: &mut Outbox<Session>) {
        let (fresh, look) = self.nodes.cuts.on_due(now);
        if !fresh.is_empty() {
            let groups = |call: &Call| match &call.work {
                Work::Read { query, .. } => vec![query.partition()],
                // What must be cancelled before may be in other groups.
                Work::Update(update) => {
                    let asked = call.inquiries.iter().filter_map(|id| self.inquiries.group(*id));
                    update.dest.iter().copied().chain(asked).collect()
                }
                // Its owner says for how long, cut or not.
                Work::Follow(_) | Work::Poll | Work::Look => Vec::new(),
            };
            let all = self.mutation.is(Mutation::HurriesAll);
            for (_, id) in std::mem::take(&mut self.deadlines) {
                let call = self.calls.get_mut(&id).expect("deadlines are those of calls");
                let needed = groups(call);
                for group in fresh.iter().filter(|group| all || needed.contains(*group)) {
                    call.deadline = self.nodes.cuts.soonest(*group, now, call.deadline);
                }
                self.deadlines.insert((call.deadline, id));
            }
        }
        for group in look {
            self.last_errand += 1;
            let (id, deadline) = (CallId(OWN | self.last_errand), now + cuts::LOOK_LIMIT);
            // Those of a directory would wait for an update of it that needs another group.
            let (vector, query) = (self.vector.clone(), Query::Totals { partition: group });
            let body = RequestBody::Read { vector, by: NOBODY, query };
            let inquiry = self.inquiries.begin(now, id, group, body, &mut self.nodes, out);
            self.deadlines.insert((deadline, id));
            let call = Call { deadline, inquiries: vec![inquiry], work: Work::Look };
            self.calls.insert(id, call);
            self.nodes.cuts.looks.insert(id, group);
        }
    }
}
