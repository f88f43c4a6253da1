//! Windows: memory of this program that others map, and theirs that this one maps.

use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_channel::{Grant, Reply, Request, Target};
use tombolo_host::shared::{
    MappedWindow, SharedMemory, SharedMemoryError, SharedSpan, WindowEnd, can_hold_writers_back,
};

use crate::domain::Domain;
use crate::error::OpenError;
use crate::memory::{Memory, Revoking};
use crate::requests::GivenUp;

/// Why a window was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// It is over. What was read is to be forgotten, and what was written may be lost.
    #[error("{0}")]
    Ended(#[from] WindowEnd),
    /// It was granted for reading only.
    #[error("the window is for reading only")]
    ReadOnly,
    /// It does not reach so far, or a word is not at a multiple of eight.
    #[error("{0}")]
    Range(#[from] SharedMemoryError),
}

/// Memory of another domain, mapped into this program: what is loaded and stored here is loaded and stored there, with no
/// node in between. It stays mapped until it is dropped, whatever its owner does.
///
/// Each method that reads or writes looks afterwards whether the window is still what it was. `Ok` means: what was read came
/// from the owner's memory, and what was written is there, also if the window is revoked later. Who uses
/// [`Self::as_mut_ptr`] calls [`Self::check`] for the same.
#[derive(Debug)]
pub struct Window(MappedWindow);

impl Window {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: there is no empty window.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    /// Where it is in this program, while `self` lives. To write there is a fault if it is for reading only.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Whether all that was read before came from the owner's memory, and all that was written before is there. A load of
    /// a word, not a system call.
    pub fn check(&self) -> Result<(), WindowEnd> {
        self.0.check()
    }

    /// Whether the node of its owner lives. One that was killed tells nothing, and [`Self::check`] goes on to succeed, though
    /// the owner may have taken the window back since. A system call.
    pub fn has_owner(&self) -> bool {
        self.0.has_owner()
    }

    /// A word of a window that can be written, to be loaded, stored and changed; [`Self::check`] says whether that counted.
    pub fn word(&self, offset_bytes: usize) -> Result<&AtomicU64, WindowError> {
        Ok(self.0.word(offset_bytes).ok_or(WindowError::ReadOnly)??)
    }

    /// Copies bytes out.
    pub fn read(&self, offset_bytes: usize, bytes: &mut [u8]) -> Result<(), WindowError> {
        self.0.span(offset_bytes, bytes.len())?.copy_to(bytes);
        Ok(self.check()?)
    }

    /// Copies bytes in.
    pub fn write(&self, offset_bytes: usize, bytes: &[u8]) -> Result<(), WindowError> {
        let place = self.0.span_mut(offset_bytes, bytes.len()).ok_or(WindowError::ReadOnly)??;
        place.copy_from(SharedSpan::from(bytes));
        Ok(self.check()?)
    }

    /// The word at an offset that is a multiple of eight. What its writer wrote before it is seen after this.
    pub fn load(&self, offset_bytes: usize) -> Result<u64, WindowError> {
        let word = self.0.load(offset_bytes)?;
        self.check()?;
        Ok(word)
    }

    /// Stores a word. Who loads it sees what was written before this.
    pub fn store(&self, offset_bytes: usize, word: u64) -> Result<(), WindowError> {
        self.word(offset_bytes)?.store(word, Ordering::Release);
        Ok(self.check()?)
    }

    /// Adds to a word, atomically with all other atomic operations on it, those of transfers too. The word before.
    pub fn fetch_add(&self, offset_bytes: usize, operand: u64) -> Result<u64, WindowError> {
        let before = self.word(offset_bytes)?.fetch_add(operand, Ordering::AcqRel);
        self.check()?;
        Ok(before)
    }

    /// Puts `swap` there if `compare` is there, as [`Self::fetch_add`]. The word before.
    pub fn compare_swap(&self, offset_bytes: usize, compare: u64, swap: u64) -> Result<u64, WindowError> {
        let before = self
            .word(offset_bytes)?
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|before| before);
        self.check()?;
        Ok(before)
    }
}

