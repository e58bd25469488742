//! Engines that answer, die, are replaced, and do not come.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc;

use frontend::nbd::proto::option::oldstyle_greeting;

use super::*;

const SIZE: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(20);

type Tell = mpsc::Sender<(u32, Result<Vec<u8>, i32>)>;
type Answers = mpsc::Receiver<(u32, Result<Vec<u8>, i32>)>;

struct Told(Tell, u32);

impl Answer for Told {
    fn done(self, result: Result<&[u8], i32>) {
        self.0.send((self.1, result.map(<[u8]>::to_vec))).unwrap();
    }
}

/// An engine at the other end of a connection.
struct Engine(UnixStream);

impl Engine {
    fn join(link: &Arc<Link<Told>>) -> Engine {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(SOON)).unwrap();
        let mut greeting = Vec::new();
        oldstyle_greeting(SIZE, TransmissionFlags::HAS_FLAGS, &mut greeting);
        (&ours).write_all(&greeting).unwrap();
        link.join(theirs, SOON).unwrap();
        Engine(ours)
    }

    /// The next request, with its payload.
    fn next(&mut self) -> (RequestHeader, Vec<u8>) {
        let mut bytes = [0; REQUEST_LEN];
        self.0.read_exact(&mut bytes).unwrap();
        let header = RequestHeader::decode(&bytes).unwrap();
        let len = if header.command == Command::Write { header.len as usize } else { 0 };
        let mut data = vec![0; len];
        self.0.read_exact(&mut data).unwrap();
        (header, data)
    }

    fn answer(&mut self, cookie: u64, error: u32, data: &[u8]) {
        self.0.write_all(&SimpleReply { error, cookie }.encode()).unwrap();
        self.0.write_all(data).unwrap();
    }

    /// True once the other side has closed the connection.
    fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap() == 0
    }
}

fn link(patience: Duration) -> (Arc<Link<Told>>, Tell, Answers) {
    let (tell, told) = mpsc::channel();
    (Arc::new(Link::new(false, patience)), tell, told)
}

#[test]
fn requests_wait_for_an_engine_and_are_answered_in_any_order() {
    let (link, tell, told) = link(SOON);
    link.submit(Op::Write(vec![7; 512]), 4096, 512, Told(tell.clone(), 1));
    assert!(!link.wait_joined(Duration::ZERO));
    let mut engine = Engine::join(&link);
    assert!(link.wait_joined(Duration::ZERO));
    assert_eq!(link.size(), SIZE);
    link.submit(Op::Read, 0, 1024, Told(tell.clone(), 2));
    link.submit(Op::Zeroes { keep: true }, 0, 4096, Told(tell.clone(), 3));
    link.submit(Op::Flush, 0, 0, Told(tell, 4));
    let requests: Vec<_> = (0..4).map(|_| engine.next()).collect();
    let commands = requests.iter().map(|(header, _)| (header.command, header.flags));
    let none = CommandFlags::NONE;
    assert!(commands.eq([
        (Command::Write, none),
        (Command::Read, none),
        (Command::WriteZeroes, CommandFlags::NO_HOLE),
        (Command::Flush, none),
    ]));
    assert_eq!((requests[0].0.offset, &requests[0].1), (4096, &vec![7; 512]));
    engine.answer(requests[1].0.cookie, 0, &[9; 1024]);
    engine.answer(requests[0].0.cookie, 28, &[]);
    engine.answer(requests[3].0.cookie, 0, &[]);
    engine.answer(requests[2].0.cookie, 0, &[]);
    let answers: Vec<_> = told.iter().take(4).collect();
    assert_eq!(answers, [(2, Ok(vec![9; 1024])), (1, Err(28)), (4, Ok(vec![])), (3, Ok(vec![]))]);
}

