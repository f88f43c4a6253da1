//! Spans of time of the node.
