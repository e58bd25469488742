//! The store in a PostgreSQL database.
//!
//! Tables of the schema that comes first in the search path: `ashlar_rows`, `ashlar_reports` and
//! `ashlar_audit` as in the SQLite file, and `ashlar_leader` with one row: the number of the present term, its end, and the
//! leader's address. A change is one statement that takes a lock on that row, looks at the number, and
//! writes if it is the one given. Whoever changes the number waits for that lock.

use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Mutex;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::location::NoLocation;
use super::shared::{Campaign, REPORTS, Rows, Server, Texts};
use super::{Error, PAGE, RECORDS, VERSION};

/// What controllers lock while they make the tables: "Ashl".
const MAKING: i64 = 0x4173_686c;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ashlar_store (version int4 NOT NULL);
    CREATE TABLE IF NOT EXISTS ashlar_rows (key text PRIMARY KEY, object text NOT NULL);
    CREATE TABLE IF NOT EXISTS ashlar_reports (number int8 PRIMARY KEY, report text NOT NULL);
    CREATE TABLE IF NOT EXISTS ashlar_files (name text PRIMARY KEY, content text NOT NULL);
    CREATE TABLE IF NOT EXISTS ashlar_leader (
        one bool PRIMARY KEY CHECK (one),
        fence int8 NOT NULL,
        ends timestamptz NOT NULL,
        address text,
        reports int8 NOT NULL
    );
    INSERT INTO ashlar_leader VALUES (true, 0, '-infinity', NULL, 0) ON CONFLICT DO NOTHING;
";
/// What came with version 2.
const TABLES_2: &str = "
    CREATE TABLE IF NOT EXISTS ashlar_audit (
        number int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        record text NOT NULL
    );
";

const FOUND: &str = "SELECT max(version)::int8 FROM ashlar_store";

// Numbers of records are the owner's. The sequence follows, for programs before that, which may lead
// again.
const COMMIT: &str = "
    WITH leader AS (SELECT 1 FROM ashlar_leader WHERE fence = $1 FOR SHARE),
    put AS (
        INSERT INTO ashlar_rows
        SELECT new.key, new.object FROM unnest($2::text[], $3::text[]) AS new (key, object)
        WHERE EXISTS (SELECT FROM leader)
        ON CONFLICT (key) DO UPDATE SET object = EXCLUDED.object
    ),
    gone AS (
        DELETE FROM ashlar_rows WHERE key = ANY ($4::text[]) AND EXISTS (SELECT FROM leader)
    ),
    added AS (
        INSERT INTO ashlar_audit (number, record) OVERRIDING SYSTEM VALUE
        SELECT new.number, new.record FROM unnest($5::int8[], $6::text[]) AS new (number, record)
        WHERE EXISTS (SELECT FROM leader)
    ),
    replaced AS (
        UPDATE ashlar_audit SET record = new.record
        FROM unnest($7::int8[], $8::text[]) AS new (number, record)
        WHERE ashlar_audit.number = new.number AND EXISTS (SELECT FROM leader)
    ),
    forgotten AS (
        DELETE FROM ashlar_audit
        WHERE number <= (SELECT max(number) FROM unnest($5::int8[]) AS new (number)) - $9::int8
            AND EXISTS (SELECT FROM leader)
    )
    SELECT count(*), CASE WHEN count(*) = 1 THEN (
        SELECT setval(pg_get_serial_sequence('ashlar_audit', 'number'), max(number))
        FROM unnest($5::int8[]) AS new (number)
    ) END FROM leader";

/// A database.
pub struct Postgres {
    /// Without the password.
    name: String,
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// For what the owner asks.
    calls: Mutex<Option<Arc<Client>>>,
    /// For the term, which is renewed while a long call is under way.
    terms: Mutex<Option<Arc<Client>>>,
}

