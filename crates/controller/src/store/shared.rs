//! A store on a server that several controllers share.
//!
//! One of them leads, for a term that it has to renew; the others wait. A term has a number, and the
//! server refuses every change under another number than that of the present term, in the same
//! transaction: a leader that was stopped for a while can not write when another has taken over. When
//! a term ends is for the server's clock to say. A leader counts from before it asked, so it knows no
//! later than the server.
//!
//! When the answer to a change is lost, nobody knows whether the change will still be made. The store
//! then takes a new number for the same leader before it reads: what was under way with the old one
//! is either there or never will be.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cluster::change::{Change, Object};
use linstor::access::Record;
use linstor::controller::{Report, ReportFilter};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::{Error, Log, Sqlite, Store, row};

/// Error reports that are kept.
pub(super) const REPORTS: u64 = 10_000;
/// How long a call may take. A transaction that the server goes on with is waited for afterwards.
const CALL: Duration = Duration::from_secs(10);
/// Parts of a term after which it is renewed.
const RENEWALS: u32 = 4;

/// Rows by key; without text they go.
pub(super) type Rows = BTreeMap<String, Option<String>>;

/// A [`Log`] as text.
#[derive(Clone, Default)]
pub(super) struct Texts {
    pub added: Vec<(u64, String)>,
    pub replaced: Vec<(u64, String)>,
}

/// What came of standing for leader.
pub(super) enum Campaign {
    /// This one leads, under that number.
    Leads(u64),
    /// Another leads, and gave this as its address. Nobody may be known yet.
    Follows(Option<String>),
}

/// A server. Each call is one transaction or less; one that is given a term's number changes nothing
/// under another, and answers `false` or nothing then.
pub(super) trait Server: Send + Sync + Sized + 'static {
    /// Where it is, without any password.
    fn name(&self) -> &str;

    /// Becomes leader if nobody is; `address` is told to the others.
    fn campaign(
        &self,
        address: &str,
        term: Duration,
    ) -> impl Future<Output = Result<Campaign, Error>> + Send;

    /// Brings what an older version has written up to this one.
    fn bring_up(&self, fence: u64) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Leads for another term from now on.
    fn renew(&self, fence: u64, term: Duration)
    -> impl Future<Output = Result<bool, Error>> + Send;

    /// Leads no longer.
    fn resign(&self, fence: u64) -> impl Future<Output = Result<(), Error>> + Send;

    /// A new number for the same term. Transactions under the old one are over when it answers.
    fn count_up(&self, fence: u64) -> impl Future<Output = Result<Option<u64>, Error>> + Send;

    /// Every row.
    fn load(
        &self,
        fence: u64,
    ) -> impl Future<Output = Result<Option<Vec<(String, String)>>, Error>> + Send;

    /// Changes rows and writes to the audit log, all or nothing; without rows all of that, or, if it
    /// is too much for a transaction, the first of it.
    fn commit(
        &self,
        fence: u64,
        rows: Rows,
        log: Texts,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Keeps an error report.
    fn add_report(
        &self,
        fence: u64,
        report: String,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// How many error reports there have been.
    fn reports_so_far(&self) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Error reports with their numbers, the newest first.
    fn reports(&self) -> impl Future<Output = Result<Vec<(u64, String)>, Error>> + Send;

    /// Deletes error reports.
    fn delete_reports(
        &self,
        fence: u64,
        numbers: Vec<u64>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Records of the audit log with their numbers, the newest first: a page, of those below a number.
    fn records(
        &self,
        before: Option<u64>,
    ) -> impl Future<Output = Result<Vec<(u64, String)>, Error>> + Send;

    /// A file that all leaders share: the one that is kept, or `content` from now on.
    fn file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send;

    /// Gives such a file another content.
    fn replace_file(
        &self,
        fence: u64,
        name: &'static str,
        content: String,
    ) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// The threads of all connections to servers. They are there as long as the process: a store may be
/// dropped anywhere.
pub(super) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("store").enable_all();
        builder.build().expect("the kernel gives a thread and a poller")
    })
}

/// Waits for a call, outside of any other runtime.
fn wait<T>(call: impl Future<Output = Result<T, Error>>, store: &str) -> Result<T, Error> {
    runtime().block_on(async {
        let late = |_| Error::Server {
            store: store.to_owned(),
            doing: "asking",
            cause: format!("it did not answer within {} seconds", CALL.as_secs()),
            next: "look at its load and at the network",
        };
        tokio::time::timeout(CALL, call).await.map_err(late)?
    })
}

/// What controllers stand for leader at.
pub trait Electorate: Send {
    /// Tries to become leader for a term. `address` is told to the others: where clients find this
    /// one.
    ///
    /// # Errors
    /// If the server can not be asked.
    fn stand(&mut self, address: &str, term: Duration) -> Result<Standing, Error>;

    /// Where it is, without any password.
    fn name(&self) -> String;
}

/// What came of it.
pub enum Standing {
    /// This one leads.
    Leads(Box<dyn Store>, Term),
    /// Another leads, and can be found there.
    Follows(Option<String>),
}

/// The time for which this controller leads.
#[derive(Clone)]
pub struct Term(Arc<State>);

