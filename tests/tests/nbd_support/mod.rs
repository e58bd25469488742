//! An NBD server in this process, over targets in memory, for tests with real clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use frontend::nbd::server::{Config, Event, Export, Moved, Place, Server, TargetKey, Targets};
use runtime::thread::{Worker, WorkerHandle, WorkerOptions, spawn};
use runtime::{FaultPlan, FaultyTarget, Mailbox, MemoryTarget, Sender, Target, TargetInfo, Token};
use vocab::Bytes;

/// The one kind of target these tests serve.
pub type Faulty = FaultyTarget<MemoryTarget>;

/// The tokens and openers of the server begin with this byte; the mailbox has another.
const SPACE: u8 = 1;
const MAILBOX: Token = Token(2 << 56);

/// An export to serve.
#[derive(Clone)]
pub struct Serve {
    pub name: &'static str,
    pub info: TargetInfo,
    pub plan: FaultPlan,
    pub read_only: bool,
    pub thread: u32,
}

/// An export of `size` bytes that does everything and never fails.
pub fn export(name: &'static str, size: u64) -> Serve {
    let info = MemoryTarget::new(Bytes(size)).info();
    Serve { name, info, plan: FaultPlan::none(1), read_only: false, thread: 0 }
}

type Task = Box<dyn FnOnce(&mut Host, &mut runtime::Ring) + Send>;

enum Message {
    Adopt(Moved),
    Do(Task),
    Stop,
}

/// What lives on one server thread.
pub struct Host {
    pub server: Server,
    pub targets: Hosted,
    peers: Vec<Sender<Message>>,
}

/// The targets of a thread; the key is the index.
pub struct Hosted(pub Vec<Option<Faulty>>);

impl Targets for Hosted {
    fn target(&mut self, key: TargetKey) -> Option<&mut dyn Target> {
        self.0.get_mut(key.0 as usize)?.as_mut().map(|target| target as &mut dyn Target)
    }
}

/// A running server; stops when dropped.
pub struct TestServer {
    threads: Vec<WorkerHandle<Message>>,
    log: Arc<Mutex<Vec<Event>>>,
    directory: tempfile::TempDir,
    pub socket: PathBuf,
    pub tcp: SocketAddr,
}

impl TestServer {
    /// Serves `exports` on a unix socket and a TCP port of thread 0.
    pub fn start(exports: &[Serve]) -> TestServer {
        TestServer::with_config(exports, Config::default())
    }

    pub fn with_config(exports: &[Serve], config: Config) -> TestServer {
        let log = Arc::new(Mutex::new(Vec::new()));
        let count = exports.iter().map(|e| e.thread).max().unwrap_or(0) + 1;
        let threads: Vec<WorkerHandle<Message>> = (0..count)
            .map(|nr| {
                let (exports, log) = (exports.to_vec(), log.clone());
                let options = WorkerOptions { pool_bytes: 128 << 20, ..WorkerOptions::default() };
                spawn(options, move |worker| run(worker, nr, &exports, config, &log)).unwrap()
            })
            .collect();
        let senders: Vec<_> = threads.iter().map(|t| t.sender.clone()).collect();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let mut server =
            TestServer { threads, log, directory, socket, tcp: "127.0.0.1:0".parse().unwrap() };
        for nr in 0..server.threads.len() {
            let senders = senders.clone();
            server.on(nr, move |host, _| host.peers = senders);
        }
        let path = server.socket.clone();
        server.tcp = server.on(0, move |host, ring| {
            host.server.listen_unix(ring, &path).unwrap();
            host.server.listen_tcp(ring, "127.0.0.1:0".parse().unwrap()).unwrap().1
        });
        server
    }

    /// Runs something on a server thread and waits for its result.
    pub fn on<T: Send + 'static>(
        &self,
        thread: usize,
        f: impl FnOnce(&mut Host, &mut runtime::Ring) -> T + Send + 'static,
    ) -> T {
        let (reply, result) = mpsc::channel();
        let task: Task = Box::new(move |host, ring| {
            let _ = reply.send(f(host, ring));
        });
        assert!(self.threads[thread].sender.send(Message::Do(task)).is_ok());
        result.recv_timeout(Duration::from_secs(20)).expect("the server thread answers")
    }

    /// Runs something on target `key` of thread 0.
    pub fn target<T: Send + 'static>(
        &self,
        key: usize,
        f: impl FnOnce(&mut Faulty) -> T + Send + 'static,
    ) -> T {
        self.on(0, move |host, _| f(host.targets.0[key].as_mut().expect("the target is there")))
    }

    /// The content of target `key` of thread 0.
    pub fn content(&self, key: usize, offset: u64, len: usize) -> Vec<u8> {
        self.target(key, move |target| {
            let mut content = vec![0; len];
            target.inner().peek(offset, &mut content);
            content
        })
    }

    pub fn unix_uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    pub fn tcp_uri(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.tcp)
    }

    /// What has happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until `condition` holds.
    pub fn wait_for(&self, what: &str, mut condition: impl FnMut(&TestServer) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "waited for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A file in a directory that goes away with the server.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        for thread in &self.threads {
            let _ = thread.sender.send(Message::Stop);
        }
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("a server thread does not panic");
            }
        }
    }
}

