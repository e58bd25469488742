//! The story of one sector, for `--watch`: who holds what in it, and what each node thinks of that.
//!
//! Every change is a line of the trace. `UNCOVERED` marks two disks that count as UpToDate in one
//! generation and differ while neither has a bit for the other: unless a write is on its way to
//! one of them, that is the moment a difference was forgotten, long before a checker can see it.

use std::str::FromStr;

use vocab::{DiskState, VolumeNr};

use crate::plan::node_id;
use crate::world::World;

/// A sector that is watched.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The volume's number.
    pub volume: u16,
    /// The sector.
    pub sector: u64,
    /// What was said last.
    last: Vec<String>,
}

impl Watch {
    /// Watches a sector of a volume.
    pub fn new(volume: u16, sector: u64) -> Watch {
        Watch { volume, sector, last: Vec::new() }
    }
}

impl FromStr for Watch {
    type Err = String;

    fn from_str(place: &str) -> Result<Watch, String> {
        let parts = place.split_once(':').map(|(v, s)| (v.parse(), s.parse()));
        let Some((Ok(volume), Ok(sector))) = parts else {
            return Err(format!("`{place}` is not <volume>:<sector>"));
        };
        Ok(Watch::new(volume, sector))
    }
}

impl World {
    /// Says what has changed about the sector that is watched.
    pub(crate) fn look_at_watched(&mut self) {
        let Some(mut watch) = self.trace.watch.take() else { return };
        let mut lines: Vec<String> = (0..self.nodes.len()).map(|n| self.say(n, &watch)).collect();
        lines.push(self.say_uncovered(&watch));
        watch.last.resize(lines.len(), String::new());
        let now = self.now();
        for (line, last) in lines.iter().zip(&watch.last) {
            if line != last && !line.is_empty() {
                self.trace.line(now, line);
            }
        }
        watch.last = lines;
        self.trace.watch = Some(watch);
    }

    fn say(&self, node: usize, watch: &Watch) -> String {
        let Watch { volume, sector, .. } = *watch;
        let Some(drive) = self.nodes[node].drive(usize::from(volume)) else {
            return String::new();
        };
        let (tag, stable) = (drive.disk.tag(sector), drive.disk.stable_tag(sector));
        let stable = if tag == stable { String::new() } else { format!(" (stable {stable})") };
        let Some(view) = self.view(node) else {
            return format!("n{node} ==== {tag}{stable}, down");
        };
        let v = &view.volumes[usize::from(volume)];
        let bits: String = (0..self.nodes.len())
            .filter(|peer| self.marks(node, *peer, watch))
            .map(|peer| format!(" n{peer}"))
            .collect();
        let (role, disk, current) = (view.role, v.disk, v.current);
        format!("n{node} ==== {tag}{stable} {role} {disk} {current} bits:{bits}")
    }

    /// True if the sector counts as out of sync with a peer.
    fn marks(&self, node: usize, peer: usize, watch: &Watch) -> bool {
        let resource = self.nodes[node].resource.as_ref();
        let volume = VolumeNr(watch.volume);
        resource.is_some_and(|r| r.out_of_sync_at(volume, node_id(peer), watch.sector))
    }

    fn say_uncovered(&self, watch: &Watch) -> String {
        let volume = usize::from(watch.volume);
        let current: Vec<_> = (0..self.nodes.len())
            .filter_map(|n| {
                let v = self.view(n)?.volumes[volume];
                let tag = self.nodes[n].drive(volume)?.disk.tag(watch.sector);
                (v.disk == DiskState::UpToDate).then_some((n, v.current, tag))
            })
            .collect();
        let mut line = String::new();
        for (i, (a, generation, tag)) in current.iter().enumerate() {
            for (b, other, theirs) in &current[i + 1..] {
                let differ = generation == other && tag != theirs;
                if differ && !self.marks(*a, *b, watch) && !self.marks(*b, *a, watch) {
                    line.push_str(&format!(" ==== UNCOVERED n{a} {tag}, n{b} {theirs}"));
                }
            }
        }
        line
    }
}
