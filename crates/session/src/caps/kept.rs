//! What a client keeps of what it holds: looks are answered from it, and answers of replicas fill
//! it.

use super::known::{Extents, Known};
use super::{Caps, Moment};
use crate::mutation::Mutation;
use crate::session::Session;
use meridian_core::{GroupId, Time};
use meridian_fs::operation::NewNode;
use meridian_fs::types::{
    Attributes, Data, Entry, Extent, INLINE_MAX, NAME_MAX, Name, Place, Timestamp,
};
use meridian_fs::{Answer, FsError, Ino, Query, Vector};
use std::ops::Range;
use std::time::Duration;

/// The extents of a file are kept if they are so few at most.
const EXTENTS_MAX: usize = 16;
/// So many bytes of files are kept in all.
const BYTES_MAX: usize = 32 << 20;

impl Session {
    /// For how long what looks that began at that moment have shown of all of these may be kept.
    pub fn rest(&mut self, now: Time, moment: Moment, inodes: &[Ino]) -> Duration {
        let rests = inodes.iter().map(|ino| self.caps.rest(now, moment, *ino));
        rests.min().unwrap_or_default()
    }

    /// Now, for [`Session::rest`].
    pub fn moment(&self) -> Moment {
        self.caps.moment()
    }

    /// Whether something is still to be released.
    pub fn is_letting_go(&self) -> bool {
        self.caps.is_letting_go()
    }

    /// A new file, that its owner sends later with all that it gets (`Update::Make`), under the
    /// number that is answered; `None` if it must be made at once. It may not be there yet for
    /// others when the owner is told to have it land ([`crate::Output::Land`]).
    pub fn begin_new(
        &mut self,
        now: Time,
        named: (Place, &Name),
        what: (&NewNode, Timestamp),
    ) -> Option<Attributes> {
        self.caps.begin_new(now, named, what, &self.vector)
    }

    /// Whether the owner has it kept back that a name goes which leads to that file, and sends it
    /// when it is told to; or the file is kept back itself ([`Session::is_unlanded`]), and is never
    /// sent: then nothing of it is, and nothing is to be sent of what was written to it. The owner
    /// must not have the file open, nor be about to send something of it.
    pub fn begin_removal(
        &mut self,
        now: Time,
        named: (Place, &Name),
        what: (Place, Timestamp),
    ) -> bool {
        self.caps.begin_removal(now, named, what, &self.vector)
    }

    /// As much is kept back as the owner wants and the nodes know of.
    pub(crate) fn keep_back_by_level(&mut self) {
        self.caps.keep_back(self.nodes.let_keep_back());
        self.caps.keeps_written = self.nodes.let_keep_written();
    }

    /// Whether what was written to that file is kept back, and all of it is sent when the owner is
    /// told to have the file land. The owner must not be about to send something of it.
    pub fn begin_written(&mut self, now: Time, file: Place) -> bool {
        self.caps.begin_written(now, file, &self.vector)
    }

    /// Where a file is of which something that was written is kept back.
    pub fn written_in(&self, file: Ino) -> Option<(Place, Name)> {
        self.caps.written_in(file)
    }

    /// Whether something that was written to that file is kept back, and nobody else has written
    /// there since.
    pub fn knows_end(&mut self, now: Time, file: Ino) -> bool {
        self.caps.knows_end(now, file, &self.vector)
    }

    /// Whether what is set of that file now is sent with what is kept back of it. The owner must
    /// not be about to send that.
    pub fn takes_more(&self, file: Ino) -> bool {
        self.caps.takes_more(file)
    }

    /// Nothing that was written to that file is kept back any more.
    pub fn end_written(&mut self, file: Ino) {
        self.caps.end_written(file);
    }

    /// What a change under that name would be about if it would be kept back now: the directory in
    /// which a file is made, or the file that is there and is removed. The owner must not have
    /// that open.
    pub fn would_keep(&mut self, now: Time, named: (Place, &Name)) -> Option<Place> {
        self.caps.would_keep(now, named, &self.vector)
    }

    /// The number of what was kept back last.
    pub fn last_kept(&self) -> u64 {
        self.caps.last_kept()
    }

