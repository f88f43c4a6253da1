//! Allocating memory with all its pages, in steps.

use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use tombolo_host::shared::{HUGE_PAGE_BYTES, SharedMemory, SharedMemoryError};
use tombolo_host::timing::node as timing;

/// Why memory was not allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// The size is zero, or not whole pages.
    #[error("{0} bytes are not a whole number of pages")]
    BadSize(u64),
    /// The system refused.
    #[error("the system gives no memory: {0}")]
    System(String),
}

/// Bytes allocated in one step.
const STEP_BYTES: u64 = 64 << 20;

/// Memory whose pages are being allocated, as huge pages where the kernel has them. Copying to huge pages is faster by
/// a sixth to a third, mapping them takes next to no time, and allocating them takes no longer than ordinary pages.
#[derive(Debug)]
pub struct Allocation {
    memory: SharedMemory,
    done_bytes: u64,
    /// What is left of the time reserve for slow huge pages ([`timing::HUGE_PAGES_RESERVE`]). `None`: no more are
    /// tried.
    huge_time_left: Option<Duration>,
}

impl Allocation {
    /// New memory of this size, without its pages.
    pub fn new(bytes: u64) -> Result<Self, AllocationError> {
        Self::with(bytes, |length| SharedMemory::create("tombolo-segment", length))
    }

    /// As [`Self::new`], for memory that other processes will map for reading only. It can be sealed for that later.
    pub fn for_readers(bytes: u64) -> Result<Self, AllocationError> {
        Self::with(bytes, |length| SharedMemory::create_growing_seals("tombolo-window", length))
    }

    fn with(
        bytes: u64,
        create: impl FnOnce(usize) -> Result<SharedMemory, SharedMemoryError>,
    ) -> Result<Self, AllocationError> {
        let length = usize::try_from(bytes).map_err(|_| AllocationError::BadSize(bytes))?;
        let memory = create(length).map_err(|error| AllocationError::System(error.to_string()))?;
        Ok(Self { memory, done_bytes: 0, huge_time_left: Some(timing::HUGE_PAGES_RESERVE) })
    }

    /// Allocates some of the pages. Returns true when all are allocated.
    pub fn go_on(&mut self) -> Result<bool, AllocationError> {
        // Allocate now: allocation on demand could fail when a borrower writes, as SIGBUS or worse.
        let bytes = self.memory.len() as u64;
        let step = STEP_BYTES.min(bytes - self.done_bytes);
        for offset in (self.done_bytes..self.done_bytes + step).step_by(HUGE_PAGE_BYTES) {
            let Some(huge_time_left) = self.huge_time_left else { break };
            let began = Instant::now();
            let is_huge = self.memory.make_huge(offset as usize);
            let left = (huge_time_left + timing::HUGE_PAGE_TIMEOUT).checked_sub(began.elapsed());
            self.huge_time_left = left.filter(|_| is_huge);
        }
        if step > 0 {
            let allocated = rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(&self.memory, FallocateFlags::empty(), self.done_bytes, step)
            });
            allocated.map_err(|error| AllocationError::System(error.to_string()))?;
        }
        self.done_bytes += step;
        Ok(self.done_bytes == bytes)
    }

    /// The memory.
    pub fn finish(self) -> SharedMemory {
        self.memory
    }
}

/// New memory of this size, with all its pages.
pub fn allocate(bytes: u64) -> Result<SharedMemory, AllocationError> {
    let mut allocation = Allocation::new(bytes)?;
    while !allocation.go_on()? {}
    Ok(allocation.finish())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn all_of_what_is_allocated_is_there() {
        use std::os::unix::fs::MetadataExt;

        const HUGE: u64 = HUGE_PAGE_BYTES as u64;
        for bytes in [4096, HUGE - 4096, HUGE, HUGE + 4096, STEP_BYTES + 3 * HUGE + 8192] {
            let mut allocation = Allocation::new(bytes).unwrap();
            while !allocation.go_on().unwrap() {}
            let memory = allocation.finish();
            let file = std::fs::File::from(memory.as_fd().try_clone_to_owned().unwrap());
            let metadata = file.metadata().unwrap();
            assert_eq!((metadata.len(), metadata.blocks() * 512), (bytes, bytes), "and no more");
            for at in [0, bytes as usize / 2, bytes as usize - 8] {
                assert_eq!(memory.span(at, 8).unwrap().to_vec(), [0; 8]);
            }
        }
    }
}
