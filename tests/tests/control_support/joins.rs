//! Tokens by which nodes join, without a controller behind them: each is good once.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;

use cluster::name::NodeName;
use controller::link::authority::{Denied, Joins};

/// The digests of those that were used.
#[derive(Default)]
pub struct Once(Mutex<BTreeSet<String>>);

type Taken<'a> = Pin<Box<dyn Future<Output = Result<(), Denied>> + Send + 'a>>;

impl Joins for Once {
    fn take<'a>(&'a self, _: &'a NodeName, digest: String) -> Taken<'a> {
        let taken = match self.0.lock().unwrap().insert(digest) {
            true => Ok(()),
            false => Err(Denied::Token("it was used; make a new one".to_owned())),
        };
        Box::pin(std::future::ready(taken))
    }
}
