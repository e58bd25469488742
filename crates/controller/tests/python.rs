//! python-linstor, unmodified from PyPI, against a controller with simulated agents: what it does is in
//! `python.py`. Skipped, with the reason, where there is no Python or no PyPI.

use std::path::Path;
use std::process::Command;

use crate::client;
use crate::served;
use crate::served::Server;

#[tokio::test(flavor = "multi_thread")]
async fn python_linstor_makes_a_cluster_and_deletes_it_again() {
    let python = match client::python() {
        Ok(python) => python,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let server = Server::new().await;
    server.agents.give_disks("n1", served::disks());
    server.agents.give_disks("n2", served::disks()[1..2].to_vec());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("linstor://{}", server.address));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("done\n"), "{said}");

    let state = linstor::controller::Controller::state(&server.handle);
    assert_eq!(server.agents.disks(), Vec::<String>::new());
    assert_eq!(state.model.nodes().count() + state.model.pools().count(), 0);
    assert_eq!(state.model.definitions().count() + state.model.snapshots().count(), 0);
    assert_eq!(state.model.groups().count(), 1, "the built-in one");
    assert!(state.observed.resources.is_empty(), "{:?}", state.observed.resources.keys());
}
