//! Names for the counters of links, as status displays show them.

use parking_lot::Mutex;
use tombolo_link::{Link, LinkCounters, ListenerCounters};

/// Counters of the links that are gone: their number, and the sums of their counters.
#[derive(Debug, Default)]
pub struct GoneLinks(Mutex<(u64, LinkCounters)>);

impl GoneLinks {
    /// Adds the counters of a link that is gone.
    pub fn add(&self, link: &dyn Link) {
        let mut all = self.0.lock();
        all.0 += 1;
        all.1 += link.counters();
    }

    /// Every counter of these links and of those that are up, by name.
    pub fn and<'a>(&self, up: impl Iterator<Item = &'a dyn Link>) -> Vec<(String, u64)> {
        let (gone, mut all) = *self.0.lock();
        let mut count = 0;
        for link in up {
            count += 1;
            all += link.counters();
        }
        let mut named = vec![("links_up".to_owned(), count), ("links_gone".to_owned(), gone)];
        named.extend(all.named().map(|(name, value)| (format!("links_{name}"), value)));
        named
    }
}

/// Counters of what this node's listener received from unknown senders.
#[derive(Debug, Default)]
pub struct ListenerStats(Mutex<ListenerCounters>);

impl ListenerStats {
    /// Stores the listener's current counters.
    pub fn note(&self, counters: ListenerCounters) {
        *self.0.lock() = counters;
    }

    /// Every counter by name.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> + use<> {
        let counters = *self.0.lock();
        counters.named().map(|(name, value)| (format!("strangers_{name}"), value))
    }
}
