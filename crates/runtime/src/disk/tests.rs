//! Files on a real file system, and a loop device where the privileges allow one.

use std::process::Command;

use vocab::Sectors;

use super::*;
use crate::BufPool;
use crate::Payload;
use crate::ring::tests::{ring, wait_all, wait_for};

fn pool() -> BufPool {
    BufPool::new(32 << 20).unwrap()
}

fn file(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

/// Everything a disk does, on whatever it is.
fn exercise(disk: &DiskFile, pool: &BufPool) {
    let mut ring = ring();
    let block = disk.info().logical_block_size as usize;
    let sectors = (block / 512) as u64;
    let data: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8 + 1).collect();
    disk.write(&mut ring, Token(1), Sector(8), pool.copy_from(&data).unwrap(), false);
    assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(1 << 20));
    let fua = pool.copy_from(&data[..block]).unwrap();
    disk.write(&mut ring, Token(2), Sector(0), fua, true);
    assert_eq!(wait_for(&mut ring, Token(2)).result, Ok(block as u32));
    disk.flush(&mut ring, Token(3));
    assert_eq!(wait_for(&mut ring, Token(3)).result, Ok(0));
    for no_hole in [false, true] {
        let start = if no_hole { 1024 } else { 512 };
        disk.write_zeroes(&mut ring, Token(4), SectorRange::new(start, 64), no_hole);
        assert_eq!(wait_for(&mut ring, Token(4)).result, Ok(0), "no_hole {no_hole}");
    }
    disk.discard(&mut ring, Token(5), SectorRange::new(1536, 64));
    let discarded = wait_for(&mut ring, Token(5)).result;
    assert_eq!(discarded.is_ok(), disk.info().can_discard, "{discarded:?}");
    disk.read(&mut ring, Token(6), Sector(8), pool.alloc(1 << 20).unwrap());
    let done = wait_for(&mut ring, Token(6));
    let Payload::Buf(read) = done.payload else { panic!("the buffer comes back") };
    for (at, byte) in read.iter().enumerate() {
        let sector = 8 + at as u64 / 512;
        if (512..576).contains(&sector) || (1024..1088).contains(&sector) {
            assert_eq!(*byte, 0, "zeroed sector {sector}");
        } else if !(1536..1600).contains(&sector) {
            assert_eq!(*byte, data[at], "sector {sector}");
        }
    }
    let mut list = Box::<Vectored>::default();
    (1..=4).for_each(|i| list.push(pool.copy_from(&vec![i; 4096]).unwrap()));
    disk.writev(&mut ring, Token(10), Sector(16), list, true);
    let done = wait_for(&mut ring, Token(10));
    assert_eq!(done.result, Ok(16384));
    let Payload::Vectored(mut list) = done.payload else { panic!("the list comes back") };
    list.drain_bufs().for_each(drop);
    (0..4).for_each(|_| list.push(pool.alloc(4096).unwrap()));
    disk.readv(&mut ring, Token(11), Sector(16), list);
    let done = wait_for(&mut ring, Token(11));
    assert_eq!(done.result, Ok(16384));
    let Payload::Vectored(mut list) = done.payload else { panic!("the list comes back") };
    assert!(list.drain_bufs().zip(1..).all(|(buf, i)| buf.iter().all(|b| *b == i)));
    let end = disk.info().size.sectors_floor().0;
    let bad = [(end, block, Errno::ENOSPC), (end - sectors, 2 * block, Errno::ENOSPC)];
    for (sector, len, errno) in bad.into_iter().chain([(0, block + 100, Errno::EINVAL)]) {
        disk.write(&mut ring, Token(7), Sector(sector), pool.alloc(len).unwrap(), false);
        assert_eq!(wait_for(&mut ring, Token(7)).result, Err(errno));
    }
    disk.read(&mut ring, Token(8), Sector(u64::MAX), pool.alloc(block).unwrap());
    assert_eq!(wait_for(&mut ring, Token(8)).result, Err(Errno::EINVAL));
    disk.discard(&mut ring, Token(9), SectorRange::new(end, sectors));
    assert_eq!(wait_for(&mut ring, Token(9)).result, Err(Errno::ENOSPC));
}

#[test]
fn a_file_serves_as_a_disk() {
    for direct in [true, false] {
        let (file, pool) = (file(8 << 20), pool());
        let options = DiskOptions { direct, ..DiskOptions::default() };
        let disk = DiskFile::open(file.path(), options).unwrap();
        assert_eq!(disk.info().size, Bytes(8 << 20));
        assert!(direct || !disk.info().direct);
        exercise(&disk, &pool);
        assert_eq!(file.as_file().metadata().unwrap().len(), 8 << 20, "the size is kept");
    }
}

#[test]
fn a_file_in_memory_serves_as_a_disk() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
    file.as_file().set_len(4 << 20).unwrap();
    let pool = pool();
    exercise(&DiskFile::open(file.path(), DiskOptions::default()).unwrap(), &pool);
}

#[test]
fn a_file_is_attached_only_once() {
    let file = file(1 << 20);
    let disk = DiskFile::open(file.path(), DiskOptions::default()).unwrap();
    let error = DiskFile::open(file.path(), DiskOptions::default()).unwrap_err();
    assert_eq!(error.cause, OpenCause::InUse);
    assert!(error.to_string().contains("release it first"), "{error}");
    let reader = DiskOptions { write: false, ..DiskOptions::default() };
    assert_eq!(DiskFile::open(file.path(), reader).unwrap_err().cause, OpenCause::InUse);
    drop(disk);
    let readers = [DiskFile::open(file.path(), reader), DiskFile::open(file.path(), reader)];
    assert!(readers.iter().all(Result::is_ok), "readers may share");
}

