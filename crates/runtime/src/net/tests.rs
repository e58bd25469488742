//! Connections over loopback and unix sockets: order, partial sends, predictions, drops.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::ring::tests::{ring, wait_for};
use crate::target::SplitMix;
use crate::{Buf, clock};

const RX: Token = Token(1);
const TX: Token = Token(2);

fn pool() -> BufPool {
    BufPool::new(64 << 20).unwrap()
}

fn pair(pool: &BufPool) -> (Conn, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Conn::new(ours.into(), pool).unwrap(), theirs)
}

/// Receives once.
fn receive(ring: &mut Ring, conn: &mut Conn) -> Received {
    assert!(conn.rx.arm(ring, RX));
    let done = wait_for(ring, RX);
    conn.rx.on_completed(done).unwrap()
}

/// Reads a packet: be32 header length, be32 payload length, rest of the header, payload.
fn read_packet(ring: &mut Ring, conn: &mut Conn) -> Option<(Vec<u8>, Buf)> {
    let lengths = loop {
        if let Some(h) = conn.rx.peek(8) {
            break (be32(&h[..4]), be32(&h[4..]));
        }
        if receive(ring, conn) == Received::End {
            return None;
        }
    };
    let header = loop {
        if let Some(header) = conn.rx.peek(lengths.0) {
            break header.to_vec();
        }
        assert_ne!(receive(ring, conn), Received::End);
    };
    conn.rx.consume(lengths.0);
    loop {
        match conn.rx.take_payload(lengths.1).unwrap() {
            Some(buf) => return Some((header, buf)),
            None => assert_ne!(receive(ring, conn), Received::End),
        }
    }
}

fn be32(bytes: &[u8]) -> usize {
    u32::from_be_bytes(bytes.try_into().unwrap()) as usize
}

fn packet(random: &mut SplitMix, header: usize, payload: usize) -> (Vec<u8>, Vec<u8>) {
    let mut h: Vec<u8> = (0..header).map(|_| random.next() as u8).collect();
    h[..4].copy_from_slice(&(header as u32).to_be_bytes());
    h[4..8].copy_from_slice(&(payload as u32).to_be_bytes());
    let fill = random.next();
    let p = (0..payload).map(|i| (fill.rotate_left(i as u32 / 3) as u8) ^ i as u8).collect();
    (h, p)
}

/// Streams of packets arrive unchanged whatever the sizes and however they are cut.
#[test]
fn packets_arrive_unchanged_predicted_or_not() {
    for seed in 0..16 {
        let mut random = SplitMix(seed);
        let steady = seed % 4;
        let packets: Vec<_> = (0..if steady == 3 { 60 } else { 600 })
            .map(|_| match (steady, random.below(12)) {
                // A steady stream, of small or of large payloads; one with odd packets in between;
                // anything.
                (3, 1..) => packet(&mut random, 40, 128 << 10),
                (0, _) | (1, 1..) => packet(&mut random, 40, 4096),
                (1, _) => packet(&mut random, 24, 0),
                (_, n) => {
                    let header = 8 + random.below(if n == 0 { 5000 } else { 100 }) as usize;
                    let magnitude = random.below(if n == 1 { 21 } else { 15 });
                    let payload = random.below(1 << magnitude) as usize;
                    packet(&mut random, header, payload)
                }
            })
            .collect();
        let pool = pool();
        let (mut conn, mut theirs) = pair(&pool);
        let sent = packets.clone();
        let writer = std::thread::spawn(move || {
            let stream: Vec<u8> = sent.into_iter().flat_map(|(h, p)| [h, p].concat()).collect();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let n = 1 + random.below(rest.len().min(100_000) as u64) as usize;
                theirs.write_all(&rest[..n]).unwrap();
                rest = &rest[n..];
            }
        });
        let mut ring = ring();
        for (i, (header, payload)) in packets.iter().enumerate() {
            let (h, p) = read_packet(&mut ring, &mut conn).unwrap();
            assert!(h == *header && p.as_slice() == payload, "seed {seed}, packet {i}");
        }
        assert!(read_packet(&mut ring, &mut conn).is_none());
        writer.join().unwrap();
        drop(conn);
        assert_eq!(pool.in_use(), 0);
    }
}

