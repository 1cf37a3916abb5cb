//! Clients look at the tops of regions, as a mount does for `ls -l` of the root, and change them.

use super::{Ask, Client, CutsWorkload, Doing, LATE, PATIENCE, SOON, Told, Under, Window};
use meridian_core::{GroupId, Time};
use meridian_fs::operation::Changes;
use meridian_fs::types::Attributes;
use meridian_fs::{Answer, Done, Ino, Place, Query, Timestamp, Update};
use meridian_host::update::Change;
use meridian_session::tops::SHOWN_AFTER;
use meridian_session::{CallId, Tops};
use rand::RngExt;
use rand::seq::IndexedRandom;

/// A client looks at the top of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking {
    group: GroupId,
    begun: Time,
    /// Since when it has asked the region itself, and how often that had answered by then.
    asked: Option<(Time, u64)>,
}

fn top(partition: GroupId) -> Place {
    Place { ino: Ino::top(partition), partition }
}

fn milliseconds(time: Time) -> Timestamp {
    Timestamp::from_millis(time.0 / 1_000_000)
}

impl Client {
    fn begin_top(&mut self, doing: Doing, group: GroupId, now: Time) -> CallId {
        self.last.0 += 1;
        self.calls.insert(self.last, Under { doing, group, begun: now });
        if doing == Doing::Top {
            self.asks.entry(group).or_insert(now);
        }
        self.last
    }
}

impl CutsWorkload {
    /// Now and then a client looks at the top of a region, or changes that of its own.
    pub(super) fn choose_top(&mut self, at: usize, now: Time) -> Option<Ask> {
        let groups: Vec<_> =
            self.net.topology.region_groups().map(|(id, name)| (id, name.to_owned())).collect();
        if self.net.random.random_bool(0.7) || self.clients[at].looking.is_some() {
            return None;
        }
        let (group, name) = groups.choose(&mut self.net.random)?.clone();
        let changes = groups.get(at).is_some_and(|(own, _)| {
            self.net.random.random_bool(0.2) && self.clients[at].tops.get(Ino::top(*own)).is_some()
        });
        let (deadline, mutation) = (now + PATIENCE, self.mutation);
        let client = &mut self.clients[at];
        if changes && !client.calls.values().any(|under| under.doing == Doing::Change) {
            let (own, _) = groups[at];
            let call = client.begin_top(Doing::Change, own, now);
            self.changed.insert(own);
            let owner = self.owners.get(&own).and_then(|of| of.last()).map_or(0, |(_, uid)| *uid);
            let changes = Changes { uid: Some(owner + 1), ..Changes::default() };
            let update = Update::SetAttributes { inode: top(own), changes };
            let change = Change::new(milliseconds(now), update);
            return Some(Ask::Update { call, change, deadline });
        }
        if self.net.random.random_bool(0.5) {
            client.tops = Tops::with_mutation(mutation); // A mount that begins.
        }
        client.looking = Some(Looking { group, begun: now, asked: None });
        let call = client.begin_top(Doing::Name(group), GroupId::GLOBAL, now);
        let query = Query::Lookup { parent: Place::ROOT, name: name.into() };
        Some(Ask::Read { call, query, deadline })
    }

    /// One of these has ended.
    pub(super) fn on_top_ended(
        &mut self,
        at: usize,
        under: Under,
        told: Told,
        now: Time,
    ) -> Vec<Ask> {
        let mut asks = Vec::new();
        if let Told::GaveUp { call, .. } = told {
            asks.push(Ask::Release(call));
        }
        match (under.doing, told) {
            (
                Doing::Name(group),
                Told::Answered { result: Ok(Answer::Entry { entry, top, .. }), .. },
            ) => {
                self.clients[at].tops.named(GroupId::GLOBAL, entry.place, top.map(|top| *top));
                asks.extend(self.ask_top(at, group, now));
            }
            (Doing::Name(group), other) => {
                self.net.violate(format!("cuts: the name of {group:?} leads to {other:?}"));
            }
            (Doing::Top, Told::Answered { result: Ok(Answer::Attributes(of)), .. }) => {
                self.clients[at].tops.seen(of);
                self.shown(at, under.group, of, now);
            }
            (Doing::Top, _) => {
                if let Some(known) = self.clients[at].tops.get(Ino::top(under.group)) {
                    self.shown(at, under.group, known, now);
                }
            }
            (Doing::Change, Told::Updated { result: Ok(Done::Attributes(of)), ts, .. }) => {
                self.owners.entry(under.group).or_default().push((now, of.uid));
                let client = &mut self.clients[at];
                client.tops.seen(of);
                if let Some(partition) = client.tops.above(of.place.ino) {
                    let call = client.begin_top(Doing::Note, partition, now);
                    let note = Update::NoteTop { partition, attributes: of, ts };
                    let change = Change::new(milliseconds(now), note);
                    asks.push(Ask::Update { call, change, deadline: now + PATIENCE });
                }
            }
            (_, _) => {} // Given up.
        }
        asks
    }

