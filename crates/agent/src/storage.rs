//! Storage pools of this node and the backing volumes in them.
//!
//! A [`Provider`] is one pool. Its volumes hold the data and metadata of replicas; what is in them
//! is nobody's concern here. All operations are idempotent: they can be repeated after a crash of
//! this process or of the node at any moment, and then end as if there had been no crash.
//!
//! A snapshot is read-only, in every kind of pool. This is also how it is told from a volume: their
//! names may coincide (snapshot `s_00000` of `a_00000`, volume 0 of `a_00000_s`), and a snapshot
//! that were taken for a volume would be written to.

pub mod file;
pub mod lvm;
pub mod zfs;

use std::fmt;
use std::path::PathBuf;

/// What a pool is made of.
pub use cluster::objects::Provider as Kind;
use vocab::Bytes;

use crate::command::{CommandError, Failure};

/// The name of a backing volume or of a snapshot: letters, digits, `_`, `-`, `.` and `+`, at most
/// 120 of them, beginning with none of `-`, `.` and `+`. Safe as part of a path and of a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// If it is not as the type says; nothing is changed to fit.
    pub fn new(name: &str) -> Result<Name, Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
        if name.is_empty()
            || name.len() > 120
            || name.starts_with(['-', '.', '+'])
            || !name.chars().all(good)
        {
            return Err(Error::new(Why::Invalid, format!("{name:?} is no name for a volume"))
                .correction("use letters, digits, `_` and `-`, at most 120 of them"));
        }
        Ok(Name(name.to_owned()))
    }

    /// That of the volume with number `number` of a resource; `suffix` tells volumes of one number
    /// apart (`.meta` for external metadata) and is mostly empty.
    ///
    /// # Errors
    /// If the result is not a name.
    pub fn of_volume(resource: &str, suffix: &str, number: u16) -> Result<Name, Error> {
        Name::new(&format!("{resource}{suffix}_{number:05}"))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: Bytes,
    /// What is not in use. Of a thin pool, too: what was promised does not count.
    pub free: Bytes,
    /// How much of a thin pool's metadata is in use, in percent, where it has any: a pool whose
    /// metadata are full takes no more data, however much space it has.
    pub metadata_used: Option<u8>,
}

/// A backing volume or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name in the pool.
    pub name: String,
    /// What it holds.
    pub size: Bytes,
    /// What it takes of the pool, as far as the pool can tell.
    pub allocated: Bytes,
    /// Where it is opened; of a snapshot, once it is active.
    pub path: PathBuf,
    /// True for what is never written to.
    pub is_snapshot: bool,
}

/// A pool on this node.
pub trait Provider {
    /// What it is made of.
    fn kind(&self) -> Kind;

    /// Sizes are multiples of this.
    ///
    /// # Errors
    /// If the pool does not say.
    fn allocation_unit(&self) -> Result<Bytes, Error>;

    /// Its space, asked from the pool each time.
    ///
    /// # Errors
    /// If there is no such pool, or it can not be asked.
    fn space(&self) -> Result<Space, Error>;

    /// Why this pool can not make snapshots, though others of its kind can.
    fn no_snapshots(&self) -> Option<String> {
        None
    }

    /// True if whatever a new volume was not given yet reads as zeroes. Only then can a full backup leave
    /// out what is zero.
    ///
    /// # Errors
    /// If the pool does not say.
    fn starts_zeroed(&self, _volume: &Name) -> Result<bool, Error> {
        Ok(self.kind().starts_zeroed())
    }

    /// What is in it, by name; snapshots, too.
    ///
    /// # Errors
    /// As for [`Provider::space`].
    fn volumes(&self) -> Result<Vec<Volume>, Error>;

    /// A volume of at least `size`, which must not be 0. What is in a new one is undefined. If there is
    /// one of that name and size (up to three allocation units more), it is returned as it is.
    ///
    /// # Errors
    /// If the pool has not enough space, or has something else of that name. Nothing is left behind.
    fn create(&self, name: &Name, size: Bytes) -> Result<Volume, Error>;

    /// Grows a volume to at least `size`; one that is large enough stays as it is. It may be in use.
    ///
    /// # Errors
    /// If it does not exist or the pool has not enough space; it then has its old size.
    fn grow(&self, name: &Name, size: Bytes) -> Result<Volume, Error>;

