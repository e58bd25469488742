//! TLS 1.3 with keys that both ends have (PSK), instead of certificates: the file with the keys of clients,
//! and a server's handshake without I/O. s2n-tls has the handshake, as rustls has none of this kind; who
//! uses it takes the secrets of both directions, and makes the records of the traffic itself.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::task::Poll;

use libc::{c_int, c_void};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, PskHmac, Version};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use zeroize::Zeroizing;

/// Bytes of a key, from (RFC 9257 §6) and to.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;
/// Keys of a file: each is compared with each that a stranger names.
const KEYS_MAX: usize = 1024;
/// Bytes of a file.
const FILE_MAX: u64 = 1 << 20;
/// TLS 1.3 alone, with AES-GCM first.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// Why a handshake does not lead to a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The client names none of the keys, or has another one of that name.
    Unknown,
    /// It can not be understood, or what both ends know does not fit: the library's words.
    Failed(String),
    /// The ends have agreed on a cipher that is not served.
    Cipher(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unknown => f.write_str(
                "it has no key of the file keys.psk, or not the same; TLS 1.3 with PSK is served and nothing else",
            ),
            Refused::Failed(why) => write!(f, "the TLS handshake failed: {why}"),
            Refused::Cipher(name) => write!(
                f,
                "the TLS handshake failed: {name} is not served; the client should offer AES-GCM"
            ),
        }
    }
}

impl std::error::Error for Refused {}

fn failed(error: &Error) -> Refused {
    match error.name() {
        // Without a key that both have, the handshake would be one with certificates.
        "S2N_ERR_BAD_PSK_BINDER" | "S2N_ERR_NO_VALID_SIGNATURE_SCHEME" => Refused::Unknown,
        name => Refused::Failed(format!("{} ({name})", error.message())),
    }
}

/// The keys of clients, by their names.
#[derive(Debug)]
pub struct Keys(Vec<Psk>);

impl Keys {
    /// Reads a file as `psktool` of GnuTLS makes it: lines `NAME:KEY`, the key in hexadecimal.
    ///
    /// # Errors
    /// Which line can not be used, and why; its key is not told.
    pub fn read(path: &Path) -> Result<Keys, String> {
        let about = |why: String| format!("{}: {why}", path.display());
        let len = std::fs::metadata(path).map_err(|e| about(e.to_string()))?.len();
        if len > FILE_MAX {
            return Err(about(format!(
                "it has {len} bytes; a file of keys has at most {FILE_MAX}"
            )));
        }
        let text = std::fs::read(path).map_err(|e| about(e.to_string()))?;
        Keys::parse(&Zeroizing::new(text)).map_err(about)
    }

    fn parse(text: &[u8]) -> Result<Keys, String> {
        let mut found = BTreeMap::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let about = |why: &str| format!("line {}: {why}", number + 1);
            let at = line.iter().rposition(|byte| *byte == b':');
            let (name, key) = at
                .map(|at| (&line[..at], &line[at + 1..]))
                .ok_or_else(|| about("it is not NAME:KEY"))?;
            if name.is_empty() || name.len() > 128 {
                return Err(about("a name has 1 to 128 bytes"));
            }
            let key = unhex(key).ok_or_else(|| about("the key is not in hexadecimal"))?;
            if !KEY_BYTES.contains(&key.len()) {
                return Err(about("a key has 16 to 1024 bytes"));
            }
            if found.insert(name, (number, key)).is_some() {
                return Err(about("there is a key of that name before"));
            }
        }
        if found.is_empty() {
            return Err("there is no key in it".to_owned());
        }
        if found.len() > KEYS_MAX {
            return Err(format!("it has {} keys; at most {KEYS_MAX} are served", found.len()));
        }
        let psks = found.into_iter().map(|(name, (number, key))| {
            psk(name, &key).map_err(|e| format!("line {}: {}", number + 1, e.message()))
        });
        psks.collect::<Result<_, _>>().map(Keys)
    }
}

