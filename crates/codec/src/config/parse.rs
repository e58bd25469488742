//! From text to sections: the grammar of drbdsetup contract §6.
//!
//! Every option value is checked against its table here, so a mistake is found on every node and
//! not only on the one it is for. What needs more than one section is left to `resolve`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use vocab::{HandlerEvent, Minor, NodeId, VolumeNr};

use super::ast::{
    CommonSection, Config, ConnectionSection, DiskPath, Group, HostRef, HostSection, MeshSection,
    PathSection, ResourceSection, Setting, Settings, VolumeSection, is_bool,
};
use super::error::{Cause, Error, Place};
use super::lexer::{Lexer, Token};
use super::model::MetaDisk;

/// Includes that may be nested.
const MAX_DEPTH: usize = 16;
/// Files of one configuration.
const MAX_FILES: usize = 4096;
/// Bytes of all files together.
const MAX_BYTES: usize = 64 << 20;

/// A configuration file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// Its name, unique per file: a file is read once, and errors name it.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Gives the files that match a pattern, sorted by name. The first argument is the name of the
/// file that holds the statement, which relative patterns refer to. An `Err` says why nothing
/// could be read; no match is an empty list.
pub type Loader<'l> = dyn FnMut(&str, &str) -> Result<Vec<SourceFile>, String> + 'l;

/// Parses a configuration from its first file; `loader` gives the included ones.
///
/// # Errors
/// The first mistake found, with its place.
pub fn parse(file: SourceFile, loader: &mut Loader<'_>) -> Result<Config, Error> {
    let mut config = Config::default();
    let mut loading = Loading { loader, seen: BTreeSet::new(), bytes: 0, depth: 0 };
    let at = Place { file: Arc::from(file.name.as_str()), line: 1, column: 1 };
    loading.parse_file(file, &at, &mut config)?;
    Ok(config)
}

struct Loading<'l, 'f> {
    loader: &'l mut Loader<'f>,
    seen: BTreeSet<String>,
    bytes: usize,
    depth: usize,
}

impl Loading<'_, '_> {
    fn parse_file(&mut self, file: SourceFile, at: &Place, into: &mut Config) -> Result<(), Error> {
        let too_much = |what, limit| Err(Error::new(at, "", Cause::TooMuch { what, limit }));
        self.bytes += file.text.len();
        if self.bytes > MAX_BYTES {
            return too_much("bytes of configuration", MAX_BYTES);
        }
        if self.depth == MAX_DEPTH {
            return too_much("levels of include", MAX_DEPTH);
        }
        let name: Arc<str> = Arc::from(file.name.as_str());
        if !self.seen.insert(file.name) {
            return Ok(());
        }
        if self.seen.len() > MAX_FILES {
            return too_much("files", MAX_FILES);
        }
        self.depth += 1;
        let lexer = Lexer::new(name, &file.text);
        let object = String::new();
        Parser { lexer, peeked: None, object, loading: self, config: into }.file()?;
        self.depth -= 1;
        Ok(())
    }

    fn load(&mut self, at: &Place, pattern: &str) -> Result<Vec<SourceFile>, Error> {
        let fail =
            |why| Err(Error::new(at, "", Cause::Include { pattern: pattern.to_owned(), why }));
        match (self.loader)(&at.file, pattern) {
            Err(why) => fail(why),
            Ok(files) if files.is_empty() && !pattern.contains(['*', '?', '[']) => {
                fail("there is no such file".to_owned())
            }
            Ok(files) => Ok(files),
        }
    }
}

struct Parser<'a, 'l, 'f> {
    lexer: Lexer<'a>,
    peeked: Option<(Token, Place)>,
    /// What is being parsed, for messages.
    object: String,
    loading: &'a mut Loading<'l, 'f>,
    config: &'a mut Config,
}

/// Outcome of parsing what goes into a section; the section itself is filled in place.
type Parsed = Result<(), Error>;

