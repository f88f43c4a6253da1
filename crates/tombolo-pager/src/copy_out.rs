//! Copying pages that leave a program: out of its staging area, or from where they are.

use tombolo_core::pager::PAGE_BYTES;
use tombolo_host::process::{self, SPANS_MAX, Span};

use crate::batch::{Victim, Way};
use crate::space::{Agent, Space};

/// Ranges for one vectored copy.
#[derive(Default)]
struct Vector {
    local: Vec<Span>,
    remote: Vec<Span>,
}

impl Vector {
    fn push(&mut self, local: u64, remote: u64) {
        for (spans, address) in [(&mut self.local, local), (&mut self.remote, remote)] {
            match spans.last_mut() {
                Some(last) if last.address + last.length == address => last.length += PAGE_BYTES,
                _ => spans.push(Span { address, length: PAGE_BYTES }),
            }
        }
        debug_assert!(self.local.len().max(self.remote.len()) <= SPANS_MAX);
    }

    fn pages(&self) -> u64 {
        self.local.iter().map(|span| span.length / PAGE_BYTES).sum()
    }

    /// Copies; returns whole pages copied.
    fn copy(&self, pid: u32) -> u64 {
        // SAFETY: the local ranges are far windows or staging memory, which no
        // reference points into, and whose slots belong to the victims.
        unsafe { process::read_memory(pid, &self.local, &self.remote) }.unwrap_or(0) as u64 / PAGE_BYTES
    }
}

/// Copies the moved victims out of the staging area.
pub(crate) fn read_moved(space: &Space, agent: &Agent, victims: &mut [Victim]) {
    let staging = space.staging_address(0);
    let mut vector = Vector::default();
    for victim in victims.iter() {
        if let Way::Moved(index) = victim.way {
            vector.push(victim.copy, staging + u64::from(index) * PAGE_BYTES);
        }
    }
    if vector.local.is_empty() {
        return;
    }
    let pages = vector.pages();
    // This is fastest. An agent that is ending has given its memory up already; and once it has ended, its number may have been
    // another process's.
    if vector.copy(agent.pid) == pages && !agent.has_ended() {
        return;
    }
    for victim in victims {
        let Way::Moved(index) = victim.way else { continue };
        if !read_page(space, staging + u64::from(index) * PAGE_BYTES, victim.copy) {
            // Most likely the process has ended, and nobody will ask for the page.
            victim.way = Way::Unread;
        }
    }
}

/// Copies the kept victims out of the program. One that cannot be read stays.
pub(crate) fn read_kept(space: &Space, agent: &Agent, victims: &mut [Victim]) {
    for victim in victims.iter_mut().filter(|victim| victim.way == Way::Keep && !victim.clean) {
        let mut vector = Vector::default();
        let address = Space::address(victim.page);
        vector.push(victim.copy, address);
        // Its process may not read it itself (`PROT_NONE`): then by the file.
        if vector.copy(agent.pid) == 0 && !read_page(space, address, victim.copy) {
            victim.way = Way::Stay;
        }
    }
    if agent.has_ended() {
        // The number may have been another process's.
        victims.iter_mut().filter(|victim| victim.way == Way::Keep).for_each(|victim| victim.way = Way::Stay);
    }
}

/// Reads a page of a space, whatever has become of its processes.
fn read_page(space: &Space, address: u64, copy: u64) -> bool {
    let local = Span { address: copy, length: PAGE_BYTES };
    // SAFETY: the local range belongs to the victim, as in `Vector::copy`.
    space.memory().is_some_and(|memory| unsafe { memory.read_to(local, address) }.is_ok())
}
