//! Immutable data blocks: the ring that places them and the segment files that keep them.
