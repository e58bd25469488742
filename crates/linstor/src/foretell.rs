//! Dry runs: any call that changes something can be asked, by `dry_run=true` in its query, for what it
//! would lead to. It is answered with the steps, what would be copied and the copies of the data at each
//! step, and changes nothing; or it is refused as it would be.
//!
//! That a call is only to be foretold is known to everything that happens for it, so that no call
//! has to pass it on: [`Call::run`](crate::answer::Call::run) asks here.

use axum::extract::Query;
use axum::http::Uri;
use cluster::dry_run::{Event, Prediction, What};
use serde_json::{Value, json};

use crate::answer::{Answer, Entry};
use crate::code;
use crate::placement;

tokio::task_local! {
    static ASKED: ();
}

/// True if the call that is being answered is only to be foretold.
pub fn is_asked() -> bool {
    ASKED.try_with(|()| ()).is_ok()
}

/// Has everything that happens for a call know that it is only to be foretold.
pub async fn only<F: Future>(call: F) -> F::Output {
    ASKED.scope((), call).await
}

/// Whether a query asks for a dry run.
///
/// # Errors
/// If that can not be told for sure: then nothing must happen.
pub fn asks(uri: &Uri) -> Result<bool, Answer> {
    let unclear = |cause: String| -> Answer {
        let text = "it is not clear whether this is to be a dry run";
        Entry::new(code::UNREADABLE, text).because(cause, "say `dry_run=true`, or nothing").into()
    };
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| unclear(error.body_text()))?;
    let mut asked = false;
    for (name, value) in pairs {
        match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
            "dryrun" if value.eq_ignore_ascii_case("true") => asked = true,
            "dryrun" if value.eq_ignore_ascii_case("false") => {}
            "dryrun" => return Err(unclear(format!("`{name}` is `{value}`"))),
            _ => {}
        }
    }
    Ok(asked)
}

/// A prediction in a sentence, its steps as lines, and all of it as data.
pub fn show(prediction: &Prediction) -> (String, String, Value) {
    let copied = prediction.moved().0 / 1024;
    let text = match prediction.events.len() {
        0 => "dry run: nothing would have to be done on any node".to_owned(),
        steps => format!("dry run: {steps} steps would follow, and {copied} KiB at most be copied"),
    };
    let placed = &prediction.applied.placed;
    let lines = placed.iter().flat_map(placement::lines);
    let lines = lines.chain(prediction.events.iter().map(ToString::to_string));
    let waits =
        prediction.waits.iter().map(|(name, wait)| format!("{name} waits: {}", wait.reason));
    let lines: Vec<String> = lines.chain(waits).collect();
    let waits = prediction.waits.iter().map(|(name, wait)| {
        let node = wait.node.as_ref().map(|node| node.as_str());
        json!({ "resource_name": name.as_str(), "node_name": node, "reason": wait.reason })
    });
    let data = json!({
        "steps": prediction.events.iter().map(step).collect::<Vec<_>>(),
        "copied_kib": copied,
        "waits": waits.collect::<Vec<_>>(),
        "placement": placed.iter().flat_map(placement::show).collect::<Vec<_>>(),
    });
    (text, lines.join("\n"), data)
}

fn step(event: &Event) -> Value {
    let (what, copied) = match &event.what {
        What::Step(action) => (action.to_string(), 0),
        What::Resync { volume, bytes } => (format!("resync volume {volume}"), bytes.0 / 1024),
    };
    json!({
        "resource_name": event.resource.as_str(),
        "node_name": event.node.as_str(),
        "what": what,
        "copied_kib": copied,
        "copies_before": event.copies_before,
        "copies_after": event.copies_after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_may_ask_for_a_dry_run_is_never_taken_for_one_that_does_not() {
        for (query, expected) in [
            ("", Some(false)),
            ("?limit=1", Some(false)),
            ("?dry_run=false", Some(false)),
            ("?dry_run=true", Some(true)),
            ("?DryRun=True&a=b", Some(true)),
            ("?dry-run=true", Some(true)),
            ("?dry_run", None),
            ("?dry_run=1", None),
            ("?dry_run=yes", None),
        ] {
            let uri: Uri = format!("/v1/nodes{query}").parse().unwrap();
            assert_eq!(asks(&uri).ok(), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn what_happens_for_a_call_knows_and_nothing_else() {
        assert!(!is_asked());
        only(async { assert!(is_asked()) }).await;
        assert!(!is_asked());
    }
}
