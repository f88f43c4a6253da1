//! How the nodes that a station serves share its channels.

use std::collections::BTreeMap;

/// Most transfers to one node under way at once. A domain has 32 channels for writing, and a node that does not answer must
/// leave some of them for other nodes.
const POSTED_MAX: usize = 8;
/// As [`POSTED_MAX`], to all nodes of one [`Party`]: half of the channels.
const POSTED_OF_PARTY_MAX: usize = 16;
/// From this number of transfers under way to all nodes together, each party may have only one, so that channels are left for
/// nodes that answer.
const CROWDED: usize = 24;

/// Nodes that share one part of a station's channels: all nodes that have proved one key, or a single node without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The nodes with this key.
    Key([u8; 32]),
    /// The node of this number.
    Node(u32),
}

/// Returns the party of a node.
pub type PartyOf = Box<dyn Fn(u32) -> Party + Send>;

/// Number of transfers under way, by node and by party.
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

    /// How many more transfers to a node may begin now.
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

    /// However many nodes one key has, channels are left for the nodes of other keys.
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
        // The station is crowded: each further party gets one channel.
        let others: usize =
            (3..11).map(|key| post_all(&mut posted, 100 + u32::from(key), Party::Key([key; 32]))).sum();
        assert_eq!((others, posted.total), (8, 32));
        assert_eq!(posted.room(0, greedy), 0);
    }
}
