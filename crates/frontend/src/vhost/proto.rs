//! Messages of the vhost-user protocol, those of the client's side, as values and as bytes.
//!
//! The machine's byte order is the protocol's. Nothing here allocates more than a message holds, which
//! is [`PAYLOAD_MAX`] at most.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a header: request, flags, length of the payload.
pub const HEADER_LEN: usize = 12;
/// Longest payload that any request here has.
pub const PAYLOAD_MAX: usize = 4096;
/// Most descriptors that come with a message: one for each region of a memory table.
pub const FDS_MAX: usize = REGIONS_PER_TABLE;
/// Most regions of a memory table; those who have more add them one by one.
pub const REGIONS_PER_TABLE: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// `VHOST_USER_F_PROTOCOL_FEATURES`, beside virtio's features.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol features (`VHOST_USER_PROTOCOL_F_...`).
#[allow(missing_docs, reason = "named as in the protocol")]
pub mod feature {
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// A request's number by which the device tells that its configuration has changed.
const BACKEND_CONFIG_CHANGE: u32 = 2;

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What is asked.
    pub request: u32,
    /// An answer is wanted though the request has none of its own.
    pub need_reply: bool,
    /// Bytes that follow.
    pub len: u32,
}

/// A piece of the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// Address in the guest.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Address in the client, by which it names rings.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Where a ring's parts are, as addresses of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingAddress {
    /// The ring.
    pub index: u32,
    /// Bit 0: accesses are to be logged.
    pub flags: u32,
    /// Descriptor table.
    pub desc: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub avail: u64,
}

/// The log of requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InflightArea {
    /// Bytes of the mapping.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// Rings.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
}

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in the protocol")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetVringNum { index: u32, num: u32 },
    SetVringAddr(RingAddress),
    SetVringBase { index: u32, base: u32 },
    GetVringBase { index: u32 },
    SetVringKick { index: u8 },
    SetVringCall { index: u8, present: bool },
    SetVringErr { index: u8, present: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable { index: u32, enable: bool },
    SetBackendReqFd,
    GetConfig { offset: u32, len: u32 },
    SetConfig { offset: u32, data: Vec<u8> },
    GetInflightFd(InflightArea),
    SetInflightFd(InflightArea),
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(Region),
    ResetDevice,
}

/// A client broke the protocol; it is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The version is another one, or the message says it is an answer.
    Flags(u32),
    /// Requests of that number were not agreed on.
    Unknown(u32),
    /// The payload of that request can not have that length.
    Length {
        /// The request.
        request: u32,
        /// Bytes.
        len: u32,
    },
    /// That request came with so many descriptors.
    Descriptors {
        /// The request.
        request: u32,
        /// How many.
        count: usize,
    },
    /// A ring without a kick would have to be looked at all the time.
    NoKick,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Flags(flags) => write!(f, "a message with flags {flags:#x}"),
            Violation::Unknown(request) => write!(f, "request {request}, which is not offered"),
            Violation::Length { request, len } => {
                write!(f, "request {request} with a payload of {len} bytes")
            }
            Violation::Descriptors { request, count } => {
                write!(f, "request {request} with {count} file descriptors")
            }
            Violation::NoKick => f.write_str("a ring without an eventfd for kicks"),
        }
    }
}

impl std::error::Error for Violation {}

/// Takes integers from the front of a payload.
struct Fields<'a> {
    header: Header,
    left: &'a [u8],
}

