//! How processes step, and how their effects become visible: the durability rule.

use crate::world::Item;
use crate::world::Owner;
use crate::world::slot::Clock;
use crate::world::{DiskBug, Plan, What, World};
use meridian_core::{Effect, Event, Process, Time, Visible};
use rand::RngExt;
use std::time::Duration;

/// A clock shows at most this when its process starts.
const CLOCK_START_MAX: Duration = Duration::from_secs(3600);

impl<P: Process, O: Owner<P>> World<P, O> {
    /// Starts the process of a slot, unless it is up: makes it, replays its log, tells its peers.
    pub(crate) fn start(&mut self, slot: usize) {
        if self.slots[slot].up || self.slots[slot].absent {
            return;
        }
        let Some(found) = self.open_log(slot) else { return };
        let mut process = self.make_process(slot);
        for record in found.records {
            process.replay(record);
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.restored(self.slots[slot].peer, &process);
        }
        self.owner.started(self.slots[slot].peer, &process, Time(self.now));
        let clock = self.clock_of(slot);
        let place = &mut self.slots[slot];
        place.clock = clock;
        place.process = Some(process);
        place.up = true;
        place.incarnation += 1;
        place.busy_until = self.now;
        let again = std::mem::replace(&mut place.ran, true);
        self.log_event("start", slot, slot, What::Words(format_args!("")));
        if self.slots[slot].introduction.is_some() {
            self.want_flush(slot); // The log tells of this start.
        }
        self.push(slot, Event::Started);
        // Those that start with the world miss nothing of each other.
        if again || self.now > 0 {
            self.tell_peers(slot);
        }
        for from in self.others(slot) {
            self.link(from, slot).fresh = true;
            self.pay_owed(from, slot);
        }
        self.check_process(slot);
    }

    /// Peers learn of the restart before anything that the new process says; it may or may not
    /// learn of its peers.
    fn tell_peers(&mut self, slot: usize) {
        let learns = self.random.random_bool(0.5);
        for other in self.others(slot) {
            self.put_on_link(slot, other, Item::Restarted);
            if learns && self.slots[other].up {
                let peer = self.slots[other].peer;
                self.push(slot, Event::Restarted(peer));
            }
        }
    }

    fn clock_of(&mut self, slot: usize) -> Clock {
        let Some(fast_ppm) = self.faults.skew_ppm else {
            let ahead = (self.ahead)(self.slots[slot].peer);
            return Clock { offset: (Time(0) + ahead).0, fast_ppm: 0 };
        };
        let offset = self.random.random_range(0..CLOCK_START_MAX.as_nanos() as u64);
        Clock { offset, fast_ppm: self.random.random_range(0..=fast_ppm) }
    }

    pub(crate) fn others(&self, slot: usize) -> impl Iterator<Item = usize> + use<P, O> {
        (0..self.slots.len()).filter(move |other| *other != slot)
    }

    /// Gives an event to a process that is up; it will run.
    pub(crate) fn push(&mut self, slot: usize, event: Event<P>) {
        let place = &mut self.slots[slot];
        assert!(place.up, "events are for the living");
        place.inbox.push_back(event);
        if !place.scheduled {
            place.scheduled = true;
            let (at, incarnation) = (place.busy_until, place.incarnation);
            self.plan_at(at, Plan::Run { slot, incarnation });
        }
    }

    /// If the process is paused, plans `plan` for later.
    fn put_off(&mut self, slot: usize, plan: Plan<P>) -> Option<Plan<P>> {
        let until = self.slots[slot].paused_until;
        if until > self.now {
            self.plan_at(until, plan);
            return None;
        }
        Some(plan)
    }

    /// A batch of events, then [`Event::Idle`].
    pub(crate) fn run(&mut self, slot: usize) {
        let incarnation = self.slots[slot].incarnation;
        if self.put_off(slot, Plan::Run { slot, incarnation }).is_none() {
            return;
        }
        let batch = if self.batch == usize::MAX {
            usize::MAX
        } else {
            self.random.random_range(1..=self.batch)
        };
        for _ in 0..batch {
            let Some(event) = self.slots[slot].inbox.pop_front() else { break };
            if !self.step(slot, event) {
                return;
            }
        }
        if !self.step(slot, Event::Idle) {
            return;
        }
        let busy = self.up_to(self.busy);
        let now = self.now;
        let place = &mut self.slots[slot];
        place.busy_until = (Time(now) + busy).0;
        place.scheduled = !place.inbox.is_empty();
        if place.scheduled {
            let at = place.busy_until;
            self.plan_at(at, Plan::Run { slot, incarnation });
        }
    }