/// Tokens and small phrases.
impl Parser<'_, '_, '_> {
    fn error<T>(&self, at: &Place, cause: Cause) -> Result<T, Error> {
        Err(Error::new(at, self.object.as_str(), cause))
    }

    fn next(&mut self) -> Result<(Token, Place), Error> {
        match self.peeked.take() {
            Some(token) => Ok(token),
            None => self.lexer.next().map_err(|e| self.named(e)),
        }
    }

    /// Adds the object to an error that does not name one.
    fn named(&self, mut error: Error) -> Error {
        if error.object.is_empty() {
            error.object.clone_from(&self.object);
        }
        error
    }

    fn peek(&mut self) -> Result<&Token, Error> {
        if self.peeked.is_none() {
            self.peeked = Some(self.next()?);
        }
        Ok(&self.peeked.as_ref().expect("filled just above").0)
    }

    fn unexpected<T>(&self, token: &Token, at: &Place, expected: &str) -> Result<T, Error> {
        let cause = Cause::Unexpected { found: token.describe(), expected: expected.to_owned() };
        self.error(at, cause)
    }

    fn punct(&mut self, c: char) -> Parsed {
        let (token, at) = self.next()?;
        if token == Token::Punct(c) {
            return Ok(());
        }
        self.unexpected(&token, &at, &format!("`{c}`"))
    }

    fn end(&mut self) -> Parsed {
        self.punct(';')
    }

    /// Takes the token if it is `c`.
    fn eat(&mut self, c: char) -> Result<bool, Error> {
        let found = *self.peek()? == Token::Punct(c);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    /// Takes the token if it is the word `word`.
    fn eat_word(&mut self, word: &str) -> Result<bool, Error> {
        let found = matches!(self.peek()?, Token::Word(w) if w == word);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    /// A word or a quoted string.
    fn text(&mut self, what: &str) -> Result<(String, Place), Error> {
        match self.next()? {
            (Token::Word(text) | Token::Text(text), at) => Ok((text, at)),
            (token, at) => self.unexpected(&token, &at, what),
        }
    }

    /// A word or string followed by `;`.
    fn text_end(&mut self, what: &str) -> Result<(String, Place), Error> {
        let found = self.text(what)?;
        self.end()?;
        Ok(found)
    }

    fn number(&mut self, what: &'static str, min: u64, max: u64) -> Result<(u64, Place), Error> {
        let (found, at) = self.text(what)?;
        // `+1` would parse, and is no number in this grammar.
        let digits = found.bytes().all(|b| b.is_ascii_digit());
        match found.parse() {
            Ok(n) if digits && (min..=max).contains(&n) => Ok((n, at)),
            _ => self.error(&at, Cause::BadNumber { what, found, min, max }),
        }
    }

    fn yes_no(&mut self) -> Result<(bool, Place), Error> {
        match self.next()? {
            (Token::Word(w), at) if w == "yes" => Ok((true, at)),
            (Token::Word(w), at) if w == "no" => Ok((false, at)),
            (token, at) => self.unexpected(&token, &at, "yes or no"),
        }
    }

    /// `[af] ADDR:PORT`, ADDR in brackets for IPv6.
    fn address(&mut self) -> Result<(SocketAddr, Place), Error> {
        let (mut token, at) = self.next()?;
        let mut family = None;
        if let Token::Word(word) = &token
            && matches!(word.as_str(), "ipv4" | "ipv6" | "sdp" | "ssocks")
        {
            family = Some(word.clone());
            token = self.next()?.0;
        }
        if let Some(family @ ("sdp" | "ssocks")) = family.as_deref() {
            let what = format!("address family {family}");
            return self.error(&at, Cause::Unsupported { what, next: "use ipv4 or ipv6" });
        }
        let (found, ip): (String, Option<IpAddr>) = match token {
            Token::Punct('[') if family.as_deref() != Some("ipv4") => {
                let text = self.lexer.until_bracket().map_err(|e| self.named(e))?;
                let ip = text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
                (text, ip)
            }
            Token::Word(text) if family.as_deref() != Some("ipv6") => {
                let ip = text.parse::<Ipv4Addr>().ok().map(IpAddr::V4);
                (text, ip)
            }
            token => {
                return self.unexpected(&token, &at, "an address: 10.0.0.1:7000 or [fd00::1]:7000");
            }
        };
        let Some(ip) = ip else {
            let why = "give an IPv4 address, or an IPv6 address without zone in brackets";
            return self.error(&at, Cause::BadAddress { found, why });
        };
        self.punct(':')?;
        let (port, _) = self.number("port", 1, 65_535)?;
        Ok((SocketAddr::new(ip, port as u16), at))
    }

    /// Calls `item` with each keyword and its place until the section's `}`.
    fn section(&mut self, mut item: impl FnMut(&mut Self, &str, &Place) -> Parsed) -> Parsed {
        self.punct('{')?;
        loop {
            match self.next()? {
                (Token::Punct('}'), _) => return Ok(()),
                (Token::Word(word), _) if word == "skip" => self.skip()?,
                (Token::Word(word), at) => item(self, &word, &at)?,
                (token, at) => return self.unexpected(&token, &at, "a keyword or `}`"),
            }
        }
    }

    /// The rest of `skip KEYWORD … { … }`.
    fn skip(&mut self) -> Parsed {
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                (Token::Punct('{'), _) => depth += 1,
                (Token::Punct('}'), _) if depth == 1 => return Ok(()),
                (Token::Punct('}'), _) if depth > 1 => depth -= 1,
                (Token::Punct(';'), _) if depth == 0 => return Ok(()),
                (token @ (Token::End | Token::Punct('}')), at) => {
                    return self.unexpected(&token, &at, "the `{ … }` of the skipped section");
                }
                _ => {}
            }
        }
    }

    fn unknown(&self, found: &str, at: &Place, section: &'static str) -> Parsed {
        match found {
            "proxy" => self.error(at, unsupported("DRBD Proxy", "remove the proxy section")),
            _ => self.error(at, Cause::UnknownKeyword { found: found.to_owned(), section }),
        }
    }

    /// Stores a value that may be stated once.
    fn once<T>(&self, slot: &mut Option<(T, Place)>, what: &str, value: T, at: &Place) -> Parsed {
        if let Some((_, first)) = slot {
            let (what, first) = (format!("`{what}`"), first.clone());
            return self.error(at, Cause::Duplicate { what, first });
        }
        *slot = Some((value, at.clone()));
        Ok(())
    }
}

