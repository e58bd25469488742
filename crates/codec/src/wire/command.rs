//! The commands of the protocol: number, name, stream, scope, who may send them (wire §3.2), and
//! how long their payload may be.
//!
//! One table, [`TABLE`], is the only place that knows these facts. Whatever it does not list is
//! refused, in particular on the control stream, where a kernel peer can crash on an unlisted
//! command: we are as strict with what we send.

use std::fmt;

use super::agreed::Agreed;
use super::header::HeaderVersion;
use super::packet::{Packet, Stream, SyncParamForm, feature};

/// Longest digest: data-integrity, verify, checksum and HMAC algorithms give at most 64 bytes.
pub const MAX_DIGEST: usize = 64;
/// Longest algorithm name, with its NUL (`SHARED_SECRET_MAX`).
pub(super) const NAME_FIELD: usize = 64;
/// Longest bitmap packet, header included.
pub(super) const MAX_BITMAP_PACKET: usize = 4096;
/// Bitmap slots and history entries of P_UUIDS110.
pub(super) const MAX_SLOTS: usize = 32;

/// What a command is about, which its header names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// One volume.
    Volume,
    /// The whole connection: volume 0xffff (0 from peers below protocol 110; nobody looks).
    Connection,
    /// A volume, or the whole connection if the volume is 0xffff.
    Either,
}

/// Streams on which a command may travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Streams {
    /// Data only.
    Data,
    /// Control only.
    Control,
    /// Either.
    Both,
}

impl Streams {
    /// True if `stream` is among them.
    pub const fn contains(self, stream: Stream) -> bool {
        matches!(
            (self, stream),
            (Streams::Both, _)
                | (Streams::Data, Stream::Data)
                | (Streams::Control, Stream::Control)
        )
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    number: u16,
    name: &'static str,
    streams: Streams,
    scope: Scope,
    /// First and last agreed version that has the command; 0 is "before the features".
    versions: (u32, u32),
    /// Feature flags that all have to be agreed.
    features: u32,
    layout: Layout,
}

/// Shape of a payload. Lengths that depend on what is agreed are spelt out in
/// [`Command::lengths`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// Exactly so many bytes.
    Exact(u32),
    /// The 24-byte fixed part, a digest, then data that the decoder does not look at.
    Bulk,
    /// A fixed part of so many bytes, then a digest.
    Digest(u32),
    Bitmap,
    CompressedBitmap,
    SyncParam,
    SyncParam89,
    Protocol,
    Sizes,
    Challenge,
    Uuids110,
}

/// Last version for commands that exist up to today.
const ON: u32 = u32::MAX;
const THIN: u32 = feature::THIN_RESYNC;
const DAGTAG: u32 = feature::RESYNC_DAGTAG;
const REPL: u32 = feature::RESYNC_WITHOUT_REPLICATION;
const JOINT: u32 = feature::JOINT_PRIMARY;

macro_rules! commands {
    ($($number:literal $variant:ident $name:literal $streams:ident $scope:ident $versions:expr, $features:expr, $layout:expr;)+) => {
        /// A command of the protocol.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "named as in the specification's table, wire §3.2")]
        pub enum Command { $($variant),+ }

        impl Command {
            /// Every command, ascending by number.
            pub const ALL: &'static [Command] = &[$(Command::$variant),+];

            /// The command with that number on the wire.
            pub const fn from_number(number: u16) -> Option<Command> {
                match number {
                    $($number => Some(Command::$variant),)+
                    _ => None,
                }
            }
        }

        static TABLE: [Line; Command::ALL.len()] = {
            use Layout::*;
            [$(Line {
                number: $number,
                name: $name,
                streams: Streams::$streams,
                scope: Scope::$scope,
                versions: $versions,
                features: $features,
                layout: $layout,
            }),+]
        };
    };
}

