//! DRBD's options: one table per group, typed values inside, DRBD's notation outside.
//!
//! - `spec`: what an option is (kind, unit, range, default, honoured or not) and how its text is
//!   parsed and printed. All groups share this code.
//! - `choices`: the values that are words.
//! - `groups`: the five tables, which also declare the structs the rest of the program reads.
//! - `secret`: the value that no message shows.
//!
//! Text is parsed where it enters ([`Options::set`]) and printed where it leaves
//! ([`Options::show`]); in between there are only `Duration`, `Bytes`, `Sectors` and enums.
//! An option this program does not act on is never accepted and ignored: setting it to anything
//! but its default (or another value named in the table) is refused with the reason.
//!
//! Source of names, ranges and defaults: drbdsetup contract §2.1; units: semantics §11.

mod choices;
mod groups;
mod secret;
mod spec;
#[cfg(test)]
mod tests;

pub use choices::{
    AfterSb0, AfterSb1, AfterSb2, Fencing, KibPerSecond, OnCongestion, OnIoError,
    OnNoDataAccessible, OnNoQuorum, OnSuspendedPrimaryOutdated, Protocol, Quorum, ReadBalancing,
    RrConflict,
};
pub use groups::{DeviceOptions, DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
pub use secret::Secret;
pub use spec::{Honoured, Kind, OptionError, OptionSpec, Options, Unit};
