//! The state word of P_STATE and what state-change requests say with it (wire §8.1, §8.3, §8.4).
//!
//! ```text
//! bit  23     22       21       20       19       18       17   16..13 12..9  8..4  3..2  1..0
//!      quorum susp_fen susp_nod user_isp peer_isp aftr_isp susp  pdsk   disk  conn  peer  role
//! ```
//! Everything is the sender's view. A request is a pair (mask, value) of such words: the mask has
//! all bits of each field that shall change. [`Operation`] names the requests that exist and
//! [`ReqState::mirrored`] turns the initiator's view into that of the node it is about.
//!
//! Disk states are numbered as in [`DiskState`] throughout this crate. Peers below protocol 110
//! use other numbers: decoding and encoding translate.

use std::fmt;

use vocab::{ConnState, DiskState, ReplState, Role};

use super::packet::{ReqState, StateWord};

const ROLE_SHIFT: u32 = 0;
const PEER_SHIFT: u32 = 2;
const CONN_SHIFT: u32 = 4;
const DISK_SHIFT: u32 = 9;
const PDSK_SHIFT: u32 = 13;

const ROLE_BITS: u32 = 3;
const CONN_BITS: u32 = 31;
const DISK_BITS: u32 = 15;

/// The five fields, without the flags behind them: all that a request can change.
const FIELDS: u32 = 0x1_ffff;

const SUSP: u32 = 1 << 17;
const AFTR_ISP: u32 = 1 << 18;
const PEER_ISP: u32 = 1 << 19;
const USER_ISP: u32 = 1 << 20;
const SUSP_NOD: u32 = 1 << 21;
const SUSP_FEN: u32 = 1 << 22;
const QUORUM: u32 = 1 << 23;
const FORGETFUL: u32 = 1 << 24;
const LOST_CACHE: u32 = 1 << 25;

macro_rules! flag {
    ($get:ident, $with:ident, $bit:ident, $doc:literal) => {
        #[doc = $doc]
        pub const fn $get(self) -> bool {
            self.0 & $bit != 0
        }

        #[doc = concat!("Sets or clears: ", $doc)]
        #[must_use]
        pub const fn $with(self, on: bool) -> StateWord {
            StateWord(if on { self.0 | $bit } else { self.0 & !$bit })
        }
    };
}

impl StateWord {
    /// Mask of the own role.
    pub const ROLE: StateWord = StateWord(ROLE_BITS << ROLE_SHIFT);
    /// Mask of the peer's role.
    pub const PEER: StateWord = StateWord(ROLE_BITS << PEER_SHIFT);
    /// Mask of the connection and replication state.
    pub const CONN: StateWord = StateWord(CONN_BITS << CONN_SHIFT);
    /// Mask of the own disk.
    pub const DISK: StateWord = StateWord(DISK_BITS << DISK_SHIFT);
    /// Mask of the peer's disk.
    pub const PDSK: StateWord = StateWord(DISK_BITS << PDSK_SHIFT);

    /// Own role; `None` for the unused number 3, which a decoded P_STATE never has.
    pub const fn role(self) -> Option<Role> {
        Role::from_number(self.field(ROLE_SHIFT, ROLE_BITS))
    }

    /// The peer's role as the sender sees it; `None` as for [`Self::role`].
    pub const fn peer_role(self) -> Option<Role> {
        Role::from_number(self.field(PEER_SHIFT, ROLE_BITS))
    }

    /// Raw connection number: up to 9 a [`ConnState`], from 9 on a [`ReplState`], 24 and above
    /// unused (a decoded P_STATE never has those).
    pub const fn conn(self) -> u8 {
        self.field(CONN_SHIFT, CONN_BITS)
    }

    /// The connection state that [`Self::conn`] implies: any replication state means Connected.
    pub const fn conn_state(self) -> Option<ConnState> {
        match self.conn() {
            10..=23 => Some(ConnState::Connected),
            nr => ConnState::from_number(nr),
        }
    }

