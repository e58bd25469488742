//! Programs that keep in files what `cryptsetup` and `dmsetup` would have the kernel do, and what they were told.

use std::os::unix::fs::PermissionsExt;

use crypt::luks::Kdf;

use super::*;

/// Puts the programs into `root/bin`; open devices are in `root/mapper`. They were called as `root/log` says, and
/// read `root/stdin` last. While there is a file `busy` nothing is closed, and while there is one `broken` nothing
/// opened.
pub(crate) fn programs(root: &Path) {
    for folder in ["bin", "mapper", "state", "uuid"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("mapper/control"), "").unwrap();
    let head = format!("#!/bin/sh\nroot={}\necho \"${{0##*/}} $*\" >> $root/log\n", root.display());
    for (name, text) in [("cryptsetup", CRYPTSETUP), ("dmsetup", DMSETUP), ("modprobe", "exit 1\n")]
    {
        let path = root.join("bin").join(name);
        fs::write(&path, format!("{head}{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

const CRYPTSETUP: &str = r#"
table() { # VOLUME NAME
    size=$(stat -L -c %s "$1")
    echo "0 $((size / 512 - 32768)) crypt aes-xts-plain64 :64:logon:cryptsetup:x-d0 0 0:$(stat -L -c %i "$1") 32768" > $root/state/$2
}
case $1 in
--version) echo "cryptsetup 2.6.1" ;;
open)
    cat > $root/stdin
    [ ! -e $root/broken ] || { echo "No key available with this passphrase." >&2; exit 2; }
    table "$6" "$7"
    echo "CRYPT-LUKS2-$(dd if="$6" bs=1 skip=168 count=36 2>/dev/null | tr -d -)-$7" > $root/uuid/$7
    ln -sf "$6" $root/mapper/$7 ;;
resize)
    cat > $root/stdin
    table $root/mapper/$4 $4 ;;
close)
    [ ! -e $root/busy ] || { printf 'remove failed: busy\nDevice %s is still in use.\n' $2 >&2; exit 5; }
    rm $root/state/$2 $root/uuid/$2 $root/mapper/$2 ;;
*) exit 1 ;;
esac
"#;

const DMSETUP: &str = r#"
case $1 in
targets) echo "crypt            v1.24.0"; echo "linear           v1.4.0" ;;
table)
    for device in $root/state/*; do
        [ ! -e $device ] || echo "${device##*/}: $(cat $device)"
    done ;;
info) cat $root/uuid/$6 ;;
*) exit 1 ;;
esac
"#;

const NAME: &str = "Linstor-Crypt-web_00000";
const SECRET: &str = "six stones in a wall";

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        programs(directory.path());
        Bed { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mapper(&self, choice: Choice) -> Mapper {
        Mapper::fake(choice, self.path("mapper"), self.path("bin"))
    }

    /// A volume with a header that this number makes its own.
    fn volume(&self, name: &str, seed: u8) -> String {
        let kdf = Kdf::Pbkdf2 { hash: luks::Hash::Sha256, rounds: 1000 };
        let header = luks::format(&SECRET.into(), kdf, &mut |bytes| bytes.fill(seed)).unwrap();
        let path = self.path(name);
        fs::write(&path, &*header).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
        path.display().to_string()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }
}

#[test]
fn a_volume_is_opened_once_and_closed_once() {
    let bed = Bed::new();
    let mapper = bed.mapper(Choice::Auto);
    let volume = bed.volume("disk", 1);
    for _ in 0..2 {
        mapper.open(&volume, NAME, &SECRET.into()).unwrap();
        assert_eq!(mapper.is_open(&volume, NAME), Ok(true));
    }
    assert_eq!(fs::read_to_string(bed.path("stdin")).unwrap(), SECRET, "no line end is added");
    for _ in 0..2 {
        mapper.close(&volume, NAME).unwrap();
        assert_eq!(mapper.is_open(&volume, NAME), Ok(false));
    }
    let log = bed.log();
    let open = format!("cryptsetup open --type luks2 --key-file - {volume} {NAME}\n");
    assert_eq!(log.matches(&open).count(), 1, "{log}");
    assert_eq!(log.matches(&format!("cryptsetup close {NAME}\n")).count(), 1, "{log}");
    assert!(!log.contains(SECRET) && !log.contains("discards"), "{log}");
}

#[test]
fn what_is_open_has_to_be_what_is_meant() {
    let bed = Bed::new();
    let mapper = bed.mapper(Choice::Auto);
    let (volume, other) = (bed.volume("disk", 1), bed.volume("other", 2));
    mapper.open(&other, NAME, &SECRET.into()).unwrap();
    let refused = mapper.open(&volume, NAME, &SECRET.into()).unwrap_err().to_string();
    assert!(refused.contains("is open above device") && refused.contains(NAME), "{refused}");
    let refused = mapper.open(&other, "another", &SECRET.into()).unwrap_err().to_string();
    assert!(refused.contains(&format!("{NAME}; close it")), "{refused}");
    mapper.close(&volume, NAME).unwrap();
    assert_eq!(mapper.is_open(&other, NAME), Ok(true), "it is not the volume's");
    // The header was made anew below what is open.
    bed.volume("other", 3);
    let refused = mapper.is_open(&other, NAME).unwrap_err().to_string();
    assert!(refused.contains("another header"), "{refused}");
    mapper.close(&other, NAME).unwrap();
    mapper.open(&other, NAME, &SECRET.into()).unwrap();
}

