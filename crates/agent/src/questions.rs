//! What the controller asks outside of plans, and what this node says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cluster::objects::Millis;
use cluster::question::{DIAGNOSIS, Question, ReactorCall, Reply};
use logging::{Level, log};

use crate::carry::Node;
use crate::command::{Failure, Output, System};
use crate::device_pool::Maker;
use crate::disks;
use crate::failed::Failed;

/// How long a program may take that tells of the node. The controller waits a bit longer.
const TELLING: Duration = Duration::from_secs(15);

/// Programs whose output helps to find out what is wrong, by the file that it is put into. None of them
/// tells secrets: the engine's configuration, which has such, is not among them.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("kernel.txt", &["uname", "-a"]),
    ("kernel-log.txt", &["dmesg"]),
    ("drbd-reactor.txt", &["drbd-reactorctl", "status"]),
    ("disks.txt", &["lsblk"]),
    ("loop-devices.txt", &["losetup", "--list"]),
    ("file-systems.txt", &["df", "--human-readable"]),
    ("physical-volumes.txt", &["pvs"]),
    ("volume-groups.txt", &["vgs"]),
    ("logical-volumes.txt", &["lvs", "--all"]),
    ("zfs-pools.txt", &["zpool", "status"]),
    ("zfs-volumes.txt", &["zfs", "list", "-t", "all"]),
    ("addresses.txt", &["ip", "address"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    ("sockets.txt", &["ss", "--tcp", "--all", "--numeric"]),
];

/// What our own program tells of the engine.
const OURS: &[(&str, &[&str])] = &[
    ("engine.txt", &["info"]),
    ("engine-status.txt", &["status"]),
    ("engine-status.json", &["status", "--json"]),
];

/// Answers a question. Takes as long as the node's programs and disks do.
pub fn answer(node: &Node, maker: &Maker, question: &Question) -> Reply {
    answered(node, maker, question).unwrap_or_else(|Failed { cause, correction, .. }| {
        log!(Level::Warn, "question", "{cause}");
        Reply::Refused { cause, correction }
    })
}

fn answered(node: &Node, maker: &Maker, question: &Question) -> Result<Reply, Failed> {
    let machine = System::default();
    Ok(match question {
        Question::Disks {} => Reply::Disks { disks: disks::unused(&machine)? },
        Question::MakePool(pool) => {
            maker.make(&machine, pool)?;
            log!(Level::Info, "question", "{pool} was made");
            Reply::Done {}
        }
        Question::UnmakePool(pool) => {
            maker.unmake(&machine, pool)?;
            log!(Level::Info, "question", "{pool} was removed again");
            Reply::Done {}
        }
        Question::MayPut { path } => {
            Reply::MayPut { allowed: node.may_put(Path::new(path.as_str())) }
        }
        Question::File { path, content } => {
            let path = Path::new(path.as_str());
            if !node.may_put(path) {
                return Err(node.not_taken(path));
            }
            let found = match fs::read(path) {
                Ok(found) => Some(found),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => {
                    let text = format!("{} can not be read: {error}", path.display());
                    return Err(Failed::new(text, "see to its folder"));
                }
            };
            Reply::File { there: found.is_some(), same: found.is_some_and(|f| f == *content) }
        }
        Question::LogLevel {} => Reply::LogLevel(logging::level()),
        Question::SetLogLevel(level) => {
            logging::set_level(*level);
            log!(Level::Info, "agent", "logs up to {level} from now on");
            Reply::Done {}
        }
        Question::Reactor(call) => reactor(call),
        Question::Diagnosis { since } => Reply::Diagnosis { files: diagnosis(node, *since) },
    })
}

/// Calls drbd-reactor's control program.
fn reactor(call: &ReactorCall) -> Reply {
    log!(Level::Info, "question", "{call}");
    if call.wait {
        return said(&call.words());
    }
    // The caller may be what is moved away by this.
    let words = call.words();
    let later = thread::Builder::new().name("reactor".to_owned());
    let started = later.spawn(move || {
        if let Reply::Said { status, errors, .. } = said(&words) {
            let (words, errors) = (words.join(" "), errors.trim());
            log!(Level::Info, "question", "`{words}` has ended with {status}: {errors}");
        }
    });
    match started {
        Ok(_) => Reply::Said { status: 0, output: String::new(), errors: String::new() },
        Err(error) => {
            let errors = format!("there is no thread for it: {error}");
            Reply::Said { status: -1, output: String::new(), errors }
        }
    }
}

fn said(words: &[String]) -> Reply {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match System::default().call(&words) {
        Ok(Output { status, stdout, stderr }) => {
            Reply::Said { status: status.unwrap_or(-1), output: stdout, errors: stderr }
        }
        Err(error) => Reply::Said { status: -1, output: String::new(), errors: error.to_string() },
    }
}

/// What there is to say of the node, side by side: a program that hangs holds up no other one.
fn diagnosis(node: &Node, since: Option<Millis>) -> BTreeMap<String, String> {
    let mut commands: Vec<(&str, Vec<String>)> = Vec::new();
    let owned =
        |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    commands.extend(PROGRAMS.iter().map(|(file, words)| (*file, owned(words))));
    let mut journal: Vec<String> =
        owned(&["journalctl", "--no-pager", "--lines=20000", "--unit=ashlar*"]);
    journal.extend(since.map(|since| format!("--since=@{}", since.0 / 1000)));
    commands.push(("journal.txt", journal));
    if let Some(program) = &node.program {
        let start = [
            program.display().to_string(),
            "--socket".to_owned(),
            node.socket.display().to_string(),
        ];
        let whole = |words: &[&str]| [&start[..], &owned(words)].concat();
        commands.extend(OURS.iter().map(|(file, words)| (*file, whole(words))));
    }
    let files = Mutex::new(BTreeMap::new());
    let keep = |file: &str, text: String| {
        files.lock().unwrap_or_else(PoisonError::into_inner).insert(file.to_owned(), text);
    };
    thread::scope(|scope| {
        for (file, words) in &commands {
            let keep = &keep;
            scope.spawn(move || {
                if let Some(text) = told(words) {
                    keep(file, text);
                }
            });
        }
    });
    if let Ok(release) = fs::read_to_string("/etc/os-release") {
        keep("os-release.txt", release);
    }
    files.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The command and what it said; nothing if there is no such program.
fn told(words: &[String]) -> Option<String> {
    let argv: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match (System { deadline: TELLING }.call(&argv)) {
        Ok(Output { status: Some(0), stdout, stderr }) => stdout + &stderr,
        Ok(Output { status, stdout, stderr }) => {
            format!("{stdout}{stderr}\nexit status {}\n", status.unwrap_or(-1))
        }
        Err(error) if error.why == Failure::NotInstalled => return None,
        Err(error) => format!("{error}\n"),
    };
    Some(format!("$ {}\n{}", words.join(" "), end_of(&said, DIAGNOSIS - 4096)))
}

/// The end of a text, at most so many bytes.
fn end_of(text: &str, most: usize) -> &str {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_the_end_is_told() {
        assert_eq!(end_of("abc", 5), "abc");
        assert_eq!(end_of("abc", 2), "bc");
        assert_eq!(end_of("aäb", 2), "b", "no half letters");
        let words = |script: &str| ["sh", "-c", script].map(str::to_owned);
        assert_eq!(
            told(&words("echo x; echo y >&2")).unwrap(),
            "$ sh -c echo x; echo y >&2\nx\ny\n"
        );
        assert!(told(&words("exit 3")).unwrap().ends_with("exit status 3\n"));
        assert_eq!(told(&["ashlar-no-such-program".to_owned()]), None);
    }

    #[test]
    fn what_a_program_says_comes_with_its_status() {
        let words = ["sh", "-c", "echo out; echo err >&2; exit 4"].map(str::to_owned);
        let expected =
            Reply::Said { status: 4, output: "out\n".to_owned(), errors: "err\n".to_owned() };
        assert_eq!(said(&words), expected);
        let Reply::Said { status: -1, errors, .. } = said(&["ashlar-no-such-program".to_owned()])
        else {
            panic!()
        };
        assert!(errors.contains("not installed"), "{errors}");
    }
}
