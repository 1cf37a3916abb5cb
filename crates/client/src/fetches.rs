//! Parts of blocks that are being fetched: who wants one of them waits, and does not ask again.

use crate::client::lock;
use meridian_core::BlockId;
use meridian_session::Part;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::sync::watch;

/// By block, first byte and length: how to hear that it is over.
type UnderWay = BTreeMap<(BlockId, u32, u32), watch::Receiver<()>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Fetches(Mutex<UnderWay>);

/// One that is under way, as long as this is kept.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    all: &'a Fetches,
    key: (BlockId, u32, u32),
    /// Dropped after `all` does not have it any more.
    _over: watch::Sender<()>,
}

impl Fetches {
    /// Begins to fetch a part.
    ///
    /// # Errors
    /// If all of it is under way: that ends, in whatever way, when the sender is gone.
    pub fn begin(&self, part: Part) -> Result<Fetch<'_>, watch::Receiver<()>> {
        let Part { block, start, len } = part;
        let mut under_way = lock(&self.0);
        let before = under_way.range((block, 0, 0)..=(block, start, u32::MAX));
        let covers = |of: &(BlockId, u32, u32)| of.1.saturating_add(of.2) >= start + len;
        if let Some((_, over)) = before.into_iter().find(|(of, _)| covers(of)) {
            return Err(over.clone());
        }
        let (sender, over) = watch::channel(());
        under_way.insert((block, start, len), over);
        Ok(Fetch { all: self, key: (block, start, len), _over: sender })
    }

    /// How many bytes are under way.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).keys().map(|(_, _, len)| u64::from(*len)).sum()
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.key);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn part(block: u128, start: u32, len: u32) -> Part {
        Part { block: BlockId(block), start, len }
    }

    #[tokio::test]
    async fn who_wants_what_is_under_way_waits_for_it() {
        let fetches = Fetches::default();
        let first = fetches.begin(part(1, 10, 20)).unwrap();
        let mut over = fetches.begin(part(1, 15, 15)).unwrap_err();
        let others = [part(1, 9, 2), part(1, 15, 16), part(2, 15, 15)];
        let others = others.map(|other| fetches.begin(other).unwrap());
        assert_eq!(fetches.bytes(), 20 + 2 + 16 + 15);
        drop(first);
        over.changed().await.unwrap_err();
        drop(others);
        assert_eq!(fetches.bytes(), 0);
        fetches.begin(part(1, 15, 15)).unwrap();
    }
}
