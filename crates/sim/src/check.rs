//! What must hold, checked from outside: invariants of semantics §13 by their numbers.
//!
//! The checkers look at the simulated disks, at what clients were told, and at what nodes say
//! about themselves; never at the reasoning of the core, beyond letting it check itself.

use std::collections::BTreeSet;

use codec::disk::{MdFlags, PeerFlags, activity_log, bitmap};
use replication::Resource;
use replication::io::{MetaPlace, MetaWrite};
use vocab::options::Protocol;
use vocab::{ConnState, DiskState, GenUuid, ReplState, Role, VolumeNr};

use crate::blank;
use crate::content::Data;
use crate::disk::{Disk, Job};
use crate::history::{History, NEVER, Stamp, Value, Write, WriteIx};
use crate::node::{Origin, Pending};
use crate::plan::{Plan, node_id};
use crate::sizes;
use crate::view::PeerView;
use crate::world::World;

/// Sectors of an activity log extent.
const EXTENT: u64 = 8192;
/// Sectors of a bit of the bitmap.
const BIT: u64 = 8;

/// What the checkers remember of a node.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Its states have changed since they were looked at.
    changed: bool,
    role: Option<Role>,
    /// Who does its I/O, if it is Primary beside another node.
    lead: Option<usize>,
    /// It is Primary, and not cut off: with quorum, where that decides.
    serves: bool,
    /// Since when it serves, if it does.
    serves_since: Stamp,
    /// When it served last, if it does not now.
    served_until: Stamp,
    /// It was Primary already when another node began to serve, then, and has not noticed since.
    overtaken: Option<Stamp>,
    /// When it was so last, if it is not now.
    overtaken_until: Stamp,
    /// Its acknowledgements since its last promotion.
    first_ack: Option<Stamp>,
    last_ack: Stamp,
    /// Its I/O is suspended by an operator, and everything accepted before is written.
    frozen: bool,
    /// By volume.
    disks: Vec<Option<DiskState>>,
    /// By volume: it had quorum before the input that it is handling.
    quorate: Vec<bool>,
    /// By volume: it is the target of a running resync.
    syncing: Vec<bool>,
    /// By volume: since it was started it has been current among others. Until then it is one more
    /// that has crashed.
    joined: Vec<bool>,
    /// By volume: the generation before the input that it is handling, until it writes metadata.
    began: Vec<Option<GenUuid>>,
    /// By volume: extents that are durably active.
    active: Vec<Slots>,
}

/// The activity log as its transactions have left it.
#[derive(Clone, Debug, Default)]
struct Slots {
    /// Extent by slot.
    extents: Vec<u32>,
}

/// The checkers.
#[derive(Debug)]
pub(crate) struct Checks {
    known: Vec<Known>,
}

impl Checks {
    pub(crate) fn new(plan: &Plan) -> Checks {
        let volumes = usize::from(plan.volumes);
        let known = Known {
            disks: vec![None; volumes],
            quorate: vec![true; volumes],
            syncing: vec![false; volumes],
            joined: vec![false; volumes],
            active: vec![Slots::default(); volumes],
            began: vec![None; volumes],
            ..Known::default()
        };
        Checks { known: vec![known; plan.nodes.len()] }
    }

    /// A node is about to handle an input.
    pub(crate) fn step_begins(&mut self, node: usize, resource: &Resource) {
        for (volume, began) in self.known[node].began.iter_mut().enumerate() {
            *began = Some(resource.generation(volume_nr(volume)));
        }
    }

    /// A node writes metadata: what it writes from then on is in the generation that it is in at the end
    /// of its step.
    pub(crate) fn writes_metadata(&mut self, node: usize, volume: usize) {
        self.known[node].began[volume] = None;
    }

    /// A node says that its states have changed.
    pub(crate) fn state_changed(&mut self, node: usize) {
        self.known[node].changed = true;
    }

    /// A transaction of the activity log is durable.
    pub(crate) fn transaction(&mut self, node: usize, volume: usize, block: &[u8; 4096]) {
        apply_transaction(&mut self.known[node].active[volume], block);
    }

    /// A disk is attached: its activity log starts empty.
    pub(crate) fn attached(&mut self, node: usize, volume: usize) {
        self.known[node].active[volume].extents.clear();
    }

    /// I/O of a node may go on.
    pub(crate) fn thawed(&mut self, node: usize) {
        self.known[node].frozen = false;
    }

    /// A node's process is gone.
    pub(crate) fn node_down(&mut self, node: usize, now: Stamp) {
        let known = &mut self.known[node];
        known.role = None;
        known.lead = None;
        if std::mem::take(&mut known.serves) {
            known.served_until = now;
        }
        known.overtaken = None;
        known.first_ack = None;
        known.disks.fill(None);
        known.quorate.fill(true);
        known.syncing.fill(false);
        known.joined.fill(false);
        known.frozen = false;
        for slots in &mut known.active {
            slots.extents.clear();
        }
    }
}

