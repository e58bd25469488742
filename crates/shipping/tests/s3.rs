//! The client against a small server that checks signatures, and a whole backup over it.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod server;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use server::{ACCESS, BUCKET, REGION, SECRET, Server};
use shipping::archive::{Header, Identity, Piece, Reader, Unreadable, Writer};
use shipping::s3::{Client, Download, Error, Place, Upload};

fn place(server: &Server) -> Place {
    Place {
        endpoint: server.endpoint(),
        bucket: BUCKET.to_owned(),
        region: REGION.to_owned(),
        path_style: true,
        access_key: ACCESS.into(),
        secret_key: SECRET.into(),
    }
}

fn client(place: &Place) -> Client {
    Client::new(place, Duration::from_secs(3), Arc::default()).unwrap()
}

/// Bytes that do not get smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

fn upload(client: &Client, object: &str, content: &[u8]) -> Result<u64, Error> {
    let mut upload = Upload::new(client, object);
    upload.write_all(content).map_err(|error| match Error::inside(&error) {
        Some(_) => *error.into_inner().unwrap().downcast().unwrap(),
        None => panic!("{error}"),
    })?;
    upload.finish()
}

#[test]
fn small_objects_are_put_listed_read_and_deleted() {
    let server = Server::start();
    let client = client(&place(&server));
    let names =
        ["a+b c", "web_00000_back_20261129_072545^x", "web_back_20261129_072545.meta", "z1", "z2"];
    for name in names {
        client.put(name, name.as_bytes()).unwrap();
    }
    let listed = client.list("").unwrap();
    assert!(listed.keys().eq(names), "several pages: {listed:?}");
    assert_eq!(listed["z1"], 2);
    assert!(client.list("web_").unwrap().keys().eq(&names[1..3]));
    assert_eq!(client.get(names[1], 100).unwrap(), names[1].as_bytes());
    assert!(matches!(client.get(names[1], 5), Err(Error::Answer(_))), "too large");
    client.delete("z1").unwrap();
    client.delete("z1").unwrap();
    assert!(matches!(client.get("z1", 5), Err(Error::NotFound(_))));
}

#[test]
fn buckets_in_the_host_s_name_and_in_the_path() {
    let server = Server::start();
    client(&place(&server)).put("x", b"1").unwrap();
    let endpoint = format!("http://localhost:{}", server.address.port());
    let hosted = Place { path_style: false, endpoint, ..place(&server) };
    // Whether `vault.localhost` is an address is the machine's: what is asked is the same.
    match client(&hosted).get("x", 10) {
        Ok(content) => assert_eq!(content, b"1"),
        Err(error) => assert!(error.to_string().contains("vault.localhost"), "{error}"),
    }
    let wrong = Place { bucket: "another".to_owned(), ..place(&server) };
    assert!(matches!(client(&wrong).list(""), Err(Error::NotFound(_))));
    for endpoint in ["ftp://x", "http://", "http://a b"] {
        let wrong = Place { endpoint: endpoint.to_owned(), ..place(&server) };
        let refused = Client::new(&wrong, Duration::ZERO, Arc::default());
        assert!(matches!(refused, Err(Error::Place(_))), "{endpoint}");
    }
}

#[test]
fn large_objects_go_in_parts_and_come_in_ranges() {
    let server = Server::start();
    let client = client(&place(&server));
    let content = noise((17 << 20) + 5);
    assert_eq!(upload(&client, "large", &content).unwrap(), content.len() as u64);
    assert!(server.kept().objects["large"] == content);
    assert!(server.kept().uploads.is_empty());
    let mut back = Vec::new();
    Download::new(&client, "large").read_to_end(&mut back).unwrap();
    assert!(back == content);
    // Exactly one part.
    upload(&client, "one", &content[..8 << 20]).unwrap();
    assert!(server.kept().objects["one"] == content[..8 << 20]);
}

#[test]
fn what_passes_is_tried_again_and_what_does_not_is_told_at_once() {
    let server = Server::start();
    let client = client(&place(&server));
    server.kept().fail = 3;
    client.put("x", b"1").unwrap();
    assert_eq!(server.kept().log.len(), 4);
    let wrong = Place { secret_key: "wrong".into(), ..place(&server) };
    let began = Instant::now();
    let error = self::client(&wrong).put("y", b"1").unwrap_err();
    assert!(
        matches!(&error, Error::Denied(why) if why.contains("SignatureDoesNotMatch")),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(2));
    server.kept().fail = u32::MAX;
    let error = client.put("z", b"1").unwrap_err();
    assert!(matches!(&error, Error::Unreachable(why) if why.contains("SlowDown")), "{error}");
    server.end();
    let error = client.list("").unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}

#[test]
fn an_upload_that_fails_leaves_nothing() {
    let server = Server::start();
    let client = client(&place(&server));
    let content = noise(20 << 20);
    let mut begun = Upload::new(&client, "gone");
    begun.write_all(&content).unwrap();
    assert_eq!(server.kept().uploads.len(), 1);
    drop(begun);
    assert!(server.kept().uploads.is_empty(), "it was aborted");
    server.kept().fail_after_parts = Some(3);
    assert!(matches!(upload(&client, "gone", &content), Err(Error::Unreachable(_))));
    assert!(server.kept().objects.is_empty());
}

#[test]
fn a_flag_ends_it_early() {
    let server = Server::start();
    let stop = Arc::<AtomicBool>::default();
    let client = Client::new(&place(&server), Duration::from_secs(600), stop.clone()).unwrap();
    server.kept().fail = u32::MAX;
    let ends = std::thread::spawn(move || client.put("x", b"1"));
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(ends.join().unwrap(), Err(Error::Stopped)));
}

#[test]
fn an_archive_travels_and_one_that_can_not_be_read_says_why() {
    let server = Server::start();
    let client = client(&place(&server));
    let header = Header { size: 64 << 20, own: Identity::new("web", 0), base: None };
    let content = noise(12 << 20);
    let mut writer = Writer::new(Upload::new(&client, "web"), header).unwrap();
    for piece in 0..12 {
        let from = (piece as usize) << 20;
        writer.data(piece << 20, &content[from..from + (1 << 20)]).unwrap();
    }
    let size = writer.finish().unwrap().finish().unwrap();
    assert_eq!(server.kept().objects["web"].len() as u64, size);
    let mut reader = Reader::new(Download::new(&client, "web"), header.own, None).unwrap();
    let mut pieces = 0;
    while let Some(piece) = reader.next_piece().unwrap() {
        let Piece::Data { data, .. } = piece else { panic!() };
        assert!(data == &content[pieces << 20..(pieces + 1) << 20]);
        pieces += 1;
    }
    assert_eq!(pieces, 12);
    let mut reader = Reader::new(Download::new(&client, "web"), header.own, None).unwrap();
    server.kept().fail = u32::MAX;
    let error = loop {
        match reader.next_piece() {
            Ok(piece) => assert!(piece.is_some()),
            Err(error) => break error,
        }
    };
    let Unreadable::Io(error) = error else { panic!("{error}") };
    assert!(matches!(Error::inside(&error), Some(Error::Unreachable(_))), "{error}");
}
