//! What moves a session to another region, or to another program: what it has seen, in letters.
//!
//! A session may have seen files, too. Keys carry that part along and do not wait for it, as mounts
//! do with the part of the keys: so one token serves both (decision 65).

use bytes::Bytes;
use meridian_core::Time;
use meridian_eunomia::{REGIONS_MAX, Session, Timestamp, place_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Tokens begin so, in this version.
const MARK: &str = "m1-";
/// The longest token, in letters: so many partitions of files have some hundred nodes.
const TEXT_MAX: usize = 8 << 10;
/// A token from further in the future than this is refused: who took it over would have its region
/// wait for that time. Clocks of nodes differ by less.
const FUTURE_MAX: Duration = Duration::from_secs(60);

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// It was cut, or is something else.
    #[error(
        "this is no token of a session, or not a whole one: MERIDIAN.SESSION and `meridian fs \
         token` print one"
    )]
    Garbled,
    /// It is of another cluster.
    #[error("this token is of another cluster")]
    Elsewhere,
    /// It names times that are far from now.
    #[error("this token is from the future: the clocks of nodes differ by more than a minute")]
    Future,
}

/// What a session has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// In which cluster.
    pub cluster: u64,
    /// Of keys of all regions.
    pub keys: Session,
    /// Of files: up to where of each partition.
    pub files: BTreeMap<u16, u64>,
}

impl Token {
    /// Of a session that has seen nothing.
    pub fn new(cluster: u64) -> Token {
        Token { cluster, ..Token::default() }
    }

    /// In letters.
    pub fn text(&self) -> String {
        let mut bytes = postcard::to_stdvec(self).expect("writing to memory");
        bytes.extend(place_of(&bytes).to_le_bytes());
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.map(|digit| char::from_digit(digit.into(), 16).expect("four bits"));
        MARK.chars().chain(digits).collect()
    }

    /// What [`Token::text`] wrote.
    ///
    /// # Errors
    /// It is something else.
    pub fn read(text: &[u8]) -> Result<Token, TokenError> {
        let digits = text.strip_prefix(MARK.as_bytes()).filter(|_| text.len() <= TEXT_MAX);
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        let pairs = digits.ok_or(TokenError::Garbled)?.chunks_exact(2);
        let byte = |pair: &[u8]| Some((digit(&pair[0])? << 4 | digit(&pair[1])?) as u8);
        let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
        let bytes = bytes.ok_or(TokenError::Garbled)?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(TokenError::Garbled)?;
        let body = (place_of(body).to_le_bytes() == *sum).then_some(body);
        let read = body.and_then(|body| postcard::take_from_bytes(body).ok());
        let (token, rest) = read.ok_or(TokenError::Garbled)?;
        if rest.is_empty() { Ok(token) } else { Err(TokenError::Garbled) }
    }

    /// What may be taken over at this time in this cluster.
    ///
    /// # Errors
    /// It is something else.
    pub fn accept(text: &[u8], cluster: u64, now: Time) -> Result<Token, TokenError> {
        let token = Token::read(text)?;
        if token.cluster != cluster {
            return Err(TokenError::Elsewhere);
        }
        let latest = Timestamp((now + FUTURE_MAX).0);
        let seen = token.keys.seen();
        let regions = (0..REGIONS_MAX as u16).map(meridian_core::RegionId);
        let keys = regions.map(|region| seen.vector[region]).chain([seen.version]);
        // Partitions that count by no clock count far below it.
        let mut stamps = keys.chain(token.files.values().map(|stamp| Timestamp(*stamp)));
        if stamps.any(|stamp| stamp > latest) { Err(TokenError::Future) } else { Ok(token) }
    }

    /// This has been seen, too.
    pub fn join(&mut self, other: &Token) {
        self.keys.saw(other.keys.seen());
        for (partition, stamp) in &other.files {
            let seen = self.files.entry(*partition).or_default();
            *seen = (*seen).max(*stamp);
        }
    }
}

