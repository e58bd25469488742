//! What an operator carries from the controller to a node so that it may join.

use std::fmt;
use std::str::FromStr;

/// Length of the one-time secret in bytes.
pub const SECRET: usize = 32;

/// A token: `ashlar1.ADDRESS.AUTHORITY.SECRET`, the last two in hexadecimal.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Where the controller listens: `HOST:PORT`; of several controllers all, with commas between.
    pub address: String,
    /// SHA-256 of the authority's certificate (DER): who shows another is not the controller.
    pub authority: [u8; 32],
    /// What the controller takes once.
    pub secret: [u8; SECRET],
}

/// Text that is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoToken;

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not a token, or not all of it; copy it again from the controller")
    }
}

impl std::error::Error for NoToken {}

/// The version of the format, in front.
const PREFIX: &str = "ashlar1.";

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}.{}", self.address, hex(&self.authority), hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    /// Without the secret: this gets into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}.…", self.address, hex(&self.authority))
    }
}

impl FromStr for Token {
    type Err = NoToken;
    fn from_str(text: &str) -> Result<Token, NoToken> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(NoToken)?;
        // Addresses have dots of their own.
        let mut parts = rest.rsplitn(3, '.');
        let secret = parts.next().and_then(bytes).ok_or(NoToken)?;
        let authority = parts.next().and_then(bytes).ok_or(NoToken)?;
        let address = parts.next().filter(|address| is_address(address)).ok_or(NoToken)?;
        Ok(Token { address: address.to_owned(), authority, secret })
    }
}

fn is_address(text: &str) -> bool {
    text.split(',').all(|one| {
        let parts = one.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    })
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (byte, at) in out.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        for address in
            ["10.0.0.1:7777", "[fd00::1]:7777", "storage.example.com:1", "10.0.0.1:1,b:2"]
        {
            let token =
                Token { address: address.to_owned(), authority: [0xab; 32], secret: [1; SECRET] };
            assert_eq!(token.to_string().parse::<Token>(), Ok(token.clone()));
            assert!(!format!("{token:?}").contains("0101"), "a log never has the secret");
        }
    }

    #[test]
    fn a_part_of_a_token_is_none() {
        let token = Token { address: "a:1".to_owned(), authority: [7; 32], secret: [9; SECRET] }
            .to_string();
        for end in 0..token.len() {
            assert!(token[..end].parse::<Token>().is_err(), "{end}");
        }
        assert!(token.replace("ashlar1", "ashlar2").parse::<Token>().is_err());
        assert!(token.replace("a:1", "a").parse::<Token>().is_err());
        assert!(format!("{}é", &token[..token.len() - 2]).parse::<Token>().is_err());
    }
}
