//! A bucket in a store that speaks S3.
//!
//! Requests are signed by `rusty-s3` and carried by `ureq`; here is what is asked, and what is done when
//! it goes wrong: what may pass is tried again until a deadline, anything else is told at once. Calls
//! block. A flag ends them early.

mod transfer;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusty_s3::actions::{
    AbortMultipartUpload, CompleteMultipartUpload, CompleteMultipartUploadResponse,
    CreateMultipartUpload, ListObjectsV2,
};
use rusty_s3::{Bucket, Credentials, Map, S3Action, UrlStyle};
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};
use vocab::options::Secret;

pub use transfer::{Download, PARTS, Upload, part_size};

/// How long a signed address is good for: longer than any request takes.
const SIGNED: Duration = Duration::from_secs(3600);
/// How long it may take to be connected.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a request may take beside its data.
const REQUEST: Duration = Duration::from_secs(30);
/// Bytes in a second that a link has to carry at least, or a request with data is given up.
const SLOWEST: u64 = 128 << 10;
/// Most of an answer that has no data.
const ANSWER: u64 = 32 << 20;
/// The first pause before something is tried again; twice as long every time.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest one.
const PAUSE_AT_MOST: Duration = Duration::from_secs(10);
/// How often it is looked whether to end early.
const LOOK: Duration = Duration::from_millis(100);

/// Where a bucket is and who may use it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// URL of the store; `https://` unless another scheme is given.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// The region; stores without any take any.
    pub region: String,
    /// The bucket is in the path of addresses, and not in the host's name.
    pub path_style: bool,
    /// Name of the key.
    pub access_key: Secret,
    /// The key.
    pub secret_key: Secret,
}

/// Why something was not done.
#[derive(Debug)]
pub enum Error {
    /// The bucket can not be meant, or there is nobody to vouch for its store.
    Place(String),
    /// The store does not let us.
    Denied(String),
    /// There is no such object or bucket.
    NotFound(String),
    /// It could not be reached, or said that it can not, until the deadline.
    Unreachable(String),
    /// It said something else.
    Answer(String),
    /// It was told to end.
    Stopped,
    /// The data are more than an object can have.
    TooLarge,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Place(why)
            | Error::Denied(why)
            | Error::NotFound(why)
            | Error::Unreachable(why)
            | Error::Answer(why) => f.write_str(why),
            Error::Stopped => f.write_str("it was stopped"),
            Error::TooLarge => {
                f.write_str("the compressed data of a volume are more than 249 GiB, which do not fit into an object")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
    }
}

impl Error {
    /// What is to be done about it.
    pub fn correction(&self) -> &'static str {
        match self {
            Error::Place(_) => "correct the remote (`ashlar remote modify`)",
            Error::Denied(_) => "see to the remote's keys, and what they may do in the bucket",
            Error::NotFound(_) => "see what is in the bucket (`ashlar backup list`)",
            Error::Unreachable(_) => "see to the store and the network, then try again",
            Error::Answer(_) => "see what the store has to say of it",
            Error::Stopped => "begin it again if it is wanted",
            Error::TooLarge => "divide the data into several volumes",
        }
    }

    /// The error of a bucket inside of another, if it is one.
    pub fn inside(error: &io::Error) -> Option<&Error> {
        error.get_ref()?.downcast_ref()
    }
}

/// A bucket.
pub struct Client {
    bucket: Bucket,
    credentials: Credentials,
    http: Agent,
    patience: Duration,
    stop: Arc<AtomicBool>,
}

/// An answer that says no, and perhaps may say something else the next time.
enum Attempt {
    Again(String),
    Over(Error),
}

