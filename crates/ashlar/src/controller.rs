//! `ashlar controller`: starts the control plane's daemon in this process; and with a command, asks a
//! running one about its tokens, its audit log, copies of its store, and what helps to find faults.
//!
//! Only the arguments are read and answers shown here; everything else is the crate `controller`, and
//! the operator's way to its REST API.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use controller::{daemon, tls};
use serde_json::{Value, json};
use surfaces::cli;
use surfaces::cli::cluster::{Change, Controllers, Http, part, query};
use vocab::Utc;

/// Where the wanted state is kept.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/ashlar/controller";
/// LINSTOR's port.
const DEFAULT_LISTEN: &str = "127.0.0.1:3370";
const DEFAULT_REST_TLS: &str = "[::]:3371";
/// Where agents connect unless something else is said.
pub const AGENTS_PORT: u16 = 3377;
const DEFAULT_AGENTS: &str = "[::]:3377";
/// A day in milliseconds.
const DAY: u64 = 24 * 3600 * 1000;

/// What is said below the options.
pub const HELP: &str = "\
LINSTOR's clients are told where it is by `linstor --controllers 127.0.0.1` or LS_CONTROLLERS. Which
calls there are is in COMPAT.md. A node becomes a member by `ashlar node create --invite`, here, and
`ashlar node join` with what that prints, there.

The first start makes a token for the administrator, in the file admin.token of the directory; with
that, or without any from this host, `ashlar controller token create` makes others.

Back up at any time by `ashlar controller backup`: the copy takes the place of controller.db in the
directory; keep the other files of the directory, too, which are keys. Of a server that is the store also
by its own means. PostgreSQL: `pg_dump --table 'ashlar_*'`. etcd: `etcdctl snapshot save`. From one kind of
store to another: `ashlar controller export`, and `import` while no controller runs.";

/// Arguments of `ashlar controller`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory where the controller keeps what is wanted of the cluster
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Where what is wanted is kept: sqlite:///FILE, or on a server that several controllers share, of
    /// which one leads: postgresql://USER@HOST/DATABASE, etcd://HOST:PORT. @FILE has the URL in a file,
    /// and ASHLAR_STORE in the environment, as one with a password has to be [default: a file in the
    /// data directory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where the REST API listens by HTTP. On other addresses than those of the loopback interface, or
    /// with --require-token, it only leads to HTTPS if there is that
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
    /// Serve the REST API by HTTPS, too [default address: [::]:3371]. Who calls from elsewhere needs a
    /// token
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = DEFAULT_REST_TLS)]
    rest_tls: Option<SocketAddr>,
    /// PEM file with the certificate of HTTPS, and those between it and its root [default: one that the
    /// controller signs; clients have to trust authority.crt of the directory]
    #[arg(long, value_name = "FILE", requires_all = ["rest_tls", "rest_key"])]
    rest_certificate: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(long, value_name = "FILE", requires = "rest_certificate")]
    rest_key: Option<PathBuf>,
    /// Name or address by which clients reach the controller, for a certificate that it signs; may be
    /// given several times [always: this host's name, localhost]
    #[arg(long, value_name = "NAME", requires = "rest_tls", conflicts_with = "rest_certificate")]
    rest_name: Vec<String>,
    /// PEM file with the authorities of clients' certificates: every client of HTTPS has to show one,
    /// and a token besides
    #[arg(long, value_name = "FILE", requires = "rest_tls")]
    rest_client_ca: Option<PathBuf>,
    /// Where clients reach the REST API of this controller, if not where it listens: with a store that
    /// several share the others send them there while this one leads
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// Where agents connect, with certificates on both sides
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_AGENTS)]
    listen_agents: SocketAddr,
    /// Have programs on this host show a token, too; else they may do everything
    #[arg(long)]
    require_token: bool,
    /// Most detailed lines of the log: error, warn, info, debug or trace; clients can change it
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: vocab::LogLevel,
}

