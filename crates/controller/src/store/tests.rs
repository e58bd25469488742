//! The stores: what they keep, what they refuse, and what a killed process leaves. The same tests run
//! on all of them; PostgreSQL and etcd are started for them, and skipped where they are missing.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::change::{Change, Key, Object};
use cluster::model::Model;
use cluster::name::StoreName;
use cluster::objects::{Props, Uuid};
use linstor::access::{Record, Role};
use linstor::controller::{Report, ReportFilter};

use crate::export;

use super::{
    Electorate, Error, Location, Log, PAGE, RECORDS, Sqlite, Standing, Store, TOGETHER, Term,
    VERSION,
};

#[path = "../../tests/servers/mod.rs"]
mod servers;

/// Terms of the tests: etcd has none that are much shorter, and machines are busy.
const TERM: Duration = Duration::from_secs(3);

fn instance(name: &str, value: usize) -> Object {
    let props = Props::from([("n".to_owned(), value.to_string())]);
    Object::Store(StoreName::new(name).unwrap(), props)
}

fn value(row: &Object) -> usize {
    match row {
        Object::Store(_, props) => props["n"].parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn electorate(url: &str) -> Box<dyn Electorate> {
    match Location::new(url).unwrap() {
        Location::Shared(electorate) => electorate,
        Location::File(file) => panic!("{} is not shared", file.display()),
    }
}

/// Leads, once nobody else does.
fn leads(electorate: &mut dyn Electorate) -> (Box<dyn Store>, Term) {
    let begun = Instant::now();
    loop {
        // A server that has just begun refuses for a moment.
        if let Ok(Standing::Leads(store, term)) = electorate.stand("http://here", TERM) {
            return (store, term);
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody can lead");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn open(url: &str) -> Box<dyn Store> {
    match Location::new(url).unwrap() {
        Location::File(file) => Box::new(Sqlite::open(&file).unwrap()),
        Location::Shared(mut electorate) => leads(&mut *electorate).0,
    }
}

/// Everything that holds for each store. `place` gives the URL of a new one.
fn suite(mut place: impl FnMut() -> String) {
    rows_come_back_as_they_were_whatever_the_spelling(&place());
    large_changes_are_made_and_taken_back(&place());
    a_copy_is_a_store_of_its_own_and_never_overwrites(&place());
    an_export_is_put_into_an_empty_store_as_a_whole(&place());
    error_reports_are_found_deleted_and_counted_on(&place());
    the_audit_log_is_read_in_pages_and_the_oldest_go(&place());
    a_killed_process_leaves_all_of_a_transaction_or_nothing(&place());
}

#[test]
fn sqlite_is_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let mut count = 0;
    suite(|| {
        count += 1;
        format!("sqlite://{}", directory.path().join(format!("{count}.db")).display())
    });
}

#[test]
fn postgresql_is_a_store_that_controllers_share() {
    let server = match servers::postgres() {
        Ok(server) => server,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let (start, _) = server.url.rsplit_once('/').unwrap();
    let mut count = 0;
    let mut place = || {
        count += 1;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connected = tokio_postgres::connect(&server.url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&format!("CREATE DATABASE test{count}")).await.unwrap();
        });
        format!("{start}/test{count}")
    };
    suite(&mut place);
    let url = place();
    let execute = |sql: &str| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.batch_execute(sql).await.unwrap();
        });
    };
    other_versions_are_brought_up_or_refused(&url, "pg_dump", |version| {
        if version == 1 {
            execute("DROP TABLE ashlar_audit");
        }
        execute(&format!("UPDATE ashlar_store SET version = {version}"));
    });
    // It says so: 1 divided by 0 is an error.
    execute(&format!("SELECT 1 / (max(version) = {VERSION})::int FROM ashlar_store"));
    shared(place);
}

