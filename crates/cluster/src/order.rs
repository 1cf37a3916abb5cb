//! The order of the messages of a cluster.

use serde::{Deserialize, Serialize};

/// Which order the messages of a cluster have; the same at all nodes, and never changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryOrder {
    /// One order that all agree on.
    #[default]
    Sequential,
    /// Beside that, what begins after something else has ended comes after it.
    Linearizable,
}

impl DeliveryOrder {
    /// Its name in `cluster.json`.
    pub fn name(self) -> &'static str {
        match self {
            DeliveryOrder::Sequential => "sequential",
            DeliveryOrder::Linearizable => "linearizable",
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == DeliveryOrder::default()
    }
}
