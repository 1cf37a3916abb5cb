//! The acceptor and learner: promises, votes, and what is decided by them (report, sections 3.2 and
//! 5.2).
//!
//! ACCEPT names no value: it counts once the value is here. The leader's PROPOSE is its ACCEPT.
//! Where there are three members a follower's own vote and the leader's are a majority, and
//! followers need not hear each other's.

use crate::message::{Accept, Alive, AliveOk, Beat, Message, Prepare, PrepareOk, Propose};
use crate::mutation::Mutation;
use crate::process::Paxos;
use crate::service::Service;
use crate::view::{Instance, View};
use meridian_core::{NodeId, Outbox, Time};

impl<S: Service> Paxos<S> {
    /// "Upon Prepare" (report, Table 1), for all instances from `first` on.
    pub(crate) fn on_prepare(
        &mut self,
        now: Time,
        from: NodeId,
        prepare: &Prepare,
        out: &mut Outbox<Self>,
    ) {
        let Prepare { view, from: first } = *prepare;
        if !self.is_active() {
            return;
        }
        if view < self.view {
            return self.send(from, Message::Higher { view: self.view }, out);
        }
        if view > self.view {
            if self.has_promised_lease(now) {
                return; // It asks again.
            }
            self.advance_view(now, view, out);
        }
        self.detector.heard(now);
        let decided = self.machine.next();
        let votes = self.votes_since(first.max(decided)).collect();
        let epochs = self.epochs.clone();
        self.send(from, Message::PrepareOk(PrepareOk { view, epochs, decided, votes }), out);
    }

    /// Whether what the leader of `view` says counts; goes to its view.
    fn follow(
        &mut self,
        now: Time,
        from: NodeId,
        view: View,
        beat: &Beat,
        out: &mut Outbox<Self>,
    ) -> bool {
        if view < self.view && !self.mutation.is(Mutation::AcceptsOldView) {
            self.send(from, Message::Higher { view: self.view }, out);
            return false;
        }
        if view > self.view {
            // A lease is no promise not to hear of another leader: he has a majority already.
            self.advance_view(now, view, out);
        }
        self.detector.heard(now);
        self.promise_lease(now);
        if let Err(stopped) = self.machine.compare(&beat.digest) {
            self.stop(stopped, out);
            return false;
        }
        true
    }

    /// "Upon Propose" (report, Table 1).
    pub(crate) fn on_propose(
        &mut self,
        now: Time,
        from: NodeId,
        propose: Propose,
        out: &mut Outbox<Self>,
    ) {
        let Propose { view, instance, batch, beat } = propose;
        if !self.is_active() || !self.follow(now, from, view, &beat, out) {
            return;
        }
        self.catch_up.hear(instance.next(), beat.decided);
        if instance < self.machine.next() {
            // Decided here, so with this value: the leader may not have heard.
            return self.send(
                from,
                Message::Accept(Accept { view, instance, echo: beat.sent }),
                out,
            );
        }
        if !self.is_near(instance) {
            return; // Too far behind: what is missing must be caught up with first.
        }
        let entry = self.log.entry(instance);
        let again = entry.vote.as_ref().is_some_and(|(voted, _)| *voted == view);
        entry.accepts.add(view, from);
        entry.accepts.add(view, self.me);
        if !again && !entry.decided {
            self.accept_here(instance, &batch, out);
        }
        let accept = Message::Accept(Accept { view, instance, echo: beat.sent });
        match self.members_of(instance).members.len() {
            0..=3 => self.send(from, accept, out),
            _ => self.broadcast(&accept, out),
        }
        self.learn_decided(view, beat.decided);
        self.try_decide(now, instance, out);
        self.execute(now, out);
    }

    /// The leader of `view` says that all below `upto` are decided: those accepted in that view
    /// are, with that value.
    fn learn_decided(&mut self, view: View, upto: Instance) {
        let mut instance = self.machine.next();
        while instance < upto {
            let Some(entry) = self.log.get(instance) else { return };
            if !entry.decided {
                if entry.vote.as_ref().is_none_or(|(voted, _)| *voted != view) {
                    return;
                }
                self.decide(instance);
            }
            instance = instance.next();
        }
    }

    /// "Upon Accept" (report, Table 1).
    pub(crate) fn on_accept(
        &mut self,
        now: Time,
        from: NodeId,
        accept: &Accept,
        out: &mut Outbox<Self>,
    ) {
        let Accept { view, instance, echo } = *accept;
        if !self.is_active() || view < self.view {
            return;
        }
        if view > self.view {
            self.advance_view(now, view, out);
        }
        if self.is_near(instance) {
            self.log.entry(instance).accepts.add(view, from);
            self.try_decide(now, instance, out);
        }
        self.on_echo(now, from, echo, out);
    }

    /// The leader has nothing else to say.
    pub(crate) fn on_alive(
        &mut self,
        now: Time,
        from: NodeId,
        alive: &Alive,
        out: &mut Outbox<Self>,
    ) {
        let Alive { view, highest, beat } = *alive;
        if !self.is_active() || !self.follow(now, from, view, &beat, out) {
            return;
        }
        self.send(from, Message::AliveOk(AliveOk { view, echo: beat.sent }), out);
        self.catch_up.hear(highest, beat.decided);
        self.learn_decided(view, beat.decided);
        self.execute(now, out);
    }

    /// The leader is heard.
    pub(crate) fn on_alive_ok(
        &mut self,
        now: Time,
        from: NodeId,
        ok: &AliveOk,
        out: &mut Outbox<Self>,
    ) {
        if ok.view == self.view {
            self.on_echo(now, from, ok.echo, out);
        }
    }

    /// Another is in a later view.
    pub(crate) fn on_higher(&mut self, now: Time, view: View, out: &mut Outbox<Self>) {
        if self.is_active() && view > self.view {
            self.advance_view(now, view, out);
        }
    }
}