    /// The replication state that [`Self::conn`] implies: `Off` below 10.
    pub const fn repl_state(self) -> Option<ReplState> {
        match self.conn() {
            0..=9 => Some(ReplState::Off),
            nr => ReplState::from_number(nr),
        }
    }

    /// Own disk; `None` for the unused numbers, which a decoded P_STATE never has.
    pub const fn disk(self) -> Option<DiskState> {
        DiskState::from_number(self.field(DISK_SHIFT, DISK_BITS))
    }

    /// The peer's disk as the sender sees it; `None` as for [`Self::disk`].
    pub const fn pdsk(self) -> Option<DiskState> {
        DiskState::from_number(self.field(PDSK_SHIFT, DISK_BITS))
    }

    /// With that own role.
    #[must_use]
    pub const fn with_role(self, role: Role) -> StateWord {
        self.with(ROLE_SHIFT, ROLE_BITS, role.number())
    }

    /// With that role of the peer.
    #[must_use]
    pub const fn with_peer_role(self, role: Role) -> StateWord {
        self.with(PEER_SHIFT, ROLE_BITS, role.number())
    }

    /// With that raw connection number.
    ///
    /// # Panics
    /// If it does not fit into the field (above 31): numbers are ours, not the peer's.
    #[must_use]
    pub const fn with_conn(self, nr: u8) -> StateWord {
        self.with(CONN_SHIFT, CONN_BITS, nr)
    }

    /// With that connection state.
    #[must_use]
    pub const fn with_conn_state(self, state: ConnState) -> StateWord {
        self.with_conn(state.number())
    }

    /// With that replication state (`Off` is the same number as Connected).
    #[must_use]
    pub const fn with_repl_state(self, state: ReplState) -> StateWord {
        self.with_conn(state.number())
    }

    /// With that own disk.
    #[must_use]
    pub const fn with_disk(self, disk: DiskState) -> StateWord {
        self.with(DISK_SHIFT, DISK_BITS, disk.number())
    }

    /// With that disk of the peer.
    #[must_use]
    pub const fn with_pdsk(self, disk: DiskState) -> StateWord {
        self.with(PDSK_SHIFT, DISK_BITS, disk.number())
    }

    flag!(
        susp,
        with_susp,
        SUSP,
        "I/O is suspended by the user, by lost quorum or for a new generation."
    );
    flag!(aftr_isp, with_aftr_isp, AFTR_ISP, "Resync is paused by a dependency.");
    flag!(peer_isp, with_peer_isp, PEER_ISP, "Resync is paused by the peer.");
    flag!(user_isp, with_user_isp, USER_ISP, "Resync is paused by the local user.");
    flag!(susp_nod, with_susp_nod, SUSP_NOD, "I/O is suspended for lack of data.");
    flag!(susp_fen, with_susp_fen, SUSP_FEN, "I/O is suspended until a peer is fenced.");
    flag!(quorum, with_quorum, QUORUM, "Quorum is held, or not asked for (protocol 9 only).");
    flag!(
        forgetful,
        with_forgetful,
        FORGETFUL,
        "Ashlar's own, where BITS_OF_EQUALS is agreed: may know less than what it has voted for."
    );
    flag!(
        lost_cache,
        with_lost_cache,
        LOST_CACHE,
        "Ashlar's own, as above: its disk may have lost its cache when it stopped under writes."
    );

    /// True if every field has a defined number. P_STATE with anything else is refused.
    pub const fn is_defined(self) -> bool {
        self.role().is_some()
            && self.peer_role().is_some()
            && self.conn() <= ReplState::Behind.number()
            && self.disk().is_some()
            && self.pdsk().is_some()
    }

    /// The word in the numbering below protocol 110, which has no Detaching: numbers from
    /// Failed up are one lower. Detaching itself becomes Failed.
    pub const fn to_protocol8(self) -> StateWord {
        let disk = lower(self.field(DISK_SHIFT, DISK_BITS));
        let pdsk = lower(self.field(PDSK_SHIFT, DISK_BITS));
        self.with(DISK_SHIFT, DISK_BITS, disk).with(PDSK_SHIFT, DISK_BITS, pdsk)
    }

