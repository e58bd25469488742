//! The driver's control device: one command at a time, with a limit to how long it may take.
//!
//! A command carries 32 bytes, for which an entry of the ordinary ring has no room; it has a small
//! ring of its own with larger entries. The calling thread waits for the answer.
//!
//! What is asked about an unprivileged device names its character device, by whose mode and owner the
//! kernel decides who may ask.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fd as RingFd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use runtime::Errno;

use super::uapi::{
    CONTROL, ControlOp, DEVICE_INFO_LEN, DeviceInfo, F_CMD_IOCTL_ENCODE, F_UNPRIVILEGED_DEV,
    F_USER_COPY, F_USER_RECOVERY, F_USER_RECOVERY_REISSUE, Params,
};

/// A command that is never asked about one queue has this number (`-1`).
const NO_QUEUE: u16 = u16::MAX;
/// A command that is not about a device.
const NO_DEVICE: u32 = u32::MAX;
/// What the driver has to offer: all of it since Linux 6.5.
const NEEDED: u64 = F_CMD_IOCTL_ENCODE | F_USER_COPY | F_USER_RECOVERY | F_USER_RECOVERY_REISSUE;

/// Why a command to the driver failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlError {
    /// The control device can not be opened.
    Open(Errno),
    /// io_uring refuses.
    Ring(Errno),
    /// The driver has not the features that are needed here (Linux 6.5).
    TooOld,
    /// The driver refuses.
    Refused(ControlOp, Errno),
    /// The driver has not answered in time; it may still carry the command out.
    Late(ControlOp),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Open(Errno(libc::ENOENT)) => {
                write!(f, "{CONTROL} does not exist; load the kernel's driver: `modprobe ublk_drv`")
            }
            ControlError::Open(errno) => write!(f, "{CONTROL} can not be opened: {errno}"),
            ControlError::Ring(errno) => {
                write!(f, "no io_uring for commands to the driver: {errno}")
            }
            ControlError::TooOld => f.write_str(
                "the kernel's ublk driver is too old: Linux 6.5 or later is needed (user copy)",
            ),
            ControlError::Refused(op, errno) => write!(f, "the driver can not {op}: {errno}"),
            ControlError::Late(op) => write!(f, "the driver takes too long to {op}"),
        }
    }
}

impl std::error::Error for ControlError {}

/// An open control device.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Number of the last command: an answer that comes late has another one.
    last: u64,
    patience: Duration,
    /// Devices that were looked at: they are unprivileged.
    looked_at: BTreeMap<u32, bool>,
}

/// Room for the path of a character device, with a zero at its end.
const PATH: usize = 32;

