//! What it costs to encrypt and decrypt 4 KiB, in sectors of 512 and of 4096 bytes, beside a copy of them.

#![allow(clippy::print_stdout, reason = "the figures are the product of a benchmark")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use crypt::xts::{KEY, SectorCipher};

const BLOCK: usize = 4096;
const TIMES: u32 = 100_000;

fn time(what: &str, mut run: impl FnMut(u64)) {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let began = Instant::now();
        (0..TIMES).for_each(|n| run(u64::from(n) * 8));
        best = best.min(began.elapsed().as_secs_f64());
    }
    let each = best / f64::from(TIMES);
    println!("{what:<40} {:>8.0} ns {:>8.0} MB/s", each * 1e9, BLOCK as f64 / each / 1e6);
}

fn main() {
    let key: Vec<u8> = (0..KEY).map(|n| n as u8).collect();
    let (from, mut block) = (vec![7; BLOCK], vec![0; BLOCK]);
    time("copy", |_| black_box(&mut block).copy_from_slice(black_box(&from)));
    for size in [512, 4096] {
        let cipher = SectorCipher::new(&key, size, 0).expect("the key has its size");
        time(&format!("encrypt, sectors of {size} bytes"), |at| {
            cipher.encrypt(at, black_box(&mut block));
        });
        time(&format!("decrypt, sectors of {size} bytes"), |at| {
            cipher.decrypt(at, black_box(&mut block));
        });
    }
}
