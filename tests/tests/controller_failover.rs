//! Two controllers that share a PostgreSQL database, with engines and agents over the real link, and
//! an operator who calls by HTTPS with a token: the one that leads is killed, twice, while a volume is
//! written to. Skipped, with the reason, where there is no PostgreSQL.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::control_support::{Node, PATIENCE, Pools, network};
use crate::engine_support::nbd::Client;
use crate::engine_support::{binary, pattern, text};
use crate::servers;

struct Controller {
    process: Option<Child>,
    data: PathBuf,
    address: Ipv4Addr,
    store: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Controller {
    fn start(&mut self) {
        let log = self.data.with_extension("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut process = Command::new(binary());
        process.arg("controller").arg("--data-dir").arg(&self.data);
        process.arg("--store").arg(format!("@{}", self.store.display()));
        process.arg("--listen").arg(format!("{}:3370", self.address));
        process.arg(format!("--rest-tls={}:3371", self.address)).arg("--require-token");
        process.arg("--rest-name").arg(self.address.to_string());
        process.arg("--listen-agents").arg(format!("{}:3377", self.address));
        process.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(process.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }
}

/// An operator: calls go to both controllers, with a token.
struct Operator {
    controllers: String,
    authority: PathBuf,
    token: PathBuf,
}

impl Operator {
    fn command(&self, words: &str) -> (bool, String) {
        let mut command = Command::new(binary());
        command.args(words.split(' ')).args(["--controllers", &self.controllers]);
        command.arg("--ca").arg(&self.authority).arg("--token-file").arg(&self.token);
        let output = command.env_remove("ASHLAR_TOKEN").output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    fn ok(&self, words: &str) -> String {
        let (good, said) = self.command(words);
        assert!(good, "{words}: {said}");
        said
    }

    fn wait(&self, words: &str, condition: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        loop {
            let (good, said) = self.command(words);
            if good && condition(&said) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{words}: {said}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn volumes_agents_and_tokens_outlive_the_controller_that_leads() {
    let server = match servers::postgres() {
        Ok(server) => server,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
    let store = directory.path().join("store.url");
    std::fs::write(&store, &server.url).unwrap();
    let [a, b, c] = network();
    let mut controllers: Vec<Controller> = (0..2)
        .map(|index| Controller {
            process: None,
            data: directory.path().join(format!("controller{index}")),
            address: Ipv4Addr::new(a, b, c, 250 + index),
            store: store.clone(),
        })
        .collect();
    let urls: Vec<String> =
        controllers.iter().map(|c| format!("https://{}:3371", c.address)).collect();
    let first = controllers[0].data.clone();
    let mut operator = Operator {
        controllers: urls.join(","),
        authority: first.join("authority.crt"),
        token: first.join("admin.token"),
    };
    controllers[0].start();
    operator.wait("node list", |_| true);
    controllers[1].start();

    let pools = Pools::new();
    let both = controllers.iter().map(|c| c.address.to_string()).collect::<Vec<_>>().join(",");
    let nodes: Vec<Node> = ["n1", "n2"]
        .into_iter()
        .zip(1..)
        .map(|(name, index)| join(&operator, &pools, &first, &both, name, [a, b, c, index]))
        .collect();
    operator.ok("resource-group create grp --place 2 --pool thin");
    operator.ok("resource-group spawn grp vol1 64M");

    // A volume in use does not notice.
    let socket = nodes[0].export("vol1");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut client = Client::open(&socket, "vol1/0").unwrap();
        let mut count = 0;
        while !stopped.load(Ordering::Relaxed) {
            client.write(count % 4096 * 4096, &pattern(1, 4096)).unwrap();
            count += 1;
        }
        client.close();
        count
    });
    let late = operator.ok(&format!("node token n3 --address {both}"));
    for round in 0..2 {
        controllers[round].kill();
        // The other leads, its agents come to it, and it knows the tokens.
        operator.wait("node list", |said| said.matches("\tonline").count() == 2);
        operator.ok(&format!("resource-group spawn grp more{round} 32M"));
        let (made, secret) =
            operator.command(&format!("controller token create t{round} --role admin"));
        assert!(made, "{secret}\n{}", controllers[1 - round].log());
        operator.token = directory.path().join(format!("token{round}"));
        std::fs::write(&operator.token, secret).unwrap();
        let listed = operator.ok("volume list");
        let names = ["vol1", "more0", "more1"];
        for name in &names[..round + 2] {
            let of = listed.lines().find(|line| line.contains(name)).unwrap_or_default();
            assert!(of.contains("UpToDate"), "{name}: {listed}");
        }
        controllers[round].start();
        if round == 0 {
            joins_once_by_a_token_of_the_last_leader(&directory, late.trim());
        }
    }
    // Whoever led, what was called is known, and in its order.
    let audit = operator.ok("controller audit");
    let calls = [
        "POST /v1/ashlar/join-tokens ",
        "POST /v1/nodes ",
        "more0",
        "Token=t0",
        "more1",
        "Token=t1",
    ];
    let at: Vec<Option<usize>> = calls.iter().map(|call| audit.find(call)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?}: {audit}");
    let tokens = operator.ok("controller token list");
    assert!(["admin", "t0", "t1"].iter().all(|name| tokens.contains(name)), "{tokens}");
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 0);
    operator.ok("volume delete more0 more1");
    // The writer has gone, and its agent has to say so first.
    operator.wait("volume delete vol1", |_| true);
    for node in &nodes {
        assert_eq!(pools.files(node.name), Vec::<String>::new(), "left on {}", node.name);
    }
}

/// The token is good for one node, once, though another controller has made it.
fn joins_once_by_a_token_of_the_last_leader(directory: &tempfile::TempDir, token: &str) {
    let join = |node: &str, home: &str| {
        let mut join = Command::new(binary());
        join.args(["node", "join", token, "--node", node, "--state-dir"]);
        let output = join.arg(directory.path().join(home)).output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let (joined, said) = join("n4", "wrong");
    assert!(!joined && said.contains("the token is for node n3"), "{said}");
    let (joined, said) = join("n3", "late");
    assert!(joined, "{said}");
    let (joined, said) = join("n3", "again");
    assert!(!joined && said.contains("make a new one"), "{said}");
}

/// A node with a pool that has joined and is connected.
fn join(
    operator: &Operator,
    pools: &Pools,
    data: &Path,
    controllers: &str,
    name: &'static str,
    [a, b, c, d]: [u8; 4],
) -> Node {
    std::fs::create_dir_all(pools.of(name)).unwrap();
    let address = Ipv4Addr::new(a, b, c, d);
    let mut node = Node::new(name, data.with_file_name(name), address);
    node.start_engine();
    let token = operator.ok(&format!("node token {name} --address {controllers}"));
    node.join(token.trim());
    node.start_agent();
    operator.ok(&format!("node create {name}={address}"));
    operator.wait("node list", |said| {
        said.lines().any(|line| line.contains(name) && line.contains("online"))
    });
    let path = pools.of(name);
    operator.ok(&format!("storage-pool create thin file-thin {} --on {name}", path.display()));
    node
}
