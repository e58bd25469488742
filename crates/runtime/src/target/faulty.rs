//! A target in front of another that delays, reorders and fails, reproducibly from a seed.

use std::collections::VecDeque;

use super::{Completion, Intent, Op, OpenerId, Request, Target, TargetInfo};
use crate::Errno;

/// A small seeded generator (SplitMix64); the same seed gives the same faults everywhere.
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 if the bound is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}

/// Which faults, and how many.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Where the random choices come from.
    pub seed: u64,
    /// Each completion is held back for `0..=delay_polls_max` polls.
    pub delay_polls_max: u32,
    /// Completions that are ready together are delivered in random order.
    pub reorder: bool,
    /// How many of a thousand requests fail.
    pub fail_per_mille: u32,
    /// How many of a thousand opens fail.
    pub fail_open_per_mille: u32,
    /// The error of failing requests and opens.
    pub errno: Errno,
}

impl FaultPlan {
    /// No faults at all; set the fields wanted.
    pub const fn none(seed: u64) -> FaultPlan {
        FaultPlan {
            seed,
            delay_polls_max: 0,
            reorder: false,
            fail_per_mille: 0,
            fail_open_per_mille: 0,
            errno: Errno::EIO,
        }
    }
}

/// Wraps a target and spoils it according to a [`FaultPlan`], or on command.
///
/// A failed request never reaches the inner target, except a failed write half the time: a
/// write that reports an error may or may not have happened.
pub struct FaultyTarget<T> {
    inner: T,
    plan: FaultPlan,
    random: SplitMix,
    /// Completions with the number of polls they are still held back.
    held: Vec<(u32, Completion)>,
    /// Failures the inner target must not answer: (opener, tag).
    spoiled: Vec<(OpenerId, u64)>,
    fail_next: VecDeque<(Op, Errno)>,
    frozen: bool,
    scratch: Vec<Completion>,
}

impl<T: Target> FaultyTarget<T> {
    /// `inner` with faults.
    pub fn new(inner: T, plan: FaultPlan) -> FaultyTarget<T> {
        FaultyTarget {
            inner,
            plan,
            random: SplitMix(plan.seed),
            held: Vec::new(),
            spoiled: Vec::new(),
            fail_next: VecDeque::new(),
            frozen: false,
            scratch: Vec::new(),
        }
    }

    /// The wrapped target.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The next request with exactly this operation fails with `errno`.
    pub fn fail_next(&mut self, op: Op, errno: Errno) {
        self.fail_next.push_back((op, errno));
    }

    /// While frozen nothing completes, as on a suspended volume.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Completions held back at the moment.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn hold(&mut self, done: Completion) {
        let polls = self.random.below(u64::from(self.plan.delay_polls_max) + 1) as u32;
        self.held.push((polls, done));
    }

    fn failure_for(&mut self, op: Op) -> Option<Errno> {
        if let Some(at) = self.fail_next.iter().position(|(o, _)| *o == op) {
            return self.fail_next.remove(at).map(|(_, errno)| errno);
        }
        (self.random.below(1000) < u64::from(self.plan.fail_per_mille)).then_some(self.plan.errno)
    }
}

impl<T: Target> Target for FaultyTarget<T> {
    fn info(&self) -> TargetInfo {
        self.inner.info()
    }

    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64) {
        if self.random.below(1000) < u64::from(self.plan.fail_open_per_mille) {
            self.hold(Completion::new(opener, tag, Err(self.plan.errno)));
        } else {
            self.inner.open(opener, intent, tag);
        }
    }

    fn close(&mut self, opener: OpenerId) {
        self.inner.close(opener);
        self.held.retain(|(_, done)| done.opener != opener);
        self.spoiled.retain(|(o, _)| *o != opener);
    }

    fn submit(&mut self, request: Request) {
        let Some(errno) = self.failure_for(request.op) else {
            return self.inner.submit(request);
        };
        let (opener, tag) = (request.opener, request.tag);
        if request.op.is_write() && self.random.below(2) == 0 {
            self.spoiled.push((opener, tag));
            self.inner.submit(request);
        }
        self.hold(Completion::new(opener, tag, Err(errno)));
    }

    fn flush_submissions(&mut self) {
        self.inner.flush_submissions();
    }

    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        let mut fresh = std::mem::take(&mut self.scratch);
        self.inner.poll_completions(&mut fresh);
        for done in fresh.drain(..) {
            let key = (done.opener, done.tag);
            match self.spoiled.iter().position(|s| *s == key) {
                Some(at) => drop(self.spoiled.swap_remove(at)),
                None => self.hold(done),
            }
        }
        self.scratch = fresh;
        if self.frozen {
            return;
        }
        let first = out.len();
        out.extend(self.held.extract_if(.., |(polls, _)| *polls == 0).map(|(_, done)| done));
        for (polls, _) in &mut self.held {
            *polls -= 1;
        }
        if self.plan.reorder {
            for i in (first + 1..out.len()).rev() {
                let j = first + self.random.below((i - first + 1) as u64) as usize;
                out.swap(i, j);
            }
        }
    }
}
