//! The calls as a table: one line for each, beside the function that answers it. The router, the check
//! of roles (`access`), the metrics and the document of the API (`openapi`) are all made from it.
//!
//! ```text
//! Routes::new()
//!     .get("/v1/nodes", list).asks(&["nodes", "props", "limit", "offset"])
//!     .admin(Method::POST, "/v1/nodes", create)
//! ```

use std::any::type_name;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use schemars::SchemaGenerator;
use vocab::Histogram;

use crate::access::Role;
use crate::ask::App;
use crate::openapi::{Extracts, Taken};

/// The part of the query by which any list is cut.
pub const PAGE: &[&str] = &["limit", "offset"];

/// A call.
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path, with names in braces.
    pub path: String,
    /// Who may make it.
    pub role: Role,
    /// What it takes of the query.
    pub query: &'static [&'static str],
    /// What else it takes.
    pub takes: fn(&mut SchemaGenerator) -> Taken,
    /// It can be asked for a dry run.
    pub foretold: bool,
    /// What it answers if it is not refused.
    pub says: Says,
    /// The function that answers it, with its module.
    pub handler: &'static str,
    times: Mutex<Histogram>,
}

impl Route {
    /// It was made, and took so long.
    pub fn took(&self, time: Duration) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).record(time, 1);
    }

    /// How long it took, each time since the start.
    pub fn times(&self) -> Histogram {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A kind of answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// What was asked for, as JSON.
    Json,
    /// Entries, as for every change.
    Entries,
    /// Text.
    Text,
    /// A file of bytes.
    File,
    /// Events, as they happen.
    Events,
    /// Nothing but the status.
    Nothing,
}

/// Calls, and the router that leads to them.
#[derive(Default)]
pub struct Routes {
    router: Router<App>,
    all: Vec<Route>,
}

impl Routes {
    /// None.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// A call that looks.
    pub fn get<H, T>(self, path: &str, handler: H) -> Routes
    where
        H: Handler<T, App>,
        T: Extracts + 'static,
    {
        self.call(Method::GET, path, Role::Read, handler)
    }

    /// A call that changes what users may change.
    pub fn user<H, T>(self, method: Method, path: &str, handler: H) -> Routes
    where
        H: Handler<T, App>,
        T: Extracts + 'static,
    {
        self.call(method, path, Role::User, handler)
    }

    /// A call for administrators.
    pub fn admin<H, T>(self, method: Method, path: &str, handler: H) -> Routes
    where
        H: Handler<T, App>,
        T: Extracts + 'static,
    {
        self.call(method, path, Role::Admin, handler)
    }

    /// Any call.
    pub fn call<H, T>(mut self, method: Method, path: &str, role: Role, handler: H) -> Routes
    where
        H: Handler<T, App>,
        T: Extracts + 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).expect("the methods are HTTP's own");
        self.router = self.router.route(path, on(filter, handler));
        let says = if role == Role::Read { Says::Json } else { Says::Entries };
        self.all.push(Route {
            method,
            path: path.to_owned(),
            role,
            query: &[],
            takes: T::taken,
            foretold: role != Role::Read,
            says,
            handler: type_name::<H>(),
            times: Mutex::default(),
        });
        self
    }

    /// What the last call takes of the query.
    pub fn asks(mut self, query: &'static [&'static str]) -> Routes {
        if let Some(last) = self.all.last_mut() {
            last.query = query;
        }
        self
    }

    /// The last call can not be asked for a dry run: it does what it does at once, by itself.
    pub fn at_once(mut self) -> Routes {
        if let Some(last) = self.all.last_mut() {
            last.foretold = false;
        }
        self
    }

    /// What the last call answers.
    pub fn says(mut self, says: Says) -> Routes {
        if let Some(last) = self.all.last_mut() {
            last.says = says;
        }
        self
    }

    /// With others.
    pub fn merge(mut self, others: impl Into<Routes>) -> Routes {
        let others = others.into();
        self.router = self.router.merge(others.router);
        self.all.extend(others.all);
        self
    }

    /// The router, and the calls by path and method.
    pub fn into_parts(self) -> (Router<App>, Table) {
        let by_path = self.all.into_iter().map(|route| {
            let key = (route.path.clone(), route.method.to_string());
            (key, route)
        });
        (self.router, Table(by_path.collect()))
    }
}

impl From<Router<App>> for Routes {
    /// Calls that are in no table: looking is for all, changing for administrators.
    fn from(router: Router<App>) -> Routes {
        Routes { router, all: Vec::new() }
    }
}

/// The calls by path and method.
pub struct Table(BTreeMap<(String, String), Route>);

impl Table {
    /// The call of a path as it is in the table.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        // A HEAD is answered by the call that has the body.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(path.to_owned(), method.to_string()))
    }

    /// Every call.
    pub fn all(&self) -> impl Iterator<Item = &Route> {
        self.0.values()
    }
}
