//! Whatever an NBD client sends: no panic, no request lost, and memory within the limits.
//!
//! The input is the client's byte stream from its flags on; the first byte says in pieces of
//! which size it arrives.
#![no_main]

use frontend::nbd::handshake::{self, Handshake, RefuseReason};
use frontend::nbd::session::{self, Job, Replies, Session};
use frontend::nbd::{Catalogue, ExportInfo};
use libfuzzer_sys::fuzz_target;
use runtime::{Buf, BufPool, Intent, MemoryTarget, Op, OpenerId, Request, Target, TargetInfo};
use vocab::Bytes;

const OPENER: OpenerId = OpenerId(1);

struct One;

impl Catalogue for One {
    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("r0", "fuzzed");
    }

    fn knows(&self, name: &str) -> bool {
        name == "r0"
    }
}

/// Counts what is sent.
#[derive(Default)]
struct Count(usize);

impl Replies for Count {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn data(&mut self, data: Buf) {
        self.0 += data.len();
    }
}

thread_local! {
    static POOL: BufPool = BufPool::new(64 << 20).expect("address space");
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, stream)) = input.split_first() else { return };
    let size = usize::from(size) + 1;
    POOL.with(|pool| connection(pool, size, stream));
});

/// One connection: negotiation, then transmission.
fn connection(pool: &BufPool, size: usize, stream: &[u8]) {
    let info = TargetInfo { max_transfer: 4096, ..MemoryTarget::new(Bytes(1 << 20)).info() };
    let export = ExportInfo { name: "r0", description: "fuzzed", target: info, read_only: false };
    let (mut handshake, mut out) = (Handshake::new(), Vec::new());
    let mut at = 0;
    while at < stream.len() {
        let piece = &stream[at..(at + size).min(stream.len())];
        let Ok((used, event)) = handshake.receive(piece, &One, &mut out) else { return };
        assert!(used > 0 || event.is_some(), "a negotiation always takes what it is given");
        at += used;
        match event {
            None => {}
            Some(handshake::Event::Describe { .. }) if size % 2 == 0 => {
                handshake.describe(&export, &mut out);
            }
            Some(handshake::Event::Describe { .. }) => {
                let refused = handshake.refuse(RefuseReason::Policy, "busy", &mut out);
                assert!(refused.is_ok(), "only EXPORT_NAME can not be refused");
            }
            Some(handshake::Event::Abort) => return,
            Some(handshake::Event::Open { .. }) => {
                assert!(out.len() < 1 << 20);
                let session = handshake.accept(&export, &mut out);
                return transmission(pool, size, &stream[at..], session, info);
            }
        }
    }
}

fn transmission(
    pool: &BufPool,
    size: usize,
    mut stream: &[u8],
    mut session: Session,
    info: TargetInfo,
) {
    let mut target = MemoryTarget::with_info(info);
    target.open(OPENER, Intent::Write, u64::MAX);
    let (mut sent, mut done) = (Count::default(), Vec::new());
    target.poll_completions(&mut done);
    done.clear();
    let mut turn = 0usize;
    while !stream.is_empty() {
        let piece = &stream[..size.min(stream.len())];
        let Ok((used, event)) = session.receive(piece, &mut sent) else { break };
        stream = &stream[used..];
        turn += 1;
        match event {
            Some(session::Event::Job(job)) => {
                for index in 0..job.parts() {
                    let part = job.part(index);
                    let buf = (job.op == Op::Read)
                        .then(|| pool.alloc(part.len as usize).expect("the pool is large"));
                    submit(&mut target, &job, index, buf);
                }
            }
            Some(session::Event::Payload(job)) => {
                for index in 0..job.parts() {
                    let len = job.part(index).len as usize;
                    if stream.len() < len {
                        return;
                    }
                    let buf = pool.copy_from(&stream[..len]).expect("the pool is large");
                    stream = &stream[len..];
                    session.payload_taken(len as u32);
                    submit(&mut target, &job, index, Some(buf));
                }
            }
            Some(session::Event::Disconnect) => break,
            None if used == 0 => {
                assert_eq!(session.in_flight(), session::MAX_REQUESTS, "else it would go on");
                complete(&mut session, &mut target, &mut sent);
            }
            None => {}
        }
        if turn.is_multiple_of(size) {
            complete(&mut session, &mut target, &mut sent);
        }
    }
    complete(&mut session, &mut target, &mut sent);
    assert!(session.in_flight() <= 1, "only a write whose payload never came is left");
}

fn submit(target: &mut MemoryTarget, job: &Job, index: u32, buf: Option<Buf>) {
    let part = job.part(index);
    let (tag, offset, len) = (part.tag, part.offset, part.len);
    target.submit(Request {
        opener: OPENER,
        tag,
        op: job.op,
        offset,
        len,
        fua: job.fua,
        buf,
        place: None,
    });
}

fn complete(session: &mut Session, target: &mut MemoryTarget, sent: &mut Count) {
    let mut done = Vec::new();
    target.poll_completions(&mut done);
    for completion in done {
        assert!(completion.result.is_ok(), "the session checks what the target would refuse");
        if let Some(job) = session.complete(completion, sent) {
            submit(target, &job, 0, None);
        }
    }
}
