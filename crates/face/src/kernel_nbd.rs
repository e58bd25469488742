//! The other end of a device of the kernel's NBD client: its requests are passed on.
//!
//! The kernel's longest request is what an operator makes it (`max_sectors_kb`), an engine's is 1 MiB: a longer one goes
//! in parts, and is answered when all of them are.

use std::fs;
use std::io::{self, BufReader, IoSlice, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use frontend::nbd::proto::transfer::{Command, REQUEST_LEN, RequestHeader, SimpleReply};
use frontend::nbd::proto::{CommandFlags, ErrorCode, TransmissionFlags};
use frontend::nbddev::{Control, Wish};

use crate::link::{self, Link, Op};
use crate::{Error, Options, Stop, spawn};

/// Has the number of the device, once there is one.
pub const DEVICE: &str = "nbd";

/// Longest transfer of an engine, in bytes.
const TRANSFER_MAX: u32 = 1 << 20;

/// What is read from the kernel at a time, in bytes.
const RECEIVE: usize = 64 << 10;

/// Where replies go.
type Replies = Arc<Mutex<UnixStream>>;

/// Where the answer to a request goes, or to a part of one.
pub enum Answer {
    /// To a request.
    Whole { to: Replies, cookie: u64 },
    /// To the part of it that begins with this byte.
    Part(Arc<Whole>, usize),
}

/// A request that goes in parts.
pub struct Whole {
    to: Replies,
    cookie: u64,
    /// What was read.
    data: Mutex<Vec<u8>>,
    left: AtomicUsize,
    /// The first part that failed.
    error: AtomicI32,
}

fn reply(to: &Replies, cookie: u64, result: Result<&[u8], i32>) {
    let (error, data) = match result {
        Ok(data) => (0, data),
        Err(errno) => (errno.unsigned_abs(), &[][..]),
    };
    let header = SimpleReply { error, cookie }.encode();
    let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
    let mut slices = [IoSlice::new(&header), IoSlice::new(data)];
    // The device is gone if this fails, which whoever reads from it sees.
    let _ = link::write_slices(&mut to, &mut slices);
}

impl link::Answer for Answer {
    fn done(self, result: Result<&[u8], i32>) {
        match self {
            Answer::Whole { to, cookie } => reply(&to, cookie, result),
            Answer::Part(whole, at) => whole.part(at, result),
        }
    }
}

impl Whole {
    fn part(&self, at: usize, result: Result<&[u8], i32>) {
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            // A write's or a flush's answer is empty.
            Ok(part) if !part.is_empty() => data[at..at + part.len()].copy_from_slice(part),
            Ok(_) => {}
            Err(errno) => {
                let _ = self.error.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        match self.error.load(Ordering::Acquire) {
            0 => reply(&self.to, self.cookie, Ok(&data)),
            errno => reply(&self.to, self.cookie, Err(errno)),
        }
    }
}

/// Makes the device, and serves it until it ends.
pub fn serve(
    link: &Arc<Link<Answer>>,
    options: &Options,
    block_size: u32,
    stop: &mpsc::Sender<Stop>,
) -> Result<(), Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Nbd)?;
    let (passes, to) = (link.clone(), ours.try_clone().map_err(Error::Nbd)?);
    // The kernel reads the device before it tells that there is one.
    let (tell, ended) = mpsc::channel();
    spawn("requests", move || {
        if let Err(e) = pass_on(&passes, ours, &Arc::new(Mutex::new(to))) {
            eprintln!("face: the device is not served any more: {e}");
        }
        let _ = tell.send(());
    })?;
    let mut flags = TransmissionFlags::HAS_FLAGS
        .with(TransmissionFlags::SEND_FLUSH)
        .with(TransmissionFlags::SEND_TRIM)
        .with(TransmissionFlags::SEND_WRITE_ZEROES);
    if options.read_only {
        flags = flags.with(TransmissionFlags::READ_ONLY);
    }
    let whose = options.directory.display().to_string();
    let size = link.size();
    let mut control = Control::open().map_err(Error::Nbd)?;
    let wish =
        Wish { size, block_size, flags: flags.0, identifier: &whose, socket: theirs.as_fd() };
    let index = control.connect(&wish).map_err(Error::Nbd)?;
    // The kernel has its own.
    drop(theirs);
    tell_device(&options.directory, index).map_err(Error::Nbd)?;
    let _ = stop.send(Box::new(move || {
        if let Err(e) = Control::open().and_then(|mut control| control.disconnect(index)) {
            eprintln!("face: the device is not disconnected: {e}");
        }
    }));
    let sizes = link.clone();
    spawn("size", move || {
        let mut known = size;
        loop {
            known = sizes.wait_resized(known);
            if let Err(e) = control.resize(index, &whose, known) {
                eprintln!("face: the device keeps its size: {e}");
            }
        }
    })?;
    // It may be disconnected by somebody else, too.
    let _ = ended.recv();
    Ok(())
}

