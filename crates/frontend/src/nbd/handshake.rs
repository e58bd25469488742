//! Negotiation of one connection, without I/O: client bytes in, reply bytes and one wish at a
//! time out.
//!
//! ```text
//! Flags ──► Header ──► Data ──┬─► (answered here) ──────────► Header
//!                             ├─► Opening ── describe/refuse ─► Header
//!                             │      └────── accept ──────────► Session (this value is consumed)
//!                             └─► Ended: abort, or a violation
//! ```
//!
//! Opening an export may take seconds (a replicated volume is promoted by its first writer) and
//! may happen on another thread: a `Handshake` holds no buffers and is `Send`. While one is open
//! in state Opening, nothing more is read from the client.

use std::net::SocketAddr;

use super::proto::option::{
    self, CLIENT_FLAGS_LEN, ClientFlags, ClientOption, Context, Contexts, ExportQuery, Info,
    MetaQuery, OPTION_HEADER_LEN, OptionHeader, OptionReply, ReplyType,
};
use super::proto::{MAX_MIN_BLOCK, MAX_OPTION_LEN, MAX_PAYLOAD, TransmissionFlags};
use super::session::Session;
use super::{Catalogue, ExportInfo, Violation};

/// Options a client may send before it must have chosen an export.
pub const MAX_OPTIONS: u32 = 256;

/// The negotiation of one connection.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// Bytes of the fixed-size unit being received.
    head: [u8; OPTION_HEADER_LEN],
    head_len: usize,
    /// Data of the option being received, limited to [`MAX_OPTION_LEN`].
    data: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// Implies `structured`.
    extended: bool,
    /// The export for which metadata contexts are selected, by name, and which.
    contexts_of: Option<(String, Contexts)>,
    options: u32,
    /// Where the client is whose bytes come decrypted.
    secured: Option<SocketAddr>,
}

#[derive(Debug)]
enum State {
    Flags,
    Header,
    Data(OptionHeader),
    Opening(Opening),
    Ended,
}

/// What to answer once the export is open.
#[derive(Debug)]
struct Opening {
    /// The option's number: `EXPORT_NAME`, `INFO` or `GO`.
    option: u32,
    /// The name as the client sent it.
    name: String,
    wants_name: bool,
    wants_description: bool,
}

/// What the negotiation wants from its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Open the export (`NBD_OPT_GO`, `NBD_OPT_EXPORT_NAME`), then [`Handshake::accept`] or
    /// [`Handshake::refuse`].
    Open {
        /// As the client sent it; the catalogue knows it.
        name: String,
    },
    /// Tell about the export (`NBD_OPT_INFO`), then [`Handshake::describe`] or
    /// [`Handshake::refuse`]. Nothing may be promoted for that.
    Describe {
        /// As the client sent it; the catalogue knows it.
        name: String,
    },
    /// The client gave up: send what is queued, then close.
    Abort,
}

/// Why an export can not be had now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefuseReason {
    /// No such export.
    Unknown,
    /// It exists, but may not be opened now.
    Policy,
    /// The server is going away.
    Shutdown,
}

impl Default for Handshake {
    fn default() -> Handshake {
        Handshake::new()
    }
}

impl Handshake {
    /// A connection just accepted; send [`option::greeting`] first.
    pub const fn new() -> Handshake {
        Handshake {
            state: State::Flags,
            head: [0; OPTION_HEADER_LEN],
            head_len: 0,
            data: Vec::new(),
            no_zeroes: false,
            structured: false,
            extended: false,
            contexts_of: None,
            options: 0,
            secured: None,
        }
    }

    /// A connection that was greeted and asked for TLS: what it says from now on is encrypted, and comes
    /// decrypted, beginning with the client's flags. `client`: where it is.
    pub fn secured(client: SocketAddr) -> Handshake {
        Handshake { secured: Some(client), ..Handshake::new() }
    }

    /// Where the client of an encrypted connection is.
    pub const fn secured_client(&self) -> Option<SocketAddr> {
        self.secured
    }

    /// A connection whose other end knows what it is for: once the export is open it is greeted as
    /// oldstyle servers do, and no option is read. [`Handshake::accept`] or [`Handshake::refuse`]
    /// comes next.
    pub fn joined(name: &str) -> Handshake {
        let opening = Opening::new(option::number::NONE, name, false, false);
        Handshake { state: State::Opening(opening), ..Handshake::new() }
    }

