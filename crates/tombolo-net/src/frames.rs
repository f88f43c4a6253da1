//! Buffers for frames with their offload headers. Tags are put in or taken out as frames are read and written.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, ReadWriteFlags};
use tombolo_core::nic::offload::{OFFLOAD_BYTES, OffloadHeader, shifted};
use tombolo_core::nic::{Cut, TAG_BYTES, Tag, settle};
use tombolo_host::net::{is_packet_socket, is_tap, receive_frame, send_frame, take_overflows};

/// Bytes of a frame's two addresses, after which a tag stands.
const ADDRESSES_BYTES: usize = 12;
/// The longest frame or segment, with its Ethernet header and two tags.
pub const FRAME_BYTES_MAX: usize = 65_536 + 14 + 2 * TAG_BYTES;

/// A descriptor that frames are read from and written to. Reads and writes never wait. Since another process may have passed
/// the descriptor, and can switch `O_NONBLOCK` off, each call asks the kernel not to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<D> {
    /// A queue of a TAP device.
    Queue(D),
    /// A socket for all frames of an interface.
    Socket(D),
}

impl<D: AsFd> End<D> {
    /// Finds the kind of a descriptor. `None`: it is neither a queue of a TAP device nor a packet socket.
    pub fn of(descriptor: D) -> Option<Self> {
        if is_tap(descriptor.as_fd()) {
            Some(Self::Queue(descriptor))
        } else if is_packet_socket(descriptor.as_fd()) {
            Some(Self::Socket(descriptor))
        } else {
            None
        }
    }
}

impl<D: AsFd> End<D> {
    /// Writes a frame with its offload header, in parts.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        match self {
            Self::Queue(queue) => {
                // A TAP has no positions: this one means the current position.
                rustix::io::pwritev2(queue, parts, u64::MAX, ReadWriteFlags::NOWAIT).map(drop)
            }
            Self::Socket(socket) => send_frame(socket.as_fd(), parts),
        }
    }

    /// Number of frames that the kernel has dropped since the last call, since there was no room for them. It is 0 for a TAP
    /// device, which counts such frames itself.
    pub fn take_overflows(&self) -> u64 {
        match self {
            Self::Queue(_) => 0,
            Self::Socket(socket) => take_overflows(socket.as_fd()),
        }
    }
}

impl<D: AsFd> AsFd for End<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (Self::Queue(descriptor) | Self::Socket(descriptor)) = self;
        descriptor.as_fd()
    }
}

