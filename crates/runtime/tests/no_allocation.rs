//! Proof that the I/O path does not allocate: with everything warmed up, a counting allocator
//! sees nothing while packets are sent and received, blocks written and read, and timers moved.

#![allow(clippy::unwrap_used, reason = "a test ends with the first surprise")]

use std::os::unix::net::UnixStream;
use std::time::Duration;

use runtime::counting::{Counting, allocations};
use runtime::{
    BufPool, Completed, Conn, DiskFile, DiskOptions, Payload, Received, Ring, Timers, Token, clock,
};
use vocab::Sector;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RX: Token = Token(1);
const TX: Token = Token(2);
const DISK: Token = Token(3);
const DEPTH: usize = 32;
const HEADER: usize = 40;

struct Rig {
    ring: Ring,
    pool: BufPool,
    near: Conn,
    far: Conn,
    disk: DiskFile,
    timers: Timers<u32>,
    events: Vec<Completed>,
}

impl Rig {
    /// Sends a batch of packets, receives it, writes every payload to disk and reads it back.
    fn round(&mut self, payload: usize) {
        for i in 0..DEPTH {
            self.near.tx.push_bytes(&[i as u8; HEADER]);
            let mut buf = self.pool.alloc(payload).unwrap();
            buf.as_mut_slice().unwrap().fill(i as u8);
            self.near.tx.push_buf(buf);
        }
        let (mut arrived, mut written, mut read, mut header_done) = (0, 0, 0, false);
        while read < DEPTH {
            while arrived < DEPTH {
                if !header_done {
                    let Some(header) = self.far.rx.peek(HEADER) else { break };
                    assert_eq!(header[HEADER - 1], arrived as u8);
                    self.far.rx.consume(HEADER);
                    header_done = true;
                }
                let Some(buf) = self.far.rx.take_payload(payload).unwrap() else { break };
                let sector = Sector((arrived * payload / 512) as u64);
                self.disk.write(&mut self.ring, DISK, sector, buf, false);
                (arrived, header_done) = (arrived + 1, false);
            }
            if arrived < DEPTH {
                self.far.rx.arm(&mut self.ring, RX);
            }
            self.near.tx.flush(&mut self.ring, TX);
            let now = self.ring.now();
            self.timers.arm(1, now + Duration::from_secs(5));
            let deadline = self.timers.next_deadline();
            self.ring.wait(deadline, &mut self.events).unwrap();
            for done in self.events.drain(..) {
                match (done.token, done.payload) {
                    (RX, payload) => {
                        let done = Completed { token: RX, result: done.result, payload };
                        assert_ne!(self.far.rx.on_completed(done), Ok(Received::End));
                    }
                    (TX, payload) => {
                        let done = Completed { token: TX, result: done.result, payload };
                        self.near.tx.on_completed(done, clock::now()).unwrap();
                    }
                    (_, Payload::Buf(buf)) => {
                        assert_eq!(done.result, Ok(payload as u32));
                        if written < DEPTH {
                            let sector = Sector((written * payload / 512) as u64);
                            self.disk.read(&mut self.ring, DISK, sector, buf);
                            written += 1;
                        } else {
                            read += 1;
                        }
                    }
                    (_, other) => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn the_io_path_does_not_allocate() {
    let pool = BufPool::new(64 << 20).unwrap();
    let (a, b) = UnixStream::pair().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8 << 20).unwrap();
    let mut rig = Rig {
        ring: Ring::new().unwrap(),
        near: Conn::new(a.into(), &pool).unwrap(),
        far: Conn::new(b.into(), &pool).unwrap(),
        disk: DiskFile::open(file.path(), DiskOptions::default()).unwrap(),
        timers: Timers::new(),
        events: Vec::new(),
        pool,
    };
    for payload in [4096, 512, 65536] {
        for _ in 0..50 {
            rig.round(payload);
        }
    }
    assert!(allocations() > 0, "the counter counts");
    // A batch longer than every one before makes a queue grow, once; timing decides when it
    // comes. What allocates per packet or block does so in every pass.
    let passes = std::array::from_fn::<u64, 5, _>(|_| {
        let before = allocations();
        for payload in [4096, 512, 65536] {
            for _ in 0..30 {
                rig.round(payload);
            }
        }
        allocations() - before
    });
    assert!(passes.contains(&0) && passes.iter().sum::<u64>() < 8, "{passes:?}");
}