impl Client {
    /// A client of a bucket; nobody is asked yet. `patience` is how long what fails and may pass is tried
    /// again; `stop` ends everything early.
    ///
    /// # Errors
    /// If that can not be a bucket, or the authorities of the machine can not be read where they are needed.
    pub fn new(place: &Place, patience: Duration, stop: Arc<AtomicBool>) -> Result<Client, Error> {
        let endpoint = match place.endpoint.contains("://") {
            true => place.endpoint.clone(),
            false => format!("https://{}", place.endpoint),
        };
        let wrong = |why: &dyn fmt::Display| {
            Error::Place(format!(
                "{} with bucket {:?} can not be used: {why}",
                endpoint, place.bucket
            ))
        };
        let url = endpoint.parse().map_err(|error| wrong(&error))?;
        let style = if place.path_style { UrlStyle::Path } else { UrlStyle::VirtualHost };
        if place.bucket.is_empty() {
            return Err(wrong(&"the bucket has no name"));
        }
        let bucket = Bucket::new(url, style, place.bucket.clone(), place.region.clone());
        let bucket = bucket.map_err(|error| wrong(&format!("{error:?}")))?;
        let http = http(&endpoint, None)?;
        let secret = place.secret_key.expose();
        let credentials = Credentials::new(place.access_key.expose(), secret);
        Ok(Client { bucket, credentials, http, patience, stop })
    }

    /// The same, which gives up soon: for what need not be done.
    #[must_use]
    pub fn impatient(self) -> Client {
        Client { patience: CONNECT, ..self }
    }

    /// All objects whose names begin so, with their sizes in bytes.
    ///
    /// # Errors
    /// If the store does not say.
    pub fn list(&self, prefix: &str) -> Result<BTreeMap<String, u64>, Error> {
        let (mut objects, mut token) = (BTreeMap::new(), None::<String>);
        loop {
            let mut action = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
            action.with_prefix(prefix);
            if let Some(token) = &token {
                action.with_continuation_token(token.as_str());
            }
            let text = self.text("list the objects", || {
                self.http
                    .get(action.sign(SIGNED).as_str())
                    .config()
                    .timeout_global(Some(REQUEST))
                    .build()
                    .call()
            })?;
            let page = ListObjectsV2::parse_response(&text)
                .map_err(|error| self.strange("list the objects", &error))?;
            let before = objects.len();
            objects.extend(page.contents.into_iter().map(|o| (o.key, o.size.unwrap_or(0))));
            match page.next_continuation_token {
                // One that gives the same page again would be asked for ever.
                Some(_) if objects.len() == before => {
                    return Err(self.strange("list the objects", &"a page has nothing new"));
                }
                Some(next) => token = Some(next),
                None => return Ok(objects),
            }
        }
    }

    /// A small object, of at most `limit` bytes.
    ///
    /// # Errors
    /// If there is none, or it is larger, or the store does not give it.
    pub fn get(&self, object: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let what = format!("read {object}");
        let time = REQUEST + carried(limit);
        let action = self.bucket.get_object(Some(&self.credentials), object);
        self.tried(&what, || {
            let url = action.sign(SIGNED);
            let response =
                self.http.get(url.as_str()).config().timeout_global(Some(time)).build().call();
            let mut response = self.judged(&what, response)?;
            let reader = response.body_mut().with_config().limit(limit.saturating_add(1)).reader();
            let mut content = Vec::new();
            let read = reader.take(limit.saturating_add(1)).read_to_end(&mut content);
            read.map_err(|error| Attempt::Again(error.to_string()))?;
            if content.len() as u64 > limit {
                let text = format!("{object} has more than {limit} bytes");
                return Err(Attempt::Over(Error::Answer(text)));
            }
            Ok(content)
        })
    }

    /// Puts a small object, as a whole or not at all.
    ///
    /// # Errors
    /// If the store does not take it. It may be there all the same if the answer was lost.
    pub fn put(&self, object: &str, content: &[u8]) -> Result<(), Error> {
        let what = format!("write {object}");
        let time = REQUEST + carried(content.len() as u64);
        let action = self.bucket.put_object(Some(&self.credentials), object);
        self.text(&what, || {
            let url = action.sign(SIGNED);
            self.http.put(url.as_str()).config().timeout_global(Some(time)).build().send(content)
        })
        .map(drop)
    }