/// What is on a disk counts: it is attached.
fn in_use(disk: Option<DiskState>) -> bool {
    disk.is_some_and(|disk| disk >= DiskState::Inconsistent)
}

impl Known {
    /// What it asked then is answered, or will not be: it knows what others have done before.
    fn noticed(&mut self, asked: Stamp, now: Stamp) {
        if self.overtaken.take_if(|since| *since < asked).is_some() {
            self.overtaken_until = now;
        }
    }
}

/// Applies the updates of a transaction block (metadata §3.1) that is known to be well-formed.
fn apply_transaction(slots: &mut Slots, block: &[u8; 4096]) {
    let be16 = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let be32 = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    if be16(12) != 0 {
        return;
    }
    for i in 0..usize::from(be16(14)) {
        let (slot, extent) = (usize::from(be16(36 + 2 * i)), be32(164 + 4 * i));
        if slots.extents.len() <= slot {
            slots.extents.resize(slot + 1, u32::MAX);
        }
        slots.extents[slot] = extent;
    }
}

impl World {
    // ---- what clients see ----

    /// 37: a read on the only Primary returns a value the history allows.
    pub(crate) fn check_read(&mut self, node: usize, pending: &Pending, ended: Stamp, data: &Data) {
        let Some(by) = self.serving(node) else { return };
        if !self.plan.is_strict() || !self.sole_primary(by, pending.began) {
            return;
        }
        let (range, volume) = (pending.request.range, pending.request.volume.0 as usize);
        for i in 0..range.len.0 {
            let (sector, tag) = (range.start.0 + i, data.tag(i));
            if !self.histories[volume].allows(sector, tag, pending.began, ended) {
                let allowed = values(&self.histories[volume].allowed_now(sector, ended));
                let message = format!(
                    "n{node} reads {tag} in sector {sector} of v{volume}, allowed are {allowed}"
                );
                return self.violate("37", message);
            }
        }
    }

    /// The node that does the I/O of the node's users, if it is known.
    pub(crate) fn serving(&self, node: usize) -> Option<usize> {
        match self.view(node)?.joint {
            Some(lead) => lead,
            None => Some(node),
        }
    }

    /// True if the node is Primary and no other node was since `began`, but one that had lost its
    /// quorum before and waits.
    ///
    /// Nor has another one been Primary that this one has not noticed: a link may be dead for a
    /// while before that shows, and until then a read from the own disk asks nobody (invariant 36).
    fn sole_primary(&self, node: usize, began: Stamp) -> bool {
        self.checks.known.iter().enumerate().all(|(n, known)| match n == node {
            true => {
                let current = known.overtaken.is_none() && known.overtaken_until < began;
                known.role == Some(Role::Primary) && current
            }
            false => !known.serves && known.served_until < began,
        })
    }

    /// 1, 2, 6, 25: where an acknowledged write is.
    pub(crate) fn check_ack(&mut self, node: usize, pending: &Pending, fua: bool) {
        let volume = pending.request.volume.0 as usize;
        let Some(by) = self.serving(node) else { return };
        let (node, told) = (by, by != node);
        let Some(view) = self.view(node) else { return };
        let write = self.histories[volume].write(pending.write.expect("a write")).clone();
        // What an input made complete may be followed, in one go, by the loss of overdue peers. So may
        // what others are told of that.
        if !told && !view.volumes[volume].quorum && !self.checks.known[node].quorate[volume] {
            let message = format!("n{node} acknowledges {} without quorum", write.range);
            return self.violate("6", message);
        }
        let mut holders = 0;
        let mut all_there = true;
        let mut must_hold = vec![(node, view.volumes[volume].disk == DiskState::UpToDate, true)];
        for (peer, p) in view.peers.iter().enumerate() {
            let Some(p) = p else { continue };
            let up_to_date =
                p.conn == ConnState::Connected && p.devices[volume].disk == DiskState::UpToDate;
            must_hold.push((peer, up_to_date, self.plan.acks_are_replicated()));
        }
        for (location, up_to_date, strict) in must_hold {
            // A node that has just died may have lost again what it had acknowledged.
            let there = location == node || self.net.linked(node, location);
            all_there &= there;
            if !up_to_date || !there {
                continue;
            }
            let Some(drive) = self.nodes[location].drive(volume) else { continue };
            match missing(&self.histories[volume], &write, |s| drive.disk.tag(s)) {
                None => holders += 1,
                Some((sector, tag)) if strict => {
                    let message = format!(
                        "n{node} acknowledges {:?} at {}, but n{location} has {tag} in sector \
                         {sector}",
                        write.value, write.range
                    );
                    return self.violate("1", message);
                }
                Some(_) => {}
            }
            if fua && strict {
                if let Some((sector, _)) =
                    missing(&self.histories[volume], &write, |s| drive.disk.stable_tag(s))
                {
                    let message = format!(
                        "n{node} acknowledges a FUA write that is not stable on n{location} in \
                         sector {sector}"
                    );
                    return self.violate("3", message);
                }
            }
        }
        // Who had it may have lost it since, where this comes from another node.
        if holders == 0 && all_there && !told && self.plan.acks_are_replicated() {
            let message =
                self.describe(&format!("n{node} acknowledges {} that nobody has", write.range));
            return self.violate("2", message);
        }
        if self.plan.acks_are_replicated() {
            // Peers that follow another Primary do not take it.
            self.checks.known[node].noticed(pending.began, self.stamp);
        }
        self.check_interleaving(node, volume, &write);
    }

