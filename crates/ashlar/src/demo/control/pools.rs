//! Where the nodes keep their volumes: files of a file system that can share their blocks, if there
//! is one or one can be made, for without that there are no snapshots.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rustix::fs::ioctl_ficlone;

use super::super::leftovers::Leftovers;

/// Size of the file system that is made. Its file takes what is written.
const SIZE: u64 = 8 << 30;

/// A folder for pools.
#[derive(Clone, Debug)]
pub struct Pools {
    /// The folder.
    pub folder: PathBuf,
    /// Why its files can not share blocks, if they can not.
    pub without_snapshots: Option<String>,
    /// It is in a file system of its own.
    pub mounted: bool,
}

impl Pools {
    /// A folder below `disks`.
    ///
    /// # Errors
    /// If it can not be made.
    pub fn prepare(disks: &Path, leftovers: &Leftovers) -> anyhow::Result<Pools> {
        let folder = disks.join("pools");
        fs::create_dir(&folder)
            .with_context(|| format!("can not make the folder {}", folder.display()))?;
        if shares_blocks(&folder) {
            return Ok(Pools { folder, without_snapshots: None, mounted: false });
        }
        match mount(disks, &folder, leftovers) {
            Ok(()) => Ok(Pools { folder, without_snapshots: None, mounted: true }),
            Err(why) => {
                let why = format!(
                    "files in {} can not share blocks, and no XFS can be made for them: {why}",
                    disks.display()
                );
                Ok(Pools { folder, without_snapshots: Some(why), mounted: false })
            }
        }
    }

    /// The kind of the pools.
    pub fn provider(&self) -> &'static str {
        if self.without_snapshots.is_none() { "file-thin" } else { "file" }
    }

    /// A node's pool.
    pub fn of(&self, node: &str) -> PathBuf {
        self.folder.join(node)
    }

    /// The file of a node's replica.
    pub fn replica(&self, node: &str, volume: &str) -> PathBuf {
        self.of(node).join(format!("{volume}_00000.img"))
    }
}

fn shares_blocks(folder: &Path) -> bool {
    let (from, to) = (folder.join("from"), folder.join("to"));
    let tried = fs::write(&from, [1; 4096]).and_then(|()| {
        let (source, copy) = (File::open(&from)?, File::create(&to)?);
        Ok(ioctl_ficlone(&copy, &source)?)
    });
    for path in [from, to] {
        // Where it could not be made there is nothing to remove.
        let _ = fs::remove_file(path);
    }
    tried.is_ok()
}

/// Mounts a new XFS on the folder.
fn mount(disks: &Path, folder: &Path, leftovers: &Leftovers) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can mount".to_owned());
    }
    let image = disks.join("pools.xfs");
    let made = File::create_new(&image).and_then(|file| file.set_len(SIZE));
    made.map_err(|error| format!("{}: {error}", image.display()))?;
    let made = run("mkfs.xfs", &[OsStr::new("-q"), image.as_os_str()]);
    let mounted = made.and_then(|()| {
        let options = ["-o", "loop"].map(OsStr::new);
        run("mount", &[options[0], options[1], image.as_os_str(), folder.as_os_str()])
    });
    if let Err(why) = mounted {
        // The folder that it is in is removed at the end.
        let _ = fs::remove_file(&image);
        return Err(why);
    }
    leftovers.mount(folder);
    match shares_blocks(folder) {
        true => Ok(()),
        false => Err("it does not share blocks either".to_owned()),
    }
}

fn run(program: &str, arguments: &[&OsStr]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", said.lines().next().unwrap_or("it failed")))
}
