//! Several controllers, as processes, on one PostgreSQL and one etcd: while clients write, the leader
//! is killed, or stopped for longer than its term and then continued. Every call that was answered is
//! there, and one leads at a time. Skipped where the servers are missing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::servers;
use crate::servers::{free_port, signal};
use controller::daemon::{self, Options, Stored};

/// What a process is told: its folder, the file with the URL of the store, its ports, the URL that it
/// advertises.
const CONTROLLER: &str = "ASHLAR_TEST_CONTROLLER";
const PATIENCE: Duration = Duration::from_secs(60);

/// What runs in a process of its own.
#[test]
fn a_controller() {
    let Ok(told) = std::env::var(CONTROLLER) else { return };
    let mut words = told.split('\n');
    let mut next = || words.next().unwrap().to_owned();
    let options = Options {
        stored: Stored { data: next().into(), store: Some(next()) },
        listen: next().parse().unwrap(),
        agents: next().parse().unwrap(),
        listen_tls: None,
        advertise: Some(next()),
        tls: controller::tls::Options::default(),
        token_required: false,
        log_level: vocab::LogLevel::Info,
    };
    daemon::run(&options).unwrap();
}

/// A controller's process.
struct Process {
    child: Child,
    address: SocketAddr,
    agents: SocketAddr,
}

impl Process {
    fn start(directory: &Path, number: usize, url: &Path) -> Process {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let agents = SocketAddr::from(([127, 0, 0, 1], free_port()));
        Process { child: spawn(directory, number, url, address, agents), address, agents }
    }

    /// The same again after its end.
    fn again(&mut self, directory: &Path, number: usize, url: &Path) {
        self.child = spawn(directory, number, url, self.address, self.agents);
    }

