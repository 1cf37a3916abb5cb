//! Room that lists keep when what was in them has gone.
//!
//! A list that was long once, as after a failure when all that had waited came at once, would keep
//! its room for ever.

use std::collections::VecDeque;

/// Room for so many is kept in any case.
pub const SPARE: usize = 8192;

/// A list that gives back room.
pub trait Room {
    /// Gives back half of its room if less than a quarter is used: by halves, so a list that is
    /// long again and again is not made anew each time. For how many there is room then, if
    /// something was given back.
    fn give_back(&mut self) -> Option<usize>;
}

impl<T> Room for Vec<T> {
    fn give_back(&mut self) -> Option<usize> {
        let room = to_keep(self.len(), self.capacity())?;
        self.shrink_to(room);
        Some(room)
    }
}

impl<T> Room for VecDeque<T> {
    fn give_back(&mut self) -> Option<usize> {
        let room = to_keep(self.len(), self.capacity())?;
        self.shrink_to(room);
        Some(room)
    }
}

fn to_keep(len: usize, capacity: usize) -> Option<usize> {
    (capacity > SPARE && len < capacity / 4).then_some(SPARE.max(capacity / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_once_gives_its_room_back() {
        let mut list: VecDeque<u64> = (0..1_000_000).collect();
        let mut copied = 0;
        while list.pop_front().is_some() {
            if list.give_back().is_some() {
                copied += list.len();
            }
        }
        assert!(list.capacity() <= 2 * SPARE, "{}", list.capacity());
        assert!(copied < 1_000_000, "{copied} were copied");
        assert_eq!(to_keep(0, SPARE), None);
        assert_eq!(to_keep(SPARE / 2, 2 * SPARE), None, "it is a quarter full");
    }
}
