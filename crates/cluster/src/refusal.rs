//! Why a command is refused, and what else an operator should know of one that was carried out.
//!
//! The codes are LINSTOR's (control plane §2.2); the bits that say operation and object are added
//! where replies are made, from the command and from [`Refusal::objects`].

use std::fmt;

use crate::change::Key;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $nr:literal, $text:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[allow(missing_docs, reason = "the text of each code says what it means")]
        pub enum $name { $($variant),+ }

        impl $name {
            /// Every code.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// LINSTOR's number, bits 0 to 14 of its return code.
            pub const fn number(self) -> u16 {
                match self { $($name::$variant => $nr),+ }
            }

            /// What it means, in a few words.
            pub const fn text(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }
    };
}

codes! {
    /// The rule that refuses a command.
    Code {
        InvalidNodeName = 200, "invalid node name";
        InvalidNodeType = 201, "invalid node type";
        InvalidResourceName = 202, "invalid resource name";
        InvalidNodeId = 204, "invalid DRBD node id";
        InvalidVolumeNumber = 205, "invalid volume number";
        InvalidVolumeSize = 206, "invalid volume size";
        InvalidMinor = 207, "invalid minor number";
        InvalidPoolName = 208, "invalid storage pool name";
        InvalidNetIfName = 209, "invalid network interface name";
        InvalidNetAddress = 210, "invalid network address";
        InvalidNetPort = 211, "invalid network port";
        InvalidProperty = 213, "invalid property";
        InvalidResourcePort = 203, "invalid port of a resource definition";
        InvalidTcpPort = 215, "invalid TCP port";
        InvalidSnapshotName = 218, "invalid snapshot name";
        InvalidPlaceCount = 219, "invalid place count";
        InvalidFreeSpaceManager = 220, "invalid shared space";
        InvalidStoreName = 223, "invalid key-value store name";
        InvalidLayerKind = 224, "invalid layer";
        InvalidLayerStack = 225, "invalid layer stack";
        InvalidVolumeSizes = 228, "invalid number of volume sizes";
        InvalidConfig = 230, "invalid configuration";
        NodeHasUsedResource = 233, "the node has resources that can not go";
        InvalidRequest = 234, "invalid request";
        InvalidFileName = 235, "invalid external file name";
        InvalidGroupName = 237, "invalid resource group name";
        InvalidBackup = 238, "invalid configuration of a backup";
        InvalidRemoteName = 239, "invalid remote name, or no such remote";
        InvalidTime = 240, "invalid time";
        InvalidScheduleName = 241, "invalid schedule name";
        InvalidResourceState = 243, "the resource is in a state that does not allow it";
        UnknownNode = 300, "no such node";
        UnknownDefinition = 301, "no such resource definition";
        UnknownResource = 302, "no such resource";
        UnknownVolumeDefinition = 303, "no such volume definition";
        UnknownVolume = 304, "no such volume";
        UnknownNetIf = 305, "no such network interface";
        UnknownPoolDefinition = 309, "no such storage pool definition";
        UnknownPool = 310, "no such storage pool";
        NoDefaultPool = 311, "no storage pool is named";
        NoMasterKey = 312, "the master passphrase is not entered";
        UnknownSnapshot = 313, "no such snapshot";
        UnknownStore = 316, "no such key-value store instance";
        UnknownGroup = 317, "no such resource group";
        UnknownVolumeGroup = 318, "no such volume group";
        UnknownFile = 320, "no such external file";
        UnknownRemote = 321, "no such remote";
        UnknownBackup = 322, "no such backup";
        UnknownSchedule = 323, "no such schedule";
        NodeExists = 500, "the node exists";
        DefinitionExists = 501, "the resource definition exists, or something depends on it";
        ResourceExists = 502, "the resource exists";
        VolumeDefinitionExists = 503, "the volume definition exists";
        NetIfExists = 505, "the network interface exists";
        NodeConnected = 506, "the node is connected";
        PoolDefinitionExists = 509, "the storage pool definition exists";
        PoolExists = 510, "the storage pool exists";
        PassphraseExists = 512, "there is a master passphrase, or there is none";
        SnapshotExists = 514, "the snapshot exists, or snapshots do";
        ExternalNameExists = 517, "the external name exists";
        GroupExists = 522, "the resource group exists";
        VolumeGroupExists = 523, "the volume group exists";
        ShippingExists = 525, "it is being shipped already";
        RemoteExists = 527, "the remote exists";
        ScheduleExists = 528, "the schedule exists";
        WrongPassphrase = 600, "the passphrase is not the right one";
        MissingNetInterface = 603, "the node needs a network interface";
        VolumeNumbersExhausted = 800, "no volume number is left";
        MinorsExhausted = 801, "no minor number is left";
        TcpPortsExhausted = 802, "no TCP port is left";
        NodeIdsExhausted = 803, "no DRBD node id is left";
        RollbackRunning = 971, "a rollback or a clone is under way";
        PoolMixing = 972, "these kinds of storage pools do not mix";
        NotUpToDate = 974, "not everything is UpToDate";
        Evacuating = 975, "the node is being evacuated";
        DependentBackup = 977, "another backup depends on it";
        BackupVersion = 978, "the backup is of a format that is not understood";
        SnapshotSourceNotUpToDate = 979, "the replicas are not UpToDate";
        NotEnoughFreeSpace = 980, "not enough free space";
        SharedSpaceActive = 981, "another resource of the shared space is active";
        UndecidablePlacement = 985, "existing replicas contradict the constraints";
        LayerUnsupported = 988, "the node does not support the layer";
        ProviderUnsupported = 989, "the node does not support the provider";
        InsufficientReplicas = 991, "too few replicas would be left";
        PeerSlotsExhausted = 993, "no peer slot is left";
        SnapshotsUnsupported = 994, "a storage pool can not make snapshots";
        NotConnected = 995, "the node is not connected";
        NotEnoughNodes = 996, "not enough nodes fit";
        InUse = 997, "it is in use";
    }
}

