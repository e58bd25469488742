//! Encrypted volumes that the kernel decrypts: `cryptsetup` opens them, and the engine gets a plain disk,
//! `/dev/mapper/Linstor-Crypt-WEB_00000`, as it would from LINSTOR.
//!
//! The kernel sees to it that only one of dm-crypt and an engine has a volume: both claim it exclusively.
//! Within that, two things are looked at each time before an open device is taken for a volume's: that it is
//! above that volume, and that it was opened by the header which the volume has now. One that was left from
//! before a header was written anew has another key, and what went through it could not be read again.
//!
//! Passphrases go to standard input, and are in no argument, file or log. Volume keys are where `cryptsetup`
//! puts them: in the kernel's keyring, where it has one, so that `dmsetup table` does not show them. Discards are
//! not let through: as in the engine, what was discarded would be decrypted to noise, another on every node.
//! Nor are the kernel's work queues passed by (`--perf-…`): what is better depends on the disk, and whoever has
//! measured it can have `cryptsetup refresh --persistent` write it into the header.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::objects::Provider;
use crypt::luks;
use rustix::fs::OFlags;
use vocab::SECTOR_SIZE;
use vocab::options::Secret;

use crate::command::{CommandError, Failure, Input, System};
use crate::failed::Failed;

/// How long `cryptsetup` may take: a keyslot may ask for 1 GiB and several passes, of a slow machine.
const OPENING: Duration = Duration::from_secs(90);
/// How long anything else may take.
const ASKING: Duration = Duration::from_secs(20);
/// How long a device that is in use is tried to be closed: once, where `cryptsetup` tries for as long itself. The
/// kernel lets go of what an engine had some milliseconds after it has said that it is detached.
const CLOSING: Duration = Duration::from_secs(5);
/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// Where somebody listens who makes device nodes, if anybody does.
const UDEV: &str = "/run/udev/control";

/// Who decrypts volumes that are made from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The kernel where it can, otherwise the engine.
    #[default]
    Auto,
    /// The kernel; where it can not, no encrypted volume is made.
    Cryptsetup,
    /// The engine.
    Engine,
}

impl Choice {
    const ALL: [(Choice, &'static str); 3] =
        [(Choice::Auto, "auto"), (Choice::Cryptsetup, "cryptsetup"), (Choice::Engine, "engine")];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Choice::ALL.iter().find(|(choice, _)| choice == self);
        f.pad(word.map_or("", |(_, word)| word))
    }
}

impl FromStr for Choice {
    type Err = String;
    fn from_str(word: &str) -> Result<Choice, String> {
        let found = Choice::ALL.iter().find(|(_, name)| *name == word);
        found.map(|(choice, _)| *choice).ok_or_else(|| {
            format!("`{word}` is none of auto, cryptsetup and engine: who decrypts new volumes")
        })
    }
}

/// This node's device-mapper.
pub struct Mapper {
    choice: Choice,
    /// Why it can not be used, as of when that was last looked at.
    usable: Mutex<Result<(), String>>,
    /// Where open devices are.
    directory: PathBuf,
    /// A test's folder of programs, which works on files.
    fake: Option<PathBuf>,
}

/// An open device of the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    name: String,
    /// The device below it, as `MAJOR:MINOR`.
    below: String,
    /// Sectors of 512 bytes that it has.
    sectors: u64,
    /// The sector below at which it begins.
    offset: u64,
}

impl Mapper {
    /// Finds out what the node can do. It takes as long as four small programs.
    pub fn new(choice: Choice) -> Mapper {
        Mapper::with(choice, PathBuf::from("/dev/mapper"), None)
    }

    /// A test's, with programs of its own.
    #[cfg(test)]
    pub(crate) fn fake(choice: Choice, directory: PathBuf, programs: PathBuf) -> Mapper {
        Mapper::with(choice, directory, Some(programs))
    }