/// Receiving although there is something to read is wasteful, and nothing else.
#[test]
fn receiving_at_any_time_loses_nothing() {
    for seed in 0..10 {
        let mut random = SplitMix(seed);
        let packets: Vec<_> = (0..300)
            .map(|_| match random.below(6 + 20 * (seed % 2)) {
                0 => packet(&mut random, 24, 0),
                1 => packet(&mut random, 40, 60_000),
                _ => packet(&mut random, 40, 4096),
            })
            .collect();
        let pool = pool();
        let (mut conn, mut theirs) = pair(&pool);
        let mut ring = ring();
        let stream: Vec<u8> = packets.iter().flat_map(|(h, p)| [&h[..], p].concat()).collect();
        let writer = std::thread::spawn(move || {
            stream.chunks(7001).for_each(|chunk| theirs.write_all(chunk).unwrap());
            // Something always follows, so a receive in flight never keeps what is unread.
            while theirs.write_all(&[0; 100]).is_ok() {}
        });
        let received = |ring: &mut Ring, conn: &mut Conn, must: bool| {
            let room = conn.rx.arm(ring, RX);
            assert!(room || !must, "there is room when data is missing");
            if room {
                let done = wait_for(ring, RX);
                conn.rx.on_completed(done).unwrap();
            }
        };
        for (header, payload) in &packets {
            let mut step = |ring: &mut Ring, conn: &mut Conn, must| {
                if must || random.below(3) == 0 {
                    received(ring, conn, must);
                }
            };
            step(&mut ring, &mut conn, false);
            while conn.rx.peek(header.len()).is_none() {
                step(&mut ring, &mut conn, true);
            }
            step(&mut ring, &mut conn, false);
            assert!(conn.rx.peek(header.len()).unwrap() == header);
            conn.rx.consume(header.len());
            step(&mut ring, &mut conn, false);
            loop {
                match conn.rx.take_payload(payload.len()).unwrap() {
                    Some(buf) => break assert!(buf.as_slice() == payload),
                    None => step(&mut ring, &mut conn, true),
                }
                step(&mut ring, &mut conn, false);
            }
        }
        drop(conn);
        writer.join().unwrap();
    }
}

#[test]
fn a_steady_stream_is_received_without_copies() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    let mut ring = ring();
    let mut random = SplitMix(7);
    let batch: Vec<u8> = (0..8)
        .flat_map(|_| {
            let (h, p) = packet(&mut random, 40, 4096);
            [h, p].concat()
        })
        .collect();
    for round in 0..10 {
        theirs.write_all(&batch).unwrap();
        for i in 0..8 {
            let copied_before = conn.rx.copied();
            read_packet(&mut ring, &mut conn).unwrap();
            if round > 2 {
                assert_eq!(conn.rx.copied(), copied_before, "round {round}, packet {i}");
            }
        }
    }
}

#[test]
fn an_idle_stream_holds_little_memory_also_after_a_busy_time() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    let mut ring = ring();
    let mut read = |conn: &mut Conn, theirs: &mut UnixStream, batch: &[u8]| {
        theirs.write_all(batch).unwrap();
        for packet in batch.chunks_exact(16) {
            assert_eq!(read_packet(&mut ring, conn).unwrap().0, packet);
        }
        conn.rx.memory()
    };
    let one: Vec<u8> = (0..16).map(|i| if i == 3 { 16 } else { i * u8::from(i > 7) }).collect();
    assert!(read(&mut conn, &mut theirs, &one) <= 4 << 10);
    let busy = read(&mut conn, &mut theirs, &one.repeat(10_000));
    assert!(busy > 32 << 10, "many packets a call: {busy}");
    for _ in 0..150 {
        read(&mut conn, &mut theirs, &one);
    }
    let idle = read(&mut conn, &mut theirs, &one);
    assert!(idle <= 4 << 10, "{idle}");
}