struct State {
    store: String,
    /// The number of the term.
    fence: AtomicU64,
    /// Held while the number changes and while the term is renewed.
    counting: tokio::sync::Mutex<()>,
    /// It holds until then, as far as is known here.
    until: Mutex<Instant>,
    over: watch::Sender<bool>,
    /// Gives it back.
    resign: watch::Sender<bool>,
    resigned: watch::Sender<bool>,
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} on {}", self.0.fence.load(Ordering::Relaxed), self.0.store)
    }
}

impl Term {
    /// True if nobody else can lead yet. What is told then is true.
    pub fn holds(&self) -> bool {
        let until = *self.0.until.lock().unwrap_or_else(PoisonError::into_inner);
        !*self.0.over.borrow() && Instant::now() < until
    }

    /// Returns when it is over.
    pub async fn over(&self) {
        // An error says that nobody renews it any more.
        let _ = self.0.over.subscribe().wait_for(|over| *over).await;
    }

    /// Gives it back, so that another need not wait for its end. Returns when that is done or can not
    /// be done soon.
    pub async fn resign(&self) {
        let mut resigned = self.0.resigned.subscribe();
        self.0.resign.send_replace(true);
        let _ = tokio::time::timeout(CALL / 5, resigned.wait_for(|resigned| *resigned)).await;
    }

    /// As if this program were stopped, until what it returns is dropped.
    #[cfg(test)]
    pub(super) fn stop_renewing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.counting.blocking_lock()
    }

    fn extend(&self, from: Instant, term: Duration) {
        *self.0.until.lock().unwrap_or_else(PoisonError::into_inner) = from + term;
    }
}

async fn is_set(flag: &mut watch::Receiver<bool>) {
    // An error says that nobody can set it any more; its sender is here as long as this.
    let _ = flag.wait_for(|set| *set).await;
}

/// Renews a term until it is lost or given back.
async fn keep<S: Server>(server: Arc<S>, held: Term, term: Duration) {
    let mut resign = held.0.resign.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(term / RENEWALS) => {}
            () = is_set(&mut resign) => {
                let _counting = held.0.counting.lock().await;
                held.0.over.send_replace(true);
                let fence = held.0.fence.load(Ordering::Relaxed);
                // Otherwise it ends by itself.
                let _ = tokio::time::timeout(CALL, server.resign(fence)).await;
                held.0.resigned.send_replace(true);
                return;
            }
        }
        let _counting = held.0.counting.lock().await;
        let fence = held.0.fence.load(Ordering::Relaxed);
        let asked = Instant::now();
        let renewed = tokio::time::timeout(term / RENEWALS, server.renew(fence, term)).await;
        match renewed {
            Ok(Ok(true)) => held.extend(asked, term),
            Ok(Ok(false)) => break,
            // It may answer the next time.
            Ok(Err(_)) | Err(_) if held.holds() => {}
            Ok(Err(_)) | Err(_) => break,
        }
    }
    held.0.over.send_replace(true);
}

/// A controller that stands for leader.
pub(super) struct Candidate<S>(Arc<S>);

impl<S: Server> Candidate<S> {
    pub fn new(server: S) -> Candidate<S> {
        Candidate(Arc::new(server))
    }
}

impl<S: Server> Electorate for Candidate<S> {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn stand(&mut self, address: &str, term: Duration) -> Result<Standing, Error> {
        let asked = Instant::now();
        let name = self.0.name().to_owned();
        let fence = match wait(self.0.campaign(address, term), &name)? {
            Campaign::Leads(fence) => fence,
            Campaign::Follows(leader) => return Ok(Standing::Follows(leader)),
        };
        let held = Term(Arc::new(State {
            store: name,
            fence: AtomicU64::new(fence),
            counting: tokio::sync::Mutex::new(()),
            until: Mutex::new(asked + term),
            over: watch::Sender::new(false),
            resign: watch::Sender::new(false),
            resigned: watch::Sender::new(false),
        }));
        runtime().spawn(keep(self.0.clone(), held.clone(), term));
        let mut store = Shared { server: self.0.clone(), term: held.clone(), doubtful: false };
        // Only who leads: another may be at work with what an older version has written.
        let server = self.0.clone();
        store.change(async move { server.bring_up(fence).await })?;
        Ok(Standing::Leads(Box::new(store), held))
    }
}

/// The store of the leader.
struct Shared<S> {
    server: Arc<S>,
    term: Term,
    /// Nobody knows whether the last change was made.
    doubtful: bool,
}

impl<S> Drop for Shared<S> {
    /// Who has no store leads no longer.
    fn drop(&mut self) {
        self.term.0.resign.send_replace(true);
    }
}

impl<S: Server> Shared<S> {
    fn fence(&self) -> u64 {
        self.term.0.fence.load(Ordering::Relaxed)
    }

    fn deposed(&self) -> Error {
        self.term.0.over.send_replace(true);
        Error::Deposed { store: self.server.name().to_owned() }
    }

