//! Who goes first, and how much at once (QOS §3.2.3, 3.3). No wire: the tests
//! look at what the engine hands out, and answer by hand.

use crate::bench::{BASE, DOMAIN, OTHER};
use tombolo_core::rdma::{
    Action, Block, BlockNotification, Class, Config, Direction, Engine, PeerId, Time, Transfer,
};
use tombolo_wire::{Ack, Notification, Packet};

const KIB: u32 = 1024;
const NOW: Time = Time(1);

fn engine(config: Config) -> Engine {
    let mut engine = Engine::new(Config { congestion: None, ..config });
    engine.add_peer(NOW, OTHER);
    engine
}

/// Post a write; `user` is also its source address, to know its blocks by.
fn post(engine: &mut Engine, user: u64, size_bytes: u32, class: Option<Class>) {
    let transfer = Transfer {
        direction: Direction::Write,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: user << 32,
        destination_address: BASE,
        size_bytes,
        notification: None,
        class,
        user,
    };
    engine.post(NOW, OTHER, transfer).expect("room");
}

fn next_block(engine: &mut Engine) -> Option<Block> {
    while let Some(action) = engine.poll(NOW) {
        if let Action::SendBlock(block) = action {
            return Some(block);
        }
    }
    None
}

fn user(block: &Block) -> u64 {
    block.source_address >> 32
}

fn acknowledge(engine: &mut Engine, block: &Block) {
    let ack = Ack {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        bytes_only: false,
    };
    let _ = engine.handle(NOW, OTHER, &Packet::Ack(ack));
}

/// All blocks in the order they are handed out, each acknowledged at once.
fn order(engine: &mut Engine) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(block) = next_block(engine) {
        order.push(user(&block));
        acknowledge(engine, &block);
    }
    order
}

#[test]
fn a_transfer_has_two_blocks_under_way() {
    let mut engine = engine(Config::default());
    post(&mut engine, 1, 1024 * KIB, None);
    let first = next_block(&mut engine).expect("a block");
    assert!(next_block(&mut engine).is_some());
    assert_eq!(next_block(&mut engine), None);
    acknowledge(&mut engine, &first);
    assert!(next_block(&mut engine).is_some());
    assert_eq!(next_block(&mut engine), None);
}

#[test]
fn classes_go_in_strict_order() {
    let config = Config { bypass: false, ..Config::default() };
    let mut engine = engine(config);
    post(&mut engine, 3, 600 * KIB, None);
    post(&mut engine, 2, 100 * KIB, None);
    post(&mut engine, 1, 4 * KIB, None);
    let first: Vec<u64> = (0..5).map(|_| user(&next_block(&mut engine).expect("a block"))).collect();
    assert_eq!(first, [1, 2, 2, 3, 3]);
}

#[test]
fn a_class_is_served_round_robin_in_turns_of_two() {
    let mut engine = engine(Config { outstanding_blocks: 64, ..Config::default() });
    for user in 1..4 {
        post(&mut engine, user, 600 * KIB, None);
    }
    let first: Vec<u64> = (0..8).map(|_| user(&next_block(&mut engine).expect("a block"))).collect();
    assert_eq!(first, [1, 1, 2, 2, 3, 3, 1, 1]);
}

#[test]
fn a_transfer_rises_as_it_shrinks() {
    let mut engine = engine(Config::default());
    post(&mut engine, 1, 1024 * KIB, None);
    assert_eq!(order(&mut engine).len(), 64);
    // 1024 to 528 KiB left: low; 512 to 32 KiB: medium; the last 16 KiB: high.
    assert_eq!(engine.counters().blocks_by_class, [1, 31, 32]);
}

#[test]
fn a_hint_holds_for_life() {
    let mut engine = engine(Config::default());
    post(&mut engine, 1, 1024 * KIB, Some(Class::Medium));
    post(&mut engine, 2, 4 * KIB, Some(Class::Low));
    assert_eq!(order(&mut engine).len(), 65);
    assert_eq!(engine.counters().blocks_by_class, [0, 64, 1]);
    assert_eq!(engine.counters().bypasses, 0);
}

