//! Windows: memory of one program that other programs map (`tombolo_host::shared::window`).
//!
//! ```text
//!   allocated ──opened by its owner──► open ──────────► gone: freed, or its domain closed
//!                                       │                 ▲
//!                                       └ revoked: no more rights; the owner's bytes move to other memory ─► plain memory
//! ```
//!
//! A program that maps a window has its descriptor, which cannot be taken back. So a window has the same rights for all
//! programs that it is granted to: reading, or reading and writing. It is revoked as a whole.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_channel::{Grant, Reply, Target, on_the_wire};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::{SharedMemory, SharedMemoryError, WindowEnd, WindowState};
use tombolo_host::timing::node as timing;

use super::Missing;
use super::domain::ProgramDomain;
use super::domains::{Programs, Region};
use super::user::Poster;
use crate::fabric::connection::Connection;
use crate::fabric::messages::{Message, MessageV1, Reply as PeerReply, Request as PeerRequest};
use crate::fabric::neighbour::Answer;
use crate::fabric::table::{Fabric, ITSELF};
use crate::memory::reclaim::Segment;

/// The state that makes memory of a domain a window.
#[derive(Debug)]
pub(crate) struct Window {
    state: Arc<WindowState>,
    pub(super) is_writable: bool,
    /// Its owner has mapped it, so other programs may map it now.
    is_open: bool,
}

impl Window {
    pub(super) fn new(is_writable: bool) -> Result<Self, String> {
        let state = WindowState::create().map_err(|error| error.to_string())?;
        Ok(Self { state: Arc::new(state), is_writable, is_open: false })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.state.end(WindowEnd::Freed);
    }
}

/// A window, for a program that maps it.
#[derive(Debug)]
pub(crate) struct WindowPlace {
    memory: Arc<SharedMemory>,
    state: Arc<WindowState>,
    pub(crate) is_writable: bool,
}

impl WindowPlace {
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Descriptors of the memory and of the window's state.
    pub(crate) fn descriptors(&self) -> Result<[OwnedFd; 2], SharedMemoryError> {
        let memory = match self.is_writable {
            true => self.memory.as_fd().try_clone_to_owned().map_err(|error| SharedMemoryError::System {
                operation: "passing",
                errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
            })?,
            false => self.memory.read_only_descriptor()?,
        };
        Ok([memory, self.state.reader()?])
    }
}

/// Decides which poster may map which window. The node implements it.
pub(crate) trait Windows {
    /// The window that begins at this address of a domain of this node, if this poster may map it.
    fn window(&self, domain: u16, address: u64, by: Poster) -> Result<WindowPlace, Missing>;
}

/// Whether a window with these grants may be written by other programs.
///
/// # Errors
/// The grants are not the same for all.
pub(super) fn is_writable(grants: &[Grant]) -> Result<bool, String> {
    let is_writable = grants.first().is_some_and(|grant| grant.write);
    if grants.iter().any(|grant| !grant.read || grant.write != is_writable) {
        let reason = "a window is granted to all alike, for reading or for reading and writing";
        return Err(reason.into());
    }
    Ok(is_writable)
}

/// Text that says why a window is not mapped.
pub(crate) fn why_not(missing: Missing, domain: u16, address: u64) -> String {
    match missing {
        Missing::Domain => format!("there is no domain {domain}"),
        Missing::Range => format!("no open window of domain {domain} begins at {address:#x}"),
        Missing::Grant => format!("the window at {address:#x} of domain {domain} is granted to others"),
    }
}

/// A request to another node to map one of its windows.
pub(super) struct AskedWindow {
    connection: Arc<Connection>,
    number: u32,
    message: Vec<u8>,
    is_sent: bool,
    until: Instant,
}

impl AskedWindow {
    /// Prepares the request. [`Self::go_on`] sends it.
    pub(super) fn new(fabric: &Fabric, target: Target, address: u64) -> Result<Self, String> {
        let connection = fabric.numbers.peer(target.node).and_then(|peer| fabric.connection(peer));
        let connection = connection.ok_or_else(|| format!("no node has the number {}", target.node))?;
        if !connection.link.supports_windows() {
            return Err(format!(
                "the link to node {} passes no memory: windows need one over shared memory (shm)",
                target.node
            ));
        }
        let number = connection.own().next_number();
        let request = PeerRequest::MapWindow { domain: on_the_wire(target.domain).0, address };
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        connection.own().open_question(number);
        let until = Instant::now() + timing::MAP_WINDOW_TIMEOUT;
        Ok(Self { connection, number, message, is_sent: false, until })
    }

    /// Sends the request unless it is sent, and returns the answer when it has arrived.
    pub(super) fn go_on(&mut self) -> Option<Result<Answer, String>> {
        if !self.is_sent {
            self.is_sent = self.connection.link.send_control(&self.message, &[]).is_ok();
        }
        if let Some(answer) = self.connection.own().take_answer(self.number) {
            return Some(Ok(answer));
        }
        if !self.connection.has_link() {
            return Some(Err("the link to that node is lost".into()));
        }
        (Instant::now() > self.until).then(|| Err("that node does not answer".into()))
    }
}

impl Drop for AskedWindow {
    fn drop(&mut self) {
        self.connection.own().close_question(self.number);
    }
}

/// The answer to the program that asked for a window of another node, and the descriptors that go with it.
pub(super) fn answer_of((reply, descriptors): Answer) -> Result<(Reply, Vec<PassedDescriptor>), String> {
    match reply {
        PeerReply::Window { bytes, is_writable } if descriptors.len() == 2 => {
            Ok((Reply::Window { bytes, is_writable }, descriptors))
        }
        PeerReply::Failed(reason) => Err(reason),
        _ => Err("that node answered something else".into()),
    }
}

