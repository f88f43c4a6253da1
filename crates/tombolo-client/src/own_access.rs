//! The accesses to this program's own memory that its node asks for, made by threads of this process.
//!
//! They are started with the first registration. Where they cannot be (no thread may be started, `/proc` is not
//! there), threads of the node make the accesses, by descriptors that this program passes.

use std::sync::{Arc, Weak};

use tombolo_channel::access::{AccessArea, AccessThreads};
use tombolo_channel::{Message, Reply, Request, encode};
use tombolo_host::own::{self, ThisProcess};

use crate::asking::{Asking, TimeLimit};
use crate::error::OpenError;
use crate::inner::Inner;
use crate::requests::GivenUp;

/// This program's memory and threads.
#[derive(Debug)]
pub(crate) struct OwnAccess {
    /// Whose memory it is.
    process_id: u32,
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
    /// `None`: there are none to be made by this thread. A child made by fork has other memory than the domain, and a thread
    /// that has the signals of faults blocked would end with its process.
    pub(crate) fn begin(inner: &'a Inner) -> Option<Self> {
        let access = inner.own_access.get()?.as_ref()?;
        if access.process_id != std::process::id() || !own::takes_faults() {
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

/// The threads of this process, started now if they were not. `None`: the node's make the accesses.
pub(crate) fn open<'a>(
    inner: &'a Arc<Inner>,
    asking: &mut Asking,
    limit: TimeLimit,
) -> Result<Option<&'a OwnAccess>, OpenError> {
    if let Some(known) = inner.own_access.get() {
        return Ok(known.as_ref());
    }
    let opened = match ThisProcess::new() {
        Err(_) => None,
        Ok(process) => {
            match inner.ask_with(asking, Request::OpenAccess, &[], &mut || GivenUp::Nothing, limit) {
                Ok(answer) if answer.reply == Reply::Access => {
                    let area = answer.descriptor().and_then(|area| Ok(AccessArea::open(area)?));
                    area.ok().and_then(|area| {
                        let weak = Arc::downgrade(inner);
                        let memory = Box::new(process.clone());
                        let threads = AccessThreads::start(area, memory, Box::new(move || notify(&weak)));
                        let process_id = std::process::id();
                        threads.ok().map(|threads| OwnAccess { process_id, process, threads })
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
