//! A connection with a node, in RESP.

use super::error::KeysError;
use meridian_keys::resp::answer::{self, Answered};
use meridian_transport::{ReadHalf, Security, WriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// So much is read at once.
const READ_LEN: usize = 64 << 10;

/// Why nothing was answered.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone.
    Broken(String),
    /// Something else speaks.
    Protocol(KeysError),
}

#[derive(Debug)]
pub(super) struct Connection {
    reader: ReadHalf,
    writer: WriteHalf,
    read: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: &str, security: &Security) -> Result<Connection, Failure> {
        let stream = security.connect(address).await;
        let stream = stream.map_err(|refusal| Failure::Broken(refusal.to_string()))?;
        let (reader, writer) = stream.into_split();
        Ok(Connection { reader, writer, read: Vec::new(), buffer: vec![0; READ_LEN] })
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&mut self, words: &[&[u8]]) -> Result<Answered, Failure> {
        let mut request = Vec::new();
        answer::write_request(words.iter().copied(), &mut request);
        self.writer.write_all(&request).await.map_err(|error| broken(&error))?;
        self.next().await
    }

    /// What comes next. May be given up and called again.
    pub async fn next(&mut self) -> Result<Answered, Failure> {
        loop {
            let wrong = |error: answer::AnswerError| KeysError::Protocol(error.to_string());
            let found = answer::read(&self.read).map_err(wrong).map_err(Failure::Protocol)?;
            if let Some((answer, len)) = found {
                self.read.drain(..len);
                return Ok(answer);
            }
            let len = self.reader.read(&mut self.buffer).await.map_err(|error| broken(&error))?;
            if len == 0 {
                return Err(Failure::Broken("it has closed the connection".into()));
            }
            self.read.extend_from_slice(&self.buffer[..len]);
        }
    }
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::Broken(error.to_string())
}
