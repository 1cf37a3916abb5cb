//! Names: lookup, create, unlink, rename. Each update names the inodes as this client sees them;
//! if the tree has changed under it, it looks again and repeats.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::attributes::strange;
use crate::files::buffer::Buffer;
use crate::files::{Files, Handle, LOOK_AGAIN, OpenInode, OpenMode};
use bytes::Bytes;
use meridian_core::{GroupId, Stamp};
use meridian_fs::operation::{NewNode, RenameMode, Whiteout};
use meridian_fs::types::{Attributes, Entry, Ino, Kind, Name, Place};
use meridian_fs::{Answer, Done, FsError, Query, Update};
use std::pin::pin;
use std::sync::Arc;

/// How deep a directory may lie for its ancestors to be named in a rename.
const DEPTH_MAX: usize = 1024;

/// So many names that lead into another partition are remembered.
const PLACED_MAX: usize = 1024;

/// A side of a rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The directory.
    pub parent: Ino,
    /// The name in it.
    pub name: Name,
}

impl Files {
    /// What `name` in `parent` leads to, with its attributes.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if nothing.
    pub async fn lookup(&self, parent: Ino, name: &Name) -> Result<Attributes, ClientError> {
        let found = self.look_up(parent, name).await?;
        self.note_name(name, &found);
        Ok(found)
    }

    async fn look_up(&self, parent: Ino, name: &Name) -> Result<Attributes, ClientError> {
        for _ in 0..LOOK_AGAIN {
            let begun = self.last_change();
            let guess = self.placed(parent, name);
            let beside = async { Some(self.attributes(guess?).await) };
            let mut beside = pin!(beside);
            let (mut early, mut ask) = (None, pin!(self.ask_for(parent, name)));
            let (answer, known_to) = loop {
                tokio::select! {
                    biased;
                    answer = &mut ask => break answer?,
                    attributes = &mut beside, if early.is_none() => early = Some(attributes),
                }
            };
            let Answer::Entry { entry, attributes, top } = answer else { return Err(strange()) };
            self.learn(entry.place);
            if let Some(attributes) = attributes {
                lock(&self.tops).forget(entry.place.ino);
                return Ok(self.seen(attributes, known_to, begun).await);
            }
            self.named_root(parent, entry.place, top.map(|top| *top));
            self.remember_placed(parent, name, entry.place.ino);
            let beside = match early {
                _ if guess != Some(entry.place.ino) => None,
                Some(attributes) => attributes,
                None => beside.await,
            };
            let found = match beside {
                Some(attributes) => attributes,
                None => self.attributes(entry.place.ino).await,
            };
            match found {
                Err(ClientError::Fs(FsError::Gone)) if self.is_lost(entry.place) => {
                    self.named_root(parent, entry.place, Some(entry.lost()));
                    return Ok(entry.lost());
                }
                // Removed between the two questions: the name leads elsewhere now, or nowhere.
                Err(ClientError::Fs(FsError::Gone | FsError::Stale)) => {}
                Ok(attributes) => {
                    let is_directory = attributes.kind == Kind::Directory;
                    let seen = is_directory.then_some(attributes);
                    self.named_root(parent, attributes.place, seen);
                    return Ok(attributes);
                }
                other => return other,
            }
        }
        Err(FsError::NotFound.into())
    }

    async fn ask_for(&self, parent: Ino, name: &Name) -> Result<(Answer, Stamp), ClientError> {
        self.ask(parent, |parent| Query::Lookup { parent, name: name.clone() }).await
    }

    /// Where a name led that leads into another partition: the attributes there are asked for
    /// beside the name.
    fn placed(&self, parent: Ino, name: &Name) -> Option<Ino> {
        lock(&self.placed).get(&(parent, name.clone())).copied()
    }

    fn remember_placed(&self, parent: Ino, name: &Name, ino: Ino) {
        let mut placed = lock(&self.placed);
        if placed.len() >= PLACED_MAX {
            placed.clear();
        }
        placed.insert((parent, name.clone()), ino);
    }

