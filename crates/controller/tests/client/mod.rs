//! Clients as they are on PyPI, for tests here and for those with real nodes.

#![allow(dead_code, reason = "not every test uses every client")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What there is.
const PACKAGES: &str = include_str!("packages.txt");

/// A Python with python-linstor, in the version that is the oracle.
pub fn python() -> Result<PathBuf, String> {
    environment("python-linstor")
}

/// A Python with packages from PyPI, in a folder of that name, which later runs find again.
pub fn environment(name: &str) -> Result<PathBuf, String> {
    let line = PACKAGES.lines().find(|line| line.split(' ').next() == Some(name));
    let mut words = line.expect("it is in packages.txt").split(' ').skip(1);
    let module = words.next().expect("each line has a module");
    let packages: Vec<&str> = words.collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = folder.join("bin/python");
    if says(Command::new(&python).args(["-c", &format!("import {module}")])).is_ok() {
        return Ok(python);
    }
    says(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .map_err(|error| format!("no environment of Python can be made: {error}"))?;
    let pip = ["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "10"];
    says(Command::new(&python).args(pip).args(&packages))
        .map_err(|error| format!("{packages:?} can not be installed: {error}"))?;
    Ok(python)
}

fn says(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(output),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
