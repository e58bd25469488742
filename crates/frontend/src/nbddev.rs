//! The kernel's NBD client: `/dev/nbdN` as the other end of a socket, by generic netlink.
//!
//! A device has an identifier of whoever made it (Linux 5.14), by which it is found again. It is made, told its size
//! and ended here; requests come over the socket, in the transmission phase of NBD, without a handshake.
//!
//! Source: `linux/nbd.h` and `linux/nbd-netlink.h` of the kernel's interface for user space. Every call is answered by
//! the kernel at once; they are for ordinary threads all the same.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkMessage, NetlinkPayload, NetlinkSerializable, Nla, NlasIterator,
    ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// The driver, if the kernel has it.
const MODULE: &str = "/sys/module/nbd";
/// The name of the driver's family.
const FAMILY: &str = "nbd";

/// `NBD_CMD_*` of netlink.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// `NBD_ATTR_*`
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const IDENTIFIER: u16 = 10;
/// `NBD_SOCK_ITEM`, `NBD_SOCK_FD`
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// A device that is wished for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Transmission flags, as a server tells them.
    pub flags: u16,
    /// Whose device it is.
    pub identifier: &'a str,
    /// The socket, whose other end answers.
    pub socket: BorrowedFd<'a>,
}

/// A command to the driver, or its answer.
#[derive(Debug)]
struct Command {
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl GenlFamily for Command {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Command {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Command {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Command, DecodeError> {
        let attributes = NlasIterator::new(bytes).map(|attribute| {
            let attribute = attribute?;
            Ok(DefaultNla::new(attribute.kind(), attribute.value().to_vec()))
        });
        let attributes: Result<_, DecodeError> = attributes.collect();
        Ok(Command { command: header.cmd, attributes: attributes? })
    }
}

fn word(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn double(kind: u16, value: u64) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn text(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

fn nested(kind: u16, inner: &DefaultNla) -> DefaultNla {
    let mut bytes = vec![0; inner.buffer_len()];
    inner.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

fn strange(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's answer: {what}"))
}

/// The way to the driver.
pub struct Control {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Control {
    /// Asks for the driver.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has it not, or not loaded.
    pub fn open() -> io::Result<Control> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut control = Control { socket, family: 0, sequence: 0 };
        let wish = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(FAMILY.to_owned())],
        };
        let answer =
            control.ask(GenlMessage::from_payload(wish))?.ok_or_else(|| strange("none"))?;
        let id = answer.payload.nlas.iter().find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(id) => Some(*id),
            _ => None,
        });
        control.family = id.ok_or_else(|| strange("a family without its number"))?;
        Ok(control)
    }

    /// Makes a device of the first number that is free.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `Unsupported` before Linux 5.14.
    pub fn connect(&mut self, wish: &Wish<'_>) -> io::Result<u32> {
        let fd = word(SOCKET_FD, wish.socket.as_raw_fd() as u32);
        let attributes = vec![
            double(SIZE_BYTES, wish.size),
            double(BLOCK_SIZE_BYTES, u64::from(wish.block_size)),
            double(SERVER_FLAGS, u64::from(wish.flags)),
            nested(SOCKETS, &nested(SOCKET_ITEM, &fd)),
            text(IDENTIFIER, wish.identifier),
        ];
        let answer = self.command(CONNECT, attributes)?.ok_or_else(|| strange("none"))?;
        let index = answer.attributes.iter().find(|attribute| attribute.kind() == INDEX);
        let index = index.and_then(|attribute| {
            let mut bytes = vec![0; attribute.value_len()];
            attribute.emit_value(&mut bytes);
            Some(u32::from_ne_bytes(*bytes.first_chunk()?))
        });
        let index = index.ok_or_else(|| strange("a device without its number"))?;
        if identifier(index).as_deref() != Some(wish.identifier) {
            let _ = self.disconnect(index);
            let text = "the kernel's NBD client is too old: Linux 5.14 is needed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(index)
    }

    /// Tells users of a device another size, in bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resize(&mut self, index: u32, whose: &str, size: u64) -> io::Result<()> {
        let attributes =
            vec![word(INDEX, index), text(IDENTIFIER, whose), double(SIZE_BYTES, size)];
        self.command(RECONFIGURE, attributes).map(drop)
    }

    /// Ends a device: whoever has it open gets errors from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disconnect(&mut self, index: u32) -> io::Result<()> {
        self.command(DISCONNECT, vec![word(INDEX, index)]).map(drop)
    }

    fn command(&mut self, command: u8, attributes: Vec<DefaultNla>) -> io::Result<Option<Command>> {
        let mut message = GenlMessage::from_payload(Command { command, attributes });
        message.set_resolved_family_id(self.family);
        Ok(self.ask(message)?.map(|answer| answer.payload))
    }

    /// Sends a message and takes what comes up to its acknowledgement.
    fn ask<F>(&mut self, message: GenlMessage<F>) -> io::Result<Option<GenlMessage<F>>>
    where
        F: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
        GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence += 1;
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut found = None;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message =
                    NetlinkMessage::<GenlMessage<F>>::deserialize(rest).map_err(strange)?;
                let len = (message.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(len..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => found = Some(answer),
                    NetlinkPayload::Error(error) => match error.code {
                        None => return Ok(found),
                        Some(code) => return Err(io::Error::from_raw_os_error(-code.get())),
                    },
                    NetlinkPayload::Done(_) => return Ok(found),
                    _ => {}
                }
            }
        }
    }
}

