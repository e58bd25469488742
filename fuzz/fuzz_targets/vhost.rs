//! Whatever a vhost-user client sends, and whatever its guest writes into shared memory: no panic, and no
//! access beyond that memory.
//!
//! The input is a message (header and payload), then the guest's memory with a ring in it.
#![no_main]

use frontend::vhost::proto::{HEADER_LEN, Header, Message};
use frontend::vhost::request::parse;
use frontend::vhost::split::Split;
use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY: usize = 64 << 10;
const SIZE: u16 = 16;

thread_local! {
    static GUEST: GuestMemoryMmap<()> =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
}

fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_LEN>() else { return };
    if let Ok(header) = Header::decode(head) {
        let payload = &rest[..rest.len().min(header.len as usize)];
        for fds in 0..3 {
            let _ = Message::decode(header, payload, fds);
        }
    }
    GUEST.with(|guest| ring(guest, rest));
});

/// Takes and answers what a ring offers.
fn ring(guest: &GuestMemoryMmap<()>, content: &[u8]) {
    guest.write_slice(&vec![0; MEMORY], GuestAddress(0)).expect("it is as long");
    let content = &content[..content.len().min(MEMORY)];
    guest.write_slice(content, GuestAddress(0)).expect("it is as long");
    for event_idx in [false, true] {
        // The parts overlap, so that short inputs reach all of them.
        let mut split = Split::new(SIZE, 64, 0, 512, event_idx).expect("it is aligned");
        split.begin(guest, 0).expect("it is in the memory");
        let mut pieces = Vec::new();
        for _ in 0..SIZE {
            let Ok(Some(head)) = split.take(guest) else { break };
            let Ok(readable) = split.chain(guest, head, &mut pieces) else { continue };
            assert!(readable <= pieces.len() && pieces.len() <= usize::from(SIZE));
            if parse(&mut pieces, readable, guest).is_some() {
                split.put(guest, head, 1).expect("it is in the memory");
            }
        }
        let _ = split.wants_call(guest);
        let _ = split.arm(guest);
    }
}
