//! Connections: TLS 1.3 in which both ends show a certificate, or plain TCP where an operator has
//! said so in so many words.
//!
//! | module | what |
//! | --- | --- |
//! | [`security`] | how connections begin: the one place where TLS and plain text differ |
//! | [`stream`] | a connection and its halves |
//! | [`outbound`] | what waits to be written on one |
//! | [`credentials`] | certificate, key and authority as files say, taken up again when they change |
//! | `verifier` | whose certificates are accepted |
//! | [`authority`] | makes authorities and certificates |
//!
//! Who is at the other end is a [`Speaker`](meridian_core::principal::Speaker), known before the
//! first byte of what is spoken is read. What one may do is decided elsewhere.
#![forbid(unsafe_code)]

pub mod authority;
pub mod credentials;
pub mod outbound;
pub mod security;
mod shut;
pub mod stream;
mod verifier;

pub use authority::{Authority, Issued};
pub use credentials::{Credentials, CredentialsError, ENDS_SOON, Ends, Files};
pub use outbound::Outbound;
pub use security::{Refusal, Security};
pub use stream::{Detached, ReadHalf, Stream, WriteHalf};
