//! Publishing: checks a draft that a peer has filled, and gives it its name.
//!
//! ```text
//!   Create --> draft --- the peer's writes ---> Publish --> checksum --> name
//!               |  goes with its link             |           | not that which was said: freed
//! ```
//!
//! Peers reach a draft through the engine alone, because its descriptor stays in this node. So after the draft is taken
//! from its peer, no peer can change it. It is checked in the pool.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tombolo_host::pool::{BlockingTask, Step};

use crate::fabric::connection::Connection;
use crate::fabric::messages::{Checksum, Reply};
use crate::lending::asker::Asker;
use crate::lending::ledger::{Ledger, Published};
use crate::lending::named::{Hasher, SegmentName};
use crate::lending::{Lending, failed};
use crate::memory::blocking::Owner;
use crate::memory::reclaim::Segment;

/// Bytes hashed in one step.
const STEP_BYTES: usize = 8 << 20;

/// The task that checks a filled draft and gives it its name.
struct Publication {
    asker: Asker,
    ledger: Arc<Mutex<Ledger>>,
    name: SegmentName,
    draft: Option<(Segment, u64)>,
    hasher: Hasher,
    hashed_bytes: usize,
    checksum: Checksum,
}

impl BlockingTask for Publication {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        let Some((mut segment, length_bytes)) = self.draft.take() else { return Step::Over };
        if segment.is_in_use() {
            // Another thread is still placing an earlier packet, which soon ends.
            self.draft = Some((segment, length_bytes));
            return Step::Waits;
        }
        let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        let step = STEP_BYTES.min(length - self.hashed_bytes);
        if let Ok(span) = segment.memory().span(self.hashed_bytes, step) {
            self.hasher.update_shared(span);
        }
        self.hashed_bytes += step;
        if self.hashed_bytes < length {
            self.draft = Some((segment, length_bytes));
            return Step::More;
        }
        let checksum = std::mem::take(&mut self.hasher).finish();
        if checksum != self.checksum {
            drop(segment);
            return self.asker.answer(Reply::Mismatch { checksum });
        }
        let published =
            Published { segment: Arc::new(segment), length_bytes, checksum, since: Instant::now() };
        let replaced = self.ledger.lock().publish(self.name.clone(), published);
        drop(replaced);
        self.asker.answer(Reply::Done)
    }
}

impl Lending {
    /// Publishes a draft. `None`: the answer follows.
    pub(crate) fn publish(
        &self,
        by: &Arc<Connection>,
        number: u32,
        segment: u16,
        name: &str,
        checksum: Checksum,
    ) -> Option<Reply> {
        let asker = match Asker::new(by, number, self.answered.clone()) {
            Ok(asker) => asker,
            Err(refusal) => return Some(refusal),
        };
        let Some(draft) = self.ledger.lock().take_draft(asker.neighbour.id, segment) else {
            return Some(Reply::Failed(format!("segment {segment} is none of yours that can have a name")));
        };
        let name = match name.parse::<SegmentName>() {
            Ok(name) => name,
            Err(error) => return Some(failed(&error)),
        };
        self.begin(
            Owner::Peer(asker.neighbour.id),
            Box::new(Publication {
                asker,
                ledger: self.ledger.clone(),
                name,
                draft: Some(draft),
                hasher: Hasher::default(),
                hashed_bytes: 0,
                checksum,
            }),
        )
    }
}
