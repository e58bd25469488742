//! The one owner of the wanted state: every command and every report passes here, one after the other.
//!
//! ```text
//! command ──► apply ──► store ──► answer ─┐
//!                                         ├─► settle ──► plan ──► send
//! report ───► observed ───────────────────┘
//! ```
//!
//! Commands that have come in together are stored together, as one transaction, before any is answered.
//! What follows a command or a report is done after everything that has come in by then, and only for
//! the resource definitions that it concerns. An order that is lost is sent again after a while,
//! one that failed after a longer one; both are in the plan as long as they are not done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use api::link::{Agents, Heard, News, Order, Pool};
use cluster::apply::apply;
use cluster::calls::Call;
use cluster::change::{Change, Key};
use cluster::command::Command;
use cluster::edit::{Applied, Context};
use cluster::errand::Errand;
use cluster::model::Model;
use cluster::name::{NodeName, ResourceName};
use cluster::objects::{
    Generation, Millis, NodeFlag, Provider, SnapshotDefinition, Uuid, VolumeDefinition,
    VolumeDefinitionFlag,
};
use cluster::observed::{NodeState, ReplicaState};
use cluster::plan::{Action, Affected, affected, plan, together};
use cluster::props::chain;
use cluster::question::{Question, Reply};
use cluster::shipping::Door;
use crypt::seal::MasterKey;
use linstor::access::{Record, UnderWay};
use linstor::controller::{
    Done, Event, Failure, Followed, NodeEvent, Problem, Report, ReportFilter, State, Unanswered,
};
use linstor::may_promote;
use linstor::shown::Shown;
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::calls::Calls;
use crate::errands::Errands;
use crate::log;
use crate::questions::Questions;
use crate::store::{self, Log, Store, TOGETHER};

mod schedules;

/// After how long an order that shows no effect is sent again; longer from time to time.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest time until then.
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);
/// After how long an order that failed is sent again; twice as long every time.
const AFTER_FAILURE: Duration = Duration::from_secs(15);
/// The longest time until then.
const AFTER_FAILURE_AT_MOST: Duration = Duration::from_secs(3600);
/// How often one definition is looked at before others have their turn.
const TURNS: u32 = 8;
/// How often it is looked for what is due by the time of day.
const TICK: Duration = Duration::from_secs(60);

/// The call of the REST API for which something is done, if it is for one.
pub type By = Option<Arc<UnderWay>>;

/// A command, the call that it is for, and where its answer goes.
type Asked = (Command, By, oneshot::Sender<Result<Done, Failure>>);