#[test]
fn etcd_is_a_store_that_controllers_share() {
    let server = match servers::etcd() {
        Ok(server) => server,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut count = 0;
    let mut place = || {
        count += 1;
        format!("{}/test{count}", server.url)
    };
    suite(&mut place);
    let url = place();
    let etcd = super::etcd::Etcd::new(&url).unwrap();
    other_versions_are_brought_up_or_refused(&url, "etcdctl snapshot", |version| {
        super::shared::runtime().block_on(etcd.set_version(version)).unwrap();
    });
    assert_eq!(super::shared::runtime().block_on(etcd.open()).unwrap(), VERSION);
    shared(place);
}

fn rows_come_back_as_they_were_whatever_the_spelling(url: &str) {
    let model = Model::new(Uuid(7));
    {
        let mut store = open(url);
        assert!(store.load().unwrap().is_empty());
        store.commit(&model.rows().map(Change::Put).collect::<Vec<_>>(), &Log::new()).unwrap();
        store
            .commit(
                &[Change::Put(instance("Some", 1)), Change::Put(instance("two", 2))],
                &Log::new(),
            )
            .unwrap();
        store.commit(&[Change::Put(instance("sOME", 3))], &Log::new()).unwrap();
        store
            .commit(&[Change::Remove(Key::Store(StoreName::new("TWO").unwrap()))], &Log::new())
            .unwrap();
    }
    let mut store = open(url);
    let mut expected = model.clone();
    expected.put(instance("sOME", 3));
    let loaded = Model::from_rows(store.load().unwrap());
    assert_eq!(loaded, expected);
    let (name, _) = loaded.stores().next().unwrap();
    assert_eq!(name.as_str(), "sOME");
}

/// More rows and bytes than a transaction of etcd takes.
fn large_changes_are_made_and_taken_back(url: &str) {
    let row = |number: usize| {
        let padding = ("padding".to_owned(), "x".repeat(10_000));
        let props = Props::from([("n".to_owned(), number.to_string()), padding]);
        Object::Store(StoreName::new(&format!("row{number}")).unwrap(), props)
    };
    let mut store = open(url);
    store.commit(&[Change::Put(instance("other", 1000))], &Log::new()).unwrap();
    let many: Vec<Change> = (0..400).map(|number| Change::Put(row(number))).collect();
    store.commit(&many, &log(1, 0..TOGETHER as u64)).unwrap();
    let mut values: Vec<usize> = store.load().unwrap().iter().map(value).collect();
    values.sort_unstable();
    assert_eq!(values, (0..400).chain([1000]).collect::<Vec<_>>());
    drop(store);
    let mut store = open(url);
    assert_eq!(store.load().unwrap().len(), 401);
    let gone = (0..400).map(|number| Change::Remove(row(number).key()));
    store.commit(&gone.collect::<Vec<_>>(), &Log::new()).unwrap();
    assert_eq!(store.load().unwrap(), [instance("other", 1000)]);
    assert_eq!(
        times(&store.records(None).unwrap()),
        (0..TOGETHER as u64).rev().collect::<Vec<_>>()
    );
}

#[test]
fn a_newer_file_a_foreign_file_and_one_in_use_are_refused_and_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let first = Sqlite::open(&file).unwrap();
    let mode = |file: &Path| std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert!(matches!(Sqlite::open(&file).unwrap_err(), Error::InUse { .. }));
    drop(first);
    let raw = rusqlite::Connection::open(&file).unwrap();
    raw.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(raw);
    let error = Sqlite::open(&file).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("version 99"));
    assert!(error.to_string().contains("a copy of the file"), "{error}");

    let text = directory.path().join("text");
    std::fs::write(&text, "this is somebody's file, and it is longer than a header of SQLite")
        .unwrap();
    let before = std::fs::read(&text).unwrap();
    let error = Sqlite::open(&text).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(std::fs::read(&text).unwrap(), before);

    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(matches!(Sqlite::open(&other).unwrap_err(), Error::Foreign { .. }));
}

/// What is on a server is of another version, which `set` says. `copies` are what it is restored from.
fn other_versions_are_brought_up_or_refused(url: &str, copies: &str, set: impl Fn(i64)) {
    let mut waiting = electorate(url);
    {
        let (mut store, term) = leads(&mut *waiting);
        store.commit(&[Change::Put(instance("aa", 1))], &Log::new()).unwrap();
        super::shared::runtime().block_on(term.resign());
    }
    // One that was connected before, and one that comes. Twice: the first has not made it ours.
    set(99);
    for candidate in [&mut waiting, &mut electorate(url), &mut electorate(url)] {
        let Err(error) = candidate.stand("http://here", TERM) else { panic!("it leads") };
        assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
        assert!(error.to_string().contains("version 99"));
        assert!(error.to_string().contains(copies), "{error}");
    }
    set(1);
    {
        let (mut store, term) = leads(&mut *waiting);
        assert_eq!(store.load().unwrap(), [instance("aa", 1)]);
        store.commit(&[], &log(1, 1..2)).unwrap();
        super::shared::runtime().block_on(term.resign());
    }
    // It is of this version now, and is not brought up again.
    let mut store = open(url);
    assert_eq!(times(&store.records(None).unwrap()), [1]);
    assert_eq!(store.load().unwrap(), [instance("aa", 1)]);
}

