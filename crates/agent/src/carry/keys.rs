//! Encrypted volumes: their headers and keys.
//!
//! The passphrase of a volume comes with the plan, encrypted under the cluster's master key, and is kept so.
//! The master key comes from the controller and is in memory only. From both follows what the engine is told:
//! the passphrase, whenever it starts.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use cluster::layer::Layer;
use cluster::plan::Backing;
use codec::admin::Request;
use crypt::luks::{self, Kdf, Opened, change};
use crypt::seal::MasterKey;
use logging::{Level, log};
use vocab::options::Secret;
use vocab::{DiskState, VolumeNr};

use super::Step;
use crate::failed::Failed;
use crate::record::{Metadata, Next, Record, Volume};

/// The cluster's master key, if the controller has told it.
#[derive(Default)]
pub struct Master(Mutex<Option<MasterKey>>);

impl Master {
    /// Takes note of it. True if it is another than before.
    ///
    /// # Errors
    /// If it is not a key.
    pub fn tell(&self, key: &Secret) -> Result<bool, Failed> {
        let new = MasterKey::from_secret(key).map_err(|_| {
            let next = "use controller and agent of one release";
            Failed::new("the master key that the controller has sent is not understood", next)
        })?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let other = known.as_ref() != Some(&new);
        *known = Some(new);
        Ok(other)
    }

    /// Opens something that is kept under it; `what` names that, and `next` what to do if it is not under this one.
    ///
    /// # Errors
    /// If the key is not known, or is another one.
    pub fn unseal(&self, sealed: &str, what: &str, next: &str) -> Result<Secret, Failed> {
        let Some(master) = self.get() else {
            let text =
                format!("{what} is encrypted, and the cluster's master key is not known here");
            return Err(Failed::new(
                text,
                "enter the master passphrase (`ashlar encryption unlock`)",
            ));
        };
        master
            .unseal(sealed)
            .map_err(|error| Failed::new(format!("{what} is not had: {error}"), next))
    }

    fn get(&self) -> Option<MasterKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The beginning of a disk, where its header is. Nothing is written once there was no chance to be had: salts
/// and stripes would be known.
struct Header<'a> {
    file: File,
    chance: &'a Cell<Result<(), getrandom::Error>>,
}

impl change::Device for Header<'_> {
    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(to, at).map_err(|error| error.to_string())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.chance.get().map_err(|error| format!("the kernel gives no random bytes: {error}"))?;
        self.file.write_all_at(bytes, at).map_err(|error| error.to_string())
    }

    fn sync(&mut self) -> Result<(), String> {
        self.file.sync_all().map_err(|error| error.to_string())
    }
}

/// The key of an encrypted volume.
///
/// # Errors
/// If its header can not be read, or not be opened by this passphrase.
pub(crate) fn open(path: &str, passphrase: &Secret) -> Result<Opened, Failed> {
    let failed = |why: &dyn std::fmt::Display| {
        Failed::new(
            format!("the encrypted volume {path} can not be opened: {why}"),
            "look at it with `cryptsetup luksDump`; if nobody needs it, delete the resource",
        )
    };
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut read =
        |at, to: &mut [u8]| file.read_exact_at(to, at).map_err(|error| error.to_string());
    luks::open(&mut read, passphrase).map_err(|error| failed(&error))
}

