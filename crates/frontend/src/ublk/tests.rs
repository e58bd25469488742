//! A device against a kernel and a target that are made up.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use runtime::ring::{UblkElements, UblkSlot};
use runtime::{
    BufPool, Completed, Completion, Errno, FaultPlan, FaultyTarget, Intent, MemoryTarget, OpenerId,
    Payload, Place, Request, Ring, Target, TargetInfo, Token,
};
use vocab::Bytes;

use super::batch;
use super::channel::Channel;
use super::device::Device;
use super::uapi::*;

const DEPTH: u16 = 4;
const QUEUES: u16 = 2;
const BASE: u64 = 9 << 56 | 3 << 32;
const OPENER: OpenerId = OpenerId(BASE);

/// The kernel's side: a request for each slot, its data, and what became of it.
#[derive(Default)]
struct Fake {
    requests: Vec<(UblkSlot, Descriptor)>,
    data: Vec<(UblkSlot, Vec<u8>)>,
    offered: Vec<UblkSlot>,
    done: VecDeque<(UblkSlot, i32)>,
    copies_fail: bool,
    place: Option<Place>,
    /// The next command on several slots is the first.
    prepares: bool,
    /// Queues for which there is a command that waits for requests.
    waits: Vec<u16>,
}

#[derive(Clone, Default)]
struct FakeKernel(Rc<RefCell<Fake>>);

impl FakeKernel {
    fn copies(&self) -> Result<(), Errno> {
        if self.0.borrow().copies_fail { Err(Errno::EIO) } else { Ok(()) }
    }
}

impl Channel for FakeKernel {
    fn fetch(&mut self, _: &mut Ring, token: Token, slot: UblkSlot) {
        assert_eq!(token.0, BASE | u64::from(slot.queue) << 16 | u64::from(slot.tag));
        self.0.borrow_mut().offered.push(slot);
    }

    fn commit(&mut self, ring: &mut Ring, token: Token, slot: UblkSlot, result: i32) {
        self.0.borrow_mut().done.push_back((slot, result));
        self.fetch(ring, token, slot);
    }

    fn descriptor(&self, slot: UblkSlot) -> Descriptor {
        self.0.borrow().requests.iter().rev().find(|(at, _)| *at == slot).unwrap().1
    }

    fn came_back(&mut self, _: UblkSlot, _: Payload) {}

    fn take_fresh(&mut self) -> bool {
        false
    }

    fn flush(&mut self, _: &mut Ring, _: Token) {}

    fn batch_done(&mut self, _: u16, _: UblkElements) -> bool {
        std::mem::take(&mut self.0.borrow_mut().prepares)
    }

    fn fetch_all(&mut self, _: &mut Ring, base: Token, queue: u16) -> Result<(), Errno> {
        assert_eq!(base, Token(BASE));
        self.copies()?;
        self.0.borrow_mut().waits.push(queue);
        Ok(())
    }

    fn place(&self, _: UblkSlot, _: &Descriptor) -> Option<Place> {
        self.0.borrow().place
    }

    fn copy_in(&self, slot: UblkSlot, into: &mut [u8]) -> Result<(), Errno> {
        self.copies()?;
        let fake = self.0.borrow();
        let (_, data) = fake.data.iter().rev().find(|(at, _)| *at == slot).unwrap();
        into.copy_from_slice(data);
        Ok(())
    }

    fn copy_out(&mut self, slot: UblkSlot, from: &[u8]) -> Result<(), Errno> {
        self.copies()?;
        self.0.borrow_mut().data.push((slot, from.to_vec()));
        Ok(())
    }
}

struct Bed<T> {
    kernel: FakeKernel,
    device: Device<FakeKernel>,
    ring: Ring,
    pool: BufPool,
    target: T,
    paused: bool,
}

impl<T: Target> Bed<T> {
    fn new(mut target: T, pool: BufPool) -> Bed<T> {
        target.open(OPENER, Intent::Write, 0);
        let mut answers = Vec::new();
        while answers.is_empty() {
            target.flush_submissions();
            target.poll_completions(&mut answers);
        }
        let (kernel, mut ring) = (FakeKernel::default(), Ring::new().unwrap());
        let device = start(&kernel, &mut ring, None);
        assert_eq!(kernel.0.borrow().offered.len(), usize::from(DEPTH * QUEUES));
        Bed { kernel, device, ring, pool, target, paused: false }
    }

