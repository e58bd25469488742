//! The whole control plane as its users meet it: `ashlar controller`, three nodes with engines and
//! agents that have joined by tokens, and python-linstor, unmodified from PyPI, on top.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

#[path = "../../crates/controller/tests/client/mod.rs"]
mod client;
mod control_support;
mod engine_support;

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use control_support::{Node, PATIENCE, Pools, network};
use engine_support::{binary, text};

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
        token.args(["node", "token", name, "--address", &own.to_string(), "--data-dir"]).arg(&data);
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
    let output = script.output().unwrap();
    let said = text(&output.stdout);
    println!("the script took {:.1} s", begun.elapsed().as_secs_f64());
    let logs = || {
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let agents = nodes.iter().map(|node| read(node.directory.join("agent.log")));
        agents.chain([read(data.with_extension("log"))]).collect::<Vec<_>>().join("\n----\n")
    };
    let good = output.status.success() && said.ends_with("done\n");
    assert!(good, "{said}{}\n{}", text(&output.stderr), logs());
    for node in &nodes {
        assert_eq!(pools.files(node.name), Vec::<String>::new(), "left on {}", node.name);
        assert_eq!(node.ok(&["status", "--json"]).trim(), "[]", "{}", node.name);
    }
    drop(controller);
}
