//! Words to a command (drbdsetup contract §1): options may stand anywhere, long ones may be
//! abbreviated, and everything is checked before the engine hears of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use vocab::options::{Kind, OptionError, OptionSpec, Options};
use vocab::{ConfigError, Minor, NodeId, Refusal, VolumeNr};

use super::error::Stop;
use super::table::{Argument, Command, Own, SET_DEFAULTS, SOCKET, Verb};

/// Where DRBD listens if an address has no port.
const PORT: u16 = 7788;
/// The major number of DRBD's devices.
const MAJOR: u64 = 147;

/// A command with its arguments, understood and within range.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) command: &'static Command,
    arguments: Vec<String>,
    /// Options that configure the object, in the order given.
    options: Vec<(&'static str, String)>,
    /// Other options.
    own: Vec<(&'static str, String)>,
    /// Only the help text is wanted.
    pub(super) help: bool,
}

/// An option of a command.
#[derive(Clone, Copy)]
enum Known {
    Spec(&'static OptionSpec),
    Own(Own),
    Help,
}

impl Known {
    fn name(self) -> &'static str {
        match self {
            Known::Spec(spec) => spec.name,
            Known::Own(own) => own.name,
            Known::Help => "help",
        }
    }

    /// Its value if none is given.
    fn bare(self) -> Option<&'static str> {
        match self {
            Known::Spec(spec) => (spec.kind == Kind::Bool).then_some("yes"),
            Known::Own(own) => own.bare,
            Known::Help => Some("yes"),
        }
    }
}

fn known(command: &Command) -> Vec<Known> {
    let mut all = vec![Known::Help, Known::Own(SOCKET)];
    if command.resets() {
        all.push(Known::Own(SET_DEFAULTS));
    }
    all.extend(command.group.into_iter().flat_map(|g| g.options()).map(Known::Spec));
    all.extend(command.own.iter().copied().map(Known::Own));
    all
}

/// The option that a long name, perhaps abbreviated, means.
fn long(command: &Command, name: &str) -> Result<Known, Stop> {
    let name = match (command.verb, name) {
        (Verb::Primary, "overwrite-data-of-peer") => "force",
        (Verb::Connect, "dry-run") => "tentative",
        _ => name,
    };
    let all = known(command);
    if let Some(exact) = all.iter().find(|k| k.name() == name) {
        return Ok(*exact);
    }
    let fitting: Vec<_> = all.into_iter().filter(|k| k.name().starts_with(name)).collect();
    match fitting[..] {
        [one] => Ok(one),
        [] => Err(Stop::usage(command, format!("there is no option --{name}"))),
        _ => {
            let names: Vec<_> = fitting.iter().map(|k| format!("--{}", k.name())).collect();
            Err(Stop::usage(command, format!("--{name} could be {}", names.join(", "))))
        }
    }
}

/// The words of a command line, without the program's name.
pub(super) fn parse(words: &[String]) -> Result<Parsed, Stop> {
    let leading = words.iter().take_while(|w| w.starts_with('-')).count();
    let (early, rest) = words.split_at(leading);
    let mut rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    if early.iter().any(|w| w == "--help" || w == "-h") || rest.is_empty() {
        let status = if early.is_empty() { 20 } else { 0 };
        return Err(Stop::Help { status });
    }
    // `drbdsetup OBJECT COMMAND` is the old order.
    if Command::find(rest[0]).is_none() && rest.get(1).is_some_and(|w| Command::find(w).is_some()) {
        rest.swap(0, 1);
    }
    let Some(command) = Command::find(rest[0]) else {
        let text = format!("there is no command `{}`; see `drbdsetup help`", rest[0]);
        return Err(Stop::Exit { status: 20, text });
    };
    let (arguments, given) = (Vec::new(), Vec::new());
    let mut reading = Reading { command, arguments, given };
    let mut words = early.iter().map(String::as_str).chain(rest[1..].iter().copied());
    while let Some(word) = words.next() {
        match word {
            "--" => {
                reading.arguments.extend(words.by_ref().map(str::to_owned));
            }
            _ if word.starts_with("--") => {
                let (name, value) = match word[2..].split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (&word[2..], None),
                };
                let option = long(command, name)?;
                reading.option(option, value, &mut words)?;
            }
            _ if word.len() > 1 && word.starts_with('-') => {
                reading.letters(&word[1..], &mut words)?;
            }
            _ => reading.arguments.push(word.to_owned()),
        }
    }
    reading.end()
}

struct Reading {
    command: &'static Command,
    arguments: Vec<String>,
    given: Vec<(Known, String)>,
}

