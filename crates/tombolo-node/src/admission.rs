//! Whether this node does what a peer asks for, decided in one place, before anything of it is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::control::{Borrower, Request};
use crate::node::{Node, Peer};

/// Whether a request is for memory of this node to be held, until it is released.
fn takes_memory(request: &Request) -> bool {
    match request {
        Request::Lend { .. } | Request::Create { .. } | Request::Open { .. } => true,
        Request::Introduce { .. }
        | Request::Release { .. }
        | Request::Status { .. }
        | Request::Carry(_)
        | Request::Publish { .. }
        | Request::Find { .. }
        | Request::List { .. }
        | Request::Delete { .. }
        | Request::PathToken
        | Request::BePath { .. } => false,
    }
}

impl Node {
    /// This node is about to end: from now on only who has some of its memory already gets more.
    pub fn lend_to_nobody_new(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Who has memory of this node.
    pub fn borrowers(&self) -> Vec<Borrower> {
        self.peers().iter().filter_map(|peer| self.borrower(peer)).collect()
    }

    /// Why a request is refused that came by this link, if it is.
    pub(crate) fn refusal(&self, by: &Arc<Peer>, request: &Request) -> Option<String> {
        let is_ending = self.is_ending.load(Ordering::Relaxed);
        if is_ending && takes_memory(request) && self.borrower(by.whole()).is_none() {
            return Some("this node is about to end and lends to nobody new".into());
        }
        None
    }
}
