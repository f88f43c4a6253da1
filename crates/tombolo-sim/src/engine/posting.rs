//! Transfers are drawn, posted and watched.

use super::{BASE, Bench, HERE, OTHER, PROGRAMS, WORDS, WORDS_BASE, Watched, domain_of, domain_of_program};
use tombolo_core::rdma::{Direction, PeerId, PostError, Transfer, TransferId};
use tombolo_wire::{AtomicOperation, Domain, Notification};

impl Bench {
    /// A fresh range of a node's memory, at some alignment; `None` if used up.
    pub fn allocate(&mut self, node: usize, size: usize) -> Option<u64> {
        let start = self.unused[node] + self.random.below(600) as usize;
        // Ranges of programs' own memory begin at different addresses.
        let end = start + size.max(usize::from(self.hosts.is_some()));
        (end + 64 <= self.memory[node].len()).then(|| {
            self.unused[node] = end;
            BASE + start as u64
        })
    }

    /// Post a transfer between fresh ranges and watch it.
    pub fn post(
        &mut self,
        poster: usize,
        direction: Direction,
        size_bytes: u32,
        with_notification: bool,
        class: Option<tombolo_core::rdma::Class>,
    ) -> Option<Result<TransferId, PostError>> {
        let (from, to) = match direction {
            Direction::Write | Direction::Atomic(_) => (poster, 1 - poster),
            Direction::Read => (1 - poster, poster),
        };
        let domains = [self.some_domain(poster), self.some_domain(1 - poster)];
        let ends = [(from, domains[from ^ poster]), (to, domains[to ^ poster])];
        let spec = self.spec(ends, size_bytes, with_notification)?;
        let spec = Transfer { direction, own_domain: domains[0], domain: domains[1], class, ..spec };
        Some(self.post_to(OTHER, (poster, from, to), domains[0], spec))
    }

    /// Post a transfer between two programs of a node and watch it: for the one that has the source, or the other one.
    pub fn post_here(
        &mut self,
        node: usize,
        size_bytes: u32,
        with_notification: bool,
    ) -> Option<Result<TransferId, PostError>> {
        let domains = [self.some_domain(node), self.some_domain(node)];
        let spec = self.spec(domains.map(|domain| (node, domain)), size_bytes, with_notification)?;
        let spec = Transfer { own_domain: domains[0], domain: domains[1], ..spec };
        let asker = self.random.among(&domains);
        Some(self.post_to(HERE, (node, node, node), asker, spec))
    }

    /// A domain of a node.
    pub(super) fn some_domain(&mut self, node: usize) -> Domain {
        match self.hosts {
            Some(_) => domain_of_program(node, self.random.below(PROGRAMS as u64) as usize),
            None => domain_of(node),
        }
    }

    /// A transfer between fresh ranges of these domains, which are registered there.
    pub(super) fn spec(
        &mut self,
        [from, to]: [(usize, Domain); 2],
        size_bytes: u32,
        with_notification: bool,
    ) -> Option<Transfer> {
        let source_address = self.allocate(from.0, size_bytes as usize)?;
        let destination_address = self.allocate(to.0, size_bytes as usize)?;
        let notification = match with_notification {
            true => Some(Notification {
                address: self.allocate(to.0, 16)?,
                first: self.random.next(),
                last: self.random.next(),
            }),
            false => None,
        };
        Some(Transfer {
            direction: Direction::Write,
            domain: to.1,
            own_domain: from.1,
            source_address,
            destination_address,
            size_bytes,
            notification,
            class: None,
            user: self.watched.len() as u64,
        })
    }

    /// Whether there are destinations of writes that have failed, to be written again.
    pub fn has_failed_writes(&self) -> bool {
        !self.failed_writes.is_empty()
    }

