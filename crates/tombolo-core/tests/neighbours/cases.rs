//! One node alone, whose links a test makes and loses by hand.

use tombolo_core::fabric::neighbour::{
    Action, Change, DialOutcome, Event, Identity, LinkId, NeighbourId, Neighbours, Pauses, Proof,
};
use tombolo_core::rdma::Time;

use crate::world::SECOND;

fn key(byte: u8, life: u8) -> Identity {
    Identity { proof: Proof::Key([byte; 32]), life: [life; 16] }
}

fn actions(machine: &mut Neighbours) -> Vec<Action> {
    std::iter::from_fn(|| machine.poll()).collect()
}

#[test]
fn a_neighbour_is_joined_by_its_other_address_and_then_by_both() {
    let mut machine = Neighbours::new([5; 16], &[2], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, insist: false }) = machine.poll() else { panic!("no dial") };
    assert_eq!(dial.address(), 0);
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Failed));
    let later = machine.next_deadline().unwrap();
    machine.handle(later, Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no second dial") };
    assert_eq!(dial.address(), 1);
    machine.handle(later, Event::Dialed(dial, DialOutcome::Joined(LinkId(9), key(1, 1))));
    let neighbour = NeighbourId(0);
    let mut done = actions(&mut machine);
    let Some(Action::AddPath(path, LinkId(9))) = done.pop() else { panic!("no path: {done:?}") };
    assert_eq!(path.address(), 0);
    assert_eq!(done, [Action::Assign(neighbour, Some(LinkId(9))), Action::Report(neighbour, Change::Joined)]);
    machine.handle(later, Event::PathAdded(path, true));
    // The path is lost, and comes again; the neighbour stays joined.
    machine.handle(later, Event::PathLost(neighbour, 0));
    let later = machine.next_deadline().unwrap();
    machine.handle(later, Event::Elapsed);
    assert!(matches!(actions(&mut machine)[..], [Action::AddPath(..)]));
    assert_eq!(machine.link_of(neighbour), Some(LinkId(9)));
}

#[test]
fn a_neighbour_that_restarted_is_seen_by_its_life_and_one_that_is_silent_is_waited_for() {
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no dial") };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(1), key(1, 1))));
    let _ = actions(&mut machine);
    let now = Time(60 * SECOND);
    machine.handle(now, Event::Suspected(LinkId(1), true));
    for found in [None, Some(key(1, 1)), Some(key(1, 2))] {
        let later = machine.next_deadline().unwrap();
        machine.handle(later, Event::Elapsed);
        let Some(Action::Probe(probe)) = machine.poll() else { panic!("it is not asked") };
        assert_eq!(machine.poll(), None);
        machine.handle(later, Event::Probed(probe, found));
    }
    let done = actions(&mut machine);
    assert!(matches!(done[0], Action::Close(LinkId(1), _)), "{done:?}");
    assert!(matches!(done.last(), Some(Action::Dial { insist: false, .. })), "{done:?}");
}

#[test]
fn a_link_that_is_dead_on_one_side_gives_way_to_one_that_is_insisted_on() {
    // The side that has lost it.
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, insist: false }) = machine.poll() else { panic!("no dial") };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Refused(key(1, 1))));
    assert_eq!(machine.poll(), None);
    let soon = machine.next_deadline().unwrap();
    assert!(soon < Time(SECOND));
    machine.handle(soon, Event::Elapsed);
    assert!(matches!(machine.poll(), Some(Action::Dial { insist: true, .. })));
    // The side that still has it.
    let mut machine = Neighbours::new([5; 16], &[], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Came { link: LinkId(1), identity: key(1, 1), insists: false });
    machine.handle(Time(0), Event::Came { link: LinkId(2), identity: key(1, 1), insists: false });
    assert_eq!(actions(&mut machine), [Action::Answer(LinkId(1), true), Action::Answer(LinkId(2), false)]);
    machine.handle(Time(0), Event::Came { link: LinkId(3), identity: key(1, 1), insists: true });
    let done = actions(&mut machine);
    assert_eq!(done[0], Action::Answer(LinkId(3), true));
    assert!(matches!(done[1..], [Action::Close(LinkId(1), _)]), "{done:?}");
}

#[test]
fn what_nothing_proves_counts_for_nobody() {
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no dial") };
    let unproved = Identity { proof: Proof::Nothing, life: [1; 16] };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(1), unproved)));
    let _ = actions(&mut machine);
    machine.handle(Time(0), Event::Came { link: LinkId(2), identity: unproved, insists: true });
    assert_eq!(actions(&mut machine), [Action::Answer(LinkId(2), true)]);
    assert_eq!(machine.link_of(NeighbourId(0)), Some(LinkId(1)));
}

/// Nodes that are let in come and go a hundred times a second: the neighbour that is away is dialed at once for the first visit, and now
/// and then afterwards; when it comes itself, at once.
#[test]
fn those_who_come_again_and_again_do_not_keep_the_absent_dialed() {
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    let mut dials = Vec::new();
    for visit in 0..6000_u32 {
        let now = Time(u64::from(visit) * SECOND / 100);
        // The neighbour's pause is the longest by then.
        if visit >= 3000 {
            let (link, identity) = (LinkId(visit), key(100 + (visit % 100) as u8, 1));
            machine.handle(now, Event::Came { link, identity, insists: true });
            machine.handle(now, Event::Lost(link));
        }
        machine.handle(now, Event::Elapsed);
        for action in actions(&mut machine) {
            if let Action::Dial { dial, .. } = action {
                dials.push(visit);
                machine.handle(now, Event::Dialed(dial, DialOutcome::Failed));
            }
        }
    }
    assert!(dials.contains(&3000), "{dials:?}");
    let later = dials.iter().filter(|visit| **visit >= 3000).count();
    assert!((6..=20).contains(&later), "{dials:?}");

    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no dial") };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(1), key(1, 1))));
    machine.handle(Time(1), Event::Lost(LinkId(1)));
    let _ = actions(&mut machine);
    // Two others come, and then itself, which was started again: both its visits count.
    for (after, who, counts) in
        [(2, key(7, 1), true), (3, key(8, 1), false), (4, key(1, 2), true), (5, key(1, 3), true)]
    {
        machine.handle(
            Time(after),
            Event::Came { link: LinkId(10 + after as u32), identity: who, insists: false },
        );
        machine.handle(Time(after), Event::Lost(LinkId(10 + after as u32)));
        machine.handle(Time(after), Event::Elapsed);
        let mut is_dialed = false;
        for action in actions(&mut machine) {
            if let Action::Dial { dial, .. } = action {
                is_dialed = true;
                machine.handle(Time(after), Event::Dialed(dial, DialOutcome::Failed));
            }
        }
        assert_eq!(is_dialed, counts, "{who:?}");
    }
}
