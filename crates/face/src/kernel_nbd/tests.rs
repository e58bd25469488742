//! Requests as the kernel sends them, with an engine behind the link.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::time::Duration;

use frontend::nbd::proto::option::oldstyle_greeting;
use frontend::nbd::proto::transfer::SIMPLE_REPLY_LEN;

use super::*;

const SOON: Duration = Duration::from_secs(20);
const MIB: u32 = 1 << 20;

/// The kernel's end, and the engine's.
struct Bed {
    kernel: UnixStream,
    engine: UnixStream,
    passing: std::thread::JoinHandle<io::Result<()>>,
}

impl Bed {
    fn new() -> Bed {
        let link = Arc::new(Link::new(false, SOON));
        let (engine, theirs) = UnixStream::pair().unwrap();
        let mut greeting = Vec::new();
        oldstyle_greeting(u64::from(64 * MIB), TransmissionFlags::HAS_FLAGS, &mut greeting);
        (&engine).write_all(&greeting).unwrap();
        link.join(theirs, SOON).unwrap();
        let (kernel, ours) = UnixStream::pair().unwrap();
        for stream in [&kernel, &engine] {
            stream.set_read_timeout(Some(SOON)).unwrap();
        }
        let to = Arc::new(Mutex::new(ours.try_clone().unwrap()));
        let passing = std::thread::spawn(move || pass_on(&link, ours, &to));
        Bed { kernel, engine, passing }
    }

    fn request(&mut self, command: Command, flags: CommandFlags, cookie: u64, range: (u64, u32)) {
        let (offset, len) = range;
        let header = RequestHeader { flags, command, cookie, offset, len };
        self.kernel.write_all(&header.encode()).unwrap();
    }

    /// What the engine is asked for next, and with what data.
    fn asked(&mut self) -> (RequestHeader, Vec<u8>) {
        let mut header = [0; REQUEST_LEN];
        self.engine.read_exact(&mut header).unwrap();
        let header = RequestHeader::decode(&header).unwrap();
        let mut data =
            vec![0; if header.command == Command::Write { header.len as usize } else { 0 }];
        self.engine.read_exact(&mut data).unwrap();
        (header, data)
    }

    fn answer(&mut self, cookie: u64, error: u32, data: &[u8]) {
        self.engine.write_all(&SimpleReply { error, cookie }.encode()).unwrap();
        self.engine.write_all(data).unwrap();
    }

    /// The next reply to the kernel, with so many bytes of data.
    fn reply(&mut self, len: usize) -> (u64, u32, Vec<u8>) {
        let mut header = [0; SIMPLE_REPLY_LEN];
        self.kernel.read_exact(&mut header).unwrap();
        let SimpleReply { error, cookie } = SimpleReply::decode(&header).unwrap();
        let mut data = vec![0; if error == 0 { len } else { 0 }];
        self.kernel.read_exact(&mut data).unwrap();
        (cookie, error, data)
    }
}

#[test]
fn every_kind_of_request_is_passed_on_and_answered_by_the_kernels_cookie() {
    let mut bed = Bed::new();
    let none = CommandFlags::NONE;
    let (keep, hole) = (CommandFlags::NO_HOLE, none);
    let wishes = [
        (Command::Write, none, Command::Write, none),
        (Command::Flush, none, Command::Flush, none),
        (Command::Trim, none, Command::WriteZeroes, hole),
        (Command::WriteZeroes, keep, Command::WriteZeroes, keep),
        (Command::WriteZeroes, none, Command::WriteZeroes, hole),
    ];
    for (nr, (command, flags, passed, with)) in wishes.into_iter().enumerate() {
        let cookie = 0x1122_3344_5566_0000 + nr as u64;
        let range = if command == Command::Flush { (0, 0) } else { (4096, 512) };
        bed.request(command, flags, cookie, range);
        if command == Command::Write {
            bed.kernel.write_all(&[7; 512]).unwrap();
        }
        let (asked, data) = bed.asked();
        assert_eq!((asked.command, asked.flags, (asked.offset, asked.len)), (passed, with, range));
        assert_eq!(data, vec![7; data.len()]);
        bed.answer(asked.cookie, 0, &[]);
        assert_eq!(bed.reply(0), (cookie, 0, Vec::new()));
    }
    bed.request(Command::BlockStatus, none, 9, (0, 512));
    assert_eq!(bed.reply(0), (9, 22, Vec::new()), "the kernel does not ask for that");
    bed.request(Command::Disc, none, 0, (0, 0));
    bed.passing.join().unwrap().unwrap();
}

#[test]
fn a_request_longer_than_an_engine_takes_goes_in_parts_and_is_answered_as_one() {
    let mut bed = Bed::new();
    let len = 2 * MIB + 4096;
    bed.request(Command::Read, CommandFlags::NONE, 1, (4096, len));
    let parts = [bed.asked().0, bed.asked().0, bed.asked().0];
    let mib = u64::from(MIB);
    let ranges = parts.map(|part| (part.offset, part.len));
    assert_eq!(ranges, [(4096, MIB), (4096 + mib, MIB), (4096 + 2 * mib, 4096)]);
    // In another order.
    for nr in [2, 0, 1] {
        bed.answer(parts[nr].cookie, 0, &vec![nr as u8 + 1; parts[nr].len as usize]);
    }
    let (cookie, error, data) = bed.reply(len as usize);
    let expected = [vec![1; MIB as usize], vec![2; MIB as usize], vec![3; 4096]].concat();
    assert!((cookie, error) == (1, 0) && data == expected);
    // Of a write one part fails.
    let data: Vec<u8> = (0..len).map(|n| (n / 4096) as u8).collect();
    let written = data.clone();
    let mut kernel = bed.kernel.try_clone().unwrap();
    bed.request(Command::Write, CommandFlags::NONE, 2, (0, len));
    let write = std::thread::spawn(move || kernel.write_all(&written).unwrap());
    let mut begin = 0;
    let mut cookies = Vec::new();
    for _ in 0..3 {
        let (part, payload) = bed.asked();
        assert!(payload == data[begin..begin + payload.len()] && part.offset == begin as u64);
        begin += payload.len();
        cookies.push(part.cookie);
    }
    write.join().unwrap();
    for (cookie, error) in cookies.into_iter().zip([0, 28, 0]) {
        bed.answer(cookie, error, &[]);
    }
    assert_eq!(bed.reply(0), (2, 28, Vec::new()));
    drop(bed.kernel);
    bed.passing.join().unwrap().unwrap();
}