/// Room for one frame and its header.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Box<[u8]>,
    length: usize,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        let bytes = vec![0; OFFLOAD_BYTES + FRAME_BYTES_MAX + TAG_BYTES];
        Self { bytes: bytes.into_boxed_slice(), length: 0 }
    }

    /// The offload header.
    pub fn header(&self) -> OffloadHeader {
        let mut header = [0; OFFLOAD_BYTES];
        header.copy_from_slice(&self.bytes[..OFFLOAD_BYTES]);
        header
    }

    /// The frame; empty if not even its header came.
    pub fn frame(&self) -> &[u8] {
        self.bytes.get(OFFLOAD_BYTES..self.length).unwrap_or(&[])
    }

    /// Puts a tag into the frame itself.
    fn insert(&mut self, kind: u16, contents: u16) {
        let at = OFFLOAD_BYTES + ADDRESSES_BYTES;
        if self.length < at || self.length + TAG_BYTES > self.bytes.len() {
            // Without its tag, the frame would be one of another virtual network.
            self.length = 0;
            return;
        }
        let header = shifted(&self.header(), TAG_BYTES as i16);
        self.bytes[..OFFLOAD_BYTES].copy_from_slice(&header);
        self.bytes.copy_within(at..self.length, at + TAG_BYTES);
        self.bytes[at..at + 2].copy_from_slice(&kind.to_be_bytes());
        self.bytes[at + 2..at + 4].copy_from_slice(&contents.to_be_bytes());
        self.length += TAG_BYTES;
    }

    /// Reads the next frame. After an error, the frame is empty.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: there is no frame now. [`Errno::INVAL`]: the kernel has dropped a frame that it cannot describe.
    pub fn read<D: AsFd>(&mut self, from: &End<D>) -> Result<(), Errno> {
        self.length = 0;
        match from {
            End::Queue(queue) => {
                let mut parts = [IoSliceMut::new(&mut self.bytes)];
                // A TAP has no positions: this one means the current position.
                let length = rustix::io::preadv2(queue, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT)?;
                if length == 0 {
                    return Err(Errno::IO);
                }
                self.length = length;
            }
            End::Socket(socket) => {
                let received = receive_frame(socket.as_fd(), &mut self.bytes)?;
                self.length = received.length_bytes.min(self.bytes.len());
                if let Some((kind, contents)) = received.tag {
                    self.insert(kind, contents);
                }
            }
        }
        Ok(())
    }

    /// Takes a frame of `length` bytes, its offload header included, that lies in memory. `copy` copies it into the slice that
    /// it is given.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: the frame is too long. Other errors: those of `copy`.
    pub fn take<E: Into<Errno>>(
        &mut self,
        length: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Errno> {
        self.length = 0;
        copy(self.bytes.get_mut(..length).ok_or(Errno::INVAL)?).map_err(Into::into)?;
        self.length = length;
        Ok(())
    }

    /// Carries out what the offload header asks for, as [`settle`] says. `Some`: the frame is a segment that is to be cut. A header
    /// that does not fit stays as it is, and the exchange refuses the frame.
    pub fn settle(&mut self, wire_bytes_max: u64) -> Option<Cut> {
        let (header, frame) = self.bytes[..self.length].split_first_chunk_mut::<OFFLOAD_BYTES>()?;
        settle(header, frame, wire_bytes_max).ok().flatten()
    }

    /// Fills the buffer with a piece of a segment. Returns false if there is no such piece.
    fn take_piece(&mut self, segment: &Self, cut: &Cut, number: usize) -> bool {
        self.length = 0;
        self.bytes[..OFFLOAD_BYTES].fill(0);
        let length = cut.write(number, segment.frame(), &mut self.bytes[OFFLOAD_BYTES..]);
        self.length = length.map_or(0, |length| OFFLOAD_BYTES + length);
        length.is_some()
    }

    /// Writes the frame as it is, or with another tag.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write<D: AsFd>(&self, to: &End<D>, tag: Tag) -> Result<(), Errno> {
        self.with_parts(tag, |parts| to.write(parts))
    }

    /// Calls `use_parts` with the parts of the offload header and the frame, as it is or with another tag.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: the frame is too short. Other errors: those of `use_parts`.
    pub fn with_parts<T>(
        &self,
        tag: Tag,
        use_parts: impl FnOnce(&[IoSlice<'_>]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let (header, frame) =
            self.bytes[..self.length].split_at_checked(OFFLOAD_BYTES).ok_or(Errno::INVAL)?;
        let header: OffloadHeader = header.try_into().map_err(|_| Errno::INVAL)?;
        if tag == Tag::Keep {
            return use_parts(&[IoSlice::new(&self.bytes[..self.length])]);
        }
        let (addresses, rest) = frame.split_at_checked(ADDRESSES_BYTES).ok_or(Errno::INVAL)?;
        match tag {
            Tag::Insert(vlan) => {
                let [high, low] = vlan.to_be_bytes();
                let (header, tag) = (shifted(&header, TAG_BYTES as i16), [0x81, 0, high, low]);
                use_parts(&[&header, addresses, &tag, rest].map(IoSlice::new))
            }
            Tag::Replace(vlan) => {
                let [high, low] = vlan.to_be_bytes();
                let (&[_, _, priority, _], rest) =
                    rest.split_first_chunk::<TAG_BYTES>().ok_or(Errno::INVAL)?;
                let tag = [0x81, 0, priority & 0xf0 | high, low];
                use_parts(&[&header, addresses, &tag, rest].map(IoSlice::new))
            }
            Tag::Remove | Tag::Keep => {
                let header = shifted(&header, -(TAG_BYTES as i16));
                let rest = rest.get(TAG_BYTES..).ok_or(Errno::INVAL)?;
                use_parts(&[&header, addresses, rest].map(IoSlice::new))
            }
        }
    }
}

/// A segment that this process cuts into frames.
#[derive(Debug)]
pub struct Segment {
    buffer: FrameBuffer,
    cut: Cut,
    next: usize,
    /// The queue that the segment came from.
    pub queue: usize,
}

impl Segment {
    /// Takes the segment in `buffer`, and puts `other` in the buffer's place.
    pub fn new(buffer: &mut FrameBuffer, other: FrameBuffer, cut: Cut, queue: usize) -> Self {
        Self { buffer: std::mem::replace(buffer, other), cut, next: 0, queue }
    }

    /// The segment's buffer, for the next segment.
    pub fn into_buffer(self) -> FrameBuffer {
        self.buffer
    }

    /// Puts the next piece into a buffer. Returns false if there is no further piece.
    pub fn next(&mut self, into: &mut FrameBuffer) -> bool {
        self.next += 1;
        into.take_piece(&self.buffer, &self.cut, self.next - 1)
    }
}

/// Whether an error of a queue means that its device is gone.
pub fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::BADFD | Errno::NODEV | Errno::BADF)
}