#[test]
fn a_lone_small_transfer_skips_the_queue() {
    let mut engine = engine(Config::default());
    post(&mut engine, 1, 1024 * KIB, None);
    post(&mut engine, 2, 4 * KIB, None);
    assert_eq!(engine.counters().bypasses, 1);
    assert_eq!(next_block(&mut engine).map(|block| user(&block)), Some(2));
}

#[test]
fn a_peer_without_packets_may_have_longer_blocks() {
    let config = Config {
        throttled_block_bytes: 4 * KIB,
        small_transfer_memory_ns: 1000,
        throttled_outstanding_blocks: 1,
        ..Config::default()
    };
    let mut engine = engine(config);
    for (asked, length) in [(64 * KIB, 64 * KIB), (100 * KIB, 64 * KIB), (u32::MAX, 1024 * KIB), (0, 256)] {
        engine.add_loopback_peer(NOW, OTHER, asked);
        post(&mut engine, 9, 4096 * KIB, None);
        let block = next_block(&mut engine).expect("a block");
        assert_eq!(block.length_bytes, length);
    }
    engine.add_loopback_peer(NOW, OTHER, 64 * KIB);
    // All of one to its end, with small ones from its middle on.
    post(&mut engine, 9, 512 * KIB + 5, None);
    let mut lengths = Vec::new();
    while let Some(block) = next_block(&mut engine) {
        acknowledge(&mut engine, &block);
        if user(&block) == 9 {
            lengths.push(block.length_bytes);
        }
        if lengths.len() == 4 {
            post(&mut engine, 1, 64, None);
        }
    }
    assert!(engine.is_idle());
    assert_eq!(lengths.iter().sum::<u32>(), 512 * KIB + 5);
    assert_eq!((&lengths[..4], lengths[4], lengths.last()), ([64 * KIB; 4].as_slice(), 4 * KIB, Some(&5)));
    post(&mut engine, 1, 64, None);
    assert_eq!(next_block(&mut engine).map(|block| block.length_bytes), Some(64));
    post(&mut engine, 9, 4096 * KIB, None);
    assert_eq!(next_block(&mut engine).map(|block| block.length_bytes), Some(4 * KIB));
}

/// The blocks that a large transfer may have under way: of which lengths, at that time.
fn under_way(engine: &mut Engine, now: Time) -> Vec<u32> {
    let blocks = std::iter::from_fn(|| engine.poll(now)).filter_map(|action| match action {
        Action::SendBlock(block) if user(&block) == 9 => Some(block.length_bytes),
        _ => None,
    });
    blocks.collect()
}

#[test]
fn while_small_ones_come_large_ones_keep_to_less() {
    let config = Config {
        outstanding_blocks: 4,
        throttled_outstanding_blocks: 1,
        throttled_block_bytes: 4 * KIB,
        throttled_block_ns: 10_000,
        small_transfer_memory_ns: 1_000_000,
        ..Config::default()
    };
    let start = |round_trip_ns: Option<u64>| {
        let mut engine = Engine::new(config);
        engine.add_peer(NOW, OTHER);
        if let Some(ns) = round_trip_ns {
            post(&mut engine, 1, 64, None);
            let block = next_block(&mut engine).expect("a block");
            let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
            let ack = Packet::Ack(Ack { transaction, generation, attempt, bytes_only: false });
            let _ = engine.handle(NOW.after_ns(ns), OTHER, &ack);
        }
        post(&mut engine, 9, 1024 * KIB, None);
        engine
    };
    // None came, some came, and none came for a while.
    assert_eq!(under_way(&mut start(None), NOW), [16 * KIB; 4]);
    assert_eq!(under_way(&mut start(Some(500)), NOW), [4 * KIB]);
    assert_eq!(under_way(&mut start(Some(500)), NOW.after_ns(1_000_000)), [16 * KIB; 4]);
    // The further away the peer is, the more; no more bytes than otherwise.
    assert_eq!(under_way(&mut start(Some(30_000)), NOW), [4 * KIB; 3]);
    assert_eq!(under_way(&mut start(Some(900_000)), NOW), [4 * KIB; 16]);
}