/// What comes to the owner.
pub enum Input {
    /// A command, the call that it is for, and where its answer goes.
    Command(Command, By, oneshot::Sender<Result<Done, Failure>>),
    /// The master key, whose passphrase was entered; with a command that has to be carried out first, if it
    /// keeps the key under another passphrase.
    Master(MasterKey, Option<Command>, By, oneshot::Sender<Result<(), Failure>>),
    /// News of an agent.
    Heard(Heard),
    /// Asks the agent of a node.
    Ask(NodeName, Question, oneshot::Sender<Result<Reply, Unanswered>>),
    /// Asks for error reports.
    Reports(ReportFilter, oneshot::Sender<Result<Vec<Report>, Failure>>),
    /// Deletes error reports.
    DeleteReports(ReportFilter, oneshot::Sender<Result<usize, Failure>>),
    /// Writes to the audit log what there is to say of a call; with who waits for it.
    Record(Arc<UnderWay>, Record, Option<oneshot::Sender<Result<(), Failure>>>),
    /// Asks for a page of the audit log.
    Records(Option<u64>, oneshot::Sender<Result<Vec<(u64, Record)>, Failure>>),
    /// Keeps a file of which every controller of the cluster has the same.
    KeepFile(&'static str, String, oneshot::Sender<Result<(), Failure>>),
    /// Somebody is back from a remote's bucket.
    Errand(Errand, Result<Vec<String>, String>),
    /// Another cluster has answered: where it waits and what it has to compare with, or why it does not.
    Called(Call, Result<(Door, Option<String>), String>),
    /// Copies the store to a file.
    Backup(std::path::PathBuf, oneshot::Sender<Result<(), Failure>>),
}

/// What everybody may look at. Only the owner writes.
#[derive(Debug)]
pub struct Shared {
    /// The state; held for writing from the change until it is stored, so that nobody sees what a
    /// crash could take back.
    pub state: RwLock<State>,
    /// Who listens.
    pub events: broadcast::Sender<Event>,
}

/// An order that was sent and is not known to be done.
struct Sent {
    node: NodeName,
    generation: Generation,
    action: Action,
    /// When it is sent again.
    again: Instant,
    tries: u32,
    failures: u32,
}

/// What is known of the plan of one resource definition.
#[derive(Default)]
struct Work {
    sent: Vec<Sent>,
    waits: Vec<String>,
    /// Callers that wait until nothing of it is left to send.
    waiting: Vec<u64>,
    /// Where it could become Primary when that was last looked at.
    may_promote: BTreeMap<NodeName, bool>,
}

/// A caller that waits for what follows its command.
struct Waiter {
    definitions: BTreeSet<ResourceName>,
    nodes: BTreeSet<NodeName>,
    followed: Followed,
    to: oneshot::Sender<Followed>,
}

/// The owner.
pub struct Owner {
    shared: Arc<Shared>,
    store: Box<dyn Store>,
    agents: Arc<dyn Agents>,
    /// The newest link of each node.
    links: BTreeMap<NodeName, u64>,
    /// Nodes that were told the master key on that link.
    told: BTreeSet<NodeName>,
    /// What agents were asked and have not answered.
    questions: Questions,
    /// Who is on the way to remotes' buckets.
    errands: Errands,
    /// Other clusters that are called.
    calls: Calls,
    work: BTreeMap<ResourceName, Work>,
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// When definitions are looked at again by the clock.
    due: BTreeSet<(Instant, ResourceName)>,
    next_tick: Instant,
    /// Definitions and pools of nodes that something has happened to.
    dirty: BTreeSet<ResourceName>,
    pools: BTreeSet<NodeName>,
    /// Marks of the nodes when events were last sent.
    flags: BTreeMap<NodeName, BTreeSet<NodeFlag>>,
    /// Tells the error reports of this start from those of others.
    instance: u32,
    next_report: u64,
    /// The number of the next record of the audit log; not known after a write that failed.
    next_record: Option<u64>,
}

impl Owner {
    /// Takes over what is in the store. A new store becomes a new cluster.
    ///
    /// # Errors
    /// If the store can not be read or written.
    pub fn new(
        mut store: Box<dyn Store>,
        agents: Arc<dyn Agents>,
        inputs: mpsc::WeakSender<Input>,
    ) -> Result<(Owner, Arc<Shared>), store::Error> {
        let mut rows = store.load()?;
        if rows.is_empty() {
            rows = Model::new(Uuid(u128::from_be_bytes(random()))).rows().collect();
            let new: Vec<Change> = rows.iter().cloned().map(Change::Put).collect();
            store.commit(&new, &Log::new())?;
        }
        let mut state = State { model: Model::from_rows(rows), ..State::default() };
        // What was away before the start is away since the start, as far as anybody knows.
        let away = NodeState { since: now(), ..NodeState::default() };
        let names = state.model.nodes().map(|node| (node.name.clone(), away.clone()));
        state.observed.nodes = names.collect();
        let flags = state.model.nodes().map(|node| (node.name.clone(), node.flags.clone()));
        let flags = flags.collect();
        let next_report = store.next_report()?;
        // What schedules have missed meanwhile is due at once.
        let first = if state.model.all_series().next().is_some() { Duration::ZERO } else { TICK };
        let (events, _) = broadcast::channel(1024);
        let shared = Arc::new(Shared { state: RwLock::new(state), events });
        let owner = Owner {
            shared: shared.clone(),
            store,
            agents,
            links: BTreeMap::new(),
            told: BTreeSet::new(),
            questions: Questions::default(),
            errands: Errands::new(inputs.clone()),
            calls: Calls::new(inputs),
            work: BTreeMap::new(),
            waiters: BTreeMap::new(),
            next_waiter: 0,
            due: BTreeSet::new(),
            next_tick: Instant::now() + first,
            dirty: BTreeSet::new(),
            pools: BTreeSet::new(),
            flags,
            instance: u32::from_be_bytes(random()),
            next_report,
            next_record: None,
        };
        Ok((owner, shared))
    }

    /// When something is due by the clock.
    pub fn due(&self) -> Instant {
        self.due.first().map_or(self.next_tick, |(first, _)| self.next_tick.min(*first))
    }