    /// The inverse of [`Self::to_protocol8`]. The unused number 15 stays.
    pub const fn from_protocol8(self) -> StateWord {
        let disk = raise(self.field(DISK_SHIFT, DISK_BITS));
        let pdsk = raise(self.field(PDSK_SHIFT, DISK_BITS));
        self.with(DISK_SHIFT, DISK_BITS, disk).with(PDSK_SHIFT, DISK_BITS, pdsk)
    }

    const fn field(self, shift: u32, bits: u32) -> u8 {
        (self.0 >> shift & bits) as u8
    }

    const fn with(self, shift: u32, bits: u32, nr: u8) -> StateWord {
        assert!(nr as u32 <= bits, "the number fits into its field");
        StateWord(self.0 & !(bits << shift) | (nr as u32) << shift)
    }

    const fn and(self, mask: StateWord) -> StateWord {
        StateWord(self.0 & mask.0)
    }
}

const fn lower(disk: u8) -> u8 {
    if disk > DiskState::Detaching.number() { disk - 1 } else { disk }
}

const fn raise(disk: u8) -> u8 {
    if disk >= DiskState::Detaching.number() && disk < DISK_BITS as u8 { disk + 1 } else { disk }
}

impl fmt::Display for StateWord {
    /// `Secondary/Primary Established UpToDate/UpToDate quorum`: own side first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = |r: Option<Role>| r.map_or("?", Role::name);
        let disk = |d: Option<DiskState>| d.map_or("?", DiskState::name);
        write!(f, "{}/{} ", role(self.role()), role(self.peer_role()))?;
        match (self.conn(), self.repl_state(), self.conn_state()) {
            (10.., Some(repl), _) => f.write_str(repl.name())?,
            (_, _, Some(conn)) => f.write_str(conn.name())?,
            (nr, ..) => write!(f, "?{nr}")?,
        }
        write!(f, " {}/{}", disk(self.disk()), disk(self.pdsk()))?;
        let flags = [
            (self.susp(), "susp"),
            (self.aftr_isp(), "aftr_isp"),
            (self.peer_isp(), "peer_isp"),
            (self.user_isp(), "user_isp"),
            (self.susp_nod(), "susp_nod"),
            (self.susp_fen(), "susp_fen"),
            (self.quorum(), "quorum"),
            (self.forgetful(), "forgetful"),
            (self.lost_cache(), "lost_cache"),
        ];
        flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

/// What disconnecting also does to a disk (wire §8.3: with fencing or quorum on, if exactly one
/// side is Primary, the other side is outdated).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outdates {
    /// No disk changes.
    Nobody,
    /// The initiator, a Secondary, outdates its own disk.
    Initiator,
    /// The initiator, a Primary, outdates the disk of the node it leaves.
    Target,
}

/// The state changes nodes agree on (wire §8.3 "Operations"), in the initiator's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Empty: after the loss of a peer, or a Primary that resumes.
    Empty,
    /// Become Primary.
    Promote {
        /// Also declare the own disk UpToDate.
        force: bool,
    },
    /// Become Secondary.
    Demote,
    /// Bring a connection up; carries the initiator's role.
    Connect(Role),
    /// Planned disconnect from the target.
    Disconnect(Outdates),
    /// Attach a disk while a peer has one.
    Attach,
    /// Detach the disk.
    Detach,
    /// Full resync, the initiator is the target of it.
    Invalidate,
    /// Full resync, the initiator is the source of it.
    InvalidateRemote,
    /// Resync of the blocks in the bitmap, the initiator is the target of it.
    ResyncAsTarget,
    /// Resync of the blocks in the bitmap, the initiator is the source of it.
    ResyncAsSource,
    /// Online verify started by the initiator.
    Verify,
    /// Take a volume out of the connection.
    RemoveVolume,
    /// Change the size of a volume. It is no change of states: P_TWOPC_PREP_RSZ asks for it, and no
    /// request means it.
    Resize,
}

