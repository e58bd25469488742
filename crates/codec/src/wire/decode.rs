//! Payload bytes to packets (wire §3.3).
//!
//! [`decode_header`](super::decode_header()) has checked the length before a payload is even
//! received; here every field is checked that can be without knowing the device. Padding inside
//! payloads is ignored, as kernel peers do: old ones leave it uninitialised. Fields marked opaque
//! are read as big-endian numbers, which keeps their bytes.

use vocab::{Dagtag, GenUuid, NodeMask, SECTOR_SIZE, SectorRange, Sectors, VolumeNr};

use super::agreed::Agreed;
use super::bitmap;
use super::command::{Command, FIXED_BULK, MAX_SLOTS, NAME_FIELD};
use super::digest::Digest;
use super::error::{Rule, WireError};
use super::header::Header;
use super::packet::*;

/// Sectors whose byte offset still fits into 64 bits. Sizes of real devices end far below; the
/// bound keeps arithmetic on sectors from overflowing everywhere behind the decoder.
const COUNTABLE_SECTORS: u64 = u64::MAX / SECTOR_SIZE;

/// Decodes the payload behind `header`.
///
/// `fixed` holds the [`Header::fixed_len`] bytes behind the header. The digest and the data of a
/// packet that has some, [`Packet::payload_len`] bytes, are still to be received. `agreed` must be what the header was decoded with.
///
/// # Errors
/// The rule the peer has broken. The stream cannot go on.
pub fn decode(header: Header, fixed: &[u8], agreed: &Agreed) -> Result<Packet, WireError> {
    let command = header.command();
    if fixed.len() != header.fixed_len() {
        let expected = header.fixed_len() as u32;
        let len = u32::try_from(fixed.len()).unwrap_or(u32::MAX);
        return Err(WireError::Length { command, len, allowed: (expected, expected) });
    }
    Decoder { header, agreed, rest: fixed }.packet()
}

/// A cursor over one payload. Each taker returns the length error of the packet at its end,
/// which cannot happen once the header is checked, so that nothing here can panic.
struct Decoder<'a> {
    header: Header,
    agreed: &'a Agreed,
    rest: &'a [u8],
}

type Decoded<T> = Result<T, WireError>;

