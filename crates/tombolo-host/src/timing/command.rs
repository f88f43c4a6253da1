//! Spans of time of the command line.
