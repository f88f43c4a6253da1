//! Asks many processes at once: one that is slow to answer does not delay the others.

use std::panic::resume_unwind;
use std::thread;

/// Calls `ask` for each, in a thread of its own, and returns the results in the order of `each`. Where the system starts no more
/// threads, the calling thread calls it.
pub fn ask<T: Sync, R: Send>(each: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let ask = &ask;
    thread::scope(|scope| {
        let start = |one| thread::Builder::new().spawn_scoped(scope, move || ask(one));
        let asked: Vec<_> = each.iter().map(start).collect();
        let answered = asked.into_iter().zip(each).map(|(asking, one)| match asking {
            Ok(asking) => asking.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => ask(one),
        });
        answered.collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_are_asked_before_one_has_answered() {
        let barrier = Barrier::new(3);
        let answers = ask(&[1, 2, 3], |number| {
            barrier.wait();
            number * 2
        });
        assert_eq!(answers, [2, 4, 6]);
    }
}
