//! The ublk driver's numbers and structures (linux/ublk_cmd.h of 6.5 and later), as values and as
//! bytes in the machine's byte order.

use std::fmt;

use runtime::TargetInfo;

/// Where the driver takes commands.
pub const CONTROL: &str = "/dev/ublk-control";

/// Bytes of a sector, in which the driver counts.
const SECTOR: u64 = 512;

/// Most slots of a queue (`UBLK_MAX_QUEUE_DEPTH`).
pub const DEPTH_MAX: u16 = 4096;
/// Most queues that are of any use here: one thread serves them all.
pub const QUEUES_MAX: u16 = 32;

/// Commands of the control device: `_IOWR` or `_IOR('u', number, struct ublksrv_ctrl_cmd)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ControlOp {
    /// Makes a character device.
    Add = 0xc020_7504,
    /// Removes it, and waits until nobody uses it any more.
    Delete = 0xc020_7505,
    /// Makes the block device, once all slots are fetched.
    Start = 0xc020_7506,
    /// Removes the block device.
    Stop = 0xc020_7507,
    /// Sets limits, before the start.
    SetParams = 0xc020_7508,
    /// Tells about a device.
    GetInfo = 0x8020_7502,
    /// The same, to whoever may read its character device, which has to be named (Linux 6.3).
    GetInfoByPath = 0x8020_7512,
    /// Tells what the driver can do (Linux 6.5).
    GetFeatures = 0x8020_7513,
    /// Removes a device without waiting (Linux 6.9).
    DeleteAsync = 0x8020_7514,
    /// Lets another process open the character device of one that is without a server.
    StartRecovery = 0xc020_7510,
    /// Goes on with the block device, once all slots are fetched anew.
    EndRecovery = 0xc020_7511,
    /// Tells users of the block device another size (Linux 6.16).
    UpdateSize = 0xc020_7515,
    /// Removes the block device unless somebody has it open (Linux 7.0).
    TryStop = 0xc020_7517,
}

impl fmt::Display for ControlOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ControlOp::Add => "add the device",
            ControlOp::Delete | ControlOp::DeleteAsync => "delete the device",
            ControlOp::Start => "start the device",
            ControlOp::Stop | ControlOp::TryStop => "stop the device",
            ControlOp::SetParams => "set the limits of the device",
            ControlOp::GetInfo | ControlOp::GetInfoByPath => "look at the device",
            ControlOp::GetFeatures => "tell its features",
            ControlOp::StartRecovery => "give the device another server",
            ControlOp::EndRecovery => "go on with the device",
            ControlOp::UpdateSize => "give the device its new size",
        })
    }
}

/// `UBLK_F_USER_RECOVERY`: the block device outlives its server; its I/O waits for the next one.
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// `UBLK_F_USER_RECOVERY_REISSUE`: so does what the server had not answered, which is asked again.
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// `UBLK_F_UNPRIVILEGED_DEV`: a device of somebody without `CAP_SYS_ADMIN`, and for nobody else.
pub const F_UNPRIVILEGED_DEV: u64 = 1 << 5;
/// `UBLK_F_CMD_IOCTL_ENCODE`: commands have the numbers above.
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// `UBLK_F_USER_COPY`: data are copied by reading and writing the character device.
pub const F_USER_COPY: u64 = 1 << 7;
/// `UBLK_F_AUTO_BUF_REG`: the memory of a request is put into a ring's table of registered buffers.
pub const F_AUTO_BUF_REG: u64 = 1 << 11;
/// `UBLK_F_BATCH_IO`: there are commands for several slots, and none for a single one.
pub const F_BATCH_IO: u64 = 1 << 15;
/// `UBLK_F_SAFE_STOP_DEV`: a device can be stopped only if nobody has it open.
pub const F_SAFE_STOP_DEV: u64 = 1 << 17;
/// `UBLK_F_UPDATE_SIZE`: a device can have another size while it is used.
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// The driver's features by bit, with the names of the header in lower case.
const FEATURES: &[(u32, &str)] = &[
    (0, "zero-copy"),
    (2, "need-get-data"),
    (3, "user-recovery"),
    (4, "user-recovery-reissue"),
    (5, "unprivileged-dev"),
    (7, "user-copy"),
    (8, "zoned"),
    (9, "user-recovery-fail-io"),
    (10, "update-size"),
    (11, "auto-buf-reg"),
    (12, "quiesce"),
    (13, "per-io-daemon"),
    (14, "buf-reg-off-daemon"),
    (15, "batch-io"),
    (16, "integrity"),
    (17, "safe-stop-dev"),
];

