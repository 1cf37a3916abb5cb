//! Requests out of the bytes of a connection.
//!
//! A request is an array of bulk strings, or one line of words. Bytes arrive in pieces of any size;
//! whatever was looked at is not looked at again, so that a long value costs no more for coming in
//! many pieces. The arguments of a request are parts of the buffer: nothing is copied.
//!
//! Invariants:
//! - R1: the buffer holds at most [`REQUEST_MAX`] bytes of an incomplete request, and what came
//!   with the last piece.
//! - R2: no memory is set aside for what a client has only announced.

use super::{inline, integer};
use std::ops::Range;
use thiserror::Error;

/// The longest argument, and so the longest value, in bytes.
pub const BULK_MAX: usize = 64 << 20;
/// The longest request, in bytes: a value of the greatest length, with its key and what belongs to
/// it, or many short ones.
pub const REQUEST_MAX: usize = BULK_MAX + (1 << 20);
/// So many arguments a request may have.
pub const ARGUMENTS_MAX: usize = 1 << 20;
/// The longest line of a request that is typed by hand, in bytes.
pub const INLINE_MAX: usize = 64 << 10;
/// The longest line that announces a length: a sign, digits and the line's end, with room.
const LENGTH_LINE_MAX: usize = 32;
/// A buffer that was longer gives its memory back when no more than this is left in it, in bytes.
const BUFFER_KEPT: usize = 256 << 10;
/// The same for the places of arguments.
const ARGUMENTS_KEPT: usize = 1 << 10;

/// What is wrong with what a client sends. Its connection can only be closed: nobody knows where
/// the next request begins.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A number of arguments that is none, or too great.
    #[error("invalid number of arguments: at most {ARGUMENTS_MAX}")]
    Arguments,
    /// Something else where an argument should begin.
    #[error("expected '$', got '{}'", char::from(*.0).escape_default())]
    Marker(u8),
    /// A length of an argument that is none, or too great.
    #[error("invalid length of an argument: at most {BULK_MAX} bytes")]
    Length,
    /// An argument that is not followed by the end of a line.
    #[error("an argument is longer than was announced")]
    End,
    /// A line that never ends.
    #[error("too long a line: at most {INLINE_MAX} bytes")]
    Line,
    /// A quote that is not closed in a line of words.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// The arguments together are too long.
    #[error("too long a request: at most {REQUEST_MAX} bytes")]
    Request,
}

/// Where an argument lies in the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument {
    start: usize,
    len: usize,
}

impl Argument {
    pub(super) fn new(start: usize, len: usize) -> Argument {
        Argument { start, len }
    }

    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// One request: a command's name and its arguments. There is at least one.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    buffer: &'a [u8],
    arguments: &'a [Argument],
    len_bytes: usize,
}

impl<'a> Request<'a> {
    /// How many words it has, the command's name among them.
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// How long it was as it came, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The argument at `index`, the command's name at 0.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.arguments.get(index).map(|argument| &self.buffer[argument.range()])
    }

    /// The command's name.
    pub fn name(&self) -> &'a [u8] {
        &self.buffer[self.arguments[0].range()]
    }

    /// The request that the arguments from `index` on are; none if there are none.
    pub fn rest(&self, index: usize) -> Option<Request<'a>> {
        let Request { buffer, arguments, len_bytes } = *self;
        let arguments = arguments.get(index..).filter(|arguments| !arguments.is_empty())?;
        Some(Request { buffer, arguments, len_bytes })
    }

    /// The arguments from `index` on.
    pub fn from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let Request { buffer, arguments, .. } = *self;
        let arguments = arguments.get(index..).unwrap_or_default();
        arguments.iter().map(move |argument| &buffer[argument.range()])
    }
}

/// What is expected next in the buffer.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The beginning of a request.
    Request,
    /// So many arguments more.
    Arguments(usize),
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Requests {
    buffer: Vec<u8>,
    /// The request that is being read begins here.
    start: usize,
    /// All up to here has been understood.
    position: usize,
    /// No line ends before here.
    searched: usize,
    expected: Expected,
    arguments: Vec<Argument>,
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            buffer: Vec::new(),
            start: 0,
            position: 0,
            searched: 0,
            expected: Expected::Request,
            arguments: Vec::new(),
        }
    }
}

impl Requests {
    /// Takes bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.drop_read();
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are kept, of requests that were not taken, and to tell where their arguments are.
    pub fn len_bytes(&self) -> usize {
        self.buffer.len() + self.arguments.len() * size_of::<Argument>()
    }