/// Small transfers without end, and one large transfer beside them.
fn longest_wait_of_the_large(config: Config) -> u32 {
    let mut engine = engine(config);
    post(&mut engine, 9, 4096 * KIB, Some(Class::Low));
    post(&mut engine, 8, 4096 * KIB, Some(Class::Medium));
    let (mut waits, mut longest) = (0, 0);
    // As many small ones come as blocks go: there is always one waiting.
    post(&mut engine, 1, 4 * KIB, None);
    for number in 0..3000 {
        post(&mut engine, number % 8, 4 * KIB, None);
        let block = next_block(&mut engine).expect("a block");
        acknowledge(&mut engine, &block);
        waits = if user(&block) == 9 { 0 } else { waits + 1 };
        longest = waits.max(longest);
        if engine.counters().blocks_by_class[2] == 256 {
            break;
        }
        while engine.counters().transfers_posted - engine.counters().transfers_done > 500 {
            let block = next_block(&mut engine).expect("a block");
            acknowledge(&mut engine, &block);
            waits = if user(&block) == 9 { 0 } else { waits + 1 };
            longest = waits.max(longest);
        }
    }
    longest
}

#[test]
fn starvation_is_bounded() {
    for bypass in [false, true] {
        let config = Config { starvation_blocks: 10, bypass, ..Config::default() };
        assert!(longest_wait_of_the_large(config) <= 10);
    }
}

/// The twin: with no bound to speak of, strict order does starve.
#[test]
fn without_the_bound_the_large_one_starves() {
    let config = Config { starvation_blocks: 1 << 20, bypass: false, ..Config::default() };
    assert!(longest_wait_of_the_large(config) > 1000);
}

#[test]
fn slots_are_used_again_with_another_generation() {
    let mut engine = engine(Config { transactions: 2, ..Config::default() });
    let mut seen = Vec::new();
    for number in 0..100 {
        post(&mut engine, number, 16 * KIB, None);
        let block = next_block(&mut engine).expect("a block");
        assert!(block.transaction.0 < 2);
        seen.push((block.transaction, block.generation));
        acknowledge(&mut engine, &block);
        // The same acknowledgement again says nothing about the slot's next use.
        acknowledge(&mut engine, &block);
    }
    assert_eq!(engine.counters().stale_answers, 100);
    let all = seen.len();
    seen.sort_unstable_by_key(|(slot, generation)| (slot.0, generation.0));
    seen.dedup();
    assert_eq!(seen.len(), all, "a block's name came twice");
}

#[test]
fn a_full_table_of_transactions_is_back_pressure() {
    // One peer has no more slots than it leaves free before it takes one.
    let config = Config { transactions: 4, transfers: 8, ..Config::default() };
    let mut engine = engine(config);
    for number in 0..8 {
        post(&mut engine, number, 4 * KIB, None);
    }
    let blocks: Vec<Block> = std::iter::from_fn(|| next_block(&mut engine)).collect();
    assert_eq!(blocks.len(), 3);
    for block in &blocks {
        acknowledge(&mut engine, block);
    }
    assert_eq!(order(&mut engine).len(), 5);
    assert!(engine.is_idle());
}

