//! Abuse 10: a tenant takes all that it can get, and only it is refused.

use crate::harness::eventually;
use crate::tenancy::{Over, Tenancy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// What the tenant may use.
const BYTES: u64 = 4 << 20;
const INODES: usize = 400;
/// So many files it opens at a time: as many as a process may here, less than the 100,000 of the
/// case, as each is two requests.
const OPEN: u64 = 15_000;

#[test]
fn who_takes_all_that_it_can_is_refused_alone() {
    let (bytes, inodes) = (BYTES.to_string(), INODES.to_string());
    let tenancy = Tenancy::start(&["--bytes", &bytes, "--inodes", &inodes]);
    let lab = tenancy.all.mount("lab", "lab");
    let dir = lab.mount();
    let is_over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let bystander = tenancy.bystander(scope, &is_over);
        let over = Over(&is_over);
        the_room_is_filled(dir);
        a_directory_is_filled(dir);
        very_many_files_are_open(dir);
        drop(over);
        bystander.join().unwrap()
    });
    assert!(done > 3, "somebody else made {done} files meanwhile");
    assert!(tenancy.all.status().status.success(), "{:?}", tenancy.all.status());
    lab.stop();
    tenancy.end();
}

fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

/// A megabyte in a new file.
fn store(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&vec![7; 1 << 20]).and(file.sync_all())
}

/// Bytes, until there is no room for more; what is removed makes room again.
fn the_room_is_filled(dir: &Path) {
    let path = |number: u64| dir.join(format!("full-{number}"));
    let most = BYTES >> 20;
    let first = (0..=most).find(|number| store(&path(*number)).is_err());
    let full = first.expect("there is an end");
    assert!(full >= most - 1, "{full} of {most} megabytes had room");
    assert_eq!(errno(&store(&path(full))), Some(libc::EDQUOT));
    assert_eq!(errno(&store(&dir.join("another"))), Some(libc::EDQUOT));
    assert!(fs::read(path(0)).unwrap() == vec![7; 1 << 20], "what is there is kept");
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    eventually("there is room again", || store(&path(0)).is_ok());
    fs::remove_file(path(0)).unwrap();
}

/// Names in one directory, by several threads, until there may be no more.
fn a_directory_is_filled(dir: &Path) {
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    let fill = |thread: usize| {
        for number in 0.. {
            let made = File::create_new(many.join(format!("{thread}-{number}")));
            if made.is_err() {
                assert_eq!(errno(&made), Some(libc::EDQUOT));
                return number;
            }
        }
        unreachable!("some number is refused")
    };
    let made: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || fill(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // The directory with the quota and the new one count, too.
    assert_eq!(made, INODES - 2);
    assert_eq!(fs::read_dir(&many).unwrap().count(), made);
    assert_eq!(errno(&fs::create_dir(dir.join("one more"))), Some(libc::EDQUOT));
    fs::remove_dir_all(&many).unwrap();
    fs::create_dir(&many).unwrap();
}

/// Until the process may open no more. All that were removed meanwhile can be read.
fn very_many_files_are_open(dir: &Path) {
    let path = dir.join("many/open");
    fs::write(&path, b"text").unwrap();
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
    let mut open = Vec::new();
    let refused = loop {
        match File::open(&path) {
            Ok(file) => open.push(file),
            Err(error) => break Some(error),
        }
        if open.len() as u64 == OPEN {
            break None;
        }
    };
    let few = refused.is_some_and(|error| error.raw_os_error() != Some(libc::EMFILE));
    assert!(!few && open.len() > 1000, "{} are open", open.len());
    fs::remove_file(&path).unwrap();
    let mut last = String::new();
    io::Read::read_to_string(open.last_mut().unwrap(), &mut last).unwrap();
    assert_eq!(last, "text");
    drop(open);
    setrlimit(Resource::Nofile, limits).unwrap();
    fs::write(&path, b"again").unwrap();
}
