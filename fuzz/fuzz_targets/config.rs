//! Arbitrary text as a configuration (`codec::config`): read, and resolved for a host.
//!
//! Nothing may panic or go on for long. A host is looked for by name and by address.
#![no_main]

use codec::config::{Host, SourceFile, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let main = SourceFile { name: "main".into(), text: text.into() };
    // An include finds the text itself once more, under another name.
    let mut left = 3;
    let mut loader = |_: &str, _: &str| {
        left -= 1;
        let again = SourceFile { name: format!("included-{left}"), text: text.into() };
        Ok(if left >= 0 { vec![again] } else { Vec::new() })
    };
    let Ok(config) = parse(main, &mut loader) else { return };
    for name in ["alpha", "nobody"] {
        let host = Host { name, is_local: &|address| address.is_loopback() };
        drop(config.resolve(&host));
    }
});
