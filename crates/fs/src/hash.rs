//! Hashes that are the same at all replicas, whatever they run on.

use meridian_core::mix;
use std::hash::{Hash, Hasher};

/// The hash of a value.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = Fnv::default();
    value.hash(&mut hasher);
    mix(hasher.finish())
}

/// FNV-1a of 64 bits: the same on every machine and in every version of the standard library.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
