//! What a link has done, and what strangers have said to a listener, counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$of:meta])* $snapshot:ident, $live:ident: $($(#[$meta:meta])* $name:ident),* $(,)?) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snapshot {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl $snapshot {
            /// Every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl std::ops::AddAssign for $snapshot {
            fn add_assign(&mut self, other: Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }

        /// The live counters behind the snapshot.
        #[derive(Debug, Default)]
        pub(crate) struct $live {
            $(pub(crate) $name: Counter,)*
        }

        impl $live {
            pub(crate) fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// What a link has done since it was opened.
    LinkCounters, Counters:
    /// Packets taken by `send`.
    packets_sent,
    /// Bytes of those packets, header and payload.
    bytes_sent,
    /// Packets handed out by `receive`.
    packets_received,
    /// Bytes of those packets.
    bytes_received,
    /// Times that `send` had no room.
    full,
    /// Times that a sleeping peer was woken with a system call.
    wakes_sent,
    /// Control messages taken.
    control_sent,
    /// Control messages handed out.
    control_received,
    /// Control fragments sent again because no acknowledgement came.
    control_retransmitted,
    /// Keep-alive requests sent.
    pings_sent,
    /// Datagrams that were of another protocol, or malformed.
    discarded,
    /// Datagrams of a secure session that were not sealed by the peer, or were changed on the way.
    forged,
    /// Datagrams of a secure session that came again.
    replayed,
    /// Packets that were lost because the system refused to send them.
    send_failures,
    /// Datagrams sent to find out whether their size passes, without their witnesses.
    size_probes_sent,
    /// Times that larger datagrams were found to pass.
    size_raised,
    /// Times that datagrams of the size in use passed no more.
    size_lowered,
}

counters! {
    /// What has come to a listener from those who have no link.
    ListenerCounters, Strangers:
    /// Hellos of this version and protection.
    hellos,
    /// Sessions that were begun: over UDP with keys, by those who are where they say.
    begun,
    /// Links that were made of those sessions.
    accepted,
    /// Strangers that do not fit: another version, keys on one side alone, a key that is not on the list.
    refused,
    /// Sessions that came to nothing: refused, not gone on with, or not with the keys that were shown.
    abandoned,
    /// Sessions not begun, or given up, because too many are on their way.
    turned_away,
    /// Datagrams that were not ours, made no sense, or were of no session that may begin.
    discarded,
}

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds, from any thread.
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds, where a mutex makes the caller the only writer: no locked instruction per packet.
    pub(crate) fn add_exclusively(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_links_add_up_by_name() {
        let mut all = LinkCounters { forged: 2, ..LinkCounters::default() };
        all += LinkCounters { forged: 3, replayed: 1, ..LinkCounters::default() };
        let some: Vec<_> = all.named().filter(|(_, count)| *count > 0).collect();
        assert_eq!(some, [("forged", 5), ("replayed", 1)]);
    }
}