    /// Whether all has landed that was kept back in order up to that number, in that partition or
    /// in any.
    pub fn has_landed(&self, group: Option<GroupId>, number: u64) -> bool {
        self.caps.has_landed(group, number)
    }

    /// Whether the owner is to be told to have something land, in the next step.
    pub fn calls_to_land(&self) -> bool {
        self.caps.calls_to_land()
    }

    /// Whether that is kept back still.
    pub fn is_unlanded(&self, ino: Ino) -> bool {
        self.caps.is_unlanded(ino)
    }

    /// Whether a name that leads there was removed, and that is kept back still.
    pub fn removes(&self, ino: Ino) -> bool {
        self.caps.removes(ino)
    }

    /// Whether that is kept back still, and lands in its turn.
    pub fn lands_in_order(&self, ino: Ino) -> bool {
        self.caps.lands_in_order(ino)
    }

    /// What is kept back in a directory.
    pub fn unlanded_in(&self, directory: Ino) -> Vec<Ino> {
        self.caps.unlanded_in(directory)
    }

    /// Whether the client's lease of a partition has lasted since then: so what it has kept back
    /// since is what others must see, too.
    pub fn has_kept(&self, now: Time, group: GroupId, since: Time) -> bool {
        self.caps.has_kept(now, group, since)
    }

    /// How many changes were kept back.
    pub fn kept_back(&self) -> u64 {
        self.caps.kept_back
    }

    /// How many new files were removed before they were sent, and so never were.
    pub fn unsent(&self) -> u64 {
        self.caps.unsent
    }

    /// How many looks were answered from what is kept.
    pub fn hits(&self) -> u64 {
        self.caps.hits
    }

    /// How many inodes it has been given with others, in one step.
    pub fn swept(&self) -> u64 {
        self.caps.swept
    }

    /// How many inodes it has been given with what came along.
    pub fn along(&self) -> u64 {
        self.caps.along
    }

    /// How many of these were not in the directory that was looked at, but further below.
    pub fn below(&self) -> u64 {
        self.caps.below
    }

    /// How many directories it has come to know whole, as it holds them exclusively.
    pub fn surveyed(&self) -> u64 {
        self.caps.surveyed
    }

    /// The attributes of an inode that is held, as far as they are known without asking.
    pub fn held_attributes(&mut self, now: Time, inode: Place) -> Option<Attributes> {
        self.caps.attributes(now, inode, &self.vector)
    }

    /// Whether it would answer that look by itself, with all that who looks wants to know.
    pub fn holds(&mut self, now: Time, query: &Query) -> bool {
        match self.would_answer(now, query) {
            Some(Ok(Answer::Entry { attributes, .. })) => attributes.is_some(),
            other => other.is_some(),
        }
    }

    /// Whether it would answer by itself that a name leads to nothing: nobody else has made
    /// something of it, and the client is about to make nothing.
    pub fn is_absent(&mut self, now: Time, parent: Place, name: &Name) -> bool {
        let query = Query::Lookup { parent, name: name.clone() };
        self.would_answer(now, &query) == Some(Err(FsError::NotFound))
    }

    fn would_answer(&mut self, now: Time, query: &Query) -> Option<Result<Answer, FsError>> {
        let hits = self.caps.hits;
        let answer = self.caps.answer(now, query, &self.vector);
        self.caps.hits = hits; // Nobody has looked.
        answer
    }
}

impl Caps {
    /// Answers a look from what is kept (K1 to K3), to a client that has seen `vector`.
    pub fn answer(
        &mut self,
        now: Time,
        query: &Query,
        vector: &Vector,
    ) -> Option<Result<Answer, FsError>> {
        if self.known.is_empty() {
            return None;
        }
        self.lapse(now);
        let answer = match query {
            Query::Lookup { parent, name } => self.look_up(now, *parent, name, vector)?,
            Query::Attributes { inode } => {
                Ok(Answer::Attributes(self.attributes(now, *inode, vector)?))
            }
            Query::Contents { inode, offset, len } => {
                Ok(self.contents(now, *inode, *offset..offset.saturating_add(*len), vector)?)
            }
            Query::Directory { inode, after, limit } => {
                Ok(self.list(now, *inode, (after, *limit as usize), vector)?)
            }
            _ => return None,
        };
        self.hits += 1;
        Some(answer)
    }

