//! DRBD's metadata on a backing volume that nobody uses: how its data begin, and how it grows.
//!
//! The engine makes metadata (`create-md`); here only the superblock is changed afterwards, which is
//! one block and so has its old or its new content. Volumes have internal metadata.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cluster::plan::Begin;
use codec::disk::{BLOCK_SIZE, Layout, MdFlags, Placement, Rules, Superblock};
use crypt::luks::Opened;
use crypt::xts::SectorCipher;
use rustix::io::Errno;
use vocab::{Bytes, GenUuid, NodeId, SECTOR_SIZE, Sectors};

use crate::failed::Failed;
use crate::files;

/// Bytes copied or zeroed at a time.
const CHUNK: u64 = 1 << 20;

/// Bytes at the beginning of a volume where traces of an older use may be.
const HEAD: u64 = 1 << 20;

/// Where metadata are: at the end of a backing volume, encrypted with all of it if there is a key.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The backing volume.
    pub path: &'a str,
    /// The key, if it is encrypted.
    pub key: Option<&'a Opened>,
}

impl<'a> From<&'a str> for At<'a> {
    fn from(path: &'a str) -> At<'a> {
        At { path, key: None }
    }
}

impl<'a> From<&'a String> for At<'a> {
    fn from(path: &'a String) -> At<'a> {
        At { path, key: None }
    }
}

/// A backing volume, opened to change its metadata. Of one that is encrypted it is what is behind the header.
struct Device {
    path: String,
    file: File,
    /// Bytes of the header.
    begin: u64,
    crypt: Option<SectorCipher>,
    size: u64,
}

impl Device {
    fn open<'a>(at: impl Into<At<'a>>) -> Result<Device, Failed> {
        let At { path, key } = at.into();
        let failed = |error: io::Error| broken(path, "open", &error);
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        // Of a block device the size is where its end is.
        let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let (begin, crypt) = (key.map_or(0, Opened::offset), key.map(Opened::cipher));
        let size = end.saturating_sub(begin);
        Ok(Device { path: path.to_owned(), file, begin, crypt, size })
    }

    /// Reads whole blocks.
    fn read(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(to, self.begin + at)?;
        if let Some(crypt) = &self.crypt {
            crypt.decrypt(at / SECTOR_SIZE, to);
        }
        Ok(())
    }

    /// Writes whole blocks, which are encrypted on the way if the device is.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let Some(crypt) = &self.crypt else {
            return self.file.write_all_at(bytes, self.begin + at);
        };
        let mut bytes = bytes.to_vec();
        crypt.encrypt(at / SECTOR_SIZE, &mut bytes);
        self.file.write_all_at(&bytes, self.begin + at)
    }

    fn place(&self) -> u64 {
        (self.size & !(BLOCK_SIZE as u64 - 1)).saturating_sub(BLOCK_SIZE as u64)
    }

    fn superblock(&self) -> Result<Superblock, Failed> {
        let mut block = [0; BLOCK_SIZE];
        self.read(&mut block, self.place())
            .map_err(|error| broken(&self.path, "read the metadata of", &error))?;
        Superblock::decode(&block).map_err(|error| unusable(&self.path, &error))
    }

    fn put(&self, superblock: &Superblock) -> Result<(), Failed> {
        self.write(&superblock.encode()[..], self.place())
            .and_then(|()| self.file.sync_all())
            .map_err(|error| broken(&self.path, "write the metadata of", &error))
    }

    /// Makes a range read as zeroes. Where a file has none of its blocks that is so already, and they
    /// are not filled with zeroes: a thin pool would have to hold them.
    fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        let zeroes = vec![0; CHUNK as usize];
        let mut at = self.next_data(from, to)?;
        while at < to {
            let len = CHUNK.min(to - at);
            self.write(&zeroes[..len as usize], at)?;
            at = self.next_data(at + len, to)?;
        }
        Ok(())
    }

    /// Where data begin at or behind a position, `to` at the most.
    fn next_data(&self, at: u64, to: u64) -> io::Result<u64> {
        // A hole of an encrypted volume does not read as zeroes.
        if at >= to || self.crypt.is_some() || !self.file.metadata()?.is_file() {
            return Ok(at);
        }
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => Ok(data.min(to)),
            Err(Errno::NXIO) => Ok(to),
            // A file system that can not tell has to be written to.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
            Err(error) => Err(error.into()),
        }
    }
}

fn broken(path: &str, verb: &str, error: &io::Error) -> Failed {
    let next = "see to the pool's disks; it is tried again with the next plan";
    Failed::new(format!("could not {verb} {path}: {error}"), next)
}

