//! The worker threads: each with its own ring, buffer pool and mailbox.

use std::fmt;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mailbox::{self, Inbox, Sender};
use crate::ring::{RING_ENTRIES, RingError};
use crate::{BufPool, Errno, Ring};

/// How to set up a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Name of the thread; the kernel shows 15 characters of it.
    pub name: String,
    /// The CPU to run on; `None` leaves that to the scheduler.
    pub cpu: Option<usize>,
    /// Limit of the buffer pool in bytes.
    pub pool_bytes: usize,
    /// Places in the submission queue.
    pub ring_entries: u32,
    /// Messages the mailbox holds.
    pub mailbox_capacity: usize,
    /// How long to look for completions before sleeping ([`Ring::set_busy_poll`]).
    pub busy_poll: Duration,
}

impl Default for WorkerOptions {
    /// Not pinned, 256 MiB of buffers, no busy polling.
    fn default() -> Self {
        WorkerOptions {
            name: "worker".to_owned(),
            cpu: None,
            pool_bytes: 256 << 20,
            ring_entries: RING_ENTRIES,
            mailbox_capacity: 4096,
            busy_poll: Duration::ZERO,
        }
    }
}

/// What a worker owns. None of it but the inbox can leave the thread.
pub struct Worker<M> {
    /// The thread's ring, with `pool` as registered buffers unless the kernel refuses
    /// ([`Ring::take_pin_refusal`]).
    pub ring: Ring,
    /// The thread's buffers.
    pub pool: BufPool,
    /// Messages from other threads; make it a [`crate::Mailbox`] with a token.
    pub inbox: Inbox<M>,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
}

/// The outside of a worker.
pub struct WorkerHandle<M> {
    /// Sends messages to it.
    pub sender: Sender<M>,
    thread: JoinHandle<()>,
}

impl<M> WorkerHandle<M> {
    /// Waits until the thread has ended. It ends by its own decision, usually a message.
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join(self) -> std::thread::Result<()> {
        self.thread.join()
    }
}

/// Why a worker did not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpawnError {
    /// No thread, or no mailbox.
    Thread(Errno),
    /// No ring.
    Ring(RingError),
    /// No address space for the buffers.
    Buffers(Errno),
    /// It can not run on that CPU.
    Pin(usize, Errno),
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::Thread(errno) => write!(f, "no thread could be started: {errno}"),
            SpawnError::Ring(error) => error.fmt(f),
            SpawnError::Buffers(errno) => {
                write!(f, "no address space for the buffer pool: {errno}; make it smaller")
            }
            SpawnError::Pin(cpu, errno) => {
                write!(f, "a thread can not be pinned to CPU {cpu}: {errno}; choose a usable CPU")
            }
        }
    }
}

impl std::error::Error for SpawnError {}

/// Starts a worker that runs `main`, and waits until it is set up.
///
/// # Errors
/// [`SpawnError`]; no thread is left behind.
pub fn spawn<M, F>(options: WorkerOptions, main: F) -> Result<WorkerHandle<M>, SpawnError>
where
    M: Send + 'static,
    F: FnOnce(Worker<M>) + Send + 'static,
{
    let no_thread = |e: io::Error| SpawnError::Thread(e.into());
    let (sender, inbox) = mailbox::channel(options.mailbox_capacity).map_err(SpawnError::Thread)?;
    let (ready, setup) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(options.name.clone())
        .spawn(move || match set_up(&options, inbox) {
            Ok(worker) => {
                // The spawner waits for this message; if it panicked the worker runs anyway.
                let _ = ready.send(Ok(()));
                main(worker);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        })
        .map_err(no_thread)?;
    match setup.recv() {
        Ok(Ok(())) => Ok(WorkerHandle { sender, thread }),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(SpawnError::Thread(Errno::ESHUTDOWN)),
    }
}

fn set_up<M>(options: &WorkerOptions, inbox: Inbox<M>) -> Result<Worker<M>, SpawnError> {
    if let Some(cpu) = options.cpu {
        pin(cpu).map_err(|errno| SpawnError::Pin(cpu, errno))?;
    }
    let mut ring = Ring::with_entries(options.ring_entries).map_err(SpawnError::Ring)?;
    let pool = BufPool::new(options.pool_bytes).map_err(SpawnError::Buffers)?;
    // Without, transfers cost more and work as well: the ring keeps the reason for who asks.
    let _ = ring.register_pool(&pool);
    ring.set_busy_poll(options.busy_poll);
    Ok(Worker { ring, pool, inbox, cpu: options.cpu })
}

/// The CPUs the calling thread may run on, ascending; empty if the kernel does not say.
pub fn usable_cpus() -> Vec<usize> {
    // SAFETY: cpu_set_t is a plain bit set; the kernel writes at most its size.
    let (result, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set), set)
    };
    if result != 0 {
        return Vec::new();
    }
    // SAFETY: CPU_ISSET reads a bit of the set, and every index is within it.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Pins the calling thread to one CPU.
