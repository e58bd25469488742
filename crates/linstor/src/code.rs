//! Return codes: 64 bits with the kind of entry, the operation, the object and a number (control
//! plane §2.1), which clients compare exactly.

use cluster::change::Key;

/// What an entry of an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// It was done.
    Success,
    /// Something to know.
    Info,
    /// Something to look at.
    Warning,
    /// It was not done.
    Error,
}

/// What is done to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// It is looked at.
    Read = 0,
    /// It is made.
    Create = 0x100_0000,
    /// It is changed.
    Modify = 0x200_0000,
    /// It goes.
    Delete = 0x300_0000,
}

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is LINSTOR's object of its name")]
pub enum Kind {
    None = 0,
    Remote = 0x04_0000,
    Backup = 0x08_0000,
    Snapshot = 0x0c_0000,
    Controller = 0x10_0000,
    Pool = 0x14_0000,
    PoolDefinition = 0x18_0000,
    NetInterface = 0x1c_0000,
    ResourceConnection = 0x24_0000,
    NodeConnection = 0x28_0000,
    Volume = 0x2c_0000,
    VolumeDefinition = 0x30_0000,
    Resource = 0x34_0000,
    Definition = 0x38_0000,
    Node = 0x3c_0000,
    Store = 0x40_0000,
    Group = 0x44_0000,
    VolumeGroup = 0x48_0000,
    PhysicalStorage = 0x4c_0000,
    File = 0x50_0000,
    Schedule = 0x54_0000,
}

impl Kind {
    /// The kind of a row.
    pub const fn of(key: &Key) -> Kind {
        match key {
            Key::Controller => Kind::Controller,
            Key::Node(_) | Key::JoinToken(_) => Kind::Node,
            Key::PoolDefinition(_) => Kind::PoolDefinition,
            Key::Pool(..) => Kind::Pool,
            Key::Group(_) => Kind::Group,
            Key::Definition(_) => Kind::Definition,
            Key::Resource(..) => Kind::Resource,
            Key::Snapshot(..) => Kind::Snapshot,
            Key::NodeConnection(..) => Kind::NodeConnection,
            Key::ResourceConnection(..) => Kind::ResourceConnection,
            Key::Store(_) => Kind::Store,
            Key::File(_) => Kind::File,
            Key::Remote(_) => Kind::Remote,
            Key::Schedule(_) | Key::Switch(..) | Key::Series(..) => Kind::Schedule,
        }
    }

    /// What users call it.
    pub const fn noun(self) -> &'static str {
        match self {
            Kind::None => "object",
            Kind::Remote => "remote",
            Kind::Backup => "backup",
            Kind::Snapshot => "snapshot",
            Kind::Controller => "controller",
            Kind::Pool => "storage pool",
            Kind::PoolDefinition => "storage pool definition",
            Kind::NetInterface => "interface",
            Kind::ResourceConnection => "resource connection",
            Kind::NodeConnection => "node connection",
            Kind::Volume => "volume",
            Kind::VolumeDefinition => "volume definition",
            Kind::Resource => "resource",
            Kind::Definition => "resource definition",
            Kind::Node => "node",
            Kind::Store => "key-value store",
            Kind::Group => "resource group",
            Kind::VolumeGroup => "volume group",
            Kind::PhysicalStorage => "physical storage",
            Kind::File => "external file",
            Kind::Schedule => "schedule",
        }
    }

    /// The key by which entries refer to one of these (control plane §2.3), if one name is enough.
    pub const fn key(self) -> Option<&'static str> {
        match self {
            Kind::Node => Some("Node"),
            Kind::PoolDefinition => Some("StorPoolDfn"),
            Kind::Group => Some("RscGrp"),
            Kind::Definition => Some("RscDfn"),
            Kind::Store => Some("KVS"),
            Kind::Remote => Some("Remote"),
            Kind::Schedule => Some("Schedule"),
            _ => None,
        }
    }
}

/// Numbers that only the surface has; the others are `cluster::refusal`'s.
pub mod number {
    /// It was made.
    pub const CREATED: u16 = 1;
    /// It is gone, or going.
    pub const DELETED: u16 = 2;
    /// It was changed.
    pub const MODIFIED: u16 = 3;
    /// The master passphrase was accepted.
    pub const ACCEPTED: u16 = 4;
    /// A passphrase that can not be one.
    pub const INVALID_PASSPHRASE: u16 = 216;
    /// The database failed.
    pub const DATABASE: u16 = 100;
    /// There is no such volume.
    pub const NO_VOLUME: u16 = 304;
    /// A copy of the database could not be made.
    pub const NOT_BACKED_UP: u16 = 242;
    /// There is no such error report, schedule or the like.
    pub const NO_SUCH: u16 = 323;
    /// The storage under a pool can not be made, or is not as it should be.
    pub const POOL_CONFIG: u16 = 990;
    /// It is there, but in a state that does not allow it.
    pub const UNSUPPORTED: u16 = 998;
    /// A node is not connected, as a warning.
    pub const AWAY: u16 = 1002;
    /// An agent has not followed yet.
    pub const NOT_FOLLOWED: u16 = 1003;
    /// What is to go is not there.
    pub const ABSENT: u16 = 3000;
    /// A pool has errors.
    pub const STORAGE_ERROR: u16 = 1010;
}

/// Bits 0 to 14.
const NUMBER: i64 = 0x7fff;

/// The code of an unknown call.
pub const UNKNOWN_CALL: i64 = code_of(Severity::Error) | number::UNSUPPORTED as i64;
/// The code of a body that can not be read.
pub const UNREADABLE: i64 = code_of(Severity::Error) | 0x0fff_ffff_ffff_fffd;

const fn code_of(severity: Severity) -> i64 {
    let bits: u64 = match severity {
        Severity::Success => 0,
        Severity::Info => 0x4000_0000_0000_0000,
        Severity::Warning => 0x8000_0000_0000_0000,
        Severity::Error => 0xc000_0000_0000_0000,
    };
    // Signed on the wire: clients refuse numbers from 2^63 on.
    bits.cast_signed()
}

/// Puts a return code together.
pub const fn code(severity: Severity, operation: Operation, kind: Kind, number: u16) -> i64 {
    code_of(severity) | operation as i64 | kind as i64 | number as i64
}

/// What kind of entry a code is.
pub const fn severity(code: i64) -> Severity {
    match code.cast_unsigned() >> 62 {
        0 => Severity::Success,
        1 => Severity::Info,
        2 => Severity::Warning,
        _ => Severity::Error,
    }
}

/// The number in a code.
pub const fn number(code: i64) -> u16 {
    (code & NUMBER) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_reference() {
        let (error, warning, success) = (Severity::Error, Severity::Warning, Severity::Success);
        for (expected, got) in [
            (20_709_377, code(success, Operation::Create, Kind::Node, 1)),
            (-9_223_372_036_801_033_288, code(warning, Operation::Delete, Kind::Resource, 3000)),
            (-4_611_686_018_407_201_820, code(error, Operation::Create, Kind::Resource, 996)),
        ] {
            assert_eq!(got, expected);
        }
        assert_eq!(severity(-4_611_686_018_407_201_820), Severity::Error);
        assert_eq!(number(-9_223_372_036_801_033_288), 3000);
    }
}