impl Operation {
    /// Every operation that a request can mean.
    pub const ALL: &'static [Operation] = &[
        Operation::Empty,
        Operation::Promote { force: false },
        Operation::Promote { force: true },
        Operation::Demote,
        Operation::Connect(Role::Primary),
        Operation::Connect(Role::Secondary),
        Operation::Disconnect(Outdates::Nobody),
        Operation::Disconnect(Outdates::Initiator),
        Operation::Disconnect(Outdates::Target),
        Operation::Attach,
        Operation::Detach,
        Operation::Invalidate,
        Operation::InvalidateRemote,
        Operation::ResyncAsTarget,
        Operation::ResyncAsSource,
        Operation::Verify,
        Operation::RemoveVolume,
    ];

    /// The operation that this request means, or `None` if it is none of them.
    pub fn of(request: ReqState) -> Option<Operation> {
        let request = ReqState { mask: request.mask, val: request.val.and(request.mask) };
        Operation::ALL.iter().copied().find(|op| op.request() == request)
    }

    /// The request that means this operation; of [`Operation::Resize`] there is none.
    pub const fn request(self) -> ReqState {
        const NONE: ReqState = ReqState { mask: StateWord(0), val: StateWord(0) };
        match self {
            Operation::Empty | Operation::Resize => NONE,
            Operation::Promote { force: false } => NONE.set_role(Role::Primary),
            Operation::Promote { force: true } => {
                NONE.set_role(Role::Primary).set_disk(DiskState::UpToDate)
            }
            Operation::Demote => NONE.set_role(Role::Secondary),
            Operation::Connect(role) => NONE.set_conn(ConnState::Connected.number()).set_role(role),
            Operation::Disconnect(outdates) => {
                let leave = NONE.set_conn(ConnState::Disconnecting.number());
                match outdates {
                    Outdates::Nobody => leave,
                    Outdates::Initiator => leave.set_disk(DiskState::Outdated),
                    Outdates::Target => leave.set_pdsk(DiskState::Outdated),
                }
            }
            Operation::Attach => NONE.set_disk(DiskState::Negotiating),
            Operation::Detach => NONE.set_disk(DiskState::Detaching),
            Operation::Invalidate => NONE.set_conn(ReplState::StartingSyncT.number()),
            Operation::InvalidateRemote => NONE.set_conn(ReplState::StartingSyncS.number()),
            Operation::ResyncAsTarget => NONE.set_conn(ReplState::WFBitMapT.number()),
            Operation::ResyncAsSource => NONE.set_conn(ReplState::WFBitMapS.number()),
            Operation::Verify => NONE.set_conn(ReplState::VerifyS.number()),
            Operation::RemoveVolume => NONE.set_conn(ReplState::Off.number()),
        }
    }
}

impl ReqState {
    /// The change that the upper half `mask` and the lower half `val` of `TwoPc::word28` mean.
    pub const fn from_word28(word28: u64) -> ReqState {
        ReqState { mask: StateWord((word28 >> 32) as u32), val: StateWord(word28 as u32) }
    }

    /// The inverse of [`Self::from_word28`].
    pub const fn word28(self) -> u64 {
        (self.mask.0 as u64) << 32 | self.val.0 as u64
    }

    /// `word` with the fields of the mask replaced.
    pub const fn apply(self, word: StateWord) -> StateWord {
        StateWord(word.0 & !self.mask.0 | self.val.0 & self.mask.0)
    }

    /// The same change as the target sees it: role and peer, disk and peer disk swapped, the
    /// connection state mirrored. `None` if it has no mirror image: only whole fields and only
    /// the connection states of wire §8.3 are convertible.
    pub const fn mirrored(self) -> Option<ReqState> {
        let (mask, val) = (self.mask, self.val.and(self.mask));
        if mask.0 & !FIELDS != 0 || !whole_fields(mask) {
            return None;
        }
        let conn = if mask.conn() == 0 {
            0
        } else {
            match mirrored_conn(val.conn()) {
                Some(nr) => nr,
                None => return None,
            }
        };
        Some(ReqState { mask: swapped(mask), val: swapped(val).with_conn(conn) })
    }