    /// 25: acknowledgements of two Primaries do not interleave, but for what the other one has
    /// itself. A node that did not run for a while may find the word of its peer that it has a
    /// write only after that peer has become Primary: it became it with this write on its disk, so
    /// the write comes before its own, whenever its client learns of it. A write that it does not
    /// have could only be lost. One that does not run, and has not acknowledged anything since the
    /// write began, need not have it.
    fn check_interleaving(&mut self, node: usize, volume: usize, write: &Write) {
        let primary = |n: &usize| {
            let known = &self.checks.known[*n];
            let acks = known.first_ack.is_some() && known.last_ack > write.began;
            known.role == Some(Role::Primary) && acks
        };
        let holds = |n: usize| {
            let disks = self.disks_in_use(n, volume);
            let lacks = |disk: &Disk| missing(&self.histories[volume], write, |s| disk.tag(s));
            !disks.is_empty() && disks.into_iter().all(|disk| lacks(disk).is_none())
        };
        let mut others = (0..self.nodes.len()).filter(|n| *n != node).filter(primary).peekable();
        if others.peek().is_some() && others.all(holds) {
            return;
        }
        let now = self.stamp;
        let known = &mut self.checks.known[node];
        let first = *known.first_ack.get_or_insert(now);
        known.last_ack = now;
        // Under protocol A a Primary that nobody hears goes on until it notices; what it reports in
        // that time the others do not have.
        if !self.plan.failover_is_safe() || self.plan.net.protocol == Protocol::A {
            return;
        }
        let other = self.checks.known.iter().enumerate().find(|(n, known)| {
            *n != node
                && known.role == Some(Role::Primary)
                && known.first_ack.is_some()
                && known.last_ack > first
        });
        if let Some((other, _)) = other {
            self.violate("25", format!("n{node} and n{other} both acknowledge writes"));
        }
    }

    /// What users of a node read: its own disk, or those of its peers if that is not current.
    fn disks_in_use(&self, node: usize, volume: usize) -> Vec<&Disk> {
        let Some(view) = self.view(node) else { return Vec::new() };
        let of = |n: usize| self.nodes[n].drive(volume).map(|drive| &drive.disk);
        if view.volumes[volume].disk == DiskState::UpToDate {
            return of(node).into_iter().collect();
        }
        let current = |p: &PeerView| {
            p.conn == ConnState::Connected && p.devices[volume].disk == DiskState::UpToDate
        };
        let peers = view.peers.iter().enumerate();
        peers.filter(|(_, p)| p.as_ref().is_some_and(current)).filter_map(|(n, _)| of(n)).collect()
    }

    /// 3: what was acknowledged before a flush is stable where it is UpToDate. Where disks may be
    /// written independently, what was acknowledged before the node began to serve may be on another.
    pub(crate) fn check_flush(&mut self, node: usize, pending: &Pending) {
        if self.plan.failover_is_safe() && !self.plan.acks_are_replicated() {
            // What the others have not got they may have rolled back meanwhile.
            return;
        }
        let Some(node) = self.serving(node) else { return };
        let volume = pending.request.volume.0 as usize;
        let Some(view) = self.view(node) else { return };
        let mut locations = Vec::new();
        if view.volumes[volume].disk == DiskState::UpToDate {
            locations.push(node);
        }
        for (peer, p) in view.peers.iter().enumerate() {
            let up_to_date = p.as_ref().is_some_and(|p| {
                p.conn == ConnState::Connected && p.devices[volume].disk == DiskState::UpToDate
            });
            // It may have been outdated, and the news of that still be on its way.
            let outdated =
                self.view(peer).is_some_and(|v| v.volumes[volume].disk <= DiskState::Outdated);
            let strict = up_to_date && !outdated && self.plan.acks_are_replicated();
            if strict && self.net.linked(node, peer) {
                locations.push(peer);
            }
        }
        let history = &self.histories[volume];
        let covered = self.covered_by_flush(node, pending);
        let drives = locations
            .into_iter()
            .filter_map(|l| self.nodes[l].drive(volume).map(|drive| (l, &drive.disk)));
        let since = match self.plan.may_split() {
            true => self.checks.known[node].serves_since,
            false => 0,
        };
        let before = |w: &&Write| w.acked && w.ended >= since && w.ended < covered;
        let unstable = drives
            .flat_map(|(l, disk)| history.soft().filter(before).map(move |w| (l, disk, w)))
            .find_map(|(l, disk, write)| {
                missing(history, write, |s| disk.stable_tag(s)).map(|at| (l, write.value, at))
            });
        if let Some((location, value, (sector, tag))) = unstable {
            let message = format!(
                "a flush on n{node} completes, but {value:?} in sector {sector} is not stable on \
                 n{location}, which has {tag}"
            );
            self.violate("3", message);
        }
    }

