//! A connection between two agents that ship a snapshot: TLS 1.3 over TCP, with deadlines.
//!
//! ```text
//! sender    "ASHLARSH" version (2, little-endian) secret (64)              once
//! receiver  'O'                                                            it is the one that is waited for
//! sender    for each volume: length (4, little-endian) so many bytes … 0   an archive (`shipping::archive`)
//! sender    0xFFFFFFFE                                                     that was all
//! receiver  'D', or 'F' length (2) text                                    it is there, or why it is not
//! ```
//!
//! Who has nothing to say for a while says so: the sender by the length 0xFFFFFFFF, the receiver by `.`. So
//! silence means that the other end, or the way there, is dead, however long a disk takes.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use shipping::s3;

/// Begins what a sender says.
const MAGIC: [u8; 8] = *b"ASHLARSH";
/// The version that is spoken, and the only one.
const VERSION: u16 = 1;
/// Characters of a secret.
pub const SECRET: usize = 64;
/// Bytes of a greeting.
pub const GREETING: usize = 8 + 2 + SECRET;
/// Most bytes of a part of an archive: a receiver needs so much memory.
const PART: usize = 64 << 10;
/// Instead of a length: nothing, but the sender lives.
const NOTHING: u32 = u32::MAX;
/// Instead of a length: everything was sent.
const ALL: u32 = u32::MAX - 1;
/// Most bytes that a receiver says.
const SAID: usize = 2048;
/// How long it is waited at a time before anything else is looked at.
const TICK: Duration = Duration::from_millis(250);
/// After how long who is busy says that it lives.
const BEAT: Duration = Duration::from_secs(5);
/// After how long of nothing the other end is given up.
const SILENCE: Duration = Duration::from_secs(120);
/// How long the last words may take.
const PARTING: Duration = Duration::from_secs(5);

/// What a sender says first.
pub fn greeting(secret: &str) -> Option<[u8; GREETING]> {
    let mut bytes = [0; GREETING];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    (secret.len() == SECRET).then(|| bytes[10..].copy_from_slice(secret.as_bytes()))?;
    Some(bytes)
}

/// One end of the connection.
pub struct Line {
    tls: Connection,
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    /// When something last came or went.
    moved: Instant,
    /// When the other end was last told that this one lives.
    told: Instant,
    /// The other end says no more.
    ended: bool,
    /// What a receiver has said, at the sender's end; none at the receiver's.
    said: Option<Vec<u8>>,
}

fn lost(why: &str) -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, why.to_owned())
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_owned())
}

impl Line {
    /// A connection that is there; `sends` if this is the sender's end.
    ///
    /// # Errors
    /// If the socket can not be set up.
    pub fn new(
        tls: Connection,
        socket: TcpStream,
        sends: bool,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Line> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let now = Instant::now();
        let said = sends.then(Vec::new);
        Ok(Line { tls, socket, stop, moved: now, told: now, ended: false, said })
    }

