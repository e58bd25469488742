//! Long lists: what was shown of a resource definition is kept, as bytes, until something of it
//! changes.
//!
//! A list of everything is what clients ask for most. Made anew each time it would take seconds for
//! tens of thousands of resources, with the state locked; of what is kept it is put together without
//! copying, and only what has changed since is made anew.
//!
//! What is kept may only depend on what [`cluster::plan::affected`] names for a definition, on what its
//! agents report of it, and on which nodes are connected: the controller calls [`Shown::forget`] for
//! these, while nobody reads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cluster::name::ResourceName;
use futures_util::stream;
use serde_json::Value;

/// What is shown of a resource definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    /// Its resources, with their volumes.
    Resources,
    /// Itself.
    Definition,
    /// Itself with its volume definitions.
    WithVolumes,
}

/// What was shown, by resource definition.
#[derive(Debug, Default)]
pub struct Shown(Mutex<BTreeMap<ResourceName, [Option<Piece>; 3]>>);

impl Shown {
    /// Something of the resource definition has changed. Called while the state is locked for writing.
    pub fn forget(&self, name: &ResourceName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Everything may have changed.
    pub fn forget_all(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What is shown of a resource definition; made if it is not kept. Called while the state is locked
    /// for reading: so it is not out of date when it is kept.
    pub(crate) fn piece(
        &self,
        view: View,
        name: &ResourceName,
        make: impl FnOnce() -> Vec<Value>,
    ) -> Piece {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = kept.get(name).and_then(|views| views[view as usize].clone()) {
            return piece;
        }
        // Others need not wait for that.
        drop(kept);
        let piece = Piece::of(&make());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entry(name.clone()).or_default()[view as usize] = Some(piece.clone());
        piece
    }
}

/// Some objects of a list, each with a comma in front.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    text: Bytes,
    ends: Box<[usize]>,
}

impl Piece {
    fn of(objects: &[Value]) -> Piece {
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(objects.len());
        for object in objects {
            text.push(b',');
            // Writing JSON to memory does not fail: its keys are strings.
            let _ = serde_json::to_writer(&mut text, object);
            ends.push(text.len());
        }
        text.shrink_to_fit();
        Piece { text: text.into(), ends: ends.into() }
    }

    /// All of its objects.
    pub fn all(&self) -> Bytes {
        self.text.clone()
    }

    /// One of its objects.
    pub fn one(&self, index: usize) -> Bytes {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        self.text.slice(begin..self.ends[index])
    }
}

/// A list that is sent as it is put together.
#[derive(Default)]
pub(crate) struct List(Vec<Bytes>);

impl List {
    /// Adds objects of a piece.
    pub fn push(&mut self, objects: Bytes) {
        if !objects.is_empty() {
            self.0.push(objects);
        }
    }
}

impl IntoResponse for List {
    fn into_response(self) -> Response {
        let List(mut chunks) = self;
        if let Some(first) = chunks.first_mut() {
            // The bracket takes the place of the first comma.
            *first = first.slice(1..);
        }
        chunks.insert(0, Bytes::from_static(b"["));
        chunks.push(Bytes::from_static(b"]"));
        let length: usize = chunks.iter().map(Bytes::len).sum();
        let chunks = stream::iter(chunks.into_iter().map(Ok::<Bytes, Infallible>));
        let headers = [
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::CONTENT_LENGTH, length.to_string()),
        ];
        (headers, Body::from_stream(chunks)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    #[test]
    fn a_piece_is_made_once_until_it_is_forgotten() {
        let shown = Shown::default();
        let mut made = 0;
        let mut look = |view, of: &str, number: u64| {
            let piece = shown.piece(view, &name(of), || {
                made += 1;
                vec![json!(number), json!([number])]
            });
            (piece.all(), piece.one(0), piece.one(1))
        };
        let first = look(View::Resources, "one", 1);
        assert_eq!(first, (",1,[1]".into(), ",1".into(), ",[1]".into()));
        assert_eq!(look(View::Resources, "ONE", 2), first, "names match in any case");
        assert_eq!(look(View::Definition, "one", 3).1, ",3", "views are apart");
        assert_eq!(look(View::Resources, "two", 4).1, ",4");
        shown.forget(&name("one"));
        assert_eq!(look(View::Resources, "one", 5).1, ",5");
        assert_eq!(look(View::Definition, "one", 6).1, ",6");
        assert_eq!(look(View::Resources, "two", 7).1, ",4");
        shown.forget_all();
        assert_eq!(look(View::Resources, "two", 8).1, ",8");
        assert_eq!(made, 6);
    }

    #[tokio::test]
    async fn a_list_is_json_whether_it_has_something_or_not() {
        let body = async |chunks: &[&'static str]| {
            let mut list = List::default();
            chunks.iter().for_each(|chunk| list.push(Bytes::from_static(chunk.as_bytes())));
            let response = list.into_response();
            let length = response.headers()[header::CONTENT_LENGTH].to_str().unwrap().to_owned();
            let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
            assert_eq!(length, body.len().to_string());
            body
        };
        assert_eq!(body(&[]).await, "[]");
        assert_eq!(body(&["", ",1"]).await, "[1]");
        assert_eq!(body(&[",1,2", "", ",3"]).await, "[1,2,3]");
    }
}
