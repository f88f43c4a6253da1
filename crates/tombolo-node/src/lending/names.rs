//! Requests of other nodes about named segments: finds, lists, opens and deletes them.

use crate::fabric::messages::{NamedSegment, Reply};
use crate::fabric::neighbour::Neighbour;
use crate::lending::ledger::Published;
use crate::lending::named::SegmentName;
use crate::lending::{Lending, failed, refused};

/// Maximum size of a list, so that the answer fits into a control message.
const MAX_LIST_BYTES: usize = 12 * 1024;
/// Bytes that an entry takes besides its name: two numbers, a length and the checksum.
const ENTRY_BYTES: usize = 64;

/// The description of a published segment for peers.
fn described(name: &SegmentName, published: &Published) -> NamedSegment {
    NamedSegment {
        name: name.as_str().to_owned(),
        bytes: published.length_bytes,
        checksum: published.checksum,
        age_s: published.since.elapsed().as_secs(),
    }
}

impl Lending {
    pub(crate) fn find_name(&self, name: &str) -> Reply {
        with_name(name, |name| {
            let ledger = self.ledger.lock();
            let found = ledger.named(name).map(|published| described(name, published));
            found.map_or(Reply::NoSuchName, Reply::Found)
        })
    }

    pub(crate) fn open_name(&self, neighbour: &Neighbour, name: &str) -> Reply {
        with_name(name, |name| {
            let mut ledger = self.ledger.lock();
            // A peer that is lost by now is forgotten under this lock, before or after this.
            if neighbour.loss().is_some() {
                return Reply::Failed("the link is lost".into());
            }
            match ledger.open(neighbour.id, name) {
                None => Reply::NoSuchName,
                Some(Ok((segment, published))) => {
                    Reply::Opened { segment, found: described(name, &published) }
                }
                Some(Err(error)) => refused(error),
            }
        })
    }

    pub(crate) fn delete_name(&self, name: &str) -> Reply {
        with_name(name, |name| {
            let deleted = self.ledger.lock().unpublish(name);
            deleted.map_or(Reply::NoSuchName, |_| Reply::Done)
        })
    }

    pub(crate) fn list_names(&self, after: Option<&str>) -> Reply {
        let after = match after.map(str::parse::<SegmentName>).transpose() {
            Ok(after) => after,
            Err(error) => return failed(&error),
        };
        let ledger = self.ledger.lock();
        let (mut segments, mut bytes) = (Vec::new(), 0);
        for (name, published) in ledger.named_after(after.as_ref()) {
            bytes += name.as_str().len() + ENTRY_BYTES;
            if bytes > MAX_LIST_BYTES {
                return Reply::Names { segments, more: true };
            }
            segments.push(described(name, published));
        }
        Reply::Names { segments, more: false }
    }
}

fn with_name(name: &str, answer: impl FnOnce(&SegmentName) -> Reply) -> Reply {
    match name.parse::<SegmentName>() {
        Ok(name) => answer(&name),
        Err(error) => failed(&error),
    }
}
