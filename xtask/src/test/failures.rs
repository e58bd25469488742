//! What failed, told once more at the end: of a long log that is what is read first, and often all that is kept.

use std::sync::Mutex;

/// Longest text of one failure, in bytes. Its end says the most.
const LONGEST: usize = 3000;
/// So many are told.
const MOST: usize = 4;

/// What failed, and the end of what it printed.
static FAILURES: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Keeps what a failed check printed.
pub fn keep(what: &str, printed: &str) {
    let mut failures = FAILURES.lock().expect("nothing panics with the failures");
    failures.push((what.to_owned(), end(printed).to_owned()));
}

/// Tells what was kept.
pub fn tell() {
    let failures = FAILURES.lock().expect("nothing panics with the failures");
    for (what, printed) in failures.iter().take(MOST) {
        println!("\n== failed: {what}\n{printed}");
    }
    if failures.len() > MOST {
        println!("\n== and {} more, see above", failures.len() - MOST);
    }
}

/// Its last lines.
fn end(text: &str) -> &str {
    let text = text.trim_end();
    let Some(over) = text.len().checked_sub(LONGEST).filter(|over| *over > 0) else { return text };
    let line = text.as_bytes()[over..].iter().position(|byte| *byte == b'\n');
    // One line that is too long is not cut: no byte of it need begin a character.
    line.map_or(text, |line| &text[over + line + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_kept_of_the_end() {
        assert_eq!(end("short\n"), "short");
        let long: String = (0..1000).map(|line| format!("línea {line}\n")).collect();
        let kept = end(&long);
        assert!(kept.len() <= LONGEST && kept.len() > LONGEST - 20, "{}", kept.len());
        assert!(kept.starts_with("línea ") && kept.ends_with("línea 999"), "{kept}");
        let line = "é".repeat(LONGEST);
        assert_eq!(end(&line), line);
    }
}