commands! {
    0x00 Data "P_DATA" Data Volume (86, ON), 0, Bulk;
    0x01 DataReply "P_DATA_REPLY" Data Volume (86, ON), 0, Bulk;
    0x02 RsDataReply "P_RS_DATA_REPLY" Data Volume (86, ON), 0, Bulk;
    0x03 Barrier "P_BARRIER" Data Connection (86, ON), 0, Exact(8);
    0x04 Bitmap "P_BITMAP" Data Volume (86, ON), 0, Bitmap;
    0x07 UnplugRemote "P_UNPLUG_REMOTE" Data Connection (86, ON), 0, Exact(0);
    0x08 DataRequest "P_DATA_REQUEST" Data Volume (86, ON), 0, Exact(24);
    0x09 RsDataRequest "P_RS_DATA_REQUEST" Data Volume (86, ON), 0, Exact(24);
    0x0a SyncParam "P_SYNC_PARAM" Data Volume (86, 88), 0, SyncParam;
    0x0b Protocol "P_PROTOCOL" Data Connection (86, ON), 0, Protocol;
    0x0c Uuids "P_UUIDS" Data Volume (86, 109), 0, Exact(48);
    0x0d Sizes "P_SIZES" Data Volume (86, ON), 0, Sizes;
    0x0e State "P_STATE" Data Either (86, ON), 0, Exact(4);
    0x0f SyncUuid "P_SYNC_UUID" Data Volume (86, 109), 0, Exact(8);
    0x10 AuthChallenge "P_AUTH_CHALLENGE" Data Connection (86, ON), 0, Challenge;
    0x11 AuthResponse "P_AUTH_RESPONSE" Data Connection (86, ON), 0, Digest(0);
    0x12 StateChgReq "P_STATE_CHG_REQ" Data Volume (86, 109), 0, Exact(8);
    0x13 Ping "P_PING" Control Connection (0, ON), 0, Exact(0);
    0x14 PingAck "P_PING_ACK" Control Connection (0, ON), 0, Exact(0);
    0x15 RecvAck "P_RECV_ACK" Control Volume (86, ON), 0, Exact(24);
    0x16 WriteAck "P_WRITE_ACK" Control Volume (86, ON), 0, Exact(24);
    0x17 RsWriteAck "P_RS_WRITE_ACK" Control Volume (86, ON), 0, Exact(24);
    0x18 Superseded "P_SUPERSEDED" Control Volume (86, 121), 0, Exact(24);
    0x19 NegAck "P_NEG_ACK" Control Volume (86, ON), 0, Exact(24);
    0x1a NegDreply "P_NEG_DREPLY" Control Volume (86, ON), 0, Exact(24);
    0x1b NegRsDreply "P_NEG_RS_DREPLY" Control Volume (86, ON), 0, Exact(24);
    0x1c BarrierAck "P_BARRIER_ACK" Control Connection (86, ON), 0, Exact(8);
    0x1d StateChgReply "P_STATE_CHG_REPLY" Control Volume (86, 109), 0, Exact(4);
    0x1e OvRequest "P_OV_REQUEST" Data Volume (88, ON), 0, Exact(24);
    0x1f OvReply "P_OV_REPLY" Data Volume (88, ON), 0, Digest(24);
    0x20 OvResult "P_OV_RESULT" Control Volume (88, 121), 0, Exact(24);
    0x21 CsumRsRequest "P_CSUM_RS_REQUEST" Data Volume (89, ON), 0, Digest(24);
    0x22 RsIsInSync "P_RS_IS_IN_SYNC" Control Volume (89, ON), 0, Exact(24);
    0x23 SyncParam89 "P_SYNC_PARAM89" Data Volume (89, ON), 0, SyncParam89;
    0x24 CompressedBitmap "P_COMPRESSED_BITMAP" Data Volume (90, ON), 0, CompressedBitmap;
    0x27 DelayProbe "P_DELAY_PROBE" Both Connection (93, ON), 0, Exact(8);
    0x28 OutOfSync "P_OUT_OF_SYNC" Data Volume (96, ON), 0, Exact(16);
    0x29 RsCancel "P_RS_CANCEL" Control Volume (95, ON), 0, Exact(24);
    0x2a ConnStChgReq "P_CONN_ST_CHG_REQ" Data Connection (100, 109), 0, Exact(8);
    0x2b ConnStChgReply "P_CONN_ST_CHG_REPLY" Control Connection (100, 109), 0, Exact(4);
    0x2c RetryWrite "P_RETRY_WRITE" Control Volume (100, 121), 0, Exact(24);
    0x2d ProtocolUpdate "P_PROTOCOL_UPDATE" Data Connection (100, ON), 0, Protocol;
    0x2e TwoPcPrepare "P_TWOPC_PREPARE" Data Either (110, ON), 0, Exact(36);
    0x2f TwoPcAbort "P_TWOPC_ABORT" Data Either (110, ON), 0, Exact(36);
    0x30 Dagtag "P_DAGTAG" Data Connection (110, ON), 0, Exact(8);
    0x31 Trim "P_TRIM" Data Volume (86, ON), feature::TRIM, Exact(28);
    0x32 RsThinReq "P_RS_THIN_REQ" Data Volume (86, ON), THIN, Exact(24);
    0x33 RsDeallocated "P_RS_DEALLOCATED" Data Volume (86, 121), THIN, Exact(16);
    0x35 TwoPcPrepRsz "P_TWOPC_PREP_RSZ" Data Either (112, ON), 0, Exact(36);
    0x36 Zeroes "P_ZEROES" Data Volume (86, ON), feature::WZEROES, Exact(28);
    0x40 PeerAck "P_PEER_ACK" Control Connection (110, ON), 0, Exact(16);
    0x41 PeersInSync "P_PEERS_IN_SYNC" Control Volume (110, ON), 0, Exact(24);
    0x42 Uuids110 "P_UUIDS110" Data Volume (110, ON), 0, Uuids110;
    0x43 PeerDagtag "P_PEER_DAGTAG" Data Connection (110, ON), 0, Exact(12);
    0x44 CurrentUuid "P_CURRENT_UUID" Data Volume (110, ON), 0, Exact(16);
    0x45 TwoPcYes "P_TWOPC_YES" Control Either (110, ON), 0, Exact(32);
    0x46 TwoPcNo "P_TWOPC_NO" Control Either (110, ON), 0, Exact(32);
    0x47 TwoPcCommit "P_TWOPC_COMMIT" Data Either (110, ON), 0, Exact(36);
    0x48 TwoPcRetry "P_TWOPC_RETRY" Control Either (110, ON), 0, Exact(32);
    0x49 ConfirmStable "P_CONFIRM_STABLE" Control Connection (114, ON), 0, Exact(24);
    0x4a RsCancelAhead "P_RS_CANCEL_AHEAD" Control Volume (115, ON), 0, Exact(24);
    0x4b Disconnect "P_DISCONNECT" Data Connection (118, ON), 0, Exact(0);
    0x4c RsDagtagReq "P_RS_DAGTAG_REQ" Data Volume (110, ON), DAGTAG, Exact(32);
    0x4d RsCsumDagtagReq "P_RS_CSUM_DAGTAG_REQ" Data Volume (110, ON), DAGTAG, Digest(32);
    0x4e RsThinDagtagReq "P_RS_THIN_DAGTAG_REQ" Data Volume (110, ON), DAGTAG | THIN, Exact(32);
    0x4f OvDagtagReq "P_OV_DAGTAG_REQ" Data Volume (110, ON), DAGTAG, Exact(32);
    0x50 OvDagtagReply "P_OV_DAGTAG_REPLY" Data Volume (110, ON), DAGTAG, Digest(32);
    0x51 WriteAckInSync "P_WRITE_ACK_IN_SYNC" Control Volume (122, ON), 0, Exact(24);
    0x52 RsNegAck "P_RS_NEG_ACK" Control Volume (122, ON), 0, Exact(24);
    0x53 OvResultId "P_OV_RESULT_ID" Control Volume (122, ON), 0, Exact(32);
    0x54 RsDeallocatedId "P_RS_DEALLOCATED_ID" Data Volume (122, ON), THIN, Exact(24);
    0x55 FlushRequests "P_FLUSH_REQUESTS" Data Connection (123, ON), 0, Exact(8);
    0x56 FlushForward "P_FLUSH_FORWARD" Control Connection (123, ON), 0, Exact(12);
    0x57 FlushRequestsAck "P_FLUSH_REQUESTS_ACK" Data Connection (123, ON), 0, Exact(12);
    0x58 EnableReplicationNext "P_ENABLE_REPLICATION_NEXT" Data Volume (110, ON), REPL, Exact(4);
    0x59 EnableReplication "P_ENABLE_REPLICATION" Data Volume (110, ON), REPL, Exact(4);
    0x80 JointData "P_JOINT_DATA" Data Volume (110, ON), JOINT, Bulk;
    0x81 JointTrim "P_JOINT_TRIM" Data Volume (110, ON), JOINT, Exact(28);
    0x82 JointRead "P_JOINT_READ" Data Volume (110, ON), JOINT, Exact(24);
    0x83 JointFlush "P_JOINT_FLUSH" Data Volume (110, ON), JOINT, Exact(8);
    0x84 JointReply "P_JOINT_REPLY" Data Volume (110, ON), JOINT, Bulk;
    0x85 JointDone "P_JOINT_DONE" Data Volume (110, ON), JOINT, Exact(16);
    0x86 Joint "P_JOINT" Data Connection (110, ON), JOINT, Exact(8);
    0xfff1 InitialMeta "P_INITIAL_META" Control Connection (0, 0), 0, Exact(0);
    0xfff2 InitialData "P_INITIAL_DATA" Data Connection (0, 0), 0, Exact(0);
    0xfffe ConnectionFeatures "P_CONNECTION_FEATURES" Data Connection (0, 0), 0, Exact(72);
}

