//! Bytes of a client of the control socket (`codec::admin`).
//!
//! They come in pieces of any size. Nothing may panic, and a call that is accepted must say the
//! same when it is written down and read again.
#![no_main]

use codec::admin::{Call, Line, Lines, encode_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut lines = Lines::new(4096);
    for piece in rest.chunks(usize::from(*first).max(1)) {
        lines.push(piece);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => message(&line),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});

fn message(line: &[u8]) {
    if let Ok(call) = serde_json::from_slice::<Call>(line) {
        let again = encode_line(&call);
        assert_eq!(serde_json::from_slice::<Call>(&again).expect("ours is well-formed"), call);
    }
    // What an engine says, seen by a client.
    drop(serde_json::from_slice::<Line>(line));
}
