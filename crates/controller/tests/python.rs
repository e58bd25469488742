//! python-linstor, unmodified from PyPI, against a controller with simulated agents: what it does is in
//! `python.py`. Skipped, with the reason, where there is no Python or no PyPI.

#![allow(clippy::unwrap_used, reason = "these are tests and what they are made of")]

mod client;
mod simulated;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use controller::start;
use controller::store::Sqlite;
use simulated::Simulated;

#[tokio::test(flavor = "multi_thread")]
async fn python_linstor_makes_a_cluster_and_deletes_it_again() {
    let python = match client::python() {
        Ok(python) => python,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let (agents, orders) = Simulated::new();
    let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    let (handle, _thread) = start(Box::new(store), agents.clone()).unwrap();
    tokio::spawn(agents.clone().run(handle.clone(), orders));
    for name in ["n1", "n2", "n3"] {
        agents.connect(&handle, name).await;
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = linstor::router(Arc::new(handle.clone()));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("linstor://{address}"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("done\n"), "{said}");

    let state = linstor::controller::Controller::state(&handle);
    assert_eq!(agents.disks(), Vec::<String>::new());
    assert_eq!(state.model.nodes().count() + state.model.pools().count(), 0);
    assert_eq!(state.model.definitions().count() + state.model.snapshots().count(), 0);
    assert_eq!(state.model.groups().count(), 1, "the built-in one");
    assert!(state.observed.resources.is_empty(), "{:?}", state.observed.resources.keys());
}
