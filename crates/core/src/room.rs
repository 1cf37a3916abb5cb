//! Room that lists keep when what was in them has gone.
//!
//! A list that was long once, as after a failure when all that had waited came at once, would keep its room for ever.

/// Room for so many is kept in any case.
pub const SPARE: usize = 8192;

/// How much room to keep for `len` items where there is room for `capacity`; none if nothing is to be given back. It
/// goes by halves, so a list that is long again and again is not made anew each time.
pub fn to_keep(len: usize, capacity: usize) -> Option<usize> {
    (capacity > SPARE && len < capacity / 4).then_some(SPARE.max(capacity / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn what_was_long_once_gives_its_room_back() {
        let mut list: VecDeque<u64> = (0..1_000_000).collect();
        let mut copied = 0;
        while list.pop_front().is_some() {
            if let Some(room) = to_keep(list.len(), list.capacity()) {
                copied += list.len();
                list.shrink_to(room);
            }
        }
        assert!(list.capacity() <= 2 * SPARE, "{}", list.capacity());
        assert!(copied < 1_000_000, "{copied} were copied");
        assert_eq!(to_keep(0, SPARE), None);
        assert_eq!(to_keep(SPARE / 2, 2 * SPARE), None, "it is a quarter full");
    }
}
