//! Encrypted volumes: their headers and keys.
//!
//! The passphrase of a volume comes with the plan, encrypted under the cluster's master key, and is kept so.
//! The master key comes from the controller and is in memory only. From both follows what the engine is told:
//! the passphrase, whenever it starts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use cluster::layer::Layer;
use cluster::plan::Backing;
use codec::admin::Request;
use crypt::luks::{self, Kdf, Opened};
use crypt::seal::MasterKey;
use vocab::options::Secret;
use vocab::{DiskState, VolumeNr};

use super::Step;
use crate::failed::Failed;
use crate::metadata::At;
use crate::record::{Metadata, Record, Volume};

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

    fn get(&self) -> Option<MasterKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Volume {
    /// Where its metadata are.
    pub(super) fn at<'a>(&'a self, key: Option<&'a Opened>) -> At<'a> {
        At { path: &self.path, key }
    }
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

    fn passphrase(&self, number: u16, sealed: &str) -> Result<Secret, Failed> {
        let volume = format!("volume {number} of {}", self.name);
        let Some(master) = self.node.master.get() else {
            return Err(Failed::new(
                format!("{volume} is encrypted, and the cluster's master key is not known here"),
                "enter the master passphrase (`linstor encryption enter-passphrase`)",
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
        let passphrase = self.passphrase(number, sealed)?;
        let failed = |why: &dyn std::fmt::Display| {
            Failed::new(
                format!("the encrypted volume {path} can not be opened: {why}"),
                "look at it with `cryptsetup luksDump`; if nobody needs it, delete the resource",
            )
        };
        let file = File::open(path).map_err(|error| failed(&error))?;
        let mut read =
            |at, to: &mut [u8]| file.read_exact_at(to, at).map_err(|error| error.to_string());
        luks::open(&mut read, &passphrase).map_err(|error| failed(&error))
    }

    /// The key of a volume that is there; none if it is not encrypted.
    pub(super) fn key_of(&self, number: u16, volume: &Volume) -> Result<Option<Opened>, Failed> {
        volume.luks.as_ref().map(|sealed| self.open(number, &volume.path, sealed)).transpose()
    }

    /// Gives the engine the passphrase of a volume, if it is encrypted.
    pub(super) fn unlock(&self, number: u16, volume: &Volume) -> Result<(), Failed> {
        let Some(sealed) = &volume.luks else { return Ok(()) };
        let (disk, passphrase) = (volume.path.clone(), self.passphrase(number, sealed)?);
        let what = format!("unlock volume {number} of {}", self.name);
        self.engine.ask(&what, Request::Unlock { disk, passphrase }).map(drop)
    }

    /// Has the engine forget a volume's key. Nobody relies on that: it forgets all when it ends.
    pub(super) fn lock(&self, number: u16, volume: &Volume) {
        if volume.luks.is_some() {
            let what = format!("lock volume {number} of {}", self.name);
            let _ = self.engine.ask(&what, Request::Lock { disk: volume.path.clone() });
        }
    }

    /// Gives the engine the passphrases of volumes that are to be attached, and are not.
    pub(super) fn unlock_all(&self, record: &Record) -> Result<(), Failed> {
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
