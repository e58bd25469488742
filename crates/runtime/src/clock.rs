//! The monotonic clock as [`vocab::Instant`].

use std::time::Duration;

use vocab::Instant;

/// Nanoseconds of `CLOCK_MONOTONIC`. A driver loop takes the time once per turn from
/// [`crate::Ring::now`] instead, so that everything in a turn agrees on it.
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the given timespec only. It cannot fail: the clock exists on
    // every Linux and the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Time left until `deadline`; zero if it has passed.
pub fn until(deadline: Instant) -> Duration {
    deadline.since(now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_and_never_goes_backwards() {
        let start = now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(now().since(start) >= Duration::from_millis(2));
        assert_eq!(until(start), Duration::ZERO);
    }
}