/// What a running controller is asked.
#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make, list and revoke API tokens
    #[command(subcommand)]
    Token(Token),
    /// Show who changed what, the newest last
    Audit {
        #[command(flatten)]
        asked: Controllers,
        /// At most so many calls
        #[arg(long, value_name = "N", default_value_t = 100,
              value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// Only calls by these: `token NAME` or `loopback`
        #[arg(long, value_name = "WHO")]
        who: Vec<String>,
    },
    /// Copy the store, whatever it is, into a SQLite file below `backups` in the controller's directory
    Backup {
        #[command(flatten)]
        asked: Controllers,
        /// Name of the file, without folder and ending [default: the time]
        name: Option<String>,
    },
    /// Write what is wanted of the cluster as JSON to a file below `backups` in the controller's directory
    Export {
        #[command(flatten)]
        asked: Controllers,
        /// Name of the file, without folder and ending [default: the time]
        name: Option<String>,
    },
    /// Put what an export has into an empty store; no controller may run on it
    Import {
        /// Directory of the controller
        #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_DATA_DIR)]
        data_dir: PathBuf,
        /// The store, as when a controller is started [default: a file in the data directory]
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        /// Leave out what LINSTOR has and there can not be here, and say what that is; without this nothing
        /// is put anywhere then
        #[arg(long)]
        leave_out: bool,
        /// What `export` has written, or LINSTOR's `linstor-database export-db`
        file: PathBuf,
    },
    /// Collect what helps to find out what is wrong, of controller and nodes, in an archive below
    /// `sos-reports` in the controller's directory; there are no secrets in it
    SosReport {
        #[command(flatten)]
        asked: Controllers,
        /// Only of these nodes
        #[arg(long, value_name = "NODE")]
        only: Vec<String>,
    },
    /// Change how much is logged, until the program that logs ends: error, warn, info, debug or trace
    LogLevel {
        #[command(flatten)]
        asked: Controllers,
        /// Of this node's agent
        #[arg(long, value_name = "NODE", conflicts_with = "all")]
        agent: Option<String>,
        /// Of the controller and of every agent
        #[arg(long)]
        all: bool,
        /// Most detailed lines that are written
        level: vocab::LogLevel,
    },
}

/// Commands about tokens.
#[derive(clap::Subcommand, Debug)]
enum Token {
    /// Make a token and print its secret, which nobody can tell again
    Create {
        #[command(flatten)]
        asked: Controllers,
        /// Its name, as the audit log has it
        name: String,
        /// What it allows: each role includes the one before
        #[arg(long, value_enum)]
        role: Role,
        /// Days for which it is good [default: for ever]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36500))]
        days: Option<u64>,
    },
    /// List the tokens there are
    List {
        #[command(flatten)]
        asked: Controllers,
    },
    /// Make a token useless
    Revoke {
        #[command(flatten)]
        asked: Controllers,
        /// Its name
        name: String,
    },
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Role {
    /// Look at everything but tokens and the audit log
    Read,
    /// Change volumes, resources, snapshots, and what they are made from
    User,
    /// Change everything
    Admin,
}

impl Args {
    /// The common options that it honours.
    pub fn uses(&self) -> Vec<&'static str> {
        match &self.command {
            None => Vec::new(),
            Some(Command::Import { .. }) => Vec::new(),
            Some(
                Command::Token(Token::Create { .. } | Token::Revoke { .. })
                | Command::Backup { .. }
                | Command::Export { .. }
                | Command::SosReport { .. }
                | Command::LogLevel { .. },
            ) => vec!["timeout"],
            Some(Command::Token(Token::List { .. }) | Command::Audit { .. }) => {
                vec!["timeout", "json"]
            }
        }
    }
}

