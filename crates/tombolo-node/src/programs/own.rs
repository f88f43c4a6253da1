//! Ranges of programs' own memory: at their own addresses in their domains, behind the base of their process, and below
//! those that the node hands out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tombolo_channel::{
    FaultRegisters, Grant, MAX_GRANTS, MAX_OWN_RANGES, NODE_ADDRESSES, PROCESS_BYTES, Reply, from_the_wire,
    process_base, process_of,
};
use tombolo_core::iommu::{ContextId, FaultPolicy, Released};
use tombolo_core::rdma::Time;
use tombolo_host::own::ProgramMemory;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::unix::UnixError;
use tombolo_wire::Domain;

use super::Missing;
use super::access::{OwnAccess, Whose};
use super::domain::ProgramDomain;
use super::domains::Programs;

/// A range that a program has registered.
#[derive(Debug)]
pub(crate) struct OwnRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    grants: Vec<Grant>,
    pub(crate) faults: FaultPolicy,
    gone: AtomicBool,
}

impl OwnRange {
    /// Whether it is deregistered.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// The registered ranges of a domain, and how they are reached.
#[derive(Debug, Default)]
pub(super) struct OwnRanges(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    ranges: BTreeMap<u64, Arc<OwnRange>>,
    access: Option<Arc<OwnAccess>>,
    /// Deregistrations that wait for the end of an access, by where their range begins: the numbers of the requests.
    releases: BTreeMap<u64, Vec<u32>>,
    closed: bool,
}

impl OwnRanges {
    /// How much memory is registered.
    pub(super) fn bytes(&self) -> u64 {
        self.0.read().ranges.values().map(|range| range.end - range.start).sum()
    }

    /// The domain closes: nothing of it is touched any more, but by an access that hangs.
    pub(super) fn close(&self) -> Option<Arc<OwnAccess>> {
        let mut table = self.0.write();
        table.closed = true;
        for range in std::mem::take(&mut table.ranges).into_values() {
            range.gone.store(true, Ordering::SeqCst);
        }
        table.access.take()
    }
}

impl Programs {
    /// Nobody makes the accesses of this area any more, though its domain is open: another registration finds others who do.
    pub(crate) fn abandon_access(&self, access: &Arc<OwnAccess>) {
        if let Some(domain) = self.of_context(access.context) {
            domain.own.0.write().access.take_if(|known| Arc::ptr_eq(known, access));
        }
        self.remove_access(access);
    }
}

/// Own memory of a program, found and allowed.
#[derive(Clone, Debug)]
pub(crate) struct OwnPlace {
    pub(crate) range: Arc<OwnRange>,
    pub(crate) access: Arc<OwnAccess>,
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
    /// A range of a program's own memory, in the domain in which that life is if one is given; and if `is_granted` says so
    /// of its grants. Only for addresses that [`is_own`] takes for such.
    pub(crate) fn find_own(
        &self,
        number: u16,
        life: Option<u32>,
        address: u64,
        length_bytes: u32,
        is_granted: impl FnOnce(&[Grant]) -> bool,
    ) -> Result<OwnPlace, Missing> {
        let domain = self.owner_of(number, life, address)?;
        let table = domain.own.0.read();
        let (_, range) = table.ranges.range(..=address).next_back().ok_or(Missing::Range)?;
        let end = address.checked_add(length_bytes.into()).ok_or(Missing::Range)?;
        let is_within = end <= range.end && !range.is_gone();
        let access = table.access.as_ref().filter(|_| is_within).ok_or(Missing::Range)?;
        if is_granted(&range.grants) {
            Ok(OwnPlace { range: range.clone(), access: access.clone() })
        } else {
            Err(Missing::Grant)
        }
    }

    /// The area by which the program makes the accesses to its memory itself.
    pub(super) fn open_access(&self, domain: &ProgramDomain) -> Result<Arc<OwnAccess>, String> {
        let mut table = domain.own.0.write();
        if table.closed {
            return Err("the domain is closed".into());
        }
        match &table.access {
            // A program asks again where it did not get the answer.
            Some(access) if access.is_by_program() => return Ok(access.clone()),
            Some(_) => return Err("the node makes the accesses to this program's memory already".into()),
            None => {}
        }
        let access = OwnAccess::by_program(Whose::of(domain), &self.open_orders);
        let access = Arc::new(access.map_err(|error| error.to_string())?);
        table.access = Some(access.clone());
        self.add_access(&access);
        Ok(access)
    }