    fn with(choice: Choice, directory: PathBuf, fake: Option<PathBuf>) -> Mapper {
        let not_yet = Err("it was not looked for".to_owned());
        let mapper = Mapper { choice, usable: Mutex::new(not_yet), directory, fake };
        // Where the engine has all new ones it is looked for when an old one needs it.
        if choice != Choice::Engine {
            *mapper.lock() = mapper.detect();
        }
        mapper
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Result<(), String>> {
        self.usable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is told of it at the start.
    pub fn described(&self) -> String {
        match (&*self.lock(), self.choice) {
            (Ok(()), Choice::Auto | Choice::Cryptsetup) => {
                "new encrypted volumes are opened by cryptsetup where their pools have block devices"
                    .to_owned()
            }
            (Err(why), Choice::Auto) => {
                format!("new encrypted volumes are decrypted by the engine: {why}")
            }
            (Err(why), Choice::Cryptsetup) => format!("no encrypted volume can be made: {why}"),
            (_, Choice::Engine) => {
                "new encrypted volumes are decrypted by the engine, as was asked for".to_owned()
            }
        }
    }

    /// Runs one of the programs. Of what it says when it fails the last line counts: `cryptsetup close` has tried
    /// for seconds by then, and has told of each time.
    fn run(
        &self,
        argv: &[&str],
        deadline: Duration,
        secret: Option<&Secret>,
    ) -> Result<String, CommandError> {
        let program = match &self.fake {
            Some(folder) => folder.join(argv[0]).display().to_string(),
            None => argv[0].to_owned(),
        };
        let mut line = vec![program.as_str()];
        line.extend(&argv[1..]);
        // Without udev the library makes the nodes itself, and waits for nobody.
        let env: &[_] = if Path::new(UDEV).exists() { &[] } else { &[("DM_DISABLE_UDEV", "1")] };
        let said = System { deadline }.run_with(&line, &Input { secret, env });
        said.map_err(|mut error| {
            if let Failure::Exit { stderr, .. } = &mut error.why {
                *stderr = stderr.lines().next_back().unwrap_or_default().to_owned();
            }
            error
        })
    }

    /// Why it can not be used here, if so.
    fn detect(&self) -> Result<(), String> {
        self.run(&["cryptsetup", "--version"], ASKING, None).map_err(|error| error.to_string())?;
        // It may be loaded, built in, or not to be had: the next questions tell.
        let _ = self.run(&["modprobe", "-q", "dm-crypt"], ASKING, None);
        let control = self.directory.join("control");
        if !control.exists() {
            return Err(format!(
                "there is no {}: the kernel has no device-mapper",
                control.display()
            ));
        }
        let targets = self.run(&["dmsetup", "targets"], ASKING, None);
        let targets = targets.map_err(|error| error.to_string())?;
        match targets.lines().any(|line| line.split_whitespace().next() == Some("crypt")) {
            true => Ok(()),
            false => Err("device-mapper has no target `crypt` (module dm-crypt)".to_owned()),
        }
    }

    /// Makes sure that it can be used now, as volumes need that were made so.
    ///
    /// # Errors
    /// Why it can not.
    pub fn ready(&self) -> Result<(), Failed> {
        let mut usable = self.lock();
        if usable.is_err() {
            *usable = self.detect();
        }
        usable.clone().map_err(|why| {
            Failed::new(
                format!(
                    "cryptsetup and device-mapper can not be used on this node, and encrypted volumes \
                     that were made with them are opened by them only: {why}"
                ),
                "install cryptsetup and dmsetup, and load the module dm-crypt; it is tried again",
            )
        })
    }

    /// True if a volume that is made now in a pool of this kind is to be opened here.
    ///
    /// # Errors
    /// If it has to be, and can not.
    pub fn takes(&self, kind: Provider) -> Result<bool, Failed> {
        // A file would need a loop device, with a cache of its own between the engine and the disk.
        let devices = match kind {
            Provider::Lvm | Provider::LvmThin | Provider::Zfs | Provider::ZfsThin => true,
            Provider::File | Provider::FileThin | Provider::Diskless => self.fake.is_some(),
        };
        match self.choice {
            _ if !devices => Ok(false),
            Choice::Engine => Ok(false),
            Choice::Auto => Ok(self.lock().is_ok()),
            Choice::Cryptsetup => self.ready().map(|()| true),
        }
    }

    /// True if a volume goes to the engine when it can not be opened here as soon as it is made.
    pub fn may_give_up(&self) -> bool {
        self.choice == Choice::Auto
    }

    /// Where the device of that name is while it is open.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Devices of dm-crypt that there are.
    fn entries(&self) -> Result<Vec<Entry>, Failed> {
        let said = self.run(&["dmsetup", "table", "--target", "crypt"], ASKING, None);
        let said = said.map_err(|error| {
            let next = "see to device-mapper on this node; it is tried again with the next plan";
            Failed::new(format!("what is open on this node is not known: {error}"), next)
        })?;
        Ok(said.lines().filter_map(Entry::parse).collect())
    }

    /// True if the volume at `volume` is open by that name.
    ///
    /// # Errors
    /// If something else is open by that name or the volume by another name, if it was opened by another header
    /// than the volume's, or if that can not be told.
    pub fn is_open(&self, volume: &str, name: &str) -> Result<bool, Failed> {
        Ok(self.found(volume, name)?.is_some())
    }

    fn found(&self, volume: &str, name: &str) -> Result<Option<Entry>, Failed> {
        let device = self.number(volume)?;
        let mut entries = self.entries()?;
        let Some(at) = entries.iter().position(|entry| entry.name == name) else {
            return match entries.iter().find(|entry| entry.below == device) {
                Some(other) => Err(Failed::new(
                    format!("{volume} is open as {}", self.path(&other.name)),
                    format!("close it (`cryptsetup close {}`) if nobody needs it", other.name),
                )),
                None => Ok(None),
            };
        };
        let entry = entries.swap_remove(at);
        let path = self.path(name);
        if entry.below != device {
            return Err(Failed::new(
                format!(
                    "{path} is open above device {}, and not above {volume} ({device})",
                    entry.below
                ),
                format!("close it (`cryptsetup close {name}`) if nobody needs it"),
            ));
        }
        let uuid =
            self.run(&["dmsetup", "info", "-c", "--noheadings", "-o", "uuid", name], ASKING, None);
        let uuid = uuid.map_err(|error| self.failed("look at", &path, &error))?;
        let header = self.header(volume)?;
        if !uuid.trim().starts_with(&format!("CRYPT-LUKS2-{header}-")) {
            return Err(Failed::new(
                format!("{path} was opened by another header than the one that {volume} has"),
                format!("close it (`cryptsetup close {name}`): it has another key"),
            ));
        }
        self.leads_to(&path, name)?;
        Ok(Some(entry))
    }

    /// The UUID of a volume's header, as it is in those of open devices.
    fn header(&self, volume: &str) -> Result<String, Failed> {
        let file = File::open(volume).map_err(|error| unread(volume, &error))?;
        let mut read =
            |at, to: &mut [u8]| file.read_exact_at(to, at).map_err(|error| error.to_string());
        let uuid = luks::uuid(&mut read).map_err(|error| unread(volume, &error))?;
        Ok(uuid.replace('-', ""))
    }

    /// What a device's number is.
    fn number(&self, path: &str) -> Result<String, Failed> {
        let there = fs::metadata(path).map_err(|error| unread(path, &error))?;
        if there.file_type().is_block_device() {
            let rdev = there.rdev();
            return Ok(format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev)));
        }
        match self.fake {
            Some(_) => Ok(format!("0:{}", there.ino())),
            None => Err(Failed::new(
                format!("{path} is no block device, and only those can be opened by cryptsetup"),
                "see to the pool: it was one",
            )),
        }
    }

