//! Large objects: written in parts, read in ranges.

use std::io::{self, Read, Write};

use super::{Client, Error};

/// Most parts of an object.
pub const PARTS: u16 = 1000;
/// Bytes of the first parts; stores want 5 MiB at least.
const PART: u64 = 8 << 20;
/// After so many parts they become twice as large: so an object may have 249 GiB, and small ones do not
/// need the memory of large ones.
const DOUBLED: u16 = 125;
/// Bytes that are read at once.
const RANGE: u64 = 8 << 20;

/// Bytes of a part (counted from 1) that is not the last.
pub const fn part_size(number: u16) -> u64 {
    PART << ((number.saturating_sub(1)) / DOUBLED)
}

/// Writes an object. It is there when [`Upload::finish`] has returned, and not before; one that is dropped
/// leaves nothing.
pub struct Upload<'a> {
    client: &'a Client,
    object: String,
    buffer: Vec<u8>,
    id: Option<String>,
    tags: Vec<String>,
    written: u64,
}

impl<'a> Upload<'a> {
    /// Begins one; nobody is asked before there is a part.
    pub fn new(client: &'a Client, object: &str) -> Upload<'a> {
        let (buffer, tags) = (Vec::new(), Vec::new());
        Upload { client, object: object.to_owned(), buffer, id: None, tags, written: 0 }
    }

    /// Ends it; returns how many bytes the object has.
    ///
    /// # Errors
    /// If the store does not take it. There is no such object then, or what was there before.
    pub fn finish(mut self) -> Result<u64, Error> {
        if self.id.is_none() {
            self.client.put(&self.object, &self.buffer)?;
            return Ok(self.written);
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        if let Some(id) = &self.id {
            self.client.complete(&self.object, id, &self.tags)?;
        }
        self.id = None;
        Ok(self.written)
    }

    fn send(&mut self) -> Result<(), Error> {
        let number = u16::try_from(self.tags.len() + 1).unwrap_or(u16::MAX);
        if number > PARTS {
            return Err(Error::TooLarge);
        }
        let id = match &self.id {
            Some(id) => id,
            None => self.id.insert(self.client.begin(&self.object)?),
        };
        let tag = self.client.part(&self.object, id, number, &self.buffer)?;
        self.tags.push(tag);
        self.buffer.clear();
        Ok(())
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let number = u16::try_from(self.tags.len() + 1).unwrap_or(u16::MAX);
        let room = part_size(number.min(PARTS)).saturating_sub(self.buffer.len() as u64);
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.buffer.extend_from_slice(&bytes[..taken]);
        self.written += taken as u64;
        if taken as u64 == room {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.abort(&self.object, &id);
        }
    }
}

/// Reads an object.
pub struct Download<'a> {
    client: &'a Client,
    object: String,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    taken: usize,
    /// Where the next range begins.
    next: u64,
    size: Option<u64>,
}

impl<'a> Download<'a> {
    /// Begins one; nobody is asked yet.
    pub fn new(client: &'a Client, object: &str) -> Download<'a> {
        let object = object.to_owned();
        Download { client, object, buffer: Vec::new(), taken: 0, next: 0, size: None }
    }
}

impl Read for Download<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.buffer.len() && self.size.is_none_or(|size| self.next < size) {
            let (content, size) = self.client.range(&self.object, self.next, RANGE)?;
            if self.size.is_some_and(|before| before != size) {
                let text = format!("{} was replaced while it was read", self.object);
                return Err(Error::Answer(text).into());
            }
            self.size = Some(size);
            self.next += content.len() as u64;
            (self.buffer, self.taken) = (content, 0);
        }
        let left = &self.buffer[self.taken..];
        let length = left.len().min(to.len());
        to[..length].copy_from_slice(&left[..length]);
        self.taken += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_stores_want_them_and_come_to_249_gib() {
        assert!((1..=PARTS).all(|number| part_size(number) >= 5 << 20));
        assert!((1..=PARTS).all(|number| part_size(number) <= 5 << 30), "S3's own limit");
        let all: u64 = (1..=PARTS).map(part_size).sum();
        assert_eq!(all >> 30, 249);
    }
}
