//! Which groups are cut off, and until when a call that needs one may wait.
//!
//! A group is cut off when it was asked all the time for [`SILENCE`] and no node has answered for
//! it. A question may wait for other reasons, so from [`SUSPECT`] on the group is asked one that
//! does not; and so on while it is cut off, whether anybody needs it or not. A call that
//! needs it is given up when the group has been cut off for as long as the owner of the session
//! says, and never before it has been asked for [`TRY`]: whoever can be reached again answers by
//! then.
//!
//! Invariants:
//! - D1: a group is asked while it is cut off.
//! - D2: of each cut its begin and its end are told, in turns.

use crate::Mutation;
use crate::calls::{CallId, Output};
use meridian_core::{GroupId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long nobody answers for a group that is asked until it counts as cut off: longer than an
/// election.
pub const SILENCE: Duration = Duration::from_secs(4);
/// After how long it is looked whether a silent group can be reached.
pub const SUSPECT: Duration = Duration::from_secs(2);
/// How long a call is tried at least.
pub const TRY: Duration = Duration::from_millis(800);
/// How often it is looked whether the group can be reached.
pub const LOOK: Duration = Duration::from_secs(1);
/// How long such a look waits for an answer: some nodes are asked.
pub const LOOK_LIMIT: Duration = Duration::from_secs(4);

/// What is known of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// How often it has answered.
    heard: u64,
    /// How many calls wait for it.
    waiting: usize,
    /// Since when it is asked without an answer.
    silent: Option<Time>,
    /// Since when it is cut off.
    cut: Option<Time>,
    /// Since when nodes of other groups say that they cannot reach it, and when one said so last.
    refused: Option<(Time, Time)>,
    /// When it was looked at for the first and for the last time since it has been silent.
    looked: Option<(Time, Time)>,
}

impl State {
    /// When it is to be looked at next.
    fn look_from(&self) -> Option<Time> {
        let silent = self.silent.map(|since| since + SUSPECT);
        let next = self.looked.map(|(_, last)| last + LOOK);
        next.or(silent).filter(|_| self.silent.is_some() || self.cut.is_some())
    }

    /// When it counts as cut off, if it stays silent.
    fn cut_from(&self) -> Option<Time> {
        let (silent, (first, _)) = self.silent.zip(self.looked)?;
        Some((silent + SILENCE).max(first + TRY))
    }

    fn next_due(&self) -> Option<Time> {
        let cut = self.cut_from().filter(|_| self.cut.is_none());
        self.look_from().into_iter().chain(cut).min()
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    /// How long calls wait for a group that is cut off.
    pub patience: Option<Duration>,
    pub mutation: Mutation,
    groups: BTreeMap<GroupId, State>,
    /// The calls that look whether a group can be reached.
    pub looks: BTreeMap<CallId, GroupId>,
    news: Vec<Output>,
}

impl Cuts {
    /// A question goes to a group.
    pub fn asked(&mut self, group: GroupId, now: Time) {
        let state = self.groups.entry(group).or_default();
        state.waiting += 1;
        if self.mutation.is(Mutation::BeginsSilenceAnew) {
            state.silent = None;
        }
        state.silent.get_or_insert(now);
    }

    /// A question is not waited for any more.
    pub fn ended(&mut self, group: GroupId) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        state.waiting = state.waiting.saturating_sub(1);
        if state.waiting == 0 && state.cut.is_none() {
            (state.silent, state.looked) = (None, None); // Nobody has asked all the time.
        }
    }

