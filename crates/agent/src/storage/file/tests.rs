//! Folders as pools: on whatever file system the tests run, and where they can be mounted on XFS
//! and btrfs, which share blocks.

use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn folder(thin: bool) -> (TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    let pool = Folder::open(dir.path(), thin).unwrap();
    (dir, pool)
}

fn names(pool: &Folder) -> Vec<String> {
    pool.volumes().unwrap().into_iter().map(|volume| volume.name).collect()
}

/// A file system on a loop device; unmounted in the end.
struct Mounted {
    dir: TempDir,
}

impl Mounted {
    /// `None`, with the reason printed, where it can not be made or mounted.
    fn new(make: &str) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(512 * MIB).unwrap();
        let at = dir.path().join("at");
        fs::create_dir(&at).unwrap();
        for argv in [
            vec![make, "-q", image.to_str().unwrap()],
            vec!["mount", "-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()],
        ] {
            let done = Command::new(argv[0]).args(&argv[1..]).output();
            if !done.as_ref().is_ok_and(|output| output.status.success()) {
                println!("skipped: {} does not work here: {done:?}", argv.join(" "));
                return None;
            }
        }
        Some(Mounted { dir })
    }

    fn pool(&self, thin: bool) -> Folder {
        Folder::open(&self.dir.path().join("at"), thin).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path().join("at")).status();
    }
}

#[test]
fn a_volume_is_made_once_grown_and_removed() {
    for thin in [false, true] {
        let (dir, pool) = folder(thin);
        let db = name("db_00000");
        let made = pool.create(&db, Bytes(MIB - 5)).unwrap();
        assert_eq!(made.size, Bytes(MIB), "rounded up");
        assert_eq!(made.allocated.0 >= MIB, !thin, "thin: {thin}, {made:?}");
        assert_eq!(made.path, dir.path().join("db_00000.img"));
        assert_eq!(pool.create(&db, Bytes(MIB)).unwrap(), made, "made once");

        let grown = pool.grow(&db, Bytes(2 * MIB)).unwrap();
        assert_eq!(grown.size, Bytes(2 * MIB));
        assert_eq!(pool.grow(&db, Bytes(MIB)).unwrap().size, Bytes(2 * MIB), "never smaller");

        pool.remove(&db).unwrap();
        pool.remove(&db).unwrap();
        assert_eq!(names(&pool), Vec::<String>::new());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_is_there_is_never_overwritten() {
    let (dir, pool) = folder(false);
    fs::write(dir.path().join("a_00000.img"), b"someone's data").unwrap();
    let error = pool.create(&name("a_00000"), Bytes(MIB)).unwrap_err();
    assert_eq!(error.why, Why::Exists);
    assert!(error.cause.contains("14 bytes"), "{error}");

    fs::create_dir(dir.path().join("b_00000.img")).unwrap();
    assert_eq!(pool.create(&name("b_00000"), Bytes(MIB)).unwrap_err().why, Why::Exists);
    assert_eq!(pool.remove(&name("b_00000")).unwrap_err().why, Why::Exists);
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("c_00000.img")).unwrap();
    assert_eq!(pool.create(&name("c_00000"), Bytes(MIB)).unwrap_err().why, Why::Exists);
    assert_eq!(fs::read(dir.path().join("a_00000.img")).unwrap(), b"someone's data");
}

#[test]
fn what_a_crash_left_unfinished_is_removed() {
    let (dir, pool) = folder(false);
    fs::write(dir.path().join(".db_00000.img.new"), b"half").unwrap();
    fs::write(dir.path().join(".profile"), b"not ours").unwrap();
    assert_eq!(pool.create(&name("db_00000"), Bytes(MIB)).unwrap().size, Bytes(MIB));
    fs::write(dir.path().join(".x_00000.img.new"), b"half").unwrap();
    drop(Folder::open(dir.path(), false).unwrap());
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".profile", "db_00000.img"]);
}

