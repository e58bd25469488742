//! A small synchronous NBD client: fixed newstyle, simple replies.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

/// A connection to an export.
pub struct Client {
    stream: UnixStream,
    /// Size of the export in bytes.
    pub size: u64,
    next: u64,
}

fn other(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

impl Client {
    /// Opens an export.
    pub fn open(socket: &Path, name: &str) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        if read_u64(&mut stream)? != NBDMAGIC || read_u64(&mut stream)? != IHAVEOPT {
            return Err(other("no NBD server"));
        }
        let mut flags = [0; 2];
        stream.read_exact(&mut flags)?;
        stream.write_all(&3u32.to_be_bytes())?;
        let mut option = Vec::new();
        option.extend(IHAVEOPT.to_be_bytes());
        option.extend(OPT_GO.to_be_bytes());
        option.extend((name.len() as u32 + 6).to_be_bytes());
        option.extend((name.len() as u32).to_be_bytes());
        option.extend(name.as_bytes());
        option.extend(0u16.to_be_bytes());
        stream.write_all(&option)?;
        let mut size = 0;
        loop {
            if read_u64(&mut stream)? != REPLY_MAGIC {
                return Err(other("no option reply"));
            }
            let (_, kind, len) =
                (read_u32(&mut stream)?, read_u32(&mut stream)?, read_u32(&mut stream)?);
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data)?;
            match kind {
                REP_ACK => break,
                REP_INFO if data[..2] == [0, 0] => {
                    size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                }
                REP_INFO => {}
                error => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    return Err(other(format!("refused with {error:#x}: {text}")));
                }
            }
        }
        Ok(Client { stream, size, next: 1 })
    }

    fn request(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> io::Result<()> {
        self.next += 1;
        let mut header = Vec::with_capacity(28);
        header.extend(0x2560_9513u32.to_be_bytes());
        header.extend(flags.to_be_bytes());
        header.extend(kind.to_be_bytes());
        header.extend(self.next.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(len.to_be_bytes());
        self.stream.write_all(&header)
    }

    fn reply(&mut self) -> io::Result<()> {
        let magic = read_u32(&mut self.stream)?;
        let error = read_u32(&mut self.stream)?;
        let _cookie = read_u64(&mut self.stream)?;
        match (magic, error) {
            (0x6744_6698, 0) => Ok(()),
            (0x6744_6698, error) => Err(io::Error::from_raw_os_error(error as i32)),
            _ => Err(other("no reply")),
        }
    }

    /// Writes; returns once it is acknowledged.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(1, 0, offset, bytes.len() as u32)?;
        self.stream.write_all(bytes)?;
        self.reply()
    }

    /// Writes the same bytes to many places at once; returns once all are acknowledged.
    pub fn write_all(&mut self, offsets: &[u64], bytes: &[u8]) -> io::Result<()> {
        for offset in offsets {
            self.request(1, 0, *offset, bytes.len() as u32)?;
            self.stream.write_all(bytes)?;
        }
        offsets.iter().try_for_each(|_| self.reply())
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(0, 0, offset, len as u32)?;
        self.reply()?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Flushes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.request(3, 0, 0, 0)?;
        self.reply()
    }

    /// Discards.
    pub fn trim(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.request(4, 0, offset, len)?;
        self.reply()
    }

    /// Writes zeroes.
    pub fn zero(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.request(6, 0, offset, len)?;
        self.reply()
    }

    /// Says goodbye.
    pub fn close(mut self) {
        let _ = self.request(2, 0, 0, 0);
    }
}

fn read_u32(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
