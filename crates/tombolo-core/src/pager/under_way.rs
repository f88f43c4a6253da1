//! What is under way in one space: pages on their way out, and the command that its agent has.
//!
//! A *batch* is pages of a space that leave together. Their agent moves them to an *area* of their program's, and answers; then the driver
//! reads them there and saves them. An agent has one command at a time, and there are [`AREAS`] areas: so while a batch is being saved, the
//! agent can move the next one.
//!
//! A command by which the agent touches pages where they are is *alone*: it begins when nothing else is under way, and nothing begins until it has
//! ended. Nothing begins, either, until a batch has ended of which the agent has pages to drop.

/// Areas of a space to which pages are moved.
pub const AREAS: usize = 2;

/// Where the pages of a batch are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The number of the area.
    pub number: usize,
    /// The number of areas, from that one on, that are emptied before: nothing that lies in them is needed.
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
    /// The command that nothing may follow yet; 0: none.
    command: u32,
    /// Areas that a batch has.
    taken: [bool; AREAS],
    /// Areas in which something lies, perhaps, that no batch needs any more.
    to_empty: [bool; AREAS],
}

impl UnderWay {
    /// The number of the command that the agent has or that is alone; 0: none.
    pub fn command(&self) -> u32 {
        self.command
    }

    /// Nothing is on its way out, and no agent has a command.
    pub fn is_nothing(&self) -> bool {
        self.command == 0 && self.taken == [false; AREAS]
    }

    /// The agent can be told to move pages.
    pub fn can_move(&self) -> bool {
        self.command == 0 && self.taken.contains(&false)
    }

    /// The agent gets this command, not 0, to move the pages of a batch. Returns the area to which it moves them.
    pub fn begin(&mut self, command: u32) -> Option<Area> {
        let number = self.taken.iter().position(|taken| !taken).filter(|_| self.command == 0)?;
        // The agent also empties the areas behind it that no batch has.
        let behind = self.taken.iter().zip(&self.to_empty).skip(number + 1);
        let emptied = 1 + behind.take_while(|(taken, to_empty)| !**taken && **to_empty).count();
        self.to_empty[number..number + emptied].fill(false);
        self.taken[number] = true;
        let area = Area { number, emptied };
        self.command = command;
        Some(area)
    }

    /// The agent gets this command, not 0, which has to be alone. Returns whether it is.
    pub fn begin_alone(&mut self, command: u32) -> bool {
        let is_alone = self.is_nothing();
        if is_alone {
            self.command = command;
        }
        is_alone
    }

    /// The agent has answered this command, and has nothing more to do for its batch: the next can begin.
    pub fn answered(&mut self, command: u32) {
        if self.command == command {
            self.command = 0;
        }
    }

    /// The agent gets another command for a batch whose last command was not said to be answered.
    pub fn follow(&mut self, command: u32, next: u32) {
        debug_assert_eq!(self.command, command, "something else has begun");
        self.command = next;
    }

    /// A batch has ended, whose last command this is, and where it was moved to.
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