impl From<&Token> for Bytes {
    fn from(token: &Token) -> Bytes {
        token.text().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_core::RegionId;
    use meridian_eunomia::{Seen, Vector};
    use proptest::prelude::*;

    fn any_token() -> impl Strategy<Value = Token> {
        let keys = (any::<[u64; REGIONS_MAX]>(), any::<u64>());
        let files = prop::collection::btree_map(any::<u16>(), any::<u64>(), 0..40);
        (any::<u64>(), keys, files).prop_map(|(cluster, (stamps, version), files)| {
            let (mut token, mut vector) =
                (Token { files, ..Token::new(cluster) }, Vector::default());
            for (region, stamp) in (0..).zip(stamps) {
                vector[RegionId(region)] = Timestamp(stamp);
            }
            token.keys.saw(&Seen { vector, version: Timestamp(version) });
            token
        })
    }

    fn token(ts: u64) -> Token {
        let (mut token, mut vector) = (Token::new(7), Vector::default());
        vector[RegionId(2)] = Timestamp(ts);
        token.keys.saw(&Seen { vector, version: Timestamp(ts) });
        token.files.insert(3, ts);
        token
    }

    #[test]
    fn a_token_is_read_as_it_was_written_and_not_if_a_letter_differs() {
        let text = token(1 << 60).text();
        assert_eq!(Token::read(text.as_bytes()), Ok(token(1 << 60)));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'1' { b'2' } else { b'1' };
            if other != text.as_bytes() {
                assert_eq!(Token::read(&other), Err(TokenError::Garbled), "{at}");
            }
            assert_eq!(Token::read(&text.as_bytes()[..at]), Err(TokenError::Garbled));
        }
    }

    #[test]
    fn a_token_of_another_cluster_or_from_the_future_is_refused() {
        let text = token(100_000_000_000).text();
        let accept = |cluster, now| Token::accept(text.as_bytes(), cluster, Time(now));
        assert_eq!(accept(7, 100_000_000_000), Ok(token(100_000_000_000)));
        assert_eq!(accept(8, 100_000_000_000), Err(TokenError::Elsewhere));
        assert_eq!(accept(7, 39_000_000_000), Err(TokenError::Future));
        let files = Token { files: [(1, 100_000_000_000)].into(), ..Token::new(7) }.text();
        let accept = |now| Token::accept(files.as_bytes(), 7, Time(now));
        assert!(accept(50_000_000_000).is_ok(), "clocks differ");
        assert_eq!(accept(39_000_000_000), Err(TokenError::Future), "of files, too");
    }

    #[test]
    fn who_joins_a_token_has_seen_both() {
        let mut mine = token(5);
        mine.files.insert(4, 9);
        mine.join(&token(8));
        assert_eq!((mine.files[&3], mine.files[&4]), (8, 9));
        assert!(mine.keys.seen().vector[RegionId(2)] == Timestamp(8));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_what_is_cut_is_not(token in any_token(), cut: usize) {
            let text = token.text();
            prop_assert!(text.len() <= TEXT_MAX);
            prop_assert_eq!(Token::read(text.as_bytes()), Ok(token));
            let cut = &text.as_bytes()[..cut % text.len()];
            prop_assert_eq!(Token::read(cut), Err(TokenError::Garbled));
        }

        #[test]
        fn whoever_joins_tokens_has_seen_all_of_both(one in any_token(), other in any_token()) {
            let (mut both, mut reverse) = (one.clone(), other.clone());
            both.join(&other);
            reverse.cluster = one.cluster;
            reverse.join(&one);
            prop_assert_eq!(&both, &reverse);
            for of in [&one, &other] {
                prop_assert!(both.keys.seen().vector.covers(&of.keys.seen().vector));
                prop_assert!(of.files.iter().all(|(at, stamp)| both.files[at] >= *stamp));
            }
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Token::read(&bytes);
            let _ = Token::read(&[MARK.as_bytes(), &bytes].concat());
        }
    }
}