/// The character device of a device.
pub fn character_device(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

impl Control {
    /// Opens it. No command takes longer than `patience`.
    ///
    /// # Errors
    /// [`ControlError::Open`], [`ControlError::Ring`]
    pub fn open(patience: Duration) -> Result<Control, ControlError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let file = file.map_err(|e| ControlError::Open(e.into()))?;
        Control::on(file, patience)
    }

    fn on(file: File, patience: Duration) -> Result<Control, ControlError> {
        let ring = IoUring::builder().build(4).map_err(|e| ControlError::Ring(e.into()))?;
        Ok(Control { file, ring, last: 0, patience, looked_at: BTreeMap::new() })
    }

    /// The features of the driver (`UBLK_F_*`).
    ///
    /// # Errors
    /// [`ControlError::TooOld`] also if it has not what is needed here.
    pub fn features(&mut self) -> Result<u64, ControlError> {
        let bytes = match self.command(ControlOp::GetFeatures, NO_DEVICE, 0, vec![0; 8]) {
            Err(ControlError::Refused(..)) => return Err(ControlError::TooOld),
            answer => answer?,
        };
        let features = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        if features & NEEDED == NEEDED { Ok(features) } else { Err(ControlError::TooOld) }
    }

    /// Makes a device, and returns it as the driver made it.
    ///
    /// # Errors
    /// `EEXIST` if there is one of that number.
    pub fn add(&mut self, wish: &DeviceInfo) -> Result<DeviceInfo, ControlError> {
        let bytes = self.command(ControlOp::Add, wish.id, 0, wish.encode())?;
        self.looked_at(&bytes)
    }

    /// The device of that number.
    ///
    /// # Errors
    /// `ENODEV` if there is none; `EPERM` or `EACCES` if it is somebody else's.
    pub fn info(&mut self, device: u32) -> Result<DeviceInfo, ControlError> {
        let room = || vec![0; DEVICE_INFO_LEN];
        let bytes = match self.command(ControlOp::GetInfoByPath, device, 0, room()) {
            // Its character device may be missing here. Root needs none.
            Err(ControlError::Refused(_, errno)) if errno != Errno::ENODEV => {
                self.command(ControlOp::GetInfo, device, 0, room())?
            }
            answer => answer?,
        };
        self.looked_at(&bytes)
    }

    fn looked_at(&mut self, bytes: &[u8]) -> Result<DeviceInfo, ControlError> {
        let info = DeviceInfo::decode(bytes).ok_or(ControlError::TooOld)?;
        self.looked_at.insert(info.id, info.flags & F_UNPRIVILEGED_DEV != 0);
        Ok(info)
    }

    /// The command has to name the character device.
    fn needs_path(&mut self, op: ControlOp, device: u32) -> bool {
        match op {
            ControlOp::GetInfoByPath => true,
            ControlOp::Add | ControlOp::GetFeatures | ControlOp::GetInfo => false,
            _ => match self.looked_at.get(&device) {
                Some(unprivileged) => *unprivileged,
                None => self.info(device).is_ok_and(|info| info.flags & F_UNPRIVILEGED_DEV != 0),
            },
        }
    }

    /// Sets the limits of a device that is not started.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn set_params(&mut self, device: u32, params: &Params) -> Result<(), ControlError> {
        self.command(ControlOp::SetParams, device, 0, params.encode()).map(drop)
    }

    /// Makes the block device of a device whose slots are all fetched by this process. Reads its
    /// partition table, so somebody has to serve it meanwhile.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn start(&mut self, device: u32) -> Result<(), ControlError> {
        let pid = u64::from(std::process::id());
        self.command(ControlOp::Start, device, pid, Vec::new()).map(drop)
    }

    /// Begins to serve a device whose server is gone, and lets its character device be opened again.
    ///
    /// # Errors
    /// `EBUSY` while the kernel is not done with the server before, or if there is one.
    pub fn start_recovery(&mut self, device: u32) -> Result<(), ControlError> {
        self.command(ControlOp::StartRecovery, device, 0, Vec::new()).map(drop)
    }

    /// Goes on with the block device of a device whose slots are all fetched by this process: what
    /// waits comes first, and so does what the server before had not answered.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn end_recovery(&mut self, device: u32) -> Result<(), ControlError> {
        let pid = u64::from(std::process::id());
        self.command(ControlOp::EndRecovery, device, pid, Vec::new()).map(drop)
    }

    /// Tells users of the block device another size, in sectors of 512 bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from a driver without [`F_UPDATE_SIZE`](super::uapi::F_UPDATE_SIZE).
    pub fn update_size(&mut self, device: u32, sectors: u64) -> Result<(), ControlError> {
        self.command(ControlOp::UpdateSize, device, sectors, Vec::new()).map(drop)
    }

    /// Removes the block device, after what its page cache has yet to write was written. Whoever
    /// has it open gets errors from then on. Its slots come back.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn stop(&mut self, device: u32) -> Result<(), ControlError> {
        self.command(ControlOp::Stop, device, 0, Vec::new()).map(drop)
    }

    /// As [`Control::stop`], unless somebody has it open; from the moment that nobody has, nobody can
    /// open it any more.
    ///
    /// # Errors
    /// `EBUSY` if somebody has; `EOPNOTSUPP` from a driver without
    /// [`F_SAFE_STOP_DEV`](super::uapi::F_SAFE_STOP_DEV).
    pub fn try_stop(&mut self, device: u32) -> Result<(), ControlError> {
        self.command(ControlOp::TryStop, device, 0, Vec::new()).map(drop)
    }

    /// Removes the device; waits until nobody has it open any more.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn delete(&mut self, device: u32) -> Result<(), ControlError> {
        self.command(ControlOp::Delete, device, 0, Vec::new()).map(drop)
    }

    /// Removes the device as soon as nobody has it open any more.
    ///
    /// # Errors
    /// [`ControlError`]
    pub fn delete_later(&mut self, device: u32) -> Result<(), ControlError> {
        self.command(ControlOp::DeleteAsync, device, 0, Vec::new()).map(drop)
    }

    /// Has the driver carry out a command. `memory` is what it reads and writes.
    fn command(
        &mut self,
        op: ControlOp,
        device: u32,
        data: u64,
        mut memory: Vec<u8>,
    ) -> Result<Vec<u8>, ControlError> {
        let path_len = if self.needs_path(op, device) { PATH } else { 0 };
        if path_len > 0 {
            let mut path = character_device(device).into_bytes();
            path.resize(PATH, 0);
            memory.splice(..0, path);
        }
        self.last += 1;
        let number = self.last;
        let address = if memory.is_empty() { 0 } else { memory.as_mut_ptr() as u64 };
        let command = encode(device, memory.len() as u16, address, data, path_len as u16);
        let fd = RingFd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, op as u32).cmd(command).build().user_data(number);
        // SAFETY: the driver reads and writes at most `memory.len()` bytes at `address`. That is
        // heap memory, which does not move; it is given back only after the command's completion
        // was seen, and leaked if that does not come in time. The file stays open as long as the
        // ring, which is dropped with it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| ControlError::Ring(Errno::EBUSY))?;
        match self.answer(number) {
            Ok(Some(result)) if result >= 0 => Ok(memory.split_off(path_len)),
            Ok(Some(result)) => Err(ControlError::Refused(op, Errno(-result))),
            Ok(None) => {
                std::mem::forget(memory);
                Err(ControlError::Late(op))
            }
            Err(errno) => {
                // Whether the kernel has seen the command is not known.
                std::mem::forget(memory);
                Err(ControlError::Ring(errno))
            }
        }
    }

    /// Waits for the result of a command; `None` if it does not come in time.
    fn answer(&mut self, number: u64) -> Result<Option<i32>, Errno> {
        let end = Instant::now() + self.patience;
        loop {
            for done in self.ring.completion() {
                if done.user_data() == number {
                    return Ok(Some(done.result()));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let limit = Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            let args = SubmitArgs::new().timespec(&limit);
            match self.ring.submitter().submit_with_args(1, &args).map_err(Errno::from) {
                Ok(_) | Err(Errno::EINTR | Errno::ETIME | Errno::EAGAIN | Errno::EBUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// `struct ublksrv_ctrl_cmd` in the room for commands: device, queue, length, address, data, length of the
/// path that comes before all else.
fn encode(device: u32, len: u16, address: u64, data: u64, path_len: u16) -> [u8; 80] {
    let mut command = [0; 80];
    command[..4].copy_from_slice(&device.to_ne_bytes());
    command[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    command[6..8].copy_from_slice(&len.to_ne_bytes());
    command[8..16].copy_from_slice(&address.to_ne_bytes());
    command[16..24].copy_from_slice(&data.to_ne_bytes());
    command[24..26].copy_from_slice(&path_len.to_ne_bytes());
    command
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({} commands)", self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_drivers_layout() {
        let command = encode(7, 64, 0x1122_3344_5566_7788, 42, 32);
        let mut expected = Vec::new();
        expected.extend(7u32.to_ne_bytes());
        expected.extend([0xff, 0xff]);
        expected.extend(64u16.to_ne_bytes());
        expected.extend(0x1122_3344_5566_7788u64.to_ne_bytes());
        expected.extend(42u64.to_ne_bytes());
        expected.extend(32u16.to_ne_bytes());
        expected.resize(80, 0);
        assert_eq!(command.as_slice(), expected);
    }

    #[test]
    fn a_file_that_is_not_the_driver_refuses_commands() {
        let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        assert!(character_device(u32::MAX).len() < PATH);
        // What the null device does with a command it does not know has changed over time; that it
        // tells of no features has not.
        let mut control = Control::on(file, Duration::from_secs(10)).unwrap();
        assert_eq!(control.features(), Err(ControlError::TooOld));
    }
}