impl Reading {
    fn option<'w>(
        &mut self,
        option: Known,
        value: Option<&str>,
        words: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), Stop> {
        let value = match (value, option.bare()) {
            (Some(value), _) | (None, Some(value)) => value,
            (None, None) => {
                let missing = || format!("--{} needs a value", option.name());
                words.next().ok_or_else(|| Stop::usage(self.command, missing()))?
            }
        };
        self.given.push((option, value.to_owned()));
        Ok(())
    }

    /// Options of one letter, such as `-sT`; the last may have its value after it.
    fn letters<'w>(
        &mut self,
        letters: &str,
        words: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), Stop> {
        for (at, letter) in letters.char_indices() {
            if letter == 'h' {
                self.given.push((Known::Help, "yes".to_owned()));
                continue;
            }
            let own = self.command.own.iter().find(|own| own.short == Some(letter));
            let Some(own) = own else {
                return Err(Stop::usage(self.command, format!("there is no option -{letter}")));
            };
            let rest = &letters[at + letter.len_utf8()..];
            if own.bare.is_none() && !rest.is_empty() {
                return self.option(Known::Own(*own), Some(rest), words);
            }
            self.option(Known::Own(*own), None, words)?;
        }
        Ok(())
    }

    /// Checks what was read.
    fn end(self) -> Result<Parsed, Stop> {
        let Reading { command, arguments, given } = self;
        let help = given.iter().any(|(k, _)| matches!(k, Known::Help));
        let mut parsed = Parsed { command, arguments, options: Vec::new(), own: Vec::new(), help };
        if help {
            return Ok(parsed);
        }
        parsed.check_arguments()?;
        for (option, value) in given {
            match option {
                Known::Spec(spec) => {
                    let group = command.group.expect("the option is of its group");
                    group.check(spec.name, &value).map_err(|e| parsed.refused(&e))?;
                    parsed.options.push((spec.name, value));
                }
                Known::Own(own) if own.kind.accepts(&value) => parsed.own.push((own.name, value)),
                Known::Own(own) => {
                    let text =
                        format!("`{value}` is not a value of --{}; give {}", own.name, own.kind);
                    return Err(Stop::usage(command, text));
                }
                Known::Help => {}
            }
        }
        Ok(parsed)
    }
}

impl Parsed {
    fn check_arguments(&self) -> Result<(), Stop> {
        use Argument::{Command, MaybeResourceMinor, ResourceOrAll};
        let wanted = self.command.arguments;
        let optional = matches!(wanted, [ResourceOrAll] | [Command]);
        let two = matches!(wanted, [MaybeResourceMinor]);
        let (least, most) = (wanted.len() - usize::from(optional), wanted.len() + usize::from(two));
        if self.arguments.len() < least {
            let missing = wanted[self.arguments.len()].word();
            return Err(Stop::usage(self.command, format!("the argument {missing} is missing")));
        }
        if let Some(surplus) = self.arguments.get(most) {
            let text = format!("`{surplus}` is an argument too many");
            return Err(Stop::usage(self.command, text));
        }
        let is_name = |a: &&Argument| matches!(a, Argument::Resource | ResourceOrAll);
        if wanted.first().filter(is_name).is_some() {
            let bad = |name: &String| name.is_empty() || name.chars().any(char::is_control);
            if self.arguments.first().is_some_and(bad) {
                let text = "the name of a resource is not empty and has no control characters";
                return Err(Stop::Exit { status: 1, text: text.to_owned() });
            }
        }
        Ok(())
    }

    /// An option that was refused: by its syntax here, by what this program does as the engine
    /// would say it.
    fn refused(&self, error: &OptionError) -> Stop {
        match error {
            OptionError::NotHonoured { name: "csums-alg", .. } => {
                self.refusal(ConfigError::CsumsAlg, error.to_string())
            }
            OptionError::NotHonoured { .. } | OptionError::Conflict(_) => {
                self.refusal(ConfigError::InvalidRequest, error.to_string())
            }
            OptionError::Unknown { .. } | OptionError::Invalid { .. } => {
                Stop::usage(self.command, error.to_string())
            }
        }
    }

    /// A refusal of the object that the command is about.
    pub(super) fn refusal(&self, code: ConfigError, detail: impl Into<String>) -> Stop {
        Stop::Refused { object: self.object(), refusal: Refusal::config(code, detail) }
    }

    /// The object as given: the first argument.
    pub(super) fn object(&self) -> String {
        self.arguments.first().cloned().unwrap_or_else(|| "all".to_owned())
    }

    /// The argument at a position that the table has, as it is.
    pub(super) fn argument(&self, at: usize) -> &str {
        &self.arguments[at]
    }

    /// The resource named first.
    pub(super) fn resource(&self) -> String {
        self.argument(0).to_owned()
    }

    /// The resource named, `None` for all of them.
    pub(super) fn resource_or_all(&self) -> Option<String> {
        self.arguments.first().filter(|name| *name != "all").cloned()
    }

