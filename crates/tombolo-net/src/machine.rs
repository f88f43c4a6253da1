//! Connects a virtual machine's network card by a stream of frames, each after its length (QEMU's `-netdev stream`).
//!
//! ```text
//!   QEMU ═ stream ═ pump (a thread) ─ queue of a TAP device ─┐ in a namespace without addresses
//!                                                            └─ packet socket ─ the uplink's owner
//! ```
//!
//! The stream carries no offload headers, but the owner sends segments and frames without checksums to the packet socket. The
//! kernel cuts the segments and adds the checksums between the interface and the queue of the TAP device.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags};
use tombolo_core::nic::offload::OFFLOAD_BYTES;
use tombolo_host::net::{Interface, PacketSocket, TapQueues, in_new_namespace, set_carrier};
use tombolo_host::timing::net::ACCEPT_ERROR_PAUSE;
use tombolo_host::unix::StreamListener;

use crate::frames::{End, FRAME_BYTES_MAX};

/// Bytes before each frame: its length, the highest byte first.
const LENGTH_BYTES: usize = 4;
/// Bytes that are read, or written, at once.
const BUFFER_BYTES: usize = 4 * (FRAME_BYTES_MAX + LENGTH_BYTES);

/// A socket to which one virtual machine at a time connects, and the device behind it.
#[derive(Debug)]
pub struct Machine {
    socket: PacketSocket,
    ending: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The virtual machine that is connected.
struct Guest {
    stream: OwnedFd,
    /// Received bytes. The first `filled` bytes are those of the last frame, which is not whole yet.
    incoming: Vec<u8>,
    filled: usize,
    /// Bytes to be sent. The first `queued` bytes are frames with their lengths, of which the first `sent` bytes were sent.
    outgoing: Vec<u8>,
    queued: usize,
    sent: usize,
}

/// The thread that copies between a stream and a TAP device.
struct Pump {
    listener: StreamListener,
    tap: OwnedFd,
    ending: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    guest: Option<Guest>,
}

impl Machine {
    /// Listens at a path for a virtual machine.
    ///
    /// # Errors
    /// Another process listens there, or this process may not make a namespace and a TAP device.
    pub fn listen(path: &Path, mtu: u32) -> io::Result<Self> {
        let listener = StreamListener::bind(path).map_err(io::Error::other)?;
        let (tap, socket) = in_new_namespace(|| {
            let tap = TapQueues::without_offloads("eth0", 1)?;
            tap.iter().try_for_each(|queue| set_carrier(queue, false))?;
            let interface = Interface::open("eth0")?;
            interface.set_mtu(mtu)?;
            let socket = PacketSocket::open(&interface)?;
            interface.set_up()?;
            Ok((tap, socket))
        })?;
        let tap = tap.into_queues().pop().ok_or(io::ErrorKind::NotFound)?;
        let ending = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut pump = Pump { listener, tap, ending: ending.clone(), is_over: is_over.clone(), guest: None };
        let thread = std::thread::Builder::new().name("machine".into()).spawn(move || pump.run())?;
        Ok(Self { socket, ending, is_over, thread: Some(thread) })
    }

    /// The packet socket that the owner reads and writes.
    pub fn end(&self) -> End<BorrowedFd<'_>> {
        End::Socket(self.socket.as_fd())
    }