    /// Makes sure that the node is that of the device of that name: where udev has no say, an old one may be
    /// left.
    fn leads_to(&self, path: &str, name: &str) -> Result<(), Failed> {
        if !Path::new(path).exists() {
            // As in a container that was started again. Whether it has helped is seen at once.
            let _ = self.run(&["dmsetup", "mknodes", name], ASKING, None);
        }
        let device = self.number(path)?;
        let said = format!("/sys/dev/block/{device}/dm/name");
        let found = match self.fake {
            Some(_) => return Ok(()),
            None => fs::read_to_string(&said).map_err(|error| unread(&said, &error))?,
        };
        if found.trim_end() == name {
            return Ok(());
        }
        Err(Failed::new(
            format!("{path} leads to {}, and not to the device of that name", found.trim_end()),
            "see to udev on this node, or run `dmsetup mknodes`",
        ))
    }

    /// Opens a volume, if it is not open by that name.
    ///
    /// # Errors
    /// As for [`Mapper::is_open`], and if it can not be opened, with that passphrase or at all.
    pub fn open(&self, volume: &str, name: &str, passphrase: &Secret) -> Result<(), Failed> {
        if self.is_open(volume, name)? {
            return Ok(());
        }
        let argv = ["cryptsetup", "open", "--type", "luks2", "--key-file", "-", volume, name];
        self.run(&argv, OPENING, Some(passphrase)).map_err(|error| {
            let next = match &error.why {
                // What `cryptsetup` says of a passphrase that opens nothing.
                Failure::Exit { code: Some(2), .. } => {
                    "look at it with `cryptsetup luksDump`; if nobody needs it, delete the resource"
                }
                _ => "see to what it names; it is tried again with the next plan",
            };
            let text = format!("the encrypted volume {volume} can not be opened: {error}");
            Failed::new(text, next)
        })?;
        match self.is_open(volume, name)? {
            true => Ok(()),
            false => Err(Failed::new(
                format!("cryptsetup has opened {volume}, and there is no {}", self.path(name)),
                "see the kernel's log; it is tried again with the next plan",
            )),
        }
    }

