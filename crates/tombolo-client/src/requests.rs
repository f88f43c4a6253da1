//! The numbers of requests to the node, and what becomes of an answer that came after the program
//! had given up waiting for it.
//!
//! An answer may grant something: memory, a registration, a mailbox. When nobody waits for it any
//! more, it is given back, or kept for the next request that asks for the same. No I/O is done here.
//!
//! ```text
//!  begin ──► number ──► sent ──► answered in time: end
//!                        │
//!                        └─────► give_up ──► answered late ──► kept, or given back by a request of its own
//! ```

use std::collections::{HashMap, HashSet, VecDeque};

use tombolo_channel::{Reply, Request, Who};
use tombolo_host::passed::PassedDescriptor;

use crate::memory::Registered;

/// The most requests without an answer that no thread waits for any more. A node that owes this many is asked
/// nothing more.
pub(crate) const MAX_GIVEN_UP: usize = 64;

/// A request that nobody waits for: what its answer may bring.
#[derive(Debug)]
pub(crate) enum GivenUp {
    /// Nothing.
    Nothing,
    /// Memory of the node.
    Allocation,
    /// Memory of the program is registered; it stays mapped until it is not.
    Registration(Registered),
    /// The range that begins there is not registered any more.
    Deregistration(u64),
    /// As [`GivenUp::Deregistration`]; this memory is needed no more.
    Release(Registered),
    /// A mailbox with room for this many messages, from these senders.
    Mailbox(u32, Vec<Who>),
}

/// Whether anything is open about a registration that was given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Settling {
    /// No: the memory is not registered.
    Done,
    /// The node has not answered yet.
    Open,
    /// The memory is registered, and the node refused to deregister it, for this reason.
    Refused(String),
}

/// The node has answered a request that was never made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unasked;

/// The requests of a domain that have no answer yet, and what late answers left to do.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    last: u32,
    given_up: HashMap<u32, GivenUp>,
    to_give_back: VecDeque<(u32, Request)>,
    /// Ranges whose deregistration was confirmed late.
    deregistered: HashSet<u64>,
    /// Memory that is registered though nobody waited for that, and that the node refused to deregister: why.
    refused: Vec<(Registered, String)>,
    /// A mailbox that came late, for so many messages and from these senders. A domain has one.
    mailbox: Option<(u32, Vec<Who>, PassedDescriptor)>,
}

impl Requests {
    /// The number of a new request; `None` if too many requests have no answer.
    pub(crate) fn begin(&mut self) -> Option<u32> {
        (self.given_up.len() < MAX_GIVEN_UP).then(|| self.next())
    }