/// Writes which device it is, all of it or nothing.
fn tell_device(directory: &Path, index: u32) -> io::Result<()> {
    let (new, place) = (directory.join("nbd.new"), directory.join(DEVICE));
    fs::write(&new, index.to_string())?;
    fs::rename(new, place)
}

/// Passes requests on until the kernel has no more.
fn pass_on(link: &Arc<Link<Answer>>, from: UnixStream, to: &Replies) -> io::Result<()> {
    // Short requests that have come meanwhile are read together.
    let mut from = BufReader::with_capacity(RECEIVE, from);
    let mut buf = Vec::new();
    loop {
        let mut header = [0; REQUEST_LEN];
        match from.read_exact(&mut header) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        }
        let header = RequestHeader::decode(&header);
        let RequestHeader { flags, command, cookie, offset, len } =
            header.ok_or_else(|| io::Error::other("a request without its magic"))?;
        let refuse = |error: ErrorCode| reply(to, cookie, Err(error.number() as i32));
        match command {
            Command::Read => submit(link, to, cookie, offset, len, true, |_| Op::Read),
            Command::Write => {
                buf.resize(len as usize, 0);
                from.read_exact(&mut buf)?;
                submit(link, to, cookie, offset, len, false, |part| {
                    Op::Write(link.copy(&buf[part]))
                });
            }
            Command::Flush => {
                link.submit(Op::Flush, 0, 0, Answer::Whole { to: to.clone(), cookie })
            }
            // A loop device's discard reads as zeroes, too.
            Command::Trim | Command::WriteZeroes => {
                let keep = command == Command::WriteZeroes && flags.contains(CommandFlags::NO_HOLE);
                let answer = Answer::Whole { to: to.clone(), cookie };
                link.submit(Op::Zeroes { keep }, offset, len, answer);
            }
            Command::Disc => return Ok(()),
            _ => refuse(ErrorCode::Inval),
        }
    }
}

/// Asks for a read or a write, in as many parts as it takes.
fn submit(
    link: &Arc<Link<Answer>>,
    to: &Replies,
    cookie: u64,
    offset: u64,
    len: u32,
    is_read: bool,
    op: impl Fn(std::ops::Range<usize>) -> Op,
) {
    if len <= TRANSFER_MAX {
        let answer = Answer::Whole { to: to.clone(), cookie };
        return link.submit(op(0..len as usize), offset, len, answer);
    }
    let whole = Arc::new(Whole {
        to: to.clone(),
        cookie,
        data: Mutex::new(vec![0; if is_read { len as usize } else { 0 }]),
        left: AtomicUsize::new(len.div_ceil(TRANSFER_MAX) as usize),
        error: AtomicI32::new(0),
    });
    let mut at = 0;
    while at < len {
        let part = TRANSFER_MAX.min(len - at);
        let (begin, end) = (at as usize, (at + part) as usize);
        let answer = Answer::Part(whole.clone(), begin);
        link.submit(op(begin..end), offset + u64::from(at), part, answer);
        at += part;
    }
}

#[cfg(test)]
mod tests;
