//! What the workload writes: blocks that say where they belong and which write they are from.
//!
//! ```text
//! offset  size
//!      0     8  magic
//!      8     8  run: two demos on one disk do not mistake each other's blocks
//!     16     8  address of the block on the volume, bytes
//!     24     8  sequence number of the write; 1 is the first of the run
//!     32  4060  noise made from the three numbers above
//!   4092     4  CRC-32C of everything before
//! ```
//!
//! Integers are little-endian. A block nobody has written is all zeroes.

use std::fmt;

use super::random::Random;

/// Size of a block in bytes.
pub const BLOCK: usize = 4096;

const MAGIC: [u8; 8] = *b"ASHDEMO1";
const NOISE: usize = 32;
const SUM: usize = BLOCK - 4;

/// Sequence number of a block that was never written.
pub const NEVER: u64 = 0;

/// A block that no write of this run explains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Not one of our blocks, or its bytes are not those that were written.
    Garbage,
    /// An intact block of another address or another run.
    Foreign {
        /// The run it says it is of.
        run: u64,
        /// The address it says it belongs to.
        address: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Garbage => f.write_str("damaged data"),
            Damage::Foreign { run, address } => {
                write!(f, "the block of byte {address} of run {run}")
            }
        }
    }
}

/// Fills `block` with write `sequence` of `address`.
pub fn encode(run: u64, address: u64, sequence: u64, block: &mut [u8; BLOCK]) {
    block[0..8].copy_from_slice(&MAGIC);
    block[8..16].copy_from_slice(&run.to_le_bytes());
    block[16..24].copy_from_slice(&address.to_le_bytes());
    block[24..32].copy_from_slice(&sequence.to_le_bytes());
    let mut random = Random::new(run ^ address.rotate_left(20) ^ sequence.rotate_left(44));
    for chunk in block[NOISE..SUM].chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
    let sum = crc32c::crc32c(&block[..SUM]);
    block[SUM..].copy_from_slice(&sum.to_le_bytes());
}

/// The sequence number of the write that left `block` at `address`, or [`NEVER`].
///
/// # Errors
/// [`Damage`] if it is no block of this run and address.
pub fn decode(run: u64, address: u64, block: &[u8; BLOCK]) -> Result<u64, Damage> {
    if block.iter().all(|b| *b == 0) {
        return Ok(NEVER);
    }
    let number = |at: usize| {
        u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes are a u64"))
    };
    let sum = crc32c::crc32c(&block[..SUM]).to_le_bytes();
    if block[0..8] != MAGIC || block[SUM..] != sum {
        return Err(Damage::Garbage);
    }
    let (found_run, found_address) = (number(8), number(16));
    if (found_run, found_address) != (run, address) {
        return Err(Damage::Foreign { run: found_run, address: found_address });
    }
    Ok(number(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(run: u64, address: u64, sequence: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        encode(run, address, sequence, &mut block);
        block
    }

    #[test]
    fn a_block_tells_its_write() {
        assert_eq!(decode(7, 8192, &block(7, 8192, 3)), Ok(3));
        assert_eq!(decode(7, 8192, &[0; BLOCK]), Ok(NEVER));
    }

    #[test]
    fn a_block_of_another_place_or_run_is_foreign() {
        let foreign = |run, address| Err(Damage::Foreign { run, address });
        assert_eq!(decode(7, 4096, &block(7, 8192, 3)), foreign(7, 8192));
        assert_eq!(decode(8, 8192, &block(7, 8192, 3)), foreign(7, 8192));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = block(1, 0, 1);
        for byte in 0..BLOCK {
            let mut bad = good;
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(decode(1, 0, &bad), Err(Damage::Garbage), "byte {byte}");
        }
    }

    #[test]
    fn a_mixture_of_two_writes_is_noticed() {
        let (old, new) = (block(1, 0, 1), block(1, 0, 2));
        for sectors in 1..8 {
            let mut torn = old;
            torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
            assert_eq!(decode(1, 0, &torn), Err(Damage::Garbage));
        }
    }
}
