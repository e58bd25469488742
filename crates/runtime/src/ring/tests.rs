//! The ring's contract, natively: files, sockets, cancellation, a full queue, dropped owners.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::*;
use crate::BUF_MAX;

pub(crate) fn ring() -> Ring {
    Ring::new().unwrap()
}

/// Waits for the completion with that token; others must not come before it.
pub(crate) fn wait_for(ring: &mut Ring, token: Token) -> Completed {
    let deadline = clock::now() + Duration::from_secs(20);
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(clock::now() < deadline, "{token:?} did not complete");
        ring.wait(Some(deadline), &mut events).unwrap();
    }
    let done = events.remove(0);
    assert!(events.is_empty() && done.token == token, "{done:?} and {events:?}");
    done
}

/// Waits until `count` operations have completed.
pub(crate) fn wait_all(ring: &mut Ring, count: usize) -> Vec<Completed> {
    let deadline = clock::now() + Duration::from_secs(20);
    let mut events = Vec::new();
    while events.len() < count {
        assert!(clock::now() < deadline, "{} of {count} completed", events.len());
        ring.wait(Some(deadline), &mut events).unwrap();
    }
    assert_eq!(events.len(), count);
    events
}

fn pool() -> BufPool {
    BufPool::new(64 << 20).unwrap()
}

fn temp() -> Fd {
    Fd::new(tempfile::tempfile().unwrap().into())
}

/// A file on a disk, and one in memory if there is a place for one.
fn temps() -> impl Iterator<Item = Fd> {
    let memory = tempfile::tempfile_in("/dev/shm").ok().map(|file| Fd::in_memory(file.into()));
    std::iter::once(temp()).chain(memory)
}

fn pair() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Fd::new(ours.into()), theirs)
}

fn buf_of(done: Completed) -> Buf {
    match done.payload {
        Payload::Buf(buf) => buf,
        other => panic!("a buffer comes back, not {other:?}"),
    }
}

#[test]
fn what_was_written_is_read_back() {
    for fd in temps() {
        let (mut ring, pool) = (ring(), pool());
        let data: Vec<u8> = (0..BUF_MAX).map(|i| (i * 7) as u8).collect();
        ring.write(Token(1), &fd, 4096, pool.copy_from(&data).unwrap(), true);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(BUF_MAX as u32));
        ring.fdatasync(Token(2), &fd);
        assert_eq!(wait_for(&mut ring, Token(2)).result, Ok(0));
        ring.read(Token(3), &fd, 4096, pool.alloc(BUF_MAX).unwrap());
        let done = wait_for(&mut ring, Token(3));
        assert_eq!(done.result, Ok(BUF_MAX as u32));
        assert!(buf_of(done).as_slice() == data);
        ring.read(Token(4), &fd, BUF_MAX as u64, pool.alloc(8192).unwrap());
        assert_eq!(wait_for(&mut ring, Token(4)).result, Ok(4096), "the file ends there");
    }
}

#[test]
fn vectored_transfers_keep_the_order_of_the_buffers() {
    for fd in temps() {
        let (mut ring, pool) = (ring(), pool());
        let mut list = Box::<Vectored>::default();
        for i in 0..2000u32 {
            list.push(pool.copy_from(&i.to_le_bytes()).unwrap());
        }
        // More segments than one call takes: the transfer is continued.
        ring.writev(Token(1), &fd, 0, list, false);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(8000));
        let mut list = Box::<Vectored>::default();
        list.push(pool.alloc(6000).unwrap());
        list.push(pool.alloc(2000).unwrap());
        ring.readv(Token(2), &fd, 0, list);
        let done = wait_for(&mut ring, Token(2));
        assert_eq!(done.result, Ok(8000));
        let Payload::Vectored(mut list) = done.payload else { panic!("the list comes back") };
        let read: Vec<u8> = list.drain_bufs().flat_map(|b| b.to_vec()).collect();
        assert!(read == (0..2000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    }
}

#[test]
fn registered_memory_gives_the_same_result() {
    for fd in temps() {
        let (mut ring, pool) = (ring(), BufPool::new(2 << 20).unwrap());
        ring.register_pool(&pool).unwrap();
        assert_eq!(ring.register_pool(&pool), Err(Errno::EBUSY));
        ring.write(Token(1), &fd, 0, pool.copy_from(&[5; 5000]).unwrap().slice(1000, 4000), false);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(4000));
        ring.read(Token(2), &fd, 0, pool.alloc(5000).unwrap());
        let done = wait_for(&mut ring, Token(2));
        assert_eq!(done.result, Ok(4000));
        assert!(buf_of(done)[..4000].iter().all(|b| *b == 5));
        // Files in memory are not the kernel's ring's business.
        let transfers = if fd.is_in_memory() { 0 } else { 2 };
        assert_eq!(ring.fixed_stats().transfers, transfers);
    }
}

