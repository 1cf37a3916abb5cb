//! What a look may show.

use super::register::{Thing, Value};
use super::{LooksWorkload, NAMES};
use bytes::Bytes;
use meridian_fs::{Answer, FsError, Ino, Place, Query};
use meridian_session::CallId;

impl LooksWorkload {
    /// A look that waited for a replica may be answered from what has come along: that is judged.
    pub(super) fn judge_late(&mut self, at: usize, call: CallId, result: &Result<Answer, FsError>) {
        let hits = self.net.session(at).hits();
        let client = &mut self.clients[at];
        if client.hits == hits {
            return;
        }
        client.hits += 1;
        if let Some(query) = client.looks.get(&call).cloned() {
            self.net.counts.add("kept late", 1);
            self.judge_kept(at, &query, result);
        }
    }

    /// An answer shows no file of which the client has removed the last name before it asked.
    pub(super) fn judge_removed(
        &mut self,
        at: usize,
        call: CallId,
        result: &Result<Answer, FsError>,
    ) {
        let nests = &self.clients[at].nests;
        let removed = shown_in(result).into_iter().find(|ino| nests.removes_before(call, *ino));
        if let Some(ino) = removed {
            self.net.violate(format!("own: client {at} is shown {ino:?}, which it has removed"));
        }
    }

    pub(super) fn judge_kept(
        &mut self,
        at: usize,
        query: &Query,
        result: &Result<Answer, FsError>,
    ) {
        let (Query::Directory { inode, .. }, Ok(Answer::Directory { entries, .. })) =
            (query, result)
        else {
            return self.judge(at, &thing_of(query), result);
        };
        self.net.counts.add("listings kept", 1);
        for name in NAMES {
            let found = entries.iter().find(|(other, ..)| other == name.as_bytes());
            let found = found.map(|(_, entry, attributes)| Answer::Entry {
                entry: entry.clone(),
                attributes: *attributes,
                top: None,
            });
            let thing = Thing::Name(inode.ino, Bytes::from_static(name.as_bytes()));
            self.judge(at, &thing, &found.ok_or(FsError::NotFound));
        }
    }

    pub(super) fn judge(&mut self, at: usize, thing: &Thing, result: &Result<Answer, FsError>) {
        let Some(value) = value_of(result) else {
            return self.net.violate(format!("looks: {thing:?} is {result:?}"));
        };
        let owner = match result {
            Ok(Answer::Entry { attributes: Some(of), .. }) => {
                self.net.counts.add("kept with attributes", 1);
                Some((Thing::Owner(of.place.ino), Value::Owner(of.uid)))
            }
            _ => None,
        };
        for (thing, value) in [(thing.clone(), value)].into_iter().chain(owner) {
            if let Value::Leads(place) = value {
                self.clients[at].seen.insert(place);
            }
            let is_own = self.registers.keeper(&thing).is_some_and(|(keeper, ..)| keeper == at);
            if is_own && matches!(thing, Thing::Owner(_)) {
                continue; // It would show what it keeps back over that.
            }
            let judged = match self.is_strict(&thing) {
                true => self.registers.judge_kept_back(&thing, value),
                false => self.registers.judge(&thing, value),
            };
            if let Err(what) = judged {
                self.net.violate(format!("fresh: client {at} looks at {thing:?}: {what}"));
            }
        }
    }
}

/// The inodes whose attributes are in an answer.
fn shown_in(result: &Result<Answer, FsError>) -> Vec<Ino> {
    match result {
        Ok(Answer::Entry { attributes, .. }) => attributes.iter().map(|of| of.place.ino).collect(),
        Ok(Answer::Attributes(of) | Answer::Contents { attributes: of, .. }) => vec![of.place.ino],
        Ok(Answer::Directory { entries, .. }) => {
            let shown = entries.iter().filter_map(|(_, _, attributes)| attributes.as_ref());
            shown.map(|of| of.place.ino).collect()
        }
        _ => Vec::new(),
    }
}

/// The files that an answer names.
pub(super) fn files_in(result: &Result<Answer, FsError>) -> Vec<Place> {
    match result {
        Ok(Answer::Entry { entry, .. }) => vec![entry.place],
        Ok(Answer::Directory { entries, .. }) => {
            entries.iter().map(|(_, entry, _)| entry.place).collect()
        }
        _ => Vec::new(),
    }
}

/// What is looked at.
pub(super) fn thing_of(query: &Query) -> Thing {
    match query {
        Query::Lookup { parent, name } => Thing::Name(parent.ino, name.clone()),
        other => Thing::Owner(other.inode().expect("it is looked at an inode")),
    }
}

/// What a look has shown.
pub(super) fn value_of(result: &Result<Answer, FsError>) -> Option<Value> {
    match result {
        Ok(Answer::Entry { entry, .. }) => Some(Value::Leads(entry.place)),
        Ok(Answer::Attributes(attributes) | Answer::Contents { attributes, .. }) => {
            Some(Value::Owner(attributes.uid))
        }
        Err(FsError::NotFound) => Some(Value::Absent),
        _ => None,
    }
}
