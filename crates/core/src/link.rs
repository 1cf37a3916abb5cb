//! FIFO links.
