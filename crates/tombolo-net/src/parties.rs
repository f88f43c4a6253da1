//! How the nodes that a station serves share its channels.

use std::collections::BTreeMap;

/// The most transfers to one node under way at once: one that does not answer leaves channels to the others, of which a
/// domain has 32 for writing.
const POSTED_MAX: usize = 8;
/// As [`POSTED_MAX`], to all nodes of one [`Party`]: half of the channels.
const POSTED_OF_PARTY_MAX: usize = 16;
/// When so many transfers are under way to all nodes together, each party may have one only: channels are left for nodes
/// that answer.
const CROWDED: usize = 24;

/// Whose nodes share what a station has for others: all that have proved one key, or a node without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The nodes with this key.
    Key([u8; 32]),
    /// The node of this number.
    Node(u32),
}

/// Says which party a node is of.
pub type PartyOf = Box<dyn Fn(u32) -> Party + Send>;

/// Transfers under way, by whom they are for.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    nodes: BTreeMap<u32, usize>,
    parties: BTreeMap<Party, usize>,
    total: usize,
}

impl Posted {
    pub(crate) fn add(&mut self, node: u32, party: Party, count: usize) {
        *self.nodes.entry(node).or_default() += count;
        *self.parties.entry(party).or_default() += count;
        self.total += count;
    }

    /// How many more a node may have now.
    pub(crate) fn room(&self, node: u32, party: Party) -> usize {
        let of_node = self.nodes.get(&node).copied().unwrap_or(0);
        let of_party = self.parties.get(&party).copied().unwrap_or(0);
        let (most_of_node, most_of_party) =
            if self.total >= CROWDED { (1, 1) } else { (POSTED_MAX, POSTED_OF_PARTY_MAX) };
        most_of_node.saturating_sub(of_node).min(most_of_party.saturating_sub(of_party))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many nodes one key has, others find channels.
    #[test]
    fn the_nodes_of_a_key_leave_channels_to_others() {
        let mut posted = Posted::default();
        let post_all = |posted: &mut Posted, node, party| {
            let room = posted.room(node, party);
            posted.add(node, party, room);
            room
        };
        let greedy = Party::Key([1; 32]);
        let of_greedy: Vec<usize> = (0..64).map(|node| post_all(&mut posted, node, greedy)).collect();
        assert_eq!((of_greedy[0], of_greedy.iter().sum::<usize>()), (8, 16));
        assert_eq!(post_all(&mut posted, 100, Party::Key([2; 32])), 8);
        // Crowded: each of the others has one.
        let others: usize =
            (3..11).map(|key| post_all(&mut posted, 100 + u32::from(key), Party::Key([key; 32]))).sum();
        assert_eq!((others, posted.total), (8, 32));
        assert_eq!(posted.room(0, greedy), 0);
    }
}