    fn look_up(
        &mut self,
        now: Time,
        parent: Place,
        name: &Name,
        vector: &Vector,
    ) -> Option<Result<Answer, FsError>> {
        let special = matches!(&name[..], b"." | b"..") || name.len() > NAME_MAX;
        if special
            || self.is_odd(parent.ino)
            || self.busy_names.contains_key(&(parent.ino, name.clone()))
        {
            return None;
        }
        match self.usable(now, parent, vector)?.name(name)? {
            None => Some(Err(FsError::NotFound)),
            Some(entry) => {
                let attributes = self.attributes(now, entry.place, vector);
                Some(Ok(Answer::Entry { entry, attributes, top: None }))
            }
        }
    }

    /// Entries of a directory that is known whole. Of what lives elsewhere a replica knows more.
    fn list(
        &mut self,
        now: Time,
        directory: Place,
        (after, limit): (&Name, usize),
        vector: &Vector,
    ) -> Option<Answer> {
        if self.is_odd(directory.ino) {
            return None;
        }
        let known = self.usable(now, directory, vector)?;
        let (parent, (entries, end)) = (known.parent.value?, known.entries(after, limit)?);
        if entries.iter().any(|(_, entry)| entry.place.partition != directory.partition) {
            return None;
        }
        let entry = |(name, entry): (Name, Entry)| {
            let attributes = self.attributes(now, entry.place, vector);
            (name, entry, attributes)
        };
        let entries = entries.into_iter().map(entry).collect();
        Some(Answer::Directory { entries, end, parent, tops: Vec::new() })
    }

    pub(super) fn attributes(
        &mut self,
        now: Time,
        inode: Place,
        vector: &Vector,
    ) -> Option<Attributes> {
        if let Some(newborn) = self.newborn(now, inode.ino, vector) {
            return newborn;
        }
        if self.busy.contains_key(&inode.ino) || self.is_odd(inode.ino) {
            return None;
        }
        self.usable(now, inode, vector)?.attributes.value
    }

    /// What is kept of an inode, if that may be used now.
    pub(super) fn usable(&mut self, now: Time, place: Place, vector: &Vector) -> Option<&Known> {
        let known = self.known.get_mut(&place.ino).filter(|of| of.group == place.partition)?;
        let lease = self.leases.get_mut(&known.group)?;
        if lease.until <= now || vector.get(known.group) > lease.checked {
            return None;
        }
        (lease.used, known.used) = (now, now);
        Some(known)
    }

    /// A replica has answered a read that began at that count; `whole` tells whether it lacks
    /// nothing.
    pub fn fill(
        &mut self,
        now: Time,
        query: &Query,
        (begun, whole): (u64, bool),
        result: &Result<Answer, FsError>,
    ) {
        if !self.is_on {
            return;
        }
        if !whole {
            if let Query::Contents { inode, .. } = query {
                self.doubt_pages(inode.ino);
            }
            return;
        }
        match (query, result) {
            (Query::Lookup { parent, name }, Ok(Answer::Entry { entry, attributes, .. })) => {
                self.fill_name(*parent, name, begun, Some(entry.clone()));
                if let Some(attributes) = attributes {
                    self.count_look(now, attributes.place);
                    self.fill_attributes(begun, attributes);
                }
            }
            (Query::Lookup { parent, name }, Err(FsError::NotFound)) => {
                self.fill_name(*parent, name, begun, None);
            }
            (Query::Attributes { .. }, Ok(Answer::Attributes(attributes))) => {
                self.fill_attributes(begun, attributes);
            }
            (
                Query::Contents { inode, offset, .. },
                Ok(Answer::Contents { attributes, extents, end }),
            ) => {
                self.fill_attributes(begun, attributes);
                let size = attributes.size;
                if *offset == 0 && *end >= size && extents.len() <= EXTENTS_MAX {
                    self.fill_extents(*inode, begun, extents);
                } else {
                    self.fill_layout(now, (*inode, begun), (*offset..*end, size), extents);
                }
            }
            (
                Query::Directory { inode, after, .. },
                Ok(Answer::Directory { entries, end, parent, .. }),
            ) => {
                for (name, entry, attributes) in entries {
                    self.fill_name(*inode, name, begun, Some(entry.clone()));
                    attributes.iter().for_each(|of| self.fill_attributes(begun, of));
                }
                let last = entries.last().map(|(name, ..)| name);
                if let Some(known) = self.fillable(*inode, begun) {
                    known.listed(after, last, *end);
                    known.parent.fill(begun, *parent);
                }
            }
            (_, _) => {}
        }
    }