    /// What was acknowledged before this point, the flush makes stable. A Primary that has not
    /// noticed yet that others went on without it answers for nothing that these acknowledge: it is
    /// on their disks, and a flush there covers it.
    pub(crate) fn covered_by_flush(&self, node: usize, pending: &Pending) -> Stamp {
        let overtaken = self.checks.known[node].overtaken;
        overtaken.map_or(pending.began, |since| since.min(pending.began))
    }

    /// 5: a node that was promoted serves every write that was acknowledged before. If another was
    /// promoted meanwhile, it has not noticed yet that it is cut off.
    pub(crate) fn check_open(&mut self, node: usize) {
        let since = self.checks.known[node].serves_since;
        if !self.plan.is_strict() || !self.sole_primary(node, since) {
            return;
        }
        let Some(view) = self.view(node) else { return };
        let now = self.stamp;
        for volume in 0..self.histories.len() {
            // A Primary that has lost its quorum can be opened, but serves nothing.
            if view.volumes[volume].disk != DiskState::UpToDate || !view.volumes[volume].quorum {
                continue;
            }
            let Some(drive) = self.nodes[node].drive(volume) else { continue };
            let history = &self.histories[volume];
            if let Some((sector, tag)) = wrong_content(history, &drive.disk, now) {
                let allowed = values(&history.allowed_now(sector, now));
                let message = format!(
                    "n{node} is opened with {tag} in sector {sector} of v{volume}, allowed are \
                     {allowed}"
                );
                return self.violate("5", message);
            }
        }
    }

    // ---- what operators were told ----

    /// 49: I/O is suspended, so all UpToDate replicas are equal and stay so.
    pub(crate) fn check_suspended(&mut self, node: usize) {
        let Some(view) = self.view(node) else { return };
        if view.role != Role::Primary || !self.plan.acks_are_replicated() {
            return;
        }
        self.checks.known[node].frozen = true;
        for (peer, p) in view.peers.iter().enumerate() {
            let Some(p) = p.as_ref().filter(|p| p.conn == ConnState::Connected) else { continue };
            for volume in 0..view.volumes.len() {
                let both = view.volumes[volume].disk == DiskState::UpToDate
                    && p.devices[volume].disk == DiskState::UpToDate
                    && self.net.linked(node, peer);
                if !both {
                    continue;
                }
                if let Some(sector) = self.difference_at_all(node, peer, volume) {
                    let message = self.describe(&format!(
                        "n{node} is suspended, but n{peer} differs in sector {sector} of v{volume}"
                    ));
                    return self.violate("49", message);
                }
            }
        }
    }

    fn difference_at_all(&self, a: usize, b: usize, volume: usize) -> Option<u64> {
        let end = self.compared(a, b, volume);
        let (a, b) = (self.nodes[a].drive(volume)?, self.nodes[b].drive(volume)?);
        a.disk.first_difference_before(&b.disk, 0, end)
    }

    /// Sectors that two disks have both agreed to; beyond them they have nothing in common.
    fn compared(&self, a: usize, b: usize, volume: usize) -> u64 {
        let of = |node: usize| {
            let drive = self.nodes[node].drive(volume);
            drive.and_then(|drive| sizes::agreed(&drive.disk, node)).unwrap_or(self.plan.sectors)
        };
        of(a).min(of(b))
    }

    // ---- what goes to disks ----