fn unhex(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.chunks(2);
    let bytes = pairs.map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    bytes.collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}

/// A key for which nothing else is said is one for SHA-256 (RFC 8446 §4.2.11).
fn psk(name: &[u8], key: &[u8]) -> Result<Psk, Error> {
    let mut builder = Psk::builder()?;
    builder.set_identity(name)?.set_secret(key)?.set_hmac(PskHmac::SHA256)?;
    builder.build()
}

/// What s2n-tls reads and writes, and what it tells. It has a pointer to this.
#[derive(Default)]
struct Ends {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    client: Option<Zeroizing<Vec<u8>>>,
    server: Option<Zeroizing<Vec<u8>>>,
}

/// The secrets of both directions' traffic (RFC 8446 §7.1), of TLS_AES_128_GCM_SHA256 where they have 32 bytes
/// and TLS_AES_256_GCM_SHA384 where they have 48. Nothing was sealed by keys of theirs.
pub struct Secrets {
    /// Of what the client sends.
    pub client: Zeroizing<Vec<u8>>,
    /// Of what the server sends.
    pub server: Zeroizing<Vec<u8>>,
}

/// A handshake under way.
#[derive(Debug)]
pub struct Handshake {
    /// Dropped before what it points to.
    connection: Option<Connection>,
    ends: NonNull<Ends>,
}

// SAFETY: `ends` is a box that nobody else has a pointer to but `connection`, which uses it in calls of this
// value's methods alone; `Connection` may be sent itself.
unsafe impl Send for Handshake {}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.connection = None;
        // SAFETY: it was leaked by `over`, is dropped here alone, and the connection that has the other
        // pointer is gone.
        drop(unsafe { Box::from_raw(self.ends.as_ptr()) });
    }
}

impl Handshake {
    /// The server's side.
    ///
    /// # Errors
    /// Why it can not begin.
    pub fn new(keys: &Keys) -> Result<Handshake, Refused> {
        Handshake::over(keys, Connection::new_server).map_err(|error| failed(&error))
    }

    fn over(keys: &Keys, side: fn() -> Connection) -> Result<Handshake, Error> {
        let ends = NonNull::from(Box::leak(Box::<Ends>::default()));
        // From here on it is freed with this.
        let mut handshake = Handshake { connection: None, ends };
        let context = ends.as_ptr().cast::<c_void>();
        let mut config = Config::builder();
        config.set_security_policy(&Policy::from_version(POLICY)?)?;
        // SAFETY: `Ends` live longer than the connection, the only one that has this configuration.
        unsafe { config.set_key_log_callback(Some(tell), context)? };
        let mut connection = side();
        connection.set_config(config.build()?)?;
        // Nothing is to be learnt of the time that a refusal takes; and a thread is not held for it.
        connection.set_blinding(Blinding::SelfService)?;
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        // SAFETY: as above.
        unsafe {
            connection.set_receive_context(context)?;
            connection.set_send_context(context)?;
        }
        for psk in &keys.0 {
            connection.append_psk(psk)?;
        }
        handshake.connection = Some(connection);
        Ok(handshake)
    }

    /// # Safety
    /// The connection is not called as long as this is borrowed.
    unsafe fn ends(&mut self) -> &mut Ends {
        // SAFETY: the box is this value's; the only other pointer is used within calls of the connection.
        unsafe { self.ends.as_mut() }
    }

