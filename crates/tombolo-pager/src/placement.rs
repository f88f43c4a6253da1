//! Chooses the processors on which the evictor runs.
//!
//! While all faults happen on one processor (the *home*), the evictor runs on the others, so that it takes no time from the
//! program. The scheduler decides where the agent runs (decision 5).

use tombolo_host::process;

use crate::home::Home;

/// Remembers where the evictor was placed.
#[derive(Debug, Default)]
pub struct Placement {
    /// The home that the evictor keeps away from.
    home: Option<usize>,
}

impl Placement {
    /// Places the calling thread, the evictor, before a batch.
    pub fn arrange(&mut self, home: &Home) {
        let at = home.processor();
        if self.home == at {
            return;
        }
        self.home = at;
        // If the kernel does not allow it, only speed is lost.
        let _ = process::place_thread(0, &elsewhere(home.processors(), at));
    }
}

/// All processors but the home.
fn elsewhere(all: &[usize], home: Option<usize>) -> Vec<usize> {
    all.iter().copied().filter(|&processor| Some(processor) != home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evictor_keeps_away_from_the_home() {
        assert_eq!(elsewhere(&[1, 4, 6], None), [1, 4, 6]);
        assert_eq!(elsewhere(&[1, 4, 6], Some(4)), [1, 6]);
    }
}