    pub(super) fn fillable(&mut self, place: Place, begun: u64) -> Option<&mut Known> {
        let early = self.mutation.is(Mutation::FillsFromEarlier);
        let known = self.known.get_mut(&place.ino)?;
        (known.group == place.partition && (known.granted <= begun || early)).then_some(known)
    }

    /// How much is kept of something, now that as much as there may be was counted: some of that
    /// has gone since. If more than half is there, all of it goes, so that this is seldom.
    pub(super) fn count_anew(
        &mut self,
        max: usize,
        of: impl Fn(&Known) -> usize,
        forget: impl Fn(&mut Known),
    ) -> usize {
        let kept: usize = self.known.values().map(of).sum();
        if kept <= max / 2 {
            return kept;
        }
        self.known.values_mut().for_each(forget);
        0
    }

    fn fill_name(&mut self, parent: Place, name: &Name, begun: u64, found: Option<Entry>) {
        let special = matches!(&name[..], b"." | b"..");
        let named = (parent.ino, name.clone());
        if special || self.busy_names.contains_key(&named) || self.keeps_name(parent.ino, name) {
            return;
        }
        if self.fillable(parent, begun).is_some() {
            self.change_names(parent.ino, |known, _| known.fill_name(name, begun, found));
        }
    }

    fn fill_attributes(&mut self, begun: u64, attributes: &Attributes) {
        let ino = attributes.place.ino;
        if self.busy.contains_key(&ino) || self.keeps_some_of(ino) {
            return; // A replica may not know of that yet.
        }
        if let Some(known) = self.fillable(attributes.place, begun) {
            known.attributes.fill(begun, *attributes);
        }
    }

    /// A read has shown all extents of a file.
    pub(super) fn fill_extents(&mut self, file: Place, begun: u64, extents: &Extents) {
        let len = inline(extents);
        let few = extents.len() <= EXTENTS_MAX && len <= INLINE_MAX;
        if !few || self.busy.contains_key(&file.ino) {
            return;
        }
        if self.bytes + len > BYTES_MAX {
            let of = |known: &Known| known.extents.value.as_deref().map_or(0, inline);
            self.bytes = self.count_anew(BYTES_MAX, of, |known| known.extents.value = None);
        }
        if let Some(known) = self.fillable(file, begun) {
            known.extents.fill(begun, extents.clone());
            self.bytes += len;
        }
    }

    /// What lies in a range of a file that is kept whole, if the range is all of it, or of one of
    /// which that range is known.
    pub(super) fn contents(
        &mut self,
        now: Time,
        file: Place,
        range: Range<u64>,
        vector: &Vector,
    ) -> Option<Answer> {
        let attributes: Attributes = self.attributes(now, file, vector)?;
        let whole = range.start == 0 && range.end >= attributes.size;
        let known = self.known.get(&file.ino)?;
        let all = known.extents.value.clone().filter(|_| whole);
        let extents = all.or_else(|| known.laid_out(&range, attributes.size))?;
        Some(Answer::Contents { attributes, extents, end: range.end })
    }
}

/// How many bytes lie in extents themselves.
fn inline(extents: &[(u64, Extent)]) -> usize {
    let of = |extent: &Extent| match &extent.data {
        Data::Inline(bytes) => bytes.len(),
        Data::Block { .. } => 0,
    };
    extents.iter().map(|(_, extent)| of(extent)).sum()
}
