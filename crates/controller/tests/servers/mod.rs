//! PostgreSQL and etcd as processes of a test: on random ports, in a temporary folder, gone with it.
#![allow(dead_code, reason = "no program that has this needs all of it")]
#![allow(clippy::unwrap_used, reason = "these are tests and what they are made of")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server. It ends when this is dropped.
pub struct Server {
    /// Where a store is.
    pub url: String,
    process: Child,
    /// What ends it in peace.
    signal: &'static str,
    _directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        signal(&self.process, self.signal);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal to a process.
pub fn signal(process: &Child, name: &str) {
    let status =
        Command::new("kill").arg(format!("-{name}")).arg(process.id().to_string()).status();
    assert!(status.unwrap().success());
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until somebody listens on a port.
fn answers(process: &mut Child, port: u16) -> Result<(), String> {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = process.try_wait().unwrap() {
            return Err(format!("it has ended: {status}"));
        }
        if begun.elapsed() > PATIENCE {
            return Err("it does not answer".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Debian has those of each version in a folder of its own.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    let found = folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| format!("there is no {program} here"))
}

/// The user and group id of the first of these users that there is.
fn user(names: &[&str]) -> Result<(u32, u32), String> {
    let users = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let line = names
        .iter()
        .find_map(|name| users.lines().find(|line| line.split(':').next() == Some(*name)));
    let line = line.ok_or_else(|| format!("there is none of the users {}", names.join(", ")))?;
    let ids: Vec<u32> = line.split(':').filter_map(|field| field.parse().ok()).collect();
    match ids[..] {
        [uid, gid, ..] => Ok((uid, gid)),
        _ => Err(format!("{line} is not a user")),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A PostgreSQL with a password, or why there is none.
pub fn postgres() -> Result<Server, String> {
    let (initdb, postgres) = (find("initdb")?, find("postgres")?);
    let directory = tempfile::Builder::new().prefix("ashlar-postgres").tempdir().unwrap();
    let data = directory.path().join("data");
    let password = directory.path().join("password");
    std::fs::write(&password, "se:c@ret\n").unwrap();
    // It does not run as root.
    let ids = if is_root() { Some(user(&["postgres", "nobody"])?) } else { None };
    if let Some((uid, gid)) = ids {
        for path in [directory.path(), &password] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
        }
    }
    let command = |program: &Path| match ids {
        Some((uid, gid)) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
            command.args(["--clear-groups", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    let mut init = command(&initdb);
    init.current_dir(directory.path()).arg("-D").arg(&data).arg("--pwfile").arg(&password);
    init.args(["-U", "ashlar", "--auth=scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"]);
    let made = init.output().map_err(|error| error.to_string())?;
    if !made.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let port = free_port();
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    let mut serve = command(&postgres);
    serve.current_dir(directory.path()).arg("-D").arg(&data).arg("-k").arg(directory.path());
    serve.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    serve.stdout(Stdio::null()).stderr(log);
    let mut process = serve.spawn().map_err(|error| error.to_string())?;
    answers(&mut process, port)?;
    let url = format!("postgresql://ashlar:se%3Ac%40ret@127.0.0.1:{port}/postgres");
    let server = Server { url, process, signal: "INT", _directory: directory };
    // It listens before it lets anybody in.
    std::thread::sleep(Duration::from_millis(500));
    Ok(server)
}

/// An etcd, or why there is none.
pub fn etcd() -> Result<Server, String> {
    let etcd = find("etcd")?;
    let directory = tempfile::Builder::new().prefix("ashlar-etcd").tempdir().unwrap();
    let (port, peers) = (free_port(), free_port());
    let (clients, peers) =
        (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    let mut serve = Command::new(etcd);
    serve.arg("--data-dir").arg(directory.path().join("data"));
    serve.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    serve.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    serve.args(["--initial-cluster", &format!("default={peers}")]);
    serve.stdout(Stdio::null()).stderr(log);
    let mut process = serve.spawn().map_err(|error| error.to_string())?;
    answers(&mut process, port)?;
    let url = format!("etcd://127.0.0.1:{port}");
    Ok(Server { url, process, signal: "TERM", _directory: directory })
}
