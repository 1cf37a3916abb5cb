//! What comes along with an answer, so that a client in another region need not ask for it next:
//! decision 101.

use super::Replica;
use crate::api::ALONG_MAX;
use crate::reads::Read;
use meridian_core::ClientId;
use meridian_fs::types::{Data, Kind, Name};
use meridian_fs::{Answer, Done, FsError, Query, Rights};

/// So many bytes come along with an answer, or a little more: a part of a frame.
const BYTES_MAX: usize = 512 << 10;
/// What an inode's attributes take, or an entry without its name.
const ATTRIBUTES: usize = 160;

/// Questions that are answered with the reply to an update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Looks {
    /// The questions.
    pub queries: Vec<Query>,
    /// What the client may do; none if that is all.
    pub rights: Option<Rights>,
}

impl Replica {
    /// The first entries of the directory that an answer is about.
    pub(super) fn entries_along(&self, read: &Read, answer: &Answer) -> Option<Box<Answer>> {
        let (Answer::Entry { attributes: Some(of), .. } | Answer::Attributes(of)) = answer else {
            return None;
        };
        if !read.along || of.kind != Kind::Directory {
            return None;
        }
        let limit = (ALONG_MAX - 1) as u32;
        let query = Query::Directory { inode: of.place, after: Name::new(), limit };
        let read = Read { query, along: false, ..read.clone() };
        if !self.is_ready(&read) {
            return None;
        }
        let mut entries =
            self.partition.read_as(&read.query, read.by, read.rights.as_ref()).ok()?;
        self.leave_out(&mut entries, self.wanted(read.seen));
        Some(Box::new(entries))
    }

    /// Answers to the first questions, once an update that grants capabilities was executed here:
    /// so what they tell of an inode that it grants is not older than the grant, however far this
    /// replica is with the rest.
    pub(super) fn looks_along(
        &self,
        by: ClientId,
        result: &Result<Done, FsError>,
        looks: &Looks,
    ) -> Vec<Result<Answer, FsError>> {
        let (mut all, mut len) = (Vec::new(), 0);
        if !matches!(result, Ok(Done::Granted(_))) {
            return all;
        }
        for query in &looks.queries {
            let answer = self.partition.read_as(query, by, looks.rights.as_ref());
            len += answer.as_ref().map_or(0, bytes);
            all.push(answer);
            if len >= BYTES_MAX {
                break;
            }
        }
        all
    }
}

/// How many bytes an answer takes, about.
fn bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Directory { entries, tops, .. } => {
            let names: usize = entries.iter().map(|(name, ..)| name.len()).sum();
            names + 2 * ATTRIBUTES * entries.len() + ATTRIBUTES * tops.len()
        }
        Answer::Contents { extents, .. } => {
            let of = |data: &Data| match data {
                Data::Inline(bytes) => bytes.len(),
                Data::Block { .. } => 0,
            };
            ATTRIBUTES + extents.iter().map(|(_, extent)| 40 + of(&extent.data)).sum::<usize>()
        }
        Answer::Bytes(bytes) => bytes.len(),
        _ => ATTRIBUTES,
    }
}
