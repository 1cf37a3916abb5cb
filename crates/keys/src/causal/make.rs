//! Updates that are made here: from a session's request to its answer, and what becomes of those
//! that a crash or a removal has cut short.

use super::change::{Change, Make, Outcome, decode, held, seen_with};
use super::message::{Command, Output, Update};
use super::mutation::Mutation;
use super::node::{Asked, Causal, INTERNAL};
use super::read::Reading;
use bytes::Bytes;
use meridian_core::{ClientId, Event, MessageId, Outbox, Time};
use meridian_eunomia::{self as eunomia, Label, Timestamp, place_of};
use meridian_hermes::{self as hermes, Action, Answer, Completion, Modify, Refusal};

/// So often an update begins anew at most because what it found had been changed meanwhile.
const ATTEMPTS_MAX: u32 = 32;
/// The names of updates have this bit; those of clients do not: see [`crate::names`].
const UPDATES: u64 = 1 << 63;
/// Those of updates of other regions have this one instead: times are below it until 2116.
const MERGES: u64 = 1 << 62;

/// An update of a session that Hermes was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Making<M> {
    pub update: Update<M>,
    pub label: Label,
    /// So often it was tried before.
    pub attempt: u32,
}

/// Under which name Hermes has an update. Each is a client of its own: any number may be in flight,
/// and each is forgotten by itself.
fn name_of(ts: Timestamp) -> ClientId {
    ClientId(UPDATES | ts.0)
}

/// The update of a name.
fn stamp_of(client: ClientId) -> Option<Timestamp> {
    (client.0 & UPDATES != 0).then_some(Timestamp(client.0 & !UPDATES))
}

/// Under which name Hermes has an update of another region: sources of all regions have numbers of
/// their own, so no two have the same.
pub(super) fn merge_name(ts: Timestamp) -> ClientId {
    ClientId(MERGES | ts.0.min(MERGES - 1))
}

/// The update of another region of that name.
pub(super) fn merged_stamp(client: ClientId) -> Option<Timestamp> {
    (client.0 & !(MERGES - 1) == MERGES).then_some(Timestamp(client.0 & (MERGES - 1)))
}

impl<M: Modify> Causal<M> {
    /// An update begins.
    pub(super) fn begin(
        &mut self,
        now: Time,
        mut update: Update<M>,
        attempt: u32,
        out: &mut Outbox<Self>,
    ) {
        if !self.receiver.serves().1 {
            let why = eunomia::Refusal::NotServing;
            return out.output(Output::Denied { token: update.token, why });
        }
        let full = self.is_full();
        if !self.recovered || full {
            let refusal = if full { Refusal::Full } else { Refusal::NotServing };
            return out.output(Output::Refused { token: update.token, refusal });
        }
        if let Action::Modify(_) = &update.action {
            // It depends on what it finds, which is most likely what is held now.
            if let Some(found) = self.found(&update.key)
                && !self.mutation.is(Mutation::IgnoresFound)
            {
                update.seen.join(&seen_with(&found));
            }
        }
        let label = self.source.begin(now, &update.seen.vector, place_of(&update.key));
        self.reserve(out);
        let made = Make {
            key: update.key.clone(),
            region: self.region,
            label,
            version: update.seen.version,
            action: update.action.clone(),
            blind: self.mutation.is(Mutation::IgnoresFound),
        };
        let id = Some(MessageId { client: name_of(label.ts), sequence: 1 });
        let (key, action) = (update.key.clone(), Action::Modify(Change::Make(made)));
        let token = self.ask(Asked::Make(Box::new(Making { update, label, attempt })));
        let request = hermes::Request { token, key, id, action };
        self.step_replica(now, Event::Command(hermes::Command::Update(request)), out);
    }

    /// What Hermes has for a key, committed or not.
    fn found(&self, key: &Bytes) -> Option<eunomia::Update> {
        held(self.replica.latest(key))
    }

    /// Hermes has answered.
    pub(super) fn on_made(
        &mut self,
        now: Time,
        making: Making<M>,
        answer: Answer,
        out: &mut Outbox<Self>,
    ) {
        let Making { mut update, label, attempt } = making;
        let token = update.token;
        let (outcome, until) = match &answer {
            Answer::Modified(answer) => (decode(answer), now),
            Answer::Kept { answer, until } => (decode(answer), *until),
            // This node was removed, and its source ends: the others take what has come of it.
            Answer::Unknown => return out.output(Output::Unknown { token }),
            _ => (None, now),
        };
        if let Some(Outcome::Made { update, answer }) = outcome {
            let seen = seen_with(&update);
            self.commit(update);
            return out.output(Output::Updated { token, answer, seen });
        }
        self.source.abort(label.ts);
        match outcome {
            Some(Outcome::Kept { answer, seen }) => {
                out.output(Output::Kept { token, answer, seen, until });
            }
            Some(Outcome::Behind { seen }) if attempt < ATTEMPTS_MAX => {
                update.seen.join(&seen);
                self.begin(now, update, attempt + 1, out);
            }
            _ => out.output(match answer {
                Answer::Refused(refusal) => Output::Refused { token, refusal },
                _ => Output::Aborted { token },
            }),
        }
    }

