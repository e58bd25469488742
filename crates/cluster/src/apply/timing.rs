//! Options of connections that are wrong only together: DRBD wants `timeout` below `connect-int` and
//! `ping-int`. Each may come from another object, so whoever changes one is refused if a connection
//! would have a set of them that its agents refuse.

use vocab::options::{NetOptions, Options};

use crate::change::Key;
use crate::command::Command;
use crate::edit::Edit;
use crate::objects::Props;
use crate::props::chain::{self, Chain};
use crate::props::{PropsEdit, spaces};
use crate::refusal::{Code, Refusal};

const OPTIONS: [&str; 3] = ["timeout", "connect-int", "ping-int"];

fn key(option: &str) -> String {
    format!("{}{option}", spaces::NET.prefix)
}

/// True if a command may change one of the options.
pub fn touches(command: &Command) -> bool {
    let edit = |edit: &PropsEdit| OPTIONS.iter().any(|option| edit.touches(&key(option)));
    let new = |props: &Props| OPTIONS.iter().any(|option| props.contains_key(&key(option)));
    match command {
        Command::ModifyController { props }
        | Command::ModifyGroup { props, .. }
        | Command::ModifyDefinition { props, .. }
        | Command::ModifyNodeConnection { props, .. }
        | Command::ModifyResourceConnection { props, .. } => edit(props),
        Command::CreateGroup { props, .. } => new(props),
        Command::CreateDefinition { definition } | Command::Spawn { definition, .. } => {
            new(&definition.props)
        }
        _ => false,
    }
}

/// Refuses options that no agent would take, of connections that are and of those that may come.
pub fn check(edit: &Edit<'_>) -> Result<(), Refusal> {
    let model = edit.model as &crate::model::Model;
    check_one(&chain::controller(model), Key::Controller)?;
    for group in model.groups() {
        check_one(&chain::group(model, group), Key::Group(group.name.clone()))?;
    }
    for definition in model.definitions() {
        let about = || Key::Definition(definition.name.clone());
        check_one(&chain::definition(model, definition), about())?;
        let nodes: Vec<_> = model.resources_of(&definition.name).map(|r| &r.node).collect();
        for (index, a) in nodes.iter().enumerate() {
            for b in &nodes[index + 1..] {
                let chain = chain::connection(model, &definition.name, definition, a, b);
                check_one(&chain, about())?;
            }
        }
    }
    Ok(())
}

fn check_one(chain: &Chain<'_>, about: Key) -> Result<(), Refusal> {
    let mut net = NetOptions::default();
    for option in OPTIONS {
        if let Some(value) = chain.get(&key(option)) {
            // Each was checked by itself when it was set.
            let _ = net.set(option, value);
        }
    }
    net.check().map_err(|conflict| {
        Refusal::new(Code::InvalidProperty, format!("connections of {about} can not be configured"))
            .cause(conflict.to_string())
            .correction(format!("set both below {} in one call", spaces::NET.prefix))
            .about(about)
    })
}
