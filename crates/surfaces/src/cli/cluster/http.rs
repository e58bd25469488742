//! The controller's REST API from the client's side: who is asked, for how long, what came back.
//!
//! Of several controllers the first that serves is asked. Whether a call that changes something was
//! carried out is not known once it was sent and the answer is missing, so that one is not sent to
//! another controller.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::HeaderValue;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

use super::super::error::Error;
use super::answer::{Done, Entry, judge};
use super::args::Controllers;

/// How long one controller may take to accept a connection before the next is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest answer. Lists of the largest clusters are some dozens of megabytes.
const ANSWER: u64 = 1 << 30;
/// Most of an answer that is shown if it is not understood.
const SHOWN: usize = 200;

/// A call that changes something.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// Makes something.
    Post(String, Value),
    /// Changes something.
    Put(String, Value),
    /// Changes a part of something.
    Patch(String, Value),
    /// Deletes something.
    Delete(String),
}

/// The controllers.
pub struct Http {
    agent: Agent,
    urls: Vec<String>,
    /// Which one answered last.
    current: AtomicUsize,
    token: Option<HeaderValue>,
    timeout: Duration,
    end: Instant,
}

/// Why one controller gave no answer.
enum Failed {
    /// It was not asked: another one can be.
    NotReached(String),
    /// It was asked, or may have been.
    Lost(String),
    /// The time is over.
    Late,
}

type Answered = (u16, Vec<u8>);

impl Http {
    /// Reads what the options name. Nobody is asked yet; whatever is asked has to be answered
    /// before `timeout` is over.
    ///
    /// # Errors
    /// If a file can not be read, or https is wanted without an authority.
    pub fn new(at: &Controllers, timeout: Duration) -> Result<Http, Error> {
        let roots = match &at.ca {
            Some(path) => authority(path)?,
            None => {
                if let Some(url) = at.controllers.iter().find(|url| url.starts_with("https:")) {
                    let why = "nobody vouches for the controller's certificate".to_owned();
                    let next = "give the certificate of its authority with --ca".to_owned();
                    return Err(Error::File { path: url.into(), why, next });
                }
                Vec::new()
            }
        };
        let token = token(at.token_file.as_deref())?;
        if token.is_some() {
            is_private(&at.controllers, "the token")?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
        let tls = tls.root_certs(RootCerts::Specific(Arc::new(roots))).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Controllers are in the cluster's own network.
            .proxy(None)
            .user_agent(concat!("ashlar/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Http {
            agent: config.new_agent(),
            urls: at.controllers.clone(),
            current: AtomicUsize::new(0),
            token,
            timeout,
            end: Instant::now() + timeout,
        })
    }

    /// Refuses what is secret where others could read it on the way.
    ///
    /// # Errors
    /// If a controller is on another host and would be asked in the clear.
    pub fn is_private(&self, secret: &str) -> Result<(), Error> {
        is_private(&self.urls, secret)
    }

    /// Begins the time anew in which what is asked has to be answered.
    pub fn again(&mut self) {
        self.end = Instant::now() + self.timeout;
    }

    /// Time that is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Reads something. `what` names it in messages.
    ///
    /// # Errors
    /// If nobody answers, or refuses.
    pub fn get<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<T, Error> {
        let (status, body) = self
            .ask(what, true, |url| self.prepared(self.agent.get(format!("{url}{path}"))).call())?;
        self.understood(what, status, &body)
    }

    /// Reads what a question with a body is answered with.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub fn question<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let text = body.to_string();
        let (status, body) = self.ask(what, true, |url| {
            self.with_json(self.agent.post(format!("{url}{path}"))).send(&text)
        })?;
        self.understood(what, status, &body)
    }