/// One server thread: the loop that the module of the server describes.
fn run(
    worker: Worker<Message>,
    nr: u32,
    exports: &[Serve],
    config: Config,
    log: &Mutex<Vec<Event>>,
) {
    let Worker { mut ring, pool, inbox, .. } = worker;
    let mut server = Server::new(SPACE, pool, config);
    let mut targets = Vec::new();
    for serve in exports {
        let place = if serve.thread == nr {
            let inner = MemoryTarget::with_info(serve.info);
            targets.push(Some(FaultyTarget::new(inner, serve.plan)));
            Place::Here(TargetKey(targets.len() as u64 - 1))
        } else {
            Place::Thread(serve.thread)
        };
        let description = format!("test export {}", serve.name);
        server.set_export(
            serve.name,
            Export { description, read_only: serve.read_only, encrypted: false, place },
        );
    }
    let mut host = Host { server, targets: Hosted(targets), peers: Vec::new() };
    let mut mailbox = Mailbox::new(inbox, MAILBOX).unwrap();
    mailbox.arm(&mut ring);
    let (mut events, mut messages, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let held = host.targets.0.iter().flatten().any(|t| t.held() > 0);
        let poll = held.then(|| runtime::clock::now() + Duration::from_millis(1));
        let deadline = [host.server.deadline(), poll].into_iter().flatten().min();
        ring.wait(deadline, &mut events).unwrap();
        for done in events.drain(..) {
            if done.token == MAILBOX {
                mailbox.on_completed(&mut ring, &mut messages);
            } else {
                host.server.on_completed(&mut ring, &mut host.targets, done);
            }
        }
        for message in messages.drain(..) {
            match message {
                Message::Adopt(moved) => host.server.adopt(&mut ring, &mut host.targets, moved),
                Message::Do(task) => task(&mut host, &mut ring),
                Message::Stop => {
                    host.server.stop(&mut host.targets);
                    return;
                }
            }
        }
        loop {
            host.server.turn_end(&mut ring, &mut host.targets);
            for target in host.targets.0.iter_mut().flatten() {
                target.flush_submissions();
                target.poll_completions(&mut answers);
            }
            if answers.is_empty() {
                break;
            }
            for done in answers.drain(..) {
                host.server.on_target_completion(&mut ring, &mut host.targets, done);
            }
        }
        for moved in host.server.take_moved() {
            let _ = host.peers[moved.thread as usize].send(Message::Adopt(moved));
        }
        log.lock().unwrap().extend(host.server.take_events());
    }
}

/// True if every tool can be run; otherwise says what is missing, and the test is skipped.
pub fn have(tools: &[&str]) -> bool {
    let runs = |tool: &str| match tool {
        "nbdsh" => python().is_some(),
        _ => Command::new(tool).arg("--version").output().is_ok(),
    };
    let missing: Vec<&&str> = tools.iter().filter(|tool| !runs(tool)).collect();
    if !missing.is_empty() {
        println!("SKIPPED: not installed: {missing:?}");
    }
    missing.is_empty()
}

/// A Python that has libnbd's module. `nbdsh` takes the first in the path, which need not.
fn python() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let output = Command::new(python).args(["-c", "import nbd"]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

/// `nbdsh`, as the Python module that it is.
pub fn nbdsh_process() -> Command {
    let mut command = Command::new(python().expect("checked by the test"));
    command.args(["-m", "nbd"]);
    command
}

/// Runs a client and returns its output; fails the test if the client hangs.
pub fn client(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60");
    match program {
        "nbdsh" => {
            let nbdsh = nbdsh_process();
            command.arg(nbdsh.get_program()).args(nbdsh.get_args())
        }
        _ => command.arg(program),
    };
    let output = command.args(arguments).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{program} {arguments:?} hangs");
    output
}

/// Runs a client that must succeed and returns what it printed.
pub fn ok(program: &str, arguments: &[&str]) -> String {
    let output = client(program, arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
    out
}

/// Runs a client that must fail and returns what it printed.
pub fn fails(program: &str, arguments: &[&str]) -> String {
    let output = client(program, arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success(), "{program} {arguments:?} succeeded\n{out}{err}");
    out + &err
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs Python statements in `nbdsh`, with `h` connected to `uri`.
pub fn nbdsh(uri: &str, script: &str) -> String {
    ok("nbdsh", &["--base-allocation", "-u", uri, "-c", script])
}

/// Bytes that differ from place to place, reproducibly.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