    /// Takes what has come. What follows from it is done by [`Owner::follow`].
    ///
    /// # Errors
    /// If the store fails and what it has can not be read: then nobody knows what is stored.
    pub fn take(&mut self, inputs: Vec<Input>) -> Result<(), store::Error> {
        let mut commands = Vec::new();
        let (mut records, mut recorded) = (Vec::new(), Vec::new());
        for input in inputs {
            match input {
                Input::Record(call, record, to) => {
                    records.push((call, record));
                    recorded.extend(to);
                }
                Input::Command(command, by, to) if commands.len() < TOGETHER => {
                    commands.push((command, by, to));
                }
                other => {
                    // Who asks what is there finds what came before.
                    self.carry_out(std::mem::take(&mut commands))?;
                    self.record(&std::mem::take(&mut records), std::mem::take(&mut recorded));
                    match other {
                        Input::Command(command, by, to) => commands.push((command, by, to)),
                        Input::Master(key, command, by, to) => {
                            let command = command.map(|command| (command, by));
                            let applied = self.apply(command.into_iter().collect())?.pop();
                            let result = applied.map_or(Ok(()), |applied| applied.map(drop));
                            if result.is_ok() {
                                self.unlocked(key);
                            }
                            let _ = to.send(result);
                        }
                        Input::Errand(errand, outcome) => self.errand_is_back(errand, outcome)?,
                        Input::Called(call, outcome) => self.call_is_back(call, outcome)?,
                        other => self.take_other(other),
                    }
                }
            }
        }
        self.carry_out(commands)?;
        self.record(&records, recorded);
        Ok(())
    }

    /// Writes down calls. They are done, or refused: one that can not be kept has to be seen elsewhere.
    fn record(
        &mut self,
        records: &[(Arc<UnderWay>, Record)],
        to: Vec<oneshot::Sender<Result<(), Failure>>>,
    ) {
        let kept = self.write_records(records).map_err(failure);
        if let Err(error) = &kept {
            for (_, Record { who, method, path, status, .. }) in records {
                log::error(
                    "audit",
                    format_args!("{who} {method} {path} {status} is not written down: {error}"),
                );
            }
        }
        for to in to {
            let _ = to.send(kept.clone());
        }
    }

    fn write_records(&mut self, records: &[(Arc<UnderWay>, Record)]) -> Result<(), store::Error> {
        let (mut log, mut numbered) = (Log::new(), Vec::new());
        for (call, record) in records {
            match call.number.get() {
                // That it has begun is there.
                Some(_) if record.status == 0 => {}
                Some(number) => log.replaced.push((*number, record.clone())),
                None => numbered.push((call, record.clone())),
            }
        }
        if !numbered.is_empty() {
            let next = self.next_record()?;
            log.added = (next..).zip(numbered.iter().map(|(_, record)| record.clone())).collect();
        }
        if log.is_empty() {
            return Ok(());
        }
        self.commit(&[], &log)?;
        for ((call, _), (number, _)) in numbered.into_iter().zip(&log.added) {
            let _ = call.number.set(*number);
        }
        Ok(())
    }

    fn next_record(&mut self) -> Result<u64, store::Error> {
        match self.next_record {
            Some(next) => Ok(next),
            None => store::next_record(&mut *self.store),
        }
    }

    /// The only way into the store for rows and records.
    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), store::Error> {
        let committed = self.store.commit(changes, log);
        match (&committed, log.added.last()) {
            (Ok(()), Some((last, _))) => self.next_record = Some(last + 1),
            (Ok(()), None) => {}
            (Err(_), _) => self.next_record = None,
        }
        committed
    }

    fn take_other(&mut self, input: Input) {
        match input {
            Input::Command(..)
            | Input::Master(..)
            | Input::Record(..)
            | Input::Errand(..)
            | Input::Called(..) => unreachable!("seen by the caller"),
            Input::Heard(heard) => self.heard(heard),
            Input::Ask(node, question, to) => self.ask(node, question, to),
            Input::Reports(filter, to) => {
                drop(to.send(self.store.reports(&filter).map_err(failure)));
            }
            Input::DeleteReports(filter, to) => {
                drop(to.send(self.store.delete_reports(&filter).map_err(failure)));
            }
            Input::Records(before, to) => {
                drop(to.send(self.store.records(before).map_err(failure)));
            }
            Input::KeepFile(name, content, to) => {
                drop(to.send(self.store.replace_file(name, content).map_err(failure)));
            }
            Input::Backup(file, to) => drop(to.send(self.store.backup(&file).map_err(failure))),
        }
    }

