//! Encrypted volumes on real nodes: what is on their disks, who can read it, and what happens where keys are not known.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::control_support::{Cluster, MIB, node, rd};
use crate::engine_support::nbd::Client;
use crate::engine_support::pattern;
use api::link::Order;
use cluster::command::{Command, NewDefinition, NewVolumeDefinition};
use cluster::layer::Layer;
use cluster::props::PropsEdit;
use crypt::luks;
use crypt::seal::MasterKey;
use vocab::options::Secret;
use vocab::{Bytes, VolumeNr};

const NODES: [&str; 3] = ["alpha", "bravo", "charlie"];

/// An encrypted resource definition with a volume, as somebody makes it who has entered the master passphrase.
fn define(cluster: &mut Cluster, name: &str, size: u64) {
    let layers = Some(vec![Layer::Drbd, Layer::Luks, Layer::Storage]);
    let definition = NewDefinition { name: Some(rd(name)), layers, ..NewDefinition::default() };
    cluster.command(Command::CreateDefinition { definition });
    let volume = NewVolumeDefinition { size: Bytes(size), ..NewVolumeDefinition::default() };
    cluster.command(Command::CreateVolumeDefinition { name: rd(name), volume });
}

/// An engine that has taken over, and ends with its scope.
struct Heir(String);

impl Heir {
    /// By what `ashlar upgrade` has answered.
    fn of(answer: &str) -> Heir {
        let pid = answer.split(' ').nth(1).filter(|pid| pid.parse::<u32>().is_ok());
        Heir(pid.expect("it names the process").to_owned())
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-9", &self.0]).status();
    }
}

fn tell(cluster: &Cluster, name: &str) {
    let key = cluster.observed.master.as_ref().unwrap().to_secret();
    cluster.send(&node(name), Order::Master { key });
}

fn passphrase(cluster: &Cluster, name: &str) -> Secret {
    let volumes = &cluster.model.definition(&rd(name)).unwrap().volumes;
    let sealed = volumes.values().next().unwrap().passphrase.as_ref().unwrap();
    cluster.observed.master.as_ref().unwrap().unseal(sealed).unwrap()
}

fn image(cluster: &Cluster, name: &str, on: &str) -> PathBuf {
    cluster.pools.of(on).join(format!("{name}_00000.img"))
}

/// What anybody reads of a replica who has its passphrase: `cryptsetup` would give the same.
fn decrypted(path: &Path, passphrase: &Secret, at: u64, len: usize) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let mut read = |at, to: &mut [u8]| file.read_exact_at(to, at).map_err(|e| e.to_string());
    let opened = luks::open(&mut read, passphrase).unwrap();
    let mut bytes = vec![0; len];
    read(opened.offset() + at, &mut bytes).unwrap();
    opened.cipher().decrypt(at / 512, &mut bytes);
    bytes
}

/// Files that have one of these texts in them.
fn with_text(folder: &Path, texts: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(with_text(&path, texts));
        } else if let Ok(bytes) = fs::read(&path) {
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            found.extend(texts.iter().any(has).then_some(path));
        }
    }
    found
}