    /// It has happened: the other regions are to have it.
    fn commit(&mut self, update: eunomia::Update) {
        self.source.commit(update.label);
        self.unsent.push(update.label.ts);
        self.data.insert(update.label.ts, update);
    }

    /// What is known of an update of this region: `None` while that is open, else the update if it
    /// has happened.
    pub(super) fn fate(&self, completion: &Completion) -> Option<Option<eunomia::Update>> {
        let Some(Outcome::Made { update, .. }) = decode(&completion.answer) else {
            return Some(None);
        };
        let happened = self.replica.happened(&update.key, completion)?;
        Some(happened.then_some(update))
    }

    pub(super) fn completion_of(&self, ts: Timestamp) -> Option<&Completion> {
        let name = name_of(ts);
        let mut known = self.replica.requests(Some(ClientId(name.0 - 1)));
        known.next().filter(|(client, _)| *client == name).map(|(_, completion)| completion)
    }

    /// An update of this region, if it has happened and some other region may lack it.
    pub(super) fn find(&self, ts: Timestamp) -> Option<eunomia::Update> {
        let known = || self.fate(self.completion_of(ts)?)?;
        self.data.get(&ts).cloned().or_else(known)
    }

    /// What the group knows of the updates of this region.
    pub(super) fn known(&self) -> impl Iterator<Item = (Timestamp, &Completion)> {
        let known = self.replica.requests(Some(ClientId(UPDATES - 1)));
        known.filter_map(|(client, completion)| Some((stamp_of(client)?, completion)))
    }

    /// Names of the group's updates up to a point, in order.
    fn known_upto(&self, upto: Timestamp) -> Vec<ClientId> {
        let known = self.replica.requests(Some(ClientId(UPDATES - 1)));
        let upto = name_of(upto);
        known.map(|(client, _)| client).take_while(|client| *client <= upto).collect()
    }

    /// A source that has started takes up what the group knows of it, once nothing that it has left
    /// can change.
    pub(super) fn recover(&mut self) {
        if self.recovered || !self.replica.is_settled() {
            return;
        }
        let own = self.known().filter(|(ts, _)| ts.source() == self.number);
        let own: Vec<_> = own.map(|(ts, completion)| (ts, self.fate(completion))).collect();
        if own.iter().any(|(_, fate)| fate.is_none()) {
            return;
        }
        self.recovered = true;
        for (ts, fate) in own {
            self.source.pass(ts);
            let Some(update) = fate.flatten() else { continue };
            if !self.mutation.is(Mutation::ForgetsOutbox) {
                self.source.recall(self.source.end(), update.label);
                self.data.insert(ts, update);
            }
        }
    }

    /// All other regions have applied what was made here up to `applied`: nobody needs it.
    pub(super) fn trim(&mut self, now: Time, out: &mut Outbox<Self>) {
        // In a region that is alone nothing is waited for; what is in flight is not stable.
        let applied = self.service.applied().min(self.service.stable_time());
        for label in self.source.trim(applied) {
            self.data.remove(&label.ts);
        }
        // Also what has come since from who had not forgotten it.
        for client in self.known_upto(applied) {
            self.step_replica(now, Event::Command(hermes::Command::Forget(client)), out);
        }
    }

    pub(super) fn ask(&mut self, asked: Asked<M>) -> u64 {
        self.tokens += 1;
        let token = INTERNAL | self.tokens;
        self.asked.insert(token, asked);
        token
    }

    pub(super) fn on_command(&mut self, now: Time, command: Command<M>, out: &mut Outbox<Self>) {
        use eunomia::receiver::Command as Receive;
        match command {
            Command::Replica(command) => {
                let installs = matches!(command, hermes::Command::Install(_));
                self.step_replica(now, Event::Command(command), out);
                if installs {
                    let leads = self.leads();
                    self.step_receiver(now, Event::Command(Receive::Follow(leads)), out);
                    self.follow_members(now, out);
                }
                self.merge_deferred(now, out);
            }
            Command::Read { token, key } => self.on_read(now, token, key, out),
            Command::ReadAll { token, keys } => {
                self.read_all(now, Reading { token, found: vec![None; keys.len()], keys }, 0, out);
            }
            Command::Lapse { token, .. } if !self.receiver.serves().0 => self.deny(token, out),
            Command::Lapse { token, key, order } => {
                let token = self.ask(Asked::Lapse(token));
                let action = Action::Modify(Change::Lapse(order));
                let request = hermes::Request { token, key, id: None, action };
                self.step_replica(now, Event::Command(hermes::Command::Update(request)), out);
            }
            Command::Update(update) => self.begin(now, update, 0, out),
            Command::Await { token, seen } => {
                self.step_receiver(now, Event::Command(Receive::Await { token, seen }), out);
            }
            Command::Forget { token } => {
                self.step_receiver(now, Event::Command(Receive::Forget { token }), out);
            }
            Command::Configure(regions) => self.configure(now, regions, out),
        }
    }
}
