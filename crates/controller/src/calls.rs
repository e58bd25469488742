//! Calls of other clusters about snapshots that are shipped to them: threads, a few at a time, that come back
//! with what was answered. The owner never waits for one.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use cluster::calls::{Call, Offer, offer};
use cluster::name::RemoteName;
use cluster::shipping::{CLUSTER_ID, CallWhat, Door, OtherCluster};
use crypt::seal::MasterKey;
use linstor::controller::{Failure, State};
use shipping::description::LuksInfo;
use shipping::other::{self, Answer};
use tokio::sync::mpsc;

use crate::keys;
use crate::log;
use crate::owner::Input;

/// How many are under way at the same time.
const AT_ONCE: usize = 8;
/// How long a node of the other cluster may take until it listens.
const WAIT: Duration = Duration::from_secs(60);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(500);

/// The calls that are under way.
pub struct Calls {
    to: mpsc::WeakSender<Input>,
    under_way: BTreeSet<Call>,
}

impl Calls {
    /// None yet; what is answered goes there.
    pub fn new(to: mpsc::WeakSender<Input>) -> Calls {
        Calls { to, under_way: BTreeSet::new() }
    }

    /// Begins those that are not under way; the others have their turn when one is back.
    pub fn go(&mut self, calls: Vec<Call>, state: &State) {
        for call in calls {
            if self.under_way.len() >= AT_ONCE {
                return;
            }
            // That it is asked and that it is told the contrary come one after the other.
            let same = |other: &Call| Call { what: call.what, ..other.clone() } == call;
            if self.under_way.iter().any(same) {
                continue;
            }
            let work = Work::new(&call, state);
            log::debug("shipping", format_args!("{call}"));
            let (to, own) = (self.to.clone(), call.clone());
            let thread = thread::Builder::new().name("call".to_owned()).spawn(move || {
                let outcome = match work {
                    Some(work) => work.run(),
                    None => Err("the snapshot is not had any more, or its keys".to_owned()),
                };
                let why = outcome.as_ref().err().filter(|why| !why.is_empty());
                if let (CallWhat::Close, Some(why)) = (own.what, why) {
                    // Its node gives it up by itself when nobody comes.
                    log::info("shipping", format_args!("could not {own}: {why}"));
                }
                // Where nobody listens any more the next controller calls again.
                if let Some(to) = to.upgrade() {
                    let _ = to.blocking_send(Input::Called(own, outcome));
                }
            });
            match thread {
                Ok(_) => drop(self.under_way.insert(call)),
                Err(error) => {
                    log::error("shipping", format_args!("there is no thread to be had: {error}"));
                }
            }
        }
    }

    /// One is back.
    pub fn back(&mut self, call: &Call) {
        self.under_way.remove(call);
    }
}

/// What a call needs, taken from the state when it began.
struct Work {
    cluster: OtherCluster,
    remote: RemoteName,
    master: Option<MasterKey>,
    own: String,
    shipment: String,
    /// What is offered, if something is.
    offer: Option<Offer>,
}

type Outcome = Result<(Door, Option<String>), String>;

impl Work {
    fn new(call: &Call, state: &State) -> Option<Work> {
        let cluster = state.model.remote(&call.remote)?.cluster()?.clone();
        let found = state.model.snapshot(&call.name, &call.snapshot)?;
        let sending = found.uploads.get(&call.remote)?.sending.as_ref()?;
        let own = state.model.controller().props.get(CLUSTER_ID).cloned().unwrap_or_default();
        let offer = match call.what {
            CallWhat::Ask => Some(offer(&state.model, call)?),
            CallWhat::Close => None,
        };
        let (master, remote) = (state.observed.master.clone(), call.remote.clone());
        Some(Work { cluster, remote, master, own, shipment: sending.id.to_string(), offer })
    }

    fn run(self) -> Outcome {
        let failed = |failure: Failure| failure.to_string();
        let client = keys::call(self.master.as_ref(), &self.cluster).map_err(failed)?;
        match self.offer {
            Some(offer) => {
                let secret = keys::unseal(self.master.as_ref(), &offer.sending.secret);
                let secret = secret.map_err(failed)?;
                let offer = told(offer, self.remote.to_string(), secret.expose().to_owned());
                let because =
                    |trouble: other::Trouble| format!("{trouble}; {}", trouble.correction());
                let until = Instant::now() + WAIT;
                let mut answer = client.offer(&offer).map_err(because)?;
                loop {
                    if let Some(outcome) = judged(&answer, self.cluster.id.as_deref()) {
                        return outcome;
                    }
                    if Instant::now() >= until {
                        let time = WAIT.as_secs();
                        return Err(format!(
                            "no node of the other cluster has begun to wait for it within {time} seconds; \
                             see what its nodes do, then ship it again"
                        ));
                    }
                    thread::sleep(LOOK);
                    answer = client.state(&self.own, &self.shipment).map_err(because)?;
                }
            }
            None => {
                client.close(&self.own, &self.shipment).map_err(|trouble| trouble.to_string())?;
                // There is nothing to say of that.
                Err(String::new())
            }
        }
    }
}

/// What an answer means; none as long as it has to be asked again.
fn judged(answer: &Answer, id: Option<&str>) -> Option<Outcome> {
    if let Some(id) = id.filter(|id| !id.eq_ignore_ascii_case(&answer.cluster_id)) {
        return Some(Err(format!(
            "the cluster at the remote's URL is {}, and not {id}; correct the remote",
            answer.cluster_id
        )));
    }
    if answer.over {
        let cause = answer.cause.clone().unwrap_or_else(|| "it does not say why".to_owned());
        return Some(Err(format!("the other cluster has given it up: {cause}")));
    }
    let door = answer.door.as_ref()?;
    Some(match door.address.parse() {
        Ok(address) => {
            let (port, fingerprint) = (door.port, door.fingerprint.clone());
            Ok((Door { address, port, fingerprint }, answer.base.clone()))
        }
        Err(_) => Err("the other cluster says no address at which it waits".to_owned()),
    })
}

/// An offer, as it is said.
fn told(offer: Offer, remote: String, secret: String) -> other::Offer {
    let Offer { sending, label, origin, bases, described } = offer;
    let volume = |volume: cluster::shipping::DescribedVolume| other::Volume {
        size: volume.size.0,
        gross_size: volume.gross_size,
        props: volume.props,
        pool: volume.pool.to_string(),
    };
    let pools = sending.pools.iter().map(|(from, to)| (from.to_string(), to.to_string()));
    other::Offer {
        version: other::VERSION,
        cluster_id: described.cluster,
        remote,
        shipment: sending.id.to_string(),
        label,
        origin,
        bases,
        secret,
        resource: sending.to.to_string(),
        snapshot: sending.snapshot.to_string(),
        node: sending.node.map(|node| node.to_string()),
        net_if: sending.net_if.map(|name| name.to_string()),
        pool: sending.pool.map(|pool| pool.to_string()),
        pools: pools.collect(),
        group: sending.group.map(|group| group.to_string()),
        download_only: sending.download_only,
        layers: described.layers.iter().map(ToString::to_string).collect(),
        node_id: described.node_id.map(|id| id.get()),
        peer_slots: described.peer_slots,
        props: described.props,
        volumes: described.volumes.into_iter().map(|(nr, one)| (nr.0, volume(one))).collect(),
        keys: described.keys.map(|keys| LuksInfo {
            master_key: keys.master,
            passphrases: keys.passphrases.into_iter().map(|(nr, one)| (nr.0, one)).collect(),
        }),
    }
}
