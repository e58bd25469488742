//! The link between controller and agents: who may join, who is let in, and what happens to
//! certificates before they end.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use agent::link::{Identity, JoinError, Talk, join};
use api::link::{Agents, Heard, News, Order};
use cluster::name::NodeName;
use cluster::objects::Generation;
use cluster::observed::NodeState;
use controller::link::authority::{self, Authority};
use controller::link::{Link, Options};

use crate::control_support::joins;

const PATIENCE: Duration = Duration::from_secs(40);

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn listen(directory: &Path, valid: Duration) -> (Link, mpsc::Receiver<Heard>) {
    let authority = Authority::open(&directory.join("controller"), valid).unwrap();
    let options = Options {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        authority: Arc::new(authority),
        joins: Arc::new(joins::Once::default()),
    };
    let (sender, heard) = mpsc::channel();
    let say = |line: &str| println!("controller: {line}");
    (Link::listen(&options, move |heard| _ = sender.send(heard), say).unwrap(), heard)
}

fn token(link: &Link) -> api::token::Token {
    link.authority().invite(&link.address().to_string()).unwrap().unwrap().0
}

/// An agent that says hello, and remembers what it was told.
#[derive(Default)]
struct Agent {
    orders: Mutex<Vec<Order>>,
    lines: Mutex<Vec<String>>,
    news: Mutex<Option<tokio::sync::mpsc::Sender<News>>>,
}

impl Talk for Agent {
    fn begins(&self, news: tokio::sync::mpsc::Sender<News>) {
        let hello = News::Hello { node: NodeState::default(), replicas: BTreeMap::new() };
        news.try_send(hello).unwrap();
        // The link lasts for as long as somebody may have something to say.
        *self.news.lock().unwrap() = Some(news);
    }

    fn ends(&self) {}

    fn order(&self, order: Order) {
        self.orders.lock().unwrap().push(order);
    }

    fn not_understood(&self, _resource: &str, _generation: Generation, why: &str) {
        panic!("{why}");
    }

    fn log(&self, text: &str) {
        println!("agent: {text}");
        self.lines.lock().unwrap().push(text.to_owned());
    }
}

/// Runs an agent on a thread that ends with the process.
fn run(directory: &Path) -> Arc<Agent> {
    let agent = Arc::new(Agent::default());
    let (talk, directory) = (agent.clone(), directory.to_owned());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The folder goes when the test ends.
        let _ = runtime.block_on(agent::link::run(&directory, talk));
    });
    agent
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_joins_once_says_hello_and_gets_its_orders() {
    let directory = tempfile::tempdir().unwrap();
    let (link, heard) = listen(directory.path(), authority::VALID);
    let (token, home) = (token(&link), directory.path().join("alpha"));
    join(&home, &node("alpha"), &token).unwrap();
    match join(&directory.path().join("other"), &node("alpha"), &token) {
        Err(JoinError::Refused(why)) => assert!(why.contains("make a new one"), "{why}"),
        other => panic!("a token was used twice: {other:?}"),
    }
    let agent = run(&home);
    let first = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.node, node("alpha"));
    assert!(matches!(first.news, Some(News::Hello { .. })), "{first:?}");
    let order = Order::Pools { generation: Generation(3), pools: BTreeMap::new() };
    link.send(&node("ALPHA"), order.clone());
    wait("the order arrives", || *agent.orders.lock().unwrap() == [order.clone()]);
    // Nobody waits for a node that is not there.
    link.send(&node("bravo"), order);
    drop(link);
    let gone = heard.recv_timeout(PATIENCE);
    assert!(gone.map_or(true, |heard| heard.news.is_none()), "then the link is lost");
}

#[test]
fn a_controller_that_is_not_the_one_of_the_token_is_told_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (link, _heard) = listen(directory.path(), authority::VALID);
    let mut token = token(&link);
    token.authority[0] ^= 1;
    let home = directory.path().join("alpha");
    let error = join(&home, &node("alpha"), &token).unwrap_err();
    assert!(matches!(error, JoinError::NotReached { .. }), "{error}");
    assert!(Identity::read(&home).is_err(), "nothing is kept");
    // The secret was not sent: with the right authority it still serves.
    token.authority[0] ^= 1;
    join(&home, &node("alpha"), &token).unwrap();
}

#[test]
fn an_agent_with_the_certificate_of_another_node_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (link, heard) = listen(directory.path(), authority::VALID);
    let home = directory.path().join("alpha");
    join(&home, &node("alpha"), &token(&link)).unwrap();
    // It says that it is bravo, with alpha's key.
    let path = home.join("identity.json");
    let kept = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, kept.replace("\"alpha\"", "\"bravo\"")).unwrap();
    let agent = run(&home);
    wait("it is refused", || {
        agent.lines.lock().unwrap().iter().any(|line| line.contains("not for node bravo"))
    });
    assert!(heard.try_recv().is_err(), "nothing was heard of it");
}

#[test]
fn certificates_are_renewed_before_they_end_and_the_link_stays() {
    let directory = tempfile::tempdir().unwrap();
    let valid = Duration::from_secs(9);
    let (link, heard) = listen(directory.path(), valid);
    let home = directory.path().join("alpha");
    join(&home, &node("alpha"), &token(&link)).unwrap();
    let path = home.join("identity.json");
    let first = std::fs::read(&path).unwrap();
    let agent = run(&home);
    heard.recv_timeout(PATIENCE).unwrap();
    wait("it has a new one", || std::fs::read(&path).unwrap() != first);
    let order = Order::Pools { generation: Generation(3), pools: BTreeMap::new() };
    link.send(&node("alpha"), order.clone());
    wait("the order arrives", || *agent.orders.lock().unwrap() == [order.clone()]);
    assert!(heard.try_recv().is_err(), "the link was never lost");
}