/// A folder of a controller of version 1, as that has left it.
const VERSION_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/version-1");

#[test]
fn a_file_of_version_1_is_copied_and_brought_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let file = path("controller.db");
    std::fs::copy(Path::new(VERSION_1).join("controller.db"), &file).unwrap();
    let version = |file: &Path| {
        let raw = rusqlite::Connection::open(file).unwrap();
        raw.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap()
    };
    let open = || {
        let mut store = Sqlite::open(&file).unwrap();
        let model = Model::from_rows(store.load().unwrap());
        assert_eq!(model.nodes().count(), 3);
        assert_eq!(model.definitions().next().unwrap().name.as_str(), "vol1");
        let next = super::next_record(&mut store).unwrap();
        store.commit(&[], &log(next, 1..2)).unwrap();
        drop(store);
        assert_eq!(version(&file), VERSION);
        model.rows().count()
    };
    let copies = || ["", "-2", "-3"].map(|end| path(&format!("controller.db.v1{end}")).exists());
    let rows = open();
    assert_eq!((copies(), version(&path("controller.db.v1"))), ([true, false, false], 1));
    // Once is enough.
    open();
    assert_eq!(copies(), [true, false, false]);
    // It was cut short: copied and not brought up, and before that in the middle of the copy.
    std::fs::copy(path("controller.db.v1"), &file).unwrap();
    std::fs::write(path("controller.db.v1.part"), "half").unwrap();
    assert_eq!(open(), rows);
    assert_eq!((copies(), version(&path("controller.db.v1-2"))), ([true, true, false], 1));
    assert!(!path("controller.db.v1.part").exists());
    // An operator can go back to it: the same is in it.
    let raw = rusqlite::Connection::open(path("controller.db.v1")).unwrap();
    let kept: i64 = raw.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap();
    assert_eq!(kept.unsigned_abs(), rows as u64);
}

#[test]
fn what_can_not_be_read_is_restored_as_its_store_is_copied() {
    for (store, advice) in [
        ("/var/lib/ashlar/controller/controller.db", "a copy of the file"),
        ("postgresql://ashlar@db.example/ashlar", "`pg_dump"),
        ("postgres://ashlar@db.example/ashlar", "`pg_dump"),
        ("etcd://db.example:2379/ashlar", "`etcdctl snapshot"),
    ] {
        let error = super::row::object(store, "key".to_owned(), "nonsense").unwrap_err();
        assert!(error.to_string().contains(advice), "{error}");
    }
}

fn record(time: u64) -> Record {
    Record {
        time: cluster::objects::Millis(time),
        who: "loopback".to_owned(),
        role: Role::Admin,
        from: None,
        method: "PUT".to_owned(),
        path: "/v1/\u{0}'\"".to_owned(),
        status: 200,
        codes: Vec::new(),
        objects: Default::default(),
    }
}

/// New records, from a number on.
fn log(first: u64, times: std::ops::Range<u64>) -> Log {
    Log { added: (first..).zip(times.map(record)).collect(), ..Log::new() }
}

fn times(page: &[(u64, Record)]) -> Vec<u64> {
    page.iter().map(|(_, record)| record.time.0).collect()
}

fn the_audit_log_is_read_in_pages_and_the_oldest_go(url: &str) {
    let mut store = open(url);
    assert!(store.records(None).unwrap().is_empty());
    store.commit(&[], &log(1, 0..1)).unwrap();
    // More than a transaction of etcd takes.
    store.commit(&[], &log(2, 1..PAGE + 7)).unwrap();
    drop(store);
    let mut store = open(url);
    let first = store.records(None).unwrap();
    assert_eq!(first[0].1, record(PAGE + 6));
    assert_eq!(times(&first), (7..PAGE + 7).rev().collect::<Vec<_>>());
    let second = store.records(first.last().map(|(number, _)| *number)).unwrap();
    assert_eq!(times(&second), (0..7).rev().collect::<Vec<_>>());
    assert!(store.records(second.last().map(|(number, _)| *number)).unwrap().is_empty());
    // The oldest go.
    let mut next = super::next_record(&mut *store).unwrap();
    assert_eq!(next, PAGE + 8);
    for _ in 0..RECORDS / 10_000 {
        store.commit(&[], &log(next, 100_000..110_000)).unwrap();
        next += 10_000;
    }
    store.commit(&[], &log(next, 1..2)).unwrap();
    let (mut count, mut before) = (0, None);
    while let Some((last, _)) = store.records(before).unwrap().last() {
        count += store.records(before).unwrap().len() as u64;
        before = Some(*last);
    }
    assert_eq!(count, RECORDS);
    // What is forgotten is not brought back by its end, and nothing else is changed by that.
    let late = Log { replaced: vec![(next, record(2))], ..Log::new() };
    store.commit(&[Change::Put(instance("aa", 1))], &late).unwrap();
    let last = store.records(None).unwrap();
    assert_eq!((last[0].0, last[0].1.time.0, last[1].0), (next, 2, next - 1));
    assert_eq!(super::next_record(&mut *store).unwrap(), next + 1);
}

