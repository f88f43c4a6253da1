//! Programs attempt accesses, bring pages in, and say how that went.

use super::{Attempt, HANG_NS, Left, Order};
use crate::engine::{BASE, Bench, Event, NODES};
use tombolo_core::iommu::{AccessId, ContextId, Outcome, Reason, Right, TouchId, Unreached};
use tombolo_core::rdma::Time;

impl Bench {
    /// The program attempts an access, and says how it went.
    pub(in crate::engine) fn attempt(&mut self, node: usize, context: ContextId, id: AccessId, how: Attempt) {
        let now = self.now();
        // If its program is gone, nobody copies.
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(node, later, Event::Attempt { context, access: id, how });
        }
        if let Attempt::Brought(..) | Attempt::Behind = how {
            let Some(place) = program.bringing.iter().position(|(known, _)| *known == id) else {
                // It was withdrawn.
                return;
            };
            program.bringing.remove(place);
        } else if let Some(time) = self.waits_until(node, context, id) {
            return self.at(node, time, Event::Attempt { context, access: id, how: Attempt::Behind });
        }
        let faults = self.own_faults.expect("programs' own memory");
        let has_thread = how == Attempt::Bringing && self.kernel.random(NODES[node]).one_in(2);
        let mut delay_ns = self.kernel.random(NODES[node]).below(faults.touch_ns.max(1));
        if has_thread && self.kernel.random(NODES[node]).per_million(faults.hanging) {
            delay_ns += HANG_NS;
        }
        let host = self.host(node);
        let left = host.own.with(id).expect("what is copied stays until that was answered");
        let (at, look, right) = (left.at, left.look, left.right);
        let range = host.ranges[&left.range];
        assert!(!range.is_free, "an access to memory that is its program's again");
        let program = &mut host.programs[left.program];
        assert_eq!(program.context, context);
        let outcome = match program.look(look, right) {
            Err(unreached) => Outcome::Denied(unreached),
            Ok(Some((absent, kind))) if has_thread => {
                let time = now.after_ns(delay_ns);
                program.bringing.push((id, time));
                let how = Attempt::Brought(absent, kind);
                return self.at(node, time, Event::Attempt { context, access: id, how });
            }
            Ok(Some((absent, kind)))
                if matches!(how, Attempt::Plain | Attempt::Bringing | Attempt::Behind) =>
            {
                Outcome::Absent(absent, kind)
            }
            Ok(_) => {
                program.bring(at.0, at.1, right).expect("it was looked at");
                self.carry_out(node, id)
            }
        };
        let outcome = match (how, outcome) {
            (Attempt::Brought(pages, kind), Outcome::Done(before)) => {
                Outcome::Brought { before, pages, kind }
            }
            (_, outcome) => outcome,
        };
        if matches!(outcome, Outcome::Denied(_)) {
            self.carry_out_part(node, id);
        }
        let now = self.now();
        self.order_answered(node, context);
        self.host(node).own.attempted(now, context, id, outcome);
        if self.lies(node) {
            self.drain();
            let invented = AccessId(self.kernel.random(NODES[node]).below(100) + (1 << 40));
            self.host(node).own.attempted(now, context, invented, Outcome::Done(7));
            // What is ordered once more is attempted then; a lie about it would be one about its bytes.
            let mut waiting = self.kernel.messages();
            let is_ordered = waiting.any(|(to, event)| {
                to == NODES[node] && matches!(event, Event::Attempt { access, .. } if *access == id)
            });
            drop(waiting);
            if !is_ordered {
                self.host(node).own.attempted(now, context, id, Outcome::Done(7));
            }
        }
    }

    /// The program is asked not to make an access, if it is still at bringing pages in.
    pub(in crate::engine) fn withdraw(&mut self, node: usize, context: ContextId, access: AccessId) {
        let now = self.now();
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(node, later, Event::Withdraw { context, access });
        }
        let place = program.bringing.iter().position(|(known, _)| *known == access);
        let is_withdrawn = place.map(|place| program.bringing.remove(place)).is_some();
        self.order_answered(node, context);
        self.host(node).own.withdrawn(now, context, access, is_withdrawn);
        if is_withdrawn {
            // The order itself is answered then, which says nothing new.
            self.order_answered(node, context);
            let nowhere = Unreached { address: 0, reason: Reason::NotMapped };
            self.host(node).own.attempted(now, context, access, Outcome::Denied(nowhere));
        }
    }

    /// Until when an access waits for another one that overlaps with it and that was ordered before; it is behind that one then.
    pub(super) fn waits_until(&mut self, node: usize, context: ContextId, id: AccessId) -> Option<Time> {
        let host = self.host(node);
        let program = host.programs.iter_mut().find(|program| program.context == context)?;
        let this = host.own.with(id)?;
        let is_before = |other: &Left| {
            other.at.0 < this.at.0 + u64::from(this.at.1)
                && this.at.0 < other.at.0 + u64::from(other.at.1)
                && (other.right == Right::Write || this.right == Right::Write)
        };
        let before = program.bringing.iter().find(|(known, _)| host.own.with(*known).is_some_and(is_before));
        let time = before?.1;
        program.bringing.push((id, time));
        Some(time)
    }

    pub(super) fn lies(&mut self, node: usize) -> bool {
        let lying = self.own_faults.map_or(0, |faults| faults.lying);
        self.kernel.random(NODES[node]).per_million(lying)
    }

    /// The program reads, writes or changes what an access is for.
    pub(super) fn carry_out(&mut self, node: usize, id: AccessId) -> Outcome {
        let left = self.host(node).own.with_mut(id).expect("an access that is not over");
        let (at, order) = (left.at, left.order);
        let offset = at.0.wrapping_sub(BASE) as usize;
        match order {
            Order::Read => {
                let bytes = self.memory[node][offset..offset + at.1 as usize].to_vec();
                self.host(node).own.with_mut(id).expect("an access that is not over").bytes = bytes;
            }
            Order::Write => {
                let bytes = std::mem::take(&mut left.bytes);
                self.memory[node][offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Order::Words(which, words) => self.write_words_of(node, which, &words),
            Order::Change(operation) => return Outcome::Done(self.change(node, at.0, operation)),
        }
        Outcome::Done(0)
    }

    /// What a write may have done before it came to what it must not touch.
    pub(super) fn carry_out_part(&mut self, node: usize, id: AccessId) {
        let left = self.host(node).own.with(id).expect("an access that is not over");
        let (at, bytes) = (left.at, left.bytes.clone());
        if !matches!(left.order, Order::Write) {
            return;
        }
        let part = self.kernel.random(NODES[node]).below(bytes.len() as u64 + 1) as usize;
        let offset = (at.0 - BASE) as usize;
        self.memory[node][offset..offset + part].copy_from_slice(&bytes[..part]);
    }

    /// The program has brought pages in, as far as they come.
    pub(in crate::engine) fn touched(
        &mut self,
        node: usize,
        context: ContextId,
        touch: TouchId,
        at: (u64, u32),
        right: Right,
    ) {
        let now = self.now();
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(node, later, Event::Touch { context, touch, range: at, right });
        }
        let outcome = program.bring(at.0, at.1, right);
        program.hanging.remove(&touch);
        let lies = self.lies(node);
        let own = &mut self.host(node).own;
        own.touched(now, context, touch, outcome);
        if lies {
            own.touched(now, context, touch, Ok(()));
            own.touched(now, context, TouchId(1 << 40), Ok(()));
        }
    }
}
