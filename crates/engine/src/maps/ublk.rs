//! A volume as a device of the kernel's ublk driver.
//!
//! Commands to the driver come from the thread of the operator's command, requests are served by
//! the volume's shard (`frontend::ublk`). A device has the volume's minor for its number where that
//! is free.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use codec::admin::{Face, FaceStatus, FailureKind, MapOptions};
use frontend::ublk::control::ControlError;
use frontend::ublk::uapi::{
    ControlOp, DeviceInfo, DeviceState, F_CMD_IOCTL_ENCODE, F_USER_COPY, Params, feature_names,
};
use frontend::ublk::{Control, DeviceKey};
use runtime::{Errno, Intent, TargetInfo};
use vocab::{ConfigError, Minor, Refusal, VolumeNr};

use super::links::Links;
use super::{Kind, Mapped};
use crate::engine::{Done, Engine, Entry, Stop};
use crate::log::{Level, log};
use crate::restore::text;
use crate::shard::Shard;

/// How long the driver may take for a command. Starting reads the partition table and stopping writes
/// what is dirty, both through the volume.
const PATIENCE: Duration = Duration::from_secs(50);
/// And to tell what it can do.
const FEATURES: Duration = Duration::from_secs(2);
/// How long opening a volume may take: promotion asks all peers.
const OPEN: Duration = Duration::from_secs(45);
/// How long a device's node may take to appear in `/dev`.
const NODE: Duration = Duration::from_secs(5);
/// How long the kernel may take to give slots back.
const BACK: Duration = Duration::from_secs(10);
/// How long the number of a device that nobody serves any more may take to be free.
const FREED: Duration = Duration::from_secs(2);
/// How often is looked.
const TICK: Duration = Duration::from_millis(5);
/// Beyond this number the kernel has no devices; it chooses one itself then.
const NUMBERS: u32 = 1 << 20;

/// Whether the driver can be used, and what it offers.
pub(super) fn status() -> FaceStatus {
    let features = Control::open(FEATURES).and_then(|mut control| control.features());
    let name = Face::Ublk.name().to_owned();
    match features {
        Ok(features) => FaceStatus {
            name,
            usable: true,
            problem: None,
            features: feature_names(features).map(str::to_owned).collect(),
        },
        Err(error) => {
            let problem = Some(error.to_string());
            FaceStatus { name, usable: false, problem, features: Vec::new() }
        }
    }
}

fn failed(what: &str, error: ControlError) -> Stop {
    let next = match error {
        ControlError::Late(_) => {
            "look at `ashlar why`: a volume that waits keeps its device waiting"
        }
        ControlError::Open(Errno(libc::EACCES | libc::EPERM)) => "run the engine as root",
        ControlError::Open(_) | ControlError::TooOld => {
            "without --face, `ashlar map` takes another way where there is one"
        }
        _ => "the kernel's log (`dmesg`) may say more",
    };
    Stop::failed(FailureKind::Io, format!("{what}: {error}"), next)
}

/// Why a volume could not be opened, in words.
pub(crate) fn refused(what: &str, resource: &str, errno: Errno) -> Stop {
    let why = match errno {
        Errno::EROFS => "this node can not become Primary now".to_owned(),
        Errno::EMEDIUMTYPE => format!(
            "another node is Primary, or auto-promote is off and `ashlar primary {resource}` has to \
             come first"
        ),
        Errno(libc::ENODATA) => "it has no access to UpToDate data".to_owned(),
        errno => errno.to_string(),
    };
    let next = format!("`ashlar why {resource}` says why");
    Stop::failed(FailureKind::Io, format!("{what} can not be opened: {why}"), &next)
}

