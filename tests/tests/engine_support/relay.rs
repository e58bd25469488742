//! A relay between two nodes that damages data on their way.
//!
//! A node knows a peer by its address, and the order of addresses, port first, says who opens which
//! socket. So the relay keeps the nodes' addresses and stands one port beside the real one, above
//! it for the first node and below it for the second.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use socket2::{Domain, Socket, Type};

/// A piece of data in which a bit may be flipped.
pub const MARK: &[u8; 32] = b"flip a bit in this piece of data";

/// The relay; its threads end with the process.
pub struct Relay {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// So many of the chunks that hold a mark are still to be damaged.
    wanted: AtomicUsize,
    /// So many were.
    damaged: AtomicUsize,
}

impl Relay {
    /// Where a node at `port` finds the other one.
    pub fn port(of_first: bool, port: u16) -> u16 {
        if of_first { port + 1 } else { port - 1 }
    }

    /// Stands between two nodes that both listen at `port`.
    pub fn between(first: Ipv4Addr, second: Ipv4Addr, port: u16) -> Relay {
        let shared = Arc::new(Shared::default());
        for (viewer, node, of_first) in [(first, second, true), (second, first, false)] {
            let listener = TcpListener::bind((node, Relay::port(of_first, port))).unwrap();
            let shared = shared.clone();
            thread::spawn(move || {
                for incoming in listener.incoming() {
                    let incoming = incoming.unwrap();
                    // A node that does not listen closes the relay's connection, and that the peer's.
                    if let Ok(outgoing) = connect(viewer, (node, port).into()) {
                        carry(&incoming, &outgoing, &shared);
                    }
                }
            });
        }
        Relay { shared }
    }

    /// Flips a bit in so many of the next chunks of a stream that hold a [`MARK`].
    pub fn damage(&self, chunks: usize) {
        self.shared.wanted.store(chunks, Ordering::SeqCst);
    }

    /// How many chunks were damaged so far.
    pub fn damaged(&self) -> usize {
        self.shared.damaged.load(Ordering::SeqCst)
    }
}

fn connect(source: Ipv4Addr, target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect(&target.into())?;
    Ok(socket.into())
}

fn carry(a: &TcpStream, b: &TcpStream, shared: &Arc<Shared>) {
    for (from, to) in [(a, b), (b, a)] {
        from.set_nodelay(true).unwrap();
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let shared = shared.clone();
        thread::spawn(move || pump(from, to, &shared));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut chunk = vec![0; 256 << 10];
    loop {
        match from.read(&mut chunk) {
            Ok(n) if n > 0 => {
                shared.flip(&mut chunk[..n]);
                if to.write_all(&chunk[..n]).is_ok() {
                    continue;
                }
            }
            _ => {}
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
        return;
    }
}

impl Shared {
    fn flip(&self, chunk: &mut [u8]) {
        if self.wanted.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(at) = chunk.windows(MARK.len()).position(|bytes| bytes == MARK) else { return };
        let less = |wanted: usize| wanted.checked_sub(1);
        if self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            chunk[at] ^= 0x20;
            self.damaged.fetch_add(1, Ordering::SeqCst);
        }
    }
}
