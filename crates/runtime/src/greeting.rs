//! How a client begins a connection to a server.

use crate::wire::{FrameReader, WireError, encode};
use bytes::BytesMut;
use meridian_core::ProcessId;
use meridian_core::hello::{Answer, Caller, Hello, ServiceId};
use meridian_transport::{Security, WriteHalf};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// How long calling a server may take, and until it has said that it serves.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Calls a server of `cluster` for one of its services.
pub(crate) async fn call(
    cluster: &str,
    security: &Security,
    service: ServiceId,
    address: &str,
) -> Result<(FrameReader, WriteHalf), WireError> {
    let hello = Hello::<ProcessId>::new(cluster, Caller::Client(service));
    let greeting = async {
        let (reader, mut writer) = security.connect(address).await?.into_split();
        let (mut reader, mut out) = (FrameReader::new(reader), BytesMut::new());
        encode(&mut out, &hello)?;
        writer.write_all(&out).await?;
        match reader.next::<Answer<ProcessId>>().await? {
            Answer::Client => Ok((reader, writer)),
            Answer::Refused(why) => Err(WireError::Refused(why)),
            Answer::Member(_) => Err(WireError::Refused("it takes this for a member".into())),
        }
    };
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout(CALL_TIMEOUT, greeting).await.unwrap_or_else(late)
}
