//! A small S3 server for tests, in memory: as much of the protocol as backups need. It checks the signature
//! of every request with code of its own, as Amazon describes it (Signature Version 4, in the query), and
//! can be made to fail.
#![allow(clippy::unwrap_used, reason = "it is a part of tests")]
#![allow(dead_code, reason = "each test uses its part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The only bucket.
pub const BUCKET: &str = "vault";
/// The only key's name.
pub const ACCESS: &str = "access-1";
/// The only key.
pub const SECRET: &str = "secret-1/+=";
/// The only region.
pub const REGION: &str = "eu-test-1";
/// Objects of a page of a listing: small, so that there are several.
const PAGE: usize = 3;

/// What it has, and what was asked of it.
#[derive(Default)]
pub struct Kept {
    /// Objects by name.
    pub objects: BTreeMap<String, Vec<u8>>,
    /// Unfinished uploads by id.
    pub uploads: BTreeMap<String, (String, BTreeMap<u16, Vec<u8>>)>,
    /// Requests that were answered, as `<method> <what>`.
    pub log: Vec<String>,
    /// So many requests fail with 503.
    pub fail: u32,
    /// From so many parts of uploads on, everything fails.
    pub fail_after_parts: Option<u32>,
    /// Each part takes so long.
    pub slow: Duration,
    /// Parts that were taken.
    pub parts: u32,
    next: u64,
}

/// A running server.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    ended: Arc<AtomicBool>,
}

impl Server {
    /// Starts one on a free port.
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (kept, ended) = (Arc::<Mutex<Kept>>::default(), Arc::<AtomicBool>::default());
        let (all, end) = (kept.clone(), ended.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (all, end) = (all.clone(), end.clone());
                thread::spawn(move || serve(stream.unwrap(), &all, &end));
            }
        });
        Server { address, kept, ended }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has.
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    /// Goes away: nobody is answered any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

