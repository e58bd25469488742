//! Scripted transmission phases over a target in memory, byte for byte, and hostile ones.

use std::collections::BTreeMap;

use runtime::{BufPool, FaultPlan, FaultyTarget, Intent, MemoryTarget, OpenerId, Request, Target};
use vocab::Bytes;

use super::*;
use crate::nbd::proto::MAX_OPTION_LEN;
use crate::nbd::proto::tests::hex;
use crate::nbd::proto::transfer::{CHUNK_HEADER_LEN, ChunkHeader, SIMPLE_REPLY_LEN};

const OPENER: OpenerId = OpenerId(7);
const SIZE: u64 = 1 << 20;
/// All that [`MemoryTarget`] offers, with structured replies.
const FLAGS: TransmissionFlags = TransmissionFlags(0x01ed);
const SIMPLE_FLAGS: TransmissionFlags = TransmissionFlags(0x016d);
/// What most clients select.
const ALLOCATION: Contexts = Contexts { allocation: true, ..Contexts::NONE };

/// Everything sent, in order.
#[derive(Default)]
struct Sent(Vec<u8>);

impl Replies for Sent {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn data(&mut self, data: Buf) {
        self.0.extend_from_slice(&data);
    }
}

/// A session with its target and a driver that does what the events ask for.
struct Rig {
    session: Session,
    target: FaultyTarget<MemoryTarget>,
    pool: BufPool,
    sent: Sent,
    disconnected: bool,
}

impl Rig {
    fn new(flags: TransmissionFlags, part_max: u32) -> Rig {
        Rig::with_plan(flags, part_max, FaultPlan::none(1))
    }

    fn with_plan(flags: TransmissionFlags, part_max: u32, plan: FaultPlan) -> Rig {
        let info =
            runtime::TargetInfo { max_transfer: part_max, ..MemoryTarget::new(Bytes(SIZE)).info() };
        let mut target = FaultyTarget::new(MemoryTarget::with_info(info), plan);
        target.open(OPENER, Intent::Write, u64::MAX);
        let mut opened = Vec::new();
        (0..100).for_each(|_| target.poll_completions(&mut opened));
        assert!(opened[0].result.is_ok());
        let read_only = flags.contains(TransmissionFlags::READ_ONLY);
        let export = ExportInfo { name: "r0", description: "", target: info, read_only };
        let structured = flags.contains(TransmissionFlags::SEND_DF);
        let contexts = if structured { ALLOCATION } else { Contexts::NONE };
        Rig {
            session: Session::new(&export, flags, (structured, false), contexts),
            target,
            pool: BufPool::new(64 << 20).unwrap(),
            sent: Sent::default(),
            disconnected: false,
        }
    }

    fn submit(&mut self, job: &Job, part: Part, buf: Option<Buf>) {
        let Part { tag, offset, len } = part;
        let request = Request {
            opener: OPENER,
            tag,
            op: job.op,
            offset,
            len,
            fua: job.fua,
            buf,
            place: None,
        };
        self.target.submit(request);
    }

