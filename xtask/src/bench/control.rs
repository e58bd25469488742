//! `cargo xtask bench control`: what the control plane costs as it grows.
//!
//! A real controller (its owner, the REST API over HTTP, SQLite) serves simulated agents, which carry
//! out orders at once, in a process of its own (`examples/simulated_cluster.rs` of the crate
//! `controller`). This program is its clients, and looks at the process from outside.
//!
//! - `server`: that process, and a client.

mod server;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::cpu::Clock;
use super::results::{self, Machine, Tree};
use super::statistics::median;
use super::{folder, words};
use crate::arguments::{Words, number};
use crate::process;
use crate::workspace::{self, Metadata};
use server::{Client, Server};

/// Clients that spawn at the same time.
const CLIENTS: usize = 100;
/// Volumes that are spawned one by one when all others are there.
const SPAWNS: usize = 50;
/// Replicas of each volume.
const REPLICAS: usize = 3;
/// Resources on a node, at most: a node has a thousand ports for them.
const ON_NODE: usize = 500;
const LEAST_NODES: usize = 12;

/// The limits.
const LIST_MS: f64 = 50.0;
const SPAWN_MS: f64 = 100.0;
const START_MS: f64 = 2_000.0;
const RECONCILE_MS: f64 = 2_000.0;
/// Volumes for which that limit is.
const RECONCILE_VOLUMES: usize = 1_000;
const MEMORY_MB: f64 = 500.0;

/// What is to be measured, and where the result goes.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    volumes: Vec<usize>,
    /// Calls of each list.
    calls: usize,
    json: Option<PathBuf>,
    quick: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let mut options = Options {
            volumes: if quick { vec![30] } else { vec![100, 1_000, 10_000] },
            calls: if quick { 5 } else { 100 },
            json: None,
            quick,
        };
        let mut words = Words::new(arguments);
        while let Some(name) = words.next()? {
            let mut value = || words.value(name);
            match name {
                "control" | "--quick" => {}
                "--volumes" => {
                    let all = value()?.split(',').map(|one| number(name, one, 1, 15_000));
                    options.volumes = all.collect::<Result<_>>()?;
                }
                "--calls" => options.calls = number(name, value()?, 1, 10_000)?,
                "--json" => options.json = Some(value()?.into()),
                other => bail!("{other:?} is not understood; cargo xtask bench --help"),
            }
        }
        Ok(options)
    }
}

/// One figure.
#[derive(Serialize)]
struct Row {
    volumes: usize,
    what: String,
    unit: Unit,
    measured: f64,
    /// At most so much, if there is a limit.
    limit: Option<f64>,
    holds: Option<bool>,
    /// What a reader has to know.
    note: Option<String>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Ms,
    Mb,
    PerSecond,
    Count,
}

struct Value(f64, Unit);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value(value, Unit::Ms) => write!(f, "{value:.1} ms"),
            Value(value, Unit::Mb) => write!(f, "{value:.0} MB"),
            Value(value, Unit::PerSecond) => write!(f, "{value:.0}/s"),
            Value(value, Unit::Count) => write!(f, "{value:.0}"),
        }
    }
}

/// All of it, as JSON.
#[derive(Serialize)]
struct Document<'a> {
    time: String,
    quick: bool,
    tree: Tree,
    machine: Option<Machine>,
    calls: usize,
    rows: &'a [Row],
}

/// The command.
///
/// # Errors
/// If a limit does not hold, unless it is a smoke run, or something could not be measured.
pub fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    process::watch_signals()?;
    eprintln!("building");
    let program = build()?;
    let begun = Instant::now();
    let mut rows = Vec::new();
    for volumes in &options.volumes {
        eprintln!("{volumes} volumes, {} since the beginning", words(begun.elapsed()));
        let mut bench = Bench { volumes: *volumes, rows: &mut rows };
        bench.measure(&program, &options)?;
    }
    report(&options, &rows)?;
    let missed = rows.iter().filter(|row| row.holds == Some(false)).count();
    if missed > 0 && !options.quick {
        bail!(
            "{missed} of {} limits do not hold",
            rows.iter().filter(|r| r.holds.is_some()).count()
        );
    }
    Ok(())
}

fn build() -> Result<PathBuf> {
    let root = workspace::root();
    let target = Metadata::of(&root.join("Cargo.toml"))?.target_directory;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--locked", "-p", "controller"]);
    cargo.args(["--example", "simulated_cluster"]).current_dir(root);
    if !cargo.status().context("cargo could not be started")?.success() {
        bail!("the program does not build");
    }
    Ok(target.join("release/examples/simulated_cluster"))
}