    /// One step; false if the process crashed.
    fn step(&mut self, slot: usize, event: Event<P>) -> bool {
        if !matches!(event, Event::Idle) {
            self.log_event("step", slot, slot, What::Event(&event));
        }
        let place = &mut self.slots[slot];
        let process = place.process.as_mut().expect("it is up");
        process.step(place.clock.at(self.now), event, &mut self.outbox);
        if let Some(watcher) = &mut self.watcher {
            watcher.stepped(place.peer, process, Time(self.now));
        }
        let effects: Vec<_> = self.outbox.drain().collect();
        for effect in effects {
            if self.at_crash_point(slot) && self.may_crash(slot) {
                self.crash_slot(slot);
                return false;
            }
            self.carry_out(slot, effect);
        }
        self.check_process(slot);
        true
    }

    /// Counts down to a planned crash.
    fn at_crash_point(&mut self, slot: usize) -> bool {
        match &mut self.slots[slot].crash_point {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    pub(crate) fn check_process(&mut self, slot: usize) {
        let place = &self.slots[slot];
        let process = place.process.as_ref().expect("it is up");
        if let Err(what) = self.owner.check(place.peer, process, place.gate <= place.log.durable())
        {
            self.fail(&format!("{:?}: {what}", place.peer));
        }
    }

    fn carry_out(&mut self, slot: usize, effect: Effect<P>) {
        match effect {
            Effect::Persist(_) | Effect::Note(_) if !self.disks => {}
            Effect::Persist(record) => {
                self.log_event("persist", slot, slot, What::Record(&record));
                let place = &mut self.slots[slot];
                place.log.append(record);
                place.gate = place.log.end();
                self.want_flush(slot);
            }
            Effect::Note(record) => {
                self.log_event("note", slot, slot, What::Record(&record));
                self.slots[slot].log.append(record);
            }
            Effect::Send { to, message } => self.hold(slot, Visible::Send { to, message }),
            Effect::Output(output) => self.hold(slot, Visible::Output(output)),
            Effect::Timer { at, timer } => self.set_timer(slot, at, timer),
        }
    }

    /// Lets out what is to be seen at once if nothing that was persisted before it is in danger.
    fn hold(&mut self, slot: usize, visible: Visible<P>) {
        let open = self.open_upto(slot);
        let place = &mut self.slots[slot];
        if place.gate <= open {
            assert!(place.held.is_empty(), "what was held had a lower gate");
            self.let_out(slot, visible);
        } else {
            place.held.push_back((place.gate, visible));
        }
    }

    fn let_out(&mut self, slot: usize, visible: Visible<P>) {
        let place = &mut self.slots[slot];
        let peer = place.peer;
        if let Some(process) = &mut place.process {
            process.passed(place.clock.at(self.now), &visible);
        }
        match visible {
            Visible::Send { to, message } if to == peer => {
                self.push(slot, Event::Message { from: peer, message });
            }
            Visible::Send { to, message } => {
                let to = self.place(to);
                self.log_event("send", slot, to, What::Message(&message));
                self.owner.traffic(peer, &message);
                let identity = self.identity(slot, to).map(Box::new);
                self.put_on_link(slot, to, Item::Message(message, identity));
            }
            Visible::Output(output) => {
                self.log_event("output", slot, slot, What::Output(&output));
                let stimuli = self.owner.output(peer, output, Time(self.now));
                self.inject_all(stimuli);
            }
        }
    }

    pub(crate) fn want_flush(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        if !place.flushing {
            place.flushing = true;
            let incarnation = place.incarnation;
            let after = self.up_to(self.flush.0);
            self.plan(after, Plan::FlushStart { slot, incarnation });
        }
    }

    /// Everything queued now becomes durable when this flush ends.
    pub(crate) fn on_flush_start(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let incarnation = place.incarnation;
        let known = place.acquaintances.take_changed();
        let Some(upto) = self.on_disk(slot, |log| log.begin_flush(known)) else { return };
        self.slots[slot].begun = upto;
        self.let_out_durable(slot);
        let after = self.between(self.flush);
        self.plan(after, Plan::Flushed { slot, incarnation, upto });
    }

    pub(crate) fn on_flushed(&mut self, slot: usize, upto: u64) {
        let incarnation = self.slots[slot].incarnation;
        // The disk does not pause, but who would let out what waits for it does.
        if self.put_off(slot, Plan::Flushed { slot, incarnation, upto }).is_none() {
            return;
        }
        if self.on_disk(slot, |log| log.end_flush(upto)).is_none() {
            return;
        }
        let place = &mut self.slots[slot];
        place.flushing = false;
        let more = place.gate > place.log.durable();
        self.log_event("flushed", slot, slot, What::Words(format_args!("up to {upto}")));
        self.let_out_durable(slot);
        if more {
            self.want_flush(slot);
        }
    }

    /// What waits for records up to this one may be seen.
    fn open_upto(&self, slot: usize) -> u64 {
        match self.bug {
            Some(DiskBug::EarlyGate) => self.slots[slot].begun,
            Some(_) | None => self.slots[slot].log.durable(),
        }
    }

    fn let_out_durable(&mut self, slot: usize) {
        let open = self.open_upto(slot);
        while let Some((_, visible)) = self.slots[slot].held.pop_front_if(|(gate, _)| *gate <= open)
        {
            self.let_out(slot, visible);
        }
    }

    fn set_timer(&mut self, slot: usize, at: Time, timer: P::Timer) {
        let place = &mut self.slots[slot];
        place.timers_set += 1;
        place.timers.insert((at, place.timers_set, timer));
        let (when, incarnation) = (place.clock.when(at), place.incarnation);
        self.plan_at(when, Plan::Timers { slot, incarnation });
    }

    /// Fires all timers whose time has come.
    pub(crate) fn on_timers(&mut self, slot: usize) {
        let now = self.slots[slot].clock.at(self.now);
        while let Some((at, number, timer)) = self.slots[slot].timers.pop_first() {
            if at > now {
                self.slots[slot].timers.insert((at, number, timer));
                let when = self.slots[slot].clock.when(at);
                if when <= self.now {
                    // Rounding: due in a moment.
                    let incarnation = self.slots[slot].incarnation;
                    self.plan_at(self.now + 1, Plan::Timers { slot, incarnation });
                }
                return;
            }
            self.push(slot, Event::Timer(timer));
        }
    }

    /// The front of a link arrives, unless the way is cut or nobody is there.
    pub(crate) fn on_tick(&mut self, from: usize, to: usize, generation: u64) {
        let cut = self.is_cut(from, to);
        let up = self.slots[to].up;
        let waits = cut || (!up && self.slots[to].keeps_mail);
        let link = self.link(from, to);
        if link.generation != generation {
            return;
        }
        link.coming -= 1;
        if waits {
            link.owed += 1;
            return;
        }
        let item = link.queue.pop_front().expect("a tick for each item");
        link.fresh = false;
        if !up {
            return;
        }
        let sender = self.slots[from].peer;
        match item {
            Item::Message(_, Some(theirs)) if !self.hear(to, from, &theirs) => {}
            Item::Message(message, _) => {
                self.owner.traffic(self.slots[to].peer, &message);
                self.push(to, Event::Message { from: sender, message });
            }
            Item::Restarted => {
                self.lose_mail(to, from);
                self.push(to, Event::Restarted(sender));
            }
        }
    }

    /// When `from` hears that `to` restarted, what it sent meanwhile may be lost, unless a part of
    /// it has reached the new process.
    fn lose_mail(&mut self, from: usize, to: usize) {
        if !self.link(from, to).fresh {
            return;
        }
        let lose = self.part_of(self.links[&(from, to)].queue.len());
        if lose > 0 {
            self.link(from, to).lose_first(lose);
            self.pay_owed(from, to);
        }
    }

    /// All, none or some of `count`.
    pub(crate) fn part_of(&mut self, count: usize) -> usize {
        match self.random.random_range(0..3) {
            0 => 0,
            1 => count,
            _ => self.random.random_range(0..=count),
        }
    }

    /// Sets new ticks for those that found the way closed.
    pub(crate) fn pay_owed(&mut self, from: usize, to: usize) {
        let waits = self.is_cut(from, to) || !self.slots[to].up;
        let link = self.link(from, to);
        if waits || link.owed == 0 {
            return;
        }
        link.coming += link.owed;
        let owed = std::mem::take(&mut link.owed);
        let generation = link.generation;
        let base = self.up_to(Duration::from_millis(2));
        let mut at = (Time(self.now) + base).0;
        for _ in 0..owed {
            at += self.random.random_range(0..50_000);
            self.plan_at(at, Plan::Tick { from, to, generation });
        }
    }

    /// The process makes a checkpoint, which is written meanwhile.
    pub(crate) fn begin_checkpoint(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let Some(process) = place.process.as_ref() else { return };
        if place.checkpoint.is_some() {
            return;
        }
        place.checkpoint = Some(process.checkpoint());
        if self.on_disk(slot, |log| log.begin_checkpoint()).is_none() {
            return;
        }
        self.let_out_durable(slot);
        let incarnation = self.slots[slot].incarnation;
        let after = self.up_to(Duration::from_millis(50));
        self.plan(after, Plan::Checkpointed { slot, incarnation });
    }

    /// The checkpoint is written and replaces the log up to where it was made.
    pub(crate) fn on_checkpointed(&mut self, slot: usize) {
        let incarnation = self.slots[slot].incarnation;
        if self.put_off(slot, Plan::Checkpointed { slot, incarnation }).is_none() {
            return;
        }
        let place = &mut self.slots[slot];
        let checkpoint = place.checkpoint.take().expect("begun before");
        let records: Vec<_> = checkpoint.collect();
        let (count, known) = (records.len(), place.acquaintances.all());
        // Without disks a checkpoint is made, and lost.
        if self.disks && self.on_disk(slot, |log| log.end_checkpoint(records, known)).is_none() {
            return;
        }
        self.log_event("checkpoint", slot, slot, What::Words(format_args!("{count} records")));
        self.let_out_durable(slot);
    }
}
