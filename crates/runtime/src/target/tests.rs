//! The contract of `Target`, checked on the memory target and through faults.

use super::*;
use crate::BufPool;

const OPENER: OpenerId = OpenerId(1);

fn request(tag: u64, op: Op, offset: u64, len: u32, buf: Option<Buf>) -> Request {
    Request { opener: OPENER, tag, op, offset, len, fua: false, buf, place: None }
}

fn opened(size: u64) -> (BufPool, MemoryTarget) {
    let mut target = MemoryTarget::new(Bytes(size));
    target.open(OPENER, Intent::Write, 0);
    let mut out = Vec::new();
    target.poll_completions(&mut out);
    assert!(out[0].result.is_ok());
    (BufPool::new(16 << 20).unwrap(), target)
}

fn run(target: &mut dyn Target, request: Request) -> Completion {
    let tag = request.tag;
    target.submit(request);
    target.flush_submissions();
    let mut out = Vec::new();
    for _ in 0..1000 {
        target.poll_completions(&mut out);
        if let Some(done) = out.pop() {
            assert_eq!((done.opener, done.tag), (OPENER, tag));
            return done;
        }
    }
    panic!("request {tag} was not answered");
}

#[test]
fn what_was_written_is_read_back() {
    let (pool, mut target) = opened(1 << 20);
    let data: Vec<u8> = (0..9216).map(|i| i as u8 ^ (i >> 8) as u8).collect();
    let buf = pool.copy_from(&data).unwrap();
    assert!(run(&mut target, request(1, Op::Write, 3584, 9216, Some(buf))).result.is_ok());
    let buf = pool.alloc(10240).unwrap();
    let done = run(&mut target, request(2, Op::Read, 3072, 10240, Some(buf)));
    let read = done.buf.unwrap();
    assert!(read[..512].iter().all(|b| *b == 0) && read[512..512 + 9216] == data);
}

#[test]
fn trimmed_and_zeroed_ranges_read_as_zeroes_and_show_as_holes() {
    let (pool, mut target) = opened(1 << 20);
    let buf = pool.copy_from(&[0xff; 32768]).unwrap();
    run(&mut target, request(1, Op::Write, 0, 32768, Some(buf)));
    run(&mut target, request(2, Op::Trim, 4096, 4096, None));
    run(&mut target, request(3, Op::WriteZeroes { no_hole: false }, 8704, 8192, None));
    run(&mut target, request(4, Op::WriteZeroes { no_hole: true }, 24576, 4096, None));
    let mut all = vec![0; 32768];
    target.peek(0, &mut all);
    for (at, byte) in all.iter().enumerate() {
        let zero = (4096..8192).contains(&at)
            || (8704..16896).contains(&at)
            || (24576..28672).contains(&at);
        assert_eq!(*byte == 0, zero, "byte {at}");
    }
    let done = run(&mut target, request(5, Op::BlockStatus(Aspect::Allocation), 0, 36864, None));
    let holes: Vec<(u64, bool)> =
        done.extents.unwrap().iter().map(|e| (e.len, e.kind == ExtentKind::Hole)).collect();
    let want = [(4096, false), (4096, true), (4096, false), (4096, true), (16384, false)];
    assert_eq!(holes, [&want[..], &[(4096, true)]].concat());
}

#[test]
fn requests_outside_the_limits_are_refused_and_change_nothing() {
    let (pool, mut target) = opened(1 << 20);
    let end = 1 << 20;
    let buf = |n| Some(pool.copy_from(&vec![1; n]).unwrap());
    let shared = pool.alloc(512).unwrap();
    let cases = [
        (request(1, Op::Write, end, 512, buf(512)), Errno::ENOSPC),
        (request(2, Op::Write, end - 512, 1024, buf(1024)), Errno::ENOSPC),
        (request(3, Op::Write, u64::MAX - 511, 512, buf(512)), Errno::ENOSPC),
        (request(4, Op::Read, end, 512, buf(512)), Errno::EINVAL),
        (request(5, Op::Write, 100, 512, buf(512)), Errno::EINVAL),
        (request(6, Op::Write, 0, 100, buf(100)), Errno::EINVAL),
        (request(7, Op::Write, 0, 1024, buf(512)), Errno::EINVAL),
        (request(8, Op::Write, 0, 512, None), Errno::EINVAL),
        (request(9, Op::Read, 0, 0, buf(0)), Errno::EINVAL),
        (request(10, Op::Read, 0, 512, Some(shared.clone())), Errno::EINVAL),
        (request(11, Op::Flush, 512, 0, None), Errno::EINVAL),
        (request(12, Op::Trim, 0, 512, buf(512)), Errno::EINVAL),
    ];
    for (request, errno) in cases {
        let tag = request.tag;
        assert_eq!(run(&mut target, request).result, Err(errno), "case {tag}");
    }
    assert!(target.extents(0, 1 << 20).iter().all(|e| e.kind == ExtentKind::Hole));
}

