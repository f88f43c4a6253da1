//! Descriptor rings like those of the prototype's DMA engine (MICRO §6.1.2-5). A descriptor tells where bytes of a frame
//! are, and which side owns them now.
//!
//! A ring is an array of 64-byte descriptors in memory that two sides share, with three places in it:
//!
//! ```text
//!    head ────► current ────► tail ────► (head)
//!     │ done,      │ given to    │ free
//!     │ not taken  │ the device, │
//!     │ back yet   │ not done    │
//! ```
//!
//! *Software* ([`Software`]) gives descriptors to the device by moving the tail, and takes them back at the head. The
//! *device* ([`Device`]) works at the current one. A frame to be sent is one or more fragments, of which the first is
//! marked as start and the last as end of the frame; a frame that has come fills one or more buffers, marked likewise.
//!
//! The device trusts nothing in the ring: it checks lengths, marks, addresses and the tail before it uses them. It reports
//! an error in the descriptor's status, and the ring stops until software resets it.

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Default number of descriptors of a ring for sending (MICRO §6.1.2).
pub const TX_DESCRIPTORS: u32 = 64;
/// Default number of descriptors of a ring for receiving (MICRO §6.1.2).
pub const RX_DESCRIPTORS: u32 = 128;
/// The longest fragment: a length has 26 bits.
pub const FRAGMENT_BYTES_MAX: u32 = (1 << 26) - 1;

/// A descriptor of the AXI DMA engine in scatter-gather mode (Figure 6.4; the fields' places are those of the engine's
/// manual, PG021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the next descriptor, 0x00.
    pub next: u64,
    /// Address of the fragment or buffer, 0x08.
    pub buffer: u64,
    /// Length of the fragment or buffer, and the start and end marks of a frame that is sent, 0x18.
    pub control: u32,
    /// What the device has done, 0x1c.
    pub status: u32,
    /// For the user: app0 to app4, 0x20.
    pub app: [u32; 5],
    /// Software's identifier of the descriptor, 0x38 (`sw_id_offset`).
    pub software: u64,
}

/// Bits of [`Descriptor::control`].
pub mod control {
    /// First fragment of a frame.
    pub const START: u32 = 1 << 27;
    /// Last fragment of a frame.
    pub const END: u32 = 1 << 26;
    /// Length of the fragment.
    pub const LENGTH: u32 = super::FRAGMENT_BYTES_MAX;
}

/// Bits of [`Descriptor::status`].
pub mod status {
    /// The device is done with the descriptor.
    pub const COMPLETE: u32 = 1 << 31;
    /// The buffer is outside of the memory that the device may reach.
    pub const DECODE_ERROR: u32 = 1 << 30;
    /// The memory could not be read or written.
    pub const SLAVE_ERROR: u32 = 1 << 29;
    /// The descriptor itself is wrong.
    pub const INTERNAL_ERROR: u32 = 1 << 28;
    /// First buffer of a frame that has come.
    pub const START: u32 = 1 << 27;
    /// Last buffer of a frame that has come.
    pub const END: u32 = 1 << 26;
    /// Bytes that were sent or have come.
    pub const LENGTH: u32 = super::FRAGMENT_BYTES_MAX;
    /// Any error.
    pub const ERRORS: u32 = DECODE_ERROR | SLAVE_ERROR | INTERNAL_ERROR;
}

