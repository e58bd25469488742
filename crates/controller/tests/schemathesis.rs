//! schemathesis, from PyPI, makes up calls from the document of the API, and holds every answer against
//! it. Skipped, with the reason, where there is no Python or no PyPI.
//!
//! Refusals have LINSTOR's statuses, of which most are 500, so that status alone says nothing here; what
//! is looked at is that every answer is one that the document describes, and that there is one.

use std::process::Command;

use crate::client;
use crate::served::Server;

/// Calls of each operation.
const CALLS: &str = "4";
/// What every answer is held against.
const CHECKS: &str = "status_code_conformance,content_type_conformance,response_schema_conformance";
/// The same calls each time.
const SEED: &str = "42";

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_made_up_calls_are_as_the_document_says() {
    let made = tokio::task::spawn_blocking(|| client::environment("schemathesis-4.32.5"));
    let python = match made.await.unwrap() {
        Ok(python) => python,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let server = Server::with_volume().await;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.arg("run").arg(format!("http://{}/v1/openapi.json", server.address));
    command.args(["--mode", "positive", "--phases", "examples,coverage,fuzzing"]);
    command.args(["--max-examples", CALLS, "--seed", SEED, "--generation-database", "none"]);
    command.args(["--request-timeout", "60", "--suppress-health-check", "all"]);
    command.args(["--checks", CHECKS]);
    // Streams of events have no end.
    command.args(["--exclude-path-regex", "^/v1/events/"]);
    command.args(["--no-color"]).current_dir(server.directory());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let summary = said.split("SUMMARY").nth(1).unwrap_or(&said);
    println!("{}", summary.trim_matches(['=', ' ', '\n']));
    // It has made calls, and the controller is as alive as before.
    assert!(said.contains(" passed") && !said.contains(" 0 passed"), "{said}");
    assert_eq!(server.call("GET", "/health", "").await.status, 200);
    assert_eq!(server.call("GET", "/v1/nodes", "").await.status, 200);
}