fn a_copy_is_a_store_of_its_own_and_never_overwrites(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(url);
    store.commit(&[Change::Put(instance("aa", 1))], &Log::new()).unwrap();
    let copy = directory.path().join("copy.db");
    store.backup(&copy).unwrap();
    store.commit(&[Change::Put(instance("bb", 1))], &Log::new()).unwrap();
    assert!(matches!(store.backup(&copy).unwrap_err(), Error::Exists { .. }));
    assert_eq!(Sqlite::open(&copy).unwrap().load().unwrap(), [instance("aa", 1)]);
    assert_eq!(store.load().unwrap().len(), 2);
}

/// More rows than a transaction of etcd takes.
fn an_export_is_put_into_an_empty_store_as_a_whole(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("export.json");
    let mut model = Model::new(Uuid(7));
    for number in 0..300 {
        model.put(instance(&format!("row{number}"), number));
    }
    export::write(&file, &model).unwrap();
    let mut store = open(url);
    assert_eq!(
        export::put(export::read(&file, false).unwrap().rows, &mut *store).unwrap(),
        model.rows().count()
    );
    let rows = model.rows().collect();
    assert!(matches!(export::put(rows, &mut *store), Err(export::Error::Taken)));
    drop(store);
    assert_eq!(Model::from_rows(open(url).load().unwrap()), model);
}

fn error_reports_are_found_deleted_and_counted_on(url: &str) {
    let report = |id: &str, node: &str| Report {
        id: id.to_owned(),
        time: cluster::objects::Millis(5),
        node: node.to_owned(),
        message: "m".to_owned(),
        cause: "c".to_owned(),
        correction: "n".to_owned(),
    };
    let mut store = open(url);
    assert_eq!(store.next_report().unwrap(), 0);
    store.add_report(&report("a", "n1")).unwrap();
    store.add_report(&report("b", "n2")).unwrap();
    let all = ReportFilter::default();
    let ids = |reports: Vec<Report>| reports.into_iter().map(|r| r.id).collect::<Vec<_>>();
    assert_eq!(ids(store.reports(&all).unwrap()), ["b", "a"]);
    let one = ReportFilter { nodes: vec!["N1".to_owned()], ..all.clone() };
    assert_eq!(store.delete_reports(&one).unwrap(), 1);
    assert_eq!(ids(store.reports(&all).unwrap()), ["b"]);
    store.delete_reports(&all).unwrap();
    drop(store);
    assert_eq!(open(url).next_report().unwrap(), 2);
}

/// Where the process that is killed finds its store.
const URL: &str = "ASHLAR_TEST_STORE";
/// Rows of each transaction, so many that etcd makes it in several.
const ROWS: usize = 120;

/// What is killed: it writes transaction after transaction and says which is stored.
#[test]
fn write_until_killed() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut store = open(&url);
    let mut number = store.load().unwrap().first().map_or(0, value);
    loop {
        number += 1;
        let rows = (0..ROWS).map(|row| Change::Put(instance(&format!("row{row}"), number)));
        let number = number as u64;
        store.commit(&rows.collect::<Vec<_>>(), &log(number, number..number + 1)).unwrap();
        println!("stored {number}");
    }
}

