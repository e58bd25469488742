//! Long lists: what was shown of a resource definition is kept, as bytes, until something of it
//! changes.
//!
//! A list of everything is what clients ask for most. Made anew each time it would take seconds for
//! tens of thousands of resources, with the state locked. So it is kept as a whole until something
//! changes; then only what has changed is made anew, and the rest is copied. What is kept of each
//! definition is a part of the last whole, so that nothing is in memory twice.
//!
//! What is kept may only depend on what [`cluster::plan::affected`] names for a definition, on what its
//! agents report of it, and on which nodes are connected: the controller calls [`Shown::forget`] for
//! these, while nobody reads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// What was shown.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// By resource definition.
    pieces: BTreeMap<ResourceName, [Option<Piece>; 3]>,
    /// Of all of them one after the other, if none has changed since.
    whole: [Option<Bytes>; 3],
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of the resource definition has changed. Called while the state is locked for writing.
    pub fn forget(&self, name: &ResourceName) {
        let mut kept = self.lock();
        kept.pieces.remove(name);
        kept.whole = Default::default();
    }

    /// Everything may have changed.
    pub fn forget_all(&self) {
        *self.lock() = Kept::default();
    }

    /// Resource definitions of which nothing is kept.
    pub(crate) fn missing<'a>(
        &self,
        view: View,
        names: impl Iterator<Item = &'a ResourceName>,
    ) -> Vec<ResourceName> {
        let kept = self.lock();
        if kept.whole[view as usize].is_some() {
            return Vec::new();
        }
        let has = |name: &&ResourceName| {
            kept.pieces.get(*name).is_some_and(|views| views[view as usize].is_some())
        };
        names.filter(|name| !has(name)).cloned().collect()
    }

    /// What is shown of all resource definitions, each with a comma in front. `pieces` has those of
    /// each, in their order, made by [`Shown::piece`] if need be. Called while the state is locked for
    /// reading.
    pub(crate) fn whole<'a>(
        &self,
        view: View,
        pieces: impl Iterator<Item = (&'a ResourceName, Piece)>,
    ) -> Bytes {
        if let Some(whole) = &self.lock().whole[view as usize] {
            return whole.clone();
        }
        let pieces: Vec<_> = pieces.collect();
        let mut text = Vec::with_capacity(pieces.iter().map(|(_, piece)| piece.text.len()).sum());
        pieces.iter().for_each(|(_, piece)| text.extend_from_slice(&piece.text));
        let whole = Bytes::from(text);
        let mut kept = self.lock();
        let mut at = 0;
        for (name, mut piece) in pieces {
            let len = piece.text.len();
            piece.text = whole.slice(at..at + len);
            at += len;
            if let Some(views) = kept.pieces.get_mut(name) {
                views[view as usize] = Some(piece);
            }
        }
        kept.whole[view as usize] = Some(whole.clone());
        whole
    }

    /// What is shown of a resource definition; made if it is not kept. Called while the state is locked
    /// for reading: so it is not out of date when it is kept.
    pub(crate) fn piece(
        &self,
        view: View,
        name: &ResourceName,
        make: impl FnOnce() -> Vec<Value>,
    ) -> Piece {
        let kept = self.lock();
        if let Some(piece) = kept.pieces.get(name).and_then(|views| views[view as usize].clone()) {
            return piece;
        }
        // Others need not wait for that.
        drop(kept);
        let piece = Piece::of(&make());
        let mut kept = self.lock();
        kept.pieces.entry(name.clone()).or_default()[view as usize] = Some(piece.clone());
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

    #[test]
    fn a_whole_is_made_again_of_what_is_kept_when_something_has_changed() {
        let shown = Shown::default();
        let names = [name("one"), name("two"), name("three")];
        let mut made = 0;
        let mut whole = |numbers: [u64; 3]| {
            let pieces = names.iter().zip(numbers).map(|(name, number)| {
                let piece = shown.piece(View::Resources, name, || {
                    made += 1;
                    (0..number).map(|_| json!(number)).collect()
                });
                (name, piece)
            });
            let whole = shown.whole(View::Resources, pieces);
            (String::from_utf8(whole.to_vec()).unwrap(), made)
        };
        assert_eq!(whole([1, 0, 3]), (",1,3,3,3".to_owned(), 3));
        assert_eq!(whole([4, 4, 4]), (",1,3,3,3".to_owned(), 3), "nothing has changed");
        shown.forget(&name("two"));
        assert_eq!(whole([4, 2, 4]), (",1,2,2,3,3,3".to_owned(), 4));
        let piece = shown.piece(View::Resources, &name("two"), || panic!("it is kept"));
        assert_eq!((piece.all(), piece.one(1)), (",2,2".into(), ",2".into()));
        shown.forget_all();
        assert_eq!(whole([0, 0, 1]), (",1".to_owned(), 7));
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