#[test]
fn nothing_is_received_while_the_reader_does_not_read() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    theirs.set_nonblocking(true).unwrap();
    while theirs.write(&[1; 65536]).is_ok() {}
    let mut ring = ring();
    let mut receives = 0;
    while conn.rx.arm(&mut ring, RX) {
        let done = wait_for(&mut ring, RX);
        conn.rx.on_completed(done).unwrap();
        receives += 1;
    }
    assert!(receives > 0 && conn.rx.available() > PEEK_MAX);
}

#[test]
fn a_payload_waits_for_buffer_memory_and_nothing_is_lost() {
    let pool = BufPool::new(1 << 20).unwrap();
    let (mut conn, mut theirs) = pair(&pool);
    let mut ring = ring();
    theirs.write_all(&[3; 10_000]).unwrap();
    let hog = pool.alloc(1 << 20).unwrap();
    receive(&mut ring, &mut conn);
    assert_eq!(conn.rx.take_payload(10_000).unwrap_err(), crate::AllocError::Exhausted);
    assert_eq!(conn.rx.take_payload(2 << 20).unwrap_err(), crate::AllocError::TooLarge);
    drop(hog);
    while conn.rx.take_payload(10_000).unwrap().is_none_or(|b| b.iter().any(|b| *b != 3)) {
        receive(&mut ring, &mut conn);
    }
}

/// The peer reads slowly: everything arrives in order although no send takes it all.
#[test]
fn partial_sends_go_on_where_they_stopped() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    conn.set_buffer_sizes(Some(8192), None).unwrap();
    let mut ring = ring();
    let mut random = SplitMix(5);
    let mut expected = Vec::new();
    for _ in 0..3000 {
        let header: Vec<u8> = (0..random.below(60)).map(|_| random.next() as u8).collect();
        let data: Vec<u8> = vec![random.next() as u8; random.below(3000) as usize];
        expected.extend_from_slice(&header);
        expected.extend_from_slice(&data);
        conn.tx.push_bytes(&header);
        conn.tx.push_buf(pool.copy_from(&data).unwrap());
    }
    assert_eq!(conn.tx.queued_bytes(), expected.len());
    let total = expected.len();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; total];
        for chunk in got.chunks_mut(9973) {
            theirs.read_exact(chunk).unwrap();
        }
        got
    });
    let mut sends = 0;
    while conn.tx.queued_bytes() > 0 {
        conn.tx.flush(&mut ring, TX);
        let done = wait_for(&mut ring, TX);
        conn.tx.on_completed(done, ring.now()).unwrap();
        sends += 1;
    }
    assert!(sends > 10, "{sends} sends");
    assert!(reader.join().unwrap() == expected);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn packets_pushed_together_leave_in_one_send() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    let mut ring = ring();
    for i in 0..100u8 {
        conn.tx.push_bytes(&[i; 16]);
        conn.tx.push_with(|out| out.extend_from_slice(&[i; 8]));
        conn.tx.push_buf(pool.copy_from(&[i; 512]).unwrap());
    }
    conn.tx.flush(&mut ring, TX);
    let done = wait_for(&mut ring, TX);
    assert_eq!(done.result, Ok(100 * 536));
    conn.tx.on_completed(done, ring.now()).unwrap();
    assert_eq!((conn.tx.queued_bytes(), pool.in_use()), (0, 0));
    let mut got = vec![0; 100 * 536];
    theirs.read_exact(&mut got).unwrap();
    assert!(got.chunks(536).enumerate().all(|(i, c)| c.iter().all(|b| *b == i as u8)));
}

#[test]
fn a_peer_that_takes_nothing_shows_as_stall_and_back_pressure() {
    let pool = pool();
    let (mut conn, _theirs) = pair(&pool);
    let mut ring = ring();
    let mut events = Vec::new();
    assert_eq!(conn.tx.stalled_for(clock::now()), Duration::ZERO);
    while conn.tx.stalled_for(clock::now()) < Duration::from_millis(30) {
        if conn.tx.queued_bytes() < 2 << 20 {
            conn.tx.push_buf(pool.alloc(65536).unwrap());
        }
        conn.tx.flush(&mut ring, TX);
        ring.wait(Some(clock::now() + Duration::from_millis(5)), &mut events).unwrap();
        for done in events.drain(..) {
            conn.tx.on_completed(done, ring.now()).unwrap();
        }
    }
    assert!(conn.tx.is_busy() && conn.tx.queued_bytes() > 100_000);
}

