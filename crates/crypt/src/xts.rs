//! AES-256-XTS over sectors whose tweak is their number (`aes-xts-plain64`).
//!
//! The mode is here, over the block cipher of the crate `aes`, for one reason: that one encrypts several blocks at a time,
//! and crates of the mode hand it one after the other, which takes several times as long.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use vocab::SECTOR_SIZE;

use crate::luks::Error;

/// Bytes of a key: half of it for the data, half for the tweaks.
pub const KEY: usize = 64;
/// Bytes of a block of the cipher.
const BLOCK: usize = 16;
/// Blocks that are handed to the cipher together: those of a sector of 512 bytes.
const TOGETHER: usize = 32;
/// Sectors whose tweaks are made together.
const TWEAKS: usize = 8;

/// The key of a disk, ready to be used.
pub struct SectorCipher {
    data: Aes256,
    tweak: Aes256,
    /// Bytes that are encrypted as one.
    sector: usize,
    /// What the first sector's tweak begins with.
    first: u64,
}

/// What is done with blocks.
#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

impl SectorCipher {
    /// A cipher for sectors of 512, 1024, 2048 or 4096 bytes, the first of which has the number `first`,
    /// counted in 512 bytes.
    ///
    /// # Errors
    /// If the key or the size is not one that is supported.
    pub fn new(key: &[u8], sector: u32, first: u64) -> Result<SectorCipher, Error> {
        if key.len() != KEY {
            return Err(Error::unsupported(format!("a key of {} bits", key.len() * 8)));
        }
        if !matches!(sector, 512 | 1024 | 2048 | 4096) {
            return Err(Error::unsupported(format!("sectors of {sector} bytes")));
        }
        let half = |half: &[u8]| Aes256::new_from_slice(half).expect("half a key has 32 bytes");
        let (data, tweak) = key.split_at(KEY / 2);
        Ok(SectorCipher { data: half(data), tweak: half(tweak), sector: sector as usize, first })
    }

    /// Bytes that can only be read and written as a whole.
    pub fn sector_size(&self) -> u32 {
        self.sector as u32
    }

    /// Encrypts what lies at `sector` of the disk, counted in 512 bytes.
    ///
    /// # Panics
    /// If that is not a whole number of sectors of the cipher's.
    pub fn encrypt(&self, sector: u64, bytes: &mut [u8]) {
        self.run(sector, bytes, Way::In);
    }

    /// Decrypts what lies at `sector` of the disk, counted in 512 bytes.
    ///
    /// # Panics
    /// If that is not a whole number of sectors of the cipher's.
    pub fn decrypt(&self, sector: u64, bytes: &mut [u8]) {
        self.run(sector, bytes, Way::Out);
    }

    fn run(&self, sector: u64, bytes: &mut [u8], way: Way) {
        let each = self.sector as u64 / SECTOR_SIZE;
        assert!(
            bytes.len().is_multiple_of(self.sector) && sector.is_multiple_of(each),
            "whole sectors of {} bytes, not {} bytes at {sector}",
            self.sector,
            bytes.len()
        );
        let mut number = self.first.wrapping_add(sector);
        for group in bytes.chunks_mut(self.sector * TWEAKS) {
            let mut tweaks = [Block::default(); TWEAKS];
            for tweak in &mut tweaks {
                tweak[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(each);
            }
            self.tweak.encrypt_blocks(&mut tweaks);
            for (sector, tweak) in group.chunks_exact_mut(self.sector).zip(tweaks) {
                self.sector(sector, u128::from_le_bytes(tweak.into()), way);
            }
        }
    }

    fn sector(&self, sector: &mut [u8], mut tweak: u128, way: Way) {
        for part in sector.chunks_exact_mut(TOGETHER * BLOCK) {
            let mut tweaks = [0; TOGETHER];
            for slot in &mut tweaks {
                *slot = tweak;
                tweak = doubled(tweak);
            }
            let (blocks, _) = Block::slice_as_chunks_mut(part);
            whiten(blocks, &tweaks);
            match way {
                Way::In => self.data.encrypt_blocks(blocks),
                Way::Out => self.data.decrypt_blocks(blocks),
            }
            whiten(blocks, &tweaks);
        }
    }
}

impl std::fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SectorCipher(sectors of {} bytes)", self.sector)
    }
}

/// Times x in the field of the mode, of 2^128 elements.
const fn doubled(tweak: u128) -> u128 {
    (tweak << 1) ^ ((tweak >> 127) * 0x87)
}

fn whiten(blocks: &mut [Block], tweaks: &[u128; TOGETHER]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        let mixed = u128::from_le_bytes((*block).into()) ^ tweak;
        *block = mixed.to_le_bytes().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|digits| pair(digits).unwrap()).collect()
    }

    /// IEEE 1619-2007, vectors 10 and 11: keys of 512 bits, a sector of 512 bytes that count up.
    #[test]
    fn vectors_of_the_standard() {
        let key = bytes(
            "2718281828459045235360287471352662497757247093699959574966967627
             3141592653589793238462643383279502884197169399375105820974944592",
        );
        let plain: Vec<u8> = (0..512).map(|n| n as u8).collect();
        let cipher = SectorCipher::new(&key, 512, 0).unwrap();
        let first = bytes("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b");
        for (sector, begins) in [
            (0xff, first),
            (0xffff, bytes("77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11")),
        ] {
            let mut text = plain.clone();
            cipher.encrypt(sector, &mut text);
            assert_eq!(text[..32], begins, "sector {sector:#x}");
            cipher.decrypt(sector, &mut text);
            assert_eq!(text, plain);
        }
    }

    #[test]
    fn many_sectors_are_each_as_if_alone() {
        let key: Vec<u8> = (0..64).collect();
        for size in [512, 1024, 2048, 4096] {
            let cipher = SectorCipher::new(&key, size, 7).unwrap();
            let size = size as usize;
            let plain: Vec<u8> = (0..size * 19).map(|n| (n / 7) as u8).collect();
            let mut all = plain.clone();
            cipher.encrypt(64, &mut all);
            for (nr, sector) in plain.chunks(size).enumerate() {
                let mut alone = sector.to_vec();
                cipher.encrypt(64 + (nr * size / 512) as u64, &mut alone);
                assert_eq!(alone, all[nr * size..][..size], "sector {nr} of {size} bytes");
            }
            cipher.decrypt(64, &mut all);
            assert_eq!(all, plain);
        }
    }

    #[test]
    fn other_keys_and_sizes_are_refused() {
        assert!(SectorCipher::new(&[0; 32], 512, 0).is_err());
        for size in [0, 256, 513, 8192] {
            assert!(SectorCipher::new(&[0; 64], size, 0).is_err(), "{size}");
        }
    }

    #[test]
    #[should_panic(expected = "whole sectors of 4096 bytes")]
    fn a_part_of_a_sector_is_a_mistake_of_ours() {
        SectorCipher::new(&[1; 64], 4096, 0).unwrap().encrypt(1, &mut [0; 4096]);
    }
}
