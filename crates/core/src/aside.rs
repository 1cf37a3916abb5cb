//! What is kept beside the state of a process, and decides nothing.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Something by which no two states differ: a process that notes when things happened is equal to
/// one that has not, and does the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aside<T>(pub T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _into: &mut H) {}
}

impl<T> Deref for Aside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Aside<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