    /// The kernel has a request for a slot it was offered.
    fn request(&mut self, slot: UblkSlot, descriptor: Descriptor, data: &[u8]) {
        {
            let mut fake = self.kernel.0.borrow_mut();
            let at = fake.offered.iter().position(|offered| *offered == slot);
            fake.offered.remove(at.expect("requests come to slots that are offered"));
            fake.requests.push((slot, descriptor));
            fake.data.push((slot, data.to_vec()));
        }
        self.completed(slot, Ok(0));
    }

    fn completed(&mut self, slot: UblkSlot, result: Result<u32, Errno>) {
        let token = Token(BASE | u64::from(slot.queue) << 16 | u64::from(slot.tag));
        let (target, pool) = (&mut self.target, &self.pool);
        let done = Completed { token, result, payload: Payload::None };
        self.device.on_completed(&mut self.ring, Some(target), pool, done, self.paused);
    }

    /// Takes answers of the target until there was one for the kernel; returns it.
    fn answer(&mut self) -> (UblkSlot, i32) {
        for _ in 0..1_000 {
            if let Some(done) = self.kernel.0.borrow_mut().done.pop_front() {
                return done;
            }
            self.target.flush_submissions();
            let mut answers: Vec<Completion> = Vec::new();
            self.target.poll_completions(&mut answers);
            for done in answers {
                self.device.on_target(&mut self.ring, done);
            }
        }
        panic!("no answer came");
    }

    fn data(&self) -> Vec<u8> {
        self.kernel.0.borrow().data.last().unwrap().1.clone()
    }
}

fn start(kernel: &FakeKernel, ring: &mut Ring, patience: Option<Duration>) -> Device<FakeKernel> {
    let info = DeviceInfo {
        queues: QUEUES,
        depth: DEPTH,
        state: DeviceState::Dead,
        max_io: 1 << 20,
        id: 0,
        pid: -1,
        flags: F_USER_COPY,
        signature: 0,
        owner: (0, 0),
    };
    Device::start(kernel.clone(), ring, &info, Token(BASE), OPENER, patience)
}

fn slot(queue: u16, tag: u16) -> UblkSlot {
    UblkSlot { queue, tag }
}

fn descriptor(op_flags: u32, start: u64, sectors: u32) -> Descriptor {
    Descriptor { op_flags, sectors, start, address: 0 }
}

fn bed() -> Bed<MemoryTarget> {
    let pool = BufPool::new(8 << 20).unwrap();
    Bed::new(MemoryTarget::new(Bytes(1 << 20)), pool)
}

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
const FUA: u32 = 1 << 13;

#[test]
fn what_is_written_is_read_back_by_every_queue() {
    let mut bed = bed();
    let data: Vec<u8> = (0..4096).map(|n| (n % 251) as u8).collect();
    bed.request(slot(0, 3), descriptor(WRITE | FUA, 8, 8), &data);
    assert_eq!(bed.answer(), (slot(0, 3), 4096));
    bed.request(slot(0, 3), descriptor(FLUSH, 0, 0), &[]);
    assert_eq!(bed.answer(), (slot(0, 3), 0));
    bed.request(slot(1, 0), descriptor(READ, 9, 7), &[]);
    assert_eq!(bed.answer(), (slot(1, 0), 3584));
    assert_eq!(bed.data(), data[512..]);
    bed.request(slot(1, 2), descriptor(WRITE_ZEROES, 8, 4), &[]);
    assert_eq!(bed.answer(), (slot(1, 2), 2048));
    bed.request(slot(1, 0), descriptor(READ, 8, 8), &[]);
    assert_eq!(bed.answer(), (slot(1, 0), 4096));
    assert!(bed.data()[..2048].iter().all(|byte| *byte == 0));
    assert_eq!(bed.data()[2048..], data[2048..]);
    bed.request(slot(1, 1), descriptor(DISCARD, 0, 64), &[]);
    assert_eq!(bed.answer(), (slot(1, 1), 32768));
    assert_eq!(bed.device.in_flight(), 0);
    assert_eq!(bed.pool.in_use(), 0);
}

/// Puts what is read from the first MiB into its place, if there is one.
struct Placing(MemoryTarget, Vec<u64>);

