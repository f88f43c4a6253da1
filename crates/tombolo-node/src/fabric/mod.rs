//! The fabric: links to other nodes, and which nodes are at their other ends.
//!
//! It owns the table of links with the engine that sends by them ([`table`]), the state of each link
//! ([`connection`]), the nodes at the other ends ([`neighbour`]) with their identities and numbers, what is
//! permitted to them ([`admission`]), and what nodes say to each other ([`messages`]). It joins wanted nodes and
//! keeps them joined ([`neighbourhood`], [`joining`], [`wanted`]), says when one does not answer ([`silence`]), and has the
//! form in which a node tells how it is ([`status`]).
//!
//! It calls no other room. What it needs of the node that drives its links stands in [`link_driver`].

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
