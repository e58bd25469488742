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
    ("disable-write-same", "WRITE SAME is used for nothing, disabled or not"),
    ("transport", "tcp is what is used, said or not"),
    ("resync-without-replication", "writes are always replicated, as with the only value taken"),
];

/// A row of `vocab::options` that accepts more than one value has its field read somewhere.
pub fn read(tree: &Tree) -> Vec<Complaint> {
    let acting: Vec<String> = tree
        .rust()
        .filter(|(file, _)| ACTING.iter().any(|folder| file.path.starts_with(folder)))
        .filter(|(file, _)| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"))
        .map(|(_, text)| code(text))
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
        !acting.iter().any(|text| is_read(text, &field))
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

/// What of a file acts: neither its comments nor its tests, which stand at its end.
fn code(text: &str) -> String {
    let acting = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = acting.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// True if `field` stands in `text` as a whole word, and somewhere not only to be written.
fn is_read(text: &str, field: &str) -> bool {
    text.match_indices(field).any(|(at, _)| {
        let rest = &text[at + field.len()..];
        let longer = rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = rest.trim_start();
        let written = rest.starts_with('=') && !rest.starts_with("==");
        !longer && !written
    })
}

#[cfg(test)]
mod tests {
    //! Only code that uses a value counts.
    use super::*;

    #[test]
    fn a_comment_a_test_and_an_assignment_read_nothing() {
        let reads = |text: &str| is_read(&code(text), ".ko_count");
        assert!(reads("let patience = net.timeout * net.ko_count;"));
        assert!(reads("if net.ko_count == 0 {"));
        assert!(!reads("// as net.ko_count says"));
        assert!(!reads("net.ko_count = 3;"));
        assert!(!reads("net.ko_counts;"));
        assert!(!reads("fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() { net.ko_count; }\n}"));
    }
}