    /// Does what follows from all that has come: settles, plans, sends, and tells those who wait.
    ///
    /// # Errors
    /// As [`Owner::take`].
    pub fn follow(&mut self) -> Result<(), store::Error> {
        let now = Instant::now();
        if self.next_tick <= now {
            self.next_tick = now + TICK;
            let tick = self.apply(vec![(Command::Tick, None)])?;
            for failure in tick.into_iter().filter_map(Result::err) {
                log::error("controller", format_args!("what is due was not done: {failure}"));
            }
        }
        while let Some((_, name)) = self.due.pop_first_if_due(now) {
            self.dirty.insert(name);
        }
        for node in std::mem::take(&mut self.pools) {
            self.send_pools(&node);
        }
        let mut turns: BTreeMap<ResourceName, u32> = BTreeMap::new();
        while !self.dirty.is_empty() {
            let mut names = BTreeSet::new();
            while let Some(name) = self.dirty.pop_first() {
                let turn = turns.entry(name.clone()).or_default();
                *turn += 1;
                // What one look changes may concern others, which are looked at again. Should that not
                // come to an end, it must not keep everybody else waiting.
                if *turn == 1 {
                    let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
                    let others = together(&state.model, &name).into_iter();
                    self.dirty.extend(others.filter(|other| !names.contains(other)));
                }
                match *turn > TURNS {
                    true => drop(self.due.insert((now + AGAIN, name))),
                    false => drop(names.insert(name)),
                }
                if names.len() == TOGETHER {
                    break;
                }
            }
            self.look(&names)?;
        }
        self.see_to_schedules();
        let done: Vec<u64> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| {
                let followed = waiter.definitions.is_empty() && waiter.nodes.is_empty();
                followed || waiter.to.is_closed()
            })
            .map(|(id, _)| *id)
            .collect();
        for waiter in done.iter().filter_map(|id| self.waiters.remove(id)) {
            let _ = waiter.to.send(waiter.followed);
        }
        Ok(())
    }
}

/// Commands.
impl Owner {
    /// Carries out commands that have come together, and answers them.
    fn carry_out(&mut self, commands: Vec<Asked>) -> Result<(), store::Error> {
        if commands.is_empty() {
            return Ok(());
        }
        let split = commands.into_iter().map(|(command, by, to)| ((command, by), to));
        let (commands, answers): (Vec<_>, Vec<_>) = split.unzip();
        for (applied, to) in self.apply(commands)?.into_iter().zip(answers) {
            let answer = applied.map(|applied| {
                let followed = self.wait(&applied);
                let Applied { notes, made, placed, .. } = applied;
                Done { notes, made, placed, followed }
            });
            // Who has gone away does not want to know.
            let _ = to.send(answer);
        }
        Ok(())
    }

    /// Applies commands one after the other, and stores what they change, and for whom, as one
    /// transaction: if that can not be stored, none of them was carried out. The outer error is fatal.
    fn apply(
        &mut self,
        commands: Vec<(Command, By)>,
    ) -> Result<Vec<Result<Applied, Failure>>, store::Error> {
        let shared = self.shared.clone();
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { model, observed, shown } = &mut *state;
        let (mut outcomes, mut changes) = (Vec::with_capacity(commands.len()), Vec::new());
        let begun = now();
        let mut records: Vec<(Arc<UnderWay>, Record)> = Vec::new();
        for (command, by) in commands {
            let context = Context { observed, now: now(), entropy: random() };
            let outcome = apply(model, &context, command).map_err(Failure::Refused);
            if let Ok(applied) = &outcome {
                changes.extend(applied.changes.iter().cloned());
                // Once is enough: it says that the call has begun, and its end comes later.
                let new = |call: &Arc<UnderWay>| {
                    call.number.get().is_none()
                        && records.iter().all(|(c, _)| !Arc::ptr_eq(c, call))
                };
                if let Some(call) = by.filter(new).filter(|_| !applied.changes.is_empty()) {
                    let record = call.changing(&applied.changes);
                    records.push((call, record));
                }
            }
            outcomes.push(outcome);
        }
        if changes.is_empty() {
            return Ok(outcomes);
        }
        let (calls, records): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        let mut added = Log::new();
        let committed = match records.is_empty() {
            true => self.commit(&changes, &added),
            false => self.next_record().and_then(|next| {
                added.added = (next..).zip(records).collect();
                self.commit(&changes, &added)
            }),
        };
        if let Err(error) = committed {
            log::error("store", format_args!("{error}"));
            // What is stored is what counts, and only the store knows what that is.
            *model = Model::from_rows(self.store.load()?);
            shown.forget_all();
            // A refusal may rest on what is not there now.
            let failure = failure(error);
            return Ok(outcomes.into_iter().map(|_| Err(failure.clone())).collect());
        }
        for (call, (number, _)) in calls.into_iter().zip(added.added) {
            let _ = call.number.set(number);
        }
        self.concerns(model, shown, &changes);
        drop(state);
        self.tell_of_nodes(&changes);
        self.report_failed_backups(&changes, begun);
        Ok(outcomes)
    }

