//! How records of any length lie in a log that takes only short ones.

use crate::wire::to_bytes;
use bytes::{Bytes, BytesMut};
use meridian_core::standing::{Standing, Start};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// So many bytes of a record are written in one: the log takes no more than
/// [`meridian_storage::record::MAX_BODY`].
const PIECE_LEN: usize = 16 << 20;

/// A record of the log.
#[derive(Debug, Serialize, Deserialize)]
pub enum Logged<R, I> {
    /// The process's.
    Process(R),
    /// The application's, at the end of a checkpoint.
    Application(Bytes),
    /// A piece of a longer record: a state may be of any length.
    Piece {
        /// Whether it is the first; what was before it and had no last one is of a torn tail.
        first: bool,
        /// Whether it is the last.
        last: bool,
        /// What is in it.
        bytes: Bytes,
    },
    /// How far the logs of other servers went when this was written; see
    /// [`meridian_core::standing`].
    Known(Vec<(I, Standing)>),
    /// All starts on this log until now.
    Starts(Vec<Start>),
}

/// What is written of a record: itself, or pieces of it.
pub fn pieces<R: Serialize, I: Serialize>(
    record: &Logged<R, I>,
) -> impl Iterator<Item = Bytes> + use<R, I> {
    cut(to_bytes(record), PIECE_LEN)
}

fn cut(record: Bytes, len: usize) -> impl Iterator<Item = Bytes> {
    let count = if record.len() <= len { 1 } else { record.len().div_ceil(len) };
    (0..count).map(move |at| {
        if count == 1 {
            return record.clone();
        }
        let bytes = record.slice(at * len..record.len().min((at + 1) * len));
        to_bytes(&Logged::<(), ()>::Piece { first: at == 0, last: at + 1 == count, bytes })
    })
}

/// Puts records together again.
#[derive(Debug, Default)]
pub struct Pieces {
    begun: Option<BytesMut>,
}

impl Pieces {
    /// Reads what was written; `None` while a record is not whole.
    ///
    /// # Errors
    /// If it was written by another version, or a piece comes without the first.
    pub fn join<R: DeserializeOwned, I: DeserializeOwned>(
        &mut self,
        written: &[u8],
    ) -> Result<Option<Logged<R, I>>, postcard::Error> {
        match postcard::from_bytes(written)? {
            Logged::Piece { first, last, bytes } => {
                if first {
                    self.begun = Some(BytesMut::new());
                }
                let begun = self.begun.as_mut().ok_or(postcard::Error::DeserializeBadEncoding)?;
                begun.extend_from_slice(&bytes);
                match self.begun.take_if(|_| last) {
                    Some(whole) => postcard::from_bytes(&whole).map(Some),
                    None => Ok(None),
                }
            }
            whole => {
                self.begun = None;
                Ok(Some(whole))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Words = Logged<Vec<u64>, ()>;

    fn read(pieces: &mut Pieces, written: &Bytes) -> Option<Vec<u64>> {
        match pieces.join::<_, ()>(written).unwrap()? {
            Logged::Process(words) => Some(words),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_long_record_is_written_in_pieces_and_read_whole() {
        let long: Vec<u64> = (0..1000).collect();
        for len in [1 << 20, 4096, 100, 7] {
            let written: Vec<_> = cut(to_bytes(&Words::Process(long.clone())), len).collect();
            assert_eq!(written.len() > 1, len < 4096, "{len}");
            assert!(written.iter().all(|piece| len > 4000 || piece.len() < len + 8));
            let mut reader = Pieces::default();
            let (last, before) = written.split_last().unwrap();
            assert!(before.iter().all(|piece| read(&mut reader, piece).is_none()));
            assert_eq!(read(&mut reader, last), Some(long.clone()));
        }
    }

    #[test]
    fn pieces_before_a_crash_are_not_mixed_with_what_comes_after() {
        let long = |seed: u64| Words::Process((seed..seed + 100).collect());
        let torn: Vec<_> = cut(to_bytes(&long(5)), 50).collect();
        let whole: Vec<_> = cut(to_bytes(&long(9)), 50).collect();
        let mut reader = Pieces::default();
        assert!(read(&mut reader, &torn[0]).is_none());
        let read_all = whole.iter().filter_map(|piece| read(&mut reader, piece));
        assert_eq!(read_all.collect::<Vec<_>>(), [(9..109).collect::<Vec<u64>>()]);
        assert!(read(&mut reader, &torn[0]).is_none());
        assert_eq!(read(&mut reader, &to_bytes(&Words::Process(vec![7]))), Some(vec![7]));
        assert!(reader.join::<Vec<u64>, ()>(&torn[1]).is_err());
    }
}
