//! Becoming known to a controller, and staying so.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::token::Token;
use api::wire::proto::controller_client::ControllerClient;
use api::wire::proto::{Certificate, JoinRequest, RenewRequest};
use api::wire::{CONTROLLER, KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS, MESSAGE_MAX};
use cluster::name::NodeName;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::identity::{Identity, stranger};
use crate::report::now;

/// How long connecting and a call may take.
const CALL: Duration = Duration::from_secs(15);
/// How long one of several controllers may take to answer.
const DIAL: Duration = Duration::from_secs(4);

/// Why a node did not join.
#[derive(Debug)]
pub enum JoinError {
    /// The controller was not reached, or is another one.
    NotReached {
        /// Its address.
        address: String,
        /// Why, in words.
        why: String,
    },
    /// The controller refused.
    Refused(String),
    /// What it gave could not be kept.
    NotKept(io::Error),
    /// A key could not be made.
    NoKey(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::NotReached { address, why } => write!(
                f,
                "the controller at {address} was not reached, or is not the one of the token: \
                 {why}; check the address and the token"
            ),
            JoinError::Refused(why) => write!(f, "the controller refused: {why}"),
            JoinError::NotKept(error) => write!(
                f,
                "the certificate could not be kept: {error}; see to the folder, then join with a \
                 new token"
            ),
            JoinError::NoKey(why) => write!(f, "no key could be made: {why}"),
        }
    }
}

impl std::error::Error for JoinError {}

/// Joins a cluster as `node`: makes a key, has it signed, and keeps that in the agent's folder.
///
/// # Errors
/// Why not; an identity that was there before stays then.
pub fn join(directory: &Path, node: &NodeName, token: &Token) -> Result<Identity, JoinError> {
    std::fs::create_dir_all(directory).map_err(JoinError::NotKept)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(JoinError::NotKept)?;
    runtime.block_on(async {
        let not_reached =
            |why: String| JoinError::NotReached { address: token.address.clone(), why };
        let config = stranger(token.authority).map_err(|e| not_reached(e.to_string()))?;
        let channel = channel(&token.address, config).await.map_err(not_reached)?;
        let (key, request) = key_and_request().map_err(JoinError::NoKey)?;
        let (node, secret) = (node.clone(), token.secret.to_vec());
        let request = JoinRequest { node: node.to_string(), secret, request };
        let answer = client(channel).join(request).await;
        let answer = answer.map_err(|status| JoinError::Refused(status.message().to_owned()))?;
        let identity = identity(node, token.address.clone(), key, answer.into_inner());
        identity.write(directory).map_err(JoinError::NotKept)?;
        Ok(identity)
    })
}

/// A new certificate for a new key, kept.
pub(super) async fn renew(
    directory: &Path,
    old: &Identity,
    channel: Channel,
) -> Result<Identity, String> {
    let (key, request) = key_and_request()?;
    let request = RenewRequest { node: old.node.to_string(), request };
    let answer = client(channel).renew(request).await;
    let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
    let new = identity(old.node.clone(), old.controller.clone(), key, answer);
    new.write(directory).map_err(|error| error.to_string())?;
    Ok(new)
}

fn identity(node: NodeName, controller: String, key: Vec<u8>, answer: Certificate) -> Identity {
    let Certificate { certificate, authority, not_after_ms } = answer;
    let since_ms = now().0;
    Identity { node, controller, key, certificate, authority, since_ms, until_ms: not_after_ms }
}

fn key_and_request() -> Result<(Vec<u8>, Vec<u8>), String> {
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    // Who the certificate is for is the controller's to say.
    let request = CertificateParams::default().serialize_request(&key);
    let request = request.map_err(|error| error.to_string())?;
    Ok((key.serialize_der(), request.der().to_vec()))
}

pub(super) fn client(channel: Channel) -> ControllerClient<Channel> {
    ControllerClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX)
}

/// A connection to the controller, which notices within seconds that it is cut.
pub(super) async fn channel(address: &str, config: ClientConfig) -> Result<Channel, String> {
    // The name is that of the certificate; the address is where the connector goes.
    let endpoint = Endpoint::from_static("http://controller.ashlar.internal")
        .connect_timeout(CALL)
        .http2_keep_alive_interval(Duration::from_secs(KEEPALIVE_SECONDS))
        .keep_alive_timeout(Duration::from_secs(KEEPALIVE_TIMEOUT_SECONDS))
        .keep_alive_while_idle(true);
    let (address, config) = (address.to_owned(), Arc::new(config));
    let connector = service_fn(move |_: Uri| {
        let (address, config) = (address.clone(), config.clone());
        async move {
            // Of several controllers only the one that leads listens.
            let mut why = io::Error::other("there is no address");
            for address in address.split(',') {
                match tokio::time::timeout(DIAL, dial(address, config.clone())).await {
                    Ok(Ok(stream)) => return Ok(TokioIo::new(stream)),
                    Ok(Err(error)) => why = error,
                    Err(_) => why = io::Error::other(format!("{address} does not answer")),
                }
            }
            Err(why)
        }
    });
    let connected = tokio::time::timeout(CALL, endpoint.connect_with_connector(connector)).await;
    connected.map_err(|_| "no answer in time".to_owned())?.map_err(|error| causes(&error))
}

async fn dial(address: &str, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(CONTROLLER).map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, socket).await
}

/// An error with its causes, which say what really happened.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
