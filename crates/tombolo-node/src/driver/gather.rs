//! Messages to mailboxes that arrive in parts, over a link whose packets are shorter than a message.
//!
//! A message is in its mailbox wholly or not at all. So its parts are kept until all have arrived and the mailbox has
//! room. A part that was placed does not come again, even when its block is sent again. So parts are dropped only when
//! their block is over.

use std::collections::BTreeMap;

use tombolo_channel::MAX_MAIL_BYTES;
use tombolo_core::rdma::{BlockId, PeerId};
use tombolo_host::shared::SharedSpan;

/// Maximum number of messages of one peer whose parts are kept.
const MESSAGES_MAX: usize = 256;

/// A message of which parts have arrived.
#[derive(Debug)]
struct Message {
    block: BlockId,
    bytes: Box<[u8; MAX_MAIL_BYTES]>,
    length: usize,
    /// A bit for each byte that has arrived.
    came: [u64; MAX_MAIL_BYTES / 64],
    /// The message is in its mailbox. Parts that arrive once more are ignored.
    is_delivered: bool,
}

impl Message {
    fn new(block: BlockId, length: usize) -> Self {
        let came = [0; MAX_MAIL_BYTES / 64];
        Self { block, bytes: Box::new([0; MAX_MAIL_BYTES]), length, came, is_delivered: false }
    }

    fn note(&mut self, offset: usize, length: usize, has_come: bool) {
        for at in offset..offset + length {
            let (word, bit) = (&mut self.came[at / 64], 1 << (at % 64));
            *word = if has_come { *word | bit } else { *word & !bit };
        }
    }

    fn is_whole(&self) -> bool {
        self.came.iter().map(|word| word.count_ones() as usize).sum::<usize>() == self.length
    }
}

/// Parts of messages, by peer.
#[derive(Debug, Default)]
pub(crate) struct Gatherer(BTreeMap<PeerId, Vec<Message>>);

/// A part of a message.
pub(crate) struct Part<'a> {
    pub(crate) peer: PeerId,
    pub(crate) block: BlockId,
    /// The length of the whole message.
    pub(crate) length: usize,
    pub(crate) offset: usize,
    pub(crate) bytes: SharedSpan<'a>,
}

impl Gatherer {
    /// Whether parts of the message of this block are kept.
    pub(crate) fn has(&self, peer: PeerId, block: BlockId) -> bool {
        self.0.get(&peer).is_some_and(|messages| messages.iter().any(|message| message.block == block))
    }

    /// Makes room for another message of a peer: forgets messages whose blocks are over. False: there is no room.
    pub(crate) fn make_room(&mut self, peer: PeerId, is_receiving: impl Fn(BlockId) -> bool) -> bool {
        let Some(messages) = self.0.get_mut(&peer) else { return true };
        messages.retain(|message| is_receiving(message.block));
        messages.len() < MESSAGES_MAX
    }

    /// Keeps a part of a message. If this completes the message, `deliver` gets it. If `deliver` fails, this part is
    /// expected again.
    ///
    /// # Errors
    /// Those of `deliver`.
    ///
    /// # Panics
    /// The part is not within the message, or the message is too long.
    pub(crate) fn add<E>(
        &mut self,
        part: &Part<'_>,
        deliver: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Part { peer, block, length, offset, bytes } = *part;
        let messages = self.0.entry(peer).or_default();
        let at = messages.iter().position(|message| message.block == block).unwrap_or_else(|| {
            messages.push(Message::new(block, length));
            messages.len() - 1
        });
        let message = &mut messages[at];
        if message.is_delivered {
            return Ok(());
        }
        bytes.copy_to(&mut message.bytes[offset..offset + bytes.len()]);
        message.note(offset, bytes.len(), true);
        if !message.is_whole() {
            return Ok(());
        }
        let delivered = deliver(&message.bytes[..message.length]);
        message.is_delivered = delivered.is_ok();
        if delivered.is_err() {
            message.note(offset, bytes.len(), false);
        }
        delivered
    }

