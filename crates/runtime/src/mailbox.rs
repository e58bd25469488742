//! A queue between threads that wakes the receiver's ring: admin commands, accepted sockets.
//!
//! It is not for I/O: sending takes a lock and may make a system call.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Errno, Fd, OpId, Ring, Token};

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    eventfd: OwnedFd,
    capacity: usize,
}

struct Queue<T> {
    items: VecDeque<T>,
    receiver_gone: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // A panic can not leave the queue half changed: each critical section is one call.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an item was not taken; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The queue holds as many items as it may.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

/// The sending end; clone it for each sender.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The receiving end. It can move to the thread that will own it.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
}

/// A mailbox for at most `capacity` items.
///
/// # Errors
/// The error number if no eventfd can be created.
pub fn channel<T: Send>(capacity: usize) -> Result<(Sender<T>, Inbox<T>), Errno> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the descriptor was just created and is owned by nobody else.
    let eventfd = unsafe { OwnedFd::from_raw_fd(fd) };
    let queue = Mutex::new(Queue { items: VecDeque::new(), receiver_gone: false });
    let shared = Arc::new(Shared { queue, eventfd, capacity });
    Ok((Sender { shared: shared.clone() }, Inbox { shared }))
}

impl<T: Send> Sender<T> {
    /// Queues an item and wakes the receiver if it may be asleep.
    ///
    /// # Errors
    /// [`SendError`] with the item.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut queue = self.shared.lock();
        if queue.receiver_gone {
            return Err(SendError::Closed(item));
        }
        if queue.items.len() >= self.shared.capacity {
            return Err(SendError::Full(item));
        }
        queue.items.push_back(item);
        // The receiver takes everything at once, so only the first item needs to wake it.
        let wake = queue.items.len() == 1;
        drop(queue);
        if wake {
            let one = 1u64.to_ne_bytes();
            let fd = self.shared.eventfd.as_raw_fd();
            // SAFETY: writes eight bytes from a live array to a descriptor that `shared` owns.
            // It can only fail when the counter is full, and then the receiver is awake anyway.
            unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Inbox<T> {
    /// Moves everything queued to the end of `out`, in order, and resets the wake-up.
    pub fn drain(&self, out: &mut Vec<T>) {
        let mut counter = [0u8; 8];
        let fd = self.shared.eventfd.as_raw_fd();
        // SAFETY: reads at most eight bytes into a live array. Failing with EAGAIN (nobody
        // wrote) is fine. This comes before taking the items: a later wake-up is then never
        // swallowed.
        unsafe { libc::read(fd, counter.as_mut_ptr().cast(), counter.len()) };
        out.extend(self.shared.lock().items.drain(..));
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.receiver_gone = true;
        let left = std::mem::take(&mut queue.items);
        drop(queue);
        drop(left);
    }
}

/// An [`Inbox`] on its thread's ring.
pub struct Mailbox<T> {
    inbox: Inbox<T>,
    fd: Fd,
    token: Token,
    waiting: Option<OpId>,
}

impl<T: Send> Mailbox<T> {
    /// Completions of this mailbox will carry `token`.
    ///
    /// # Errors
    /// The error number if the eventfd can not be duplicated.
    pub fn new(inbox: Inbox<T>, token: Token) -> Result<Mailbox<T>, Errno> {
        let fd = Fd::new(inbox.as_fd().try_clone_to_owned()?);
        Ok(Mailbox { inbox, fd, token, waiting: None })
    }

    /// Asks the ring for a completion when something arrives. Does nothing if that is done.
    pub fn arm(&mut self, ring: &mut Ring) {
        if self.waiting.is_none() {
            self.waiting = Some(ring.poll(self.token, &self.fd, libc::POLLIN as u32));
        }
    }

    /// To be called with the completion that carries this mailbox's token: takes everything
    /// that arrived and arms again.
    pub fn on_completed(&mut self, ring: &mut Ring, out: &mut Vec<T>) {
        self.waiting = None;
        self.inbox.drain(out);
        self.arm(ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::{ring, wait_for};

    #[test]
    fn items_of_many_threads_arrive_and_wake_the_ring() {
        let mut ring = ring();
        let (sender, inbox) = channel(1_000_000).unwrap();
        let mut mailbox = Mailbox::new(inbox, Token(9)).unwrap();
        mailbox.arm(&mut ring);
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for i in 0..1000 {
                        sender.send((thread, i)).unwrap();
                    }
                })
            })
            .collect();
        let mut got = Vec::new();
        while got.len() < 4000 {
            let done = wait_for(&mut ring, Token(9));
            assert!(done.result.is_ok());
            mailbox.on_completed(&mut ring, &mut got);
        }
        for thread in 0..4 {
            let mine: Vec<u64> = got.iter().filter(|g| g.0 == thread).map(|g| g.1).collect();
            assert_eq!(mine, (0..1000).collect::<Vec<u64>>());
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn a_full_or_closed_mailbox_returns_the_item() {
        let (sender, inbox) = channel(2).unwrap();
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(sender.send(3), Err(SendError::Full(3)));
        let mut got = Vec::new();
        inbox.drain(&mut got);
        assert_eq!(got, [1, 2]);
        sender.send(4).unwrap();
        drop(inbox);
        assert_eq!(sender.send(5), Err(SendError::Closed(5)));
    }
}