#[test]
fn peers_that_answer_nothing_leave_slots_to_others() {
    for bypass in [false, true] {
        let mut engine = engine(Config { transactions: 64, bypass, ..Config::default() });
        let honest = PeerId(9);
        let silent = [OTHER, PeerId(7), PeerId(8)];
        for peer in [PeerId(7), PeerId(8), honest] {
            engine.add_peer(NOW, peer);
        }
        let transfer = |user| Transfer {
            direction: Direction::Write,
            domain: DOMAIN,
            own_domain: DOMAIN,
            source_address: user << 32,
            destination_address: BASE,
            size_bytes: 16 * KIB,
            notification: None,
            class: None,
            user,
        };
        let mut unanswered = Vec::new();
        for peer in silent {
            for user in 0..100 {
                engine.post(NOW, peer, transfer(user)).expect("room");
            }
            unanswered.extend(std::iter::from_fn(|| next_block(&mut engine)));
        }
        assert!(unanswered.len() < 64);
        for user in 0..100 {
            engine.post(NOW, honest, transfer(user)).expect("room");
            let block = next_block(&mut engine).expect("a slot");
            assert_eq!(block.peer, honest);
            let ack = Ack {
                transaction: block.transaction,
                generation: block.generation,
                attempt: block.attempt,
                bytes_only: false,
            };
            let _ = engine.handle(NOW, honest, &Packet::Ack(ack));
        }
        // What was held back goes on when others are gone.
        for peer in silent {
            engine.peer_lost(NOW, peer);
        }
        assert_eq!(std::iter::from_fn(|| next_block(&mut engine)).count(), 0);
        assert!(engine.is_idle());
    }
}

#[test]
fn who_was_held_back_goes_on_when_others_have_fewer_slots() {
    let mut engine = engine(Config { transactions: 8, ..Config::default() });
    let held_back = PeerId(7);
    engine.add_peer(NOW, held_back);
    for number in 0..20 {
        post(&mut engine, number, 16 * KIB, None);
    }
    let first: Vec<Block> = std::iter::from_fn(|| next_block(&mut engine)).collect();
    for user in 0..20 {
        let transfer = Transfer {
            direction: Direction::Write,
            domain: DOMAIN,
            own_domain: DOMAIN,
            source_address: user << 32,
            destination_address: BASE,
            size_bytes: 16 * KIB,
            notification: None,
            class: None,
            user,
        };
        engine.post(NOW, held_back, transfer).expect("room");
    }
    let before = std::iter::from_fn(|| next_block(&mut engine)).count();
    engine.peer_lost(NOW, OTHER);
    let after = std::iter::from_fn(|| next_block(&mut engine)).count();
    assert_eq!((first.len(), before, before + after), (5, 2, 5));
}

#[test]
fn the_notification_goes_with_a_single_block() {
    let mut engine = engine(Config::default());
    let words = Notification { address: BASE, first: 1, last: 2 };
    let transfer = Transfer {
        direction: Direction::Write,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: 0,
        destination_address: BASE,
        size_bytes: 16 * KIB,
        notification: Some(words),
        class: None,
        user: 0,
    };
    engine.post(NOW, OTHER, transfer).expect("room");
    let block = next_block(&mut engine).expect("a block");
    assert_eq!(block.notification, BlockNotification::Now(words));
    // Two blocks: it comes behind the last, to be written after both (QOS §3.2.6).
    engine.post(NOW, OTHER, Transfer { size_bytes: 32 * KIB, ..transfer }).expect("room");
    let first = next_block(&mut engine).expect("a block");
    let last = next_block(&mut engine).expect("a block");
    assert_eq!(first.notification, BlockNotification::None);
    assert_eq!(last.notification, BlockNotification::Later);
    let Some(Action::Send { packet: Packet::NotifyAfter(notify, earlier), .. }) = engine.poll(NOW) else {
        panic!("the notification goes behind the last block");
    };
    assert_eq!((notify.transaction, notify.notification), (last.transaction, words));
    assert_eq!(earlier.iter().collect::<Vec<_>>(), [(first.transaction, first.generation)]);
    // Once it is there, it need not go again when the first block is acknowledged.
    acknowledge(&mut engine, &first);
    assert_eq!(engine.poll(NOW), None);
    // If it is not, or had to wait for too long, the answer to the last block says so.
    let bytes_only = Ack {
        transaction: last.transaction,
        generation: last.generation,
        attempt: last.attempt,
        bytes_only: true,
    };
    let _ = engine.handle(NOW, OTHER, &Packet::Ack(bytes_only));
    let Some(Action::Send { packet: Packet::Notify(again), .. }) = engine.poll(NOW) else {
        panic!("the notification is due");
    };
    assert_eq!((again.transaction, again.notification), (last.transaction, words));
    acknowledge(&mut engine, &last);
    assert!(matches!(engine.poll(NOW), Some(Action::Complete(_))));
    // With three, the last block is not issued before the first is acknowledged,
    // and if the second is too, the last one carries it.
    engine.post(NOW, OTHER, Transfer { size_bytes: 48 * KIB, ..transfer }).expect("room");
    let first = next_block(&mut engine).expect("a block");
    let second = next_block(&mut engine).expect("a block");
    acknowledge(&mut engine, &first);
    acknowledge(&mut engine, &second);
    let last = next_block(&mut engine).expect("a block");
    assert_eq!(last.notification, BlockNotification::Now(words));
}