struct Request {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>, ended: &AtomicBool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read(&mut reader) {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let pause = kept.lock().unwrap().slow;
        if request.method == "PUT" {
            thread::sleep(pause);
        }
        let (status, headers, body) = answer(&request, &mut kept.lock().unwrap());
        let mut head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let sent = stream.write_all((head + "\r\n").as_bytes());
        if sent.and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(key, value)| (decoded(key), decoded(value))).collect();
    Some(Request { method, path: path.to_owned(), query, headers, body })
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn error(status: u16, code: &str) -> Answer {
    let text =
        format!("<Error><Code>{code}</Code><Message>the test's server says so</Message></Error>");
    (status, Vec::new(), text.into_bytes())
}

fn xml(element: &str, content: &str) -> Answer {
    let space = "http://s3.amazonaws.com/doc/2006-03-01/";
    let text = format!("<{element} xmlns=\"{space}\">{content}</{element}>");
    (200, Vec::new(), text.into_bytes())
}

fn answer(request: &Request, kept: &mut Kept) -> Answer {
    kept.log.push(format!("{} {}", request.method, request.path));
    let gone = kept.fail_after_parts.is_some_and(|parts| kept.parts >= parts);
    if kept.fail > 0 || gone {
        kept.fail = kept.fail.saturating_sub(1);
        return error(503, "SlowDown");
    }
    let path = request.path.trim_start_matches('/');
    let host = request.headers.get("host").cloned().unwrap_or_default();
    let (bucket, object) = match host.starts_with(&format!("{BUCKET}.")) {
        true => (BUCKET, path),
        false => path.split_once('/').unwrap_or((path, "")),
    };
    if let Err(code) = verify(request) {
        return error(403, code);
    }
    if bucket != BUCKET {
        return error(404, "NoSuchBucket");
    }
    let object = decoded(object);
    match (request.method.as_str(), request.get("uploadId").map(str::to_owned)) {
        ("GET", _) if object.is_empty() => list(request, kept),
        ("GET", _) => get(request, kept.objects.get(&object)),
        ("DELETE", None) => {
            kept.objects.remove(&object);
            (204, Vec::new(), Vec::new())
        }
        ("DELETE", Some(id)) => match kept.uploads.remove(&id) {
            Some(_) => (204, Vec::new(), Vec::new()),
            None => error(404, "NoSuchUpload"),
        },
        ("POST", None) if request.get("uploads").is_some() => {
            kept.next += 1;
            let id = format!("upload-{}", kept.next);
            kept.uploads.insert(id.clone(), (object.clone(), BTreeMap::new()));
            let content =
                format!("<Bucket>{BUCKET}</Bucket><Key>{object}</Key><UploadId>{id}</UploadId>");
            xml("InitiateMultipartUploadResult", &content)
        }
        ("PUT", None) => {
            kept.objects.insert(object, request.body.clone());
            (200, vec![("ETag", tag(&request.body))], Vec::new())
        }
        ("PUT", Some(id)) => {
            let number = request.get("partNumber").unwrap().parse().unwrap();
            let Some((_, parts)) = kept.uploads.get_mut(&id) else {
                return error(404, "NoSuchUpload");
            };
            parts.insert(number, request.body.clone());
            kept.parts += 1;
            (200, vec![("ETag", tag(&request.body))], Vec::new())
        }
        ("POST", Some(id)) => complete(request, kept, &object, &id),
        _ => error(405, "MethodNotAllowed"),
    }
}

fn tag(content: &[u8]) -> String {
    format!("\"{}\"", &hex(&Sha256::digest(content))[..32])
}

fn complete(request: &Request, kept: &mut Kept, object: &str, id: &str) -> Answer {
    let Some((name, parts)) = kept.uploads.get(id) else { return error(404, "NoSuchUpload") };
    assert_eq!(name, object, "an upload is for one object");
    let text = String::from_utf8(request.body.clone()).unwrap().replace("&quot;", "\"");
    let tags: Vec<&str> =
        text.split("<ETag>").skip(1).map(|rest| rest.split_once("</ETag>").unwrap().0).collect();
    let there: Vec<String> = parts.values().map(|part| tag(part)).collect();
    if tags != there || !parts.keys().copied().eq(1..=there.len() as u16) {
        return error(400, "InvalidPart");
    }
    let small = parts
        .iter()
        .any(|(number, part)| part.len() < 5 << 20 && usize::from(*number) != parts.len());
    if small || parts.len() > 1000 {
        return error(400, "EntityTooSmall");
    }
    let content = parts.values().flatten().copied().collect::<Vec<u8>>();
    let tag = tag(&content);
    kept.uploads.remove(id);
    kept.objects.insert(object.to_owned(), content);
    let content = format!(
        "<Location>x</Location><Bucket>{BUCKET}</Bucket><Key>{object}</Key><ETag>{tag}</ETag>"
    );
    xml("CompleteMultipartUploadResult", &content)
}

fn list(request: &Request, kept: &Kept) -> Answer {
    assert_eq!(request.get("list-type"), Some("2"));
    let prefix = request.get("prefix").unwrap_or("");
    let after = request.get("continuation-token").unwrap_or("").to_owned();
    let found: Vec<_> = kept
        .objects
        .iter()
        .filter(|(name, _)| name.starts_with(prefix) && **name > after)
        .collect();
    let mut content =
        format!("<Name>{BUCKET}</Name><MaxKeys>{PAGE}</MaxKeys><EncodingType>url</EncodingType>");
    for (name, object) in found.iter().take(PAGE) {
        let (key, size) = (encoded(name, true), object.len());
        content += &format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>");
    }
    content += &format!("<IsTruncated>{}</IsTruncated>", found.len() > PAGE);
    if found.len() > PAGE {
        let token = found[PAGE - 1].0;
        content += &format!("<NextContinuationToken>{token}</NextContinuationToken>");
    }
    xml("ListBucketResult", &content)
}

fn get(request: &Request, object: Option<&Vec<u8>>) -> Answer {
    let Some(object) = object else { return error(404, "NoSuchKey") };
    let Some(range) = request.headers.get("range") else {
        return (200, vec![("ETag", tag(object))], object.clone());
    };
    let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let to = to.parse::<usize>().unwrap().min(object.len().saturating_sub(1));
    if from >= object.len() {
        return error(416, "InvalidRange");
    }
    let range = format!("bytes {from}-{to}/{}", object.len());
    (206, vec![("Content-Range", range)], object[from..=to].to_vec())
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Checks who asks, and that nothing was changed on the way.
fn verify(request: &Request) -> Result<(), &'static str> {
    let get = |name| request.get(name).ok_or("AccessDenied");
    let (credential, date) = (get("X-Amz-Credential")?, get("X-Amz-Date")?);
    let scope: Vec<&str> = credential.split('/').collect();
    let [access, day, REGION, "s3", "aws4_request"] = scope[..] else { return Err("AccessDenied") };
    if access != ACCESS {
        return Err("InvalidAccessKeyId");
    }
    let mut query: Vec<(String, String)> = request
        .query
        .iter()
        .filter(|(key, _)| key != "X-Amz-Signature")
        .map(|(key, value)| (encoded(key, false), encoded(value, false)))
        .collect();
    query.sort();
    let query: Vec<String> = query.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let signed = get("X-Amz-SignedHeaders")?;
    let headers: String = signed
        .split(';')
        .map(|name| format!("{name}:{}\n", request.headers.get(name).unwrap()))
        .collect();
    assert!(signed.split(';').any(|name| name == "host"));
    let canonical = format!(
        "{}\n{}\n{}\n{headers}\n{signed}\nUNSIGNED-PAYLOAD",
        request.method,
        encoded(&decoded(&request.path), true),
        query.join("&")
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{}\n{}",
        scope[1..].join("/"),
        hex(&Sha256::digest(canonical))
    );
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in [day, REGION, "s3", "aws4_request"] {
        key = keyed(&key, part);
    }
    let signature = hex(&keyed(&key, &text));
    if get("X-Amz-Signature")? == signature { Ok(()) } else { Err("SignatureDoesNotMatch") }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(text: &str, path: bool) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || path && byte == b'/';
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        match (first, more) {
            (b'%', [a, b, more @ ..]) => {
                let digits = [*a, *b];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = more;
            }
            (byte, more) => {
                bytes.push(*byte);
                rest = more;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
