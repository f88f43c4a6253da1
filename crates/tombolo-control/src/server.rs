//! The end that answers, for services without a loop of their own: a thread that waits for who asks, and one for each who does.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tombolo_host::event::EventFd;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use crate::message::{BUSY, MESSAGE_BYTES_MAX, question};

/// What is asked, and answered.
pub trait Service: Send + Sync + 'static {
    /// What can be asked.
    type Ask: DeserializeOwned;
    /// What is answered.
    type Answer: Serialize;
    /// Of these.
    const VERSION: u16;

    /// Answers. It may take long: others are answered meanwhile.
    fn answer(&self, ask: Self::Ask) -> Self::Answer;

    /// Says why a question is not answered.
    fn refuse(&self, reason: String) -> Self::Answer;
}

/// Clients that are connected at a time. A further one is told so, and hung up on.
const CLIENTS_MAX: u32 = 64;
/// Who says nothing for so long is closed. A bound, not a measurement.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// After a failure to accept: no descriptor is left, for instance.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// A service that is answered for; it ends with this value.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    is_over: AtomicBool,
    event: EventFd,
}

impl Server {
    /// Answers who asks at that socket.
    ///
    /// # Errors
    /// There is no thread or descriptor for it.
    pub fn start(listener: SeqpacketListener, service: impl Service) -> io::Result<Self> {
        let event = EventFd::new().map_err(io::Error::from)?;
        let stop = Arc::new(Stop { is_over: AtomicBool::new(false), event });
        let stopped = stop.clone();
        let serving = move || accept(&listener, &stopped, &Arc::new(service));
        let thread = std::thread::Builder::new().name("control".into()).spawn(serving)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    /// The socket is gone afterwards. Who is being answered is not waited for.
    fn drop(&mut self) {
        self.stop.is_over.store(true, Ordering::Relaxed);
        let _ = self.stop.event.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept<S: Service>(listener: &SeqpacketListener, stop: &Stop, service: &Arc<S>) {
    let clients = Arc::new(AtomicU32::new(0));
    while !stop.is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok(Some(socket)) => {
                // Nothing that this client sent has been read yet.
                if !is_answered(&socket) {
                    continue;
                }
                if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    let _ = socket.send(&[BUSY], &[]);
                    continue;
                }
                let (service, seat) = (service.clone(), Seat(clients.clone()));
                let serving = move || {
                    let _seat = seat;
                    serve(&socket, &*service);
                };
                // Without a thread for it, it is hung up on.
                let _ = std::thread::Builder::new().name("control-client".into()).spawn(serving);
            }
            Ok(None) => {
                let listening = PollFd::new(listener, PollFlags::IN);
                let stopping = PollFd::from_borrowed_fd(stop.event.as_fd(), PollFlags::IN);
                let _ = poll(&mut [listening, stopping], None);
            }
            Err(_) => std::thread::sleep(ERROR_PAUSE),
        }
    }
}

/// One of the clients that are connected, until this is dropped.
struct Seat(Arc<AtomicU32>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Processes of this user, and of root.
fn is_answered(socket: &SeqpacketSocket) -> bool {
    socket.peer().is_ok_and(|peer| peer.is_own_or_root())
}

fn serve<S: Service>(socket: &SeqpacketSocket, service: &S) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut heard = Instant::now();
    loop {
        match socket.receive(&mut buffer) {
            Ok(received) => {
                let message = buffer.get(..received.length_bytes).unwrap_or_default();
                let answer = match question(message, S::VERSION) {
                    Ok(ask) => service.answer(ask),
                    Err(reason) => service.refuse(reason),
                };
                let Ok(mut text) = serde_json::to_vec(&answer) else { return };
                if text.len() > MESSAGE_BYTES_MAX {
                    let reason = format!(
                        "the answer has {} bytes, and {MESSAGE_BYTES_MAX} at most can be sent",
                        text.len()
                    );
                    let Ok(refusal) = serde_json::to_vec(&service.refuse(reason)) else { return };
                    text = refusal;
                }
                // Who asks has one question open, so its socket has room for one answer.
                if socket.send(&[&text], &[]).is_err() {
                    return;
                }
                heard = Instant::now();
            }
            Err(UnixError::WouldBlock) => {
                let left = SILENCE_MAX.saturating_sub(heard.elapsed());
                let Some(left) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else { return };
                let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left));
            }
            Err(_) => return,
        }
    }
}
