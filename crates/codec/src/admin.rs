//! The local control socket: what `ashlar` asks of the engine, and what the engine answers.
//!
//! A stream socket carries one JSON object per line in each direction. A client sends a [`Call`]
//! per line; the engine answers each with one [`Line::Reply`] that repeats the call's id, in any
//! order. After a [`Request::Events`] was answered, [`Line::Event`]s follow on the same connection
//! until the client closes it.
//!
//! Every call carries the time its sender will wait. The engine answers before that: with a
//! [`Failure`] of kind [`FailureKind::Timeout`] if the command is still running.
//!
//! - `message`: calls, replies, events. `status`: what semantics §12 lists, in the JSON shape of
//!   `drbdsetup status --json` (drbdsetup contract §3.2). `statistics`: latencies and counters.
//!   `doctor`: what is measured on request. `maps`: block devices of this machine. `fields`: how words and ids of `vocab` appear in JSON.
//!   `lines`: framing with a length limit.
//!
//! Unknown requests and unknown fields of requests are errors, never ignored: a command that was
//! half understood must not run. Fields a newer engine adds to its answers are ignored.

mod doctor;
pub(crate) mod fields;
mod lines;
mod maps;
mod message;
mod statistics;
mod status;
#[cfg(test)]
mod tests;

pub use doctor::{
    DOCTOR_STEP_MAX_MS, DiskReads, DiskWrites, DoctorFigures, DoctorStep, Machine, Network, Series,
    Serving, TcpFigures, Watch, WatchedDevice, WatchedPeer, WatchedThread, WatchedVolume,
};
pub use lines::{LineTooLong, Lines, MAX_CALL, MAX_LINE, encode_line};
pub use maps::{Face, FaceStatus, MapOptions, MapStatus, Standby, StandbyStatus};
pub use message::{
    Answer, Call, EngineInfo, Event, ExportStatus, Failure, FailureKind, HelperEvent, Line, Listen,
    Note, Outcome, Reply, Request, TlsListen, UpgradeReport, VERSION,
};
pub use statistics::{
    ConnectionStatistics, Parallel, PeerParallel, ReplicaWaterfall, ResourceStatistics, RoundTrip,
    Traffic, VolumeStatistics, Waterfall,
};
pub use status::{
    Blocked, ConnectionStatus, DeviceStatus, PathStatus, PeerDeviceStatus, ResourceStatus,
    ResyncSuspended, SyncDetails, VerifyDetails, WriteOrdering,
};
