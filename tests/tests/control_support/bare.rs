//! Three bare nodes and a controller, as processes of a release; driven by the operator's commands.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Node, PATIENCE, network};
use crate::engine_support::{binary, text};

/// The nodes' names.
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The controller's process, and how it is asked.
pub struct Controller {
    process: Child,
    data: PathBuf,
    address: Ipv4Addr,
    pub url: String,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Controller {
    fn start(program: &Path, data: &Path, address: Ipv4Addr) -> Controller {
        let log = data.with_extension("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        // Free on every address of the loopback interface.
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut process = Command::new(program);
        process.arg("controller").arg("--data-dir").arg(data);
        process.arg("--listen").arg(format!("{address}:{port}"));
        process.arg("--listen-agents").arg(format!("{address}:3377"));
        process.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = process.spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect((address, port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the controller does not serve");
            std::thread::sleep(Duration::from_millis(50));
        }
        let url = format!("http://{address}:{port}");
        Controller { process, data: data.to_owned(), address, url }
    }

    /// Another process goes on with what this one has stored.
    pub fn replace(&mut self, program: &Path) {
        self.replace_after(program, |_| {});
    }

    /// The same, with something that happens to its folder in between.
    pub fn replace_after(&mut self, program: &Path, meanwhile: impl FnOnce(&Path)) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(self.process.wait().unwrap().success(), "it ends well");
        meanwhile(&self.data);
        *self = Controller::start(program, &self.data, self.address);
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg("100").arg(binary()).args(words);
        command.env("ASHLAR_CONTROLLERS", &self.url).output().unwrap()
    }

    /// A command that reads these lines, and how it ends.
    pub fn typing(&self, line: &str, lines: &str) -> (Option<i32>, String) {
        let mut command = Command::new("timeout");
        command.arg("100").arg(binary()).args(line.split(' '));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.env("ASHLAR_CONTROLLERS", &self.url).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        (output.status.code(), said)
    }

    /// A command that must succeed.
    pub fn ok(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.run(&words);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}: {}\n{out}{err}", output.status);
        out
    }

    /// A command that must fail like this; what it says.
    pub fn fails(&self, line: &str, status: i32) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.run(&words);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {err}");
        err
    }

    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{line} --json"))).unwrap()
    }

    pub fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < PATIENCE, "{what} does not come true");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Nodes with a replica.
    pub fn replicas(&self, volume: &str) -> Vec<String> {
        let rows = self.json(&format!("volume list {volume}"));
        let names = rows[0]["replicas"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

/// Three bare nodes, with a folder for their pools.
pub struct Bare {
    pub controller: Controller,
    pub directory: tempfile::TempDir,
    /// Where the controller is.
    pub own: Ipv4Addr,
    network: [u8; 3],
    program: PathBuf,
}

impl Bare {
    pub fn new() -> Bare {
        Bare::of(binary())
    }

    /// With controller, agents and engines of this program; commands are those of the one under test.
    pub fn of(program: &Path) -> Bare {
        let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
        let network = network();
        let [a, b, c] = network;
        let (own, data) = (Ipv4Addr::new(a, b, c, 250), directory.path().join("controller"));
        let controller = Controller::start(program, &data, own);
        Bare { controller, directory, own, network, program: program.to_owned() }
    }

    /// A node's folder for its pool.
    pub fn pool(&self, node: &str) -> PathBuf {
        self.directory.path().join(format!("pool-{node}"))
    }

    /// The first two of the five commands.
    pub fn join(&self) -> Vec<Node> {
        let [a, b, c] = self.network;
        let new: Vec<String> =
            (1..).zip(NODES).map(|(last, name)| format!("{name}={a}.{b}.{c}.{last}")).collect();
        let create = format!("node create {} --invite {}", new.join(" "), self.own);
        let invited = self.controller.ok(&create);
        let mut nodes = Vec::new();
        for ((last, name), line) in (1..).zip(NODES).zip(invited.lines()) {
            std::fs::create_dir(self.pool(name)).unwrap();
            let folder = self.directory.path().join(name);
            let mut node = Node::new(name, folder, Ipv4Addr::new(a, b, c, last));
            node.program.clone_from(&self.program);
            node.start_engine();
            let command = line.strip_prefix(&format!("{name}: ashlar ")).unwrap();
            let mut words: Vec<&str> = command.split(' ').collect();
            let state = node.directory.join("agent").display().to_string();
            words.extend(["--state-dir", &state]);
            let output = Command::new(&self.program).args(words).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            node.start_agent();
            nodes.push(node);
        }
        nodes
    }
}
