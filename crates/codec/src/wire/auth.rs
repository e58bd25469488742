//! What authentication signs (wire §4.1).

use vocab::NodeId;

use super::agreed::Agreed;

/// Bytes of a P_AUTH_CHALLENGE.
pub const CHALLENGE_LEN: usize = 64;

/// The message whose HMAC, keyed with the shared secret, is a P_AUTH_RESPONSE: the challenge that
/// is answered and, from protocol 110 on, the node id of the one who answers. So a node signs its
/// peer's challenge and its own id, and verifies its own challenge and the peer's id.
pub fn auth_message(challenge: &[u8], responder: NodeId, agreed: &Agreed) -> Vec<u8> {
    let mut message = challenge.to_vec();
    if !agreed.is_protocol8() {
        message.extend_from_slice(&u32::from(responder.get()).to_be_bytes());
    }
    message
}
