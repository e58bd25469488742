//! FILE and FILE_THIN: volumes are files `NAME.img` in a folder, snapshots `VOLUME_SNAPSHOT.img`.
//!
//! Whatever is to appear under its name is made whole and durable under another one first, so after
//! a crash there is the old thing or the new one. Snapshots share blocks with their volume, which
//! XFS and btrfs can do; a snapshot is a file that nobody may write (mode 0400).

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, RenameFlags, XattrFlags, fallocate, fcntl_lock, fsetxattr,
    getxattr, ioctl_ficlone, renameat_with, statvfs,
};
use rustix::io::Errno;
use vocab::Bytes;

use super::{Error, Kind, Name, Provider, Space, Volume, Why, fits, rounded};

/// Sizes are multiples of this: the block size of every file system in question.
const UNIT: Bytes = Bytes(4096);

/// The extended attribute of a copy that names what it was made from.
const ORIGIN: &str = "user.ashlar.origin";

const VOLUME_MODE: u32 = 0o600;
const SNAPSHOT_MODE: u32 = 0o400;

/// A folder as a pool.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    thin: bool,
    no_snapshots: Option<String>,
}

impl Folder {
    /// The pool in the folder `path`, which has to exist; `thin` is FILE_THIN.
    ///
    /// # Errors
    /// If it is not a folder that can be read, or not given by an absolute path.
    pub fn open(path: &Path, thin: bool) -> Result<Folder, Error> {
        let mut pool = Folder { path: path.to_owned(), thin, no_snapshots: None };
        let refuse = |why, cause: String| {
            Error::new(why, format!("{} can not be a storage pool", path.display()))
                .cause(cause)
                .correction("name an existing folder by its absolute path")
        };
        if !path.is_absolute() {
            return Err(refuse(Why::Invalid, "the path is not absolute".into()));
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(refuse(Why::Invalid, "it is not a folder".into())),
            Err(error) => return Err(refuse(Why::NotFound, error.to_string())),
        }
        pool.remove_leftovers()?;
        // Whatever else may be wrong now need not be when a snapshot is wanted.
        let can_not = |error: &Error| error.why == Why::Unsupported;
        let tried = pool.try_to_share();
        pool.no_snapshots = tried.err().filter(can_not).map(|error| error.to_string());
        Ok(pool)
    }

    /// Tries what a snapshot needs. What it makes has no name that a volume has, and does not stay.
    fn try_to_share(&self) -> Result<(), Error> {
        let (from, to) = (self.draft("share-from"), self.draft("share-to"));
        let tried = self
            .make_draft(&from, VOLUME_MODE, |file| {
                let block = [1; UNIT.0 as usize];
                file.write_all_at(&block, 0).map_err(|e| self.failed("write", &from, &e))
            })
            .and_then(|()| File::open(&from).map_err(|e| self.failed("open", &from, &e)))
            .and_then(|source| {
                self.make_draft(&to, VOLUME_MODE, |file| self.share_blocks(file, &source, &from))
            });
        for draft in [from, to] {
            // One that stays is removed when the pool is opened again.
            let _ = fs::remove_file(draft);
        }
        tried
    }

