//! The simulator's clock and queue.
//!
//! Events are ordered by time, then by the part that sent them, then by that part's own count: never by when they were put
//! into the queue. So two runs agree whatever the order in which parts were visited, and parts could be divided among
//! processors.
//!
//! ```
//! use tombolo_sim::kernel::{Due, Kernel, Span};
//!
//! let mut kernel = Kernel::new(7);
//! let [clock, lamp] = [kernel.add_part(), kernel.add_part()];
//! kernel.send(clock, lamp, Span::from_ns(5), "on");
//! kernel.set_alarm(clock, Some(kernel.now().after(Span::from_ns(3))));
//! assert_eq!(kernel.next_event().map(|event| (event.to, event.what)), Some((clock, Due::Alarm)));
//! assert_eq!(kernel.next_event().map(|event| (event.to, event.what)), Some((lamp, Due::Message("on"))));
//! assert_eq!(kernel.now().picos(), 5_000);
//! ```

mod packets;
mod queue;
mod time;
mod trace;

pub use packets::{HeaderId, Headers, PacketId, Packets};
pub use queue::{Due, Event, Kernel, PartId};
pub use time::{Rate, Span, Time};
pub use trace::Trace;
