//! Values there and back, and every way in which bytes can be wrong.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{from_bytes, to_bytes};

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
enum Kind {
    Nothing,
    One(u64),
    Two(i32, bool),
    Named { text: String, list: Vec<u16> },
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
struct Number(u32);

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
struct Whole {
    number: Number,
    maybe: Option<Box<Kind>>,
    kinds: VecDeque<Kind>,
    map: BTreeMap<(u64, u64), Option<bool>>,
    pair: (u8, char),
    nodes: [u64; 32],
    time: Duration,
    unit: (),
    real: f64,
    #[serde(with = "super::bytes")]
    block: [u8; 64],
    #[serde(skip)]
    not_told: u64,
}

fn whole() -> Whole {
    Whole {
        number: Number(7),
        maybe: Some(Box::new(Kind::Named { text: "ä".to_owned(), list: vec![1, 2, 3] })),
        kinds: VecDeque::from([Kind::Nothing, Kind::One(u64::MAX), Kind::Two(-5, true)]),
        map: BTreeMap::from([((1, 2), None), ((3, 4), Some(false))]),
        pair: (255, 'x'),
        nodes: std::array::from_fn(|i| i as u64),
        time: Duration::new(3, 4),
        unit: (),
        real: 0.5,
        block: [9; 64],
        not_told: 0,
    }
}

#[test]
fn a_value_comes_back_as_it_was() {
    let bytes = to_bytes(3, &whole()).unwrap();
    assert_eq!(from_bytes::<Whole>(3, &bytes).unwrap(), whole());
}

#[test]
fn no_byte_may_be_another_and_none_may_be_missing() {
    let bytes = to_bytes(3, &whole()).unwrap();
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 0x10;
        assert!(from_bytes::<Whole>(3, &other).is_err(), "byte {at}");
        assert!(from_bytes::<Whole>(3, &bytes[..at]).is_err(), "cut at {at}");
    }
    let error = from_bytes::<Whole>(4, &bytes).unwrap_err();
    assert!(error.to_string().contains("version 3"), "{error}");
}

/// The checksum keeps accidents away; bytes that pass it are still read with care.
#[test]
fn whatever_stands_behind_the_checksum_is_read_without_a_panic() {
    let bytes = to_bytes(1, &whole()).unwrap();
    for at in super::HEADER..bytes.len() {
        for change in [0x01, 0x10, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[at] ^= change;
            let sum = crc32c::crc32c(&other[super::HEADER..]).to_le_bytes();
            other[20..24].copy_from_slice(&sum);
            let _ = from_bytes::<Whole>(1, &other);
        }
    }
}

/// Each of these is `Plain` as another release might have it.
mod other {
    use serde::{Deserialize, Serialize};

    macro_rules! plain {
        ($($module:ident { $($(#[$attribute:meta])? $field:ident: $type:ty),* })+) => {$(
            pub(super) mod $module {
                use super::*;
                #[derive(Serialize, Deserialize, Debug)]
                pub(in super::super) struct Plain {
                    $($(#[$attribute])? pub(in super::super) $field: $type),*
                }
            }
        )+};
    }

    fn seven() -> u64 {
        7
    }

    plain! {
        now { size: u32, more: Option<u64> }
        added { size: u32, more: Option<u64>, new: Option<u64> }
        gone { size: u32 }
        renamed { length: u32, more: Option<u64> }
        swapped { more: Option<u64>, size: u32 }
        wider { size: u64, more: Option<u64> }
        grown { #[serde(default)] first: bool, size: u32, #[serde(default = "seven")] seven: u64,
                more: Option<u64>, #[serde(default)] last: Option<u64> }
        moved { #[serde(default)] more: Option<u64>, size: u32 }
    }
}

#[test]
fn another_set_of_fields_is_refused_and_named() {
    let now = other::now::Plain { size: 5, more: None };
    let bytes = to_bytes(1, &now).unwrap();
    let again: other::now::Plain = from_bytes(1, &bytes).unwrap();
    assert_eq!((again.size, again.more), (5, None));
    let errors = [
        // An `Option` that is missing is no `None`.
        from_bytes::<other::added::Plain>(1, &bytes).unwrap_err(),
        from_bytes::<other::gone::Plain>(1, &bytes).unwrap_err(),
        from_bytes::<other::renamed::Plain>(1, &bytes).unwrap_err(),
        from_bytes::<other::swapped::Plain>(1, &bytes).unwrap_err(),
        from_bytes::<other::wider::Plain>(1, &bytes).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("Plain"), "{error}");
    }
}

#[test]
fn a_new_field_is_made_up_only_as_its_type_says() {
    let now = other::now::Plain { size: 5, more: Some(6) };
    let bytes = to_bytes(1, &now).unwrap();
    let grown: other::grown::Plain = from_bytes(1, &bytes).unwrap();
    assert_eq!((grown.first, grown.size, grown.seven), (false, 5, 7));
    assert_eq!((grown.more, grown.last), (Some(6), None));
    // The way back is none: nothing is left out.
    let grown = other::grown::Plain { last: Some(1), ..grown };
    let error = from_bytes::<other::now::Plain>(1, &to_bytes(1, &grown).unwrap()).unwrap_err();
    assert!(error.to_string().contains("not known here"), "{error}");
    let gone = from_bytes::<other::gone::Plain>(1, &bytes).unwrap_err();
    assert!(gone.to_string().contains("1 fields more"), "{gone}");
    let added = from_bytes::<other::added::Plain>(1, &bytes).unwrap_err();
    assert!(added.to_string().starts_with("Plain.new: it is not there"), "{added}");
    // A field that is there is not made up, wherever it stands.
    assert!(from_bytes::<other::moved::Plain>(1, &bytes).is_err());
}

#[test]
fn variants_are_told_by_their_names() {
    #[derive(Serialize, Debug)]
    #[serde(rename = "Kind")]
    enum Newer {
        Fresh,
        Nothing,
    }
    let old: Kind = from_bytes(1, &to_bytes(1, &Newer::Nothing).unwrap()).unwrap();
    assert_eq!(old, Kind::Nothing);
    let error = from_bytes::<Kind>(1, &to_bytes(1, &Newer::Fresh).unwrap()).unwrap_err();
    assert!(error.to_string().contains("not known"), "{error}");
}