    /// Post a write of other bytes to a part of the destination of one that has failed, and watch it. Nothing of the earlier one
    /// comes there after its end. `None`: there is no memory left for the source.
    pub fn post_again(&mut self) -> Option<Result<TransferId, PostError>> {
        let which = self.failed_writes.swap_remove(self.random.index(self.failed_writes.len()));
        let (poster, before) = (self.watched[which].poster, self.watched[which].spec);
        let start = self.random.below(u64::from(before.size_bytes));
        let size_bytes = self.random.range(1, u64::from(before.size_bytes) - start) as u32;
        let source_address = self.allocate(poster, size_bytes as usize)?;
        let spec = Transfer {
            source_address,
            destination_address: before.destination_address + start,
            size_bytes,
            notification: None,
            user: self.watched.len() as u64,
            ..before
        };
        let posted = match self.engines[poster].post(self.now(), OTHER, spec) {
            Ok(posted) => posted,
            Err(error) => {
                self.failed_writes.push(which);
                return Some(Err(error));
            }
        };
        let at = (source_address - BASE) as usize;
        let source = self.memory[poster][at..at + size_bytes as usize].to_vec();
        self.register(poster, spec.own_domain, source_address, size_bytes);
        let (asker, stays) = (spec.own_domain, false);
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
        Some(Ok(posted))
    }

    pub(super) fn post_to(
        &mut self,
        peer: PeerId,
        (poster, from, to): (usize, usize, usize),
        asker: Domain,
        spec: Transfer,
    ) -> Result<TransferId, PostError> {
        let posted = self.engines[poster].post(self.now(), peer, spec)?;
        let domain_at = |node| match (peer == HERE, node == poster) {
            (false, true) => spec.own_domain,
            (false, false) => spec.domain,
            (true, _) => panic!("both are here"),
        };
        let (at_source, at_target) =
            if peer == HERE { (spec.own_domain, spec.domain) } else { (domain_at(from), domain_at(to)) };
        let size = spec.size_bytes as usize;
        let at = (spec.source_address - BASE) as usize;
        let source = self.memory[from][at..at + size].to_vec();
        self.register(from, at_source, spec.source_address, spec.size_bytes);
        self.register(to, at_target, spec.destination_address, spec.size_bytes);
        if let Some(words) = spec.notification {
            self.register(to, at_target, words.address, 16);
            self.by_notification.insert((to, words.address), self.watched.len());
        }
        let stays = peer == HERE;
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
        Ok(posted)
    }

    /// An atomic operation on a word of a node, for a program of another one, or the same.
    pub(super) fn some_atomic(&mut self, poster: usize, at: usize) -> Transfer {
        let word = self.random.below(WORDS as u64);
        let operation = if self.random.per_million(500_000) {
            AtomicOperation::FetchAdd(self.random.next())
        } else {
            // Often what is there by then, often not.
            let compare = self.words[at][word as usize];
            AtomicOperation::CompareSwap { compare, swap: self.random.next() }
        };
        Transfer {
            direction: Direction::Atomic(operation),
            domain: domain_of(at),
            own_domain: self.some_domain(poster),
            source_address: 0,
            destination_address: WORDS_BASE + 8 * word,
            size_bytes: 8,
            notification: None,
            class: None,
            user: self.watched.len() as u64,
        }
    }

    pub(super) fn watch_atomic(&mut self, poster: usize, stays: bool, spec: Transfer) {
        let (asker, source) = (spec.own_domain, Vec::new());
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
    }

    /// Post an atomic operation on a word of the other node and watch it.
    pub fn post_atomic(&mut self, poster: usize) -> Result<TransferId, PostError> {
        let spec = self.some_atomic(poster, 1 - poster);
        let posted = self.engines[poster].post(self.now(), OTHER, spec)?;
        self.watch_atomic(poster, false, spec);
        Ok(posted)
    }

    /// Begin an atomic operation on a word of a program of the same node, and watch it.
    pub fn begin_atomic_here(&mut self, node: usize) {
        let spec = self.some_atomic(node, node);
        self.watch_atomic(node, true, spec);
        self.change_here(node, self.watched.len() - 1);
    }
}