/// Serves LINSTOR's REST API, and agents, until told to shut down; or asks one that does.
pub fn run(args: &Args, common: &cli::Common) -> anyhow::Result<()> {
    match &args.command {
        Some(Command::Import { data_dir, store, leave_out, file }) => {
            let data = std::path::absolute(data_dir)?;
            let store = store.clone();
            let found = daemon::import(&daemon::Stored { data, store }, file, *leave_out)?;
            let (count, file) = (found.rows.len(), file.display());
            writeln!(io::stdout(), "{count} objects of {file} are in the store")?;
            for left in &found.left_out {
                writeln!(io::stdout(), "left out: {left}")?;
            }
            if let Some(release) = found.linstor {
                writeln!(
                    io::stdout(),
                    "they are of LINSTOR {release}; stop its satellites, and have each node join: \
                     agents take the volumes that are there (docs/operating.md)"
                )?;
            }
            return Ok(());
        }
        Some(command) => return ask(command, common.timeout, common.json),
        None => {}
    }
    let data = std::path::absolute(&args.data_dir)?;
    let tls = tls::Options {
        files: args.rest_certificate.clone().zip(args.rest_key.clone()),
        names: args.rest_name.clone(),
        clients: args.rest_client_ca.clone(),
    };
    let options = daemon::Options {
        stored: daemon::Stored { data, store: args.store.clone() },
        listen: args.listen,
        listen_tls: args.rest_tls,
        tls,
        advertise: args.advertise.clone(),
        agents: args.listen_agents,
        token_required: args.require_token,
        log_level: args.log_level,
    };
    Ok(daemon::run(&options)?)
}

/// The path that an answer names.
fn written(answer: &Value) -> &str {
    answer[0]["obj_refs"]["path"].as_str().unwrap_or_default()
}

fn ask(command: &Command, timeout: Duration, as_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout();
    match command {
        Command::Token(Token::Create { asked, name, role, days }) => {
            let role = match role {
                Role::Read => "read",
                Role::User => "user",
                Role::Admin => "admin",
            };
            let passed = SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
            let expires = days.map(|days| u64::try_from(passed).unwrap_or(u64::MAX) + days * DAY);
            let body = json!({ "name": name, "role": role, "expires": expires });
            let made: Value = Http::new(asked, timeout)?.make(name, "/v1/ashlar/tokens", body)?;
            writeln!(out, "{}", made["token"].as_str().unwrap_or_default())?;
        }
        Command::Token(Token::List { asked }) => {
            let list: Value = Http::new(asked, timeout)?.get("tokens", "/v1/ashlar/tokens")?;
            match as_json {
                true => writeln!(out, "{list}")?,
                false => write!(
                    out,
                    "{}",
                    columns(&["NAME", "ROLE", "MADE", "UNTIL", "FROM", "STATE"], &list, token)
                )?,
            }
        }
        Command::Token(Token::Revoke { asked, name }) => {
            // A name of another kind is not in the list, and would be another path.
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !name.chars().all(fits) {
                anyhow::bail!("`{name}` is not the name of a token");
            }
            let change = Change::Delete(format!("/v1/ashlar/tokens/{name}"));
            Http::new(asked, timeout)?.change(&format!("token {name}: revoke"), &change)?;
            writeln!(out, "token {name} is revoked")?;
        }
        Command::Backup { asked, name } => {
            let body = json!({ "backup_name": name });
            let path = "/v1/controller/backup/db";
            let made: Value = Http::new(asked, timeout)?.make("backup", path, body)?;
            writeln!(out, "{}", written(&made))?;
        }
        Command::Export { asked, name } => {
            let body = json!({ "backup_name": name });
            let path = "/v1/controller/database/export";
            let made: Value = Http::new(asked, timeout)?.make("export", path, body)?;
            writeln!(out, "{}", written(&made))?;
        }
        // It is not asked: the store is opened.
        Command::Import { .. } => {}
        Command::SosReport { asked, only } => {
            let path = format!("/v1/sos-report{}", query("nodes", only));
            let made: Value = Http::new(asked, timeout)?.get("SOS report", &path)?;
            writeln!(out, "{}", written(&made))?;
        }
        Command::LogLevel { asked, agent, all, level } => {
            let key = if *all { "level_linstor_global" } else { "level_linstor" };
            let path = match agent {
                Some(node) => format!("/v1/nodes/{}/config", part(node)),
                None => "/v1/controller/config".to_owned(),
            };
            let change = Change::Put(path, json!({ "log": { key: level.name() } }));
            let done = Http::new(asked, timeout)?.change("log level", &change)?;
            for note in done.notes {
                writeln!(io::stderr(), "{}: {}", note.message, note.cause)?;
            }
        }
        Command::Audit { asked, limit, who } => {
            let mut path = format!("/v1/ashlar/audit?limit={limit}");
            for who in who {
                path.push_str("&who=");
                path.push_str(&who.replace(' ', "%20"));
            }
            let mut list: Value = Http::new(asked, timeout)?.get("audit log", &path)?;
            if let Value::Array(list) = &mut list {
                list.reverse();
            }
            let heads = ["TIME", "WHO", "FROM", "CALL", "STATUS", "OBJECTS"];
            match as_json {
                true => writeln!(out, "{list}")?,
                false => write!(out, "{}", columns(&heads, &list, record))?,
            }
        }
    }
    Ok(())
}

