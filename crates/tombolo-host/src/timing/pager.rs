//! Spans of time of the pager.
