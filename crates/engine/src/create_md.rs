//! `create-md`: new metadata on a device that nobody uses (metadata §1.4, §7).
//!
//! The device is claimed, looked at, and only then written: bitmap and activity log first, made
//! durable, then the superblock. A crash in between leaves a device without metadata, never one
//! with half of it. This runs on a thread of its own with a ring of its own.

use std::path::Path;

use codec::config::MetaDisk;
use codec::disk::{
    BLOCK_SIZE, Layout, MdParams, Placement, PlacementError, Superblock, SuperblockError,
    activity_log,
};
use crypt::luks::Opened;
use crypt::xts::SectorCipher;
use runtime::{
    BUF_MAX, Buf, BufPool, Completed, DiskFile, DiskOptions, OpenCause, OpenError, Payload, Ring,
    Token,
};
use vocab::{ConfigError, Refusal, SECTOR_SIZE, Sector, SectorRange};

use crate::engine::{self, while_claimed};
use crate::keys;
use crate::shard::{placement, superblock_place};
use crate::signature::{self, Extent};

/// What is looked at for traces of other uses: what drbdmeta looks at, and btrfs' superblock.
const LOOK_AT: usize = 128 << 10;

/// Memory for a few buffers.
const POOL: usize = 4 << 20;

/// Bytes of zeroes written at a time.
const ZEROES_MAX: u64 = 64 << 20;

/// Why nothing was written.
#[derive(Debug)]
pub(crate) enum Error {
    /// A rule forbids it.
    Refused(Refusal),
    /// The device or the kernel failed.
    Failed(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

/// One device and the means to use it.
pub(crate) struct Device {
    ring: Ring,
    pool: BufPool,
    pub(crate) file: DiskFile,
    crypt: Option<SectorCipher>,
}

impl Device {
    pub(crate) fn open(path: &str, exclusive: bool) -> Result<Device, Error> {
        Device::open_encrypted(path, exclusive, None)
    }

    /// Opens what is behind a LUKS2 header, if there is a key for it.
    fn open_encrypted(path: &str, exclusive: bool, key: Option<&Opened>) -> Result<Device, Error> {
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            Error::Failed(format!("{path}: {what}: {why}"))
        };
        let ring = Ring::with_entries(8).map_err(|e| failed("no ring", &e))?;
        let pool = BufPool::new(POOL).map_err(|e| failed("no memory", &e))?;
        let options = DiskOptions { exclusive, ..keys::behind_header(key) };
        let file = DiskFile::open(Path::new(path), options).map_err(open_refusal)?;
        Ok(Device { ring, pool, file, crypt: key.map(Opened::cipher) })
    }

    /// Waits for the one operation that was started.
    fn wait(&mut self, doing: &str) -> Result<Completed, Error> {
        let failed = |device: &Device, errno| {
            Error::Failed(format!("{}: {doing}: {errno}", device.file.path().display()))
        };
        let mut events = Vec::new();
        while events.is_empty() {
            self.ring.wait(None, &mut events).map_err(|errno| failed(self, errno))?;
        }
        let done = events.pop().expect("seen above");
        match done.result {
            Ok(_) => Ok(done),
            Err(errno) => Err(failed(self, errno)),
        }
    }

    fn alloc(&self, len: usize) -> Buf {
        self.pool.alloc_zeroed(len).expect("the pool holds what is used one after the other")
    }

    pub(crate) fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let buf = self.alloc(len);
        self.file.read(&mut self.ring, Token(0), Sector(at / SECTOR_SIZE), buf);
        match self.wait("reading")?.payload {
            Payload::Buf(buf) => {
                let mut bytes = buf.to_vec();
                if let Some(crypt) = &self.crypt {
                    crypt.decrypt(at / SECTOR_SIZE, &mut bytes);
                }
                Ok(bytes)
            }
            _ => panic!("a read gives its buffer back"),
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8], durable: bool) -> Result<(), Error> {
        let mut buf = self.alloc(bytes.len());
        let to = buf.as_mut_slice().expect("a new buffer is unique");
        to.copy_from_slice(bytes);
        if let Some(crypt) = &self.crypt {
            crypt.encrypt(at / SECTOR_SIZE, to);
        }
        self.file.write(&mut self.ring, Token(0), Sector(at / SECTOR_SIZE), buf, durable);
        self.wait("writing").map(drop)
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), Error> {
        let end = at + len;
        let mut at = at;
        while at < end {
            if self.crypt.is_some() {
                let step = BUF_MAX.min((end - at) as usize);
                self.write(at, &vec![0; step], false)?;
                at += step as u64;
                continue;
            }
            let step = ZEROES_MAX.min(end - at);
            let range = SectorRange::new(at / SECTOR_SIZE, step / SECTOR_SIZE);
            // The metadata stays allocated: writing it must never fail for lack of space.
            self.file.write_zeroes(&mut self.ring, Token(0), range, true);
            self.wait("zeroing the bitmap")?;
            at += step;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.file.flush(&mut self.ring, Token(0));
        self.wait("flushing").map(drop)
    }
}

pub(crate) fn is_claimed(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if engine::is_claimed(refusal))
}

