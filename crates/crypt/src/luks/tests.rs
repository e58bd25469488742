//! Headers that are made here, and what a damaged device may have. `cryptsetup` judges them in `tests/tests/luks.rs`.

use super::*;

/// Fast enough for many of them.
const FAST: Kdf = Kdf::Pbkdf2 { hash: kdf::Hash::Sha256, rounds: 1000 };

/// Other bytes each time, and the same in each run.
fn chance(mut seed: u64) -> impl FnMut(&mut [u8]) {
    move |bytes| {
        for byte in bytes {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (seed >> 56) as u8;
        }
    }
}

fn pass(text: &str) -> Secret {
    Secret::from(text)
}

/// Reads of a device in memory that is as long as its content.
fn of(image: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), String> {
    move |at, to| {
        let from = image.get(at as usize..).and_then(|from| from.get(..to.len()));
        to.copy_from_slice(from.ok_or("beyond the end")?);
        Ok(())
    }
}

#[test]
fn the_newer_good_copy_counts() {
    let mut image = format(&pass("one"), FAST, &mut chance(1)).unwrap();
    let opened = open(&mut of(&image), &pass("one")).unwrap();
    // The first copy is gone, or damaged somewhere: the second is as good.
    for at in [0, 5000, COPY - 1] {
        let mut damaged = image.clone();
        damaged[at] ^= 1;
        assert_eq!(open(&mut of(&damaged), &pass("one")).unwrap().key, opened.key, "byte {at}");
        damaged[COPY + at] ^= 1;
        assert!(open(&mut of(&damaged), &pass("one")).is_err(), "byte {at} of both");
    }
    image[..COPY].fill(0);
    opened.check(&mut of(&image)).unwrap();
    assert!(exists(&mut of(&image)).unwrap());
    image[COPY..2 * COPY].fill(0);
    assert_eq!(opened.check(&mut of(&image)), Err(Error::NotLuks));
    assert!(!exists(&mut of(&image)).unwrap());
}

#[test]
fn a_disk_with_another_key_is_noticed() {
    let first = format(&pass("one"), FAST, &mut chance(2)).unwrap();
    let second = format(&pass("one"), FAST, &mut chance(3)).unwrap();
    let opened = open(&mut of(&first), &pass("one")).unwrap();
    assert_eq!(opened.check(&mut of(&second)), Err(Error::OtherKey));
    assert!(!format!("{opened:?}").contains("key"), "{opened:?}");
}

/// A header whose text was changed, with checksums that are right.
fn changed(image: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut image = image.to_vec();
    for copy in [0, COPY] {
        let text = &image[copy + 4096..copy + COPY];
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8(text[..end].to_vec()).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        let text = text.replacen(from, to, 1);
        image[copy + 4096..copy + COPY].fill(0);
        image[copy + 4096..][..text.len()].copy_from_slice(text.as_bytes());
        image[copy + 448..copy + 512].fill(0);
        let sum = <sha2::Sha256 as sha2::Digest>::digest(&image[copy..copy + COPY]);
        image[copy + 448..copy + 480].copy_from_slice(&sum);
    }
    image
}