/// Names of the features in a set.
pub fn feature_names(features: u64) -> impl Iterator<Item = &'static str> {
    FEATURES.iter().filter(move |(bit, _)| features >> bit & 1 == 1).map(|(_, name)| *name)
}

/// State of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Not started, or its server is gone.
    Dead,
    /// Started.
    Live,
    /// Started, and its server is gone: I/O waits.
    Quiesced,
    /// Some other that a newer driver may have.
    Other(u16),
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Hardware queues.
    pub queues: u16,
    /// Slots of each.
    pub depth: u16,
    /// Whether it is started.
    pub state: DeviceState,
    /// Longest read or write, in bytes.
    pub max_io: u32,
    /// The N of `/dev/ublkbN`; `u32::MAX` in a wish lets the driver choose.
    pub id: u32,
    /// Process of the server; -1 before the start.
    pub pid: i32,
    /// `UBLK_F_*`.
    pub flags: u64,
    /// Free for the server's use.
    pub signature: u64,
    /// User and group of whoever made it; the driver's to say.
    pub owner: (u32, u32),
}

/// Length of [`DeviceInfo`] as bytes.
pub const DEVICE_INFO_LEN: usize = 64;

impl DeviceInfo {
    /// As the driver reads it.
    pub fn encode(&self) -> Vec<u8> {
        let state: u16 = match self.state {
            DeviceState::Dead => 0,
            DeviceState::Live => 1,
            DeviceState::Quiesced => 2,
            DeviceState::Other(n) => n,
        };
        let mut bytes = Vec::with_capacity(DEVICE_INFO_LEN);
        for half in [self.queues, self.depth, state, 0] {
            bytes.extend(half.to_ne_bytes());
        }
        for word in [self.max_io, self.id, self.pid as u32, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        for double in [self.flags, self.signature, 0, 0, 0] {
            bytes.extend(double.to_ne_bytes());
        }
        bytes
    }

    /// As the driver wrote it; `None` if it is too short.
    pub fn decode(bytes: &[u8]) -> Option<DeviceInfo> {
        let bytes: &[u8; DEVICE_INFO_LEN] = bytes.first_chunk()?;
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        let double = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        Some(DeviceInfo {
            queues: half(0),
            depth: half(2),
            state: match half(4) {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                n => DeviceState::Other(n),
            },
            max_io: word(8),
            id: word(12),
            pid: word(16) as i32,
            flags: double(24),
            signature: double(32),
            owner: (word(40), word(44)),
        })
    }
}

/// Longest discard or zeroing in bytes: it is one request of the kernel's, and a stop waits for it.
const RANGE_MAX: u32 = 64 << 20;

const PARAM_BASIC: u32 = 1;
const PARAM_DISCARD: u32 = 1 << 1;
const ATTR_READ_ONLY: u32 = 1;
const ATTR_ROTATIONAL: u32 = 1 << 1;
const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
const ATTR_FUA: u32 = 1 << 3;

/// `struct ublk_params`, its parts `basic` and `discard`: what the block device's queue is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// The target's geometry.
    pub target: TargetInfo,
    /// Nobody may write, whatever the target can do.
    pub read_only: bool,
}

impl Params {
    /// Size in sectors of 512 bytes; a last partial block can not be reached and is left out.
    pub fn sectors(&self) -> u64 {
        let block = u64::from(self.target.block_size_min);
        (self.target.size.0 - self.target.size.0 % block) / SECTOR
    }