    /// The command asked about.
    pub(super) fn about(&self) -> Option<&str> {
        self.arguments.first().map(String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, at: usize, what: &str) -> Result<T, Stop> {
        let text = self.argument(at);
        let wrong = || Stop::usage(self.command, format!("`{text}` is not {what}"));
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(wrong)
    }

    /// A node id.
    pub(super) fn node(&self, at: usize) -> Result<NodeId, Stop> {
        let n: u32 = self.number(at, "a node id")?;
        let code = match self.command.verb {
            Verb::ForgetPeer => ConfigError::InvalidPeerNodeId,
            _ => ConfigError::InvalidRequest,
        };
        let id = u8::try_from(n).ok().and_then(NodeId::new);
        id.ok_or_else(|| self.refusal(code, format!("node id {n} is not 0 to 31")))
    }

    /// A volume number.
    pub(super) fn volume(&self, at: usize) -> Result<VolumeNr, Stop> {
        let n: u32 = self.number(at, "a volume number")?;
        let nr = u16::try_from(n).ok().map(VolumeNr).filter(|nr| *nr <= VolumeNr::MAX);
        nr.ok_or_else(|| {
            let detail = format!("volume {n} is beyond {}", VolumeNr::MAX);
            self.refusal(ConfigError::InvalidRequest, detail)
        })
    }

    /// A minor: its number, `/dev/drbdN`, or any device node of DRBD.
    pub(super) fn minor(&self, at: usize) -> Result<Minor, Stop> {
        let text = self.argument(at);
        let digits = text.strip_prefix("/dev/drbd").unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            if let Ok(n) = digits.parse() {
                return Ok(Minor(n));
            }
        }
        // As the C library splits a device number.
        let rdev = std::fs::metadata(text).map_or(0, |m| m.rdev());
        let major = ((rdev >> 8) & 0xfff) | ((rdev >> 32) & !0xfff);
        if major == MAJOR {
            return Ok(Minor(((rdev & 0xff) | ((rdev >> 12) & 0xff_ff00)) as u32));
        }
        Err(Stop::usage(self.command, format!("`{text}` is not a minor, nor a device of DRBD")))
    }

    /// The minor of a command that may have the resource before it.
    pub(super) fn last_minor(&self) -> Result<Minor, Stop> {
        self.minor(self.arguments.len() - 1)
    }

    /// The resource given before the minor.
    pub(super) fn resource_of_minor(&self) -> Option<String> {
        let two = self.command.arguments == [Argument::MaybeResourceMinor];
        (two && self.arguments.len() == 2).then(|| self.resource())
    }

    /// An address: `[ipv4:]ADDRESS[:PORT]` or `ipv6:[ADDRESS][:PORT]`.
    pub(super) fn address(&self, at: usize) -> Result<SocketAddr, Stop> {
        let text = self.argument(at);
        let bare = text.strip_prefix("local:").or(text.strip_prefix("peer:")).unwrap_or(text);
        let address = match bare.split_once(':') {
            Some(("ipv6", rest)) => v6(rest),
            Some(("ipv4", rest)) => v4(rest),
            Some(("sdp" | "ssocks", _)) => {
                let detail = format!("{bare}: addresses are of the families ipv4 and ipv6 here");
                return Err(self.refusal(ConfigError::InvalidRequest, detail));
            }
            _ => v4(bare),
        };
        let wrong = || {
            let text = format!("`{text}` is not ipv4:ADDRESS:PORT nor ipv6:[ADDRESS]:PORT");
            Stop::usage(self.command, text)
        };
        address.ok_or_else(wrong)
    }

    /// The device at a position; relative paths are relative to `/`, as in the original.
    pub(super) fn device(&self, at: usize) -> String {
        let text = self.argument(at);
        if text.starts_with('/') { text.to_owned() } else { format!("/{text}") }
    }

    /// True if the option of that name was given and not as `no`.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("yes")
    }

    /// How often the option of that name was given.
    pub(super) fn count(&self, name: &str) -> u8 {
        let given = self.own.iter().filter(|(n, value)| *n == name && value == "yes").count();
        u8::try_from(given).unwrap_or(u8::MAX)
    }

    /// The value of the option of that name.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let mut given = self.own.iter().rev();
        given.find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
    }

    /// The number given, in the option's unit.
    pub(super) fn amount(&self, name: &str) -> Option<u64> {
        let own = self.command.own.iter().find(|own| own.name == name)?;
        own.kind.number(self.text(name)?)
    }

    /// `current` with the options that were given.
    pub(super) fn apply<O: Options>(&self, current: O) -> Result<O, Stop> {
        let mut options = if self.flag(SET_DEFAULTS.name) { O::default() } else { current };
        for (name, value) in &self.options {
            options.set(name, value).map_err(|e| self.refused(&e))?;
        }
        Ok(options)
    }
}

fn v4(text: &str) -> Option<SocketAddr> {
    let (address, port) = match text.split_once(':') {
        Some((address, port)) => (address, port.parse().ok()?),
        None => (text, PORT),
    };
    Some(SocketAddr::from((address.parse::<Ipv4Addr>().ok()?, port)))
}

fn v6(text: &str) -> Option<SocketAddr> {
    let (address, rest) = text.strip_prefix('[')?.split_once(']')?;
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok()?,
        None if rest.is_empty() => PORT,
        None => return None,
    };
    // The name of an interface would have to be looked up; its index is as good.
    if address.contains('%') {
        return format!("[{address}]:{port}").parse().ok();
    }
    Some(SocketAddr::from((address.parse::<Ipv6Addr>().ok()?, port)))
}