impl Programs {
    /// The window that begins at this address, if `is_granted` accepts its grants. The second argument of `is_granted`
    /// says whether the window is writable.
    pub(crate) fn find_window(
        &self,
        number: u16,
        address: u64,
        is_granted: impl FnOnce(&[Grant], bool) -> bool,
    ) -> Result<WindowPlace, Missing> {
        let regions = self.regions.read();
        let Some(region) = regions.get(&(number, address)) else {
            drop(regions);
            return Err(if self.is_open(number) { Missing::Range } else { Missing::Domain });
        };
        let Some(window) = region.window.as_ref().filter(|window| window.is_open) else {
            return Err(Missing::Range);
        };
        if region.is_moving() {
            return Err(Missing::Range);
        }
        if !is_granted(&region.grants, window.is_writable) {
            return Err(Missing::Grant);
        }
        self.counts.windows_mapped.fetch_add(1, Ordering::Relaxed);
        Ok(WindowPlace {
            memory: region.segment.memory().clone(),
            state: window.state.clone(),
            is_writable: window.is_writable,
        })
    }

    /// Finds the window of this node that a program asks to map.
    pub(super) fn map_here(
        &self,
        windows: &dyn Windows,
        domain: &ProgramDomain,
        target: Target,
        address: u64,
    ) -> Result<WindowPlace, String> {
        debug_assert_eq!(target.node, ITSELF.0);
        let by = Poster::of(domain.user(0));
        windows.window(target.domain, address, by).map_err(|missing| why_not(missing, target.domain, address))
    }

    /// Opens a window that its owner has mapped. Runs in the pool, because sealing waits for ongoing writes to the
    /// file, which the program may make.
    pub(super) fn open_window(&self, domain: &ProgramDomain, address: u64) -> Result<(), String> {
        let no_window = || format!("no window begins at {address:#x}");
        let found = |region: &Region| {
            let window = region.window.as_ref().filter(|_| !region.is_moving())?;
            Some((window.is_writable, window.state.clone(), region.segment.memory().clone()))
        };
        let (is_writable, state, memory) =
            Self::of_process(&self.regions.read(), domain, address).and_then(found).ok_or_else(no_window)?;
        if !is_writable && !memory.is_sealed_for_readers() {
            memory.seal_for_readers().map_err(|error| error.to_string())?;
        }
        let mut regions = self.regions.write();
        // The window may have been freed or revoked meanwhile.
        let region = Self::of_process_mut(&mut regions, domain, address).filter(|region| !region.is_moving());
        let window = region.and_then(|region| region.window.as_mut());
        let window = window.filter(|window| Arc::ptr_eq(&window.state, &state)).ok_or_else(no_window)?;
        window.is_open = true;
        Ok(())
    }

    /// The size of the window that begins at this address. Also returns the memory that it moves to, if it was revoked
    /// already.
    pub(super) fn window_to_revoke(
        &self,
        domain: &ProgramDomain,
        address: u64,
    ) -> Result<(u64, Option<Arc<SharedMemory>>), String> {
        let regions = self.regions.read();
        let region = Self::of_process(&regions, domain, address).filter(|region| region.window.is_some());
        let region = region.ok_or_else(|| format!("no window begins at {address:#x}"))?;
        let successor = region.successor.as_ref().map(|successor| successor.memory().clone());
        Ok((region.segment.memory().len() as u64, successor))
    }

    /// Revokes a window: all grants end, and no transfer reaches the window until its contents have moved to
    /// `successor`, which its owner gets. A repeated request returns the same memory.
    pub(super) fn revoke(
        &self,
        domain: &ProgramDomain,
        address: u64,
        successor: Segment,
    ) -> Result<Arc<SharedMemory>, String> {
        let mut regions = self.regions.write();
        let region = Self::of_process_mut(&mut regions, domain, address);
        let Some(region) = region.filter(|region| region.window.is_some()) else {
            drop(regions);
            return Err(format!("no window begins at {address:#x}"));
        };
        region.grants.clear();
        if let Some(window) = &region.window {
            window.state.end(WindowEnd::Revoked);
        }
        let memory = region.successor.get_or_insert(successor).memory().clone();
        Ok(memory)
    }

    /// Whether a transfer that found a window before it was revoked still uses its memory.
    pub(super) fn is_reached(&self, domain: &ProgramDomain, address: u64) -> bool {
        let mut regions = self.regions.write();
        let region = Self::of_process_mut(&mut regions, domain, address);
        region.is_some_and(|region| region.segment.is_in_use())
    }

    /// Replaces a revoked window by its successor, after the owner has moved the contents. A repeated request has no
    /// further effect: the owner repeats it if the answer did not come in time.
    pub(super) fn moved(&self, domain: &ProgramDomain, address: u64) -> Result<(), String> {
        let mut regions = self.regions.write();
        let Some(region) = Self::of_process_mut(&mut regions, domain, address) else {
            return Err(format!("no memory begins at {address:#x}"));
        };
        let Some(successor) = region.successor.take() else {
            let was_revoked = region.was_revoked;
            drop(regions);
            return was_revoked
                .then_some(())
                .ok_or_else(|| format!("no window that begins at {address:#x} was revoked"));
        };
        region.was_revoked = true;
        // Programs that have the window mapped keep their mapping, and so does a child of the owner.
        let former = std::mem::replace(&mut region.segment, successor);
        let window = region.window.take();
        drop(regions);
        self.counts.windows_revoked.fetch_add(1, Ordering::Relaxed);
        drop((window, former));
        Ok(())
    }
}