fn pin(cpu: usize) -> Result<(), Errno> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: cpu_set_t is a plain bit set, the index is within it, and the kernel only reads.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fd, FixedStats, Mailbox, Payload, Token};

    /// One worker per CPU adds up numbers until it is told to stop.
    #[test]
    fn workers_run_pinned_and_answer_messages() {
        let (results, sums) = mpsc::channel();
        let workers: Vec<_> = usable_cpus()
            .into_iter()
            .map(|cpu| {
                let results = results.clone();
                let options = WorkerOptions {
                    cpu: Some(cpu),
                    pool_bytes: 1 << 20,
                    ..WorkerOptions::default()
                };
                spawn(options, move |mut worker: Worker<Option<u64>>| {
                    assert_eq!(usable_cpus(), [cpu]);
                    let mut mailbox = Mailbox::new(worker.inbox, Token(1)).unwrap();
                    mailbox.arm(&mut worker.ring);
                    let (mut sum, mut messages, mut events) = (0, Vec::new(), Vec::new());
                    loop {
                        worker.ring.wait(None, &mut events).unwrap();
                        for _ in events.drain(..) {
                            mailbox.on_completed(&mut worker.ring, &mut messages);
                        }
                        for message in messages.drain(..) {
                            match message {
                                Some(n) => sum += n,
                                None => return results.send(sum).unwrap(),
                            }
                        }
                    }
                })
                .unwrap()
            })
            .collect();
        assert!(!workers.is_empty());
        for worker in workers {
            (1..=100).for_each(|n| worker.sender.send(Some(n)).unwrap());
            worker.sender.send(None).unwrap();
            worker.join().unwrap();
            assert_eq!(sums.recv().unwrap(), 5050);
        }
    }

    #[test]
    fn a_worker_reads_and_writes_with_registered_buffers() {
        let options = WorkerOptions { pool_bytes: 4 << 20, ..WorkerOptions::default() };
        let worker = spawn(options, |mut worker: Worker<()>| {
            // Set up, and idle: nothing is pinned.
            assert_eq!(worker.ring.fixed_stats(), FixedStats::default());
            let fd = Fd::new(tempfile::tempfile().unwrap().into());
            let mut buf = worker.pool.copy_from(&[7; 4096]).unwrap();
            for (n, write) in [true, false].into_iter().enumerate() {
                match write {
                    true => worker.ring.write(Token(1), &fd, 0, buf, true),
                    false => worker.ring.read(Token(1), &fd, 0, buf),
                };
                let mut events = Vec::new();
                while events.is_empty() {
                    worker.ring.wait(None, &mut events).unwrap();
                }
                assert_eq!(events[0].result, Ok(4096));
                let Payload::Buf(back) = events.remove(0).payload else { panic!("it comes back") };
                buf = back;
                // One slab, however often it is used.
                let stats = FixedStats { bytes: 1 << 20, transfers: n as u64 + 1 };
                assert_eq!(worker.ring.fixed_stats(), stats);
            }
            assert_eq!(worker.ring.take_pin_refusal(), None);
        });
        worker.unwrap().join().unwrap();
    }

    #[test]
    fn a_worker_that_can_not_start_says_why() {
        let options = WorkerOptions { cpu: Some(100_000), ..WorkerOptions::default() };
        let error = spawn(options, |_: Worker<()>| ()).err().unwrap();
        assert_eq!(error, SpawnError::Pin(100_000, Errno::EINVAL));
        let options = WorkerOptions { pool_bytes: usize::MAX / 2, ..WorkerOptions::default() };
        let error = spawn(options, |_: Worker<()>| ()).err().unwrap();
        assert_eq!(error, SpawnError::Buffers(Errno::ENOMEM));
    }
}
