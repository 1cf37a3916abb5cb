//! When what a command does is durable, and what says so (decisions 104 and 110).

use super::intent::Intent;
use crate::durability::Shown;
use meridian_client::Durability;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// When what a command does is durable.
#[derive(Clone, Debug, Serialize)]
pub struct Durable {
    /// The mode that counts at the path: of a command that makes or removes a name that of the
    /// directory, else that of what is there.
    #[serde(flatten)]
    shown: Shown,
    /// Whether the mount keeps it back now: the call returns before nodes are asked.
    pub kept_back: bool,
    /// For people.
    when: &'static str,
}

/// When it is durable, if the call waits for it.
const RETURNS: &str = "when the call returns";

impl Durable {
    /// Of a command at a path of which these are the modes, from the root of the mount down to what
    /// is there. `keeps`: the mount would keep back now that a file is made there, or removed.
    pub fn new(
        intent: &Intent,
        downwards: Vec<(PathBuf, Option<Durability>)>,
        (mount, keeps): (Durability, bool),
    ) -> Durable {
        let mode = downwards.last().and_then(|(_, own)| *own).unwrap_or(mount);
        let kept_back = keeps
            && mode == Durability::Fsync
            && matches!(intent, Intent::Create { .. } | Intent::Rm { .. });
        let when = match (intent, mode) {
            (Intent::Create { .. } | Intent::Rm { .. }, Durability::Fsync) => match kept_back {
                true => {
                    "when it or its directory is synced, somebody else looks, or a second or two \
                     have passed; after all that was kept back before"
                }
                false => {
                    "when the call returns, as the mount does not hold the directory exclusively \
                     now: it does after two files or so that are made or removed there"
                }
            },
            (Intent::Create { .. }, Durability::Close) => "when the file is closed or synced",
            (Intent::Create { .. } | Intent::Rm { .. }, _) => RETURNS,
            (Intent::Write { .. }, Durability::Sync) => "when each write returns",
            (Intent::Write { .. }, Durability::Close) => "when the file is closed or synced",
            (Intent::Write { .. }, Durability::Fsync) => {
                "when the file is closed or synced; of a file that this mount has made, while \
                 nobody else has looked there, when it is synced, somebody looks, or a second or \
                 two have passed"
            }
            (
                Intent::Mv { .. }
                | Intent::Ln { .. }
                | Intent::Rmdir { .. }
                | Intent::Mkdir { .. }
                | Intent::Place { .. },
                _,
            ) => match mode {
                Durability::Sync | Durability::Close => RETURNS,
                Durability::Fsync => {
                    "when the call returns, after all that was kept back in its partition before"
                }
            },
            (Intent::Read { .. } | Intent::Ls { .. } | Intent::Stat { .. }, _) => {
                "nothing is changed"
            }
        };
        let shown = Shown::new(downwards.into_iter().rev(), mount);
        Durable { shown, kept_back, when }
    }
}

impl fmt::Display for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "durable by {}: {}", self.shown, self.when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intents() -> [Intent; 4] {
        let path = || PathBuf::from("/m/us/x");
        [
            Intent::Create { file: path() },
            Intent::Rm { file: path() },
            Intent::Write { file: path(), bytes: 1 },
            Intent::Mkdir { dir: path() },
        ]
    }

    /// The table of decision 104, where the mount would keep back what it may.
    #[test]
    fn each_mode_has_its_time() {
        let closed = "when the file is closed or synced";
        let own = "when the file is closed or synced; of a file that this mount has made";
        let expected = [
            (Durability::Sync, [RETURNS, RETURNS, "when each write returns", RETURNS]),
            (Durability::Close, [closed, RETURNS, closed, RETURNS]),
            (Durability::Fsync, ["when it or its", "when it or its", own, "when the call"]),
        ];
        for (mode, expected) in expected {
            for (intent, expected) in intents().iter().zip(expected) {
                let own = vec![("/m".into(), None), ("/m/us".into(), Some(mode))];
                let durable = Durable::new(intent, own, (Durability::Close, true));
                assert!(durable.when.starts_with(expected), "{mode:?} {durable}");
                let named = matches!(intent, Intent::Create { .. } | Intent::Rm { .. });
                assert_eq!(durable.kept_back, named && mode == Durability::Fsync, "{durable}");
                let said = format!("durable by {} (set at /m/us): ", mode.word());
                assert!(durable.to_string().starts_with(&said), "{durable}");
                let of_mount = Durable::new(intent, vec![("/m".into(), None)], (mode, true));
                assert_eq!((of_mount.when, of_mount.kept_back), (durable.when, durable.kept_back));
                let busy = Durable::new(intent, Vec::new(), (mode, false));
                assert!(!busy.kept_back, "somebody else uses the directory: {busy}");
            }
        }
    }
}