#[test]
fn intent_and_read_only_decide_who_may_write() {
    let pool = BufPool::new(1 << 20).unwrap();
    let mut out = Vec::new();
    let mut target = MemoryTarget::new(Bytes(4096));
    let write = |buf: &BufPool| request(1, Op::Write, 0, 512, Some(buf.alloc(512).unwrap()));
    assert_eq!(run(&mut target, write(&pool)).result, Err(Errno::EBADF));
    target.open(OPENER, Intent::Read, 0);
    target.poll_completions(&mut out);
    assert_eq!(run(&mut target, write(&pool)).result, Err(Errno::EPERM));
    target.refuse_open(Some(Errno::EMEDIUMTYPE));
    target.open(OpenerId(2), Intent::Write, 7);
    out.clear();
    target.poll_completions(&mut out);
    assert_eq!((out[0].tag, out[0].result), (7, Err(Errno::EMEDIUMTYPE)));
    assert_eq!(target.openers(), 1);
}

#[test]
fn nothing_is_delivered_after_close() {
    let (_, target) = opened(4096);
    let plan = FaultPlan { delay_polls_max: 5, ..FaultPlan::none(3) };
    let mut target = FaultyTarget::new(target, plan);
    for tag in 0..20 {
        target.submit(request(tag, Op::Flush, 0, 0, None));
    }
    let mut out = Vec::new();
    target.poll_completions(&mut out);
    assert!(out.len() < 20);
    out.clear();
    target.close(OPENER);
    for _ in 0..10 {
        target.poll_completions(&mut out);
    }
    assert!(out.is_empty());
}

#[test]
fn a_faulty_target_answers_every_request_exactly_once() {
    for seed in 0..50 {
        let (pool, target) = opened(1 << 20);
        let plan = FaultPlan {
            delay_polls_max: 4,
            reorder: true,
            fail_per_mille: 300,
            ..FaultPlan::none(seed)
        };
        let mut target = FaultyTarget::new(target, plan);
        for tag in 0..200 {
            let (op, len, buf) = match tag % 3 {
                0 => (Op::Write, 512, pool.copy_from(&[tag as u8; 512]).ok()),
                1 => (Op::Read, 512, pool.alloc(512).ok()),
                _ => (Op::Flush, 0, None),
            };
            let offset = if op == Op::Flush { 0 } else { tag * 512 };
            target.submit(request(tag, op, offset, len, buf));
        }
        let mut out = Vec::new();
        for _ in 0..10 {
            target.poll_completions(&mut out);
        }
        let failed = out.iter().filter(|done| done.result == Err(Errno::EIO)).count();
        assert!((20..120).contains(&failed), "seed {seed}: {failed} failed");
        let order: Vec<u64> = out.iter().map(|done| done.tag).collect();
        assert!(!order.is_sorted());
        let mut tags = order;
        tags.sort_unstable();
        assert_eq!(tags, (0..200).collect::<Vec<u64>>());
    }
}

#[test]
fn chosen_operations_fail_and_a_frozen_target_keeps_silent() {
    let (_, target) = opened(4096);
    let mut target = FaultyTarget::new(target, FaultPlan::none(1));
    target.fail_next(Op::Flush, Errno::ENOSPC);
    assert!(run(&mut target, request(1, Op::Trim, 0, 512, None)).result.is_ok());
    assert_eq!(run(&mut target, request(2, Op::Flush, 0, 0, None)).result, Err(Errno::ENOSPC));
    assert!(run(&mut target, request(3, Op::Flush, 0, 0, None)).result.is_ok());
    target.freeze(true);
    target.submit(request(4, Op::Flush, 0, 0, None));
    let mut out = Vec::new();
    target.poll_completions(&mut out);
    assert!(out.is_empty());
    target.freeze(false);
    target.poll_completions(&mut out);
    assert_eq!(out.len(), 1);
}