impl Postgres {
    /// The database of a URL as PostgreSQL has them, `postgresql://USER:PASSWORD@HOST/DATABASE`, with
    /// `sslrootcert=FILE` among the parameters where it is reached over a network.
    ///
    /// # Errors
    /// If it is not one, or would send secrets over a network in the clear.
    pub fn new(url: &str) -> Result<Postgres, NoLocation> {
        let (start, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut root, mut plain, mut rest) = (None, false, Vec::new());
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("sslrootcert", file)) => root = Some(PathBuf::from(file)),
                // What is encrypted is always verified.
                Some(("sslmode", "disable")) => plain = true,
                Some(("sslmode", "verify-full")) => {}
                Some(("sslmode", other)) => return Err(NoLocation::SslMode(other.to_owned())),
                _ => rest.push(parameter),
            }
        }
        let text =
            if rest.is_empty() { start.to_owned() } else { format!("{start}?{}", rest.join("&")) };
        let mut config: Config = text
            .parse()
            .map_err(|error: tokio_postgres::Error| NoLocation::Url(error.to_string()))?;
        let near = config.get_hosts().iter().all(|host| match host {
            Host::Unix(_) => true,
            Host::Tcp(name) => is_near(name),
        });
        let tls = match root {
            Some(_) if plain => return Err(NoLocation::Both),
            Some(file) => Some(tls(&file)?),
            None if near || plain => None,
            None => return Err(NoLocation::Clear),
        };
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        config.application_name("ashlar controller");
        config.connect_timeout(Duration::from_secs(5));
        config.tcp_user_timeout(Duration::from_secs(10));
        let name = without_password(start);
        Ok(Postgres { name, config, tls, calls: Mutex::default(), terms: Mutex::default() })
    }

    fn failed(&self, doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Error + use<'_> {
        move |error| {
            // What the server says stands behind "db error".
            let cause = match error.as_db_error() {
                Some(said) => said.to_string(),
                None => match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                },
            };
            let (store, next) = (self.name.clone(), "look whether it runs and lets this host in");
            Error::Server { store, doing, cause, next }
        }
    }

    /// A connection that lives.
    async fn client(&self, kept: &Mutex<Option<Arc<Client>>>) -> Result<Arc<Client>, Error> {
        let mut kept = kept.lock().await;
        if let Some(client) = kept.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let connecting = self.failed("connecting to");
        let client = match &self.tls {
            Some(tls) => {
                let (client, connection) =
                    self.config.connect(tls.clone()).await.map_err(&connecting)?;
                // Its end is seen at the client.
                tokio::spawn(async move { drop(connection.await) });
                client
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(&connecting)?;
                tokio::spawn(async move { drop(connection.await) });
                client
            }
        };
        self.prepare(&client).await?;
        let client = Arc::new(client);
        *kept = Some(client.clone());
        Ok(client)
    }

    /// Looks whether the server keeps what it has acknowledged, and whether the tables are ours.
    async fn prepare(&self, client: &Client) -> Result<(), Error> {
        let failed = self.failed("opening");
        let refused = |cause: String, next| Error::Server {
            store: self.name.clone(),
            doing: "opening",
            cause,
            next,
        };
        let fsync =
            client.query_one("SELECT current_setting('fsync')", &[]).await.map_err(&failed)?;
        if fsync.get::<_, String>(0) == "off" {
            let cause = "it runs with fsync = off: what it has acknowledged can be lost";
            return Err(refused(cause.to_owned(), "set fsync = on in its configuration"));
        }
        // A stricter setting of the administrator's stays.
        let session = format!(
            "SELECT set_config('synchronous_commit', 'on', false)
                 WHERE current_setting('synchronous_commit') = 'off';
             BEGIN; SELECT pg_advisory_xact_lock({MAKING});"
        );
        client.batch_execute(&session).await.map_err(&failed)?;
        let there = client.query_one("SELECT to_regclass('ashlar_store') IS NOT NULL", &[]).await;
        let found: Option<i64> = match there.map_err(&failed)?.get(0) {
            true => client.query_one(FOUND, &[]).await.map_err(&failed)?.get(0),
            false => None,
        };
        let make = match found {
            // The connection goes, and with it what was begun.
            Some(found) if found > VERSION => return Err(self.newer(found)),
            // Who leads brings it up.
            Some(_) => "COMMIT".to_owned(),
            None => {
                let version = format!("INSERT INTO ashlar_store VALUES ({VERSION})");
                format!("{TABLES} {TABLES_2} {version}; COMMIT")
            }
        };
        client.batch_execute(&make).await.map_err(&failed)
    }

    fn newer(&self, found: i64) -> Error {
        Error::Newer { file: PathBuf::from(&self.name), found, known: VERSION }
    }

    /// A call. One that fails costs the connection: nobody knows what is still under way there.
    async fn ask<T, F>(
        &self,
        kept: &Mutex<Option<Arc<Client>>>,
        doing: &'static str,
        call: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        let client = self.client(kept).await?;
        let answer = call(client).await;
        if answer.is_err() {
            *kept.lock().await = None;
        }
        answer.map_err(self.failed(doing))
    }
}