    /// Removes a volume and its data. Its snapshots stay.
    ///
    /// # Errors
    /// If it is in use; never because it does not exist.
    fn remove(&self, name: &Name) -> Result<(), Error>;

    /// A read-only copy of a volume as it is at this moment. Whoever writes to the volume has to
    /// have stopped and flushed before.
    ///
    /// # Errors
    /// If the volume does not exist, or this pool can not do it.
    fn snapshot(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error>;

    /// Removes a snapshot.
    ///
    /// # Errors
    /// If something depends on it; never because it does not exist.
    fn remove_snapshot(&self, volume: &Name, snapshot: &Name) -> Result<(), Error>;

    /// A new volume with the data of a snapshot.
    ///
    /// # Errors
    /// If the snapshot does not exist, or something of the new name does and is no such volume.
    fn restore(&self, volume: &Name, snapshot: &Name, new: &Name) -> Result<Volume, Error>;

    /// Gives a volume the data of its snapshot, which stays. The volume must not be in use; at any
    /// moment it has either the old or the new data, as a whole.
    ///
    /// # Errors
    /// If the snapshot does not exist or the volume is in use.
    fn rollback(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error>;
}

/// What kind of failure it is; tells the control plane what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The call can not be meant.
    Invalid,
    /// The pool, the volume or the snapshot does not exist.
    NotFound,
    /// There is something else of that name.
    Exists,
    /// Not enough space.
    NoSpace,
    /// Somebody uses it, or depends on it.
    InUse,
    /// This pool can not do it.
    Unsupported,
    /// The pool or its tools failed.
    Failed,
}

/// A failure, in the four parts that operators are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What to do about it, for programs.
    pub why: Why,
    /// What failed, with the object's name.
    pub message: String,
    /// Why; empty if the message says it.
    pub cause: String,
    /// What the operator can do; empty if that is obvious.
    pub correction: String,
}

impl Error {
    fn new(why: Why, message: impl Into<String>) -> Error {
        Error { why, message: message.into(), cause: String::new(), correction: String::new() }
    }

    fn cause(mut self, cause: impl fmt::Display) -> Error {
        self.cause = cause.to_string();
        self
    }

    fn correction(mut self, correction: impl Into<String>) -> Error {
        self.correction = correction.into();
        self
    }

    /// A command that failed while doing what `message` says; `package` has its program.
    fn of_command(message: impl Into<String>, error: &CommandError, package: &str) -> Error {
        let failed = Error::new(Why::Failed, message).cause(error);
        match error.why {
            Failure::NotInstalled => failed.correction(format!("install {package} on this node")),
            Failure::TooLong(_) => {
                failed.correction("see what the pool's disks are waiting for; it is tried again")
            }
            _ => failed,
        }
    }

    fn absent(volume: &Name, pool: &str) -> Error {
        Error::new(Why::NotFound, format!("there is no volume {volume} in {pool}"))
    }

    fn no_snapshot(volume: &Name, snapshot: &Name, pool: &str) -> Error {
        let message = format!("volume {volume} has no snapshot {snapshot} in {pool}");
        Error::new(Why::NotFound, message)
    }

    fn taken(name: &Name, pool: &str, what: impl fmt::Display) -> Error {
        Error::new(Why::Exists, format!("{pool} has something else called {name}"))
            .cause(what)
            .correction("remove it if nobody needs it, or choose another name")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.cause.is_empty() {
            write!(f, ": {}", self.cause)?;
        }
        if !self.correction.is_empty() {
            write!(f, "; {}", self.correction)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// `size` up to a multiple of `unit`.
///
/// # Errors
/// If `size` is 0, or too large for a number.
fn rounded(size: Bytes, unit: Bytes) -> Result<Bytes, Error> {
    let size = (size.0 != 0).then(|| size.0.checked_next_multiple_of(unit.0)).flatten();
    size.map(Bytes).ok_or_else(|| {
        Error::new(Why::Invalid, "the size of a volume is 0 or beyond what can be counted")
    })
}

/// True if a volume that is there can serve as one of `wanted`, which is rounded already: pools may
/// have rounded it further.
fn fits(existing: Bytes, wanted: Bytes, unit: Bytes) -> bool {
    existing >= wanted && existing.0 - wanted.0 <= 3 * unit.0
}

#[cfg(test)]
mod tests;
