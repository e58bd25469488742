//! Encrypted volumes that the kernel decrypts (`mapper`): they are open before anything is done with what is in
//! them, and closed before their backing volumes go or get other data.
//!
//! Who decrypts a volume is decided when it is made, and stays so: a volume that was left open by one of the two
//! is never taken up by the other. An open device needs no key: it stays while engine and agent are restarted.

use std::path::Path;

use cluster::plan::Backing;
use codec::admin::Request;
use crypt::luks::{self, Opened};
use logging::{Level, log};
use vocab::VolumeNr;
use vocab::options::Secret;

use super::Step;
use super::grow::has_disk;
use crate::failed::Failed;
use crate::metadata::At;
use crate::record::Volume;

/// A volume whose data and metadata can be got at.
pub(super) struct Reached {
    /// Where they are.
    pub(super) path: String,
    /// By which key, if they are encrypted there.
    key: Option<Opened>,
}

impl Reached {
    /// Where its metadata are.
    pub(super) fn at(&self) -> At<'_> {
        At { path: &self.path, key: self.key.as_ref() }
    }
}

/// The name of an open device, of where it is.
fn name_of(device: &str) -> &str {
    Path::new(device).file_name().and_then(|name| name.to_str()).unwrap_or(device)
}

impl Step<'_> {
    /// Where the kernel is to have a volume's data that is made now; nowhere if it does not decrypt it.
    pub(super) fn mapped(&self, number: u16, backing: &Backing) -> Result<Option<String>, Failed> {
        let mapper = &self.node.mapper;
        if !mapper.takes(backing.provider)? {
            return Ok(None);
        }
        Ok(Some(mapper.path(&format!("{}{}", luks::MAPPED, self.volume_name(number)?))))
    }

    /// Opens a volume as far as that is not done, and says where it is then.
    pub(super) fn reach(&self, number: u16, volume: &Volume) -> Result<Reached, Failed> {
        match &volume.mapped {
            Some(device) => {
                self.open_mapped(number, volume, device)?;
                Ok(Reached { path: device.clone(), key: None })
            }
            None => {
                let key = self.key_of(number, volume)?;
                Ok(Reached { path: volume.path.clone(), key })
            }
        }
    }

    fn open_mapped(&self, number: u16, volume: &Volume, device: &str) -> Result<(), Failed> {
        let mapper = &self.node.mapper;
        mapper.ready()?;
        if mapper.is_open(&volume.path, name_of(device))? {
            return Ok(());
        }
        self.with_passphrase(number, volume, |passphrase| {
            mapper.open(&volume.path, name_of(device), passphrase)
        })?;
        log!(Level::Info, self.name, "{} is open as {device}", volume.path);
        Ok(())
    }

    /// Does something with the passphrase of a volume. While it is being changed it may be either of two.
    fn with_passphrase(
        &self,
        number: u16,
        volume: &Volume,
        act: impl Fn(&Secret) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let sealed = volume.luks.iter().chain(volume.next.iter().map(|next| &next.passphrase));
        let mut done = Ok(());
        for sealed in sealed {
            done = self.passphrase(number, sealed).and_then(|passphrase| act(&passphrase));
            if done.is_ok() {
                break;
            }
        }
        done
    }

    /// Gives the kernel's device of a volume, if it has one, all that the volume has.
    pub(super) fn fit_mapped(&self, number: u16, volume: &Volume) -> Result<(), Failed> {
        let Some(device) = &volume.mapped else { return Ok(()) };
        let (mapper, name) = (&self.node.mapper, name_of(device));
        // One that is opened only now has all of it.
        self.open_mapped(number, volume, device)?;
        if !mapper.is_short(&volume.path, name)? {
            return Ok(());
        }
        self.with_passphrase(number, volume, |passphrase| mapper.resize(name, passphrase))?;
        match mapper.is_short(&volume.path, name)? {
            false => Ok(()),
            true => Err(Failed::new(
                format!("{device} does not have all of {} yet", volume.path),
                "see the kernel's log; it is tried again with the next plan",
            )),
        }
    }

    /// Closes a volume's device of the kernel's, if it is open.
    pub(super) fn close_mapped(&self, volume: &Volume) -> Result<(), Failed> {
        match &volume.mapped {
            // Without a path it was never opened.
            Some(device) if !volume.path.is_empty() => {
                self.node.mapper.close(&volume.path, name_of(device))
            }
            _ => Ok(()),
        }
    }

    /// Has a disk attached that the engine did not find when it was started, as it was not open then.
    pub(super) fn attach_mapped(&self, number: u16, device: &str) -> Result<(), Failed> {
        let config = self.engine.config(self.name.as_str())?;
        let volumes = config.into_iter().flat_map(|config| config.volumes);
        let mut volumes = volumes.filter(|volume| volume.nr == VolumeNr(number));
        let Some((minor, backing)) = volumes.find_map(|v| Some((v.minor, v.backing?))) else {
            return Ok(());
        };
        if backing.disk != device || has_disk(self.status()?.as_ref(), number) {
            return Ok(());
        }
        let what = format!("attach {device} to volume {number} of {}", self.name);
        let (disk, meta_disk) = (backing.disk, backing.meta_disk);
        let (options, luks) = (backing.options, backing.luks);
        let request = Request::Attach { minor, disk, meta_disk, options, luks };
        self.engine.ask_patiently(&what, &request).map(drop)
    }
}