fn unsupported(what: &str, next: &'static str) -> Cause {
    Cause::Unsupported { what: what.to_owned(), next }
}

/// Options.
impl Parser<'_, '_, '_> {
    /// A `{ … }` of options of the given groups.
    fn settings(&mut self, section: &'static str, groups: &[Group], into: &mut Settings) -> Parsed {
        self.section(|p, word, at| p.setting(section, groups, word, at, into))
    }

    /// The rest of one option statement that begins with `word`.
    fn setting(
        &mut self,
        section: &'static str,
        groups: &[Group],
        word: &str,
        at: &Place,
        into: &mut Settings,
    ) -> Parsed {
        let name = match word {
            "rate" => "resync-rate",
            "after" => "resync-after",
            word => word,
        };
        let find = |name| groups.iter().find_map(|g| Some((*g, g.find(name)?)));
        let negated = name.strip_prefix("no-").and_then(find).filter(|(_, spec)| is_bool(spec));
        let (group, spec, value) = match (find(name), negated) {
            (Some((group, spec)), _) if is_bool(spec) && *self.peek()? == Token::Punct(';') => {
                (group, spec, "yes".to_owned())
            }
            (Some((group, spec)), _) => (group, spec, self.text("a value")?.0),
            (None, Some((group, spec))) => (group, spec, "no".to_owned()),
            (None, None) => return self.unknown(word, at, section),
        };
        self.end()?;
        // `resync-after RES/VOL` is translated when all minors are known.
        if !(spec.name == "resync-after" && value.contains('/'))
            && let Err(e) = group.check(spec.name, &value)
        {
            return self.error(at, Cause::Option(e));
        }
        let setting = Setting { group, name: spec.name, value, at: at.clone() };
        into.add(setting).map_err(|e| self.named(e))
    }

    /// One item that `common` and `resource` share; `None` if `word` is not one.
    fn shared_item(
        &mut self,
        word: &str,
        at: &Place,
        into: &mut CommonSection,
    ) -> Result<bool, Error> {
        match word {
            "options" => self.settings("options", &[Group::Resource], &mut into.options)?,
            "net" => self.settings("net", &[Group::Net], &mut into.net)?,
            "disk" => self.disk_options(&mut into.disk)?,
            "startup" => self.startup(at)?,
            "handlers" => self.handlers(into)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `handlers { }`: a command for a shell for each.
    fn handlers(&mut self, into: &mut CommonSection) -> Parsed {
        self.section(|p, name, at| {
            let Ok(event) = name.parse::<HandlerEvent>() else {
                return p.error(at, Cause::UnknownHandler(name.to_owned()));
            };
            let (command, _) = p.text_end("a command")?;
            let word = event.word();
            match into.handlers.insert(word, (command, at.clone())) {
                None => Ok(()),
                Some((_, first)) => {
                    let what = format!("handler `{word}`");
                    p.error(at, Cause::Duplicate { what, first })
                }
            }
        })
    }

    /// `disk { }` outside a connection: disk, device and peer-device options mixed, and `fencing`.
    fn disk_options(&mut self, into: &mut Settings) -> Parsed {
        const GROUPS: &[Group] = &[Group::Disk, Group::Device, Group::PeerDevice];
        self.section(|p, word, at| match word {
            "fencing" => p.setting("disk", &[Group::Net], word, at, into),
            _ => p.setting("disk", GROUPS, word, at, into),
        })
    }

    /// Start-up waits belong to boot scripts that wait for peers; nothing here does.
    fn startup(&mut self, at: &Place) -> Parsed {
        let mut any = false;
        self.section(|p, word, at| {
            any = true;
            match word {
                "wfc-timeout" | "degr-wfc-timeout" | "outdated-wfc-timeout" => {
                    p.number("number of seconds", 0, 300_000)?;
                }
                "wait-after-sb" | "stacked-timeouts" => {
                    if *p.peek()? != Token::Punct(';') {
                        p.yes_no()?;
                    }
                }
                "no-wait-after-sb" | "no-stacked-timeouts" => {}
                "become-primary-on" => {
                    while *p.peek()? != Token::Punct(';') {
                        p.text("a host name")?;
                    }
                }
                _ => return p.unknown(word, at, "startup"),
            }
            p.end()
        })?;
        if any {
            let text = "startup settings have no effect: no command waits for peers at start";
            self.config.warnings.push((at.clone(), text.to_owned()));
        }
        Ok(())
    }
}

/// Top level.
impl Parser<'_, '_, '_> {
    fn file(mut self) -> Parsed {
        loop {
            let (token, at) = self.next()?;
            let word = match token {
                Token::End => return Ok(()),
                Token::Word(word) => word,
                token => {
                    return self.unexpected(&token, &at, "global, common, resource or include");
                }
            };
            match word.as_str() {
                "global" => self.global(&at)?,
                "common" => self.common(&at)?,
                "resource" => self.resource(&at)?,
                "include" => {
                    let (pattern, at) = self.text_end("a file name")?;
                    for file in self.loading.load(&at, &pattern)? {
                        self.loading.parse_file(file, &at, self.config)?;
                    }
                }
                "skip" => self.skip()?,
                word if word.starts_with("require-drbd-module-version-") => {
                    self.text_end("a version")?;
                    let text = format!("`{word}` has no effect: there is no kernel module");
                    self.config.warnings.push((at, text));
                }
                word => self.unknown(word, &at, "top-level")?,
            }
        }
    }

    fn global(&mut self, at: &Place) -> Parsed {
        if let Some(first) = &self.config.global_at {
            let (what, first) = ("section `global`".to_owned(), first.clone());
            return self.error(at, Cause::Duplicate { what, first });
        }
        self.config.global_at = Some(at.clone());
        let (mut unused, mut timeouts) = (Vec::new(), Vec::new());
        self.section(|p, word, at| {
            match word {
                "usage-count" => match p.next()? {
                    // What `no` asks for is so: nothing is reported to anybody.
                    (Token::Word(word), _) if word == "no" => {}
                    (Token::Word(value), _) if ["yes", "ask"].contains(&value.as_str()) => {
                        unused.push(format!("`usage-count {value}`"));
                    }
                    (token, at) => return p.unexpected(&token, &at, "yes, no or ask"),
                },
                "disable-ip-verification" => p.config.disable_ip_verification = true,
                "udev-always-use-vnr" => unused.push(format!("`{word}`")),
                "minor-count" => {
                    p.number("minor count", 1, 255)?;
                    unused.push(format!("`{word}`"));
                }
                "dialog-refresh" => {
                    p.number("number of seconds", 0, 600)?;
                    unused.push(format!("`{word}`"));
                }
                "cmd-timeout-short" | "cmd-timeout-medium" | "cmd-timeout-long" => {
                    p.number("number of seconds", 0, 900)?;
                    timeouts.push(format!("`{word}`"));
                }
                _ => return p.unknown(word, at, "global"),
            }
            p.end()
        })?;
        let why = "there is no usage counter, kernel module, dialog or /dev/drbd link here";
        for (words, why) in [(unused, why), (timeouts, "use --timeout")] {
            if !words.is_empty() {
                let text = format!("without effect: {}: {why}", words.join(", "));
                self.config.warnings.push((at.clone(), text));
            }
        }
        Ok(())
    }

    fn common(&mut self, at: &Place) -> Parsed {
        if let Some(first) = self.config.common.as_ref().and_then(|c| c.at.clone()) {
            let what = "section `common`".to_owned();
            return self.error(at, Cause::Duplicate { what, first });
        }
        self.object = "common".to_owned();
        let mut common = CommonSection { at: Some(at.clone()), ..Default::default() };
        self.section(|p, word, at| match p.shared_item(word, at, &mut common)? {
            true => Ok(()),
            false => p.unknown(word, at, "common"),
        })?;
        self.config.common = Some(common);
        self.object.clear();
        Ok(())
    }

    fn resource(&mut self, at: &Place) -> Parsed {
        let (name, name_at) = self.text("a resource name")?;
        self.object = format!("resource {name}");
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"+._-".contains(&b);
        if name.is_empty() || name.len() > 127 || name == "all" || !name.bytes().all(valid) {
            let text = format!(
                "{name:?} is not a resource name; use up to 127 of 0-9 A-Z a-z + . _ - and not `all`"
            );
            return self.error(&name_at, Cause::Contradiction(text));
        }
        if let Some(first) = self.config.resources.iter().find(|r| r.name == name) {
            let (what, first) = (format!("resource name `{name}`"), first.at.clone());
            return self.error(&name_at, Cause::Duplicate { what, first });
        }
        let mut resource = ResourceSection {
            name,
            at: at.clone(),
            template: None,
            own: CommonSection::default(),
            volumes: Vec::new(),
            hosts: Vec::new(),
            connections: Vec::new(),
            meshes: Vec::new(),
        };
        self.section(|p, word, at| p.resource_item(&mut resource, word, at))?;
        self.config.resources.push(resource);
        self.object.clear();
        Ok(())
    }

    fn resource_item(&mut self, r: &mut ResourceSection, word: &str, at: &Place) -> Parsed {
        match word {
            "template-file" => {
                let common = self.template()?;
                self.once(&mut r.template, word, common, at)
            }
            "on" => {
                let host = self.host(at)?;
                r.hosts.push(host);
                Ok(())
            }
            "floating" => {
                let host = self.floating(at)?;
                r.hosts.push(host);
                Ok(())
            }
            "stacked-on-top-of" => {
                self.error(at, unsupported("a stacked resource", "configure a third node instead"))
            }
            "connection" => {
                let connection = self.connection(at)?;
                r.connections.push(connection);
                Ok(())
            }
            "connection-mesh" => {
                let mesh = self.mesh(at)?;
                r.meshes.push(mesh);
                Ok(())
            }
            "protocol" => self.setting("resource", &[Group::Net], word, at, &mut r.own.net),
            "syncer" => {
                const GROUPS: &[Group] =
                    &[Group::Disk, Group::PeerDevice, Group::Net, Group::Resource];
                self.settings("syncer", GROUPS, &mut r.own.disk)
            }
            "disk" if *self.peek()? != Token::Punct('{') => {
                self.volume_item(volume_zero(&mut r.volumes, at), word, at)
            }
            "device" | "meta-disk" | "flexible-meta-disk" => {
                self.volume_item(volume_zero(&mut r.volumes, at), word, at)
            }
            "volume" => self.volume(&mut r.volumes, at),
            _ => match self.shared_item(word, at, &mut r.own)? {
                true => Ok(()),
                false => self.unknown(word, at, "resource"),
            },
        }
    }

    /// The common section of a template file, which replaces the global one for this resource.
    fn template(&mut self) -> Result<CommonSection, Error> {
        let (name, at) = self.text_end("a file name")?;
        let mut template = Config::default();
        for file in self.loading.load(&at, &name)? {
            // A template may serve many resources: only includes are limited to one reading.
            self.loading.seen.remove(&file.name);
            self.loading.parse_file(file, &at, &mut template)?;
        }
        self.config.warnings.append(&mut template.warnings);
        match template.common {
            Some(common) if template.resources.is_empty() => Ok(common),
            _ => {
                let why = "a template holds one common section and no resource".to_owned();
                self.error(&at, Cause::Include { pattern: name, why })
            }
        }
    }
}

