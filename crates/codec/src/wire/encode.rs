//! Packets to bytes (wire §2 and §3.3). The inverse of [`decode`](super::decode()).
//!
//! What we send is our own reasoning, so it is asserted rather than refused: a malformed packet
//! can crash a kernel peer, and an assertion here costs one node whose peers carry on.

use vocab::{GenUuid, NodeMask, SECTOR_SIZE, SectorRange, VolumeNr};

use super::agreed::Agreed;
use super::command::{Command, FIXED_BULK, NAME_FIELD, Scope};
use super::header::{self, HeaderVersion, MAX_HEADER};
use super::packet::*;

/// Appends the bytes of `packet`, header included, to `out`.
///
/// Where [`Packet::payload_len`] is not 0, only header and fixed part are appended; the
/// caller sends the digest (if [`Agreed::own_digest_len`] is not 0) and [`Packet::payload_len`]
/// bytes of data right behind them. Initial packets and P_CONNECTION_FEATURES are encoded with
/// [`Agreed::NOTHING`]. Requests of a two-phase commit get the layout agreed with this peer,
/// whatever layout they came in.
///
/// # Panics
/// If the packet may not be sent with what is agreed or breaks a rule that
/// [`decode`](super::decode()) checks in what peers send.
pub fn encode(packet: &Packet, agreed: &Agreed, out: &mut Vec<u8>) {
    let command = packet.command();
    assert!(command.is_agreed(agreed), "{command} is sent only where it is agreed: {agreed:?}");
    let start = out.len();
    // The placeholder has the right size unless version 95 comes in, which has 80's.
    let head = agreed.header_version(0).size();
    out.extend_from_slice(&[0; MAX_HEADER][..head]);
    let volume = Encoder { agreed, out }.packet(packet);
    assert_eq!(volume.is_none(), command.scope() == Scope::Connection || is_whole(packet));

    let mut len = out.len() - start - head;
    if command.is_bulk() {
        debug_assert_eq!(len, FIXED_BULK);
        len += agreed.own_digest_len + packet.payload_len();
    }
    let len = u32::try_from(len).expect("payloads are limited to 1 MiB");
    let (bytes, version) = header::emit(command, volume, len, agreed);
    check_length(command, version, len, agreed);
    out[start..start + head].copy_from_slice(&bytes[..head]);
}

fn check_length(command: Command, version: HeaderVersion, len: u32, agreed: &Agreed) {
    let (min, max) = command.lengths(version, agreed, agreed.own_digest_len);
    assert!(min <= len && len <= max, "{command} has {len} bytes, allowed are {min} to {max}");
}

/// True for packets about a volume or the connection that are about the connection.
fn is_whole(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::State(None, _)
            | Packet::TwoPcPrepare(None, _)
            | Packet::TwoPcAbort(None, _)
            | Packet::TwoPcPrepRsz(None, _)
            | Packet::TwoPcCommit(None, _)
            | Packet::TwoPcYes(None, _)
            | Packet::TwoPcNo(None, _)
            | Packet::TwoPcRetry(None, _)
    )
}