    /// Forgets all messages of a lost peer.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.0.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::rdma::{Config, Engine, Time, Verdict};
    use tombolo_wire::{
        Asker, Attempt, DataHeader, Domain, Generation, NotificationMark, Packet, Payload, TransactionId,
    };

    use super::*;

    const PEER: PeerId = PeerId(1);

    /// The identities of `count` different blocks.
    fn blocks(count: u16) -> Vec<BlockId> {
        let mut engine = Engine::new(Config::default());
        engine.add_peer(Time(0), PEER);
        let block = |slot: u16| {
            let header = DataHeader {
                domain: Domain(1),
                transaction: TransactionId(slot),
                generation: Generation(1),
                attempt: Attempt(0),
                block_address: 1 << 20,
                block_bytes: 8,
                offset_bytes: 0,
                payload_bytes: 8,
                in_reply_to: None,
                asker: Asker::SENDER,
                notification: NotificationMark::None,
            };
            match engine.handle(Time(0), PEER, &Packet::Data(header, Payload::Intact(&[1; 8]))) {
                Verdict::Place(placement) => {
                    let block = placement.block_id();
                    engine.placed(placement);
                    block
                }
                other => panic!("{other:?}"),
            }
        };
        (0..count).map(block).collect()
    }

    fn part(block: BlockId, length: usize, offset: usize, bytes: &[u8]) -> Part<'_> {
        Part { peer: PEER, block, length, offset, bytes: SharedSpan::from(bytes) }
    }

    #[test]
    fn a_message_is_delivered_once_when_all_of_its_parts_are_there() {
        let (mut gatherer, block) = (Gatherer::default(), blocks(1)[0]);
        let mut delivered = Vec::new();
        let mut add = |offset: usize, bytes: &[u8]| {
            gatherer.add::<()>(&part(block, 6, offset, bytes), |message| {
                delivered.push(message.to_vec());
                Ok(())
            })
        };
        // Parts out of order, repeated, overlapping.
        for (offset, bytes) in
            [(4, &b"ef"[..]), (4, b"ef"), (0, b"abc"), (1, b"bcd"), (0, b"abc"), (4, b"ef")]
        {
            add(offset, bytes).unwrap();
        }
        assert_eq!(delivered, [b"abcdef".to_vec()]);
    }

    #[test]
    fn a_part_that_a_full_mailbox_refuses_is_all_that_comes_again() {
        let (mut gatherer, block) = (Gatherer::default(), blocks(1)[0]);
        gatherer.add::<()>(&part(block, 4, 0, b"ab"), |_| Ok(())).unwrap();
        for _ in 0..3 {
            assert_eq!(gatherer.add(&part(block, 4, 2, b"cd"), |_| Err("full")), Err("full"));
        }
        let mut delivered = Vec::new();
        let outcome = gatherer.add::<()>(&part(block, 4, 2, b"cd"), |message| {
            delivered = message.to_vec();
            Ok(())
        });
        assert_eq!((outcome, delivered), (Ok(()), b"abcd".to_vec()));
    }

    #[test]
    fn parts_are_given_up_with_their_blocks_alone() {
        let mut gatherer = Gatherer::default();
        let blocks = blocks(MESSAGES_MAX as u16 + 1);
        let (last, kept) = blocks.split_last().unwrap();
        for block in kept {
            assert!(gatherer.make_room(PEER, |_| true));
            gatherer.add::<()>(&part(*block, 4, 0, b"ab"), |_| Ok(())).unwrap();
        }
        assert!(!gatherer.make_room(PEER, |_| true) && gatherer.make_room(PeerId(2), |_| true));
        assert!(gatherer.make_room(PEER, |block| block != kept[7]));
        assert!(!gatherer.has(PEER, kept[7]) && gatherer.has(PEER, kept[8]) && !gatherer.has(PEER, *last));
        gatherer.forget(PEER);
        assert!(!gatherer.has(PEER, kept[8]));
    }
}