#[test]
fn what_is_not_supported_is_said_and_never_guessed() {
    let image = format(&pass("one"), FAST, &mut chance(4)).unwrap();
    for (from, to, said) in [
        ("\"dynamic\"", "\"1048576\"", "end of the device"),
        ("aes-xts-plain64\",\"sector_size", "aes-cbc-essiv:sha256\",\"sector_size", "aes-cbc"),
        ("\"sector_size\":512", "\"sector_size\":513", "513"),
        ("\"16777216\"", "\"16384\"", "begin within"),
        ("\"16777216\"", "\"262144\"", "keyslot 0 is not where"),
        ("\"16777216\"", "\"16777217\"", "16777217"),
        ("\"16777216\"", "\"-1\"", "\"-1\""),
        ("\"size\":\"258048\"", "\"size\":\"4096\"", "4096"),
        ("\"offset\":\"32768\"", "\"offset\":\"18446744073709551615\"", "keyslot 0"),
        ("\"iterations\":1000,\"salt", "\"iterations\":4000000000,\"salt", "4000000000 rounds"),
        ("\"pbkdf2\",\"hash\"", "\"scrypt\",\"hash\"", "scrypt"),
        ("\"stripes\":4000", "\"stripes\":1", "1 stripes"),
        ("\"key_size\":64", "\"key_size\":32", "256 bits"),
        ("\"tokens\":{}", "\"tokens\":[]", "text"),
        (
            "\"json_size\"",
            "\"requirements\":{\"mandatory\":[\"online-reencrypt\"]},\"json_size\"",
            "online",
        ),
        (
            "\"segments\":{",
            "\"segments\":{\"1\":{\"type\":\"linear\",\"offset\":\"0\",\"size\":\"1\"},",
            "2 segments",
        ),
        ("\"keyslots\":[\"0\"]", "\"keyslots\":[\"7\"]", "no keyslot 7"),
        ("\"keyslots\":[\"0\"]", "\"keyslots\":[]", "no keyslots"),
    ] {
        let error = open(&mut of(&changed(&image, from, to)), &pass("one")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(said), "{from} -> {to}: {text}");
        assert!(error != Error::WrongPassphrase && error != Error::NotLuks, "{from} -> {to}");
    }
    let mut old = image.clone();
    (old[7], old[COPY + 7]) = (1, 1);
    assert_eq!(
        open(&mut of(&old), &pass("one")).unwrap_err(),
        Error::Unsupported("version 1".into())
    );
}

/// Whatever a device has, it is read, and never more than what is there.
#[test]
fn noise_is_refused() {
    let image = format(&pass("one"), FAST, &mut chance(5)).unwrap();
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for _ in 0..300 {
        let mut image = image.clone();
        for _ in 0..1 + next() % 4 {
            let (copy, at) = ((next() % 2) as usize * COPY, next() as usize % 6000);
            image[copy + at] = next() as u8;
        }
        image.truncate(image.len() - next() as usize % 4096);
        let _ = newest(&mut of(&image));
    }
    assert!(matches!(open(&mut of(&[]), &pass("one")), Err(Error::Read(_))));
}

/// A disk in memory that is cut off after so many writes; what was not made durable is lost then, or half of it
/// is there.
struct Disk {
    durable: Vec<u8>,
    written: Vec<(u64, Vec<u8>)>,
    left: usize,
}

impl Disk {
    fn new(image: &[u8], left: usize) -> Disk {
        let mut durable = image.to_vec();
        durable.resize(DATA_OFFSET as usize + 4096, 0xee);
        Disk { durable, written: Vec::new(), left }
    }