/// What `nbdinfo` tells of an export's holes, where it is installed.
fn nbd_map(socket: &Path, name: &str) -> std::io::Result<String> {
    let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
    let output = std::process::Command::new("nbdinfo").args(["--map", &uri]).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn disk_state(cluster: &Cluster, on: &str) -> String {
    let node = &cluster.nodes[cluster.index(on)];
    let status: serde_json::Value =
        serde_json::from_str(&node.ok(&["status", "web", "--json"])).unwrap();
    status[0]["devices"][0]["disk-state"].as_str().unwrap().to_owned()
}

#[test]
fn an_encrypted_volume_is_noise_on_disk_and_needs_its_key_after_each_start() {
    let mut cluster = Cluster::up(&NODES);
    cluster.observed.master = Some(MasterKey::new(&mut |bytes| bytes.fill(0x5a)));
    define(&mut cluster, "web", 32 * MIB);
    cluster.place("web", &NODES);
    cluster.wait("they say that they lack the key", |c| {
        NODES.iter().all(|name| {
            let mut failures = c.failures.iter().filter(|f| f.node == node(name));
            failures.any(|f| f.cause.contains("master key is not known"))
        })
    });
    for name in NODES {
        assert_eq!(cluster.pools.files(name), Vec::<String>::new(), "nothing is made without it");
        tell(&cluster, name);
    }
    cluster.wait_settled("web");

    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(0, &first).unwrap();
    client.write(16 * MIB, &second).unwrap();
    client.write(20 * MIB + 512, &second[..1536]).unwrap();
    client.zero(16 * MIB + 4096, 3 << 20 >> 1).unwrap();
    client.flush().unwrap();
    let passphrase = passphrase(&cluster, "web");
    let mut expected = second.clone();
    expected[4096..].fill(0);
    for name in NODES {
        let path = image(&cluster, "web", name);
        let plain = |at, len| decrypted(&path, &passphrase, at, len);
        assert!(plain(0, MIB as usize) == first, "{name} has what was written");
        assert!(plain(16 * MIB, MIB as usize) == expected, "{name} has zeroes");
        assert!(plain(20 * MIB + 512, 1536) == second[..1536], "{name} has a part of a block");
        let raw = fs::read(&path).unwrap();
        let clear = |part: &[u8]| raw.windows(64).step_by(64).any(|w| w == part);
        assert!(!clear(&first[..64]) && !clear(&second[..64]), "{name} has nothing in the clear");
        let zeroes = &raw[(luks::DATA_OFFSET + 17 * MIB) as usize..][..4096];
        assert!(zeroes.iter().any(|byte| *byte != 0), "{name} does not tell what is zero");
    }
    assert!(client.read(16 * MIB, MIB as usize).unwrap() == expected);
    assert!(client.read(0, MIB as usize).unwrap() == first);

    // What is not allocated there is noise to whoever reads it.
    if let Ok(map) = nbd_map(&socket, "web/0") {
        assert!(map.contains("data") && !map.contains("hole"), "{map}");
    }

    // A discard is refused rather than leaving noise behind.
    let _ = client.trim(0, 1 << 20);
    assert!(client.read(0, MIB as usize).unwrap() == first);

    // An engine that starts anew gets the key from its agent.
    cluster.node("bravo").kill_engine();
    client.write(8 * MIB, &first).unwrap();
    cluster.node("bravo").start_engine();
    let path = image(&cluster, "web", "bravo");
    // Alone and without quorum it calls itself UpToDate before it has met the others.
    cluster.wait("bravo has what it missed", |c| {
        decrypted(&path, &passphrase, 8 * MIB, MIB as usize) == first
            && disk_state(c, "bravo") == "UpToDate"
    });

    // With an agent that starts anew as well it waits, and says for what.
    cluster.node("charlie").kill_agent();
    cluster.node("charlie").kill_engine();
    client.write(24 * MIB, &second).unwrap();
    cluster.node("charlie").start_engine();
    let why = cluster.node("charlie").ok(&["why", "web"]);
    assert!(why.contains("is encrypted and waits for its passphrase"), "{why}");
    cluster.node("charlie").start_agent();
    cluster.wait("charlie is there", |c| c.observed.is_connected(&node("charlie")));
    assert_eq!(disk_state(&cluster, "charlie"), "Diskless");
    let path = image(&cluster, "web", "charlie");
    cluster.wait("charlie has what it missed", |c| {
        // The link may still be the one to the agent that was killed.
        tell(c, "charlie");
        decrypted(&path, &passphrase, 24 * MIB, MIB as usize) == second
            && disk_state(c, "charlie") == "UpToDate"
    });
    cluster.wait_settled("web");

    // An engine that takes over is told the key by the one before.
    let heir = Heir::of(&cluster.node("alpha").ok(&["upgrade"]));
    client.write(28 * MIB, &first).unwrap();
    assert!(client.read(24 * MIB, MIB as usize).unwrap() == second);
    client.close();
    for name in NODES {
        let path = image(&cluster, "web", name);
        assert!(decrypted(&path, &passphrase, 28 * MIB, MIB as usize) == first, "{name}");
    }
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    assert!(client.read(28 * MIB, MIB as usize).unwrap() == first);
    client.close();

    // It grows, and what is new is the same everywhere.
    cluster.wait("it is closed", |c| {
        c.observed.replicas(&rd("web")).all(|(_, replica)| replica.in_use.is_none())
    });
    cluster.command(Command::ModifyVolumeDefinition {
        name: rd("web"),
        number: 0,
        size: Some(48 * MIB),
        props: PropsEdit::default(),
        gross_size: None,
    });
    cluster.wait("it has grown", |c| NODES.iter().all(|n| c.size("web", n) >= 48 * MIB));
    cluster.wait_settled("web");
    let mut grown = Vec::new();
    for name in NODES {
        let path = image(&cluster, "web", name);
        assert!(decrypted(&path, &passphrase, 16 * MIB, 4096) == second[..4096], "{name}");
        grown.push(decrypted(&path, &passphrase, 33 * MIB, 15 << 20));
    }
    // Noise, since nobody has written there, and not another on every node.
    assert!(grown.iter().all(|bytes| *bytes == grown[0]), "equal where it has grown");

    // Another passphrase, while somebody writes; a node whose agent is away has it later.
    let new = Secret::from("another passphrase");
    let opens = |cluster: &Cluster, name: &str, passphrase: &Secret| {
        let file = File::open(image(cluster, "web", name)).unwrap();
        let mut read = |at, to: &mut [u8]| file.read_exact_at(to, at).map_err(|e| e.to_string());
        luks::open(&mut read, passphrase).is_ok()
    };
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    cluster.node("bravo").kill_agent();
    let master = cluster.observed.master.clone().unwrap();
    let sealed = master.seal(&new, &mut |bytes| getrandom::fill(bytes).unwrap());
    cluster.command(Command::ChangePassphrase { name: rd("web"), number: 0, passphrase: sealed });
    let changed = |cluster: &Cluster, name: &str| {
        let volume = cluster.replica("web", name).and_then(|r| r.volumes.get(&VolumeNr(0)));
        volume.is_some_and(|volume| volume.passphrase_changes == 1)
    };
    cluster.wait("it opens two of them", |c| {
        client.write(8 * MIB, &second).unwrap();
        ["alpha", "charlie"].iter().all(|name| changed(c, name))
    });
    assert!(opens(&cluster, "alpha", &new) && opens(&cluster, "charlie", &new));
    assert!(opens(&cluster, "bravo", &passphrase) && !opens(&cluster, "bravo", &new));
    cluster.node("bravo").start_agent();
    cluster.wait("it opens all of them", |c| {
        // The link may still be the one to the agent that was killed.
        tell(c, "bravo");
        changed(c, "bravo")
    });
    cluster.wait_settled("web");
    // An engine that starts anew is told the new one.
    cluster.node("bravo").kill_engine();
    client.write(8 * MIB, &first).unwrap();
    cluster.node("bravo").start_engine();
    let path = image(&cluster, "web", "bravo");
    cluster.wait("bravo has what it missed", |c| {
        decrypted(&path, &new, 8 * MIB, MIB as usize) == first
            && disk_state(c, "bravo") == "UpToDate"
    });
    client.close();
    cluster.wait("it is closed", |c| {
        c.observed.replicas(&rd("web")).all(|(_, replica)| replica.in_use.is_none())
    });
    for name in NODES {
        assert!(!opens(&cluster, name, &passphrase), "{name} does not open by the old one");
    }

    // Keys are nowhere.
    let master = master.to_secret();
    let secrets = [passphrase.expose(), new.expose(), master.expose()];
    for node in &cluster.nodes {
        let found = with_text(&node.directory, &secrets);
        assert_eq!(found, Vec::<PathBuf>::new(), "{}", node.name);
    }
    cluster.command(Command::DeleteDefinition { name: rd("web") });
    cluster.wait("it is gone", |c| c.model.definition(&rd("web")).is_none());
    for name in NODES {
        assert_eq!(cluster.pools.files(name), Vec::<String>::new(), "left on {name}");
    }
    drop(heir);
}

#[test]
fn a_clone_of_an_encrypted_volume_is_opened_by_the_same_passphrase() {
    let mut cluster = Cluster::up(&NODES[..2]);
    if !cluster.pools.has_snapshots {
        return;
    }
    cluster.observed.master = Some(MasterKey::new(&mut |bytes| bytes.fill(0xa5)));
    for name in &NODES[..2] {
        tell(&cluster, name);
    }
    define(&mut cluster, "web", 32 * MIB);
    cluster.place("web", &NODES[..2]);
    cluster.wait_settled("web");
    let socket = cluster.node("alpha").export("web");
    let mut client = Client::open(&socket, "web/0").unwrap();
    let (first, second) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    client.write(8 * MIB, &first).unwrap();
    let to = NewDefinition { name: Some(rd("copy")), ..NewDefinition::default() };
    let (name, props) = (rd("web"), PropsEdit::default());
    cluster.command(Command::CloneDefinition { name, to, props });
    cluster.wait("the clone is complete", |c| {
        c.model.definition(&rd("copy")).is_some_and(|found| found.flags.is_empty())
    });
    cluster.wait_settled("copy");
    client.write(8 * MIB, &second).unwrap();
    let passphrase = passphrase(&cluster, "copy");
    for name in &NODES[..2] {
        let (web, copy) = (image(&cluster, "web", name), image(&cluster, "copy", name));
        assert!(decrypted(&web, &passphrase, 8 * MIB, MIB as usize) == second, "{name}");
        assert!(decrypted(&copy, &passphrase, 8 * MIB, MIB as usize) == first, "{name}");
    }
    client.close();
}
