//! A node inside a program.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_host::unix::{SeqpacketListener, UnixError};
use tombolo_node::{Address, JoinError, Node, PeerEvent, Security, Turn};

use crate::domain::{Domain, Entry};
use crate::error::OpenError;
use crate::inner::{Progress, RungChannels};

/// How the node is set up.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// What other nodes see it as.
    pub name: String,
    /// Where it listens.
    pub listen: Address,
    /// With which keys.
    pub security: Security,
}

/// Why there is no node inside this program.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The node cannot listen at its address.
    #[error("{0}")]
    Listen(tombolo_node::OpenError),
    /// There is no memory for the node.
    #[error("cannot set up a node in this program: {0}")]
    SetUp(#[from] tombolo_node::LendError),
    /// The socket for the program's own domains cannot be made.
    #[error("cannot make a socket at {path}: {source}", path = path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: UnixError,
    },
}

/// A node inside this program. The program's threads drive it while they wait for a transfer or a message, ask for
/// the status of one, or call [`Embedded::progress`]; otherwise a thread of its own does. The node stops when this
/// is dropped: drop its domains before.
#[derive(Debug)]
pub struct Embedded {
    node: Arc<Node>,
    progress: Progress,
    address: Address,
    programs: PathBuf,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a node.
    pub fn start(how: &Embedding) -> Result<Self, EmbedError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let node = Arc::new(Node::new(&how.name, 0, 0)?);
        node.permit_by_list(&how.security);
        let listener = tombolo_node::listen(&how.listen, &how.security).map_err(EmbedError::Listen)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Containers may share the directory, and the numbers of processes.
        let life = RandomState::new().build_hasher().finish();
        let programs = std::env::temp_dir().join(format!("tombolo-{}-{number}-{life:x}", std::process::id()));
        let socket = SeqpacketListener::bind(&programs)
            .map_err(|source| EmbedError::Socket { path: programs.clone(), source })?;
        let address = listener.address();
        let stop = Arc::new(AtomicBool::new(false));
        let (serving, serving_stop) = (node.clone(), stop.clone());
        let (receiving, receiving_stop) = (node.clone(), stop.clone());
        let threads = vec![
            std::thread::spawn(move || {
                tombolo_node::serve(&serving, &*listener, &serving_stop, &|event| {
                    if let PeerEvent::Refused(reason) = event {
                        tracing::warn!(reason, "a link is refused");
                    }
                });
            }),
            std::thread::spawn(move || {
                tombolo_node::receive_programs(&receiving, &socket, &receiving_stop);
            }),
        ];
        let (driven, turn) = (node.clone(), Mutex::new(Turn::default()));
        // One thread drives the node at a time. The others need not wait: that thread does their work, too.
        let progress = Progress(Arc::new(move |rung| {
            turn.try_lock().map_or(0, |mut turn| driven.turn(&mut turn, rung == RungChannels::Start))
        }));
        Ok(Self { node, progress, address, programs, stop, threads })
    }

    /// Where the node listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Connects the node to another one. Returns the number of that node, for [`crate::Target::node`].
    pub fn join(&self, address: &Address, security: &Security, timeout: Duration) -> Result<u32, JoinError> {
        self.node.join(address, security, timeout).map(|peer| peer.id.0)
    }

    /// Opens a domain at the node; with `None` the node chooses its number.
    pub fn open(&self, number: Option<u16>) -> Result<Domain, OpenError> {
        Domain::enter(&self.programs, Entry::Open(number), None, Some(self.progress.clone()))
    }

    /// As [`Embedded::open`], for a thread that waits by descriptors ([`Domain::arm`]): it leaves it to the node's own
    /// thread to drive the node, which does not stand back for it.
    pub fn open_undriven(&self, number: Option<u16>) -> Result<Domain, OpenError> {
        Domain::enter(&self.programs, Entry::Open(number), None, None)
    }

    /// Drives the node: sends, receives, completes transfers. Call it while polling for a notification. Returns how
    /// much there was to do.
    pub fn progress(&self) -> usize {
        self.progress.0(RungChannels::Start)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
