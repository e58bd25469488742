//! What `ashlar doctor` has measured here (docs/design/doctor.md).
//!
//! - `watch`: what is in flight and where, without causing any load; `device`, `machine`: what the
//!   kernel says of block devices, threads and the machine.
//! - `series`: operations on a file in bursts, timed; `disk`: reads of a volume's disk, writes to a
//!   file beside it.
//! - `network`: probes of the network beside the replication; `serve`: answering them.
//!
//! All of it runs on the threads of commands, never on a shard's. A step takes as long as it was
//! given and not much longer; what it opened is closed then. Nothing here writes to a volume, its
//! disk or its metadata.

mod device;
mod disk;
mod machine;
mod network;
mod series;
mod serve;
mod watch;

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use codec::admin::{Answer, DOCTOR_STEP_MAX_MS, DoctorFigures, DoctorStep, FailureKind};
use codec::config::BackingConfig;
use vocab::VolumeNr;

use crate::engine::{Done, Engine, Entry, Stop, lock};

/// What lasts from one step to another.
#[derive(Default)]
pub(crate) struct Doctor {
    /// Held by the step that causes load: two at a time would measure each other.
    measuring: Mutex<()>,
    serving: serve::Server,
}

impl Engine {
    /// Carries a step out.
    pub(crate) fn diagnose(&self, resource: &str, step: DoctorStep) -> Done<Answer> {
        let entry = self.entry(resource)?;
        let figures = match step {
            DoctorStep::Machine => DoctorFigures::Machine(self.machine()),
            DoctorStep::Watch { ms } => DoctorFigures::Watch(self.watch(&entry, bounded(ms)?)?),
            DoctorStep::Reads { volume, ms } => {
                let backing = backing(&entry, volume)?;
                let size = self.size_of(&entry, volume)?;
                let time = bounded(ms)?;
                let figures = self.alone(|| disk::reads(&backing, size, time))?;
                DoctorFigures::Reads(figures)
            }
            DoctorStep::Scratch { volume, folder, ms } => {
                let backing = backing(&entry, volume)?;
                let time = bounded(ms)?;
                DoctorFigures::Writes(self.alone(|| disk::scratch(&backing, &folder, time))?)
            }
            DoctorStep::Probe { peer, port, ms } => {
                let path = self.path_to(&entry, peer)?;
                let time = bounded(ms)?;
                DoctorFigures::Network(self.alone(|| network::probe(path, port, time))?)
            }
            DoctorStep::Serve { port, ms } => {
                let paths =
                    lock(&entry.stored).config.peers.iter().flat_map(|p| p.paths.clone()).collect();
                DoctorFigures::Serving(self.doctor.serving.serve(paths, port, bounded(ms)?)?)
            }
        };
        Ok(Answer::Doctor(Box::new(figures)))
    }

    /// Runs a step that causes load, unless another one does.
    fn alone<T>(&self, step: impl FnOnce() -> Done<T>) -> Done<T> {
        let _guard = match self.doctor.measuring.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text = "another `ashlar doctor` measures on this node";
                return Err(Stop::failed(
                    FailureKind::Resources,
                    text,
                    "wait for it, then try again",
                ));
            }
        };
        step()
    }

    /// Bytes of a volume.
    fn size_of(&self, entry: &Entry, volume: VolumeNr) -> Done<u64> {
        let status = self.status_of(entry)?;
        let device = status.devices.iter().find(|d| d.volume == volume);
        Ok(device.map_or(0, |d| d.size << 10))
    }
}

/// The time of a step.
fn bounded(ms: u32) -> Done<Duration> {
    if (1..=DOCTOR_STEP_MAX_MS).contains(&ms) {
        Ok(Duration::from_millis(ms.into()))
    } else {
        Err(Stop::invalid(format!("a step takes 1 to {DOCTOR_STEP_MAX_MS} ms, not {ms}")))
    }
}

/// The disk that is configured for a volume.
fn backing(entry: &Entry, volume: VolumeNr) -> Done<BackingConfig> {
    let stored = lock(&entry.stored);
    let found = stored.config.volumes.iter().find(|v| v.nr == volume);
    let name = format!("{}/{volume}", entry.name);
    let found = found.ok_or_else(|| Stop::invalid(format!("{name}: there is no such volume")))?;
    let detail =
        || format!("{name}: it has no disk on this node; measure on a node where it has one");
    found.backing.clone().ok_or_else(|| Stop::invalid(detail()))
}
