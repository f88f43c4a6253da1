//! Links between two nodes: shared memory and UDP, one trait and one conformance suite.
