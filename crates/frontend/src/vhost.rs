//! vhost-user-blk: targets as disks of virtual machines, over the public vhost-user protocol.
//!
//! ```text
//!  QEMU ── unix socket ── session (its own thread)   features, memory, rings, configuration
//!    │                       │ start, stop, ...
//!    │                    devices (the thread that owns the target)
//!  guest ── shared memory ── queue ── Target
//!        └─ kick, call (eventfds on the thread's ring)
//! ```
//!
//! * [`proto`]: the protocol's messages as values. [`socket`]: their way, with descriptors.
//! * [`session`]: one client, from its connection to its end; blocks, so it has a thread of its own.
//! * [`memory`]: the guest's memory, mapped. [`inflight`]: the log by which requests outlive the
//!   process that serves them.
//! * [`handover`]: a client on its way to another process.
//! * [`split`]: a ring in the guest's memory; [`request`]: what one of its chains asks; `queue`: the
//!   requests of a ring as a state machine; [`server`]: the devices of one thread.
//!
//! # What a client can not do
//!
//! A client and its guest are not trusted: both can change shared memory at any moment, and whatever
//! descriptor they pass may turn out to be something else.
//!
//! * Descriptors are read once, checked, and then used from here. Data are copied, once, to and from
//!   buffers of the thread's pool: what is written is the same for all replicas.
//! * Memory is taken only from tmpfs and hugetlbfs: a page of another file may never come, and the
//!   thread that touches it would wait with all its volumes. A file that is made shorter while it is
//!   mapped costs the client its device, not the process its life ([`memory`]).
//! * Kicks and calls are eventfds, read and written by the ring, so that none of them blocks.
//! * A turn takes only so much from a ring; then it is the others' turn.

pub mod config;
pub mod handover;
pub mod inflight;
pub mod memory;
pub mod proto;
mod queue;
pub mod request;
pub mod server;
pub mod session;
pub mod socket;
pub mod split;
#[cfg(test)]
mod tests;

pub use handover::FrozenSession;
pub use server::{DeviceKey, Devices, FrozenDevices};

/// Most rings of a device: one thread serves them all.
pub const QUEUES_MAX: u16 = 64;
/// Most descriptors of a ring.
pub const QUEUE_SIZE_MAX: u16 = 1024;
