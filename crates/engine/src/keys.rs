//! Keys of encrypted disks. They come over the control socket, are in memory only, and are needed anew after
//! each start: nothing that is kept has them. An engine that takes over is told them by the one before.
//!
//! A key is known by the path of its disk, and counts for as long as the header there is the one that it was got
//! from. That is looked at each time before the disk is used.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use codec::admin::{Note, ResourceStatus};
use codec::config::MetaDisk;
use crypt::luks::{self, Opened};
use runtime::DiskOptions;
use vocab::options::Secret;
use vocab::{ConfigError, DiskState, Refusal};

use crate::engine::{Done, Engine, Entry, Stop, lock};

/// The keys, by the paths of their disks.
#[derive(Default)]
pub(crate) struct Keys {
    opened: Mutex<BTreeMap<String, Opened>>,
}

impl Keys {
    /// All of them, for the next process.
    pub(crate) fn all(&self) -> BTreeMap<String, Opened> {
        lock(&self.opened).clone()
    }

    /// Takes over those of the process before.
    pub(crate) fn inherit(&self, keys: BTreeMap<String, Opened>) {
        *lock(&self.opened) = keys;
    }

    pub(crate) fn forget(&self, disk: &str) {
        lock(&self.opened).remove(disk);
    }
}

/// How the disk behind a header is opened, if there is one.
pub(crate) fn behind_header(key: Option<&Opened>) -> DiskOptions {
    match key {
        Some(key) => DiskOptions {
            begin: key.offset(),
            block_size: key.cipher().sector_size(),
            ..DiskOptions::default()
        },
        None => DiskOptions::default(),
    }
}

/// True of a device that an agent has the kernel make of an encrypted volume, and that is not there.
fn is_closed(disk: &str) -> bool {
    let path = Path::new(disk);
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(luks::MAPPED)) && !path.exists()
}

/// Reads of a disk, which may be in use.
fn reader(disk: &str) -> Done<impl FnMut(u64, &mut [u8]) -> Result<(), String>> {
    let file = File::open(disk).map_err(|error| {
        Stop::from(Refusal::config(ConfigError::OpenDisk, format!("{disk}: {error}")))
    })?;
    Ok(move |at, to: &mut [u8]| {
        file.read_exact_at(to, at).map_err(|error| format!("reading at byte {at}: {error}"))
    })
}

fn refusal(disk: &str, error: &luks::Error) -> Stop {
    let next = match error {
        luks::Error::WrongPassphrase => "; give the one that it was formatted with",
        luks::Error::OtherKey => "; give its passphrase again if that is meant",
        luks::Error::NotLuks => "; format it first (`cryptsetup luksFormat`) if it has no data",
        luks::Error::Damaged(_) => "; `cryptsetup repair` may help",
        luks::Error::Read(_) | luks::Error::Unsupported(_) => "",
    };
    Refusal::config(ConfigError::OpenDisk, format!("{disk}: {error}{next}")).into()
}

impl Engine {
    /// Takes the key of a disk, and attaches the disk where a volume waits for it.
    pub(crate) fn unlock(&self, disk: &str, passphrase: &Secret) -> Done {
        let opened = luks::open(&mut reader(disk)?, passphrase);
        let opened = opened.map_err(|error| refusal(disk, &error))?;
        lock(&self.keys.opened).insert(disk.to_owned(), opened);
        for entry in self.entries(None) {
            let _pass = entry.pass();
            let config = lock(&entry.stored).config.clone();
            let waits = config.volumes.into_iter().filter_map(|v| Some((v.nr, v.backing?)));
            for (nr, backing) in waits.filter(|(_, b)| b.luks && b.disk == disk) {
                let status = self.status_of(&entry)?;
                let has = status.devices.iter().find(|device| device.volume == nr);
                if has.is_some_and(|device| device.disk_state == DiskState::Diskless) {
                    self.attach(&entry, nr, backing)?;
                }
            }
        }
        Ok(())
    }

    /// The key of a disk that is to be used; none if it is not encrypted.
    pub(crate) fn key_of(&self, disk: &str, meta: &MetaDisk, luks: bool) -> Done<Option<Opened>> {
        if !luks {
            return Ok(None);
        }
        if *meta != MetaDisk::Internal {
            let detail = format!("{disk}: encrypted disks have internal metadata");
            return Err(Stop::invalid(detail));
        }
        let Some(opened) = lock(&self.keys.opened).get(disk).cloned() else {
            let detail = format!(
                "{disk}: it is encrypted, and its passphrase was not given since the engine \
                 started; give it with `ashlar unlock {disk}`, or enter the cluster's master \
                 passphrase"
            );
            return Err(Refusal::config(ConfigError::OpenDisk, detail).into());
        };
        opened.check(&mut reader(disk)?).map_err(|error| refusal(disk, &error))?;
        Ok(Some(opened))
    }

    /// Says which volumes wait for the key of their disk, or for the kernel to decrypt it.
    pub(crate) fn locked(&self, entry: &Entry, status: &ResourceStatus) -> Vec<Note> {
        let volumes = lock(&entry.stored).config.volumes.clone();
        let keys = lock(&self.keys.opened);
        let diskless = |nr| {
            let device = status.devices.iter().find(|device| device.volume == nr);
            device.is_some_and(|device| device.disk_state == DiskState::Diskless)
        };
        let locked = volumes.into_iter().filter_map(|volume| {
            let backing = volume.backing?;
            let disk = &backing.disk;
            let text = if !diskless(volume.nr) {
                return None;
            } else if backing.luks && !keys.contains_key(disk) {
                format!(
                    "{disk} is encrypted and waits for its passphrase, which the engine keeps in no file: \
                     enter the cluster's master passphrase, or `ashlar unlock {disk}`"
                )
            } else if is_closed(disk) {
                format!(
                    "{disk} is encrypted and not open: this node's agent has cryptsetup open it, and the \
                     engine attach it, once it knows the key; enter the cluster's master passphrase, and \
                     see the agent's log if that was done"
                )
            } else {
                return None;
            };
            Some(Note { age_seconds: 0, object: format!("volume {}", volume.nr), text })
        });
        locked.collect()
    }
}
