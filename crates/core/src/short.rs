//! Keys and values that lie where they are held, if they are short.
//!
//! Who looks up a key reads the entry anyway: a short key and a short value cost no other line of
//! memory then, and no allocation. Longer ones lie elsewhere and are shared by all copies. On the
//! wire and on disk either is what [`Bytes`] are.

use bytes::Bytes;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes: at most `N` lie here, more in an `L`, whatever they were made from.
#[derive(Clone)]
pub struct Short<const N: usize, L>(Form<N, L>);

#[derive(Clone)]
enum Form<const N: usize, L> {
    Here { len: u8, bytes: [u8; N] },
    Elsewhere(L),
}

/// A key: up to 22 bytes lie here.
pub type Key = Short<22, Arc<[u8]>>;

/// A value: up to 38 bytes lie here. Longer ones are made from [`Bytes`], and shown as such,
/// without a copy.
pub type Value = Short<38, Bytes>;

// What an entry has room for, with all else that is held of a key.
const _: () = assert!(size_of::<Key>() == 24 && size_of::<Option<Value>>() == 40);

impl<const N: usize, L> Short<N, L> {
    /// If there are few enough.
    fn here(from: &[u8]) -> Option<Self> {
        const { assert!(N <= u8::MAX as usize) };
        let mut bytes = [0; N];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Short(Form::Here { len: from.len() as u8, bytes }))
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> Deref for Short<N, L> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Here { len, bytes } => &bytes[..usize::from(*len)],
            Form::Elsewhere(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Key {
        Short::here(bytes).unwrap_or_else(|| Short(Form::Elsewhere(bytes.into())))
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        let copy = || Short(Form::Elsewhere(Bytes::copy_from_slice(bytes)));
        Short::here(bytes).unwrap_or_else(copy)
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Value {
        Short::here(&bytes).unwrap_or(Short(Form::Elsewhere(bytes)))
    }
}

impl Key {
    /// The same in memory of its own.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl Value {
    /// The same; a long one shares its memory.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Form::Here { .. } => Bytes::copy_from_slice(self),
            Form::Elsewhere(bytes) => bytes.clone(),
        }
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> fmt::Debug for Short<N, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> PartialEq for Short<N, L> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> Eq for Short<N, L> {}

impl<const N: usize, L: Deref<Target = [u8]>> PartialOrd for Short<N, L> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> Ord for Short<N, L> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> Hash for Short<N, L> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const N: usize, L: Deref<Target = [u8]>> Serialize for Short<N, L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de, const N: usize, L> Deserialize<'de> for Short<N, L>
where
    Self: for<'a> From<&'a [u8]>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Reader(PhantomData))
    }
}

struct Reader<T>(PhantomData<T>);

impl<T: for<'a> From<&'a [u8]>> Visitor<'_> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_len() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..50)
    }

    proptest! {
        #[test]
        fn they_are_the_bytes_that_they_were_made_from(one in any_len(), other in any_len()) {
            let (key, value) = (Key::from(&one[..]), Value::from(Bytes::from(one.clone())));
            prop_assert_eq!((&key[..], &value[..]), (&one[..], &one[..]));
            prop_assert_eq!([key.to_bytes(), value.to_bytes()], [&one[..], &one[..]]);
            prop_assert_eq!(value.clone(), Value::from(&one[..]));
            prop_assert_eq!(key.cmp(&Key::from(&other[..])), one.cmp(&other));
            prop_assert_eq!(value.cmp(&Value::from(&other[..])), one.cmp(&other));
        }

        #[test]
        fn on_the_wire_they_are_bytes(bytes in any_len()) {
            let encoded = postcard::to_stdvec(&Bytes::from(bytes.clone())).unwrap();
            let (key, value) = (Key::from(&bytes[..]), Value::from(&bytes[..]));
            prop_assert_eq!(&postcard::to_stdvec(&key).unwrap(), &encoded);
            prop_assert_eq!(&postcard::to_stdvec(&value).unwrap(), &encoded);
            prop_assert_eq!(postcard::from_bytes::<Key>(&encoded), Ok(key));
            prop_assert_eq!(postcard::from_bytes::<Value>(&encoded), Ok(value));
        }
    }

    #[test]
    fn a_long_value_is_not_copied() {
        let long = Bytes::from(vec![b'v'; 39]);
        let value = Value::from(long.clone());
        assert_eq!(value.to_bytes().as_ptr(), long.as_ptr());
        assert!(matches!(Value::from(long.slice(1..)).0, Form::Here { len: 38, .. }));
    }
}