fn unusable(path: &str, error: &dyn std::fmt::Display) -> Failed {
    Failed::new(
        format!("the metadata of {path} can not be used: {error}"),
        "look at it with `drbdmeta dump-md`; if nobody needs the volume, delete the resource",
    )
}

/// Erases what an older use may have left where programs look for traces of it.
///
/// # Errors
/// If the volume can not be written.
pub fn wipe(path: &str) -> Result<(), Failed> {
    let device = Device::open(path)?;
    let failed = |error: io::Error| broken(path, "wipe", &error);
    device.zero(0, HEAD.min(device.size)).map_err(failed)?;
    device.zero(device.size.saturating_sub(HEAD), device.size).map_err(failed)?;
    device.file.sync_all().map_err(failed)
}

/// How the data of new metadata begin (control plane §7).
///
/// # Errors
/// If there is no metadata, or it can not be written.
pub fn begin<'a>(
    at: impl Into<At<'a>>,
    node_id: Option<NodeId>,
    day_0: GenUuid,
    begin: Begin,
) -> Result<(), Failed> {
    let device = Device::open(at)?;
    let mut superblock = device.superblock()?;
    superblock.node_id = node_id;
    match begin {
        Begin::First => first(&mut superblock, node_id, day_0)?,
        Begin::DayZero => superblock.current_uuid = day_0,
        Begin::Empty => superblock.current_uuid = GenUuid::JUST_CREATED,
    }
    device.put(&superblock)
}

/// The first data generation: everybody else is at `day_0`, and nothing was written since.
fn first(
    superblock: &mut Superblock,
    node_id: Option<NodeId>,
    day_0: GenUuid,
) -> Result<(), Failed> {
    superblock.current_uuid = new_generation()?;
    superblock.flags.set(MdFlags::CONSISTENT, true);
    superblock.flags.set(MdFlags::WAS_UP_TO_DATE, true);
    for peer in NodeId::all().filter(|peer| Some(*peer) != node_id) {
        superblock.peer_mut(peer).bitmap_uuid = day_0;
    }
    Ok(())
}

/// Nobody else has this one. The lowest bit says Primary, and small values have meanings.
fn new_generation() -> Result<GenUuid, Failed> {
    loop {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| {
            Failed::new(format!("the kernel gives no random numbers: {error}"), "restart the node")
        })?;
        let new = GenUuid(u64::from_ne_bytes(bytes)).with_primary(false);
        if new.is_real() {
            return Ok(new);
        }
    }
}

/// Begins the first data generation on a disk that never had data. True if it was done, false if
/// the disk has data, and nothing was.
///
/// # Errors
/// If there is no metadata, or it can not be written.
pub fn begin_data<'a>(at: impl Into<At<'a>>) -> Result<bool, Failed> {
    let device = Device::open(at)?;
    let mut superblock = device.superblock()?;
    if superblock.flags.contains(MdFlags::CONSISTENT) {
        return Ok(false);
    }
    let (node_id, old) = (superblock.node_id, superblock.current_uuid);
    // What the disk has not begun, others have not: they are at the same day 0, or have nothing
    // and copy everything.
    first(&mut superblock, node_id, if old.is_real() { old } else { GenUuid::NONE })?;
    device.put(&superblock)?;
    Ok(true)
}

/// True if the volume has metadata that says that its data are consistent.
///
/// # Errors
/// If it can not be read.
pub fn has_data<'a>(at: impl Into<At<'a>>) -> Result<bool, Failed> {
    let device = Device::open(at)?;
    Ok(device.superblock().is_ok_and(|superblock| superblock.flags.contains(MdFlags::CONSISTENT)))
}

/// True if the volume has metadata.
///
/// # Errors
/// If it can not be read.
pub fn exists<'a>(at: impl Into<At<'a>>) -> Result<bool, Failed> {
    Ok(Device::open(at)?.superblock().is_ok())
}

/// Keeps the metadata of a volume in a file, whole and durable: what is there afterwards can be put
/// at the end of the volume when that has moved.
///
/// # Errors
/// If there is none, or the file can not be written.
pub fn keep_aside<'a>(at: impl Into<At<'a>>, aside: &Path) -> Result<(), Failed> {
    let at = at.into();
    let path = at.path;
    let device = Device::open(at)?;
    let superblock = device.superblock()?;
    let layout = superblock
        .validate(Placement::Internal, Bytes(device.size), Rules::Kernel)
        .map_err(|error| unusable(path, &error))?;
    let (start, end) = (layout.start(), device.place() + BLOCK_SIZE as u64);
    let head = Aside { start, end, size: device.size };
    files::replace_with(aside, 0o600, |file| {
        file.write_all(&head.encode())?;
        let mut chunk = vec![0; CHUNK as usize];
        let mut at = start;
        while at < end {
            let len = CHUNK.min(end - at) as usize;
            device.read(&mut chunk[..len], at)?;
            file.write_all(&chunk[..len])?;
            at += len as u64;
        }
        Ok(())
    })
    .map_err(|error| broken(path, "keep the metadata aside of", &error))
}