    /// Whether machines can connect.
    pub fn is_there(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A full counter means that the thread is awake.
        let _ = rustix::io::write(&self.ending, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Pump {
    fn run(&mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(guest) = &mut self.guest else {
                self.await_guest();
                continue;
            };
            let done = wait(&self.ending, &self.tap, guest).and_then(|(has_bytes, has_frames)| {
                if has_bytes {
                    guest.receive(&self.tap)?;
                }
                if has_frames {
                    guest.fetch(&self.tap);
                }
                guest.send()
            });
            if let Err(error) = done {
                tracing::info!(%error, "the virtual machine has gone");
                self.guest = None;
                self.plug(false);
            }
        }
    }

    /// Sets the device's carrier, which is on only while a virtual machine is connected.
    fn plug(&self, is_there: bool) {
        if let Err(error) = set_carrier(self.tap.as_fd(), is_there) {
            tracing::warn!(%error, "the carrier is as it was");
        }
    }

    fn await_guest(&mut self) {
        let mut waits =
            [PollFd::new(&*self.ending, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        // If a signal interrupts this, the caller calls again.
        let _ = poll(&mut waits, None);
        match self.listener.accept() {
            Ok(Some(stream)) => {
                tracing::info!("a virtual machine is connected");
                self.guest = Some(Guest {
                    stream,
                    incoming: vec![0; BUFFER_BYTES],
                    filled: 0,
                    outgoing: vec![0; BUFFER_BYTES],
                    queued: 0,
                    sent: 0,
                });
                self.plug(true);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a virtual machine is not accepted");
                std::thread::sleep(ACCEPT_ERROR_PAUSE);
            }
        }
    }
}

/// Waits until there are bytes from the guest, frames for it, or room in the stream for what it is sent. Returns whether there
/// are bytes from the guest, and whether there are frames for it.
fn wait(ending: &OwnedFd, tap: &OwnedFd, guest: &Guest) -> io::Result<(bool, bool)> {
    // While the guest has not taken all bytes, further frames wait in the queue of the device, which drops what it has no room
    // for.
    let is_full = guest.queued > 0;
    let for_stream = if is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let for_tap = if is_full { PollFlags::empty() } else { PollFlags::IN };
    let mut waits = [
        PollFd::new(&guest.stream, for_stream),
        PollFd::new(tap, for_tap),
        PollFd::new(ending, PollFlags::IN),
    ];
    match poll(&mut waits, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let [stream, tap, _] = waits.map(|wait| wait.revents());
    Ok((stream.intersects(!PollFlags::OUT), tap.contains(PollFlags::IN)))
}

impl Guest {
    /// Reads what the guest has sent, and gives whole frames to the device.
    fn receive(&mut self, tap: &OwnedFd) -> io::Result<()> {
        let space = self.incoming.get_mut(self.filled..).unwrap_or_default();
        match rustix::io::read(&self.stream, space) {
            Ok(0) => return Err(io::Error::other("it has hung up")),
            Ok(count) => self.filled += count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let mut rest = self.incoming.get(..self.filled).unwrap_or_default();
        while let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length == 0 || length > FRAME_BYTES_MAX {
                return Err(io::Error::other(format!("it has sent a frame of {length} bytes")));
            }
            let Some((frame, after)) = after.split_at_checked(length) else { break };
            // A frame that the device does not take is lost, as on a wire.
            let parts = [&[0; OFFLOAD_BYTES], frame].map(IoSlice::new);
            let _ = rustix::io::pwritev2(tap, &parts, u64::MAX, ReadWriteFlags::NOWAIT);
            rest = after;
        }
        let left = rest.len();
        self.incoming.copy_within(self.filled - left..self.filled, 0);
        self.filled = left;
        Ok(())
    }

    /// Reads frames for the guest from the device, until there are no more or there is no more room.
    fn fetch(&mut self, tap: &OwnedFd) {
        while let Some(place) = self.outgoing.get_mut(self.queued..)
            && place.len() >= LENGTH_BYTES + FRAME_BYTES_MAX
        {
            let (before, frame) = place.split_at_mut(LENGTH_BYTES);
            let mut header = [0; OFFLOAD_BYTES];
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
            let read = rustix::io::preadv2(tap, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
            // There is no frame now, or the device is down. In both cases the kernel tells when there are frames again.
            let length = read.unwrap_or(0).saturating_sub(OFFLOAD_BYTES);
            let Some(word) = u32::try_from(length).ok().filter(|word| *word > 0) else { return };
            before.copy_from_slice(&word.to_be_bytes());
            self.queued += LENGTH_BYTES + length;
        }
    }

    /// Sends queued bytes until all are sent or the stream is full.
    fn send(&mut self) -> io::Result<()> {
        while let Some(rest) = self.outgoing.get(self.sent..self.queued).filter(|rest| !rest.is_empty()) {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.stream, rest, flags) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        (self.queued, self.sent) = (0, 0);
        Ok(())
    }
}