impl Step<'_> {
    /// The passphrase of a volume that is to be made, as it is kept; none if it is not encrypted.
    pub(super) fn sealed(&self, number: u16, backing: &Backing) -> Result<Option<String>, Failed> {
        if !backing.layers.contains(&Layer::Luks) {
            return Ok(None);
        }
        let Some(sealed) = &backing.passphrase else {
            let next = "use controller and agent of one release";
            return Err(Failed::new(format!("volume {number} of {} has no key", self.name), next));
        };
        // Before anything is made.
        self.passphrase(number, sealed)?;
        Ok(Some(sealed.clone()))
    }

    pub(super) fn passphrase(&self, number: u16, sealed: &str) -> Result<Secret, Failed> {
        let volume = format!("volume {number} of {}", self.name);
        let Some(master) = self.node.master.get() else {
            return Err(Failed::new(
                format!("{volume} is encrypted, and the cluster's master key is not known here"),
                "enter the master passphrase (`ashlar encryption unlock`)",
            ));
        };
        master.unseal(sealed).map_err(|error| {
            Failed::new(
                format!("the passphrase of {volume} is not had: {error}"),
                "restore the controller's store that the volume was made with",
            )
        })
    }

    /// Writes a new header to a volume that has nothing on it.
    pub(super) fn format(
        &self,
        number: u16,
        path: &str,
        sealed: &str,
        fresh: bool,
    ) -> Result<(), Failed> {
        if !fresh {
            return Err(Failed::new(
                format!(
                    "{path} was there before this agent made it: encrypting it would take what \
                     somebody may have on it"
                ),
                "look at the volume; remove it from the pool if nobody needs it",
            ));
        }
        let passphrase = self.passphrase(number, sealed)?;
        let failed = |why: &dyn std::fmt::Display| {
            let next = "see to the pool's disks; it is tried again with the next plan";
            Failed::new(format!("could not encrypt {path}: {why}"), next)
        };
        let mut chance = Ok(());
        let header = luks::format(&passphrase, Kdf::RECOMMENDED, &mut |bytes| {
            if let Err(error) = getrandom::fill(bytes) {
                chance = Err(error);
            }
        });
        chance.map_err(|error| failed(&error))?;
        let header = header.map_err(|error| failed(&error))?;
        let write = |file: File| {
            file.write_all_at(&header, 0)?;
            file.sync_all()
        };
        let opened: io::Result<File> = OpenOptions::new().write(true).open(path);
        opened.and_then(write).map_err(|error| failed(&error))
    }

    /// The key of a volume.
    pub(super) fn open(&self, number: u16, path: &str, sealed: &str) -> Result<Opened, Failed> {
        open(path, &self.passphrase(number, sealed)?)
    }

    /// Has a volume opened by another passphrase. Whatever happens in between, one of both opens it, and both
    /// are known here.
    pub(super) fn change_passphrase(
        &self,
        number: u16,
        sealed: &str,
        changes: u32,
    ) -> Result<(), Failed> {
        let there = self.record()?.volumes.get(&number).cloned();
        let Some(there) = there.filter(|there| there.size != 0 && !there.removing) else {
            return Err(Failed::new(
                format!(
                    "there is no volume {number} of {} whose passphrase could change",
                    self.name
                ),
                "nothing is to be done: it is made with the new one",
            ));
        };
        if there.passphrase_changes >= changes {
            return Ok(());
        }
        if there.luks.is_none() {
            return Err(Failed::new(
                format!("volume {number} of {} is not encrypted", self.name),
                "leave it as it is",
            ));
        }
        // Before anything is changed: both have to be known.
        self.passphrase(number, sealed)?;
        self.finish_change(number)?;
        let next = Next { passphrase: sealed.to_owned(), changes };
        self.update(|record| {
            if let Some(volume) = record.volumes.get_mut(&number) {
                volume.next = Some(next);
            }
        })?;
        self.finish_change(number)?;
        // The engine opens the disk anew with what it was told last.
        match self.record()?.volumes.get(&number) {
            Some(volume) if self.status()?.is_some() => self.unlock(number, volume),
            _ => Ok(()),
        }
    }

    /// Ends a change of a volume's passphrase that was begun.
    fn finish_change(&self, number: u16) -> Result<(), Failed> {
        let Some(volume) = self.record()?.volumes.get(&number).cloned() else { return Ok(()) };
        let (Some(next), Some(sealed)) = (volume.next, volume.luks) else { return Ok(()) };
        let old = self.passphrase(number, &sealed)?;
        let new = self.passphrase(number, &next.passphrase)?;
        let path = &volume.path;
        let failed = |why: &dyn std::fmt::Display| {
            Failed::new(
                format!("the passphrase of {path} is not changed: {why}"),
                "look at it with `cryptsetup luksDump`; it is tried again with the next plan",
            )
        };
        let file = OpenOptions::new().read(true).write(true).open(path);
        let chance = Cell::new(Ok(()));
        let mut header = Header { file: file.map_err(|error| failed(&error))?, chance: &chance };
        let changed = change::change(&mut header, &old, &new, Kdf::RECOMMENDED, &mut |bytes| {
            if let Err(error) = getrandom::fill(bytes) {
                chance.set(Err(error));
            }
        });
        changed.map_err(|error| failed(&error))?;
        self.update(|record| {
            if let Some(volume) = record.volumes.get_mut(&number) {
                volume.luks = Some(next.passphrase);
                volume.passphrase_changes = next.changes;
                volume.next = None;
            }
        })
    }

    /// Ends all that were begun, of volumes whose keys can be had.
    fn finish_changes(&self) -> Result<(), Failed> {
        let record = self.record()?;
        let begun = record.volumes.iter().filter(|(_, volume)| volume.next.is_some());
        if self.node.master.get().is_none() {
            return Ok(());
        }
        begun.map(|(number, _)| *number).try_for_each(|number| self.finish_change(number))
    }

    /// The key of a volume that is there; none if it is not encrypted.
    pub(super) fn key_of(&self, number: u16, volume: &Volume) -> Result<Option<Opened>, Failed> {
        let Some(sealed) = &volume.luks else { return Ok(None) };
        match &volume.next {
            None => self.open(number, &volume.path, sealed).map(Some),
            // It was cut off in between.
            Some(next) => self
                .open(number, &volume.path, sealed)
                .or_else(|_| self.open(number, &volume.path, &next.passphrase))
                .map(Some),
        }
    }

    /// Gives the engine the passphrase of a volume, if it is encrypted; or the disk itself, if the kernel
    /// decrypts it.
    pub(super) fn unlock(&self, number: u16, volume: &Volume) -> Result<(), Failed> {
        if let Some(device) = &volume.mapped {
            self.reach(number, volume)?;
            return self.attach_mapped(number, device);
        }
        let Some(sealed) = &volume.luks else { return Ok(()) };
        let (disk, passphrase) = (volume.path.clone(), self.passphrase(number, sealed)?);
        let what = format!("unlock volume {number} of {}", self.name);
        self.engine.ask(&what, Request::Unlock { disk, passphrase }).map(drop)
    }

    /// Has the engine, or the kernel, forget a volume's key. Nobody relies on that: they forget all when they
    /// end.
    pub(super) fn lock(&self, number: u16, volume: &Volume) {
        if volume.mapped.is_some() {
            if let Err(failed) = self.close_mapped(volume) {
                log!(Level::Warn, self.name, "{failed}");
            }
        } else if volume.luks.is_some() {
            let what = format!("lock volume {number} of {}", self.name);
            let _ = self.engine.ask(&what, Request::Lock { disk: volume.path.clone() });
        }
    }

    /// Gives the engine the passphrases of volumes that are to be attached, and are not.
    pub(super) fn unlock_all(&self, record: &Record) -> Result<(), Failed> {
        let begun = record.volumes.values().any(|volume| volume.next.is_some());
        let record = match begun {
            true => {
                self.finish_changes()?;
                &self.record()?
            }
            false => record,
        };
        self.locked(record)?
            .into_iter()
            .try_for_each(|(number, volume)| self.unlock(number, volume))
    }

    /// Encrypted volumes whose disks are to be attached, and are not.
    fn locked<'a>(&self, record: &'a Record) -> Result<Vec<(u16, &'a Volume)>, Failed> {
        let encrypted = |(_, volume): &(&u16, &Volume)| {
            volume.luks.is_some() && volume.metadata == Metadata::Made && !volume.removing
        };
        let mut volumes: Vec<_> =
            record.volumes.iter().filter(encrypted).map(|(nr, volume)| (*nr, volume)).collect();
        if volumes.is_empty() {
            return Ok(volumes);
        }
        if let Some(status) = self.status()? {
            volumes.retain(|(number, _)| {
                let mut devices = status.devices.iter();
                let device = devices.find(|device| device.volume == VolumeNr(*number));
                device.is_none_or(|device| device.disk_state == DiskState::Diskless)
            });
        }
        Ok(volumes)
    }

    /// True if the keys of encrypted volumes can be had, or there is no such volume.
    pub(super) fn has_keys(&self, record: &Record) -> bool {
        self.node.master.get().is_some()
            || record.volumes.values().all(|volume| volume.luks.is_none())
    }

    /// Has the disks attached that wait for their keys, as far as the keys are known.
    pub(super) fn attach_encrypted(&self) -> Result<(), Failed> {
        let record = self.record()?;
        let down = record.config.is_none() || record.down.is_some();
        if down || self.node.master.get().is_none() || self.locked(&record)?.is_empty() {
            return Ok(());
        }
        self.adjust()
    }
}