#[test]
fn slabs_are_registered_as_they_come_into_use_and_only_those_of_the_pool() {
    let (mut ring, pool, other) = (ring(), BufPool::new(8 << 20).unwrap(), pool());
    ring.register_pool(&pool).unwrap();
    let fd = temp();
    // Two slabs: one of small pieces, one of a big piece.
    let bufs = [4096, 4096, BUF_MAX].map(|len| pool.copy_from(&vec![3; len]).unwrap());
    for (n, buf) in bufs.into_iter().enumerate() {
        let len = buf.len() as u32;
        ring.write(Token(1), &fd, 4096 * n as u64, buf, false);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(len));
    }
    let stats = FixedStats { bytes: 2 << 20, transfers: 3 };
    assert_eq!(ring.fixed_stats(), stats);
    ring.read(Token(2), &fd, 0, other.alloc(8192).unwrap());
    let done = wait_for(&mut ring, Token(2));
    assert!(buf_of(done).iter().all(|b| *b == 3));
    assert_eq!(ring.fixed_stats(), stats);
}

/// In a process of its own, because the limit is for the whole of it.
#[test]
fn where_the_kernel_pins_no_memory_transfers_go_on_and_the_reason_is_told_once() {
    const CHILD: &str = "ASHLAR_TEST_WITHOUT_LOCKED_MEMORY";
    if std::env::var_os(CHILD).is_none() {
        let name = "ring::tests::where_the_kernel_pins_no_memory_transfers_go_on_and_the_reason_is_\
                    told_once";
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // Before there is a ring: that is when the kernel looks.
    lock_little();
    let Ok(mut ring) = Ring::new() else {
        println!("skipped: other processes of this user have locked what there is for the ring");
        return;
    };
    let (pool, fd) = (pool(), temp());
    ring.register_pool(&pool).unwrap();
    for token in [Token(1), Token(2)] {
        ring.write(token, &fd, 0, pool.copy_from(&[9; 8192]).unwrap(), false);
        assert_eq!(wait_for(&mut ring, token).result, Ok(8192));
    }
    assert_eq!(ring.fixed_stats(), FixedStats::default());
    assert_eq!(ring.take_pin_refusal(), Some(Errno::ENOMEM));
    assert_eq!(ring.take_pin_refusal(), None);
    ring.read(Token(3), &fd, 0, pool.alloc(8192).unwrap());
    assert!(buf_of(wait_for(&mut ring, Token(3))).iter().all(|b| *b == 9));
}

/// From here on this thread can lock memory for a ring and for no slab, and has no right to
/// ignore the limit.
fn lock_little() {
    const CAP_IPC_LOCK: u32 = 14;
    let little = libc::rlimit { rlim_cur: 512 << 10, rlim_max: 512 << 10 };
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    // Effective, permitted, inheritable; the low and the high 32.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the calls read or write the structures given, which have the sizes that version 3
    // of the capability calls asks for.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &little), 0);
        assert_eq!(libc::syscall(libc::SYS_capget, &header, &mut sets), 0);
        sets[0][0] &= !(1 << CAP_IPC_LOCK);
        assert_eq!(libc::syscall(libc::SYS_capset, &header, &sets), 0);
    }
}

