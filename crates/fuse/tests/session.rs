//! A small file system behind a real mount: programs as they are.
#![allow(clippy::unwrap_used)]

mod offer;

use meridian_fuse::mounting::{Features, abort_file, unmount};
use meridian_fuse::{
    Access, Attributes, Directory, Entry, Lifetime, Operation, Options, Pages, Reply, Request,
    Room, Service, Session, Transport, mount,
};
use offer::Offer;
use rustix::mount::UnmountFlags;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
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
/// Who reads this file meets a fault of the file system.
const BROKEN: &[u8] = b"broken";
/// Attributes of this file may be kept for the least time that is not nothing when it is made.
const KEPT: &[u8] = b"kept";
/// Who asks how much room there is waits until somebody writes to this file.
const GATE: &[u8] = b"gate";

/// One directory of files in memory.
struct Small {
    files: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Is told when somebody waits.
    waits: Sender<()>,
    /// Who waits at the gate, if it is closed.
    gate: Mutex<Option<Vec<Reply>>>,
    /// How often the kernel has asked for attributes of files.
    asked: Arc<AtomicUsize>,
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

    fn write(&self, node: u64, offset: u64, data: &[u8], reply: Reply) {
        let mut files = self.files.lock().unwrap();
        let (name, file) = &mut files[(node - FIRST) as usize];
        file.resize(file.len().max(offset as usize + data.len()), 0);
        file[offset as usize..][..data.len()].copy_from_slice(data);
        reply.written(data.len() as u32);
        let is_gate = name == GATE;
        drop(files);
        let waiting = if is_gate { self.gate.lock().unwrap().take() } else { None };
        waiting.into_iter().flatten().for_each(|reply| self.room(reply));
    }

    fn room(&self, reply: Reply) {
        match &mut *self.gate.lock().unwrap() {
            Some(waiting) => {
                waiting.push(reply);
                self.waits.send(()).unwrap();
            }
            None => reply.room(&Room { block_size: 512, blocks: 8, free: 4, ..Room::default() }),
        }
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
                self.asked.fetch_add(usize::from(request.node >= FIRST), Ordering::Relaxed);
                reply.attributes(Duration::ZERO, &self.attributes(request.node).unwrap());
            }
            Operation::Create { name, .. } => {
                self.files.lock().unwrap().push((name.to_vec(), Vec::new()));
                if name == GATE {
                    *self.gate.lock().unwrap() = Some(Vec::new());
                }
                let node = self.find(name).unwrap();
                let mut entry = self.entry(node);
                entry.lifetime.attributes = Duration::from_nanos(u64::from(name == KEPT));
                reply.created(&entry, node, Pages::Kept);
            }
            Operation::Open { .. } | Operation::OpenDirectory => {
                reply.opened(request.node, Pages::Kept);
            }
            Operation::Read { .. } if self.name(request.node) == SLOW => self.wait(reply),
            Operation::Read { .. } if self.name(request.node) == LOST => {}
            Operation::Read { .. } if self.name(request.node) == BROKEN => panic!("as it should"),
            Operation::Read { offset, size, .. } => {
                let data = &self.files.lock().unwrap()[(request.node - FIRST) as usize].1;
                let start = (offset as usize).min(data.len());
                reply.data(&data[start..(start + size as usize).min(data.len())]);
            }
            Operation::Write { offset, data, .. } => self.write(request.node, offset, data, reply),
            Operation::ReadDirectory { offset, size, .. } => {
                reply.directory(&self.list(offset, size));
            }
            Operation::Room => self.room(reply),
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
    asked: Arc<AtomicUsize>,
}

/// All ways in which requests can come here.
const WAYS: [Transport; 2] = [Transport::Device, Transport::Rings];

/// With as many threads as are given for requests of the device. `None`: this kernel does not
/// offer rings.
fn world_over(way: Transport, threads: usize) -> Option<World> {
    let offer = match way {
        Transport::Device => None,
        Transport::Rings => Some(Offer::made()?),
    };
    let world = world(threads, offer.is_some());
    // Others may use this machine, and see to it that none can be had.
    assert_eq!(world.session.transport(), way);
    Some(world)
}

fn world(threads: usize, rings: bool) -> World {
    let (waits, waiting) = channel();
    let files = [SLOW, LOST, BROKEN].map(|name| (name.to_vec(), b"never read".to_vec()));
    let asked = Arc::<AtomicUsize>::default();
    let (files, gate) = (Mutex::new(files.to_vec()), Mutex::default());
    let small = Small { files, waits, gate, asked: asked.clone() };
    let at = tempfile::tempdir().unwrap();
    let options = Options {
        name: "small",
        source: "small".into(),
        access: Access::default(),
        max_transfer: 1 << 20,
        read_ahead: 4 << 20,
        threads,
        rings,
        features: Features::default(),
    };
    let session = mount(small, at.path(), &options).unwrap();
    World { at, session, waiting, asked }
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
    for world in WAYS.into_iter().filter_map(|way| world_over(way, 2)) {
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
        assert_eq!(listed.count(), wanted.len() + 3);
        let missing = fs::metadata(at.join("missing")).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        world.end();
    }
}

