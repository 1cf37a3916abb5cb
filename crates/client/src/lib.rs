//! The embeddable client: routing, sessions, files.