impl Engine {
    /// Opens the volume and makes its device.
    pub(super) fn make_ublk(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        minor: Minor,
        options: MapOptions,
        links: Links,
    ) -> Done<Mapped> {
        let what = format!("{}/{nr}", entry.name);
        let mut control = Control::open(PATIENCE).map_err(|e| failed(&what, e))?;
        control.features().map_err(|e| failed(&what, e))?;
        let (key, target) = self.open_volume(entry, nr, options.read_only)?;
        let shard = entry.shard;
        let close = || self.on(shard, move |shard| close(shard, key));
        let params = Params { target, read_only: options.read_only };
        let added = match params.sectors() {
            0 => Err(Stop::invalid(format!("{what} has no size yet; attach a disk, or connect"))),
            _ => self.add(&mut control, minor, &params, options).map_err(|e| failed(&what, e)),
        };
        let info = match added {
            Ok(info) => info,
            Err(stop) => {
                close()?;
                return Err(stop);
            }
        };
        let path = format!("/dev/ublkb{}", info.id);
        let mapped = Mapped { path, links, shard, key, kind: Kind::Ublk(info.id) };
        match self.bring_up_device(&mut control, &mapped, &info, &params) {
            Ok(()) => Ok(mapped),
            Err(stop) => {
                // The first reason counts.
                match self.stop_ublk(&mapped, info.id) {
                    Ok(()) => self.delete_ublk(&mapped, info.id, true),
                    Err(second) => log!(Level::Warn, entry.name, "{}", text(&second)),
                }
                Err(stop)
            }
        }
    }

    /// Opens the volume on its shard, to stay open.
    pub(super) fn open_volume(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        read_only: bool,
    ) -> Done<(DeviceKey, TargetInfo)> {
        let what = format!("{}/{nr}", entry.name);
        let (id, intent) = (entry.id, if read_only { Intent::Read } else { Intent::Write });
        let (reply, result) = mpsc::channel();
        let key = self.on(entry.shard, move |shard| {
            let target = shard.hosts.get_mut(id)?.target(nr)?;
            let Shard { ublk, volumes, .. } = shard;
            Some(ublk.open(volumes, target, intent, reply))
        })?;
        let Some(key) = key else {
            let detail = format!("resource {} has no volume {nr}", entry.name);
            return Err(Refusal::config(ConfigError::MinorInvalid, detail).into());
        };
        let key = key.map_err(|errno| refused(&what, &entry.name, errno))?;
        match result.recv_timeout(OPEN) {
            Ok(Ok(info)) => Ok((key, info)),
            Ok(Err(errno)) => Err(refused(&what, &entry.name, errno)),
            Err(_) => {
                self.on(entry.shard, move |shard| close(shard, key))?;
                Err(refused(&what, &entry.name, Errno::ETIMEDOUT))
            }
        }
    }

    /// Has the driver make a character device and sets its limits.
    fn add(
        &self,
        control: &mut Control,
        minor: Minor,
        params: &Params,
        options: MapOptions,
    ) -> Result<DeviceInfo, ControlError> {
        let mut wish = DeviceInfo {
            queues: options.queues,
            depth: options.depth,
            state: DeviceState::Dead,
            max_io: params.target.max_transfer,
            id: if minor.0 < NUMBERS { minor.0 } else { u32::MAX },
            pid: -1,
            flags: F_CMD_IOCTL_ENCODE | F_USER_COPY,
            signature: self.signature(),
        };
        let taken = ControlError::Refused(ControlOp::Add, Errno::EEXIST);
        let mut added = control.add(&wish);
        if added == Err(taken) && self.is_leftover(control, wish.id) {
            // It keeps its number for as long as somebody has it open.
            delete(control, wish.id, false)?;
            let end = Instant::now() + FREED;
            while added == Err(taken) && Instant::now() < end {
                std::thread::sleep(TICK);
                added = control.add(&wish);
            }
        }
        if added == Err(taken) {
            wish.id = u32::MAX;
            added = control.add(&wish);
        }
        let info = added?;
        match control.set_params(info.id, params) {
            Ok(()) => Ok(info),
            Err(error) => {
                // It is nobody's yet.
                let _ = control.delete(info.id);
                Err(error)
            }
        }
    }