    const fn set_role(self, role: Role) -> ReqState {
        ReqState { mask: StateWord(self.mask.0 | StateWord::ROLE.0), val: self.val.with_role(role) }
    }

    const fn set_conn(self, nr: u8) -> ReqState {
        ReqState { mask: StateWord(self.mask.0 | StateWord::CONN.0), val: self.val.with_conn(nr) }
    }

    const fn set_disk(self, disk: DiskState) -> ReqState {
        ReqState { mask: StateWord(self.mask.0 | StateWord::DISK.0), val: self.val.with_disk(disk) }
    }

    const fn set_pdsk(self, disk: DiskState) -> ReqState {
        ReqState { mask: StateWord(self.mask.0 | StateWord::PDSK.0), val: self.val.with_pdsk(disk) }
    }

    /// With disk states in the numbering below 110. The mask stays: it is no number.
    pub const fn to_protocol8(self) -> ReqState {
        ReqState { mask: self.mask, val: self.val.to_protocol8() }
    }

    /// The inverse of [`Self::to_protocol8`]; values outside the mask stay as they are.
    pub const fn from_protocol8(self) -> ReqState {
        ReqState { mask: self.mask, val: self.val.from_protocol8() }
    }
}

/// True if each field of the mask is either all ones or all zeros.
const fn whole_fields(mask: StateWord) -> bool {
    const fn whole(mask: StateWord, field: StateWord) -> bool {
        mask.0 & field.0 == 0 || mask.0 & field.0 == field.0
    }
    whole(mask, StateWord::ROLE)
        && whole(mask, StateWord::PEER)
        && whole(mask, StateWord::CONN)
        && whole(mask, StateWord::DISK)
        && whole(mask, StateWord::PDSK)
}

/// Role and peer role, disk and peer disk exchanged.
const fn swapped(word: StateWord) -> StateWord {
    word.with(ROLE_SHIFT, ROLE_BITS, word.field(PEER_SHIFT, ROLE_BITS))
        .with(PEER_SHIFT, ROLE_BITS, word.field(ROLE_SHIFT, ROLE_BITS))
        .with(DISK_SHIFT, DISK_BITS, word.field(PDSK_SHIFT, DISK_BITS))
        .with(PDSK_SHIFT, DISK_BITS, word.field(DISK_SHIFT, DISK_BITS))
}

