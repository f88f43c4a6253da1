//! Spans of time of links between nodes.