impl Target for Placing {
    fn info(&self) -> TargetInfo {
        self.0.info()
    }

    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64) {
        self.0.open(opener, intent, tag);
    }

    fn close(&mut self, opener: OpenerId) {
        self.0.close(opener);
    }

    fn submit(&mut self, request: Request) {
        if request.place.is_some() && request.offset < 1 << 20 {
            self.1.push(request.tag);
        }
        self.0.submit(request);
    }

    fn flush_submissions(&mut self) {
        self.0.flush_submissions();
    }

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        let first = out.len();
        self.0.poll_completions(out);
        for done in &mut out[first..] {
            if self.1.contains(&done.tag) {
                (done.buf, done.placed) = (None, true);
            }
        }
        self.1.clear();
    }
}

#[test]
fn a_read_that_is_in_its_place_is_not_copied_and_any_other_is() {
    let pool = BufPool::new(8 << 20).unwrap();
    let mut bed = Bed::new(Placing(MemoryTarget::new(Bytes(2 << 20)), Vec::new()), pool);
    let place = |bed: &Bed<Placing>, place| bed.kernel.0.borrow_mut().place = place;
    place(&bed, Some(Place::NOWHERE));
    // A write is copied whatever the kernel offers, or its pages could change under the replicas.
    bed.request(slot(0, 0), descriptor(WRITE, 0, 1), &[7; 512]);
    assert_eq!(bed.answer(), (slot(0, 0), 512));
    assert!(bed.target.1.is_empty());
    bed.request(slot(0, 0), descriptor(READ, 0, 1), &[0; 512]);
    assert_eq!(bed.answer(), (slot(0, 0), 512));
    assert_eq!((bed.data(), bed.device.placed()), (vec![0; 512], 1), "nothing was copied");
    // The target has it from somewhere else.
    bed.request(slot(0, 0), descriptor(READ, 2048, 1), &[1; 512]);
    assert_eq!(bed.answer(), (slot(0, 0), 512));
    assert_eq!((bed.data(), bed.device.placed()), (vec![0; 512], 1));
    place(&bed, None);
    bed.request(slot(0, 0), descriptor(READ, 0, 1), &[1; 512]);
    assert_eq!(bed.answer(), (slot(0, 0), 512));
    assert_eq!((bed.data(), bed.device.placed()), (vec![7; 512], 1));
    assert_eq!(bed.pool.in_use(), 0);
}

/// Answers only when it is told to.
#[derive(Default)]
struct Late {
    held: Vec<Request>,
    answers: Vec<Completion>,
}

impl Target for Late {
    fn info(&self) -> TargetInfo {
        MemoryTarget::new(Bytes(1 << 20)).info()
    }

    fn open(&mut self, opener: OpenerId, _: Intent, tag: u64) {
        self.answers.push(Completion::new(opener, tag, Ok(())));
    }

    fn close(&mut self, _: OpenerId) {}

    fn submit(&mut self, request: Request) {
        self.held.push(request);
    }

    fn flush_submissions(&mut self) {}

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.answers);
    }
}

#[test]
fn a_request_that_takes_too_long_fails_and_its_answer_is_not_another_ones() {
    let pool = BufPool::new(8 << 20).unwrap();
    let mut bed = Bed::new(Late::default(), pool);
    let patience = Duration::from_millis(30);
    bed.kernel.0.borrow_mut().offered.clear();
    bed.device = start(&bed.kernel, &mut bed.ring, Some(patience));
    let turn = |bed: &mut Bed<Late>, wait: Duration| {
        let until = bed.ring.now() + wait;
        while bed.ring.now() < until {
            bed.ring.wait(Some(until), &mut Vec::new()).unwrap();
        }
        bed.device.end_overdue(&mut bed.ring);
    };
    assert_eq!(bed.device.deadline(), None, "nothing is under way");
    turn(&mut bed, Duration::from_millis(1));
    bed.request(slot(0, 1), descriptor(READ, 0, 1), &[0; 512]);
    assert_eq!(bed.device.deadline(), Some(bed.ring.now() + patience));
    turn(&mut bed, Duration::from_millis(1));
    assert!(bed.kernel.0.borrow().done.is_empty(), "it has time yet");
    turn(&mut bed, patience);
    assert_eq!(bed.answer(), (slot(0, 1), -Errno::ETIMEDOUT.0));
    assert_eq!((bed.device.deadline(), bed.device.in_flight()), (None, 1));
    // The slot's next request, and the late answer to the first.
    bed.request(slot(0, 1), descriptor(READ, 8, 1), &[1; 512]);
    let answer = |bed: &mut Bed<Late>, fill: u8| {
        let request = bed.target.held.remove(0);
        let buf = Some(bed.pool.copy_from(&[fill; 512]).unwrap());
        let done = Completion::new(request.opener, request.tag, Ok(()));
        bed.target.answers.push(Completion { buf, ..done });
    };
    answer(&mut bed, 7);
    let mut late = Vec::new();
    bed.target.poll_completions(&mut late);
    bed.device.on_target(&mut bed.ring, late.remove(0));
    assert_eq!((bed.data(), bed.device.in_flight()), (vec![1; 512], 1), "it is nobody's");
    assert!(bed.kernel.0.borrow().done.is_empty());
    answer(&mut bed, 8);
    assert_eq!(bed.answer(), (slot(0, 1), 512));
    assert_eq!((bed.data(), bed.device.in_flight()), (vec![8; 512], 0));
}

