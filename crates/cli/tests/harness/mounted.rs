//! Mounts in the process of the test.

#![allow(clippy::unwrap_used)] // Part of tests.

use crate::harness::Room;
use meridian_client::{Client, ClientOptions, Durability};
use meridian_mount::{Access, Mount};
use std::fs;

/// Mounts a demo for that region, in the current runtime. The mount holds what it has seen.
pub fn mount_here(room: &Room, name: &str, region: &str, durability: Durability) -> Mount {
    let at = room.path(name);
    fs::create_dir(&at).unwrap();
    let options = ClientOptions { keep_looks: true, durability, ..ClientOptions::new(region) };
    let client = Client::open(&room.path("data/cluster.json"), &options).unwrap();
    meridian_mount::mount(client, &at, Access::default(), "meridian").unwrap()
}