    /// 12, 39: what must be durable before data is written.
    pub(crate) fn check_disk_write(
        &mut self,
        node: usize,
        volume: usize,
        job: &Job,
        origin: Option<Origin>,
    ) {
        let (Job::Write { range, .. }, Some(origin)) = (job, origin) else { return };
        let source = match origin {
            Origin::Peer(source) => source,
            _ => node,
        };
        // Who is not connected takes no part in what was suspended.
        let together = self
            .view(source)
            .is_some_and(|v| v.peers[node].as_ref().is_none_or(|p| p.conn == ConnState::Connected));
        if self.checks.known[source].frozen && together && origin != Origin::Resync {
            let message =
                format!("n{node} writes {range} of v{volume} though n{source} is suspended");
            return self.violate("49", message);
        }
        let Some(drive) = self.nodes[node].drive(volume) else { return };
        let stable = drive.disk.stable_superblock();
        let current = self.nodes[node].resource.as_ref().map(|r| r.generation(volume_nr(volume)));
        let durable = blank::superblock(stable, node).map(|s| s.current_uuid);
        // A disk that is still being resynced gets to the generation at the end.
        let catching_up =
            self.view(node).is_none_or(|view| view.volumes[volume].disk != DiskState::UpToDate);
        if let (Origin::Client, Some(current), Ok(durable)) = (origin, current, durable) {
            // What was begun before a generation is, in the same step, is in the one before.
            let before = self.checks.known[node].began[volume];
            let before = before.is_some_and(|before| before.same(durable));
            if !catching_up && !before && !current.same(durable) {
                let message = format!(
                    "n{node} writes {range} of v{volume} in the generation {current}, while \
                     {durable} is durable"
                );
                return self.violate("16", message);
            }
        }
        if let Ok(superblock) = blank::superblock(stable, node) {
            let size = superblock.effective_size;
            if range.end() > size.0 {
                let message = format!(
                    "n{node} writes {range} of v{volume}, and its metadata knows of {} sectors",
                    size.0
                );
                return self.violate("48", message);
            }
        }
        match origin {
            Origin::Resync => {
                let Ok(superblock) = blank::superblock(stable, node) else { return };
                if superblock.flags.contains(MdFlags::CONSISTENT) {
                    let message = format!(
                        "n{node} writes resync data to {range} of v{volume} while its metadata \
                         says that the disk is consistent"
                    );
                    self.violate("39", message);
                }
            }
            Origin::Client | Origin::Peer(_) => {
                let active = &self.checks.known[node].active[volume].extents;
                let first = range.start.0 / EXTENT;
                let last = (range.end() - 1) / EXTENT;
                if (first..=last).all(|extent| active.contains(&(extent as u32))) {
                    return;
                }
                let Ok(superblock) = blank::superblock(stable, node) else { return };
                if !superblock.flags.contains(MdFlags::AL_DISABLED) {
                    let message = format!(
                        "n{node} writes {range} of v{volume} although its extent is not active"
                    );
                    self.violate("12", message);
                }
            }
            Origin::Read => {
                self.violate("driver", format!("n{node} writes what it has read to {range}"));
            }
        }
    }

    /// 21, 48: what a superblock may say.
    pub(crate) fn check_meta_write(&mut self, node: usize, volume: usize, write: &MetaWrite) {
        let Some(commit) = &write.commit else { return };
        if commit.place != MetaPlace::Superblock {
            return;
        }
        let superblock = match blank::superblock(&commit.bytes, node) {
            Ok(superblock) => superblock,
            Err(error) => {
                return self.violate("meta", format!("n{node} v{volume} writes {error:?}"));
            }
        };
        let current = superblock.current_uuid;
        let used = superblock.history.iter().take_while(|u| !u.is_none()).count();
        let bad = superblock.history[..used]
            .iter()
            .any(|u| u.is_just_created() || (current.is_real() && u.same(current)))
            || superblock.history[used..].iter().any(|u| !u.is_none());
        if bad {
            let message = format!(
                "n{node} v{volume} records the history {:?} of {current}",
                &superblock.history[..used]
            );
            return self.violate("21", message);
        }
        let Some(drive) = self.nodes[node].drive(volume) else { return };
        let Ok(old) = blank::superblock(drive.disk.superblock(), node) else { return };
        let outdated = old.flags.contains(MdFlags::CONSISTENT);
        let named = self.sizes.shrinks_to[volume];
        let shrinks = superblock.effective_size < old.effective_size;
        if outdated && shrinks && superblock.effective_size.0 < named {
            let message = format!(
                "n{node} v{volume} shrinks from {} to {} sectors",
                old.effective_size.0, superblock.effective_size.0
            );
            self.violate("48", message);
        }
        self.checks.known[node].changed = true;
    }

    // ---- states ----

