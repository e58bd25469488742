//! NBD over TLS (`ashlar export --tls`): libnbd's and QEMU's clients, a client of our own, and those who
//! have no business there.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, Setup, binary, other_release, pattern, text};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const STARTTLS: u32 = 5;
const LIST: u32 = 3;
const GO: u32 = 7;
const ACK: u32 = 1;
const TLS_REQUIRED: u32 = 0x8000_0005;
const UNKNOWN: u32 = 0x8000_0006;
const INVALID: u32 = 0x8000_0003;

/// Certificates of one authority as `qemu`, `nbdkit` and libnbd lay them out, for both ends in one folder.
fn certificates(folder: &Path) -> String {
    fs::create_dir_all(folder).unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(folder.join("ca-cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for end in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), end.to_owned()];
        let certificate = CertificateParams::new(names).unwrap();
        let certificate = certificate.signed_by(&key, &issuer).unwrap();
        fs::write(folder.join(format!("{end}-cert.pem")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{end}-key.pem")), key.serialize_pem()).unwrap();
    }
    folder.display().to_string()
}

/// What `psktool` makes for a client.
const KEY: &str = "9a0e8f1d5b6c7a88990011223344556677a8b9cadbecfd0e1f20314253647586";

/// A folder with a file of keys, as `qemu` has it.
fn shared_keys(folder: &Path, text: &str) -> String {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("keys.psk"), text).unwrap();
    folder.display().to_string()
}

/// An address where nobody listens.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A volume of one node, exported over TLS.
struct Rig {
    cluster: Cluster,
    folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(|folder| certificates(&folder.join("good")))
    }

    /// With what `make` has put into a folder.
    fn with(make: impl Fn(&Path) -> String) -> Rig {
        Rig::of(binary(), make)
    }

    /// With engines of that program.
    fn of(program: &Path, make: impl Fn(&Path) -> String) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let files = make(folder.path());
        let setup = Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() };
        let mut cluster = Cluster::new(&setup);
        for node in &mut cluster.nodes {
            program.clone_into(&mut node.engine);
        }
        cluster.bring_up(&setup);
        let rig = Rig { cluster, folder, address: free_address() };
        let uri = rig.node().ok(&[
            "export",
            "r0/0",
            "--listen",
            &rig.address.to_string(),
            "--tls",
            &files,
        ]);
        assert_eq!(uri.trim(), format!("nbds://{}/r0/0", rig.address));
        rig
    }

    fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The certificates that count.
    fn good(&self) -> String {
        self.path("good").display().to_string()
    }

    /// A connection as a client with these certificates has it, encrypted.
    fn connect(&self, folder: &str) -> std::io::Result<Tls> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        greet(&mut stream);
        assert_eq!(ask(&mut stream, STARTTLS, b"")?, (ACK, Vec::new()));
        let mut tls = StreamOwned::new(client(folder), stream);
        // TLS 1.3 has a client learn only from the first answer that it is not wanted.
        tls.conn.complete_io(&mut tls.sock)?;
        Ok(tls)
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn client(folder: &str) -> ClientConnection {
    let path = |name: &str| Path::new(folder).join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(path("ca-cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match CertificateDer::from_pem_file(path("client-cert.pem")) {
        Ok(certificate) => {
            let key = PrivateKeyDer::from_pem_file(path("client-key.pem")).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
        Err(_) => config.with_no_client_auth(),
    };
    ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap()
}

fn greet(stream: &mut TcpStream) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
    stream.write_all(&[0, 0, 0, 3]).unwrap();
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// Sends an option; the last reply to it.
fn ask(
    stream: &mut (impl Read + Write),
    number: u32,
    data: &[u8],
) -> std::io::Result<(u32, Vec<u8>)> {
    stream.write_all(&option(number, data))?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (kind, mut data) = (word(12), vec![0; word(16) as usize]);
        stream.read_exact(&mut data)?;
        if kind == ACK || kind & 1 << 31 != 0 {
            return Ok((kind, data));
        }
    }
}

/// The data of the option that opens an export.
fn wish(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat()
}

/// A request; what was read, or nothing.
fn request(
    tls: &mut Tls,
    kind: u16,
    offset: u64,
    len: usize,
    data: &[u8],
) -> std::io::Result<Vec<u8>> {
    let mut said = 0x2560_9513u32.to_be_bytes().to_vec();
    said.extend([0, 0]);
    said.extend(kind.to_be_bytes());
    said.extend(77u64.to_be_bytes());
    said.extend(offset.to_be_bytes());
    said.extend((len as u32).to_be_bytes());
    said.extend(data);
    tls.write_all(&said)?;
    let mut reply = [0; 16];
    tls.read_exact(&mut reply)?;
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a reply without error");
    let mut read = vec![0; if kind == 0 { len } else { 0 }];
    tls.read_exact(&mut read)?;
    Ok(read)
}

fn have(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    if let Some(tool) = missing {
        println!("skipped: {tool} is not installed");
    }
    missing.is_none()
}

#[test]
fn a_client_with_a_certificate_reads_and_writes() {
    let rig = Rig::new();
    let mut tls = rig.connect(&rig.good()).unwrap();
    assert_eq!(ask(&mut tls, STARTTLS, b"").unwrap().0, INVALID, "it is encrypted already");
    assert_eq!(ask(&mut tls, GO, &wish("nobody")).unwrap().0, UNKNOWN);
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
    // Larger than what any buffer on the way holds.
    let data = pattern(3, 9 << 20);
    request(&mut tls, 1, 4096, data.len(), &data).unwrap();
    assert!(request(&mut tls, 0, 4096, data.len(), &[]).unwrap() == data);
    let exports = rig.node().ok(&["exports"]);
    assert!(
        exports.contains(&format!("nbds://{}/r0/0 volume:r0/0 clients:1", rig.address)),
        "{exports}"
    );

    request(&mut tls, 3, 0, 0, &[]).unwrap();
    drop(tls);
    rig.cluster.wait("the client is gone", |c| c.nodes[0].ok(&["exports"]).contains("clients:0"));
    let log = rig.node().log();
    assert!(log.contains("opened to read and write by 127.0.0.1:"), "{log}");

    let socket = rig.path("nbd");
    rig.node().ok(&[
        "export",
        "r0/0",
        "--name",
        "local",
        "--listen",
        &socket.display().to_string(),
    ]);
    let mut local = Client::open(&socket, "r0/0").unwrap();
    assert!(local.read(4096, data.len()).unwrap() == data, "what it wrote is there without TLS");
    local.close();
    rig.cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn an_engine_that_is_replaced_listens_on() {
    let mut rig = Rig::new();
    let good = rig.good();
    rig.cluster.nodes[0].upgrade();
    let mut tls = rig.connect(&good).unwrap();
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
    request(&mut tls, 1, 0, 4096, &pattern(1, 4096)).unwrap();
    drop(tls);
    rig.cluster.nodes[0].kill();
    rig.cluster.nodes[0].start();
    rig.cluster.wait_connected();
    let mut tls = rig.connect(&good).unwrap();
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
    assert_eq!(request(&mut tls, 0, 0, 4096, &[]).unwrap(), pattern(1, 4096));
}

/// Writes and reads back until it is told to stop.
fn work(mut tls: Tls, number: u64, stop: &AtomicBool, done: &AtomicU64) {
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
    let mut seed = number << 32;
    while !stop.load(Ordering::Acquire) {
        seed += 1;
        if seed % 16 == 1 {
            // Whoever is at the other end has to make the next key of both directions.
            tls.conn.refresh_traffic_keys().unwrap();
        }
        // Requests and answers of one record, and of many.
        let len = if seed.is_multiple_of(8) { 1 << 20 } else { 4096 };
        let offset = ((number * 2) << 20) + (seed % 16) * 4096;
        request(&mut tls, 1, offset, len, &pattern(seed, len)).unwrap();
        assert!(request(&mut tls, 0, offset, len, &[]).unwrap() == pattern(seed, len));
        done.fetch_add(1, Ordering::AcqRel);
    }
    // It says that it leaves, and the engine that the connection has come to hears it.
    tls.conn.send_close_notify();
    tls.flush().unwrap();
}

/// Waits until all have done a good deal more.
fn wait_for_work(done: &AtomicU64) {
    let goal = done.load(Ordering::Acquire) + 40;
    let begun = Instant::now();
    while done.load(Ordering::Acquire) < goal {
        assert!(begun.elapsed() < Duration::from_secs(60), "clients go on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn clients_go_on_from_the_other_release_to_this_one_and_back() {
    if std::env::var_os("ASHLAR_OTHER").is_none() {
        println!("skipped: needs the program of another release (cargo xtask skew)");
        return;
    }
    let mut rig = Rig::of(&other_release(), |folder| certificates(&folder.join("good")));
    let good = rig.good();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        for number in 0..4 {
            let tls = rig.connect(&good).unwrap();
            scope.spawn(move || work(tls, number, stop, done));
        }
        wait_for_work(done);
        let node = &mut rig.cluster.nodes[0];
        println!("to this one: {}", node.upgrade_to(binary()).unwrap().trim());
        wait_for_work(done);
        match node.upgrade_to(&other_release()) {
            Ok(answer) => println!("to the other release: {}", answer.trim()),
            Err(why) => assert!(why.contains("not known here"), "{why}"),
        }
        wait_for_work(done);
        stop.store(true, Ordering::Release);
    });
    rig.cluster.assert_equal(0, &[0, 1]);
    let mut tls = rig.connect(&good).unwrap();
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
}

#[test]
fn clients_go_on_behind_engines_that_are_replaced() {
    const CLIENTS: u64 = 6;
    let mut rig = Rig::new();
    let good = rig.good();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        for number in 0..CLIENTS {
            let tls = rig.connect(&good).unwrap();
            scope.spawn(move || work(tls, number, stop, done));
        }
        let goes_on = || wait_for_work(done);
        goes_on();
        for _ in 0..4 {
            println!("{}", rig.cluster.nodes[0].upgrade().trim());
            goes_on();
        }
        // One that is refused leaves them as they are, and so does the next, which is not.
        rig.cluster.nodes[1].signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(100));
        let (_, why) = rig.node().fails(&["upgrade", "--retry", "0"]);
        rig.cluster.nodes[1].signal(libc::SIGCONT);
        assert!(why.contains("not at rest"), "{why}");
        goes_on();
        rig.cluster.nodes[0].upgrade();
        goes_on();
        let exports = rig.node().ok(&["exports"]);
        assert!(exports.contains(&format!("clients:{CLIENTS}")), "{exports}");
        stop.store(true, Ordering::Release);
    });
    rig.cluster.wait("all have left", |c| c.nodes[0].ok(&["exports"]).contains("clients:0"));
    rig.cluster.assert_equal(0, &[0, 1]);
    // Others come in as before.
    let mut tls = rig.connect(&good).unwrap();
    assert_eq!(ask(&mut tls, GO, &wish("r0/0")).unwrap().0, ACK);
}

