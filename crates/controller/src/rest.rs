//! Where the REST API is served: HTTP on loopback addresses, HTTPS anywhere.
//!
//! Nothing is sent in the clear but to this host: a plain address that others reach, or one where
//! programs of this host need a token, only leads to HTTPS. Clients of LINSTOR ask there first and
//! follow (control plane §2.5).

use std::fmt;
use std::future::IntoFuture as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::serve::{Listener, ListenerExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::server::TlsStream;

use crate::log;
use crate::tls::{self, Certificates};

/// Handshakes that are done and wait for the server.
const ACCEPTED: usize = 64;

/// Why it is not served.
#[derive(Debug)]
pub enum Error {
    /// It would be open to others.
    Open(SocketAddr),
    /// It can not listen.
    Listen(SocketAddr, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open(address) => write!(
                f,
                "the REST API does not listen on {address} without encryption: tokens would be sent \
                 there for everybody to read; name a loopback address, or --rest-tls"
            ),
            Error::Listen(address, error) => {
                write!(f, "the REST API can not listen on {address}: {error}; name another address")
            }
        }
    }
}

impl std::error::Error for Error {}

/// The API, listening.
pub struct Rest {
    plain: TcpListener,
    tls: Option<(TcpListener, Arc<Certificates>)>,
    /// Plain calls are led to this port.
    redirected: Option<u16>,
}

impl Rest {
    /// Begins to listen: for HTTP at `plain`, for HTTPS where `tls` says. With `token_required`
    /// programs on this host need one, too.
    ///
    /// # Errors
    /// If the API would be open to others, or an address can not be listened on.
    pub async fn listen(
        plain: SocketAddr,
        tls: Option<(SocketAddr, Arc<Certificates>)>,
        token_required: bool,
    ) -> Result<Rest, Error> {
        let reached = !plain.ip().to_canonical().is_loopback();
        if reached && tls.is_none() {
            return Err(Error::Open(plain));
        }
        let listener = bind(plain).await?;
        let tls = match tls {
            None => None,
            Some((address, certificates)) => Some((bind(address).await?, certificates)),
        };
        let redirected = match &tls {
            Some((listener, _)) if reached || token_required => {
                let failed = |error| Error::Listen(plain, error);
                Some(listener.local_addr().map_err(failed)?.port())
            }
            _ => None,
        };
        Ok(Rest { plain: listener, tls, redirected })
    }

    /// Where it listens: for HTTP, and for HTTPS.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn addresses(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let tls = self.tls.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?;
        Ok((self.plain.local_addr()?, tls))
    }

    /// Serves `router`, which sees to it who may call, until `stop` is true, and then what is under
    /// way.
    ///
    /// # Errors
    /// If a server fails.
    pub async fn serve(self, router: Router, stop: watch::Receiver<bool>) -> io::Result<()> {
        let plain = match self.redirected {
            None => router.clone(),
            Some(port) => leads_to(port),
        };
        let plain = plain.into_make_service_with_connect_info::<SocketAddr>();
        let plain = axum::serve(self.plain, plain).with_graceful_shutdown(stopped(stop.clone()));
        let Some((listener, certificates)) = self.tls else { return plain.await };
        let (accepted, incoming) = mpsc::channel(ACCEPTED);
        let local = listener.local_addr()?;
        let say = |line: &str| log::info("rest", format_args!("{line}"));
        let accept = tls::accept(listener, move || certificates.config(), say, accepted);
        let accept = tokio::spawn(accept);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        // Only of its own listeners, and of what taps one, axum takes the address of who connects.
        let listener = Secured { incoming, local }.tap_io(|_| {});
        let secured = axum::serve(listener, service).with_graceful_shutdown(stopped(stop));
        let served = tokio::try_join!(plain.into_future(), secured.into_future());
        accept.abort();
        served.map(drop)
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error says that the sender is gone, which is the end, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| Error::Listen(address, error))
}

/// Connections whose handshake is done.
struct Secured {
    incoming: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    local: SocketAddr,
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.incoming.recv().await {
            Some(connection) => connection,
            // Nobody accepts any more: the server is about to end.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }
}

/// Says where HTTPS is. Load balancers ask for the health here.
fn leads_to(port: u16) -> Router {
    let elsewhere = move |request: Request| async move { redirect(&request, port) };
    Router::new().route("/health", axum::routing::get(async || StatusCode::OK)).fallback(elsewhere)
}

fn redirect(request: &Request, port: u16) -> Response {
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let named = named.and_then(|host| host.parse::<Uri>().ok());
    let host = named.as_ref().and_then(Uri::host);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let location = host.map(|host| format!("https://{host}:{port}{path}"));
    match location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        Some(location) => (StatusCode::FOUND, [(header::LOCATION, location)]).into_response(),
        None => StatusCode::BAD_REQUEST.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_calls_are_led_to_the_same_host_by_https() {
        for (host, path, expected) in [
            ("ctl.example:3370", "/v1/nodes?a=b", Some("https://ctl.example:3371/v1/nodes?a=b")),
            ("10.0.0.1", "/", Some("https://10.0.0.1:3371/")),
            ("[fd00::1]:3370", "/v1", Some("https://[fd00::1]:3371/v1")),
            ("", "/v1", None),
            ("a b", "/v1", None),
        ] {
            let request = axum::http::Request::get(path).header("Host", host);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let response = redirect(&request, 3371);
            let location = response.headers().get("Location").map(|l| l.to_str().unwrap());
            assert_eq!(location, expected, "{host} {path}");
            assert_eq!(response.status() == StatusCode::FOUND, expected.is_some());
        }
    }
}
