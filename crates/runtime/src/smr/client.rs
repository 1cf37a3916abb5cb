//! A client of a replicated service, for programs.

use crate::smr::driver::Driver;
use crate::smr::pending::{Ask, Done};
use crate::smr::wire::PAYLOAD_MAX;
use bytes::Bytes;
use meridian_core::ClientId;
use meridian_core::hello::ServiceId;
use meridian_paxos::{Change, Changed, Configuration, Consistency, Kind, Request, change_payload};
use meridian_transport::Security;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Why something that was asked has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No replica has answered for as long as the client waits.
    #[error(
        "no replica has answered for {after:?} (last: {last}); what was asked may be done or not: look before you ask \
         again, and see that a majority of the replicas runs and can be reached"
    )]
    Unavailable {
        /// How long that was.
        after: Duration,
        /// What happened last.
        last: String,
    },
    /// All replicas have turned the client away.
    #[error("all replicas turn this client away: {0}")]
    Refused(String),
    /// The request, or the question, is too long. Nothing has happened.
    #[error(
        "{len} bytes are more than the {max} that the replicas take: ask for less, or raise request_bytes_max"
    )]
    TooLong {
        /// How long it is, in bytes.
        len: usize,
        /// How long it may be.
        max: usize,
    },
    /// The answer is too long for a connection; a request was executed.
    #[error("the answer is longer than {PAYLOAD_MAX} bytes: ask for less at a time")]
    LongReply,
    /// The replicas have forgotten this client, as too many others came after it: whether the
    /// request was executed is not known. The next has another identity.
    #[error(
        "the replicas have forgotten this client: whether the request was executed is not known"
    )]
    Forgotten,
    /// The members cannot be changed so.
    #[error("the members stay as they are: {0}")]
    Unchanged(String),
    /// The runtime in which the client was connected has ended.
    #[error("the client's runtime has ended: connect in one that lives as long as the client")]
    Ended,
}

/// How a client asks.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The name of the cluster: replicas of another turn it away.
    pub cluster: String,
    /// Where replicas listen; one that can be reached is enough to learn of the others.
    pub addresses: Vec<String>,
    /// How connections are secured, as the replicas have it.
    pub security: Security,
    /// Which service of the servers there.
    pub service: ServiceId,
    /// After so long without an answer the client gives up.
    pub give_up_after: Duration,
}

impl ClientOptions {
    /// Of servers that have only that service and speak plain text; waits for answers for a minute.
    pub fn new(
        cluster: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<String>>,
    ) -> ClientOptions {
        let addresses = addresses.into_iter().map(Into::into).collect();
        let (cluster, give_up_after) = (cluster.into(), Duration::from_secs(60));
        ClientOptions {
            cluster,
            addresses,
            security: Security::default(),
            service: ServiceId::MAIN,
            give_up_after,
        }
    }
}

/// A client of a replicated service.
///
/// It has one request under way at a time. Clones are other clients that share its connection:
/// cheap, for as many requests at a time as one likes. Can be used from any thread and runtime, as
/// long as the one lives in which it was connected.
#[derive(Debug)]
pub struct Client {
    asks: mpsc::UnboundedSender<Ask>,
    /// Once it has one.
    id: Option<ClientId>,
    /// The number of the last request.
    sequence: u64,
}

impl Clone for Client {
    fn clone(&self) -> Client {
        Client { asks: self.asks.clone(), id: None, sequence: 0 }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _ = self.asks.send(Ask::Gone(id)); // Nobody is there: no matter.
        }
    }
}

impl Client {
    /// Connects to the replicas of a cluster.
    ///
    /// # Errors
    /// If none gives it an identity.
    pub async fn connect(
        cluster: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Client, ClientError> {
        Client::connect_with(ClientOptions::new(cluster, addresses)).await
    }

    /// Connects with these options.
    ///
    /// # Errors
    /// If no replica gives it an identity.
    pub async fn connect_with(options: ClientOptions) -> Result<Client, ClientError> {
        let mut client = Client::open(options)?;
        client.identity().await?;
        Ok(client)
    }

    /// A client that connects when it is asked something, in the present runtime.
    ///
    /// # Errors
    /// If there is no address.
    pub fn open(options: ClientOptions) -> Result<Client, ClientError> {
        if options.addresses.is_empty() {
            return Err(ClientError::Refused("no address of a replica is given".into()));
        }
        let (asks, asked) = mpsc::unbounded_channel();
        tokio::spawn(Driver::new(options).run(asked));
        Ok(Client { asks, id: None, sequence: 0 })
    }

    async fn ask<T>(&self, ask: impl FnOnce(Done<T>) -> Ask) -> Result<T, ClientError> {
        let (done, told) = oneshot::channel();
        self.asks.send(ask(done)).map_err(|_| ClientError::Ended)?;
        told.await.map_err(|_| ClientError::Ended)?
    }

    /// Its identity; it gets one if it has none.
    ///
    /// # Errors
    /// If no replica gives it one.
    pub async fn identity(&mut self) -> Result<ClientId, ClientError> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let id = self.ask(Ask::Identity).await?;
        (self.id, self.sequence) = (Some(id), 0);
        Ok(id)
    }

    /// The service executes `payload`, exactly once; its reply.
    ///
    /// # Errors
    /// If nobody answers, or the request cannot be executed. See each error for whether it may have
    /// been.
    pub async fn execute(&mut self, payload: impl Into<Bytes>) -> Result<Bytes, ClientError> {
        self.request(Kind::Execute, payload.into()).await
    }

    async fn request(&mut self, kind: Kind, payload: Bytes) -> Result<Bytes, ClientError> {
        check_len(payload.len())?;
        let client = self.identity().await?;
        self.sequence += 1;
        let request = Request { client, sequence: self.sequence, kind, payload };
        let answer = self.ask(|done| Ask::Request(request, done)).await;
        if answer == Err(ClientError::Forgotten) {
            self.id = None;
        }
        answer
    }

    /// Asks the service something that changes nothing, without the log.
    ///
    /// # Errors
    /// If nobody answers.
    pub async fn read(
        &self,
        question: impl Into<Bytes>,
        consistency: Consistency,
    ) -> Result<Bytes, ClientError> {
        let question = question.into();
        check_len(question.len())?;
        self.ask(|done| Ask::Read(question, consistency, done)).await
    }

    /// Changes the members while the service goes on; what they are soon.
    ///
    /// # Errors
    /// If nobody answers, or the change is not possible.
    pub async fn reconfigure(&mut self, change: Change) -> Result<Configuration, ClientError> {
        let reply = self.request(Kind::Reconfigure, change_payload(&change)).await?;
        match postcard::from_bytes(&reply) {
            Ok(Changed::Now(configuration)) => Ok(configuration),
            Ok(Changed::Refused(why)) => Err(ClientError::Unchanged(why)),
            Err(error) => Err(ClientError::Unchanged(format!("the answer: {error}"))),
        }
    }
}

fn check_len(len: usize) -> Result<(), ClientError> {
    let max = PAYLOAD_MAX;
    if len > max { Err(ClientError::TooLong { len, max }) } else { Ok(()) }
}
