//! The engine's loop: accepts links, drives all of them, serves programs' doorbells, runs the timers.
//!
//! It polls for a short while after the last packet and then sleeps. So answers come at once under load, and an idle
//! node costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_host::event;
use tombolo_host::timing::node as timing;
use tombolo_host::timing::node::TIMER_CHECK_ROUNDS;
use tombolo_host::unix::SeqpacketListener;
use tombolo_link::{AcceptError, Listener, LossReason};

use crate::driver::node::Node;
use crate::driver::quiet::Watch;
use crate::fabric::connection::Connection;
use crate::fabric::label::PeerLabel;
use crate::programs::callers;

/// Rounds without work between two calls that offer the processor to other threads, while polling. Such a call is a
/// system call and costs as much as several rounds. A bound, not a measurement.
const YIELD_ROUNDS: u32 = 4;
/// Number of rounds, after an access to a program's own memory was ordered or answered, in which each round without
/// work offers the processor to the threads that make the next access. Most accesses end within these rounds. A bound,
/// not a measurement.
const ACCESS_ROUNDS: u32 = 32;
/// Maximum number of links accepted in one turn.
const MAX_ACCEPTED: usize = 16;

/// A change of a link or a peer, for the caller of [`serve`].
#[derive(Debug)]
pub enum PeerEvent {
    /// A link came up. The peer has not introduced itself yet.
    Came(PeerLabel),
    /// A link was refused.
    Refused(String),
    /// A peer is gone: its label, the reason, and the number of bytes that it had borrowed.
    Gone(PeerLabel, String, u64),
    /// One of several links to a peer is gone: the peer's label, and the reason.
    PathGone(PeerLabel, String),
}

/// Maximum number of packets taken before answers are flushed, so that a peer that sends a stream gets answers. A
/// bound, not a measurement.
const MAX_UNANSWERED: usize = 4;
/// Turns of a program that drives the node itself between two checks of the timers. More than [`TIMER_CHECK_ROUNDS`],
/// because such a check also copies the list of connections and flushes each of them, on the program's own time. A
/// bound, not a measurement.
const TURNS: u32 = 64;

/// What a thread that drives a node by itself keeps between two turns.
#[derive(Debug, Default)]
pub struct Turn {
    connections: Vec<Arc<Connection>>,
    round: u32,
    next_tick: Option<Instant>,
    /// Packets taken whose answers may not have been sent yet.
    unanswered: usize,
}

