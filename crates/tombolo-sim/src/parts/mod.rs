//! Parts of modelled hardware: each has documented constants, and a closed formula that its tests compare it with.
//!
//! A [`World`] owns the parts and the clock. What moves between parts is a [`Traveller`]: a packet, or an access to memory, on
//! its way along a route, which lists the inputs it passes. A part that forwards looks up nothing: the route says what is next. Messages
//! of other kinds go where their sender wants.
//!
//! ```
//! use tombolo_sim::kernel::{Rate, Span};
//! use tombolo_sim::parts::{Cargo, Input, Link, LinkConfig, Probe, World};
//!
//! let mut world = World::new(1);
//! let line = Rate::from_bits_per_s(10_000_000_000);
//! let link = world.add(Link::new(LinkConfig { line, latency: Span::from_ns(100), ..LinkConfig::default() }));
//! let end = world.add(Probe::default());
//! let route = world.add_route(&[Input::of(link), Input::of(end)]).expect("the last part keeps what comes");
//! world.start(end, route, Cargo::Blank(7), 1250);
//! world.run();
//! let seen = &world.part::<Probe>(end).expect("a probe").seen;
//! assert_eq!((seen[0].time.picos(), seen[0].name), (1_100_000, 7));
//! ```

mod cache;
mod dma;
mod link;
mod mailbox;
mod memory;
mod probe;
mod requester;
mod server;
mod smmu;
mod snoop;
mod timeline;
mod topology;
mod traveller;
mod world;

pub use cache::{Cache, CacheConfig, CacheMiss};
pub use dma::{Dma, DmaConfig, DmaPath, DmaRequest};
pub use link::{Link, LinkConfig, LinkCounters, LinkFaults};
pub use mailbox::{Full, Mailbox};
pub use memory::{Memory, MemoryConfig, Variation};
pub use probe::{Probe, Seen};
pub use requester::{Requester, RequesterConfig};
pub use server::{Order, Server, Work};
pub use smmu::{Smmu, SmmuConfig, Translation, Translator};
pub(crate) use snoop::{INWARD, INWARD_ANSWER, OUTWARD, OUTWARD_ANSWER};
pub use snoop::{Snoop, SnoopSlots};
pub use timeline::{Slice, Timeline};
pub use topology::{Hop, Topology};
pub use traveller::{Access, AccessKind, Cargo, RouteId, Traveller};
pub use world::{Here, Input, Message, Part, PartKind, RouteError, World};