    /// By this devices are known to be of an engine with the same state: of an earlier run.
    fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        ("ashlar", self.state.path()).hash(&mut hasher);
        hasher.finish()
    }

    /// True if the device is what an engine that was killed has left.
    fn is_leftover(&self, control: &mut Control, number: u32) -> bool {
        control
            .info(number)
            .is_ok_and(|info| info.state == DeviceState::Dead && info.signature == self.signature())
    }

    /// From the character device to the block device and its names.
    fn bring_up_device(
        &self,
        control: &mut Control,
        mapped: &Mapped,
        info: &DeviceInfo,
        params: &Params,
    ) -> Done {
        debug_assert!(params.sectors() > 0, "an empty device can not be started");
        let node = format!("/dev/ublkc{}", info.id);
        let no_node = |e: String| {
            let text = format!("{node} can not be opened: {e}");
            Stop::failed(FailureKind::Io, text, "is /dev a devtmpfs, or does udev run?")
        };
        let file = open_node(&node).map_err(|e| no_node(e.to_string()))?;
        let (key, queues, depth) = (mapped.key, info.queues, info.depth);
        let started = self.on(mapped.shard, move |shard| {
            shard.ublk.start(&mut shard.io.ring, key, file, queues, depth)
        })?;
        started.map_err(|errno| no_node(errno.to_string()))?;
        control.start(info.id).map_err(|e| failed(&mapped.path, e))?;
        if !appears(&mapped.path) {
            return Err(no_node(format!("{} does not appear", mapped.path)));
        }
        let linked = mapped.links.make(&mapped.path);
        linked.map_err(|e| Stop::failed(FailureKind::Io, e, "see to /dev, then repeat it"))
    }

    /// Removes the block device, waits until the kernel has given all slots back, and closes the
    /// volume.
    pub(super) fn stop_ublk(&self, mapped: &Mapped, number: u32) -> Done {
        let mut control = Control::open(PATIENCE).map_err(|e| failed(&mapped.path, e))?;
        match control.stop(number) {
            Ok(()) | Err(ControlError::Refused(_, Errno::ENODEV)) => {}
            Err(error) => return Err(failed(&mapped.path, error)),
        }
        let (told, back) = mpsc::channel();
        let key = mapped.key;
        self.on(mapped.shard, move |shard| shard.ublk.wait_back(key, told))?;
        if back.recv_timeout(BACK).is_err() {
            let text = format!("{}: the kernel does not give its requests back", mapped.path);
            return Err(Stop::failed(FailureKind::Io, text, "try again; `dmesg` may say more"));
        }
        mapped.links.remove(&mapped.path);
        self.on(mapped.shard, move |shard| close(shard, key))
    }

    /// Removes the character device of a stopped device; its number is free then. Without `wait` that
    /// happens once nobody has the block device open any more.
    pub(super) fn delete_ublk(&self, mapped: &Mapped, number: u32, wait: bool) {
        let opened = Control::open(PATIENCE);
        let deleted = opened.and_then(|mut control| delete(&mut control, number, wait));
        if let Err(error) = deleted {
            log!(Level::Warn, "engine", "{}: {error}", mapped.path);
        }
    }
}

/// Removes a stopped device: now, or without `wait` once nobody has it open any more.
fn delete(control: &mut Control, number: u32, wait: bool) -> Result<(), ControlError> {
    if !wait {
        match control.delete_later(number) {
            // Before Linux 6.9: that has to be waited for.
            Err(ControlError::Refused(..)) => {}
            result => return result,
        }
    }
    control.delete(number)
}

/// Closes a volume that was opened.
pub(super) fn close(shard: &mut Shard, key: DeviceKey) {
    let Shard { ublk, volumes, .. } = shard;
    ublk.close(volumes, key);
}

/// Opens a character device that was made just now. udev may take a moment, and those who look at
/// every new device another.
fn open_node(path: &str) -> std::io::Result<OwnedFd> {
    let end = Instant::now() + NODE;
    loop {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => return Ok(file.into()),
            Err(e) if Instant::now() >= end => return Err(e),
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn appears(path: &str) -> bool {
    let end = Instant::now() + NODE;
    loop {
        if Path::new(path).exists() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(TICK);
    }
}
