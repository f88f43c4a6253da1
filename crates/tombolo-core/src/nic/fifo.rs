//! A queue of frames with a bound in bytes: a frame that does not fit is refused when it is added, and counted.

use std::collections::VecDeque;

/// A queue of frames.
#[derive(Debug)]
pub struct Fifo<F> {
    frames: VecDeque<(u32, F)>,
    bytes: u64,
    bytes_max: u64,
    dropped: u64,
}

impl<F> Fifo<F> {
    /// An empty queue that holds at most `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, bytes_max, dropped: 0 }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// The frame itself, if there is no room for it. It is counted as dropped.
    pub fn push(&mut self, length_bytes: u32, frame: F) -> Result<(), F> {
        if self.bytes + u64::from(length_bytes) > self.bytes_max {
            self.dropped += 1;
            return Err(frame);
        }
        self.bytes += u64::from(length_bytes);
        self.frames.push_back((length_bytes, frame));
        Ok(())
    }

    /// Removes the oldest frame. Returns its length and the frame.
    pub fn pop(&mut self) -> Option<(u32, F)> {
        let (length_bytes, frame) = self.frames.pop_front()?;
        self.bytes -= u64::from(length_bytes);
        Some((length_bytes, frame))
    }

    /// Whether the queue has no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of the frames in the queue.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of frames refused for lack of room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
