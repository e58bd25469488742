//! One packet of every kind, and random ones.

use super::*;
use vocab::{Dagtag, GenUuid, NodeMask, SectorRange, Sectors, VolumeNr};

/// A small reproducible generator (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// One packet per command, each with the agreement it is sent under.
pub fn one_of_each() -> Vec<(Packet, Agreed)> {
    let all: Vec<(Packet, Agreed)> = [LATEST, OURS, Agreed::new(121, 0xf), OLD, Agreed::NOTHING]
        .into_iter()
        .chain([Agreed::new(88, 0)])
        .flat_map(|agreed| {
            Command::ALL
                .iter()
                .filter(move |command| command.is_agreed(&agreed))
                .map(move |command| (sample(*command, &agreed), agreed))
        })
        .collect();
    for command in Command::ALL {
        assert!(all.iter().any(|(packet, _)| packet.command() == *command), "{command}");
    }
    all
}

/// A packet of that kind; every field has a value of its own.
fn sample(command: Command, agreed: &Agreed) -> Packet {
    let volume = VolumeNr(if agreed.version < 100 { 0 } else { 0x0102 });
    let range = SectorRange::new(0x0011_2233_4455, 0x18);
    let block_id = BlockId(0x8899_aabb_ccdd_eeff);
    let seq = 0xa1a2_a3a4;
    let data = Data { range, block_id, seq, flags: DataFlags::SYNC.with(DataFlags::FUA) };
    let trim = Trim { range, block_id, seq, flags: DataFlags::DISCARD };
    let ack = BlockAck { range, block_id, seq };
    let req = BlockReq { range, block_id };
    let dagtag = Dagtag(0x1020_3040_5060_7080);
    let rs = RsReq { range, block_id, dep: DagtagDep { node_id: 3, dagtag } };
    let digest = Digest::new(&[1, 2, 3, 4]).unwrap();
    let nodes = NodeMask(0xf1f2_f3f4_f5f6_f7f8);
    let uuid = GenUuid(0x7172_7374_7576_7778);
    let word = StateWord(0x0081_32aa);
    let change = Operation::Verify.request();
    let v2 = agreed.has(feature::TWOPC_V2);
    let twopc = TwoPc {
        tid: 0x5152_5354,
        flags: if v2 { TWOPC_V2 | TWOPC_PRI_INCAPABLE } else { 0 },
        v2,
        initiator: 3,
        target: -1,
        nodes_to_reach: nodes,
        word20: 0x6162_6364_6566_6768,
        word28: 0x7172_7374_7576_7778,
    };
    let reply = TwoPcReply {
        tid: 0x5152_5354,
        initiator: 3,
        reachable_nodes: nodes,
        primary_nodes: NodeMask(1),
        weak_nodes: NodeMask(2),
    };
    let protocol = || {
        Box::new(Protocol {
            protocol: 3,
            after_sb_0p: 1,
            after_sb_1p: 2,
            after_sb_2p: 4,
            conn_flags: CF_DISCARD_MY_DATA,
            two_primaries: 1,
            integrity_alg: b"crc32c".to_vec(),
        })
    };
    let sync_param = |form| {
        let v95 = u32::from(form == SyncParamForm::V95);
        Box::new(SyncParam {
            form,
            resync_rate: 250,
            verify_alg: b"sha256".to_vec(),
            csums_alg: if form == SyncParamForm::Old { vec![] } else { b"md5".to_vec() },
            c_plan_ahead: 20 * v95,
            c_delay_target: 10 * v95,
            c_fill_target: 100 * v95,
            c_max_rate: 102_400 * v95,
        })
    };
    match command {
        Command::Data => Packet::Data(volume, data),
        Command::DataReply => Packet::DataReply(volume, data),
        Command::RsDataReply => Packet::RsDataReply(volume, data),
        Command::Barrier => Packet::Barrier(0x0102_0304),
        Command::Bitmap => Packet::Bitmap(volume, BitmapWords { words: vec![1, 2, u64::MAX] }),
        Command::UnplugRemote => Packet::UnplugRemote,
        Command::DataRequest => Packet::DataRequest(volume, req),
        Command::RsDataRequest => Packet::RsDataRequest(volume, req),
        Command::SyncParam => Packet::SyncParam(volume, sync_param(SyncParamForm::Old)),
        Command::Protocol => Packet::Protocol(protocol()),
        Command::Uuids => Packet::Uuids(
            volume,
            Box::new(Uuids {
                current: uuid,
                bitmap: GenUuid(2),
                history: [GenUuid(3), GenUuid(4)],
                dirty_bits: 5,
                flags: UuidFlags(6),
            }),
        ),
        Command::Sizes => Packet::Sizes(
            volume,
            Box::new(Sizes {
                d_size: Sectors(1),
                u_size: Sectors(2),
                c_size: Sectors(3),
                max_bio_size: 4,
                queue_order_type: 5,
                dds_flags: 6,
                limits: agreed.has(feature::WSAME).then_some(QueueLimits {
                    physical_block_size: 7,
                    logical_block_size: 8,
                    alignment_offset: 9,
                    io_min: 10,
                    io_opt: 11,
                    discard_enabled: 12,
                    discard_zeroes_data: 13,
                    write_same_capable: 14,
                    bm_block_shift: 15,
                }),
            }),
        ),
        Command::State => Packet::State(Some(volume), word),
        Command::SyncUuid => Packet::SyncUuid(volume, uuid),
        Command::AuthChallenge => Packet::AuthChallenge((0..64).collect()),
        Command::AuthResponse => Packet::AuthResponse((0..32).collect()),
        Command::StateChgReq => Packet::StateChgReq(volume, change),
        Command::Ping => Packet::Ping,
        Command::PingAck => Packet::PingAck,
        Command::RecvAck => Packet::RecvAck(volume, ack),
        Command::WriteAck => Packet::WriteAck(volume, ack),
        Command::RsWriteAck => Packet::RsWriteAck(volume, ack),
        Command::Superseded => Packet::Superseded(volume, ack),
        Command::NegAck => Packet::NegAck(volume, ack),
        Command::NegDreply => Packet::NegDreply(volume, ack),
        Command::NegRsDreply => Packet::NegRsDreply(volume, ack),
        Command::BarrierAck => Packet::BarrierAck(0x0102_0304, 5),
        Command::StateChgReply => Packet::StateChgReply(volume, -19),
        Command::OvRequest => Packet::OvRequest(volume, req),
        Command::OvReply => Packet::OvReply(volume, req, digest),
        Command::OvResult => Packet::OvResult(volume, ack),
        Command::CsumRsRequest => Packet::CsumRsRequest(volume, req, digest),
        Command::RsIsInSync => Packet::RsIsInSync(volume, ack),
        Command::SyncParam89 if agreed.version < 95 => {
            Packet::SyncParam(volume, sync_param(SyncParamForm::V89))
        }
        Command::SyncParam89 => Packet::SyncParam(volume, sync_param(SyncParamForm::V95)),
        Command::CompressedBitmap => {
            Packet::CompressedBitmap(volume, CompressedBitmap { bytes: vec![0xd2, 0x97, 0x9f] })
        }
        Command::DelayProbe => Packet::DelayProbe([1, 2, 3, 4, 5, 6, 7, 8]),
        Command::OutOfSync => Packet::OutOfSync(volume, range),
        Command::RsCancel => Packet::RsCancel(volume, ack),
        Command::ConnStChgReq => Packet::ConnStChgReq(change),
        Command::ConnStChgReply => Packet::ConnStChgReply(1),
        Command::RetryWrite => Packet::RetryWrite(volume, ack),
        Command::ProtocolUpdate => Packet::ProtocolUpdate(protocol()),
        Command::TwoPcPrepare => Packet::TwoPcPrepare(None, twopc),
        Command::TwoPcAbort => Packet::TwoPcAbort(Some(volume), twopc),
        Command::Dagtag => Packet::Dagtag(dagtag),
        Command::Trim => Packet::Trim(volume, trim),
        Command::RsThinReq => Packet::RsThinReq(volume, req),
        Command::RsDeallocated => Packet::RsDeallocated(volume, range),
        Command::TwoPcPrepRsz => Packet::TwoPcPrepRsz(Some(volume), twopc),
        Command::Zeroes => Packet::Zeroes(volume, trim),
        Command::PeerAck => Packet::PeerAck(PeerAck { mask: nodes, dagtag }),
        Command::PeersInSync => {
            Packet::PeersInSync(volume, PeerBlockDesc { range, mask: NodeMask(6) })
        }
        Command::Uuids110 => Packet::Uuids110(
            volume,
            Box::new(Uuids110 {
                current: uuid,
                dirty_bits: 17,
                flags: UuidFlags::STABLE,
                node_mask: nodes,
                bitmap_uuids: vec![(0, GenUuid(9)), (31, GenUuid(11))],
                history: vec![GenUuid(12), GenUuid(14)],
            }),
        ),
        Command::PeerDagtag => Packet::PeerDagtag(PeerDagtag { dagtag, node_id: 4 }),
        Command::CurrentUuid => Packet::CurrentUuid(volume, uuid, nodes),
        Command::TwoPcYes => Packet::TwoPcYes(None, reply),
        Command::TwoPcNo => Packet::TwoPcNo(None, reply),
        Command::TwoPcCommit => Packet::TwoPcCommit(None, twopc),
        Command::TwoPcRetry => Packet::TwoPcRetry(Some(volume), reply),
        Command::ConfirmStable => Packet::ConfirmStable(ConfirmStable {
            oldest: block_id,
            youngest: BlockId(1),
            set_size: 9,
        }),
        Command::RsCancelAhead => Packet::RsCancelAhead(volume, ack),
        Command::Disconnect => Packet::Disconnect,
        Command::RsDagtagReq => Packet::RsDagtagReq(volume, rs),
        Command::RsCsumDagtagReq => Packet::RsCsumDagtagReq(volume, rs, digest),
        Command::RsThinDagtagReq => Packet::RsThinDagtagReq(volume, rs),
        Command::OvDagtagReq => Packet::OvDagtagReq(volume, rs),
        Command::OvDagtagReply => Packet::OvDagtagReply(volume, rs, digest),
        Command::WriteAckInSync => Packet::WriteAckInSync(volume, ack),
        Command::RsNegAck => Packet::RsNegAck(volume, ack),
        Command::OvResultId => Packet::OvResultId(volume, ack, OvResult::OutOfSync),
        Command::RsDeallocatedId => Packet::RsDeallocatedId(volume, ack),
        Command::FlushRequests => Packet::FlushRequests(0x0102_0304_0506_0708),
        Command::FlushForward => Packet::FlushForward(0x0102_0304_0506_0708, 3),
        Command::FlushRequestsAck => Packet::FlushRequestsAck(0x0102_0304_0506_0708, 3),
        Command::EnableReplicationNext => Packet::EnableReplicationNext(volume, false),
        Command::EnableReplication => Packet::EnableReplication(volume, true),
        Command::JointData => Packet::JointData(volume, data),
        Command::JointTrim => Packet::JointTrim(volume, trim),
        Command::JointRead => Packet::JointRead(volume, req),
        Command::JointFlush => Packet::JointFlush(volume, block_id),
        Command::JointReply => Packet::JointReply(volume, data),
        Command::JointDone => Packet::JointDone(volume, block_id, JointResult::NoSpace),
        Command::Joint => Packet::Joint(JointWord::Hold),
        Command::InitialMeta => Packet::InitialMeta,
        Command::InitialData => Packet::InitialData,
        Command::ConnectionFeatures => Packet::ConnectionFeatures(Features {
            protocol_min: 86,
            feature_flags: 0x7f,
            protocol_max: 122,
            sender_node_id: 1,
            receiver_node_id: 2,
        }),
    }
}