    /// Makes what is answered with the thing itself.
    ///
    /// # Errors
    /// As [`Http::change`].
    pub fn make<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: Value,
    ) -> Result<T, Error> {
        let (status, body) = self.send(what, &Change::Post(path.to_owned(), body))?;
        self.understood(what, status, &body)
    }

    /// Changes something.
    ///
    /// # Errors
    /// If it was refused, nobody answers, or it is not known what came of it.
    pub fn change(&self, what: &str, change: &Change) -> Result<Done, Error> {
        let (status, body) = self.send(what, change)?;
        judge(what, self.entries(what, status, &body)?)
    }

    fn send(&self, what: &str, change: &Change) -> Result<Answered, Error> {
        self.ask(what, false, |url| match change {
            Change::Post(path, body) => {
                self.with_json(self.agent.post(format!("{url}{path}"))).send(body.to_string())
            }
            Change::Put(path, body) => {
                self.with_json(self.agent.put(format!("{url}{path}"))).send(body.to_string())
            }
            Change::Patch(path, body) => {
                self.with_json(self.agent.patch(format!("{url}{path}"))).send(body.to_string())
            }
            Change::Delete(path) => self.prepared(self.agent.delete(format!("{url}{path}"))).call(),
        })
    }

    /// Asks what a change would lead to; nothing is changed.
    ///
    /// # Errors
    /// If it would be refused, or the controller does not foretell.
    pub fn foretold(&self, what: &str, change: &Change) -> Result<Done, Error> {
        // One that does not know dry runs would do it. This changes nothing anywhere, and whoever knows
        // them refuses a value that is neither true nor false.
        let probe =
            Change::Put("/v1/resource-definitions/-?dry_run=unclear".to_owned(), Value::Null);
        let (status, body) = self.send(what, &probe)?;
        match status {
            400 => {}
            401 | 403 => drop(judge(what, self.entries(what, status, &body)?)?),
            _ => {
                let message = format!("{} can not foretell what would happen", self.asked());
                let cause = "it is of an older version".to_owned();
                let correction = "do without --dry-run, or update the controller".to_owned();
                let entry = Entry { message, cause, correction, ..Entry::default() };
                return Err(Error::Denied { what: what.to_owned(), entries: vec![entry] });
            }
        }
        let dry = |path: &str| format!("{path}?dry_run=true");
        let change = match change {
            Change::Post(path, body) => Change::Post(dry(path), body.clone()),
            Change::Put(path, body) => Change::Put(dry(path), body.clone()),
            Change::Patch(path, body) => Change::Patch(dry(path), body.clone()),
            Change::Delete(path) => Change::Delete(dry(path)),
        };
        self.change(what, &change)
    }

    fn prepared<B>(&self, mut request: RequestBuilder<B>) -> RequestBuilder<B> {
        if let Some(token) = &self.token {
            request = request.header("Authorization", token.clone());
        }
        let left = self.left().max(Duration::from_millis(1));
        let config = request.header("Accept", "application/json").config();
        config.timeout_global(Some(left)).timeout_connect(Some(left.min(CONNECT))).build()
    }

    fn with_json<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        self.prepared(request.header("Content-Type", "application/json"))
    }

    /// Asks the controllers in turn, beginning with the one that answered last.
    fn ask(
        &self,
        what: &str,
        again: bool,
        call: impl Fn(&str) -> Result<ureq::http::Response<Body>, ureq::Error>,
    ) -> Result<Answered, Error> {
        let mut tried = Vec::new();
        let first = self.current.load(Ordering::Relaxed);
        for index in 0..self.urls.len() {
            let index = (first + index) % self.urls.len();
            let url = &self.urls[index];
            if self.left().is_zero() {
                return Err(late(what));
            }
            match answered(call(url)) {
                Ok(answer) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Failed::Late) => return Err(late(what)),
                Err(Failed::Lost(why)) if !again => {
                    return Err(Error::Unclear {
                        what: what.to_owned(),
                        why: format!("{url} was asked and {why}; it may have been carried out"),
                    });
                }
                Err(Failed::NotReached(why) | Failed::Lost(why)) => tried.push((url.clone(), why)),
            }
        }
        Err(Error::NoController { what: what.to_owned(), tried })
    }

    fn understood<T: DeserializeOwned>(
        &self,
        what: &str,
        status: u16,
        body: &[u8],
    ) -> Result<T, Error> {
        if !matches!(status, 200 | 201) {
            let entries = self.entries(what, status, body)?;
            judge(what, entries)?;
            return Err(self.unclear(what, status, body));
        }
        serde_json::from_slice(body).map_err(|error| Error::Unclear {
            what: what.to_owned(),
            why: format!("{} answered something else than expected: {error}", self.asked()),
        })
    }

    fn entries(&self, what: &str, status: u16, body: &[u8]) -> Result<Vec<Entry>, Error> {
        let entries: Option<Vec<Entry>> = serde_json::from_slice(body).ok();
        match entries.filter(|entries| !entries.is_empty()) {
            Some(entries) => Ok(entries),
            None if status == 401 || status == 403 => {
                let message = format!("{} does not allow it (HTTP {status})", self.asked());
                let correction =
                    "name a token that may, by --token-file or ASHLAR_TOKEN".to_owned();
                let entry = Entry { message, correction, ..Entry::default() };
                Err(Error::Denied { what: what.to_owned(), entries: vec![entry] })
            }
            None => Err(self.unclear(what, status, body)),
        }
    }

    fn unclear(&self, what: &str, status: u16, body: &[u8]) -> Error {
        let text: String = String::from_utf8_lossy(body).chars().take(SHOWN).collect();
        let why = format!("{} answered HTTP {status} with `{}`", self.asked(), text.trim());
        Error::Unclear { what: what.to_owned(), why }
    }

    fn asked(&self) -> &str {
        &self.urls[self.current.load(Ordering::Relaxed)]
    }
}

