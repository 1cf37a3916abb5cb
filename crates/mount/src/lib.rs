//! The FUSE mount on top of the client.