    /// Looks at a node that says its states have changed.
    pub(crate) fn check_after_input(&mut self, node: usize) {
        if !std::mem::take(&mut self.checks.known[node].changed) {
            return;
        }
        if let Some(resource) = &self.nodes[node].resource {
            resource.invariants();
        }
        let Some(view) = self.view(node) else { return };
        let primaries = view.peers.iter().flatten().filter(|p| p.role == Role::Primary).count();
        if primaries + usize::from(view.role == Role::Primary) > 1 {
            self.violate("24", format!("n{node} is connected and sees several Primaries"));
        }
        let quorate = !self.plan.failover_is_safe()
            || view.volumes.iter().any(|v| v.quorum) && !view.suspended.fencing;
        let known = &mut self.checks.known[node];
        let lead = view.joint.flatten();
        if std::mem::replace(&mut known.lead, lead) != lead && lead.is_some() {
            self.stats.joins += 1;
        }
        let before = known.role.replace(view.role);
        let serves = view.role == Role::Primary && quorate;
        let served = std::mem::replace(&mut known.serves, serves);
        match (served, serves) {
            (true, false) => {
                known.served_until = self.stamp;
                known.noticed(NEVER, self.stamp);
            }
            (false, true) => known.serves_since = self.stamp,
            _ => {}
        }
        if before != Some(Role::Primary) && view.role == Role::Primary {
            known.first_ack = None;
            self.stats.promotions += 1;
        }
        if serves && !served {
            let now = self.stamp;
            let others = self.checks.known.iter_mut().enumerate().filter(|(n, _)| *n != node);
            for (_, other) in others.filter(|(_, other)| other.serves) {
                other.overtaken.get_or_insert(now);
            }
        }
        self.check_roles(node);
        for volume in 0..view.volumes.len() {
            let disk = view.volumes[volume].disk;
            let before = self.checks.known[node].disks[volume].replace(disk);
            if in_use(before) && !in_use(Some(disk)) {
                self.doubt(node, volume, false);
            }
            self.checks.known[node].quorate[volume] = view.volumes[volume].quorum;
            let targets = view
                .peers
                .iter()
                .flatten()
                .filter(|p| p.devices[volume].repl == ReplState::SyncTarget)
                .count();
            let syncing = &mut self.checks.known[node].syncing[volume];
            if targets > 0 && !*syncing {
                self.stats.resyncs += 1;
            }
            *syncing = targets > 0;
            if targets > 1 {
                self.violate("42", self.describe(&format!("n{node} has {targets} sources")));
            }
            let among_equals = view.role == Role::Primary
                || view
                    .peers
                    .iter()
                    .flatten()
                    .map(|p| &p.devices[volume])
                    .any(|d| d.repl == ReplState::Established && d.disk == DiskState::UpToDate);
            if disk == DiskState::UpToDate && among_equals {
                self.checks.known[node].joined[volume] = true;
            }
            if disk == DiskState::UpToDate && before != Some(DiskState::UpToDate) {
                self.check_up_to_date(node, volume);
            }
        }
    }

    /// 24: of nodes connected to each other at most one is Primary.
    fn check_roles(&mut self, node: usize) {
        if self.checks.known[node].role != Some(Role::Primary) {
            return;
        }
        let Some(mine) = self.view(node) else { return };
        for other in (0..self.nodes.len()).filter(|n| *n != node) {
            if self.checks.known[other].role != Some(Role::Primary) || !self.net.linked(node, other)
            {
                continue;
            }
            let Some(theirs) = self.view(other) else { continue };
            let both = [(&mine, other), (&theirs, node)].iter().all(|(view, peer)| {
                view.peers[*peer].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
            });
            if both {
                self.violate("24", self.describe(&format!("n{node} and n{other} are Primary")));
            }
        }
    }

    /// 17, 44: a disk that becomes UpToDate is equal to those it is in sync with. Two are not where
    /// either has a bit, or a write that it can not know to be everywhere: that becomes a bit when
    /// it hears of the loss of who sent it.
    fn check_up_to_date(&mut self, node: usize, volume: usize) {
        if !self.plan.acks_are_replicated() {
            return;
        }
        let Some(view) = self.view(node) else { return };
        for (peer, p) in view.peers.iter().enumerate() {
            let Some(p) = p else { continue };
            let d = &p.devices[volume];
            let in_sync = p.conn == ConnState::Connected
                && d.repl == ReplState::Established
                && d.disk == DiskState::UpToDate
                && d.out_of_sync == 0;
            let theirs = self.checks.known[peer].disks[volume];
            // The source may have been resynced itself meanwhile, and its word of that be on its
            // way: it is in another generation then, and has the difference on record.
            let generation = view.volumes[volume].current;
            let same = self.view(peer).is_some_and(|v| v.volumes[volume].current.same(generation));
            if !in_sync || !same || theirs != Some(DiskState::UpToDate) {
                continue;
            }
            if let Some(sector) = self.difference(node, peer, volume) {
                let message = self.describe(&format!(
                    "v{volume} of n{node} is UpToDate and differs from n{peer} in sector {sector}"
                ));
                return self.violate("44", message);
            }
        }
    }

