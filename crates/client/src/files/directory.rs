//! Listings.

use crate::client::lock;
use crate::error::ClientError;
use crate::files::Files;
use crate::files::attributes::strange;
use bytes::Bytes;
use meridian_fs::types::{Attributes, Entry, Ino, Name, Place};
use meridian_fs::{Answer, Query};
use std::time::Duration;
use tokio::task::JoinSet;

/// Entries in one answer: some hundred KiB with their attributes.
const PAGE: u32 = 1024;
/// How long to wait for the attributes of an entry in a partition that may be out of reach.
const FAR_LIMIT: Duration = Duration::from_secs(2);

/// A part of a directory.
#[derive(Clone, Debug)]
pub struct Page {
    /// Name, what it leads to, and its attributes unless its partition does not answer.
    pub entries: Vec<(Name, Entry, Option<Attributes>)>,
    /// Whether there are no more.
    pub end: bool,
    /// The directory above.
    pub parent: Place,
}

impl Files {
    /// The directory above a directory; that of the root is the root.
    ///
    /// # Errors
    /// As [`Files::list`].
    pub async fn parent(&self, ino: Ino) -> Result<Ino, ClientError> {
        Ok(self.list(ino, &Name::new(), false).await?.parent.ino)
    }

    /// The entries after `after`, in order of their names. With `attributes` these are as a program
    /// shall see them, and those of entries in other partitions are asked for, too.
    ///
    /// # Errors
    /// If it is gone or no directory, or its partition does not answer.
    pub async fn list(
        &self,
        ino: Ino,
        after: &Name,
        attributes: bool,
    ) -> Result<Page, ClientError> {
        let query = |inode| Query::Directory { inode, after: after.clone(), limit: PAGE };
        let begun = self.last_change();
        let (answer, known_to) = self.ask(ino, query).await?;
        let Answer::Directory { mut entries, end, parent, tops } = answer else {
            return Err(strange());
        };
        tops.iter().for_each(|top| self.named_root(ino, top.place, Some(*top)));
        let mut far = JoinSet::new();
        for (index, (_, entry, known)) in entries.iter_mut().enumerate() {
            self.learn(entry.place);
            match known {
                Some(known) if attributes => *known = self.seen(*known, known_to, begun).await,
                None if attributes => {
                    let (client, place) = (self.client.clone(), entry.place);
                    far.spawn(async move {
                        let query = Query::Attributes { inode: place };
                        (index, client.read_within(query, FAR_LIMIT).await)
                    });
                }
                Some(_) | None => {}
            }
        }
        while let Some(asked) = far.join_next().await {
            if let Ok((index, Ok((Answer::Attributes(known), known_to)))) = asked {
                entries[index].2 = Some(self.seen(known, known_to, begun).await);
            }
        }
        for (_, entry, known) in entries.iter_mut().filter(|_| attributes) {
            *known = known.or_else(|| lock(&self.tops).get(entry.place.ino));
        }
        Ok(Page { entries, end, parent })
    }

    /// A program reads a directory.
    pub async fn note_listing(&self, ino: Ino) {
        // Whoever cannot see it will be told so when it asks for the names.
        if self.notes_reads()
            && let Ok(attributes) = self.attributes(ino).await
        {
            self.note_read(&attributes);
        }
    }

    /// All entries of a directory, without attributes.
    ///
    /// # Errors
    /// As [`Files::list`].
    pub async fn entries(&self, ino: Ino) -> Result<Vec<(Name, Entry)>, ClientError> {
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = self.list(ino, &after, false).await?;
            all.extend(page.entries.into_iter().map(|(name, entry, _)| (name, entry)));
            match all.last() {
                Some((name, _)) if !page.end => after = name.clone(),
                _ => return Ok(all),
            }
        }
    }
}
