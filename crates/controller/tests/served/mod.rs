//! A controller with simulated agents behind its REST API, and calls to it as bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use cluster::disks::Disk;
use controller::store::Sqlite;
use controller::{Handle, start};
use linstor::controller::Settings;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use vocab::Bytes;

use crate::simulated::Simulated;

/// A controller with three simulated nodes, that serves.
pub struct Server {
    pub address: SocketAddr,
    pub handle: Handle,
    pub agents: Arc<Simulated>,
    directory: TempDir,
}

/// A fast disk, and two large ones.
pub fn disks() -> Vec<Disk> {
    let disk = |device: &str, tib: u64, model: &str, serial: &str| Disk {
        device: device.to_owned(),
        size: Bytes(tib << 40),
        rotational: tib > 1,
        model: model.to_owned(),
        serial: serial.to_owned(),
        wwn: String::new(),
    };
    vec![
        disk("/dev/nvme0n1", 1, "FAST", "S1"),
        disk("/dev/sdb", 4, "LARGE", "S2"),
        disk("/dev/sdc", 4, "LARGE", ""),
    ]
}

/// What it has answered.
pub struct Response {
    pub status: u16,
    /// The status and the headers, in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn json(&self) -> serde_json::Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The number in the return code of the first entry, and whether it is an error.
    pub fn first(&self) -> (i64, bool) {
        let code = self.json()[0]["ret_code"].as_i64().unwrap();
        (code & 0x7fff, (code.cast_unsigned() >> 62) == 3)
    }
}

impl Server {
    pub async fn new() -> Server {
        Server::with(|handle, _| linstor::router(Arc::new(handle))).await
    }

    /// With this router; it is given the folder of the store.
    pub async fn with(router: impl FnOnce(Handle, &Path) -> Router) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let (agents, orders) = Simulated::new();
        let store = Sqlite::open(&directory.path().join("store.db")).unwrap();
        let (handle, _thread) = start(Box::new(store), agents.clone()).unwrap();
        let settings = Settings { directory: directory.path().to_owned(), ..Settings::default() };
        let handle = handle.with(settings);
        tokio::spawn(agents.clone().run(handle.clone(), orders));
        for name in ["n1", "n2", "n3"] {
            agents.connect(&handle, name).await;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router(handle.clone(), directory.path());
        let service = service.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Server { address, handle, agents, directory }
    }

    /// The folder of the store.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// With three nodes, a pool on each, and one volume.
    pub async fn with_volume() -> Server {
        let server = Server::new().await;
        for (number, node) in ["n1", "n2", "n3"].into_iter().enumerate() {
            let address = format!("10.0.0.{}", number + 1);
            let body = format!(
                r#"{{"name":"{node}","type":"Satellite","net_interfaces":
                    [{{"name":"default","address":"{address}"}}]}}"#
            );
            assert_eq!(server.call("POST", "/v1/nodes", &body).await.status, 201);
            let pool = r#"{"storage_pool_name":"pool","provider_kind":"FILE_THIN",
                "props":{"StorDriver/FileDir":"/srv"}}"#;
            let path = format!("/v1/nodes/{node}/storage-pools");
            assert_eq!(server.call("POST", &path, pool).await.status, 201);
        }
        let spawn = r#"{"resource_definition_name":"Vol","volume_sizes":["1048576"]}"#;
        let path = "/v1/resource-groups/DfltRscGrp/spawn";
        let answer = server.call("POST", path, spawn).await;
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
        server
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> Response {
        self.call_with(method, path, "", body).await
    }

    pub async fn call_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let host = if headers.contains("Host:") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n\
             {headers}\r\n{body}"
        );
        let stream = TcpStream::connect(self.address).await.unwrap();
        read_response(stream, &request).await.unwrap()
    }
}

/// Sends a request that says `Connection: close`, and reads the answer to its end.
pub async fn read_response(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> std::io::Result<Response> {
    stream.write_all(request.as_bytes()).await?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Response { status, head, body: all[end + 4..].to_vec() })
}
