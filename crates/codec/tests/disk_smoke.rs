//! A hundred thousand seeded mutations of valid metadata: the fuzz target's properties, on stable
//! Rust and in a few seconds.

use codec::disk::activity_log::{Transaction, Update, empty_block};
use codec::disk::{BLOCK_SIZE, MdParams, PeerFlags, Placement, Superblock, zeroed_block};
use vocab::{Bytes, GenUuid, NodeId};

#[path = "properties/disk.rs"]
mod properties;

const DUMP: &[u8] = include_bytes!("../testdata/disk/dump-md-v08.txt");
const DUMP_V09: &[u8] = include_bytes!("../testdata/disk/dump-md-unclean.txt");

/// xorshift64*; a failure is replayed by running the same test again.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) as usize % n
    }

    /// Flips, overwrites, cuts, copies: one to four times, mostly within the first `hot` bytes.
    fn mutate(&mut self, seed: &[u8], hot: usize) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                break;
            }
            let range = if self.below(8) == 0 { bytes.len() } else { hot.min(bytes.len()) };
            let at = self.below(range);
            match self.below(8) {
                0..=2 => bytes[at] ^= 1 << self.below(8),
                3..=4 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, b'0', b';', b'}'][self.below(8)],
                5 => {
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].fill([0, 0xFF, b'9'][self.below(3)]);
                }
                6 => {
                    let from = self.below(bytes.len());
                    let len = self.below(64).min(bytes.len() - from.max(at));
                    bytes.copy_within(from..from + len, at);
                }
                _ => bytes.truncate(at),
            }
        }
        bytes
    }
}

fn superblock() -> Superblock {
    let (mut superblock, layout) =
        Superblock::create(Placement::Internal, Bytes(1 << 30), &MdParams::new(7)).expect("fits");
    superblock.effective_size = layout.usable;
    superblock.current_uuid = GenUuid(0x1234_5678_9ABC_DEF0);
    superblock.node_id = NodeId::new(3);
    superblock.peers[5].bitmap_index = Some(0);
    superblock.peers[5].flags = PeerFlags::CONNECTED;
    superblock
}

fn v08() -> Vec<u8> {
    let mut block = vec![0; 0x70];
    block[0x38..0x44].copy_from_slice(&[0, 0, 0, 0xAD, 0x83, 0x74, 0x02, 0x6B, 0, 0, 0, 0x50]);
    block[0x50..0x54].copy_from_slice(&4096u32.to_be_bytes());
    block
}

fn ring() -> Vec<u8> {
    let mut area = empty_block().repeat(8);
    for number in 0..6u32 {
        let updates: Vec<Update> = (0..40).map(|slot| Update { slot, extent: number }).collect();
        let transaction = Transaction {
            number,
            updates: &updates,
            context_size: 1237,
            context_start: (number % 2 * 919) as u16,
            context: &[number; 300],
        };
        let mut block = zeroed_block();
        transaction.encode_into(&mut block);
        area[number as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(block.as_slice());
    }
    area
}

#[test]
fn mutated_metadata_never_panics() {
    let mut rng = Rng(0x00D1_5C0B);
    let (v09, v08, ring) = (superblock().encode(), v08(), ring());
    for round in 0..100_000 {
        match round % 20 {
            0..=13 => {
                let bytes = rng.mutate(v09.as_slice(), 0x120);
                properties::any(&[&[0], bytes.as_slice()].concat());
            }
            14 => {
                let bytes = rng.mutate(&v08, 0x60);
                properties::any(&[&[0], bytes.as_slice()].concat());
            }
            15 => {
                let hot = [440, ring.len()][rng.below(2)];
                let bytes = rng.mutate(&ring, hot);
                properties::any(&[&[1 + rng.below(2) as u8], bytes.as_slice()].concat());
            }
            16 => {
                let bytes = rng.mutate(DUMP_V09, DUMP_V09.len());
                properties::any(&[&[3], bytes.as_slice()].concat());
            }
            _ => {
                let bytes = rng.mutate(DUMP, DUMP.len());
                properties::any(&[&[3], bytes.as_slice()].concat());
            }
        }
    }
}
