//! Reliable control messages over datagrams: stop and wait.
//!
//! A message is cut into fragments that fit a datagram; one fragment is on its way at a time, sent
//! again after growing pauses until its acknowledgement comes. Slow and simple, which suits a few
//! small messages. A state machine: it is told what came and what time it is, and says what to
//! send; it touches neither socket nor clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::LossReason;
use crate::link::MAX_CONTROL_BYTES;
use tombolo_host::timing::link::CONTROL_RETRY_PAUSE;

/// Messages that wait to be sent, or to be taken by `receive_control`.
const MAX_MESSAGES: usize = 64;

#[derive(Debug)]
struct Fragment {
    text: Vec<u8>,
    more: bool,
}

/// What to send, or to send again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Transmission<'a> {
    pub(super) sequence: u32,
    pub(super) text: &'a [u8],
    pub(super) more: bool,
    pub(super) again: bool,
}

/// Both directions of one session's control messages.
#[derive(Debug)]
pub(super) struct ControlChannel {
    fragment_bytes: usize,
    /// The first is on its way when `due` is set.
    outgoing: VecDeque<Fragment>,
    outgoing_messages: usize,
    sequence: u32,
    due: Option<Instant>,
    retry_pause: Duration,
    /// The sequence number of the next fragment to arrive.
    expected: u32,
    partial: Vec<u8>,
    inbox: VecDeque<Vec<u8>>,
}

impl ControlChannel {
    pub(super) fn new(fragment_bytes: usize) -> Self {
        Self {
            fragment_bytes: fragment_bytes.max(1),
            outgoing: VecDeque::new(),
            outgoing_messages: 0,
            sequence: 0,
            due: None,
            retry_pause: CONTROL_RETRY_PAUSE.0,
            expected: 0,
            partial: Vec::new(),
            inbox: VecDeque::new(),
        }
    }

    /// Takes a message to send; false when too many wait already. Then call `poll`.
    #[must_use]
    pub(super) fn queue(&mut self, message: &[u8]) -> bool {
        if self.outgoing_messages >= MAX_MESSAGES {
            return false;
        }
        self.outgoing_messages += 1;
        let mut parts = message.chunks(self.fragment_bytes).peekable();
        while let Some(text) = parts.next() {
            let more = parts.peek().is_some();
            self.outgoing.push_back(Fragment { text: text.to_vec(), more });
        }
        true
    }

    /// What is to be sent now, if anything. Call after `queue`, after `acknowledged`, and when
    /// `deadline` has passed; at most once each.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Transmission<'_>> {
        let fragment = self.outgoing.front()?;
        let again = match self.due {
            Some(due) if now < due => return None,
            Some(_) => {
                self.retry_pause = (self.retry_pause * 2).min(CONTROL_RETRY_PAUSE.1);
                true
            }
            None => {
                self.retry_pause = CONTROL_RETRY_PAUSE.0;
                false
            }
        };
        self.due = Some(now + self.retry_pause);
        let (text, more) = (fragment.text.as_slice(), fragment.more);
        Some(Transmission { sequence: self.sequence, text, more, again })
    }

    /// When `poll` has something to send again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// An acknowledgement came.
    pub(super) fn acknowledged(&mut self, sequence: u32) {
        // Any other acknowledges a fragment that was sent twice, or is malformed.
        if self.due.is_some() && sequence == self.sequence {
            self.due = None;
            self.sequence = self.sequence.wrapping_add(1);
            if self.outgoing.pop_front().is_some_and(|fragment| !fragment.more) {
                self.outgoing_messages -= 1;
            }
        }
    }

    /// A fragment came; true when it is to be acknowledged.
    pub(super) fn arrived(&mut self, sequence: u32, text: &[u8], more: bool) -> Result<bool, LossReason> {
        if sequence == self.expected.wrapping_sub(1) {
            // The acknowledgement of this fragment was lost.
            return Ok(true);
        }
        if sequence != self.expected || self.inbox.len() >= MAX_MESSAGES {
            // Without an acknowledgement the fragment comes again, when there may be room.
            return Ok(false);
        }
        if self.partial.len() + text.len() > MAX_CONTROL_BYTES || text.is_empty() {
            return Err(LossReason::Protocol("a control message of impossible size"));
        }
        self.partial.extend_from_slice(text);
        self.expected = self.expected.wrapping_add(1);
        if !more {
            self.inbox.push_back(std::mem::take(&mut self.partial));
        }
        Ok(true)
    }

    /// Whether `take` has a message.
    pub(super) fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The next whole message that arrived.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.inbox.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two channels and a network that loses and repeats as told, on a virtual clock.
    fn exchange(messages: &[Vec<u8>], losses: &[u8]) -> Vec<Vec<u8>> {
        let (mut sender, mut receiver) = (ControlChannel::new(100), ControlChannel::new(100));
        let mut losses = losses.iter().copied().chain(std::iter::repeat(0));
        let mut now = Instant::now();
        let mut waiting = messages.iter();
        let mut next = waiting.next();
        let mut arrived = Vec::new();
        for _ in 0..100_000 {
            while let Some(message) = next
                && sender.queue(message)
            {
                next = waiting.next();
            }
            if let Some(sent) = sender.poll(now) {
                let (sequence, text, more) = (sent.sequence, sent.text.to_vec(), sent.more);
                let copies = match losses.next() {
                    Some(1) => 0,
                    Some(2) => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    if receiver.arrived(sequence, &text, more).unwrap() && losses.next() != Some(1) {
                        sender.acknowledged(sequence);
                    }
                }
                arrived.extend(std::iter::from_fn(|| receiver.take()));
            } else if let Some(deadline) = sender.deadline() {
                now = now.max(deadline);
            } else if next.is_none() {
                break;
            }
        }
        arrived
    }

    proptest! {
        #[test]
        fn arrives_once_and_in_order(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..500), 0..100),
            losses in prop::collection::vec(0..4_u8, 0..400),
        ) {
            prop_assert_eq!(exchange(&messages, &losses), messages);
        }
    }

    #[test]
    fn a_full_inbox_is_back_pressure() {
        let mut receiver = ControlChannel::new(100);
        for sequence in 0..64 {
            assert!(receiver.arrived(sequence, b"x", false).unwrap());
        }
        assert!(!receiver.arrived(64, b"x", false).unwrap());
        receiver.take().unwrap();
        assert!(receiver.arrived(64, b"x", false).unwrap());
    }

    #[test]
    fn an_endless_message_ends_the_link() {
        let mut receiver = ControlChannel::new(100);
        let text = vec![0; 10_000];
        assert!(receiver.arrived(0, &text, true).unwrap());
        assert!(receiver.arrived(1, &text, true).is_err());
    }
}
