//! What the program asks for by the doorbell page.
//!
//! A request is a page fault, and its answer the contents of the page. One that
//! has to wait for an eviction is kept in the table, and answered by whoever
//! ends the eviction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_host::process;
use tombolo_host::uffd::PAGE_BYTES;

use crate::pager::Pager;
use crate::protocol::{ATTACH, Answer, DISCARD, FORK, FORKED, Request};
use crate::serve::Run;
use crate::space::{Pending, Space};

/// A page on a page boundary.
#[repr(C, align(4096))]
struct PageBuffer([u8; PAGE_BYTES]);

impl Pager {
    /// A thread of the program touched the doorbell page.
    pub(crate) fn answer_doorbell(&self, space: &Arc<Space>, thread: u32) {
        let mut bytes = [0u8; size_of::<Request>()];
        let mut answer = Answer { served: 0, value: 0 };
        let reader = if space.reader() == 0 { thread } else { space.reader() };
        if process::read_exactly(reader, space.request, &mut bytes).is_ok() {
            let field = |index: usize| {
                u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap_or_default())
            };
            let (operation, start, length) = (field(0), field(1), field(2));
            answer.served = 1;
            let wait = match operation {
                DISCARD => space.page_at(start).map(|first| Pending::Discard {
                    first,
                    count: u32::try_from(length / PAGE_BYTES as u64).unwrap_or(u32::MAX),
                }),
                FORK => Some(Pending::Fork),
                FORKED => {
                    let mut table = space.table.lock();
                    table.forking = table.forking.saturating_sub(1);
                    None
                }
                ATTACH => {
                    space.pid.store(thread, Ordering::Relaxed);
                    answer.value = u64::from(space.index) + 1;
                    None
                }
                _ => {
                    answer.served = 0;
                    None
                }
            };
            if let Some(request) = wait {
                space.table.lock().pending = Some(request);
                return self.finish_pending(space);
            }
        }
        self.send_answer(space, answer);
    }

    /// Carries out a request that may have to wait for an eviction, and answers it when done.
    pub fn finish_pending(&self, space: &Arc<Space>) {
        let Some(request) = space.table.lock().pending.take() else { return };
        let done = match request {
            Pending::Discard { first, count } => self.discard(space, first, count),
            Pending::Fork => {
                let mut table = space.table.lock();
                // From here on no eviction begins.
                table.forking += u32::from(!table.evicting);
                !table.evicting
            }
        };
        if done {
            return self.send_answer(space, Answer { served: 1, value: 0 });
        }
        let mut table = space.table.lock();
        table.pending = Some(request);
        if !table.evicting {
            // The eviction ended in between, and found nothing pending.
            drop(table);
            self.finish_pending(space);
        }
    }

    fn send_answer(&self, space: &Arc<Space>, answer: Answer) {
        let mut page = PageBuffer([0; PAGE_BYTES]);
        page.0[..8].copy_from_slice(&answer.served.to_ne_bytes());
        page.0[8..16].copy_from_slice(&answer.value.to_ne_bytes());
        let source = page.0.as_ptr() as u64;
        self.map(space, Run { page: 0, count: 1, source, protect: false }, false);
    }
}