    /// Takes note of everything that changes concern.
    fn concerns(&mut self, model: &Model, shown: &Shown, changes: &[Change]) {
        match affected(model, changes) {
            Affected::All => {
                shown.forget_all();
                self.dirty.extend(model.definitions().map(|definition| definition.name.clone()));
                self.pools.extend(model.nodes().map(|node| node.name.clone()));
            }
            Affected::Some(names) => {
                names.iter().for_each(|name| shown.forget(name));
                self.dirty.extend(names);
            }
        }
        for change in changes {
            match change.key() {
                Key::Pool(node, _) => drop(self.pools.insert(node)),
                Key::PoolDefinition(name) => {
                    let pools = model.pools().filter(|pool| pool.name == name);
                    self.pools.extend(pools.map(|pool| pool.node.clone()));
                }
                _ => {}
            }
        }
    }

    /// Has somebody told when everything that a command concerns has been followed.
    fn wait(&mut self, applied: &Applied) -> oneshot::Receiver<Followed> {
        let (to, receiver) = oneshot::channel();
        let id = self.next_waiter;
        self.next_waiter += 1;
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let definitions = match affected(&state.model, &applied.changes) {
            Affected::Some(names) => names,
            // What everything inherits is followed by and by.
            Affected::All => BTreeSet::new(),
        };
        let pools = applied.changes.iter().filter_map(|change| match change {
            Change::Put(cluster::change::Object::Pool(pool)) => Some(pool.node.clone()),
            _ => None,
        });
        let nodes = pools.filter(|node| state.observed.is_connected(node)).collect();
        drop(state);
        for name in &definitions {
            self.work.entry(name.clone()).or_default().waiting.push(id);
        }
        let followed = Followed::default();
        self.waiters.insert(id, Waiter { definitions, nodes, followed, to });
        receiver
    }

    fn tell_of_nodes(&mut self, changes: &[Change]) {
        for change in changes {
            let Key::Node(name) = change.key() else { continue };
            let new = match change {
                Change::Put(cluster::change::Object::Node(node)) => Some(node.flags.clone()),
                _ => None,
            };
            let old = match &new {
                Some(flags) => self.flags.insert(name.clone(), flags.clone()),
                None => self.flags.remove(&name),
            };
            let gained = |flag| {
                let had = old.as_ref().is_some_and(|old| old.contains(&flag));
                new.as_ref().is_some_and(|new| new.contains(&flag)) != had
            };
            let what = match (&old, &new) {
                (None, _) => NodeEvent::Created,
                (_, None) => NodeEvent::Deleted,
                (Some(old), Some(new)) if !old.is_empty() && new.is_empty() => NodeEvent::Restored,
                _ if gained(NodeFlag::Evicted) => NodeEvent::Evicted,
                _ if gained(NodeFlag::Evacuate) => NodeEvent::Evacuated,
                _ => NodeEvent::Modified,
            };
            let _ = self.shared.events.send(Event::Node { node: name, what });
        }
    }
}

/// Encrypted volumes.
impl Owner {
    /// Somebody has entered the master passphrase.
    fn unlocked(&mut self, key: MasterKey) {
        let shared = self.shared.clone();
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        state.observed.master = Some(key);
        let all = state.model.definitions().filter(|definition| is_encrypted(definition));
        let shipped = state.model.snapshots().filter(|snapshot| is_shipped(snapshot));
        let shipped = shipped.map(|snapshot| snapshot.resource.clone());
        let all = all.map(|definition| definition.name.clone());
        let names: BTreeSet<ResourceName> = all.chain(shipped).collect();
        for name in names {
            state.shown.forget(&name);
            // What has failed for want of the key is not to wait any longer.
            if let Some(work) = self.work.get_mut(&name) {
                work.sent.clear();
            }
            self.dirty.insert(name);
        }
        self.told.clear();
    }

    /// Tells the master key to the nodes of a resource definition that need it.
    fn tell_master(&mut self, state: &State, name: &ResourceName) {
        let Some(master) = &state.observed.master else { return };
        let encrypted = state.model.definition(name).is_some_and(is_encrypted);
        let resources = state.model.resources_of(name).filter(|resource| resource.is_diskful());
        let nodes = resources.map(|resource| &resource.node).filter(|_| encrypted);
        // Those that ship open the keys of a remote with it.
        let shipped = state.model.snapshots_of(name).filter(|snapshot| is_shipped(snapshot));
        for node in nodes.chain(shipped.flat_map(|snapshot| snapshot.nodes.keys())) {
            if state.observed.is_connected(node) && self.told.insert(node.clone()) {
                self.agents.send(node, Order::Master { key: master.to_secret() });
            }
        }
    }
}