/// What follows the last block of a transfer with a notification, with this number of blocks under way at once.
fn behind_the_last(blocks: u32, here: bool) -> Option<Action> {
    let mut engine = engine(Config { outstanding_blocks: blocks, bypass: false, ..Config::default() });
    if here {
        engine.add_loopback_peer(NOW, OTHER, 16 * KIB);
    }
    let transfer = Transfer {
        direction: Direction::Write,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: 0,
        destination_address: BASE,
        size_bytes: blocks * 16 * KIB,
        notification: Some(Notification { address: BASE, first: 1, last: 2 }),
        class: None,
        user: 0,
    };
    engine.post(NOW, OTHER, transfer).expect("room");
    for _ in 0..blocks {
        assert!(matches!(engine.poll(NOW), Some(Action::SendBlock(_))));
    }
    engine.poll(NOW)
}

#[test]
fn a_list_is_sent_only_where_it_is_short_and_of_use() {
    let listed = |action: Option<Action>| match action {
        Some(Action::Send { packet: Packet::NotifyAfter(_, earlier), .. }) => Some(earlier.iter().count()),
        None => None,
        other => panic!("unexpected: {other:?}"),
    };
    assert_eq!(listed(behind_the_last(2, false)), Some(1));
    assert_eq!(listed(behind_the_last(16, false)), Some(15));
    assert_eq!(listed(behind_the_last(17, false)), None, "too many");
    assert_eq!(listed(behind_the_last(2, true)), None, "nobody is there to look at it");
}

/// How many other blocks go before one that was lost, while small transfers come without end.
fn wait_of_a_resend(config: Config) -> u32 {
    let mut engine = engine(config);
    post(&mut engine, 9, 16 * KIB, Some(Class::Low));
    let lost = next_block(&mut engine).expect("a block");
    let later = engine.deadline().expect("a timer");
    engine.expire(later);
    for waits in 0..1000 {
        post(&mut engine, 1, 64, None);
        let Some(Action::SendBlock(block)) = engine.poll(later) else { panic!("a block is due") };
        if block.transaction == lost.transaction && block.generation == lost.generation {
            return waits;
        }
        acknowledge(&mut engine, &block);
        assert!(matches!(engine.poll(later), Some(Action::Complete(_))));
    }
    panic!("the lost block was not sent again")
}

#[test]
fn small_transfers_do_not_starve_what_goes_again() {
    for starvation_blocks in [1, 10] {
        let config = Config { starvation_blocks, ..Config::default() };
        assert!(wait_of_a_resend(config) <= starvation_blocks);
    }
}
