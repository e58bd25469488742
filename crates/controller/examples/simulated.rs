//! A controller with simulated agents, to try clients by hand:
//! `cargo run -p controller --example simulated -- 127.0.0.1:3370 DIRECTORY [NODE…]`.
#![allow(clippy::unwrap_used, reason = "it is for trials")]

#[path = "../tests/simulated/mod.rs"]
mod simulated;

use controller::daemon::{Options, run};

fn main() -> Result<(), controller::daemon::Error> {
    let mut words = std::env::args().skip(1);
    let listen = words.next().unwrap_or_else(|| "127.0.0.1:3370".to_owned()).parse().unwrap();
    let data = words.next().expect("name a directory for the store").into();
    let nodes: Vec<String> = words.collect();
    let (agents, orders) = simulated::Simulated::new();
    let options = Options { data, listen };
    run(&options, agents.clone(), move |handle| {
        tokio::spawn(agents.clone().run(handle.clone(), orders));
        tokio::spawn(async move {
            for name in nodes {
                agents.connect(&handle, &name).await;
            }
        });
    })
}
