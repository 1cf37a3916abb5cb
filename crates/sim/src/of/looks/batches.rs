//! Clients that keep new files and removals back in their order, and what they change of files
//! that are their own, and send that in batches (decisions 104 and 116): what a client does lands
//! in that order.

use super::nests::Newborn;
use super::register::{Thing, Value};
use super::{LooksWorkload, PATIENCE, Plan};
use crate::of::files::net::Plan as Planned;
use crate::world::Stimulus;
use bytes::Bytes;
use meridian_core::{GroupId, Stamp, Time};
use meridian_fs::batch::{Kept, Part};
use meridian_fs::{Done, FsError, Place, Setting, Timestamp, Update};
use meridian_host::Node;
use meridian_host::update::Change;
use meridian_session::{CallId, Command as Ask, ToLand};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::time::Duration;

/// What a client has to send.
#[derive(Debug, Default)]
pub(super) struct Batches {
    queue: VecDeque<ToLand>,
    flying: Option<(CallId, Vec<Part>)>,
    /// What is first comes alone, as it was refused with others.
    first_alone: bool,
}

impl LooksWorkload {
    /// A client removes a file from where it makes files, if it may keep that back.
    pub(super) fn remove_from_nest(&mut self, at: usize, now: Time, parent: Place) {
        let own = self.clients[at].nests.unsent(parent).filter(|_| self.writes);
        let own = own.filter(|_| self.net.random.random_bool(0.5));
        let Some((name, child)) = own.or_else(|| self.drawn_in_nest(parent)) else { return };
        let thing = Thing::Name(parent.ino, name.clone());
        let session = self.net.session(at);
        if !session.begin_removal(now, (parent, &name), (child, Timestamp::default())) {
            return;
        }
        let is_kept = session.is_unlanded(child.ino);
        if let Some(value) = self.clients[at].nests.kept(child) {
            let unsent = if is_kept { Thing::Owner(child.ino) } else { thing.clone() };
            self.registers.let_land(&unsent, value, true);
            self.clients[at].nests.forget(child.ino);
        }
        if is_kept {
            self.net.counts.add("removals kept back", 1);
            self.registers.keep(thing, Value::Absent, (at, now, parent.partition));
            let newborn = Newborn::removed(parent, name, self.clients[at].last);
            self.clients[at].nests.keep(child.ino, newborn);
        } else {
            self.net.counts.add("never sent", 1);
        }
    }

    /// A client gives a file to another owner that is its own, if it may keep that back.
    pub(super) fn give_in_nest(&mut self, at: usize, now: Time, parent: Place) {
        let Some((name, child)) = self.drawn_in_nest(parent) else { return };
        let before = self.clients[at].nests.kept(child);
        let session = self.net.session(at);
        let may = match before {
            None => session.begin_written(now, child),
            Some(_) => session.takes_more(child.ino),
        };
        if !may {
            return;
        }
        let owner = self.registers.new_owner();
        let thing = Thing::Owner(child.ino);
        let client = &mut self.clients[at];
        if let Some(before) = before {
            self.net.counts.add("writes joined", 1);
            self.registers.let_land(&thing, before, true);
            client.nests.give_again(child.ino, owner);
        } else {
            self.net.counts.add("writes kept back", 1);
            let newborn = Newborn::given(parent, name, (child, owner), client.last);
            client.nests.keep(child.ino, newborn);
        }
        self.registers.keep(thing, Value::Owner(owner), (at, now, parent.partition));
    }

    /// A name that leads to a file there, as far as that is known.
    pub(super) fn drawn_in_nest(&mut self, parent: Place) -> Option<(Bytes, Place)> {
        let mut names: Vec<_> = super::nests::names().into_iter().collect();
        names.shuffle(&mut self.net.random);
        names.into_iter().find_map(|name| {
            let child = self.registers.leads(&Thing::Name(parent.ino, name.clone()))?;
            Some((name, child))
        })
    }

    /// The session wants these to land, in this order.
    pub(super) fn called_in_order(&mut self, at: usize, all: Vec<ToLand>) -> Stimulus<Node> {
        self.net.counts.add("called to land", all.len() as u64);
        self.clients[at].batches.queue.extend(all);
        self.plan_sending(at)
    }

    fn plan_sending(&mut self, at: usize) -> Stimulus<Node> {
        let after = Duration::from_micros(self.net.random.random_range(10..20_000));
        self.net.plan(at, after, Planned::Own(Plan::Send))
    }

