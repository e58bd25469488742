//! `TCP_INFO`: what the kernel knows of a connection's round trip, losses and what it waits for.
//!
//! The kernel writes a struct that only ever grows at its end (linux/tcp.h, `struct tcp_info`), and
//! says how much of it there is. It is read by offsets, so that neither an older kernel nor an
//! older C library changes what a field means.

use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::{Errno, Fd};

/// Bytes asked for: all fields read here.
const LEN: usize = 216;

/// What is read of `struct tcp_info`. Counters are since the connection began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Shortest round trip of the last minutes.
    pub min_rtt: Duration,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Largest segment sent, in bytes.
    pub send_mss: u32,
    /// Largest segment this side announces, in bytes: what its interface takes.
    pub advertised_mss: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Bytes in the send buffer that were not sent yet.
    pub unsent_bytes: u32,
    /// Bytes sent, those that were sent again counted again.
    pub sent_bytes: u64,
    /// Bytes acknowledged.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent more than once.
    pub resent_bytes: u64,
    /// Most recent rate of delivery, bytes per second.
    pub delivery_rate: u64,
    /// That rate was limited by what there was to send.
    pub delivery_app_limited: bool,
    /// Time with data that was not acknowledged.
    pub busy: Duration,
    /// Of that, time limited by the receive window.
    pub receiver_limited: Duration,
    /// Of that, time limited by the send buffer.
    pub buffer_limited: Duration,
}

impl TcpInfo {
    /// Bytes sent that the peer's machine has not acknowledged.
    pub fn outstanding_bytes(&self) -> u64 {
        // The SYN is acknowledged like a byte.
        let sent = self.sent_bytes.saturating_sub(self.resent_bytes);
        sent.saturating_sub(self.acked_bytes.saturating_sub(1))
    }

    pub(super) fn of(fd: &Fd) -> Result<TcpInfo, Errno> {
        let mut bytes = [0u8; LEN];
        let mut len = LEN as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of the array pointed to.
        let result = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if result == 0 { Ok(TcpInfo::read(&bytes)) } else { Err(Errno::last()) }
    }

    fn read(bytes: &[u8; LEN]) -> TcpInfo {
        let u32_at = |at: usize| {
            let field = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(field)
        };
        let u64_at = |at: usize| {
            let field = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_ne_bytes(field)
        };
        let micros = |n: u64| Duration::from_micros(n);
        // A minimum that was not measured yet is all ones.
        let min_rtt = Some(u32_at(148)).filter(|us| *us != u32::MAX).unwrap_or(0);
        TcpInfo {
            send_mss: u32_at(16),
            unacked_segments: u32_at(24),
            path_mtu: u32_at(60),
            rtt: micros(u32_at(68).into()),
            advertised_mss: u32_at(84),
            sent_bytes: u64_at(200),
            acked_bytes: u64_at(120),
            received_bytes: u64_at(128),
            unsent_bytes: u32_at(144),
            min_rtt: micros(min_rtt.into()),
            delivery_rate: u64_at(160),
            // The first of the bit fields in the byte behind the window scales.
            delivery_app_limited: bytes[7] & if cfg!(target_endian = "big") { 0x80 } else { 1 }
                != 0,
            busy: micros(u64_at(168)),
            receiver_limited: micros(u64_at(176)),
            buffer_limited: micros(u64_at(184)),
            resent_bytes: u64_at(208),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn the_kernel_says_what_went_over_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.set_nodelay(true).unwrap();
        near.write_all(&[1; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        far.write_all(&[1; 70]).unwrap();
        near.read_exact(&mut [0; 70]).unwrap();
        let fd = Fd::new(OwnedFd::from(near.try_clone().unwrap()));
        let info = TcpInfo::of(&fd).unwrap();
        // The answer has carried the acknowledgement; the handshake's SYN counts as one byte.
        assert_eq!((info.acked_bytes, info.received_bytes, info.resent_bytes), (5001, 70, 0));
        assert_eq!((info.sent_bytes, info.outstanding_bytes()), (5000, 0));
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1), "{info:?}");
        assert!(info.path_mtu >= 1500 && info.send_mss < info.path_mtu, "{info:?}");
        assert!(info.advertised_mss >= 500 && info.delivery_rate > 0, "{info:?}");
        assert_eq!((info.unacked_segments, info.unsent_bytes), (0, 0));
    }

    #[test]
    fn a_receiver_that_does_not_read_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[1; 65536]).is_ok() {}
        std::thread::sleep(Duration::from_millis(30));
        let info = TcpInfo::of(&Fd::new(OwnedFd::from(near))).unwrap();
        assert!(info.unsent_bytes > 0, "{info:?}");
        assert!(info.busy >= Duration::from_millis(25), "{info:?}");
        assert!(info.receiver_limited >= Duration::from_millis(15), "{info:?}");
    }

    #[test]
    fn a_socket_of_another_kind_has_none() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(TcpInfo::of(&Fd::new(OwnedFd::from(near))).is_err());
    }
}
