//! HTTPS: whom it lets in, with which certificate, and what plain HTTP does beside it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::served::{Response, Server, read_response};
use controller::access::Gate;
use controller::link::authority::{Authority, VALID};
use controller::rest::{self, Rest};
use controller::tls::{Certificates, Options};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

struct Both {
    plain: SocketAddr,
    tls: SocketAddr,
    directory: TempDir,
    /// The administrator's.
    secret: String,
    stop: watch::Sender<bool>,
    _server: Server,
}

/// HTTP and HTTPS of one controller.
async fn both(options: Options, token_required: bool) -> Both {
    let server = Server::new().await;
    let directory = tempfile::tempdir().unwrap();
    let gate = Gate::open(directory.path(), !token_required, server.handle.clone()).unwrap();
    let secret = std::fs::read_to_string(directory.path().join("admin.token")).unwrap();
    let authority = Arc::new(Authority::open(&directory.path().join("link"), VALID).unwrap());
    let pem = authority.certificate_pem().to_owned();
    std::fs::write(directory.path().join("authority.crt"), pem).unwrap();
    let certificates = Arc::new(Certificates::new(options, authority).unwrap());
    let rest = Rest::listen(LOCAL, Some((LOCAL, certificates)), token_required).await.unwrap();
    let (plain, tls) = rest.addresses().unwrap();
    let (stop, stopped) = watch::channel(false);
    let serve =
        rest.serve(linstor::guarded(Arc::new(server.handle.clone()), Arc::new(gate)), stopped);
    tokio::spawn(serve);
    let secret = secret.trim().to_owned();
    Both { plain, tls: tls.unwrap(), directory, secret, stop, _server: server }
}

impl Both {
    fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.crt")
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.secret)
    }
}

