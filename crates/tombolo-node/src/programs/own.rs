//! Ranges of programs' own memory: at their own addresses in their domains, below those that the
//! node hands out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use tombolo_channel::{Grant, MAX_GRANTS, MAX_OWN_RANGES, NODE_ADDRESSES, Reply, from_the_wire};
use tombolo_host::own::ProgramMemory;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::unix::UnixError;
use tombolo_wire::{Domain, NackCode};

use super::Missing;
use super::domain::ProgramDomain;
use super::domains::Programs;
use super::mover::{Job, Mover, Order, Release, Released, Task};

/// A range that a program has registered.
#[derive(Debug)]
pub(crate) struct OwnRange {
    end: u64,
    grants: Vec<Grant>,
    gone: AtomicBool,
}

impl OwnRange {
    /// Whether it is deregistered.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// The registered ranges of a domain, and the thread that reaches them.
#[derive(Debug, Default)]
pub(super) struct OwnRanges(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    ranges: BTreeMap<u64, Arc<OwnRange>>,
    mover: Option<Arc<Mover>>,
    closed: bool,
}

impl OwnRanges {
    /// The domain closes: nothing of it is touched any more, but by a copy that hangs.
    pub(super) fn close(&self) {
        let mut table = self.0.write();
        table.closed = true;
        for range in std::mem::take(&mut table.ranges).into_values() {
            range.gone.store(true, Ordering::SeqCst);
        }
        if let Some(mover) = table.mover.take() {
            mover.close();
        }
    }
}

/// Own memory of a program, found and allowed.
#[derive(Debug)]
pub(crate) struct OwnPlace {
    range: Arc<OwnRange>,
    mover: Arc<Mover>,
}

impl OwnPlace {
    /// Has a copy made.
    pub(crate) fn offer(self, order: Order, task: Task) -> Result<(), NackCode> {
        self.mover.offer(Job { range: self.range, order, task })
    }
}

impl ProgramDomain {
    /// The memory of its program, by the descriptors that it has passed.
    fn own_memory(&self, descriptors: Vec<PassedDescriptor>) -> Result<ProgramMemory, String> {
        let process_id = self.socket.peer().ok().and_then(|peer| peer.process_id);
        let process_id =
            process_id.ok_or("the node does not see this process: it is in another pid namespace")?;
        ProgramMemory::of(process_id, descriptors).map_err(|error| error.to_string())
    }
}

/// Whether an address of a domain would be in a program's own memory.
pub(crate) fn is_own(domain: Domain, address: u64) -> bool {
    address < NODE_ADDRESSES && from_the_wire(domain).is_some()
}

impl Programs {
    /// A range of a program's own memory, in that life of its domain if one is given; and if `is_granted` says so
    /// of its grants. Only for addresses that [`is_own`] takes for such.
    pub(crate) fn find_own(
        &self,
        number: u16,
        life: Option<u32>,
        address: u64,
        length_bytes: u32,
        is_granted: impl FnOnce(&[Grant]) -> bool,
    ) -> Result<OwnPlace, Missing> {
        let domain = self.domain(number).ok_or(Missing::Domain)?;
        if life.is_some_and(|life| life != domain.life) {
            return Err(Missing::Domain);
        }
        let table = domain.own.0.read();
        let (_, range) = table.ranges.range(..=address).next_back().ok_or(Missing::Range)?;
        let end = address.checked_add(length_bytes.into()).ok_or(Missing::Range)?;
        let is_within = end <= range.end && !range.is_gone();
        let mover = table.mover.as_ref().filter(|_| is_within).ok_or(Missing::Range)?;
        if is_granted(&range.grants) {
            Ok(OwnPlace { range: range.clone(), mover: mover.clone() })
        } else {
            Err(Missing::Grant)
        }
    }