impl Server for Postgres {
    fn name(&self) -> &str {
        &self.name
    }

    async fn campaign(&self, address: &str, term: Duration) -> Result<Campaign, Error> {
        let seconds = term.as_secs_f64();
        let asked = self.ask(&self.terms, "standing for leader at", async |client| {
            // A newer program may have led since this one has connected.
            let won = format!(
                "UPDATE ashlar_leader SET fence = fence + 1, address = $1,
                    ends = clock_timestamp() + make_interval(secs => $2)
                WHERE ends < clock_timestamp() AND ({FOUND}) <= {VERSION} RETURNING fence"
            );
            if let Some(row) = client.query_opt(&won, &[&address, &seconds]).await? {
                return Ok((Campaign::Leads(row.get::<_, i64>(0).unsigned_abs()), VERSION));
            }
            let found: i64 = client.query_one(FOUND, &[]).await?.get(0);
            let leader = client.query_one("SELECT address FROM ashlar_leader", &[]).await?;
            Ok((Campaign::Follows(leader.get(0)), found))
        });
        match asked.await? {
            (_, found) if found > VERSION => Err(self.newer(found)),
            (campaign, _) => Ok(campaign),
        }
    }

    async fn bring_up(&self, fence: u64) -> Result<bool, Error> {
        let up = self.ask(&self.calls, "bringing up", async |client| {
            let found: i64 = client.query_one(FOUND, &[]).await?.get(0);
            if found < VERSION {
                let fence = number(fence);
                let up = format!(
                    "BEGIN; SELECT pg_advisory_xact_lock({MAKING}); {TABLES_2}
                     UPDATE ashlar_store SET version = {VERSION} WHERE EXISTS
                         (SELECT FROM ashlar_leader WHERE fence = {fence} FOR SHARE);
                     COMMIT;"
                );
                client.batch_execute(&up).await?;
            }
            let now: i64 = client.query_one(FOUND, &[]).await?.get(0);
            Ok((found, now))
        });
        let (found, now) = up.await?;
        if found < VERSION && now == VERSION {
            super::was_brought_up(&self.name, found);
        }
        Ok(now == VERSION)
    }

    async fn renew(&self, fence: u64, term: Duration) -> Result<bool, Error> {
        let seconds = term.as_secs_f64();
        self.ask(&self.terms, "renewing the term at", async |client| {
            let renew = "UPDATE ashlar_leader
                SET ends = clock_timestamp() + make_interval(secs => $2) WHERE fence = $1";
            Ok(client.execute(renew, &[&number(fence), &seconds]).await? == 1)
        })
        .await
    }

    async fn resign(&self, fence: u64) -> Result<(), Error> {
        self.ask(&self.terms, "resigning at", async |client| {
            let resign = "UPDATE ashlar_leader SET ends = '-infinity', address = NULL
                WHERE fence = $1";
            client.execute(resign, &[&number(fence)]).await.map(drop)
        })
        .await
    }

    async fn count_up(&self, fence: u64) -> Result<Option<u64>, Error> {
        self.ask(&self.calls, "counting the term up at", async |client| {
            // It waits for the lock of a change that is under way.
            let count = "UPDATE ashlar_leader SET fence = fence + 1 WHERE fence = $1
                RETURNING fence";
            let row = client.query_opt(count, &[&number(fence)]).await?;
            Ok(row.map(|row| row.get::<_, i64>(0).unsigned_abs()))
        })
        .await
    }

