//! What a shard does with a resource, seen from its inputs and its sockets.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use codec::disk::{MdParams, Placement, Superblock};
use crypt::xts::{KEY, SectorCipher};
use replication::io::{
    DiskData, DiskError, DiskLimits, DiskOp, MetaBlock, MetaPlace, MetaWrite, OpId,
};
use runtime::thread::{WorkerOptions, spawn};
use runtime::{DiskFile, DiskOptions, FixedStats, Place, Worker};
use vocab::{Bytes, SectorRange, VolumeNr};

use super::disk::{self, Disk, Finished, Owner};
use super::io::Io;
use super::token::{Purpose, purpose};

const SIZE: u64 = 16 << 20;

/// A disk that is not in memory, if the build folder is not.
fn disk(folder: &tempfile::TempDir) -> Rc<Disk> {
    encrypted_disk(folder, 0, None)
}

/// One that begins after so many bytes.
fn encrypted_disk(folder: &tempfile::TempDir, begin: u64, crypt: Option<SectorCipher>) -> Rc<Disk> {
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let params = MdParams::new(2);
    let (_, layout) =
        Superblock::create(Placement::Internal, Bytes(SIZE - begin), &params).unwrap();
    let limits = DiskLimits {
        logical_block_size: 512,
        physical_block_size: 4096,
        discard_zeroes: false,
        max_io: 1 << 20,
    };
    let data = DiskFile::open(&path, DiskOptions { begin, ..DiskOptions::default() }).unwrap();
    let (layout, next_layout) = (Cell::new(layout), Cell::new(None));
    Rc::new(Disk { data, meta: None, crypt, key: None, layout, next_layout, params, limits })
}

/// Carries an operation out.
fn carry_out(io: &mut Io, disk: &Rc<Disk>, op: DiskOp) -> Result<DiskData, DiskError> {
    carry_out_at(io, disk, op, None)
}