impl Node {
    /// One round: serves doorbells and packets, and now and then timers. For a program that has a node of its own and
    /// polls. [`serve`] stands back meanwhile. Returns how much there was to do. Answers leave with the next packets,
    /// or in the next turn that finds nothing to do or checks the timers. Without `bells`, new bells stay for a later
    /// turn.
    pub fn turn(&self, turn: &mut Turn, bells: bool) -> usize {
        // The reader only needs to see a change.
        self.driven.store(self.driven.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if turn.round.is_multiple_of(TURNS) {
            turn.connections = self.peers();
            self.expire();
            turn.connections.iter().for_each(|connection| self.flush(connection));
            let now = Instant::now();
            if turn.next_tick.is_none_or(|next| now >= next) {
                self.watch_accesses();
                self.programs.leave_out_quiet();
                turn.next_tick =
                    Some(self.tick().unwrap_or(now + timing::MAX_SLEEP).min(now + timing::MAX_SLEEP));
            }
        }
        turn.round = turn.round.wrapping_add(1);
        let rung = if bells { self.serve_doorbells() } else { 0 };
        let busy = rung + self.take_accesses() + usize::from(self.finish());
        let taken: usize = turn.connections.iter().map(|connection| self.drive_lazily(connection)).sum();
        turn.unanswered += taken;
        // The sender of a stream must not have to pause to get its answers.
        if turn.unanswered >= MAX_UNANSWERED || (busy + taken == 0 && turn.unanswered > 0) {
            turn.unanswered = 0;
            for connection in &turn.connections {
                self.flush(connection);
            }
        }
        busy + taken
    }
}

/// Receives programs at a socket until `stop` is set. Runs on a thread of its own, because allocating takes time.
pub fn receive_programs(node: &Arc<Node>, listener: &SeqpacketListener, stop: &AtomicBool) {
    callers::receive(&node.programs, &node.fabric, &**node, listener, stop);
}

/// Runs the node's loop until `stop` is set. Calls `told` for each [`PeerEvent`].
pub fn serve(node: &Arc<Node>, listener: &dyn Listener, stop: &AtomicBool, told: &dyn Fn(PeerEvent)) {
    let _ = node.served.set(Arc::downgrade(node));
    // The watch takes all links from the node, so those that this node dialed are included.
    let others = [listener.descriptor(), node.programs.descriptor()];
    let mut watch = match Watch::new(node, &others) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::error!("links cannot be watched: {error}");
            return;
        }
    };
    let mut changes = (0, 0);
    let mut last_packet = Instant::now();
    let (mut next_tick, mut next_accept) = (Instant::now(), Instant::now());
    let (mut round, mut polling, mut busy, mut driven) = (0, false, 0, 0);
    // Number of accesses not yet answered, and for how many rounds that number has not changed.
    let (mut accesses, mut same_rounds) = (0, 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let fabric = &node.fabric;
        let changes_now =
            (fabric.arrivals.load(Ordering::Acquire), fabric.departures.load(Ordering::Acquire));
        if std::mem::replace(&mut changes, changes_now) != changes_now {
            watch.update(node.peers(), Instant::now());
            retire(node, &mut watch, told);
        }
        let driven_now = node.driven.load(Ordering::Relaxed);
        if std::mem::replace(&mut driven, driven_now) != driven_now {
            if has_pending_connection(listener) {
                accept(node, listener, &mut watch, told);
            }
            std::thread::sleep(timing::STAND_BY_PAUSE);
            continue;
        }
        let mut found = node.serve_doorbells() + node.take_accesses() + usize::from(node.finish());
        found += watch.drive(node);
        busy += found;
        round = (round + 1) % TIMER_CHECK_ROUNDS;
        // While the loop polls, everything else waits for a few rounds.
        if round != 0 && polling {
            // The thread that sends the next packet may run on this machine and need this processor. The access threads
            // of programs always run on this machine.
            let accesses_now = node.programs.accesses_underway();
            let is_same = std::mem::replace(&mut accesses, accesses_now) == accesses_now;
            same_rounds = if is_same { same_rounds.saturating_add(1) } else { 0 };
            let awaits_access = found == 0 && accesses > 0 && same_rounds < ACCESS_ROUNDS;
            if awaits_access || (busy == 0 && round.is_multiple_of(YIELD_ROUNDS)) {
                std::thread::yield_now();
            }
            continue;
        }
        let now = Instant::now();
        if now >= next_accept {
            if now >= next_tick || has_pending_connection(listener) {
                busy += accept(node, listener, &mut watch, told);
            }
            next_accept = now + timing::ACCEPT_PAUSE;
        }
        let mut sleep = node.expire().unwrap_or(timing::MAX_SLEEP).min(timing::MAX_SLEEP);
        if now >= next_tick {
            node.rounds.fetch_add(1, Ordering::Relaxed);
            node.watch_accesses();
            node.programs.leave_out_quiet();
            next_tick = node.tick().unwrap_or(now + timing::MAX_SLEEP).min(now + timing::MAX_SLEEP);
        }
        watch.rest(node, now, false);
        polling = true;
        if std::mem::take(&mut busy) > 0 {
            last_packet = now;
        }
        if now.duration_since(last_packet) < timing::POLL {
            // Check the quiet links once, so that each one with something to receive is driven.
            if watch.has_quiet() {
                watch.look(node, Duration::ZERO);
            }
            continue;
        }
        if !watch.rest(node, now, true) {
            last_packet = now;
            continue;
        }
        polling = false;
        if node.programs.fall_asleep() {
            node.programs.wake_up();
            last_packet = now;
            continue;
        }
        sleep = sleep.min(next_tick.saturating_duration_since(now));
        watch.look(node, sleep);
        node.programs.wake_up();
        next_accept = now;
    }
}