/// What stands before kept metadata: where it was, and how large the volume was.
struct Aside {
    start: u64,
    end: u64,
    size: u64,
}

impl Aside {
    fn encode(&self) -> Vec<u8> {
        [self.start, self.end, self.size].iter().flat_map(|n| n.to_be_bytes()).collect()
    }

    fn read(file: &mut File) -> io::Result<Aside> {
        let mut number = || {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
        };
        Ok(Aside { start: number()?, end: number()?, size: number()? })
    }
}

/// True if the volume has the size that it had when its metadata were kept aside: they are where
/// they were then.
///
/// # Errors
/// If one of the two can not be read.
pub fn is_as_kept<'a>(at: impl Into<At<'a>>, aside: &Path) -> Result<bool, Failed> {
    let at = at.into();
    let path = at.path;
    let kept = File::open(aside).and_then(|mut kept| Aside::read(&mut kept));
    let kept = kept.map_err(|error| broken(path, "read the metadata kept aside of", &error))?;
    Ok(Device::open(at)?.size == kept.size)
}

/// Puts metadata that was kept aside at the end of a volume that has grown, and lets the volume's
/// data be as large as one of `backing` bytes would offer, which is the same on all nodes.
///
/// Everything beyond the old data is zero then, on every node: peers that have done the same are
/// equal there, whatever pools are made of.
///
/// # Errors
/// If it can not be written. It can be repeated: what was kept aside is not changed.
pub fn put_back<'a>(at: impl Into<At<'a>>, aside: &Path, backing: u64) -> Result<(), Failed> {
    let at = at.into();
    let path = at.path;
    let failed = |error: io::Error| broken(path, "move the metadata of", &error);
    let device = Device::open(at)?;
    let mut kept = File::open(aside).map_err(failed)?;
    let head = Aside::read(&mut kept).map_err(failed)?;
    let mut image = |at: u64, len: u64| {
        let mut bytes = vec![0; len as usize];
        kept.seek(SeekFrom::Start(24 + at - head.start))?;
        kept.read_exact(&mut bytes).map(|()| bytes)
    };
    let block = image(head.end - BLOCK_SIZE as u64, BLOCK_SIZE as u64).map_err(failed)?;
    let block = block[..].try_into().expect("a whole block was read");
    let mut superblock = Superblock::decode(block).map_err(|error| unusable(path, &error))?;
    let params = superblock.params();
    let old = superblock
        .validate(Placement::Internal, Bytes(head.size), Rules::Kernel)
        .map_err(|error| unusable(path, &error))?;
    let place = |size| {
        Layout::new(Placement::Internal, Bytes(size), &params)
            .map_err(|error| unusable(path, &error))
    };
    let (new, offered) = (place(device.size)?, place(backing.saturating_sub(device.begin))?);
    // From the old end of the data on: old metadata, and what a thick pool had there.
    device.zero(head.start, new.activity_log).map_err(failed)?;
    let mut at = 0;
    while at < old.bitmap_area {
        let len = CHUNK.min(old.bitmap_area - at).min(new.bitmap_area - at);
        if len == 0 {
            break;
        }
        let bytes = image(old.bitmap + at, len).map_err(failed)?;
        device.write(&bytes, new.bitmap + at).map_err(failed)?;
        at += len;
    }
    let log = image(old.activity_log, old.superblock - old.activity_log).map_err(failed)?;
    device.write(&log, new.activity_log).map_err(failed)?;
    device.file.sync_all().map_err(failed)?;
    superblock.md_size = new.md_size;
    superblock.al_offset = new.al_offset;
    superblock.bm_offset = new.bm_offset;
    // Nothing was agreed on yet: it is when peers meet.
    if superblock.effective_size.0 != 0 {
        let size = offered.usable.0.min(new.usable.0);
        superblock.effective_size = Sectors(superblock.effective_size.0.max(size));
    }
    device.put(&superblock)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use codec::disk::MdParams;

    use super::*;

    const MIB: u64 = 1 << 20;
    const DAY_0: GenUuid = GenUuid(0x1234_5678_9abc_def0);

    /// A volume with metadata as the engine makes it.
    fn volume(directory: &tempfile::TempDir, size: u64) -> String {
        let path = directory.path().join("volume");
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let (superblock, layout) =
            Superblock::create(Placement::Internal, Bytes(size), &MdParams::new(7)).unwrap();
        file.write_all_at(&superblock.encode()[..], layout.superblock).unwrap();
        path.display().to_string()
    }

    fn superblock(path: &str) -> Superblock {
        Device::open(path).unwrap().superblock().unwrap()
    }

    #[test]
    fn the_first_disk_has_day_0_for_everybody_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = volume(&directory, 64 * MIB);
        let me = NodeId::new(2);
        begin(&path, me, DAY_0, Begin::First).unwrap();
        let first = superblock(&path);
        assert!(first.current_uuid.is_real() && !first.current_uuid.same(DAY_0));
        assert!(first.flags.contains(MdFlags::CONSISTENT | MdFlags::WAS_UP_TO_DATE));
        assert_eq!(first.node_id, me);
        for node in NodeId::all() {
            let uuid = first.peer(node).bitmap_uuid;
            assert_eq!(uuid, if Some(node) == me { GenUuid::NONE } else { DAY_0 });
        }
        assert!(has_data(&path).unwrap());
        assert!(!begin_data(&path).unwrap(), "it has begun already");
        assert_eq!(superblock(&path), first);
    }

    #[test]
    fn other_disks_have_no_data_until_they_are_told_to_begin() {
        let directory = tempfile::tempdir().unwrap();
        let path = volume(&directory, 64 * MIB);
        begin(&path, NodeId::new(1), DAY_0, Begin::DayZero).unwrap();
        assert_eq!(superblock(&path).current_uuid, DAY_0);
        assert!(!has_data(&path).unwrap());
        assert!(begin_data(&path).unwrap());
        let begun = superblock(&path);
        assert!(!begun.current_uuid.same(DAY_0) && begun.peers[0].bitmap_uuid == DAY_0);
        begin(&path, NodeId::new(1), DAY_0, Begin::Empty).unwrap();
        assert!(superblock(&path).current_uuid.is_just_created());
    }

    #[test]
    fn metadata_moves_with_the_end_of_the_volume() {
        // By less than the metadata take, and by much more.
        for (old, new) in [(64 * MIB, 64 * MIB + 8192), (64 * MIB, 512 * MIB), (8 * MIB, 9 * MIB)] {
            let directory = tempfile::tempdir().unwrap();
            let path = volume(&directory, old);
            begin(&path, NodeId::new(0), DAY_0, Begin::First).unwrap();
            let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
            let mut before = superblock(&path);
            let layout = before.validate(Placement::Internal, Bytes(old), Rules::Kernel).unwrap();
            before.effective_size = layout.usable;
            Device::open(&path).unwrap().put(&before).unwrap();
            let bits: Vec<u8> = (0..layout.bitmap_area).map(|n| (n % 251) as u8 + 1).collect();
            file.write_all_at(&bits, layout.bitmap).unwrap();
            file.write_all_at(&[0xa1; 4096], layout.activity_log).unwrap();
            file.write_all_at(&[0xda; 4096], layout.bitmap - 4096).unwrap();
            let aside = directory.path().join("aside");
            keep_aside(&path, &aside).unwrap();
            file.set_len(new).unwrap();
            // A thick pool gives what somebody else had there.
            file.write_all_at(&vec![0xee; (new - old) as usize], old).unwrap();
            put_back(&path, &aside, new).unwrap();
            let once = fs::read(&path).unwrap();
            put_back(&path, &aside, new).unwrap();
            assert!(fs::read(&path).unwrap() == once, "it can be repeated");
            let after = superblock(&path);
            let grown = after.validate(Placement::Internal, Bytes(new), Rules::Drbdmeta).unwrap();
            assert_eq!(after.effective_size, grown.usable);
            assert_eq!(after.current_uuid, before.current_uuid);
            let read = |at: u64, len: u64| &once[at as usize..(at + len) as usize];
            assert!(
                read(grown.bitmap, layout.bitmap_area.min(grown.bitmap_area))
                    .iter()
                    .zip(&bits)
                    .all(|(a, b)| a == b)
            );
            assert_eq!(read(grown.activity_log, 1), [0xa1]);
            assert_eq!(read(layout.bitmap - 4096, 1), [0xda], "data stay");
            let between = read(layout.bitmap, grown.bitmap - layout.bitmap);
            assert!(between.iter().all(|byte| *byte == 0), "what is new is zero");
            let beyond = grown.bitmap + layout.bitmap_area;
            let rest = grown.activity_log.saturating_sub(beyond);
            assert!(read(beyond.min(grown.activity_log), rest).iter().all(|byte| *byte == 0));
        }
    }
}
