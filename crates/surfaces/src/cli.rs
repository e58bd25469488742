//! The commands of `ashlar`.
//!
//! - `args`: the command line; `objects`: how it names things; `load`: the configuration files.
//! - `client`: the control socket; `run`: what each command asks for; `each`: of several objects one
//!   after the other; `top`: the live view.
//! - `secret`: passphrases, from a terminal or the standard input.
//! - `doctor`: measurements, one step after the other, and what follows from them.
//! - [`cluster`]: the commands about a control plane, over its REST API.
//! - Pure, and tested against recorded output: [`status`], [`events`], [`why`] turn the engine's
//!   answers into text, [`plan`] turns configuration and state into commands.

mod args;
mod client;
pub mod cluster;
mod doctor;
mod each;
mod error;
pub mod events;
mod load;
mod objects;
pub mod plan;
mod run;
mod secret;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;
mod top;
pub mod why;

pub use args::{Color, Command, Common, DEFAULT_EXPORT_SOCKET, DEFAULT_SOCKET, DoctorArgs};
pub use client::Client;
pub use error::{EXIT_STATUS, Error};
pub use objects::Object;
pub use run::run;
pub use top::Sort;