    /// Feeds `input` in pieces of `size`, submitting what comes of it.
    fn feed(&mut self, input: &[u8], size: usize) -> Result<(), Violation> {
        let mut payload: Option<(Job, u32, Vec<u8>)> = None;
        for piece in input.chunks(size) {
            let mut rest = piece;
            while !rest.is_empty() {
                if let Some((job, index, mut data)) = payload.take() {
                    let part = job.part(index);
                    let n = rest.len().min(part.len as usize - data.len());
                    data.extend_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    self.session.payload_taken(n as u32);
                    if data.len() < part.len as usize {
                        payload = Some((job, index, data));
                        continue;
                    }
                    let buf = self.pool.copy_from(&data).unwrap();
                    self.submit(&job, part, Some(buf));
                    if index + 1 < job.parts() {
                        payload = Some((job, index + 1, Vec::new()));
                    }
                    continue;
                }
                let (used, event) = self.session.receive(rest, &mut self.sent)?;
                rest = &rest[used..];
                match event {
                    Some(Event::Job(job)) => {
                        for index in 0..job.parts() {
                            let part = job.part(index);
                            let buf = (job.op == Op::Read)
                                .then(|| self.pool.alloc(part.len as usize).unwrap());
                            self.submit(&job, part, buf);
                        }
                    }
                    Some(Event::Payload(job)) => payload = Some((job, 0, Vec::new())),
                    Some(Event::Disconnect) => self.disconnected = true,
                    None if used == 0 => return Ok(()),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn complete(&mut self) {
        let mut done = Vec::new();
        self.target.poll_completions(&mut done);
        for completion in done {
            if let Some(job) = self.session.complete(completion, &mut self.sent) {
                self.submit(&job, job.part(0), None);
            }
        }
    }

    /// Sends `input` and returns what came back.
    fn talk(&mut self, input: &[u8]) -> Vec<u8> {
        self.feed(input, usize::MAX).unwrap();
        self.complete();
        std::mem::take(&mut self.sent.0)
    }
}

fn request(flags: CommandFlags, command: Command, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    RequestHeader { flags, command, cookie, offset, len }.encode().to_vec()
}

fn plain(command: Command, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    request(CommandFlags::NONE, command, cookie, offset, len)
}

fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [plain(Command::Write, cookie, offset, data.len() as u32), data.to_vec()].concat()
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    SimpleReply { error, cookie }.encode().to_vec()
}

#[test]
fn what_is_written_is_read_back_with_simple_replies() {
    let mut rig = Rig::new(SIMPLE_FLAGS, 1 << 20);
    assert_eq!(rig.talk(&write(0xa1, 4096, &[0x5a; 512])), simple(0, 0xa1));
    let read = rig.talk(&plain(Command::Read, 0xa2, 4096, 1024));
    assert_eq!(read, [simple(0, 0xa2), vec![0x5a; 512], vec![0; 512]].concat());
}

#[test]
fn structured_reads_are_one_chunk_and_writes_a_simple_reply() {
    let mut rig = Rig::new(FLAGS, 1 << 20);
    assert_eq!(rig.talk(&write(0xa1, 512, &[0x5a; 512])), simple(0, 0xa1));
    for flags in [CommandFlags::NONE, CommandFlags::DF] {
        let read = rig.talk(&request(flags, Command::Read, 0xa2, 512, 512));
        let head = hex("668e33ef 0001 0001 00000000000000a2 00000208 0000000000000200");
        assert_eq!(read, [head, vec![0x5a; 512]].concat());
    }
}

#[test]
fn flush_trim_and_write_zeroes_reach_the_target() {
    let mut rig = Rig::new(FLAGS, 1 << 20);
    rig.talk(&write(1, 0, &[0xff; 16384]));
    let script = [
        plain(Command::Flush, 2, 0, 0),
        request(CommandFlags::FUA, Command::Trim, 3, 0, 4096),
        request(CommandFlags::NO_HOLE, Command::WriteZeroes, 4, 8192, 4096),
    ];
    assert_eq!(rig.talk(&script.concat()), [simple(0, 2), simple(0, 3), simple(0, 4)].concat());
    assert_eq!(rig.target.inner().flushes(), 1);
    let status = rig.talk(&plain(Command::BlockStatus, 5, 0, 1 << 20));
    let want = hex("668e33ef 0001 0005 0000000000000005 0000001c 00000001
         00001000 00000003  00003000 00000000  000fc000 00000003");
    assert_eq!(status, want);
    let one = rig.talk(&request(CommandFlags::REQ_ONE, Command::BlockStatus, 6, 4096, 8192));
    let want = hex("668e33ef 0001 0005 0000000000000006 0000000c 00000001 00002000 00000000");
    assert_eq!(one, want);
}

/// Answers the job of a block status with runs of these kinds, each of 4 KiB.
fn status(session: &mut Session, job: Job, kinds: &[ExtentKind]) -> (Vec<u8>, Option<Job>) {
    let extents = kinds.iter().map(|kind| runtime::Extent { len: 4096, kind: *kind }).collect();
    let done = Completion::new(OPENER, job.part(0).tag, Ok(()));
    let mut sent = Sent::default();
    let next = session.complete(Completion { extents: Some(extents), ..done }, &mut sent);
    (sent.0, next)
}

#[test]
fn a_block_status_tells_of_every_context_that_was_selected_one_after_the_other() {
    use ExtentKind::{Hole, OutOfSync, Plain};
    let info = MemoryTarget::new(Bytes(SIZE)).info();
    let export = ExportInfo { name: "r0", description: "", target: info, read_only: false };
    let begin = |contexts| {
        let mut session = Session::new(&export, FLAGS, (true, false), contexts);
        let request = plain(Command::BlockStatus, 5, 0, 16384);
        let (_, event) = session.receive(&request, &mut Sent::default()).unwrap();
        let Some(Event::Job(job)) = event else { panic!("one job: {event:?}") };
        (session, job)
    };
    let (mut session, job) = begin(Contexts::ALL);
    assert_eq!((job.op, job.len), (Op::BlockStatus(Aspect::Allocation), 16384));
    assert!(session.freeze().is_none(), "it is in flight");
    let (sent, next) = status(&mut session, job, &[Hole, Plain, Plain, Plain]);
    let first = hex("668e33ef 0000 0005 0000000000000005 00000014 00000001
         00001000 00000003  00003000 00000000");
    assert_eq!(sent, first);
    let next = next.expect("there is another context");
    let same = Job { op: Op::BlockStatus(Aspect::OutOfSync), ..job };
    assert_eq!(next, same);
    let (sent, next) = status(&mut session, next, &[OutOfSync, OutOfSync, Plain]);
    let last = hex("668e33ef 0001 0005 0000000000000005 00000014 00000002
         00002000 00000001  00001000 00000000");
    assert_eq!((sent, next), (last, None));
    assert_eq!(session.in_flight(), 0);
    // It stays selected in another process.
    let (frozen, _) = session.freeze().unwrap();
    assert_eq!(Session::thaw(&frozen).contexts, Contexts::ALL);

    let (mut session, job) = begin(Contexts { out_of_sync: true, ..Contexts::NONE });
    assert_eq!(job.op, Op::BlockStatus(Aspect::OutOfSync));
    let (sent, next) = status(&mut session, job, &[Plain, Plain, Plain, OutOfSync]);
    let alone = hex("668e33ef 0001 0005 0000000000000005 00000014 00000002
         00003000 00000000  00001000 00000001");
    assert_eq!((sent, next), (alone, None));

    // An error ends it, behind what has been said.
    let (mut session, job) = begin(Contexts::ALL);
    let (_, next) = status(&mut session, job, &[Plain]);
    let failed = Completion::new(OPENER, next.unwrap().part(0).tag, Err(Errno::EIO));
    let mut sent = Sent::default();
    assert_eq!(session.complete(failed, &mut sent), None);
    assert_eq!(sent.0[..8], hex("668e33ef 0001 8001"));
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn refused_requests_change_nothing_and_say_why() {
    let read_only = TransmissionFlags(0x018f);
    let (end, fua) = (SIZE, CommandFlags::FUA);
    let none = CommandFlags::NONE;
    let cases = [
        (FLAGS, none, Command::Read, end, 512, ErrorCode::Inval),
        (FLAGS, none, Command::Read, end - 512, 1024, ErrorCode::Inval),
        (FLAGS, none, Command::Read, u64::MAX - 511, 512, ErrorCode::Inval),
        (FLAGS, none, Command::Write, end - 512, 1024, ErrorCode::NoSpc),
        (FLAGS, none, Command::WriteZeroes, end, 512, ErrorCode::NoSpc),
        (FLAGS, none, Command::Trim, end, 512, ErrorCode::Inval),
        (FLAGS, none, Command::BlockStatus, end, 512, ErrorCode::Inval),
        (FLAGS, none, Command::BlockStatus, 0, 0, ErrorCode::Inval),
        (FLAGS, none, Command::Read, 1, 512, ErrorCode::Inval),
        (FLAGS, none, Command::Write, 0, 100, ErrorCode::Inval),
        (FLAGS, none, Command::Cache, 0, 512, ErrorCode::Inval),
        (FLAGS, none, Command::Resize, 0, 0, ErrorCode::Inval),
        (FLAGS, none, Command::Unknown(77), 0, 512, ErrorCode::Inval),
        (FLAGS, none, Command::Flush, 512, 0, ErrorCode::Inval),
        (FLAGS, CommandFlags::DF, Command::Write, 0, 512, ErrorCode::Inval),
        (FLAGS, CommandFlags(1 << 9), Command::Read, 0, 512, ErrorCode::Inval),
        (FLAGS, CommandFlags::FAST_ZERO, Command::WriteZeroes, 0, 512, ErrorCode::Inval),
        (SIMPLE_FLAGS, CommandFlags::DF, Command::Read, 0, 512, ErrorCode::Inval),
        (SIMPLE_FLAGS, none, Command::BlockStatus, 0, 512, ErrorCode::Inval),
        (TransmissionFlags(0x0001), fua, Command::Write, 0, 512, ErrorCode::Inval),
        (TransmissionFlags(0x0001), none, Command::Flush, 0, 0, ErrorCode::Inval),
        (TransmissionFlags(0x0001), none, Command::Trim, 0, 512, ErrorCode::Inval),
        (TransmissionFlags(0x0001), none, Command::WriteZeroes, 0, 512, ErrorCode::Inval),
        (read_only, none, Command::Write, 0, 512, ErrorCode::Perm),
        (read_only, none, Command::WriteZeroes, 0, 512, ErrorCode::Perm),
        (read_only, none, Command::Trim, 0, 512, ErrorCode::Perm),
    ];
    for (server, flags, command, offset, len, want) in cases {
        let mut rig = Rig::new(server, 1 << 20);
        let mut input = request(flags, command, 9, offset, len);
        if command == Command::Write {
            input.resize(input.len() + len as usize, 0xee);
        }
        // The payload of a refused write is skipped: what follows is understood.
        input.extend(plain(Command::Read, 10, 0, 512));
        let out = rig.talk(&input);
        let case = format!("{command:?} {offset}+{len}");
        let structured = server.contains(TransmissionFlags::SEND_DF);
        let rest = if structured {
            let header = ChunkHeader::decode(out[..20].try_into().unwrap()).unwrap();
            assert_eq!((header.done, header.number, header.cookie), (true, 0x8001, 9), "{case}");
            assert_eq!(out[20..24], want.number().to_be_bytes(), "{case}");
            assert!(header.len > 6, "{case}: there is a text");
            out[20 + header.len as usize + 28..].to_vec()
        } else {
            assert_eq!(out[..16], simple(want.number(), 9), "{case}");
            out[32..].to_vec()
        };
        assert_eq!(rest, [0; 512], "{case}");
        assert_eq!(rig.session.in_flight(), 0);
    }
}

#[test]
fn reads_have_a_limit_and_longer_writes_end_the_connection() {
    let big = runtime::TargetInfo { size: Bytes(1 << 40), ..MemoryTarget::new(Bytes(SIZE)).info() };
    for (flags, want) in [(FLAGS, ErrorCode::Overflow), (SIMPLE_FLAGS, ErrorCode::Inval)] {
        let export = ExportInfo { name: "", description: "", target: big, read_only: false };
        let structured = flags.contains(TransmissionFlags::SEND_DF);
        let mut session = Session::new(&export, flags, (structured, false), Contexts::NONE);
        let mut sent = Sent::default();
        let read = plain(Command::Read, 1, 0, MAX_PAYLOAD + 512);
        assert_eq!(session.receive(&read, &mut sent), Ok((REQUEST_LEN, None)));
        let at = if structured { 20 } else { 4 };
        assert_eq!(sent.0[at..at + 4], want.number().to_be_bytes());
        let zeroes = plain(Command::WriteZeroes, 1, 0, u32::MAX - 511);
        let (_, event) = session.receive(&zeroes, &mut sent).unwrap();
        assert!(matches!(event, Some(Event::Job(job)) if job.parts() == 1));
        let write = plain(Command::Write, 1, 0, MAX_PAYLOAD + 1);
        let got = session.receive(&write, &mut sent);
        assert_eq!(got, Err(Violation::PayloadTooLong(u64::from(MAX_PAYLOAD) + 1)));
    }
    let mut rig = Rig::new(FLAGS, 1 << 20);
    assert_eq!(rig.feed(&[0x25; 28], 28), Err(Violation::RequestMagic));
}

#[test]
fn empty_requests_succeed_and_do_nothing() {
    let mut rig = Rig::new(FLAGS, 1 << 20);
    assert_eq!(rig.talk(&plain(Command::Write, 1, 512, 0)), simple(0, 1));
    assert_eq!(rig.talk(&plain(Command::Trim, 2, SIZE, 0)), simple(0, 2));
    let none = hex("668e33ef 0001 0000 0000000000000003 00000000");
    assert_eq!(rig.talk(&plain(Command::Read, 3, 0, 0)), none);
    let mut rig = Rig::new(SIMPLE_FLAGS, 1 << 20);
    assert_eq!(rig.talk(&plain(Command::Read, 3, 0, 0)), simple(0, 3));
}

/// Splits a stream of structured and simple replies: cookie to (content by offset, errors).
fn collect(mut out: &[u8]) -> BTreeMap<u64, (Vec<u8>, Vec<u32>, u32)> {
    let mut replies: BTreeMap<u64, (Vec<u8>, Vec<u32>, u32)> = BTreeMap::new();
    while !out.is_empty() {
        if let Some(reply) = SimpleReply::decode(out[..SIMPLE_REPLY_LEN].try_into().unwrap()) {
            let entry = replies.entry(reply.cookie).or_default();
            entry.2 += 1;
            if reply.error != 0 {
                entry.1.push(reply.error);
            }
            out = &out[SIMPLE_REPLY_LEN..];
            continue;
        }
        let (head, rest) = out.split_at(CHUNK_HEADER_LEN);
        let header = ChunkHeader::decode(head.try_into().unwrap()).unwrap();
        let (body, rest) = rest.split_at(header.len as usize);
        let entry = replies.entry(header.cookie).or_default();
        assert_eq!(entry.2, 0, "nothing follows the last chunk");
        match header.number {
            1 => {
                let offset = u64::from_be_bytes(body[..8].try_into().unwrap()) as usize;
                entry.0.resize(entry.0.len().max(offset + body.len() - 8), 0xcc);
                entry.0[offset..offset + body.len() - 8].copy_from_slice(&body[8..]);
            }
            0 | 5 => {}
            _ => entry.1.push(u32::from_be_bytes(body[..4].try_into().unwrap())),
        }
        entry.2 += u32::from(header.done);
        out = rest;
    }
    replies
}

#[test]
fn long_requests_are_carried_out_in_parts() {
    let data: Vec<u8> = (0..40960u32).map(|i| (i / 512) as u8 ^ i as u8).collect();
    for flags in [FLAGS, SIMPLE_FLAGS] {
        // 5000 is no multiple of the block size: parts are of 4608 bytes.
        let mut rig = Rig::new(flags, 5000);
        assert_eq!(rig.talk(&write(1, 0, &data)), simple(0, 1));
        let mut there = vec![0; data.len()];
        rig.target.inner().peek(0, &mut there);
        assert_eq!(there, data);
        let out = rig.talk(&plain(Command::Read, 2, 0, 40960));
        if flags == FLAGS {
            assert_eq!(out.len(), 40960 + 9 * 28, "a chunk for each part");
            assert_eq!(collect(&out)[&2], (data.clone(), vec![], 1));
            let whole = rig.talk(&request(CommandFlags::DF, Command::Read, 3, 0, 40960));
            assert_eq!((whole.len(), &whole[28..]), (40960 + 28, &data[..]));
        } else {
            assert_eq!(out, [simple(0, 2), data.clone()].concat());
        }
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn replies_leave_in_the_order_requests_complete() {
    for flags in [FLAGS, SIMPLE_FLAGS] {
        let plan = FaultPlan { delay_polls_max: 5, reorder: true, ..FaultPlan::none(3) };
        let mut rig = Rig::with_plan(flags, 4096, plan);
        let data: Vec<u8> = (0..65536u32).map(|i| (i / 512) as u8).collect();
        rig.target.inner().poke(0, &data);
        let script: Vec<u8> =
            (0..64).flat_map(|n| plain(Command::Read, n, n * 1024, 1024)).collect();
        rig.feed(&script, usize::MAX).unwrap();
        assert_eq!(rig.session.in_flight(), 64);
        (0..10).for_each(|_| rig.complete());
        let mut order = Vec::new();
        let mut out = &rig.sent.0[..];
        while !out.is_empty() {
            let (cookie_at, head) = if flags == FLAGS { (8, 28) } else { (8, 16) };
            let cookie = u64::from_be_bytes(out[cookie_at..cookie_at + 8].try_into().unwrap());
            let at = cookie as usize * 1024;
            assert_eq!(out[head..head + 1024], data[at..at + 1024]);
            order.push(cookie);
            out = &out[head + 1024..];
        }
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..64).collect::<Vec<_>>());
    }
}

#[test]
fn a_failing_part_fails_the_whole_request_once() {
    let plan = FaultPlan { fail_per_mille: 300, reorder: true, ..FaultPlan::none(9) };
    for (flags, df) in [(FLAGS, false), (FLAGS, true), (SIMPLE_FLAGS, false)] {
        let mut rig = Rig::with_plan(flags, 4096, plan);
        let mut failed = 0;
        for cookie in 0..200 {
            let df = if df { CommandFlags::DF } else { CommandFlags::NONE };
            let out = rig.talk(&request(df, Command::Read, cookie, 0, 12288));
            if flags == SIMPLE_FLAGS {
                let reply = SimpleReply::decode(out[..16].try_into().unwrap()).unwrap();
                failed += u32::from(reply.error == 5);
                assert_eq!(out.len(), if reply.error == 0 { 16 + 12288 } else { 16 });
            } else {
                let replies = collect(&out);
                let (data, errors, done) = &replies[&cookie];
                assert_eq!(*done, 1);
                failed += errors.len() as u32;
                assert!(data.len() == 12288 || *errors == [5]);
            }
            assert_eq!(rig.session.in_flight(), 0);
        }
        assert!((80..180).contains(&failed), "{failed} of 200");
        assert_eq!(rig.pool.in_use(), 0);
    }
}

#[test]
fn device_errors_become_the_protocols_numbers() {
    let cases = [
        (Errno::EIO, 5),
        (Errno::ENOSPC, 28),
        (Errno(libc::EDQUOT), 28),
        (Errno::EROFS, 1),
        (Errno::ETIMEDOUT, 5),
        (Errno::ESHUTDOWN, 108),
        (Errno::EOPNOTSUPP, 22),
    ];
    for (errno, number) in cases {
        let mut rig = Rig::new(SIMPLE_FLAGS, 1 << 20);
        rig.target.fail_next(Op::Flush, errno);
        assert_eq!(rig.talk(&plain(Command::Flush, 1, 0, 0)), simple(number, 1));
    }
    let mut rig = Rig::new(FLAGS, 1 << 20);
    rig.target.fail_next(Op::Read, Errno::EIO);
    let out = rig.talk(&plain(Command::Read, 1, 0, 512));
    let text = std::str::from_utf8(&out[26..]).unwrap();
    assert!(text.contains("Input/output error"), "{text}");
}

#[test]
fn a_disconnect_waits_for_requests_in_flight() {
    let mut rig = Rig::new(FLAGS, 1 << 20);
    rig.target.freeze(true);
    let script = [write(1, 0, &[1; 512]), plain(Command::Disc, 0, 0, 0), write(2, 0, &[2; 512])];
    let out = rig.talk(&script.concat());
    assert!(out.is_empty() && rig.disconnected && rig.session.is_disconnected());
    assert_eq!(rig.session.in_flight(), 1, "nothing behind the disconnect is looked at");
    rig.target.freeze(false);
    rig.complete();
    assert_eq!((rig.sent.0.as_slice(), rig.session.in_flight()), (&simple(0, 1)[..], 0));
}

#[test]
fn too_many_requests_are_left_unread() {
    let mut rig = Rig::new(SIMPLE_FLAGS, 1 << 20);
    rig.target.freeze(true);
    let script = plain(Command::Flush, 1, 0, 0).repeat(MAX_REQUESTS);
    rig.talk(&script);
    assert_eq!(rig.session.in_flight(), MAX_REQUESTS);
    let one_more = plain(Command::Flush, 2, 0, 0);
    assert_eq!(rig.session.receive(&one_more, &mut rig.sent), Ok((0, None)));
    rig.target.freeze(false);
    rig.complete();
    assert_eq!(rig.session.receive(&one_more, &mut rig.sent).unwrap().0, REQUEST_LEN);
}

#[test]
fn a_session_shutting_down_refuses_what_is_new() {
    let mut rig = Rig::new(SIMPLE_FLAGS, 1 << 20);
    rig.target.freeze(true);
    rig.talk(&write(1, 0, &[1; 512]));
    rig.session.shut_down();
    assert_eq!(rig.talk(&write(2, 0, &[2; 512])), simple(108, 2));
    rig.target.freeze(false);
    rig.complete();
    assert_eq!(rig.sent.0, simple(0, 1));
}

#[test]
fn any_fragmentation_gives_the_same_replies() {
    let script = [
        write(1, 512, &[1; 9216]),
        plain(Command::Read, 2, 0, 8192),
        write(3, SIZE, &[3; 512]),
        plain(Command::BlockStatus, 4, 0, 1 << 20),
        plain(Command::Flush, 5, 0, 0),
        plain(Command::Disc, 0, 0, 0),
    ]
    .concat();
    let mut want = None;
    for size in [1, 2, 7, 27, 28, 29, 511, 4096, script.len()] {
        let mut rig = Rig::new(FLAGS, 4096);
        rig.feed(&script, size).unwrap();
        rig.complete();
        assert!(rig.disconnected);
        assert_eq!(*want.get_or_insert(rig.sent.0.clone()), rig.sent.0, "pieces of {size}");
    }
}

/// Seeded random mutations of a valid connection, from negotiation on: whatever comes, no panic,
/// nothing in flight is lost, and no more is kept than the limits allow.
#[test]
fn mutated_connections_do_no_harm() {
    use crate::nbd::handshake::{self, Handshake};

    struct One;
    impl crate::nbd::Catalogue for One {
        fn list(&self, each: &mut dyn FnMut(&str, &str)) {
            each("r0", "");
        }
        fn knows(&self, name: &str) -> bool {
            name == "r0"
        }
    }
    let negotiation = hex("00000003 49484156454f5054 00000008 00000000
         49484156454f5054 0000000a 0000001d 00000002 7230 00000001 0000000f
         626173653a616c6c6f636174696f6e
         49484156454f5054 00000007 00000008 00000002 7230 0000");
    let transfer = [
        write(1, 512, &[1; 1024]),
        plain(Command::Read, 2, 0, 8192),
        plain(Command::Trim, 3, 0, 4096),
        plain(Command::BlockStatus, 4, 0, 1 << 20),
        plain(Command::WriteZeroes, 5, 0, 4096),
        write(6, 0, &[6; 512]),
    ]
    .concat();
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut below = move |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    let (mut opened, mut answered) = (0, 0);
    for _ in 0..5000 {
        let mut script = [&negotiation[..], &transfer].concat();
        for _ in 0..below(4) {
            match below(3) {
                0 => {
                    let at = below(script.len());
                    script[at] ^= 1 << below(8);
                }
                1 => script.truncate(below(script.len()).max(1)),
                _ => {
                    let at = below(script.len());
                    script.insert(at, below(256) as u8);
                }
            }
        }
        let mut handshake = Handshake::new();
        let mut out = Vec::new();
        let mut at = 0;
        while let Ok((used, event)) = handshake.receive(&script[at..], &One, &mut out) {
            at += used;
            match event {
                Some(handshake::Event::Open { .. }) => {
                    opened += 1;
                    let mut rig = Rig::new(FLAGS, 4096);
                    let info = rig.target.info();
                    let export =
                        ExportInfo { name: "r0", description: "", target: info, read_only: false };
                    rig.session = handshake.accept(&export, &mut out);
                    let size = 1 + below(64);
                    let _ = rig.feed(&script[at..], size);
                    rig.complete();
                    answered += rig.sent.0.len();
                    break;
                }
                Some(handshake::Event::Describe { .. }) => {
                    let reason = handshake::RefuseReason::Policy;
                    handshake.refuse(reason, "", &mut out).unwrap();
                }
                Some(handshake::Event::Abort) => break,
                None => break,
            }
        }
        assert!(out.len() < MAX_OPTION_LEN as usize);
    }
    assert!(opened > 1000 && answered > 1 << 20, "{opened} sessions, {answered} bytes");
}

#[test]
fn a_session_between_two_requests_goes_on_elsewhere_with_what_was_read_of_the_next() {
    let export = MemoryTarget::new(Bytes(SIZE)).info();
    let export = ExportInfo { name: "r0", description: "", target: export, read_only: false };
    let mut session = Session::new(&export, FLAGS, (true, false), ALLOCATION);
    let read = RequestHeader {
        flags: CommandFlags::NONE,
        command: Command::Read,
        cookie: 77,
        offset: 4096,
        len: 512,
    };
    let request = read.encode();
    for cut in 0..REQUEST_LEN {
        let mut sent = Sent::default();
        assert_eq!(session.receive(&request[..cut], &mut sent).unwrap(), (cut, None));
        let (frozen, begun) = session.freeze().unwrap();
        assert_eq!(begun, &request[..cut]);
        let mut heir = Session::thaw(&frozen);
        assert_eq!(heir.freeze().unwrap().0, frozen);
        let (used, event) = heir.receive(&request, &mut sent).unwrap();
        let Some(Event::Job(job)) = event else { panic!("a read: {event:?}") };
        assert_eq!((used, job.op, job.offset, job.len), (REQUEST_LEN, Op::Read, 4096, 512));
        assert!(heir.freeze().is_none(), "a request is in flight");
        session = Session::thaw(&frozen);
    }
    session.shut_down();
    assert!(session.freeze().is_none());
}

/// A request with an extended header.
fn extended(flags: CommandFlags, command: Command, offset: u64, len: u64) -> Vec<u8> {
    ExtendedRequest { flags, command, cookie: 9, offset, len }.encode().to_vec()
}

/// The bytes of an extended reply chunk, with its payload.
fn extended_reply(done: u16, kind: u16, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = hex("6e8a278c");
    bytes.extend_from_slice(&done.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&9u64.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

impl Rig {
    fn extended() -> Rig {
        let mut rig = Rig::new(FLAGS, 4096);
        rig.session.extended = true;
        rig
    }
}

#[test]
fn extended_requests_get_extended_replies_with_their_offset() {
    let none = CommandFlags::NONE;
    let mut rig = Rig::extended();
    let mut write = extended(CommandFlags::PAYLOAD_LEN, Command::Write, 512, 512);
    write.extend_from_slice(&[7; 512]);
    assert_eq!(rig.talk(&write), extended_reply(1, 0, 512, &[]));
    let mut data = 512u64.to_be_bytes().to_vec();
    data.extend_from_slice(&[7; 512]);
    assert_eq!(
        rig.talk(&extended(none, Command::Read, 512, 512)),
        extended_reply(1, 1, 512, &data)
    );
    // A read in parts: each chunk has the request's offset in its header, and its own behind it.
    let got = rig.talk(&extended(none, Command::Read, 8192, 8192));
    let mut want = Vec::new();
    for (done, at) in [(0, 8192u64), (1, 12288)] {
        let mut data = at.to_be_bytes().to_vec();
        data.extend_from_slice(&[0; 4096]);
        want.extend(extended_reply(done, 1, 8192, &data));
    }
    assert_eq!(got, want);
    assert_eq!(rig.talk(&extended(none, Command::Flush, 0, 0)), extended_reply(1, 0, 0, &[]));
    // A write whose client forgot the flag has its payload all the same.
    let mut write = extended(none, Command::Write, 0, 512);
    write.extend_from_slice(&[1; 512]);
    assert_eq!(rig.talk(&write), extended_reply(1, 0, 0, &[]));
}

#[test]
fn a_payload_that_no_command_wants_is_skipped_and_refused() {
    let mut rig = Rig::extended();
    for command in [Command::Read, Command::Trim, Command::BlockStatus, Command::Unknown(99)] {
        let mut input = extended(CommandFlags::PAYLOAD_LEN, command, 0, 512);
        input.extend_from_slice(&[0x21; 512]);
        let got = rig.talk(&input);
        assert_eq!(got[..8], hex("6e8a278c 0001 8001"), "{command:?}");
        assert_eq!(got[32..36], 22u32.to_be_bytes());
    }
    let long = extended(CommandFlags::PAYLOAD_LEN, Command::Trim, 0, u64::MAX);
    let got = rig.session.receive(&long, &mut rig.sent);
    assert_eq!(got, Err(Violation::PayloadTooLong(u64::MAX)));
    // Beyond the end by more than compact headers can say, and beyond any number.
    let mut rig = Rig::extended();
    for len in [1 << 40, u64::MAX - 511] {
        let got = rig.talk(&extended(CommandFlags::NONE, Command::WriteZeroes, 512, len));
        assert_eq!(got[32..36], 28u32.to_be_bytes());
    }
}

/// A session on a target of 1 TiB that is answered by hand.
fn large() -> (Session, Sent) {
    let info =
        runtime::TargetInfo { size: Bytes(1 << 40), ..MemoryTarget::new(Bytes(SIZE)).info() };
    let export = ExportInfo { name: "r0", description: "", target: info, read_only: false };
    (Session::new(&export, FLAGS, (true, true), ALLOCATION), Sent::default())
}

#[test]
fn a_long_request_is_carried_out_step_by_step_and_answered_once() {
    let (mut session, mut sent) = large();
    let zero = extended(CommandFlags::FUA, Command::WriteZeroes, 512, (5 << 30) + 512);
    let Ok((32, Some(Event::Job(mut job)))) = session.receive(&zero, &mut sent) else {
        panic!("a job")
    };
    let mut at = 512;
    loop {
        assert_eq!((job.parts(), job.offset, job.fua), (1, at, true));
        at += u64::from(job.len);
        assert!(sent.0.is_empty() && session.in_flight() == 1);
        let done = Completion::new(OPENER, job.part(0).tag, Ok(()));
        match session.complete(done, &mut sent) {
            Some(next) => job = next,
            None => break,
        }
    }
    assert_eq!(at, (5 << 30) + 1024);
    assert_eq!(sent.0, extended_reply(1, 0, 512, &[]));
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn a_long_request_ends_at_its_first_error_and_with_its_export() {
    for removed in [false, true] {
        let (mut session, mut sent) = large();
        let trim = extended(CommandFlags::NONE, Command::Trim, 0, 1 << 40);
        let (_, event) = session.receive(&trim, &mut sent).unwrap();
        let Some(Event::Job(job)) = event else { panic!("a job") };
        let done = |job: &Job, result| Completion::new(OPENER, job.part(0).tag, result);
        let job = session.complete(done(&job, Ok(())), &mut sent).expect("a second step");
        let result = if removed { Ok(()) } else { Err(Errno::EIO) };
        if removed {
            session.shut_down();
        }
        assert_eq!(session.complete(done(&job, result), &mut sent), None);
        let code: u32 = if removed { 108 } else { 5 };
        assert_eq!((sent.0.len() > 36, &sent.0[32..36]), (true, &code.to_be_bytes()[..]));
        assert_eq!(session.in_flight(), 0);
    }
}

#[test]
fn a_block_status_of_everything_is_answered_for_its_beginning() {
    let (mut session, mut sent) = large();
    let asked = extended(CommandFlags::NONE, Command::BlockStatus, 0, 1 << 40);
    let (_, event) = session.receive(&asked, &mut sent).unwrap();
    let Some(Event::Job(job)) = event else { panic!("a job") };
    let done = Completion::new(OPENER, job.part(0).tag, Ok(()));
    assert_eq!(session.complete(done, &mut sent), None);
    let extent = hex("00000001 00000001 0000000040000000 0000000000000000");
    assert_eq!(sent.0, extended_reply(1, 6, 0, &extent));
}

#[test]
fn an_extended_session_goes_on_after_it_was_frozen_within_a_header() {
    let (mut session, mut sent) = large();
    let read = extended(CommandFlags::NONE, Command::Read, 4096, 512);
    for cut in 0..EXTENDED_REQUEST_LEN {
        assert_eq!(session.receive(&read[..cut], &mut sent), Ok((cut, None)));
        let (frozen, begun) = session.freeze().unwrap();
        let (mut thawed, begun) = (Session::thaw(&frozen), begun.to_vec());
        assert_eq!(thawed.receive(&begun, &mut sent), Ok((cut, None)));
        let (used, event) = thawed.receive(&read[cut..], &mut sent).unwrap();
        let Some(Event::Job(job)) = event else { panic!("a job") };
        assert_eq!((used, job.offset, job.len), (EXTENDED_REQUEST_LEN - cut, 4096, 512));
        (session, sent) = large();
    }
}
