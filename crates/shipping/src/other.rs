//! Other clusters: what a controller says to the one that is to get a snapshot, and what that answers, over its
//! REST API (`/v1/ashlar/shipments`). The data go another way, from node to node.
//!
//! `secret` is by what the receiving node knows the sender; it is in the body of one call, and in no address.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ureq::http::Response;
use ureq::{Agent, Body};
use vocab::options::Secret;

use crate::description::LuksInfo;
use crate::s3::http;

/// The version of these calls, and the only one.
pub const VERSION: u16 = 1;
/// Where they are.
const PATH: &str = "/v1/ashlar/shipments";
/// How long a call may take.
const CALL: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
const ANSWER: u64 = 1 << 20;
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// A volume of a snapshot that is shipped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Size in bytes, as users see it.
    pub size: u64,
    /// That includes DRBD's metadata.
    pub gross_size: bool,
    /// Properties of the volume definition.
    pub props: BTreeMap<String, String>,
    /// The pool that it is in.
    pub pool: String,
}

/// A snapshot that another cluster is to get.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Of these calls.
    pub version: u16,
    /// The cluster that ships it.
    pub cluster_id: String,
    /// What it calls the other one.
    pub remote: String,
    /// What it knows the shipment by.
    pub shipment: String,
    /// What it calls the snapshot, for people.
    pub label: String,
    /// What the snapshot is, there: by which it is found again.
    pub origin: String,
    /// What it can be compared with, the newest first.
    pub bases: Vec<String>,
    /// By what the sender shows that it is the one.
    pub secret: String,
    /// The resource definition that gets it.
    pub resource: String,
    /// The snapshot that it becomes.
    pub snapshot: String,
    /// The node that gets it.
    pub node: Option<String>,
    /// Through which of its network interfaces.
    pub net_if: Option<String>,
    /// The pool for volumes of which `pools` says nothing.
    pub pool: Option<String>,
    /// Pools in the place of those of the source.
    pub pools: BTreeMap<String, String>,
    /// The resource group of a new resource definition.
    pub group: Option<String>,
    /// Nothing is made of the snapshot.
    pub download_only: bool,
    /// Layers from top to bottom.
    pub layers: Vec<String>,
    /// DRBD node id of the replica.
    pub node_id: Option<u8>,
    /// Peers for which its metadata have bitmaps.
    pub peer_slots: u8,
    /// Properties of the resource definition.
    pub props: BTreeMap<String, String>,
    /// Its volumes.
    pub volumes: BTreeMap<u16, Volume>,
    /// The keys of encrypted volumes.
    #[serde(default)]
    pub keys: Option<LuksInfo>,
}

/// Where a node waits for a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Door {
    /// Its address.
    pub address: String,
    /// The TCP port.
    pub port: u16,
    /// SHA-256 of its certificate, in hexadecimal digits.
    pub fingerprint: String,
}

/// How far a shipment is, at the end that gets it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Of these calls.
    pub version: u16,
    /// The cluster that answers.
    pub cluster_id: String,
    /// Nothing more comes of it.
    pub over: bool,
    /// Why.
    #[serde(default)]
    pub cause: Option<String>,
    /// What it is compared with.
    #[serde(default)]
    pub base: Option<String>,
    /// Where it is waited for, once that is known.
    #[serde(default)]
    pub door: Option<Door>,
}

/// Why another cluster does not do what is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It says no.
    Refused(String),
    /// It does not answer, or not as it should; that may pass.
    Unreachable(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Refused(why) | Trouble::Unreachable(why) => f.write_str(why),
        }
    }
}

impl Trouble {
    /// What is to be done about it.
    pub fn correction(&self) -> &'static str {
        match self {
            Trouble::Refused(_) => "see to that, there or here; then try again",
            Trouble::Unreachable(_) => "see to the remote's URL, that cluster and the network",
        }
    }
}

/// Another cluster's controller.
pub struct Client {
    url: String,
    token: Option<Secret>,
    http: Agent,
    patience: Duration,
}

impl Client {
    /// A client of the REST API at a URL; nobody is called yet. `patience` is how long what fails and may pass
    /// is tried again.
    ///
    /// # Errors
    /// If the authorities of the machine can not be read where they are needed.
    pub fn new(url: &str, token: Option<Secret>, patience: Duration) -> Result<Client, Trouble> {
        let http =
            http(url, Some(CALL)).map_err(|error| Trouble::Unreachable(error.to_string()))?;
        Ok(Client { url: url.trim_end_matches('/').to_owned(), token, http, patience })
    }

