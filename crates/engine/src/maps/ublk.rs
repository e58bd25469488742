//! A volume as a device of the kernel's ublk driver.
//!
//! Commands to the driver come from the thread of the operator's command, requests are served by
//! the volume's shard (`frontend::ublk`). A device has the volume's minor for its number where that
//! is free.
//!
//! A device outlives an engine that is killed, and its I/O waits (`UBLK_F_USER_RECOVERY`). The next one knows
//! it by a signature, and goes on with it if the volume is as it was, as with a loop device (`super::process`);
//! what the kernel had asked of the engine before is asked again. Otherwise the device is taken away under its
//! users, and a new one is made.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use codec::admin::{Face, FaceStatus, FailureKind, MapOptions};
use frontend::ublk::control::{ControlError, character_device};
use frontend::ublk::uapi::{
    ControlOp, DeviceInfo, DeviceState, F_AUTO_BUF_REG, F_BATCH_IO, F_CMD_IOCTL_ENCODE,
    F_SAFE_STOP_DEV, F_UNPRIVILEGED_DEV, F_UPDATE_SIZE, F_USER_COPY, F_USER_RECOVERY,
    F_USER_RECOVERY_REISSUE, Params, feature_names,
};
use frontend::ublk::{Control, DeviceKey};
use runtime::{Errno, Intent, TargetInfo};
use sha2::{Digest, Sha256};
use vocab::{Bytes, ConfigError, Minor, Refusal, Sectors, VolumeNr};

use super::links::Links;
use super::size::Resize;
use super::{Kind, Mapped, standby, users};
use crate::engine::{Done, Engine, Entry, Stop, while_claimed};
use crate::restore::text;
use crate::shard::Shard;
use logging::{Level, log};

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
/// How long the kernel may take to be done with an engine that was killed.
const DONE: Duration = Duration::from_secs(10);
/// How long the number of a device that nobody serves any more may take to be free.
const FREED: Duration = Duration::from_secs(2);
/// What to look at where a device's node is missing.
const DEVTMPFS: &str = "is /dev a devtmpfs, or does udev run?";
/// And where it is not ours.
const UDEV: &str =
    "the engine is not root: udev needs the rules of dist/udev for devices of others";
/// How often is looked.
const TICK: Duration = Duration::from_millis(5);
/// Has an entry `ublkcN` for each device.
const DEVICES: &str = "/sys/class/ublk-char";
/// What a device can do for its users when its engine is killed.
const RECOVERY: u64 = F_USER_RECOVERY | F_USER_RECOVERY_REISSUE;
/// What is used of the driver where it has it.
const WANTED: u64 = F_AUTO_BUF_REG | F_BATCH_IO;
/// Longest request of an unprivileged device in bytes: each slot has a buffer of that length.
const UNPRIVILEGED_IO: u32 = 256 << 10;
/// Beyond this number the kernel has no devices; it chooses one itself then.
const NUMBERS: u32 = 1 << 20;

/// What an engine has to know of the driver to serve devices, beyond what all of them do. They are looked at through
/// `control`, which is opened once for all: their I/O waits.
pub(super) fn needs(
    control: &mut Option<Control>,
    number: u32,
) -> Result<Vec<String>, ControlError> {
    let control = match control {
        Some(control) => control,
        none => none.insert(Control::open(FEATURES)?),
    };
    let flags = control.info(number)?.flags;
    Ok(feature_names(flags & WANTED).map(str::to_owned).collect())
}

/// This engine knows a feature of the driver that a device was made with.
pub(super) fn knows(feature: &str) -> bool {
    feature_names(WANTED).any(|known| known == feature)
}

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

/// What an earlier engine has left of a volume.
pub(super) struct Leftover {
    /// The block device, whose I/O waits.
    pub(super) path: String,
    info: DeviceInfo,
}

impl Leftover {
    /// Takes it away, whoever uses it.
    pub(super) fn remove(self) {
        let number = self.info.id;
        let removed = Control::open(PATIENCE).and_then(|mut control| {
            control.stop(number)?;
            delete(&mut control, number, false)
        });
        if let Err(error) = removed {
            log!(Level::Warn, "engine", "{} stays: {error}", self.path);
        }
    }

