//! The whole control plane as its users meet it: `ashlar controller`, three nodes with engines and
//! agents that have joined by tokens, and python-linstor, unmodified from PyPI, on top.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::client;
use crate::control_support::{Node, PATIENCE, Pools, network};
use crate::engine_support::nbd::Client;
use crate::engine_support::{binary, text};

const SCRIPT: &str = "../crates/controller/tests/python.py";

/// The controller's process.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(data: &Path, address: Ipv4Addr) -> Controller {
    let log = std::fs::File::create(data.with_extension("log")).unwrap();
    let mut process = Command::new(binary());
    process.arg("controller").arg("--data-dir").arg(data);
    process.arg("--listen").arg(format!("{address}:3370"));
    process.arg("--listen-agents").arg(format!("{address}:3377"));
    process.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let controller = Controller(process.spawn().unwrap());
    let begun = Instant::now();
    while TcpStream::connect((address, 3370)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the controller does not serve");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    controller
}

/// Runs the script, and does for it what it asks for with volumes. Returns whether all was well, and
/// what it said.
fn run(mut script: Command, nodes: &[Node]) -> (bool, String) {
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let mut answers = script.stdin.take().unwrap();
    let mut said = String::new();
    let mut users: BTreeMap<String, User> = BTreeMap::new();
    for line in BufReader::new(script.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["do", "open", node, volume] => {
                let node = nodes.iter().find(|known| known.name == node).unwrap();
                users.insert(volume.to_owned(), User::new(node.export(volume), volume));
                answers.write_all(b"done\n").unwrap();
            }
            ["do", "close", _, volume] => {
                users.remove(volume).unwrap().end();
                answers.write_all(b"done\n").unwrap();
            }
            _ => said += &(line + "\n"),
        }
    }
    let output = script.wait_with_output().unwrap();
    (output.status.success(), said + &text(&output.stderr))
}

/// Somebody who writes to a volume while something is done with it.
struct User {
    socket: PathBuf,
    export: String,
    size: u64,
    stop: Arc<AtomicBool>,
    writer: JoinHandle<u64>,
}

/// Where the user writes, block after block.
const BLOCKS: u64 = 4096;

impl User {
    fn new(socket: PathBuf, volume: &str) -> User {
        let export = format!("{volume}/0");
        let mut client = Client::open(&socket, &export).unwrap();
        let (size, stop) = (client.size, Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let writer = std::thread::spawn(move || {
            let mut count = 0u64;
            while count == 0 || !stopped.load(Ordering::Relaxed) {
                count += 1;
                client.write(count % BLOCKS * 4096, &block(count)).unwrap();
            }
            client.close();
            count
        });
        User { socket, export, size, stop, writer }
    }

    /// The volume is larger, up to its end, and has every write.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let count = self.writer.join().unwrap();
        let mut client = Client::open(&self.socket, &self.export).unwrap();
        assert!(client.size > self.size, "{} bytes, {} before", client.size, self.size);
        for count in count.saturating_sub(BLOCKS - 1).max(1)..=count {
            assert!(client.read(count % BLOCKS * 4096, 4096).unwrap() == block(count), "{count}");
        }
        let last = client.size - 4096;
        client.write(last, &block(0)).unwrap();
        assert!(client.read(last, 4096).unwrap() == block(0));
        println!("{count} writes while {} grew", self.export);
        client.close();
    }
}

fn block(count: u64) -> Vec<u8> {
    (count + 1).to_be_bytes().repeat(512)
}

#[test]
fn python_linstor_makes_real_volumes_and_deletes_them_again() {
    let python = match client::python() {
        Ok(python) => python,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let pools = Pools::new();
    if !pools.has_snapshots {
        return println!("skipped: no file system with shared blocks for snapshots");
    }
    let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
    let [a, b, c] = network();
    let (own, data) = (Ipv4Addr::new(a, b, c, 250), directory.path().join("controller"));
    let controller = start(&data, own);
    let mut nodes = Vec::new();
    for (index, name) in ["n1", "n2", "n3"].into_iter().enumerate() {
        std::fs::create_dir(pools.of(name)).unwrap();
        let address = Ipv4Addr::new(a, b, c, index as u8 + 1);
        let mut node = Node::new(name, directory.path().join(name), address);
        node.start_engine();
        let mut token = Command::new(binary());
        token.args(["node", "token", name, "--address", &own.to_string()]);
        token.arg("--controllers").arg(format!("{own}:3370"));
        let token = token.output().unwrap();
        assert!(token.status.success(), "{}", text(&token.stderr));
        node.join(text(&token.stdout).trim());
        node.start_agent();
        nodes.push(node);
    }
    let begun = Instant::now();
    let mut script = Command::new(python);
    script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT));
    script.arg(format!("linstor://{own}:3370")).arg(format!("{a}.{b}.{c}"));
    script.arg(pools.of("n1").parent().unwrap());
    let (good, said) = run(script, &nodes);
    println!("the script took {:.1} s", begun.elapsed().as_secs_f64());
    let logs = || {
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let agents = nodes.iter().map(|node| read(node.directory.join("agent.log")));
        agents.chain([read(data.with_extension("log"))]).collect::<Vec<_>>().join("\n----\n")
    };
    assert!(good && said.ends_with("done\n"), "{said}\n{}", logs());
    for node in &nodes {
        assert_eq!(pools.files(node.name), Vec::<String>::new(), "left on {}", node.name);
        assert_eq!(node.ok(&["status", "--json"]).trim(), "[]", "{}", node.name);
    }
    drop(controller);
}
