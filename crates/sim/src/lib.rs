//! The deterministic simulator, fault injection and the checkers of histories.
