//! Why a wish is refused: DRBD's numbers with our words.
//!
//! A refusal changes nothing. State-change numbers (negative) are those of semantics §1.7,
//! configuration numbers (102..176) those of the drbdsetup contract §1.2.

use std::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident : $repr:ty { $($variant:ident = $nr:literal, $text:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "the text of each code says what it means")]
        pub enum $name { $($variant),+ }

        impl $name {
            /// Every code.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// DRBD's number.
            pub const fn number(self) -> $repr {
                match self { $($name::$variant => $nr),+ }
            }

            /// The code with that number.
            pub const fn from_number(nr: $repr) -> Option<$name> {
                match nr { $($nr => Some($name::$variant),)+ _ => None }
            }

            /// What it means, in one sentence.
            pub const fn text(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

codes! {
    /// A state change that was refused.
    StateError: i32 {
        TwoPrimaries = -1, "A second Primary is not permitted here";
        NoUpToDateDisk = -2, "Need access to UpToDate data";
        NoLocalDisk = -4, "Can not resync without local disk";
        NoRemoteDisk = -5, "Can not resync without remote disk";
        ConnectedOutdates = -6, "Will not become Outdated while connected like this";
        PrimaryNop = -7, "Will not become Primary while a peer is neither outdated nor fenced";
        ResyncRunning = -8, "A resync or verify is in progress already";
        AlreadyStandalone = -9, "The connection is down already";
        CwFailedByPeer = -10, "State change was refused by peer node";
        IsDiskless = -11, "The device has no local disk";
        DeviceInUse = -12, "Device is held open by someone";
        NoNetConfig = -13, "The connection has no network configuration";
        NoVerifyAlg = -14, "No verify-alg is configured";
        NeedConnection = -15, "The peer must be connected for that";
        LowerThanOutdated = -16, "The disk state is lower than Outdated";
        NotSupported = -17, "The peer's protocol does not support that";
        InTransientState = -18, "In a transient state, try again";
        ConcurrentStChg = -19, "Concurrent state changes detected and aborted";
        OVolPeerPri = -20, "Another volume is Primary on the peer";
        Interrupted = -21, "Interrupted";
        PrimaryReader = -22, "A peer may not become Primary while a device is opened read-only here";
        Timeout = -23, "Timeout in the operation";
        WeaklyConnected = -24, "Primary nodes must be strongly connected among each other";
        NoQuorum = -25, "No quorum";
        AttachNoBitmap = -26, "A node configured without bitmap can not have a disk";
        HandshakeDisconnect = -27, "The handshake decided to disconnect";
        HandshakeRetry = -28, "The handshake decided to try again";
    }
}

codes! {
    /// A configuration command that was refused.
    ConfigError: i32 {
        LocalAddress = 102, "The local address and port are used by another resource";
        PeerAddress = 103, "The peer's address and port are used by another resource";
        OpenDisk = 104, "Can not open the backing device";
        OpenMetaDisk = 105, "Can not open the metadata device";
        DiskTooSmall = 111, "The backing device is smaller than required";
        MetaDiskTooSmall = 112, "The metadata device is too small";
        DiskClaimed = 114, "The backing device is claimed already";
        MetaDiskClaimed = 115, "The metadata device is claimed already";
        MetaIo = 118, "I/O error while reading the metadata";
        MetaInvalid = 119, "No valid metadata found";
        AuthAlg = 120, "The cram-hmac-alg is unknown";
        DiscardImpossible = 123, "A Primary can not discard its data";
        DiskConfigured = 124, "The device has a disk already";
        NetConfigured = 125, "The connection is not StandAlone";
        MinorInvalid = 127, "No such minor";
        ResizeDuringResync = 130, "No resize while a resync or verify runs";
        ResyncAfterInvalid = 132, "The volume that resync-after names does not exist";
        ResyncAfterCycle = 133, "The volume that resync-after names waits for this one";
        PauseSet = 134, "The pause flag is set already";
        PauseClear = 135, "The pause flag is clear already";
        NoDisk = 138, "The device has no disk";
        NeedProtocolC = 139, "This needs protocol C";
        BitmapMemory = 140, "No memory for the bitmap";
        IntegrityAlg = 141, "The data-integrity-alg is unknown";
        CsumsAlg = 144, "The csums-alg is unknown or not usable";
        VerifyAlg = 146, "The verify-alg is unknown, or differs between the nodes";
        CsumsInUse = 148, "No change of csums-alg while a resync runs";
        VerifyInUse = 149, "No change of verify-alg while a verify runs";
        DataNotCurrent = 150, "Only the data this node lost last may be attached";
        Connected = 151, "Not possible while connected";
        StonithNotProtocolA = 154, "Protocol A can not be used with fencing resource-and-stonith";
        CongestionNotProtocolA = 155, "Only with protocol A can a congested peer be left behind";
        UnknownResource = 158, "No such resource";
        ResourceInUse = 159, "The resource is still in use";
        MinorConfigured = 160, "The minor is still configured";
        MinorExists = 161, "The minor or volume exists already";
        InvalidRequest = 162, "The request is invalid";
        NeedTwoPrimaries = 164, "allow-two-primaries can not be cleared now";
        MetaUnclean = 165, "The metadata is not clean: its activity log must be applied";
        ImplicitShrink = 170, "An implicit shrink was refused";
        InvalidPeerNodeId = 171, "The peer's node id is not valid";
        Exists = 174, "That name exists already";
        ProtocolTooLow = 175, "The peer's protocol is too old";
    }
}

/// A refused wish: which rule, and the detail an operator needs (object, cause, next step).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule.
    pub code: RefusalCode,
    /// Names the object, the cause and what to do. Empty if the code says it all.
    pub detail: String,
}

/// The rule behind a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// A state-change rule.
    State(StateError),
    /// A configuration rule.
    Config(ConfigError),
}

impl Refusal {
    /// A refused state change with its detail.
    pub fn state(code: StateError, detail: impl Into<String>) -> Refusal {
        Refusal { code: RefusalCode::State(code), detail: detail.into() }
    }

    /// A refused configuration command with its detail.
    pub fn config(code: ConfigError, detail: impl Into<String>) -> Refusal {
        Refusal { code: RefusalCode::Config(code), detail: detail.into() }
    }

    /// DRBD's number: negative for state changes, 102..176 for configuration.
    pub const fn number(&self) -> i32 {
        match self.code {
            RefusalCode::State(e) => e.number(),
            RefusalCode::Config(e) => e.number(),
        }
    }
}

impl From<StateError> for Refusal {
    fn from(code: StateError) -> Refusal {
        Refusal::state(code, "")
    }
}

impl From<ConfigError> for Refusal {
    fn from(code: ConfigError) -> Refusal {
        Refusal::config(code, "")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            RefusalCode::State(e) => write!(f, "{e}")?,
            RefusalCode::Config(e) => write!(f, "{e}")?,
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

impl std::error::Error for Refusal {}
