//! Framing: one JSON object per line, with a limit on what a line may take.

use std::fmt;

use serde::Serialize;

/// Longest call an engine reads. A resource of 32 nodes and some hundred volumes fits.
pub const MAX_CALL: usize = 1 << 20;
/// Longest line a client reads: the status of everything on a node.
pub const MAX_LINE: usize = 64 << 20;

/// The other side sent a line beyond the limit. Nothing sensible can follow: close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineTooLong {
    /// The limit in bytes.
    pub limit: usize,
}

impl fmt::Display for LineTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line of more than {} bytes came over the control socket", self.limit)
    }
}

impl std::error::Error for LineTooLong {}

/// Cuts a byte stream into lines.
#[derive(Debug)]
pub struct Lines {
    buffer: Vec<u8>,
    /// Bytes of the buffer known to hold no newline.
    scanned: usize,
    limit: usize,
}

impl Lines {
    /// A cutter for lines of at most `limit` bytes, the newline not counted.
    pub fn new(limit: usize) -> Lines {
        Lines { buffer: Vec::new(), scanned: 0, limit }
    }

    /// Adds bytes as they arrive. Take all complete lines before adding more: the buffer holds
    /// at most one incomplete line and what was added since.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line without its newline, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`LineTooLong`] as soon as the line is known to exceed the limit.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        let too_long = Err(LineTooLong { limit: self.limit });
        match self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
            Some(offset) if self.scanned + offset > self.limit => too_long,
            Some(offset) => {
                let rest = self.buffer.split_off(self.scanned + offset + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.scanned = 0;
                Ok(Some(line))
            }
            None if self.buffer.len() > self.limit => too_long,
            None => {
                self.scanned = self.buffer.len();
                Ok(None)
            }
        }
    }
}

/// One line for the socket, newline included.
///
/// # Panics
/// Never for the types of this module: they hold nothing JSON can not say.
pub fn encode_line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have only string keys");
    line.push(b'\n');
    line
}
