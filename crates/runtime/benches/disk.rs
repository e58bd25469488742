//! CPU cost of direct 4 KiB reads and writes at queue depth 32, with and without registered
//! buffers. The disk is a temporary file, or the path given as argument (it is overwritten).

#![allow(clippy::print_stdout, reason = "the figures are the product of a benchmark")]

use std::path::PathBuf;

use runtime::{BufPool, DiskFile, DiskOptions, Payload, Ring, Token, clock};
use vocab::Sector;

const DEPTH: u64 = 32;
const OPERATIONS: u64 = 100_000;
const BLOCK: usize = 4096;

/// CPU time of this thread in microseconds; work of the kernel's own threads is not in it.
fn cpu_us() -> f64 {
    // SAFETY: rusage is a plain C struct that the kernel fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
        us(usage.ru_utime) + us(usage.ru_stime)
    }
}

fn run(disk: &DiskFile, write: bool, registered: bool) {
    let mut ring = Ring::new().expect("io_uring");
    let pool = BufPool::new(4 << 20).expect("address space");
    if registered && let Err(errno) = ring.register_pool(&pool) {
        println!("registered buffers: {errno}");
        return;
    }
    let blocks = disk.info().size.0 / BLOCK as u64;
    let (mut started, mut finished, mut place, mut events) = (0, 0, 0u64, Vec::new());
    let (start, cpu) = (clock::now(), cpu_us());
    while finished < OPERATIONS {
        while started < OPERATIONS && started - finished < DEPTH {
            place = place.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let sector = Sector((place >> 33) % blocks * (BLOCK as u64 / 512));
            let buf = pool.alloc(BLOCK).expect("memory");
            if write {
                disk.write(&mut ring, Token(started), sector, buf, false);
            } else {
                disk.read(&mut ring, Token(started), sector, buf);
            }
            started += 1;
        }
        ring.wait(None, &mut events).expect("the ring works");
        for done in events.drain(..) {
            assert_eq!(done.result, Ok(BLOCK as u32));
            assert!(matches!(done.payload, Payload::Buf(_)));
            finished += 1;
        }
    }
    let seconds = clock::now().since(start).as_secs_f64();
    println!(
        "{:5} {:10}  cpu {:5.2} us/op  {:8.0} op/s",
        if write { "write" } else { "read" },
        if registered { "registered" } else { "plain" },
        (cpu_us() - cpu) / OPERATIONS as f64,
        OPERATIONS as f64 / seconds,
    );
}

fn main() {
    let given = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).map(PathBuf::from);
    let temporary = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = given.unwrap_or_else(|| {
        std::fs::write(temporary.path(), vec![1u8; 256 << 20]).expect("256 MiB of disk");
        temporary.path().to_owned()
    });
    let disk = DiskFile::open(&path, DiskOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    println!("{} {:?}", path.display(), disk.info());
    for write in [true, false] {
        for registered in [false, true] {
            run(&disk, write, registered);
        }
    }
}
