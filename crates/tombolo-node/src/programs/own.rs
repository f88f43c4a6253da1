//! Ranges of programs' own memory. In a domain they have the program's own addresses plus the base of their process,
//! all below the addresses that the node gives out.

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
    /// Whether the range has been deregistered, or its domain has closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// The registered ranges of a process in a domain, and its access area.
#[derive(Debug, Default)]
pub(super) struct OwnRanges(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    ranges: BTreeMap<u64, Arc<OwnRange>>,
    access: Option<Arc<OwnAccess>>,
    /// Numbers of the deregistration requests that wait for the end of an access, by the first address of their range.
    releases: BTreeMap<u64, Vec<u32>>,
    closed: bool,
}

impl OwnRanges {
    /// Number of registered bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.read().ranges.values().map(|range| range.end - range.start).sum()
    }

    /// Closes the ranges when the process leaves its domain. No access to them begins any more, though one that hangs
    /// may go on. Returns the access area.
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
    /// Gives an access area up, while its domain stays open. A later registration may get a new area.
    pub(crate) fn abandon_access(&self, access: &Arc<OwnAccess>) {
        if let Some(domain) = self.of_context(access.context) {
            domain.own.0.write().access.take_if(|known| Arc::ptr_eq(known, access));
        }
        self.remove_access(access);
    }
}

/// A range of a program's own memory to which an access is allowed.
#[derive(Clone, Debug)]
pub(crate) struct OwnPlace {
    pub(crate) range: Arc<OwnRange>,
    pub(crate) access: Arc<OwnAccess>,
}

impl ProgramDomain {
    /// The memory of the program, reached by the descriptors that the program passed.
    fn own_memory(&self, descriptors: Vec<PassedDescriptor>) -> Result<ProgramMemory, String> {
        let process_id = self.socket.peer().ok().and_then(|peer| peer.process_id);
        let process_id =
            process_id.ok_or("the node does not see this process: it is in another pid namespace")?;
        ProgramMemory::of(process_id, descriptors).map_err(|error| error.to_string())
    }
}

/// Whether an address in a domain is one for programs' own memory.
pub(crate) fn is_own(domain: Domain, address: u64) -> bool {
    address < NODE_ADDRESSES && from_the_wire(domain).is_some()
}

impl Programs {
    /// Finds a range of a program's own memory, if `is_granted` accepts its grants. If `life` is given, the process
    /// with that life must still be in the domain. Only for addresses for which [`is_own`] returns true.
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

    /// Opens an area whose orders the program carries out itself.
    pub(super) fn open_access(&self, domain: &ProgramDomain) -> Result<Arc<OwnAccess>, String> {
        let mut table = domain.own.0.write();
        if table.closed {
            return Err("the domain is closed".into());
        }
        match &table.access {
            // A program repeats the request if it did not get the answer.
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

    /// The access area for a registration with these descriptors.
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
            // The program opened an area, but could not start a thread. Now it passes descriptors instead.
            Some(access) if access.is_by_program() && !descriptors.is_empty() && !is_used => {}
            // Its helper has ended, so another one is started.
            Some(access) if access.has_lost_its_helper() && !descriptors.is_empty() => {}
            Some(access) => return Ok(access),
            None => {}
        }
        // Hold no lock here that the engine's loop needs: the program may make this wait.
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

    /// Deregisters a range, and answers when no access touches it any more. Until then it stays in the table, where no
    /// new access finds it. So a deregistration that failed can be repeated, and no other range is registered there
    /// meanwhile.
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
        // Without an area, no access reaches the range.
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
        // Accesses that waited in the range have been refused, which leads to further steps.
        self.has_steps();
        match released {
            Released::Now => domain.reply(number, Reply::Done, &[]),
            Released::Later => Ok(()),
            Released::Stuck => domain.reply(number, hangs(), &[]),
        }
    }

    /// Reads and clears the fault registers of a process.
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

    /// Answers deregistrations: the access that they waited for has ended, or with `ended` false it hangs.
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
                // A program that does not take its answers would not know its state.
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