    /// Takes bytes from the client, appends replies to `out`, and stops at the first event.
    /// Returns how many bytes were used; the rest belongs to what comes after the event.
    ///
    /// # Errors
    /// The client broke the protocol: close the connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Event>), Violation> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let event = match self.state {
                State::Flags => {
                    used += self.fill_head(rest, CLIENT_FLAGS_LEN);
                    if self.head_len < CLIENT_FLAGS_LEN {
                        return Ok((used, None));
                    }
                    self.on_flags()?
                }
                State::Header => {
                    used += self.fill_head(rest, OPTION_HEADER_LEN);
                    if self.head_len < OPTION_HEADER_LEN {
                        return Ok((used, None));
                    }
                    self.on_header()?
                }
                State::Data(header) => {
                    let missing = header.len as usize - self.data.len();
                    let n = missing.min(rest.len());
                    self.data.extend_from_slice(&rest[..n]);
                    used += n;
                    if n < missing {
                        return Ok((used, None));
                    }
                    self.on_option(header.number, catalogue, out)?
                }
                State::Opening(_) | State::Ended => return Ok((used, None)),
            };
            if event.is_some() {
                return Ok((used, event));
            }
        }
    }

    /// True while an export is being opened: the next move is the driver's.
    pub const fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening(_))
    }

    /// The export is open: answers the client and begins the transmission phase.
    ///
    /// # Panics
    /// If the last event was not [`Event::Open`].
    pub fn accept(mut self, export: &ExportInfo<'_>, out: &mut Vec<u8>) -> Session {
        let State::Opening(opening) = std::mem::replace(&mut self.state, State::Ended) else {
            panic!("an export is accepted only after the client asked for it");
        };
        let flags = self.transmission_flags(export);
        match opening.option {
            option::number::EXPORT_NAME => {
                option::export_name_reply(export.size(), flags, !self.no_zeroes, out);
            }
            option::number::NONE => option::oldstyle_greeting(export.size(), flags, out),
            option::number::GO => self.reply_info(&opening, export, out),
            option => panic!("option {option} does not open an export"),
        }
        let contexts = self.contexts_of.filter(|(name, _)| *name == opening.name);
        let contexts = contexts.map_or(Contexts::NONE, |(_, contexts)| contexts);
        Session::new(export, flags, (self.structured, self.extended), contexts)
    }

    /// Answers [`Event::Describe`]; the negotiation goes on.
    ///
    /// # Panics
    /// If that was not the last event.
    pub fn describe(&mut self, export: &ExportInfo<'_>, out: &mut Vec<u8>) {
        let State::Opening(opening) = std::mem::replace(&mut self.state, State::Header) else {
            panic!("an export is described only after the client asked for it");
        };
        assert_eq!(opening.option, option::number::INFO, "only INFO leaves the export closed");
        self.reply_info(&opening, export, out);
    }

    /// The export can not be had: answers with an error and its text; the negotiation goes on.
    ///
    /// # Errors
    /// The client used `NBD_OPT_EXPORT_NAME` or was joined, which have no error reply: close the
    /// connection.
    ///
    /// # Panics
    /// If no export is being opened.
    pub fn refuse(
        &mut self,
        reason: RefuseReason,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let State::Opening(opening) = std::mem::replace(&mut self.state, State::Header) else {
            panic!("an export is refused only after the client asked for it");
        };
        if [option::number::EXPORT_NAME, option::number::NONE].contains(&opening.option) {
            self.state = State::Ended;
            return Err(Violation::ExportNameRefused);
        }
        let reply = match reason {
            RefuseReason::Unknown => ReplyType::ErrUnknown,
            RefuseReason::Policy => ReplyType::ErrPolicy,
            RefuseReason::Shutdown => ReplyType::ErrShutdown,
        };
        OptionReply::Error(reply, text).encode(opening.option, out);
        Ok(())
    }

    /// Moves bytes into the unit being received until it has `len`; returns how many.
    fn fill_head(&mut self, input: &[u8], len: usize) -> usize {
        let n = (len - self.head_len).min(input.len());
        self.head[self.head_len..self.head_len + n].copy_from_slice(&input[..n]);
        self.head_len += n;
        n
    }

    fn on_flags(&mut self) -> Result<Option<Event>, Violation> {
        let bytes = *self.head.first_chunk().expect("flags are shorter than an option header");
        let flags = ClientFlags::decode(bytes).ok_or(Violation::ClientFlags)?;
        // Clients that do not say fixed newstyle are served all the same: whoever sends only
        // NBD_OPT_EXPORT_NAME never notices.
        self.no_zeroes = flags.no_zeroes;
        self.head_len = 0;
        self.state = State::Header;
        Ok(None)
    }

    fn on_header(&mut self) -> Result<Option<Event>, Violation> {
        let header = OptionHeader::decode(&self.head).ok_or(Violation::OptionMagic)?;
        if header.len > MAX_OPTION_LEN {
            return Err(Violation::OptionTooLong(header.len));
        }
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(Violation::TooManyOptions);
        }
        self.head_len = 0;
        self.data.clear();
        self.state = State::Data(header);
        Ok(None)
    }

    /// All data of option `number` is here.
    fn on_option(
        &mut self,
        number: u32,
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        self.state = State::Header;
        let data = std::mem::take(&mut self.data);
        let event = match ClientOption::decode(number, &data) {
            Err(_) if number == option::number::EXPORT_NAME => {
                return Err(Violation::ExportNameRefused);
            }
            Err(error) => {
                if number == option::number::SET_META_CONTEXT {
                    // The selection is replaced even when the option fails.
                    self.contexts_of = None;
                }
                OptionReply::Error(error.reply, error.text).encode(number, out);
                None
            }
            Ok(option) => self.serve(number, option, catalogue, out)?,
        };
        self.data = data;
        Ok(event)
    }

    fn serve(
        &mut self,
        number: u32,
        option: ClientOption<'_>,
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        match option {
            ClientOption::Abort => {
                OptionReply::Ack.encode(number, out);
                self.state = State::Ended;
                return Ok(Some(Event::Abort));
            }
            ClientOption::List => {
                catalogue.list(&mut |name, description| {
                    OptionReply::Server { name, description }.encode(number, out);
                });
                OptionReply::Ack.encode(number, out);
            }
            ClientOption::StartTls if self.secured.is_some() => {
                let text = "this connection is encrypted already";
                OptionReply::Error(ReplyType::ErrInvalid, text).encode(number, out);
            }
            ClientOption::StartTls => {
                let text = "TLS is not configured on this server";
                OptionReply::Error(ReplyType::ErrPolicy, text).encode(number, out);
            }
            ClientOption::StructuredReply if self.extended => {
                let text = "extended headers were agreed on, and go beyond structured replies";
                OptionReply::Error(ReplyType::ErrExtHeaderReqd, text).encode(number, out);
            }
            ClientOption::ExtendedHeaders => {
                self.structured = true;
                self.extended = true;
                OptionReply::Ack.encode(number, out);
            }
            ClientOption::StructuredReply => {
                self.structured = true;
                OptionReply::Ack.encode(number, out);
            }
            ClientOption::ListMetaContext(query) => {
                self.list_contexts(number, query, catalogue, out);
            }
            ClientOption::SetMetaContext(query) => {
                self.set_contexts(number, query, catalogue, out);
            }
            ClientOption::Unsupported => {
                let text = "this server does not know the option";
                OptionReply::Error(ReplyType::ErrUnsup, text).encode(number, out);
            }
            ClientOption::ExportName(name) => {
                // Who has extended headers must use NBD_OPT_GO.
                if self.extended || !catalogue.knows(name) {
                    return Err(Violation::ExportNameRefused);
                }
                let opening = Opening::new(number, name, false, false);
                return Ok(Some(self.open(opening)));
            }
            ClientOption::Info(query) | ClientOption::Go(query) => {
                let ExportQuery { name, wants_name, wants_description, .. } = query;
                if !catalogue.knows(name) {
                    unknown_export(number, name, out);
                    return Ok(None);
                }
                let opening = Opening::new(number, name, wants_name, wants_description);
                return Ok(Some(self.open(opening)));
            }
        }
        Ok(None)
    }

    fn open(&mut self, opening: Opening) -> Event {
        let name = opening.name.clone();
        let describe = opening.option == option::number::INFO;
        self.state = State::Opening(opening);
        if describe { Event::Describe { name } } else { Event::Open { name } }
    }

    fn list_contexts(
        &self,
        number: u32,
        query: MetaQuery<'_>,
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) {
        if !self.structured {
            needs_structured(number, out);
        } else if !catalogue.knows(query.name) {
            unknown_export(number, query.name, out);
        } else {
            for context in Context::ALL {
                if query.queries == 0 || query.named.has(context) || query.wild.has(context) {
                    OptionReply::MetaContext { id: 0, name: context.name() }.encode(number, out);
                }
            }
            OptionReply::Ack.encode(number, out);
        }
    }

    fn set_contexts(
        &mut self,
        number: u32,
        query: MetaQuery<'_>,
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) {
        self.contexts_of = None;
        if !self.structured {
            needs_structured(number, out);
        } else if !catalogue.knows(query.name) {
            unknown_export(number, query.name, out);
        } else {
            self.contexts_of = Some((query.name.to_owned(), query.named));
            for context in query.named.iter() {
                let selected = OptionReply::MetaContext { id: context.id(), name: context.name() };
                selected.encode(number, out);
            }
            OptionReply::Ack.encode(number, out);
        }
    }

    fn reply_info(&self, opening: &Opening, export: &ExportInfo<'_>, out: &mut Vec<u8>) {
        let number = opening.option;
        let flags = self.transmission_flags(export);
        OptionReply::Info(Info::Export { size: export.size(), flags }).encode(number, out);
        let minimum = export.target.block_size_min;
        assert!(
            minimum.is_power_of_two() && minimum <= MAX_MIN_BLOCK,
            "a target's block size is a power of two of at most 64 KiB"
        );
        // Sent even to those who did not ask: requests are checked against it in any case.
        let preferred = export.target.block_size_preferred.next_power_of_two().max(4096);
        let preferred = preferred.max(minimum).min(MAX_PAYLOAD);
        let sizes = Info::BlockSize { minimum, preferred, maximum: MAX_PAYLOAD };
        OptionReply::Info(sizes).encode(number, out);
        if opening.wants_name {
            OptionReply::Info(Info::Name(export.name)).encode(number, out);
        }
        if opening.wants_description && !export.description.is_empty() {
            OptionReply::Info(Info::Description(export.description)).encode(number, out);
        }
        OptionReply::Ack.encode(number, out);
    }

    fn transmission_flags(&self, export: &ExportInfo<'_>) -> TransmissionFlags {
        let target = &export.target;
        let writable = !export.is_read_only();
        TransmissionFlags::HAS_FLAGS
            .with_if(TransmissionFlags::READ_ONLY, !writable)
            .with_if(TransmissionFlags::SEND_FLUSH, target.can_flush)
            .with_if(TransmissionFlags::SEND_FUA, target.can_fua)
            .with_if(TransmissionFlags::ROTATIONAL, target.rotational)
            .with_if(TransmissionFlags::SEND_TRIM, writable && target.can_trim)
            .with_if(TransmissionFlags::SEND_WRITE_ZEROES, writable && target.can_zero)
            .with_if(TransmissionFlags::SEND_DF, self.structured)
            .with_if(TransmissionFlags::CAN_MULTI_CONN, target.multi_conn)
    }
}

impl Opening {
    fn new(option: u32, name: &str, wants_name: bool, wants_description: bool) -> Opening {
        Opening { option, name: name.to_owned(), wants_name, wants_description }
    }
}

fn unknown_export(number: u32, name: &str, out: &mut Vec<u8>) {
    let text = if name.is_empty() {
        "there is no default export here; ask for one by name (list shows them)".to_owned()
    } else {
        format!("there is no export {name:?} here; list shows them")
    };
    OptionReply::Error(ReplyType::ErrUnknown, &text).encode(number, out);
}

fn needs_structured(number: u32, out: &mut Vec<u8>) {
    let text = "metadata contexts need structured replies, ask for them first";
    OptionReply::Error(ReplyType::ErrInvalid, text).encode(number, out);
}

#[cfg(test)]
mod tests;
