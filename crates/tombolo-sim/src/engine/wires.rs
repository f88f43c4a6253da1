//! The wires between the two nodes, a path each: how long they are, what they
//! lose, and whether they are cut.

use super::{Bench, OTHER, wire_part};
use crate::kernel;
use tombolo_core::rdma::{PathId, Time};

/// One wire, both ways.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// How long a packet is under way.
    pub delay_ns: u64,
    /// Chance that it loses a packet, in millionths; apart from [`super::Faults`].
    pub loss: u64,
    /// Picoseconds that a byte takes. Apart from [`super::Faults`].
    pub byte_picos: u64,
    /// Bytes that wait for their turn at most; what is beyond is lost.
    pub buffer_bytes: u64,
    /// It swallows everything, and says nothing.
    pub cut: bool,
    /// Since when that was seen.
    pub silent_since: Option<Time>,
    /// Both nodes were told that it is lost.
    pub left: bool,
    /// When the line is free again, each way.
    pub free: [kernel::Time; 2],
    /// Packets that it took.
    pub carried: u64,
}

impl Wire {
    /// A wire without faults.
    pub fn new(delay_ns: u64) -> Self {
        Self {
            delay_ns,
            loss: 0,
            byte_picos: 0,
            buffer_bytes: u64::MAX,
            cut: false,
            silent_since: None,
            left: false,
            free: [kernel::Time::ZERO; 2],
            carried: 0,
        }
    }
}

/// What a node calls a wire; the two do not agree, except on the first.
pub fn path_of(node: usize, wire: usize) -> PathId {
    match (node, wire) {
        (0, _) | (_, 0) => PathId(wire as u8),
        _ => PathId(8 - wire as u8),
    }
}

/// The wire that a node calls so.
pub fn wire_of(node: usize, path: PathId) -> usize {
    match (node, path.0) {
        (0, _) | (_, 0) => path.0.into(),
        _ => usize::from(8 - path.0),
    }
}

impl Bench {
    /// One more wire between the nodes.
    pub fn add_wire(&mut self, wire: Wire) -> usize {
        self.wires.push(wire);
        let at = self.wires.len() - 1;
        assert_eq!(self.kernel.add_part(), wire_part(at));
        for node in 0..2 {
            assert!(self.engines[node].add_path(self.now(), OTHER, path_of(node, at)));
        }
        at
    }

    /// It goes dead, and nobody is told yet.
    pub fn cut_wire(&mut self, wire: usize) {
        self.wires[wire].cut = true;
    }

    /// Both ends notice.
    pub fn leave_wire(&mut self, wire: usize) {
        self.wires[wire].cut = true;
        self.wires[wire].left = true;
        for node in 0..2 {
            self.engines[node].path_lost(self.now(), OTHER, path_of(node, wire));
        }
    }

    /// Both ends leave what has been silent for too long, as links do.
    pub(super) fn leave_silent_wires(&mut self) {
        let Some(outage_ns) = self.outage_ns else { return };
        for wire in 0..self.wires.len() {
            let now = self.now();
            let silent = &mut self.wires[wire];
            if !silent.cut || silent.left {
                silent.silent_since = None;
            } else if now.since_ns(*silent.silent_since.get_or_insert(now)) >= outage_ns {
                self.leave_wire(wire);
            }
        }
    }

    /// It works again, and both ends know.
    pub fn heal_wire(&mut self, wire: usize) {
        self.wires[wire].cut = false;
        if std::mem::take(&mut self.wires[wire].left) {
            for node in 0..2 {
                assert!(self.engines[node].add_path(self.now(), OTHER, path_of(node, wire)));
            }
        }
    }

    /// The paths of a peer that was just added, at one node.
    pub(super) fn add_paths(&mut self, node: usize) {
        for wire in 0..self.wires.len() {
            let (path, left) = (path_of(node, wire), self.wires[wire].left);
            if wire > 0 && !left {
                assert!(self.engines[node].add_path(self.now(), OTHER, path));
            }
            if wire == 0 && left {
                self.engines[node].path_lost(self.now(), OTHER, path);
            }
        }
    }
}