/// The measurement of one size.
struct Bench<'a> {
    volumes: usize,
    rows: &'a mut Vec<Row>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Bench<'_> {
    fn row(&mut self, what: impl Into<String>, unit: Unit, measured: f64) -> &mut Row {
        let (volumes, what) = (self.volumes, what.into());
        let (limit, holds, note) = (None, None, None);
        self.rows.push(Row { volumes, what, unit, measured, limit, holds, note });
        self.rows.last_mut().expect("one was pushed")
    }

    fn limited(
        &mut self,
        what: impl Into<String>,
        unit: Unit,
        measured: f64,
        limit: f64,
    ) -> &mut Row {
        let row = self.row(what, unit, measured);
        (row.limit, row.holds) = (Some(limit), Some(measured <= limit));
        row
    }

    fn measure(&mut self, program: &Path, options: &Options) -> Result<()> {
        let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
        let store = directory.path().join("controller.db");
        let mut server = Server::start(program, &store)?;
        let nodes = (self.volumes * REPLICAS).div_ceil(ON_NODE).max(LEAST_NODES);
        server.connect(nodes)?;
        prepare(&server, nodes)?;
        let mut answered = self.spawn_all(&server)?;
        answered.extend(self.spawn_more(&server, options)?);
        self.lists(&server, options, nodes)?;
        let most = server.most_memory()?;
        self.limited("memory, at most, with that of the agents", Unit::Mb, most, MEMORY_MB);
        let restarted = server.restart()?;
        let what = "restart until everything is looked at, agents connected";
        match self.volumes <= RECONCILE_VOLUMES {
            true => self.limited(what, Unit::Ms, restarted.reconcile_ms, RECONCILE_MS),
            false => self.row(what, Unit::Ms, restarted.reconcile_ms),
        };
        let start = self.row("of which until it serves", Unit::Ms, restarted.start_ms);
        start.note = Some("the store is read in the process that ran before".to_owned());
        let steps = restarted.steps as f64;
        self.limited("steps that were sent though all was done", Unit::Count, steps, 0.0);
        server.kill()?;
        self.start_again(program, &store, &answered)
    }

    /// Many clients, each with a volume after the other.
    fn spawn_all(&mut self, server: &Server) -> Result<BTreeSet<String>> {
        let (next, answered) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        let (address, volumes) = (server.address, self.volumes);
        let begun = Instant::now();
        let client = || -> Result<()> {
            let mut client = Client::default();
            loop {
                process::check_signals()?;
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= volumes {
                    return Ok(());
                }
                let name = format!("v{number:05}");
                spawn(&mut client, address, &name)?;
                answered.lock().expect("nobody panics with it").insert(name);
            }
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            let ends = clients.into_iter().map(|client| client.join().expect("a client panicked"));
            ends.collect::<Result<()>>()
        })?;
        let rate = self.volumes as f64 / begun.elapsed().as_secs_f64();
        self.row(format!("volumes spawned by {CLIENTS} clients at once"), Unit::PerSecond, rate);
        Ok(answered.into_inner().expect("nobody panicked"))
    }

    /// One more volume, again and again.
    fn spawn_more(&mut self, server: &Server, options: &Options) -> Result<Vec<String>> {
        let count = if options.quick { 5 } else { SPAWNS };
        let clock = Clock::new()?;
        let (mut client, mut times, mut names) = (Client::default(), Vec::new(), Vec::new());
        let before = clock.process(server.pid())?;
        for number in 0..count {
            let name = format!("more{number:03}");
            let begun = Instant::now();
            spawn(&mut client, server.address, &name)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            names.push(name);
        }
        let cpu = (clock.process(server.pid())? - before) * 1e3 / count as f64;
        let what = "one more volume, from the call to its answer, p99";
        let note = format!("median {}", Value(median(&times).unwrap_or(0.0), Unit::Ms));
        self.limited(what, Unit::Ms, p99(&times), SPAWN_MS).note = Some(note);
        let what = "one more volume, CPU time of controller and agents";
        self.limited(what, Unit::Ms, cpu, SPAWN_MS);
        Ok(names)
    }

    fn lists(&mut self, server: &Server, options: &Options, nodes: usize) -> Result<()> {
        let middle = self.volumes / 2;
        let lists = [
            ("every resource", "/v1/view/resources".to_owned()),
            (
                "every resource definition",
                "/v1/resource-definitions?with_volume_definitions=true".to_owned(),
            ),
            ("the resources of a node", "/v1/view/resources?nodes=n0001".to_owned()),
            ("the resources of a definition", format!("/v1/view/resources?resources=v{middle:05}")),
            ("100 resources", format!("/v1/view/resources?limit=100&offset={middle}")),
            ("every node", "/v1/nodes".to_owned()),
            ("every storage pool", "/v1/view/storage-pools".to_owned()),
        ];
        let mut client = Client::default();
        for (what, path) in lists {
            let mut times = Vec::new();
            let mut size = 0;
            for _ in 0..options.calls {
                process::check_signals()?;
                let begun = Instant::now();
                size = client.get(server.address, &path)?.body.len();
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            let ms = |value: f64| Value(value, Unit::Ms).to_string();
            let note = format!(
                "median {}, first {}, {:.1} MB",
                ms(median(&times).unwrap_or(0.0)),
                ms(times[0]),
                size as f64 / 1e6
            );
            self.limited(format!("list {what}, p99"), Unit::Ms, p99(&times), LIST_MS).note =
                Some(note);
        }
        let listed: Vec<serde_json::Value> =
            serde_json::from_slice(client.get(server.address, "/v1/nodes")?.body)?;
        if listed.len() != nodes {
            bail!("{nodes} nodes were created, {} are listed", listed.len());
        }
        // What an answer costs that is compressed, as python-linstor asks for it.
        let begun = Instant::now();
        let gzip = "Accept-Encoding: gzip\r\n";
        client.call(server.address, "GET", "/v1/view/resources", gzip, "")?;
        let time = begun.elapsed().as_secs_f64() * 1e3;
        self.row("list every resource, compressed, one call", Unit::Ms, time);
        Ok(())
    }

    /// After the process was killed: how long until it serves, and whether every volume is there.
    fn start_again(
        &mut self,
        program: &Path,
        store: &Path,
        answered: &BTreeSet<String>,
    ) -> Result<()> {
        let begun = Instant::now();
        let server = Server::start(program, store)?;
        let mut client = Client::default();
        client.get(server.address, "/v1/controller/version")?;
        let time = begun.elapsed().as_secs_f64() * 1e3;
        self.limited("start after kill -9 until the first answer", Unit::Ms, time, START_MS);
        let begun = Instant::now();
        let body = client.get(server.address, "/v1/view/resources")?.body;
        let first = begun.elapsed().as_secs_f64() * 1e3;
        let resources: Vec<Named> = serde_json::from_slice(body)?;
        self.row("the first list of every resource after that", Unit::Ms, first);
        let of = |name: &String| resources.iter().filter(|r| r.name == *name).count();
        let counted = resources.iter().fold(std::collections::BTreeMap::new(), |mut all, r| {
            *all.entry(r.name.as_str()).or_insert(0) += 1;
            all
        });
        let lost = answered.iter().filter(|name| counted.get(name.as_str()) != Some(&REPLICAS));
        let lost: Vec<&String> = lost.collect();
        let row = self.limited(
            format!("of {} answered volumes, not whole after kill -9", answered.len()),
            Unit::Count,
            lost.len() as f64,
            0.0,
        );
        row.note = lost.first().map(|name| format!("{name} has {} resources", of(name)));
        Ok(())
    }
}

