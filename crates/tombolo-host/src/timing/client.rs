//! Spans of time of the client library.
