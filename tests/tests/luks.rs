//! LUKS2 headers and sectors against `cryptsetup`, in both directions. Skipped where it is not installed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crypt::luks::change::{Device, change};
use crypt::luks::{self, DATA_OFFSET, Error, Hash, Kdf};
use crypt::xts::SectorCipher;
use vocab::options::Secret;

/// Fast enough for many of them.
const FAST: Kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, rounds: 1000 };
const DEVICE: u64 = 64 << 20;

fn random(bytes: &mut [u8]) {
    getrandom::fill(bytes).unwrap();
}

fn pass(text: &str) -> Secret {
    Secret::from(text)
}

fn of_file(path: &Path) -> impl FnMut(u64, &mut [u8]) -> Result<(), String> {
    let file = File::open(path).unwrap();
    move |at, to| file.read_exact_at(to, at).map_err(|error| error.to_string())
}

/// Runs cryptsetup with passphrases, a line each, on its standard input.
fn cryptsetup(arguments: &[&str], path: &Path, passphrases: &str) -> Result<String, String> {
    let mut child = Command::new("cryptsetup")
        .args(arguments)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    child.stdin.take().unwrap().write_all(passphrases.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// False if there is no cryptsetup here.
fn available() -> bool {
    let there = Command::new("cryptsetup").arg("--version").output().is_ok();
    if !there {
        println!("skipped: there is no cryptsetup");
    }
    there
}

fn device(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(DEVICE).unwrap();
    path
}

/// A file whose header is changed.
struct Disk(File);

impl Device for Disk {
    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), String> {
        self.0.read_exact_at(to, at).map_err(|error| error.to_string())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.write_all_at(bytes, at).map_err(|error| error.to_string())
    }

    fn sync(&mut self) -> Result<(), String> {
        self.0.sync_all().map_err(|error| error.to_string())
    }
}

#[test]
fn cryptsetup_agrees_to_a_changed_passphrase() {
    if !available() {
        return;
    }
    let fast = ["--batch-mode", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    for ours in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = device(&folder);
        if ours {
            let image = luks::format(&pass("old one"), FAST, &mut random).unwrap();
            File::options().write(true).open(&path).unwrap().write_all_at(&image, 0).unwrap();
        } else {
            let format =
                [&["luksFormat", "--type", "luks2", "--label", "kept"][..], &fast].concat();
            cryptsetup(&format, &path, "old one").unwrap();
        }
        // Somebody else's passphrase stays.
        cryptsetup(&[&["luksAddKey"][..], &fast].concat(), &path, "old one\ntheirs\n").unwrap();
        let before = luks::open(&mut of_file(&path), &pass("old one")).unwrap();
        let mut disk = Disk(File::options().read(true).write(true).open(&path).unwrap());
        change(&mut disk, &pass("old one"), &pass("new one"), FAST, &mut random).unwrap();
        before.check(&mut of_file(&path)).unwrap();
        let test = ["open", "--test-passphrase"];
        for word in ["new one", "theirs"] {
            cryptsetup(&test, &path, word).unwrap();
        }
        cryptsetup(&test, &path, "old one").unwrap_err();
        let dump = cryptsetup(&["luksDump"], &path, "").unwrap();
        assert_eq!(dump.contains("kept"), !ours, "{dump}");
        // And it goes on with it.
        let change = [&["luksChangeKey"][..], &fast].concat();
        cryptsetup(&change, &path, "new one\nnewest\n").unwrap();
        luks::open(&mut of_file(&path), &pass("newest")).unwrap();
        cryptsetup(&["repair", "--batch-mode"], &path, "").unwrap();
    }
}

#[test]
fn cryptsetup_opens_what_is_formatted_here() {
    if !available() {
        return;
    }
    for kdf in [FAST, Kdf::RECOMMENDED] {
        let folder = tempfile::tempdir().unwrap();
        let path = device(&folder);
        let image = luks::format(&pass("first one"), kdf, &mut random).unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(&image, 0).unwrap();
        let dump = cryptsetup(&["luksDump"], &path, "").unwrap();
        for part in ["offset: 16777216 [bytes]", "cipher: aes-xts-plain64", "sector: 512 [bytes]"] {
            assert!(dump.contains(part), "{part} in {dump}");
        }
        let test = ["open", "--test-passphrase"];
        cryptsetup(&test, &path, "first one").unwrap();
        cryptsetup(&test, &path, "another").unwrap_err();
        // It can be used on: another passphrase opens the disk here, too, and the first one still does.
        let add =
            ["luksAddKey", "--batch-mode", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        cryptsetup(&add, &path, "first one\nsecond one\n").unwrap();
        let first = luks::open(&mut of_file(&path), &pass("first one")).unwrap();
        let second = luks::open(&mut of_file(&path), &pass("second one")).unwrap();
        second.check(&mut of_file(&path)).unwrap();
        let wrong = luks::open(&mut of_file(&path), &pass("third one"));
        assert_eq!(wrong.unwrap_err(), Error::WrongPassphrase);
        let uuid = cryptsetup(&["luksUUID"], &path, "").unwrap();
        assert_eq!(luks::uuid(&mut of_file(&path)).as_deref(), Ok(uuid.trim()));
        // The volume key is the one that cryptsetup has.
        let key = folder.path().join("key");
        let dump = ["luksDump", "--batch-mode", "--dump-volume-key", "--volume-key-file"];
        let dump = [&dump[..], &[key.to_str().unwrap()]].concat();
        cryptsetup(&dump, &path, "first one").unwrap();
        let cipher = SectorCipher::new(&fs::read(&key).unwrap(), 512, 0).unwrap();
        for opened in [first, second] {
            let (mut ours, mut its) = ([7; 512], [7; 512]);
            opened.cipher().encrypt(9, &mut ours);
            cipher.encrypt(9, &mut its);
            assert_eq!(ours, its);
        }
    }
}

#[test]
fn what_cryptsetup_formats_is_opened_here() {
    if !available() {
        return;
    }
    let argon2 = ["--pbkdf-memory", "32768", "--pbkdf-force-iterations", "4"];
    let rounds = ["--pbkdf-force-iterations", "1000"];
    for (kdf, cost, hash, sector) in [
        ("argon2id", argon2.as_slice(), "sha256", 512),
        ("argon2i", &argon2, "sha256", 4096),
        ("pbkdf2", &rounds, "sha256", 4096),
        // The hash is that of the stripes, too.
        ("pbkdf2", &rounds, "sha512", 512),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = device(&folder);
        let size = sector.to_string();
        let plain =
            ["luksFormat", "--batch-mode", "--type", "luks2", "--hash", hash, "--pbkdf", kdf];
        let options = [&plain[..], &["--sector-size", &size], cost].concat();
        cryptsetup(&options, &path, "the passphrase").unwrap();
        let opened = luks::open(&mut of_file(&path), &pass("the passphrase"));
        if hash != "sha256" {
            assert!(matches!(opened, Err(Error::Unsupported(_))), "{opened:?}");
            continue;
        }
        let opened = opened.unwrap();
        assert_eq!((opened.offset(), opened.cipher().sector_size()), (DATA_OFFSET, sector));
        let wrong = luks::open(&mut of_file(&path), &pass("the passphras"));
        assert_eq!(wrong.unwrap_err(), Error::WrongPassphrase);
    }
}

#[test]
fn sectors_are_as_cryptsetup_encrypts_them() {
    if !available() {
        return;
    }
    for size in ["512", "4096"] {
        let folder = tempfile::tempdir().unwrap();
        let path = device(&folder);
        let plain: Vec<u8> = (0..8u64 << 20).map(|n| ((n * n) >> 11) as u8).collect();
        File::options().write(true).open(&path).unwrap().write_all_at(&plain, 0).unwrap();
        let encrypt = [
            "reencrypt",
            "--encrypt",
            "--batch-mode",
            "--type",
            "luks2",
            "--reduce-device-size",
            "32M",
            "--pbkdf",
            "pbkdf2",
            "--pbkdf-force-iterations",
            "1000",
            "--resilience",
            "none",
            "--sector-size",
            size,
        ];
        if let Err(why) = cryptsetup(&encrypt, &path, "the passphrase") {
            println!("skipped: cryptsetup can not encrypt without the kernel's help here: {why}");
            return;
        }
        let opened = luks::open(&mut of_file(&path), &pass("the passphrase")).unwrap();
        let mut sectors = vec![0; plain.len()];
        of_file(&path)(opened.offset(), &mut sectors).unwrap();
        let before = sectors.clone();
        opened.cipher().decrypt(0, &mut sectors);
        assert!(sectors == plain, "sectors of {size} bytes");
        opened.cipher().encrypt(0, &mut sectors);
        assert!(sectors == before);
    }
}