    async fn load(&self, fence: u64) -> Result<Option<Vec<(String, String)>>, Error> {
        self.ask(&self.calls, "reading", async |client| {
            let leads = "SELECT 1 FROM ashlar_leader WHERE fence = $1";
            if client.query_opt(leads, &[&number(fence)]).await?.is_none() {
                return Ok(None);
            }
            let rows = client.query("SELECT key, object FROM ashlar_rows", &[]).await?;
            Ok(Some(rows.iter().map(|row| (row.get(0), row.get(1))).collect()))
        })
        .await
    }

    async fn commit(&self, fence: u64, rows: Rows, log: Texts) -> Result<bool, Error> {
        let (mut keys, mut objects, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (key, text) in rows {
            match text {
                Some(text) => {
                    keys.push(key);
                    objects.push(text);
                }
                None => gone.push(key),
            }
        }
        let split = |records: Vec<(u64, String)>| -> (Vec<i64>, Vec<String>) {
            records.into_iter().map(|(place, text)| (number(place), text)).unzip()
        };
        let (added, replaced) = (split(log.added), split(log.replaced));
        self.ask(&self.calls, "writing to", async |client| {
            // With the types it is one round trip.
            let (fence, kept) = (number(fence), number(RECORDS));
            let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
                (&fence, Type::INT8),
                (&keys, Type::TEXT_ARRAY),
                (&objects, Type::TEXT_ARRAY),
                (&gone, Type::TEXT_ARRAY),
                (&added.0, Type::INT8_ARRAY),
                (&added.1, Type::TEXT_ARRAY),
                (&replaced.0, Type::INT8_ARRAY),
                (&replaced.1, Type::TEXT_ARRAY),
                (&kept, Type::INT8),
            ];
            let rows = client.query_typed(COMMIT, &parameters).await?;
            Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) == 1))
        })
        .await
    }

    async fn add_report(&self, fence: u64, report: String) -> Result<bool, Error> {
        self.ask(&self.calls, "writing to", async |client| {
            let add = "
                WITH leader AS (
                    UPDATE ashlar_leader SET reports = reports + 1 WHERE fence = $1
                    RETURNING reports
                ),
                put AS (INSERT INTO ashlar_reports SELECT reports, $2::text FROM leader),
                gone AS (
                    DELETE FROM ashlar_reports
                    WHERE number <= (SELECT reports FROM leader) - $3::int8
                )
                SELECT count(*) FROM leader";
            let row = client.query_one(add, &[&number(fence), &report, &number(REPORTS)]).await?;
            Ok(row.get::<_, i64>(0) == 1)
        })
        .await
    }

    async fn reports_so_far(&self) -> Result<u64, Error> {
        self.ask(&self.calls, "reading", async |client| {
            let row = client.query_one("SELECT reports FROM ashlar_leader", &[]).await?;
            Ok(row.get::<_, i64>(0).unsigned_abs())
        })
        .await
    }

    async fn reports(&self) -> Result<Vec<(u64, String)>, Error> {
        self.ask(&self.calls, "reading", async |client| {
            let all = "SELECT number, report FROM ashlar_reports ORDER BY number DESC";
            let rows = client.query(all, &[]).await?;
            let row = |row: &tokio_postgres::Row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1));
            Ok(rows.iter().map(row).collect())
        })
        .await
    }

    async fn delete_reports(&self, fence: u64, numbers: Vec<u64>) -> Result<bool, Error> {
        let numbers: Vec<i64> = numbers.into_iter().map(number).collect();
        self.ask(&self.calls, "writing to", async |client| {
            let delete = "
                WITH leader AS (SELECT 1 FROM ashlar_leader WHERE fence = $1 FOR SHARE),
                gone AS (
                    DELETE FROM ashlar_reports
                    WHERE number = ANY ($2) AND EXISTS (SELECT FROM leader)
                )
                SELECT count(*) FROM leader";
            let row = client.query_one(delete, &[&number(fence), &numbers]).await?;
            Ok(row.get::<_, i64>(0) == 1)
        })
        .await
    }

    async fn records(&self, before: Option<u64>) -> Result<Vec<(u64, String)>, Error> {
        let before = before.map_or(i64::MAX, number);
        self.ask(&self.calls, "reading", async |client| {
            let page = "SELECT number, record FROM ashlar_audit WHERE number < $1
                ORDER BY number DESC LIMIT $2";
            let rows = client.query(page, &[&before, &number(PAGE)]).await?;
            let row = |row: &tokio_postgres::Row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1));
            Ok(rows.iter().map(row).collect())
        })
        .await
    }

    async fn file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> Result<Option<String>, Error> {
        self.ask(&self.calls, "writing to", async |client| {
            let put = "
                WITH leader AS (SELECT 1 FROM ashlar_leader WHERE fence = $1 FOR SHARE)
                INSERT INTO ashlar_files SELECT $2::text, $3::text WHERE EXISTS (SELECT FROM leader)
                ON CONFLICT DO NOTHING";
            client.execute(put, &[&number(fence), &name, &content]).await?;
            let get = "SELECT content FROM ashlar_files, ashlar_leader
                WHERE name = $2 AND fence = $1";
            let row = client.query_opt(get, &[&number(fence), &name]).await?;
            Ok(row.map(|row| row.get(0)))
        })
        .await
    }

    async fn replace_file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> Result<bool, Error> {
        self.ask(&self.calls, "writing to", async |client| {
            let put = "
                WITH leader AS (SELECT 1 FROM ashlar_leader WHERE fence = $1 FOR SHARE)
                INSERT INTO ashlar_files SELECT $2::text, $3::text WHERE EXISTS (SELECT FROM leader)
                ON CONFLICT (name) DO UPDATE SET content = EXCLUDED.content";
            Ok(client.execute(put, &[&number(fence), &name, &content]).await? == 1)
        })
        .await
    }
}

