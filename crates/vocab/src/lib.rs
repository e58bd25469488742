//! Words and units of the field, shared by every crate.
//!
//! Every number that crosses a function boundary has its own type here, every state prints and
//! parses exactly as `drbdsetup` spells it, and foreign units are converted once, where they
//! enter. The crate is pure: no clock, randomness, threads, sockets or files.
#![forbid(unsafe_code)]

mod handlers;
mod histogram;
mod ids;
mod log_level;
pub mod options;
mod refusal;
mod states;
mod time;
mod units;

pub use handlers::{HandlerEvent, HandlerSet};
pub use histogram::Histogram;
pub use ids::{Dagtag, GenUuid, MAX_NODES, Minor, NodeId, NodeMask, VolumeNr};
pub use log_level::LogLevel;
pub use refusal::{ConfigError, Refusal, RefusalCode, StateError};
pub use states::{ConnState, DiskState, ReplState, Role, Suspended, UnknownName};
pub use time::{Instant, Utc, civil};
pub use units::{Bytes, SECTOR_SIZE, Sector, SectorRange, Sectors};