impl Domain {
    /// As [`Self::allocate`], memory that programs with a grant can also map ([`Self::map_window`]), at this node or at
    /// one with a link over shared memory. They may all read it, and all or none of them may write it. Memory for reading
    /// only can be written by nobody but this program, whatever a peer does with what it was passed.
    pub fn allocate_window(&self, bytes: usize, grants: &[Grant]) -> Result<Memory, OpenError> {
        let request = Request::AllocateWindow { bytes: bytes as u64, grants: grants.to_vec() };
        let memory = self.allocated(request, bytes)?;
        match self.ask(Request::OpenWindow { address: memory.address() }) {
            Ok(Reply::Done) => Ok(memory),
            other => {
                self.free_later(&memory);
                Err(other.err().unwrap_or(OpenError::UnexpectedMessage))
            }
        }
    }

    /// Maps a window of another domain, which begins there at `address`.
    pub fn map_window(&self, of: Target, address: u64) -> Result<Window, OpenError> {
        let answer = self.ask_for(Request::MapWindow { target: of, address }, &mut || GivenUp::Nothing)?;
        let Reply::Window { bytes, is_writable } = answer.reply else {
            return Err(OpenError::UnexpectedMessage);
        };
        let [memory, state] = answer.descriptors()?;
        let bytes = usize::try_from(bytes).map_err(|_| OpenError::UnexpectedMessage)?;
        Ok(Window(MappedWindow::open(memory, state, bytes, is_writable)?))
    }

    /// Takes a window back. When this returns `Ok`, nobody else reaches the memory, neither by a mapping nor by a transfer,
    /// and it is plain memory of this domain, with no grants, at the same address.
    ///
    /// What this program has written is all there, also what its threads write meanwhile; they wait until the memory has
    /// moved, and a system call that writes there may fail with `EFAULT` (where this process may not use userfaultfd for the
    /// kernel's accesses). What others have written is there as far as it came before. Those who have the window mapped are
    /// told by [`Window::check`]; what they load from then on means nothing, and what they store is lost. No transfer of this
    /// program may reach the window meanwhile: it would be refused. A child made by `fork` goes on with the former memory.
    ///
    /// What a device writes to pages of the window that were pinned before (`O_DIRECT`, buffers registered with io_uring) goes to
    /// the former memory, as do waits for futexes in it; what was set for its pages (`mprotect`, `mlock`, `mbind`) is to be set
    /// again. Its threads wait for as long as copying takes, some 0.1 ms a MiB.
    ///
    /// After an error others may reach the memory still, transfers to and from it may be refused, and this can be tried again.
    /// Where the node is gone, this works as well.
    pub fn revoke_window(&self, memory: &Memory) -> Result<(), OpenError> {
        if !memory.is_of(self.serial()) {
            return Err(OpenError::OtherDomain);
        }
        // One thread revokes it.
        let mut how_far = memory.revoking();
        let address = memory.address();
        if *how_far == Revoking::No {
            can_hold_writers_back().map_err(OpenError::Window)?;
            let answer = match self.ask_for(Request::RevokeWindow { address }, &mut || GivenUp::Nothing) {
                Ok(answer) => answer,
                // Nobody is left who could take it back, or give memory for it.
                Err(error) if error.is_node_gone() => {
                    let own = SharedMemory::create("tombolo-window", memory.len())?;
                    memory.move_to(own).map_err(OpenError::Window)?;
                    *how_far = Revoking::Done;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let Reply::Allocated { .. } = answer.reply else { return Err(OpenError::UnexpectedMessage) };
            let successor = SharedMemory::open(answer.descriptor()?, memory.len())?;
            memory.move_to(successor).map_err(OpenError::Window)?;
            *how_far = Revoking::Moved;
        }
        if *how_far == Revoking::Moved {
            match self.ask(Request::WindowMoved { address }) {
                Ok(Reply::Done) => *how_far = Revoking::Done,
                Err(error) if error.is_node_gone() => *how_far = Revoking::Done,
                Ok(_) => return Err(OpenError::UnexpectedMessage),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