impl Descriptor {
    /// The descriptor's bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let [app0, app1, app2, app3, app4] = self.app;
        let low = |word: u64| word as u32;
        let high = |word: u64| (word >> 32) as u32;
        let words = [
            low(self.next),
            high(self.next),
            low(self.buffer),
            high(self.buffer),
            0,
            0,
            self.control,
            self.status,
            app0,
            app1,
            app2,
            app3,
            app4,
            0,
            low(self.software),
            high(self.software),
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`Descriptor::to_bytes`].
    pub fn from_bytes(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let mut words = [0u32; DESCRIPTOR_BYTES / 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let [next_low, next_high, low, high, _, _, control, status, a, b, c, d, e, _, sw_low, sw_high] =
            words;
        let long = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        Self {
            next: long(next_low, next_high),
            buffer: long(low, high),
            control,
            status,
            app: [a, b, c, d, e],
            software: long(sw_low, sw_high),
        }
    }

    /// Bytes of the fragment or buffer.
    pub fn length(&self) -> u32 {
        self.control & control::LENGTH
    }
}

/// The memory of a ring, which both sides see. Indices are below [`RingMemory::len`].
pub trait RingMemory {
    /// How many descriptors there are.
    fn len(&self) -> u32;
    /// Whether the ring has no descriptors.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads a descriptor.
    fn load(&self, index: u32) -> Descriptor;
    /// Writes a descriptor.
    fn store(&mut self, index: u32, descriptor: &Descriptor);
}

impl RingMemory for [Descriptor] {
    fn len(&self) -> u32 {
        self.len() as u32
    }

    fn load(&self, index: u32) -> Descriptor {
        self.get(index as usize).copied().unwrap_or_default()
    }

    fn store(&mut self, index: u32, descriptor: &Descriptor) {
        if let Some(place) = self.get_mut(index as usize) {
            *place = *descriptor;
        }
    }
}

/// A piece of a frame, or a buffer for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Address of its first byte.
    pub address: u64,
    /// Its length: 1 to [`FRAGMENT_BYTES_MAX`].
    pub length_bytes: u32,
}

/// There are not enough free descriptors at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full")]
pub struct RingFull;

/// A descriptor that the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Software's identifier of the descriptor.
    pub software: u64,
    /// What the device has done: bits of [`status`].
    pub status: u32,
}

/// Software's side of a ring. Head and tail count without end: modulo the ring's length, they are indices of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Software {
    head: u32,
    tail: u32,
}

impl Software {
    /// Links all descriptors of a ring into a circle. `base`: address of the first one.
    pub fn new<M: RingMemory + ?Sized>(memory: &mut M, base: u64) -> Self {
        let count = memory.len();
        for index in 0..count {
            let next = base + u64::from((index + 1) % count) * DESCRIPTOR_BYTES as u64;
            memory.store(index, &Descriptor { next, ..Descriptor::default() });
        }
        Self::default()
    }

    /// Value for the device's tail register.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Number of free descriptors.
    pub fn free<M: RingMemory + ?Sized>(&self, memory: &M) -> u32 {
        memory.len() - self.tail.wrapping_sub(self.head)
    }

    /// Gives a frame to the device, in fragments.
    ///
    /// # Errors
    /// [`RingFull`]: no fragment was given to the device.
    pub fn send<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        fragments: &[Fragment],
        software: u64,
    ) -> Result<(), RingFull> {
        if fragments.len() as u64 > u64::from(self.free(memory)) {
            return Err(RingFull);
        }
        let last = fragments.len().saturating_sub(1);
        for (index, fragment) in fragments.iter().enumerate() {
            let start = if index == 0 { control::START } else { 0 };
            let end = if index == last { control::END } else { 0 };
            self.give(memory, *fragment, start | end, software);
        }
        Ok(())
    }

    /// Gives a buffer to the device.
    ///
    /// # Errors
    /// [`RingFull`].
    pub fn offer<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        buffer: Fragment,
        software: u64,
    ) -> Result<(), RingFull> {
        if self.free(memory) == 0 {
            return Err(RingFull);
        }
        self.give(memory, buffer, 0, software);
        Ok(())
    }

    fn give<M: RingMemory + ?Sized>(&mut self, memory: &mut M, piece: Fragment, marks: u32, software: u64) {
        let index = self.tail % memory.len();
        let next = memory.load(index).next;
        let control = (piece.length_bytes & control::LENGTH) | marks;
        memory.store(
            index,
            &Descriptor { next, buffer: piece.address, control, software, ..Descriptor::default() },
        );
        self.tail = self.tail.wrapping_add(1);
    }

    /// Takes back the descriptor at the head, if the device is done with it.
    pub fn take_back<M: RingMemory + ?Sized>(&mut self, memory: &M) -> Option<Done> {
        if self.head == self.tail {
            return None;
        }
        let descriptor = memory.load(self.head % memory.len());
        if descriptor.status & status::COMPLETE == 0 {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        Some(Done { software: descriptor.software, status: descriptor.status })
    }

    /// Takes back all descriptors after an error and starts the ring anew. The device must be reset, too. Returns software's
    /// identifiers of the descriptors that were given and not taken back before, in order.
    pub fn reset<M: RingMemory + ?Sized>(&mut self, memory: &mut M, base: u64) -> Vec<u64> {
        let mut left = Vec::new();
        while self.head != self.tail {
            left.push(memory.load(self.head % memory.len()).software);
            self.head = self.head.wrapping_add(1);
        }
        *self = Self::new(memory, base);
        left
    }
}

