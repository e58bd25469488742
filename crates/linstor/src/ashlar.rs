//! Calls of our own, below `/v1/ashlar`: tokens of the API and of nodes, and the audit log.

use std::sync::Arc;

use axum::Extension;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use cluster::name::NodeName;
use cluster::objects::Millis;
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::access::{self, Access, RecordFilter, Role};
use crate::answer::{Answer, Changed, Entry, Found, Read, Told, json as answer_json};
use crate::ask::{Asked, Body, Path};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::controller::Failure;
use crate::routes::{Routes, Says};

/// Hours for which a token by which a node joins is good unless something else is said, and at most.
const JOIN_HOURS: u32 = 24;
const JOIN_HOURS_MAX: u32 = 8760;
/// Records of an answer without a limit of its own.
const RECORDS: usize = 1000;

/// Who keeps tokens and the audit log.
pub type Keeper = Extension<Arc<dyn Access>>;

pub fn routes() -> Routes {
    Routes::new()
        .admin(Method::GET, "/v1/ashlar/tokens", tokens)
        .says(Says::Json)
        .at_once()
        .admin(Method::POST, "/v1/ashlar/tokens", create_token)
        .says(Says::Json)
        .at_once()
        .admin(Method::DELETE, "/v1/ashlar/tokens/{name}", revoke_token)
        .at_once()
        .admin(Method::POST, "/v1/ashlar/join-tokens", create_join_token)
        .says(Says::Json)
        .at_once()
        .admin(Method::GET, "/v1/ashlar/audit", audit)
        .asks(&["who", "since", "to", "limit"])
        .says(Says::Json)
        .at_once()
}

/// Asks for what takes the time of a file access.
pub async fn ask<T: Send + 'static>(
    keeper: Keeper,
    question: impl FnOnce(&dyn Access) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Answer> {
    let asked = tokio::task::spawn_blocking(move || question(&*keeper.0)).await;
    asked.unwrap_or(Err(Failure::Stopping)).map_err(Answer::from)
}

async fn tokens(keeper: Keeper) -> Read {
    Ok(Found(json!(ask(keeper, |access| access.tokens()).await?)))
}

#[derive(Deserialize, JsonSchema)]
struct NewToken {
    name: String,
    role: String,
    /// Milliseconds since 1970; never if there are none.
    expires: Option<u64>,
}

/// The only answer that has the secret.
async fn create_token(keeper: Keeper, Body(body): Body<NewToken>) -> Result<Response, Answer> {
    let NewToken { name, role, expires } = body;
    let role = Role::from_word(&role).ok_or_else(|| {
        Refusal::new(Code::InvalidRequest, format!("`{role}` is not a role"))
            .cause("there are read, user and admin")
            .correction("use one of these")
    })?;
    let expires = expires.map(Millis);
    let new = access::NewToken {
        name: Some(name.clone()),
        role,
        expires,
        description: String::new(),
        address: None,
    };
    let (_, secret) = ask(keeper, move |access| access.create_token(new)).await?;
    let shown = json!({ "name": name, "role": role, "expires": expires, "token": secret });
    let mut response = answer_json(StatusCode::CREATED, &shown);
    let said = code(Severity::Success, Operation::Create, Kind::Controller, number::CREATED);
    let objects = [("Token".to_owned(), name)].into();
    response.extensions_mut().insert(Told { codes: vec![said], objects });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn revoke_token(keeper: Keeper, Path(name): Path<String>) -> Changed {
    let of = name.clone();
    let gone = ask(keeper, move |access| access.revoke_token(&of)).await?;
    let (severity, number, text) = match gone {
        true => (Severity::Success, number::DELETED, format!("token {name} is revoked")),
        false => (Severity::Warning, number::ABSENT, format!("there is no token {name}")),
    };
    let code = code(severity, Operation::Delete, Kind::Controller, number);
    Ok(Entry::new(code, text).about("Token", name).into())
}

#[derive(Deserialize, JsonSchema)]
struct NewJoinToken {
    /// Where nodes reach the controllers: HOST:PORT, or several with commas between.
    address: String,
    /// The only node that may use it; any if there is none.
    node: Option<String>,
    /// For so long it can be used; 24 if nothing is said.
    hours: Option<u32>,
}

/// The only answer that has the token.
async fn create_join_token(
    keeper: Keeper,
    Body(body): Body<NewJoinToken>,
) -> Result<Response, Answer> {
    let NewJoinToken { address, node, hours } = body;
    let node = node.map(|name| NodeName::new(&name)).transpose()?;
    let hours = hours.unwrap_or(JOIN_HOURS);
    if !(1..=JOIN_HOURS_MAX).contains(&hours) {
        let text = format!("a token is not good for {hours} hours");
        return Err(Refusal::new(Code::InvalidRequest, text)
            .cause(format!("it is for 1 to {JOIN_HOURS_MAX}"))
            .correction("give another number")
            .into());
    }
    let token = keeper.0.create_join_token(node.clone(), &address, hours).await?;
    let shown = json!({ "address": address, "node": node, "hours": hours, "token": token });
    let mut response = answer_json(StatusCode::CREATED, &shown);
    let said = code(Severity::Success, Operation::Create, Kind::Node, number::CREATED);
    let objects = node.map(|node| ("Node".to_owned(), node.to_string())).into_iter().collect();
    response.extensions_mut().insert(Told { codes: vec![said], objects });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn audit(keeper: Keeper, asked: Asked) -> Read {
    let limit = asked.number("limit").filter(|limit| *limit > 0);
    let filter = RecordFilter {
        who: asked.all("who").into_iter().map(str::to_owned).collect(),
        since: asked.number("since").map(Millis),
        to: asked.number("to").map(Millis),
        limit: limit.map_or(RECORDS, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    Ok(Found(json!(keeper.0.records(filter).await.map_err(Answer::from)?)))
}