fn open_refusal(error: OpenError) -> Error {
    let code = match error.cause {
        OpenCause::InUse => ConfigError::DiskClaimed,
        _ => ConfigError::OpenDisk,
    };
    Refusal::config(code, error.to_string()).into()
}

/// Writes new metadata for `disk`, encrypted if there is a key. With `force` also over metadata that is there, and over data
/// of a kind whose end is unknown; never over the end of a file system.
pub(crate) fn create(
    disk: &str,
    meta_disk: &MetaDisk,
    max_peers: u8,
    force: bool,
    key: Option<Opened>,
) -> Result<Vec<String>, Error> {
    let placement = placement(meta_disk)?;
    let (path, exclusive) = match meta_disk {
        MetaDisk::Internal => (disk, true),
        MetaDisk::External { device, index } => (&device[..], index.is_none()),
    };
    let open = |path, exclusive| {
        while_claimed(is_claimed, || Device::open_encrypted(path, exclusive, key.as_ref()))
    };
    // The data device must be there and unused as well, even if nothing is written to it.
    let data = (*meta_disk != MetaDisk::Internal).then(|| open(disk, true)).transpose()?;
    let mut device = open(path, exclusive)?;
    let info = device.file.info();
    let params = MdParams::new(u32::from(max_peers));
    let (mut superblock, layout) = Superblock::create(placement, info.size, &params)
        .map_err(|error| misplaced(path, placement, &error))?;
    superblock.device_uuid = crate::random::seed();
    let remarks = look_for_metadata(&mut device, placement, force)?;
    if let Placement::Internal | Placement::FlexExternal = placement {
        look_for_data(&mut device, &layout, force)?;
    }
    drop(data);
    // A superblock that is there stops counting before its bitmap does.
    device.write(layout.superblock, &[0; BLOCK_SIZE], false)?;
    device.flush()?;
    device.zero(layout.bitmap, bitmap_bytes(&layout, info.size.0))?;
    let empty = activity_log::empty_block();
    for index in 0..superblock.al.blocks() {
        device.write(layout.al_block(index), &empty[..], false)?;
    }
    device.flush()?;
    device.write(layout.superblock, &superblock.encode()[..], true)?;
    device.flush()?;
    Ok(remarks)
}

/// Bytes of the bitmap area to be zeroed: all of it, but on the device.
fn bitmap_bytes(layout: &Layout, device: u64) -> u64 {
    layout.bitmap_area.min((device - layout.bitmap) & !(BLOCK_SIZE as u64 - 1))
}

fn misplaced(path: &str, placement: Placement, error: &PlacementError) -> Error {
    let code = match (error, placement) {
        (PlacementError::TooSmall { .. }, Placement::Internal) => ConfigError::DiskTooSmall,
        (PlacementError::TooSmall { .. }, _) => ConfigError::MetaDiskTooSmall,
        _ => ConfigError::InvalidRequest,
    };
    Refusal::config(code, format!("{path}: {error}")).into()
}

/// Refuses to overwrite metadata, unless that is wanted.
fn look_for_metadata(
    device: &mut Device,
    placement: Placement,
    force: bool,
) -> Result<Vec<String>, Error> {
    let Some(at) = superblock_place(placement, device.file.info()) else {
        return Ok(Vec::new());
    };
    let bytes = device.read(at, BLOCK_SIZE)?;
    let block = bytes[..].try_into().expect("a whole block was read");
    let path = device.file.path().display().to_string();
    let found = match Superblock::decode(block) {
        Ok(superblock) => format!("metadata of generation {}", superblock.current_uuid),
        Err(SuperblockError::NotDrbd { .. }) => return Ok(Vec::new()),
        Err(SuperblockError::Version07 | SuperblockError::Version08) => {
            "metadata of an older DRBD".to_owned()
        }
        Err(_) => "damaged metadata".to_owned(),
    };
    if force {
        return Ok(vec![format!("{path}: {found} was overwritten")]);
    }
    let detail = format!(
        "{path}: it has {found}; with it goes all knowledge of which blocks differ from the \
         peers'; give --force to overwrite it"
    );
    Err(Refusal::config(ConfigError::MetaInvalid, detail).into())
}