impl Command {
    /// The number on the wire.
    pub const fn number(self) -> u16 {
        self.line().number
    }

    /// The name as in DRBD: `P_DATA`.
    pub const fn name(self) -> &'static str {
        self.line().name
    }

    /// The streams it may travel on.
    pub const fn streams(self) -> Streams {
        self.line().streams
    }

    /// What its header's volume means.
    pub const fn scope(self) -> Scope {
        self.line().scope
    }

    /// True if version and features allow it. Before the features are exchanged (version 0)
    /// that is initial packets, the features and pings; afterwards everything but the former.
    pub const fn is_agreed(self, agreed: &Agreed) -> bool {
        let line = self.line();
        line.versions.0 <= agreed.version
            && agreed.version <= line.versions.1
            && agreed.has(line.features)
    }

    /// True for packets whose data are not decoded, see [`Packet::payload_len`].
    pub const fn is_bulk(self) -> bool {
        matches!(self.line().layout, Layout::Bulk)
    }

    /// Shortest and longest payload, digests and data included. `digest` is the length of the
    /// data-integrity digest of the direction in question.
    pub(super) const fn lengths(
        self,
        header: HeaderVersion,
        agreed: &Agreed,
        digest: usize,
    ) -> (u32, u32) {
        const DIGEST: u32 = MAX_DIGEST as u32;
        const NAME: u32 = NAME_FIELD as u32;
        let bitmap = (MAX_BITMAP_PACKET - header.size()) as u32;
        match self.line().layout {
            Layout::Exact(len) => (len, len),
            Layout::Bulk => {
                let fixed = FIXED_BULK as u32 + digest as u32;
                (fixed + 512, fixed + agreed.max_data())
            }
            Layout::Digest(fixed) => (fixed + 1, fixed + DIGEST),
            Layout::Bitmap => (0, bitmap),
            Layout::CompressedBitmap => (2, bitmap),
            Layout::SyncParam if agreed.version < 88 => (4, 4),
            Layout::SyncParam => (4 + 1, 4 + NAME),
            Layout::SyncParam89 if agreed.version < 95 => (132, 132),
            Layout::SyncParam89 => (148, 148),
            Layout::Protocol if agreed.version < 87 => (24, 24),
            Layout::Protocol => (24 + 1, 24 + NAME),
            Layout::Sizes if agreed.has(feature::WSAME) => (56, 56),
            Layout::Sizes => (32, 32),
            Layout::Challenge if agreed.is_protocol8() => (64, 128),
            Layout::Challenge => (64, 64),
            Layout::Uuids110 => (40, 40 + 8 * 2 * MAX_SLOTS as u32),
        }
    }

    const fn line(self) -> &'static Line {
        &TABLE[self as usize]
    }
}