fn is_shipped(snapshot: &SnapshotDefinition) -> bool {
    snapshot.is_uploading() || snapshot.is_downloading()
}

fn is_encrypted(definition: &cluster::objects::Definition) -> bool {
    definition.volumes.values().any(|volume| volume.passphrase.is_some())
}

/// Reports.
impl Owner {
    fn heard(&mut self, heard: Heard) {
        let Heard { node, link, news } = heard;
        let newest = self.links.get(&node).copied();
        match news {
            Some(News::Hello { node: state, replicas }) if newest.is_none_or(|old| old <= link) => {
                self.links.insert(node.clone(), link);
                self.told.remove(&node);
                self.hello(&node, state, replicas);
            }
            // What comes before a greeting, or after a newer one, is of no use.
            _ if newest != Some(link) => {}
            None => self.lost(&node),
            Some(News::Hello { .. }) => {}
            Some(News::Pools(pools)) => {
                let shared = self.shared.clone();
                let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(known) = state.observed.nodes.get_mut(&node) {
                    known.pools = pools;
                }
                self.pools_are_there(&node, &state);
            }
            Some(News::Replica { resource, state }) => {
                let shared = self.shared.clone();
                let mut all = shared.state.write().unwrap_or_else(PoisonError::into_inner);
                let replicas = all.observed.resources.entry(resource.clone()).or_default();
                replicas.insert(node, state);
                all.shown.forget(&resource);
                self.dirty.insert(resource);
            }
            Some(News::Answer { token, reply }) => self.questions.answered(&node, token, reply),
            // An agent of an older release does not know the question.
            Some(News::Failed { generation, cause, correction, .. })
                if self.questions.is_one(&node, generation.0) =>
            {
                let reply = Reply::Refused { cause, correction };
                self.questions.answered(&node, generation.0, reply);
            }
            Some(News::Failed { resource, generation, order, cause, correction }) => {
                self.failed(&node, resource, generation, order, cause, correction);
            }
        }
    }

    /// Asks an agent, if there is one on the link.
    fn ask(
        &mut self,
        node: NodeName,
        question: Question,
        to: oneshot::Sender<Result<Reply, Unanswered>>,
    ) {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let connected = state.observed.is_connected(&node);
        drop(state);
        if !connected {
            // Who has gone away does not want to know.
            let _ = to.send(Err(Unanswered::NotConnected));
            return;
        }
        let token = self.questions.ask(node.clone(), to);
        log::debug(&node, format_args!("is asked to {question}"));
        self.agents.send(&node, Order::Ask { token, question });
    }

    fn hello(
        &mut self,
        node: &NodeName,
        mut greeting: NodeState,
        replicas: BTreeMap<ResourceName, ReplicaState>,
    ) {
        log::info(node, format_args!("is connected"));
        // They went to an older link.
        self.questions.lost(node);
        (greeting.connected, greeting.since) = (true, now());
        let shared = self.shared.clone();
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        state.observed.nodes.insert(node.clone(), greeting);
        let State { observed, shown, .. } = &mut *state;
        for (name, known) in &mut observed.resources {
            if known.remove(node).is_some() {
                shown.forget(name);
                self.dirty.insert(name.clone());
            }
        }
        for (name, replica) in replicas {
            state.shown.forget(&name);
            self.dirty.insert(name.clone());
            state.observed.resources.entry(name).or_default().insert(node.clone(), replica);
        }
        self.touch_all_of(node, &state);
        self.pools.insert(node.clone());
        // What was sent on an older link is as good as lost.
        for work in self.work.values_mut() {
            work.sent.retain(|sent| sent.node != *node);
        }
    }

    fn lost(&mut self, node: &NodeName) {
        log::info(node, format_args!("is not connected any more"));
        self.questions.lost(node);
        let shared = self.shared.clone();
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.observed.nodes.get_mut(node) {
            (known.connected, known.since) = (false, now());
        }
        self.touch_all_of(node, &state);
        for waiter in self.waiters.values_mut() {
            waiter.nodes.remove(node);
        }
    }

    /// Everything that a node takes part in.
    fn touch_all_of(&mut self, node: &NodeName, state: &State) {
        state.model.resources_on(node).for_each(|name| state.shown.forget(name));
        self.dirty.extend(state.model.resources_on(node).cloned());
        let there = state.model.snapshots().filter(|snapshot| snapshot.nodes.contains_key(node));
        self.dirty.extend(there.map(|snapshot| snapshot.resource.clone()));
    }