    fn share_blocks(&self, file: &File, source: &File, path: &Path) -> Result<(), Error> {
        ioctl_ficlone(file, source).map_err(|e| {
            // ext4 knows the call and says that it is invalid.
            let e = if e == Errno::INVAL { Errno::OPNOTSUPP } else { e };
            self.failed("share the blocks of", path, &e.into())
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.img"))
    }

    fn snapshot_file(&self, volume: &Name, snapshot: &Name) -> PathBuf {
        self.file(&format!("{volume}_{snapshot}"))
    }

    /// Where something is made before it gets its name: nothing else begins with a dot.
    fn draft(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.img.new"))
    }

    /// What a crash left unfinished has no name and no users.
    fn remove_leftovers(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.path).map_err(|e| self.failed("read", &self.path, &e))? {
            let path = entry.map_err(|e| self.failed("read", &self.path, &e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') && name.ends_with(".img.new") {
                fs::remove_file(&path).map_err(|e| self.failed("remove", &path, &e))?;
            }
        }
        Ok(())
    }

    fn failed(&self, verb: &str, path: &Path, error: &io::Error) -> Error {
        let message = format!("could not {verb} {}", path.display());
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Error::new(Why::NoSpace, message)
                .cause(error)
                .correction(format!("free space in {}, or grow it", self.path.display())),
            Some(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {
                Error::new(Why::Unsupported, message).cause(error).correction(format!(
                    "snapshots need a file system that shares blocks: put {} on XFS or btrfs",
                    self.path.display()
                ))
            }
            _ => Error::new(Why::Failed, message).cause(error),
        }
    }

    fn sync_folder(&self) -> Result<(), Error> {
        File::open(&self.path)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| self.failed("sync", &self.path, &e))
    }

    /// What is at `path`, if anything.
    fn look(&self, path: &Path) -> Result<Option<Metadata>, Error> {
        match fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("look at", path, &error)),
        }
    }

    /// The volume at `path`, if there is one; anything else there is an error.
    fn volume_at(&self, path: &Path, name: &Name) -> Result<Option<Metadata>, Error> {
        match self.look(path)? {
            None => Ok(None),
            Some(found) if found.is_file() && !is_snapshot(&found) => Ok(Some(found)),
            Some(_) => Err(Error::taken(
                name,
                &self.path.display().to_string(),
                format!("{} is a snapshot or no file", path.display()),
            )),
        }
    }

    fn snapshot_at(&self, volume: &Name, snapshot: &Name) -> Result<Option<Volume>, Error> {
        let path = self.snapshot_file(volume, snapshot);
        match self.look(&path)? {
            None => Ok(None),
            Some(found) if found.is_file() && is_snapshot(&found) => Ok(described(path, &found)),
            Some(_) => Err(Error::taken(
                snapshot,
                &self.path.display().to_string(),
                format!("{} is no snapshot", path.display()),
            )),
        }
    }

    fn existing(&self, name: &Name) -> Result<(PathBuf, Metadata), Error> {
        let path = self.file(name.as_str());
        match self.volume_at(&path, name)? {
            Some(found) => Ok((path, found)),
            None => Err(Error::absent(name, &self.path.display().to_string())),
        }
    }

    /// Reserves the space up to `size`, of FILE. The file's size stays as it is.
    fn reserve(&self, file: &File, path: &Path, size: Bytes) -> Result<(), Error> {
        if self.thin {
            return Ok(());
        }
        fallocate(file, FallocateFlags::KEEP_SIZE, 0, size.0)
            .map_err(|e| self.failed("reserve the space of", path, &e.into()))
    }

    /// Makes `path`: `fill` gives the new file its content. With `replace`, what is there goes in
    /// the same moment.
    fn make(
        &self,
        path: &Path,
        mode: u32,
        replace: bool,
        fill: impl FnOnce(&File) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let draft = self.draft(name);
        let made = self.make_draft(&draft, mode, fill).and_then(|()| {
            let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            renameat_with(CWD, &draft, CWD, path, flags)
                .map_err(|e| self.failed("make", path, &e.into()))
        });
        if made.is_err() {
            // The first error is the one to tell; a draft that stays is removed at the next start.
            let _ = fs::remove_file(&draft);
        }
        made?;
        self.sync_folder()
    }

    fn make_draft(
        &self,
        draft: &Path,
        mode: u32,
        fill: impl FnOnce(&File) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.look(draft)?.is_some() {
            fs::remove_file(draft).map_err(|e| self.failed("remove", draft, &e))?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(VOLUME_MODE)
            .open(draft)
            .map_err(|e| self.failed("make", draft, &e))?;
        fill(&file)?;
        file.set_permissions(Permissions::from_mode(mode))
            .and_then(|()| file.sync_all())
            .map_err(|e| self.failed("sync", draft, &e))
    }

    /// Makes `path` a copy of `source` that shares its blocks, and remembers where it is from.
    fn share(&self, source: &Path, path: &Path, mode: u32, replace: bool) -> Result<(), Error> {
        let from = File::open(source).map_err(|e| self.failed("open", source, &e))?;
        let size = from.metadata().map_err(|e| self.failed("look at", source, &e))?.len();
        self.make(path, mode, replace, |file| {
            self.share_blocks(file, &from, source)?;
            fsetxattr(file, ORIGIN, origin(source).as_bytes(), XattrFlags::empty())
                .map_err(|e| self.failed("mark", path, &e.into()))?;
            if mode == VOLUME_MODE { self.reserve(file, path, Bytes(size)) } else { Ok(()) }
        })
    }

    fn remove_file(&self, path: &Path) -> Result<(), Error> {
        fs::remove_file(path).map_err(|e| self.failed("remove", path, &e))?;
        self.sync_folder()
    }

    /// Refuses while an engine has the file: it holds a lock on its disks.
    fn refuse_in_use(&self, path: &Path, name: &Name) -> Result<(), Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| self.failed("open", path, &e))?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {
                Err(Error::new(Why::InUse, format!("volume {name} is in use"))
                    .cause(format!("a process holds a lock on {}", path.display()))
                    .correction("detach it first"))
            }
            Err(error) => Err(self.failed("lock", path, &error.into())),
        }
    }
}

impl Provider for Folder {
    fn kind(&self) -> Kind {
        if self.thin { Kind::FileThin } else { Kind::File }
    }

    fn allocation_unit(&self) -> Result<Bytes, Error> {
        Ok(UNIT)
    }

    fn no_snapshots(&self) -> Option<String> {
        self.no_snapshots.clone()
    }