fn spawn(client: &mut Client, address: SocketAddr, name: &str) -> Result<()> {
    let body = format!(r#"{{"resource_definition_name":"{name}","volume_sizes":[1048576]}}"#);
    let path = "/v1/resource-groups/bench/spawn";
    let answer = client.call(address, "POST", path, "", &body)?;
    if answer.status != 201 {
        bail!("{name}: {} {}", answer.status, String::from_utf8_lossy(answer.body));
    }
    Ok(())
}

/// Nodes with a pool each, and a group.
fn prepare(server: &Server, nodes: usize) -> Result<()> {
    let mut client = Client::default();
    let mut post = |path: &str, body: &str| -> Result<()> {
        let answer = client.call(server.address, "POST", path, "", body)?;
        match answer.status {
            201 => Ok(()),
            status => bail!("{path}: {status} {}", String::from_utf8_lossy(answer.body)),
        }
    };
    for number in 1..=nodes {
        let name = format!("n{number:04}");
        let address = format!("10.0.{}.{}", number / 200, number % 200 + 1);
        post(
            "/v1/nodes",
            &format!(
                r#"{{"name":"{name}","type":"Satellite",
                    "net_interfaces":[{{"name":"default","address":"{address}"}}]}}"#
            ),
        )?;
        let pool = r#"{"storage_pool_name":"pool","provider_kind":"FILE_THIN",
            "props":{"StorDriver/FileDir":"/srv"}}"#;
        post(&format!("/v1/nodes/{name}/storage-pools"), pool)?;
    }
    let filter = format!(r#""select_filter":{{"place_count":{REPLICAS}}}"#);
    post("/v1/resource-groups", &format!(r#"{{"name":"bench",{filter}}}"#))
}

/// The value that 99 of a hundred do not exceed.
fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(0.0)
}

fn report(options: &Options, rows: &[Row]) -> Result<()> {
    // Only the tables of I/O need fio, which is among what that asks for.
    let (machine, tree, time) = (Machine::here().ok(), Tree::here()?, results::now()?);
    println!();
    if options.quick {
        println!("A SMOKE RUN: it shows that this can be measured. None of its figures is one.");
    }
    println!("{time}, commit {}", tree.short());
    if let Some(machine) = &machine {
        let Machine { host, cores, cpu, memory_mib, kernel, .. } = machine;
        println!("{host}: {cores} x {cpu}, {memory_mib} MiB, Linux {kernel}");
    }
    println!("{} calls of each list; {} replicas of each volume", options.calls, REPLICAS);
    let mut last = 0;
    for row in rows {
        if row.volumes != last {
            println!("\n{} volumes, {} resources", row.volumes, row.volumes * REPLICAS);
            last = row.volumes;
        }
        line(row).iter().for_each(|line| println!("    {line}"));
    }
    println!();
    let json = match &options.json {
        None if options.quick => return Ok(()),
        None => folder()?.join("control.json"),
        Some(path) => path.clone(),
    };
    let (quick, calls) = (options.quick, options.calls);
    let document = Document { time, quick, tree, machine, calls, rows };
    results::write(&json, &(serde_json::to_string_pretty(&document)? + "\n"))?;
    println!("as JSON: {}", json.display());
    Ok(())
}

/// A figure on the terminal.
fn line(row: &Row) -> Vec<String> {
    let verdict = match row.holds {
        Some(true) => "holds",
        Some(false) => "DOES NOT HOLD",
        None => "",
    };
    let limit = row.limit.map_or(String::new(), |limit| match limit {
        0.0 => "none may".to_owned(),
        limit => format!("at most {}", Value(limit, row.unit)),
    });
    let measured = Value(row.measured, row.unit).to_string();
    let mut lines = vec![format!("{verdict:14} {measured:>12}  {limit:18} {}", row.what)];
    lines.extend(row.note.as_ref().map(|note| format!("{:48}{note}", "")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_say_how_much_is_measured() {
        assert_eq!(parse("control").unwrap().volumes, [100, 1_000, 10_000]);
        let options = parse("control --volumes 5,7 --calls 9 --json a").unwrap();
        assert_eq!((options.volumes, options.calls), (vec![5, 7], 9));
        assert_eq!(options.json, Some("a".into()));
        assert!(parse("control --quick").unwrap().quick);
        for (line, text) in [
            ("control --volumes 0", "--volumes is a number from 1"),
            ("control --volumes 5,x", "--volumes is a number from 1"),
            ("control --rounds 3", "is not understood"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(text), "{line}: {error}");
        }
    }

    #[test]
    fn of_a_hundred_calls_the_slowest_one_is_left_out() {
        let mut times: Vec<f64> = (1..=100).map(f64::from).collect();
        times.reverse();
        assert_eq!(p99(&times), 99.0);
        assert_eq!(p99(&[3.0, 1.0]), 3.0);
    }

    #[test]
    fn a_figure_has_its_limit_and_verdict() {
        let mut rows = Vec::new();
        let mut bench = Bench { volumes: 7, rows: &mut rows };
        bench.limited("lists", Unit::Ms, 50.1, LIST_MS).note = Some("slow".to_owned());
        bench.limited("lost", Unit::Count, 0.0, 0.0);
        bench.row("rate", Unit::PerSecond, 12.0);
        assert_eq!(rows[0].holds, Some(false));
        let text: Vec<String> = rows.iter().flat_map(line).collect();
        assert!(text[0].starts_with("DOES NOT HOLD") && text[0].contains("at most 50.0 ms"));
        assert_eq!(text[1].trim(), "slow");
        assert!(text[2].starts_with("holds") && text[2].contains("none may"));
        assert!(text[3].trim().starts_with("12/s"));
    }
}
