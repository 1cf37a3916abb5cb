//! A kernel that offers rings, and then cannot use ours.
#![allow(clippy::unwrap_used)]

#[path = "../tests/offer/mod.rs"]
mod offer;

use super::*;
use crate::mounting::{Access, Features, unmount};
use crate::request::Operation;
use crate::{Attributes, Room};
use offer::Offer;
use std::time::Duration;

/// A directory without anything in it.
struct Empty;

impl Service for Empty {
    fn call(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::GetAttributes => {
                let mode = libc::S_IFDIR | 0o755;
                let root = Attributes { node: 1, mode, links: 2, ..Attributes::default() };
                reply.attributes(Duration::ZERO, &root);
            }
            Operation::Room => reply.room(&Room { block_size: 512, blocks: 77, ..Room::default() }),
            _ => reply.error(libc::ENOSYS),
        }
    }
}

/// Mounts, with room for so many bytes in each entry of a ring; what comes of it.
fn mounted_with(room: usize) -> Option<Transport> {
    let offer = Offer::made()?;
    let at = tempfile::tempdir().unwrap();
    let options = Options {
        name: "empty",
        source: "empty".into(),
        access: Access::default(),
        max_transfer: 1 << 20,
        read_ahead: 1 << 20,
        threads: 2,
        rings: true,
        features: Features::default(),
    };
    let device = mounting::mount(at.path(), &options).unwrap();
    let session = begin(Empty, device, &options, room).unwrap();
    drop(offer);
    assert_eq!(rustix::fs::statfs(at.path()).unwrap().f_blocks, 77);
    let transport = session.transport();
    unmount(at.path()).unwrap();
    session.join().unwrap();
    Some(transport)
}

#[test]
fn the_kernel_uses_rings_that_it_can_use() {
    if let Some(transport) = mounted_with(1 << 20) {
        assert_eq!(transport, Transport::Rings);
    }
}

#[test]
fn without_memory_for_rings_requests_come_through_the_device() {
    if let Some(transport) = mounted_with(1 << 56) {
        assert_eq!(transport, Transport::Device);
    }
}

/// The kernel has been told that rings come, and holds all requests back until they are there.
#[test]
fn when_the_kernel_refuses_rings_requests_come_through_the_device() {
    if let Some(transport) = mounted_with(8192) {
        assert_eq!(transport, Transport::Device);
    }
}