/// PostgreSQL has no numbers without a sign. These count what has happened and never come that far.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// True if what is sent there does not leave this machine.
pub(super) fn is_near(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// A URL as messages and logs may have it.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, place)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{place}")
        }
        None => url.to_owned(),
    }
}

/// TLS by which a server is known that has a certificate of that authority.
fn tls(root: &PathBuf) -> Result<MakeRustlsConnect, NoLocation> {
    let unusable = |cause: String| NoLocation::Certificate(root.clone(), cause);
    let pem = fs::read(root).map_err(|error| unusable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("there is no certificate in it".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| unusable(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_in_no_name() {
        let url = "postgresql://ashlar:s3cr@t@127.0.0.1:5432/db";
        let server = Postgres::new("postgresql://ashlar:secret@127.0.0.1:5432/db").unwrap();
        assert_eq!(server.name(), "postgresql://ashlar@127.0.0.1:5432/db");
        assert_eq!(without_password(url), "postgresql://ashlar@127.0.0.1:5432/db");
    }

    #[test]
    fn secrets_do_not_go_over_a_network_in_the_clear() {
        let open = |url: &str| Postgres::new(url).map(drop).err();
        assert_eq!(open("postgresql://a@db.example/x"), Some(NoLocation::Clear));
        assert_eq!(open("postgresql://a@db.example/x?sslmode=disable"), None);
        assert_eq!(open("postgresql://a@[::1]/x"), None);
        assert_eq!(open("postgresql://a@localhost/x"), None);
        assert_eq!(open("postgresql://a@localhost,db.example/x"), Some(NoLocation::Clear));
        let prefer = open("postgresql://a@db.example/x?sslmode=prefer");
        assert_eq!(prefer, Some(NoLocation::SslMode("prefer".to_owned())));
        let missing = open("postgresql://a@db.example/x?sslrootcert=/nonexistent/root.pem");
        assert!(matches!(missing, Some(NoLocation::Certificate(..))), "{missing:?}");
        assert!(matches!(open("postgresql://a@h/x?nonsense=1"), Some(NoLocation::Url(_))));
    }
}