    /// A node has answered for a group, a question that counts as one which waits or not.
    pub fn answered(&mut self, group: GroupId, now: Time, counts: bool) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        state.heard += 1;
        (state.silent, state.looked) = ((state.waiting > usize::from(counts)).then_some(now), None);
        if let Some(since) = state.cut.take() {
            self.news.push(Output::Reached { group, after: now.since(since) });
        }
    }

    /// A node of another group cannot reach this one, so an update over both waits; until when, if
    /// it may wait until `deadline` by itself. Without [`Cuts::patience`] it does not wait.
    pub fn refused(&mut self, group: GroupId, now: Time, deadline: Time) -> Time {
        let Some(patience) = self.patience else { return now };
        let state = self.groups.entry(group).or_default();
        let goes_on = state.refused.filter(|(_, last)| now.since(*last) < SILENCE);
        let since = goes_on.map_or(now, |(since, _)| since);
        state.refused = Some((since, now));
        let since = state.cut.map_or(since, |cut| cut.min(since));
        deadline.min((since + patience).max(now))
    }

    /// Since when the group has been cut off, if it is.
    pub fn cut_since(&self, group: GroupId) -> Option<Time> {
        self.groups.get(&group).and_then(|state| state.cut)
    }

    /// How often a node has answered for the group.
    pub fn heard(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |state| state.heard)
    }

    /// Until when a call that needs the group may wait that begins now and may wait until
    /// `deadline` by itself.
    pub fn deadline(&self, group: GroupId, now: Time, deadline: Time) -> Time {
        let cut = self.groups.get(&group).and_then(|state| state.cut);
        match cut.zip(self.patience) {
            Some((since, patience)) => deadline.min((since + patience).max(now + TRY)),
            None => deadline,
        }
    }

    /// As [`Cuts::deadline`], for a call that waits already.
    pub fn soonest(&self, group: GroupId, now: Time, deadline: Time) -> Time {
        let cut = self.groups.get(&group).and_then(|state| state.cut);
        match cut.zip(self.patience) {
            Some((since, patience)) => deadline.min((since + patience).max(now)),
            None => deadline,
        }
    }

    /// When something is due.
    pub fn next_due(&self) -> Option<Time> {
        self.patience?;
        self.groups.values().filter_map(State::next_due).min()
    }

    /// The groups that are cut off from now on; and those that are to be looked at.
    pub fn on_due(&mut self, now: Time) -> (Vec<GroupId>, Vec<GroupId>) {
        let (mut fresh, mut look) = (Vec::new(), Vec::new());
        if self.patience.is_none() {
            return (fresh, look);
        }
        for (group, state) in &mut self.groups {
            let unseen = self.mutation.is(Mutation::CutsUnseen);
            let silent = state.silent.filter(|_| unseen).map(|since| since + SILENCE);
            let from = silent.or_else(|| state.cut_from());
            if state.cut.is_none() && from.is_some_and(|from| from <= now) {
                state.cut = state.silent;
                fresh.push(*group);
                self.news.push(Output::Cut { group: *group });
            }
            let rests = match state.cut {
                Some(_) => self.mutation.is(Mutation::NeverLooksAgain),
                None => unseen,
            };
            if !rests && state.look_from().is_some_and(|from| from <= now) {
                let first = state.looked.map_or(now, |(first, _)| first);
                state.looked = Some((first, now));
                if !self.looks.values().any(|of| of == group) {
                    look.push(*group);
                }
            }
        }
        (fresh, look)
    }

    /// What the owner is to hear.
    pub fn take_news(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: GroupId = GroupId(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn cuts(patience_ms: u64) -> Cuts {
        Cuts { patience: Some(Duration::from_millis(patience_ms)), ..Cuts::default() }
    }

    #[test]
    fn a_group_that_answers_nobody_is_cut_off_and_looked_at_until_it_answers() {
        let mut cuts = cuts(10_000);
        cuts.asked(US, at(0));
        assert_eq!(cuts.next_due(), Some(at(0) + SUSPECT));
        assert_eq!(cuts.on_due(at(2_000)), (vec![], vec![US]));
        cuts.looks.insert(CallId(1), US);
        assert_eq!(cuts.on_due(at(3_999)), (vec![], vec![]), "it is being looked at");
        assert_eq!(cuts.on_due(at(4_000)), (vec![US], vec![]));
        assert!(matches!(cuts.take_news()[..], [Output::Cut { group: US }]));
        assert_eq!(cuts.cut_since(US), Some(at(0)), "since it was asked in vain");
        cuts.looks.clear();
        cuts.ended(US);
        assert_eq!(cuts.on_due(at(6_000)), (vec![], vec![US]), "D1");
        cuts.asked(US, at(6_000));
        cuts.answered(US, at(6_500), true);
        assert!(
            cuts.cut_since(US).is_none()
                && matches!(cuts.take_news()[..], [Output::Reached { .. }])
        );
        cuts.ended(US);
        assert_eq!((cuts.next_due(), cuts.on_due(at(99_000))), (None, (vec![], vec![])));
    }

    #[test]
    fn only_who_is_asked_all_the_time_and_does_not_answer_is_cut_off() {
        let mut cuts = cuts(0);
        cuts.asked(US, at(0));
        cuts.ended(US);
        cuts.asked(US, at(3_000));
        assert_eq!(cuts.on_due(at(4_000)), (vec![], vec![]));
        // A question waits for another reason: the group answers who looks.
        assert_eq!(cuts.on_due(at(5_000)), (vec![], vec![US]));
        cuts.asked(US, at(5_000));
        cuts.answered(US, at(5_001), true);
        cuts.ended(US);
        assert_eq!(cuts.on_due(at(7_000)), (vec![], vec![]));
        assert_eq!(cuts.on_due(at(7_001)), (vec![], vec![US]));
        assert_eq!(cuts.on_due(at(9_001)).0, [US]);
    }

    #[test]
    fn who_is_out_of_reach_for_others_is_waited_for_as_long() {
        let mut cuts = cuts(10_000);
        let deadline = at(60_000);
        assert_eq!(cuts.refused(US, at(1_000), deadline), at(11_000));
        assert_eq!(cuts.refused(US, at(3_000), deadline), at(11_000));
        assert_eq!(cuts.refused(US, at(3_000), at(5_000)), at(5_000), "its own");
        assert_eq!(cuts.refused(US, at(6_999), deadline), at(11_000));
        assert_eq!(cuts.refused(US, at(10_999), deadline), at(20_999), "another time");
        cuts.patience = Some(Duration::ZERO);
        assert_eq!(cuts.refused(US, at(11_000), deadline), at(11_000));
        cuts.patience = None;
        assert_eq!(cuts.refused(US, at(12_000), deadline), at(12_000));
    }

    #[test]
    fn calls_wait_as_long_as_they_may_and_then_are_tried_shortly() {
        let mut cuts = cuts(10_000);
        let deadline = at(60_000);
        cuts.asked(US, at(0));
        assert_eq!(cuts.deadline(US, at(1), deadline), deadline);
        cuts.on_due(at(2_000));
        cuts.on_due(at(4_000));
        assert_eq!(cuts.deadline(US, at(4_000), deadline), at(10_000));
        assert_eq!(cuts.deadline(US, at(4_000), at(5_000)), at(5_000), "its own");
        assert_eq!(cuts.deadline(US, at(20_000), deadline), at(20_000) + TRY);
    }
}