/// Refuses to overwrite other data.
fn look_for_data(device: &mut Device, layout: &Layout, force: bool) -> Result<(), Error> {
    let size = device.file.info().size.0;
    let len = (size & !(BLOCK_SIZE as u64 - 1)).min(LOOK_AT as u64) as usize;
    let bytes = device.read(0, len)?;
    let Some(found) = signature::find(&bytes) else { return Ok(()) };
    let path = device.file.path().display();
    let refused = |detail| Err(Refusal::config(ConfigError::InvalidRequest, detail).into());
    match (layout.placement, found.extent) {
        (Placement::Internal, Extent::Ends(end)) if end > layout.bitmap => refused(format!(
            "{path}: it has {}, whose last {} KiB the metadata would overwrite; shrink it to {} \
             KiB first, or remove it (wipefs) if it is not needed",
            found.what,
            (end - layout.bitmap).div_ceil(1024),
            layout.bitmap / 1024
        )),
        _ if force => Ok(()),
        (Placement::Internal, Extent::Ends(_)) => refused(format!(
            "{path}: it has {}, which ends before the metadata would begin and becomes the \
             volume's content; give --force if that is meant",
            found.what
        )),
        _ => refused(format!(
            "{path}: it has {}; remove it (wipefs) if it is not needed, or give --force to \
             overwrite it",
            found.what
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use vocab::RefusalCode;

    fn device(directory: &tempfile::TempDir, size: u64) -> (String, File) {
        let path = directory.path().join("disk");
        File::create(&path).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        (path.display().to_string(), file)
    }

    fn refused(result: Result<Vec<String>, Error>) -> (ConfigError, String) {
        match result {
            Err(Error::Refused(Refusal { code: RefusalCode::Config(code), detail })) => {
                (code, detail)
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    fn superblock(file: &File, size: u64) -> Superblock {
        let mut block = [0; BLOCK_SIZE];
        file.read_exact_at(&mut block, size - BLOCK_SIZE as u64).unwrap();
        Superblock::decode(&block).unwrap()
    }

    #[test]
    fn metadata_is_written_once_and_overwritten_only_by_force() {
        const SIZE: u64 = 64 << 20;
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = device(&directory, SIZE);
        // What was there before must not look like a bitmap.
        file.write_all_at(&[0xff; 1 << 20], SIZE - (1 << 20)).unwrap();
        assert!(create(&path, &MetaDisk::Internal, 7, false, None).unwrap().is_empty());
        let first = superblock(&file, SIZE);
        assert_eq!(first.max_peers, 7);
        let (_, layout) =
            Superblock::create(Placement::Internal, vocab::Bytes(SIZE), &MdParams::new(7)).unwrap();
        let mut bitmap = vec![1; layout.bitmap_area as usize];
        file.read_exact_at(&mut bitmap, layout.bitmap).unwrap();
        assert!(bitmap.iter().all(|b| *b == 0));
        let (code, detail) = refused(create(&path, &MetaDisk::Internal, 3, false, None));
        assert_eq!(code, ConfigError::MetaInvalid);
        assert!(detail.contains("--force"), "{detail}");
        assert_eq!(superblock(&file, SIZE), first);
        assert_eq!(create(&path, &MetaDisk::Internal, 3, true, None).unwrap().len(), 1);
        assert_eq!(superblock(&file, SIZE).max_peers, 3);
    }

    #[test]
    fn a_file_system_that_would_be_cut_is_never_overwritten() {
        const SIZE: u64 = 64 << 20;
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = device(&directory, SIZE);
        let ext4 = |blocks: u32| {
            file.write_all_at(&blocks.to_le_bytes(), 1024 + 4).unwrap();
            file.write_all_at(&2u32.to_le_bytes(), 1024 + 24).unwrap();
            file.write_all_at(&0xEF53u16.to_le_bytes(), 1024 + 56).unwrap();
        };
        ext4((SIZE / 4096) as u32);
        for force in [false, true] {
            let (code, detail) = refused(create(&path, &MetaDisk::Internal, 1, force, None));
            assert_eq!(code, ConfigError::InvalidRequest);
            assert!(detail.contains("shrink"), "{detail}");
        }
        ext4((SIZE / 4096) as u32 - 100);
        let (_, detail) = refused(create(&path, &MetaDisk::Internal, 1, false, None));
        assert!(detail.contains("ends before"), "{detail}");
        create(&path, &MetaDisk::Internal, 1, true, None).unwrap();
    }

    #[test]
    fn devices_in_use_or_too_small_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (path, _file) = device(&directory, 64 << 10);
        let (code, _) = refused(create(&path, &MetaDisk::Internal, 1, false, None));
        assert_eq!(code, ConfigError::DiskTooSmall);
        let (path, _file) = device(&directory, 64 << 20);
        let held = Device::open(&path, true).unwrap();
        let (code, _) = refused(create(&path, &MetaDisk::Internal, 1, true, None));
        assert_eq!(code, ConfigError::DiskClaimed);
        drop(held);
        let missing = directory.path().join("none").display().to_string();
        let (code, _) = refused(create(&missing, &MetaDisk::Internal, 1, true, None));
        assert_eq!(code, ConfigError::OpenDisk);
    }
}