/// What the other node calls a requested connection state.
const fn mirrored_conn(nr: u8) -> Option<u8> {
    if let Some(conn) = ConnState::from_number(nr) {
        return match conn {
            ConnState::Disconnecting => Some(ConnState::TearDown.number()),
            ConnState::Connecting | ConnState::Connected => Some(nr),
            _ => None,
        };
    }
    match ReplState::from_number(nr) {
        Some(ReplState::Established) => Some(nr),
        Some(ReplState::StartingSyncS) => Some(ReplState::StartingSyncT.number()),
        Some(ReplState::StartingSyncT) => Some(ReplState::StartingSyncS.number()),
        Some(ReplState::WFBitMapS) => Some(ReplState::WFBitMapT.number()),
        Some(ReplState::WFBitMapT) => Some(ReplState::WFBitMapS.number()),
        Some(ReplState::VerifyS) => Some(ReplState::VerifyT.number()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(mask: u32, val: u32) -> ReqState {
        ReqState { mask: StateWord(mask), val: StateWord(val) }
    }

    #[test]
    fn words_of_the_worked_examples_read_as_described() {
        let connecting = StateWord(0x0080_f282);
        assert_eq!(
            connecting,
            StateWord::default()
                .with_role(Role::Secondary)
                .with_conn(8)
                .with_disk(DiskState::UpToDate)
                .with_pdsk(DiskState::DUnknown)
                .with_quorum(true)
        );
        assert_eq!(connecting.conn_state(), Some(ConnState::Connecting));
        assert_eq!(connecting.repl_state(), Some(ReplState::Off));
        let show = |word: u32| StateWord(word).to_string();
        assert_eq!(show(0x0081_32aa), "Secondary/Secondary Established UpToDate/UpToDate quorum");
        assert_eq!(show(0x0081_32a9), "Primary/Secondary Established UpToDate/UpToDate quorum");
        assert_eq!(
            show(0x0081_2b1a),
            "Secondary/Secondary SyncTarget Inconsistent/UpToDate quorum"
        );
        assert_eq!(
            show(0x0080_b30a),
            "Secondary/Secondary SyncSource UpToDate/Inconsistent quorum"
        );
        assert_eq!(show(0x0080_d281), "Primary/Unknown Connecting UpToDate/Outdated quorum");
    }

    #[test]
    fn setting_one_field_leaves_the_others() {
        let all = StateWord(0x00ff_ffff);
        for role in Role::ALL {
            assert_eq!(all.with_role(*role).role(), Some(*role));
            assert_eq!(all.with_role(*role).0 | 3, all.0);
            assert_eq!(all.with_peer_role(*role).peer_role(), Some(*role));
        }
        for disk in DiskState::ALL {
            assert_eq!(all.with_disk(*disk).disk(), Some(*disk));
            assert_eq!(all.with_pdsk(*disk).pdsk(), Some(*disk));
            assert_eq!(all.with_pdsk(*disk).0 | StateWord::PDSK.0, all.0);
        }
        for state in ReplState::ALL {
            assert_eq!(StateWord(0).with_repl_state(*state).repl_state(), Some(*state));
        }
        for state in ConnState::ALL {
            assert_eq!(all.with_conn_state(*state).conn_state(), Some(*state));
        }
        let flags = StateWord::default()
            .with_susp(true)
            .with_aftr_isp(true)
            .with_peer_isp(true)
            .with_user_isp(true)
            .with_susp_nod(true)
            .with_susp_fen(true)
            .with_quorum(true);
        assert_eq!(flags.0, 0x00fe_0000);
        assert_eq!(flags.with_user_isp(false).0, 0x00ee_0000);
    }

    #[test]
    fn unused_numbers_read_as_none() {
        assert!(StateWord(0x0080_f282).is_defined());
        assert_eq!(StateWord(3).role(), None);
        assert_eq!(StateWord(24 << 4).conn_state(), None);
        assert_eq!(StateWord(24 << 4).repl_state(), None);
        assert_eq!(StateWord(10 << 9).disk(), None);
        for bad in [3, 3 << 2, 24 << 4, 10 << 9, 10 << 13] {
            assert!(!StateWord(bad).is_defined(), "{bad:#x}");
        }
    }

    #[test]
    fn operations_have_the_masks_and_values_of_the_table() {
        use Operation::*;
        for (op, mask, val) in [
            (Promote { force: false }, 0x3, 1),
            (Demote, 0x3, 2),
            (Promote { force: true }, 0x1e03, 0x1201),
            (Connect(Role::Secondary), 0x1f3, 0x92),
            (Connect(Role::Primary), 0x1f3, 0x91),
            (Disconnect(Outdates::Nobody), 0x1f0, 0x10),
            (Disconnect(Outdates::Target), 0x1e1f0, 0xc010),
            (Disconnect(Outdates::Initiator), 0x1ff0, 0xc10),
            (Attach, 0x1e00, 0x800),
            (Detach, 0x1e00, 0x400),
            (Invalidate, 0x1f0, 0xc0),
            (InvalidateRemote, 0x1f0, 0xb0),
            (ResyncAsTarget, 0x1f0, 0xe0),
            (ResyncAsSource, 0x1f0, 0xd0),
            (Verify, 0x1f0, 0x120),
            (RemoveVolume, 0x1f0, 0x90),
            (Empty, 0, 0),
        ] {
            assert_eq!(op.request(), request(mask, val), "{op:?}");
            assert_eq!(Operation::of(request(mask, val)), Some(op));
        }
        assert_eq!(Operation::of(request(0x1f0, 0x130)), None);
        // Bits of the value outside the mask say nothing.
        assert_eq!(Operation::of(request(3, 0x1002)), Some(Demote));
    }

    #[test]
    fn the_target_sees_the_mirror_image() {
        for (mine, theirs) in [
            ((0x3, 1), (0xc, 4)),
            ((0x1e03, 0x1201), (0x1e00c, 0x12004)),
            ((0x1f3, 0x92), (0x1fc, 0x98)),
            ((0x1f0, 0x10), (0x1f0, 0x70)),
            ((0x1e1f0, 0xc010), (0x1ff0, 0xc70)),
            ((0x1ff0, 0xc10), (0x1e1f0, 0xc070)),
            ((0x1e00, 0x800), (0x1e000, 0x8000)),
            ((0x1f0, 0xc0), (0x1f0, 0xb0)),
            ((0x1f0, 0xb0), (0x1f0, 0xc0)),
            ((0x1f0, 0xe0), (0x1f0, 0xd0)),
            ((0x1f0, 0xd0), (0x1f0, 0xe0)),
            ((0x1f0, 0x120), (0x1f0, 0x130)),
            ((0x1f0, 0x90), (0x1f0, 0x90)),
            ((0x1f0, 0xa0), (0x1f0, 0xa0)),
            ((0x1f0, 0x80), (0x1f0, 0x80)),
            ((0, 0), (0, 0)),
        ] {
            let mirrored = request(mine.0, mine.1).mirrored();
            assert_eq!(mirrored, Some(request(theirs.0, theirs.1)), "{mine:x?}");
        }
    }

    #[test]
    fn requests_without_a_mirror_image_are_refused() {
        // Connection states outside the list, VerifyT among them; parts of fields; flags.
        for nr in [0, 2, 3, 4, 5, 6, 7, 15, 16, 17, 19, 20, 21, 22, 23, 24, 31] {
            assert_eq!(request(0x1f0, nr << 4).mirrored(), None, "conn {nr}");
        }
        for mask in [0x1, 0x4, 0x10, 0x200, 0x2000, 0x2_0000, 0x80_0000, 0x8000_0000] {
            assert_eq!(request(mask, 0).mirrored(), None, "mask {mask:#x}");
        }
    }

    #[test]
    fn older_peers_number_disks_without_detaching() {
        // wire §4.3: an 8.4 Secondary/UpToDate looks like 0000d082 before the handshake.
        let word = StateWord(0x0000_d082).from_protocol8();
        assert_eq!(word.disk(), Some(DiskState::UpToDate));
        assert_eq!(word.pdsk(), Some(DiskState::DUnknown));
        assert_eq!(word.to_protocol8(), StateWord(0x0000_d082));
        assert_eq!(StateWord(0x0001_10aa).from_protocol8().pdsk(), Some(DiskState::UpToDate));
        for disk in DiskState::ALL {
            let back = StateWord(0).with_disk(*disk).to_protocol8().from_protocol8().disk();
            let expected = if *disk == DiskState::Detaching { DiskState::Failed } else { *disk };
            assert_eq!(back, Some(expected));
        }
        assert!(!StateWord(9 << 9).from_protocol8().is_defined());
        assert!(!StateWord(15 << 9).from_protocol8().is_defined());
    }

    #[test]
    fn a_request_replaces_only_its_fields() {
        let promoted = Operation::Promote { force: false }.request().apply(StateWord(0x0081_32aa));
        assert_eq!(promoted, StateWord(0x0081_32a9));
        let change = ReqState::from_word28(0x0000_01f3_0000_0092);
        assert_eq!(Operation::of(change), Some(Operation::Connect(Role::Secondary)));
        assert_eq!(change.word28(), 0x0000_01f3_0000_0092);
    }
}