    fn failed(
        &mut self,
        node: &NodeName,
        resource: Option<ResourceName>,
        generation: Generation,
        order: String,
        cause: String,
        correction: String,
    ) {
        let object = resource.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
        let message = format!("node {node} could not carry out an order{object}: {order}");
        let report = self.report(node.as_str(), message, cause.clone(), correction.clone());
        let mut told: BTreeSet<u64> = BTreeSet::new();
        if let Some((name, work)) = resource.as_ref().and_then(|n| self.work.get_key_value(n)) {
            told.extend(&work.waiting);
            let name = name.clone();
            let work = self.work.entry(name.clone()).or_default();
            let same = |sent: &&mut Sent| {
                sent.node == *node
                    && sent.generation <= generation
                    && sent.action.to_string() == order
            };
            if let Some(sent) = work.sent.iter_mut().find(same) {
                let wait = AFTER_FAILURE * 2u32.saturating_pow(sent.failures.min(10));
                sent.failures += 1;
                sent.again = Instant::now() + wait.min(AFTER_FAILURE_AT_MOST);
                self.due.insert((sent.again, name));
            }
        }
        let problem = Problem { node: node.clone(), resource, order, cause, correction, report };
        for (id, waiter) in &mut self.waiters {
            if told.contains(id) || problem.resource.is_none() && waiter.nodes.contains(node) {
                waiter.followed.problems.push(problem.clone());
                // There is nothing more to wait for that would change the answer.
                waiter.definitions.clear();
                waiter.nodes.clear();
            }
        }
    }

    fn pools_are_there(&mut self, node: &NodeName, state: &State) {
        let reported = |pool: &cluster::objects::Pool| {
            pool.provider == Provider::Diskless || state.observed.pool(node, &pool.name).is_some()
        };
        if state.model.pools_of(node).all(reported) {
            for waiter in self.waiters.values_mut() {
                waiter.nodes.remove(node);
            }
        }
    }

    /// Keeps an error report; returns its id.
    fn report(
        &mut self,
        node: &str,
        message: String,
        cause: String,
        correction: String,
    ) -> Option<String> {
        log::error(node, format_args!("{message}: {cause}; {correction}"));
        let id = format!("{:08X}-00000-{:06}", self.instance, self.next_report % 1_000_000);
        self.next_report += 1;
        let node = node.to_owned();
        let report = Report { id, time: now(), node, message, cause, correction };
        match self.store.add_report(&report) {
            Ok(()) => Some(report.id),
            Err(error) => {
                log::error("store", format_args!("{error}"));
                None
            }
        }
    }
}

/// What follows.
impl Owner {
    /// Sends a node all of its pools.
    fn send_pools(&mut self, node: &NodeName) {
        let shared = self.shared.clone();
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        if !state.observed.is_connected(node) {
            return;
        }
        let pools = state.model.pools_of(node).filter(|pool| pool.provider != Provider::Diskless);
        let pools = pools.map(|pool| {
            let inherited = chain::pool(&state.model, pool).below("StorDriver/");
            let props = inherited.into_iter().map(|(key, v)| (format!("StorDriver/{key}"), v));
            (pool.name.clone(), Pool { provider: pool.provider, props: props.collect() })
        });
        let order = Order::Pools { generation: state.model.generation(), pools: pools.collect() };
        self.pools_are_there(node, &state);
        self.agents.send(node, order);
    }

    /// Takes note of what was reported of resource definitions, and sends the steps that wait for no
    /// other.
    fn look(&mut self, names: &BTreeSet<ResourceName>) -> Result<(), store::Error> {
        let settle = names.iter().map(|name| (Command::Settle { name: name.clone() }, None));
        let settled = self.apply(settle.collect())?;
        for (name, settled) in names.iter().zip(settled) {
            if let Err(failure) = settled {
                log::error(name, format_args!("what is done was not noted: {failure}"));
                self.due.insert((Instant::now() + AGAIN, name.clone()));
            }
            // What was just changed is in the plan that follows.
            self.dirty.remove(name);
        }
        names.iter().for_each(|name| self.send(name));
        Ok(())
    }

