//! Negotiation: the greeting, the options a client sends and the replies to them.
//!
//! Sections "Fixed newstyle negotiation", "Option types" and "Option reply types".

use super::{
    EXPORT_NAME_PADDING, GREETING_MAGIC, HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES,
    MAX_NAME_LEN, OLDSTYLE_GREETING_LEN, OLDSTYLE_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader,
    TransmissionFlags,
};

/// Bytes in the client's flags.
pub const CLIENT_FLAGS_LEN: usize = 4;
/// Bytes in front of an option's data.
pub const OPTION_HEADER_LEN: usize = 16;

/// A metadata context that this server knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// Which extents are holes and read as zeroes.
    Allocation,
    /// Which extents not all replicas have, as a dirty bitmap of QEMU's namespace
    /// (docs/interop/nbd.txt there), so that its users need nothing new.
    OutOfSync,
}

impl Context {
    /// All of them, in the order in which a block status tells of them.
    pub const ALL: [Context; 2] = [Context::Allocation, Context::OutOfSync];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::OutOfSync => "qemu:dirty-bitmap:out-of-sync",
        }
    }

    /// The number it has in block status replies.
    pub const fn id(self) -> u32 {
        match self {
            Context::Allocation => 1,
            Context::OutOfSync => 2,
        }
    }

    /// `NBD_OPT_LIST_META_CONTEXT` may ask for all contexts that begin so.
    const fn wildcards(self) -> &'static [&'static str] {
        match self {
            Context::Allocation => &["base:"],
            Context::OutOfSync => &["qemu:", "qemu:dirty-bitmap:"],
        }
    }
}

/// A choice of contexts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contexts {
    /// [`Context::Allocation`].
    pub allocation: bool,
    /// [`Context::OutOfSync`].
    pub out_of_sync: bool,
}

impl Contexts {
    /// All of them.
    pub const ALL: Contexts = Contexts { allocation: true, out_of_sync: true };
    /// None of them.
    pub const NONE: Contexts = Contexts { allocation: false, out_of_sync: false };

    /// True if `context` was chosen.
    pub const fn has(self, context: Context) -> bool {
        match context {
            Context::Allocation => self.allocation,
            Context::OutOfSync => self.out_of_sync,
        }
    }

    fn insert(&mut self, context: Context) {
        match context {
            Context::Allocation => self.allocation = true,
            Context::OutOfSync => self.out_of_sync = true,
        }
    }

    /// Those that were chosen, in the order of [`Context::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Context> {
        Context::ALL.into_iter().filter(move |context| self.has(*context))
    }
}

/// What the server says first: both magics and the handshake flags.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[0..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..18].copy_from_slice(&(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES).to_be_bytes());
    bytes
}

/// What a server says that negotiates nothing ("Oldstyle negotiation"). Requests come next.
pub fn oldstyle_greeting(size: u64, flags: TransmissionFlags, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
    out.extend_from_slice(&OLDSTYLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&u32::from(flags.0).to_be_bytes());
    out.resize(begin + OLDSTYLE_GREETING_LEN, 0);
}

/// Size in bytes and flags out of such a greeting; `None` if it is none.
pub fn decode_oldstyle_greeting(
    bytes: &[u8; OLDSTYLE_GREETING_LEN],
) -> Option<(u64, TransmissionFlags)> {
    let mut reader = Reader::new(bytes);
    let magics = (reader.u64()?, reader.u64()?);
    let (size, flags) = (reader.u64()?, reader.u32()?);
    (magics == (GREETING_MAGIC, OLDSTYLE_MAGIC)).then_some((size, TransmissionFlags(flags as u16)))
}

/// "Client flags": how the client wants the negotiation to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientFlags {
    /// The client understands replies to options.
    pub fixed_newstyle: bool,
    /// The reply to `NBD_OPT_EXPORT_NAME` goes without its padding.
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// `None` if a bit is set that the server did not offer: the connection must be dropped.
    pub fn decode(bytes: [u8; CLIENT_FLAGS_LEN]) -> Option<ClientFlags> {
        let bits = u32::from_be_bytes(bytes);
        let known = u32::from(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
        (bits & !known == 0).then_some(ClientFlags {
            fixed_newstyle: bits & u32::from(HANDSHAKE_FIXED_NEWSTYLE) != 0,
            no_zeroes: bits & u32::from(HANDSHAKE_NO_ZEROES) != 0,
        })
    }
}

/// In front of every option: its number and the length of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHeader {
    /// Which option; numbers nobody knows are values too.
    pub number: u32,
    /// Bytes of data that follow; unchecked.
    pub len: u32,
}