#[test]
fn a_pool_that_is_not_there_is_refused() {
    let (dir, _) = folder(false);
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for (path, why) in [
        (Path::new("relative"), Why::Invalid),
        (&file, Why::Invalid),
        (&dir.path().join("absent"), Why::NotFound),
    ] {
        let error = Folder::open(path, false).unwrap_err();
        assert_eq!(error.why, why, "{error}");
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_volume_in_use_is_not_removed() {
    let (_dir, pool) = folder(true);
    let db = name("db_00000");
    let made = pool.create(&db, Bytes(MIB)).unwrap();
    // A lock of this process would not be in its own way.
    let mut holder = Command::new("python3")
        .args([
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); \
             print('held', flush=True); sys.stdin.read()",
            made.path.to_str().unwrap(),
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0_u8; 5];
    io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut said).unwrap();
    let error = pool.remove(&db).unwrap_err();
    assert_eq!(error.why, Why::InUse, "{error}");
    assert!(error.correction.contains("detach"), "{error}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    pool.remove(&db).unwrap();
}

#[test]
fn a_volume_that_does_not_fit_leaves_nothing_behind() {
    let Some(small) = Mounted::new("mkfs.xfs") else { return };
    let pool = small.pool(false);
    let db = name("db_00000");
    let error = pool.create(&db, Bytes(1 << 40)).unwrap_err();
    assert_eq!(error.why, Why::NoSpace, "{error}");
    assert_eq!(names(&pool), Vec::<String>::new());

    pool.create(&db, Bytes(MIB)).unwrap();
    let free = pool.space().unwrap().free;
    assert_eq!(pool.grow(&db, Bytes(1 << 40)).unwrap_err().why, Why::NoSpace);
    assert_eq!(pool.grow(&db, Bytes(MIB)).unwrap().size, Bytes(MIB), "its old size");
    let free_now = pool.space().unwrap().free;
    assert!(free.0 - free_now.0 <= 4 * MIB, "{} of {} left", free_now.0, free.0);
    // A thin one promises what the pool does not have.
    let thin = small.pool(true).create(&name("thin_00000"), Bytes(1 << 40)).unwrap();
    assert_eq!(thin.size, Bytes(1 << 40));
}

#[test]
fn snapshots_need_blocks_that_can_be_shared() {
    // tmpfs can not.
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let pool = Folder::open(dir.path(), true).unwrap();
    let why = pool.no_snapshots().expect("it is known from the beginning");
    assert!(why.contains("XFS or btrfs"), "{why}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of the attempt");
    pool.create(&name("a_00000"), Bytes(MIB)).unwrap();
    let error = pool.snapshot(&name("a_00000"), &name("s")).unwrap_err();
    assert_eq!(error.why, Why::Unsupported, "{error}");
    assert!(error.correction.contains("XFS or btrfs"), "{error}");
    assert_eq!(names(&pool), ["a_00000"]);
}

#[test]
fn snapshots_keep_their_data_and_give_them_back() {
    for make in ["mkfs.xfs", "mkfs.btrfs"] {
        for thin in [false, true] {
            let Some(mounted) = Mounted::new(make) else { continue };
            snapshots(&mounted.pool(thin));
        }
    }
}

fn snapshots(pool: &Folder) {
    assert_eq!(pool.no_snapshots(), None);
    let (db, s1, new) = (name("db_00000"), name("s1"), name("copy_00000"));
    let made = pool.create(&db, Bytes(MIB)).unwrap();
    let write = |path: &Path, text: &[u8]| {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(text, 4096).unwrap();
    };
    let read = |path: &Path| {
        let mut text = [0_u8; 5];
        File::open(path).unwrap().read_exact_at(&mut text, 4096).unwrap();
        text
    };
    write(&made.path, b"first");
    let snapshot = pool.snapshot(&db, &s1).unwrap();
    assert!(snapshot.is_snapshot && snapshot.name == "db_00000_s1" && snapshot.size == Bytes(MIB));
    write(&made.path, b"later");
    assert_eq!(pool.snapshot(&db, &s1).unwrap(), snapshot, "made once");
    assert_eq!(read(&snapshot.path), *b"first");

    // A snapshot is not taken for a volume of that name, nor removed as one.
    let same = name("db_00000_s1");
    assert_eq!(pool.create(&same, Bytes(MIB)).unwrap_err().why, Why::Exists);
    assert_eq!(pool.remove(&same).unwrap_err().why, Why::Exists);
    // Nor a volume for a snapshot.
    pool.create(&name("db_00000_s2"), Bytes(MIB)).unwrap();
    assert_eq!(pool.snapshot(&db, &name("s2")).unwrap_err().why, Why::Exists);
    assert_eq!(pool.remove_snapshot(&db, &name("s2")).unwrap_err().why, Why::Exists);
    pool.remove(&name("db_00000_s2")).unwrap();

    let restored = pool.restore(&db, &s1, &new).unwrap();
    assert!(!restored.is_snapshot);
    assert_eq!(read(&restored.path), *b"first");
    write(&restored.path, b"other");
    assert_eq!(pool.restore(&db, &s1, &new).unwrap().path, restored.path, "made once");
    assert_eq!(read(&restored.path), *b"other", "and not touched again");
    assert_eq!(read(&snapshot.path), *b"first");
    // Into a volume that is none of its copies: never.
    assert_eq!(pool.restore(&db, &s1, &db).unwrap_err().why, Why::Exists);

    let back = pool.rollback(&db, &s1).unwrap();
    assert_eq!(read(&back.path), *b"first");
    write(&back.path, b"again");
    assert_eq!(read(&snapshot.path), *b"first", "the snapshot stays");

    // What it was made from may go.
    pool.remove(&db).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
    pool.remove_snapshot(&db, &s1).unwrap();
    assert_eq!(pool.restore(&db, &s1, &name("x_00000")).unwrap_err().why, Why::NotFound);
    assert_eq!(names(pool), ["copy_00000"]);
    assert_eq!(read(&restored.path), *b"other");
}
