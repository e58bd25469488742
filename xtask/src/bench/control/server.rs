//! The controller that is measured, as a process, and a client of its REST API.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::process;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// The process. It is killed when this is dropped.
pub struct Server {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    pub address: SocketAddr,
}

#[derive(Deserialize)]
struct Started {
    address: SocketAddr,
}

/// What a restart came to.
#[derive(Deserialize)]
pub struct Restarted {
    address: SocketAddr,
    /// Until it serves.
    pub start_ms: f64,
    /// Until it has heard of everything and looked at it.
    pub reconcile_ms: f64,
    /// Steps that it sent meanwhile.
    pub steps: u64,
}

impl Server {
    /// Starts a controller on a store; it serves when this returns.
    pub fn start(program: &Path, store: &Path) -> Result<Server> {
        let mut command = process::command(program);
        command.arg(store).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("setpriv")?;
        let commands = child.stdin.take().context("its input is a pipe")?;
        let lines = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, commands, answers, address };
        server.address = server.answer::<Started>()?.address;
        Ok(server)
    }

    /// The agents of so many nodes connect.
    pub fn connect(&mut self, nodes: usize) -> Result<()> {
        writeln!(self.commands, "connect {nodes}")?;
        self.answer::<serde_json::Value>().map(drop)
    }

    /// Ends the controller and starts it again in the same process, with the same agents.
    pub fn restart(&mut self) -> Result<Restarted> {
        writeln!(self.commands, "restart")?;
        let restarted: Restarted = self.answer()?;
        self.address = restarted.address;
        Ok(restarted)
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let begun = Instant::now();
        loop {
            process::check_signals()?;
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => return serde_json::from_str(&line).context(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("the controller has ended: {}", self.child.wait()?)
                }
                Err(_) if begun.elapsed() > PATIENCE => {
                    bail!("the controller says nothing for {} s", PATIENCE.as_secs())
                }
                Err(_) => {}
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most memory that it has had, in millions of bytes.
    pub fn most_memory(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.pid());
        let text = std::fs::read_to_string(&path).context(path.clone())?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.with_context(|| format!("{path} has no VmHWM"))? * 1024.0 / 1e6)
    }

    /// Kills it, as a power cut would.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer: its status and where its body begins in the buffer.
pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

/// A client. Its buffer stays, so that a long answer costs it no memory that is new.
#[derive(Default)]
pub struct Client {
    buffer: Vec<u8>,
}

impl Client {
    /// One call over a connection of its own, from connecting to the end of the answer.
    pub fn call(
        &mut self,
        address: SocketAddr,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Result<Answer<'_>> {
        let mut stream = TcpStream::connect(address).context("connecting to the controller")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        self.buffer.clear();
        stream.read_to_end(&mut self.buffer)?;
        parse(&self.buffer)
    }

    /// Reads something.
    pub fn get(&mut self, address: SocketAddr, path: &str) -> Result<Answer<'_>> {
        let answer = self.call(address, "GET", path, "", "")?;
        if answer.status != 200 {
            bail!("GET {path}: {} {}", answer.status, String::from_utf8_lossy(answer.body));
        }
        Ok(answer)
    }
}

fn parse(text: &[u8]) -> Result<Answer<'_>> {
    let end =
        text.windows(4).position(|four| four == b"\r\n\r\n").context("an answer ends early")?;
    let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("{head:?} is no answer"))?;
    let body = &text[end + 4..];
    // Without a length, as where it is compressed, the end of the connection is the end.
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    if let Some(length) = length.map(str::trim)
        && length != body.len().to_string()
    {
        bail!("an answer of {length} bytes has {}", body.len());
    }
    Ok(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_an_error() {
        let answer = parse(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert_eq!((answer.status, answer.body), (201, &b"ok"[..]));
        let answer = parse(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").unwrap();
        assert_eq!(answer.body, b"until the end");
        for text in ["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", "HTTP/1.1 200 OK\r\n", ""] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