/// Receive and send are in flight when the connection goes away: both end, their buffers come
/// back, and their events belong to nobody.
#[test]
fn a_connection_dropped_with_operations_in_flight_leaves_nothing_behind() {
    let pool = pool();
    let (mut conn, mut theirs) = pair(&pool);
    let mut ring = ring();
    theirs.write_all(&[0; 100]).unwrap();
    receive(&mut ring, &mut conn);
    conn.rx.consume(100);
    assert!(conn.rx.take_payload(BIG).unwrap().is_none());
    for _ in 0..20 {
        conn.tx.push_buf(pool.alloc(BIG).unwrap());
    }
    conn.rx.arm(&mut ring, RX);
    conn.tx.flush(&mut ring, TX);
    ring.submit().unwrap();
    let mut events = Vec::new();
    ring.wait(Some(clock::now() + Duration::from_millis(10)), &mut events).unwrap();
    for done in std::mem::take(&mut events) {
        conn.tx.on_completed(done, ring.now()).unwrap();
        conn.tx.flush(&mut ring, TX);
    }
    ring.wait(Some(clock::now() + Duration::from_millis(10)), &mut events).unwrap();
    assert!(events.is_empty());
    assert_eq!(ring.in_flight(), 2);
    drop(conn);
    while ring.in_flight() > 0 {
        ring.wait(Some(clock::now() + Duration::from_secs(5)), &mut events).unwrap();
    }
    assert_eq!(events.len(), 2);
    drop(events);
    assert_eq!(pool.in_use(), 0);
    let mut rest = Vec::new();
    theirs.read_to_end(&mut rest).unwrap();
}

const BIG: usize = 512 << 10;

#[test]
fn tcp_connects_from_the_local_address_and_is_accepted() {
    let (mut ring, pool) = (ring(), pool());
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = match Listener::tcp(any.parse().unwrap()) {
            Ok(listener) => listener,
            Err(Errno(libc::EADDRNOTAVAIL)) => continue,
            Err(errno) => panic!("{errno}"),
        };
        let address = listener.local_addr().unwrap();
        listener.accept(&mut ring, Token(10));
        let connecting = Connecting::tcp(&mut ring, Token(11), address, any.parse().ok()).unwrap();
        let mut events = Vec::new();
        while events.len() < 2 {
            ring.wait(None, &mut events).unwrap();
        }
        events.sort_by_key(|done| done.token);
        let connected = connecting.on_completed(events.pop().unwrap(), &pool).unwrap();
        let accepted = Conn::accepted(events.pop().unwrap(), &pool).unwrap();
        assert_eq!(accepted.peer_addr(), connected.local_addr());
        assert_eq!(connected.peer_addr(), Some(address));
        for conn in [&connected, &accepted] {
            conn.set_nodelay().unwrap();
            conn.set_keepalive(Duration::from_secs(23), Duration::from_secs(23), 9).unwrap();
        }
    }
}