    /// The name is known: now the region is asked, if it is not known to be silent.
    fn ask_top(&mut self, at: usize, group: GroupId, now: Time) -> Option<Ask> {
        let session = self.net.session(at);
        let (heard, is_cut) = (session.answers(group), session.cut_since(group).is_some());
        let client = &mut self.clients[at];
        if let Some(known) = client.tops.get(Ino::top(group))
            && client.tops.shows_at_once(group, heard, is_cut, now)
        {
            self.shown(at, group, known, now);
            return None;
        }
        if let Some(looking) = &mut client.looking {
            looking.asked = Some((now, heard));
        }
        let call = client.begin_top(Doing::Top, group, now);
        let query = Query::Attributes { inode: top(group) };
        Some(Ask::Read { call, query, deadline: now + PATIENCE })
    }

    /// A client that has asked for long enough.
    pub(super) fn look_on(&mut self, at: usize, now: Time) {
        let Some(Looking { group, asked: Some((since, before)), .. }) = self.clients[at].looking
        else {
            return;
        };
        if now.since(since) < SHOWN_AFTER {
            return;
        }
        let heard = self.net.session(at).answers(group);
        let client = &mut self.clients[at];
        let shown = client.tops.was_asked(group, (before, heard), now);
        match client.tops.get(Ino::top(group)).filter(|_| shown) {
            Some(known) => {
                self.net.counts.add("tops shown in silence", 1);
                self.shown(at, group, known, now);
            }
            None => {
                let looking = client.looking.as_mut().expect("it looks");
                looking.asked = Some((now, heard));
            }
        }
    }

    /// What a client is shown of the top that it looks at.
    fn shown(&mut self, at: usize, group: GroupId, shown: Attributes, now: Time) {
        let looking = self.clients[at].looking.take_if(|of| of.group == group);
        let Some(Looking { begun, .. }) = looking else { return };
        self.net.counts.add("tops", 1);
        let owners = self.owners.get(&group).into_iter().flatten();
        // What was changed when nobody was cut off is known everywhere soon after.
        let calm = |changed: Time| {
            let until = changed + SOON * 2;
            let apart = self.windows.iter().all(|window| {
                until < window.from || window.until.is_some_and(|end| end + SOON < changed)
            });
            until < begun && apart
        };
        let least = owners.filter(|(changed, _)| calm(*changed)).map(|(_, uid)| *uid).max();
        if least.is_some_and(|least| shown.uid < least) {
            let what = format!("cuts: {at} is shown {shown:?} at {now:?}, owner before {least:?}");
            self.net.violate(what);
        }
    }

    /// A change of a region's top may wait for a region that is cut off, behind a link to there,
    /// and with it what comes after it in its shard: until nobody is cut off for a while.
    pub(super) fn settle_changes(&mut self, now: Time) {
        let over = |window: &Window| window.until.is_some_and(|end| end + SOON < now);
        if self.windows.iter().all(over) {
            let calls = self.clients.iter().flat_map(|client| client.calls.values());
            let changed = calls.filter(|under| under.doing == Doing::Change);
            self.changed = changed.map(|under| under.group).collect();
        }
    }

    /// What should have been shown by now, unless it is being changed.
    pub(super) fn check_look(&mut self, at: usize, now: Time) {
        let Some(looking) = self.clients[at].looking else { return };
        if self.changed.contains(&looking.group) {
            return;
        }
        let silent = looking.asked.map_or(looking.begun + SOON, |(since, _)| since + SHOWN_AFTER);
        let due = (looking.begun + SHOWN_AFTER + LATE * 2).max(silent + LATE);
        let due = due.min(looking.begun + SOON * 2);
        if due < now {
            self.net.violate(format!("cuts: {at} still waits for the top of {looking:?}"));
        }
    }
}
