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
use vocab::{Bytes, GenUuid, NodeId, SECTOR_SIZE};

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

/// Where the superblock is on a device of this size.
const fn place(size: u64) -> u64 {
    (size & !(BLOCK_SIZE as u64 - 1)).saturating_sub(BLOCK_SIZE as u64)
}

impl Device {
    fn open<'a>(at: impl Into<At<'a>>) -> Result<Device, Failed> {
        Device::open_with(at.into(), true)
    }

    /// To look at one that the engine may use meanwhile.
    fn look<'a>(at: impl Into<At<'a>>) -> Result<Device, Failed> {
        Device::open_with(at.into(), false)
    }

    fn open_with(at: At<'_>, write: bool) -> Result<Device, Failed> {
        let At { path, key } = at;
        let failed = |error: io::Error| broken(path, "open", &error);
        let mut file = OpenOptions::new().read(true).write(write).open(path).map_err(failed)?;
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
        place(self.size)
    }

    fn superblock(&self) -> Result<Superblock, Failed> {
        self.superblock_of(self.size)
    }

    /// The superblock that was written when the device had this size.
    fn superblock_of(&self, size: u64) -> Result<Superblock, Failed> {
        Superblock::decode(&self.block_of(size)?).map_err(|error| unusable(&self.path, &error))
    }

    fn block_of(&self, size: u64) -> Result<[u8; BLOCK_SIZE], Failed> {
        let mut block = [0; BLOCK_SIZE];
        self.read(&mut block, place(size))
            .map_err(|error| broken(&self.path, "read the metadata of", &error))?;
        Ok(block)
    }

    /// True if the metadata of this volume are where they were when the device had this size.
    fn is_ours(&self, size: u64, device_uuid: u64) -> Result<bool, Failed> {
        let superblock = Superblock::decode(&self.block_of(size)?);
        Ok(superblock.is_ok_and(|superblock| superblock.device_uuid == device_uuid))
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

/// Has the data of a volume be a beginning of their own: no other disk has them, and none that knew the disk
/// they are from is waited for. Peers get all of them.
///
/// # Errors
/// If there is no metadata, or it can not be written.
pub fn alone<'a>(at: impl Into<At<'a>>) -> Result<(), Failed> {
    let device = Device::open(at)?;
    let mut superblock = device.superblock()?;
    superblock.current_uuid = new_generation()?;
    superblock.history = Default::default();
    superblock.peers = Default::default();
    superblock.members = Default::default();
    device.put(&superblock)
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

/// The DRBD node id that the metadata of a volume name, if they name one yet. Nothing is written.
///
/// # Errors
/// If the volume can not be read, or has no metadata that can be used.
pub fn node_id<'a>(at: impl Into<At<'a>>) -> Result<Option<NodeId>, Failed> {
    Ok(Device::look(at)?.superblock()?.node_id)
}

/// Bytes of a volume's device.
///
/// # Errors
/// If it can not be opened.
pub fn device_size<'a>(at: impl Into<At<'a>>) -> Result<u64, Failed> {
    Ok(Device::look(at)?.size)
}

/// What tells the metadata at the end of a volume from those of others.
///
/// # Errors
/// If there are none.
pub fn device_uuid<'a>(at: impl Into<At<'a>>) -> Result<u64, Failed> {
    Ok(Device::look(at)?.superblock()?.device_uuid)
}

/// True if these metadata are at the end of the volume.
///
/// # Errors
/// If it can not be read.
pub fn is_at_end<'a>(at: impl Into<At<'a>>, device_uuid: u64) -> Result<bool, Failed> {
    let device = Device::look(at)?;
    device.is_ours(device.size, device_uuid)
}

/// A volume has grown by what was somebody else's, whose metadata may be at its end now: they go.
/// The engine may have the volume: should it have brought its own there already, they stay.
///
/// # Errors
/// If it can not be written.
pub fn forget_others<'a>(at: impl Into<At<'a>>, device_uuid: u64) -> Result<(), Failed> {
    let at = at.into();
    match is_at_end(at, device_uuid)? {
        true => Ok(()),
        false => erase(at),
    }
}

/// Erases the superblock at the end of a volume, if it is there.
///
/// # Errors
/// If it can not be written.
pub fn erase<'a>(at: impl Into<At<'a>>) -> Result<(), Failed> {
    let at = at.into();
    let path = at.path;
    if !Path::new(path).exists() {
        return Ok(());
    }
    let device = Device::open(at)?;
    let place = device.place();
    let zeroed = device.zero(place, place + BLOCK_SIZE as u64);
    zeroed
        .and_then(|()| device.file.sync_all())
        .map_err(|error| broken(path, "erase the metadata of", &error))
}

