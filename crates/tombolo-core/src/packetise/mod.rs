//! Transactions of a memory bus on links: cut into databeats, sent by one of several links, and put together again (REMAP §III, §V).
//!
//! ```text
//!  interface 0 ──► bursts ──┐                       ┌──► link 0: two databeats a cycle
//!  interface 1 ──► bursts ──┼── a link a burst, in ─┼──► link 1
//!       …                   ┘   turn                └──► …
//!
//!  databeats of a link ──► by interface and kind ──► transactions
//! ```
//!
//! [`Egress`] is the side that sends: the requests of a compute block, or the answers of a memory block.
//! [`Ingress`] is the side that receives. A burst stays on one link, so that its data come behind its address. The
//! next burst takes the next link. [`Accesses`] cuts accesses to memory into bursts, and [`Bursts`] puts the bursts
//! together at the memory block.

mod access;
mod egress;
mod ingress;

pub use access::{Accesses, BurstError, Bursts, BusAccess, BusOperation, MemoryBurst};
pub use egress::{Cycle, Egress, Pacing};
pub use ingress::{Ingress, IngressError};

/// Most interfaces, and most links. Eight bits number each of them, and a databeat has no room for more.
pub const MAX_INTERFACES: usize = 256;

/// For tests and fuzzers only: takes any bytes as databeats of one link. Nothing may panic. A transaction that
/// comes out whole ends with the same databeat when it is cut again. Bursts that come out whole are answered, and
/// an answer to no access ends none.
#[doc(hidden)]
pub fn fuzzing(bytes: &[u8]) {
    let (mut ingress, mut bursts, mut accesses) =
        (Ingress::default(), Bursts::default(), Accesses::default());
    let mut egress = Egress::new(MAX_INTERFACES, 1, Pacing::Pipelined);
    for word in bytes.chunks_exact(8) {
        let bits = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        if let Ok(Some((interface, transaction))) = ingress.accept(bits) {
            let last = transaction.parts(interface).last().expect("a part at least");
            assert_eq!(last.to_bits(), bits);
            if let Ok(Some(burst)) = bursts.accept(0, interface, &transaction) {
                assert!(burst.answer(&mut egress, u128::from));
                while egress.poll(0).is_some() {}
            }
            assert!(bursts.open() <= MAX_INTERFACES);
            assert_eq!(accesses.answered(interface, &transaction), None);
        }
    }
}