#[test]
#[should_panic(expected = "unique buffer")]
fn a_shared_buffer_is_never_read_into() {
    let (mut ring, pool, fd) = (ring(), pool(), temp());
    let buf = pool.alloc(4096).unwrap();
    ring.read(Token(1), &fd, 0, buf.clone());
}

#[test]
fn errors_of_the_kernel_are_completions() {
    let (mut ring, pool) = (ring(), pool());
    let full = Fd::new(std::fs::File::options().write(true).open("/dev/full").unwrap().into());
    ring.write(Token(1), &full, 0, pool.alloc(4096).unwrap(), false);
    assert_eq!(wait_for(&mut ring, Token(1)).result, Err(Errno::ENOSPC));
    let read_only = Fd::new(std::fs::File::open("/dev/null").unwrap().into());
    ring.write(Token(2), &read_only, 0, pool.alloc(4096).unwrap(), false);
    assert_eq!(wait_for(&mut ring, Token(2)).result, Err(Errno::EBADF));
    ring.fallocate(Token(3), &read_only, 0, 0, 4096);
    assert!(wait_for(&mut ring, Token(3)).result.is_err());
    let unmapped = Fd::new(std::fs::File::open("/proc/self/mem").unwrap().into());
    ring.read(Token(5), &unmapped, 0, pool.alloc(4096).unwrap());
    assert_eq!(wait_for(&mut ring, Token(5)).result, Err(Errno::EIO));
    ring.fail(Token(4), Errno::EIO, Payload::Buf(pool.alloc(1).unwrap()));
    let done = wait_for(&mut ring, Token(4));
    assert_eq!(done.result, Err(Errno::EIO));
    assert_eq!(buf_of(done).len(), 1);
}

/// A file that may not grow beyond 8 KiB: the first half of a write fits, the rest does not.
#[test]
fn a_write_that_fits_half_reports_the_error_and_not_the_half() {
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
        // SAFETY: sets a limit and ignores a signal of this child process only.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        }
        let (mut ring, pool, fd) = (ring(), pool(), temp());
        ring.write(Token(1), &fd, 0, pool.alloc(16384).unwrap(), false);
        wait_for(&mut ring, Token(1)).result == Err(Errno(libc::EFBIG))
    });
    assert!(status);
}

/// Runs `f` in a forked child and returns its answer.
fn in_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `f` and leaves with _exit; it touches no lock another thread of
    // the test process could have held except the allocator's, which fork handles.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made and writes its status to a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn ranges_are_zeroed_by_whatever_way_works() {
    let (mut ring, pool) = (ring(), pool());
    // tmpfs can punch holes but not zero a range, so without a hole the zeroes are written.
    for no_hole in [false, true] {
        for dir in ["/dev/shm", "/tmp"] {
            let Ok(file) = tempfile::tempfile_in(dir) else { continue };
            let fd = Fd::new(file.into());
            ring.write(Token(1), &fd, 0, pool.copy_from(&[9; 409600]).unwrap(), false);
            wait_for(&mut ring, Token(1));
            ring.write_zeroes(Token(2), &fd, 4096, 204800, no_hole);
            assert_eq!(wait_for(&mut ring, Token(2)).result, Ok(0));
            ring.read(Token(3), &fd, 0, pool.alloc(409600).unwrap());
            let read = buf_of(wait_for(&mut ring, Token(3)));
            for (at, byte) in read.iter().enumerate() {
                assert_eq!(*byte == 0, (4096..208896).contains(&at), "{dir}: byte {at}");
            }
        }
    }
}