    fn put(to: &mut [u8], at: u64, bytes: &[u8]) {
        to[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// What is there after a power cut that has let `some` of the bytes of the last writes through.
    fn after_a_cut(&self, some: usize) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (at, bytes) in &self.written {
            Disk::put(&mut image, *at, &bytes[..some.min(bytes.len())]);
        }
        image
    }
}

impl change::Device for Disk {
    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), String> {
        of(&self.after_a_cut(usize::MAX))(at, to)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or("cut off")?;
        self.written.push((at, bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or("cut off")?;
        for (at, bytes) in std::mem::take(&mut self.written) {
            Disk::put(&mut self.durable, at, &bytes);
        }
        Ok(())
    }
}

#[test]
fn a_passphrase_is_changed_wherever_it_is_cut_off() {
    let image = format(&pass("old"), FAST, &mut chance(5)).unwrap();
    let key = open(&mut of(&image), &pass("old")).unwrap().key;
    let again = |disk: &mut Disk, seed| {
        change::change(disk, &pass("old"), &pass("new"), FAST, &mut chance(seed))
    };
    let mut whole = Disk::new(&image, usize::MAX);
    again(&mut whole, 6).unwrap();
    let done = usize::MAX - whole.left;
    assert!((10..60).contains(&done), "{done} writes");
    // Of the writes that overwrite what no keyslot has the first and the last.
    for left in (0..12).chain(done - 2..done) {
        let mut disk = Disk::new(&image, left);
        assert!(matches!(again(&mut disk, 6), Err(Error::Read(_))), "after {left}");
        for some in [0, 5000] {
            let image = disk.after_a_cut(some);
            let works = |word| open(&mut of(&image), &pass(word)).is_ok_and(|o| o.key == key);
            assert!(works("old") || works("new"), "after {left}, {some} bytes");
            let mut disk = Disk::new(&image, usize::MAX);
            again(&mut disk, 7).unwrap();
            let image = disk.durable;
            let opened = open(&mut of(&image), &pass("new")).unwrap();
            assert_eq!(opened.key, key);
            assert_eq!(open(&mut of(&image), &pass("old")).unwrap_err(), Error::WrongPassphrase);
            // One keyslot, its stripes, and nothing of the old ones.
            let text = newest(&mut of(&image)).unwrap();
            assert_eq!(text.keyslots.len(), 1, "after {left}, {some} bytes");
            let area = text.keyslots[0].area;
            let (from, to) = (area.offset as usize, (area.offset + area.size) as usize);
            let keyslots = SLOT_AT as usize..DATA_OFFSET as usize;
            let clean = keyslots.clone().all(|at| (from..to).contains(&at) || image[at] == 0);
            assert!(clean, "after {left}, {some} bytes");
            assert!(image[DATA_OFFSET as usize..].iter().all(|byte| *byte == 0xee), "data");
        }
    }
}

#[test]
fn who_does_not_know_the_passphrase_changes_nothing() {
    let image = format(&pass("old"), FAST, &mut chance(8)).unwrap();
    let mut disk = Disk::new(&image, usize::MAX);
    let before = disk.durable.clone();
    let wrong = change::change(&mut disk, &pass("x"), &pass("new"), FAST, &mut chance(9));
    assert_eq!(wrong.unwrap_err(), Error::WrongPassphrase);
    assert_eq!(disk.durable, before);
    // The same one again, and back: the disk is as it was but for salts.
    for (old, new) in [("old", "old"), ("old", "new"), ("new", "old")] {
        change::change(&mut disk, &pass(old), &pass(new), FAST, &mut chance(10)).unwrap();
        assert!(open(&mut of(&disk.durable), &pass(new)).is_ok());
    }
    // What is not known here stays: a keyslot of another kind, and a token that refers to one that goes.
    let image = changed(
        &image,
        "\"tokens\":{}",
        "\"tokens\":{\"0\":{\"type\":\"x\",\"keyslots\":[\"0\"],\"y\":1}}",
    );
    let image = changed(
        &image,
        "\"keyslots\":{",
        "\"keyslots\":{\"9\":{\"type\":\"other\",\"key_size\":64,\"area\":{\"type\":\"raw\",\
         \"offset\":\"8388608\",\"size\":\"4096\"},\"z\":2},",
    );
    let mut disk = Disk::new(&image, usize::MAX);
    disk.durable[8_388_608..8_392_704].fill(7);
    change::change(&mut disk, &pass("old"), &pass("new"), FAST, &mut chance(11)).unwrap();
    assert!(open(&mut of(&disk.durable), &pass("new")).is_ok());
    let text = newer(&mut of(&disk.durable)).unwrap().text;
    let text = String::from_utf8(text).unwrap();
    for part in ["\"z\":2", "\"y\":1", "\"keyslots\":[]"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(disk.durable[8_388_608..8_392_704].iter().all(|byte| *byte == 7));
}

#[test]
fn a_header_is_told_from_others_by_its_uuid() {
    let image = format(&pass("one"), FAST, &mut chance(4)).unwrap();
    let other = format(&pass("one"), FAST, &mut chance(5)).unwrap();
    let found = uuid(&mut of(&image)).unwrap();
    assert_eq!(found.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    assert_ne!(uuid(&mut of(&other)).unwrap(), found);
    assert_eq!(uuid(&mut of(&vec![0; 4096])), Err(Error::NotLuks));
    assert!(matches!(uuid(&mut of(&[])), Err(Error::Read(_))));
    let mut without = image.clone();
    without[168..208].fill(0);
    assert_eq!(uuid(&mut of(&without)), Err(Error::NotLuks), "a header without one");
}
