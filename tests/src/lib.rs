//! End-to-end tests live in `tests/`; helpers shared by them live here.
