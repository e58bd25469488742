//! Options that claim to take effect are read by the code that would act on them.

use vocab::options::{
    DeviceOptions, DiskOptions, Honoured, NetOptions, Options, PeerDeviceOptions, ResourceOptions,
};

use super::{Complaint, Tree};

/// Where an option can be acted upon.
const ACTING: &[&str] = &["crates/replication/src/", "crates/engine/src/"];

/// Options that nothing has to read, with the reason why every value takes effect all the same.
const HOLDS_ANYWAY: &[(&str, &str)] = &[
    ("tcp-cork", "packets queued together leave together, and none waits for another"),
    ("transport", "tcp is what is used, said or not"),
];

/// A row of `vocab::options` that accepts more than one value has its field read somewhere.
pub fn read(tree: &Tree) -> Vec<Complaint> {
    let acting: Vec<&str> = tree
        .rust()
        .filter(|(file, _)| ACTING.iter().any(|folder| file.path.starts_with(folder)))
        .filter(|(file, _)| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"))
        .map(|(_, text)| text)
        .collect();
    let names = [
        acted_upon::<ResourceOptions>(),
        acted_upon::<NetOptions>(),
        acted_upon::<DiskOptions>(),
        acted_upon::<PeerDeviceOptions>(),
        acted_upon::<DeviceOptions>(),
    ];
    let unread = |name: &&str| {
        let field = format!(".{}", name.replace('-', "_"));
        !acting.iter().any(|text| mentions(text, &field))
    };
    let complain = |name| {
        let text =
            format!("`{name}` takes any value, but nothing reads it: act on it or refuse it");
        Complaint::of("crates/vocab/src/options/groups.rs", text)
    };
    names.concat().into_iter().filter(unread).map(complain).collect()
}

fn acted_upon<T: Options>() -> Vec<&'static str> {
    let rows = T::TABLE.iter().filter(|row| !matches!(row.honoured, Honoured::DefaultOnly(_)));
    let rows = rows.filter(|row| !HOLDS_ANYWAY.iter().any(|(name, _)| *name == row.name));
    rows.map(|row| row.name).collect()
}

/// True if `field` stands in `text` as a whole word.
fn mentions(text: &str, field: &str) -> bool {
    text.match_indices(field).any(|(at, _)| {
        let next = text[at + field.len()..].chars().next();
        !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}