    /// Has a change made under this term.
    fn change(&mut self, make: impl Future<Output = Result<bool, Error>>) -> Result<(), Error> {
        match wait(make, self.server.name()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.deposed()),
            Err(error) => {
                self.doubtful = true;
                Err(error)
            }
        }
    }

    /// After this every change that was asked for is there or never will be.
    fn certain(&mut self) -> Result<(), Error> {
        if !self.doubtful {
            return Ok(());
        }
        let (server, term) = (self.server.clone(), self.term.clone());
        let counted = wait(
            async move {
                let _counting = term.0.counting.lock().await;
                let counted = server.count_up(term.0.fence.load(Ordering::Relaxed)).await?;
                if let Some(fence) = counted {
                    term.0.fence.store(fence, Ordering::Relaxed);
                }
                Ok(counted)
            },
            self.server.name(),
        )?;
        if counted.is_none() {
            return Err(self.deposed());
        }
        self.doubtful = false;
        Ok(())
    }

    fn all_reports(&self) -> Result<Vec<(u64, Report)>, Error> {
        let texts = wait(self.server.reports(), self.server.name())?;
        let report = |(number, text): (u64, String)| {
            let report = serde_json::from_str(&text).map_err(|error| Error::Row {
                file: self.server.name().into(),
                key: format!("report {number}"),
                cause: error.to_string(),
            })?;
            Ok((number, report))
        };
        texts.into_iter().map(report).collect()
    }

    fn unwritable(&self, error: &serde_json::Error) -> Error {
        Error::Server {
            store: self.server.name().to_owned(),
            doing: "writing to",
            cause: error.to_string(),
            next: "report this as a fault of the program",
        }
    }
}

impl<S: Server> Store for Shared<S> {
    fn load(&mut self) -> Result<Vec<Object>, Error> {
        self.certain()?;
        let name = self.server.name().to_owned();
        let rows = wait(self.server.load(self.fence()), &name)?.ok_or_else(|| self.deposed())?;
        rows.into_iter().map(|(key, text)| row::object(&name, key, &text)).collect()
    }

    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), Error> {
        self.certain()?;
        let rows = row::texts(changes).map_err(|error| self.unwritable(&error))?;
        let texts = |records: &[(u64, Record)]| {
            let text = |(number, record): &(u64, Record)| {
                serde_json::to_string(record).map(|text| (*number, text))
            };
            let texts = records.iter().map(text).collect::<Result<Vec<_>, _>>();
            texts.map_err(|error| self.unwritable(&error))
        };
        let log = Texts { added: texts(&log.added)?, replaced: texts(&log.replaced)? };
        let (server, fence) = (self.server.clone(), self.fence());
        self.change(async move { server.commit(fence, rows, log).await })
    }

    fn backup(&mut self, to: &Path) -> Result<(), Error> {
        let rows = self.load()?;
        let changes: Vec<Change> = rows.into_iter().map(Change::Put).collect();
        Sqlite::create(to)?.commit(&changes, &Log::new()).inspect_err(|_| {
            // Half a copy is none.
            let _ = std::fs::remove_file(to);
        })
    }

    fn add_report(&mut self, report: &Report) -> Result<(), Error> {
        self.certain()?;
        let text = serde_json::to_string(report).map_err(|error| self.unwritable(&error))?;
        let (server, fence) = (self.server.clone(), self.fence());
        self.change(async move { server.add_report(fence, text).await })
    }

    fn next_report(&mut self) -> Result<u64, Error> {
        wait(self.server.reports_so_far(), self.server.name())
    }

    fn reports(&mut self, filter: &ReportFilter) -> Result<Vec<Report>, Error> {
        let all = self.all_reports()?.into_iter().map(|(_, report)| report);
        Ok(all.filter(|report| filter.takes(report)).collect())
    }

    fn delete_reports(&mut self, filter: &ReportFilter) -> Result<usize, Error> {
        self.certain()?;
        let all = self.all_reports()?.into_iter();
        let found = all.filter(|(_, report)| filter.takes(report)).map(|(number, _)| number);
        let found: Vec<u64> = found.collect();
        let count = found.len();
        let (server, fence) = (self.server.clone(), self.fence());
        self.change(async move { server.delete_reports(fence, found).await })?;
        Ok(count)
    }

    fn records(&mut self, before: Option<u64>) -> Result<Vec<(u64, Record)>, Error> {
        // Its last number is that of the last one for good.
        self.certain()?;
        let texts = wait(self.server.records(before), self.server.name())?;
        let record = |(number, text): (u64, String)| {
            let record = serde_json::from_str(&text).map_err(|error| Error::Row {
                file: self.server.name().into(),
                key: format!("audit {number}"),
                cause: error.to_string(),
            })?;
            Ok((number, record))
        };
        texts.into_iter().map(record).collect()
    }

    fn file(&mut self, name: &'static str, content: String) -> Result<String, Error> {
        let kept = wait(self.server.file(self.fence(), name, content), self.server.name())?;
        kept.ok_or_else(|| self.deposed())
    }

    fn replace_file(&mut self, name: &'static str, content: String) -> Result<(), Error> {
        self.certain()?;
        let (server, fence) = (self.server.clone(), self.fence());
        self.change(async move { server.replace_file(fence, name, content).await })
    }
}
