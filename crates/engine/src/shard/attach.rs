//! Reading the metadata of a disk that is to be attached: superblock, activity log, bitmap.
//!
//! The disk is claimed first, so that what is read stays true. Reading goes over the ring in
//! pieces, for a bitmap can be large; blocks of zeroes are dropped at once, so only what differs
//! between nodes takes memory. What the metadata means is for the core to decide.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use codec::config::{BackingConfig, MetaDisk};
use codec::disk::{
    BLOCK_SIZE, Block, Layout, Placement, PlacementError, Rules, Superblock, SuperblockError,
    bitmap, zeroed_block,
};
use crypt::luks::Opened;
use crypt::xts::SectorCipher;
use replication::io::{AttachImage, DiskLimits};
use runtime::{BUF_MAX, Completed, DiskFile, DiskInfo, DiskOptions, OpenCause, OpenError, Payload};
use vocab::{ConfigError, NodeId, Refusal, SECTOR_SIZE, Sector, VolumeNr};

use super::disk::{Disk, Step, is_zero};
use super::io::Io;
use super::token;
use crate::keys;

/// Bytes of one read.
const PIECE: usize = 1 << 20;

/// A disk being read.
pub(crate) struct AttachJob {
    pub(crate) resource: u16,
    pub(crate) volume: VolumeNr,
    /// The answer goes to this command.
    pub(crate) admin: u64,
    placement: Placement,
    data: Option<DiskFile>,
    meta: Option<DiskFile>,
    /// Everything on `data` is encrypted; there is no `meta` then.
    crypt: Option<SectorCipher>,
    key: Option<Opened>,
    /// As soon as the superblock is known.
    layout: Option<Layout>,
    me: NodeId,
    stage: Stage,
    /// Where the next read begins, and where the area ends.
    next: u64,
    end: u64,
    image: Image,
    failed: Option<Refusal>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Superblock,
    ActivityLog,
    Bitmap,
    Done,
}

#[derive(Default)]
struct Image {
    superblock: Option<Box<Block>>,
    activity_log: Vec<Box<Block>>,
    bitmap: Vec<(u64, Box<Block>)>,
}

/// The placement that a configuration means.
pub(crate) fn placement(meta: &MetaDisk) -> Result<Placement, Refusal> {
    match meta {
        MetaDisk::Internal => Ok(Placement::Internal),
        MetaDisk::External { index: None, .. } => Ok(Placement::FlexExternal),
        MetaDisk::External { index: Some(index), device } => {
            let index = u8::try_from(*index).map_err(|_| {
                let detail = format!("{device}[{index}]: indexes end at 255");
                Refusal::config(ConfigError::InvalidRequest, detail)
            })?;
            Ok(Placement::Indexed(index))
        }
    }
}

/// Where the superblock lies, before anything of it is known (metadata §1.1).
pub(crate) fn superblock_place(placement: Placement, info: DiskInfo) -> Option<u64> {
    let block = BLOCK_SIZE as u64;
    match placement {
        Placement::Internal => (info.size.0 & !(block - 1)).checked_sub(block),
        Placement::FlexExternal => (info.size.0 >= block).then_some(0),
        Placement::Indexed(index) => {
            let at = u64::from(index) * (128 << 20);
            (at + block <= info.size.0).then_some(at)
        }
    }
}

fn open_refusal(error: &OpenError, open: ConfigError, claimed: ConfigError) -> Refusal {
    let code = if error.cause == OpenCause::InUse { claimed } else { open };
    Refusal::config(code, error.to_string())
}

/// Opens a device. Files whose direct I/O needs more than sectors are used through the page
/// cache: every sector of a volume must be writable by itself.
fn open_device(path: &str, exclusive: bool, key: Option<&Opened>) -> Result<DiskFile, OpenError> {
    let path = Path::new(path);
    let options = DiskOptions { exclusive, ..keys::behind_header(key) };
    let file = DiskFile::open(path, options)?;
    if file.info().logical_block_size > 512 && !file.info().block_device {
        drop(file);
        return DiskFile::open(path, DiskOptions { direct: false, ..options });
    }
    Ok(file)
}

