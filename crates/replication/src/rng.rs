//! The core's random numbers: generation identifiers, transaction ids and back-off times.
//!
//! Seeded from outside, so that a run can be repeated. SplitMix64 (Steele, Lea, Flood 2014):
//! every state gives a different output, so identifiers of one run never repeat.

use serde::{Deserialize, Serialize};

/// A stream of pseudo-random numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A generation identifier that means something, with bit 0 as given.
    pub(crate) const fn uuid(&mut self, primary: bool) -> vocab::GenUuid {
        loop {
            let uuid = vocab::GenUuid(self.next()).with_primary(primary);
            if uuid.is_real() && uuid.masked() != !1 {
                return uuid;
            }
        }
    }
}
