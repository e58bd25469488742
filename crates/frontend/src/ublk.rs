//! ublk: targets as block devices of this machine, `/dev/ublkbN`, by a driver of the kernel.
//!
//! ```text
//!  application ── /dev/ublkbN ── kernel ──┬── /dev/ublk-control   add, start, stop: `control`
//!                                         └── /dev/ublkcN         requests: `channel`, `device`
//!                                                │ one command per slot, on the thread's own ring
//!                                            Target
//! ```
//!
//! * [`uapi`]: the driver's structures and numbers.
//! * [`control`]: commands to the driver. They block, so they are for ordinary threads.
//! * [`device`]: the requests of one device as a state machine; [`channel`]: its way to the kernel,
//!   which tests replace; [`batch`]: that way with commands for several requests.
//! * [`server`]: the devices of one thread.
//!
//! All queues of a device are served by the thread that owns its target: from the kernel's command
//! to the target's answer there is no other thread, no lock and no allocation but the buffer.
//!
//! Data are copied once, by reading and writing `/dev/ublkcN` (`UBLK_F_USER_COPY`, Linux 6.5):
//!
//! * A buffer is as long as its request, and there is none without a request. With buffers that the
//!   kernel maps, each slot would keep one of the longest transfer, 1 MiB, for the device's life.
//! * What is written has to stay as it is until all replicas have it. The pages of a request do not:
//!   applications may change them meanwhile, and each replica would take what it happens to see.
//!   So the copy is what makes replicas equal, and zero copy of writes is not used where the kernel has it.
//!
//! What is read need not be copied. Where the driver can, it puts the pages of a request into the ring's
//! table of registered buffers (`UBLK_F_AUTO_BUF_REG`, Linux 6.16), and the target may have its disk read
//! there ([`runtime::Place`]).
//!
//! A server without `CAP_SYS_ADMIN` may have neither. Its devices are unprivileged
//! (`UBLK_F_UNPRIVILEGED_DEV`): the kernel copies to and from a buffer of each slot, they end with the
//! server, and a request that takes too long ends the server, so it fails before.
//!
//! The driver does not tell when a device is opened or closed. So a device holds its target open,
//! for writing unless it is read-only, as long as it exists: no other node can change what this
//! one's page cache has.

mod batch;
mod channel;
pub mod control;
mod device;
pub mod server;
#[cfg(test)]
mod tests;
pub mod uapi;

pub use control::Control;
pub use server::{DeviceKey, Devices, FrozenDevices};
