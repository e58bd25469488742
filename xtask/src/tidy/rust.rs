//! Rules about Rust source: headers, `unsafe`, placeholders.

use super::{Complaint, File, Tree};

/// The crates that may contain `unsafe`: system calls, and memory the kernel writes to.
const UNSAFE_IN: &[&str] = &["crates/runtime/", "crates/frontend/"];

/// Leftovers of work in progress. Clippy denies the macros too; tests behind a `cfg` escape it.
const PLACEHOLDERS: &[&str] = &["todo!", "unimplemented!", "dbg!", "#[ignore"];

/// Files whose tests are campaigns, as long as one likes; they are run by name, and counted as
/// skipped otherwise.
const CAMPAIGNS: &[&str] = &["tests/tests/engine_chaos.rs"];

/// Each file begins with a sentence about what lives there.
pub fn headers(tree: &Tree) -> Vec<Complaint> {
    let missing = |(file, text): (&File, &str)| {
        let said = text.lines().next().is_some_and(|line| line.starts_with("//! "));
        (!said).then(|| Complaint::at(&file.path, 1, "begin with a `//!` line: what lives here"))
    };
    tree.rust().filter_map(missing).collect()
}

/// `unsafe` stays in the crates whose job it is.
pub fn unsafe_code(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (file, text) in tree.rust() {
        if UNSAFE_IN.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        for (index, line) in code(text).lines().enumerate() {
            if words(line).any(|word| word == "unsafe") {
                let text = format!("`unsafe` belongs in {}", UNSAFE_IN.join(" or "));
                complaints.push(Complaint::at(&file.path, index + 1, text));
            }
        }
    }
    complaints
}

/// No code that says it will be written later, and no test that is not run.
pub fn placeholders(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (file, text) in tree.rust() {
        for (index, line) in code(text).lines().enumerate() {
            for word in PLACEHOLDERS.iter().filter(|word| has(line, word)) {
                if *word == "#[ignore" && CAMPAIGNS.contains(&file.path.as_str()) {
                    continue;
                }
                let text = format!("finish it or take it out: `{word}`");
                complaints.push(Complaint::at(&file.path, index + 1, text));
            }
        }
    }
    complaints
}

/// A package whose tests are one program names each file of them there: one that is not named is not run.
pub fn tests_are_run(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (root, text) in tree.rust() {
        let Some(package) = root.path.strip_suffix("tests/all.rs") else { continue };
        let manifest = tree.text(&format!("{package}Cargo.toml"));
        for (file, _) in tree.rust() {
            let name = file.path.strip_prefix(package).and_then(|path| path.strip_prefix("tests/"));
            let Some(module) = name.and_then(|name| name.strip_suffix(".rs")) else { continue };
            let named = module == "all"
                || module.contains('/')
                || text.lines().any(|line| line == format!("mod {module};"))
                || manifest.contains(&format!("path = \"tests/{module}.rs\""));
            if !named {
                let text = format!("nobody runs this; add `mod {module};` to {}", root.path);
                complaints.push(Complaint::of(&file.path, text));
            }
        }
    }
    complaints
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// True if `word` stands in `line` and is not the end of a longer word.
fn has(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// `text` with the insides of comments, strings and characters turned into blanks; lines stay.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut last = ' ';
    while let Some(first) = rest.chars().next() {
        let len = opaque(rest, last).unwrap_or(0);
        if len == 0 {
            out.push(first);
            last = first;
            rest = &rest[first.len_utf8()..];
            continue;
        }
        out.extend(rest[..len].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        last = ' ';
        rest = &rest[len..];
    }
    out
}

/// Length of the comment, string or character that `text` begins with; `before` is the character
/// in front of it.
fn opaque(text: &str, before: char) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(quoted(text, '"'));
    }
    if text.starts_with('\'') {
        // A lifetime has no closing quote behind its first character.
        let mut chars = text.chars().skip(1);
        let is_char = match chars.next()? {
            '\\' => true,
            _ => chars.next() == Some('\''),
        };
        return is_char.then(|| quoted(text, '\''));
    }
    let in_word = before.is_alphanumeric() || before == '_';
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix('r')).filter(|_| !in_word)?;
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let inside = raw[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(text.len() - inside.len() + end)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    //! What is code and what is not.
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blank() {
        let text =
            "a /* x /* y */ z */ b // c\n\"d \\\" e\" f 'g' '\\'' 'h\nr#\"i \" j\"# k br\"l\" m";
        let left: Vec<String> = code(text)
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(left, ["a b", "f 'h", "k m"]);
        assert_eq!(code(text).lines().count(), text.lines().count());
    }

    #[test]
    fn a_word_is_found_as_a_whole_word() {
        assert!(has("    todo!()", "todo!") && !has("my_todo!()", "todo!"));
        assert!(words("unsafe { x }").any(|w| w == "unsafe"));
        assert!(!words("#![forbid(unsafe_code)]").any(|w| w == "unsafe"));
    }

    #[test]
    fn unfinished_literals_end_with_the_text() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "'", "// abc"] {
            assert_eq!(code(text).chars().count(), text.chars().count(), "{text}");
        }
    }
}
