//! Reads ahead of need that come with one message.

use tombolo_core::store::{
    Action, Config, Ended, Io, JOINED_MOST, Lent, Newcomer, Piece, SlotId, Store, Ticket,
};

use super::MS;

/// A store over one lender without a window.
fn store() -> Store {
    let mut store = Store::new(Config { copies: 1, ..Config::default() });
    store.add_lender(Newcomer { host: 0, distance: 1, round_trip_ns: 1000 });
    store.grow_all();
    while let Some(action) = store.poll(0) {
        if let Action::Borrow { lender, pages } = action {
            store.lent(0, lender, Ok(Lent { segment: 1, pages, direct: None }));
        }
    }
    store
}

/// Slots whose pages follow each other at the lender.
fn stored(store: &mut Store, count: u32) -> Vec<SlotId> {
    let slots: Vec<SlotId> = (0..count).map(|_| store.take().expect("there is room").0).collect();
    for (staged, &slot) in (0..).zip(&slots) {
        store.write(&[Piece { slot, staged, checksum: Some(7) }]);
    }
    while let Some(action) = store.poll(0) {
        match action {
            Action::Write { io, .. } => store.completed(0, io, Ended::Done { checksum: 7 }),
            Action::Written { result, .. } => assert_eq!(result, Ok(())),
            _ => {}
        }
    }
    slots
}

fn read(store: &mut Store, slot: SlotId, is_awaited: bool) {
    assert!(store.share(slot));
    store.read(0, slot, Ticket { name: u64::from(slot), waited_since_ns: is_awaited.then_some(0) });
}

/// What is to be carried out: for each message, its first read and how many pages it reads.
fn messages(store: &mut Store, now_ns: u64) -> Vec<(Io, u32)> {
    let mut found = Vec::new();
    while let Some(action) = store.poll(now_ns) {
        if let Action::Read { io, pages, .. } = action {
            found.push((io, pages));
        }
    }
    found
}

fn sizes(messages: &[(Io, u32)]) -> Vec<u32> {
    messages.iter().map(|(_, pages)| *pages).collect()
}

#[test]
fn what_is_awaited_comes_alone_and_the_others_by_blocks() {
    let mut store = store();
    let slots = stored(&mut store, 20);
    read(&mut store, slots[0], true);
    slots[1..6].iter().for_each(|slot| read(&mut store, *slot, false));
    read(&mut store, slots[6], true);
    slots[7..18].iter().for_each(|slot| read(&mut store, *slot, false));
    // Buffers 0; 1 to 3; 4 and 5; 6; 7; 8 to 11; 12 to 15; 16 and 17.
    let found = messages(&mut store, 0);
    assert_eq!(sizes(&found), [1, 3, 2, 1, 1, JOINED_MOST, JOINED_MOST, 2]);
    let mut arrived = 0;
    for (io, pages) in found {
        (0..pages).for_each(|page| store.completed(0, io.offset(page), Ended::Done { checksum: 7 }));
    }
    while let Some(action) = store.poll(0) {
        if let Action::Arrived { buffer, .. } = action {
            store.buffer_done(0, buffer.expect("it is there"));
            arrived += 1;
        }
    }
    assert_eq!(arrived, 18);
    // Pages that do not follow each other.
    for slot in [slots[0], slots[2], slots[3], slots[1]] {
        read(&mut store, slot, false);
    }
    assert_eq!(sizes(&messages(&mut store, 0)), [1, 2, 1]);
}

/// One page that cannot be read costs its neighbours no more than a second attempt.
#[test]
fn what_could_not_be_read_is_tried_again_alone() {
    let mut store = store();
    let slots = stored(&mut store, 4);
    slots.iter().for_each(|slot| read(&mut store, *slot, false));
    let found = messages(&mut store, 0);
    assert_eq!(sizes(&found), [4]);
    (0..4).for_each(|page| store.completed(0, found[0].0.offset(page), Ended::Failed));
    assert_eq!(sizes(&messages(&mut store, 100 * MS)), [1; 4]);
}