#[test]
fn a_discard_on_something_else_than_a_block_device_fails_off_thread() {
    let (mut ring, fd) = (ring(), temp());
    for i in 0..10 {
        ring.discard_blocks(Token(i), &fd, 0, 4096);
    }
    let done = wait_all(&mut ring, 10);
    assert!(done.iter().all(|d| d.result == Err(Errno::ENOTTY)));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn more_operations_than_the_queue_holds_are_all_carried_out() {
    let mut ring = Ring::with_entries(8).unwrap();
    let (pool, fd) = (pool(), temp());
    for i in 0..1000u64 {
        let buf = pool.copy_from(&i.to_le_bytes()).unwrap();
        ring.write(Token(i), &fd, i * 8, buf, false);
    }
    let mut tokens: Vec<u64> = wait_all(&mut ring, 1000).iter().map(|d| d.token.0).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..1000).collect::<Vec<u64>>());
    ring.read(Token(1), &fd, 0, pool.alloc(8000).unwrap());
    let read = buf_of(wait_for(&mut ring, Token(1)));
    assert!(read.chunks(8).enumerate().all(|(i, c)| c == (i as u64).to_le_bytes()));
}

#[test]
fn more_completions_than_their_queue_holds_are_not_lost() {
    let mut ring = Ring::with_entries(2).unwrap();
    let (fd, theirs) = pair();
    for i in 0..500 {
        ring.poll(Token(i), &fd, libc::POLLIN as u32);
    }
    ring.submit().unwrap();
    (&theirs).write_all(b"x").unwrap();
    assert_eq!(wait_all(&mut ring, 500).len(), 500);
}

#[test]
fn waiting_ends_at_the_deadline_and_timeouts_fire() {
    let mut ring = ring();
    let start = clock::now();
    let mut events = Vec::new();
    ring.wait(Some(start + Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty() && ring.now() >= start + Duration::from_millis(20));
    let at = clock::now() + Duration::from_millis(20);
    ring.timeout(Token(1), at);
    assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(0));
    assert!(ring.now() >= at);
    ring.wait(Some(Instant(0)), &mut events).unwrap();
    assert!(events.is_empty(), "a deadline in the past does not wait");
}

/// At every level, since each learns of completions in its own way.
#[test]
fn polling_finds_what_completes_and_ends_at_the_deadline() {
    for level in 0..SETUP_LEVELS {
        let mut ring = Ring::from_uring(set_up(level, 8).unwrap()).unwrap();
        // As long as the test may take: what is not found by polling is not found at all.
        ring.set_busy_poll(Duration::from_secs(20));
        let (ours, mut theirs) = pair();
        let echo = std::thread::spawn(move || {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).is_ok() {
                theirs.write_all(&byte).unwrap();
            }
        });
        let pool = pool();
        for nr in 0..100 {
            let mut buf = pool.alloc(1).unwrap();
            buf.as_mut_slice().unwrap()[0] = nr;
            ring.send(Token(1), &ours, buf);
            wait_for(&mut ring, Token(1));
            ring.recv(Token(2), &ours, pool.alloc(1).unwrap());
            assert_eq!(buf_of(wait_for(&mut ring, Token(2))).as_slice(), [nr]);
        }
        let end = clock::now() + Duration::from_millis(20);
        let mut events = Vec::new();
        ring.wait(Some(end), &mut events).unwrap();
        assert!(events.is_empty() && (end..end + Duration::from_secs(15)).contains(&ring.now()));
        drop(ours);
        drop(ring);
        echo.join().unwrap();
    }
}