    /// Takes what has arrived from `incoming`, as far as it is the handshake's, and appends to `out` what is to be
    /// sent: after an error, too. True if it is over.
    ///
    /// # Errors
    /// Why there will be no connection.
    pub fn advance(&mut self, incoming: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<bool, Refused> {
        // SAFETY: the borrow ends with the statement.
        unsafe { self.ends() }.incoming.append(incoming);
        let Some(connection) = &mut self.connection else { return Ok(true) };
        let done = match connection.poll_negotiate() {
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => {
                let refused = failed(&error);
                // The alert for the client.
                let _ = connection.poll_shutdown();
                Err(refused)
            }
        };
        // SAFETY: the connection is not called before the end of this function.
        let ends = unsafe { self.ends() };
        out.append(&mut ends.outgoing);
        incoming.append(&mut ends.incoming);
        done
    }

    /// The secrets, once it is over.
    ///
    /// # Errors
    /// The ciphers of the connection are not served.
    pub fn finish(mut self) -> Result<Secrets, Refused> {
        let fail = |error: Error| failed(&error);
        let connection = self.connection.take();
        let connection = connection.ok_or_else(|| Refused::Failed("it is over".to_owned()))?;
        let cipher = connection.cipher_suite().map_err(fail)?;
        let is_served = matches!(cipher, "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384");
        let version = connection.actual_protocol_version().map_err(fail)?;
        if !is_served || version != Version::TLS13 {
            return Err(Refused::Cipher(format!("{version:?} with {cipher}")));
        }
        // A handshake with certificates has no name of a key.
        if connection.negotiated_psk_identity_length().map_err(fail)? == 0 {
            return Err(Refused::Unknown);
        }
        drop(connection);
        // SAFETY: there is no connection any more.
        let ends = unsafe { self.ends() };
        match (ends.client.take(), ends.server.take()) {
            (Some(client), Some(server)) => Ok(Secrets { client, server }),
            _ => Err(Refused::Failed("it has told no secrets".to_owned())),
        }
    }
}

/// There is nothing to be read now.
fn would_block() -> c_int {
    // SAFETY: the pointer is to this thread's number.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}

/// What s2n-tls reads by.
///
/// # Safety
/// `context` points to [`Ends`] that nobody borrows, `to` to `len` bytes that can be written.
unsafe extern "C" fn receive(context: *mut c_void, to: *mut u8, len: u32) -> c_int {
    // SAFETY: by the contract, see `Handshake::over`.
    let ends = unsafe { &mut *context.cast::<Ends>() };
    let taken = ends.incoming.len().min(len as usize).min(c_int::MAX as usize);
    if taken == 0 {
        return would_block();
    }
    // SAFETY: `taken` is at most what there is, and at most what `to` has; the two do not overlap.
    unsafe { to.copy_from_nonoverlapping(ends.incoming.as_ptr(), taken) };
    ends.incoming.drain(..taken);
    taken as c_int
}

/// What it writes by.
///
/// # Safety
/// `context` points to [`Ends`] that nobody borrows, `from` to `len` bytes.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, len: u32) -> c_int {
    // SAFETY: by the contract, see `Handshake::over`.
    let ends = unsafe { &mut *context.cast::<Ends>() };
    let len = len.min(c_int::MAX as u32);
    // SAFETY: there are that many bytes, by the contract.
    ends.outgoing.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len as usize) });
    len as c_int
}

/// What it tells secrets by: a line of NSS's key log, `LABEL RANDOM SECRET`.
///
/// # Safety
/// `context` points to [`Ends`] that nobody borrows, `line` to `len` bytes.
unsafe extern "C" fn tell(
    context: *mut c_void,
    _connection: *mut s2n_tls::ffi::s2n_connection,
    line: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: by the contract, see `Handshake::over`.
    let ends = unsafe { &mut *context.cast::<Ends>() };
    // SAFETY: there are that many bytes, by the contract.
    let line = unsafe { std::slice::from_raw_parts(line, len) };
    let mut words = line.split(|byte| *byte == b' ');
    let (label, secret) = (words.next(), words.nth(1).and_then(unhex));
    match label {
        Some(b"CLIENT_TRAFFIC_SECRET_0") => ends.client = secret,
        Some(b"SERVER_TRAFFIC_SECRET_0") => ends.server = secret,
        _ => {}
    }
    0
}

#[cfg(test)]
mod tests;
