//! Bounds how much of a mailbox each sender may fill, if anyone may write to it.
//!
//! A node (or all nodes of one key) may have as many messages waiting in a mailbox as there is room left. So the first
//! sender that floods it gets half, and the next one half of the rest. A sender that floods a mailbox does not keep
//! other senders from it.

use std::collections::{HashMap, VecDeque};

use tombolo_channel::Who;
use tombolo_core::rdma::PeerId;
use tombolo_link::PublicKey;

/// Mailboxes with fewer messages are not shared out: a program makes its mailbox as large as the bursts that it
/// expects, and a sender that is refused waits. With a shared mailbox of 64 messages, mail over UDP came at a quarter
/// of its rate.
const LEAST_MESSAGES: u32 = 1024;

/// A sender, or a group of senders whose messages count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// Programs of this node, which are not limited.
    Here,
    /// The nodes that have proved this key.
    Key(PublicKey),
    /// A node without a key.
    Node(PeerId),
}

/// The senders of the messages that wait in a mailbox, and how many messages each has there.
#[derive(Debug)]
pub(super) struct MailShares {
    messages: u64,
    /// The senders, in the order of the messages.
    waiting: VecDeque<Party>,
    held: HashMap<Party, u64>,
}

impl MailShares {
    /// The shares of a new mailbox for `messages` messages. `None`: a mailbox of this size, for these senders, is not
    /// shared out.
    pub(super) fn of(messages: u32, senders: &[Who]) -> Option<Self> {
        let is_shared = messages >= LEAST_MESSAGES && senders.contains(&Who::Anyone);
        is_shared.then(|| Self { messages: messages.into(), waiting: VecDeque::new(), held: HashMap::new() })
    }

    /// Whether one more message of a sender may be put in, while `not_taken` messages have not been taken out.
    pub(super) fn admits(&mut self, party: Party, not_taken: u64) -> bool {
        // `not_taken` comes from the program, which may write any value for its own mailbox.
        while self.waiting.len() as u64 > not_taken.min(self.messages)
            && let Some(taken) = self.waiting.pop_front()
        {
            if let Some(held) = self.held.get_mut(&taken) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(&taken);
                }
            }
        }
        let held = self.held.get(&party).copied().unwrap_or(0);
        party == Party::Here || held == 0 || held < self.messages.saturating_sub(not_taken)
    }

    /// Records that a message of this sender was put in.
    pub(super) fn put(&mut self, party: Party) {
        self.waiting.push_back(party);
        *self.held.entry(party).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_floods_leaves_room_to_others() {
        let mut shares = MailShares::of(1024, &[Who::Anyone]).unwrap();
        let (mut put, mut taken) = (0, 0);
        let mut flood = |shares: &mut MailShares, party, taken: u64| {
            let mut count = 0;
            while put - taken < 1024 && shares.admits(party, put - taken) {
                shares.put(party);
                (put, count) = (put + 1, count + 1);
            }
            count
        };
        let node = |number| Party::Node(PeerId(number));
        let parts: Vec<u64> = (1..=8).map(|number| flood(&mut shares, node(number), 0)).collect();
        assert_eq!(parts, [512, 256, 128, 64, 32, 16, 8, 4]);
        // A further sender may have at least one message while there is room, and programs of this node may use all of
        // it.
        assert_eq!(flood(&mut shares, node(9), 0), 2);
        assert_eq!(flood(&mut shares, Party::Here, 0), 2);
        // After messages were taken out, their sender has room again.
        taken += 600;
        assert!(flood(&mut shares, node(1), taken) > 200);
        assert!(MailShares::of(512, &[Who::Anyone]).is_none());
        assert!(MailShares::of(1024, &[Who::Node(1)]).is_none());
    }

    #[test]
    fn a_program_that_takes_more_than_there_is_harms_nobody() {
        let mut shares = MailShares::of(1024, &[Who::Anyone]).unwrap();
        shares.put(Party::Here);
        for not_taken in [u64::MAX, 0, 0, 1 << 40] {
            let _ = shares.admits(Party::Node(PeerId(1)), not_taken);
        }
        for _ in 0..5000 {
            let _ = shares.admits(Party::Here, u64::MAX);
            shares.put(Party::Here);
        }
        assert!(shares.waiting.len() <= 1025, "{}", shares.waiting.len());
        assert!(shares.admits(Party::Node(PeerId(1)), 0));
    }
}
