//! The REST API of `ashlar controller` as an operator secures it: HTTPS with a certificate of its own,
//! tokens made by the command line, and the log of who did what. All of it real processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine_support::{binary, text};

const PATIENCE: Duration = Duration::from_secs(40);

struct Controller {
    process: Child,
    data: PathBuf,
    log: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Controller {
    fn start(data: &Path, options: &[&str]) -> Controller {
        let log = data.with_extension("log");
        let file = std::fs::File::create(&log).unwrap();
        let mut process = Command::new(binary());
        process.arg("controller").arg("--data-dir").arg(data);
        process.args(["--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]).args(options);
        process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let process = process.spawn().unwrap();
        Controller { process, data: data.to_owned(), log }
    }

    /// Ends it in peace.
    fn stop(mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let begun = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The address that the log names with that scheme.
    fn url(&self, scheme: &str) -> String {
        let begun = Instant::now();
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap();
            let mut words = log.split_whitespace();
            if let Some(url) = words.find(|word| word.starts_with(&format!("{scheme}://"))) {
                return url.to_owned();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not serve {scheme}: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asks it by the command line, with the token of a file: what is said, and whether it succeeded.
    fn ask(&self, token: Option<&Path>, words: &[&str]) -> (String, bool) {
        let mut command = Command::new(binary());
        command.arg("controller").args(words);
        command.args(["--controllers", &self.url("https")]).env_remove("ASHLAR_TOKEN");
        command.arg("--ca").arg(self.data.join("authority.crt"));
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        let output = command.output().unwrap();
        (text(&output.stdout) + &text(&output.stderr), output.status.success())
    }
}

#[test]
fn an_operator_makes_tokens_and_sees_who_used_them() {
    let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
    let data = directory.path().join("controller");
    let controller = Controller::start(&data, &["--rest-tls=127.0.0.1:0", "--require-token"]);
    controller.url("https");
    let admin = data.join("admin.token");

    let (said, done) = controller.ask(None, &["token", "list"]);
    assert!(!done && said.contains("needs a token"), "{said}");
    let create = ["token", "create", "eye", "--role", "read", "--days", "1"];
    let (secret, done) = controller.ask(Some(&admin), &create);
    assert!(done && secret.starts_with("ashlar_"), "{secret}");
    let eye = directory.path().join("eye.token");
    std::fs::write(&eye, &secret).unwrap();
    let (said, done) = controller.ask(Some(&eye), &["token", "list"]);
    assert!(!done && said.contains("its role is read"), "{said}");
    let (said, done) = controller.ask(Some(&admin), &["token", "list"]);
    assert!(done && said.lines().count() == 3 && said.contains("eye  "), "{said}");
    let (said, done) = controller.ask(Some(&admin), &["token", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(done && list[1]["name"] == "eye" && list[1]["role"] == "read", "{said}");
    assert!(!said.contains(secret.trim()), "{said}");
    let (said, done) = controller.ask(Some(&admin), &["token", "revoke", "eye"]);
    assert!(done && said.contains("token eye is revoked"), "{said}");
    let (said, done) = controller.ask(Some(&eye), &["token", "list"]);
    assert!(!done && said.contains("was revoked"), "{said}");

    let (said, done) = controller.ask(Some(&admin), &["audit"]);
    let calls: Vec<&str> = said.lines().skip(1).collect();
    assert!(done && calls.len() == 3, "{said}");
    assert!(calls[0].contains("token admin") && calls[0].contains("Token=eye"), "{said}");
    assert!(calls[1].contains("token eye") && calls[1].contains(" 403"), "{said}");
    assert!(calls[2].contains("DELETE /v1/ashlar/tokens/eye"), "{said}");

    // A token is not sent in the clear to others, nor to who can not show that it is the controller.
    let other = ["token", "list", "--controllers", "http://192.0.2.1:1"];
    let mut command = Command::new(binary());
    let output = command.arg("controller").args(other).arg("--token-file").arg(&admin).output();
    let said = text(&output.unwrap().stderr);
    assert!(said.contains("for everybody to read"), "{said}");
    // Plain HTTP leads to HTTPS.
    let mut command = Command::new(binary());
    let plain = ["token", "list", "--controllers", &controller.url("http")];
    let output = command.arg("controller").args(plain).env_remove("ASHLAR_TOKEN").output();
    let said = text(&output.unwrap().stderr);
    assert!(said.contains("wants to be called by https"), "{said}");
}

/// A folder of a controller of version 1, as that has left it; but its tokens last until 2100.
const VERSION_1: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/controller/testdata/version-1");
/// The secret of one of its tokens, which is for node alpha.
const OF_ALPHA: &str = "c1c87f5c817a5bee742e19b014edfbcf87d8e9042599603bfbff3818b3b8131a";

#[test]
fn what_an_older_version_kept_is_there_and_a_stopped_controller_leaves_one_file() {
    let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
    let data = directory.path().join("controller");
    let copied = Command::new("cp").arg("-r").args([VERSION_1.as_ref(), data.as_path()]).status();
    assert!(copied.unwrap().success());
    let ask = |controller: &Controller, words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).env_remove("ASHLAR_TOKEN");
        let output = command.args(["--controllers", &controller.url("http")]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let controller = Controller::start(&data, &[]);
    let nodes = ask(&controller, &["node", "list"]);
    assert!(["alpha", "bravo", "charlie"].iter().all(|name| nodes.contains(name)), "{nodes}");
    let audit = ask(&controller, &["controller", "audit"]);
    assert!(audit.contains("Node=alpha") && audit.contains("Token=ci"), "{audit}");
    assert!(data.join("old-audit.log").exists() && !data.join("audit.log").exists());
    // A token that was made before is good, once.
    let log = std::fs::read_to_string(&controller.log).unwrap();
    let link = log.split("agents connect to ").nth(1).and_then(|rest| rest.lines().next());
    let new = ask(&controller, &["node", "token", "--address", link.unwrap()]);
    let (front, _) = new.trim().rsplit_once('.').unwrap();
    let join = |token: &str, node: &str| {
        let mut command = Command::new(binary());
        command.args(["node", "join", token, "--node", node, "--state-dir"]);
        command.arg(directory.path().join(node)).output().unwrap()
    };
    let old = format!("{front}.{OF_ALPHA}");
    assert!(text(&join(&old, "bravo").stderr).contains("for node alpha"));
    let joined = join(&old, "alpha");
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    assert!(!join(&old, "alpha").status.success());
    assert!(!data.join("link/tokens").exists());

    // Stopped, its file is all there is: a copy of it is the store.
    controller.stop();
    assert!(!data.join("controller.db-wal").exists(), "part of the store is beside it");
    let other = directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(data.join("controller.db"), other.join("controller.db")).unwrap();
    let controller = Controller::start(&other, &[]);
    let nodes = ask(&controller, &["node", "list"]);
    assert!(nodes.contains("charlie"), "{nodes}");
    let audit = ask(&controller, &["controller", "audit"]);
    assert!(audit.contains("Token=ci") && audit.contains("join-tokens"), "{audit}");
}

#[test]
fn what_would_be_open_to_others_does_not_start() {
    let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
    let data = directory.path().join("controller");
    for (options, why) in [
        (&["--listen", "0.0.0.0:0"][..], "--rest-tls"),
        (&["--rest-tls=127.0.0.1:0", "--rest-name", "controller.ashlar.internal"], "leave it out"),
        (
            &["--rest-tls=127.0.0.1:0", "--rest-certificate", "/none", "--rest-key", "/none"],
            "name a PEM file",
        ),
    ] {
        let mut command = Command::new(binary());
        command.arg("controller").arg("--data-dir").arg(&data);
        command.args(["--listen-agents", "127.0.0.1:0"]).args(options);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{options:?}: {said}");
    }
}
