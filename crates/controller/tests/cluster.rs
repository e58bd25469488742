//! A controller with simulated agents: commands come true, what is stored survives, and what can not
//! be done is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::simulated::Simulated;
use cluster::change::{Change, Object};
use cluster::command::{Command, NewDefinition, NewNetInterface};
use cluster::name::*;
use cluster::objects::{Encryption, Filter, Millis, NodeKind, Props, Provider};
use cluster::refusal::Code;
use controller::store::{self, Log, Sqlite, Store};
use controller::{Handle, start};
use linstor::access::{Record, RecordFilter, Role, UnderWay, within};
use linstor::controller::{Controller, Failure, Followed, Report, ReportFilter};
use vocab::DiskState;

const GIB: u64 = 1 << 30;

/// A controller on the store of a directory, with three nodes that are connected.
async fn controller(directory: &Path) -> (Handle, Arc<Simulated>) {
    with_store(Box::new(Sqlite::open(&directory.join("store.db")).unwrap())).await
}

async fn with_store(store: Box<dyn Store>) -> (Handle, Arc<Simulated>) {
    let (agents, orders) = Simulated::new();
    let (handle, _thread) = start(store, agents.clone()).unwrap();
    tokio::spawn(agents.clone().run(handle.clone(), orders));
    for name in ["n1", "n2", "n3"] {
        agents.connect(&handle, name).await;
    }
    (handle, agents)
}

/// Carries out a command and waits for what follows.
async fn does(handle: &Handle, command: Command) -> Followed {
    let text = format!("{command:?}");
    let done = handle.carry_out(command).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    let followed = tokio::time::timeout(Duration::from_secs(30), done.followed).await;
    followed.unwrap_or_else(|_| panic!("{text}: nothing follows")).unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

async fn three_nodes(handle: &Handle) {
    for (number, name) in ["n1", "n2", "n3"].into_iter().enumerate() {
        let interface = NewNetInterface {
            name: NetIfName::new("default").unwrap(),
            address: format!("10.0.0.{}", number + 1).parse().unwrap(),
            agent: Some((3366, Encryption::Plain)),
        };
        let (kind, net_interfaces) = (NodeKind::Satellite, vec![interface]);
        let props = Props::new();
        does(handle, Command::CreateNode { name: node(name), kind, net_interfaces, props }).await;
        let command = Command::CreatePool {
            node: node(name),
            name: PoolName::new("pool").unwrap(),
            provider: Provider::FileThin,
            props: Props::from([("StorDriver/FileDir".to_owned(), "/srv".to_owned())]),
            shared_space: None,
            external_locking: false,
        };
        does(handle, command).await;
    }
}

fn spawn(name: &str) -> Command {
    Command::Spawn {
        group: GroupName::default_group(),
        definition: NewDefinition { name: Some(resource(name)), ..NewDefinition::default() },
        sizes: vec![GIB],
        filter: Filter::default(),
        partial: false,
        definitions_only: false,
        passphrases: Vec::new(),
    }
}

#[tokio::test]
async fn a_spawned_volume_is_made_grown_and_deleted_without_a_rest() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, agents) = controller(directory.path()).await;
    three_nodes(&handle).await;
    let followed = does(&handle, spawn("one")).await;
    assert_eq!(followed.problems, []);
    assert_eq!(agents.disks().len(), 2);
    let name = resource("one");
    {
        let state = handle.state();
        assert_eq!(state.model.resources_of(&name).count(), 3, "two replicas and a tie-breaker");
        for resource in state.model.resources_of(&name).filter(|r| r.is_diskful()) {
            let replica = state.observed.replica(&name, &resource.node).unwrap();
            let disk = replica.volumes.values().next().unwrap().disk;
            assert_eq!(disk, Some(DiskState::UpToDate));
        }
    }
    let (props, gross_size) = (Default::default(), None);
    let (number, size) = (0, Some(2 * GIB));
    let grow =
        Command::ModifyVolumeDefinition { name: name.clone(), number, size, props, gross_size };
    does(&handle, grow).await;
    {
        let state = handle.state();
        let volume = &state.model.definition(&name).unwrap().volumes[&vocab::VolumeNr(0)];
        assert_eq!(volume.size.0, 2 * GIB);
        assert!(!volume.flags.contains(&cluster::objects::VolumeDefinitionFlag::Resize));
    }
    does(&handle, Command::DeleteDefinition { name: name.clone() }).await;
    assert_eq!(agents.disks(), Vec::<String>::new());
    assert!(handle.state().model.definition(&name).is_none());
    assert!(handle.state().observed.resources.is_empty());
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let before = {
        let (agents, _orders) = Simulated::new();
        let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
        let (handle, thread) = start(Box::new(store), agents).unwrap();
        three_nodes(&handle).await;
        let done = handle.carry_out(spawn("one")).await;
        assert!(matches!(done, Err(Failure::Refused(ref r)) if r.code == Code::NotEnoughNodes));
        let definition = NewDefinition { name: Some(resource("two")), ..NewDefinition::default() };
        does(&handle, Command::CreateDefinition { definition }).await;
        let model = handle.state().model.clone();
        drop(handle);
        thread.join().unwrap().unwrap();
        model
    };
    let (agents, _orders) = Simulated::new();
    let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    let (handle, _thread) = start(Box::new(store), agents).unwrap();
    assert_eq!(handle.state().model, before);
    assert!(handle.state().model.definition(&resource("two")).is_some());
}