    /// What comes first is sent, unless something is under way.
    pub(super) fn send_batch(&mut self, at: usize) -> Option<Ask> {
        let most = self.net.random.random_range(1..=4);
        let client = &mut self.clients[at];
        if client.batches.flying.is_some() {
            return None;
        }
        let most = if client.batches.first_alone { 1 } else { most };
        let mut parts: Vec<Part> = Vec::new();
        while parts.len() < most {
            let Some(next) = client.batches.queue.front() else { break };
            let part = match next {
                ToLand::Removal(part) => part.clone(),
                ToLand::File(place) => client.nests.part(*place),
            };
            let group = |part: &Part| part.kept.parent().partition;
            if parts.first().is_some_and(|first| group(first) != group(&part)) {
                break;
            }
            parts.push(part);
            client.batches.queue.pop_front();
        }
        if parts.is_empty() {
            return None;
        }
        client.last.0 += 1;
        let call = client.last;
        client.batches.first_alone = false;
        client.batches.flying = Some((call, parts.clone()));
        let things = parts.iter().map(|part| (thing(part), value(part))).collect();
        self.registers.begin_landing((at, call), things);
        let update = match &parts[..] {
            [Part { kept: kept @ Kept::Make(_), .. }] => kept.clone().into_update(),
            _ => {
                self.net.counts.add("batches", 1);
                Update::Batch(parts)
            }
        };
        let change = Change::new(Timestamp::default(), update);
        Some(Ask::Update { call, change, deadline: self.now + PATIENCE })
    }

    /// A batch was answered; whether that call was one, and what comes next.
    pub(super) fn on_batch(
        &mut self,
        at: usize,
        call: CallId,
        (ts, result): (Stamp, &Result<Done, FsError>),
    ) -> Option<Stimulus<Node>> {
        let client = &mut self.clients[at];
        let (_, mut parts) = client.batches.flying.take_if(|(flying, _)| *flying == call)?;
        let (done, refused) = match result {
            Ok(Done::Batch { done, refused }) => (done.len(), *refused),
            Ok(_) => (1, None),
            Err(error) if parts.len() == 1 => (0, Some(*error)),
            Err(_) => {
                client.batches.first_alone = true;
                (0, None)
            }
        };
        self.registers.end_landing((at, call), ts, done);
        let ended: Vec<_> = parts.drain(..done + usize::from(refused.is_some())).collect();
        for (nth, part) in ended.iter().enumerate() {
            self.one_landed(at, part, refused.filter(|_| nth == done));
        }
        let left = parts.into_iter().rev().map(|part| match part.kept {
            Kept::Make(_) | Kept::Write(_) => ToLand::File(part.kept.child()),
            Kept::Unlink { .. } => ToLand::Removal(part),
        });
        let queue = &mut self.clients[at].batches.queue;
        left.for_each(|part| queue.push_front(part));
        Some(self.plan_sending(at))
    }

    fn one_landed(&mut self, at: usize, part: &Part, error: Option<FsError>) {
        let child = part.kept.child();
        let kept = self.clients[at].nests.kept(child);
        if kept != Some(value(part)) {
            let what = format!("{kept:?} of {child:?} was kept back, and {:?} landed", value(part));
            self.net.violate(format!("kept: client {at}: {what}"));
        }
        self.clients[at].nests.landed(child.ino);
        self.judge_landed(at, (&thing(part), value(part)), error);
    }

    /// An update that a client began after it had kept something back is acknowledged after that
    /// has landed.
    pub(super) fn judge_order(&mut self, at: usize, call: CallId, groups: &[GroupId]) {
        if let Some(name) = self.clients[at].nests.kept_before(call, groups) {
            self.net.violate(format!(
                "order: client {at} kept {name:?} back, and what it did later came first"
            ));
        }
    }

    /// An answer to a batch that nobody waits for any more is waited for again.
    pub(super) fn batch_again(&mut self, at: usize, call: CallId, now: Time) -> Option<Ask> {
        let flying = self.clients[at].batches.flying.as_ref().is_some_and(|(of, _)| *of == call);
        flying.then_some(Ask::Again { call, deadline: now + PATIENCE })
    }
}

fn thing(part: &Part) -> Thing {
    if let Kept::Write(written) = &part.kept {
        return Thing::Owner(written.inode.ino);
    }
    Thing::Name(part.kept.parent().ino, part.kept.name().clone())
}

fn value(part: &Part) -> Value {
    match &part.kept {
        Kept::Make(made) => Value::Leads(made.place()),
        Kept::Unlink { .. } => Value::Absent,
        Kept::Write(written) => match &written.settings[..] {
            [Setting::Attributes(changes)] => Value::Owner(changes.uid.unwrap_or_default()),
            other => panic!("an owner is set, not {other:?}"),
        },
    }
}
