//! Bytes on the wire: packets of the protocol, and what TCP, IP and Ethernet add to them.

use super::model::{Load, Network};

/// Data of a request.
pub const BLOCK: f64 = 4096.0;
/// Header of each packet (protocols 100 and later).
const HEADER: f64 = 16.0;
/// P_DATA and P_DATA_REPLY, without the block: sector, block id, sequence number, flags.
const DATA: f64 = HEADER + 24.0;
/// P_WRITE_ACK and P_DATA_REQUEST: sector, block id, size, sequence number or padding.
pub const SMALL: f64 = HEADER + 24.0;
/// P_DATA or P_DATA_REPLY with a block.
pub const FULL: f64 = DATA + BLOCK;
/// P_BARRIER and P_BARRIER_ACK.
pub const BARRIER: f64 = HEADER + 8.0;

/// Of a frame: preamble, header, checksum and gap.
const ETHERNET: f64 = 8.0 + 14.0 + 4.0 + 12.0;
/// IPv4, TCP, and TCP's timestamps.
const TCP_IP: f64 = 20.0 + 20.0 + 12.0;

impl Network {
    /// Bytes of line that bytes of a busy stream take: they fill segments.
    pub fn framed(&self, bytes: f64) -> f64 {
        let segment = f64::from(self.mtu) - TCP_IP;
        bytes * (1.0 + (TCP_IP + ETHERNET) / segment)
    }

    /// Bytes of line that TCP's own acknowledgements take in the other direction: one for two
    /// segments.
    pub fn acknowledged(&self, bytes: f64) -> f64 {
        let segment = f64::from(self.mtu) - TCP_IP;
        bytes / segment / 2.0 * (TCP_IP + ETHERNET)
    }

    /// Bytes per second of all ports of a node, in one direction.
    pub fn bytes_per_second(&self) -> f64 {
        self.ports as f64 * self.gbit * 1e9 / 8.0
    }

    /// Bytes of line per request of a load, over all nodes; every byte is sent by one and received
    /// by another. Without barriers: many writes share one.
    pub fn bytes_per_request(&self, load: &Load) -> f64 {
        let there_and_back = match (load.write, load.diskless) {
            (false, false) => 0.0,
            (false, true) => SMALL + FULL,
            (true, _) => load.peers() as f64 * (FULL + SMALL),
        };
        self.framed(there_and_back) + self.acknowledged(there_and_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_three_frames_of_1500_bytes_less_what_it_shares() {
        let network = Network { ports: 2, gbit: 25.0, mtu: 1500, delay_us: 0.0 };
        // 4136 bytes in segments of 1448, each with 90 more: 2.856 of them.
        assert!((network.framed(FULL) - (4136.0 + 4136.0 / 1448.0 * 90.0)).abs() < 1e-6);
        assert!((network.acknowledged(FULL) - 4136.0 / 1448.0 * 45.0).abs() < 1e-6);
        assert_eq!(network.bytes_per_second(), 6.25e9);
    }

    #[test]
    fn a_local_read_takes_nothing_and_each_replica_of_a_write_as_much_again() {
        let network = Network { ports: 1, gbit: 25.0, mtu: 9000, delay_us: 0.0 };
        let load = Load { write: true, diskless: true, workloads: 1, depth: 1, replicas: 3 };
        let remote = network.bytes_per_request(&load);
        let local = network.bytes_per_request(&Load { diskless: false, ..load });
        assert!((remote / local - 1.5).abs() < 1e-9);
        let read = Load { write: false, diskless: false, ..load };
        assert_eq!(network.bytes_per_request(&read), 0.0);
    }
}