#[tokio::test]
async fn a_restarted_controller_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Box::new(Sqlite::open(&directory.path().join("store.db")).unwrap());
    let (agents, orders) = Simulated::new();
    let (handle, thread) = start(open(), agents.clone()).unwrap();
    tokio::spawn(agents.clone().run(handle.clone(), orders));
    for name in ["n1", "n2", "n3"] {
        agents.connect(&handle, name).await;
    }
    three_nodes(&handle).await;
    does(&handle, spawn("one")).await;
    let before = handle.state().model.clone();
    agents.report_to(None);
    drop(handle);
    tokio::task::spawn_blocking(|| thread.join()).await.unwrap().unwrap().unwrap();

    let steps = agents.steps();
    let (handle, _thread) = start(open(), agents.clone()).unwrap();
    agents.report_to(Some(handle.clone()));
    for name in ["n1", "n2", "n3"] {
        agents.connect(&handle, name).await;
    }
    // Whatever comes after the agents' greetings is followed after them.
    let definition = NewDefinition { name: Some(resource("two")), ..NewDefinition::default() };
    does(&handle, Command::CreateDefinition { definition }).await;
    assert_eq!(agents.steps(), steps, "what is done is not done again");
    {
        let state = handle.state();
        let new = state.model.definition(&resource("two")).unwrap();
        assert!(new.generation > before.generation(), "generations go on");
        assert_eq!(state.model.definition(&resource("one")), before.definition(&resource("one")));
    }
    // What agents have confirmed is not newer than what is wanted from now on.
    does(&handle, Command::DeleteDefinition { name: resource("one") }).await;
    assert_eq!(agents.disks(), Vec::<String>::new());
}

#[tokio::test]
async fn a_node_that_comes_back_gets_what_it_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, agents) = controller(directory.path()).await;
    three_nodes(&handle).await;
    does(&handle, spawn("one")).await;
    let name = resource("one");
    let holder = {
        let state = handle.state();
        state.model.resources_of(&name).find(|r| r.is_diskful()).unwrap().node.clone()
    };
    agents.cut(&handle, holder.as_str()).await;
    let followed = does(&handle, Command::DeleteDefinition { name: name.clone() }).await;
    assert!(followed.waits.iter().any(|wait| wait.contains(holder.as_str())), "{followed:?}");
    assert!(handle.state().model.definition(&name).is_some());
    agents.connect(&handle, holder.as_str()).await;
    for _ in 0..500 {
        if handle.state().model.definition(&name).is_none() {
            assert_eq!(agents.disks(), Vec::<String>::new());
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the definition stays: {:?}", agents.disks());
}

#[tokio::test]
async fn a_failed_order_is_told_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, agents) = controller(directory.path()).await;
    three_nodes(&handle).await;
    for name in ["n1", "n2", "n3"] {
        agents.fail(name, Some("create volume"));
    }
    let followed = does(&handle, spawn("one")).await;
    let problem = &followed.problems[0];
    assert_eq!(problem.cause, "the disk is on fire");
    assert!(problem.order.starts_with("create volume 0 in pool"), "{problem:?}");
    let id = problem.report.clone().unwrap();
    let filter = ReportFilter { ids: vec![id.clone()], ..ReportFilter::default() };
    let reports = handle.reports(filter).await.unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].node, problem.node.as_str());
    assert_eq!(reports[0].correction, "put it out");
}

/// A store whose disk is full from some time on; one that is broken can not be read then either.
struct Full {
    store: Sqlite,
    full: Arc<AtomicBool>,
    broken: bool,
}

impl Full {
    fn check(&self) -> Result<(), store::Error> {
        if !self.full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (file, cause) = ("store.db".into(), "no space left on device".to_owned());
        Err(store::Error::Failed { file, doing: "writing", cause })
    }
}

impl Store for Full {
    fn load(&mut self) -> Result<Vec<Object>, store::Error> {
        if self.broken {
            self.check()?;
        }
        self.store.load()
    }
    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), store::Error> {
        self.check()?;
        self.store.commit(changes, log)
    }
    fn backup(&mut self, to: &Path) -> Result<(), store::Error> {
        self.store.backup(to)
    }
    fn add_report(&mut self, report: &Report) -> Result<(), store::Error> {
        self.store.add_report(report)
    }
    fn next_report(&mut self) -> Result<u64, store::Error> {
        self.store.next_report()
    }
    fn reports(&mut self, filter: &ReportFilter) -> Result<Vec<Report>, store::Error> {
        self.store.reports(filter)
    }
    fn delete_reports(&mut self, filter: &ReportFilter) -> Result<usize, store::Error> {
        self.store.delete_reports(filter)
    }
    fn records(&mut self, before: Option<u64>) -> Result<Vec<(u64, Record)>, store::Error> {
        self.store.records(before)
    }
}

