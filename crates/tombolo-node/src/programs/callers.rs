//! The programs' socket: accepts connections, receives requests, and notices when a program leaves.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tombolo_channel::{MAX_MESSAGE_BYTES, Message, Reply, Request, decode, encode};
use tombolo_host::timing::node as timing;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use super::domain::ProgramDomain;
use super::domains::Programs;
use super::windows::Windows;
use crate::fabric::table::Fabric;

/// Number of connections allowed beyond the maximum number of domains.
const MAX_NEW_CALLERS: usize = 240;
/// Messages taken from one program before other programs get their turn.
const MESSAGES_AT_ONCE: usize = 16;
/// Programs served before the socket is checked for new connections again.
const MAX_READY: usize = 256;
/// The answer to a request whose descriptors the kernel closed instead of giving them to this process.
const DESCRIPTORS_CUT: &str = "the node did not get the file descriptors of this request: it has none left \
                               (raise its `ulimit -n`), or a security module forbids it to receive them";
/// The listener's key in the poll.
const LISTENER: u64 = 0;

/// A connection of the programs' socket.
enum Caller {
    /// It has not opened a domain yet.
    New(SeqpacketSocket),
    Open(Arc<ProgramDomain>),
}

impl Caller {
    fn socket(&self) -> &SeqpacketSocket {
        match self {
            Self::New(socket) => socket,
            Self::Open(domain) => &domain.socket,
        }
    }
}

/// Receives programs at a socket until `stop` is set.
pub(crate) fn receive(
    programs: &Arc<Programs>,
    fabric: &Fabric,
    windows: &dyn Windows,
    listener: &SeqpacketListener,
    stop: &AtomicBool,
) {
    let poll = &programs.poll;
    let max_callers = usize::from(programs.limits.domains) + MAX_NEW_CALLERS;
    let mut callers: HashMap<u64, Caller> = HashMap::new();
    let (mut next, mut ready) = (LISTENER + 1, Vec::with_capacity(MAX_READY));
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    // If this fails, the socket is still checked from time to time.
    let _ = poll.add(listener.as_fd(), LISTENER);
    // While no connection can be accepted, the socket is not in the poll, because it would be readable all the time.
    let mut back_off_until: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if back_off_until.is_some_and(|until| until <= now) {
            back_off_until = None;
            let _ = poll.add(listener.as_fd(), LISTENER);
        }
        let mut is_crowded = callers.len() >= max_callers;
        while !is_crowded && back_off_until.is_none() {
            let Ok(Some(socket)) = listener.accept().inspect_err(|_| is_crowded = true) else { break };
            if may_use(&socket) && poll.add(socket.as_fd(), next).is_ok() {
                callers.insert(next, Caller::New(socket));
                next += 1;
            }
            is_crowded = callers.len() >= max_callers;
        }
        for key in &ready {
            let Some(caller) = callers.get_mut(key) else { continue };
            if !serve_caller(programs, fabric, windows, caller, &mut buffer) {
                poll.remove(caller.socket().as_fd());
                if let Some(Caller::Open(domain)) = callers.remove(key) {
                    programs.close(&domain);
                }
            }
        }
        if is_crowded && back_off_until.is_none() {
            poll.remove(listener.as_fd());
            back_off_until = Some(now + timing::CROWDED_PAUSE);
        }
        let sleep = back_off_until
            .map_or(timing::MAX_SLEEP, |until| until.saturating_duration_since(now).min(timing::MAX_SLEEP));
        if poll.wait(&mut ready, sleep).is_err() {
            std::thread::sleep(timing::CROWDED_PAUSE);
        }
    }
    for caller in callers.values() {
        poll.remove(caller.socket().as_fd());
        if let Caller::Open(domain) = caller {
            programs.close(domain);
        }
    }
}

/// Whether the program belongs to the node's own user or to root.
fn may_use(socket: &SeqpacketSocket) -> bool {
    socket.peer().is_ok_and(|peer| peer.is_own_or_root())
}

/// Answers the requests that a program has sent. False: the program is gone, or sent an invalid message.
fn serve_caller(
    programs: &Arc<Programs>,
    fabric: &Fabric,
    windows: &dyn Windows,
    caller: &mut Caller,
    buffer: &mut [u8],
) -> bool {
    for _ in 0..MESSAGES_AT_ONCE {
        // `None`: the kernel closed the descriptors that came with the message. The message itself is whole.
        let (length, descriptors) = match caller.socket().receive(buffer) {
            Ok(received) => (received.length_bytes, Some(received.descriptors)),
            Err(UnixError::DescriptorsCut { length_bytes }) => (length_bytes, None),
            Err(UnixError::WouldBlock) => return true,
            Err(_) => return false,
        };
        let (number, request) = match decode(&buffer[..length]) {
            Some(Message::AskV2 { number, request }) => (number, request),
            Some(Message::AskV1(_)) => {
                let reason = "this node numbers requests, and the program's library does not: it is older \
                              than the node; build the program with the node's version";
                let answer = encode(&Message::AnswerV1(Reply::Failed(reason.into())));
                if caller.socket().send(&[&answer], &[]).is_err() {
                    return false;
                }
                continue;
            }
            Some(Message::WakeV1) => {
                match caller {
                    Caller::Open(domain) => programs.wake_domain(domain),
                    Caller::New(_) => return false,
                }
                continue;
            }
            _ => return false,
        };
        let Some(descriptors) = descriptors else {
            let answer = Message::AnswerV2 { number, reply: Reply::Failed(DESCRIPTORS_CUT.into()) };
            if caller.socket().send(&[&encode(&answer)], &[]).is_err() {
                return false;
            }
            continue;
        };
        let answered = match caller {
            Caller::Open(domain) => programs.answer(fabric, windows, domain, number, request, descriptors),
            Caller::New(socket) => {
                // A socket whose other end is closed replaces the program's socket meanwhile.
                let Ok((placeholder, _)) = SeqpacketSocket::pair() else { return false };
                let take = || std::mem::replace(socket, placeholder);
                let (opened, has_joined) = match request {
                    Request::Open { domain } => (programs.open(domain, take()), false),
                    Request::Join { domain, secret } => (programs.join(domain, &secret, take()), true),
                    _ => return false,
                };
                match opened {
                    Ok(domain) => {
                        let answer = match has_joined {
                            true => Reply::Joined { process: domain.process },
                            false => Reply::Opened { domain: domain.number },
                        };
                        // Set this before the answer: the program's next message must not meet the placeholder.
                        *caller = Caller::Open(Arc::clone(&domain));
                        domain.reply(number, answer, &[domain.page.as_fd()])
                    }
                    Err((back, reason)) => {
                        let answer = encode(&Message::AnswerV2 { number, reply: Reply::Failed(reason) });
                        let answered = back.send(&[&answer], &[]);
                        *socket = back;
                        answered
                    }
                }
            }
        };
        if answered.is_err() {
            return false;
        }
    }
    true
}
