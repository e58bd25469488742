//! Packet headers (wire §2). They tell their own version by their first bytes.
//!
//! ```text
//! version  80:  magic be32 83740267  command be16  length be16
//! version  95:  magic be16 835a      command be16  length be32
//! version 100:  magic be32 8620ec20  volume be16   command be16  length be32  pad be32 = 0
//! ```
//! The length does not count the header. Versions 80 and 95 imply volume 0.

use vocab::VolumeNr;

use super::agreed::Agreed;
use super::command::{Command, FIXED_BULK, Scope};
use super::error::WireError;
use super::packet::Stream;

const MAGIC_80: [u8; 4] = 0x8374_0267_u32.to_be_bytes();
const MAGIC_95: [u8; 2] = 0x835a_u16.to_be_bytes();
const MAGIC_100: [u8; 4] = 0x8620_ec20_u32.to_be_bytes();

/// Header volume of packets about the whole connection.
const WHOLE_CONNECTION: u16 = 0xffff;

/// Size of the longest header.
pub const MAX_HEADER: usize = 16;

/// Layouts of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderVersion {
    /// 8 bytes, payload up to 64 KiB.
    V80,
    /// 8 bytes, larger payloads of protocol 95 to 99.
    V95,
    /// 16 bytes, with volume; everything at protocol 100 and above.
    V100,
}

impl HeaderVersion {
    /// Bytes of the header.
    pub const fn size(self) -> usize {
        match self {
            HeaderVersion::V80 | HeaderVersion::V95 => 8,
            HeaderVersion::V100 => 16,
        }
    }

    /// The protocol version it came with.
    pub const fn number(self) -> u32 {
        match self {
            HeaderVersion::V80 => 80,
            HeaderVersion::V95 => 95,
            HeaderVersion::V100 => 100,
        }
    }

    /// True if this version may come on `stream`. Data streams are strict. On the control stream
    /// the peer may be a step ahead or behind: its first pings can overtake its features, and it
    /// may answer ours before it has read them ([`check`] lets nothing but pings through then).
    const fn may_come(self, stream: Stream, agreed: &Agreed) -> bool {
        match (self, agreed.version) {
            (HeaderVersion::V100, 100..) => true,
            (HeaderVersion::V100, version) => version == 0 && matches!(stream, Stream::Control),
            (HeaderVersion::V95, version) => 95 <= version && version < 100,
            (HeaderVersion::V80, 100..) => matches!(stream, Stream::Control),
            (HeaderVersion::V80, _) => true,
        }
    }
}

/// A header that has passed every check that needs no payload: its command exists, may travel on
/// its stream with what is agreed, names a volume if it has to, and its length is within limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    version: HeaderVersion,
    volume: u16,
    command: Command,
    len: u32,
}

impl Header {
    /// Layout of the header itself.
    pub const fn version(&self) -> HeaderVersion {
        self.version
    }

    /// Bytes of the header itself.
    pub const fn size(&self) -> usize {
        self.version.size()
    }

    /// The command.
    pub const fn command(&self) -> Command {
        self.command
    }

    /// Volume number, or `None` if the packet is about the whole connection.
    pub const fn volume(&self) -> Option<VolumeNr> {
        match self.command.scope() {
            Scope::Connection => None,
            Scope::Volume | Scope::Either if self.volume == WHOLE_CONNECTION => None,
            Scope::Volume | Scope::Either => Some(VolumeNr(self.volume)),
        }
    }

    /// Bytes behind the header, digest and data included.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True if nothing follows the header.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that [`decode`](super::decode()) needs: all of the payload, but only the first 24
    /// bytes of P_DATA, P_DATA_REPLY and P_RS_DATA_REPLY.
    pub const fn fixed_len(&self) -> usize {
        if self.command.is_bulk() { FIXED_BULK } else { self.len as usize }
    }

    /// Bytes of the digest behind them: the peer's, of the data of P_DATA, P_DATA_REPLY and
    /// P_RS_DATA_REPLY, and none for other packets. `agreed` is what the header was decoded with.
    pub const fn digest_len(&self, agreed: &Agreed) -> usize {
        if self.command.is_bulk() { agreed.peer_digest_len } else { 0 }
    }
}

