//! Subscribers to changes of state.
//!
//! Shards put whole snapshots here, and only if somebody listens; a subscriber takes them at its
//! own pace. Of several snapshots of a resource a slow subscriber gets the newest, so nothing
//! grows without limit, and everybody ends in the true state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::admin::{Event, HelperEvent, ResourceStatus};

/// Calls of handlers that a slow subscriber is told of at most.
const MAX_CALLS: usize = 1024;

/// Where shards and subscribers meet.
#[derive(Default)]
pub(crate) struct Hub {
    count: AtomicUsize,
    next: AtomicU64,
    subscribers: Mutex<BTreeMap<u64, Arc<Subscriber>>>,
}

/// Somebody who listens.
pub(crate) struct Subscriber {
    pub(crate) id: u64,
    only: Option<String>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The newest news of each resource: its state, or that it is gone.
    news: BTreeMap<String, Option<ResourceStatus>>,
    /// Calls of handlers and their ends, the oldest first.
    calls: VecDeque<HelperEvent>,
    ended: bool,
}

/// A lock whose data can not be half changed: each critical section is a few assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// True if anybody wants to know about the resource. Costs a load while nobody listens.
    pub(crate) fn wants(&self, resource: &str) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.subscribers).values().any(|s| s.listens_to(resource))
    }

    /// Tells a new state to everybody who wants it.
    pub(crate) fn publish(&self, status: ResourceStatus) {
        for subscriber in lock(&self.subscribers).values() {
            if subscriber.listens_to(&status.name) {
                subscriber.tell(&status.name, Some(status.clone()));
            }
        }
    }

    /// Tells a state to one subscriber.
    pub(crate) fn publish_to(&self, id: u64, status: ResourceStatus) {
        if let Some(subscriber) = lock(&self.subscribers).get(&id) {
            let name = status.name.clone();
            subscriber.tell(&name, Some(status));
        }
    }

    /// Tells that a resource is gone.
    pub(crate) fn gone(&self, resource: &str) {
        for subscriber in lock(&self.subscribers).values() {
            if subscriber.listens_to(resource) {
                subscriber.tell(resource, None);
            }
        }
    }

    /// Tells that a handler is called, or has ended.
    pub(crate) fn helper(&self, call: HelperEvent) {
        for subscriber in lock(&self.subscribers).values() {
            if subscriber.listens_to(&call.resource) {
                let mut queue = lock(&subscriber.queue);
                if queue.calls.len() == MAX_CALLS {
                    queue.calls.pop_front();
                }
                queue.calls.push_back(call.clone());
                subscriber.wake.notify_all();
            }
        }
    }

    /// A new subscriber to one resource or all.
    pub(crate) fn subscribe(&self, only: Option<String>) -> Arc<Subscriber> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let queue = Mutex::new(Queue::default());
        let subscriber = Arc::new(Subscriber { id, only, queue, wake: Condvar::new() });
        lock(&self.subscribers).insert(id, subscriber.clone());
        self.count.fetch_add(1, Ordering::Release);
        subscriber
    }

    /// Ends a subscription.
    pub(crate) fn unsubscribe(&self, id: u64) {
        if let Some(subscriber) = lock(&self.subscribers).remove(&id) {
            self.count.fetch_sub(1, Ordering::Release);
            lock(&subscriber.queue).ended = true;
            subscriber.wake.notify_all();
        }
    }
}

impl Subscriber {
    fn listens_to(&self, resource: &str) -> bool {
        self.only.as_deref().is_none_or(|name| name == resource)
    }

    fn tell(&self, resource: &str, news: Option<ResourceStatus>) {
        lock(&self.queue).news.insert(resource.to_owned(), news);
        self.wake.notify_all();
    }

    /// What is new, by name; waits for something for at most `patience`. `None` once the
    /// subscription has ended.
    pub(crate) fn take(&self, patience: Duration) -> Option<Vec<Event>> {
        let queue = lock(&self.queue);
        let empty =
            |queue: &mut Queue| queue.news.is_empty() && queue.calls.is_empty() && !queue.ended;
        let (mut queue, _) = self
            .wake
            .wait_timeout_while(queue, patience, empty)
            .unwrap_or_else(PoisonError::into_inner);
        if queue.ended {
            return None;
        }
        let news = std::mem::take(&mut queue.news);
        let event = |(resource, status): (String, Option<ResourceStatus>)| match status {
            Some(status) => Event::Resource(status),
            None => Event::Gone { resource },
        };
        let calls = std::mem::take(&mut queue.calls).into_iter().map(Event::Helper);
        Some(news.into_iter().map(event).chain(calls).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::admin::WriteOrdering;
    use vocab::{NodeId, Role};

    fn status(name: &str, role: Role) -> ResourceStatus {
        ResourceStatus {
            name: name.to_owned(),
            node_id: NodeId::new(0).unwrap(),
            role,
            suspended: vocab::Suspended::default(),
            force_io_failures: false,
            write_ordering: WriteOrdering::None,
            may_promote: false,
            promotion_score: 0,
            devices: Vec::new(),
            connections: Vec::new(),
        }
    }

    #[test]
    fn a_slow_subscriber_gets_the_newest_of_what_it_asked_for() {
        let hub = Hub::default();
        assert!(!hub.wants("r0"));
        let all = hub.subscribe(None);
        let one = hub.subscribe(Some("r1".to_owned()));
        assert!(hub.wants("r0") && hub.wants("r1"));
        hub.publish(status("r0", Role::Secondary));
        hub.publish(status("r0", Role::Primary));
        hub.publish(status("r1", Role::Primary));
        hub.gone("r1");
        let gone = Event::Gone { resource: "r1".to_owned() };
        let soon = Duration::ZERO;
        let news = all.take(soon).unwrap();
        assert_eq!(news, [Event::Resource(status("r0", Role::Primary)), gone.clone()]);
        assert_eq!(one.take(soon).unwrap(), [gone]);
        assert_eq!(all.take(soon).unwrap(), []);
        hub.unsubscribe(all.id);
        assert_eq!(all.take(Duration::from_secs(60)), None);
        assert!(!hub.wants("r0"));
    }
}