    /// Sends the steps of a resource definition that wait for no other.
    fn send(&mut self, name: &ResourceName) {
        let shared = self.shared.clone();
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        self.tell_master(&state, name);
        let plan = plan(&state.model, &state.observed, name);
        let wanted = state.model.wanted_generation(name);
        let now = Instant::now();
        let work = self.work.entry(name.clone()).or_default();
        work.waiting.retain(|id| self.waiters.contains_key(id));
        let mut old = std::mem::take(&mut work.sent);
        for step in plan.ready() {
            let same = |sent: &Sent| sent.node == step.node && sent.action == step.action;
            let known = old.iter().position(same).map(|index| old.swap_remove(index));
            let sent = match known {
                Some(sent) if sent.generation >= wanted && sent.again > now => sent,
                known => {
                    let (tries, failures) = known.map_or((0, 0), |s| (s.tries + 1, s.failures));
                    let wait = (AGAIN * 2u32.saturating_pow(tries.min(5))).min(AGAIN_AT_MOST);
                    let (resource, generation) = (name.clone(), plan.generation);
                    let action = step.action.clone();
                    log::debug(&step.node, format_args!("{resource} is to {action}"));
                    self.agents.send(&step.node, Order::Step { resource, generation, action });
                    Sent {
                        node: step.node.clone(),
                        generation,
                        action: step.action.clone(),
                        again: now + wait,
                        tries,
                        failures,
                    }
                }
            };
            self.due.insert((sent.again, name.clone()));
            work.sent.push(sent);
        }
        // A device that grows is Inconsistent while what is new is copied, and has its old size to those
        // who have not heard of the new one: the plan waits for that, but who asked has no answer yet.
        let grows = |sent: &Sent| {
            matches!(sent.action, Action::GrowDevice { .. })
                && sent.again > now
                && state.observed.is_connected(&sent.node)
                && resizes(&state, name)
        };
        work.sent.extend(old.into_iter().filter(grows));
        work.waits = plan.waits.iter().map(|wait| wait.reason.clone()).collect();
        if work.sent.is_empty() && !under_way(&state, name, work) {
            for id in std::mem::take(&mut work.waiting) {
                if let Some(waiter) = self.waiters.get_mut(&id) {
                    waiter.definitions.remove(name);
                    waiter.followed.waits.extend(work.waits.iter().cloned());
                }
            }
        }
        tell_of_promotion(&self.shared, &state, name, work);
        let gone = state.model.definition(name).is_none();
        drop(state);
        if gone {
            self.forget(name);
        }
    }

    /// Forgets what is known of a resource definition that is gone, but for what nodes still have.
    fn forget(&mut self, name: &ResourceName) {
        self.work.remove(name);
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let Some(replicas) = state.observed.resources.get_mut(name) else { return };
        replicas.retain(|_, replica| {
            replica.up || replica.volumes.values().any(|volume| volume.backing.is_some())
        });
        if replicas.is_empty() {
            state.observed.resources.remove(name);
        }
    }
}

/// True if something is not done though there is nothing to send: a snapshot waits for another's
/// suspension, or nodes have yet to say that a volume has grown on them.
fn under_way(state: &State, name: &ResourceName, work: &Work) -> bool {
    state.model.snapshots_of(name).any(|snapshot| snapshot.is_pending())
        || work.waits.is_empty() && resizes(state, name)
}

/// True if a volume is about to get another size.
fn resizes(state: &State, name: &ResourceName) -> bool {
    let resizes = |volume: &VolumeDefinition| volume.flags.contains(&VolumeDefinitionFlag::Resize);
    state.model.definition(name).is_some_and(|d| d.volumes.values().any(resizes))
}

fn tell_of_promotion(shared: &Shared, state: &State, name: &ResourceName, work: &mut Work) {
    let nodes = state.model.resources_of(name).map(|resource| &resource.node);
    let may: BTreeMap<NodeName, bool> =
        nodes.map(|node| (node.clone(), may_promote(state, name, node))).collect();
    for (node, may) in &may {
        if work.may_promote.get(node).copied().unwrap_or(false) != *may {
            let (resource, node) = (name.clone(), node.clone());
            let _ = shared.events.send(Event::MayPromote { resource, node, may: *may });
        }
    }
    work.may_promote = may;
}

/// The first element, if its time has come.
trait PopDue {
    fn pop_first_if_due(&mut self, now: Instant) -> Option<(Instant, ResourceName)>;
}

impl PopDue for BTreeSet<(Instant, ResourceName)> {
    fn pop_first_if_due(&mut self, now: Instant) -> Option<(Instant, ResourceName)> {
        self.first().filter(|(due, _)| *due <= now)?;
        self.pop_first()
    }
}

fn failure(error: store::Error) -> Failure {
    Failure::Store(error.to_string())
}

/// The time of day.
fn now() -> Millis {
    let passed = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
}

/// Random bytes of the kernel's.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes to whoever asks");
    bytes
}