/// Commands on several slots of a queue complete.
fn batch_done<T: Target>(
    bed: &mut Bed<T>,
    queue: u16,
    tags: &[u16],
    result: Result<u32, Errno>,
) -> Option<Errno> {
    let mut elements = UblkElements::default();
    for tag in tags {
        elements.push(*tag, None, 0);
    }
    let token = batch::token(Token(BASE), queue, batch::ELEMENTS);
    let done = Completed { token, result, payload: Payload::Elements(elements) };
    bed.device.on_completed(&mut bed.ring, Some(&mut bed.target), &bed.pool, done, false);
    bed.device.take_refusal()
}

fn waits_no_more<T: Target>(bed: &mut Bed<T>, queue: u16, result: Result<u32, Errno>) {
    let token = batch::token(Token(BASE), queue, UblkSlot::END);
    let done = Completed { token, result, payload: Payload::None };
    bed.device.on_completed(&mut bed.ring, Some(&mut bed.target), &bed.pool, done, false);
}

#[test]
fn a_queue_waits_for_requests_by_one_command_until_the_device_ends() {
    let mut bed = bed();
    let waits = |bed: &Bed<_>| std::mem::take(&mut bed.kernel.0.borrow_mut().waits);
    for queue in 0..QUEUES {
        bed.kernel.0.borrow_mut().prepares = true;
        assert_eq!(batch_done(&mut bed, queue, &[0, 1, 2, 3], Ok(0)), None);
    }
    assert_eq!(waits(&bed), [0, 1]);
    bed.request(slot(1, 2), descriptor(READ, 0, 1), &[0; 512]);
    assert_eq!(bed.answer(), (slot(1, 2), 512));
    assert_eq!(batch_done(&mut bed, 1, &[2], Ok(UblkElements::BYTES)), None);
    // There was no memory for so many; it is begun again.
    for errno in [Errno::ENOBUFS, Errno::ENOMEM] {
        waits_no_more(&mut bed, 1, Err(errno));
        assert_eq!(waits(&bed), [1]);
    }
    // The device ends with a request under way.
    bed.paused = true;
    bed.request(slot(1, 0), descriptor(READ, 0, 1), &[0; 512]);
    assert!(bed.device.is_waiting());
    for queue in 0..QUEUES {
        waits_no_more(&mut bed, queue, Err(Errno::ENODEV));
    }
    assert!(!bed.device.is_back(), "one is not answered");
    bed.device.resume(&mut bed.ring, None, &bed.pool);
    assert!(bed.device.is_back());
    assert_eq!((waits(&bed), bed.device.take_refusal()), (Vec::new(), None));
}

#[test]
fn what_the_kernel_does_not_take_of_several_results_is_given_up_and_told() {
    let mut bed = bed();
    bed.kernel.0.borrow_mut().prepares = true;
    let refused = batch_done(&mut bed, 0, &[0, 1, 2, 3], Err(Errno::EINVAL));
    assert_eq!(refused, Some(Errno::EINVAL), "none of the queue's slots is offered");
    assert!(bed.kernel.0.borrow().waits.is_empty());
    // Of the other's, two of three results were taken.
    let bytes = 2 * UblkElements::BYTES;
    assert_eq!(batch_done(&mut bed, 1, &[3, 0, 1], Ok(bytes)), Some(Errno::EIO));
    assert!(!bed.device.is_back());
    for tag in [0, 2, 3] {
        bed.completed(slot(1, tag), Err(Errno::ENODEV));
    }
    assert!(bed.device.is_back());
}