#[test]
fn what_is_not_a_disk_is_refused_with_the_reason() {
    let open = |path: &str| DiskFile::open(Path::new(path), DiskOptions::default()).unwrap_err();
    assert_eq!(open("/tmp").cause, OpenCause::NotADisk);
    assert_eq!(open("/dev/null").cause, OpenCause::NotADisk);
    assert_eq!(
        open("/nonexistent/disk").to_string(),
        "/nonexistent/disk: can not find it: No such file or directory (os error 2)"
    );
}

#[test]
fn a_grown_file_is_noticed() {
    let file = file(1 << 20);
    let disk = DiskFile::open(file.path(), DiskOptions::default()).unwrap();
    file.as_file().set_len((2 << 20) + 100).unwrap();
    assert_eq!(disk.refresh_size().unwrap(), Bytes(2 << 20));
    assert_eq!(disk.info().size, Bytes(2 << 20));
}

#[test]
fn many_writes_in_flight_all_arrive() {
    let (file, pool) = (file(8 << 20), pool());
    let disk = DiskFile::open(file.path(), DiskOptions::default()).unwrap();
    let mut ring = ring();
    for i in 0..2048u64 {
        let buf = pool.copy_from(&[i as u8; 4096]).unwrap();
        disk.write(&mut ring, Token(i), Sector(i * 8), buf, false);
    }
    assert!(wait_all(&mut ring, 2048).iter().all(|done| done.result == Ok(4096)));
    let content = std::fs::read(file.path()).unwrap();
    assert!(content.chunks(4096).enumerate().all(|(i, c)| c.iter().all(|b| *b == i as u8)));
}

/// A loop device over a file; detached when dropped.
struct Loop {
    device: PathBuf,
    _backing: tempfile::NamedTempFile,
}

impl Loop {
    /// `None`, with a printed reason, where that is not permitted.
    fn new(size: u64, sector_size: u32) -> Option<Loop> {
        let backing = file(size);
        let out = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_size.to_string()])
            .arg(backing.path())
            .output();
        match out {
            Ok(out) if out.status.success() => {
                let device = String::from_utf8(out.stdout).unwrap().trim().into();
                Some(Loop { device, _backing: backing })
            }
            other => {
                println!("skipped: no loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

#[test]
fn a_block_device_serves_as_a_disk_and_is_held_exclusively() {
    for sector_size in [512, 4096] {
        let Some(device) = Loop::new(8 << 20, sector_size) else { return };
        let pool = pool();
        let disk = DiskFile::open(&device.device, DiskOptions::default()).unwrap();
        let info = disk.info();
        assert_eq!(info.logical_block_size, sector_size);
        assert!(info.block_device && info.direct && info.size == Bytes(8 << 20), "{info:?}");
        // The node of the device is, and a thread that took the device for it would wait for it.
        assert!(in_memory(&File::open(&device.device).unwrap()) && !disk.fd.is_in_memory());
        let again = DiskFile::open(&device.device, DiskOptions::default());
        assert_eq!(again.unwrap_err().cause, OpenCause::InUse);
        exercise(&disk, &pool);
    }
}

#[test]
fn writes_of_512_bytes_to_a_4k_device_are_refused() {
    let Some(device) = Loop::new(1 << 20, 4096) else { return };
    let pool = pool();
    let disk = DiskFile::open(&device.device, DiskOptions::default()).unwrap();
    let mut ring = ring();
    disk.write(&mut ring, Token(1), Sector(1), pool.alloc(512).unwrap(), false);
    assert_eq!(wait_for(&mut ring, Token(1)).result, Err(Errno::EINVAL));
    disk.write_zeroes(&mut ring, Token(2), SectorRange { start: Sector(1), len: Sectors(8) }, true);
    assert_eq!(wait_for(&mut ring, Token(2)).result, Err(Errno::EINVAL));
}

#[test]
fn holes_of_a_file_are_told_and_those_of_a_range_end_with_it() {
    let (pool, mut ring) = (pool(), ring());
    let file = file(1 << 20);
    let disk = DiskFile::open(file.path(), DiskOptions::default()).unwrap();
    for at in [64, 1024] {
        disk.write(&mut ring, Token(1), Sector(at), pool.copy_from(&[7; 65536]).unwrap(), false);
        assert_eq!(wait_for(&mut ring, Token(1)).result, Ok(65536));
    }
    let mut told = |start, len| {
        disk.holes(&mut ring, Token(2), SectorRange::new(start, len));
        let done = wait_for(&mut ring, Token(2));
        assert_eq!(done.result, Ok(0));
        let Payload::Extents(extents) = done.payload else { panic!("they come along") };
        extents.iter().map(|e| (e.len / 512, e.kind == crate::ExtentKind::Hole)).collect::<Vec<_>>()
    };
    let all = [(64, true), (128, false), (832, true), (128, false), (896, true)];
    assert_eq!(told(0, 2048), all);
    assert_eq!(told(80, 16), [(16, false)]);
    assert_eq!(told(32, 64), [(32, true), (32, false)]);
    assert_eq!(told(1100, 948), [(52, false), (896, true)]);
    disk.holes(&mut ring, Token(3), SectorRange::new(2040, 16));
    assert_eq!(wait_for(&mut ring, Token(3)).result, Err(Errno::ENOSPC));
}