impl AttachJob {
    /// Claims the devices.
    ///
    /// # Errors
    /// Why they can not be used; nothing is claimed then.
    pub(crate) fn open(
        resource: u16,
        volume: VolumeNr,
        me: NodeId,
        admin: u64,
        backing: &BackingConfig,
        key: Option<Opened>,
    ) -> Result<AttachJob, Refusal> {
        let placement = placement(&backing.meta_disk)?;
        let data = open_device(&backing.disk, true, key.as_ref())
            .map_err(|e| open_refusal(&e, ConfigError::OpenDisk, ConfigError::DiskClaimed))?;
        let meta = match &backing.meta_disk {
            MetaDisk::Internal => None,
            // Several volumes share an indexed device; the engine keeps their slots apart.
            MetaDisk::External { device, index } => {
                Some(open_device(device, index.is_none(), None).map_err(|e| {
                    open_refusal(&e, ConfigError::OpenMetaDisk, ConfigError::MetaDiskClaimed)
                })?)
            }
        };
        let device = meta.as_ref().unwrap_or(&data);
        let Some(at) = superblock_place(placement, device.info()) else {
            let detail = format!("{}: too small for metadata", device.path().display());
            return Err(Refusal::config(ConfigError::MetaDiskTooSmall, detail));
        };
        Ok(AttachJob {
            resource,
            volume,
            admin,
            placement,
            data: Some(data),
            meta,
            crypt: key.as_ref().map(Opened::cipher),
            key,
            layout: None,
            me,
            stage: Stage::Superblock,
            next: at,
            end: at + BLOCK_SIZE as u64,
            image: Image::default(),
            failed: None,
        })
    }

    fn device(&self) -> &DiskFile {
        self.meta.as_ref().or(self.data.as_ref()).expect("open until the job has ended")
    }

    /// Goes on with what a read has brought, if one has completed.
    pub(crate) fn go_on(&mut self, io: &mut Io, index: u32, done: Option<Completed>) -> Step {
        if let Some(done) = done
            && let Err(refusal) = self.took(done)
        {
            self.failed = Some(refusal);
            self.stage = Stage::Done;
        }
        if self.stage == Stage::Done {
            return Step::Ended;
        }
        let len = (self.end - self.next).min(PIECE as u64) as usize;
        debug_assert!(0 < len && len <= BUF_MAX);
        let Ok(buf) = io.meta_pool.alloc(len) else { return Step::Starved };
        let sector = Sector(self.next / SECTOR_SIZE);
        self.device().read(&mut io.ring, token::disk(index), sector, buf);
        Step::Running
    }

    /// Takes note of what a read has brought and says what is read next.
    fn took(&mut self, done: Completed) -> Result<(), Refusal> {
        let path = self.device().path().display().to_string();
        let Payload::Buf(mut buf) = done.payload else { panic!("a read gives its buffer back") };
        match done.result {
            Ok(read) if read as usize == buf.len() => {
                if let Some(crypt) = &self.crypt {
                    let bytes = buf.as_mut_slice().expect("a buffer that was read into is unique");
                    crypt.decrypt(self.next / SECTOR_SIZE, bytes);
                }
            }
            Ok(_) => {
                let detail = format!("{path}: it has become smaller");
                return Err(Refusal::config(ConfigError::MetaIo, detail));
            }
            Err(errno) => {
                let detail = format!("{path}: reading at byte {}: {errno}", self.next);
                return Err(Refusal::config(ConfigError::MetaIo, detail));
            }
        }
        let (blocks, _) = buf.as_chunks::<BLOCK_SIZE>();
        let copy = |block: &Block| {
            let mut copy = zeroed_block();
            copy.copy_from_slice(block);
            copy
        };
        match self.stage {
            Stage::Superblock => {
                self.image.superblock = Some(copy(&blocks[0]));
                let superblock = self.superblock(&blocks[0], &path)?;
                let layout = self.layout.expect("set with the superblock");
                self.area(
                    Stage::ActivityLog,
                    layout.activity_log,
                    superblock.al.sectors().bytes().0,
                );
            }
            Stage::ActivityLog => {
                self.image.activity_log.extend(blocks.iter().map(copy));
                self.next += buf.len() as u64;
            }
            Stage::Bitmap => {
                let layout = self.layout.expect("set with the superblock");
                let first = (self.next - layout.bitmap) / BLOCK_SIZE as u64;
                for (nr, block) in (first..).zip(blocks) {
                    if !is_zero(block) {
                        self.image.bitmap.push((nr, copy(block)));
                    }
                }
                self.next += buf.len() as u64;
            }
            Stage::Done => {}
        }
        if self.next == self.end && self.stage == Stage::ActivityLog {
            let layout = self.layout.expect("set with the superblock");
            let len = self.bitmap_bytes(&layout);
            self.area(Stage::Bitmap, layout.bitmap, len);
        }
        if self.next == self.end && self.stage == Stage::Bitmap {
            self.stage = Stage::Done;
        }
        Ok(())
    }