    /// Deletes an object; one that is not there is deleted.
    ///
    /// # Errors
    /// If the store does not do it.
    pub fn delete(&self, object: &str) -> Result<(), Error> {
        let action = self.bucket.delete_object(Some(&self.credentials), object);
        let deleted = self.text(&format!("delete {object}"), || {
            let url = action.sign(SIGNED);
            self.http.delete(url.as_str()).config().timeout_global(Some(REQUEST)).build().call()
        });
        match deleted {
            Ok(_) => Ok(()),
            // The object is not there; that the bucket is not says the listing before.
            Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn begin(&self, object: &str) -> Result<String, Error> {
        let what = format!("begin to write {object}");
        let action = self.bucket.create_multipart_upload(Some(&self.credentials), object);
        let text = self.text(&what, || {
            let url = action.sign(SIGNED);
            self.http.post(url.as_str()).config().timeout_global(Some(REQUEST)).build().send_empty()
        })?;
        let parsed = CreateMultipartUpload::parse_response(&text);
        let parsed = parsed.map_err(|error| self.strange(&what, &error))?;
        Ok(parsed.upload_id().to_owned())
    }

    fn part(&self, object: &str, id: &str, number: u16, content: &[u8]) -> Result<String, Error> {
        let what = format!("write part {number} of {object}");
        let time = REQUEST + carried(content.len() as u64);
        let action = self.bucket.upload_part(Some(&self.credentials), object, number, id);
        self.tried(&what, || {
            let url = action.sign(SIGNED);
            let sent = self.http.put(url.as_str()).config().timeout_global(Some(time)).build();
            let response = self.judged(&what, sent.send(content))?;
            let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok());
            tag.map(str::to_owned)
                .ok_or_else(|| Attempt::Over(self.strange(&what, &"the part has no ETag")))
        })
    }

    fn complete(&self, object: &str, id: &str, tags: &[String]) -> Result<(), Error> {
        let what = format!("finish {object}");
        // It may have been done when the answer was lost, and is unknown then.
        let mut asked = false;
        self.tried(&what, || {
            let tags = tags.iter().map(String::as_str);
            let action = CompleteMultipartUpload::new(
                &self.bucket,
                Some(&self.credentials),
                object,
                id,
                tags,
            );
            let url = action.sign(SIGNED);
            let body = action.body();
            let again = std::mem::replace(&mut asked, true);
            // Stores put the parts together meanwhile.
            let time = Some(REQUEST * 10);
            let sent =
                self.http.post(url.as_str()).config().timeout_global(time).build().send(&body);
            let mut response = match self.judged(&what, sent) {
                Err(Attempt::Over(Error::NotFound(_))) if again => return Ok(()),
                judged => judged?,
            };
            let text = read_text(&mut response).map_err(Attempt::Again)?;
            // It is possible to fail after having said that it goes well.
            CompleteMultipartUploadResponse::parse(&text)
                .map(drop)
                .map_err(|_| Attempt::Again(message(&text)))
        })
    }

    fn abort(&self, object: &str, id: &str) {
        let action = AbortMultipartUpload::new(&self.bucket, Some(&self.credentials), object, id);
        let url = action.sign(SIGNED);
        // Once, and not for long: whatever is left of it is no object.
        let sent = self.http.delete(url.as_str()).config().timeout_global(Some(CONNECT)).build();
        drop(sent.call());
    }

    /// Bytes of an object from `from` on, at most `length`, and how many the object has.
    fn range(&self, object: &str, from: u64, length: u64) -> Result<(Vec<u8>, u64), Error> {
        let what = format!("read {object}");
        let time = REQUEST + carried(length);
        let mut action = self.bucket.get_object(Some(&self.credentials), object);
        let range = format!("bytes={from}-{}", from + length - 1);
        let headers: &mut Map<'_> = action.headers_mut();
        headers.insert("range", range.clone());
        self.tried(&what, || {
            let url = action.sign(SIGNED);
            let request = self.http.get(url.as_str()).header("range", range.as_str());
            let response = request.config().timeout_global(Some(time)).build().call();
            let mut response = self.judged(&what, response)?;
            let total =
                response.headers().get("content-range").and_then(|value| value.to_str().ok());
            let total = total.and_then(|value| value.rsplit_once('/')?.1.parse::<u64>().ok());
            let Some(total) = total.filter(|_| response.status().as_u16() == 206) else {
                let error = self.strange(&what, &"it does not give parts of objects");
                return Err(Attempt::Over(error));
            };
            let mut content = Vec::new();
            let reader = response.body_mut().with_config().limit(length + 1).reader();
            let read = reader.take(length).read_to_end(&mut content);
            read.map_err(|error| Attempt::Again(error.to_string()))?;
            let expected = length.min(total.saturating_sub(from));
            if content.len() as u64 != expected {
                return Err(Attempt::Again("a part of the object came short".to_owned()));
            }
            Ok((content, total))
        })
    }

    /// Does what is tried again, and reads the answer as text.
    fn text(
        &self,
        what: &str,
        call: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<String, Error> {
        self.tried(what, || {
            let mut response = self.judged(what, call())?;
            read_text(&mut response).map_err(Attempt::Again)
        })
    }

    /// Tries until it works, can not work, or the time is over.
    fn tried<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> Result<T, Attempt>,
    ) -> Result<T, Error> {
        let (began, mut pause) = (Instant::now(), PAUSE);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Attempt::Over(error)) => return Err(error),
                Err(Attempt::Again(why)) if began.elapsed() + pause > self.patience => {
                    let at = self.bucket.base_url();
                    let text = format!("could not {what} at {at}: {why}");
                    return Err(Error::Unreachable(text));
                }
                Err(Attempt::Again(_)) => {}
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.stop.load(Ordering::Relaxed) {
                thread::sleep(LOOK.min(pause));
            }
            pause = (pause * 2).min(PAUSE_AT_MOST);
        }
    }

    fn judged(
        &self,
        what: &str,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Attempt> {
        let mut response = response.map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Tls(_) => {
                Attempt::Over(Error::Place(format!("could not {what}: {error}")))
            }
            ureq::Error::Rustls(_) => Attempt::Over(Error::Place(format!(
                "could not {what}: the store's certificate is not trusted here: {error}"
            ))),
            error => Attempt::Again(error.to_string()),
        })?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        let said = message(&read_text(&mut response).unwrap_or_default());
        let text =
            format!("could not {what} at {}: {said} (HTTP {status})", self.bucket.base_url());
        Err(match status {
            401 | 403 => Attempt::Over(Error::Denied(text)),
            404 => Attempt::Over(Error::NotFound(text)),
            408 | 429 | 500.. => Attempt::Again(format!("{said} (HTTP {status})")),
            _ => Attempt::Over(Error::Answer(text)),
        })
    }

    fn strange(&self, what: &str, why: &dyn fmt::Display) -> Error {
        let at = self.bucket.base_url();
        Error::Answer(format!("could not {what} at {at}: its answer is not understood: {why}"))
    }
}