#[test]
fn a_cancelled_operation_completes_with_ecanceled() {
    let (mut ring, pool) = (ring(), pool());
    let (fd, _theirs) = pair();
    let ids = [
        ring.recv(Token(0), &fd, pool.alloc(4096).unwrap()),
        ring.poll(Token(1), &fd, libc::POLLIN as u32),
        ring.timeout(Token(2), clock::now() + Duration::from_secs(1000)),
    ];
    ring.submit().unwrap();
    assert_eq!(ring.in_flight(), 3);
    ids.iter().for_each(|id| ring.cancel(*id));
    let done = wait_all(&mut ring, 3);
    assert!(done.iter().all(|d| d.result == Err(Errno::ECANCELED)), "{done:?}");
    // Cancelling what is gone does nothing, even though the slots are used again.
    ring.poll(Token(3), &fd, libc::POLLIN as u32);
    ids.iter().for_each(|id| ring.cancel(*id));
    let mut events = Vec::new();
    ring.wait(Some(clock::now() + Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty());
    assert_eq!(ring.in_flight(), 1);
}

#[test]
fn an_operation_keeps_its_file_open() {
    let (mut ring, pool) = (ring(), pool());
    let (fd, mut theirs) = pair();
    ring.recv(Token(1), &fd, pool.alloc(4096).unwrap());
    let number = fd.as_raw_fd();
    drop(fd);
    // If the descriptor had been closed, the pipe would get its number.
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_ne!(reader.as_fd().as_raw_fd(), number);
    theirs.write_all(b"hello").unwrap();
    let done = wait_for(&mut ring, Token(1));
    assert_eq!(done.result, Ok(5));
    assert_eq!(&buf_of(done)[..5], b"hello");
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "closed after the operation");
}

#[test]
fn dropping_a_ring_ends_its_operations_and_frees_their_memory() {
    let pool = pool();
    let (fd, mut theirs) = pair();
    let file = temp();
    let mut ring = ring();
    for i in 0..20 {
        ring.recv(Token(i), &fd, pool.alloc(4096).unwrap());
        ring.write(Token(i), &file, 0, pool.alloc(65536).unwrap(), true);
    }
    ring.submit().unwrap();
    ring.timeout(Token(99), clock::now() + Duration::from_secs(1000));
    drop(ring);
    assert_eq!(pool.in_use(), 0);
    drop(fd);
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn close_closes() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ring.close(Token(1), ours.into());
    assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(0));
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn every_setup_level_works_or_is_explained() {
    for level in 0..SETUP_LEVELS {
        let Ok(uring) = set_up(level, 16) else {
            assert_eq!(level, 0, "only DEFER_TASKRUN may be missing on the kernels we support");
            continue;
        };
        let (mut ring, pool, fd) = (Ring::from_uring(uring).unwrap(), pool(), temp());
        for i in 0..100 {
            ring.write(Token(i), &fd, i * 512, pool.alloc(512).unwrap(), false);
        }
        assert!(wait_all(&mut ring, 100).iter().all(|done| done.result == Ok(512)));
        let (ours, _theirs) = pair();
        let id = ring.recv(Token(1), &ours, pool.alloc(512).unwrap());
        ring.submit().unwrap();
        ring.cancel(id);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Err(Errno::ECANCELED));
    }
    let text = RingError::Setup(Errno::EPERM).to_string();
    assert!(text.contains("kernel.io_uring_disabled"));
    assert!(RingError::TooOld.to_string().contains("Linux 6.1"));
}

#[test]
fn a_transfer_outlives_a_moment_without_memory_and_no_disk_that_fails() {
    let transfer = || Op {
        token: Token(1),
        fd: None,
        memory: Memory::None,
        kind: Kind::Transfer {
            write: true,
            offset: 0,
            done: 0,
            len: 4096,
            rw_flags: 0,
            retries: 0,
        },
        cancelled: false,
    };
    for error in [Errno::EINTR, Errno::EAGAIN, Errno::ENOMEM] {
        let mut op = transfer();
        for _ in 0..RETRIES_MAX {
            assert!(matches!(next_step(&mut op, Err(error)), Next::Again), "{error}");
        }
        assert!(matches!(next_step(&mut op, Err(error)), Next::Done(Err(last)) if last == error));
    }
    let failed = next_step(&mut transfer(), Err(Errno::EIO));
    assert!(matches!(failed, Next::Done(Err(Errno::EIO))));
}