    /// Moves what can be moved without waiting. True if that was anything.
    fn turn(&mut self) -> io::Result<bool> {
        let mut any = false;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(lost("the other end takes nothing any more")),
                Ok(_) => any = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // What it has said before may say why.
                    let _ = self.take_in();
                    return Err(error);
                }
            }
        }
        any |= self.take_in()?;
        if any {
            self.moved = Instant::now();
        }
        Ok(any)
    }

    /// Takes what has come, as far as there is room for it.
    fn take_in(&mut self) -> io::Result<bool> {
        let mut any = false;
        while !self.ended && self.tls.wants_read() {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => self.ended = true,
                Ok(_) => {
                    any = true;
                    self.tls.process_new_packets().map_err(|error| wrong(&error.to_string()))?;
                    self.listen()?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }

    /// Keeps what a receiver says, without its signs of life.
    fn listen(&mut self) -> io::Result<()> {
        let Some(said) = &mut self.said else { return Ok(()) };
        let mut bytes = [0; 256];
        loop {
            match self.tls.reader().read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    for byte in &bytes[..count] {
                        // It lives; in a text it is a dot. What begins after the welcome may come with it.
                        if *byte != b'.' || !matches!(said.as_slice(), [] | [b'O']) {
                            said.push(*byte);
                        }
                    }
                    if said.len() > SAID + 3 {
                        return Err(wrong("the receiver says more than there is to say"));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // That it has closed is seen when its words are looked at.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Waits for a moment until something can be moved.
    fn wait(&mut self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(s3::Error::Stopped.into());
        }
        if self.moved.elapsed() >= SILENCE {
            let text = format!("nothing was heard for {} seconds", SILENCE.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        let mut flags = PollFlags::empty();
        if self.tls.wants_write() {
            flags |= PollFlags::OUT;
        }
        if !self.ended && self.tls.wants_read() {
            flags |= PollFlags::IN;
        }
        if flags.is_empty() {
            std::thread::sleep(TICK);
            return Ok(());
        }
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The handshake, and what is said first, have to be over by then.
    fn step(&mut self, until: Instant) -> io::Result<()> {
        // One that trickles has no more time than one that is silent.
        if Instant::now() >= until {
            return Err(io::Error::new(ErrorKind::TimedOut, "it was not over in time"));
        }
        if !self.turn()? {
            self.wait()?;
        }
        Ok(())
    }

    /// Says who this is, and waits until it is taken.
    ///
    /// # Errors
    /// If it is not, in time.
    pub fn greet(&mut self, greeting: &[u8; GREETING], until: Instant) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.step(until)?;
            if self.ended {
                return Err(lost("it has closed the connection"));
            }
        }
        self.write_all(greeting)?;
        self.flush()?;
        loop {
            match self.said.as_deref() {
                Some([b'O', more @ ..]) => {
                    self.said = Some(more.to_vec());
                    return Ok(());
                }
                Some([]) if !self.ended => self.step(until)?,
                Some([]) => return Err(lost("it has closed the connection")),
                _ => return Err(wrong("it answers what is not understood")),
            }
        }
    }

    /// What somebody says first, in so many bytes.
    ///
    /// # Errors
    /// If that does not come in time.
    pub fn greeted(&mut self, until: Instant) -> io::Result<[u8; GREETING]> {
        let (mut bytes, mut have) = ([0; GREETING], 0);
        while have < GREETING {
            match self.tls.reader().read(&mut bytes[have..]) {
                Ok(0) => return Err(lost("it has closed the connection")),
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.ended {
                        return Err(lost("it has closed the connection"));
                    }
                    self.step(until)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Says that it is the one that was waited for.
    ///
    /// # Errors
    /// If it has gone.
    pub fn welcome(&mut self, stop: Arc<AtomicBool>) -> io::Result<()> {
        self.stop = stop;
        self.write_all(b"O")?;
        self.flush()
    }

    /// Says that this end lives, if it has said nothing for a while.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn beat(&mut self) -> io::Result<()> {
        if self.told.elapsed() >= BEAT {
            self.told = Instant::now();
            let sends = self.said.is_some();
            let sign = if sends { &NOTHING.to_le_bytes()[..] } else { b"." };
            // Whoever does not take it is seen by what else is sent, or not received.
            if self.tls.wants_write() {
                self.turn()?;
            } else {
                self.tls.writer().write_all(sign)?;
                self.turn()?;
            }
        }
        self.heard()
    }

    /// An error if the receiver has said by now that it fails.
    fn heard(&self) -> io::Result<()> {
        match self.said.as_deref() {
            // The second only while the welcome is waited for: what comes behind it is looked at then.
            None | Some([] | [b'O', ..]) => Ok(()),
            Some(_) => Err(lost("the receiver has given it up")),
        }
    }

    /// Says that everything was sent, and waits for what the receiver makes of it.
    ///
    /// # Errors
    /// If it fails there, or is not known to have ended well.
    pub fn finish(&mut self) -> io::Result<()> {
        self.write_all(&ALL.to_le_bytes())?;
        self.flush()?;
        while self.said.as_deref().is_some_and(<[u8]>::is_empty) {
            if self.ended {
                return Err(lost("the connection was lost before its end"));
            }
            if !self.turn()? {
                self.wait()?;
            }
        }
        match self.said.as_deref() {
            Some([b'D', ..]) => Ok(()),
            _ => Err(lost("the receiver has given it up")),
        }
    }

    /// Why the receiver has given up, if it says so. What is on its way is waited for shortly.
    pub fn verdict(&mut self) -> Option<String> {
        let until = Instant::now() + PARTING;
        loop {
            if let Some([b'F', low, high, text @ ..]) = self.said.as_deref() {
                let length = usize::from(u16::from_le_bytes([*low, *high]));
                if let Some(text) = text.get(..length) {
                    let text = String::from_utf8_lossy(text);
                    return Some(text.chars().filter(|c| !c.is_control()).collect());
                }
            }
            let over = self.ended || Instant::now() >= until;
            if over || self.take_in().is_err() {
                return None;
            }
            if self.wait().is_err() {
                return None;
            }
        }
    }

    /// Waits for the sender's last word.
    ///
    /// # Errors
    /// If something else comes.
    pub fn all_came(&mut self) -> io::Result<()> {
        loop {
            let mut length = [0; 4];
            self.read_exact(&mut length)?;
            match u32::from_le_bytes(length) {
                NOTHING => {}
                ALL => return Ok(()),
                _ => return Err(wrong("more comes than the volumes that are received")),
            }
        }
    }

    /// Says what has become of it, and waits shortly until that has arrived.
    pub fn part(&mut self, failed: Option<&str>) {
        let mut words = match failed {
            None => b"D".to_vec(),
            Some(text) => {
                let mut end = text.len().min(SAID);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let length = u16::try_from(end).unwrap_or_default();
                let mut words = b"F".to_vec();
                words.extend(length.to_le_bytes());
                words.extend(&text.as_bytes()[..end]);
                words
            }
        };
        // Also one that was stopped says so.
        self.stop = Arc::default();
        let until = Instant::now() + PARTING;
        let mut waste = [0; 4096];
        loop {
            if !words.is_empty() {
                match self.tls.writer().write(&words) {
                    Ok(count) => drop(words.drain(..count)),
                    Err(_) => return,
                }
                if words.is_empty() {
                    self.tls.send_close_notify();
                }
            }
            // What still comes is thrown away: a connection that is closed with data in it is reset, and
            // the words would be lost.
            while matches!(self.tls.reader().read(&mut waste), Ok(1..)) {}
            let moved = self.turn();
            if self.ended || Instant::now() >= until {
                return;
            }
            match moved {
                Err(_) => return,
                Ok(true) => {}
                Ok(false) if self.wait().is_err() => return,
                Ok(false) => {}
            }
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let taken = self.tls.writer().write(bytes)?;
            if taken > 0 || bytes.is_empty() {
                self.turn()?;
                self.heard()?;
                return Ok(taken);
            }
            if !self.turn()? {
                self.wait()?;
            }
            self.heard()?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if !self.turn()? {
                self.wait()?;
            }
        }
        Ok(())
    }
}

impl Read for Line {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(to) {
                Ok(0) if !to.is_empty() => {
                    return Err(lost("the sender has given it up, or has failed"));
                }
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.ended {
                        return Err(lost("the connection was lost before its end"));
                    }
                    if !self.turn()? {
                        self.wait()?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(lost("the connection was lost before its end"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// An archive on its way to the other end.
pub struct Parts {
    line: Rc<RefCell<Line>>,
}

impl Parts {
    /// None yet.
    pub fn new(line: Rc<RefCell<Line>>) -> Parts {
        Parts { line }
    }

    /// Says that the archive ends here.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn end(self) -> io::Result<()> {
        let mut line = self.line.borrow_mut();
        line.write_all(&0u32.to_le_bytes())?;
        line.flush()
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(PART)];
        if !bytes.is_empty() {
            let mut line = self.line.borrow_mut();
            line.write_all(&u32::try_from(bytes.len()).unwrap_or_default().to_le_bytes())?;
            line.write_all(bytes)?;
            line.told = Instant::now();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.line.borrow_mut().flush()
    }
}

/// An archive that comes from the other end; it ends where the sender says that it does.
pub struct Coming {
    line: Rc<RefCell<Line>>,
    left: usize,
    over: bool,
}

impl Coming {
    /// The next one.
    pub fn new(line: Rc<RefCell<Line>>) -> Coming {
        Coming { line, left: 0, over: false }
    }
}

impl Read for Coming {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() || self.over {
            return Ok(0);
        }
        let mut line = self.line.borrow_mut();
        while self.left == 0 {
            let mut length = [0; 4];
            line.read_exact(&mut length)?;
            match u32::from_le_bytes(length) {
                NOTHING => {}
                0 => {
                    self.over = true;
                    return Ok(0);
                }
                length if length as usize <= PART => self.left = length as usize,
                _ => return Err(wrong("a part of an archive is too large")),
            }
        }
        let most = self.left.min(to.len());
        let count = line.read(&mut to[..most])?;
        self.left -= count;
        Ok(count)
    }
}