    fn area(&mut self, stage: Stage, at: u64, len: u64) {
        self.stage = stage;
        self.next = at;
        self.end = at + len;
    }

    /// Checks the superblock against the device, as far as areas and ownership go.
    fn superblock(&mut self, block: &Block, path: &str) -> Result<Superblock, Refusal> {
        let invalid = |error: SuperblockError| {
            let code = match &error {
                SuperblockError::Placement(PlacementError::TooSmall { .. }) => match self.meta {
                    Some(_) => ConfigError::MetaDiskTooSmall,
                    None => ConfigError::DiskTooSmall,
                },
                _ => ConfigError::MetaInvalid,
            };
            let why = match &error {
                SuperblockError::Placement(inner) => inner.to_string(),
                other => other.to_string(),
            };
            Refusal::config(code, format!("{path}: {why}"))
        };
        let superblock = Superblock::decode_any(block, None).map_err(invalid)?;
        let size = self.device().info().size;
        let layout = superblock.validate(self.placement, size, Rules::Kernel).map_err(invalid)?;
        superblock.check_owner(self.me).map_err(|error| {
            let detail = format!(
                "{path}: {error}; it was written by another node of the resource, or node ids \
                 were changed"
            );
            Refusal::config(ConfigError::InvalidRequest, detail)
        })?;
        self.layout = Some(layout);
        Ok(superblock)
    }

    /// Bytes of the bitmap that belong to the volume as it is, or will be.
    fn bitmap_bytes(&self, layout: &Layout) -> u64 {
        let block = self.image.superblock.as_ref().expect("read before the bitmap");
        let superblock = Superblock::decode_any(block, None).expect("decoded before");
        let size = match superblock.effective_size.0 {
            0 => self.capacity(layout).0,
            size => size,
        };
        let len = bitmap::area_bytes(size, superblock.max_peers, superblock.bm_bytes_per_bit);
        len.min(layout.bitmap_area)
    }

    fn capacity(&self, layout: &Layout) -> vocab::Sectors {
        let data = self.data.as_ref().expect("open until the job has ended");
        layout.usable_on(data.info().size.sectors_floor())
    }

    /// The disk and what was read of it.
    ///
    /// # Errors
    /// Why it can not be attached.
    pub(crate) fn finish(mut self) -> Result<(Rc<Disk>, AttachImage), Refusal> {
        if let Some(refusal) = self.failed.take() {
            return Err(refusal);
        }
        let layout = self.layout.expect("a job that did not fail has read everything");
        let capacity = self.capacity(&layout);
        let data = self.data.take().expect("open until the job has ended");
        let info = data.info();
        let limits = DiskLimits {
            logical_block_size: info.logical_block_size,
            physical_block_size: info.physical_block_size,
            // Of a file it is known; of a device nobody promises it.
            discard_zeroes: info.can_discard && !info.block_device && self.crypt.is_none(),
            max_io: BUF_MAX as u32,
        };
        let superblock = self.image.superblock.as_ref().expect("read first");
        let params = Superblock::decode_any(superblock, None).expect("decoded before").params();
        let image = AttachImage {
            capacity,
            superblock: self.image.superblock.expect("read first"),
            activity_log: self.image.activity_log,
            bitmap: self.image.bitmap,
            limits,
            volatile_cache: info.volatile_cache,
            boot: boot(),
        };
        let (layout, next_layout) = (Cell::new(layout), Cell::new(None));
        let (meta, crypt, key) = (self.meta, self.crypt, self.key);
        Ok((Rc::new(Disk { data, meta, crypt, key, layout, next_layout, params, limits }), image))
    }
}

/// Names this start of the machine: the first digits of the kernel's random number for it. 0 if
/// there is none.
fn boot() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}
