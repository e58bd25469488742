//! Records that are tampered with, and sessions with rustls's own record layer at the other end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use runtime::{Buf, BufPool, Conn, Ring, Token};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::{ClientConnection, ConnectionTrafficSecrets, ServerConnection, StreamOwned};

use super::authority::Authority;
use super::record::{DATA_MAX, FrozenKey, Key};
use super::*;

fn key(next: u64) -> Key {
    let (key, iv) = (AeadKey::from([3; 32]), Iv::from([5; 12]));
    Key::new((next, ConnectionTrafficSecrets::Aes256Gcm { key, iv }), None).unwrap()
}

fn sealed(key: &mut Key, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    key.seal(content::DATA, &mut out, |out| out.extend_from_slice(data));
    out
}

fn opened(key: &mut Key, record: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut plain = vec![0xee; record.len()];
    let (kind, len) = key.open(record, &mut plain)?;
    assert_eq!(kind, content::DATA);
    plain.truncate(len);
    Ok(plain)
}

#[test]
fn records_hold_up_to_16_kib_and_come_in_their_order() {
    let (mut sending, mut receiving) = (key(0), key(0));
    for len in [0, 1, 4096, DATA_MAX] {
        // Zeroes look like the padding that hides lengths.
        for data in [vec![0; len], vec![7; len]] {
            let record = sealed(&mut sending, &data);
            assert_eq!(record::record_len(record[..5].try_into().unwrap()), Ok(record.len()));
            assert_eq!(opened(&mut receiving, &record), Ok(data));
        }
    }
    let (first, second) = (sealed(&mut sending, b"first"), sealed(&mut sending, b"second"));
    assert_eq!(opened(&mut receiving, &first), Ok(b"first".to_vec()));
    for other in [&first, &second] {
        // Once more, and the one behind the next.
        let mut receiving = key(if *other == first { sending.used() - 1 } else { sending.used() });
        assert_eq!(opened(&mut receiving, other), Err(RecordError::Forged));
    }
}

#[test]
fn no_byte_of_a_record_can_be_changed() {
    let record = sealed(&mut key(9), b"some data");
    for at in 0..record.len() {
        let mut forged = record.clone();
        forged[at] ^= 1;
        assert!(opened(&mut key(9), &forged).is_err(), "byte {at}");
        assert!(opened(&mut key(9), &record[..at]).is_err(), "cut at {at}");
    }
    assert_eq!(opened(&mut key(9), &record), Ok(b"some data".to_vec()));
}

#[test]
fn bytes_that_begin_no_record_are_told_from_those_that_do() {
    for header in [*b"GET /", [0x83, 0x74, 2, 0x67, 0xff], [23, 3, 3, 0, 0], [23, 3, 3, 0x41, 1]] {
        let error = record::record_len(header).unwrap_err();
        assert_eq!(error, RecordError::Header(header));
    }
    assert_eq!(record::record_len([22, 3, 1, 2, 0]), Ok(517));
}

/// Our end, driven until something has come about.
struct Ours {
    ring: Ring,
    conn: Conn,
    pool: BufPool,
}

const SEND: Token = Token(1);
const RECEIVE: Token = Token(2);

impl Ours {
    fn turn(&mut self) {
        self.conn.tx.flush(&mut self.ring, SEND);
        if !self.conn.rx.is_armed() {
            self.conn.rx.arm(&mut self.ring, RECEIVE);
        }
        let mut events = Vec::new();
        self.ring.wait(None, &mut events).unwrap();
        for done in events {
            match done.token {
                SEND => self.conn.tx.on_completed(done, self.ring.now()).unwrap(),
                _ => _ = self.conn.rx.on_completed(done).unwrap(),
            }
        }
    }

    fn session(&mut self, credentials: &Credentials, accepted: bool) -> Session {
        let mut handshake = Handshake::new(credentials, accepted).unwrap();
        loop {
            let mut out = Vec::new();
            let over = handshake.advance(&mut self.conn.rx, &mut out).unwrap();
            self.conn.tx.push_bytes(&out);
            if over {
                return Session::new(handshake.finish().unwrap(), self.pool.clone());
            }
            self.turn();
        }
    }
}

/// A message of this length: its length, and bytes.
fn message(len: usize) -> (Vec<u8>, Vec<u8>) {
    let bytes = (0..len).map(|at| (at * 7 + len) as u8).collect();
    ((len as u32).to_be_bytes().to_vec(), bytes)
}