#[test]
fn a_refused_connect_fails_and_a_dropped_listener_ends_its_accept() {
    let (mut ring, pool) = (ring(), pool());
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    listener.accept(&mut ring, Token(10));
    ring.submit().unwrap();
    drop(listener);
    assert!(wait_for(&mut ring, Token(10)).result.is_err());
    let connecting = Connecting::tcp(&mut ring, Token(11), address, None).unwrap();
    let done = wait_for(&mut ring, Token(11));
    assert_eq!(connecting.on_completed(done, &pool).err(), Some(Errno::ECONNREFUSED));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_connect_without_answer_can_be_cancelled() {
    let mut ring = ring();
    // A listener whose queue is full does not answer.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut attempts = Vec::new();
    let mut events = Vec::new();
    for i in 0..4 {
        attempts.push(Connecting::tcp(&mut ring, Token(i), address, None).unwrap());
    }
    ring.wait(Some(clock::now() + Duration::from_millis(50)), &mut events).unwrap();
    let established = events.len();
    assert!(established < 4);
    let last = attempts.pop().unwrap();
    last.cancel(&mut ring);
    drop(attempts);
    while ring.in_flight() > 0 {
        ring.wait(Some(clock::now() + Duration::from_secs(5)), &mut events).unwrap();
    }
    assert!(events[established..].iter().all(|done| done.result.is_err()));
}

#[test]
fn unix_sockets_replace_a_stale_one_and_know_the_peer() {
    let (mut ring, pool) = (ring(), pool());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(Listener::unix(&path).unwrap());
    let listener = Listener::unix(&path).unwrap();
    assert_eq!(Listener::unix(&path).err(), Some(Errno(libc::EADDRINUSE)));
    let plain = dir.path().join("file");
    std::fs::write(&plain, "precious").unwrap();
    assert_eq!(Listener::unix(&plain).err(), Some(Errno(libc::EADDRINUSE)));
    let _client = UnixStream::connect(&path).unwrap();
    listener.accept(&mut ring, Token(1));
    let conn = Conn::accepted(wait_for(&mut ring, Token(1)), &pool).unwrap();
    let peer = conn.peer_credentials().unwrap();
    assert_eq!(peer.pid, std::process::id() as i32);
    let connecting = Connecting::unix(&mut ring, Token(2), &path).unwrap();
    let done = wait_for(&mut ring, Token(2));
    connecting.on_completed(done, &pool).unwrap();
    while ring.in_flight() > 0 {
        wait_for(&mut ring, Token(2));
    }
    let listener = Listener::from_fd(listener.fd.as_fd().try_clone_to_owned().unwrap());
    let mut backlog = 0;
    loop {
        listener.accept(&mut ring, Token(3));
        let mut events = Vec::new();
        ring.wait(Some(clock::now() + Duration::from_millis(20)), &mut events).unwrap();
        if events.is_empty() {
            break;
        }
        backlog += 1;
    }
    assert_eq!(backlog, 2, "the check whether it is stale, and the connection made last");
    drop(listener);
    assert!(wait_for(&mut ring, Token(3)).result.is_err(), "its accept has ended");
}

/// Somebody listens and accepts nobody, and as many wait as may.
#[test]
fn whether_a_socket_is_stale_is_found_out_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let busy = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    busy.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    busy.listen(0).unwrap();
    for _ in 0..3 {
        assert_eq!(listen_unix(&path).err(), Some(Errno(libc::EADDRINUSE)));
    }
    drop(busy);
    listen_unix(&path).unwrap();
}

/// A socket given away stays connected, and its old owner is gone.
#[test]
fn a_connection_can_be_given_away() {
    let (mut ring, pool) = (ring(), pool());
    let (mut conn, mut peer) = pair(&pool);
    conn.tx.push_bytes(b"one");
    conn.tx.flush(&mut ring, TX);
    conn.tx.on_completed(wait_for(&mut ring, TX), ring.now()).unwrap();
    let fd = conn.into_fd().unwrap();
    let mut conn = Conn::new(fd, &pool).unwrap();
    conn.tx.push_bytes(b"two");
    conn.tx.flush(&mut ring, TX);
    conn.tx.on_completed(wait_for(&mut ring, TX), ring.now()).unwrap();
    let mut got = [0; 6];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"onetwo");
    drop(conn);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// What is reserved is sent as it was filled in, in its place, also behind what waits already.
#[test]
fn what_is_reserved_is_filled_in_before_it_is_sent() {
    let (mut ring, pool) = (ring(), pool());
    let (mut conn, mut peer) = pair(&pool);
    conn.tx.push_bytes(b"a");
    let count = conn.tx.reserve(2).unwrap();
    conn.tx.push_bytes(b"bc");
    conn.tx.push_buf(pool.copy_from(b"defg").unwrap());
    assert_eq!(conn.tx.behind_reserved(), 6);
    conn.tx.fill(count, b"06");
    let count = conn.tx.reserve(2).unwrap();
    assert_eq!(conn.tx.queued_bytes(), 11);
    conn.tx.push_bytes(b"h");
    conn.tx.fill(count, b"01");
    conn.tx.flush(&mut ring, TX);
    conn.tx.on_completed(wait_for(&mut ring, TX), ring.now()).unwrap();
    let mut got = [0; 12];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"a06bcdefg01h");
}
