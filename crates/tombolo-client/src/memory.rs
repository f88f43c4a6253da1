//! Memory that transfers reach.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard};
use tombolo_host::own::{OwnMemory, Permit, ThisProcess};
use tombolo_host::shared::{MoveError, SharedMemory, SharedMemoryError, SharedSpan};

/// Memory from the node, shared with it. Others may change it at any moment, as far as its grants
/// go; so it is copied in and out, or looked at by atomic words.
#[derive(Debug)]
pub struct Memory {
    memory: SharedMemory,
    address: u64,
    /// The number of [`crate::inner::Inner`], among all domains that this process opens.
    domain: u64,
    revoking: Mutex<Revoking>,
}

/// How far it is with revoking a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoking {
    No,
    /// It has moved, and the node has not said that it knows.
    Moved,
    Done,
}

impl Memory {
    pub(crate) fn new(memory: SharedMemory, address: u64, domain: u64) -> Self {
        Self { memory, address, domain, revoking: Mutex::new(Revoking::No) }
    }

    /// Where it begins in the domain.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether it is memory of this domain.
    pub(crate) fn is_of(&self, domain: u64) -> bool {
        self.domain == domain
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never true: there is no empty memory.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Where it is in this program, while `self` lives: for code that can deal with memory that others change.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// How far it is with revoking it, while nobody else goes on with that.
    pub(crate) fn revoking(&self) -> MutexGuard<'_, Revoking> {
        self.revoking.lock()
    }

    /// What it holds moves to other memory of the same size, behind the same address.
    pub(crate) fn move_to(&self, other: SharedMemory) -> Result<(), MoveError> {
        self.memory.move_to(other)
    }

    /// Copies bytes in.
    pub fn write(&self, offset_bytes: usize, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        self.memory.span_mut(offset_bytes, bytes.len())?.copy_from(SharedSpan::from(bytes));
        Ok(())
    }

    /// Copies bytes out.
    pub fn read(&self, offset_bytes: usize, bytes: &mut [u8]) -> Result<(), SharedMemoryError> {
        self.memory.span(offset_bytes, bytes.len())?.copy_to(bytes);
        Ok(())
    }

    /// A word, to be polled for a notification (load it with `Acquire`).
    pub fn word(&self, offset_bytes: usize) -> Result<&AtomicU64, SharedMemoryError> {
        self.memory.atomic_u64(offset_bytes)
    }
}

/// Own memory that transfers reach, as far as its grants go. Dropped without
/// [`crate::Domain::deregister`] it stays mapped, since transfers go on reaching it.
#[derive(Debug)]
pub struct Registered {
    /// Where the own memory of this process begins in the domain.
    base: u64,
    memory: ManuallyDrop<OwnMemory>,
    /// That threads of this process reach it for the node, if they do.
    permit: ManuallyDrop<Option<Permit>>,
}

impl Registered {
    pub(crate) fn new(memory: OwnMemory, base: u64) -> Self {
        Self { base, memory: ManuallyDrop::new(memory), permit: ManuallyDrop::new(None) }
    }

    /// Where it begins in the domain: in the process that has opened the domain, where it is in that process; in one that has
    /// joined, the process's number among those of the domain comes before that.
    pub fn address(&self) -> u64 {
        self.base + self.memory.address()
    }

    /// Threads of this process may reach it for the node.
    pub(crate) fn permit(&mut self, process: &ThisProcess) {
        *self.permit = Some(process.permit(&self.memory));
    }

    /// No transfer reaches it any more, and no thread may.
    pub(crate) fn take(self) -> OwnMemory {
        drop(ManuallyDrop::into_inner(self.permit));
        ManuallyDrop::into_inner(self.memory)
    }
}

impl Deref for Registered {
    type Target = OwnMemory;

    fn deref(&self) -> &OwnMemory {
        &self.memory
    }
}