    /// Why the volume is too little for it. One that has grown is not.
    fn misfit(&self, params: &Params) -> Result<(), String> {
        let number = self.info.id;
        let size = attribute(number, "size")?;
        let block = attribute(number, "queue/logical_block_size")?;
        let TargetInfo { block_size_min, max_transfer, .. } = params.target;
        if size > params.sectors() {
            return Err("the volume is smaller than it was".to_owned());
        }
        if block < u64::from(block_size_min) || self.info.max_io > max_transfer {
            return Err("the volume takes no such requests any more".to_owned());
        }
        Ok(())
    }
}

/// Something that the kernel tells of a device, in `/sys/block`.
fn attribute(number: u32, name: &str) -> Result<u64, String> {
    let path = format!("/sys/block/ublkb{number}/{name}");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    text.trim().parse().map_err(|e| format!("{path}: {e}"))
}

/// The size of a device.
pub(super) fn size(number: u32) -> Option<Bytes> {
    attribute(number, "size").ok().map(|sectors| Sectors(sectors).bytes())
}

/// A device of a driver that announces sizes (Linux 6.16).
struct UblkSize {
    nr: VolumeNr,
    number: u32,
}

impl Resize for UblkSize {
    fn kib(&self) -> Option<u64> {
        attribute(self.number, "size").ok().map(|sectors| sectors.div_ceil(2))
    }

    fn renew(&self, engine: &Engine, entry: &Entry) -> Result<(), String> {
        let target = engine.geometry(entry, self.nr).map_err(|stop| text(&stop))?;
        let params = Params { target: target.ok_or("the volume is gone")?, read_only: false };
        let mut control = Control::open(PATIENCE).map_err(|e| e.to_string())?;
        control.update_size(self.number, params.sectors()).map_err(|e| e.to_string())
    }
}