/// Bytes of a bulk packet that are decoded.
pub(super) const FIXED_BULK: usize = 24;

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

macro_rules! command_of {
    ($packet:expr, $($variant:ident)+) => {
        match $packet {
            Packet::SyncParam(_, param) => match param.form {
                SyncParamForm::Old => Command::SyncParam,
                SyncParamForm::V89 | SyncParamForm::V95 => Command::SyncParam89,
            },
            $(Packet::$variant { .. } => Command::$variant,)+
        }
    };
}

impl Packet {
    /// The command this packet travels under.
    pub fn command(&self) -> Command {
        command_of!(self,
            Data DataReply RsDataReply Barrier Bitmap UnplugRemote DataRequest RsDataRequest
            Protocol Uuids Sizes State SyncUuid AuthChallenge AuthResponse StateChgReq Ping PingAck
            RecvAck WriteAck RsWriteAck Superseded NegAck NegDreply NegRsDreply BarrierAck
            StateChgReply OvRequest OvReply OvResult CsumRsRequest RsIsInSync CompressedBitmap
            DelayProbe OutOfSync RsCancel ConnStChgReq ConnStChgReply RetryWrite ProtocolUpdate
            TwoPcPrepare TwoPcAbort Dagtag Trim RsThinReq RsDeallocated TwoPcPrepRsz Zeroes PeerAck
            PeersInSync Uuids110 PeerDagtag CurrentUuid TwoPcYes TwoPcNo TwoPcCommit TwoPcRetry
            ConfirmStable RsCancelAhead Disconnect RsDagtagReq RsCsumDagtagReq RsThinDagtagReq
            OvDagtagReq OvDagtagReply WriteAckInSync RsNegAck OvResultId RsDeallocatedId
            FlushRequests FlushForward FlushRequestsAck EnableReplicationNext EnableReplication
            JointData JointTrim JointRead JointFlush JointReply JointDone Joint
            InitialMeta InitialData ConnectionFeatures
        )
    }