/// Reads the header at the start of `bytes` and checks everything that needs no payload, so that
/// no buffer is sized by an unchecked length. `None` means that more bytes are needed, at most
/// [`MAX_HEADER`].
///
/// # Errors
/// Whatever is wrong with the header; nothing was consumed and the stream cannot go on.
pub fn decode_header(
    bytes: &[u8],
    stream: Stream,
    agreed: &Agreed,
) -> Result<Option<Header>, WireError> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let version = match *magic {
        MAGIC_80 => HeaderVersion::V80,
        MAGIC_100 => HeaderVersion::V100,
        [a, b, ..] if [a, b] == MAGIC_95 => HeaderVersion::V95,
        other => return Err(WireError::Magic(other)),
    };
    if !version.may_come(stream, agreed) {
        return Err(WireError::HeaderVersion { stream, agreed: agreed.version, found: version });
    }
    let (volume, number, len) = match version {
        HeaderVersion::V80 => {
            let Some(([c0, c1, l0, l1], _)) = rest.split_first_chunk() else { return Ok(None) };
            (0, u16::from_be_bytes([*c0, *c1]), u32::from(u16::from_be_bytes([*l0, *l1])))
        }
        HeaderVersion::V95 => {
            let Some((len, _)) = rest.split_first_chunk() else { return Ok(None) };
            (0, u16::from_be_bytes([magic[2], magic[3]]), u32::from_be_bytes(*len))
        }
        HeaderVersion::V100 => {
            let Some((rest, _)) = rest.split_first_chunk::<12>() else { return Ok(None) };
            let [v0, v1, c0, c1, l0, l1, l2, l3, pad @ ..] = *rest;
            let pad = u32::from_be_bytes(pad);
            if pad != 0 {
                return Err(WireError::HeaderPad(pad));
            }
            let len = u32::from_be_bytes([l0, l1, l2, l3]);
            (u16::from_be_bytes([v0, v1]), u16::from_be_bytes([c0, c1]), len)
        }
    };
    let command =
        Command::from_number(number).ok_or(WireError::UnknownCommand { stream, number })?;
    check(command, version, stream, agreed)?;
    // Protocol 8 has no packet about the whole connection that could be about a volume as well.
    let volume_only = command.scope() == Scope::Volume
        || command.scope() == Scope::Either && agreed.is_protocol8();
    if volume_only && volume == WHOLE_CONNECTION {
        return Err(WireError::NoVolume(command));
    }
    let allowed = command.lengths(version, agreed, agreed.peer_digest_len);
    if len < allowed.0 || allowed.1 < len {
        return Err(WireError::Length { command, len, allowed });
    }
    Ok(Some(Header { version, volume, command, len }))
}

/// Stream, version and features.
fn check(
    command: Command,
    header: HeaderVersion,
    stream: Stream,
    agreed: &Agreed,
) -> Result<(), WireError> {
    if !command.streams().contains(stream) {
        return Err(WireError::WrongStream { command, stream });
    }
    if !command.is_agreed(agreed) {
        let (version, features) = (agreed.version, agreed.features);
        return Err(WireError::NotAgreed { command, version, features });
    }
    // A ping may overtake the features, or be overtaken by them, on the other stream.
    let belated = header == HeaderVersion::V80 && agreed.version >= 100;
    let early = header == HeaderVersion::V100 && agreed.version == 0;
    if (belated || early) && !matches!(command, Command::Ping | Command::PingAck) {
        return Err(WireError::HeaderVersion { stream, agreed: agreed.version, found: header });
    }
    Ok(())
}

/// Bytes of a header for `command`, of which the first [`HeaderVersion::size`] count.
pub(super) fn emit(
    command: Command,
    volume: Option<VolumeNr>,
    len: u32,
    agreed: &Agreed,
) -> ([u8; MAX_HEADER], HeaderVersion) {
    let version = agreed.header_version(len);
    let has_volumes = version == HeaderVersion::V100;
    assert!(has_volumes || volume.is_none_or(|nr| nr.0 == 0), "one volume below protocol 100");
    assert!(
        volume.is_some() || command.scope() == Scope::Connection || !agreed.is_protocol8(),
        "{command} names a volume below protocol 110"
    );
    let mut bytes = [0; MAX_HEADER];
    let number = command.number().to_be_bytes();
    match version {
        HeaderVersion::V80 => {
            let len = u16::try_from(len).expect("lengths below protocol 95 are below 64 KiB");
            bytes[0..4].copy_from_slice(&MAGIC_80);
            bytes[4..6].copy_from_slice(&number);
            bytes[6..8].copy_from_slice(&len.to_be_bytes());
        }
        HeaderVersion::V95 => {
            bytes[0..2].copy_from_slice(&MAGIC_95);
            bytes[2..4].copy_from_slice(&number);
            bytes[4..8].copy_from_slice(&len.to_be_bytes());
        }
        HeaderVersion::V100 => {
            // Peers of protocol 8 put 0 here in packets about the connection, and ignore it.
            let whole = if agreed.is_protocol8() { 0 } else { WHOLE_CONNECTION };
            let volume = volume.map_or(whole, |volume| volume.0);
            bytes[0..4].copy_from_slice(&MAGIC_100);
            bytes[4..6].copy_from_slice(&volume.to_be_bytes());
            bytes[6..8].copy_from_slice(&number);
            bytes[8..12].copy_from_slice(&len.to_be_bytes());
        }
    }
    (bytes, version)
}