fn a_killed_process_leaves_all_of_a_transaction_or_nothing(url: &str) {
    let mut before = 0;
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::write_until_killed", "--nocapture"])
            .env(URL, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = 0;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        for line in lines.by_ref() {
            if let Some(number) = line.strip_prefix("stored ") {
                told = number.parse::<usize>().unwrap();
            }
            if told >= before + 10 + 7 * round {
                break;
            }
        }
        child.kill().unwrap();
        // What it said before it died was stored, too.
        told = lines.filter_map(|l| l.strip_prefix("stored ")?.parse().ok()).last().unwrap_or(told);
        child.wait().unwrap();
        assert!(told >= before + 10, "the process wrote nothing");
        let rows = open(url).load().unwrap();
        assert_eq!(rows.len(), ROWS);
        let values: Vec<usize> = rows.iter().map(value).collect();
        assert!(values.iter().all(|value| *value == values[0]), "torn: {values:?}");
        assert!(values[0] >= told, "{told} was acknowledged, {} is there", values[0]);
        // Each change has its record, and each record its change.
        let log = times(&open(url).records(None).unwrap());
        assert_eq!(log, (1..=values[0] as u64).rev().collect::<Vec<_>>());
        before = values[0];
    }
}

/// Everything that holds for stores that controllers share.
fn shared(mut place: impl FnMut() -> String) {
    one_leads_and_who_was_stopped_writes_nothing(&place());
    who_resigns_is_followed_at_once(&place());
    all_leaders_have_the_same_files(&place());
}

fn one_leads_and_who_was_stopped_writes_nothing(url: &str) {
    let (mut one, mut two) = (electorate(url), electorate(url));
    let (mut first, term) = leads(&mut *one);
    first.commit(&[Change::Put(instance("aa", 1))], &Log::new()).unwrap();
    // It renews its term, for longer than one.
    let begun = Instant::now();
    while begun.elapsed() < TERM * 2 {
        match two.stand("http://there", TERM).unwrap() {
            Standing::Follows(leader) => assert_eq!(leader.as_deref(), Some("http://here")),
            Standing::Leads(..) => panic!("two lead"),
        }
        assert!(term.holds());
        std::thread::sleep(Duration::from_millis(200));
    }
    // Now it is stopped: nothing is renewed.
    let stopped = term.stop_renewing();
    let (mut second, other) = leads(&mut *two);
    assert!(!term.holds() && other.holds());
    // Its clients' calls were under way.
    let error = first.commit(&[Change::Put(instance("aa", 2))], &log(1, 1..2)).unwrap_err();
    assert!(matches!(error, Error::Deposed { .. }), "{error}");
    assert!(matches!(first.load().unwrap_err(), Error::Deposed { .. }));
    let report = Report {
        id: "a".to_owned(),
        time: cluster::objects::Millis(5),
        node: "n".to_owned(),
        message: String::new(),
        cause: String::new(),
        correction: String::new(),
    };
    assert!(matches!(first.add_report(&report).unwrap_err(), Error::Deposed { .. }));
    drop(stopped);
    second.commit(&[Change::Put(instance("bb", 3))], &Log::new()).unwrap();
    assert!(matches!(first.commit(&[], &Log::new()).unwrap_err(), Error::Deposed { .. }));
    let mut values: Vec<usize> = second.load().unwrap().iter().map(value).collect();
    values.sort_unstable();
    assert_eq!(values, [1, 3]);
    assert!(second.reports(&ReportFilter::default()).unwrap().is_empty());
    assert!(second.records(None).unwrap().is_empty());
    assert!(other.holds(), "the end of the first is not that of the second");
}

fn who_resigns_is_followed_at_once(url: &str) {
    let (mut one, mut two) = (electorate(url), electorate(url));
    let (first, term) = leads(&mut *one);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(term.resign());
    runtime.block_on(term.over());
    assert!(!term.holds());
    let standing = two.stand("http://there", TERM).unwrap();
    assert!(matches!(standing, Standing::Leads(..)));
    drop(first);
    std::thread::sleep(Duration::from_millis(200));
    let Standing::Leads(mut second, _) = standing else { return };
    second.commit(&[Change::Put(instance("aa", 1))], &Log::new()).unwrap();
}

fn all_leaders_have_the_same_files(url: &str) {
    assert_eq!(open(url).file("authority.pem", "one".to_owned()).unwrap(), "one");
    assert_eq!(open(url).file("authority.pem", "two".to_owned()).unwrap(), "one");
    for content in ["three", "four"] {
        open(url).replace_file("tokens.json", content.to_owned()).unwrap();
        assert_eq!(open(url).file("tokens.json", "own".to_owned()).unwrap(), content);
    }
}

#[test]
fn a_file_alone_has_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    assert_eq!(store.file("authority.pem", "own".to_owned()).unwrap(), "own");
}
