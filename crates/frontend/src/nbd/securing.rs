//! The beginning of a connection that has to be encrypted, without I/O. In clear text a client may
//! ask for TLS and for nothing else (`NBD_OPT_STARTTLS`, the protocol's mode "FORCEDTLS").

use super::Violation;
use super::handshake::MAX_OPTIONS;
use super::proto::MAX_OPTION_LEN;
use super::proto::option::{
    CLIENT_FLAGS_LEN, ClientFlags, ClientOption, OPTION_HEADER_LEN, OptionHeader, OptionReply,
    ReplyType, number,
};

/// What the client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// To go on encrypted, once the replies have been sent. A new handshake begins then, with these
    /// bytes: the client's flags, which it does not send again.
    Tls([u8; CLIENT_FLAGS_LEN]),
    /// To leave, once the replies have been sent.
    Leave,
}

/// A connection in clear text.
#[derive(Debug, Default)]
pub struct Securing {
    /// What has arrived and is not understood yet.
    input: Vec<u8>,
    flags: Option<[u8; CLIENT_FLAGS_LEN]>,
    options: u32,
}

impl Securing {
    /// A connection just accepted; send [`greeting`](super::proto::option::greeting) first.
    pub fn new() -> Securing {
        Securing::default()
    }

    /// Takes bytes from the client and appends replies to `out`, until it is clear what the client
    /// wants.
    ///
    /// # Errors
    /// The client broke the protocol: close the connection. Saying more before TLS has begun is that,
    /// too: it would count as said within it.
    pub fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Wish>, Violation> {
        self.input.extend_from_slice(input);
        let mut used = 0;
        let mut wish = None;
        while wish.is_none() {
            let rest = &self.input[used..];
            let Some(flags) = self.flags else {
                let Some(flags) = rest.first_chunk::<CLIENT_FLAGS_LEN>() else { break };
                ClientFlags::decode(*flags).ok_or(Violation::ClientFlags)?;
                self.flags = Some(*flags);
                used += CLIENT_FLAGS_LEN;
                continue;
            };
            let Some(head) = rest.first_chunk::<OPTION_HEADER_LEN>() else { break };
            let header = OptionHeader::decode(head).ok_or(Violation::OptionMagic)?;
            if header.len > MAX_OPTION_LEN {
                return Err(Violation::OptionTooLong(header.len));
            }
            let end = OPTION_HEADER_LEN + header.len as usize;
            let Some(data) = rest.get(OPTION_HEADER_LEN..end) else { break };
            self.options += 1;
            if self.options > MAX_OPTIONS {
                return Err(Violation::TooManyOptions);
            }
            let reply = match ClientOption::decode(header.number, data) {
                Ok(ClientOption::StartTls) => {
                    wish = Some(Wish::Tls(flags));
                    OptionReply::Ack
                }
                Ok(ClientOption::Abort) => {
                    wish = Some(Wish::Leave);
                    OptionReply::Ack
                }
                Ok(ClientOption::ExportName(_)) => return Err(Violation::ExportNameRefused),
                Err(_) if header.number == number::EXPORT_NAME => {
                    return Err(Violation::ExportNameRefused);
                }
                Err(error) if header.number == number::STARTTLS => {
                    OptionReply::Error(error.reply, error.text)
                }
                _ => {
                    let text =
                        "this server is to be talked to over TLS; use a client with certificates";
                    OptionReply::Error(ReplyType::ErrTlsReqd, text)
                }
            };
            reply.encode(header.number, out);
            used += end;
        }
        self.input.drain(..used);
        match wish {
            Some(Wish::Tls(_)) if !self.input.is_empty() => Err(Violation::AheadOfReply),
            wish => Ok(wish),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: [u8; 4] = [0, 0, 0, 3];

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let header = OptionHeader { number, len: data.len() as u32 };
        [&header.encode()[..], data].concat()
    }

    /// What the client wants, and the numbers of the replies to it; byte by byte or all at once.
    fn talk(said: &[u8]) -> Result<(Option<Wish>, Vec<u32>), Violation> {
        let run = |step: usize| {
            let (mut securing, mut out) = (Securing::new(), Vec::new());
            let mut wish = None;
            for piece in said.chunks(step) {
                assert_eq!(wish, None, "it is not asked again");
                wish = securing.receive(piece, &mut out)?;
            }
            let mut replies = Vec::new();
            let mut rest = &out[..];
            while let Some(head) = rest.first_chunk::<20>() {
                let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
                replies.push(word(12));
                rest = &rest[20 + word(16) as usize..];
            }
            assert!(rest.is_empty(), "whole replies");
            Ok((wish, replies))
        };
        let (pieces, whole) = (run(1), run(said.len().max(1)));
        assert_eq!(pieces, whole);
        whole
    }

    #[test]
    fn tls_is_all_that_can_be_had_in_clear_text() {
        let said = [&FLAGS[..], &option(number::STARTTLS, b"")].concat();
        assert_eq!(talk(&said), Ok((Some(Wish::Tls(FLAGS)), vec![1])));
        let refused = [number::LIST, number::STRUCTURED_REPLY, number::EXTENDED_HEADERS, 99];
        let asked: Vec<u8> = refused.iter().flat_map(|n| option(*n, b"")).collect();
        let said = [&FLAGS[..], &asked, &option(number::GO, b"\0\0\0\x01x\0\0")].concat();
        assert_eq!(talk(&said), Ok((None, vec![0x8000_0005; 5])));
        let said = [&FLAGS[..], &option(number::STARTTLS, b"x")].concat();
        assert_eq!(talk(&said), Ok((None, vec![0x8000_0003])));
        let said = [&FLAGS[..], &option(number::ABORT, b"")].concat();
        assert_eq!(talk(&said), Ok((Some(Wish::Leave), vec![1])));
    }

    #[test]
    fn nothing_that_is_said_in_clear_text_counts_within_tls() {
        let both = [option(number::STARTTLS, b""), option(number::LIST, b"")].concat();
        let mut securing = Securing::new();
        let said = [&FLAGS[..], &both].concat();
        let result = securing.receive(&said, &mut Vec::new());
        assert_eq!(result, Err(Violation::AheadOfReply));
    }

    #[test]
    fn who_breaks_the_protocol_is_done_with() {
        let broken = |said: &[u8]| talk(&[&FLAGS[..], said].concat()).unwrap_err();
        assert_eq!(talk(&[0xff; 4]).unwrap_err(), Violation::ClientFlags);
        assert_eq!(broken(&[7; 16]), Violation::OptionMagic);
        assert_eq!(broken(&option(number::EXPORT_NAME, b"r0/0")), Violation::ExportNameRefused);
        let long = OptionHeader { number: number::GO, len: MAX_OPTION_LEN + 1 };
        assert_eq!(broken(&long.encode()), Violation::OptionTooLong(MAX_OPTION_LEN + 1));
        let many = option(number::LIST, b"").repeat(MAX_OPTIONS as usize + 1);
        assert_eq!(broken(&many), Violation::TooManyOptions);
    }
}
