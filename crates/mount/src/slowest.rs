//! Which calls of programs took longest, and of which paths, since somebody asked last; and which
//! are under way.
//!
//! A path is what this mount last knew: a directory that another mount has moved is at its old
//! place until it is looked up again. It is told to root and to whose mount it is, as it may have
//! names in it that others must not see.

use crate::known::{At, Known};
use bytes::Bytes;
use meridian_fs::types::Ino;
use meridian_fuse::Operation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many calls are kept.
pub const KEPT: usize = 20;
/// A call that took less is not slow.
const QUICK: Duration = Duration::from_millis(1);
/// So many names of files are known; directories have their own ([`Known`]).
const NAMES_MAX: usize = 4096;
/// Of a longer path the end is told, so that all fit into one answer.
const PATH_MAX: usize = 1024;

/// A call that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// What was called, as `open` or `create`.
    pub call: String,
    /// Of what, from the mount's root on; bytes that are no text are replaced. A `?` stands for
    /// what the mount does not know.
    pub path: String,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

/// See the module's documentation. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Slowest {
    known: Arc<Known>,
    /// What is mounted.
    root: Ino,
    all: Arc<Mutex<All>>,
    under_way: Arc<Mutex<UnderWay>>,
}

/// The calls that are under way, in the order in which they began.
#[derive(Debug, Default)]
struct UnderWay {
    calls: BTreeMap<u64, Begun>,
    count: u64,
}

/// A call that is under way: what is called, about which name in which node, and since when.
#[derive(Clone, Debug)]
struct Begun {
    call: &'static str,
    node: Ino,
    name: Option<Bytes>,
    at: Instant,
}

#[derive(Debug, Default)]
struct All {
    /// By how long they took; the second number tells those that took equally long apart.
    calls: BTreeMap<(Duration, u64), Slow>,
    count: u64,
    names: HashMap<Ino, At>,
    /// Those in `names`, in the order in which they came.
    order: VecDeque<Ino>,
}

/// A call on its way.
pub(crate) struct Watch {
    slowest: Slowest,
    number: u64,
}

impl Watch {
    /// It was answered.
    pub fn end(self) {
        let Some(Begun { call, node, name, at }) = self.take() else { return };
        let took = at.elapsed();
        if took >= QUICK {
            self.slowest.note(took, call, node, name.as_deref());
        }
    }

