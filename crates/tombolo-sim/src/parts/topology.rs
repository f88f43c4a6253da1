//! Who is connected to whom, and by which way.

/// One line of a way: from a vertex to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Where it begins.
    pub from: u32,
    /// Where it ends.
    pub to: u32,
}

/// How nodes are connected. Vertices are numbers: first the nodes, then the switches, where there are any. All lines are pairs, one each
/// way; ways are fixed, and all of them shortest ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each node to each other one.
    Full {
        /// How many.
        nodes: u32,
    },
    /// Each node to the next, and the last one to the first.
    Ring {
        /// How many.
        nodes: u32,
    },
    /// A rectangle: first along a row, then along a column.
    Mesh {
        /// Nodes in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// A rectangle whose borders are joined.
    Torus {
        /// Nodes in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// Switches with so many ports in three levels, and `ports`³ / 4 nodes. Each pair of pods is joined by as many lines as a pod has
    /// nodes; which way up a packet takes depends on where it goes.
    FatTree {
        /// Ports of a switch: even.
        ports: u32,
    },
    /// Boards of four FPGAs, each joined to the others of its board; the first of each board to the first of each other one.
    QuadBoards {
        /// How many.
        boards: u32,
    },
}

impl Topology {
    /// How many nodes there are.
    pub fn nodes(self) -> u32 {
        match self {
            Self::Full { nodes } | Self::Ring { nodes } => nodes,
            Self::Mesh { width, height } | Self::Torus { width, height } => width * height,
            Self::FatTree { ports } => ports * ports * ports / 4,
            Self::QuadBoards { boards } => 4 * boards,
        }
    }

    /// How many vertices there are, with the switches.
    pub fn vertices(self) -> u32 {
        let switches = match self {
            // Two levels of half as many as ports in each pod, and the core.
            Self::FatTree { ports } => ports * ports + (ports / 2).pow(2),
            _ => 0,
        };
        self.nodes() + switches
    }

    /// Every line, each way.
    pub fn hops(self) -> Vec<Hop> {
        let mut hops = match self {
            Self::Full { nodes } => pairs(nodes),
            Self::Ring { nodes } => {
                both_ways((0..nodes).map(|node| (node, (node + 1) % nodes)).filter(|(from, to)| from != to))
            }
            Self::Mesh { width, height } => grid(width, height, false),
            Self::Torus { width, height } => grid(width, height, true),
            Self::FatTree { ports } => FatTree(ports).hops(),
            Self::QuadBoards { boards } => {
                let mut hops = Vec::new();
                for board in 0..boards {
                    hops.extend(pairs(4).into_iter().map(|hop| hop.moved(4 * board)));
                }
                let between = pairs(boards).into_iter();
                hops.extend(between.map(|hop| Hop { from: 4 * hop.from, to: 4 * hop.to }));
                hops
            }
        };
        // A ring of two has one line, not two.
        hops.sort_unstable();
        hops.dedup();
        hops
    }

    /// The way from a node to another one; none from a node to itself.
    pub fn way(self, from: u32, to: u32) -> Vec<Hop> {
        let mut vertices = vec![from];
        match self {
            _ if from == to => {}
            Self::Full { .. } => vertices.push(to),
            Self::Ring { nodes } => walk(&mut vertices, from, to, nodes, |place| place),
            Self::Mesh { width, .. } => {
                let ((x, y), (to_x, to_y)) = ((from % width, from / width), (to % width, to / width));
                line(&mut vertices, x, to_x, |x| y * width + x);
                line(&mut vertices, y, to_y, |y| y * width + to_x);
            }
            Self::Torus { width, height } => {
                let ((x, y), (to_x, to_y)) = ((from % width, from / width), (to % width, to / width));
                walk(&mut vertices, x, to_x, width, |x| y * width + x);
                walk(&mut vertices, y, to_y, height, |y| y * width + to_x);
            }
            Self::FatTree { ports } => FatTree(ports).walk(&mut vertices, from, to),
            Self::QuadBoards { .. } => {
                let (first, last) = (from / 4 * 4, to / 4 * 4);
                if first != last {
                    vertices.extend([first, last].iter().filter(|vertex| **vertex != from));
                }
                vertices.extend(Some(to).filter(|to| vertices.last() != Some(to)));
            }
        }
        vertices.windows(2).map(|pair| Hop { from: pair[0], to: pair[1] }).collect()
    }
}

impl Hop {
    fn moved(self, by: u32) -> Self {
        Self { from: self.from + by, to: self.to + by }
    }
}

fn both_ways(edges: impl Iterator<Item = (u32, u32)>) -> Vec<Hop> {
    edges.flat_map(|(from, to)| [Hop { from, to }, Hop { from: to, to: from }]).collect()
}

/// Each to each other one.
fn pairs(count: u32) -> Vec<Hop> {
    both_ways((0..count).flat_map(|from| (from + 1..count).map(move |to| (from, to))))
}

fn grid(width: u32, height: u32, is_joined: bool) -> Vec<Hop> {
    let at = |x: u32, y: u32| y * width + x;
    let next = |place: u32, count: u32| {
        if place + 1 < count { Some(place + 1) } else { (is_joined && count > 1).then_some(0) }
    };
    let mut edges = Vec::new();
    for y in 0..height {
        for x in 0..width {
            edges.extend(next(x, width).map(|right| (at(x, y), at(right, y))));
            edges.extend(next(y, height).map(|below| (at(x, y), at(x, below))));
        }
    }
    both_ways(edges.into_iter())
}

/// Steps along a row, up to `to`.
fn line(vertices: &mut Vec<u32>, from: u32, to: u32, at: impl Fn(u32) -> u32) {
    let mut place = from;
    while place != to {
        place = if place < to { place + 1 } else { place - 1 };
        vertices.push(at(place));
    }
}

/// Steps along a ring, the shorter way; upwards where both are as long.
fn walk(vertices: &mut Vec<u32>, from: u32, to: u32, count: u32, at: impl Fn(u32) -> u32) {
    let upwards = (to + count - from) % count;
    let step = if upwards * 2 <= count { 1 } else { count - 1 };
    let mut place = from;
    while place != to {
        place = (place + step) % count;
        vertices.push(at(place));
    }
}

/// A fat tree of switches with this many ports: a pod has half as many switches next to the nodes, and as many above.
struct FatTree(u32);

impl FatTree {
    fn half(&self) -> u32 {
        self.0 / 2
    }

    fn nodes(&self) -> u32 {
        self.0.pow(3) / 4
    }

    /// The switch next to nodes.
    fn edge(&self, pod: u32, number: u32) -> u32 {
        self.nodes() + pod * self.half() + number
    }

    /// A switch above those of its pod.
    fn upper(&self, pod: u32, number: u32) -> u32 {
        self.edge(self.0, 0) + pod * self.half() + number
    }

    /// A switch of the core. Those of a group are joined to the same upper switch of each pod.
    fn core(&self, group: u32, number: u32) -> u32 {
        self.upper(self.0, 0) + group * self.half() + number
    }

    fn pod(&self, node: u32) -> u32 {
        node / self.half().pow(2)
    }

    fn edge_of(&self, node: u32) -> u32 {
        self.edge(self.pod(node), node / self.half() % self.half())
    }

    fn hops(&self) -> Vec<Hop> {
        let half = self.half();
        let mut edges: Vec<_> = (0..self.nodes()).map(|node| (node, self.edge_of(node))).collect();
        for pod in 0..self.0 {
            for one in 0..half {
                for other in 0..half {
                    edges.push((self.edge(pod, one), self.upper(pod, other)));
                    edges.push((self.upper(pod, one), self.core(one, other)));
                }
            }
        }
        both_ways(edges.into_iter())
    }

    fn walk(&self, vertices: &mut Vec<u32>, from: u32, to: u32) {
        let half = self.half();
        // By the destination, so that nodes next to each other have different ways.
        let (group, number) = (to % half, to / half % half);
        if self.edge_of(from) != self.edge_of(to) {
            vertices.extend([self.edge_of(from), self.upper(self.pod(from), group)]);
            if self.pod(from) != self.pod(to) {
                vertices.extend([self.core(group, number), self.upper(self.pod(to), group)]);
            }
        }
        vertices.extend([self.edge_of(to), to]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Every way leads by lines that there are from its start to its end, and is as long as this says.
    fn check(topology: Topology, length: impl Fn(u32, u32) -> u32) -> BTreeMap<Hop, u32> {
        let mut used: BTreeMap<Hop, u32> = topology.hops().into_iter().map(|hop| (hop, 0)).collect();
        for from in 0..topology.nodes() {
            for to in 0..topology.nodes() {
                let way = topology.way(from, to);
                assert_eq!(way.len() as u32, length(from, to), "{topology:?} {from} {to}");
                if let (Some(first), Some(last)) = (way.first(), way.last()) {
                    assert_eq!((first.from, last.to), (from, to));
                }
                assert!(way.windows(2).all(|pair| pair[0].to == pair[1].from), "{way:?}");
                for hop in way {
                    *used.get_mut(&hop).expect("a line that there is") += 1;
                }
            }
        }
        assert!(used.keys().all(|hop| hop.from < topology.vertices() && hop.to < topology.vertices()));
        used
    }

    fn ring_distance(one: u32, other: u32, count: u32) -> u32 {
        one.abs_diff(other).min(count - one.abs_diff(other))
    }

    #[test]
    fn ways_are_as_long_as_the_distance() {
        for nodes in 1..=7 {
            check(Topology::Full { nodes }, |from, to| u32::from(from != to));
            let used = check(Topology::Ring { nodes }, |from, to| ring_distance(from, to, nodes));
            assert_eq!(used.len() as u32, [0, 2, 2 * nodes][nodes.min(3) as usize - 1]);
        }
        for (width, height) in [(1, 1), (4, 3), (1, 5), (2, 2), (5, 4)] {
            let place = |node: u32| (node % width, node / width);
            check(Topology::Mesh { width, height }, |from, to| {
                let ((x, y), (to_x, to_y)) = (place(from), place(to));
                x.abs_diff(to_x) + y.abs_diff(to_y)
            });
            check(Topology::Torus { width, height }, |from, to| {
                let ((x, y), (to_x, to_y)) = (place(from), place(to));
                ring_distance(x, to_x, width) + ring_distance(y, to_y, height)
            });
        }
    }

    #[test]
    fn a_board_is_one_line_wide_and_boards_are_joined_by_their_first() {
        check(Topology::QuadBoards { boards: 3 }, |from, to| {
            let is_first = |node: u32| u32::from(!node.is_multiple_of(4));
            match from / 4 == to / 4 {
                true => u32::from(from != to),
                false => is_first(from) + 1 + is_first(to),
            }
        });
    }

    #[test]
    fn a_fat_tree_is_six_lines_high_and_used_alike() {
        for ports in [2, 4, 6] {
            let half = ports / 2;
            let used = check(Topology::FatTree { ports }, |from, to| match () {
                () if from == to => 0,
                () if from / half == to / half => 2,
                () if from / half.pow(2) == to / half.pow(2) => 4,
                () => 6,
            });
            // Where everybody sends to everybody, each line down to a node has as much as another; so have those down from the core.
            let topology = Topology::FatTree { ports };
            let (nodes, core) = (topology.nodes(), topology.vertices() - half.pow(2));
            let down = |used: &BTreeMap<Hop, u32>, is_down: &dyn Fn(&Hop) -> bool| {
                let counts: Vec<_> =
                    used.iter().filter(|(hop, _)| is_down(hop)).map(|(_, count)| *count).collect();
                assert!(counts.iter().all(|count| *count == counts[0]), "{ports} ports: {counts:?}");
            };
            down(&used, &|hop| hop.to < nodes);
            down(&used, &|hop| hop.from >= core);
        }
    }
}