impl Fields<'_> {
    fn too_short(&self) -> Violation {
        Violation::Length { request: self.header.request, len: self.header.len }
    }

    fn u16(&mut self) -> Result<u16, Violation> {
        let (head, left) = self.left.split_first_chunk().ok_or(self.too_short())?;
        self.left = left;
        Ok(u16::from_ne_bytes(*head))
    }

    fn u32(&mut self) -> Result<u32, Violation> {
        let (head, left) = self.left.split_first_chunk().ok_or(self.too_short())?;
        self.left = left;
        Ok(u32::from_ne_bytes(*head))
    }

    fn u64(&mut self) -> Result<u64, Violation> {
        let (head, left) = self.left.split_first_chunk().ok_or(self.too_short())?;
        self.left = left;
        Ok(u64::from_ne_bytes(*head))
    }

    fn region(&mut self) -> Result<Region, Violation> {
        let (guest, size) = (self.u64()?, self.u64()?);
        Ok(Region { guest, size, user: self.u64()?, offset: self.u64()? })
    }

    fn inflight(&mut self) -> Result<InflightArea, Violation> {
        let (size, offset) = (self.u64()?, self.u64()?);
        let area = InflightArea { size, offset, queues: self.u16()?, queue_size: self.u16()? };
        // Some have the structure with its padding, some without.
        if self.left.len() == 4 {
            self.left = &[];
        }
        Ok(area)
    }

    /// Ring and the flag for "no descriptor".
    fn ring_fd(&mut self) -> Result<(u8, bool), Violation> {
        let bits = self.u64()?;
        Ok((bits as u8, bits & 0x100 == 0))
    }
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Violation::Flags`], [`Violation::Length`]
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, Violation> {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (request, flags, len) = (word(0), word(4), word(8));
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Violation::Flags(flags));
        }
        if len as usize > PAYLOAD_MAX {
            return Err(Violation::Length { request, len });
        }
        Ok(Header { request, need_reply: flags & NEED_REPLY != 0, len })
    }
}

impl Message {
    /// Reads a message that came with so many descriptors.
    ///
    /// # Errors
    /// [`Violation`]
    pub fn decode(header: Header, payload: &[u8], fds: usize) -> Result<Message, Violation> {
        let mut fields = Fields { header, left: payload };
        let message = Message::read(&mut fields)?;
        if !fields.left.is_empty() {
            return Err(fields.too_short());
        }
        let request = header.request;
        let expected = match &message {
            Message::SetMemTable(regions) => regions.len(),
            Message::SetVringKick { .. }
            | Message::SetBackendReqFd
            | Message::SetInflightFd(_)
            | Message::AddMemReg(_) => 1,
            Message::SetVringCall { present, .. } | Message::SetVringErr { present, .. } => {
                usize::from(*present)
            }
            // Some send the region's descriptor along.
            Message::RemMemReg(_) => fds.min(1),
            _ => 0,
        };
        if fds != expected {
            return Err(Violation::Descriptors { request, count: fds });
        }
        Ok(message)
    }

    fn read(fields: &mut Fields<'_>) -> Result<Message, Violation> {
        Ok(match fields.header.request {
            1 => Message::GetFeatures,
            2 => Message::SetFeatures(fields.u64()?),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => {
                let (count, _) = (fields.u32()?, fields.u32()?);
                if count as usize > REGIONS_PER_TABLE {
                    return Err(fields.too_short());
                }
                let regions: Result<_, _> = (0..count).map(|_| fields.region()).collect();
                Message::SetMemTable(regions?)
            }
            8 => Message::SetVringNum { index: fields.u32()?, num: fields.u32()? },
            9 => {
                let (index, flags) = (fields.u32()?, fields.u32()?);
                let (desc, used, avail) = (fields.u64()?, fields.u64()?, fields.u64()?);
                // Where accesses would be logged, which is not offered.
                fields.u64()?;
                Message::SetVringAddr(RingAddress { index, flags, desc, used, avail })
            }
            10 => Message::SetVringBase { index: fields.u32()?, base: fields.u32()? },
            11 => {
                let index = fields.u32()?;
                fields.u32()?;
                Message::GetVringBase { index }
            }
            12 => match fields.ring_fd()? {
                (index, true) => Message::SetVringKick { index },
                (_, false) => return Err(Violation::NoKick),
            },
            13 => {
                let (index, present) = fields.ring_fd()?;
                Message::SetVringCall { index, present }
            }
            14 => {
                let (index, present) = fields.ring_fd()?;
                Message::SetVringErr { index, present }
            }
            15 => Message::GetProtocolFeatures,
            16 => Message::SetProtocolFeatures(fields.u64()?),
            17 => Message::GetQueueNum,
            18 => Message::SetVringEnable { index: fields.u32()?, enable: fields.u32()? != 0 },
            21 => Message::SetBackendReqFd,
            24 => {
                let (offset, len, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
                if fields.left.len() != len as usize {
                    return Err(fields.too_short());
                }
                fields.left = &[];
                Message::GetConfig { offset, len }
            }
            25 => {
                let (offset, len, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
                if fields.left.len() != len as usize {
                    return Err(fields.too_short());
                }
                let data = std::mem::take(&mut fields.left).to_vec();
                Message::SetConfig { offset, data }
            }
            31 => Message::GetInflightFd(fields.inflight()?),
            32 => Message::SetInflightFd(fields.inflight()?),
            34 => Message::ResetDevice,
            36 => Message::GetMaxMemSlots,
            37 => {
                fields.u64()?;
                Message::AddMemReg(fields.region()?)
            }
            38 => {
                fields.u64()?;
                Message::RemMemReg(fields.region()?)
            }
            request => return Err(Violation::Unknown(request)),
        })
    }
}

/// An answer to a request, as bytes.
pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    message(request, VERSION | REPLY, payload)
}

/// That the configuration has changed, for the client's other socket.
pub fn config_changed() -> Vec<u8> {
    message(BACKEND_CONFIG_CHANGE, VERSION, &[])
}

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    for word in [request, flags, payload.len() as u32] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(payload);
    bytes
}

impl InflightArea {
    /// As an answer, in the length that the client has used.
    pub fn encode(&self, len: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        bytes.extend(self.size.to_ne_bytes());
        bytes.extend(self.offset.to_ne_bytes());
        bytes.extend(self.queues.to_ne_bytes());
        bytes.extend(self.queue_size.to_ne_bytes());
        bytes.resize(len as usize, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn decode(request: u32, payload: &[u8], fds: usize) -> Result<Message, Violation> {
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&words(&[request, VERSION, payload.len() as u32]));
        Message::decode(Header::decode(&bytes)?, payload, fds)
    }

    #[test]
    fn a_memory_table_has_a_descriptor_for_each_region() {
        let mut payload = words(&[2, 0]);
        for n in 1..=8u64 {
            payload.extend(n.to_ne_bytes());
        }
        let region = |n| Region { guest: n, size: n + 1, user: n + 2, offset: n + 3 };
        let table = Message::SetMemTable(vec![region(1), region(5)]);
        assert_eq!(decode(5, &payload, 2), Ok(table));
        let count = Violation::Descriptors { request: 5, count: 1 };
        assert_eq!(decode(5, &payload, 1), Err(count));
        let mut single = vec![0; 8];
        single.extend(&payload[8..40]);
        assert_eq!(decode(37, &single, 1), Ok(Message::AddMemReg(region(1))));
        assert_eq!(decode(38, &single, 0), Ok(Message::RemMemReg(region(1))));
        // More regions than a table may have, whatever follows.
        let many = words(&[9, 0]);
        assert_eq!(decode(5, &many, 0), Err(Violation::Length { request: 5, len: 8 }));
    }

    #[test]
    fn what_is_too_short_too_long_or_unknown_is_refused() {
        assert_eq!(decode(2, &[0; 7], 0), Err(Violation::Length { request: 2, len: 7 }));
        assert_eq!(decode(1, &[0; 1], 0), Err(Violation::Length { request: 1, len: 1 }));
        assert_eq!(decode(6, &[0; 16], 1), Err(Violation::Unknown(6)), "no log of dirty pages");
        assert_eq!(decode(12, &0x101u64.to_ne_bytes(), 0), Err(Violation::NoKick));
        let no_fd = Violation::Descriptors { request: 12, count: 0 };
        assert_eq!(decode(12, &1u64.to_ne_bytes(), 0), Err(no_fd));
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&words(&[1, VERSION, u32::MAX]));
        let long = Violation::Length { request: 1, len: u32::MAX };
        assert_eq!(Header::decode(&bytes), Err(long));
        bytes.copy_from_slice(&words(&[1, VERSION | REPLY, 0]));
        assert_eq!(Header::decode(&bytes), Err(Violation::Flags(5)));
    }

    #[test]
    fn configuration_is_as_long_as_it_says() {
        let mut payload = words(&[4, 2, 0]);
        payload.extend([7, 8]);
        let get = Message::GetConfig { offset: 4, len: 2 };
        assert_eq!(decode(24, &payload, 0), Ok(get));
        let set = Message::SetConfig { offset: 4, data: vec![7, 8] };
        assert_eq!(decode(25, &payload, 0), Ok(set));
        payload.push(9);
        assert!(decode(25, &payload, 0).is_err());
    }

    #[test]
    fn the_log_of_requests_is_answered_in_the_length_it_was_asked_for() {
        let area = InflightArea { size: 4096, offset: 0, queues: 2, queue_size: 128 };
        for len in [20, 24] {
            assert_eq!(decode(31, &area.encode(len), 0), Ok(Message::GetInflightFd(area)));
        }
    }
}