/// Why a ring has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The tail is further from the current descriptor than the ring is long.
    #[error("the tail is not in the ring")]
    Tail,
    /// A frame does not begin with a start mark, or has one in its middle.
    #[error("a frame's start is marked wrongly")]
    Start,
    /// A frame fills the whole ring and does not end.
    #[error("a frame has no end")]
    NoEnd,
    /// A fragment has no bytes, or a frame is too long.
    #[error("a frame is empty or too long")]
    Length,
    /// A fragment or buffer is outside of the memory that the device may reach.
    #[error("an address is outside of the ring's memory")]
    Address,
    /// The memory could not be read or written.
    #[error("the memory of a fragment cannot be reached")]
    Memory,
}

impl RingError {
    fn status(self) -> u32 {
        match self {
            Self::Address => status::DECODE_ERROR,
            Self::Memory => status::SLAVE_ERROR,
            Self::Tail | Self::Start | Self::NoEnd | Self::Length => status::INTERNAL_ERROR,
        }
    }
}

/// The device's side of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    current: u32,
    error: Option<RingError>,
    /// Number of frames sent or received.
    frames: u64,
}

/// The memory that a device may reach, and the longest frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// First address of the memory that fragments and buffers are in.
    pub start: u64,
    /// Bytes of that memory.
    pub length_bytes: u64,
    /// The longest frame.
    pub frame_bytes_max: u32,
}

impl Bounds {
    fn has(&self, descriptor: &Descriptor) -> bool {
        let offset = descriptor.buffer.checked_sub(self.start);
        let end = offset.and_then(|offset| offset.checked_add(u64::from(descriptor.length())));
        end.is_some_and(|end| end <= self.length_bytes)
    }
}

impl Device {
    /// Why the device has stopped, if it has.
    pub fn error(&self) -> Option<RingError> {
        self.error
    }

    /// The current descriptor. The number counts without end: modulo the ring's length, it is an index.
    pub fn current(&self) -> u32 {
        self.current
    }

    /// Number of frames sent or received so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Starts the ring anew, as [`Software::reset`] does.
    pub fn reset(&mut self) {
        *self = Self { frames: self.frames, ..Self::default() };
    }

    /// Stops the ring and reports the error in the current descriptor.
    fn fail<M: RingMemory + ?Sized>(&mut self, memory: &mut M, error: RingError) -> RingError {
        if !memory.is_empty() {
            let index = self.current % memory.len();
            let mut descriptor = memory.load(index);
            // A descriptor that is done belongs to software. If the tail is wrong, the current one may be such a descriptor.
            if descriptor.status & status::COMPLETE == 0 {
                descriptor.status = error.status() | status::COMPLETE;
                memory.store(index, &descriptor);
            }
        }
        self.error = Some(error);
        error
    }