fn token(shown: &Value) -> Vec<String> {
    let until = shown["expires"].as_u64().map_or_else(|| "-".to_owned(), time);
    let from = shown["address"].as_str().unwrap_or("anywhere").to_owned();
    let state = if shown["off"].as_bool().unwrap_or_default() { "off" } else { "on" };
    let made = time(millis(&shown["created"]));
    vec![text(&shown["name"]), text(&shown["role"]), made, until, from, state.to_owned()]
}

fn record(shown: &Value) -> Vec<String> {
    let call = format!("{} {}", text(&shown["method"]), text(&shown["path"]));
    let objects = shown["objects"].as_object().into_iter().flatten();
    let objects: Vec<String> = objects.map(|(key, name)| format!("{key}={}", text(name))).collect();
    let from = shown["from"].as_str().unwrap_or("-").to_owned();
    let status = shown["status"].to_string();
    vec![time(millis(&shown["time"])), text(&shown["who"]), from, call, status, objects.join(" ")]
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn millis(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn time(millis: u64) -> String {
    Utc(Duration::from_millis(millis)).to_string()
}

/// A table: each column as wide as what is in it.
fn columns(heads: &[&str], list: &Value, row: impl Fn(&Value) -> Vec<String>) -> String {
    let mut rows = vec![heads.iter().map(|head| (*head).to_owned()).collect::<Vec<String>>()];
    rows.extend(list.as_array().into_iter().flatten().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..heads.len()).map(|c| width(c).unwrap_or_default()).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_line_for_each_record_and_columns_below_each_other() {
        let list = json!([
            { "time": 0, "who": "token ci", "method": "POST", "path": "/v1/nodes", "status": 201,
              "objects": { "Node": "n1" } },
            { "time": 1000, "who": "loopback", "from": "127.0.0.1:5", "method": "DELETE",
              "path": "/v1/nodes/n1", "status": 200 },
        ]);
        let heads = ["TIME", "WHO", "FROM", "CALL", "STATUS", "OBJECTS"];
        let table = columns(&heads, &list, record);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].ends_with("Node=n1") && lines[1].contains("POST /v1/nodes "), "{table}");
        let at = |line: &str, word: &str| line.find(word).unwrap();
        assert_eq!(at(lines[0], "CALL"), at(lines[2], "DELETE"), "{table}");
        let tokens = json!([{ "name": "ci", "role": "user", "created": 0 }]);
        assert!(columns(&["NAME", "ROLE", "MADE", "UNTIL"], &tokens, token).ends_with(" -\n"));
    }
}
