//! A real controller (owner, REST over HTTP, SQLite) with simulated agents, for `cargo xtask bench
//! control`: that drives it as clients do and looks at the process from outside.
//!
//! `simulated_cluster FILE` serves what is in the store FILE on a port of the loopback interface. It
//! reads commands from its standard input, a line each, and answers each with a line of JSON:
//!
//! - `connect N`: the agents of the nodes `n0001` and so on connect, as many as that
//! - `restart`: the controller ends and begins again on its store, and the agents, which have kept
//!   everything, connect to it; answered when nothing is left to look at
//!
//! It ends with its input.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program of the benchmark")]
#![allow(missing_docs, reason = "a program has no interface")]

#[path = "../tests/simulated/mod.rs"]
mod simulated;

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use cluster::command::Command;
use cluster::name::StoreName;
use cluster::props::PropsEdit;
use controller::store::{self, Sqlite};
use controller::{Handle, start};
use linstor::controller::Controller;
use serde_json::json;
use simulated::Simulated;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// A controller that serves.
struct Serving {
    handle: Handle,
    owner: JoinHandle<Result<(), store::Error>>,
    server: AbortHandle,
    address: SocketAddr,
}

async fn serve(file: &Path, agents: &Arc<Simulated>) -> Serving {
    let store = Sqlite::open(file).unwrap();
    let (handle, owner) = start(Box::new(store), agents.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = linstor::router(Arc::new(handle.clone()));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    Serving { handle, owner, server: server.abort_handle(), address }
}

/// Ends a controller. Its store is free afterwards.
async fn end(serving: Serving, agents: &Simulated) {
    agents.report_to(None);
    serving.server.abort();
    drop(serving.handle);
    // Connections that are open have the controller, too, until their clients are gone.
    tokio::task::spawn_blocking(|| serving.owner.join()).await.unwrap().unwrap().unwrap();
}

async fn connect(agents: &Simulated, controller: &Handle, nodes: usize) {
    for number in 1..=nodes {
        agents.connect(controller, &format!("n{number:04}")).await;
    }
}

/// Returns when everything that came before has been followed.
async fn quiet(controller: &Handle) {
    let name = StoreName::new("bench").unwrap();
    let edit = PropsEdit::set("mark", &format!("{:?}", Instant::now()));
    let done = controller.carry_out(Command::ModifyStore { name, edit }).await.unwrap();
    done.followed.await.unwrap();
}

#[tokio::main]
async fn main() {
    let begun = Instant::now();
    let file = PathBuf::from(std::env::args_os().nth(1).expect("the file of the store"));
    let (agents, orders) = Simulated::new();
    let mut serving = serve(&file, &agents).await;
    tokio::spawn(agents.clone().run(serving.handle.clone(), orders));
    let millis = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;
    println!("{}", json!({ "address": serving.address, "start_ms": millis(begun) }));
    let (lines, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    let mut nodes = 0;
    while let Some(line) = commands.recv().await {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("connect", number) => {
                nodes = number.parse().unwrap();
                connect(&agents, &serving.handle, nodes).await;
                quiet(&serving.handle).await;
                println!("{}", json!({ "connected": nodes }));
            }
            ("restart", _) => {
                end(serving, &agents).await;
                let (begun, steps) = (Instant::now(), agents.steps());
                serving = serve(&file, &agents).await;
                let started = millis(begun);
                agents.report_to(Some(serving.handle.clone()));
                connect(&agents, &serving.handle, nodes).await;
                quiet(&serving.handle).await;
                println!(
                    "{}",
                    json!({
                        "address": serving.address,
                        "start_ms": started,
                        "reconcile_ms": millis(begun),
                        "steps": agents.steps() - steps,
                    })
                );
            }
            (other, _) => panic!("{other} is not a command"),
        }
    }
}