#[test]
fn what_is_in_use_is_not_closed_and_a_wrong_passphrase_opens_nothing() {
    let bed = Bed::new();
    let mapper = bed.mapper(Choice::Auto);
    let volume = bed.volume("disk", 1);
    fs::write(bed.path("broken"), "").unwrap();
    let refused = mapper.open(&volume, NAME, &SECRET.into()).unwrap_err().to_string();
    assert!(refused.contains("No key available") && refused.contains(&volume), "{refused}");
    assert!(!refused.contains(SECRET));
    fs::remove_file(bed.path("broken")).unwrap();
    mapper.open(&volume, NAME, &SECRET.into()).unwrap();
    fs::write(bed.path("busy"), "").unwrap();
    let refused = mapper.close(&volume, NAME).unwrap_err().to_string();
    assert!(!refused.contains("remove failed"), "{refused}");
    assert!(refused.contains("exit 5: Device ") && refused.contains("lsblk"), "{refused}");
    assert_eq!(mapper.is_open(&volume, NAME), Ok(true));
}

#[test]
fn a_device_gets_what_its_volume_has() {
    let bed = Bed::new();
    let mapper = bed.mapper(Choice::Auto);
    let volume = bed.volume("disk", 1);
    mapper.open(&volume, NAME, &SECRET.into()).unwrap();
    assert_eq!(mapper.is_short(&volume, NAME), Ok(false));
    OpenOptions::new().write(true).open(&volume).unwrap().set_len(96 << 20).unwrap();
    assert_eq!(mapper.is_short(&volume, NAME), Ok(true));
    fs::remove_file(bed.path("stdin")).unwrap();
    mapper.resize(NAME, &SECRET.into()).unwrap();
    assert_eq!(mapper.is_short(&volume, NAME), Ok(false));
    assert_eq!(fs::read_to_string(bed.path("stdin")).unwrap(), SECRET);
    assert!(bed.log().contains(&format!("cryptsetup resize --key-file - {NAME}\n")));
}

#[test]
fn it_is_used_where_it_can_be_and_is_wanted() {
    let bed = Bed::new();
    let thin = Provider::LvmThin;
    assert_eq!(bed.mapper(Choice::Auto).takes(thin), Ok(true));
    assert_eq!(bed.mapper(Choice::Auto).takes(Provider::Diskless), Ok(true), "of a test's");
    assert_eq!(bed.mapper(Choice::Engine).takes(thin), Ok(false));
    assert_eq!(bed.mapper(Choice::Engine).ready(), Ok(()), "there may be older ones");
    fs::remove_file(bed.path("mapper/control")).unwrap();
    let mapper = bed.mapper(Choice::Auto);
    assert_eq!(mapper.takes(thin), Ok(false));
    assert!(mapper.described().contains("no device-mapper"), "{}", mapper.described());
    let refused = bed.mapper(Choice::Cryptsetup).takes(thin).unwrap_err().to_string();
    assert!(refused.contains("control") && refused.contains("install cryptsetup"), "{refused}");
    // It is there by now.
    fs::write(bed.path("mapper/control"), "").unwrap();
    mapper.ready().unwrap();
    fs::write(bed.path("bin/dmsetup"), "#!/bin/sh\necho linear v1.4.0\n").unwrap();
    assert_eq!(bed.mapper(Choice::Auto).takes(thin), Ok(false));
    fs::remove_file(bed.path("bin/cryptsetup")).unwrap();
    assert!(bed.mapper(Choice::Auto).described().contains("not installed"));
}

#[test]
fn lines_of_dmsetup_are_understood() {
    let line = "Linstor-Crypt-web_00000: 0 163840 crypt aes-xts-plain64 \
                :64:logon:cryptsetup:6f7d0d2c-a6bb-4f4e-9c4f-0f2a0a3b9a11-d0 0 254:3 32768";
    let entry = Entry::parse(line).unwrap();
    assert_eq!((&*entry.name, &*entry.below), ("Linstor-Crypt-web_00000", "254:3"));
    assert_eq!((entry.sectors, entry.offset), (163_840, 32_768));
    let line = "a: 0 8192 crypt aes-xts-plain64 0000 0 7:1 4096 2 allow_discards sector_size:4096";
    assert_eq!(Entry::parse(line).unwrap().below, "7:1");
    for line in ["No devices found", "vg-lv: 0 8192 linear 254:0 2048", "a: ", "", "a: 0 1 crypt"] {
        assert_eq!(Entry::parse(line), None, "{line:?}");
    }
}

#[test]
fn words_of_choices_are_read_as_they_are_written() {
    for (choice, word) in Choice::ALL {
        assert_eq!((choice.to_string(), word.parse()), (word.to_owned(), Ok(choice)));
    }
    assert!("kernel".parse::<Choice>().unwrap_err().contains("cryptsetup"));
}
