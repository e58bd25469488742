//! Runs of seeds: one seed, one world, one verdict.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::plan::Plan;
use crate::rng::Rng;
use crate::trace::Trace;
use crate::world::{Stats, Violation, World};

thread_local! {
    /// Where and why the last panic happened.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What happened until the end or the violation; nothing after a panic.
    pub stats: Stats,
    /// The rule that was broken.
    pub violation: Option<Violation>,
}

/// Where and why the last panic of this thread happened.
pub fn last_panic() -> String {
    PANIC.with(|panic| panic.borrow().replace('\n', " "))
}

/// Keeps panics from printing: they are verdicts. To be called once by a program that runs seeds.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|panic| *panic.borrow_mut() = info.to_string());
    }));
}

/// Runs one seed. A failed assertion of the core is a violation like any other.
pub fn seed(seed: u64, trace: Trace) -> Verdict {
    let mut rng = Rng::new(seed);
    let plan = Plan::random(&mut rng);
    judge(plan, rng, trace, World::run_plan)
}

/// Runs one seed under protocol A.
pub fn asynchronous(seed: u64, trace: Trace) -> Verdict {
    let mut rng = Rng::new(seed);
    let plan = Plan::asynchronous(&mut rng);
    judge(plan, rng, trace, World::run_plan)
}

/// Runs one seed with several Primaries.
pub fn joint(seed: u64, trace: Trace) -> Verdict {
    let mut rng = Rng::new(seed);
    let plan = Plan::joint(&mut rng);
    judge(plan, rng, trace, World::run_plan)
}

/// Runs one seed with nodes that get one of their volumes after their start.
pub fn adding(seed: u64, trace: Trace) -> Verdict {
    let mut rng = Rng::new(seed);
    let plan = Plan::adding(&mut rng);
    judge(plan, rng, trace, World::run_plan)
}

/// Runs one seed in which a node lies about everything.
pub fn liar(seed: u64, trace: Trace) -> Verdict {
    let mut rng = Rng::new(seed);
    // Some of them about two Primaries as well.
    let plan = if seed % 4 == 3 { Plan::joint(&mut rng) } else { Plan::random(&mut rng) };
    judge(plan, rng, trace, World::run_with_liar)
}

/// Runs a world to its verdict.
pub fn judge(plan: Plan, rng: Rng, trace: Trace, run: impl FnOnce(&mut World)) -> Verdict {
    let mut world = World::new(plan, rng, trace);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run(&mut world);
    }));
    let at = world.now();
    let mut violation = world.violation.take();
    if outcome.is_err() {
        let message = last_panic();
        violation = Some(Violation { rule: "panic", message, at });
    }
    Verdict { stats: std::mem::take(&mut world.stats), violation }
}