    /// As the driver reads it.
    pub fn encode(&self) -> Vec<u8> {
        let TargetInfo { block_size_min, block_size_preferred, max_transfer, .. } = self.target;
        let physical = block_size_preferred.max(block_size_min);
        let mut attributes = 0;
        for (holds, attribute) in [
            (self.read_only || self.target.read_only, ATTR_READ_ONLY),
            (self.target.rotational, ATTR_ROTATIONAL),
            (self.target.can_flush, ATTR_VOLATILE_CACHE),
            (self.target.can_flush && self.target.can_fua, ATTR_FUA),
        ] {
            attributes |= if holds { attribute } else { 0 };
        }
        let range = |can: bool| if can { RANGE_MAX / SECTOR as u32 } else { 0 };
        let mut bytes = Vec::new();
        let mut word = |n: u32| bytes.extend(n.to_ne_bytes());
        word(0); // The length, below.
        word(PARAM_BASIC | if self.target.can_trim { PARAM_DISCARD } else { 0 });
        word(attributes);
        // Shifts of: logical block, physical block, best and least I/O.
        let shifts = [block_size_min, physical, physical, physical].map(|n| n.ilog2() as u8);
        word(u32::from_ne_bytes(shifts));
        word(max_transfer / SECTOR as u32);
        word(0); // No chunks.
        bytes.extend(self.sectors().to_ne_bytes());
        bytes.extend(0u64.to_ne_bytes()); // No virtual boundary.
        if self.target.can_trim {
            let (discard, zero) = (range(self.target.can_trim), range(self.target.can_zero));
            for n in [0, physical, discard, zero] {
                bytes.extend(n.to_ne_bytes());
            }
            for n in [1u16, 0] {
                // One segment each, and padding.
                bytes.extend(n.to_ne_bytes());
            }
        }
        let len = (bytes.len() as u32).to_ne_bytes();
        bytes[..4].copy_from_slice(&len);
        bytes
    }
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// `UBLK_IO_OP_READ`
    Read,
    /// `UBLK_IO_OP_WRITE`
    Write,
    /// `UBLK_IO_OP_FLUSH`
    Flush,
    /// `UBLK_IO_OP_DISCARD`
    Discard,
    /// `UBLK_IO_OP_WRITE_ZEROES`
    WriteZeroes,
    /// Some other, by its number.
    Other(u8),
}

/// `struct ublksrv_io_desc`, which the driver fills for each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    /// Length in sectors of 512 bytes.
    pub sectors: u32,
    /// First sector.
    pub start: u64,
    /// An address, where data are not copied by us.
    pub address: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24 && align_of::<Descriptor>() == 8);

/// `UBLK_IO_F_FUA`
const FUA: u32 = 1 << 13;
/// `UBLK_IO_F_NOUNMAP`
const NO_UNMAP: u32 = 1 << 15;
/// `UBLK_IO_F_NEED_REG_BUF`
const NOT_REGISTERED: u32 = 1 << 17;

impl Descriptor {
    /// What is asked for.
    pub const fn kind(&self) -> RequestKind {
        match self.op_flags as u8 {
            0 => RequestKind::Read,
            1 => RequestKind::Write,
            2 => RequestKind::Flush,
            3 => RequestKind::Discard,
            5 => RequestKind::WriteZeroes,
            n => RequestKind::Other(n),
        }
    }

    /// It has to be durable when it completes.
    pub const fn fua(&self) -> bool {
        self.op_flags & FUA != 0
    }

    /// The zeroed range has to stay allocated.
    pub const fn no_unmap(&self) -> bool {
        self.op_flags & NO_UNMAP != 0
    }

    /// Its memory could not be put into the table of registered buffers.
    pub const fn is_unregistered(&self) -> bool {
        self.op_flags & NOT_REGISTERED != 0
    }

    /// Offset and length in bytes; `None` for what no request can be.
    pub fn range(&self) -> Option<(u64, u32)> {
        let len = u32::try_from(u64::from(self.sectors) * SECTOR).ok()?;
        Some((self.start.checked_mul(SECTOR)?, len))
    }
}

/// Where the descriptors of a queue lie in the character device, in bytes (`UBLKSRV_CMD_BUF_OFFSET`).
pub fn descriptors_offset(queue: u16) -> u64 {
    // As many places as a queue may have at most; a multiple of every page size up to 32 KiB.
    u64::from(queue) * u64::from(DEPTH_MAX) * size_of::<Descriptor>() as u64
}

/// Where the data of a slot are read and written in the character device, in bytes
/// (`UBLKSRV_IO_BUF_OFFSET`, tag from bit 25, queue from bit 41).
pub fn data_offset(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + (u64::from(queue) << 41 | u64::from(tag) << 25)
}