    /// First sector in which two disks differ although no write to it is under way, and none of the
    /// two knows.
    fn difference(&self, a: usize, b: usize, volume: usize) -> Option<u64> {
        let disks = (self.nodes[a].drive(volume)?, self.nodes[b].drive(volume)?);
        let history = &self.histories[volume];
        let (mut from, end) = (0, self.compared(a, b, volume));
        loop {
            let sector = disks.0.disk.first_difference_before(&disks.1.disk, from, end)?;
            let known = self.counts(a, b, volume, sector) || self.counts(b, a, volume, sector);
            if !history.unsettled(sector) && !known {
                return Some(sector);
            }
            from = sector + 1;
        }
    }

    /// The node knows, or will notice, that the other may differ there.
    fn counts(&self, node: usize, other: usize, volume: usize, sector: u64) -> bool {
        let volume = volume_nr(volume);
        self.nodes[node].resource.as_ref().is_some_and(|r| {
            r.out_of_sync_at(volume, node_id(other), sector) || r.is_unacked_at(volume, sector)
        })
    }

    // ---- crashes ----

    /// 9, 11: where a node that has just died differs from another of the same generation, one of
    /// the two knows: by its bits, or by an activity log that is durable.
    pub(crate) fn check_crash(&mut self, node: usize, volume: usize) {
        let Some(drive) = self.nodes[node].drive(volume) else { return };
        let Ok(superblock) = blank::superblock(drive.disk.superblock(), node) else { return };
        if !superblock.flags.contains(MdFlags::CONSISTENT) || !superblock.current_uuid.is_real() {
            return;
        }
        let mut hot = BTreeSet::new();
        let flags = superblock.flags;
        let unclean = flags.contains(MdFlags::PRIMARY_IND) && !flags.contains(MdFlags::AL_CLEAN);
        // While metadata moves there is no log, and every slot says that all is out of sync.
        if unclean && !flags.contains(MdFlags::AL_DISABLED) {
            let area: Vec<u8> =
                drive.disk.activity_log().iter().flat_map(|b| b.iter().copied()).collect();
            match activity_log::recover(superblock.al, &area, superblock.al_nr_extents) {
                Ok(found) => hot = found.extents,
                Err(error) => {
                    return self
                        .violate("11", format!("n{node} v{volume} can not replay: {error}"));
                }
            }
        }
        let nr = volume_nr(volume);
        for other in (0..self.nodes.len()).filter(|n| *n != node) {
            let Some(resource) = &self.nodes[other].resource else { continue };
            let disk = self.checks.known[other].disks[volume];
            let comparable = disk.is_some_and(|d| d >= DiskState::Outdated)
                && resource.generation(nr).same(superblock.current_uuid);
            let Some(theirs) = self.nodes[other].drive(volume).filter(|_| comparable) else {
                continue;
            };
            let slot = superblock.peer(node_id(other));
            let Some(index) = slot.bitmap_index else { continue };
            let active = &self.checks.known[other].active[volume].extents;
            let (mut from, end) = (0, self.compared(node, other, volume));
            while let Some(sector) = drive.disk.first_difference_before(&theirs.disk, from, end) {
                from = (sector / BIT + 1) * BIT;
                let extent = (sector / EXTENT) as u32;
                let known = hot.contains(&extent)
                    || active.contains(&extent)
                    || slot.flags.contains(PeerFlags::FULL_SYNC)
                    || bit(&drive.disk, sector / BIT, u32::from(index), superblock.max_peers)
                    || resource.out_of_sync_at(nr, node_id(node), sector);
                if !known {
                    let message = format!(
                        "v{volume} of n{node} has died and differs from n{other} in sector \
                         {sector}, and neither knows"
                    );
                    return self.violate("9", message);
                }
            }
        }
    }

    // ---- lost caches ----

    /// No disk has the write that data may come from: those that had it have lost their power while the
    /// word of that was on its way to the client. It is like one that was acknowledged a moment before
    /// (see [`Self::doubt`]): what a target has, its source may take back.
    pub(crate) fn is_lost_already(&self, volume: usize, write: WriteIx) -> bool {
        let history = &self.histories[volume];
        let write = history.write(write);
        let target = |n: usize| {
            let disk = self.checks.known[n].disks[volume];
            disk.is_some_and(|disk| disk < DiskState::Consistent)
        };
        let nodes = (0..self.nodes.len()).filter(|n| !target(*n));
        let mut drives = nodes.filter_map(|n| self.nodes[n].drive(volume));
        self.plan.volatile_cache
            && drives.all(|d| missing(history, write, |s| d.disk.tag(s)).is_some())
    }

