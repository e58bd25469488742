//! Help texts, and `xml-help`, which LINSTOR reads at its start (drbdsetup contract §2.2).

use std::fmt::Write as _;

use vocab::options::{Kind, OptionSpec, Unit};

use super::table::{Argument, COMMANDS, Command, NAME, Own, SET_DEFAULTS};

/// All commands.
pub(super) fn overview() -> String {
    let mut text = String::from(
        "usage: drbdsetup COMMAND ARGUMENTS... [OPTIONS]\n\nThis drbdsetup talks to the engine of \
         Ashlar, at $ASHLAR_SOCKET or --socket.\n\nCommands:\n",
    );
    for command in COMMANDS {
        let _ = writeln!(text, "  {:<24} {}", command.name, command.summary);
    }
    text
}

/// One command.
pub(super) fn usage(command: &Command) -> String {
    let mut text = format!("usage: drbdsetup {}", command.name);
    for argument in command.arguments {
        let _ = match argument {
            Argument::ResourceOrAll => write!(text, " [{{resource|all}}]"),
            Argument::MaybeResourceMinor => write!(text, " [resource] {{minor}}"),
            Argument::Command => write!(text, " [command]"),
            other => write!(text, " {{{}}}", other.word()),
        };
    }
    let _ = writeln!(text, " [options]\n\n{}\n", command.summary);
    if command.resets() {
        let _ = writeln!(text, "  --set-defaults");
    }
    for spec in command.group.into_iter().flat_map(|g| g.options()) {
        let _ = writeln!(text, "  --{}={}", spec.name, spec.kind);
    }
    for own in command.own {
        let value = if own.kind == Kind::Bool { "yes|no".to_owned() } else { own.kind.to_string() };
        let short = own.short.map(|c| format!(", -{c}")).unwrap_or_default();
        let _ = match own.bare {
            Some(_) => writeln!(text, "  --{}[={value}]{short}", own.name),
            None => writeln!(text, "  --{}={value}{short}", own.name),
        };
    }
    text
}

/// One command as XML.
pub(super) fn xml(command: &Command) -> String {
    let mut text = format!(
        "<command name=\"{}\">\n\t<summary>{}</summary>\n",
        command.name,
        escape(command.summary)
    );
    for argument in command.arguments {
        let word = argument.word();
        let _ = match argument {
            Argument::ResourceOrAll => writeln!(
                text,
                "\t<group>\n\t\t<argument>{word}</argument>\n\t\t<argument>all</argument>\n\t</group>"
            ),
            _ => writeln!(text, "\t<argument>{word}</argument>"),
        };
    }
    if command.resets() {
        let _ = writeln!(text, "\t<option name=\"{}\" type=\"flag\"></option>", SET_DEFAULTS.name);
    }
    for spec in command.group.into_iter().flat_map(|g| g.options()) {
        option(&mut text, spec);
    }
    for own in command.own {
        own_option(&mut text, own);
    }
    text.push_str("</command>\n");
    text
}

fn option(text: &mut String, spec: &OptionSpec) {
    let name = spec.name;
    match spec.kind {
        Kind::Bool => {
            let _ = writeln!(
                text,
                "\t<option name=\"{name}\" type=\"boolean\">\n\t\t<default>{}</default>\n\t</option>",
                spec.default
            );
        }
        Kind::Text { .. } | Kind::Secret { .. } => {
            let _ = writeln!(text, "\t<option name=\"{name}\" type=\"string\"></option>");
        }
        Kind::Choice(words) => {
            let _ = writeln!(text, "\t<option name=\"{name}\" type=\"handler\">");
            for word in words {
                let _ = writeln!(text, "\t\t<handler>{word}</handler>");
            }
            text.push_str("\t</option>\n");
        }
        Kind::Number { min, max, unit } => {
            let range = (min.to_string(), max.to_string());
            numeric(text, name, "numeric", range, spec.default, unit);
            text.push_str("\t</option>\n");
        }
        // A word that is a number stands for "not set" and is the other end of the range.
        Kind::NumberOrWord { min, max, unit, words: [word] } if word.parse::<i64>().is_ok() => {
            let least = if word.starts_with('-') { (*word).to_owned() } else { min.to_string() };
            numeric(text, name, "numeric", (least, max.to_string()), spec.default, unit);
            text.push_str("\t</option>\n");
        }
        Kind::NumberOrWord { min, max, unit, words } => {
            let range = (min.to_string(), max.to_string());
            numeric(text, name, "numeric-or-symbol", range, spec.default, unit);
            for word in words {
                let _ = writeln!(text, "\t\t<symbol>{word}</symbol>");
            }
            text.push_str("\t</option>\n");
        }
    }
}

/// The beginning of an option that is a number.
fn numeric(
    text: &mut String,
    name: &str,
    kind: &str,
    (min, max): (String, String),
    default: &str,
    unit: Unit,
) {
    let (prefix, word) = match unit {
        Unit::KibPerSecond => ("k", Some("bytes/second")),
        Unit::Sectors => ("s", Some("bytes")),
        unit => ("1", unit_word(unit)),
    };
    let default = default.trim_end_matches(['k', 's']);
    let _ = writeln!(
        text,
        "\t<option name=\"{name}\" type=\"{kind}\">\n\t\t<min>{min}</min>\n\t\t<max>{max}</max>\n\t\t\
         <default>{default}</default>\n\t\t<unit_prefix>{prefix}</unit_prefix>"
    );
    if let Some(word) = word {
        let _ = writeln!(text, "\t\t<unit>{word}</unit>");
    }
}

/// A unit as `show` and `xml-help` name it.
pub(super) fn unit_word(unit: Unit) -> Option<&'static str> {
    match unit {
        Unit::One | Unit::Pages => None,
        Unit::Bytes | Unit::Sectors => Some("bytes"),
        Unit::KibPerSecond => Some("bytes/second"),
        Unit::DeciSeconds => Some("1/10 seconds"),
        Unit::Seconds => Some("seconds"),
        Unit::MilliSeconds => Some("milliseconds"),
    }
}

fn own_option(text: &mut String, own: &Own) {
    if own.name == NAME.name {
        let _ = writeln!(text, "\t<option name=\"{}\" type=\"string\"></option>", own.name);
        return;
    }
    let default = match own.kind {
        Kind::Bool => "no",
        Kind::Number { .. } => "0",
        Kind::NumberOrWord { words, .. } | Kind::Choice(words) => words[0],
        Kind::Text { .. } | Kind::Secret { .. } => "",
    };
    let row = OptionSpec {
        name: own.name,
        kind: own.kind,
        default,
        honoured: vocab::options::Honoured::Yes,
        help: "",
    };
    option(text, &row);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