fn failed(what: &str, error: ControlError) -> Stop {
    let next = match error {
        ControlError::Late(_) => {
            "look at `ashlar why`: a volume that waits keeps its device waiting"
        }
        ControlError::Open(Errno(libc::EACCES | libc::EPERM)) => {
            "run the engine as root, or give udev the rules of dist/udev"
        }
        ControlError::Refused(ControlOp::Add, Errno(libc::EACCES)) => {
            "there are as many devices of others than root as /sys/module/ublk_drv/parameters/ublks_max says"
        }
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
    /// Opens the volume and makes its device, or goes on with the one that is there.
    pub(super) fn make_ublk(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        minor: Minor,
        options: MapOptions,
        links: Links,
    ) -> Done<Mapped> {
        let what = format!("{}/{nr}", entry.name);
        let mut control = Control::open(PATIENCE).map_err(|e| failed(&what, e))?;
        let features = control.features().map_err(|e| failed(&what, e))?;
        let left = self.ublk_leftover(entry, nr);
        if left.is_some() {
            self.wait_for_peers(entry)?;
        }
        let (key, target) = self.open_volume(entry, nr, standby::intent(&options))?;
        let shard = entry.shard;
        let close = || self.on(shard, move |shard| close(shard, key));
        let params = Params { target, read_only: options.read_only };
        let mut is_used = !options.standby;
        if let Some(left) = left.as_ref().filter(|_| options.standby) {
            is_used = match self.stand_up_if_used(entry, nr, &left.path) {
                Ok(used) => used,
                Err(stop) => {
                    close()?;
                    return Err(stop);
                }
            };
        }
        let links = match left {
            None => links,
            Some(left) => {
                let (path, kind) = (left.path.clone(), Kind::Ublk(left.info.id));
                let watch = self.watch_size(&entry.name);
                let mapped = Mapped { path, links, shard, key, kind, watch };
                let unchanged = || self.is_unchanged(entry, nr);
                let fits = || left.misfit(&params).and_then(|()| unchanged());
                let goes_on = || {
                    fits().and_then(|()| self.go_on_with(&mut control, entry, nr, &left, &mapped))
                };
                match is_used.then(goes_on) {
                    Some(Ok(())) => {
                        self.follow_ublk(entry, nr, &mapped, features);
                        return Ok(mapped);
                    }
                    None => {
                        let why = standby::MADE_ANEW;
                        log!(Level::Info, entry.name, "volume {nr}: {}: {why}", left.path);
                        left.remove();
                    }
                    Some(Err(why)) => {
                        log!(
                            Level::Error,
                            entry.name,
                            "{} goes away under its users: {why}",
                            left.path
                        );
                        left.remove();
                    }
                }
                mapped.links
            }
        };
        let added = match params.sectors() {
            0 => Err(Stop::invalid(format!("{what} has no size yet; attach a disk, or connect"))),
            _ => self
                .add(&mut control, (entry, nr), minor, &params, options, features)
                .map_err(|e| failed(&what, e)),
        };
        let info = match added {
            Ok(info) => info,
            Err(stop) => {
                close()?;
                return Err(stop);
            }
        };
        let path = format!("/dev/ublkb{}", info.id);
        let (kind, watch) = (Kind::Ublk(info.id), self.watch_size(&entry.name));
        let mapped = Mapped { path, links, shard, key, kind, watch };
        match self.bring_up_device(&mut control, &mapped, &info, &params) {
            Ok(()) => {
                self.follow_ublk(entry, nr, &mapped, features);
                Ok(mapped)
            }
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

    /// The device that an earlier engine has left of a volume.
    pub(super) fn ublk_leftover(&self, entry: &Entry, nr: VolumeNr) -> Option<Leftover> {
        let signature = self.signature(&entry.name, nr);
        let mut control = None;
        for device in fs::read_dir(DEVICES).ok()?.flatten() {
            let name = device.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok());
            let Some(number) = number else { continue };
            let control = match &mut control {
                Some(control) => control,
                none => none.insert(Control::open(FEATURES).ok()?),
            };
            let Ok(info) = control.info(number) else { continue };
            // One that has just been killed may look alive. Of two engines one does not get the state.
            let is_left = matches!(info.state, DeviceState::Live | DeviceState::Quiesced)
                && info.flags & RECOVERY == RECOVERY
                && u32::try_from(info.pid) != Ok(std::process::id());
            if is_left && info.signature == signature {
                return Some(Leftover { path: format!("/dev/ublkb{number}"), info });
            }
        }
        None
    }

    /// Nobody else has written, nor can from here on: the volume is open.
    fn is_unchanged(&self, entry: &Entry, nr: VolumeNr) -> Result<(), String> {
        match self.is_as_it_was(entry, nr).map_err(|stop| text(&stop))? {
            true => Ok(()),
            false => Err(format!(
                "the data of volume {nr} are not what they were when the last engine was killed"
            )),
        }
    }

    /// Has a device follow the size of its volume, where the driver can.
    fn follow_ublk(self: &Arc<Self>, entry: &Entry, nr: VolumeNr, mapped: &Mapped, features: u64) {
        let Kind::Ublk(number) = mapped.kind else { return };
        if features & F_UPDATE_SIZE != 0 {
            self.follow_size(entry, nr, mapped, UblkSize { nr, number });
        }
    }

    /// Serves a device whose engine is gone and whose volume has been open all the time.
    pub(super) fn go_on_with_ublk(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        mapped: &Mapped,
        number: u32,
    ) -> Result<(), String> {
        let left = self.ublk_leftover(entry, nr).filter(|left| left.info.id == number);
        let left = left.ok_or("it is gone")?;
        let mut control = Control::open(PATIENCE).map_err(|e| e.to_string())?;
        let features = control.features().map_err(|e| e.to_string())?;
        self.go_on_with(&mut control, entry, nr, &left, mapped)?;
        self.follow_ublk(entry, nr, mapped, features);
        Ok(())
    }

    /// Serves a device that is there.
    fn go_on_with(
        &self,
        control: &mut Control,
        entry: &Entry,
        nr: VolumeNr,
        left: &Leftover,
        mapped: &Mapped,
    ) -> Result<(), String> {
        let end = Instant::now() + DONE;
        loop {
            match control.start_recovery(left.info.id) {
                Err(ControlError::Refused(_, Errno::EBUSY)) if Instant::now() < end => {
                    std::thread::sleep(TICK);
                }
                result => break result.map_err(|e| e.to_string())?,
            }
        }
        self.serve_device(mapped, &left.info).map_err(|stop| text(&stop))?;
        control.end_recovery(left.info.id).map_err(|e| e.to_string())?;
        mapped.links.make(&mapped.path)?;
        log!(Level::Info, entry.name, "volume {nr}: {} goes on", left.path);
        Ok(())
    }

    /// Opens the volume on its shard, to stay open.
    pub(super) fn open_volume(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        intent: Intent,
    ) -> Done<(DeviceKey, TargetInfo)> {
        let what = format!("{}/{nr}", entry.name);
        let id = entry.id;
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
        (entry, nr): (&Entry, VolumeNr),
        minor: Minor,
        params: &Params,
        options: MapOptions,
        features: u64,
    ) -> Result<DeviceInfo, ControlError> {
        let signature = self.signature(&entry.name, nr);
        let mut wish = DeviceInfo {
            queues: options.queues,
            depth: options.depth,
            state: DeviceState::Dead,
            max_io: params.target.max_transfer,
            id: if minor.0 < NUMBERS { minor.0 } else { u32::MAX },
            pid: -1,
            flags: F_CMD_IOCTL_ENCODE | F_USER_COPY | RECOVERY | (WANTED & features),
            signature,
            owner: (0, 0),
        };
        let taken = ControlError::Refused(ControlOp::Add, Errno::EEXIST);
        let mut added = control.add(&wish);
        if added == Err(ControlError::Refused(ControlOp::Add, Errno::EPERM))
            && features & F_UNPRIVILEGED_DEV != 0
        {
            wish.flags = F_CMD_IOCTL_ENCODE | F_UNPRIVILEGED_DEV;
            wish.max_io = wish.max_io.min(UNPRIVILEGED_IO);
            added = control.add(&wish);
        }
        if added == Err(taken) && is_dead(control, wish.id, signature) {
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
        if info.flags & F_UNPRIVILEGED_DEV != 0 {
            // udev has to give it to us before anything more can be asked of it.
            drop(open_node(&character_device(info.id), true));
        }
        let max_transfer = params.target.max_transfer.min(info.max_io);
        let target = TargetInfo { max_transfer, ..params.target };
        match control.set_params(info.id, &Params { target, ..*params }) {
            Ok(()) => Ok(info),
            Err(error) => {
                // It is nobody's yet.
                let _ = control.delete(info.id);
                Err(error)
            }
        }
    }

    /// By this a volume's devices are known to be of an engine with the same state, whatever its version.
    fn signature(&self, resource: &str, nr: VolumeNr) -> u64 {
        let mut digest = Sha256::new();
        for part in [b"ashlar", self.state.path().as_os_str().as_bytes(), resource.as_bytes()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.update(nr.0.to_le_bytes());
        let digest = digest.finalize();
        u64::from_le_bytes(*digest.first_chunk().expect("it has 32 bytes"))
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
        self.serve_device(mapped, info)?;
        control.start(info.id).map_err(|e| failed(&mapped.path, e))?;
        if !appears(&mapped.path) {
            let text = format!("{} does not appear", mapped.path);
            return Err(Stop::failed(FailureKind::Io, text, DEVTMPFS));
        }
        let unprivileged = info.flags & F_UNPRIVILEGED_DEV != 0;
        // Whoever waits for the answer uses it then.
        if unprivileged && let Err(e) = open_node(&mapped.path, false) {
            let text = format!("{} can not be opened: {e}", mapped.path);
            return Err(Stop::failed(FailureKind::Io, text, UDEV));
        }
        match mapped.links.make(&mapped.path) {
            Err(e) if unprivileged => {
                log!(Level::Warn, "engine", "{e}; the engine is not root, whose folder it is");
                Ok(())
            }
            linked => {
                linked.map_err(|e| Stop::failed(FailureKind::Io, e, "see to /dev, then repeat it"))
            }
        }
    }

    /// Has the volume's shard take what the kernel asks of a device.
    fn serve_device(&self, mapped: &Mapped, info: &DeviceInfo) -> Done {
        let node = character_device(info.id);
        let next = match info.flags & F_UNPRIVILEGED_DEV {
            0 => DEVTMPFS,
            _ => UDEV,
        };
        let no_node = |e: String| {
            let text = format!("{node} can not be opened: {e}");
            Stop::failed(FailureKind::Io, text, next)
        };
        let file = open_node(&node, true).map_err(|e| no_node(e.to_string()))?;
        let (key, info) = (mapped.key, *info);
        let started = self.on(mapped.shard, move |shard| {
            shard.ublk.start(&mut shard.io.ring, key, file, &info)
        })?;
        started.map_err(|errno| no_node(errno.to_string()))
    }

    /// As [`Engine::stop_ublk`] for a device that nobody uses; `hold` claims it. A driver that can looks
    /// once more itself, and nobody gets in between.
    pub(super) fn stop_unused_ublk(&self, mapped: &Mapped, number: u32, hold: File) -> Done {
        let mut control = Control::open(PATIENCE).map_err(|e| failed(&mapped.path, e))?;
        let features = control.features().map_err(|e| failed(&mapped.path, e))?;
        if features & F_SAFE_STOP_DEV == 0 {
            return self.stop_ublk(mapped, number);
        }
        drop(hold);
        let is_open =
            |error: &ControlError| matches!(error, ControlError::Refused(_, Errno::EBUSY));
        match while_claimed(is_open, || control.try_stop(number)) {
            Ok(()) => {}
            Err(error) if is_open(&error) => {
                let users = users::of(&mapped.path);
                let who = match users.is_empty() {
                    true => "somebody has opened it just now".to_owned(),
                    false => users.join(", "),
                };
                return Err(super::in_use(&mapped.path, &who));
            }
            Err(error) => return Err(failed(&mapped.path, error)),
        }
        self.take_ublk_back(mapped)
    }

    /// Removes the block device, waits until the kernel has given all slots back, and closes the
    /// volume.
    pub(super) fn stop_ublk(&self, mapped: &Mapped, number: u32) -> Done {
        let mut control = Control::open(PATIENCE).map_err(|e| failed(&mapped.path, e))?;
        match control.stop(number) {
            Ok(()) | Err(ControlError::Refused(_, Errno::ENODEV)) => {}
            Err(error) => return Err(failed(&mapped.path, error)),
        }
        self.take_ublk_back(mapped)
    }

    /// What there is to do once the block device is gone.
    fn take_ublk_back(&self, mapped: &Mapped) -> Done {
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

    /// The device is served on by the next engine when this one ends.
    pub(super) fn ublk_outlives(&self, number: u32) -> Result<bool, ControlError> {
        let info = Control::open(FEATURES)?.info(number)?;
        Ok(info.flags & RECOVERY == RECOVERY)
    }

    /// What a device uses of the driver, and how many reads the disk has put straight into the memory of
    /// their requests.
    pub(super) fn ublk_use(&self, mapped: &Mapped, number: u32) -> (Vec<String>, u64) {
        let info = Control::open(FEATURES).and_then(|mut control| control.info(number));
        let ours = F_UNPRIVILEGED_DEV | F_USER_COPY | RECOVERY | WANTED;
        let used = info.map_or(0, |info| info.flags & ours);
        let key = mapped.key;
        let placed = self.on(mapped.shard, move |shard| shard.ublk.placed(key));
        (feature_names(used).map(str::to_owned).collect(), placed.unwrap_or(0))
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

/// True if the device is what an engine has left that was killed while it took the device away.
fn is_dead(control: &mut Control, number: u32, signature: u64) -> bool {
    let info = control.info(number);
    info.is_ok_and(|info| info.state == DeviceState::Dead && info.signature == signature)
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
    let Shard { ublk, volumes, io, .. } = shard;
    ublk.close(&mut io.ring, volumes, key);
}

/// Opens a device that was made just now. udev may take a moment, and those who look at
/// every new device another.
fn open_node(path: &str, write: bool) -> std::io::Result<OwnedFd> {
    let end = Instant::now() + NODE;
    loop {
        match OpenOptions::new().read(true).write(write).open(path) {
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