impl Decoder<'_> {
    fn packet(mut self) -> Decoded<Packet> {
        // The order is the command table's.
        Ok(match self.header.command() {
            Command::Data => {
                let data = self.data()?;
                self.no_write_same(data.flags)?;
                Packet::Data(self.volume()?, data)
            }
            Command::DataReply => Packet::DataReply(self.volume()?, self.data()?),
            Command::RsDataReply => Packet::RsDataReply(self.volume()?, self.data()?),
            Command::Barrier => Packet::Barrier(self.u32()?),
            Command::Bitmap => Packet::Bitmap(self.volume()?, self.bitmap_words()?),
            Command::UnplugRemote => Packet::UnplugRemote,
            Command::DataRequest => Packet::DataRequest(self.volume()?, self.block_req()?),
            Command::RsDataRequest => Packet::RsDataRequest(self.volume()?, self.block_req()?),
            Command::SyncParam => Packet::SyncParam(self.volume()?, Box::new(self.sync_param()?)),
            Command::Protocol => Packet::Protocol(Box::new(self.protocol()?)),
            Command::Uuids => Packet::Uuids(self.volume()?, Box::new(self.uuids()?)),
            Command::Sizes => Packet::Sizes(self.volume()?, Box::new(self.sizes()?)),
            Command::State => Packet::State(self.header.volume(), self.state()?),
            Command::SyncUuid => Packet::SyncUuid(self.volume()?, self.uuid()?),
            Command::AuthChallenge => Packet::AuthChallenge(self.all()),
            Command::AuthResponse => Packet::AuthResponse(self.all()),
            Command::StateChgReq => Packet::StateChgReq(self.volume()?, self.req_state()?),
            Command::Ping => Packet::Ping,
            Command::PingAck => Packet::PingAck,
            Command::RecvAck => Packet::RecvAck(self.volume()?, self.block_ack()?),
            Command::WriteAck => Packet::WriteAck(self.volume()?, self.block_ack()?),
            Command::RsWriteAck => Packet::RsWriteAck(self.volume()?, self.block_ack()?),
            Command::Superseded => Packet::Superseded(self.volume()?, self.block_ack()?),
            Command::NegAck => Packet::NegAck(self.volume()?, self.block_ack()?),
            Command::NegDreply => Packet::NegDreply(self.volume()?, self.block_ack()?),
            Command::NegRsDreply => Packet::NegRsDreply(self.volume()?, self.block_ack()?),
            Command::BarrierAck => Packet::BarrierAck(self.u32()?, self.u32()?),
            Command::StateChgReply => Packet::StateChgReply(self.volume()?, self.i32()?),
            Command::OvRequest => Packet::OvRequest(self.volume()?, self.block_req()?),
            Command::OvReply => Packet::OvReply(self.volume()?, self.block_req()?, self.digest()?),
            Command::OvResult => Packet::OvResult(self.volume()?, self.block_ack()?),
            Command::CsumRsRequest => {
                Packet::CsumRsRequest(self.volume()?, self.block_req()?, self.digest()?)
            }
            Command::RsIsInSync => Packet::RsIsInSync(self.volume()?, self.block_ack()?),
            Command::SyncParam89 => {
                Packet::SyncParam(self.volume()?, Box::new(self.sync_param_89()?))
            }
            Command::CompressedBitmap => {
                Packet::CompressedBitmap(self.volume()?, self.compressed_bitmap()?)
            }
            Command::DelayProbe => Packet::DelayProbe(self.take::<8>()?),
            Command::OutOfSync => Packet::OutOfSync(self.volume()?, self.block_desc()?),
            Command::RsCancel => Packet::RsCancel(self.volume()?, self.block_ack()?),
            Command::ConnStChgReq => Packet::ConnStChgReq(self.req_state()?),
            Command::ConnStChgReply => Packet::ConnStChgReply(self.i32()?),
            Command::RetryWrite => Packet::RetryWrite(self.volume()?, self.block_ack()?),
            Command::ProtocolUpdate => Packet::ProtocolUpdate(Box::new(self.protocol()?)),
            Command::TwoPcPrepare => Packet::TwoPcPrepare(self.header.volume(), self.twopc()?),
            Command::TwoPcAbort => Packet::TwoPcAbort(self.header.volume(), self.twopc()?),
            Command::Dagtag => Packet::Dagtag(self.dagtag()?),
            Command::Trim => Packet::Trim(self.volume()?, self.trim()?),
            Command::RsThinReq => Packet::RsThinReq(self.volume()?, self.block_req()?),
            Command::RsDeallocated => Packet::RsDeallocated(self.volume()?, self.block_desc()?),
            Command::TwoPcPrepRsz => Packet::TwoPcPrepRsz(self.header.volume(), self.twopc()?),
            Command::Zeroes => Packet::Zeroes(self.volume()?, self.trim()?),
            Command::PeerAck => {
                Packet::PeerAck(PeerAck { mask: self.nodes()?, dagtag: self.dagtag()? })
            }
            Command::PeersInSync => Packet::PeersInSync(self.volume()?, self.peer_block_desc()?),
            Command::Uuids110 => Packet::Uuids110(self.volume()?, Box::new(self.uuids110()?)),
            Command::PeerDagtag => {
                Packet::PeerDagtag(PeerDagtag { dagtag: self.dagtag()?, node_id: self.u32()? })
            }
            Command::CurrentUuid => {
                Packet::CurrentUuid(self.volume()?, self.uuid()?, self.nodes()?)
            }
            Command::TwoPcYes => Packet::TwoPcYes(self.header.volume(), self.twopc_reply()?),
            Command::TwoPcNo => Packet::TwoPcNo(self.header.volume(), self.twopc_reply()?),
            Command::TwoPcCommit => Packet::TwoPcCommit(self.header.volume(), self.twopc()?),
            Command::TwoPcRetry => Packet::TwoPcRetry(self.header.volume(), self.twopc_reply()?),
            Command::ConfirmStable => Packet::ConfirmStable(ConfirmStable {
                oldest: self.block_id()?,
                youngest: self.block_id()?,
                set_size: self.u32()?,
            }),
            Command::RsCancelAhead => Packet::RsCancelAhead(self.volume()?, self.block_ack()?),
            Command::Disconnect => Packet::Disconnect,
            Command::RsDagtagReq => Packet::RsDagtagReq(self.volume()?, self.rs_req()?),
            Command::RsCsumDagtagReq => {
                Packet::RsCsumDagtagReq(self.volume()?, self.rs_req()?, self.digest()?)
            }
            Command::RsThinDagtagReq => Packet::RsThinDagtagReq(self.volume()?, self.rs_req()?),
            Command::OvDagtagReq => Packet::OvDagtagReq(self.volume()?, self.rs_req()?),
            Command::OvDagtagReply => {
                Packet::OvDagtagReply(self.volume()?, self.rs_req()?, self.digest()?)
            }
            Command::WriteAckInSync => Packet::WriteAckInSync(self.volume()?, self.block_ack()?),
            Command::RsNegAck => Packet::RsNegAck(self.volume()?, self.block_ack()?),
            Command::OvResultId => {
                Packet::OvResultId(self.volume()?, self.block_ack()?, self.ov_result()?)
            }
            Command::RsDeallocatedId => Packet::RsDeallocatedId(self.volume()?, self.block_ack()?),
            Command::FlushRequests => Packet::FlushRequests(self.u64()?),
            Command::FlushForward => Packet::FlushForward(self.u64()?, self.u32()?),
            Command::FlushRequestsAck => Packet::FlushRequestsAck(self.u64()?, self.u32()?),
            Command::EnableReplicationNext => {
                Packet::EnableReplicationNext(self.volume()?, self.enable()?)
            }
            Command::EnableReplication => Packet::EnableReplication(self.volume()?, self.enable()?),
            Command::JointData => {
                let data = self.data()?;
                self.no_write_same(data.flags)?;
                Packet::JointData(self.volume()?, data)
            }
            Command::JointTrim => Packet::JointTrim(self.volume()?, self.trim()?),
            Command::JointRead => Packet::JointRead(self.volume()?, self.block_req()?),
            Command::JointFlush => Packet::JointFlush(self.volume()?, self.block_id()?),
            Command::JointReply => Packet::JointReply(self.volume()?, self.data()?),
            Command::JointDone => {
                let (volume, id) = (self.volume()?, self.block_id()?);
                Packet::JointDone(volume, id, JointResult::from_number(self.u32()?))
            }
            Command::Joint => Packet::Joint(JointWord::from_number(self.u32()?)),
            Command::InitialMeta => Packet::InitialMeta,
            Command::InitialData => Packet::InitialData,
            Command::ConnectionFeatures => Packet::ConnectionFeatures(Features {
                protocol_min: self.u32()?,
                feature_flags: self.u32()?,
                protocol_max: self.u32()?,
                sender_node_id: self.u32()?,
                receiver_node_id: self.u32()?,
            }),
        })
    }

    // -- layouts -------------------------------------------------------------------------------

    /// data: sector, block_id, seq_num, dp_flags; the size follows from the packet's length.
    fn data(&mut self) -> Decoded<Data> {
        let sector = self.u64()?;
        let overhead = (FIXED_BULK + self.agreed.peer_digest_len) as u32;
        let size = self.header.len().saturating_sub(overhead);
        Ok(Data {
            range: self.range(sector, size, self.agreed.max_data())?,
            block_id: self.block_id()?,
            seq: self.u32()?,
            flags: DataFlags(self.u32()?),
        })
    }

    /// trim: data, size.
    fn trim(&mut self) -> Decoded<Trim> {
        let sector = self.u64()?;
        let (block_id, seq, flags) = (self.block_id()?, self.u32()?, DataFlags(self.u32()?));
        let size = self.u32()?;
        self.no_write_same(flags)?;
        let range = self.range(sector, size, self.agreed.max_discard())?;
        Ok(Trim { range, block_id, seq, flags })
    }

    /// block_ack: sector, block_id, blksize, seq_num. It may answer a discard.
    fn block_ack(&mut self) -> Decoded<BlockAck> {
        let (sector, block_id, size, seq) =
            (self.u64()?, self.block_id()?, self.u32()?, self.u32()?);
        Ok(BlockAck { range: self.range(sector, size, self.agreed.max_discard())?, block_id, seq })
    }

    /// block_req: sector, block_id, blksize, pad.
    fn block_req(&mut self) -> Decoded<BlockReq> {
        let (sector, block_id, size) = (self.u64()?, self.block_id()?, self.u32()?);
        self.take::<4>()?;
        Ok(BlockReq { range: self.range(sector, size, self.agreed.max_data())?, block_id })
    }

    /// rs_req: sector, block_id, blksize, dagtag_node_id, dagtag.
    fn rs_req(&mut self) -> Decoded<RsReq> {
        let (sector, block_id, size) = (self.u64()?, self.block_id()?, self.u32()?);
        let dep = DagtagDep { node_id: self.u32()?, dagtag: self.dagtag()? };
        Ok(RsReq { range: self.range(sector, size, self.agreed.max_data())?, block_id, dep })
    }

    /// block_desc: sector, blksize, pad. No limit but the field's.
    fn block_desc(&mut self) -> Decoded<SectorRange> {
        let (sector, size) = (self.u64()?, self.u32()?);
        self.range(sector, size, u32::MAX)
    }

    /// peer_block_desc: sector, mask, size, pad. No limit but the field's.
    fn peer_block_desc(&mut self) -> Decoded<PeerBlockDesc> {
        let (sector, mask, size) = (self.u64()?, self.nodes()?, self.u32()?);
        Ok(PeerBlockDesc { range: self.range(sector, size, u32::MAX)?, mask })
    }

    fn protocol(&mut self) -> Decoded<Protocol> {
        Ok(Protocol {
            protocol: self.u32()?,
            after_sb_0p: self.u32()?,
            after_sb_1p: self.u32()?,
            after_sb_2p: self.u32()?,
            conn_flags: self.u32()?,
            two_primaries: self.u32()?,
            integrity_alg: if self.agreed.version >= 87 { self.last_name()? } else { Vec::new() },
        })
    }

    /// rs_param: rate, at protocol 88 the verify algorithm.
    fn sync_param(&mut self) -> Decoded<SyncParam> {
        Ok(SyncParam {
            form: SyncParamForm::Old,
            resync_rate: self.u32()?,
            verify_alg: if self.agreed.version >= 88 { self.last_name()? } else { Vec::new() },
            csums_alg: Vec::new(),
            c_plan_ahead: 0,
            c_delay_target: 0,
            c_fill_target: 0,
            c_max_rate: 0,
        })
    }

    /// rs_param_89 and rs_param_95, which adds the controller's settings.
    fn sync_param_89(&mut self) -> Decoded<SyncParam> {
        let mut param = SyncParam {
            form: SyncParamForm::V89,
            resync_rate: self.u32()?,
            verify_alg: self.name_field()?,
            csums_alg: self.name_field()?,
            c_plan_ahead: 0,
            c_delay_target: 0,
            c_fill_target: 0,
            c_max_rate: 0,
        };
        if self.agreed.version >= 95 {
            param.form = SyncParamForm::V95;
            param.c_plan_ahead = self.u32()?;
            param.c_delay_target = self.u32()?;
            param.c_fill_target = self.u32()?;
            param.c_max_rate = self.u32()?;
        }
        Ok(param)
    }

    fn sizes(&mut self) -> Decoded<Sizes> {
        Ok(Sizes {
            d_size: self.device_size()?,
            u_size: self.device_size()?,
            c_size: self.device_size()?,
            max_bio_size: self.u32()?,
            queue_order_type: self.u16()?,
            dds_flags: self.u16()?,
            limits: if self.agreed.has(feature::WSAME) { Some(self.limits()?) } else { None },
        })
    }

    fn limits(&mut self) -> Decoded<QueueLimits> {
        Ok(QueueLimits {
            physical_block_size: self.u32()?,
            logical_block_size: self.u32()?,
            alignment_offset: self.u32()?,
            io_min: self.u32()?,
            io_opt: self.u32()?,
            discard_enabled: self.u8()?,
            discard_zeroes_data: self.u8()?,
            write_same_capable: self.u8()?,
            bm_block_shift: self.u8()?,
        })
    }

    fn uuids(&mut self) -> Decoded<Uuids> {
        Ok(Uuids {
            current: self.uuid()?,
            bitmap: self.uuid()?,
            history: [self.uuid()?, self.uuid()?],
            dirty_bits: self.u64()?,
            flags: UuidFlags(self.u64()?),
        })
    }

    /// uuids110: the fixed part, one bitmap UUID per bit of the mask, the history.
    fn uuids110(&mut self) -> Decoded<Uuids110> {
        let (current, dirty_bits) = (self.uuid()?, self.u64()?);
        let (flags, node_mask) = (UuidFlags(self.u64()?), self.nodes()?);
        let slots = self.nodes()?;
        if slots.0 >> MAX_SLOTS != 0 {
            return Err(self.field(Rule::NodeIds, slots.0));
        }
        let left = self.rest.len() as u64;
        if !left.is_multiple_of(8) {
            return Err(self.field(Rule::WholeWords, left));
        }
        let history = (left / 8).checked_sub(u64::from(slots.len()));
        if history.is_none_or(|count| count > MAX_SLOTS as u64) {
            return Err(self.field(Rule::UuidCount, left / 8));
        }
        let mut bitmap_uuids = Vec::with_capacity(slots.len() as usize);
        for node in slots.iter() {
            bitmap_uuids.push((node.get(), self.uuid()?));
        }
        let mut history = Vec::with_capacity(self.rest.len() / 8);
        while !self.rest.is_empty() {
            history.push(self.uuid()?);
        }
        Ok(Uuids110 { current, dirty_bits, flags, node_mask, bitmap_uuids, history })
    }

    /// state, in the numbering of this crate whatever the peer's is.
    fn state(&mut self) -> Decoded<StateWord> {
        let raw = StateWord(self.u32()?);
        let word = if self.agreed.is_protocol8() { raw.from_protocol8() } else { raw };
        if !word.is_defined() {
            return Err(self.field(Rule::StateDefined, u64::from(raw.0)));
        }
        Ok(word)
    }

    /// req_state. Only peers of protocol 8 send it.
    fn req_state(&mut self) -> Decoded<ReqState> {
        let raw = ReqState { mask: StateWord(self.u32()?), val: StateWord(self.u32()?) };
        Ok(raw.from_protocol8())
    }

    /// twopc_request in the layout that the features say; the flags' top bit tells them apart.
    fn twopc(&mut self) -> Decoded<TwoPc> {
        let (tid, second) = (self.u32()?, self.u32()?);
        let v2 = self.agreed.has(feature::TWOPC_V2);
        if (second & TWOPC_V2 != 0) != v2 {
            return Err(self.field(Rule::TwoPcLayout, u64::from(second)));
        }
        let (flags, initiator, target) = if v2 {
            self.take::<2>()?;
            (second, i32::from(self.i8()?), i32::from(self.i8()?))
        } else {
            (0, second as i32, self.i32()?)
        };
        Ok(TwoPc {
            tid,
            flags,
            v2,
            initiator,
            target,
            nodes_to_reach: self.nodes()?,
            word20: self.u64()?,
            word28: self.u64()?,
        })
    }

    fn twopc_reply(&mut self) -> Decoded<TwoPcReply> {
        Ok(TwoPcReply {
            tid: self.u32()?,
            initiator: self.i32()?,
            reachable_nodes: self.nodes()?,
            primary_nodes: self.nodes()?,
            weak_nodes: self.nodes()?,
        })
    }

    fn ov_result(&mut self) -> Decoded<OvResult> {
        Ok(OvResult::from_number(self.u32()?))
    }

    /// enable_repl: one byte, three of padding.
    fn enable(&mut self) -> Decoded<bool> {
        Ok(self.u8()? != 0)
    }

    /// Little-endian words, whatever the position.
    fn bitmap_words(&mut self) -> Decoded<BitmapWords> {
        if !self.rest.len().is_multiple_of(8) {
            return Err(self.field(Rule::WholeWords, self.rest.len() as u64));
        }
        let (words, _) = self.rest.as_chunks::<8>();
        Ok(BitmapWords { words: words.iter().copied().map(u64::from_le_bytes).collect() })
    }

    fn compressed_bitmap(&mut self) -> Decoded<CompressedBitmap> {
        let chunk = CompressedBitmap { bytes: self.all() };
        if !bitmap::is_known_encoding(&chunk) {
            let encoding = chunk.bytes.first().copied().unwrap_or(0);
            return Err(self.field(Rule::BitmapEncoding, u64::from(encoding)));
        }
        Ok(chunk)
    }

    // -- fields --------------------------------------------------------------------------------

    /// Checks what can be checked without the device's size.
    fn range(&self, sector: u64, size: u32, limit: u32) -> Decoded<SectorRange> {
        let rule = if size == 0 {
            Rule::SizeNotZero
        } else if !u64::from(size).is_multiple_of(SECTOR_SIZE) {
            Rule::SizeInSectors
        } else if size > limit {
            Rule::SizeLimit
        } else {
            let range = SectorRange::new(sector, u64::from(size) / SECTOR_SIZE);
            if range.fits(Sectors(COUNTABLE_SECTORS)) {
                return Ok(range);
            }
            return Err(self.field(Rule::RangeCountable, sector));
        };
        Err(self.field(rule, u64::from(size)))
    }

    fn device_size(&mut self) -> Decoded<Sectors> {
        let sectors = self.u64()?;
        if sectors > COUNTABLE_SECTORS {
            return Err(self.field(Rule::DeviceSizeCountable, sectors));
        }
        Ok(Sectors(sectors))
    }

    fn no_write_same(&self, flags: DataFlags) -> Decoded<()> {
        if flags.has(DataFlags::WSAME) {
            return Err(self.field(Rule::NoWriteSame, u64::from(flags.0)));
        }
        Ok(())
    }

    /// A zero-padded name of fixed width.
    fn name_field(&mut self) -> Decoded<Vec<u8>> {
        let field = self.take::<NAME_FIELD>()?;
        self.name(&field)
    }

    /// The name that fills the rest of the payload, NUL-terminated.
    fn last_name(&mut self) -> Decoded<Vec<u8>> {
        let rest = std::mem::take(&mut self.rest);
        self.name(rest)
    }

    fn name(&self, field: &[u8]) -> Decoded<Vec<u8>> {
        match field.iter().position(|byte| *byte == 0) {
            Some(end) => Ok(field[..end].to_vec()),
            None => Err(self.field(Rule::NameTerminated, field.len() as u64)),
        }
    }

    fn volume(&self) -> Decoded<VolumeNr> {
        self.header.volume().ok_or(WireError::NoVolume(self.header.command()))
    }

    fn all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest).to_vec()
    }

    fn digest(&mut self) -> Decoded<Digest> {
        Digest::new(std::mem::take(&mut self.rest)).ok_or_else(|| self.wrong_length())
    }

    fn wrong_length(&self) -> WireError {
        let (command, len) = (self.header.command(), self.header.len());
        WireError::Length { command, len, allowed: (len, len) }
    }

    fn take<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.rest = rest;
                Ok(*field)
            }
            None => Err(self.wrong_length()),
        }
    }

    fn u8(&mut self) -> Decoded<u8> {
        self.take().map(u8::from_be_bytes)
    }

    fn i8(&mut self) -> Decoded<i8> {
        self.take().map(i8::from_be_bytes)
    }

    fn u16(&mut self) -> Decoded<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Decoded<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn i32(&mut self) -> Decoded<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn u64(&mut self) -> Decoded<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn block_id(&mut self) -> Decoded<BlockId> {
        self.u64().map(BlockId)
    }

    fn dagtag(&mut self) -> Decoded<Dagtag> {
        self.u64().map(Dagtag)
    }

    fn uuid(&mut self) -> Decoded<GenUuid> {
        self.u64().map(GenUuid)
    }

    fn nodes(&mut self) -> Decoded<NodeMask> {
        self.u64().map(NodeMask)
    }

    fn field(&self, rule: Rule, value: u64) -> WireError {
        WireError::Field { command: self.header.command(), rule, value }
    }
}

impl OvResult {
    /// The result with that number.
    pub const fn from_number(number: u32) -> OvResult {
        match number {
            0 => OvResult::Skipped,
            1 => OvResult::InSync,
            2 => OvResult::OutOfSync,
            other => OvResult::Unknown(other),
        }
    }

    /// The number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            OvResult::Skipped => 0,
            OvResult::InSync => 1,
            OvResult::OutOfSync => 2,
            OvResult::Unknown(other) => other,
        }
    }
}
