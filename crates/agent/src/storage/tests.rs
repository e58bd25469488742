//! What holds for every kind of pool: names, sizes, and the words of errors.

use super::*;

#[test]
fn names_are_safe_in_paths_and_commands() {
    for good in ["a", "db_00000", "db.meta_00001", "_x", "A-b+c", &"x".repeat(120)] {
        assert_eq!(Name::new(good).unwrap().as_str(), good);
    }
    for bad in ["", ".", "..", "-f", ".hidden", "a/b", "a b", "a@b", "a\n", "ä", &"x".repeat(121)]
    {
        let error = Name::new(bad).unwrap_err();
        assert_eq!(error.why, Why::Invalid, "{bad:?}");
        assert!(error.to_string().contains("use letters"), "{error}");
    }
}

#[test]
fn a_volume_is_named_for_its_resource_and_number() {
    assert_eq!(Name::of_volume("db", "", 0).unwrap().as_str(), "db_00000");
    assert_eq!(Name::of_volume("db", ".meta", 65534).unwrap().as_str(), "db.meta_65534");
}

#[test]
fn sizes_are_rounded_up() {
    let unit = Bytes(4096);
    assert_eq!(rounded(Bytes(1), unit).unwrap(), Bytes(4096));
    assert_eq!(rounded(Bytes(4096), unit).unwrap(), Bytes(4096));
    assert_eq!(rounded(Bytes(4097), unit).unwrap(), Bytes(8192));
    assert_eq!(rounded(Bytes(0), unit).unwrap_err().why, Why::Invalid);
    assert_eq!(rounded(Bytes(u64::MAX), unit).unwrap_err().why, Why::Invalid);
}

#[test]
fn a_volume_serves_if_it_is_a_little_larger_but_never_if_it_is_smaller() {
    let unit = Bytes(4096);
    let wanted = Bytes(1 << 20);
    assert!(fits(wanted, wanted, unit));
    assert!(fits(Bytes(wanted.0 + 3 * 4096), wanted, unit));
    assert!(!fits(Bytes(wanted.0 + 3 * 4096 + 1), wanted, unit));
    assert!(!fits(Bytes(wanted.0 - 1), wanted, unit));
}