#[test]
fn rustls_understands_our_records_and_new_keys_and_we_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let [ours, theirs] = ["ours", "theirs"].map(|name| authority.equip(folder.path(), name));
    let ours = Credentials::read(&ours, "theirs").unwrap();
    let theirs = Credentials::read(&theirs, "ours").unwrap();
    for accepted in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let (client, server, name) =
            (theirs.client.clone(), theirs.server.clone(), theirs.peer.clone());
        let peer = thread::spawn(move || match accepted {
            true => {
                let side = ClientConnection::new(client, name).unwrap();
                echo_renewing(StreamOwned::new(side, far), |s| s.conn.refresh_traffic_keys());
            }
            false => {
                // As others do, with tickets.
                let mut config = Arc::unwrap_or_clone(server);
                config.send_tls13_tickets = 2;
                let side = ServerConnection::new(Arc::new(config)).unwrap();
                echo_renewing(StreamOwned::new(side, far), |s| s.conn.refresh_traffic_keys());
            }
        });
        let pool = BufPool::new(8 << 20).unwrap();
        let conn = Conn::new(near.into(), &pool).unwrap();
        let mut end = Ours { ring: Ring::with_entries(16).unwrap(), conn, pool };
        let mut session = end.session(&ours, accepted);
        session.set_records_per_key(3);
        for len in [1, 100, 4096, 5000, DATA_MAX, DATA_MAX + 1, 300_000, 12, 1 << 20, 3] {
            let (head, bytes) = message(len);
            let buf: Buf = end.pool.copy_from(&bytes).unwrap();
            session.queue(|out| out.extend_from_slice(&head), Some(buf));
            let back = loop {
                session.seal(&mut end.conn.tx).unwrap();
                if session.fetch(&mut end.conn.rx, 4).unwrap() == 4 {
                    break session.peek(4).unwrap().to_vec();
                }
                end.turn();
            };
            assert_eq!(back, head);
            session.consume(4);
            let back = loop {
                session.seal(&mut end.conn.tx).unwrap();
                match session.take_payload(&mut end.conn.rx, len).unwrap().unwrap() {
                    Some(back) => break back,
                    None => end.turn(),
                }
            };
            assert!(*back == *bytes, "{len} bytes come back as they were");
            // Another process goes on, and makes new keys as well.
            let frozen = codec::frozen::to_bytes(1, &session.freeze(&[])).unwrap();
            let frozen = codec::frozen::from_bytes(1, &frozen).unwrap();
            session = Session::thaw(frozen, end.pool.clone()).unwrap();
        }
        // The peer gets a message and the end behind it, and answers to the one before the other.
        let (head, bytes) = message(77);
        let buf: Buf = end.pool.copy_from(&bytes).unwrap();
        session.queue(|out| out.extend_from_slice(&head), Some(buf));
        session.finish();
        session.seal(&mut end.conn.tx).unwrap();
        while session.fetch(&mut end.conn.rx, 81).unwrap() < 81 {
            end.turn();
        }
        assert_eq!(session.peek(81).unwrap(), [head, bytes].concat());
        peer.join().unwrap();
    }
}

/// A session that came from another process, with what it has to read.
fn inherited(receiving: FrozenKey, unread: &[u8], pool: &BufPool) -> (Session, Conn) {
    let frozen = FrozenSession::new(key(0).freeze(), receiving);
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(far);
    let mut conn = Conn::new(near.into(), pool).unwrap();
    conn.rx.preload(unread);
    (Session::thaw(frozen, pool.clone()).unwrap(), conn)
}

#[test]
fn a_session_is_handed_over_between_any_two_bytes() {
    let pool = BufPool::new(8 << 20).unwrap();
    let messages = [message(300), message(41)];
    let plain = messages.iter().flat_map(|(head, bytes)| [head.clone(), bytes.clone()]).flatten();
    let plain: Vec<u8> = plain.collect();
    let mut sending = key(0);
    // Messages are not records, and records not messages.
    let stream: Vec<u8> = plain.chunks(100).flat_map(|part| sealed(&mut sending, part)).collect();
    for cut in 0..=stream.len() {
        let (mut session, mut conn) = inherited(key(0).freeze(), &stream[..cut], &pool);
        let (mut got, mut head) = (Vec::new(), None::<Vec<u8>>);
        for heir in [false, true] {
            if heir {
                let before = head.take().unwrap_or_default();
                let frozen = session.freeze(&before);
                let bytes = codec::frozen::to_bytes(1, &frozen).unwrap();
                let unread = [conn.rx.unread(), stream[cut..].to_vec()].concat();
                (_, conn) = inherited(key(0).freeze(), &unread, &pool);
                let frozen = codec::frozen::from_bytes(1, &bytes).unwrap();
                session = Session::thaw(frozen, pool.clone()).unwrap();
            }
            loop {
                if head.is_none() {
                    if session.fetch(&mut conn.rx, 4).unwrap() < 4 {
                        break;
                    }
                    head = session.peek(4).map(<[u8]>::to_vec);
                    session.consume(4);
                }
                let len = u32::from_be_bytes(head.clone().unwrap().try_into().unwrap()) as usize;
                let taken = session.take_payload(&mut conn.rx, len).unwrap().unwrap();
                let Some(bytes) = taken else { break };
                got.push((head.take().unwrap(), bytes.to_vec()));
            }
        }
        assert!(got == messages, "cut at {cut}");
    }
}

#[test]
fn a_session_that_an_older_engine_has_handed_over_gets_no_new_key() {
    let pool = BufPool::new(8 << 20).unwrap();
    let mut update = Vec::new();
    key(0).seal(content::HANDSHAKE, &mut update, |out| out.extend_from_slice(&[24, 0, 0, 1, 0]));
    let (mut session, mut conn) = inherited(key(0).freeze(), &update, &pool);
    assert_eq!(session.fetch(&mut conn.rx, 1), Err(RecordError::Inherited));
    let (mut session, mut conn) = inherited(key(0).freeze(), &[], &pool);
    session.set_records_per_key(2);
    for _ in 0..2 {
        session.queue(|out| out.push(1), None);
        session.seal(&mut conn.tx).unwrap();
    }
    session.queue(|out| out.push(1), None);
    assert_eq!(session.seal(&mut conn.tx), Err(RecordError::Inherited));
}

/// Sends back whatever comes, each time with a new key, until it is told that nothing follows.
fn echo_renewing<S: Read + Write>(
    mut stream: S,
    renew: impl Fn(&mut S) -> Result<(), rustls::Error>,
) {
    loop {
        let mut len = [0; 4];
        match stream.read(&mut len[..1]).unwrap() {
            0 => return,
            _ => stream.read_exact(&mut len[1..]).unwrap(),
        }
        let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut bytes).unwrap();
        renew(&mut stream).unwrap();
        stream.write_all(&len).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.flush().unwrap();
    }
}