#[tokio::test]
async fn a_command_that_can_not_be_stored_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    let store = Full { store, full: full.clone(), broken: false };
    let (handle, agents) = with_store(Box::new(store)).await;
    three_nodes(&handle).await;
    let before = handle.state().model.clone();
    full.store(true, Ordering::Relaxed);
    let error = handle.carry_out(spawn("one")).await.unwrap_err();
    assert!(matches!(&error, Failure::Store(text) if text.contains("no space left")), "{error}");
    assert_eq!(handle.state().model, before);
    full.store(false, Ordering::Relaxed);
    does(&handle, spawn("one")).await;
    assert_eq!(agents.disks().len(), 2);
}

/// A call that has begun.
fn call(path: &str) -> Arc<UnderWay> {
    Arc::new(UnderWay::new(Record {
        time: Millis(1),
        who: "token ci".to_owned(),
        role: Role::User,
        from: None,
        method: "POST".to_owned(),
        path: path.to_owned(),
        status: 0,
        codes: Vec::new(),
        objects: Default::default(),
    }))
}

/// What the log has, the newest first.
async fn logged(handle: &Handle) -> Vec<String> {
    let filter = RecordFilter { limit: 100, ..RecordFilter::default() };
    let records = handle.records(&filter).await.unwrap();
    let line = |record: Record| {
        let of = record.objects.get("RscDfn").cloned().unwrap_or_default();
        format!("{} {} {of}", record.path, record.status)
    };
    records.into_iter().map(line).collect()
}

#[tokio::test]
async fn a_call_is_in_the_log_once_whenever_its_caller_goes_away() {
    let directory = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    let store = Full { store, full: full.clone(), broken: false };
    let (handle, _agents) = with_store(Box::new(store)).await;
    three_nodes(&handle).await;
    let make = async |call: &Arc<UnderWay>, name: &str| {
        let definition = NewDefinition { name: Some(resource(name)), ..NewDefinition::default() };
        let command = Command::CreateDefinition { definition };
        within(Some(call.clone()), async { handle.carry_out(command).await }).await
    };
    // With what it has changed, before it is answered; then how it has ended.
    let first = call("/first");
    make(&first, "one").await.unwrap();
    assert_eq!(logged(&handle).await, ["/first 0 one"]);
    make(&first, "two").await.unwrap();
    let end = Record { status: 201, ..first.begun.clone() };
    handle.record(first, end).await.unwrap();
    assert_eq!(logged(&handle).await, ["/first 201 "]);
    // Its caller goes away afterwards, or while it waits.
    let second = call("/second");
    make(&second, "three").await.unwrap();
    assert!(handle.record_later(second));
    let third = call("/third");
    assert!(handle.record_later(third.clone()));
    assert_eq!(logged(&handle).await[0], "/third 0 ");
    make(&third, "four").await.unwrap();
    assert_eq!(logged(&handle).await, ["/third 0 ", "/second 0 three", "/first 201 "]);
    // What can not be stored is neither there nor in the log; what is refused is in the log alone.
    let fourth = call("/fourth");
    full.store(true, Ordering::Relaxed);
    assert!(matches!(make(&fourth, "five").await, Err(Failure::Store(_))));
    full.store(false, Ordering::Relaxed);
    let fifth = call("/fifth");
    make(&fifth, "six").await.unwrap();
    let end = Record { status: 500, ..fourth.begun.clone() };
    handle.record(fourth, end).await.unwrap();
    let sixth = call("/sixth");
    assert!(matches!(make(&sixth, "six").await, Err(Failure::Refused(_))));
    let expected = ["/fourth 500 ", "/fifth 0 six", "/third 0 ", "/second 0 three", "/first 201 "];
    assert_eq!(logged(&handle).await, expected);
}

#[tokio::test]
async fn an_old_link_says_nothing_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let (handle, agents) = controller(directory.path()).await;
    three_nodes(&handle).await;
    agents.connect(&handle, "n1").await;
    // The loss of the first link is heard after the second has come.
    let lost = api::link::Heard { node: node("n1"), link: 1, news: None };
    handle.heard(lost).await;
    does(&handle, spawn("one")).await;
    assert!(handle.state().observed.is_connected(&node("n1")));
}

#[tokio::test]
async fn a_controller_that_does_not_know_what_is_stored_ends() {
    let directory = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
    let store = Full { store, full: full.clone(), broken: true };
    let (agents, _orders) = Simulated::new();
    let (handle, thread) = start(Box::new(store), agents).unwrap();
    three_nodes(&handle).await;
    full.store(true, Ordering::Relaxed);
    let definition = NewDefinition { name: Some(resource("one")), ..NewDefinition::default() };
    let error = handle.carry_out(Command::CreateDefinition { definition }).await.unwrap_err();
    assert_eq!(error, Failure::Stopping);
    handle.ended().await;
    let error = thread.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no space left"), "{error}");
}