#[test]
fn what_no_target_can_do_is_an_error_to_the_kernel() {
    let mut bed = bed();
    let refused = [
        (descriptor(READ, 2048, 8), Errno::EINVAL),
        (descriptor(WRITE, 2048, 8), Errno::ENOSPC),
        (descriptor(READ, 0, 0), Errno::EINVAL),
        (descriptor(READ, u64::MAX, 8), Errno::EINVAL),
        (descriptor(DISCARD, 0, u32::MAX), Errno::EINVAL),
        // More than a buffer holds, which the limits told to the kernel rule out.
        (descriptor(WRITE, 0, 4096), Errno::EINVAL),
        (descriptor(15, 0, 8), Errno::EOPNOTSUPP),
    ];
    for (descriptor, errno) in refused {
        bed.request(slot(0, 0), descriptor, &[0; 4096]);
        assert_eq!(bed.answer(), (slot(0, 0), -errno.0), "{descriptor:?}");
    }
    bed.kernel.0.borrow_mut().copies_fail = true;
    for op in [READ, WRITE] {
        bed.request(slot(0, 0), descriptor(op, 0, 8), &[0; 4096]);
        assert_eq!(bed.answer(), (slot(0, 0), -Errno::EIO.0));
    }
    assert_eq!((bed.device.in_flight(), bed.pool.in_use()), (0, 0));
}

#[test]
fn requests_wait_for_buffers_in_the_order_of_their_arrival() {
    // One MiB of buffers, all of it in use.
    let pool = BufPool::new(1 << 20).unwrap();
    let target = MemoryTarget::new(Bytes(1 << 20));
    let mut bed = Bed::new(target, pool.clone());
    let all = pool.alloc(1 << 20).unwrap();
    for tag in 0..DEPTH {
        bed.request(slot(0, tag), descriptor(WRITE, u64::from(tag), 1), &[tag as u8; 512]);
    }
    assert!(bed.device.is_waiting());
    assert_eq!(bed.device.in_flight(), 0);
    bed.device.resume(&mut bed.ring, Some(&mut bed.target), &bed.pool);
    assert!(bed.device.is_waiting(), "there is still nothing");
    drop(all);
    bed.device.resume(&mut bed.ring, Some(&mut bed.target), &bed.pool);
    assert!(!bed.device.is_waiting());
    let order: Vec<_> = (0..DEPTH).map(|_| bed.answer()).collect();
    let expected: Vec<_> = (0..DEPTH).map(|tag| (slot(0, tag), 512)).collect();
    assert_eq!(order, expected);
}

#[test]
fn the_target_gets_what_comes_in_a_pause_when_that_ends() {
    let mut bed = bed();
    bed.paused = true;
    bed.request(slot(1, 0), descriptor(WRITE, 0, 8), &[1; 4096]);
    assert_eq!((bed.device.in_flight(), bed.device.is_waiting()), (0, true));
    bed.paused = false;
    bed.device.resume(&mut bed.ring, Some(&mut bed.target), &bed.pool);
    assert_eq!(bed.answer(), (slot(1, 0), 4096));
}

#[test]
fn errors_of_the_target_reach_the_kernel_and_the_slot_goes_on() {
    let pool = BufPool::new(8 << 20).unwrap();
    let target = MemoryTarget::new(Bytes(1 << 20));
    let plan = FaultPlan { fail_per_mille: 500, ..FaultPlan::none(7) };
    let mut bed = Bed::new(FaultyTarget::new(target, plan), pool);
    let mut failed = 0;
    for _ in 0..100 {
        bed.request(slot(0, 0), descriptor(WRITE, 0, 8), &[1; 4096]);
        match bed.answer() {
            (_, 4096) => {}
            (_, result) => {
                assert_eq!(result, -Errno::EIO.0);
                failed += 1;
            }
        }
    }
    assert!((1..100).contains(&failed), "{failed} of 100 failed");
}

