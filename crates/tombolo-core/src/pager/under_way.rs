//! What is under way in one space: pages on their way out, and the command that its agent has.
//!
//! A *batch* is a set of pages of a space that leave together. The space's agent moves them to an *area* of its
//! program, and answers. Then the driver reads them there and saves them. An agent has one command at a time, and there
//! are [`AREAS`] areas: while one batch is being saved, the agent can move the next one.
//!
//! A command by which the agent touches pages in their place is *alone*: it begins only when nothing else is under way,
//! and nothing else begins until it has ended. If the agent has to drop pages of a batch, nothing else begins until
//! that batch has ended, either.

/// Areas of a space to which pages are moved.
pub const AREAS: usize = 2;

/// Where the pages of a batch are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The number of the area.
    pub number: usize,
    /// The number of areas, from `number` on, that the agent empties first: nothing that lies in them is needed.
    pub emptied: usize,
}

impl Area {
    /// The areas that are emptied.
    pub fn all(&self) -> std::ops::Range<usize> {
        self.number..self.number + self.emptied
    }
}

/// What is under way in one space.
#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    /// The command that has to be answered, or ended, before another one may begin; 0: none.
    command: u32,
    /// Areas that hold the pages of a batch.
    taken: [bool; AREAS],
    /// Areas in which pages may lie that no batch needs any more.
    to_empty: [bool; AREAS],
}

impl UnderWay {
    /// The number of the command that the agent has or that is alone; 0: none.
    pub fn command(&self) -> u32 {
        self.command
    }

    /// Whether nothing is on its way out and the agent has no command.
    pub fn is_nothing(&self) -> bool {
        self.command == 0 && self.taken == [false; AREAS]
    }

    /// Whether the agent can be told to move pages.
    pub fn can_move(&self) -> bool {
        self.command == 0 && self.taken.contains(&false)
    }

    /// Begins a batch: the agent gets `command`, not 0, to move its pages. Returns the area to which it moves them;
    /// `None`: no batch can begin now.
    pub fn begin(&mut self, command: u32) -> Option<Area> {
        let number = self.taken.iter().position(|taken| !taken).filter(|_| self.command == 0)?;
        // The agent also empties the areas directly behind that hold only pages that no batch needs.
        let behind = self.taken.iter().zip(&self.to_empty).skip(number + 1);
        let emptied = 1 + behind.take_while(|(taken, to_empty)| !**taken && **to_empty).count();
        self.to_empty[number..number + emptied].fill(false);
        self.taken[number] = true;
        let area = Area { number, emptied };
        self.command = command;
        Some(area)
    }

    /// The agent gets `command`, not 0, which has to be alone. Returns false, and does nothing, if something else is
    /// under way.
    pub fn begin_alone(&mut self, command: u32) -> bool {
        let is_alone = self.is_nothing();
        if is_alone {
            self.command = command;
        }
        is_alone
    }

    /// The agent has answered `command` and has nothing more to do for its batch: the next command can begin.
    pub fn answered(&mut self, command: u32) {
        if self.command == command {
            self.command = 0;
        }
    }

    /// The agent gets `next` for the same batch as `command`, for which [`UnderWay::answered`] was not called.
    pub fn follow(&mut self, command: u32, next: u32) {
        debug_assert_eq!(self.command, command, "something else has begun");
        self.command = next;
    }

    /// A batch, or a command that was alone, has ended. `command`: its last command. `area`: where its pages were moved
    /// to, if they were.
    pub fn ended(&mut self, command: u32, area: Option<Area>) {
        self.answered(command);
        if let Some(taken) = area.and_then(|area| self.taken.get_mut(area.number)) {
            *taken = false;
        }
        if let Some(to_empty) = area.and_then(|area| self.to_empty.get_mut(area.number)) {
            *to_empty = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(number: usize, emptied: usize) -> Option<Area> {
        Some(Area { number, emptied })
    }

    #[test]
    fn the_agent_moves_one_batch_while_another_is_saved() {
        let mut under_way = UnderWay::default();
        assert!(under_way.is_nothing());
        assert_eq!((under_way.can_move(), under_way.begin(5)), (true, area(0, 1)));
        assert_eq!((under_way.command(), under_way.can_move(), under_way.begin(6)), (5, false, None));
        under_way.answered(5);
        assert!(!under_way.is_nothing());
        assert_eq!(under_way.begin(6), area(1, 1));
        under_way.answered(6);
        assert_eq!((under_way.command(), under_way.can_move(), under_way.begin(7)), (0, false, None));
        under_way.ended(5, area(0, 1));
        assert_eq!(under_way.begin(7), area(0, 1), "what the other area has is needed");
        under_way.ended(6, area(1, 1));
        assert_eq!(under_way.command(), 7, "the end of another batch");
        under_way.ended(7, area(0, 1));
        assert!(under_way.is_nothing());
        assert_eq!(under_way.begin(8), area(0, 2), "nobody needs what the other area has");
        under_way.ended(8, area(0, 2));
        assert_eq!(under_way.begin(9), area(0, 1), "which was emptied");
    }

    #[test]
    fn what_has_to_be_alone_is() {
        let mut under_way = UnderWay::default();
        assert!(under_way.begin_alone(1));
        assert!(!under_way.begin_alone(2) && under_way.begin(2).is_none());
        under_way.ended(1, None);
        let first = under_way.begin(2);
        assert!(!under_way.begin_alone(3));
        under_way.answered(2);
        assert!(!under_way.begin_alone(3), "a batch is being saved");
        under_way.ended(2, first);
        // A batch whose agent has more to do goes on with another command.
        let second = under_way.begin(4);
        under_way.follow(4, 5);
        assert_eq!((under_way.command(), under_way.can_move()), (5, false));
        under_way.ended(5, second);
        assert!(under_way.begin_alone(6));
    }
}
