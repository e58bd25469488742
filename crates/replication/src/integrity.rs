//! What `data-integrity-alg` asks of the core. The digests are computed and checked by the driver,
//! which follows the names in P_PROTOCOL and P_PROTOCOL_UPDATE; here both ends are held to one
//! name, and nothing is sent that has no place for a digest where a kernel node looks for one.

use codec::wire::feature;
use vocab::ConnState;
use vocab::options::NetOptions;

use crate::handshake::{AfterLoss, Phase};
use crate::io::LogLevel;
use crate::request::Part;
use crate::resource::{Resource, Work};
use crate::state::PeerIx;

impl Resource {
    /// Takes new options of a connection. What is in force is told to the peer: at once if it is
    /// connected. One that is still connecting has been told the former digest and compares that
    /// with its own, so it is connected anew, as is one whose proof was asked for with other options.
    pub(crate) fn set_net_options(&mut self, peer: PeerIx, options: NetOptions) {
        let reproved = self.changes_authentication(peer, &options);
        let p = &mut self.peers[peer];
        let renamed = p.net.data_integrity_alg != options.data_integrity_alg
            || p.net.csums_alg != options.csums_alg;
        let fences = p.net.fencing != options.fencing;
        p.net = options;
        if fences {
            self.fencing_changed();
        }
        let p = &mut self.peers[peer];
        if reproved {
            return self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
        if renamed && matches!(p.hs.phase, Phase::Protocol | Phase::Ready | Phase::Exchanging) {
            return self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
        self.tell_net_options(peer);
    }

    /// Why the peer's name of a digest does not fit this node's.
    pub(crate) fn integrity_conflict(&self, peer: PeerIx, theirs: &[u8]) -> Option<String> {
        let ours = &self.peers[peer].net.data_integrity_alg;
        if ours.as_bytes() == theirs {
            return None;
        }
        let theirs = String::from_utf8_lossy(theirs);
        let [ours, theirs] = [ours, &*theirs].map(|name| match name {
            "" => "none".to_owned(),
            name => format!("`{}`", name.escape_debug()),
        });
        Some(format!(
            "option data-integrity-alg differs between the nodes: {ours} here, {theirs} there; \
             make them the same"
        ))
    }

    /// False if the peer can not be sent P_ZEROES: a kernel node expects a digest behind it
    /// that its sender does not give (wire §5.2).
    pub(crate) fn takes_zeroes(&self, peer: PeerIx) -> bool {
        let p = &self.peers[peer];
        p.net.data_integrity_alg.is_empty() || p.agreed_features & feature::BITS_OF_EQUALS != 0
    }

    /// False while a user's zeroes have to be written as data.
    pub(crate) fn all_take_zeroes(&self) -> bool {
        self.st.connected().all(|peer| self.takes_zeroes(peer))
    }

    /// Zeroes that were taken from a user before the peer was known as one that can not be sent
    /// them. It gets them by a resync.
    pub(crate) fn resync_for_zeroes(&mut self, peer: PeerIx) -> Part {
        let text = format!(
            "{}: zeroes that {} can not be sent with data-integrity-alg are resynced: the \
             connection starts anew",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Warn, text);
        self.work.push_back(Work::Reconnect(peer));
        Part::Pending
    }

    /// Closes the connection, which is then tried again.
    pub(crate) fn reconnect(&mut self, peer: PeerIx) {
        if self.st.is_connected(peer) {
            self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
    }
}