    fn leads(&self) -> bool {
        matches!(call(self.address, "GET", "/v1/controller/version", ""), Some((200, _, _)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    directory: &Path,
    number: usize,
    url: &Path,
    address: SocketAddr,
    agents: SocketAddr,
) -> Child {
    let data = directory.join(format!("controller{number}"));
    let log = directory.join(format!("log{number}"));
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let (data, url, reached) = (data.display(), url.display(), reached_at(address));
    let told = format!("{data}\n@{url}\n{address}\n{agents}\n{reached}/");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leader::a_controller", "--nocapture"])
        .env(CONTROLLER, told)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Where others say that one is.
fn reached_at(address: SocketAddr) -> String {
    format!("http://localhost:{}", address.port())
}

/// A call: status, where it is sent on to, and body. Nothing if there was no whole answer.
fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Option<(u16, Option<String>, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let place = head.lines().find_map(|line| line.strip_prefix("location: "));
    Some((status, place.map(str::to_owned), body.to_owned()))
}

/// The one that leads, and that no other does.
fn leader(processes: &[Process]) -> usize {
    let begun = Instant::now();
    loop {
        let leading: Vec<usize> =
            (0..processes.len()).filter(|index| processes[*index].leads()).collect();
        if let [one] = leading[..] {
            return one;
        }
        assert!(leading.len() < 2, "{leading:?} lead");
        assert!(begun.elapsed() < PATIENCE, "nobody leads");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A client: it writes one key after the other, each until it is answered, wherever it is sent, and
/// keeps what was answered.
fn write(
    client: usize,
    addresses: &[SocketAddr],
    end: &AtomicBool,
    answered: &Mutex<BTreeMap<String, String>>,
) {
    let mut number = 0;
    let mut turn = client;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let (key, value) = (format!("client{client}"), number.to_string());
        let body = format!(r#"{{"override_props":{{"{key}":"{value}"}}}}"#);
        while !end.load(Ordering::Relaxed) {
            let address = addresses[turn % addresses.len()];
            match call(address, "PUT", "/v1/key-value-store/test", &body) {
                Some((200, _, _)) => {
                    answered.lock().unwrap().insert(key, value);
                    break;
                }
                Some((307, Some(place), _)) => {
                    let to = addresses.iter().position(|to| place.starts_with(&reached_at(*to)));
                    turn = to.unwrap_or_else(|| panic!("{place} is nobody"));
                }
                // Somebody else may know more.
                _ => turn += 1,
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The values of all keys, as the leader shows them.
fn shown(leader: &Process) -> BTreeMap<String, String> {
    let (status, _, body) = call(leader.address, "GET", "/v1/key-value-store/test", "").unwrap();
    assert_eq!(status, 200, "{body}");
    let shown: serde_json::Value = serde_json::from_str(&body).unwrap();
    let props = shown[0]["props"].as_object().unwrap();
    props.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

fn number(value: &str) -> u64 {
    value.parse().unwrap()
}

fn leaders_come_and_go(server: &servers::Server) {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().join("url");
    std::fs::write(&url, &server.url).unwrap();
    let mut processes: Vec<Process> =
        (0..3).map(|number| Process::start(directory.path(), number, &url)).collect();
    let addresses: Vec<SocketAddr> = processes.iter().map(|process| process.address).collect();
    let first = leader(&processes);
    // The others send clients there, and do not listen to agents.
    for process in processes.iter().filter(|process| process.address != addresses[first]) {
        let begun = Instant::now();
        let place = loop {
            match call(process.address, "GET", "/v1/nodes?limit=1", "") {
                Some((307, Some(place), _)) => break place,
                other => assert!(begun.elapsed() < PATIENCE, "{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(place, format!("{}/v1/nodes?limit=1", reached_at(addresses[first])));
        assert!(TcpStream::connect(process.agents).is_err());
    }
    assert!(TcpStream::connect(processes[first].agents).is_ok());

    let (end, answered) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let writes =
        || -> u64 { answered.lock().unwrap().values().map(|value: &String| number(value)).sum() };
    let go_on = |for_writes: u64| {
        let (begun, before) = (Instant::now(), writes());
        while writes() < before + for_writes {
            assert!(begun.elapsed() < PATIENCE, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (addresses, end, answered) = (&addresses, &end, &answered);
            scope.spawn(move || write(client, addresses, end, answered));
        }
        // However it ends, the clients have to.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            go_on(20);
            // Killed: another leads when its term is over.
            let old = leader(&processes);
            processes[old].child.kill().unwrap();
            processes[old].child.wait().unwrap();
            let killed_at = answered.lock().unwrap().clone();
            go_on(20);
            let new = leader(&processes);
            assert_ne!(new, old);
            for (key, value) in shown(&processes[new]) {
                assert!(number(&value) >= killed_at.get(&key).map_or(0, |value| number(value)));
            }
            processes[old].again(directory.path(), old, &url);
            go_on(20);
            // Stopped in the middle of its work, and continued when another leads.
            let old = leader(&processes);
            signal(&processes[old].child, "STOP");
            let before = answered.lock().unwrap().clone();
            go_on(20);
            signal(&processes[old].child, "CONT");
            // It does not say that it leads: what it knows is old.
            for _ in 0..20 {
                let leading = processes.iter().filter(|process| process.leads()).count();
                assert!(leading <= 1, "two lead");
                std::thread::sleep(Duration::from_millis(20));
            }
            go_on(20);
            let new = leader(&processes);
            for (key, value) in shown(&processes[new]) {
                assert!(number(&value) >= before.get(&key).map_or(0, |value| number(value)));
            }
        }));
        end.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            for number in 0..3 {
                let log = std::fs::read_to_string(directory.path().join(format!("log{number}")));
                eprintln!("controller {number}:\n{}", log.unwrap_or_default());
            }
            std::panic::resume_unwind(panic);
        }
    });
    // A client has one call under way: what is shown is what was answered, or one more.
    let shown = shown(&processes[leader(&processes)]);
    for (key, value) in answered.lock().unwrap().iter() {
        let shown = number(&shown[key]);
        assert!(
            (0..=1).contains(&(shown - number(value))),
            "{key}: {value} answered, {shown} there"
        );
    }
    // One authority: agents know every leader.
    let authority = |number: usize| {
        let folder = directory.path().join(format!("controller{number}/link"));
        std::fs::read_to_string(folder.join("authority.pem")).ok()
    };
    let mut authorities: Vec<String> = (0..3).filter_map(authority).collect();
    assert!(authorities.len() > 1, "two have led");
    authorities.dedup();
    assert_eq!(authorities.len(), 1);
}

#[test]
fn leaders_on_postgresql_come_and_go() {
    match servers::postgres() {
        Ok(server) => leaders_come_and_go(&server),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn leaders_on_etcd_come_and_go() {
    match servers::etcd() {
        Ok(server) => leaders_come_and_go(&server),
        Err(reason) => println!("skipped: {reason}"),
    }
}
