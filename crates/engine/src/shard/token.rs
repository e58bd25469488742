//! What the completions of a thread's ring are for.
//!
//! ```text
//! bits 63..56  space: NBD server, mailbox, link, disk, listener, ublk devices, vhost-user devices
//! link:        55..53 kind | 52..48 peer's node id | 47..32 resource on this thread | 31..0 serial
//! disk:        31..0 job on this thread
//! listener:    31..0 listener on this thread
//! ```
//!
//! A serial names one socket for as long as the thread lives, so a late completion of a socket
//! that is gone finds nothing.

use runtime::Token;
use vocab::NodeId;

/// Space of the NBD server; it makes its own tokens below it.
pub(crate) const NBD_SPACE: u8 = 1;
/// The mailbox.
pub(crate) const MAILBOX: Token = Token(2 << 56);

/// Space of the ublk devices; they make their own tokens below it.
pub(crate) const UBLK_SPACE: u8 = 6;
/// Space of the vhost-user devices; they make their own tokens below it.
pub(crate) const VHOST_SPACE: u8 = 7;

const LINK: u64 = 3;
const DISK: u64 = 4;
const LISTENER: u64 = 5;

/// What a socket of a link was asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketOp {
    /// Connect.
    Connect,
    /// Receive.
    Receive,
    /// Send.
    Send,
}

/// Names a socket of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkToken {
    pub(crate) op: SocketOp,
    pub(crate) resource: u16,
    pub(crate) node: NodeId,
    pub(crate) serial: u32,
}

impl LinkToken {
    pub(crate) fn token(self) -> Token {
        Token(
            LINK << 56
                | (self.op as u64) << 53
                | u64::from(self.node.get()) << 48
                | u64::from(self.resource) << 32
                | u64::from(self.serial),
        )
    }
}

/// The token of a disk job.
pub(crate) fn disk(job: u32) -> Token {
    Token(DISK << 56 | u64::from(job))
}

/// The token of a listener's accept.
pub(crate) fn listener(index: u32) -> Token {
    Token(LISTENER << 56 | u64::from(index))
}

/// What a token of this module is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Nbd,
    Mailbox,
    Link(LinkToken),
    Disk(u32),
    Listener(u32),
    Ublk,
    Vhost,
}

/// Takes a token apart.
///
/// # Panics
/// If no part of this thread made it.
pub(crate) fn purpose(token: Token) -> Purpose {
    let Token(bits) = token;
    match bits >> 56 {
        space if space == u64::from(NBD_SPACE) => Purpose::Nbd,
        space if space == u64::from(UBLK_SPACE) => Purpose::Ublk,
        space if space == u64::from(VHOST_SPACE) => Purpose::Vhost,
        LINK => Purpose::Link(LinkToken {
            op: match bits >> 53 & 7 {
                0 => SocketOp::Connect,
                1 => SocketOp::Receive,
                _ => SocketOp::Send,
            },
            resource: (bits >> 32) as u16,
            node: NodeId::new((bits >> 48 & 31) as u8).expect("five bits are a node id"),
            serial: bits as u32,
        }),
        DISK => Purpose::Disk(bits as u32),
        LISTENER => Purpose::Listener(bits as u32),
        _ if token == MAILBOX => Purpose::Mailbox,
        _ => panic!("completion with unknown token {bits:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_what_they_are_for() {
        for op in [SocketOp::Connect, SocketOp::Receive, SocketOp::Send] {
            let node = NodeId::new(31).unwrap();
            let link = LinkToken { op, resource: 65_535, node, serial: u32::MAX };
            assert_eq!(purpose(link.token()), Purpose::Link(link));
        }
        assert_eq!(purpose(disk(7)), Purpose::Disk(7));
        assert_eq!(purpose(listener(7)), Purpose::Listener(7));
        assert_eq!(purpose(MAILBOX), Purpose::Mailbox);
        assert_eq!(purpose(Token(1 << 56 | 5)), Purpose::Nbd);
        assert_eq!(purpose(Token(6 << 56 | 5)), Purpose::Ublk);
        assert_eq!(purpose(Token(7 << 56 | 5)), Purpose::Vhost);
    }
}
