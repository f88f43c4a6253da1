//! The fabric: links to other nodes, and which nodes are at their other ends.
//!
//! It owns the table of links with the engine that sends by them ([`table`]), the state of each link ([`connection`]),
//! the nodes at the other ends ([`neighbour`]) with their identities and numbers, the decision whether a request is
//! permitted ([`admission`]), and the messages between nodes ([`messages`]). It joins wanted nodes and keeps them
//! joined ([`neighbourhood`], [`joining`], [`wanted`]), decides when to tell that one is silent ([`silence`]), and
//! defines the form of a node's status ([`status`]).
//!
//! It calls no other room. [`link_driver`] is the trait by which it uses the node that drives its links.

pub(crate) mod admission;
pub(crate) mod answered;
pub(crate) mod arrangements;
pub(crate) mod carriers;
pub(crate) mod connection;
pub(crate) mod joining;
pub(crate) mod label;
pub(crate) mod life;
pub(crate) mod link_driver;
pub(crate) mod messages;
pub(crate) mod neighbour;
pub(crate) mod neighbourhood;
pub(crate) mod numbers;
pub(crate) mod paths;
pub(crate) mod silence;
pub(crate) mod status;
pub(crate) mod stirred;
pub(crate) mod table;
pub(crate) mod third_party;
pub(crate) mod wanted;