#[test]
fn what_a_dead_engine_did_not_answer_is_asked_of_the_next_and_answered_once() {
    let (link, tell, told) = link(SOON);
    let mut first = Engine::join(&link);
    link.submit(Op::Write(vec![1; 512]), 0, 512, Told(tell.clone(), 1));
    link.submit(Op::Write(vec![2; 512]), 512, 512, Told(tell.clone(), 2));
    let (answered, _) = first.next();
    first.next();
    first.answer(answered.cookie, 0, &[]);
    assert_eq!(told.recv_timeout(SOON).unwrap(), (1, Ok(vec![])));
    drop(first);
    // Taken by the link before or after it notices: asked of the next engine in both cases.
    link.submit(Op::Read, 0, 512, Told(tell, 3));
    let mut second = Engine::join(&link);
    let mut again = [second.next(), second.next()];
    again.sort_by_key(|(header, _)| header.command.number());
    assert_eq!(again.each_ref().map(|(h, _)| h.command), [Command::Read, Command::Write]);
    assert_eq!((again[1].0.offset, &again[1].1), (512, &vec![2; 512]));
    second.answer(again[1].0.cookie, 0, &[]);
    second.answer(again[0].0.cookie, 0, &[3; 512]);
    assert_eq!(told.recv_timeout(SOON).unwrap(), (2, Ok(vec![])));
    assert_eq!(told.recv_timeout(SOON).unwrap(), (3, Ok(vec![3; 512])));
}

#[test]
fn a_newer_connection_takes_over_and_the_older_one_answers_what_it_has() {
    let (link, tell, told) = link(SOON);
    let mut old = Engine::join(&link);
    link.submit(Op::Flush, 0, 0, Told(tell.clone(), 1));
    let (header, _) = old.next();
    let mut new = Engine::join(&link);
    link.submit(Op::Read, 0, 512, Told(tell, 2));
    let (read, _) = new.next();
    new.answer(read.cookie, 0, &[5; 512]);
    assert_eq!(told.recv_timeout(SOON).unwrap(), (2, Ok(vec![5; 512])));
    old.answer(header.cookie, 0, &[]);
    assert_eq!(told.recv_timeout(SOON).unwrap(), (1, Ok(vec![])));
    assert!(old.is_closed());
}

#[test]
fn an_engine_that_ends_and_one_out_of_step_are_no_errors_of_the_device() {
    let (link, tell, told) = link(SOON);
    let mut first = Engine::join(&link);
    link.submit(Op::Flush, 0, 0, Told(tell, 1));
    let (header, _) = first.next();
    first.answer(header.cookie, ErrorCode::Shutdown.number(), &[]);
    let mut second = Engine::join(&link);
    let (header, _) = second.next();
    second.answer(header.cookie + 1, 0, &[]);
    assert!(second.is_closed());
    let mut third = Engine::join(&link);
    let (header, _) = third.next();
    assert_eq!(header.command, Command::Flush);
    third.answer(header.cookie, 0, &[]);
    assert_eq!(told.recv_timeout(SOON).unwrap(), (1, Ok(vec![])));
}

#[test]
fn without_an_engine_for_too_long_everything_fails() {
    let (link, tell, told) = link(Duration::from_millis(1));
    link.submit(Op::Flush, 0, 0, Told(tell.clone(), 1));
    link.watch();
    assert_eq!(told.recv_timeout(SOON).unwrap(), (1, Err(EIO)));
    link.submit(Op::Flush, 0, 0, Told(tell, 2));
    assert_eq!(told.recv_timeout(SOON).unwrap(), (2, Err(EIO)));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut greeting = Vec::new();
    oldstyle_greeting(SIZE, TransmissionFlags::HAS_FLAGS, &mut greeting);
    (&ours).write_all(&greeting).unwrap();
    assert!(link.join(theirs, SOON).is_err(), "an engine that comes later makes a new device");
}

#[test]
fn a_volume_that_became_read_only_is_not_taken() {
    let (link, _tell, _told) = link(SOON);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut greeting = Vec::new();
    oldstyle_greeting(SIZE, TransmissionFlags::READ_ONLY, &mut greeting);
    (&ours).write_all(&greeting).unwrap();
    assert!(link.join(theirs, SOON).is_err());
}