    /// A node has stopped, or has given up its disk: which acknowledged writes may that have taken
    /// back?
    ///
    /// Those of a node that has lost power, but for what others that run on with their disks have,
    /// and have not been started just before.
    /// And once all of these have stopped, too, what some disk has lost: of nodes that have all been
    /// restarted the crashed Primary is the source (semantics §4.5, 4j and 4k), which may be the one
    /// that lost its power. Nobody can tell it from one whose process alone died.
    pub(crate) fn doubt(&mut self, node: usize, volume: usize, power: bool) {
        let Some(drive) = self.nodes[node].drive(volume) else { return };
        let safe_failover = self.plan.failover_is_safe() && self.plan.acks_are_replicated();
        if !power && !safe_failover {
            return;
        }
        let current = |disk: &Disk| {
            blank::superblock(disk.superblock(), node).map(|s| s.current_uuid.masked()).ok()
        };
        let generation = current(&drive.disk);
        let equal: Vec<(bool, &Disk)> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(n, other)| {
                let known = &self.checks.known[n];
                // What a target has, its source may take back.
                let counts = known.disks[volume].is_some_and(|disk| disk >= DiskState::Consistent);
                let runs = n != node && counts && known.joined[volume];
                let runs = runs && safe_failover;
                other.drive(volume).map(|d| (runs, &d.disk))
            })
            .filter(|(_, disk)| current(disk) == generation)
            .collect();
        self.histories[volume].doubt(|history, write| {
            let has = |disk: &Disk| missing(history, write, |s| disk.tag(s)).is_none();
            let kept = equal.iter().any(|(runs, disk)| *runs && has(disk));
            !kept && (power || equal.iter().any(|(_, disk)| !has(disk)))
        });
    }

    // ---- the end ----

    /// 7, 46: what must be true when everything has settled.
    pub(crate) fn check_final(&mut self) {
        let now = self.tick();
        for volume in 0..self.histories.len() {
            let mut first: Option<usize> = None;
            for node in 0..self.nodes.len() {
                let Some(drive) = self.nodes[node].drive(volume) else { continue };
                let history = &self.histories[volume];
                if self.plan.is_strict() {
                    if let Some((sector, tag)) = wrong_content(history, &drive.disk, now) {
                        let allowed = values(&history.allowed_now(sector, now));
                        let message = format!(
                            "in the end n{node} has {tag} in sector {sector} of v{volume}, \
                             allowed are {allowed}"
                        );
                        return self.violate("5", message);
                    }
                }
                let Some(other) = first else {
                    first = Some(node);
                    continue;
                };
                let reference = self.nodes[other].drive(volume).expect("it was looked at before");
                let end = self.compared(node, other, volume);
                if let Some(sector) = drive.disk.first_difference_before(&reference.disk, 0, end) {
                    let message = format!(
                        "in the end n{node} and n{other} differ in sector {sector} of v{volume}"
                    );
                    return self.violate("46", message);
                }
            }
        }
        for node in 0..self.nodes.len() {
            let count = self.nodes[node].buffers.count();
            if count > 0 {
                self.violate("buffers", format!("n{node} keeps {count} buffers for nothing"));
            }
            if !self.nodes[node].requests.is_empty() {
                self.violate(
                    "7",
                    format!("n{node} never completes {:?}", self.nodes[node].requests),
                );
            }
        }
    }
}

fn volume_nr(volume: usize) -> VolumeNr {
    VolumeNr(volume as u16)
}

/// A bit of the bitmap on a disk.
fn bit(disk: &Disk, bit: u64, slot: u32, slots: u32) -> bool {
    let (byte, mask) = bitmap::bit_position(bit, slot, slots);
    let block = disk.bitmap().get(&(byte / 4096));
    block.is_some_and(|block| block[(byte % 4096) as usize] & mask != 0)
}

/// First sector where a disk does not hold a write, and what it has there.
fn missing(history: &History, write: &Write, tag: impl Fn(u64) -> u64) -> Option<(u64, u64)> {
    if write.value == Value::Undefined {
        return None;
    }
    let range = write.range;
    (range.start.0..range.end())
        .map(|sector| (sector, tag(sector)))
        .find(|(sector, tag)| !history.holds(*sector, *tag, write))
}

/// First sector whose content no read may return, and what it has there.
fn wrong_content(history: &History, disk: &Disk, now: Stamp) -> Option<(u64, u64)> {
    history
        .touched()
        .flat_map(|range| range.start.0..range.end())
        .map(|sector| (sector, disk.tag(sector)))
        .find(|(sector, tag)| !history.allows(*sector, *tag, now, NEVER))
}

fn values(writes: &[&Write]) -> String {
    let list: Vec<String> = writes
        .iter()
        .map(|w| {
            format!(
                "{:?} ({}..{}{})",
                w.value,
                w.began,
                w.ended,
                if w.acked { " acked" } else { "" }
            )
        })
        .collect();
    list.join(", ")
}
