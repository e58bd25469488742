//! Backups of snapshots in a store of objects: what they are made of, and how they get there.
//!
//! `archive`: the data of a volume as a stream. `extents`: from disks into it and back. `description`: what
//! goes with the archives of a backup, and makes it one. `name`: names of objects. `catalog`: which backups
//! a list of objects amounts to. `s3`: the store. `bucket`: looking into one, and deleting, as a controller does.
//! `other`: other clusters, to which snapshots are shipped without any store.
//!
//! Nothing here decides what is backed up, or when; that is the control plane's core.

#![forbid(unsafe_code)]

pub mod archive;
pub mod bucket;
pub mod catalog;
pub mod description;
pub mod extents;
pub mod name;
pub mod other;
pub mod s3;