/// How long so many bytes may take.
fn carried(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST)
}

fn read_text(response: &mut Response<Body>) -> Result<String, String> {
    let text = response.body_mut().with_config().limit(ANSWER).read_to_string();
    text.map_err(|error| error.to_string())
}

/// What a store says in an error's XML, for people.
fn message(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(value.chars().take(200).filter(|c| !c.is_control()).collect::<String>())
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code,
        _ => "it says nothing".to_owned(),
    }
}

/// What calls a server at a URL, once for each call: redirects are not followed. `whole` is how long a call may take in all.
///
/// # Errors
/// If the authorities of the machine can not be read where they are needed.
pub(crate) fn http(url: &str, whole: Option<Duration>) -> Result<Agent, Error> {
    let roots = if url.starts_with("https:") { authorities()? } else { Vec::new() };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    let tls = tls.root_certs(RootCerts::Specific(Arc::new(roots))).build();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_global(whole)
        .user_agent(concat!("ashlar/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls);
    Ok(config.build().new_agent())
}

/// Who vouches for stores on this machine (`SSL_CERT_FILE` names others).
fn authorities() -> Result<Vec<Certificate<'static>>, Error> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(Error::Place(format!(
            "this machine has no certificates of authorities that vouch for a store{why}"
        )));
    }
    Ok(found.certs.iter().map(|one| Certificate::from_der(one.as_ref()).to_owned()).collect())
}