impl OptionHeader {
    /// `None` if the magic is wrong: the two sides are out of step.
    pub fn decode(bytes: &[u8; OPTION_HEADER_LEN]) -> Option<OptionHeader> {
        let mut r = Reader::new(bytes);
        (r.u64()? == OPTION_MAGIC).then_some(())?;
        Some(OptionHeader { number: r.u32()?, len: r.u32()? })
    }

    /// As a client sends it.
    pub fn encode(self) -> [u8; OPTION_HEADER_LEN] {
        let mut bytes = [0; OPTION_HEADER_LEN];
        bytes[0..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Option numbers ("Option types").
pub mod number {
    /// No option: the export is known without being asked for ([`super::oldstyle_greeting`]).
    pub const NONE: u32 = 0;
    /// `NBD_OPT_EXPORT_NAME`.
    pub const EXPORT_NAME: u32 = 1;
    /// `NBD_OPT_ABORT`.
    pub const ABORT: u32 = 2;
    /// `NBD_OPT_LIST`.
    pub const LIST: u32 = 3;
    /// `NBD_OPT_PEEK_EXPORT`, withdrawn.
    pub const PEEK_EXPORT: u32 = 4;
    /// `NBD_OPT_STARTTLS`.
    pub const STARTTLS: u32 = 5;
    /// `NBD_OPT_INFO`.
    pub const INFO: u32 = 6;
    /// `NBD_OPT_GO`.
    pub const GO: u32 = 7;
    /// `NBD_OPT_STRUCTURED_REPLY`.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// `NBD_OPT_LIST_META_CONTEXT`.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// `NBD_OPT_SET_META_CONTEXT`.
    pub const SET_META_CONTEXT: u32 = 10;
    /// `NBD_OPT_EXTENDED_HEADERS`.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// One option with its data, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientOption<'a> {
    /// Take this export; there is no way to answer with an error.
    ExportName(&'a str),
    /// The client gives up. Its data, if any, is ignored.
    Abort,
    /// Which exports are there?
    List,
    /// Switch to TLS.
    StartTls,
    /// Tell about an export.
    Info(ExportQuery<'a>),
    /// Tell about an export and take it.
    Go(ExportQuery<'a>),
    /// Use structured replies.
    StructuredReply,
    /// Use extended requests and replies.
    ExtendedHeaders,
    /// Which metadata contexts has an export?
    ListMetaContext(MetaQuery<'a>),
    /// Select metadata contexts of an export.
    SetMetaContext(MetaQuery<'a>),
    /// A number this server does not serve, withdrawn and experimental ones among them.
    Unsupported,
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportQuery<'a> {
    /// The export; empty means the default one.
    pub name: &'a str,
    /// `NBD_INFO_NAME` was asked for.
    pub wants_name: bool,
    /// `NBD_INFO_DESCRIPTION` was asked for.
    pub wants_description: bool,
    /// `NBD_INFO_BLOCK_SIZE` was asked for: the client will keep to the sizes it is told.
    pub wants_block_size: bool,
}

/// The data of the two metadata context options, reduced to what this server can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetaQuery<'a> {
    /// The export.
    pub name: &'a str,
    /// Number of queries; 0 lists everything and selects nothing.
    pub queries: u32,
    /// What they name.
    pub named: Contexts,
    /// What they stand for as wildcards, which is for listing only.
    pub wild: Contexts,
}

/// An option that is answered with an error; the negotiation goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionError {
    /// The error reply.
    pub reply: ReplyType,
    /// What is wrong, for the client's user.
    pub text: &'static str,
}

const fn invalid(text: &'static str) -> OptionError {
    OptionError { reply: ReplyType::ErrInvalid, text }
}

impl<'a> ClientOption<'a> {
    /// Reads the data of option `number`.
    ///
    /// # Errors
    /// The data does not fit the option; answer with the error it names.
    pub fn decode(number: u32, data: &'a [u8]) -> Result<ClientOption<'a>, OptionError> {
        let without_data = |option| {
            if data.is_empty() { Ok(option) } else { Err(invalid("this option takes no data")) }
        };
        match number {
            number::EXPORT_NAME => Ok(ClientOption::ExportName(string(data)?)),
            number::ABORT => Ok(ClientOption::Abort),
            number::LIST => without_data(ClientOption::List),
            number::STARTTLS => without_data(ClientOption::StartTls),
            number::STRUCTURED_REPLY => without_data(ClientOption::StructuredReply),
            number::EXTENDED_HEADERS => without_data(ClientOption::ExtendedHeaders),
            number::INFO => Ok(ClientOption::Info(ExportQuery::decode(data)?)),
            number::GO => Ok(ClientOption::Go(ExportQuery::decode(data)?)),
            number::LIST_META_CONTEXT => {
                Ok(ClientOption::ListMetaContext(MetaQuery::decode(data)?))
            }
            number::SET_META_CONTEXT => Ok(ClientOption::SetMetaContext(MetaQuery::decode(data)?)),
            _ => Ok(ClientOption::Unsupported),
        }
    }
}

impl<'a> ExportQuery<'a> {
    fn decode(data: &'a [u8]) -> Result<ExportQuery<'a>, OptionError> {
        const SHORT: OptionError = invalid("the option's data ends early");
        let mut r = Reader::new(data);
        let name_len = r.u32().ok_or(SHORT)?;
        let name = string(r.take(name_len as usize).ok_or(SHORT)?)?;
        let mut query = ExportQuery {
            name,
            wants_name: false,
            wants_description: false,
            wants_block_size: false,
        };
        for _ in 0..r.u16().ok_or(SHORT)? {
            match r.u16().ok_or(SHORT)? {
                info::NAME => query.wants_name = true,
                info::DESCRIPTION => query.wants_description = true,
                info::BLOCK_SIZE => query.wants_block_size = true,
                // The export's size is always sent; unknown items must be ignored.
                _ => {}
            }
        }
        if r.is_empty() { Ok(query) } else { Err(invalid("data behind the option's last item")) }
    }
}

impl<'a> MetaQuery<'a> {
    fn decode(data: &'a [u8]) -> Result<MetaQuery<'a>, OptionError> {
        const SHORT: OptionError = invalid("the option's data ends early");
        let mut r = Reader::new(data);
        let name_len = r.u32().ok_or(SHORT)?;
        let name = string(r.take(name_len as usize).ok_or(SHORT)?)?;
        let queries = r.u32().ok_or(SHORT)?;
        let mut query = MetaQuery { name, queries, named: Contexts::NONE, wild: Contexts::NONE };
        // `queries` is the client's word: each turn takes at least four bytes of the data or ends.
        for _ in 0..queries {
            let len = r.u32().ok_or(SHORT)?;
            let text = r.take(len as usize).ok_or(SHORT)?;
            if text.len() > MAX_NAME_LEN {
                return Err(TOO_LONG);
            }
            // Other namespaces and unknown leaves must be ignored.
            for context in Context::ALL {
                if text == context.name().as_bytes() {
                    query.named.insert(context);
                }
                if context.wildcards().iter().any(|wildcard| text == wildcard.as_bytes()) {
                    query.wild.insert(context);
                }
            }
        }
        if r.is_empty() { Ok(query) } else { Err(invalid("data behind the option's last query")) }
    }
}

const TOO_LONG: OptionError =
    OptionError { reply: ReplyType::ErrTooBig, text: "a string may have 4096 bytes at most" };

/// A string as "Conventions" define it: UTF-8 without NUL, of limited length.
fn string(bytes: &[u8]) -> Result<&str, OptionError> {
    if bytes.len() > MAX_NAME_LEN {
        return Err(TOO_LONG);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(invalid("a name must be UTF-8 without NUL")),
    }
}

/// "Option reply types".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReplyType {
    /// `NBD_REP_ACK`: done.
    Ack,
    /// `NBD_REP_SERVER`: one export of a list.
    Server,
    /// `NBD_REP_INFO`: one fact about an export.
    Info,
    /// `NBD_REP_META_CONTEXT`: one metadata context.
    MetaContext,
    /// `NBD_REP_ERR_UNSUP`: this server does not know the option.
    ErrUnsup,
    /// `NBD_REP_ERR_POLICY`: known but not allowed.
    ErrPolicy,
    /// `NBD_REP_ERR_INVALID`: malformed or out of place.
    ErrInvalid,
    /// `NBD_REP_ERR_PLATFORM`: not possible in this build.
    ErrPlatform,
    /// `NBD_REP_ERR_TLS_REQD`: only with TLS.
    ErrTlsReqd,
    /// `NBD_REP_ERR_UNKNOWN`: no such export.
    ErrUnknown,
    /// `NBD_REP_ERR_SHUTDOWN`: the server is going away.
    ErrShutdown,
    /// `NBD_REP_ERR_BLOCK_SIZE_REQD`: ask for the block sizes first.
    ErrBlockSizeReqd,
    /// `NBD_REP_ERR_TOO_BIG`: the request or its reply is too large.
    ErrTooBig,
    /// `NBD_REP_ERR_EXT_HEADER_REQD`: extended headers can not be given up again.
    ErrExtHeaderReqd,
}

impl ReplyType {
    /// The number on the wire; errors have bit 31 set.
    pub const fn number(self) -> u32 {
        const ERROR: u32 = 1 << 31;
        match self {
            ReplyType::Ack => 1,
            ReplyType::Server => 2,
            ReplyType::Info => 3,
            ReplyType::MetaContext => 4,
            ReplyType::ErrUnsup => ERROR | 1,
            ReplyType::ErrPolicy => ERROR | 2,
            ReplyType::ErrInvalid => ERROR | 3,
            ReplyType::ErrPlatform => ERROR | 4,
            ReplyType::ErrTlsReqd => ERROR | 5,
            ReplyType::ErrUnknown => ERROR | 6,
            ReplyType::ErrShutdown => ERROR | 7,
            ReplyType::ErrBlockSizeReqd => ERROR | 8,
            ReplyType::ErrTooBig => ERROR | 9,
            ReplyType::ErrExtHeaderReqd => ERROR | 10,
        }
    }
}

/// Information types of `NBD_REP_INFO`.
pub mod info {
    /// `NBD_INFO_EXPORT`: size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// `NBD_INFO_NAME`: the export's own name.
    pub const NAME: u16 = 1;
    /// `NBD_INFO_DESCRIPTION`: a text for humans.
    pub const DESCRIPTION: u16 = 2;
    /// `NBD_INFO_BLOCK_SIZE`: minimum, preferred and maximum sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// One fact about an export, the data of `NBD_REP_INFO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Info<'a> {
    /// Size in bytes and transmission flags.
    Export {
        /// Size in bytes.
        size: u64,
        /// What the client may do.
        flags: TransmissionFlags,
    },
    /// The export's own name.
    Name(&'a str),
    /// A text for humans.
    Description(&'a str),
    /// Sizes in bytes ("Size constraints").
    BlockSize {
        /// Alignment and granularity of every request; a power of 2, at most 64 KiB.
        minimum: u32,
        /// What is efficient; a power of 2.
        preferred: u32,
        /// Longest payload.
        maximum: u32,
    },
}

/// One reply to an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionReply<'a> {
    /// The option is done.
    Ack,
    /// One export of a list.
    Server {
        /// Its name.
        name: &'a str,
        /// A text for humans, may be empty.
        description: &'a str,
    },
    /// One fact about an export.
    Info(Info<'a>),
    /// A metadata context.
    MetaContext {
        /// Its number in block status replies; 0 when only listed.
        id: u32,
        /// Its name.
        name: &'a str,
    },
    /// An error with a text for the client's user.
    Error(ReplyType, &'a str),
}

impl OptionReply<'_> {
    /// Appends the reply to option `number`.
    pub fn encode(&self, number: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&self.reply_type().number().to_be_bytes());
        let len_at = out.len();
        out.extend_from_slice(&[0; 4]);
        self.encode_data(out);
        let len = u32::try_from(out.len() - len_at - 4).expect("strings are cut at their limit");
        out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
    }

    fn reply_type(&self) -> ReplyType {
        match self {
            OptionReply::Ack => ReplyType::Ack,
            OptionReply::Server { .. } => ReplyType::Server,
            OptionReply::Info(_) => ReplyType::Info,
            OptionReply::MetaContext { .. } => ReplyType::MetaContext,
            OptionReply::Error(reply, _) => *reply,
        }
    }

    fn encode_data(&self, out: &mut Vec<u8>) {
        match *self {
            OptionReply::Ack => {}
            OptionReply::Server { name, description } => {
                let name = limited(name);
                out.extend_from_slice(&(name.len() as u32).to_be_bytes());
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(limited(description).as_bytes());
            }
            OptionReply::Info(Info::Export { size, flags }) => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.0.to_be_bytes());
            }
            OptionReply::Info(Info::Name(name)) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(limited(name).as_bytes());
            }
            OptionReply::Info(Info::Description(text)) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(limited(text).as_bytes());
            }
            OptionReply::Info(Info::BlockSize { minimum, preferred, maximum }) => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                out.extend_from_slice(&minimum.to_be_bytes());
                out.extend_from_slice(&preferred.to_be_bytes());
                out.extend_from_slice(&maximum.to_be_bytes());
            }
            OptionReply::MetaContext { id, name } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(limited(name).as_bytes());
            }
            OptionReply::Error(_, text) => out.extend_from_slice(limited(text).as_bytes()),
        }
    }
}

/// The answer to `NBD_OPT_EXPORT_NAME`, which has a shape of its own.
pub fn export_name_reply(size: u64, flags: TransmissionFlags, padding: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&flags.0.to_be_bytes());
    if padding {
        out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
    }
}

/// The text cut at the protocol's limit, at a character boundary.
pub(super) fn limited(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_LEN)]
}
