//! A small file system behind a real mount: programs as they are.
#![allow(clippy::unwrap_used)]

use meridian_fuse::mounting::{Features, unmount};
use meridian_fuse::{
    Access, Attributes, Directory, Entry, Lifetime, Operation, Options, Reply, Request, Room,
    Service, Session, mount,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The first node that is a file.
const FIRST: u64 = 2;
/// Who reads this file waits until a signal comes.
const SLOW: &[u8] = b"slow";
/// Who reads this file gets no answer from the file system.
const LOST: &[u8] = b"lost";

/// One directory of files in memory.
struct Small {
    files: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Is told when somebody waits.
    waits: Sender<()>,
}

impl Small {
    fn attributes(&self, node: u64) -> Option<Attributes> {
        let files = self.files.lock().unwrap();
        let (mode, size) = match node {
            1 => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o644, files.get((node - FIRST) as usize)?.1.len() as u64),
        };
        Some(Attributes { node, mode, size, links: 1, block_size: 4096, ..Attributes::default() })
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        let files = self.files.lock().unwrap();
        files.iter().position(|(of, _)| of == name).map(|index| index as u64 + FIRST)
    }

    fn entry(&self, node: u64) -> Entry {
        let attributes = self.attributes(node).unwrap();
        Entry { attributes, generation: 0, lifetime: Lifetime::default() }
    }

    fn name(&self, node: u64) -> Vec<u8> {
        self.files.lock().unwrap()[(node - FIRST) as usize].0.clone()
    }

    fn list(&self, offset: u64, size: u32) -> Directory {
        let mut entries = Directory::new(size);
        let files = self.files.lock().unwrap();
        for (index, (name, _)) in files.iter().enumerate().skip(offset as usize) {
            let index = index as u64;
            if !entries.add(index + FIRST, index + 1, libc::S_IFREG, name) {
                break;
            }
        }
        entries
    }

    /// Answers as soon as a signal has come for who asks.
    fn wait(&self, reply: Reply) {
        let waits = self.waits.clone();
        thread::spawn(move || {
            waits.send(()).unwrap();
            let mut interrupted = Box::pin(reply.interrupted());
            let mut context = Context::from_waker(Waker::noop());
            while interrupted.as_mut().poll(&mut context) == Poll::Pending {
                thread::yield_now();
            }
            reply.error(libc::EINTR);
        });
    }
}

impl Service for Small {
    fn call(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Lookup { name } => match self.find(name) {
                Some(node) => reply.entry(&self.entry(node)),
                None => reply.error(libc::ENOENT),
            },
            Operation::GetAttributes | Operation::SetAttributes(_) => {
                reply.attributes(Duration::ZERO, &self.attributes(request.node).unwrap());
            }
            Operation::Create { name, .. } => {
                self.files.lock().unwrap().push((name.to_vec(), Vec::new()));
                let node = self.find(name).unwrap();
                reply.created(&self.entry(node), node);
            }
            Operation::Open { .. } | Operation::OpenDirectory => reply.opened(request.node),
            Operation::Read { .. } if self.name(request.node) == SLOW => self.wait(reply),
            Operation::Read { .. } if self.name(request.node) == LOST => {}
            Operation::Read { offset, size, .. } => {
                let data = &self.files.lock().unwrap()[(request.node - FIRST) as usize].1;
                let start = (offset as usize).min(data.len());
                reply.data(&data[start..(start + size as usize).min(data.len())]);
            }
            Operation::Write { offset, data, .. } => {
                let file = &mut self.files.lock().unwrap()[(request.node - FIRST) as usize].1;
                file.resize(file.len().max(offset as usize + data.len()), 0);
                file[offset as usize..][..data.len()].copy_from_slice(data);
                reply.written(data.len() as u32);
            }
            Operation::ReadDirectory { offset, size, .. } => {
                reply.directory(&self.list(offset, size));
            }
            Operation::Room => {
                reply.room(&Room { block_size: 512, blocks: 8, free: 4, ..Room::default() });
            }
            Operation::Flush { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDirectory { .. } => reply.ok(),
            _ => reply.error(libc::ENOSYS),
        }
    }
}

struct World {
    at: TempDir,
    session: Session,
    waiting: Receiver<()>,
}

fn world(threads: usize) -> World {
    let (waits, waiting) = channel();
    let files = [SLOW, LOST].map(|name| (name.to_vec(), b"never read".to_vec()));
    let small = Small { files: Mutex::new(files.to_vec()), waits };
    let at = tempfile::tempdir().unwrap();
    let options = Options {
        name: "small",
        source: "small".into(),
        access: Access::default(),
        max_transfer: 1 << 20,
        threads,
        features: Features::default(),
    };
    let session = mount(small, at.path(), &options).unwrap();
    World { at, session, waiting }
}

impl World {
    fn end(self) {
        unmount(self.at.path()).unwrap();
        self.session.join().unwrap();
        assert_eq!(fs::read_dir(self.at.path()).unwrap().count(), 0);
    }
}

/// The type of file system that is mounted at `at`, and its source.
fn mounted(at: &Path) -> Option<(String, String)> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut here = lines.filter(|words| Path::new(words[1]) == at);
    here.next().map(|words| (words[2].to_string(), words[0].to_string()))
}

#[test]
fn files_are_made_written_read_and_listed() {
    let world = world(2);
    let at = world.at.path();
    assert_eq!(mounted(at), Some(("fuse.small".into(), "small".into())));
    let mut wanted = BTreeMap::new();
    for n in 0..300_usize {
        let (name, data) = (format!("file {n}"), vec![n as u8; n * n * 37]);
        fs::write(at.join(&name), &data).unwrap();
        wanted.insert(name, data);
    }
    for (name, data) in &wanted {
        assert_eq!(&fs::read(at.join(name)).unwrap(), data, "{name}");
        assert_eq!(fs::metadata(at.join(name)).unwrap().size(), data.len() as u64);
    }
    let listed = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
    assert_eq!(listed.count(), wanted.len() + 2);
    let missing = fs::metadata(at.join("missing")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    world.end();
}

#[test]
fn who_waits_can_be_killed() {
    for threads in [1, 2] {
        let world = world(threads);
        let mut cat = Command::new("cat").arg(world.at.path().join("slow")).spawn().unwrap();
        world.waiting.recv().unwrap();
        let begun = Instant::now();
        cat.kill().unwrap();
        let status = cat.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        world.end();
    }
}

#[test]
fn what_is_not_answered_fails() {
    let world = world(2);
    let lost = fs::read(world.at.path().join("lost")).unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    world.end();
}

#[test]
fn what_cannot_be_mounted_leaves_nothing_behind() {
    let at = tempfile::tempdir().unwrap();
    let (waits, _waiting) = channel();
    let small = Small { files: Mutex::default(), waits };
    let options = Options {
        name: "small",
        source: "small".into(),
        access: Access::default(),
        max_transfer: 1 << 20,
        threads: 1,
        features: Features::default(),
    };
    let error = mount(small, &at.path().join("missing"), &options).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(mounted(at.path()), None);
}