#[test]
fn strangers_learn_nothing() {
    let rig = Rig::new();
    // Without TLS there is nothing but TLS.
    let mut clear = TcpStream::connect(rig.address).unwrap();
    clear.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    greet(&mut clear);
    assert_eq!(ask(&mut clear, LIST, b"").unwrap().0, TLS_REQUIRED);
    assert_eq!(ask(&mut clear, GO, &wish("r0/0")).unwrap().0, TLS_REQUIRED);
    // What is said together with the wish for TLS would count as said within it.
    clear.write_all(&[option(STARTTLS, b""), option(LIST, b"")].concat()).unwrap();
    assert_eq!(clear.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");

    // A certificate of somebody else, or none.
    let good = rig.good();
    let strange = certificates(&rig.path("strange"));
    fs::copy(Path::new(&good).join("ca-cert.pem"), Path::new(&strange).join("ca-cert.pem"))
        .unwrap();
    let none = rig.path("none");
    fs::create_dir(&none).unwrap();
    fs::copy(Path::new(&good).join("ca-cert.pem"), none.join("ca-cert.pem")).unwrap();
    for folder in [strange, none.display().to_string()] {
        let refused = rig.connect(&folder).and_then(|mut tls| ask(&mut tls, LIST, b""));
        refused.expect_err(&folder);
    }
    rig.cluster.wait("the log says why", |c| {
        let log = c.nodes[0].log();
        ["it has no certificate", "invalid peer certificate"].iter().all(|why| log.contains(why))
    });

    // Another export in clear text does not show this one.
    let open = free_address();
    rig.node().ok(&["export", "r0/0", "--name", "open", "--listen", &open.to_string()]);
    let mut clear = TcpStream::connect(open).unwrap();
    clear.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    greet(&mut clear);
    for hidden in ["r0/0", "r0/0:ro"] {
        assert_eq!(ask(&mut clear, GO, &wish(hidden)).unwrap().0, UNKNOWN, "{hidden}");
    }
    assert_eq!(ask(&mut clear, GO, &wish("open")).unwrap().0, ACK);
}

#[test]
fn what_can_not_be_is_refused_with_the_reason() {
    let rig = Rig::new();
    let node = rig.node();
    let (address, good) = (rig.address.to_string(), rig.good());
    let elsewhere = free_address().to_string();
    let before = node.ok(&["exports", "--json"]);
    let refused = |args: &[&str], why: &str| {
        let (_, text) = node.fails(&[&["export", "r0/0", "--name", "x"], args].concat());
        assert!(text.contains(why), "{args:?}: {text}");
    };
    refused(&["--listen", "/run/x", "--tls", &good], "say --listen ADDRESS:PORT");
    refused(&["--tls", &good], "say --listen ADDRESS:PORT");
    refused(&["--listen", &elsewhere, "--tls", "/nonexistent"], "/nonexistent/ca-cert.pem");
    refused(&["--listen", &address], "can not listen");
    let other = certificates(&rig.path("other"));
    refused(&["--listen", &address, "--tls", &other], &format!("the files of {good}"));
    fs::copy(Path::new(&good).join("server-key.pem"), Path::new(&other).join("server-key.pem"))
        .unwrap();
    refused(&["--listen", &elsewhere, "--tls", &other], "server-key.pem");
    fs::write(Path::new(&other).join("keys.psk"), format!("alice:{KEY}\n")).unwrap();
    refused(&["--listen", &elsewhere, "--tls", &other], "has both keys.psk and ca-cert.pem");
    let keys = shared_keys(&rig.path("keys"), &format!("alice:{KEY}\nbob:0badc0de"));
    refused(&["--listen", &elsewhere, "--tls", &keys], "keys.psk: line 2: a key has 16 to");
    assert_eq!(node.ok(&["exports", "--json"]), before, "nothing has changed");

    node.ok(&["unexport", "r0/0"]);
    rig.cluster.wait("nobody listens", |_| TcpStream::connect(rig.address).is_err());
}

fn run(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn ok(program: &str, args: &[&str]) -> String {
    let (success, said) = run(program, args);
    assert!(success, "{program} {args:?}: {said}");
    said
}

#[test]
fn libnbd_and_qemu_are_served() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let good = rig.good();
    let uri = format!("nbds://{}/r0/0?tls-certificates={good}", rig.address);
    let info = ok("nbdinfo", &["--json", &uri]);
    assert!(info.contains("\"TLS\": true"), "{info}");
    let data = rig.path("data");
    fs::write(&data, pattern(5, 12 << 20)).unwrap();
    let path = data.display().to_string();
    ok("nbdcopy", &["--connections=4", "--flush", &path, &uri]);
    let back = rig.path("back").display().to_string();
    ok("nbdcopy", &["--connections=4", &uri, &back]);
    assert!(fs::read(&back).unwrap().starts_with(&pattern(5, 12 << 20)));

    let credentials = format!("tls-creds-x509,id=tls0,dir={good},endpoint=client");
    let image = format!(
        "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={},export=r0/0,tls-creds=tls0",
        rig.address.port()
    );
    let said = ok(
        "qemu-io",
        &[
            "--object",
            &credentials,
            "--image-opts",
            &image,
            "-c",
            "write -P 7 0 1M",
            "-c",
            "read -P 7 0 1M",
        ],
    );
    assert!(said.contains("read 1048576/1048576 bytes"), "{said}");
    // A client without certificates is told what it lacks.
    let (success, said) = run("nbdinfo", &[&format!("nbd://{}/r0/0", rig.address)]);
    assert!(!success && said.contains("TLS"), "{said}");
    rig.cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn libnbd_and_qemu_are_served_with_shared_keys() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-io"]) {
        return;
    }
    let lines = format!("# clients\nalice:{KEY}\nbob:{}\n", KEY.replace('9', "8"));
    let mut rig = Rig::with(|folder| shared_keys(&folder.join("keys"), &lines));
    let (address, port) = (rig.address, rig.address.port());
    let uri = |name: &str, file: &Path| {
        format!("nbds://{name}@{address}/r0/0?tls-psk-file={}", file.display())
    };
    let mine = rig.path("alice.psk");
    fs::write(&mine, format!("alice:{KEY}\n")).unwrap();
    let info = ok("nbdinfo", &["--json", &uri("alice", &mine)]);
    assert!(info.contains("\"TLS\": true"), "{info}");
    let data = rig.path("data");
    fs::write(&data, pattern(5, 12 << 20)).unwrap();
    let (from, back) = (data.display().to_string(), rig.path("back").display().to_string());
    ok("nbdcopy", &["--connections=4", "--flush", &from, &uri("alice", &mine)]);
    ok("nbdcopy", &["--connections=4", &uri("alice", &mine), &back]);
    assert!(fs::read(&back).unwrap().starts_with(&pattern(5, 12 << 20)));

    // A key of another's name, a wrong one, one that nobody has, certificates, and nothing at all.
    let wrong = rig.path("wrong.psk");
    fs::write(&wrong, format!("alice:{}\nmallory:{KEY}\n", KEY.replace('1', "2"))).unwrap();
    let stranger = certificates(&rig.path("stranger"));
    for uri in [
        uri("alice", &wrong),
        uri("mallory", &wrong),
        format!("nbds://{address}/r0/0?tls-certificates={stranger}"),
        format!("nbd://{address}/r0/0"),
    ] {
        let begun = Instant::now();
        let (success, said) = run("nbdinfo", &[&uri]);
        assert!(!success && !said.contains("export-size"), "{uri}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{uri} is refused at once");
    }
    let log = rig.node().log();
    assert!(log.contains("over TLS: it has no key of the file keys.psk, or not the same"), "{log}");
    assert!(!log.contains(KEY));

    // One connection of qemu's, before and after another engine has taken over.
    let keys = rig.path("keys").display().to_string();
    let mut qemu = Command::new("stdbuf")
        .args(["-oL", "qemu-io", "--object"])
        .arg(format!("tls-creds-psk,id=tls0,dir={keys},endpoint=client,username=alice"))
        .arg("--image-opts")
        .arg(format!(
            "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port},export=r0/0,\
             tls-creds=tls0"
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut say = qemu.stdin.take().unwrap();
    let mut hear = BufReader::new(qemu.stdout.take().unwrap());
    let mut line = String::new();
    let mut hears = |what: &str| {
        while !line.contains(what) {
            line.clear();
            assert_ne!(hear.read_line(&mut line).unwrap(), 0, "qemu-io ends before {what:?}");
        }
        line.clear();
    };
    writeln!(say, "write -P 7 0 1M").unwrap();
    hears("wrote 1048576/1048576 bytes");
    let exports = rig.node().ok(&["exports"]);
    assert!(exports.contains("clients:1"), "{exports}");
    rig.cluster.nodes[0].upgrade();
    // It looks for a line when its input has something, and may read two of them then.
    writeln!(say, "read -P 7 0 1M").unwrap();
    hears("read 1048576/1048576 bytes");
    writeln!(say, "write -P 9 1M 64k").unwrap();
    hears("wrote 65536/65536 bytes");
    writeln!(say, "quit").unwrap();
    assert!(qemu.wait().unwrap().success());
    rig.cluster.assert_equal(0, &[0, 1]);
}
