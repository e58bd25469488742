//! LINSTOR's own calls about tokens (control plane §9). They are the tokens that `/v1/ashlar/tokens` has, by
//! their numbers; what is made here may do everything, as LINSTOR's tokens may.

use std::net::IpAddr;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use cluster::command::Command;
use cluster::objects::Millis;
use cluster::props::{PropsEdit, TOKENS_REQUIRED, is_true};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use vocab::Utc;

use crate::access::{NewToken, Role, Token, TokenEdit};
use crate::answer::{
    Answer, Changed, Entry, Found, Read, Told, json as json_answer, without_empty,
};
use crate::ashlar::{Keeper, ask};
use crate::ask::{App, Body, Path, unsupported};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::routes::{Routes, Says};

/// What the first token is for, if nothing is said.
const FIRST: &str = "init-client";
/// Longest description, in bytes.
const DESCRIPTION: usize = 1024;

pub fn routes() -> Routes {
    const TOKEN: &str = "/v1/controller/auth/token";
    const ONE: &str = "/v1/controller/auth/token/{id}";
    Routes::new()
        .admin(Method::POST, "/v1/controller/auth/initialize-token-auth", initialize)
        .at_once()
        .admin(Method::GET, TOKEN, list)
        .says(Says::Json)
        .at_once()
        .admin(Method::POST, TOKEN, create)
        .at_once()
        .admin(Method::PUT, ONE, modify)
        .at_once()
        .admin(Method::DELETE, ONE, revoke)
        .at_once()
}

fn refused(text: impl Into<String>, cause: &str, next: &str) -> Refusal {
    Refusal::new(Code::InvalidRequest, text.into()).cause(cause).correction(next)
}

fn description(text: Option<String>) -> Result<Option<String>, Refusal> {
    match text {
        Some(text) if text.len() > DESCRIPTION || text.chars().any(char::is_control) => {
            let cause = "it has at most 1,024 bytes, on one line";
            Err(refused("the description of the token can not be kept", cause, "shorten it"))
        }
        text => Ok(text),
    }
}

/// An address; an empty text is none.
fn address(text: &str) -> Result<Option<IpAddr>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr = text.parse().map_err(|_| {
        let cause = "`ip_filter` is one address, of version 4 or 6";
        refused(format!("`{text}` is not an address"), cause, "give one, or none")
    })?;
    Ok(Some(address.to_canonical()))
}

/// A point in time, as JSON's schema has it (`2027-01-31T00:00:00Z`).
fn moment(text: &str) -> Result<Millis, Refusal> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok();
    let since = parsed.and_then(|time| u64::try_from(time.unix_timestamp()).ok());
    since.and_then(|seconds| seconds.checked_mul(1000)).map(Millis).ok_or_else(|| {
        let cause = "`expires_at` is a time like 2027-01-31T00:00:00Z";
        refused(format!("`{text}` is not a time"), cause, "give one, or none")
    })
}

fn shown(token: &Token) -> Value {
    let time = |at: Millis| format!("{}Z", Utc(std::time::Duration::from_millis(at.0)));
    let description = match token.description.is_empty() {
        true => &token.name,
        false => &token.description,
    };
    without_empty(json!({
        "id": token.id,
        "created_at": time(token.created),
        "expires_at": token.expires.map(time),
        "description": description,
        "ip_filter": token.address.map(|address| address.to_string()),
        "is_active": !token.off,
        "is_user_token": true,
    }))
}

async fn list(keeper: Keeper) -> Read {
    let mut tokens = ask(keeper, |access| access.tokens()).await?;
    tokens.sort_by_key(|token| token.id);
    let list: Vec<Value> = tokens.iter().map(shown).collect();
    Ok(Found(json!({ "count": list.len(), "list": list })))
}