    /// The next whole request, if there is one.
    ///
    /// # Errors
    /// If what came is no request. The connection is then to be closed.
    pub fn take(&mut self) -> Result<Option<Request<'_>>, ProtocolError> {
        if !self.advance()? {
            self.drop_read(); // Maybe nothing comes for a long time.
            return Ok(None);
        }
        let Requests { buffer, arguments, start, position, .. } = self;
        Ok(Some(Request { buffer, arguments, len_bytes: *position - *start }))
    }

    /// Whether there is a whole request in `arguments` now.
    fn advance(&mut self) -> Result<bool, ProtocolError> {
        loop {
            let left = match self.expected {
                Expected::Request => {
                    self.start = self.position;
                    self.arguments.clear();
                    match self.begin()? {
                        None => return Ok(false),
                        Some(left) => left,
                    }
                }
                Expected::Arguments(left) => left,
            };
            for read in 0..left {
                if !self.argument()? {
                    self.expected = Expected::Arguments(left - read);
                    return Ok(false);
                }
            }
            self.expected = Expected::Request;
            if !self.arguments.is_empty() {
                return Ok(true);
            } // An empty line or array asks for nothing.
        }
    }

    /// Reads the first line of a request: how many arguments follow.
    fn begin(&mut self) -> Result<Option<usize>, ProtocolError> {
        match self.buffer.get(self.position) {
            None => Ok(None),
            Some(b'*') => {
                let Some(line) = self.line(LENGTH_LINE_MAX, ProtocolError::Arguments)? else {
                    return Ok(None);
                };
                let count = integer(&self.buffer[line.start + 1..line.end]);
                let count = count.ok_or(ProtocolError::Arguments)?.max(0); // -1: the null array.
                let count = usize::try_from(count).ok().filter(|count| *count <= ARGUMENTS_MAX);
                count.map(Some).ok_or(ProtocolError::Arguments)
            }
            Some(_) => {
                let Some(line) = self.line(INLINE_MAX, ProtocolError::Line)? else {
                    return Ok(None);
                };
                let start = line.start;
                inline::split(&mut self.buffer[line], start, &mut self.arguments)
                    .ok_or(ProtocolError::Quotes)?;
                Ok(Some(0))
            }
        }
    }

    /// Reads one argument; whether it was there.
    fn argument(&mut self) -> Result<bool, ProtocolError> {
        let before = self.position;
        match self.buffer.get(before) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::Marker(*other)),
        }
        let Some(line) = self.line(LENGTH_LINE_MAX, ProtocolError::Length)? else {
            return Ok(false);
        };
        let len = integer(&self.buffer[line.start + 1..line.end]);
        let len = len.and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= BULK_MAX);
        let len = len.ok_or(ProtocolError::Length)?;
        let (start, end) = (self.position, self.position + len);
        if end + 2 - self.start > REQUEST_MAX {
            return Err(ProtocolError::Request);
        }
        if self.buffer.len() < end + 2 {
            // The line that tells the length is read again when more has come: it is short.
            (self.position, self.searched) = (before, before);
            return Ok(false);
        }
        if &self.buffer[end..end + 2] != b"\r\n" {
            return Err(ProtocolError::End);
        }
        self.arguments.push(Argument::new(start, len));
        (self.position, self.searched) = (end + 2, end + 2);
        Ok(true)
    }

    /// The line at the position, without its end; the position is then behind it.
    fn line(
        &mut self,
        max: usize,
        error: ProtocolError,
    ) -> Result<Option<Range<usize>>, ProtocolError> {
        let from = self.searched.max(self.position);
        let Some(found) = self.buffer[from..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return if self.buffer.len() - self.position > max { Err(error) } else { Ok(None) };
        };
        let (start, newline) = (self.position, from + found);
        if newline - start > max {
            return Err(error);
        }
        (self.position, self.searched) = (newline + 1, newline + 1);
        let end = if newline > start && self.buffer[newline - 1] == b'\r' {
            newline - 1
        } else {
            newline
        };
        Ok(Some(start..end))
    }

    /// Drops what was taken from the front of the buffer.
    fn drop_read(&mut self) {
        let read = match self.expected {
            Expected::Request => self.position,
            Expected::Arguments(_) => self.start,
        };
        if let Expected::Request = self.expected {
            self.arguments.clear();
            if self.arguments.capacity() > ARGUMENTS_KEPT {
                self.arguments = Vec::new();
            }
        }
        if read == 0 {
            return;
        }
        self.buffer.drain(..read);
        if self.buffer.capacity() > BUFFER_KEPT && self.buffer.len() <= BUFFER_KEPT {
            self.buffer.shrink_to(0);
        }
        self.start -= read.min(self.start);
        self.position -= read;
        self.searched -= read.min(self.searched);
        if let Expected::Arguments(_) = self.expected {
            self.arguments.iter_mut().for_each(|argument| argument.start -= read);
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
