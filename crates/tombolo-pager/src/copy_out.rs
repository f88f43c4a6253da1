//! Copies pages that leave a program, from its staging area or from where they are mapped.

use tombolo_core::pager::{Area, PAGE_BYTES};
use tombolo_host::process::{self, SPANS_MAX, Span};

use tombolo_core::pager::batch::{At, Event, Victim};

use crate::pager::Pager;
use crate::space::{Agent, Space};

/// The ranges of one vectored copy.
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
pub(crate) fn read_moved(
    pager: &Pager,
    (space, area): (&Space, Option<Area>),
    agent: &Agent,
    victims: &mut [Victim],
) {
    let staging = space.staging_address(area, 0);
    let mut vector = Vector::default();
    for victim in victims.iter() {
        if let At::Moved(index) = victim.at {
            vector.push(pager.copy_of(victim), staging + u64::from(index) * PAGE_BYTES);
        }
    }
    if vector.local.is_empty() {
        return;
    }
    let pages = vector.pages();
    // This is the fastest way. It fails when an agent that is ending has released its memory. When the agent has ended, its
    // number may have been another process's during the copy.
    if vector.copy(agent.pid) == pages && !agent.has_ended() {
        return;
    }
    for victim in victims {
        let At::Moved(index) = victim.at else { continue };
        if !read_page(space, staging + u64::from(index) * PAGE_BYTES, pager.copy_of(victim)) {
            // Most likely the process has ended, and no thread will ask for the page.
            victim.happened(Event::NotRead);
        }
    }
}

/// Copies the kept victims out of the program. A page that cannot be read stays in the program.
pub(crate) fn read_kept(pager: &Pager, space: &Space, agent: &Agent, victims: &mut [Victim]) {
    for victim in victims.iter_mut().filter(|victim| victim.at == At::Kept && !victim.is_stored()) {
        let (mut vector, copy) = (Vector::default(), pager.copy_of(victim));
        let address = Space::address(victim.page);
        vector.push(copy, address);
        // The process itself may not read the page (`PROT_NONE`), so it is read by the file of the memory.
        if vector.copy(agent.pid) == 0 && !read_page(space, address, copy) {
            victim.happened(Event::NotKept);
        }
    }
    if agent.has_ended() {
        // The agent's number may have been another process's during the copy.
        let kept = victims.iter_mut().filter(|victim| victim.at == At::Kept);
        kept.for_each(|victim| victim.happened(Event::NotKept));
    }
}

/// Reads a page of a space by the file of its memory, even if the space's processes have ended or executed other programs.
fn read_page(space: &Space, address: u64, copy: u64) -> bool {
    let local = Span { address: copy, length: PAGE_BYTES };
    // SAFETY: the local range belongs to the victim, as in `Vector::copy`.
    space.memory().is_some_and(|memory| unsafe { memory.read_to(local, address) }.is_ok())
}