    /// What `name` in `parent` leads to; asks only the parent's partition.
    pub(crate) async fn entry(&self, parent: Ino, name: &Name) -> Result<Entry, ClientError> {
        let query = |parent| Query::Lookup { parent, name: name.clone() };
        match self.ask(parent, query).await?.0 {
            Answer::Entry { entry, .. } => {
                self.learn(entry.place);
                Ok(entry)
            }
            _ => Err(strange()),
        }
    }

    /// What a path from [`crate::ClientOptions::root`] leads to. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] as for any path.
    pub async fn resolve(&self, path: &str) -> Result<Attributes, ClientError> {
        let mut at = self.attributes(self.client.root().ino).await?;
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            at = self.lookup(at.place.ino, &Bytes::copy_from_slice(name.as_bytes())).await?;
        }
        Ok(at)
    }

    /// `readlink`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is no symbolic link.
    pub async fn symlink(&self, ino: Ino) -> Result<Bytes, ClientError> {
        match self.ask(ino, |inode| Query::Symlink { inode }).await?.0 {
            Answer::Bytes(target) => Ok(target),
            _ => Err(strange()),
        }
    }

    /// Makes a file, directory, symbolic link or device.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken.
    pub async fn create(
        &self,
        parent: Ino,
        name: &Name,
        node: NewNode,
    ) -> Result<Attributes, ClientError> {
        let mut place = self.place_of(parent);
        for _ in 0..LOOK_AGAIN {
            let update = Update::Create { parent: place, name: name.clone(), node: node.clone() };
            match self.client.apply(&update).await {
                Ok((Done::Attributes(attributes), _)) => {
                    self.learn(attributes.place);
                    return Ok(attributes);
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(parent).await?,
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// `open(O_CREAT)` of a name that led nowhere a moment ago: makes the file and opens it.
    ///
    /// # Errors
    /// [`FsError::Exists`] if it must be new and is not; [`FsError::Stale`] if it need not be new
    /// and another made it meanwhile: the caller looks again, and at whether it may open that one.
    pub async fn create_open(
        &self,
        parent: Ino,
        name: &Name,
        node: NewNode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Attributes, Handle), ClientError> {
        if let Some((attributes, handle)) = self.begin_new(parent, name, &node, mode) {
            self.note_name(name, &attributes);
            self.with_size(handle, attributes.size);
            return Ok((attributes, handle));
        }
        for _ in 0..LOOK_AGAIN {
            match self.create(parent, name, node.clone()).await {
                Ok(attributes) => {
                    let durability = Some(self.durability_of(&attributes));
                    let handle = self.register(attributes.place.ino, mode, durability);
                    self.note_name(name, &attributes);
                    self.with_size(handle, attributes.size);
                    return Ok((attributes, handle));
                }
                Err(ClientError::Fs(FsError::Exists)) if !exclusive => {}
                Err(error) => return Err(error),
            }
            match self.entry(parent, name).await {
                Err(ClientError::Fs(FsError::NotFound)) => {} // Removed meanwhile: make it.
                other => return Err(other.err().unwrap_or(FsError::Stale.into())),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// `open(O_TMPFILE)`: makes a file without a name in the partition of `parent`, and opens it.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the directory was removed.
    pub async fn create_unnamed(
        &self,
        parent: Ino,
        node: NewNode,
        mode: OpenMode,
    ) -> Result<(Attributes, Handle), ClientError> {
        let mut place = self.place_of(parent);
        for _ in 0..LOOK_AGAIN {
            let update = Update::CreateUnnamed { parent: place, node: node.clone() };
            match self.client.apply(&update).await {
                Ok((Done::Attributes(attributes), _)) => {
                    self.learn(attributes.place);
                    let durability = Some(self.durability_of(&attributes));
                    let handle = self.register(attributes.place.ino, mode, durability);
                    self.with_size(handle, attributes.size);
                    let inode = self.file(handle)?.inode;
                    {
                        let mut buffer = lock(&inode.buffer);
                        (buffer.kept, buffer.nameless) = (true, true);
                    }
                    return Ok((attributes, handle));
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(parent).await?,
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// It is new, and so long.
    fn with_size(&self, handle: Handle, size: u64) {
        if let Ok(file) = self.file(handle) {
            let mut buffer = lock(&file.inode.buffer);
            buffer.writes.learn_size(size);
            buffer.writes.made();
            buffer.lacks_capability = buffer.writers > 0;
        }
    }

    /// `link`. What is buffered of a file that has no name yet is sent before: its name never shows
    /// less.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the name is taken.
    pub async fn link(
        &self,
        target: Ino,
        parent: Ino,
        name: &Name,
    ) -> Result<Attributes, ClientError> {
        let nameless = |open: &Arc<OpenInode>| lock(&open.buffer).nameless;
        let Some(open) = self.open_inode(target).filter(nameless) else {
            return self.link_named(target, parent, name).await;
        };
        // From now on its bytes are not dropped when it is closed.
        lock(&open.buffer).nameless = false;
        self.flush_inode(&open, None).await?;
        let result = self.link_named(target, parent, name).await;
        if matches!(result, Err(ClientError::Fs(_))) {
            lock(&open.buffer).nameless = true;
        }
        result
    }

    async fn link_named(
        &self,
        target: Ino,
        parent: Ino,
        name: &Name,
    ) -> Result<Attributes, ClientError> {
        let target = self.place_of(target);
        let mut place = self.place_of(parent);
        for _ in 0..LOOK_AGAIN {
            let update = Update::Link { target, parent: place, name: name.clone() };
            let begun = self.last_change();
            match self.client.apply(&update).await {
                Ok((Done::Attributes(attributes), ts)) => {
                    return Ok(self.seen(attributes, ts, begun).await);
                }
                Ok(_) => return Err(strange()),
                Err(ClientError::Fs(FsError::Stale)) => place = self.search(parent).await?,
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// `unlink`. A file that is open on this mount stays until it is closed.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such name.
    pub async fn unlink(&self, parent: Ino, name: &Name) -> Result<(), ClientError> {
        for _ in 0..LOOK_AGAIN {
            let entry = self.entry(parent, name).await?;
            if entry.kind == Kind::Directory {
                return Err(FsError::IsDirectory.into());
            }
            let child = entry.place;
            let unlinking = self.begin_unlink(child.ino);
            if self.begin_removal(parent, name, child) {
                return Ok(());
            }
            let kept = self.kept(child.ino);
            let keep_for = kept.as_ref().map(|_| self.client.id());
            let update = Update::Unlink {
                parent: self.place_of(parent),
                name: name.clone(),
                child,
                keep_for,
            };
            match self.client.update(&update).await {
                Ok(_) => {
                    self.name_lost(kept).await;
                    self.drop_unsent(child.ino).await;
                    drop(unlinking);
                    return Ok(());
                }
                Err(ClientError::Fs(FsError::Stale)) => {}
                Err(error) => return Err(self.name_perhaps_lost(kept, error).await),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// The inode if it is open here: then it is kept when it loses its last name.
    fn kept(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.open_inode(ino).filter(|open| lock(&open.buffer).writes.open_count() > 0)
    }

    /// After a name of a file went that was kept: notes whether it was the last.
    async fn name_lost(&self, kept: Option<Arc<OpenInode>>) {
        let Some(open) = kept else { return };
        let nameless = match self.client.read(Query::Attributes { inode: open.place }).await {
            Ok(Answer::Attributes(attributes)) if attributes.nlink > 0 => return,
            Ok(Answer::Attributes(_)) | Err(ClientError::Fs(_)) => true,
            // Nobody can tell now: if it has another name its bytes must not be dropped.
            Ok(_) | Err(_) => false,
        };
        self.keep(&open, nameless).await;
    }

    /// A name of a file went. What could not be stored of one that nobody has open is dropped if
    /// that was the last: there may never be room for it.
    async fn drop_unsent(&self, ino: Ino) {
        let Some(inode) = self.open_inode(ino) else { return };
        let is_idle = |buffer: &Buffer| buffer.writes.open_count() == 0;
        {
            let buffer = lock(&inode.buffer);
            if !is_idle(&buffer) || buffer.writes.is_clean() {
                return;
            }
        }
        let _guard = inode.flushing.lock().await; // A flush must not find its batch gone.
        let nameless = match self.client.read(Query::Attributes { inode: inode.place }).await {
            Ok(Answer::Attributes(attributes)) => attributes.nlink == 0,
            Ok(_) => false,
            Err(error) => matches!(error, ClientError::Fs(_)),
        };
        if nameless {
            self.change_buffer(&inode, |buffer| {
                if is_idle(buffer) {
                    buffer.clear();
                }
            });
            self.forget_if_unused(&inode);
        }
    }

    /// As [`Files::name_lost`] if an update failed with `error`, after which it may still happen.
    async fn name_perhaps_lost(
        &self,
        kept: Option<Arc<OpenInode>>,
        error: ClientError,
    ) -> ClientError {
        if let Some(open) = kept.filter(|_| error.is_unknown()) {
            self.keep(&open, false).await;
        }
        error
    }

    /// Notes that `open` is kept for this client, and perhaps has certainly no name.
    async fn keep(&self, open: &Arc<OpenInode>, nameless: bool) {
        {
            let mut buffer = lock(&open.buffer);
            buffer.kept = true;
            buffer.nameless |= nameless;
        }
        let now = self.client.time();
        if lock(&self.opens).kept(open.place, nameless, now) {
            // Closed while its name went: nobody else will say so.
            self.give_up_kept(open).await;
            self.tell_opens().join_all().await;
            self.forget_if_unused(open);
        }
    }

    /// `rmdir`.
    ///
    /// # Errors
    /// [`FsError::NotEmpty`] if it is not.
    pub async fn rmdir(&self, parent: Ino, name: &Name) -> Result<(), ClientError> {
        for _ in 0..LOOK_AGAIN {
            let entry = self.entry(parent, name).await?;
            if entry.kind != Kind::Directory {
                return Err(FsError::NotDirectory.into());
            }
            let (parent, child) = (self.place_of(parent), entry.place);
            let update = Update::Rmdir { parent, name: name.clone(), child };
            match self.client.update(&update).await {
                Err(ClientError::Fs(FsError::Stale)) => {}
                other => return other.map(drop),
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// `renameat2`. What is buffered of the file is sent before: its new name never shows less. A
    /// whiteout may take the old name.
    ///
    /// # Errors
    /// As POSIX has them.
    pub async fn rename(
        &self,
        from: &Named,
        to: &Named,
        mode: RenameMode,
        whiteout: Option<Whiteout>,
    ) -> Result<(), ClientError> {
        for _ in 0..LOOK_AGAIN {
            let moved = self.entry(from.parent, &from.name).await?;
            let replaced = match self.entry(to.parent, &to.name).await {
                Ok(entry) => Some(entry),
                Err(ClientError::Fs(FsError::NotFound)) => None,
                Err(error) => return Err(error),
            };
            match (mode, &replaced) {
                (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists.into()),
                (RenameMode::Exchange, None) => return Err(FsError::NotFound.into()),
                (RenameMode::Replace, Some(entry)) if entry.place == moved.place => {
                    if self.is_at_both(from, &moved).await? {
                        return Ok(());
                    }
                    continue;
                }
                (_, _) => {}
            }
            if let Some(open) = self.open_inode(moved.place.ino) {
                self.flush_inode(&open, None).await?;
            }
            let ancestors = match self.ancestors(from, to, &moved, replaced.as_ref(), mode).await {
                Err(ClientError::Fs(FsError::Stale | FsError::Gone)) => continue,
                other => other?,
            };
            let goes = replaced.as_ref().filter(|_| mode == RenameMode::Replace);
            let unlinking = goes.map(|entry| self.begin_unlink(entry.place.ino));
            let kept = goes.and_then(|entry| self.kept(entry.place.ino));
            let keep_for = kept.as_ref().map(|_| self.client.id());
            let update = Update::Rename {
                from: self.place_of(from.parent),
                from_name: from.name.clone(),
                to: self.place_of(to.parent),
                to_name: to.name.clone(),
                moved: moved.place,
                replaced: replaced.as_ref().map(|entry| entry.place),
                mode,
                ancestors,
                keep_for,
                whiteout,
            };
            match self.client.update(&update).await {
                Err(ClientError::Fs(FsError::Stale)) => drop(unlinking),
                Err(error) => return Err(self.name_perhaps_lost(kept, error).await),
                Ok(_) => {
                    self.name_lost(kept).await;
                    if let Some(entry) = goes {
                        self.drop_unsent(entry.place.ino).await;
                    }
                    drop(unlinking);
                    return Ok(());
                }
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// Whether what was found at another name, after `moved` at this one, has both names. It may
    /// also have been moved from here to there before, and the first look was at an older state:
    /// this one is at none that is older than the second.
    async fn is_at_both(&self, here: &Named, moved: &Entry) -> Result<bool, ClientError> {
        let again = self.entry(here.parent, &here.name).await?;
        Ok(again.place == moved.place && moved.kind != Kind::Directory)
    }

    /// The directories that must not be the moved one: see [`Update::Rename`].
    async fn ancestors(
        &self,
        from: &Named,
        to: &Named,
        moved: &Entry,
        replaced: Option<&Entry>,
        mode: RenameMode,
    ) -> Result<Vec<Place>, ClientError> {
        let mut all = Vec::new();
        if from.parent == to.parent {
            return Ok(all);
        }
        if moved.kind == Kind::Directory {
            self.walk_up(to.parent, &mut all).await?;
        }
        let comes_back = replaced.is_some_and(|entry| entry.kind == Kind::Directory);
        if mode == RenameMode::Exchange && comes_back {
            self.walk_up(from.parent, &mut all).await?;
        }
        Ok(all)
    }

    /// Appends `directory` and all above it but the root, each once.
    async fn walk_up(&self, directory: Ino, all: &mut Vec<Place>) -> Result<(), ClientError> {
        let mut at = self.place_of(directory);
        for _ in 0..DEPTH_MAX {
            if at.ino == Ino::ROOT || all.contains(&at) {
                return Ok(());
            }
            if at.ino == self.client.root().ino {
                all.push(at); // What is above it is out of reach, and so is its own name.
                return Ok(());
            }
            let above = self.entry(at.ino, &Bytes::from_static(b"..")).await?;
            all.push(self.place_of(at.ino)); // It may have been found elsewhere by the question.
            at = above.place;
        }
        Err(FsError::NameTooLong.into())
    }

    /// Places an empty directory in the partition of `group`.
    ///
    /// # Errors
    /// [`FsError::NotEmpty`] if it is not empty; [`FsError::Invalid`] for the root.
    pub async fn place(&self, ino: Ino, group: GroupId) -> Result<(), ClientError> {
        if ino == Ino::ROOT {
            return Err(FsError::Invalid.into());
        }
        for _ in 0..LOOK_AGAIN {
            let attributes = self.attributes(ino).await?;
            if attributes.kind != Kind::Directory {
                return Err(FsError::NotDirectory.into());
            }
            let child = attributes.place;
            let parent = self.entry(ino, &Bytes::from_static(b"..")).await?.place;
            let named = self.entries(parent.ino).await?;
            let name = named.into_iter().find(|(_, entry)| entry.place.ino == ino);
            let Some((name, _)) = name else { continue }; // It was renamed meanwhile.
            let update = Update::PlaceDirectory { parent, name, child, to: group };
            match self.client.update(&update).await {
                Err(ClientError::Fs(FsError::Stale)) => {}
                Err(error) => return Err(error),
                Ok(done) => {
                    self.learn(Place { ino, partition: group });
                    if let Done::Attributes(placed) = done
                        && group != parent.partition
                    {
                        self.named_root(parent.ino, placed.place, Some(placed));
                    }
                    return Ok(());
                }
            }
        }
        Err(ClientError::Fs(FsError::Stale))
    }

    /// In which partition an inode lives, by the group's name.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn where_is(&self, ino: Ino) -> Result<String, ClientError> {
        let partition = self.attributes(ino).await?.place.partition;
        Ok(self.client.topology().group(partition).name.clone())
    }
}