/// Calls by HTTPS as `name`, trusting `roots`, with a certificate of the client's or none.
async fn call(
    address: SocketAddr,
    name: &str,
    roots: &Path,
    client: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    headers: &str,
) -> std::io::Result<Response> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots).unwrap() {
        store.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = config.with_root_certificates(store);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let request =
        format!("GET /v1/nodes HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    read_response(stream, &request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn https_serves_under_every_name_that_clients_use_and_asks_for_tokens() {
    let names = vec!["ctl.example".to_owned(), "10.9.8.7".to_owned()];
    let both = both(Options { names, ..Options::default() }, true).await;
    for name in ["ctl.example", "10.9.8.7", "localhost", "127.0.0.1", "::1"] {
        let answer = call(both.tls, name, &both.authority(), None, &both.bearer()).await.unwrap();
        assert_eq!((answer.status, answer.json()), (200, serde_json::json!([])), "{name}");
        let answer = call(both.tls, name, &both.authority(), None, "").await.unwrap();
        assert_eq!(answer.status, 401, "{name}");
    }
    for name in ["other.example", "controller.ashlar.internal", "n1.node.ashlar.internal"] {
        let error = call(both.tls, name, &both.authority(), None, "").await.err().unwrap();
        assert!(error.to_string().contains("not valid for name"), "{name}: {error}");
    }
    // Who does not trust the authority is not answered at all.
    let (other, _) = own_authority(both.directory.path(), "other");
    assert!(call(both.tls, "localhost", &other, None, "").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_calls_are_led_to_https_where_tokens_are_needed_and_served_where_not() {
    let closed = both(Options::default(), true).await;
    let plain = |both: &Both, path: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: ctl.example:{}\r\nConnection: close\r\n\r\n",
            both.plain.port()
        );
        let address = both.plain;
        async move { read_response(TcpStream::connect(address).await.unwrap(), &request).await }
    };
    let answer = plain(&closed, "/v1/controller/version?a=b").await.unwrap();
    assert_eq!(answer.status, 302);
    let port = closed.tls.port();
    let location = format!("location: https://ctl.example:{port}/v1/controller/version?a=b");
    assert!(answer.head.contains(&location), "{}", answer.head);
    assert_eq!(plain(&closed, "/health").await.unwrap().status, 200);

    let open = both(Options::default(), false).await;
    let answer = plain(&open, "/v1/controller/version").await.unwrap();
    assert_eq!(answer.status, 403, "as ctl.example it is a page of another host");
    let answer = call(open.tls, "localhost", &open.authority(), None, "").await.unwrap();
    assert_eq!(answer.status, 200, "this host needs no token, however it comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens_in_the_clear_where_others_reach_it() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    for required in [true, false] {
        let error = Rest::listen(everywhere, None, required).await.err().unwrap();
        assert!(matches!(error, rest::Error::Open(_)));
        assert!(error.to_string().contains("--rest-tls"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_taken_from_files_and_read_again_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let (first, signer) = own_authority(directory.path(), "first");
    let files = signed(directory.path(), &signer, "server", vec!["ctl.example".to_owned()]);
    let both = both(Options { files: Some(files), ..Options::default() }, true).await;
    let bearer = both.bearer();
    let answer = call(both.tls, "ctl.example", &first, None, &bearer).await.unwrap();
    assert_eq!(answer.status, 200);
    // Another authority's, in the same files. Their times have to differ.
    let (second, signer) = own_authority(directory.path(), "second");
    tokio::time::sleep(Duration::from_millis(20)).await;
    signed(directory.path(), &signer, "server", vec!["ctl.example".to_owned()]);
    assert!(call(both.tls, "ctl.example", &first, None, &bearer).await.is_err());
    let answer = call(both.tls, "ctl.example", &second, None, &bearer).await.unwrap();
    assert_eq!(answer.status, 200);
    // What can not be read leaves the old one in use.
    tokio::time::sleep(Duration::from_millis(20)).await;
    std::fs::write(directory.path().join("server.crt"), "nothing").unwrap();
    let answer = call(both.tls, "ctl.example", &second, None, &bearer).await.unwrap();
    assert_eq!(answer.status, 200);
    // At the start it is an error, with the file and what to do.
    let authority = Arc::new(Authority::open(directory.path(), VALID).unwrap());
    let files = Some((directory.path().join("server.crt"), directory.path().join("server.key")));
    let options = Options { files, ..Options::default() };
    let error = Certificates::new(options, authority).err().unwrap().to_string();
    assert!(error.contains("server.crt") && error.contains("name a PEM file"), "{error}");
    both.stop.send(true).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_certificates_where_that_is_wanted_and_tokens_besides() {
    let directory = tempfile::tempdir().unwrap();
    let (clients, signer) = own_authority(directory.path(), "clients");
    let (_, stranger) = own_authority(directory.path(), "strangers");
    let both = both(Options { clients: Some(clients), ..Options::default() }, true).await;
    let client = |signer: &Issuer<'static, KeyPair>, name: &str| {
        let names = vec!["operator".to_owned()];
        let (certificate, key) = signed(directory.path(), signer, name, names);
        let certificate = CertificateDer::from_pem_file(certificate).unwrap();
        Some((certificate, PrivateKeyDer::from_pem_file(key).unwrap()))
    };
    let (known, unknown) = (client(&signer, "known"), client(&stranger, "unknown"));
    let bearer = both.bearer();
    let roots = both.authority();
    assert!(call(both.tls, "localhost", &roots, None, &bearer).await.is_err());
    assert!(call(both.tls, "localhost", &roots, unknown, &bearer).await.is_err());
    let answer = call(both.tls, "localhost", &roots, known, &bearer).await.unwrap();
    assert_eq!(answer.status, 200);
    let known = client(&signer, "known");
    let answer = call(both.tls, "localhost", &roots, known, "").await.unwrap();
    assert_eq!(answer.status, 401);
}

/// A new authority: the file of its certificate, and what signs.
fn own_authority(directory: &Path, name: &str) -> (PathBuf, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let path = directory.join(format!("{name}.crt"));
    std::fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
    (path, Issuer::new(params, key))
}

/// Files with a certificate and its key.
fn signed(
    directory: &Path,
    signer: &Issuer<'static, KeyPair>,
    name: &str,
    names: Vec<String>,
) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names).unwrap();
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    params.extended_key_usages = vec![ServerAuth, ClientAuth];
    let certificate = params.signed_by(&key, signer).unwrap();
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    // The key first: with the certificate of another key nothing is served.
    std::fs::write(path("key"), key.serialize_pem()).unwrap();
    std::fs::write(path("crt"), certificate.pem()).unwrap();
    (path("crt"), path("key"))
}