    /// Whether it takes anything from a cluster.
    ///
    /// # Errors
    /// If it does not.
    pub fn terms(&self, cluster: &str) -> Result<Answer, Trouble> {
        self.call("ask whether anything is taken", || {
            self.with_token(self.http.get(format!(
                "{}{PATH}?cluster={}",
                self.url,
                encoded(cluster)
            )))
            .call()
        })
    }

    /// Has it wait for a snapshot.
    ///
    /// # Errors
    /// If it does not.
    pub fn offer(&self, offer: &Offer) -> Result<Answer, Trouble> {
        let body = serde_json::to_vec(offer)
            .map_err(|error| Trouble::Refused(format!("the offer can not be written: {error}")))?;
        self.call("offer the snapshot", || {
            let request = self.with_token(self.http.post(format!("{}{PATH}", self.url)));
            request.header("content-type", "application/json").send(&body[..])
        })
    }

    /// How far a shipment is there.
    ///
    /// # Errors
    /// If it does not say.
    pub fn state(&self, cluster: &str, shipment: &str) -> Result<Answer, Trouble> {
        let url = self.of(cluster, shipment);
        self.call("ask how far it is", || self.with_token(self.http.get(url.as_str())).call())
    }

    /// Has it wait no longer.
    ///
    /// # Errors
    /// If it can not be told.
    pub fn close(&self, cluster: &str, shipment: &str) -> Result<(), Trouble> {
        let url = self.of(cluster, shipment);
        self.tried(|| {
            let called = self.with_token(self.http.delete(url.as_str())).call();
            self.judged("end the shipment", called).map(drop)
        })
    }

    fn of(&self, cluster: &str, shipment: &str) -> String {
        format!("{}{PATH}/{}/{}", self.url, encoded(cluster), encoded(shipment))
    }

    fn with_token<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {}", token.expose())),
            None => request,
        }
    }

    fn call(
        &self,
        what: &str,
        call: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Answer, Trouble> {
        self.tried(|| {
            let text = self.judged(what, call())?;
            let answer: Answer = serde_json::from_str(&text).map_err(|error| {
                let at = &self.url;
                Trouble::Refused(format!("could not {what} at {at}: its answer is not understood ({error}): it is no cluster of Ashlar, or of another release"))
            })?;
            match answer.version == VERSION {
                true => Ok(answer),
                false => Err(Trouble::Refused(format!(
                    "could not {what} at {}: it speaks version {} of shipping between clusters, and this \
                     one {VERSION}; use releases that follow each other",
                    self.url, answer.version
                ))),
            }
        })
    }

    fn tried<T>(&self, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let began = Instant::now();
        loop {
            match attempt() {
                Err(Trouble::Unreachable(_)) if began.elapsed() + PAUSE < self.patience => {
                    thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }

    /// What was answered, if that is not an error.
    fn judged(
        &self,
        what: &str,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<String, Trouble> {
        let at = &self.url;
        let mut response = response
            .map_err(|error| Trouble::Unreachable(format!("could not {what} at {at}: {error}")))?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(ANSWER).read_to_string();
        let text = text
            .map_err(|error| Trouble::Unreachable(format!("could not {what} at {at}: {error}")))?;
        if (200..300).contains(&status) {
            return Ok(text);
        }
        let why = format!("could not {what} at {at}: {} (HTTP {status})", said(&text));
        Err(match status {
            408 | 429 | 502..=504 => Trouble::Unreachable(why),
            _ => Trouble::Refused(why),
        })
    }
}

/// What a controller says of an error, for people.
fn said(text: &str) -> String {
    #[derive(Deserialize)]
    struct Entry {
        message: String,
        #[serde(default)]
        cause: Option<String>,
        #[serde(default)]
        correction: Option<String>,
    }
    let entries: Vec<Entry> = serde_json::from_str(text).unwrap_or_default();
    let Some(entry) = entries.into_iter().next() else { return "it says nothing".to_owned() };
    let parts = [Some(entry.message), entry.cause, entry.correction];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    text.chars().take(600).filter(|c| !c.is_control()).collect()
}

/// A part of an address.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_controller_refuses_is_told_in_its_words() {
        let text = r#"[{"ret_code":-1,"message":"no","cause":"why","correction":"next"}]"#;
        assert_eq!(said(text), "no; why; next");
        assert_eq!(said("<html>"), "it says nothing");
        assert_eq!(encoded("a b/ü-1"), "a%20b%2F%C3%BC-1");
        let client = Client::new("http://127.0.0.1:1/", None, Duration::ZERO).unwrap();
        let Err(Trouble::Unreachable(why)) = client.terms("c") else { panic!() };
        assert!(why.contains("http://127.0.0.1:1"), "{why}");
    }
}
