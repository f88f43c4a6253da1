//! A part that writes down what comes: the end of routes in tests, and of flows that nobody handles.

use super::{Cargo, Here, Message, Part};
use crate::kernel::Time;

/// Something that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub time: Time,
    /// The name of a blank packet, the tag of an access, of work or of a copy; of a packet with bytes its first eight of them.
    pub name: u64,
    /// Its length.
    pub bytes: u32,
    /// A line has changed it.
    pub is_damaged: bool,
}

/// The list of what came.
#[derive(Debug, Default)]
pub struct Probe {
    /// In order.
    pub seen: Vec<Seen>,
}

impl Part for Probe {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let time = here.now();
        self.seen.push(match message {
            Message::Traveller(traveller) => {
                let name = match traveller.cargo {
                    Cargo::Blank(name) => name,
                    Cargo::Access(access) => access.tag,
                    Cargo::Header(header) => {
                        here.headers.take(header);
                        0
                    }
                    Cargo::Packet(packet) => here.packets.consume(packet, |bytes| {
                        let mut first = [0; 8];
                        let length = bytes.len().min(8);
                        first[..length].copy_from_slice(&bytes[..length]);
                        u64::from_le_bytes(first)
                    }),
                };
                Seen { time, name, bytes: traveller.bytes, is_damaged: traveller.is_damaged }
            }
            Message::Work(work) | Message::Done(work) => {
                Seen { time, name: work.tag, bytes: 0, is_damaged: false }
            }
            Message::Copy(copy) | Message::Copied(copy) => {
                Seen { time, name: copy.tag, bytes: copy.length_bytes, is_damaged: false }
            }
        });
    }

    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}