    /// How the ranges are reached that are registered with these descriptors.
    fn access_for(
        &self,
        domain: &ProgramDomain,
        descriptors: Vec<PassedDescriptor>,
    ) -> Result<Arc<OwnAccess>, String> {
        let (known, is_used) = {
            let table = domain.own.0.read();
            (table.access.clone(), !table.ranges.is_empty())
        };
        match known {
            // It has changed its mind: a thread could not be started there.
            Some(access) if access.is_by_program() && !descriptors.is_empty() && !is_used => {}
            // Its helper was killed.
            Some(access) if access.has_lost_its_helper() && !descriptors.is_empty() => {}
            Some(access) => return Ok(access),
            None => {}
        }
        // Under no lock that the engine's loop needs: the program may make this wait.
        let memory = domain.own_memory(descriptors)?;
        let whose = Whose::of(domain);
        let helper = self.helper.get().copied();
        let access = OwnAccess::by_node(whose, memory, &self.loop_wake, helper, &self.open_orders)?;
        self.counts.helpers_started.fetch_add(helper.is_some().into(), Ordering::Relaxed);
        Ok(Arc::new(access))
    }

    pub(super) fn register(
        &self,
        domain: &ProgramDomain,
        range: (u64, u64),
        grants: Vec<Grant>,
        faults: FaultPolicy,
        descriptors: Vec<PassedDescriptor>,
    ) -> Result<(), String> {
        let (address, bytes) = range;
        if grants.len() > MAX_GRANTS {
            return Err(format!("{} grants are more than {MAX_GRANTS}", grants.len()));
        }
        let last = process_base(domain.process) + PROCESS_BYTES;
        let end = address.checked_add(bytes).filter(|end| bytes > 0 && *end <= last);
        let end = end.filter(|_| process_of(address) == domain.process);
        let end =
            end.ok_or_else(|| format!("{bytes} bytes at {address:#x} are no memory of this process"))?;
        let access = self.access_for(domain, descriptors)?;
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
        if table.access.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &access)) {
            if let Some(before) = table.access.replace(access.clone()) {
                self.remove_access(&before);
            }
            self.add_access(&access);
        }
        let range = OwnRange { start: address, end, grants, faults, gone: AtomicBool::new(false) };
        table.ranges.insert(address, Arc::new(range));
        Ok(())
    }

    /// Gives a range up, and answers when it is not touched any more. Until then it stays in the
    /// table, where nothing new finds it: a deregistration that failed can be tried again, and nothing
    /// else is registered there meanwhile.
    pub(super) fn deregister(
        &self,
        now: Time,
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
        // Without an area nobody reaches it.
        let released = table
            .access
            .as_ref()
            .map_or(Released::Now, |access| self.own_memory.lock().release(now, access.context, address));
        match released {
            Released::Now => drop(table.ranges.remove(&address)),
            Released::Later => table.releases.entry(address).or_default().push(number),
            Released::Stuck => {}
        }
        drop(table);
        // What waited there has been refused.
        self.has_steps();
        match released {
            Released::Now => domain.reply(number, Reply::Done, &[]),
            Released::Later => Ok(()),
            Released::Stuck => domain.reply(number, hangs(), &[]),
        }
    }

    /// The fault registers of a domain, which are clear then.
    pub(super) fn take_fault_registers(&self, domain: &ProgramDomain) -> FaultRegisters {
        let context = domain.own.0.read().access.as_ref().map(|access| access.context);
        let registers =
            context.map(|context| self.own_memory.lock().take_registers(context)).unwrap_or_default();
        FaultRegisters {
            translation_fault: registers.translation_fault,
            permission_fault: registers.permission_fault,
            multiple: registers.multiple,
            address: registers.address,
            write_not_read: registers.write_not_read,
        }
    }

    /// The access that a deregistration waited for has ended, or does not.
    pub(crate) fn released(&self, context: ContextId, address: u64, ended: bool) {
        let Some(domain) = self.of_context(context) else { return };
        let mut table = domain.own.0.write();
        let requests = table.releases.remove(&address).unwrap_or_default();
        if ended && table.ranges.get(&address).is_some_and(|range| range.is_gone()) {
            table.ranges.remove(&address);
        }
        drop(table);
        for request in requests {
            if domain.reply(request, if ended { Reply::Done } else { hangs() }, &[]).is_err() {
                // A program that does not take its answers would not know what it has.
                domain.socket.hang_up();
            }
        }
    }
}

fn hangs() -> Reply {
    Reply::Failed(
        "an access to this memory does not end: the thread of the program that makes it is stopped, or waits for \
         a page that nobody brings. Nothing new reaches the memory, but that access may still touch it; it stays \
         registered, and can be deregistered when the access has ended"
            .into(),
    )
}