    /// Closes what is open of a volume by that name. What is open by it of another one is not ours, and stays.
    ///
    /// # Errors
    /// If it is in use, or it can not be told whether it is open.
    pub fn close(&self, volume: &str, name: &str) -> Result<(), Failed> {
        if self.ready().is_err() {
            return is_free(volume);
        }
        let ours = |entry: &Entry, device: &str| entry.name == name && entry.below == device;
        let is_there = || -> Result<bool, Failed> {
            let entries = self.entries()?;
            if !entries.iter().any(|entry| entry.name == name) {
                return Ok(false);
            }
            let device = self.number(volume)?;
            Ok(entries.iter().any(|entry| ours(entry, &device)))
        };
        let begun = Instant::now();
        loop {
            if !is_there()? {
                return Ok(());
            }
            let closed = self.run(&["cryptsetup", "close", name], ASKING, None);
            if closed.is_ok() && !is_there()? {
                return Ok(());
            }
            if begun.elapsed() >= self.patience() {
                let path = self.path(name);
                let why = closed.err().map_or("it is there again".to_owned(), |e| e.to_string());
                return Err(Failed::new(
                    format!("{path}, behind which {volume} is decrypted, can not be closed: {why}"),
                    format!(
                        "see who uses it (`lsblk {path}`); it is tried again with the next plan"
                    ),
                ));
            }
            thread::sleep(AGAIN);
        }
    }

    fn patience(&self) -> Duration {
        if self.fake.is_some() { Duration::ZERO } else { CLOSING }
    }

    /// True if a volume that is open by that name has more room than its device knows.
    ///
    /// # Errors
    /// As for [`Mapper::is_open`].
    pub fn is_short(&self, volume: &str, name: &str) -> Result<bool, Failed> {
        let Some(entry) = self.found(volume, name)? else { return Ok(false) };
        let size = File::open(volume).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let size = size.map_err(|error| unread(volume, &error))?;
        Ok(entry.offset.saturating_add(entry.sectors) < size / SECTOR_SIZE)
    }

    /// Gives an open device all that its volume has. It may be in use.
    ///
    /// # Errors
    /// If it can not be done; it is as before then.
    pub fn resize(&self, name: &str, passphrase: &Secret) -> Result<(), Failed> {
        // Of a key that is in the kernel's keyring it can not be had again without the passphrase.
        let argv = ["cryptsetup", "resize", "--key-file", "-", name];
        let resized = self.run(&argv, OPENING, Some(passphrase));
        resized.map(drop).map_err(|error| self.failed("resize", &self.path(name), &error))
    }

    fn failed(&self, verb: &str, path: &str, error: &CommandError) -> Failed {
        let next = "see to device-mapper on this node; it is tried again with the next plan";
        Failed::new(format!("could not {verb} {path}: {error}"), next)
    }
}

impl Entry {
    /// A line of `dmsetup table`: `NAME: START SECTORS crypt CIPHER KEY IV_OFFSET MAJOR:MINOR OFFSET …`.
    fn parse(line: &str) -> Option<Entry> {
        let (name, rest) = line.split_once(": ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if *fields.get(2)? != "crypt" {
            return None;
        }
        Some(Entry {
            name: name.to_owned(),
            sectors: fields.get(1)?.parse().ok()?,
            below: (*fields.get(6)?).to_owned(),
            offset: fields.get(7)?.parse().ok()?,
        })
    }
}

fn unread(path: &str, error: &dyn fmt::Display) -> Failed {
    let next = "see to the pool's disks; it is tried again with the next plan";
    Failed::new(format!("{path} can not be looked at: {error}"), next)
}

/// Makes sure that nobody has claimed a block device, where device-mapper can not be asked.
fn is_free(volume: &str) -> Result<(), Failed> {
    let flags = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
    match OpenOptions::new().read(true).custom_flags(flags).open(volume) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failed::new(
            format!(
                "{volume} may be open in device-mapper, which can not be asked on this node: {error}"
            ),
            "install cryptsetup and dmsetup; it is tried again with the next plan",
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests;
