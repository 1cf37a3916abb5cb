//! What a member does before anything else: it asks the others whether they remember more of it
//! than it does itself. [`meridian_core::introduction`] decides what comes of that.

use crate::application::{Application, Networked};
use crate::local::Local;
use crate::wire::{FrameReader, WireError, encode};
use bytes::BytesMut;
use meridian_core::hello::{Answer, Caller, Hello};
use meridian_core::introduction::Verdict;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long to wait for those who do not answer: they may be starting now, or be far away. More,
/// and each start beside one that is down costs that much.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How soon one that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(25);

/// Asks all others, for as long as it is not known whether the member may begin.
pub(crate) async fn introduce<P: Networked, A: Application<P>>(local: &Rc<Local<P, A>>) {
    let mut asking = JoinSet::new();
    for id in local.introduction.borrow().silent() {
        if let Some(peer) = local.index(*id) {
            asking.spawn_local(ask(local.clone(), peer));
        }
    }
    let waits = || local.verdict() == Verdict::Waits;
    let answered = async { while waits() && asking.join_next().await.is_some() {} };
    if timeout(PATIENCE, answered).await.is_err() {
        tracing::info!(me = %local.me, silent = asking.len(), "begins without word of all others");
    }
    local.introduction.borrow_mut().on_patience_lost();
}

/// Asks until there is an answer.
async fn ask<P: Networked, A: Application<P>>(local: Rc<Local<P, A>>, peer: usize) {
    while let Err(error) = ask_once(&local, peer).await {
        // Who has not shown that it is the one has not said anything.
        if error.is_bad() && !matches!(error, WireError::Unauthorized(_)) {
            tracing::debug!(peer = %local.peer(peer), %error, "does not know this member");
            return local.introduction.borrow_mut().on_stranger(local.peer(peer));
        }
        sleep(ASK_AGAIN).await;
    }
}

async fn ask_once<P: Networked, A: Application<P>>(
    local: &Local<P, A>,
    peer: usize,
) -> Result<(), WireError> {
    let (reader, mut writer) = local.call(peer).await?.into_split();
    let mut out = BytesMut::new();
    let caller = Caller::Starting(local.identity(local.peer(peer)));
    encode(&mut out, &Hello::new(&local.cluster, caller).to_lane(local.lane))?;
    writer.write_all(&out).await?;
    match FrameReader::new(reader).next().await? {
        Answer::<P::Peer>::Member(identity) => Ok(local.meet(peer, &identity)?),
        Answer::Refused(why) => Err(WireError::Refused(why)),
        Answer::Client => Err(WireError::Refused("takes this for a client".into())),
    }
}
