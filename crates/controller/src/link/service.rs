//! What agents may call, and who they are.
//!
//! A node is known by its certificate. The name in its greeting says which one it means to be, and
//! a certificate for another node is refused.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::link::{Heard, News, Order};
use api::wire::proto::controller_server::Controller;
use api::wire::proto::{
    AgentGreeting, Certificate, ControllerGreeting, FromAgent, JoinRequest, RenewRequest, ToAgent,
    from_agent, to_agent,
};
use api::wire::{self, node_subject};
use cluster::name::NodeName;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Request, Response, Status, Streaming};

use super::authority::{Authority, Denied, Issued, Joins};

/// How long a new link may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);

/// Orders that wait for a slow agent. What finds no room is in the next plan again.
const ORDERS: usize = 1024;

/// The links that there are.
pub(super) struct Links {
    heard: Box<dyn Fn(Heard) + Send + Sync>,
    log: Box<dyn Fn(&str) + Send + Sync>,
    current: Mutex<Current>,
}

/// The newest link of each node, and how many there have been.
#[derive(Default)]
struct Current {
    count: u64,
    senders: BTreeMap<NodeName, (u64, Sender)>,
}

type Sender = mpsc::Sender<Result<ToAgent, Status>>;

impl Links {
    pub(super) fn new(
        heard: Box<dyn Fn(Heard) + Send + Sync>,
        log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Links {
        Links { heard, log, current: Mutex::default() }
    }

    pub(super) fn log(&self, text: &str) {
        (self.log)(text);
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The newest link of the node: an older one ends, for nobody sends to it any more.
    fn begin(&self, node: &NodeName, sender: Sender) -> u64 {
        let mut current = self.lock();
        current.count += 1;
        let link = current.count;
        current.senders.insert(node.clone(), (link, sender));
        link
    }

    fn end(&self, node: &NodeName, link: u64) {
        let mut current = self.lock();
        if current.senders.get(node).is_some_and(|(newest, _)| *newest == link) {
            current.senders.remove(node);
        }
        drop(current);
        (self.heard)(Heard { node: node.clone(), link, news: None });
    }

    pub(super) fn send(&self, node: &NodeName, order: &Order) {
        let sender = self.lock().senders.get(node).map(|(_, sender)| sender.clone());
        let Some(sender) = sender else { return };
        let message = Some(to_agent::Message::Order(order.into()));
        if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send(Ok(ToAgent { message })) {
            self.log(&format!("{node} does not take its orders: {ORDERS} wait, one is dropped"));
        }
    }
}

/// The service.
pub(super) struct Service {
    pub(super) authority: Arc<Authority>,
    pub(super) joins: Arc<dyn Joins>,
    pub(super) links: Arc<Links>,
}

type Answer = Pin<Box<dyn Stream<Item = Result<ToAgent, Status>> + Send>>;

#[tonic::async_trait]
impl Controller for Service {
    type LinkStream = Answer;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
        let JoinRequest { node, secret, request } = request.into_inner();
        let node = node_name(&node)?;
        let issued = self.authority.join(&*self.joins, &node, &secret, &request).await;
        match &issued {
            Ok(_) => self.links.log(&format!("{node} has joined")),
            Err(why) => self.links.log(&format!("{node} may not join: {why:?}")),
        }
        self.certificate(issued)
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        let certificate = certificate(&request)?;
        let RenewRequest { node, request } = request.into_inner();
        let node = self.known(&certificate, &node)?;
        self.certificate(self.authority.renew(&node, &request))
    }

    async fn link(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Answer>, Status> {
        let certificate = certificate(&request)?;
        let mut stream = request.into_inner();
        let first = tokio::time::timeout(GREETING, stream.next()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no greeting came"))?;
        let Some(from_agent::Message::Greeting(greeting)) =
            first.transpose()?.and_then(|first| first.message)
        else {
            return Err(Status::invalid_argument("the first message has to be a greeting"));
        };
        let (node, protocol) = self.accept(&certificate, &greeting)?;
        let (sender, receiver) = mpsc::channel(ORDERS);
        let hello = ControllerGreeting { protocol, release: env!("CARGO_PKG_VERSION").to_owned() };
        let message = Some(to_agent::Message::Greeting(hello));
        // There is room for the first.
        let _ = sender.try_send(Ok(ToAgent { message }));
        let link = self.links.begin(&node, sender);
        tokio::spawn(listen(self.links.clone(), node, link, stream));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Service {
    /// The node that is named, if the certificate is that one's.
    fn known(&self, certificate: &CertificateDer<'_>, node: &str) -> Result<NodeName, Status> {
        let node = node_name(node)?;
        if is_for(certificate, &node) {
            return Ok(node);
        }
        let text = format!("the certificate is not for node {node}; let this node join as {node}");
        self.links.log(&format!("a call was refused: {text}"));
        Err(Status::permission_denied(text))
    }

    /// Who the certificate is for, if it is the one that the greeting names.
    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        greeting: &AgentGreeting,
    ) -> Result<(NodeName, u32), Status> {
        let node = self.known(certificate, &greeting.node)?;
        let (min, max) = (greeting.protocol_min, greeting.protocol_max);
        let Some(protocol) = wire::agreed(min, max) else {
            let text = format!(
                "the agent of {node} (release {}) speaks the link's versions {min} to {max}, this \
                 controller {} to {}; use releases that follow each other",
                greeting.release,
                wire::PROTOCOL_MIN,
                wire::PROTOCOL
            );
            self.links.log(&text);
            return Err(Status::failed_precondition(text));
        };
        Ok((node, protocol))
    }

    fn certificate(&self, issued: Result<Issued, Denied>) -> Result<Response<Certificate>, Status> {
        match issued {
            Ok(Issued { certificate, not_after_ms }) => Ok(Response::new(Certificate {
                certificate,
                authority: self.authority.certificate().to_vec(),
                not_after_ms,
            })),
            Err(Denied::Token(why)) => Err(Status::permission_denied(why)),
            Err(Denied::Request(why)) => Err(Status::invalid_argument(format!(
                "the request for a certificate can not be used: {why}"
            ))),
            Err(Denied::Store(why)) => Err(Status::internal(format!(
                "the controller can not read or write its tokens: {why}"
            ))),
        }
    }
}

/// Passes on what an agent says, until the link ends.
async fn listen(links: Arc<Links>, node: NodeName, link: u64, mut stream: Streaming<FromAgent>) {
    links.log(&format!("{node} is linked"));
    loop {
        match stream.next().await {
            Some(Ok(FromAgent { message: Some(from_agent::Message::News(news)) })) => {
                match News::try_from(&news) {
                    Ok(news) => {
                        (links.heard)(Heard { node: node.clone(), link, news: Some(news) });
                    }
                    // A newer agent may say more than is known here.
                    Err(why) => links.log(&format!("{node}: {why}")),
                }
            }
            Some(Ok(_)) => {}
            Some(Err(status)) => {
                links.log(&format!("{node} is not linked any more: {}", status.message()));
                break;
            }
            None => {
                links.log(&format!("{node} is not linked any more"));
                break;
            }
        }
    }
    links.end(&node, link);
}

/// The certificate of whoever calls. It was verified in the handshake, if there is one.
fn certificate<T>(request: &Request<T>) -> Result<CertificateDer<'static>, Status> {
    let info = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let certificates = info.and_then(TlsConnectInfo::peer_certs);
    let first = certificates.and_then(|certificates| certificates.first().cloned());
    first.ok_or_else(|| Status::unauthenticated("a certificate is needed; let the node join first"))
}

fn is_for(certificate: &CertificateDer<'_>, node: &NodeName) -> bool {
    let name = ServerName::try_from(node_subject(node.as_str()));
    let parsed = ParsedCertificate::try_from(certificate);
    matches!((parsed, name), (Ok(parsed), Ok(name)) if verify_server_name(&parsed, &name).is_ok())
}

fn node_name(text: &str) -> Result<NodeName, Status> {
    NodeName::new(text).map_err(|refusal| Status::invalid_argument(refusal.to_string()))
}