fn carry_out_at(
    io: &mut Io,
    disk: &Rc<Disk>,
    op: DiskOp,
    place: Option<Place>,
) -> Result<DiskData, DiskError> {
    let owner = Owner { resource: 0, volume: VolumeNr(0), op: OpId(1) };
    disk::start(io, owner, disk, op, None, place);
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

/// Only a kernel with ublk fills places (`cargo xtask vm blockdev`); that one is empty, or none, is all that can
/// be had here.
#[test]
fn what_can_not_be_read_into_its_place_is_read_into_a_buffer() {
    let target: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let folder = tempfile::tempdir_in(target).unwrap();
    let main = move |worker: Worker<()>| {
        let Worker { ring, pool, .. } = worker;
        let (mut io, disk) = (Io::new(ring, pool).unwrap(), disk(&folder));
        let range = SectorRange::new(64, 8);
        let data = io.pool.copy_from(&[7; 4096]).unwrap();
        let buf = io.bufs.insert(data);
        carry_out(&mut io, &disk, DiskOp::Write { range, buf, fua: false }).unwrap();
        let empty = io.ring.take_places(1).expect("a pool is registered")[0];
        for place in [empty, Place::NOWHERE] {
            let op = DiskOp::Read { range, detect_zeroes: false, request: Some(0) };
            let read = carry_out_at(&mut io, &disk, op, Some(place));
            let Ok(DiskData::Read { buf: back, .. }) = read else { panic!("{read:?}") };
            assert_eq!(io.bufs.share(back)[..], [7; 4096]);
            io.bufs.free(back);
        }
        assert!(io.jobs.is_idle());
    };
    spawn(WorkerOptions::default(), main).unwrap().join().unwrap();
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
        let read =
            carry_out(&mut io, &disk, DiskOp::Read { range, detect_zeroes: false, request: None });
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

/// Waits for the end of a job that was started.
fn finish(io: &mut Io) -> Finished {
    let mut events = Vec::new();
    loop {
        if let Some(finished) = io.jobs.finished.pop() {
            return finished;
        }
        io.ring.wait(None, &mut events).unwrap();
        for done in events.drain(..) {
            let Purpose::Disk(job) = purpose(done.token) else { panic!("{done:?}") };
            if let Some(finished) = disk::completed(io, job, done) {
                return finished;
            }
        }
    }
}

#[test]
fn everything_on_an_encrypted_disk_is_encrypted_and_what_is_in_memory_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    const BEGIN: u64 = 1 << 20;
    let main = move |worker: Worker<()>| {
        let Worker { ring, pool, .. } = worker;
        let cipher = || SectorCipher::new(&[0x42; KEY], 512, 0).unwrap();
        let mut io = Io::new(ring, pool).unwrap();
        let disk = encrypted_disk(&folder, BEGIN, Some(cipher()));
        let on_disk = |sector: u64, len: usize| {
            let bytes = std::fs::read(&path).unwrap();
            bytes[(BEGIN + sector * 512) as usize..][..len].to_vec()
        };
        let decrypted = |sector: u64, len: usize| {
            let mut bytes = on_disk(sector, len);
            cipher().decrypt(sector, &mut bytes);
            bytes
        };
        let owner = Owner { resource: 0, volume: VolumeNr(0), op: OpId(1) };

        let data = io.pool.copy_from(&[7; 4096]).unwrap();
        let buf = io.bufs.insert(data);
        let range = SectorRange::new(64, 8);
        let written = carry_out(&mut io, &disk, DiskOp::Write { range, buf, fua: true });
        assert_eq!(written, Ok(DiskData::None));
        assert_eq!(io.bufs.share(buf)[..], [7; 4096], "it is sent to peers as it was");
        assert_eq!(io.crypt_pool.in_use(), 0);
        assert_ne!(on_disk(64, 4096), [7; 4096]);
        assert_eq!(decrypted(64, 4096), [7; 4096]);
        // A single sector, with others around it.
        let sector = SectorRange::new(66, 1);
        let read = carry_out(
            &mut io,
            &disk,
            DiskOp::Read { range: sector, detect_zeroes: true, request: None },
        );
        let Ok(DiskData::Read { buf: back, all_zero: false }) = read else { panic!("{read:?}") };
        assert_eq!(io.bufs.share(back)[..], [7; 512]);

        // Zeroes are written, more than fit one piece, and read as such.
        let zeroes = SectorRange::new(60, 2 * (1 << 20) / 512 + 8);
        disk::start(
            &mut io,
            owner,
            &disk,
            DiskOp::Zeroes { range: zeroes, unmap: true },
            None,
            None,
        );
        assert!(matches!(finish(&mut io), Finished::Disk(_, Ok(DiskData::None))));
        let len = zeroes.len.bytes().0 as usize;
        assert!(decrypted(60, len).iter().all(|byte| *byte == 0));
        assert!(on_disk(60, 512).iter().any(|byte| *byte != 0));
        let read =
            carry_out(&mut io, &disk, DiskOp::Read { range, detect_zeroes: true, request: None });
        assert!(matches!(read, Ok(DiskData::Read { all_zero: true, .. })), "{read:?}");

        // A discard would leave noise.
        disk::start(&mut io, owner, &disk, DiskOp::Discard { range }, None, None);
        assert!(matches!(finish(&mut io), Finished::Disk(_, Err(DiskError::Unsupported))));
        assert!(decrypted(64, 4096).iter().all(|byte| *byte == 0));

        // Metadata, too.
        let bytes = Box::new([9; codec::disk::BLOCK_SIZE]);
        let commit = Some(MetaBlock { place: MetaPlace::Superblock, bytes });
        let write = MetaWrite { plain: Vec::new(), commit, flush: true };
        disk::start_meta(&mut io, owner, &disk, write);
        assert!(matches!(finish(&mut io), Finished::Meta(_, Ok(()))));
        let sector = disk.layout.get().superblock / 512;
        assert_eq!(decrypted(sector, 4096), [9; 4096]);
    };
    spawn(WorkerOptions::default(), main).unwrap().join().unwrap();
}