    fn space(&self) -> Result<Space, Error> {
        let of =
            statvfs(&self.path).map_err(|e| self.failed("ask for space", &self.path, &e.into()))?;
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(of.f_frsize));
        Ok(Space { total: bytes(of.f_blocks), free: bytes(of.f_bavail), metadata_used: None })
    }

    fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let mut volumes = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|e| self.failed("read", &self.path, &e))? {
            let path = entry.map_err(|e| self.failed("read", &self.path, &e))?.path();
            // One that was removed since is not there.
            let Some(found) = self.look(&path)? else { continue };
            if found.is_file() {
                volumes.extend(described(path, &found));
            }
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    fn create(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let size = rounded(size, UNIT)?;
        let path = self.file(name.as_str());
        match self.volume_at(&path, name)? {
            Some(found) if fits(Bytes(found.len()), size, UNIT) => {}
            Some(found) => {
                return Err(Error::taken(
                    name,
                    &self.path.display().to_string(),
                    format!("it has {} bytes, {} are wanted", found.len(), size.0),
                ));
            }
            None => self.make(&path, VOLUME_MODE, false, |file| {
                file.set_len(size.0).map_err(|e| self.failed("make", &path, &e))?;
                self.reserve(file, &path, size)
            })?,
        }
        self.found(name)
    }

    fn grow(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let size = rounded(size, UNIT)?;
        let (path, found) = self.existing(name)?;
        if found.len() < size.0 {
            let file = OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|e| self.failed("open", &path, &e))?;
            if let Err(error) = self.reserve(&file, &path, size) {
                // Some of the space may have been found, and is given back.
                file.set_len(found.len()).map_err(|e| self.failed("shrink", &path, &e))?;
                return Err(error);
            }
            file.set_len(size.0)
                .and_then(|()| file.sync_all())
                .map_err(|e| self.failed("grow", &path, &e))?;
        }
        self.found(name)
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let path = self.file(name.as_str());
        if self.volume_at(&path, name)?.is_none() {
            return Ok(());
        }
        self.refuse_in_use(&path, name)?;
        self.remove_file(&path)
    }

    fn snapshot(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        if let Some(there) = self.snapshot_at(volume, snapshot)? {
            return Ok(there);
        }
        let (source, _) = self.existing(volume)?;
        let path = self.snapshot_file(volume, snapshot);
        self.share(&source, &path, SNAPSHOT_MODE, false)?;
        self.snapshot_at(volume, snapshot)?
            .ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.path.display().to_string()))
    }

    fn remove_snapshot(&self, volume: &Name, snapshot: &Name) -> Result<(), Error> {
        match self.snapshot_at(volume, snapshot)? {
            Some(found) => self.remove_file(&found.path),
            None => Ok(()),
        }
    }

    fn restore(&self, volume: &Name, snapshot: &Name, new: &Name) -> Result<Volume, Error> {
        let pool = self.path.display().to_string();
        let source = self
            .snapshot_at(volume, snapshot)?
            .ok_or_else(|| Error::no_snapshot(volume, snapshot, &pool))?;
        let path = self.file(new.as_str());
        if self.volume_at(&path, new)?.is_none() {
            self.share(&source.path, &path, VOLUME_MODE, false)?;
        } else if !self.is_from(&path, &source.path)? {
            return Err(Error::taken(new, &pool, format!("it is no copy of {}", source.name)));
        }
        self.found(new)
    }

    fn rollback(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        let source = self.snapshot_at(volume, snapshot)?.ok_or_else(|| {
            Error::no_snapshot(volume, snapshot, &self.path.display().to_string())
        })?;
        let (path, _) = self.existing(volume)?;
        self.refuse_in_use(&path, volume)?;
        self.share(&source.path, &path, VOLUME_MODE, true)?;
        self.found(volume)
    }
}

impl Folder {
    /// True if `path` was made from `source`, which is so however often it was written since.
    fn is_from(&self, path: &Path, source: &Path) -> Result<bool, Error> {
        let wanted = origin(source);
        let mut found = vec![0_u8; wanted.len() + 1];
        match getxattr(path, ORIGIN, found.as_mut_slice()) {
            Ok(length) => Ok(&found[..length] == wanted.as_bytes()),
            // None, or a longer one.
            Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(self.failed("look at", path, &error.into())),
        }
    }

    /// The volume called `name` as it is now.
    fn found(&self, name: &Name) -> Result<Volume, Error> {
        let (path, found) = self.existing(name)?;
        described(path, &found).ok_or_else(|| Error::absent(name, &self.path.display().to_string()))
    }
}

/// What [`ORIGIN`] says of copies of `source`.
fn origin(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_snapshot(found: &Metadata) -> bool {
    found.mode() & 0o222 == 0
}

/// A file as a volume; `None` if it does not have the name of one.
fn described(path: PathBuf, found: &Metadata) -> Option<Volume> {
    let name = path.file_name()?.to_str()?.strip_suffix(".img")?;
    Name::new(name).ok()?;
    Some(Volume {
        name: name.to_owned(),
        size: Bytes(found.len()),
        // `st_blocks` counts 512 bytes on every file system.
        allocated: Bytes(found.blocks() * 512),
        is_snapshot: is_snapshot(found),
        path,
    })
}

#[cfg(test)]
mod tests;