/// The volume that `disk`, `device` and `meta-disk` outside a volume section mean.
fn volume_zero<'v>(volumes: &'v mut Vec<VolumeSection>, at: &Place) -> &'v mut VolumeSection {
    let index = volumes.iter().position(|v| v.nr == VolumeNr(0)).unwrap_or_else(|| {
        volumes.push(VolumeSection::new(VolumeNr(0), at.clone()));
        volumes.len() - 1
    });
    &mut volumes[index]
}

/// Volumes and hosts.
impl Parser<'_, '_, '_> {
    fn volume(&mut self, volumes: &mut Vec<VolumeSection>, at: &Place) -> Parsed {
        let (nr, _) = self.number("volume number", 0, VolumeNr::MAX.0.into())?;
        let nr = VolumeNr(nr as u16);
        if let Some(first) = volumes.iter().find(|v| v.nr == nr) {
            let (what, first) = (format!("volume {nr}"), first.at.clone());
            return self.error(at, Cause::Duplicate { what, first });
        }
        let mut volume = VolumeSection::new(nr, at.clone());
        self.section(|p, word, at| p.volume_item(&mut volume, word, at))?;
        volumes.push(volume);
        Ok(())
    }

    fn volume_item(&mut self, v: &mut VolumeSection, word: &str, at: &Place) -> Parsed {
        match word {
            "device" => {
                let device = self.device()?;
                if let Some((_, _, first)) = &v.device {
                    let (what, first) = ("`device`".to_owned(), first.clone());
                    return self.error(at, Cause::Duplicate { what, first });
                }
                v.device = Some((device.0, device.1, at.clone()));
                Ok(())
            }
            "disk" if *self.peek()? == Token::Punct('{') => self.disk_options(&mut v.options),
            "disk" => {
                let path = match self.next()? {
                    (Token::Word(word), _) if word == "none" => DiskPath::None,
                    (Token::Word(path) | Token::Text(path), at) => {
                        DiskPath::Path(self.path(path, &at)?)
                    }
                    (token, at) => return self.unexpected(&token, &at, "a path or none"),
                };
                self.end()?;
                self.once(&mut v.disk, "disk", path, at)
            }
            "meta-disk" | "flexible-meta-disk" => {
                let meta_disk = self.meta_disk()?;
                self.once(&mut v.meta_disk, "meta-disk", meta_disk, at)
            }
            "tiebreaker" => {
                let (value, at) = self.yes_no()?;
                self.end()?;
                self.once(&mut v.tiebreaker, "tiebreaker", value, &at)
            }
            _ => self.unknown(word, at, "volume"),
        }
    }

    fn path(&self, path: String, at: &Place) -> Result<String, Error> {
        if path.starts_with('/') && !path.contains(['\0', '\n']) {
            return Ok(path);
        }
        let text = format!("{path:?} is not an absolute path; begin it with `/`");
        self.error(at, Cause::Contradiction(text))
    }

    /// `[drbdNAME | /dev/drbdN] [minor N];`
    fn device(&mut self) -> Result<(Option<String>, Minor), Error> {
        const MAX_MINOR: u64 = 1_048_575;
        let mut name = None;
        let mut minor = None;
        if !self.eat_word("minor")? {
            let (text, at) = self.text("a device name or `minor`")?;
            let digits = text.strip_prefix("/dev/drbd").and_then(|d| d.parse::<u32>().ok());
            minor = digits.filter(|n| u64::from(*n) <= MAX_MINOR);
            if !text.starts_with("drbd") && !text.starts_with("/dev/drbd") {
                let text =
                    format!("`{text}` is not a device name; it begins with drbd or /dev/drbd");
                return self.error(&at, Cause::Contradiction(text));
            }
            name = Some(text);
            if self.eat_word("minor")? {
                minor = Some(self.number("minor", 0, MAX_MINOR)?.0 as u32);
            } else if minor.is_none() {
                let (what, next) =
                    ("the minor".to_owned(), "write `device NAME minor N;`".to_owned());
                return self.error(&at, Cause::Missing { what, next });
            }
        } else {
            minor = Some(self.number("minor", 0, MAX_MINOR)?.0 as u32).or(minor);
        }
        self.end()?;
        Ok((name, Minor(minor.expect("every branch sets it or returns"))))
    }

    /// `internal | DEV | DEV[IDX];`
    fn meta_disk(&mut self) -> Result<MetaDisk, Error> {
        let (device, at) = self.text("internal or a path")?;
        if device == "internal" {
            self.end()?;
            return Ok(MetaDisk::Internal);
        }
        let device = self.path(device, &at)?;
        let mut index = None;
        if self.eat('[')? {
            index = Some(self.number("metadata index", 0, 255)?.0 as u32);
            self.punct(']')?;
        }
        self.end()?;
        Ok(MetaDisk::External { device, index })
    }

    fn host(&mut self, at: &Place) -> Result<HostSection, Error> {
        let mut names = vec![self.text("a host name")?.0];
        while *self.peek()? != Token::Punct('{') {
            names.push(self.text("a host name or `{`")?.0);
        }
        let mut host = host_section(names, false, at);
        self.section(|p, word, at| p.host_item(&mut host, word, at))?;
        Ok(host)
    }

    fn floating(&mut self, at: &Place) -> Result<HostSection, Error> {
        let (address, _) = self.address()?;
        let mut host = host_section(vec![address.to_string()], true, at);
        host.address = Some((address, at.clone()));
        if !self.eat(';')? {
            self.section(|p, word, at| p.host_item(&mut host, word, at))?;
        }
        Ok(host)
    }

    fn host_item(&mut self, host: &mut HostSection, word: &str, at: &Place) -> Parsed {
        match word {
            "node-id" => {
                let (id, _) = self.number("node id", 0, 31)?;
                self.end()?;
                let id = NodeId::new(id as u8).expect("the range was checked");
                self.once(&mut host.node_id, word, id, at)
            }
            "address" => {
                let (address, _) = self.address()?;
                self.end()?;
                self.once(&mut host.address, word, address, at)
            }
            "volume" => self.volume(&mut host.volumes, at),
            "device" | "disk" | "meta-disk" | "flexible-meta-disk" => {
                self.volume_item(volume_zero(&mut host.volumes, at), word, at)
            }
            "options" => self.settings("options", &[Group::Resource], &mut host.options),
            _ => self.unknown(word, at, "host"),
        }
    }
}

