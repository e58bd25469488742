//! The store: what it keeps, what it refuses, and what a killed process leaves.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use cluster::change::{Change, Key, Object};
use cluster::model::Model;
use cluster::name::StoreName;
use cluster::objects::{Props, Uuid};
use linstor::controller::{Report, ReportFilter};

use super::{Error, Sqlite, Store};

fn instance(name: &str, value: usize) -> Object {
    let props = Props::from([("n".to_owned(), value.to_string())]);
    Object::Store(StoreName::new(name).unwrap(), props)
}

#[test]
fn rows_come_back_as_they_were_whatever_the_spelling() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let model = Model::new(Uuid(7));
    {
        let mut store = Sqlite::open(&file).unwrap();
        assert!(store.load().unwrap().is_empty());
        let mode = |file: &Path| std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        store.commit(&model.rows().map(Change::Put).collect::<Vec<_>>()).unwrap();
        store.commit(&[Change::Put(instance("Some", 1)), Change::Put(instance("two", 2))]).unwrap();
        store.commit(&[Change::Put(instance("sOME", 3))]).unwrap();
        store.commit(&[Change::Remove(Key::Store(StoreName::new("TWO").unwrap()))]).unwrap();
    }
    let mut store = Sqlite::open(&file).unwrap();
    let mut expected = model.clone();
    expected.put(instance("sOME", 3));
    let loaded = Model::from_rows(store.load().unwrap());
    assert_eq!(loaded, expected);
    let (name, _) = loaded.stores().next().unwrap();
    assert_eq!(name.as_str(), "sOME");
}

#[test]
fn a_newer_file_a_foreign_file_and_one_in_use_are_refused_and_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let first = Sqlite::open(&file).unwrap();
    assert!(matches!(Sqlite::open(&file).unwrap_err(), Error::InUse { .. }));
    drop(first);
    let raw = rusqlite::Connection::open(&file).unwrap();
    raw.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(raw);
    let error = Sqlite::open(&file).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("version 99"));

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

#[test]
fn a_copy_is_a_store_of_its_own_and_never_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    store.commit(&[Change::Put(instance("aa", 1))]).unwrap();
    let copy = directory.path().join("copy.db");
    store.backup(&copy).unwrap();
    store.commit(&[Change::Put(instance("bb", 1))]).unwrap();
    assert!(matches!(store.backup(&copy).unwrap_err(), Error::Exists { .. }));
    assert_eq!(Sqlite::open(&copy).unwrap().load().unwrap(), [instance("aa", 1)]);
    assert_eq!(store.load().unwrap().len(), 2);
}

#[test]
fn error_reports_are_found_deleted_and_counted_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let report = |id: &str, node: &str| Report {
        id: id.to_owned(),
        time: cluster::objects::Millis(5),
        node: node.to_owned(),
        message: "m".to_owned(),
        cause: "c".to_owned(),
        correction: "n".to_owned(),
    };
    let mut store = Sqlite::open(&file).unwrap();
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
    assert_eq!(Sqlite::open(&file).unwrap().next_report().unwrap(), 2);
}

/// Where the process that is killed finds its file.
const FILE: &str = "ASHLAR_TEST_STORE";
/// Rows of each transaction.
const ROWS: usize = 8;

/// What is killed: it writes transaction after transaction and says which is stored.
fn write_until_killed(file: &Path) -> ! {
    let mut store = Sqlite::open(file).unwrap();
    let mut number = 0;
    loop {
        number += 1;
        let rows = (0..ROWS).map(|row| Change::Put(instance(&format!("row{row}"), number)));
        store.commit(&rows.collect::<Vec<_>>()).unwrap();
        println!("stored {number}");
    }
}

#[test]
fn a_killed_process_leaves_all_of_a_transaction_or_nothing() {
    if let Some(file) = std::env::var_os(FILE) {
        write_until_killed(file.as_ref());
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::a_killed_process_leaves_all_of_a_transaction_or_nothing",
                "--nocapture",
            ])
            .env(FILE, &file)
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
            if told >= 10 + 7 * round {
                break;
            }
        }
        child.kill().unwrap();
        // What it said before it died was stored, too.
        told = lines.filter_map(|l| l.strip_prefix("stored ")?.parse().ok()).last().unwrap_or(told);
        child.wait().unwrap();
        assert!(told >= 10, "the process wrote nothing");
        let rows = Sqlite::open(&file).unwrap().load().unwrap();
        assert_eq!(rows.len(), ROWS);
        let value = |row: &Object| match row {
            Object::Store(_, props) => props["n"].parse::<usize>().unwrap(),
            other => panic!("{other:?}"),
        };
        let values: Vec<usize> = rows.iter().map(value).collect();
        assert!(values.iter().all(|value| *value == values[0]), "torn: {values:?}");
        assert!(values[0] >= told, "{told} was acknowledged, {} is there", values[0]);
    }
}