/// Brings metadata to the end of a volume from where they were when its device had one of the sizes
/// `ends`. The engine must not have it, and they must not be there already. A crash in between
/// leaves `aside`, and this is done again.
///
/// # Errors
/// If they are nowhere, or something can not be read or written.
pub fn bring_to_end<'a>(
    at: impl Into<At<'a>>,
    aside: &Path,
    ends: &[u64],
    device_uuid: u64,
) -> Result<(), Failed> {
    let at = at.into();
    let path = at.path;
    if !aside.exists() {
        let device = Device::look(at)?;
        let mut ends = ends.to_vec();
        // Where they went last is where they are: what they left is not erased at once.
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let mut found = None;
        for end in ends.into_iter().filter(|end| *end <= device.size) {
            if found.is_none() && device.is_ours(end, device_uuid)? {
                found = Some(end);
            }
        }
        let Some(end) = found else {
            return Err(Failed::new(
                format!(
                    "{path} has grown, and its metadata are neither at its end nor where it was"
                ),
                "look at it with `drbdmeta dump-md`; if another replica is UpToDate, delete this one",
            ));
        };
        keep_aside(at, end, aside)?;
    }
    put_back(at, aside)
}

/// Keeps the metadata of a volume in a file, whole and durable, from where they were when its device
/// had `size` bytes: what is there afterwards can be put at the end of the volume.
fn keep_aside(volume: At<'_>, size: u64, aside: &Path) -> Result<(), Failed> {
    let path = volume.path;
    let device = Device::look(volume)?;
    let superblock = device.superblock_of(size)?;
    let layout = superblock
        .validate(Placement::Internal, Bytes(size), Rules::Kernel)
        .map_err(|error| unusable(path, &error))?;
    let (start, end) = (layout.start(), place(size) + BLOCK_SIZE as u64);
    let head = Aside { start, end, size };
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

/// Puts metadata that was kept aside at the end of a volume that has grown. The size that users see
/// stays: that is agreed on with others. Where the metadata were are zeroes, as far as they are not
/// there again. It can be repeated: what was kept aside is not changed.
fn put_back(volume: At<'_>, aside: &Path) -> Result<(), Failed> {
    let path = volume.path;
    let failed = |error: io::Error| broken(path, "move the metadata of", &error);
    let device = Device::open(volume)?;
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
    let old = superblock
        .validate(Placement::Internal, Bytes(head.size), Rules::Kernel)
        .map_err(|error| unusable(path, &error))?;
    let new = Layout::new(Placement::Internal, Bytes(device.size), &superblock.params())
        .map_err(|error| unusable(path, &error))?;
    if new.usable < superblock.effective_size {
        let cause = format!("{path} has less room for data than there are");
        return Err(Failed::new(cause, "give the volume back what it had"));
    }
    device.zero(head.start, new.bitmap.min(head.end)).map_err(failed)?;
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
    device.zero(new.bitmap + at, new.activity_log).map_err(failed)?;
    let log = image(old.activity_log, old.superblock - old.activity_log).map_err(failed)?;
    device.write(&log, new.activity_log).map_err(failed)?;
    device.file.sync_all().map_err(failed)?;
    superblock.md_size = new.md_size;
    superblock.al_offset = new.al_offset;
    superblock.bm_offset = new.bm_offset;
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

    /// A volume of 64 MiB in use, with something in its bitmap, its log and its last block of data.
    fn used(directory: &tempfile::TempDir, size: u64) -> (String, Layout, Vec<u8>) {
        let path = volume(directory, size);
        begin(&path, NodeId::new(0), DAY_0, Begin::First).unwrap();
        let device = Device::open(&path).unwrap();
        let mut superblock = device.superblock().unwrap();
        let layout = superblock.validate(Placement::Internal, Bytes(size), Rules::Kernel).unwrap();
        (superblock.effective_size, superblock.device_uuid) = (layout.usable, OURS);
        device.put(&superblock).unwrap();
        let bits: Vec<u8> = (0..layout.bitmap_area).map(|n| (n % 251) as u8 + 1).collect();
        device.file.write_all_at(&bits, layout.bitmap).unwrap();
        device.file.write_all_at(&[0xa1; 4096], layout.activity_log).unwrap();
        device.file.write_all_at(&[0xda; 4096], layout.bitmap - 4096).unwrap();
        (path, layout, bits)
    }

    const OURS: u64 = 0x0bad_cafe;

    #[test]
    fn metadata_moves_with_the_end_of_the_volume() {
        // By less than the metadata take, and by much more.
        for (old, new) in [(64 * MIB, 64 * MIB + 8192), (64 * MIB, 512 * MIB), (8 * MIB, 9 * MIB)] {
            let directory = tempfile::tempdir().unwrap();
            let (path, layout, bits) = used(&directory, old);
            let before = superblock(&path);
            let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
            file.set_len(new).unwrap();
            // A thick pool gives what somebody else had there.
            file.write_all_at(&vec![0xee; (new - old) as usize], old).unwrap();
            let aside = directory.path().join("aside");
            bring_to_end(&path, &aside, &[old], OURS).unwrap();
            let once = fs::read(&path).unwrap();
            bring_to_end(&path, &aside, &[old], OURS).unwrap();
            assert!(fs::read(&path).unwrap() == once, "it can be repeated");
            assert!(is_at_end(&path, OURS).unwrap());
            let after = superblock(&path);
            let grown = after.validate(Placement::Internal, Bytes(new), Rules::Drbdmeta).unwrap();
            assert_eq!(after.effective_size, before.effective_size, "that is agreed on with peers");
            assert_eq!(after.current_uuid, before.current_uuid);
            let read = |at: u64, len: u64| &once[at as usize..(at + len) as usize];
            let common = layout.bitmap_area.min(grown.bitmap_area);
            assert!(read(grown.bitmap, common) == &bits[..common as usize]);
            assert_eq!(read(grown.activity_log, 1), [0xa1]);
            assert_eq!(read(layout.bitmap - 4096, 1), [0xda], "data stay");
            let end = grown.bitmap.min(old);
            let between = read(layout.bitmap, end - layout.bitmap);
            assert!(between.iter().all(|byte| *byte == 0), "nothing is left of them");
            let beyond = grown.bitmap + common;
            let rest = read(beyond, grown.activity_log - beyond);
            assert!(rest.iter().all(|byte| *byte == 0), "the bitmap has no bits but its own");
        }
    }

    #[test]
    fn metadata_count_where_they_went_last_and_only_if_they_are_ours() {
        let directory = tempfile::tempdir().unwrap();
        let (path, ..) = used(&directory, 8 * MIB);
        let aside = directory.path().join("aside");
        let grow = |size| {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(size).unwrap();
        };
        grow(16 * MIB);
        bring_to_end(&path, &aside, &[8 * MIB], OURS).unwrap();
        fs::remove_file(&aside).unwrap();
        // What they left is still there when they move the first time, and is old.
        let device = Device::open(&path).unwrap();
        let mut old = device.superblock().unwrap();
        old.current_uuid = GenUuid(0x77);
        device.file.write_all_at(&old.encode()[..], place(8 * MIB)).unwrap();
        let newest = superblock(&path).current_uuid;
        grow(24 * MIB);
        assert!(!is_at_end(&path, OURS).unwrap());
        bring_to_end(&path, &aside, &[8 * MIB, 16 * MIB], OURS).unwrap();
        assert_eq!(superblock(&path).current_uuid, newest);
        fs::remove_file(&aside).unwrap();

        // Somebody else's are at the new end.
        grow(32 * MIB);
        let mut others = superblock_of(&path, 24 * MIB);
        others.device_uuid = OURS + 1;
        Device::open(&path).unwrap().put(&others).unwrap();
        forget_others(&path, OURS).unwrap();
        assert!(!exists(&path).unwrap());
        bring_to_end(&path, &aside, &[24 * MIB], OURS).unwrap();
        forget_others(&path, OURS).unwrap();
        assert!(is_at_end(&path, OURS).unwrap(), "ours stay");
        fs::remove_file(&aside).unwrap();

        // Nowhere: nothing is touched.
        grow(40 * MIB);
        let before = fs::read(&path).unwrap();
        let failed = bring_to_end(&path, &aside, &[8 * MIB], OURS + 2).unwrap_err();
        assert!(failed.cause.contains("neither at its end nor"), "{failed}");
        assert!(fs::read(&path).unwrap() == before && !aside.exists());
    }

    fn superblock_of(path: &str, size: u64) -> Superblock {
        Device::open(path).unwrap().superblock_of(size).unwrap()
    }
}