    pub(super) fn register(
        &self,
        domain: &ProgramDomain,
        address: u64,
        bytes: u64,
        grants: Vec<Grant>,
        descriptors: Vec<PassedDescriptor>,
    ) -> Result<(), String> {
        if grants.len() > MAX_GRANTS {
            return Err(format!("{} grants are more than {MAX_GRANTS}", grants.len()));
        }
        let end = address.checked_add(bytes).filter(|end| bytes > 0 && *end <= NODE_ADDRESSES);
        let end = end.ok_or_else(|| format!("{bytes} bytes at {address:#x} are no memory of a program"))?;
        // Under no lock that the engine's loop needs: the program may make this wait.
        let has_mover = domain.own.0.read().mover.is_some();
        let memory = if has_mover { None } else { Some(domain.own_memory(descriptors)?) };
        let mut table = domain.own.0.write();
        if table.closed {
            return Err("the domain is closed".into());
        }
        if table.ranges.len() >= MAX_OWN_RANGES {
            return Err(format!("{MAX_OWN_RANGES} ranges are registered: deregister one of them first"));
        }
        if let Some((_, before)) = table.ranges.range(..end).next_back()
            && before.end > address
        {
            if before.is_gone() {
                return Err(format!(
                    "{bytes} bytes at {address:#x} overlap a range that is being deregistered, which a copy may still touch"
                ));
            }
            return Err(format!("{bytes} bytes at {address:#x} overlap a range that is registered"));
        }
        if let Some(memory) = memory
            && table.mover.is_none()
        {
            let mover = Mover::start(memory, self.moved.clone()).map_err(|error| error.to_string())?;
            table.mover = Some(Arc::new(mover));
        }
        let range = OwnRange { end, grants, gone: AtomicBool::new(false) };
        table.ranges.insert(address, Arc::new(range));
        Ok(())
    }

    /// Gives a range up, and answers when it is not touched any more. Until then it stays in the
    /// table, where nothing new finds it: a deregistration that failed can be tried again, and nothing
    /// else is registered there meanwhile.
    pub(super) fn deregister(
        &self,
        domain: &ProgramDomain,
        number: u32,
        address: u64,
    ) -> Result<(), UnixError> {
        let mut table = domain.own.0.write();
        let Some(range) = table.ranges.get(&address).cloned() else {
            drop(table);
            let reason = format!("no memory registered at {address:#x}");
            return domain.reply(number, Reply::Failed(reason), &[]);
        };
        range.gone.store(true, Ordering::SeqCst);
        let release = Release {
            domain: domain.number,
            life: domain.life,
            request: number,
            address,
            range: range.clone(),
        };
        let released = table.mover.as_ref().map_or(Released::Now, |mover| mover.release(&range, release));
        if released == Released::Now {
            table.ranges.remove(&address);
        }
        drop(table);
        match released {
            Released::Now => domain.reply(number, Reply::Done, &[]),
            Released::Later => Ok(()),
            Released::Never => domain.reply(number, hangs(), &[]),
        }
    }

    /// The copy that a deregistration waited for has ended, or does not.
    pub(crate) fn released(&self, release: Release, ended: bool) {
        let Release { domain, life, request, address, range } = release;
        let Some(domain) = self.domain(domain).filter(|domain| domain.life == life) else { return };
        if ended {
            let mut table = domain.own.0.write();
            // A program that asked twice has been answered already, and may have registered another range
            // there, and be deregistering that.
            if table.ranges.get(&address).is_some_and(|known| Arc::ptr_eq(known, &range)) {
                table.ranges.remove(&address);
            }
        }
        let _ = domain.reply(request, if ended { Reply::Done } else { hangs() }, &[]);
    }

    /// Gives up copies that take too long.
    pub(crate) fn watch_movers(&self, now: Instant) {
        for domain in self.open_domains().values() {
            if let Some(mover) = &domain.own.0.read().mover {
                mover.watch(now);
            }
        }
    }
}

fn hangs() -> Reply {
    Reply::Failed(
        "a copy of this memory waits for a page that nobody brings: it is reached by nothing new, but that \
         copy may still touch it until the page comes or the program ends; it stays registered, and can be \
         deregistered then"
            .into(),
    )
}