codes! {
    /// What is said beside the success of a command. From 10000 on it is information; below, a
    /// warning.
    NoteCode {
        OtherPort = 215, "another TCP port was chosen";
        NotKept = 994, "no snapshot can be made of it";
        NotEnoughNodes = 996, "not enough nodes fit";
        NotConnected = 1002, "the node is not connected; it follows when it is";
        UnsetPropertyDeleted = 1005, "the property was not set";
        AlreadyDeployed = 1006, "there are as many replicas as wanted";
        HasDisk = 1007, "the resource has a disk already";
        IsDiskless = 1008, "the resource is diskless already";
        AllDiskless = 1009, "all replicas are diskless";
        StorageLayerAdded = 1012, "the layer STORAGE was added";
        NoNodeForTieBreaker = 1013, "no node can be the tie-breaker";
        Evicted = 1017, "the node is evicted";
        Deactivated = 1018, "the resource is inactive";
        DownloadOnly = 1019, "nothing is made of the snapshot";
        NotEvacuating = 1020, "this stays where it is";
        SameSize = 1023, "the volume has that size";
        NotFound = 3000, "there is no such object";
        DeprecatedProperty = 4000, "the property is known by another name now";
        NothingSpawned = 10_000, "no resource was created";
        PropertySet = 10_002, "a property was set";
        TieBreakerCreated = 10_003, "a tie-breaker was created";
        Deleting = 10_004, "it is being deleted";
        PropertyRemoved = 10_005, "a property was removed";
        TakenOver = 10_006, "the resource stays as tie-breaker";
        NothingToDo = 10_007, "nothing to do";
        ResourceExists = 10_008, "the resource exists";
    }
}

impl NoteCode {
    /// True if an operator should look at it.
    pub const fn is_warning(self) -> bool {
        self.number() < 10_000
    }
}

/// A refused command: nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule.
    pub code: Code,
    /// What was refused, naming the object.
    pub message: Box<str>,
    /// Why.
    pub cause: Box<str>,
    /// What to do instead.
    pub correction: Box<str>,
    /// More for who wants to know, such as why each candidate was no use.
    pub details: Box<str>,
    /// The objects it is about, the most important one first.
    pub objects: Vec<Key>,
}

impl Refusal {
    /// A refusal with its message.
    pub fn new(code: Code, message: impl Into<Box<str>>) -> Refusal {
        let empty = Box::<str>::default;
        Refusal {
            code,
            message: message.into(),
            cause: empty(),
            correction: empty(),
            details: empty(),
            objects: Vec::new(),
        }
    }

    /// A master passphrase is needed, and was never made.
    pub fn no_master_passphrase() -> Refusal {
        Refusal::new(Code::PassphraseExists, "there is no master passphrase")
            .cause("none was created")
            .correction("create it (`ashlar encryption create`)")
    }

    /// With the reason.
    #[must_use]
    pub fn cause(mut self, text: impl Into<Box<str>>) -> Refusal {
        self.cause = text.into();
        self
    }

    /// With what to do instead.
    #[must_use]
    pub fn correction(mut self, text: impl Into<Box<str>>) -> Refusal {
        self.correction = text.into();
        self
    }

    /// With details.
    #[must_use]
    pub fn details(mut self, text: impl Into<Box<str>>) -> Refusal {
        self.details = text.into();
        self
    }

    /// With an object it is about.
    #[must_use]
    pub fn about(mut self, object: Key) -> Refusal {
        self.objects.push(object);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.number())?;
        for part in [&self.cause, &self.correction, &self.details] {
            if !part.is_empty() {
                write!(f, "; {part}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// Something to say of a command that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What kind of remark it is.
    pub code: NoteCode,
    /// The remark, naming the object.
    pub message: String,
    /// The object it is about.
    pub object: Key,
}
