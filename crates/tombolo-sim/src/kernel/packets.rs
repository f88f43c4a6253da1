//! Packets that are under way.

use tombolo_wire::Packet;

/// A packet in a [`Packets`]. It is no `Copy`: its holder consumes or discards it once.
#[derive(Debug, PartialEq, Eq)]
pub struct PacketId(u32);

/// An arena of packets: messages carry a number, and the buffers are used again and again.
#[derive(Debug, Default)]
pub struct Packets {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
}

impl Packets {
    /// Keeps a packet whose bytes this writes into an empty buffer.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> PacketId {
        let number = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            u32::try_from(self.buffers.len() - 1).expect("packets are numbered by 32 bits")
        });
        let buffer = &mut self.buffers[number as usize];
        buffer.clear();
        write(buffer);
        PacketId(number)
    }

    /// The bytes of a packet.
    pub fn bytes(&self, packet: &PacketId) -> &[u8] {
        &self.buffers[packet.0 as usize]
    }

    /// Changes the bytes of a packet.
    pub fn change(&mut self, packet: &PacketId, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.buffers[packet.0 as usize]);
    }

    /// The same packet once more.
    pub fn copy(&mut self, packet: &PacketId) -> PacketId {
        let copy = self.add(|_| {});
        let [from, to] =
            self.buffers.get_disjoint_mut([packet.0 as usize, copy.0 as usize]).expect("two packets");
        to.extend_from_slice(from);
        copy
    }

    /// Gives the bytes of a packet to this, which is over then.
    pub fn consume<R>(&mut self, packet: PacketId, read: impl FnOnce(&[u8]) -> R) -> R {
        let result = read(&self.buffers[packet.0 as usize]);
        self.free.push(packet.0);
        result
    }

    /// A packet is lost.
    pub fn discard(&mut self, packet: PacketId) {
        self.free.push(packet.0);
    }

    /// Packets that are under way.
    pub fn count(&self) -> usize {
        self.buffers.len() - self.free.len()
    }
}

/// The header of a packet whose bytes are only named, in [`Headers`]. Its holder takes it out once.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderId(u32);

/// An arena of packets of engines that carry no bytes.
#[derive(Debug, Default)]
pub struct Headers {
    packets: Vec<Packet<'static>>,
    free: Vec<u32>,
}

impl Headers {
    /// Keeps a packet.
    pub fn add(&mut self, packet: Packet<'static>) -> HeaderId {
        match self.free.pop() {
            Some(number) => {
                self.packets[number as usize] = packet;
                HeaderId(number)
            }
            None => {
                self.packets.push(packet);
                HeaderId(u32::try_from(self.packets.len() - 1).expect("packets are numbered by 32 bits"))
            }
        }
    }

    /// A packet.
    pub fn get(&self, header: &HeaderId) -> &Packet<'static> {
        &self.packets[header.0 as usize]
    }

    /// Takes a packet out.
    pub fn take(&mut self, header: HeaderId) -> Packet<'static> {
        self.free.push(header.0);
        self.packets[header.0 as usize]
    }

    /// The same packet once more.
    pub fn copy(&mut self, header: &HeaderId) -> HeaderId {
        let packet = self.packets[header.0 as usize];
        self.add(packet)
    }

    /// Packets that are under way.
    pub fn count(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_hold_what_was_written_last() {
        let mut packets = Packets::default();
        for round in 0..100_u8 {
            let one = packets.add(|bytes| bytes.extend([round; 3]));
            let other = packets.add(|bytes| bytes.push(round));
            assert_eq!(packets.bytes(&one), [round; 3]);
            let copy = packets.copy(&one);
            packets.change(&one, |bytes| bytes.push(7));
            assert_eq!(
                (packets.bytes(&copy), packets.bytes(&one)),
                (&[round; 3][..], &[round, round, round, 7][..])
            );
            packets.discard(copy);
            assert_eq!(packets.consume(other, <[u8]>::to_vec), [round]);
            packets.discard(one);
            assert_eq!(packets.count(), 0);
        }
        assert_eq!(packets.buffers.len(), 3);
    }
}
