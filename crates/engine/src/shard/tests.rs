//! What a shard does with a resource, seen from its inputs and its sockets.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use codec::disk::{MdParams, Placement, Superblock};
use replication::io::{DiskData, DiskError, DiskLimits, DiskOp, OpId};
use runtime::thread::{WorkerOptions, spawn};
use runtime::{DiskFile, DiskOptions, FixedStats, Worker};
use vocab::{Bytes, SectorRange, VolumeNr};

use super::disk::{self, Disk, Finished, Owner};
use super::io::Io;
use super::token::{Purpose, purpose};

const SIZE: u64 = 16 << 20;

/// A disk that is not in memory, if the build folder is not.
fn disk(folder: &tempfile::TempDir) -> Rc<Disk> {
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let params = MdParams::new(2);
    let (_, layout) = Superblock::create(Placement::Internal, Bytes(SIZE), &params).unwrap();
    let limits = DiskLimits {
        logical_block_size: 512,
        physical_block_size: 4096,
        discard_zeroes: false,
        max_io: 1 << 20,
    };
    let data = DiskFile::open(&path, DiskOptions::default()).unwrap();
    let (layout, next_layout) = (Cell::new(layout), Cell::new(None));
    Rc::new(Disk { data, meta: None, layout, next_layout, params, limits })
}

/// Carries an operation out.
fn carry_out(io: &mut Io, disk: &Rc<Disk>, op: DiskOp) -> Result<DiskData, DiskError> {
    let owner = Owner { resource: 0, volume: VolumeNr(0), op: OpId(1) };
    disk::start(io, owner, disk, op, None);
    let mut events = Vec::new();
    loop {
        io.ring.wait(None, &mut events).unwrap();
        for done in events.drain(..) {
            let Purpose::Disk(job) = purpose(done.token) else { panic!("{done:?}") };
            if let Some(Finished::Disk(who, result)) = disk::completed(io, job, done) {
                assert_eq!(who, owner);
                return result;
            }
        }
    }
}

#[test]
fn writes_and_reads_of_the_core_use_registered_buffers() {
    let target: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let folder = tempfile::tempdir_in(target).unwrap();
    let main = move |worker: Worker<()>| {
        let Worker { ring, pool, .. } = worker;
        let (mut io, disk) = (Io::new(ring, pool).unwrap(), disk(&folder));
        assert_eq!(io.ring.fixed_stats(), FixedStats::default(), "idle");
        let range = SectorRange::new(64, 8);
        let data = io.pool.copy_from(&[7; 4096]).unwrap();
        let buf = io.bufs.insert(data);
        let written = carry_out(&mut io, &disk, DiskOp::Write { range, buf, fua: false });
        assert_eq!(written, Ok(DiskData::None));
        let read = carry_out(&mut io, &disk, DiskOp::Read { range, detect_zeroes: false });
        let Ok(DiskData::Read { buf: back, .. }) = read else { panic!("{read:?}") };
        assert_eq!(io.bufs.share(back)[..], [7; 4096]);
        match io.ring.take_pin_refusal() {
            Some(errno) => println!("skipped: no memory can be pinned here: {errno}"),
            None => {
                let stats = FixedStats { bytes: 1 << 20, transfers: 2 };
                assert_eq!(io.ring.fixed_stats(), stats);
            }
        }
    };
    spawn(WorkerOptions::default(), main).unwrap().join().unwrap();
}
