//! Peers prove that they know the shared secret before anything else is believed (wire §4.1 step 3).
//!
//! ```text
//! both ends:  features ──► P_AUTH_CHALLENGE ──► P_AUTH_RESPONSE ──► P_PROTOCOL
//!                          64 random bytes      keyed digest of what the peer has sent, and of the own id
//! ```
//!
//! Neither end waits for the other one's proof before it gives its own. What proves nothing ends the
//! connection for good: tried again it would fail again, and each try is a guess at the secret. The
//! proof covers the handshake alone; what follows is as safe as the network is.

use codec::wire::{Agreed, CHALLENGE_LEN, Packet, auth_message};
use hmac::{Hmac, KeyInit, Mac};
use vocab::options::NetOptions;

use crate::handshake::Phase;
use crate::io::Challenge;
use crate::resource::Resource;
use crate::state::PeerIx;

/// Names of the digests that `cram-hmac-alg` takes, for messages.
pub const ALGORITHMS: &str = "md5, sha1, sha256 or sha512";

/// A digest by its name in `cram-hmac-alg`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// RFC 1321.
    Md5,
    /// FIPS 180, 160 bits.
    Sha1,
    /// FIPS 180, 256 bits.
    Sha256,
    /// FIPS 180, 512 bits.
    Sha512,
}

impl Algorithm {
    /// The digest that Linux calls by that name, if it is one of [`ALGORITHMS`].
    pub fn named(name: &str) -> Option<Algorithm> {
        Some(match name {
            "md5" => Algorithm::Md5,
            "sha1" => Algorithm::Sha1,
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return None,
        })
    }

    /// What proves that the secret is known to whoever signs this message.
    fn sign(self, secret: &[u8], message: &[u8]) -> Vec<u8> {
        fn of<M: Mac + KeyInit>(secret: &[u8], message: &[u8]) -> Vec<u8> {
            keyed::<M>(secret, message).finalize().into_bytes().to_vec()
        }
        match self {
            Algorithm::Md5 => of::<Hmac<md5::Md5>>(secret, message),
            Algorithm::Sha1 => of::<Hmac<sha1::Sha1>>(secret, message),
            Algorithm::Sha256 => of::<Hmac<sha2::Sha256>>(secret, message),
            Algorithm::Sha512 => of::<Hmac<sha2::Sha512>>(secret, message),
        }
    }

    /// True if the peer has proved it. How long that takes says nothing of where a wrong proof
    /// begins to be wrong.
    fn verify(self, secret: &[u8], message: &[u8], proof: &[u8]) -> bool {
        fn of<M: Mac + KeyInit>(secret: &[u8], message: &[u8], proof: &[u8]) -> bool {
            keyed::<M>(secret, message).verify_slice(proof).is_ok()
        }
        match self {
            Algorithm::Md5 => of::<Hmac<md5::Md5>>(secret, message, proof),
            Algorithm::Sha1 => of::<Hmac<sha1::Sha1>>(secret, message, proof),
            Algorithm::Sha256 => of::<Hmac<sha2::Sha256>>(secret, message, proof),
            Algorithm::Sha512 => of::<Hmac<sha2::Sha512>>(secret, message, proof),
        }
    }
}

fn keyed<M: Mac + KeyInit>(secret: &[u8], message: &[u8]) -> M {
    let mac = <M as KeyInit>::new_from_slice(secret).expect("a keyed digest takes any key");
    mac.chain_update(message)
}

/// Progress of the proofs on one link.
#[derive(Debug)]
pub(crate) struct Proof {
    /// What the peer is to sign.
    challenge: Challenge,
    /// The peer's challenge was signed.
    answered: bool,
}

impl Proof {
    pub(crate) const fn new(challenge: Challenge) -> Proof {
        Proof { challenge, answered: false }
    }
}

/// What a peer may send before it has proved anything. On the control socket its first P_PING can
/// overtake the proof.
const fn needs_no_proof(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::ConnectionFeatures(_)
            | Packet::AuthChallenge(_)
            | Packet::AuthResponse(_)
            | Packet::Protocol(_)
            | Packet::Ping
            | Packet::PingAck
            | Packet::Disconnect
    )
}

