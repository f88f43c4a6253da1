//! Drains of one of two lenders, step by step.

use tombolo_core::store::{
    Action, Config, Ended, Io, LenderId, Lent, Newcomer, Piece, Refused, SlotId, Store, Ticket,
};

use super::{MS, S, US};

/// A store over two lenders that answer at once, but for reads, which are held back.
struct Two {
    store: Store,
    reads: Vec<Io>,
    /// This one gives nothing more.
    refuses: Option<(LenderId, Refused)>,
    segments: u64,
    is_drained: bool,
}

impl Two {
    fn new() -> Self {
        let mut store = Store::new(Config { copies: 2, has_direct_writes: false, ..Config::default() });
        for host in 0..2 {
            store.add_lender(Newcomer { host, distance: 1, round_trip_ns: 100 * US });
        }
        Self { store, reads: Vec::new(), refuses: None, segments: 0, is_drained: false }
    }

    fn settle(&mut self, now_ns: u64) {
        while let Some(action) = self.store.poll(now_ns) {
            match action {
                Action::Borrow { lender, pages } => {
                    self.segments += 1;
                    let lent = Lent { segment: self.segments, pages, direct: None };
                    let refused = self.refuses.filter(|(of, _)| *of == lender).map(|(_, how)| how);
                    self.store.lent(now_ns, lender, refused.map_or(Ok(lent), Err));
                }
                Action::Write { io, .. } => {
                    self.store.completed(now_ns, io, Ended::Done { checksum: 7 });
                }
                Action::Read { io, pages, .. } => self.reads.extend((0..pages).map(|page| io.offset(page))),
                Action::Drained { .. } => self.is_drained = true,
                Action::Arrived { buffer, .. } => self.store.buffer_done(now_ns, buffer.expect("it is read")),
                Action::Written { result, .. } => assert_eq!(result, Ok(())),
                Action::GiveBack { .. } => {}
            }
        }
    }

    fn stored(&mut self) -> SlotId {
        let slot = (0..10).find_map(|_| {
            let taken = self.store.take().ok();
            self.settle(0);
            taken
        });
        let (slot, _) = slot.expect("there is room");
        self.store.write(&[Piece { slot, staged: 0, checksum: Some(7) }]);
        self.settle(0);
        slot
    }
}

/// What is at a lender that is drained is given up if it is at the only other one, too: also if that was looked at while
/// another slot was just being freed.
#[test]
fn a_drain_without_a_third_lender_ends() {
    for is_freeing in [false, true] {
        let mut two = Two::new();
        let (slot, other) = (two.stored(), two.stored());
        assert!(two.store.places(slot).iter().all(Option::is_some));
        if is_freeing {
            // It is freed when its read has ended.
            two.store.read(0, other, Ticket { name: 1, waited_since_ns: Some(0) });
            two.settle(0);
        }
        two.store.release(other);
        two.store.drain(LenderId(0)).expect("there is another one");
        two.settle(S);
        assert_eq!(two.is_drained, !is_freeing);
        for io in std::mem::take(&mut two.reads) {
            two.store.completed(2 * S, io, Ended::Done { checksum: 7 });
        }
        two.settle(2 * S);
        assert!(two.is_drained, "it waits for ever: {}", two.store.under_way());
        two.store.release(slot);
    }
}

/// That the other lender has once failed to give more is no reason to wait for it: what is drained has a copy there.
#[test]
fn a_drain_does_not_wait_for_what_is_not_asked_for_any_more() {
    let mut two = Two::new();
    let slots: Vec<SlotId> = (0..10).map(|_| two.stored()).collect();
    two.refuses = Some((LenderId(1), Refused::Failed));
    let mut more = Vec::new();
    // Until it was asked for more, and has failed.
    let asked = two.segments;
    while two.segments < asked + 2 {
        more.push(two.stored());
        assert!(more.len() < 100_000);
    }
    // There is much room again: it is not asked any more.
    more.into_iter().for_each(|slot| two.store.release(slot));
    two.settle(S);
    two.store.drain(LenderId(0)).expect("there is another one");
    for second in 2..10 {
        two.settle(second * S);
    }
    assert!(two.is_drained, "it waits for ever: {}", two.store.under_way());
    assert!(slots.iter().all(|slot| two.store.places(*slot).iter().flatten().count() == 1));
}

/// A lender that is silent may be dead: the copy at one that is drained is then the only one.
#[test]
fn a_drain_keeps_copies_while_the_other_lender_is_silent() {
    let mut two = Two::new();
    let mut slots = vec![two.stored()];
    two.refuses = Some((LenderId(1), Refused::HasOnly(0)));
    // All that it has is taken.
    while two.store.lender(LenderId(1)).is_some_and(|status| status.used_pages < status.borrowed_pages) {
        slots.push(two.stored());
    }
    two.store.set_suspect(0, LenderId(1), true);
    assert!(two.store.drain(LenderId(0)).is_err(), "there is none that is heard");
    two.store.set_suspect(0, LenderId(1), false);
    two.settle(S);
    // A path to it is lost, and with it what it was asked for; then it is silent.
    two.refuses = Some((LenderId(1), Refused::Failed));
    two.settle(2 * S);
    two.store.drain(LenderId(0)).expect("it is heard");
    two.store.set_suspect(2 * S, LenderId(1), true);
    for moment in 0..40 {
        two.settle(2 * S + moment * 70 * MS);
        let is_at_first = |slot: &SlotId| {
            two.store.places(*slot).into_iter().flatten().any(|place| place.lender() == LenderId(0))
        };
        assert!(slots.iter().all(is_at_first), "the only copy that is safe was given up");
    }
    two.store.set_suspect(5 * S, LenderId(1), false);
    for second in 5..10 {
        two.settle(second * S);
    }
    assert!(two.is_drained, "it waits for ever: {}", two.store.under_way());
}
