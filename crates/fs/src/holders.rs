//! The clients that hold one inode: mostly one, so they take as little room as that.

use meridian_core::ClientId;
use serde::{Deserialize, Serialize};

/// See the module. In their order, each once.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Holders(Vec<ClientId>);

impl Holders {
    pub fn iter(&self) -> impl Iterator<Item = ClientId> {
        self.0.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, client: ClientId) {
        if let Err(at) = self.0.binary_search(&client) {
            self.0.reserve_exact(usize::from(self.0.is_empty()));
            self.0.insert(at, client);
        }
    }

    pub fn remove(&mut self, client: ClientId) {
        if let Ok(at) = self.0.binary_search(&client) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imbl::OrdSet;

    /// Nodes may have written them as a set before.
    #[test]
    fn they_are_written_as_a_set_is() {
        let (mut holders, mut set) = (Holders::default(), OrdSet::new());
        for client in [5, 900, 7, 5, 1].map(ClientId) {
            holders.insert(client);
            set.insert(client);
        }
        holders.remove(ClientId(7));
        holders.remove(ClientId(8));
        set.remove(&ClientId(7));
        let bytes = postcard::to_stdvec(&set).unwrap();
        assert_eq!(postcard::to_stdvec(&holders).unwrap(), bytes);
        assert_eq!(postcard::from_bytes::<Holders>(&bytes).unwrap(), holders);
        assert!(holders.iter().eq(set.iter().copied()) && !holders.is_empty());
    }
}