/// Whether the driver is there, for whoever may use it.
///
/// # Errors
/// What is missing.
pub fn usable() -> Result<(), String> {
    if !Path::new(MODULE).exists() {
        return Err("the kernel has no NBD client; load it: `modprobe nbd`".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("the kernel's NBD client takes commands from root only".to_owned());
    }
    Control::open().map(drop).map_err(|e| format!("the kernel's NBD client: {e}"))
}

/// The device of a number.
pub fn path(index: u32) -> String {
    format!("/dev/nbd{index}")
}

/// Whose device it is, if it is connected.
pub fn identifier(index: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/block/nbd{index}/backend")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// The number of somebody's device.
pub fn find(whose: &str) -> Option<u32> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let numbers =
        devices.filter_map(|device| device.file_name().to_str()?.strip_prefix("nbd")?.parse().ok());
    numbers.into_iter().find(|number| identifier(*number).as_deref() == Some(whose))
}

/// Bytes of a device.
pub fn size(index: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/block/nbd{index}/size")).ok()?;
    text.trim().parse::<u64>().ok().map(|sectors| sectors * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_kernels_layout() {
        let attribute = nested(SOCKETS, &nested(SOCKET_ITEM, &word(SOCKET_FD, 9)));
        let mut bytes = vec![0; attribute.buffer_len()];
        attribute.emit(&mut bytes);
        let halves: Vec<u16> =
            bytes.chunks(2).map(|half| u16::from_ne_bytes([half[0], half[1]])).collect();
        // Length and kind of each, the outer ones with the bit for nesting.
        let mut expected = vec![16, SOCKETS | 1 << 15, 12, SOCKET_ITEM | 1 << 15, 8, SOCKET_FD];
        expected.extend(9u32.to_ne_bytes().chunks(2).map(|h| u16::from_ne_bytes([h[0], h[1]])));
        assert_eq!(halves, expected);
        let name = text(IDENTIFIER, "x");
        let mut bytes = vec![0; name.value_len()];
        name.emit_value(&mut bytes);
        assert_eq!(bytes, b"x\0");
    }

    #[test]
    fn a_kernel_without_the_driver_says_so() {
        if Path::new(MODULE).exists() {
            println!("skipped: this kernel has the driver");
            return;
        }
        assert!(usable().unwrap_err().contains("modprobe nbd"));
        assert_eq!(Control::open().err().and_then(|e| e.raw_os_error()), Some(libc::ENOENT));
        assert_eq!(find("nobody"), None);
    }
}