/// The answer with the secret of a token; it is in no other, and not in the audit log.
fn told(token: &Token, secret: String, said: String) -> Response {
    let code = code(Severity::Success, Operation::Create, Kind::Controller, number::CREATED);
    let about = |entry: Entry| entry.about("Token", &token.name);
    let entry = about(Entry::new(code, said).about("id", token.id).about("token", secret));
    let mut response = json_answer(StatusCode::CREATED, &[entry]);
    let objects = about(Entry::default()).obj_refs;
    response.extensions_mut().insert(Told { codes: vec![code], objects });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[derive(Deserialize, JsonSchema)]
struct CreateToken {
    description: String,
    expires_at: Option<String>,
    ip_filter: Option<String>,
}

async fn create(keeper: Keeper, Body(body): Body<CreateToken>) -> Result<Response, Answer> {
    let expires = body.expires_at.filter(|text| !text.is_empty());
    let new = NewToken {
        name: None,
        role: Role::Admin,
        expires: expires.map(|text| moment(&text)).transpose()?,
        description: description(Some(body.description))?.unwrap_or_default(),
        address: address(body.ip_filter.as_deref().unwrap_or_default())?,
    };
    let (token, secret) = ask(keeper, move |access| access.create_token(new)).await?;
    let said = format!("token {} is made, number {}", token.name, token.id);
    Ok(told(&token, secret, said))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Initialize {
    description: Option<String>,
    only_satellites: bool,
    no_https: bool,
}

/// The first token of LINSTOR's kind, and from then on programs of this host need one, too.
async fn initialize(
    State(app): State<App>,
    keeper: Keeper,
    Body(body): Body<Initialize>,
) -> Result<Response, Answer> {
    let why = "agents have certificates, not tokens";
    unsupported(&[("only_satellites", body.only_satellites, why)])?;
    if !body.no_https && app.settings().https.is_none() {
        let cause =
            "this controller does not serve by HTTPS, and tokens would be sent in the clear";
        let next = "start it with --rest-tls, or give `no_https`: then it is for this host only";
        return Err(refused("tokens are not required yet", cause, next).into());
    }
    let on = |value: Option<&String>| value.is_some_and(|value| is_true(value));
    if on(app.state().model.controller().props.get(TOKENS_REQUIRED)) {
        let cause = "the property Auth/TokenAuthenticationEnabled says so already";
        let next = "make another token by /v1/controller/auth/token";
        return Err(refused("tokens are required already", cause, next).into());
    }
    let text = description(body.description)?.filter(|text| !text.is_empty());
    let new = NewToken {
        name: None,
        role: Role::Admin,
        expires: None,
        description: text.unwrap_or_else(|| FIRST.to_owned()),
        address: None,
    };
    let Extension(access) = &keeper;
    let access = access.clone();
    let (token, secret) = ask(keeper, move |access| access.create_token(new)).await?;
    let set = [(TOKENS_REQUIRED.to_owned(), "true".to_owned())].into();
    let props = PropsEdit { set, ..PropsEdit::default() };
    if let Err(failure) = app.carry_out(Command::ModifyController { props }).await {
        // A token that nobody is told is of no use.
        let name = token.name.clone();
        let _ = tokio::task::spawn_blocking(move || access.revoke_token(&name)).await;
        return Err(failure.into());
    }
    Ok(told(&token, secret, "every call needs a token from now on".to_owned()))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct ModifyToken {
    description: Option<String>,
    ip_filter: Option<String>,
    is_active: Option<bool>,
}

async fn modify(
    keeper: Keeper,
    Path(id): Path<u64>,
    Body(body): Body<ModifyToken>,
) -> Result<Response, Answer> {
    let edit = TokenEdit {
        description: description(body.description)?,
        address: body.ip_filter.map(|text| address(&text)).transpose()?,
        off: body.is_active.map(|active| !active),
    };
    match ask(keeper, move |access| access.modify_token(id, edit)).await? {
        true => Ok(done(Operation::Modify, number::MODIFIED, id, "is modified").into_response()),
        false => {
            let (text, cause) =
                (format!("there is no token {id}"), "it was revoked, or never made");
            Err(Answer::refused(Kind::Controller, number::NO_SUCH, &text, cause, "list them"))
        }
    }
}

async fn revoke(keeper: Keeper, Path(id): Path<u64>) -> Changed {
    let gone = ask(keeper, move |access| {
        let found = access.tokens()?.into_iter().find(|token| token.id == id);
        found.map_or(Ok(false), |token| access.revoke_token(&token.name))
    });
    if gone.await? {
        return Ok(done(Operation::Delete, number::DELETED, id, "is revoked"));
    }
    let code = code(Severity::Warning, Operation::Delete, Kind::Controller, number::ABSENT);
    Ok(Entry::new(code, format!("there is no token {id}")).into())
}

fn done(operation: Operation, number: u16, id: u64, what: &str) -> Answer {
    let code = code(Severity::Success, operation, Kind::Controller, number);
    Entry::new(code, format!("token {id} {what}")).about("id", id).into()
}