    /// The stream it is sent on (P_DELAY_PROBE, which may come on both and is never sent: data).
    pub fn stream(&self) -> Stream {
        match self.command().streams() {
            Streams::Control => Stream::Control,
            Streams::Data | Streams::Both => Stream::Data,
        }
    }

    /// Bytes of data that follow the decoded part on the stream: 0 except for P_DATA,
    /// P_DATA_REPLY, P_RS_DATA_REPLY, P_JOINT_DATA and P_JOINT_REPLY. A data-integrity digest, if agreed on, comes between
    /// the two and is not counted.
    pub fn payload_len(&self) -> usize {
        match self {
            Packet::Data(_, data)
            | Packet::DataReply(_, data)
            | Packet::RsDataReply(_, data)
            | Packet::JointData(_, data)
            | Packet::JointReply(_, data) => data.range.len.bytes().0 as usize,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_ascending_and_numbers_lead_back() {
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
        for (index, command) in Command::ALL.iter().enumerate() {
            assert_eq!(*command as usize, index);
            assert_eq!(Command::from_number(command.number()), Some(*command));
            assert!(command.name().starts_with("P_"));
            assert!(TABLE[index].versions.0 <= TABLE[index].versions.1);
        }
        let known = (0..=u16::MAX).filter(|nr| Command::from_number(*nr).is_some()).count();
        assert_eq!(known, Command::ALL.len());
    }

    #[test]
    fn dead_and_reserved_numbers_are_unknown() {
        for number in [0x05, 0x06, 0x25, 0x26, 0x34, 0x37, 0x3f, 0x5a, 0x100, 0xfff0, 0xffff] {
            assert_eq!(Command::from_number(number), None, "{number:#x}");
        }
    }

    #[test]
    fn control_commands_are_those_of_the_specification() {
        let control: Vec<u16> = Command::ALL
            .iter()
            .filter(|c| c.streams().contains(Stream::Control))
            .map(|c| c.number())
            .collect();
        let expected: Vec<u16> = (0x13..=0x1d)
            .chain([0x20, 0x22, 0x27, 0x29, 0x2b, 0x2c, 0x40, 0x41, 0x45, 0x46, 0x48, 0x49, 0x4a])
            .chain([0x51, 0x52, 0x53, 0x56, 0xfff1])
            .collect();
        assert_eq!(control, expected);
    }

    #[test]
    fn nothing_but_greetings_and_pings_exists_before_the_features() {
        let early: Vec<&str> = Command::ALL
            .iter()
            .filter(|c| c.is_agreed(&Agreed::NOTHING))
            .map(|c| c.name())
            .collect();
        let expected =
            ["P_PING", "P_PING_ACK", "P_INITIAL_META", "P_INITIAL_DATA", "P_CONNECTION_FEATURES"];
        assert_eq!(early, expected);
    }

    #[test]
    fn versions_and_features_gate_commands() {
        let ours = Agreed::new(122, feature::OURS);
        let old = Agreed::new(101, 0xf);
        assert!(Command::RsDagtagReq.is_agreed(&ours) && !Command::RsDagtagReq.is_agreed(&old));
        assert!(!Command::FlushRequests.is_agreed(&ours));
        assert!(!Command::EnableReplication.is_agreed(&ours));
        assert!(Command::Uuids.is_agreed(&old) && !Command::Uuids.is_agreed(&ours));
        assert!(!Command::Trim.is_agreed(&Agreed::new(122, 0)));
        assert!(!Command::ConnectionFeatures.is_agreed(&ours));
    }
}
