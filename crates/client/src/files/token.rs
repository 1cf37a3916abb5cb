//! Tokens: what programs have seen here, for others to go on from (decision 65).
//!
//! All programs over one client are one session. It has seen what any of them has, so its token
//! says more than what one of them saw. What sessions of keys saw whose tokens were taken over here
//! goes along: files do not wait for it.

use crate::client::{Client, lock};
use crate::error::{ClientError, TakeError};
use crate::files::Files;
use meridian_core::{GroupId, Stamp, Time};
use meridian_fs::Vector;
/// How long a mount waits unless it is told otherwise, and at most: as sessions of keys do.
pub use meridian_keys::causal::desk::{AWAIT, AWAIT_MAX};
use meridian_keys::causal::{Token, TokenError};
use meridian_session::{Command, Failure, Output};
use std::sync::Arc;
use std::time::Duration;

impl Client {
    /// Goes on as one who has seen this, too: waits until the partitions that it names have it, and
    /// then no look is older.
    ///
    /// # Errors
    /// Those that do not have it, or do not answer, by then; what the others have answered counts.
    pub async fn follow(&self, seen: Vector, limit: Duration) -> Result<(), Vec<GroupId>> {
        let caller = self.inner.driver.caller();
        let (call, deadline) = (caller.call(), self.inner.driver.deadline(limit));
        let named = seen.0.keys().copied().collect();
        match caller.ask(Command::Follow { call, seen, deadline }).await {
            Output::Followed { .. } => Ok(()),
            Output::GaveUp { failure: Failure::Behind { groups }, .. } => Err(groups),
            other => {
                tracing::error!("a question what was seen is answered by {other:?}");
                Err(named)
            }
        }
    }
}

impl Files {
    /// The token of all that was seen and written here so far. What is buffered is sent before, so
    /// whoever takes the token over sees it.
    ///
    /// # Errors
    /// If not all that is buffered can be sent.
    pub async fn token(self: &Arc<Self>) -> Result<String, ClientError> {
        self.flush_buffered().await?;
        let mut token = Token::new(self.client.topology().cluster);
        token.files = self.client.vector().0.iter().map(|(group, ts)| (group.0, ts.0)).collect();
        if let Some(taken) = &*lock(&self.taken) {
            token.join(taken);
        }
        Ok(token.text())
    }

    /// Goes on as the session that gave a token, too: waits for so long until all that it saw of
    /// files is here. No look that begins afterwards is older.
    ///
    /// # Errors
    /// If it is no token of this cluster, or time is up: then it goes on as before.
    pub async fn take_token(&self, text: &[u8], limit: Duration) -> Result<(), TakeError> {
        let topology = self.client.topology();
        let now = Time(crate::client::now_ms().saturating_mul(1_000_000));
        let token = Token::accept(text, topology.cluster, now)?;
        let seen = token.files.iter().map(|(group, ts)| (GroupId(*group), Stamp(*ts)));
        let seen = Vector(seen.collect());
        if !seen.0.keys().all(|group| topology.group_ids().any(|known| known == *group)) {
            return Err(TokenError::Elsewhere.into());
        }
        self.client.follow(seen, limit).await.map_err(|groups| {
            let name = |group: &GroupId| match self.client.is_cut(*group) {
                true => format!("{} (no node answers)", topology.group_name(*group)),
                false => topology.group_name(*group).to_string(),
            };
            TakeError::Behind { lacks: groups.iter().map(name).collect::<Vec<_>>().join(", ") }
        })?;
        lock(&self.taken).get_or_insert_with(|| Token::new(topology.cluster)).join(&token);
        Ok(())
    }
}