    fn take(&self) -> Option<Begun> {
        lock(&self.slowest.under_way).calls.remove(&self.number)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.take();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a call is, and about which name in the directory that it names.
pub(crate) fn called(operation: &Operation<'_>) -> (&'static str, Option<Bytes>) {
    let (call, name) = match *operation {
        Operation::Lookup { name } => ("look up", Some(name)),
        Operation::Symlink { name, .. } => ("symlink", Some(name)),
        Operation::MakeNode { name, .. } => ("mknod", Some(name)),
        Operation::MakeDirectory { name, .. } => ("mkdir", Some(name)),
        Operation::Unlink { name } => ("unlink", Some(name)),
        Operation::RemoveDirectory { name } => ("rmdir", Some(name)),
        Operation::Rename { name, .. } => ("rename", Some(name)),
        Operation::Link { name, .. } => ("link", Some(name)),
        Operation::Create { name, .. } => ("create", Some(name)),
        Operation::CreateUnnamed { .. } => ("create without a name", None),
        Operation::GetAttributes | Operation::GetAllAttributes => ("stat", None),
        Operation::SetAttributes(_) => ("set attributes", None),
        Operation::ReadLink => ("readlink", None),
        Operation::Open { .. } => ("open", None),
        Operation::Read { .. } => ("read", None),
        Operation::Write { .. } => ("write", None),
        Operation::Flush { .. } => ("close", None),
        Operation::Sync { .. } => ("fsync", None),
        Operation::ReadDirectory { .. } => ("list", None),
        Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => ("set xattr", None),
        Operation::GetXattr { .. } | Operation::ListXattrs { .. } => ("get xattr", None),
        _ => ("other", None),
    };
    (call, name.map(Bytes::copy_from_slice))
}

impl Slowest {
    pub fn new(known: Arc<Known>, root: Ino) -> Slowest {
        Slowest { known, root, all: Arc::default(), under_way: Arc::default() }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        lock(&self.all)
    }

    /// A call begins.
    pub fn watch(&self, (call, name): (&'static str, Option<Bytes>), node: Ino) -> Watch {
        let begun = Begun { call, node, name, at: Instant::now() };
        let mut under_way = lock(&self.under_way);
        under_way.count += 1;
        let number = under_way.count;
        under_way.calls.insert(number, begun);
        drop(under_way);
        Watch { slowest: self.clone(), number }
    }

    /// How many calls are under way, and the [`KEPT`] oldest of them with how long they have taken
    /// so far.
    pub fn under_way(&self) -> (usize, Vec<Slow>) {
        let (count, oldest) = {
            let under_way = lock(&self.under_way);
            let oldest: Vec<_> = under_way.calls.values().take(KEPT).cloned().collect();
            (under_way.calls.len(), oldest)
        };
        let (all, now) = (self.all(), Instant::now());
        let told = |begun: &Begun| {
            let Begun { call, node, name, at } = begun;
            let took = now.saturating_duration_since(*at);
            all.slow(self, took, call, (*node, name.as_deref()))
        };
        (count, oldest.iter().map(told).collect())
    }

    /// A file was found or made there.
    pub fn named(&self, ino: Ino, at: &At) {
        let mut all = self.all();
        if all.names.insert(ino, at.clone()).is_none() {
            all.order.push_back(ino);
            if all.order.len() > NAMES_MAX {
                let oldest = all.order.pop_front();
                oldest.and_then(|oldest| all.names.remove(&oldest));
            }
        }
    }

    /// All that are kept, the slowest first; they are kept no longer.
    pub fn take(&self) -> Vec<Slow> {
        std::mem::take(&mut self.all().calls).into_values().rev().collect()
    }

    fn note(&self, took: Duration, call: &'static str, node: Ino, name: Option<&[u8]>) {
        let mut all = self.all();
        let is_full = all.calls.len() >= KEPT;
        if is_full && all.calls.first_key_value().is_some_and(|(fastest, _)| took <= fastest.0) {
            return;
        }
        let slow = all.slow(self, took, call, (node, name));
        all.count += 1;
        let key = (took, all.count);
        all.calls.insert(key, slow);
        if is_full {
            all.calls.pop_first();
        }
    }
}

impl All {
    /// What is told of a call about that name in that node.
    fn slow(
        &self,
        of: &Slowest,
        took: Duration,
        call: &str,
        (node, name): (Ino, Option<&[u8]>),
    ) -> Slow {
        let mut path = self.path(&of.known, of.root, node);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&String::from_utf8_lossy(name));
        }
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Slow { call: call.into(), path: told(path), took_us }
    }

    /// Without a `/` at its end; so that of the root is empty.
    fn path(&self, known: &Known, root: Ino, node: Ino) -> String {
        let Some((parent, name)) = self.names.get(&node) else { return known.path(root, node) };
        format!("{}/{}", known.path(root, *parent), String::from_utf8_lossy(name))
    }
}

fn told(path: String) -> String {
    if path.is_empty() {
        return "/".into();
    }
    if path.len() <= PATH_MAX {
        return path;
    }
    let begin = path.ceil_char_boundary(path.len() - PATH_MAX);
    format!("?{}", &path[begin..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slowest() -> Slowest {
        let known = Known::default();
        known.look_up(&crate::known::tests::directory(5), Some(&(Ino::ROOT, "d".into())));
        known.look_up(&crate::known::tests::directory(6), Some(&(Ino(5), "e".into())));
        Slowest::new(Arc::new(known), Ino::ROOT)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_slowest_are_told_once_and_by_path() {
        let slowest = slowest();
        slowest.named(Ino(9), &(Ino(6), "f".into()));
        for count in 0..3 * KEPT as u64 {
            slowest.note(ms(10 + count % 7), "stat", Ino::ROOT, None);
        }
        slowest.note(ms(90), "open", Ino(9), None);
        slowest.note(ms(80), "create", Ino(6), Some(b"g"));
        slowest.note(ms(70), "read", Ino(77), None);
        slowest.note(ms(60), "unlink", Ino::ROOT, Some(&[b'x'; 2000]));
        let told = slowest.take();
        assert_eq!(told.len(), KEPT);
        let words: Vec<_> = told.iter().map(|slow| (&*slow.call, &*slow.path)).take(3).collect();
        assert_eq!(words, [("open", "/d/e/f"), ("create", "/d/e/g"), ("read", "?")]);
        assert_eq!((told[3].path.len(), told[4].path.as_str()), (1 + PATH_MAX, "/"));
        assert!(told.is_sorted_by(|a, b| a.took_us >= b.took_us) && told[19].took_us >= 14_000);
        assert_eq!(slowest.take(), []);
    }

    #[test]
    fn names_of_files_are_bounded() {
        let slowest = slowest();
        for ino in 0..2 * NAMES_MAX as u64 {
            slowest.named(Ino(100 + ino), &(Ino(5), "f".into()));
            slowest.named(Ino(100 + ino), &(Ino(5), "g".into()));
        }
        let all = slowest.all();
        assert_eq!((all.names.len(), all.order.len()), (NAMES_MAX, NAMES_MAX));
        assert_eq!(all.path(&slowest.known, Ino::ROOT, Ino(99 + 2 * NAMES_MAX as u64)), "/d/g");
        assert_eq!(all.path(&slowest.known, Ino::ROOT, Ino(100)), "?");
    }

    #[test]
    fn calls_that_are_quick_are_not_watched() {
        let slowest = slowest();
        slowest.watch(("stat", None), Ino(5)).end();
        let watch = slowest.watch(("list", None), Ino(5));
        if let Some(begun) = lock(&slowest.under_way).calls.get_mut(&watch.number) {
            begun.at = begun.at.checked_sub(ms(30)).unwrap_or(begun.at);
        }
        watch.end();
        assert!(slowest.take().iter().all(|slow| (&*slow.call, &*slow.path) == ("list", "/d")));
    }

    #[test]
    fn what_is_under_way_is_told_until_it_is_answered_or_dropped() {
        let slowest = slowest();
        let first = slowest.watch(("open", None), Ino(6));
        let second = slowest.watch(("create", Some(Bytes::from_static(b"g"))), Ino(5));
        let (count, told) = slowest.under_way();
        let words: Vec<_> = told.iter().map(|slow| (&*slow.call, &*slow.path)).collect();
        assert_eq!((count, &words[..]), (2, &[("open", "/d/e"), ("create", "/d/g")][..]));
        assert!(told[0].took_us >= told[1].took_us, "the oldest comes first: {told:?}");
        drop(first);
        assert_eq!((slowest.under_way().0, slowest.take().len()), (1, 0), "nobody answered it");
        second.end();
        assert_eq!(slowest.under_way(), (0, vec![]));
        let many: Vec<_> = (0..2 * KEPT).map(|_| slowest.watch(("stat", None), Ino(5))).collect();
        let (count, told) = slowest.under_way();
        assert_eq!((count, told.len()), (2 * KEPT, KEPT));
        drop(many);
        assert_eq!(slowest.under_way().0, 0);
    }
}