impl Resource {
    /// The digest configured for a peer. That it is a known one is checked where options enter.
    fn authenticates_by(&self, peer: PeerIx) -> Option<Algorithm> {
        let name = &self.peers[peer].net.cram_hmac_alg;
        let algorithm = Algorithm::named(name);
        debug_assert_eq!(
            algorithm.is_some(),
            !name.is_empty(),
            "only known digests are configured"
        );
        algorithm
    }

    /// Features are agreed: the peer is to prove itself, or the parameters are next.
    pub(crate) fn begin_authentication(&mut self, peer: PeerIx) {
        // A name that is not known can not be used, and must not pass for none.
        if self.peers[peer].net.cram_hmac_alg.is_empty() {
            return self.send_parameters(peer);
        }
        let deadline = self.now + self.peers[peer].net.ping_timeout * 4;
        let hs = &mut self.peers[peer].hs;
        let Some(proof) = &hs.proof else { return };
        let packet = Packet::AuthChallenge(proof.challenge.to_vec());
        hs.phase = Phase::Authentication;
        hs.deadline = Some(deadline);
        self.send(peer, packet);
    }

    /// A packet arrived from a peer that has not proved itself.
    pub(crate) fn lacks_proof(&self, peer: PeerIx, packet: &Packet) -> bool {
        self.peers[peer].hs.phase == Phase::Authentication && !needs_no_proof(packet)
    }

    /// Options that take part in a handshake under way are about to change.
    pub(crate) fn changes_authentication(&self, peer: PeerIx, new: &NetOptions) -> bool {
        let p = &self.peers[peer];
        p.hs.phase == Phase::Authentication
            && (&p.net.cram_hmac_alg, &p.net.shared_secret)
                != (&new.cram_hmac_alg, &new.shared_secret)
    }

    /// P_AUTH_CHALLENGE.
    pub(crate) fn challenged(&mut self, peer: PeerIx, theirs: &[u8]) -> Result<(), &'static str> {
        match self.peers[peer].hs.phase {
            Phase::Authentication => {}
            Phase::Protocol => {
                let text = "it asks for a proof of the shared secret, and none is configured here; \
                            give both nodes the same cram-hmac-alg and shared-secret";
                self.refuse_connection(peer, text);
                return Ok(());
            }
            _ => return Err("a challenge arrived at the wrong time"),
        }
        let algorithm = self.authenticates_by(peer);
        let me = self.me;
        let p = &mut self.peers[peer];
        let agreed = Agreed::new(p.agreed_version, p.agreed_features);
        let (Some(algorithm), Some(proof)) = (algorithm, &mut p.hs.proof) else {
            return Err("a challenge arrived at the wrong time");
        };
        if proof.answered {
            return Err("a second challenge arrived");
        }
        if theirs.len() != CHALLENGE_LEN {
            self.refuse_connection(peer, "its challenge does not have 64 bytes");
        } else if theirs == proof.challenge.as_slice() {
            let text = "it sent this node's own challenge back, as if to have its question answered \
                        by who asked it; somebody else answers at the peer's address";
            self.refuse_connection(peer, text);
        } else {
            proof.answered = true;
            let secret = p.net.shared_secret.expose().as_bytes();
            let response = algorithm.sign(secret, &auth_message(theirs, me, &agreed));
            self.send(peer, Packet::AuthResponse(response));
        }
        Ok(())
    }

    /// P_AUTH_RESPONSE.
    pub(crate) fn proved(&mut self, peer: PeerIx, theirs: &[u8]) -> Result<(), &'static str> {
        let algorithm = self.authenticates_by(peer);
        let p = &self.peers[peer];
        let (Phase::Authentication, Some(algorithm), Some(proof)) =
            (p.hs.phase, algorithm, &p.hs.proof)
        else {
            return Err("a proof arrived at the wrong time");
        };
        if !proof.answered {
            return Err("a proof arrived before the peer's own challenge");
        }
        let agreed = Agreed::new(p.agreed_version, p.agreed_features);
        let message = auth_message(proof.challenge.as_slice(), p.node, &agreed);
        if algorithm.verify(p.net.shared_secret.expose().as_bytes(), &message, theirs) {
            self.send_parameters(peer);
        } else {
            let text = "it does not know the shared secret, or uses another digest; give both \
                        nodes the same cram-hmac-alg and shared-secret, then connect";
            self.refuse_connection(peer, text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