    /// Number of descriptors that were given to the device and are not done.
    fn given<M: RingMemory + ?Sized>(&mut self, memory: &mut M, tail: u32) -> Result<u32, RingError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let given = tail.wrapping_sub(self.current);
        if given > memory.len() { Err(self.fail(memory, RingError::Tail)) } else { Ok(given) }
    }

    /// Puts the fragments of the next frame to send into `fragments`. Returns false if software has not given a whole frame
    /// yet. After reading the fragments, call [`Device::sent`].
    ///
    /// # Errors
    /// [`RingError`]: the ring stops now, or has stopped before.
    pub fn next_frame<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        tail: u32,
        bounds: &Bounds,
        fragments: &mut Vec<Fragment>,
    ) -> Result<bool, RingError> {
        fragments.clear();
        let given = self.given(memory, tail)?;
        let mut bytes = 0u64;
        for step in 0..given {
            let descriptor = memory.load(self.current.wrapping_add(step) % memory.len());
            let is_marked = descriptor.control & control::START != 0;
            bytes += u64::from(descriptor.length());
            let error = if is_marked != (step == 0) {
                Some(RingError::Start)
            } else if descriptor.length() == 0 || bytes > u64::from(bounds.frame_bytes_max) {
                Some(RingError::Length)
            } else if !bounds.has(&descriptor) {
                Some(RingError::Address)
            } else {
                None
            };
            if let Some(error) = error {
                fragments.clear();
                return Err(self.fail(memory, error));
            }
            fragments.push(Fragment { address: descriptor.buffer, length_bytes: descriptor.length() });
            if descriptor.control & control::END != 0 {
                return Ok(true);
            }
        }
        fragments.clear();
        if given > 0 && given == memory.len() { Err(self.fail(memory, RingError::NoEnd)) } else { Ok(false) }
    }

    /// Records that the fragments of [`Device::next_frame`] were read, or that they could not be read.
    ///
    /// # Errors
    /// [`RingError::Memory`]: the ring has stopped.
    pub fn sent<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        fragments: &[Fragment],
        could_be_read: bool,
    ) -> Result<(), RingError> {
        if !could_be_read {
            return Err(self.fail(memory, RingError::Memory));
        }
        for fragment in fragments {
            let index = self.current % memory.len();
            let mut descriptor = memory.load(index);
            descriptor.status = status::COMPLETE | (fragment.length_bytes & status::LENGTH);
            memory.store(index, &descriptor);
            self.current = self.current.wrapping_add(1);
        }
        self.frames += 1;
        Ok(())
    }

    /// Puts buffers for a frame that has come into `fragments`, cut to the frame's length. Returns false if there are too few
    /// buffers: the frame is dropped. After writing the buffers, call [`Device::received`].
    ///
    /// # Errors
    /// [`RingError`]: the ring stops now, or has stopped before.
    pub fn buffers<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        tail: u32,
        bounds: &Bounds,
        frame_bytes: u32,
        fragments: &mut Vec<Fragment>,
    ) -> Result<bool, RingError> {
        fragments.clear();
        let given = self.given(memory, tail)?;
        let mut left = frame_bytes;
        for step in 0..given {
            let descriptor = memory.load(self.current.wrapping_add(step) % memory.len());
            let error = if descriptor.length() == 0 {
                Some(RingError::Length)
            } else if !bounds.has(&descriptor) {
                Some(RingError::Address)
            } else {
                None
            };
            if let Some(error) = error {
                fragments.clear();
                return Err(self.fail(memory, error));
            }
            let length_bytes = descriptor.length().min(left);
            fragments.push(Fragment { address: descriptor.buffer, length_bytes });
            left -= length_bytes;
            if left == 0 {
                return Ok(true);
            }
        }
        fragments.clear();
        Ok(false)
    }

    /// Records that the buffers of [`Device::buffers`] were written, or that they could not be written.
    ///
    /// # Errors
    /// [`RingError::Memory`]: the ring has stopped.
    pub fn received<M: RingMemory + ?Sized>(
        &mut self,
        memory: &mut M,
        fragments: &[Fragment],
        could_be_written: bool,
    ) -> Result<(), RingError> {
        if !could_be_written {
            return Err(self.fail(memory, RingError::Memory));
        }
        let last = fragments.len().saturating_sub(1);
        for (step, fragment) in fragments.iter().enumerate() {
            let index = self.current % memory.len();
            let mut descriptor = memory.load(index);
            let start = if step == 0 { status::START } else { 0 };
            let end = if step == last { status::END } else { 0 };
            descriptor.status = status::COMPLETE | (fragment.length_bytes & status::LENGTH) | start | end;
            memory.store(index, &descriptor);
            self.current = self.current.wrapping_add(1);
        }
        self.frames += 1;
        Ok(())
    }
}
