//! Requests whose every step takes a known time.

use std::cell::Cell;

use codec::wire::{BlockAck, BlockReq, Data, DataFlags};
use replication::io::{DiskData, DiskError, IoError, LinkLoss};

use super::*;

const V: VolumeNr = VolumeNr(0);
const RANGE: SectorRange = SectorRange { start: vocab::Sector(8), len: vocab::Sectors(8) };
const BUF: BufId = BufId(3);
const BLOCK: BlockId = BlockId(77);

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The clock, in microseconds that tests set.
fn clock() -> Instant {
    Instant(NOW.get() * 1000)
}

/// What one volume does, at times in microseconds.
#[derive(Default)]
struct Bed {
    waterfalls: Waterfalls,
    counters: VolumeCounters,
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

impl Bed {
    /// A request that was found at `received` and handed over at `handed`.
    fn begin(&mut self, kind: Kind, received: u64, handed: u64) {
        let buf = (kind != Kind::Read).then_some(BUF);
        self.waterfalls.begin(Begin {
            kind,
            volume: V,
            id: 5,
            range: RANGE,
            buf,
            weight: 2,
            received: Instant(received * 1000),
            handed: Instant(handed * 1000),
        });
    }

    fn out(&mut self, at: u64, output: Output) {
        NOW.set(at);
        self.waterfalls.output(&output, clock(), clock);
    }

    fn input(&mut self, at: u64, input: Input) -> Option<ReplicaEnd> {
        self.waterfalls.input(&input, Instant(at * 1000))
    }

    fn disk(&mut self, at: u64, op: u64, io: DiskOp) {
        self.out(at, Output::Disk { volume: V, op: OpId(op), io });
    }

    fn write(&mut self, at: u64) {
        self.disk(at, 9, DiskOp::Write { range: RANGE, buf: BUF, fua: false });
    }

    fn disk_done(&mut self, at: u64, op: u64) -> Option<ReplicaEnd> {
        self.input(at, Input::DiskDone { op: OpId(op), result: Ok(DiskData::None) })
    }

    fn send(&mut self, at: u64, peer: u8) {
        let data = Data { range: RANGE, block_id: BLOCK, seq: 1, flags: DataFlags::default() };
        let packet = Packet::Data(V, data);
        self.out(at, Output::Send { peer: node(peer), packet, payload: Some(BUF) });
    }

    fn ack(&mut self, at: u64, peer: u8) {
        let ack = BlockAck { range: RANGE, block_id: BLOCK, seq: 1 };
        let packet = Packet::WriteAck(V, ack);
        self.input(at, Input::Packet { peer: node(peer), packet, payload: None });
    }

    fn complete(&mut self, result: Result<Option<BufId>, IoError>) {
        self.out(0, Output::Complete { volume: V, id: 5, result });
    }

    fn answered(&mut self, at: u64) {
        NOW.set(at);
        self.waterfalls.answered(V, &mut self.counters, clock);
    }

