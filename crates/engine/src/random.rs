//! Randomness: of the kernel, and a fast one for back-off times and coin flips.

use std::time::Duration;

use replication::io::Challenge;

/// A generator seeded by the kernel; never for anything secret.
#[derive(Debug)]
pub(crate) struct Random(u64);

/// A number from the kernel that differs between any two runs.
///
/// # Panics
/// If the kernel has no random numbers, which on a booted Linux does not happen.
pub(crate) fn seed() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("a booted kernel has random numbers");
    u64::from_ne_bytes(bytes)
}

/// What a peer is to sign: nobody can know it before.
///
/// # Panics
/// As [`seed`].
pub(crate) fn challenge() -> Challenge {
    let mut bytes = [0; codec::wire::CHALLENGE_LEN];
    getrandom::fill(&mut bytes).expect("a booted kernel has random numbers");
    Box::new(bytes)
}

impl Random {
    pub(crate) fn new() -> Random {
        Random(seed() | 1)
    }

    /// The next number (xorshift64*).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// True in half of all cases.
    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// `middle` plus or minus up to a seventh of it (wire §1.1).
    pub(crate) fn around(&mut self, middle: Duration) -> Duration {
        let span = middle.as_nanos() as u64 / 7;
        middle - Duration::from_nanos(span) + Duration::from_nanos(self.next() % (2 * span + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stay_within_a_seventh() {
        let mut random = Random::new();
        let middle = Duration::from_secs(7);
        for _ in 0..1000 {
            let time = random.around(middle);
            assert!((Duration::from_secs(6)..=Duration::from_secs(8)).contains(&time));
        }
        let heads = (0..10_000).filter(|_| random.coin()).count();
        assert!((4000..6000).contains(&heads));
        assert_eq!(random.around(Duration::ZERO), Duration::ZERO);
    }
}
