//! Who carries out what, when: steps of different resources side by side, those of one in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};

use cluster::name::ResourceName;
use cluster::objects::Generation;
use cluster::plan::Action;

/// Steps that wait for one resource; more are dropped, for the next plan has them again.
const WAITING: usize = 64;

/// Something to do for a resource.
#[derive(Clone, PartialEq, Debug)]
pub enum Job {
    /// A step of a plan.
    Step(Generation, Box<Action>),
    /// What was left from before the start.
    Recover,
    /// Connections that peers have given up.
    Reconnect,
}

impl Job {
    /// True if the one need not be done when the other is.
    fn repeats(&self, other: &Job) -> bool {
        match (self, other) {
            (Job::Step(_, one), Job::Step(_, two)) => one == two,
            _ => self == other,
        }
    }
}

/// What is to be done.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<ResourceName, VecDeque<Job>>,
    /// Resources with jobs, in the order in which they came.
    order: VecDeque<ResourceName>,
    running: BTreeMap<ResourceName, Job>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a job. One that waits or runs already is not added again: plans repeat what has not
    /// been reported yet. The newer generation counts.
    pub fn push(&self, name: &ResourceName, job: Job) {
        let mut inner = self.lock();
        if inner.running.get(name) == Some(&job) {
            return;
        }
        let waiting = inner.waiting.entry(name.clone()).or_default();
        if let Some(there) = waiting.iter_mut().find(|there| there.repeats(&job)) {
            if let (Job::Step(old, _), Job::Step(new, _)) = (&mut *there, &job) {
                *old = (*old).max(*new);
            }
            return;
        }
        if waiting.len() >= WAITING {
            return;
        }
        waiting.push_back(job);
        if !inner.order.contains(name) {
            inner.order.push_back(name.clone());
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// The next job of a resource of which none is running; waits for one.
    pub fn next(&self) -> (ResourceName, Job) {
        let mut inner = self.lock();
        loop {
            let free = inner.order.iter().position(|name| !inner.running.contains_key(name));
            if let Some(name) = free.and_then(|at| inner.order.remove(at)) {
                let jobs = inner.waiting.get_mut(&name);
                if let Some(job) = jobs.and_then(VecDeque::pop_front) {
                    inner.running.insert(name.clone(), job.clone());
                    return (name, job);
                }
                continue;
            }
            inner = self.changed.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// The job of a resource that was running is done.
    pub fn done(&self, name: &ResourceName) {
        let mut inner = self.lock();
        inner.running.remove(name);
        match inner.waiting.get(name).is_some_and(|jobs| !jobs.is_empty()) {
            true => inner.order.push_back(name.clone()),
            false => _ = inner.waiting.remove(name),
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Resources of which something runs or waits.
    pub fn busy(&self) -> BTreeSet<ResourceName> {
        let inner = self.lock();
        inner.running.keys().chain(inner.waiting.keys()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    fn step(generation: u64, volume: u16) -> Job {
        Job::Step(Generation(generation), Box::new(Action::BeginData { volume }))
    }

    #[test]
    fn steps_of_one_resource_come_in_order_and_others_beside_them() {
        let queue = Queue::default();
        queue.push(&name("aa"), step(1, 0));
        queue.push(&name("aa"), step(1, 1));
        queue.push(&name("bb"), step(1, 0));
        assert_eq!(queue.next(), (name("aa"), step(1, 0)));
        assert_eq!(queue.next(), (name("bb"), step(1, 0)), "aa has one running");
        queue.done(&name("bb"));
        queue.done(&name("aa"));
        assert_eq!(queue.next(), (name("aa"), step(1, 1)));
        queue.done(&name("aa"));
        assert!(queue.busy().is_empty());
    }

    #[test]
    fn what_is_planned_again_is_done_once() {
        let queue = Queue::default();
        queue.push(&name("aa"), step(1, 0));
        queue.push(&name("aa"), step(2, 0));
        queue.push(&name("aa"), Job::Recover);
        assert_eq!(queue.next(), (name("aa"), step(2, 0)), "of the newer plan");
        queue.push(&name("aa"), step(2, 0));
        queue.push(&name("aa"), step(3, 0));
        queue.done(&name("aa"));
        assert_eq!(queue.next(), (name("aa"), Job::Recover));
        queue.done(&name("aa"));
        assert_eq!(queue.next(), (name("aa"), step(3, 0)), "a newer one is to be confirmed");
    }
}
