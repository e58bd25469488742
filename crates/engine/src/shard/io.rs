//! What all parts of a shard share to do I/O: its ring, its memory, its listeners.

use runtime::{BufPool, Errno, Ring};
use vocab::Instant;

use super::bufs::Bufs;
use super::disk::Jobs;
use crate::handlers::Call;
use crate::random::Random;
use crate::transport::Listeners;

/// Memory for metadata, kept apart so that data in flight can never take it: writes wait for
/// metadata, and would otherwise wait for their own buffers.
const META_POOL: usize = 32 << 20;

/// Memory for what is written to encrypted disks. It is held for as long as a disk takes to write, and never by
/// anything that waits for other memory: data in flight can not wait for each other.
const CRYPT_POOL: usize = 32 << 20;

/// The means of a shard.
pub(crate) struct Io {
    pub(crate) ring: Ring,
    /// Data.
    pub(crate) pool: BufPool,
    /// Metadata.
    pub(crate) meta_pool: BufPool,
    /// What is on its way to encrypted disks.
    pub(crate) crypt_pool: BufPool,
    pub(crate) bufs: Bufs,
    pub(crate) jobs: Jobs,
    pub(crate) listeners: Listeners,
    pub(crate) random: Random,
    /// Something could not go on for lack of buffers: look again soon.
    pub(crate) starved: bool,
    /// When operations that found a disk full are tried again.
    pub(crate) full_until: Option<Instant>,
    /// Handlers to be run.
    pub(crate) calls: Vec<Call>,
    serial: u32,
}

impl Io {
    pub(crate) fn new(ring: Ring, pool: BufPool) -> Result<Io, Errno> {
        Ok(Io {
            ring,
            pool,
            meta_pool: BufPool::new(META_POOL)?,
            crypt_pool: BufPool::new(CRYPT_POOL)?,
            bufs: Bufs::default(),
            jobs: Jobs::default(),
            listeners: Listeners::default(),
            random: Random::new(),
            starved: false,
            full_until: None,
            calls: Vec::new(),
            serial: 0,
        })
    }

    /// The time of this turn.
    pub(crate) fn now(&self) -> Instant {
        self.ring.now()
    }

    /// A number no socket of this shard had lately.
    pub(crate) fn serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}