struct Encoder<'a> {
    agreed: &'a Agreed,
    out: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    /// Appends the payload and returns the header's volume.
    fn packet(mut self, packet: &Packet) -> Option<VolumeNr> {
        let volume = match packet {
            Packet::Data(volume, data) => {
                assert!(!data.flags.has(DataFlags::WSAME), "write-same is withdrawn");
                self.data(data);
                Some(*volume)
            }
            Packet::DataReply(volume, data)
            | Packet::RsDataReply(volume, data)
            | Packet::JointData(volume, data)
            | Packet::JointReply(volume, data) => {
                self.data(data);
                Some(*volume)
            }
            Packet::Bitmap(volume, bitmap) => {
                bitmap.words.iter().for_each(|word| self.bytes(&word.to_le_bytes()));
                Some(*volume)
            }
            Packet::CompressedBitmap(volume, bitmap) => {
                self.bytes(&bitmap.bytes);
                Some(*volume)
            }
            Packet::DataRequest(volume, req)
            | Packet::RsDataRequest(volume, req)
            | Packet::OvRequest(volume, req)
            | Packet::RsThinReq(volume, req)
            | Packet::JointRead(volume, req) => {
                self.block_req(req);
                Some(*volume)
            }
            Packet::OvReply(volume, req, digest) | Packet::CsumRsRequest(volume, req, digest) => {
                self.block_req(req);
                self.bytes(digest);
                Some(*volume)
            }
            Packet::RsDagtagReq(volume, req)
            | Packet::RsThinDagtagReq(volume, req)
            | Packet::OvDagtagReq(volume, req) => {
                self.rs_req(req);
                Some(*volume)
            }
            Packet::RsCsumDagtagReq(volume, req, digest)
            | Packet::OvDagtagReply(volume, req, digest) => {
                self.rs_req(req);
                self.bytes(digest);
                Some(*volume)
            }
            Packet::RecvAck(volume, ack)
            | Packet::WriteAck(volume, ack)
            | Packet::RsWriteAck(volume, ack)
            | Packet::Superseded(volume, ack)
            | Packet::NegAck(volume, ack)
            | Packet::NegDreply(volume, ack)
            | Packet::NegRsDreply(volume, ack)
            | Packet::OvResult(volume, ack)
            | Packet::RsIsInSync(volume, ack)
            | Packet::RsCancel(volume, ack)
            | Packet::RetryWrite(volume, ack)
            | Packet::RsCancelAhead(volume, ack)
            | Packet::WriteAckInSync(volume, ack)
            | Packet::RsNegAck(volume, ack)
            | Packet::RsDeallocatedId(volume, ack) => {
                self.block_ack(ack);
                Some(*volume)
            }
            Packet::OvResultId(volume, ack, result) => {
                self.block_ack(ack);
                self.u32(result.number());
                self.u32(0);
                Some(*volume)
            }
            Packet::OutOfSync(volume, range) | Packet::RsDeallocated(volume, range) => {
                self.u64(range.start.0);
                self.size(*range);
                self.u32(0);
                Some(*volume)
            }
            Packet::PeersInSync(volume, desc) => {
                self.u64(desc.range.start.0);
                self.nodes(desc.mask);
                self.size(desc.range);
                self.u32(0);
                Some(*volume)
            }
            Packet::JointFlush(volume, id) => {
                self.u64(id.0);
                Some(*volume)
            }
            Packet::JointDone(volume, id, result) => {
                self.u64(id.0);
                self.u32(result.number());
                self.u32(0);
                Some(*volume)
            }
            Packet::Trim(volume, trim) | Packet::JointTrim(volume, trim) => {
                self.trim(trim);
                Some(*volume)
            }
            Packet::Zeroes(volume, trim) => {
                // A kernel node would wait for a digest that this packet does not have (wire §5.2).
                let ours = self.agreed.has(feature::BITS_OF_EQUALS);
                assert!(
                    self.agreed.own_digest_len == 0 || ours,
                    "a kernel node gets no P_ZEROES with data integrity"
                );
                self.trim(trim);
                Some(*volume)
            }
            Packet::SyncParam(volume, param) => {
                self.sync_param(param);
                Some(*volume)
            }
            Packet::Uuids(volume, uuids) => {
                self.uuids(uuids);
                Some(*volume)
            }
            Packet::Uuids110(volume, uuids) => {
                self.uuids110(uuids);
                Some(*volume)
            }
            Packet::CurrentUuid(volume, uuid, weak) => {
                self.uuid(*uuid);
                self.nodes(*weak);
                Some(*volume)
            }
            Packet::SyncUuid(volume, uuid) => {
                self.uuid(*uuid);
                Some(*volume)
            }
            Packet::Sizes(volume, sizes) => {
                self.sizes(sizes);
                Some(*volume)
            }
            Packet::StateChgReq(volume, req) => {
                self.req_state(*req);
                Some(*volume)
            }
            Packet::StateChgReply(volume, code) => {
                self.i32(*code);
                Some(*volume)
            }
            Packet::EnableReplicationNext(volume, on) | Packet::EnableReplication(volume, on) => {
                self.bytes(&[u8::from(*on), 0, 0, 0]);
                Some(*volume)
            }
            Packet::State(volume, word) => {
                self.state(*word);
                *volume
            }
            Packet::TwoPcPrepare(volume, twopc)
            | Packet::TwoPcAbort(volume, twopc)
            | Packet::TwoPcPrepRsz(volume, twopc)
            | Packet::TwoPcCommit(volume, twopc) => {
                self.twopc(twopc);
                *volume
            }
            Packet::TwoPcYes(volume, reply)
            | Packet::TwoPcNo(volume, reply)
            | Packet::TwoPcRetry(volume, reply) => {
                self.twopc_reply(reply);
                *volume
            }
            _ => {
                self.connection_packet(packet);
                None
            }
        };
        assert!(volume.is_none_or(|volume| volume <= VolumeNr::MAX), "volume numbers end at 65534");
        volume
    }

    /// Packets about the whole connection.
    fn connection_packet(&mut self, packet: &Packet) {
        match packet {
            Packet::UnplugRemote
            | Packet::Ping
            | Packet::PingAck
            | Packet::Disconnect
            | Packet::InitialMeta
            | Packet::InitialData => {}
            Packet::Barrier(barrier) => {
                self.u32(*barrier);
                self.u32(0);
            }
            Packet::BarrierAck(barrier, set_size) => {
                self.u32(*barrier);
                self.u32(*set_size);
            }
            Packet::Protocol(protocol) | Packet::ProtocolUpdate(protocol) => {
                self.protocol(protocol);
            }
            Packet::AuthChallenge(bytes) | Packet::AuthResponse(bytes) => self.bytes(bytes),
            Packet::DelayProbe(bytes) => self.bytes(bytes),
            Packet::ConnStChgReq(req) => self.req_state(*req),
            Packet::ConnStChgReply(code) => self.i32(*code),
            Packet::Dagtag(dagtag) => self.u64(dagtag.0),
            Packet::PeerAck(ack) => {
                self.nodes(ack.mask);
                self.u64(ack.dagtag.0);
            }
            Packet::PeerDagtag(peer) => {
                self.u64(peer.dagtag.0);
                self.u32(peer.node_id);
            }
            Packet::ConfirmStable(confirm) => {
                self.u64(confirm.oldest.0);
                self.u64(confirm.youngest.0);
                self.u32(confirm.set_size);
                self.u32(0);
            }
            Packet::Joint(word) => {
                self.u32(word.number());
                self.u32(0);
            }
            Packet::FlushRequests(sequence) => self.u64(*sequence),
            Packet::FlushForward(sequence, node) | Packet::FlushRequestsAck(sequence, node) => {
                self.u64(*sequence);
                self.u32(*node);
            }
            Packet::ConnectionFeatures(features) => {
                self.u32(features.protocol_min);
                self.u32(features.feature_flags);
                self.u32(features.protocol_max);
                self.u32(features.sender_node_id);
                self.u32(features.receiver_node_id);
                self.bytes(&[0; 52]);
            }
            other => unreachable!("{} is about a volume", other.command()),
        }
    }

    // -- layouts -------------------------------------------------------------------------------

    fn data(&mut self, data: &Data) {
        self.u64(data.range.start.0);
        self.u64(data.block_id.0);
        self.u32(data.seq);
        self.u32(data.flags.0);
    }

    fn trim(&mut self, trim: &Trim) {
        assert!(!trim.flags.has(DataFlags::WSAME), "write-same is withdrawn");
        let limit = u64::from(self.agreed.max_discard());
        assert!(trim.range.len.bytes().0 <= limit, "discards are split at {limit} bytes");
        self.u64(trim.range.start.0);
        self.u64(trim.block_id.0);
        self.u32(trim.seq);
        self.u32(trim.flags.0);
        self.size(trim.range);
    }

    fn block_ack(&mut self, ack: &BlockAck) {
        self.u64(ack.range.start.0);
        self.u64(ack.block_id.0);
        self.size(ack.range);
        self.u32(ack.seq);
    }

    fn block_req(&mut self, req: &BlockReq) {
        self.u64(req.range.start.0);
        self.u64(req.block_id.0);
        self.size(req.range);
        self.u32(0);
    }

    fn rs_req(&mut self, req: &RsReq) {
        self.u64(req.range.start.0);
        self.u64(req.block_id.0);
        self.size(req.range);
        self.u32(req.dep.node_id);
        self.u64(req.dep.dagtag.0);
    }

    fn protocol(&mut self, protocol: &Protocol) {
        self.u32(protocol.protocol);
        self.u32(protocol.after_sb_0p);
        self.u32(protocol.after_sb_1p);
        self.u32(protocol.after_sb_2p);
        self.u32(protocol.conn_flags);
        self.u32(protocol.two_primaries);
        if self.agreed.version >= 87 {
            self.last_name(&protocol.integrity_alg);
        }
    }

    fn sync_param(&mut self, param: &SyncParam) {
        self.u32(param.resync_rate);
        match param.form {
            SyncParamForm::Old if self.agreed.version >= 88 => self.last_name(&param.verify_alg),
            SyncParamForm::Old => {}
            // The length check refuses the form that is not the agreed one.
            SyncParamForm::V89 | SyncParamForm::V95 => {
                self.name_field(&param.verify_alg);
                self.name_field(&param.csums_alg);
                if param.form == SyncParamForm::V95 {
                    self.u32(param.c_plan_ahead);
                    self.u32(param.c_delay_target);
                    self.u32(param.c_fill_target);
                    self.u32(param.c_max_rate);
                }
            }
        }
    }

    fn sizes(&mut self, sizes: &Sizes) {
        self.u64(sizes.d_size.0);
        self.u64(sizes.u_size.0);
        self.u64(sizes.c_size.0);
        self.u32(sizes.max_bio_size);
        self.u16(sizes.queue_order_type);
        self.u16(sizes.dds_flags);
        // The length check refuses limits that are not agreed, and their absence.
        if let Some(limits) = sizes.limits {
            self.u32(limits.physical_block_size);
            self.u32(limits.logical_block_size);
            self.u32(limits.alignment_offset);
            self.u32(limits.io_min);
            self.u32(limits.io_opt);
            self.bytes(&[
                limits.discard_enabled,
                limits.discard_zeroes_data,
                limits.write_same_capable,
                limits.bm_block_shift,
            ]);
        }
    }

    fn uuids(&mut self, uuids: &Uuids) {
        self.uuid(uuids.current);
        self.uuid(uuids.bitmap);
        uuids.history.iter().for_each(|uuid| self.uuid(*uuid));
        self.u64(uuids.dirty_bits);
        self.u64(uuids.flags.0);
    }

    fn uuids110(&mut self, uuids: &Uuids110) {
        let slots = &uuids.bitmap_uuids;
        assert!(slots.is_sorted_by(|a, b| a.0 < b.0), "one bitmap UUID per node, ascending");
        assert!(slots.last().is_none_or(|last| last.0 < 32), "node ids end at 31");
        assert!(uuids.history.len() <= 32, "the history has 32 entries");
        self.uuid(uuids.current);
        self.u64(uuids.dirty_bits);
        self.u64(uuids.flags.0);
        self.nodes(uuids.node_mask);
        self.u64(slots.iter().fold(0, |mask, (node, _)| mask | 1 << node));
        slots.iter().for_each(|(_, uuid)| self.uuid(*uuid));
        uuids.history.iter().for_each(|uuid| self.uuid(*uuid));
    }

    fn state(&mut self, word: StateWord) {
        assert!(word.is_defined(), "states have numbers: {:#010x}", word.0);
        let word = if self.agreed.is_protocol8() { word.to_protocol8() } else { word };
        self.u32(word.0);
    }

    fn req_state(&mut self, req: ReqState) {
        let req = req.to_protocol8();
        self.u32(req.mask.0);
        self.u32(req.val.0);
    }

    fn twopc(&mut self, twopc: &TwoPc) {
        self.u32(twopc.tid);
        if self.agreed.has(feature::TWOPC_V2) {
            let node = |id: i32| i8::try_from(id).expect("node ids are -1 to 31") as u8;
            self.u32(twopc.flags | TWOPC_V2);
            self.bytes(&[0, 0, node(twopc.initiator), node(twopc.target)]);
        } else {
            assert!(twopc.initiator >= 0, "the old layout has no sign to tell it by");
            self.i32(twopc.initiator);
            self.i32(twopc.target);
        }
        self.nodes(twopc.nodes_to_reach);
        self.u64(twopc.word20);
        self.u64(twopc.word28);
    }

    fn twopc_reply(&mut self, reply: &TwoPcReply) {
        self.u32(reply.tid);
        self.i32(reply.initiator);
        self.nodes(reply.reachable_nodes);
        self.nodes(reply.primary_nodes);
        self.nodes(reply.weak_nodes);
    }

    // -- fields --------------------------------------------------------------------------------

    /// A range's length in bytes.
    fn size(&mut self, range: SectorRange) {
        let bytes = range.len.0.checked_mul(SECTOR_SIZE).and_then(|n| u32::try_from(n).ok());
        let bytes = bytes.expect("ranges on the wire are below 4 GiB");
        assert!(bytes > 0, "ranges on the wire are not empty");
        self.u32(bytes);
    }

    /// A name that fills the rest of the payload.
    fn last_name(&mut self, name: &[u8]) {
        check_name(name);
        self.bytes(name);
        self.bytes(&[0]);
    }

    /// A zero-padded name of fixed width.
    fn name_field(&mut self, name: &[u8]) {
        check_name(name);
        self.bytes(name);
        self.bytes(&[0; NAME_FIELD][name.len()..]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.bytes(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    fn uuid(&mut self, uuid: GenUuid) {
        self.u64(uuid.0);
    }

    fn nodes(&mut self, mask: NodeMask) {
        self.u64(mask.0);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}

fn check_name(name: &[u8]) {
    assert!(name.len() < NAME_FIELD && !name.contains(&0), "names have up to 63 bytes and no NUL");
}
