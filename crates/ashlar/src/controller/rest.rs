//! Calls to a controller's REST API for `ashlar controller token` and `audit`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

/// Bytes of an answer at most: an audit log as long as it gets.
const ANSWER: u64 = 256 << 20;

/// Which controller is asked, and as whom.
#[derive(clap::Args, Clone, Debug)]
pub struct Asked {
    /// The controller
    #[arg(
        long,
        value_name = "URL",
        env = "ASHLAR_CONTROLLERS",
        default_value = "http://127.0.0.1:3370"
    )]
    controllers: String,
    /// File with the token that says who asks [default: the environment's ASHLAR_TOKEN, or none]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificate of the authority that vouches for the controller; https needs it
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// The REST API of one controller.
pub struct Rest {
    agent: Agent,
    url: String,
    token: Option<String>,
}

impl Rest {
    pub fn new(asked: &Asked, timeout: Duration) -> anyhow::Result<Rest> {
        let url = asked.controllers.trim_end_matches('/').to_owned();
        if url.contains(',') {
            bail!("{url}: tokens and audit logs are each controller's own; name one of them");
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            bail!(
                "{url} is not the URL of a controller; give http://HOST:PORT or https://HOST:PORT"
            );
        }
        let roots = match &asked.ca {
            Some(path) => certificates(path)?,
            None if url.starts_with("https:") => {
                bail!("nobody vouches for the certificate of {url}; name its authority with --ca")
            }
            None => Vec::new(),
        };
        let token = token(asked.token_file.as_deref())?;
        if token.is_some() && url.starts_with("http:") && !is_here(&url) {
            bail!("{url} would be sent the token for everybody to read; use its https address");
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
        let tls = tls.root_certs(RootCerts::Specific(Arc::new(roots))).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_global(Some(timeout))
            .tls_config(tls)
            .build();
        Ok(Rest { agent: config.new_agent(), url, token })
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.answer(self.authorized(self.agent.get(format!("{}{path}", self.url))).call())
    }

    pub fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.answer(self.authorized(self.agent.delete(format!("{}{path}", self.url))).call())
    }

    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.authorized(self.agent.post(format!("{}{path}", self.url)));
        self.answer(request.header("Content-Type", "application/json").send(body.to_string()))
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn answer(&self, answer: Result<Response<Body>, ureq::Error>) -> anyhow::Result<Value> {
        let url = &self.url;
        let mut answer = answer.with_context(|| {
            format!("no answer from {url}; does the controller run, and listen there?")
        })?;
        let status = answer.status().as_u16();
        if (300..400).contains(&status) {
            bail!("{url} wants to be called by https; give that address, and --ca");
        }
        let body = answer.body_mut().with_config().limit(ANSWER).read_to_vec();
        let body = body.with_context(|| format!("the answer of {url} was cut off"))?;
        let value: Value = serde_json::from_slice(&body)
            .with_context(|| format!("{url} is no controller: HTTP {status} without JSON"))?;
        if (200..300).contains(&status) {
            return Ok(value);
        }
        let part = |name: &str| value[0][name].as_str().unwrap_or_default().to_owned();
        bail!("{}: {}; {}", part("message"), part("cause"), part("correction"))
    }
}

fn token(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("the token in {} can not be read", path.display()))?,
        None => match std::env::var("ASHLAR_TOKEN") {
            Ok(text) if !text.trim().is_empty() => text,
            _ => return Ok(None),
        },
    };
    let text = text.trim();
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()) {
        bail!("what was given as a token is none: it is one line of letters and digits");
    }
    Ok(Some(text.to_owned()))
}

fn is_here(url: &str) -> bool {
    let Ok(uri) = url.parse::<ureq::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        if let PemItem::Certificate(certificate) =
            item.with_context(|| path.display().to_string())?
        {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => bail!("{} has no certificate; name a PEM file that has one", path.display()),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_in_the_clear_to_this_host_only() {
        for (url, here) in [
            ("http://127.0.0.1:3370", true),
            ("http://[::1]:3370", true),
            ("http://localhost:3370", true),
            ("http://10.0.0.1:3370", false),
            ("http://localhost.example:3370", false),
        ] {
            assert_eq!(is_here(url), here, "{url}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let asked = |url: &str| Asked {
            controllers: url.to_owned(),
            token_file: Some(file.clone()),
            ca: None,
        };
        let new = |url: &str| Rest::new(&asked(url), Duration::from_secs(1));
        assert!(new("http://127.0.0.1:1").is_ok());
        for url in ["http://10.0.0.1:1", "https://10.0.0.1:1", "10.0.0.1", "http://a:1,http://b:1"]
        {
            assert!(new(url).is_err(), "{url}");
        }
    }
}