/// Forgets the connections that are gone.
fn retire(node: &Node, watch: &mut Watch, told: &dyn Fn(PeerEvent)) {
    watch.retain(|connection| {
        let Some(reason) = connection.loss() else { return true };
        let back = node.forget(connection);
        // The neighbourhood reports its neighbours and dials itself.
        if connection.own().is_wanted.load(Ordering::Relaxed) && back == 0 {
            return false;
        }
        told(match connection.is_part() {
            true => PeerEvent::PathGone(connection.label(), reason.to_string()),
            false => PeerEvent::Gone(connection.label(), reason.to_string(), back),
        });
        false
    });
}

/// Whether a connection waits to be accepted: a vain call of accept costs a hundred times as much as this check.
fn has_pending_connection(listener: &dyn Listener) -> bool {
    event::wait_readable(&[listener.descriptor()], Some(Duration::ZERO)) != Ok(false)
}

/// Accepts waiting links. Returns how many.
fn accept(node: &Node, listener: &dyn Listener, watch: &mut Watch, told: &dyn Fn(PeerEvent)) -> usize {
    let mut count = 0;
    // Links beyond this number wait: they keep the listener readable.
    while count < MAX_ACCEPTED {
        match listener.accept() {
            Ok(Some(link)) => {
                match watch.shares.admit(&*link) {
                    Ok(()) => {
                        let connection = node.add_peer(link);
                        told(PeerEvent::Came(connection.label()));
                        watch.update(vec![connection], Instant::now());
                    }
                    Err(refused) => {
                        // Limits the log entries that a peer can cause by connecting again and again.
                        if watch.is_news(Instant::now()) {
                            told(PeerEvent::Refused(refused.to_string()));
                        }
                        link.close(LossReason::TooManyLinks);
                    }
                }
                count += 1;
            }
            Ok(None) => break,
            Err(error) => {
                told(PeerEvent::Refused(error.to_string()));
                // A refused connection does not end the loop: the next one is accepted at once.
                if matches!(error, AcceptError::Open(_)) {
                    break;
                }
                count += 1;
            }
        }
    }
    node.listener_stats.note(listener.counters());
    count
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::memory::allocation::allocate;
    use crate::memory::blocking::Owner;
    use crate::memory::reclaim::Segment;

    #[test]
    fn what_came_back_is_told_though_the_neighbourhood_has_forgotten_its_link() {
        let node = Node::new("lender", 1 << 20, 0).unwrap();
        let (near, _far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        let room = node.lending.ledger.lock().reserve(4096).unwrap();
        let memory = Arc::new(allocate(4096).unwrap());
        let segment = Segment::new(memory, room, node.lending.reclaimer(Owner::Peer(peer.id)));
        node.lending.ledger.lock().enter(peer.id, segment).unwrap();
        peer.neighbour().is_wanted.store(true, Ordering::Relaxed);
        let mut watch = Watch::new(&node, &[]).unwrap();
        watch.update(node.peers(), Instant::now());
        // The neighbourhood does this when it closes one of two links to a neighbour.
        node.link_lost(&peer, LossReason::Restarted);
        assert_eq!(node.forget(&peer), 4096);
        let told = RefCell::new(Vec::new());
        retire(&node, &mut watch, &|event| told.borrow_mut().push(event));
        let told = told.into_inner();
        assert!(matches!(told[..], [PeerEvent::Gone(_, _, 4096)]), "{told:?}");
    }
}
