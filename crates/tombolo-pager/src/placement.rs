//! On which processors evictions happen.
//!
//! While all faults are on one processor (the *home*), the evictor works
//! elsewhere. The agent shares the program's page tables. Next to the program it
//! changes them without interrupting another processor, and the pages that it
//! frees are the next to be allocated there, still in the cache; elsewhere it
//! does not take the program's time. Moving pages out is a long change: next to
//! the program it is cheaper by more than the time it takes. Dropping clean pages
//! is a short one, and is better done elsewhere.

use tombolo_host::process;

use crate::home::Home;

/// Of 1024; a batch counts for an eighth of the average.
const WHOLE: u32 = 1024;
const WEIGHT: u32 = 8;

/// Where the evictor and the agent it works with are.
#[derive(Debug, Default)]
pub struct Placement {
    /// How much of the latest batches was moved out rather than dropped.
    moved: u32,
    /// The agent, the home and whether the agent is there.
    current: Option<(u32, Option<usize>, bool)>,
}

impl Placement {
    /// Before a batch of `pages`, of which `moves` are moved out, is given to the agent. None: who
    /// that is, is not known.
    pub fn arrange(&mut self, home: &Home, agent: Option<u32>, moves: usize, pages: usize) {
        let Some(agent) = agent else { return };
        let share = (moves * WHOLE as usize / pages.max(1)) as u32;
        self.moved = (self.moved * (WEIGHT - 1) + share) / WEIGHT;
        let at = home.processor();
        let near = self.moved > WHOLE / 2;
        if self.current.replace((agent, at, near)) == Some((agent, at, near)) {
            return;
        }
        let (agents, ours) = choose(home.processors(), at, near);
        // Not being allowed to costs speed only.
        let _ = process::place_thread(agent, &agents);
        let _ = process::place_thread(0, &ours);
    }
}

/// The processors for the agent, and for the evictor.
fn choose(all: &[usize], home: Option<usize>, near: bool) -> (Vec<usize>, Vec<usize>) {
    let Some(home) = home else { return (all.to_vec(), all.to_vec()) };
    let others: Vec<usize> = all.iter().copied().filter(|&processor| processor != home).collect();
    if near { (vec![home], others) } else { (all.to_vec(), others) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_next_to_the_program_only_while_it_moves_pages() {
        assert_eq!(choose(&[1, 4, 6], None, true), (vec![1, 4, 6], vec![1, 4, 6]));
        assert_eq!(choose(&[1, 4, 6], Some(4), true), (vec![4], vec![1, 6]));
        assert_eq!(choose(&[1, 4, 6], Some(4), false), (vec![1, 4, 6], vec![1, 6]));
    }

    #[test]
    fn the_latest_batches_decide() {
        let (home, mut placement) = (Home::new(&[0], 1), Placement::default());
        // Nobody has this thread number.
        let mut near = |moves| {
            placement.arrange(&home, Some(u32::MAX / 2), moves, 100);
            placement.current.is_some_and(|(_, _, near)| near)
        };
        assert!(!near(100));
        assert!((0..8).map(|_| near(100)).last().unwrap_or_default());
        assert!(near(0));
        assert!(!(0..8).map(|_| near(0)).last().unwrap_or(true));
    }
}