    /// The waterfall of writes, checked, and the time each stage decided: front end, admission,
    /// activity log, disk, completion, and the peers by number.
    fn stages(&self) -> ([u64; 5], Vec<(u8, u64)>) {
        let w = self.counters.write.as_ref().or(self.counters.read.as_ref()).unwrap();
        assert_eq!(w.stages_sum(), w.total.sum(), "{w:?}");
        let mean = |nanos: u128| nanos as u64 / 1000 / w.total.count();
        let of = |histogram: &vocab::Histogram| mean(histogram.sum().as_nanos());
        let peers = w.peers.iter().map(|p| (p.peer.get(), mean(p.parallel.decided_ns.into())));
        let disk = mean(w.disk.decided_ns.into());
        let serial =
            [of(&w.front_end), of(&w.admission), of(&w.activity_log), disk, of(&w.completion)];
        (serial, peers.collect())
    }
}

#[test]
fn a_slow_disk_a_slow_peer_and_a_slow_log_are_told_apart() {
    // When the core starts, when the disk and both peers end, whether it waits for the log.
    for (start, disk, peers, log, expected) in [
        (12, 1012, [112, 212], false, ([10, 2, 0, 1000, 8], [0, 0])),
        (12, 112, [1012, 212], false, ([10, 2, 0, 0, 8], [1000, 0])),
        (12, 112, [212, 1012], false, ([10, 2, 0, 0, 8], [0, 1000])),
        (900, 1000, [1010, 1012], true, ([10, 0, 890, 0, 8], [0, 112])),
        (900, 1000, [1010, 1012], false, ([10, 890, 0, 0, 8], [0, 112])),
    ] {
        let mut bed = Bed::default();
        bed.begin(Kind::Write, 0, 10);
        assert!(bed.waterfalls.waits(V, 5));
        if log {
            bed.waterfalls.awaits_log(V, 5);
        }
        for peer in [1, 2] {
            bed.send(start, peer);
        }
        bed.write(start);
        assert!(!bed.waterfalls.waits(V, 5));
        let mut ends = [(disk, 0), (peers[0], 1), (peers[1], 2)];
        ends.sort_unstable();
        for (at, who) in ends {
            if who == 0 { _ = bed.disk_done(at, 9) } else { bed.ack(at, who) }
        }
        bed.complete(Ok(None));
        bed.answered(1020);
        let peers = vec![(1, expected.1[0]), (2, expected.1[1])];
        assert_eq!(bed.stages(), (expected.0, peers), "started at {start}");
        let w = bed.counters.write.as_ref().unwrap();
        assert_eq!((w.total.count(), w.total.sum()), (2, us(2 * 1020)));
        // Each one's own time is known also where another one took longer.
        assert_eq!(w.disk.latency.mean(), us(disk - start));
        assert!(bed.waterfalls.is_empty());
    }
}

#[test]
fn a_peer_that_is_lost_is_what_a_write_waited_for() {
    for lost in [
        |bed: &mut Bed| {
            _ = bed.input(5000, Input::LinkDown { peer: node(1), loss: LinkLoss::Stalled })
        },
        |bed: &mut Bed| bed.out(5000, Output::CloseLink { peer: node(1) }),
    ] {
        let mut bed = Bed::default();
        bed.begin(Kind::Write, 0, 0);
        bed.send(0, 1);
        bed.write(0);
        bed.disk_done(100, 9);
        lost(&mut bed);
        bed.complete(Ok(None));
        bed.answered(5001);
        assert_eq!(bed.stages(), ([0, 0, 0, 0, 1], vec![(1, 5000)]));
    }
}

#[test]
fn reads_go_to_the_disk_or_to_a_peer() {
    let mut bed = Bed::default();
    bed.begin(Kind::Read, 0, 1);
    // A resync's read and somebody else's are not it.
    bed.disk(2, 1, DiskOp::Read { range: RANGE, detect_zeroes: true, request: None });
    bed.disk(
        2,
        2,
        DiskOp::Read { range: SectorRange::new(0, 8), detect_zeroes: false, request: None },
    );
    assert!(bed.waterfalls.waits(V, 5));
    bed.disk(3, 9, DiskOp::Read { range: RANGE, detect_zeroes: false, request: None });
    bed.disk_done(60, 1);
    // The disk fails, a peer has it.
    bed.input(103, Input::DiskDone { op: OpId(9), result: Err(DiskError::Io) });
    let request = Packet::DataRequest(V, BlockReq { range: RANGE, block_id: BLOCK });
    bed.out(104, Output::Send { peer: node(2), packet: request, payload: None });
    let data = Data { range: RANGE, block_id: BLOCK, seq: 0, flags: DataFlags::default() };
    let packet = Packet::DataReply(V, data);
    bed.input(303, Input::Packet { peer: node(2), packet, payload: Some(BUF) });
    bed.complete(Ok(Some(BUF)));
    bed.answered(304);
    assert_eq!(bed.stages(), ([1, 2, 0, 0, 1], vec![(2, 300)]));
    let w = bed.counters.read.as_ref().unwrap();
    assert_eq!((w.disk.latency.mean(), w.activity_log.count()), (us(100), 0));
}

#[test]
fn what_fails_and_what_does_not_end_leaves_no_trace() {
    let mut bed = Bed::default();
    bed.begin(Kind::Write, 0, 0);
    bed.complete(Err(IoError::Io));
    bed.answered(1);
    assert!(bed.waterfalls.is_empty() && bed.counters.write.is_none());
    bed.begin(Kind::Replica, 0, 0);
    bed.out(1, Output::Free(BUF));
    assert!(bed.waterfalls.is_empty(), "its connection was lost before the disk was asked");
    bed.begin(Kind::Write, 0, 0);
    bed.complete(Ok(None));
    bed.waterfalls.forget(V);
    assert!(bed.waterfalls.is_empty());
    // The next one is not taken for one of those that were completed.
    bed.begin(Kind::Write, 0, 0);
    bed.answered(1);
    assert!(!bed.waterfalls.is_empty());
}

#[test]
fn a_write_for_a_peer_is_waiting_and_disk() {
    let mut bed = Bed::default();
    bed.begin(Kind::Replica, 0, 0);
    bed.write(40);
    let end = bed.disk_done(100, 9).unwrap();
    assert_eq!(end, ReplicaEnd { volume: V, weight: 2, wait: us(40), disk: us(60) });
    bed.counters.add_replica(&end);
    assert_eq!(bed.counters.replica.as_ref().unwrap().disk.count(), 2);
    assert!(bed.waterfalls.is_empty());
}

#[test]
fn a_buffer_that_is_used_again_is_not_taken_for_that_of_a_completed_write() {
    let mut bed = Bed::default();
    bed.begin(Kind::Write, 0, 0);
    bed.write(1);
    bed.disk_done(2, 9);
    bed.complete(Ok(None));
    bed.out(3, Output::Free(BUF));
    bed.send(3, 1);
    bed.disk(3, 10, DiskOp::Write { range: RANGE, buf: BUF, fua: false });
    bed.answered(4);
    assert_eq!(bed.stages(), ([0, 1, 0, 1, 2], vec![]));
}

#[test]
fn timed_requests_count_for_those_that_are_not() {
    for (gap, most) in [(2_000_000, 1), (1000, 2 * ONE_OF)] {
        let (mut sampler, mut timed, mut counted, mut widest) = (Sampler::default(), 0, 0, 0);
        for request in 0..100_000u64 {
            if let Some(weight) = sampler.pick(Instant(request * gap)) {
                timed += 1;
                counted += weight;
                widest = widest.max(weight);
            }
        }
        assert!(counted > 100_000 - u64::from(most) && counted <= 100_000, "{counted}");
        assert!(widest <= u64::from(most), "{widest}");
        let one_of = 100_000 / timed;
        let expected = if most == 1 { 1..=1 } else { 14..=17 };
        assert!(expected.contains(&one_of), "one of {one_of}");
    }
}

#[test]
fn timing_a_request_allocates_nothing() {
    let mut bed = Bed::default();
    let mut write = |request: u64| {
        let now = Instant(request * 10_000_000);
        assert!(bed.counters.pick(Kind::Write, now).is_some(), "each is timed at this pace");
        bed.begin(Kind::Write, request * 10_000, request * 10_000 + 1);
        let at = request * 10_000 + 2;
        bed.send(at, 1);
        bed.send(at, 2);
        bed.write(at);
        bed.disk_done(at + 100, 9);
        bed.ack(at + 200, 1);
        bed.ack(at + 300, 2);
        bed.complete(Ok(None));
        bed.answered(at + 301);
    };
    // The histograms of a volume and of its peers come into being with the first.
    write(0);
    let before = runtime::counting::allocations();
    (1..100).for_each(&mut write);
    assert_eq!(runtime::counting::allocations(), before);
    assert_eq!(bed.counters.write.as_ref().unwrap().total.count(), 200);
}

#[test]
fn after_a_pause_the_next_request_is_timed() {
    let mut sampler = Sampler::default();
    let mut now = Instant(0);
    while sampler.pick(now).is_some() {}
    assert!(sampler.pick(now).is_none() || sampler.skip == 0, "some are passed over");
    now = now + IDLE;
    assert!(sampler.pick(now).is_some());
    now = now + SELDOM;
    assert!(sampler.pick(now).is_some());
}

#[test]
fn with_too_many_under_way_fewer_are_timed() {
    let mut bed = Bed::default();
    for _ in 0..TIMED_MAX + 10 {
        bed.begin(Kind::Write, 0, 0);
    }
    assert_eq!(bed.waterfalls.timed.len(), TIMED_MAX);
}
