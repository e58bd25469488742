//! The controller's end of the link to its agents: gRPC over mutual TLS, on a thread of its own.
//!
//! - `authority`: certificates and tokens. `service`: what agents may call. Here: the listener.
//!
//! Orders go in by [`Agents::send`], which never waits; what is heard comes out by a function that
//! the controller gives, called on the link's thread: it has to return at once.

pub mod authority;
mod service;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use api::link::{Agents, Heard, Order};
use api::wire::proto::controller_server::ControllerServer;
use api::wire::{KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS, MESSAGE_MAX};
use cluster::name::NodeName;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use crate::tls;
use authority::{Authority, Joins};
use service::{Links, Service};

/// Handshakes that are done and wait for the server; more are not accepted meanwhile.
const ACCEPTED: usize = 64;

/// Where the link listens, and as whom.
#[derive(Clone)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Who says who is who.
    pub authority: Arc<Authority>,
    /// Who keeps the tokens by which nodes join.
    pub joins: Arc<dyn Joins>,
}

/// The link. It ends when this is dropped.
pub struct Link {
    address: SocketAddr,
    authority: Arc<Authority>,
    links: Arc<Links>,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Begins to listen. `log` takes lines for people.
    ///
    /// # Errors
    /// If the address can not be listened on.
    pub fn listen(
        options: &Options,
        heard: impl Fn(Heard) + Send + Sync + 'static,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Link> {
        let authority = options.authority.clone();
        authority.server().map_err(io::Error::other)?;
        let listener = TcpListener::bind(options.listen).map_err(|error| {
            let text = format!("the link can not listen on {}: {error}", options.listen);
            io::Error::new(error.kind(), text)
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let links = Arc::new(Links::new(Box::new(heard), Box::new(log)));
        let (end, ended) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let service = Service {
            authority: authority.clone(),
            joins: options.joins.clone(),
            links: links.clone(),
        };
        let thread = std::thread::Builder::new().name("link".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, service, ended));
        })?;
        Ok(Link { address, authority, links, end, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The authority: it makes the tokens by which nodes join.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }
}

impl Agents for Link {
    fn send(&self, node: &NodeName, order: Order) {
        self.links.send(node, &order);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The thread is gone already if nobody listens.
        let _ = self.end.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: tokio::net::TcpListener,
    service: Service,
    mut ended: watch::Receiver<bool>,
) {
    let (accepted, incoming) = mpsc::channel(ACCEPTED);
    let incoming = ReceiverStream::new(incoming).map(|(stream, _)| Ok::<_, io::Error>(stream));
    let (authority, links) = (service.authority.clone(), service.links.clone());
    let service = ControllerServer::new(service)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let speaker = links.clone();
    let say = move |line: &str| speaker.log(line);
    let server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(KEEPALIVE_SECONDS)))
        .http2_keepalive_timeout(Some(Duration::from_secs(KEEPALIVE_TIMEOUT_SECONDS)))
        .add_service(service)
        .serve_with_incoming(incoming);
    tokio::select! {
        result = server => {
            if let Err(error) = result {
                links.log(&format!("the link has ended: {error}"));
            }
        }
        () = tls::accept(listener, move || authority.server(), say, accepted) => {}
        // An error says that the sender is gone, which is the end, too.
        _ = ended.changed() => {}
    }
}
