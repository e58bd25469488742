//! `cargo xtask compat`: the option tables of COMPAT.md, from the tables of `vocab::options`.

use anyhow::{Context, Result, bail};
use vocab::options::{
    DeviceOptions, DiskOptions, Honoured, NetOptions, OptionSpec, Options, PeerDeviceOptions,
    ResourceOptions,
};

use crate::workspace;

const HELP: &str = "\
cargo xtask compat
    Writes the option tables of COMPAT.md anew from the tables of vocab::options.";

const BEGIN: &str = "<!-- written by `cargo xtask compat` from vocab::options -->";
const END: &str = "<!-- end of what `cargo xtask compat` writes -->";

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    if !arguments.is_empty() {
        println!("{HELP}");
        return if arguments[0] == "--help" { Ok(()) } else { bail!("compat takes no arguments") };
    }
    let path = workspace::root().join("COMPAT.md");
    let text = std::fs::read_to_string(&path).context("COMPAT.md")?;
    std::fs::write(&path, renewed(&text)?).context("COMPAT.md")
}

/// `text` with the part between the markers written anew.
///
/// # Errors
/// If a marker is missing.
pub fn renewed(text: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("no line `{BEGIN}`"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no line `{END}`"))?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", tables()))
}

fn tables() -> String {
    let groups = [
        group::<ResourceOptions>(),
        group::<NetOptions>(),
        group::<DiskOptions>(),
        group::<PeerDeviceOptions>(),
        group::<DeviceOptions>(),
    ];
    groups.concat()
}

fn group<T: Options>() -> String {
    let mut text = format!("\n### `{}`\n\nEvery value of ", T::GROUP);
    let (whole, limited): (Vec<&OptionSpec>, Vec<&OptionSpec>) =
        T::TABLE.iter().partition(|spec| spec.honoured == Honoured::Yes);
    let names: Vec<String> = whole.iter().map(|spec| format!("`{}`", spec.name)).collect();
    text += &names.join(", ");
    text += ".\n\n";
    if limited.is_empty() {
        return text;
    }
    text += "| refused beyond | accepted | why |\n|---|---|---|\n";
    for spec in limited {
        text += &row(spec);
    }
    text + "\n"
}

fn row(spec: &OptionSpec) -> String {
    let word = |word: &str| if word.is_empty() { "empty".to_owned() } else { format!("`{word}`") };
    let (accepted, why) = match spec.honoured {
        Honoured::Yes => (String::new(), ""),
        Honoured::DefaultOnly(why) => (word(spec.default), why),
        Honoured::Only(values, why) => {
            (values.iter().map(|value| word(value)).collect::<Vec<_>>().join(", "), why)
        }
    };
    format!("| `{}` | {accepted} | {why} |\n", spec.name)
}

#[cfg(test)]
mod tests {
    //! Only what stands between the markers changes.
    use super::*;

    #[test]
    fn the_rest_of_the_document_stays() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = renewed(&text).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("\nafter\n") && !new.contains("old"));
        assert!(new.contains("allow-two-primaries"));
        assert_eq!(renewed(&new).unwrap(), new);
        assert!(renewed("no markers").is_err());
    }
}
