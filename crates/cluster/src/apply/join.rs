//! Tokens by which nodes join, each once: of two that use one, the first does.

use crate::change::{Key, Object};
use crate::edit::Edit;
use crate::name::NodeName;
use crate::objects::JoinToken;
use crate::refusal::{Code, Refusal};

pub fn create(edit: &mut Edit<'_>, token: JoinToken) {
    edit.put(Object::JoinToken(token));
}

/// What is refused has not used it up.
pub fn take(edit: &mut Edit<'_>, digest: String, node: &NodeName) -> Result<(), Refusal> {
    let now = edit.context.now;
    let token = edit.model.join_token(&digest).filter(|token| now < token.expires);
    let refused = || Refusal::new(Code::InvalidRequest, format!("{node} may not join"));
    let token = token.ok_or_else(|| {
        refused().cause("the token is not known, was used, or its time is over").correction(
            "make a new one (`ashlar node token`), and use it on the node before its time is over",
        )
    })?;
    if let Some(other) = token.node.as_ref().filter(|other| *other != node) {
        return Err(refused()
            .cause(format!("the token is for node {other}"))
            .correction(format!("join as {other}, or make a token for {node}")));
    }
    edit.remove(Key::JoinToken(digest));
    Ok(())
}

/// Tokens whose time is over.
pub fn forget_old(edit: &mut Edit<'_>) {
    let now = edit.context.now;
    let old = edit.model.join_tokens().filter(|token| token.expires <= now);
    let old: Vec<String> = old.map(|token| token.digest.clone()).collect();
    old.into_iter().for_each(|digest| edit.remove(Key::JoinToken(digest)));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bed, node};
    use crate::command::Command;
    use crate::objects::{JoinToken, Millis};

    fn token(bed: &Bed, digest: &str, of: Option<usize>, within: u64) -> Command {
        let (digest, expires) = (digest.to_owned(), Millis(bed.now + within));
        Command::CreateJoinToken { token: JoinToken { digest, node: of.map(node), expires } }
    }

    fn take(digest: &str, of: usize) -> Command {
        Command::UseJoinToken { digest: digest.to_owned(), node: node(of) }
    }

    #[test]
    fn a_token_serves_once_and_only_its_node() {
        let mut bed = Bed::new(1);
        let command = token(&bed, "aa", Some(1), 1000);
        bed.ok(command);
        let refusal = bed.refused(take("aa", 2));
        assert!(refusal.cause.contains("for node node-1"), "{refusal}");
        bed.refused(take("ab", 1));
        bed.ok(take("aa", 1));
        let refusal = bed.refused(take("aa", 1));
        assert!(refusal.correction.contains("make a new one"), "{refusal}");
        let command = token(&bed, "bb", None, 1000);
        bed.ok(command);
        bed.ok(take("bb", 7));
    }

    #[test]
    fn a_token_ends_and_is_forgotten_then() {
        let mut bed = Bed::new(1);
        for (digest, within) in [("aa", 1000), ("bb", 5000)] {
            let command = token(&bed, digest, None, within);
            bed.ok(command);
        }
        bed.pass(1000);
        bed.refused(take("aa", 1));
        assert_eq!(bed.model.join_tokens().count(), 2);
        bed.ok(Command::Tick);
        let left: Vec<_> = bed.model.join_tokens().map(|token| token.digest.as_str()).collect();
        assert_eq!(left, ["bb"]);
        bed.ok(take("bb", 1));
    }
}