fn host_section(names: Vec<String>, floating: bool, at: &Place) -> HostSection {
    HostSection {
        names,
        floating,
        at: at.clone(),
        node_id: None,
        address: None,
        options: Settings::default(),
        volumes: Vec::new(),
    }
}

/// Connections.
impl Parser<'_, '_, '_> {
    fn connection(&mut self, at: &Place) -> Result<ConnectionSection, Error> {
        if *self.peek()? != Token::Punct('{') {
            // A name is only a label: the peer's name identifies a connection.
            self.text("a name or `{`")?;
        }
        let mut connection = ConnectionSection {
            at: at.clone(),
            paths: Vec::new(),
            net: Settings::default(),
            disk: Settings::default(),
            volumes: Vec::new(),
        };
        let mut direct = PathSection { at: at.clone(), ends: Vec::new() };
        self.section(|p, word, at| match word {
            "host" | "address" => p.host_ref(word, at, &mut direct),
            "path" => {
                let mut path = PathSection { at: at.clone(), ends: Vec::new() };
                p.section(|p, word, at| match word {
                    "host" | "address" => p.host_ref(word, at, &mut path),
                    _ => p.unknown(word, at, "path"),
                })?;
                p.two_ends(&path)?;
                connection.paths.push(path);
                Ok(())
            }
            "net" => p.settings("net", &[Group::Net], &mut connection.net),
            "disk" => p.settings("connection disk", &[Group::PeerDevice], &mut connection.disk),
            "volume" => {
                let (nr, _) = p.number("volume number", 0, VolumeNr::MAX.0.into())?;
                let mut settings = Settings::default();
                p.section(|p, word, at| match word {
                    "disk" => p.settings("connection disk", &[Group::PeerDevice], &mut settings),
                    _ => p.unknown(word, at, "connection volume"),
                })?;
                connection.volumes.push((VolumeNr(nr as u16), at.clone(), settings));
                Ok(())
            }
            _ => p.unknown(word, at, "connection"),
        })?;
        if !direct.ends.is_empty() || connection.paths.is_empty() {
            self.two_ends(&direct)?;
            connection.paths.insert(0, direct);
        }
        Ok(connection)
    }

    fn two_ends(&self, path: &PathSection) -> Parsed {
        if path.ends.len() == 2 {
            return Ok(());
        }
        let text = format!("a connection joins two hosts and this names {}", path.ends.len());
        self.error(&path.at, Cause::Contradiction(format!("{text}; give two `host` statements")))
    }

    fn host_ref(&mut self, word: &str, at: &Place, path: &mut PathSection) -> Parsed {
        let mut end =
            HostRef { at: at.clone(), host: None, address: None, port: None, outside: None };
        if word == "address" {
            end.address = Some(self.address()?.0);
        } else {
            end.host = Some(self.text("a host name")?.0);
            if self.eat_word("address")? {
                end.address = Some(self.address()?.0);
            } else if self.eat_word("port")? {
                end.port = Some(self.number("port", 1, 65_535)?.0 as u16);
            }
        }
        if self.eat_word("via")? {
            match self.next()? {
                (Token::Word(word), _) if word == "outside-address" => {
                    end.outside = Some(self.address()?.0);
                }
                (Token::Word(word), at) if word == "proxy" => {
                    return self
                        .error(&at, unsupported("DRBD Proxy", "connect the hosts directly"));
                }
                (token, at) => return self.unexpected(&token, &at, "outside-address"),
            }
        }
        self.end()?;
        path.ends.push(end);
        Ok(())
    }

    fn mesh(&mut self, at: &Place) -> Result<MeshSection, Error> {
        let mut mesh = MeshSection { at: at.clone(), hosts: Vec::new(), net: Settings::default() };
        self.section(|p, word, at| match word {
            "hosts" => {
                while !p.eat(';')? {
                    let host = p.text("a host name or `;`")?;
                    mesh.hosts.push(host);
                }
                Ok(())
            }
            "net" => p.settings("net", &[Group::Net], &mut mesh.net),
            _ => p.unknown(word, at, "connection-mesh"),
        })?;
        Ok(mesh)
    }
}
