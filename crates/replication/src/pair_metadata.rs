//! Disks with the metadata of DRBD 8, version v08: used as they are, without conversion.
//!
//! v08 is v09 of two nodes with less room (metadata §1.3): one bitmap, two entries of history, no
//! node ids, nothing for this node itself. What has no room there is what more than two nodes or
//! quorum need over a restart, so a resource that has either of them does not get such a disk, and
//! one that uses such a disk gets neither. The rest of the state machine does not ask which it is.
//!
//! A kernel of DRBD 8.4 may use the disk next. It takes two disks of one generation for equal
//! whatever their bits say, unless one of them was a Primary that crashed. See
//! [`Resource::leaves_as_crashed`].

use codec::disk::{MdFlags, Superblock, Version, activity_log as al_format};
use vocab::options::Quorum;
use vocab::{ConfigError, NodeId, Refusal, Role};

use crate::resource::Resource;
use crate::state::VolIx;

/// What to do about it.
const CONVERT: &str = "use it with one peer and without quorum, or detach it, convert it to v09 \
                       with `ashlar convert-md`, and attach it again";

impl Resource {
    /// This node and its only peer: whose slot the one of v08 is.
    pub(crate) fn node_pair(&self) -> Option<(NodeId, NodeId)> {
        match &self.peers[..] {
            [peer] => Some((self.me, peer.node)),
            _ => None,
        }
    }

    /// Refuses a disk to be attached with what v08 has no room for.
    pub(crate) fn check_fits(&self, sb: &Superblock) -> Result<(), Refusal> {
        match sb.version == Version::V08 && self.peers.is_empty() {
            true => Err(Refusal::config(
                ConfigError::InvalidRequest,
                "its metadata has version v08, whose bitmap belongs to a peer that is not named \
                 there; add the peer first",
            )),
            false => self.check_room(sb, self.opts.quorum),
        }
    }

    fn check_room(&self, sb: &Superblock, quorum: Quorum) -> Result<(), Refusal> {
        let why = match (self.peers.len(), quorum) {
            _ if sb.version != Version::V08 => return Ok(()),
            (0 | 1, Quorum::Off) => return Ok(()),
            (0 | 1, _) => "no room for what quorum has to remember",
            _ => "room for one peer",
        };
        let detail = format!("its metadata has version v08, which has {why}; {CONVERT}");
        Err(Refusal::config(ConfigError::InvalidRequest, detail))
    }

    /// The same of all attached disks, where the resource is to have that quorum.
    pub(crate) fn check_all_fit(&self, quorum: Quorum) -> Result<(), Refusal> {
        let attached = self.vols.iter().filter_map(|v| v.backing.as_ref().map(|b| (v.nr, b)));
        for (nr, backing) in attached {
            self.check_room(&backing.sb, quorum).map_err(|refusal| Refusal {
                detail: format!("volume {nr}: {}", refusal.detail),
                ..refusal
            })?;
        }
        Ok(())
    }

    /// This Secondary has blocks that its peer may not have, within a generation that both have: the
    /// superblock of v08 says that a Primary crashed. Then a kernel makes this the source of them,
    /// in the place of ignoring them. Only for blocks that were written here: a Secondary that
    /// stopped under writes has them from a Primary, and it is that one's disk which counts.
    pub(crate) fn leaves_as_crashed(&self, vol: VolIx, sb: &Superblock) -> bool {
        let volume = &self.vols[vol];
        let Some(backing) = &volume.backing else { return false };
        let differs = |peer: NodeId| backing.oos(peer) != 0 && backing.bitmap_uuid(peer).is_none();
        sb.version == Version::V08
            && self.st.role != Role::Primary
            && sb.flags.contains(MdFlags::WAS_UP_TO_DATE)
            && !volume.crashed_secondary
            && self.st.connected().next().is_none()
            && self.peers.iter().any(|peer| differs(peer.node))
    }
}

/// Refuses a log of DRBD before 8.4, which had another format.
pub(crate) fn check_log(sb: &Superblock, area: &[u8]) -> Result<(), Refusal> {
    match sb.version == Version::V08 && al_format::is_pre_v84(sb.al, area) {
        true => {
            let why = al_format::AlError::PreV84.to_string();
            Err(Refusal::config(ConfigError::MetaUnclean, why))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
