//! Handshakes between the server's side and a client of the same library; those of other libraries are tried
//! end to end.

use super::*;

const KEY: &str = "000102030405060708090a0b0c0d0e0f";
const OTHER: &str = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";

fn keys(text: &str) -> Keys {
    Keys::parse(text.as_bytes()).unwrap()
}

/// What comes of a handshake between a client and the server, and what the server has told the client last.
fn meet(client: &Keys, server: &Keys) -> (Result<[Secrets; 2], Refused>, Vec<u8>) {
    let mut client = Handshake::over(client, Connection::new_client).unwrap();
    let mut server = Handshake::new(server).unwrap();
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let its = client.advance(&mut to_client, &mut to_server);
        match server.advance(&mut to_server, &mut to_client) {
            Ok(true) if its == Ok(true) => {
                assert!(to_server.is_empty(), "the handshake is read, and nothing else");
                let secrets = client.finish().and_then(|its| Ok([its, server.finish()?]));
                return (secrets, to_client);
            }
            Ok(_) => {}
            Err(refused) => return (Err(refused), to_client),
        }
    }
    panic!("it does not come to an end");
}

#[test]
fn both_ends_have_the_same_secrets() {
    let server = keys(&format!("# clients\nalice:{KEY}\n\nbob:{OTHER}\r\n"));
    for client in [format!("alice:{KEY}"), format!("bob:{OTHER}")] {
        let (secrets, left) = meet(&keys(&client), &server);
        let [its, ours] = secrets.map_err(|refused| refused.to_string()).unwrap();
        assert_eq!((&its.client, &its.server), (&ours.client, &ours.server));
        assert_ne!(ours.client, ours.server);
        assert_eq!(ours.client.len(), 32);
        // Nothing was sealed by the keys of the traffic: no tickets.
        assert!(left.is_empty(), "{left:02x?}");
    }
}

#[test]
fn who_has_no_key_of_the_file_is_refused() {
    let server = keys(&format!("alice:{KEY}"));
    for client in [format!("mallory:{KEY}"), format!("alice:{OTHER}"), format!("Alice:{KEY}")] {
        let (secrets, told) = meet(&keys(&client), &server);
        let refused = secrets.err().unwrap_or_else(|| panic!("{client} was let in"));
        assert_eq!(refused, Refused::Unknown, "{client}");
        // An alert, or nothing; no data.
        assert!(told.is_empty() || told[0] == 21, "{told:02x?}");
    }
}

#[test]
fn bytes_that_are_no_handshake_are_refused() {
    let server = keys(&format!("alice:{KEY}"));
    for bytes in [&[22, 3, 1, 0, 4, 1, 0, 0, 0][..], &[23, 3, 3, 0, 1, 0]] {
        let mut handshake = Handshake::new(&server).unwrap();
        let (mut incoming, mut out) = (bytes.to_vec(), Vec::new());
        let said = handshake.advance(&mut incoming, &mut out);
        assert!(said.is_err(), "{bytes:02x?}: {said:?}");
    }
}

#[test]
fn a_client_gets_there_byte_by_byte() {
    let server = keys(&format!("alice:{KEY}"));
    let mut client = Handshake::over(&server, Connection::new_client).unwrap();
    let mut server = Handshake::new(&server).unwrap();
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut over = [false; 2];
    while over != [true; 2] {
        over[0] |= client.advance(&mut to_client, &mut to_server).unwrap();
        for byte in std::mem::take(&mut to_server) {
            over[1] |= server.advance(&mut vec![byte], &mut to_client).unwrap();
        }
    }
    assert_eq!(client.finish().unwrap().client, server.finish().unwrap().client);
}

#[test]
fn files_that_can_not_be_used_are_refused_by_the_line() {
    for (text, why) in [
        ("", "there is no key in it"),
        ("# nothing\n", "there is no key in it"),
        ("alice", "line 1: it is not NAME:KEY"),
        ("\n:00", "line 2: a name has"),
        ("alice:0001", "line 1: a key has 16 to 1024 bytes"),
        ("alice:xx0102030405060708090a0b0c0d0e0f", "line 1: the key is not in hexadecimal"),
        ("alice:000102030405060708090a0b0c0d0e0f0", "line 1: the key is not in hexadecimal"),
        (
            "a:000102030405060708090a0b0c0d0e0f\na:f00102030405060708090a0b0c0d0e0f",
            "line 2: there is a key",
        ),
    ] {
        let said = Keys::parse(text.as_bytes()).unwrap_err();
        assert!(said.starts_with(why), "{text:?}: {said}");
        assert!(!said.contains("0102"), "the key is told: {said}");
    }
    let lines = |keys: usize| (0..keys).map(|n| format!("vm{n}:{KEY}\n")).collect::<String>();
    assert!(Keys::parse(lines(KEYS_MAX).as_bytes()).is_ok());
    let many = Keys::parse(lines(KEYS_MAX + 1).as_bytes()).unwrap_err();
    assert!(many.contains("1025 keys; at most 1024"), "{many}");
    let missing = Keys::read(Path::new("/nonexistent/keys.psk")).unwrap_err();
    assert!(missing.contains("/nonexistent/keys.psk"), "{missing}");
}
