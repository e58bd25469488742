//! A small synchronous NBD client: fixed newstyle, simple replies, one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const READ_ONLY: u16 = 1 << 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// An open export.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Opens an export for writing. No answer takes longer than `patience`.
    pub fn open(socket: &Path, name: &str, patience: Duration) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let greeting: [u8; 18] = take(&mut stream)?;
        if greeting[..8] != *b"NBDMAGIC" {
            return Err(io::Error::other("no NBD server"));
        }
        let mut option = Vec::from(3u32.to_be_bytes());
        option.extend(OPTION_MAGIC.to_be_bytes());
        option.extend(GO.to_be_bytes());
        option.extend((name.len() as u32 + 6).to_be_bytes());
        option.extend((name.len() as u32).to_be_bytes());
        option.extend(name.as_bytes());
        option.extend([0; 2]);
        stream.write_all(&option)?;
        loop {
            if u64::from_be_bytes(take(&mut stream)?) != REPLY_MAGIC {
                return Err(io::Error::other("no reply to an option"));
            }
            let _option: [u8; 4] = take(&mut stream)?;
            let kind = u32::from_be_bytes(take(&mut stream)?);
            let mut data = vec![0; (u32::from_be_bytes(take(&mut stream)?) as usize).min(65_536)];
            stream.read_exact(&mut data)?;
            match kind {
                ACK => return Ok(Client { stream }),
                // NBD_INFO_EXPORT: type 0, size, flags.
                INFO if data.len() == 12 && data[..2] == [0, 0] => {
                    if u16::from_be_bytes([data[10], data[11]]) & READ_ONLY != 0 {
                        return Err(io::Error::other("it can only be read now"));
                    }
                }
                INFO => {}
                _ => return Err(io::Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
    }

    fn request(&mut self, kind: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(28 + data.len());
        message.extend(0x2560_9513u32.to_be_bytes());
        message.extend([0; 2]);
        message.extend(kind.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend((len as u32).to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)
    }

    fn reply(&mut self) -> io::Result<()> {
        let magic = u32::from_be_bytes(take(&mut self.stream)?);
        let error = u32::from_be_bytes(take(&mut self.stream)?);
        let _cookie: [u8; 8] = take(&mut self.stream)?;
        match (magic, error) {
            (0x6744_6698, 0) => Ok(()),
            (0x6744_6698, error) => Err(io::Error::from_raw_os_error(error as i32)),
            _ => Err(io::Error::other("no reply")),
        }
    }

    /// Writes, and returns once that is acknowledged.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, data.len(), data)?;
        self.reply()
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(READ, offset, len, &[])?;
        self.reply()?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Says goodbye.
    pub fn close(mut self) {
        let _ = self.request(DISCONNECT, 0, 0, &[]);
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
