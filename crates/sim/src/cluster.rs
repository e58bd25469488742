//! Simulation of the control plane: the very same `cluster` as a controller would drive it, agents
//! that crash, fail and are cut off, messages that are late or lost, and random commands.
//!
//! A controller crashes between any two of its acts and goes on with what was stored. The checker
//! looks at what the agents have, not at what the model says: no step may take away what is
//! wanted, nor the last copy of data that somebody wants; after all faults have healed everything
//! has to become as wanted, and after all resources are deleted nothing may be left on any node.

mod agent;
mod commands;
mod data;
pub mod scenario;
mod schedules;
mod world;

use crate::rng::Rng;

/// What a run counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Commands that were carried out.
    pub commands: u64,
    /// Commands that were refused.
    pub refusals: u64,
    /// Steps that agents carried out.
    pub steps: u64,
    /// Steps that agents refused because they were old, or a guard did not hold.
    pub refused_steps: u64,
    /// Faults: crashes, cuts, lost messages, failed steps.
    pub faults: u64,
    /// Disks that were removed while somebody wanted the data elsewhere.
    pub removed_copies: u64,
    /// Snapshots that became usable.
    pub snapshots: u64,
    /// Replicas that went back to one.
    pub rollbacks: u64,
    /// Resources that stay inactive when all faults have ended.
    pub inactive: u64,
    /// Backups that schedules have made.
    pub backups: u64,
    /// Backups that could not be made.
    pub failed_backups: u64,
    /// Full backups that went from the remote, with what built on them.
    pub removed_chains: u64,
}

impl Stats {
    /// Adds another run's.
    pub fn add(&mut self, other: &Stats) {
        self.commands += other.commands;
        self.refusals += other.refusals;
        self.steps += other.steps;
        self.refused_steps += other.refused_steps;
        self.faults += other.faults;
        self.removed_copies += other.removed_copies;
        self.snapshots += other.snapshots;
        self.rollbacks += other.rollbacks;
        self.inactive += other.inactive;
        self.backups += other.backups;
        self.failed_backups += other.failed_backups;
        self.removed_chains += other.removed_chains;
    }

    /// Name and value of each.
    pub fn lines(&self) -> [(&'static str, u64); 12] {
        [
            ("commands", self.commands),
            ("refusals", self.refusals),
            ("steps", self.steps),
            ("refused-steps", self.refused_steps),
            ("faults", self.faults),
            ("removed-copies", self.removed_copies),
            ("snapshots", self.snapshots),
            ("rollbacks", self.rollbacks),
            ("inactive", self.inactive),
            ("backups", self.backups),
            ("failed-backups", self.failed_backups),
            ("removed-chains", self.removed_chains),
        ]
    }
}

/// Runs a seed, and says what it counted, or which rule it broke. `trace` is told what happens.
///
/// # Errors
/// If a rule is broken: which one, and where.
pub fn seed(seed: u64, trace: &mut dyn FnMut(&str)) -> Result<Stats, String> {
    let mut world = world::World::new(Rng::new(seed), trace);
    // Others have no schedules, and nothing is drawn for them: they go as they always went.
    if seed.is_multiple_of(4) {
        world.with_schedules(Rng::new(!seed));
    }
    world.run()
}