    fn next(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            // Numbers wrap after four billion requests; a number whose request is open is skipped.
            if !self.given_up.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// The program does not wait for the answer of this number any more.
    pub(crate) fn give_up(&mut self, number: u32, what: GivenUp) {
        self.given_up.insert(number, what);
    }

    /// Takes an answer to a request that nobody waits for.
    pub(crate) fn answered_late(
        &mut self,
        number: u32,
        reply: &Reply,
        descriptor: Option<PassedDescriptor>,
    ) -> Result<(), Unasked> {
        let given_up = self.given_up.remove(&number).ok_or(Unasked)?;
        match (given_up, reply) {
            (GivenUp::Allocation, Reply::Allocated { address }) => {
                self.give_back(Request::Free { address: *address }, GivenUp::Nothing);
            }
            (GivenUp::Registration(memory), Reply::Done) => {
                let request = Request::Deregister { address: memory.address() };
                self.give_back(request, GivenUp::Release(memory));
            }
            // The memory is not registered, so no transfer touches it.
            (GivenUp::Registration(memory), Reply::Failed(_)) | (GivenUp::Release(memory), Reply::Done) => {
                drop(memory.take());
            }
            (GivenUp::Deregistration(address), Reply::Done) => {
                self.deregistered.insert(address);
            }
            (GivenUp::Mailbox(messages, senders), Reply::Mailbox) => {
                self.mailbox = descriptor.map(|descriptor| (messages, senders, descriptor));
            }
            (GivenUp::Release(memory), Reply::Failed(reason)) => self.refused.push((memory, reason.clone())),
            (GivenUp::Registration(memory) | GivenUp::Release(memory), _) => {
                self.keep_unsettled(memory);
            }
            // A refusal grants nothing.
            _ => {}
        }
        Ok(())
    }

    /// Memory that may be registered, since the node's answer made no sense.
    pub(crate) fn keep_unsettled(&mut self, memory: Registered) {
        self.refused.push((memory, "its answer to the registration makes no sense".into()));
    }

    /// Queues a request to free memory of the node; its answer is not waited for.
    pub(crate) fn free(&mut self, address: u64) {
        self.give_back(Request::Free { address }, GivenUp::Nothing);
    }

    /// Queues another request to deregister memory that begins at this address, if the node refused that before.
    pub(crate) fn release_again(&mut self, address: u64) {
        let again: Vec<_> = self.refused.extract_if(.., |(memory, _)| memory.address() == address).collect();
        for (memory, _) in again {
            self.give_back(Request::Deregister { address }, GivenUp::Release(memory));
        }
    }

    /// The state of the registrations at this address that were given up.
    pub(crate) fn settling(&self, address: u64) -> Settling {
        let is_open = self.given_up.values().any(|what| {
            matches!(what, GivenUp::Registration(memory) | GivenUp::Release(memory) if memory.address() == address)
        });
        if is_open {
            return Settling::Open;
        }
        let refused = self.refused.iter().find(|(memory, _)| memory.address() == address);
        refused.map_or(Settling::Done, |(_, reason)| Settling::Refused(reason.clone()))
    }

    fn give_back(&mut self, request: Request, what: GivenUp) {
        let number = self.next();
        self.given_up.insert(number, what);
        self.to_give_back.push_back((number, request));
    }

    /// The next request that gives something back, until [`Self::sent_back`].
    pub(crate) fn to_give_back(&self) -> Option<&(u32, Request)> {
        self.to_give_back.front()
    }

    /// The request of [`Self::to_give_back`] was sent.
    pub(crate) fn sent_back(&mut self) {
        self.to_give_back.pop_front();
    }

    /// A range is registered: earlier deregistrations there are over, and a late answer to one of them
    /// says nothing about this range.
    pub(crate) fn registered(&mut self, address: u64) {
        self.forget_deregistrations(address);
    }

    /// The range that begins there is deregistered, as the program knows: answers that still come to
    /// earlier requests say nothing new.
    pub(crate) fn forget_deregistrations(&mut self, address: u64) {
        self.deregistered.remove(&address);
        for what in self.given_up.values_mut() {
            if matches!(what, GivenUp::Deregistration(known) if *known == address) {
                *what = GivenUp::Nothing;
            }
        }
    }

    /// Whether the range that begins there was deregistered by an answer that came late; says it once.
    pub(crate) fn take_deregistered(&mut self, address: u64) -> bool {
        self.deregistered.remove(&address)
    }

    /// The mailbox that came late, if it has room for this many messages, from these senders.
    pub(crate) fn take_mailbox(&mut self, messages: u32, senders: &[Who]) -> Option<PassedDescriptor> {
        let (_, _, descriptor) = self.mailbox.take_if(|(known_messages, known_senders, _)| {
            *known_messages == messages && known_senders == senders
        })?;
        Some(descriptor)
    }

    /// Whether requests were given up whose answers have not come.
    pub(crate) fn owes(&self) -> bool {
        !self.given_up.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tombolo_host::event::EventFd;
    use tombolo_host::own::OwnMemory;

    use super::*;

    #[test]
    fn late_memory_is_given_back_and_the_answer_to_that_is_dropped() {
        let mut requests = Requests::default();
        let first = requests.begin().unwrap();
        requests.give_up(first, GivenUp::Allocation);
        let second = requests.begin().unwrap();
        assert_ne!(first, second);
        requests.answered_late(first, &Reply::Allocated { address: 77 }, None).unwrap();
        let (number, request) = requests.to_give_back().cloned().unwrap();
        assert_eq!(request, Request::Free { address: 77 });
        requests.sent_back();
        assert!(requests.to_give_back().is_none() && requests.owes());
        requests.answered_late(number, &Reply::Done, None).unwrap();
        assert!(!requests.owes());
        assert_eq!(requests.answered_late(number, &Reply::Done, None), Err(Unasked));
    }

    #[test]
    fn late_registrations_are_taken_back() {
        let mut requests = Requests::default();
        let memory = OwnMemory::map(4096).unwrap();
        let address = memory.address();
        let number = requests.begin().unwrap();
        requests.give_up(number, GivenUp::Registration(Registered::new(memory, 0)));
        requests.answered_late(number, &Reply::Done, None).unwrap();
        let (number, request) = requests.to_give_back().cloned().unwrap();
        assert_eq!(request, Request::Deregister { address });
        requests.answered_late(number, &Reply::Done, None).unwrap();
        assert!(!requests.owes());
    }

    #[test]
    fn a_registration_is_settled_when_the_node_has_taken_it_back() {
        let mut requests = Requests::default();
        let memory = OwnMemory::map(4096).unwrap();
        let address = memory.address();
        assert_eq!(requests.settling(address), Settling::Done);
        let number = requests.begin().unwrap();
        requests.give_up(number, GivenUp::Registration(Registered::new(memory, 0)));
        assert_eq!(
            [address, address + 4096].map(|at| requests.settling(at)),
            [Settling::Open, Settling::Done]
        );
        requests.answered_late(number, &Reply::Done, None).unwrap();
        let release = requests.to_give_back().unwrap().0;
        requests.sent_back();
        requests.answered_late(release, &Reply::Failed("a copy hangs".into()), None).unwrap();
        assert_eq!(requests.settling(address), Settling::Refused("a copy hangs".into()));
        requests.release_again(address + 4096);
        assert!(requests.to_give_back().is_none());
        requests.release_again(address);
        assert_eq!(requests.settling(address), Settling::Open);
        let (release, request) = requests.to_give_back().cloned().unwrap();
        assert_eq!(request, Request::Deregister { address });
        requests.answered_late(release, &Reply::Done, None).unwrap();
        assert_eq!(requests.settling(address), Settling::Done);
    }

    #[test]
    fn a_late_deregistration_is_not_that_of_a_later_range() {
        let mut requests = Requests::default();
        let late = requests.begin().unwrap();
        requests.give_up(late, GivenUp::Deregistration(4096));
        requests.registered(4096);
        requests.answered_late(late, &Reply::Done, None).unwrap();
        assert!(!requests.take_deregistered(4096));
    }

    #[test]
    fn late_deregistrations_and_mailboxes_are_found_by_the_next_request() {
        let mut requests = Requests::default();
        let number = requests.begin().unwrap();
        requests.give_up(number, GivenUp::Deregistration(4096));
        requests.answered_late(number, &Reply::Done, None).unwrap();
        assert_eq!([8192, 4096, 4096].map(|at| requests.take_deregistered(at)), [false, true, false]);
        let number = requests.begin().unwrap();
        requests.give_up(number, GivenUp::Mailbox(8, vec![Who::Anyone]));
        let descriptor = std::os::fd::OwnedFd::from(EventFd::new().unwrap()).into();
        requests.answered_late(number, &Reply::Mailbox, Some(descriptor)).unwrap();
        assert!(requests.take_mailbox(8, &[]).is_none());
        assert!(requests.take_mailbox(4, &[Who::Anyone]).is_none());
        assert!(requests.take_mailbox(8, &[Who::Anyone]).is_some());
        assert!(requests.take_mailbox(8, &[Who::Anyone]).is_none());
    }

    #[test]
    fn a_node_that_owes_too_much_is_asked_nothing_more() {
        let mut requests = Requests::default();
        for _ in 0..MAX_GIVEN_UP {
            let number = requests.begin().unwrap();
            requests.give_up(number, GivenUp::Nothing);
        }
        assert_eq!(requests.begin(), None);
        requests.answered_late(5, &Reply::Done, None).unwrap();
        assert!(requests.begin().is_some());
    }
}