fn late(what: &str) -> Error {
    let left = "no answer has come; it may still be carried out".to_owned();
    Error::Unfinished { what: what.to_owned(), left }
}

/// Status and body of an answer, or why there is none.
fn answered(result: Result<ureq::http::Response<Body>, ureq::Error>) -> Result<Answered, Failed> {
    let mut response = result.map_err(|error| failed(&error))?;
    let status = response.status().as_u16();
    // One that waits to take over, or goes down.
    if status == 503 {
        return Err(Failed::NotReached(format!("it does not serve (HTTP {status})")));
    }
    if status == 307 {
        return Err(Failed::NotReached("another controller leads".to_owned()));
    }
    if (300..400).contains(&status) {
        let why = "it wants to be called by https; give that address, and its authority with --ca";
        return Err(Failed::NotReached(why.to_owned()));
    }
    let body = response.body_mut().with_config().limit(ANSWER).read_to_vec();
    Ok((status, body.map_err(|error| lost(&error))?))
}

fn failed(error: &ureq::Error) -> Failed {
    use ureq::Timeout;
    let refused = |kind| {
        use ErrorKind::*;
        matches!(kind, ConnectionRefused | HostUnreachable | NetworkUnreachable | AddrNotAvailable)
    };
    match error {
        ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            Failed::NotReached("it does not accept a connection in time".to_owned())
        }
        ureq::Error::Timeout(_) => Failed::Late,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
            Failed::NotReached(error.to_string())
        }
        // The handshake failed, so nothing was asked.
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::BadUri(_) => {
            Failed::NotReached(error.to_string())
        }
        ureq::Error::Io(io) if refused(io.kind()) => Failed::NotReached(io.to_string()),
        _ => lost(error),
    }
}

fn lost(error: &ureq::Error) -> Failed {
    match error {
        ureq::Error::Timeout(_) => Failed::Late,
        _ => Failed::Lost(format!("the answer was lost: {error}")),
    }
}

/// The token, as a header. It is not in messages, and nobody sees it among the arguments.
fn token(file: Option<&Path>) -> Result<Option<HeaderValue>, Error> {
    let (source, text) = match file {
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| Error::File {
                path: path.to_owned(),
                why: format!("the token can not be read: {error}"),
                next: "name a file that this user can read".to_owned(),
            })?;
            (path.to_owned(), text)
        }
        None => match std::env::var("ASHLAR_TOKEN") {
            Ok(text) if !text.trim().is_empty() => ("ASHLAR_TOKEN".into(), text),
            _ => return Ok(None),
        },
    };
    let value = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
    let good = value.ok().filter(|_| !text.trim().is_empty());
    let mut value = good.ok_or_else(|| Error::File {
        path: source,
        why: "this is no token: one line of printable characters is".to_owned(),
        next: "copy it again".to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn is_private(urls: &[String], secret: &str) -> Result<(), Error> {
    let plain = |url: &&String| url.starts_with("http:") && !is_here(url);
    let Some(url) = urls.iter().find(plain) else { return Ok(()) };
    let why = format!("{secret} would be sent there for everybody to read");
    let next = "give its https address, and its authority with --ca".to_owned();
    Err(Error::File { path: url.into(), why, next })
}

/// True if the URL leads to this host.
fn is_here(url: &str) -> bool {
    let Ok(uri) = url.parse::<ureq::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The certificates in a file.
fn authority(path: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let refuse = |why: String| Error::File {
        path: path.to_owned(),
        why,
        next: "name a PEM file with the certificate of the authority".to_owned(),
    };
    let text = fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        let item = item.map_err(|error| refuse(error.to_string()))?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(refuse("it has no certificate".to_owned())) } else { Ok(found) }
}

/// A name as a part of a path.
pub fn part(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A query with several values of a name; empty if there are none.
pub fn query(name: &str, values: &[String]) -> String {
    let pairs: Vec<String> = values.iter().map(|v| format!("{name}={}", part(v))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_in_the_clear_to_this_host_only() {
        let file = std::env::temp_dir().join(format!("ashlar-token-{}", std::process::id()));
        fs::write(&file, "secret\n").unwrap();
        let new = |url: &str, token_file| {
            let controllers = vec![url.to_owned()];
            Http::new(&Controllers { controllers, token_file, ca: None }, CONNECT)
        };
        for (url, sent) in [
            ("http://127.0.0.1:3370", true),
            ("http://[::1]:3370", true),
            ("http://localhost:3370", true),
            ("http://10.0.0.1:3370", false),
            ("http://localhost.example:3370", false),
        ] {
            assert_eq!(new(url, Some(file.clone())).is_ok(), sent, "{url}");
        }
        fs::remove_file(&file).unwrap();
    }
}
