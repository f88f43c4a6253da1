//! The accesses to this program's own memory that its node asks for, made by threads of this process.
//!
//! They are started with the first registration. Where they cannot be (no thread may be started), a helper of the node makes the
//! accesses, by descriptors of `/proc` that this program passes. A program that may not open its own files there any more, as after
//! `setuid`, has threads: what is needed is opened with the domain.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tombolo_channel::access::{AccessArea, AccessThreads};
use tombolo_channel::{Message, Reply, Request, encode};
use tombolo_host::event;
use tombolo_host::own::{self, ThisProcess};
use tombolo_host::unix::SeqpacketSocket;

use crate::asking::{Asking, TimeLimit};
use crate::error::OpenError;
use crate::inner::Inner;
use crate::requests::GivenUp;

/// This program's memory and threads.
#[derive(Debug)]
pub(crate) struct OwnAccess {
    pub(crate) process: ThisProcess,
    pub(crate) threads: AccessThreads,
}

/// Tells the node of an answer, if it sleeps.
fn notify(inner: &Weak<Inner>) {
    if let Some(inner) = inner.upgrade()
        && inner.page.ring(0)
    {
        // If the socket is full, the messages in it wake the node.
        let _ = inner.socket.send(&[&encode(&Message::WakeV1)], &[]);
    }
}

/// A thread that waits for something, and makes accesses meanwhile, so that no other has to be woken for them.
pub(crate) struct Polling<'a>(&'a AccessThreads);

impl<'a> Polling<'a> {
    /// Returns `None` if this thread must not make accesses: a child made by fork has other memory than the domain, and a
    /// thread that has the signals of faults blocked would end with its process.
    pub(crate) fn begin(inner: &'a Inner) -> Option<Self> {
        let access = inner.own_access.get()?.as_ref()?;
        if !access.threads.are_here() || !own::takes_faults() {
            return None;
        }
        access.threads.begin_to_poll();
        Some(Self(&access.threads))
    }

    pub(crate) fn serve(&self) {
        self.0.serve();
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.end_to_poll();
    }
}

/// What a helper of the node needs to make the accesses: the files of this process, and a socket that is hung up when neither node nor
/// helper has its other end any more.
pub(crate) fn descriptors(inner: &Inner) -> std::io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::from(own::descriptors()?);
    let mut held = inner.held_by_helper.lock();
    let is_hung_up =
        |held: &SeqpacketSocket| event::wait_readable(&[held.as_fd()], Some(Duration::ZERO)).unwrap_or(true);
    // An earlier one was passed in vain, if its request was refused.
    if held.as_ref().is_none_or(is_hung_up) {
        let (ours, theirs) = SeqpacketSocket::pair().map_err(std::io::Error::other)?;
        descriptors.push(theirs.as_fd().try_clone_to_owned()?);
        *held = Some(ours);
    }
    Ok(descriptors)
}

/// The threads of this process, started now if they were not. `None`: a helper of the node makes the accesses.
pub(crate) fn open<'a>(
    inner: &'a Arc<Inner>,
    asking: &mut Asking,
    limit: TimeLimit,
) -> Result<Option<&'a OwnAccess>, OpenError> {
    if let Some(known) = inner.own_access.get() {
        return Ok(known.as_ref());
    }
    let opened = match &inner.this_process {
        None => None,
        Some(process) => {
            match inner.ask_with(asking, Request::OpenAccess, &[], &mut || GivenUp::Nothing, limit) {
                Ok(answer) if answer.reply == Reply::Access => {
                    let area = answer.descriptor().and_then(|area| Ok(AccessArea::open(area)?));
                    area.ok().and_then(|area| {
                        let weak = Arc::downgrade(inner);
                        let memory = Box::new(process.clone());
                        let threads = AccessThreads::start(area, memory, Box::new(move || notify(&weak)));
                        threads.ok().map(|threads| OwnAccess { process: process.clone(), threads })
                    })
                }
                Ok(_) => return Err(OpenError::UnexpectedMessage),
                Err(OpenError::Refused(_)) => None,
                Err(error) => return Err(error),
            }
        }
    };
    Ok(inner.own_access.get_or_init(|| opened).as_ref())
}
