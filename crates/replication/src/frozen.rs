//! A resource as bytes: one engine freezes it, the next one goes on with it, and peers notice nothing.
//!
//! Frozen is everything that the core knows, field by field (see [`codec::frozen`]): states,
//! generations, bitmaps, the activity log, what was sent and acknowledged on every connection, and
//! the clocks of all of it. Connections stay established, and a resync or verify goes on between two
//! of its requests. Nothing is read from disk again, so nothing can be there that this node has not
//! known before.
//!
//! What only the driver has does not travel: data in its buffers, operations of its disks, requests
//! and wishes that somebody waits for. A resource that has any is not frozen but says what it waits
//! for, and the driver lets it go on for a while ([`Resource::unsettled`]). A driver gets there by
//! taking no more requests from users until those under way are answered, then no more packets from
//! peers until its disks have nothing to do.
//!
//! Time has to go on: the one who thaws has the same clock.

use codec::frozen::{FrozenError, from_bytes, to_bytes};
use vocab::NodeId;

use crate::handshake::Phase;
use crate::resource::{Link, Resource};
use crate::state::{PeerIx, VolIx};

/// Counts changes of what the frozen fields mean; other changes are seen without it.
const VERSION: u32 = 1;

/// Why a resource can not be frozen now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsettled {
    /// What there is, for an operator.
    pub what: String,
}

impl Unsettled {
    fn now(what: impl Into<String>) -> Unsettled {
        Unsettled { what: what.into() }
    }
}

impl Resource {
    /// The resource as bytes. It is left as it is: whoever drops the bytes goes on with it.
    ///
    /// # Errors
    /// What is under way that can not travel.
    pub fn freeze(&self) -> Result<Vec<u8>, Unsettled> {
        match self.unsettled() {
            Some(unsettled) => Err(unsettled),
            None => Ok(to_bytes(VERSION, self).expect("all that is in a resource has a form")),
        }
    }

    /// A resource that was frozen, as it was.
    ///
    /// # Errors
    /// [`FrozenError`] if another release has frozen it, and it is not the same there.
    pub fn from_frozen(bytes: &[u8]) -> Result<Resource, FrozenError> {
        from_bytes(VERSION, bytes)
    }

    /// Peers to which sockets are wanted and not up: the driver that has thawed the resource goes on
    /// trying, as if told by [`Output::Connect`](crate::Output::Connect).
    pub fn wanted_links(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.iter().filter(|peer| peer.link == Link::Wanted).map(|peer| peer.node)
    }

    /// What can only end while packets of peers are taken. New requests of users, and then packets, are
    /// to be kept back once there is no such thing, and not before.
    pub fn needs_peers(&self) -> Option<Unsettled> {
        let peers = (0..self.peers.len()).find_map(|peer| self.unsettled_peer(peer));
        peers.or_else(|| self.unsettled_requests())
    }

    /// What keeps the resource from being frozen, if anything does.
    pub fn unsettled(&self) -> Option<Unsettled> {
        self.needs_peers()
            .or_else(|| self.unsettled_writes())
            .or_else(|| (0..self.vols.len()).find_map(|vol| self.unsettled_volume(vol)))
    }

    fn has_requests(&self) -> bool {
        self.reads.len() > 0
            || self.foreign.len() > 0
            || self.joint.has_requests()
            || self.log.iter().any(|write| !write.completed)
            || self.vols.iter().any(|vol| !vol.held.is_empty())
    }

    fn unsettled_peer(&self, ix: PeerIx) -> Option<Unsettled> {
        let peer = &self.peers[ix];
        if peer.legacy.as_ref().is_some_and(|dialect| !dialect.is_at_rest()) {
            let name = &peer.name;
            return Some(Unsettled::now(format!(
                "{name}, of protocol 8, is asked or asks something"
            )));
        }
        let midway = match peer.link {
            Link::Down | Link::Wanted => false,
            Link::Up => peer.hs.phase != Phase::Done,
            Link::Closing => true,
        };
        midway.then(|| {
            Unsettled::now(format!("the connection to {} is being made or closed", peer.name))
        })
    }

    fn unsettled_requests(&self) -> Option<Unsettled> {
        let now = |what: &str| Some(Unsettled::now(what));
        if self.has_requests() {
            let suspended = if self.st.susp.any() { ", and I/O is suspended" } else { "" };
            return Some(Unsettled::now(format!("requests of users are under way{suspended}")));
        }
        if self.twopc.held.is_some() {
            return now("a cluster-wide state change is under way");
        }
        // One that nobody waits for goes on by its clock, behind a swap as well.
        if self.twopc.jobs.iter().any(|job| job.admin.is_some() || job.opener.is_some()) {
            return now("a state change that somebody waits for is under way");
        }
        if !self.drain_waiters.is_empty() {
            return now("I/O is being suspended");
        }
        if self.vols.iter().any(|volume| volume.added_by.is_some()) {
            return now("a volume is being added");
        }
        None
    }

    fn unsettled_writes(&self) -> Option<Unsettled> {
        let now = |what: &str| Some(Unsettled::now(what));
        if self.peer_writes.len() > 0 || !self.late_writes.is_empty() {
            return now("writes of peers are under way");
        }
        if self.ops.len() > 0 {
            return now("disk operations are under way");
        }
        // Their ends are told to the process that has started them.
        if self.handlers.any_running() {
            return now("a handler runs");
        }
        if !self.work.is_empty() || !self.out.is_empty() {
            return now("outputs are not carried out");
        }
        None
    }

    fn unsettled_volume(&self, vol: VolIx) -> Option<Unsettled> {
        let volume = &self.vols[vol];
        let now = |what: &str| Some(Unsettled::now(format!("volume {}: {what}", volume.nr)));
        if volume.parting.is_some() {
            return now("its disk is being released");
        }
        if !volume.waiting_openers.is_empty() || !volume.waiting_readers.is_empty() {
            return now("it is being opened");
        }
        if !volume.al_wait.is_empty()
            || !volume.al_queued.is_empty()
            || !volume.conflict_wait.is_empty()
            || volume.again > 0
        {
            return now("writes wait for others");
        }
        if volume.backing.as_ref().is_some_and(|backing| backing.is_being_changed()) {
            return now("its disk is being attached, measured or written to");
        }
        let holds_data = |peer: &crate::resource::Peer| {
            peer.devs[vol].resync.as_ref().is_some_and(|resync| resync.holds_data())
        };
        if self.peers.iter().any(holds_data) {
            return now("blocks of a resync are not written yet");
        }
        None
    }
}