#[test]
fn a_stopped_device_is_back_when_all_slots_are() {
    let mut bed = bed();
    bed.request(slot(0, 0), descriptor(WRITE, 0, 8), &[1; 4096]);
    for queue in 0..QUEUES {
        for tag in 0..DEPTH {
            if slot(queue, tag) != slot(0, 0) {
                bed.completed(slot(queue, tag), Err(Errno::ENODEV));
            }
        }
    }
    assert!(!bed.device.is_back(), "a request is still served");
    assert_eq!(bed.answer(), (slot(0, 0), 4096));
    bed.completed(slot(0, 0), Err(Errno::EINVAL));
    assert!(bed.device.is_back());
    assert_eq!(bed.device.take_refusal(), Some(Errno::EINVAL), "that was no stop");
    assert_eq!(bed.device.take_refusal(), None);
}

/// The bytes of a structure as words of the machine.
fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn limits_have_the_drivers_layout() {
    let target = TargetInfo {
        size: Bytes((1 << 20) + 512),
        block_size_min: 4096,
        block_size_preferred: 4096,
        max_transfer: 1 << 20,
        read_only: false,
        can_trim: true,
        can_zero: true,
        can_flush: true,
        can_fua: true,
        multi_conn: true,
        rotational: false,
    };
    let params = Params { target, read_only: true };
    let shifts = u32::from_ne_bytes([12, 12, 12, 12]);
    let segments = u32::from_ne_bytes({
        let [low, high] = 1u16.to_ne_bytes();
        [low, high, 0, 0]
    });
    let head = [60, 3, 0b1101, shifts, 2048, 0];
    let tail = [0, 0, 0, 4096, 131_072, 131_072, segments];
    let bytes = params.encode();
    assert_eq!(words(&bytes)[..6], head);
    assert_eq!(u64::from_ne_bytes(bytes[24..32].try_into().unwrap()), 2048, "whole blocks only");
    assert_eq!(words(&bytes)[8..], tail[..][..]);
    // A target that can only be read and written.
    let plain = TargetInfo {
        block_size_min: 512,
        can_trim: false,
        can_zero: false,
        can_flush: false,
        can_fua: true,
        ..target
    };
    let bytes = Params { target: plain, read_only: false }.encode();
    assert_eq!(words(&bytes)[..4], [40, 1, 0, u32::from_ne_bytes([9, 12, 12, 12])]);
}

#[test]
fn a_device_is_told_about_as_it_was_made() {
    let info = DeviceInfo {
        queues: 1,
        depth: 128,
        state: DeviceState::Live,
        max_io: 1 << 20,
        id: 7,
        pid: -1,
        flags: F_CMD_IOCTL_ENCODE | F_USER_COPY | F_USER_RECOVERY | F_USER_RECOVERY_REISSUE,
        signature: 0x0102_0304_0506_0708,
        owner: (0, 0),
    };
    for state in [DeviceState::Dead, DeviceState::Quiesced, DeviceState::Other(3)] {
        let info = DeviceInfo { state, ..info };
        assert_eq!(DeviceInfo::decode(&info.encode()), Some(info));
    }
    let bytes = info.encode();
    assert_eq!(bytes.len(), DEVICE_INFO_LEN);
    assert_eq!(DeviceInfo::decode(&bytes), Some(info));
    let mut told = bytes.clone();
    told[40..44].copy_from_slice(&1000u32.to_ne_bytes());
    told[44..48].copy_from_slice(&100u32.to_ne_bytes());
    assert_eq!(DeviceInfo::decode(&told), Some(DeviceInfo { owner: (1000, 100), ..info }));
    // `dev_state` follows the two halves of queues and slots.
    assert_eq!(words(&bytes)[1], 1);
    assert_eq!(words(&bytes)[2..5], [1 << 20, 7, u32::MAX]);
    assert_eq!(DeviceInfo::decode(&bytes[1..]), None);
    let names: Vec<_> = feature_names(info.flags).collect();
    assert_eq!(names, ["user-recovery", "user-recovery-reissue", "user-copy"]);
    // UBLKSRV_IO_BUF_OFFSET, UBLK_TAG_OFF, UBLK_QID_OFF.
    assert_eq!(data_offset(0, 1), 0x8200_0000);
    assert_eq!(data_offset(1, 0), 0x200_8000_0000);
    assert_eq!(descriptors_offset(2), 2 * 4096 * 24);
}