/// The kernel checks whether the file may be opened, by its attributes.
#[test]
fn what_is_made_is_asked_for_again_unless_its_attributes_may_be_kept() {
    for world in WAYS.into_iter().filter_map(|way| world_over(way, 1)) {
        for (name, asked) in [("made", 1), ("kept", 0)] {
            let before = world.asked.load(Ordering::Relaxed);
            drop(fs::File::create_new(world.at.path().join(name)).unwrap());
            assert_eq!(world.asked.load(Ordering::Relaxed) - before, asked, "{name}");
        }
        world.end();
    }
}

#[test]
fn who_waits_can_be_killed() {
    for (threads, way) in [1, 2].into_iter().flat_map(|n| WAYS.map(|way| (n, way))) {
        let Some(world) = world_over(way, threads) else { continue };
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
    for world in WAYS.into_iter().filter_map(|way| world_over(way, 1)) {
        for name in ["lost", "broken", "lost", "broken"] {
            let lost = fs::read(world.at.path().join(name)).unwrap_err();
            assert_eq!(lost.raw_os_error(), Some(libc::EIO), "{name}");
        }
        world.end();
    }
}

/// More than a queue has entries for at first, on whatever processor they ask.
#[test]
fn many_may_wait_at_once() {
    const MANY: usize = 400;
    for world in WAYS.into_iter().filter_map(|way| world_over(way, 1)) {
        let mut gate = fs::File::create_new(world.at.path().join("gate")).unwrap();
        thread::scope(|scope| {
            let ask = || rustix::fs::statfs(world.at.path()).unwrap().f_blocks;
            let asking: Vec<_> = (0..MANY).map(|_| scope.spawn(ask)).collect();
            (0..MANY).for_each(|_| world.waiting.recv().unwrap());
            gate.write_all(b"open").unwrap();
            asking.into_iter().for_each(|asks| assert_eq!(asks.join().unwrap(), 8));
        });
        drop(gate);
        world.end();
    }
}

#[test]
fn an_abort_ends_who_waits_and_the_session() {
    for world in WAYS.into_iter().filter_map(|way| world_over(way, 2)) {
        let at = world.at.path();
        fs::File::create_new(at.join("gate")).unwrap();
        thread::scope(|scope| {
            let asks = scope.spawn(|| rustix::fs::statfs(at).map(|room| room.f_blocks));
            world.waiting.recv().unwrap();
            // It is in use, so it stays; but nobody is answered any more.
            let _ = rustix::mount::unmount(at, UnmountFlags::FORCE);
            let error = asks.join().unwrap().unwrap_err().raw_os_error();
            assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&error), "{error}");
        });
        unmount(at).unwrap_or_default(); // The first may have sufficed.
        world.session.join().unwrap();
        assert_eq!(mounted(at), None);
    }
}

/// And none but that, though the next one may get its number.
#[test]
fn a_write_to_its_file_aborts_a_connection_and_leaves_it_mounted() {
    for way in WAYS {
        let Some(world) = world_over(way, 2) else { continue };
        let at = world.at.path();
        let mut abort = abort_file(at).unwrap();
        fs::File::create_new(at.join("gate")).unwrap();
        thread::scope(|scope| {
            let asks = scope.spawn(|| rustix::fs::statfs(at).map(|room| room.f_blocks));
            world.waiting.recv().unwrap();
            abort.write_all(b"1").unwrap();
            let error = asks.join().unwrap().unwrap_err().raw_os_error();
            assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&error), "{error}");
        });
        let gone = fs::metadata(at).unwrap_err().raw_os_error();
        assert_eq!(gone, Some(libc::ENOTCONN));
        assert!(mounted(at).is_some());
        unmount(at).unwrap();
        world.session.join().unwrap();
        let next = world_over(way, 2).unwrap();
        abort.write_all(b"1").unwrap();
        fs::write(next.at.path().join("file"), "written").unwrap();
        next.end();
    }
}

#[test]
fn what_cannot_be_mounted_leaves_nothing_behind() {
    let at = tempfile::tempdir().unwrap();
    let (waits, _waiting) = channel();
    let (files, gate) = (Mutex::default(), Mutex::default());
    let small = Small { files, waits, gate, asked: Arc::default() };
    let options = Options {
        name: "small",
        source: "small".into(),
        access: Access::default(),
        max_transfer: 1 << 20,
        read_ahead: 4 << 20,
        threads: 1,
        rings: true,
        features: Features::default(),
    };
    let error = mount(small, &at.path().join("missing"), &options).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(mounted(at.path()), None);
}
