//! A station: the pipes to ports (or to an owner) at other nodes. It carries out what [`tombolo_core::nic::pipe`] decides, by
//! writes and messages of a domain.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use tombolo_client::{Domain, Mailbox, Memory, OpenError, Spec, Status, Target, Transfer, Who};
use tombolo_core::nic::pipe::{Batch, Broken, Inlet, Outlet, RECORD_HEAD_BYTES};
use tombolo_core::nic::session::SESSIONS_MAX_OF_KEY;
use tombolo_core::nic::{Coalescer, Coalescing};
use tombolo_host::timing::net::POST_WAIT;

use crate::frames::FrameBuffer;
use crate::letters::{INLINE_BYTES_MAX, Letter, Ring};
use crate::parties::{Party, PartyOf, Posted};
use crate::protocol::MESSAGE_BYTES_MAX;

/// Most messages that wait in the mailbox.
const MAILS: u32 = 4096;
/// Most messages that are taken from the mailbox in one turn.
const MAILS_AT_ONCE: usize = 64;
/// Most transfers under way to one node that do not belong to a pipe, before a letter to it must wait.
const LETTERS_POSTED_MAX: usize = 2;
/// Most letters to one node that wait to be sent.
const LETTERS_MAX: usize = 32;
/// Most news that wait to be taken when a port still accepts a welcome or a refusal. With more, these letters are ignored.
const WAITING_MAX: usize = 4096;
/// Most ports whose request to be connected waits. Further requests are ignored, and those ports ask again.
const HELLOS_MAX: usize = 256;
/// Most of these requests from one party: as many as the party may have ports in all, since each port asks once.
const HELLOS_OF_PARTY_MAX: usize = SESSIONS_MAX_OF_KEY;
/// Most control messages of one pipe that wait to be handled.
const CONTROLS_MAX: u32 = 16;
/// Class of service of the transfers: before bulk copies, whatever their length (QOS §3.2.3).
const CLASS: u8 = 1;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A frame with its offload header.
    Frame,
    /// A message between owner and port, as on a socket.
    Control,
}

impl Kind {
    fn into_word(self) -> u32 {
        match self {
            Self::Frame => 1,
            Self::Control => 2,
        }
    }

    fn from_word(word: u32) -> Option<Self> {
        [Self::Frame, Self::Control].into_iter().find(|kind| kind.into_word() == word)
    }
}

/// What has come from another node, or happened to a pipe, other than frames.
#[derive(Debug)]
pub enum News {
    /// A port wants to be connected.
    Hello {
        /// The port's node and domain.
        from: Target,
        /// The port's session.
        session: u64,
        /// The port's ring, for frames to the port.
        ring: Ring,
        /// Version of the port's letters.
        version: u16,
    },
    /// An owner has connected this port.
    Welcome {
        /// The port's session.
        session: u64,
        /// The owner's ring, for frames from the port.
        ring: Ring,
    },
    /// An owner has refused this port.
    Refused {
        /// The port's session.
        session: u64,
        /// Why.
        reason: String,
    },
    /// A control message from a pipe.
    Control {
        /// The key of the pipe.
        key: u64,
        /// The message.
        bytes: Vec<u8>,
    },
    /// A pipe is broken, or the other side has ended it.
    Ended {
        /// The key of the pipe.
        key: u64,
        /// Why.
        reason: String,
    },
}

/// The progress of sending a batch.
enum Sending {
    /// Neither the write nor the message has begun.
    ToWrite,
    Writing(Transfer),
    ToTell,
    Telling(Transfer),
    Told,
}

/// The memory of a pair of pipes.
pub struct Memories {
    /// The ring to which the other side writes.
    pub ring: Memory,
    /// Records to be sent, at the same offsets as in the other side's ring.
    pub mirror: Memory,
}

struct End {
    peer: Target,
    party: Party,
    session: u64,
    memories: Memories,
    there: Ring,
    outlet: Outlet,
    coalescer: Coalescer,
    /// The records that wait are to be sent, whatever the coalescer says later.
    is_due: bool,
    under_way: VecDeque<(Batch, Sending)>,
    inlet: Inlet<Option<Vec<u8>>>,
    /// The batch that is being read, its bytes if they came in the letter, and the place of its next record.
    reading: Option<(Batch, Option<Vec<u8>>, u64)>,
    has_ended: bool,
    /// Number of control messages from this pipe that wait to be handled.
    said: u32,
    /// The letter that is telling the other side what was consumed.
    crediting: Option<Transfer>,
}

/// All pipes of a node to other nodes.
pub struct Station {
    domain: Domain,
    mailbox: Mailbox,
    ends: BTreeMap<u64, End>,
    keys: BTreeMap<(u32, u16, u64), u64>,
    /// Letters that are to be sent.
    letters: VecDeque<(Target, Vec<u8>)>,
    /// Letters that are being sent, and transfers of pipes that were removed, with their nodes.
    posted: Vec<(u32, Transfer)>,
    /// The key of the pipe whose turn it is to post first.
    first: u64,
    news: Vec<News>,
    /// The parties of the ports whose requests to be connected wait, in the order of the requests.
    hellos: Vec<Party>,
    party_of: PartyOf,
    is_owner: bool,
}

fn round_up(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(u64::from(RECORD_HEAD_BYTES))
}

impl End {
    fn offset(&self, place: u64) -> usize {
        (place % u64::from(self.there.bytes)) as usize
    }

    /// Copies bytes at a place of the batch that is being read.
    fn copy(&self, place: u64, into: &mut [u8]) -> Result<(), Errno> {
        let (batch, inline, _) = self.reading.as_ref().ok_or(Errno::AGAIN)?;
        match inline {
            Some(bytes) => {
                let begin = (place - batch.start) as usize;
                let found = bytes.get(begin..).and_then(|rest| rest.get(..into.len())).ok_or(Errno::INVAL)?;
                into.copy_from_slice(found);
                Ok(())
            }
            None => {
                let begin = (place % self.memories.ring.len() as u64) as usize;
                self.memories.ring.read(begin, into).map_err(|_| Errno::INVAL)
            }
        }
    }

    /// The next record: its kind, and the place and the length of its contents. The record counts as read.
    fn next_record(&mut self) -> Result<Option<(Kind, u64, usize)>, Broken> {
        loop {
            let (batch, place) = match &self.reading {
                Some((batch, _, place)) => (*batch, *place),
                None => match self.inlet.next_batch() {
                    Some((batch, inline)) => {
                        self.reading = Some((batch, inline, batch.start));
                        (batch, batch.start)
                    }
                    None => return Ok(None),
                },
            };
            self.inlet.consumed(place);
            if place >= batch.end() {
                self.reading = None;
                continue;
            }
            let mut head = [0; RECORD_HEAD_BYTES as usize];
            self.copy(place, &mut head).map_err(|_| Broken::RECORD)?;
            let [a, b, c, d, e, f, g, h] = head;
            let length = u32::from_le_bytes([a, b, c, d]);
            let kind = Kind::from_word(u32::from_le_bytes([e, f, g, h])).ok_or(Broken::RECORD)?;
            let end = place + u64::from(RECORD_HEAD_BYTES) + round_up(length);
            if end > batch.end() {
                return Err(Broken::RECORD);
            }
            if let Some((_, _, place)) = &mut self.reading {
                *place = end;
            }
            return Ok(Some((kind, place + u64::from(RECORD_HEAD_BYTES), length as usize)));
        }
    }

    /// Number of transfers of this pair of pipes that are under way.
    fn posted(&self) -> usize {
        let is_posted =
            |(_, sending): &&(Batch, Sending)| matches!(sending, Sending::Writing(_) | Sending::Telling(_));
        self.under_way.iter().filter(is_posted).count() + usize::from(self.crediting.is_some())
    }

    /// Advances the batches and the credit whose transfers have ended. An error is the reason why the pipe is broken.
    fn reap(&mut self) -> Result<(), String> {
        for (_, sending) in &mut self.under_way {
            let (status, retried) = match sending {
                Sending::Writing(transfer) => (transfer.status(), Sending::ToWrite),
                Sending::Telling(transfer) => (transfer.status(), Sending::ToTell),
                Sending::ToWrite | Sending::ToTell | Sending::Told => continue,
            };
            *sending = match status {
                Status::Ongoing => continue,
                Status::Paused => retried,
                Status::FinishedWithError(failure) => return Err(failure.to_string()),
                Status::Finished if matches!(sending, Sending::Writing(_)) => Sending::ToTell,
                Status::Finished => Sending::Told,
            };
        }
        match self.crediting.as_ref().map(Transfer::status) {
            Some(Status::FinishedWithError(failure)) => return Err(failure.to_string()),
            Some(Status::Paused) => {
                self.crediting = None;
                self.inlet.was_not_told();
            }
            Some(Status::Finished) => self.crediting = None,
            Some(Status::Ongoing) | None => {}
        }
        let before = self.under_way.len();
        self.under_way.retain(|(_, sending)| !matches!(sending, Sending::Told));
        (self.under_way.len()..before).for_each(|_| self.outlet.arrived());
        Ok(())
    }

    /// Begins up to `most` transfers, for batches that wait and for a credit that is due. Returns how many it has begun.
    fn go_on(&mut self, domain: &Domain, most: usize) -> usize {
        while self.is_due
            && let Some(batch) = self.outlet.next_batch()
        {
            let is_inline = batch.length as usize <= INLINE_BYTES_MAX;
            self.under_way.push_back((batch, if is_inline { Sending::ToTell } else { Sending::ToWrite }));
        }
        if !self.outlet.has_records() {
            self.is_due = false;
        }
        let mut begun = 0;
        if most > 0 && self.crediting.is_none() && self.inlet.credit_due().is_some() {
            let (session, head) = (self.session, self.inlet.credit());
            self.crediting = domain.send(self.peer, &Letter::Credit { session, head }.to_bytes()).ok();
            if self.crediting.is_none() {
                self.inlet.was_not_told();
                return 0;
            }
            begun += 1;
        }
        for index in 0..self.under_way.len() {
            if begun >= most {
                break;
            }
            let (batch, sending) = &self.under_way[index];
            let batch = *batch;
            let next = match sending {
                Sending::ToWrite => self.write(domain, batch).map(Sending::Writing),
                Sending::ToTell => self.notify(domain, batch).map(Sending::Telling),
                _ => continue,
            };
            let Some(next) = next else { break };
            self.under_way[index].1 = next;
            begun += 1;
        }
        begun
    }

    fn write(&self, domain: &Domain, batch: Batch) -> Option<Transfer> {
        let offset = self.offset(batch.start) as u64;
        let source = self.memories.mirror.address() + offset;
        let spec =
            Spec { class: Some(CLASS), ..Spec::new(source, self.there.address + offset, batch.length) };
        domain.write(self.peer, spec).ok()
    }

    fn notify(&mut self, domain: &Domain, batch: Batch) -> Option<Transfer> {
        let mut inline = vec![0; batch.length as usize];
        let is_inline = inline.len() <= INLINE_BYTES_MAX
            && self.memories.mirror.read(self.offset(batch.start), &mut inline).is_ok();
        let letter = Letter::Batch {
            session: self.session,
            from: batch.from,
            start: batch.start,
            length: batch.length,
            credit: self.inlet.credit(),
            inline: is_inline.then_some(&inline),
        };
        let transfer = domain.send(self.peer, &letter.to_bytes()).ok();
        if transfer.is_none() {
            self.inlet.was_not_told();
        }
        transfer
    }
}

impl Station {
    /// Opens the mailbox of a domain. `is_owner`: ports may ask this station to be connected.
    ///
    /// # Errors
    /// The node gives no mailbox.
    pub fn open(domain: Domain, is_owner: bool, party_of: PartyOf) -> Result<Self, OpenError> {
        let mailbox = domain.open_mailbox(MAILS, &[Who::Anyone])?;
        Ok(Self {
            domain,
            mailbox,
            ends: BTreeMap::new(),
            keys: BTreeMap::new(),
            letters: VecDeque::new(),
            posted: Vec::new(),
            first: 0,
            news: Vec::new(),
            hellos: Vec::new(),
            party_of,
            is_owner,
        })
    }

    /// Begins a pair of pipes. `there` is the other side's ring, as long as the mirror.
    pub fn add(
        &mut self,
        key: u64,
        peer: Target,
        session: u64,
        memories: Memories,
        there: Ring,
        how: Coalescing,
    ) {
        let ring_bytes = u32::try_from(memories.ring.len()).unwrap_or(u32::MAX);
        self.keys.insert((peer.node, peer.domain, session), key);
        let end = End {
            peer,
            party: (self.party_of)(peer.node),
            session,
            memories,
            there,
            outlet: Outlet::new(there.bytes),
            coalescer: Coalescer::new(how),
            is_due: false,
            under_way: VecDeque::new(),
            inlet: Inlet::new(ring_bytes),
            reading: None,
            has_ended: false,
            said: 0,
            crediting: None,
        };
        self.ends.insert(key, end);
    }

    /// Ends a pair of pipes, and tells the other side so. Returns its memory, which can be freed.
    pub fn remove(&mut self, key: u64) -> Option<Memories> {
        let end = self.ends.remove(&key)?;
        self.keys.remove(&(end.peer.node, end.peer.domain, end.session));
        self.post(end.peer, Letter::Bye { session: end.session });
        // Transfers occupy their channels until they end.
        for (_, sending) in end.under_way {
            if let Sending::Writing(transfer) | Sending::Telling(transfer) = sending {
                self.posted.push((end.peer.node, transfer));
            }
        }
        self.posted.extend(end.crediting.map(|transfer| (end.peer.node, transfer)));
        Some(end.memories)
    }

    /// Adds a letter to those that wait to be sent, unless too many wait for its node.
    pub fn post(&mut self, to: Target, letter: Letter<'_>) {
        let is_of_node = |(other, _): &&(Target, Vec<u8>)| other.node == to.node;
        if self.letters.iter().filter(is_of_node).count() >= LETTERS_MAX {
            return;
        }
        self.letters.push_back((to, letter.to_bytes()));
    }

    /// Adds any bytes as a letter to be sent.
    #[cfg(test)]
    pub fn post_any(&mut self, to: Target, letter: Vec<u8>) {
        self.letters.push_back((to, letter));
    }

    /// The session of a pipe's letters.
    #[cfg(test)]
    pub fn session(&self, key: u64) -> u64 {
        self.ends[&key].session
    }

    /// Puts a record into a pipe. Returns false if the pipe is full or has ended.
    pub fn push(&mut self, now_ns: u64, key: u64, kind: Kind, parts: &[IoSlice<'_>]) -> bool {
        let Some(end) = self.ends.get_mut(&key).filter(|end| !end.has_ended) else { return false };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let Ok(length) = u32::try_from(length) else { return false };
        let Some(offset) = length.checked_add(RECORD_HEAD_BYTES).and_then(|bytes| end.outlet.reserve(bytes))
        else {
            return false;
        };
        let mut head = [0; RECORD_HEAD_BYTES as usize];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&kind.into_word().to_le_bytes());
        let mut offset = offset as usize;
        for part in std::iter::once(&head[..]).chain(parts.iter().map(|part| &**part)) {
            // This cannot fail: the room was reserved, and the mirror is as long as the ring.
            let _ = end.memories.mirror.write(offset, part);
            offset += part.len();
        }
        if kind == Kind::Control || end.coalescer.came(now_ns) {
            end.is_due = true;
        }
        true
    }

    /// Whether a pipe may have no room for the longest frame.
    pub fn is_full(&self, key: u64) -> bool {
        self.ends.get(&key).is_none_or(|end| end.outlet.is_crowded())
    }

    /// Takes the next frame from a pipe into a buffer. Control messages before it become [`News::Control`].
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: there is no frame now. Other errors: the record is not a valid frame.
    pub fn take(&mut self, key: u64, buffer: &mut FrameBuffer) -> Result<(), Errno> {
        let end = self.ends.get_mut(&key).filter(|end| !end.has_ended).ok_or(Errno::AGAIN)?;
        while !end.has_ended {
            match end.next_record() {
                Ok(Some((Kind::Frame, place, length))) => {
                    return buffer.take(length, |into| end.copy(place, into));
                }
                Ok(Some((Kind::Control, place, length))) => {
                    let mut bytes = vec![0; length.min(MESSAGE_BYTES_MAX)];
                    end.said += 1;
                    if end.said > CONTROLS_MAX || length > MESSAGE_BYTES_MAX {
                        end.has_ended = true;
                        self.news.push(News::Ended { key, reason: "it says too much at once".into() });
                    } else if end.copy(place, &mut bytes).is_ok() {
                        self.news.push(News::Control { key, bytes });
                    }
                }
                Ok(None) => return Err(Errno::AGAIN),
                Err(broken) => {
                    end.has_ended = true;
                    self.news.push(News::Ended { key, reason: broken.to_string() });
                }
            }
        }
        Err(Errno::AGAIN)
    }

    /// Records that a control message of a pipe was handled.
    pub fn heeded(&mut self, key: u64) {
        if let Some(end) = self.ends.get_mut(&key) {
            end.said = end.said.saturating_sub(1);
        }
    }

    /// Takes letters that have come, and continues what is being sent. Adds the pipes that may have frames to `came`. Returns
    /// whether there was anything to do.
    pub fn turn(&mut self, now_ns: u64, came: &mut Vec<u64>) -> bool {
        let mut is_busy = false;
        for _ in 0..MAILS_AT_ONCE {
            // An error cannot occur here: the node in this process does not end before its domain.
            let Ok(Some(mail)) = self.mailbox.try_receive() else { break };
            is_busy = true;
            self.letter(mail.from, &mail.bytes, came);
        }
        // A letter that has failed is not repeated: a port asks again, and a pipe that has ended needs no letter.
        self.posted.retain(|(_, transfer)| transfer.status() == Status::Ongoing);
        let mut posted = Posted::default();
        for (node, _) in &self.posted {
            posted.add(*node, (self.party_of)(*node), 1);
        }
        for (&key, end) in self.ends.iter_mut().filter(|(_, end)| !end.has_ended) {
            if end.coalescer.next_deadline().is_some() && end.coalescer.elapsed(now_ns) {
                end.is_due = true;
            }
            if let Err(reason) = end.reap() {
                end.has_ended = true;
                self.news.push(News::Ended { key, reason });
                continue;
            }
            posted.add(end.peer.node, end.party, end.posted());
        }
        let letters = std::mem::take(&mut self.letters);
        for (to, bytes) in letters {
            let party = (self.party_of)(to.node);
            let has_turn = self.posted.iter().filter(|(node, _)| *node == to.node).count()
                < LETTERS_POSTED_MAX
                && posted.room(to.node, party) > 0;
            match has_turn.then(|| self.domain.send(to, &bytes)) {
                Some(Ok(transfer)) => {
                    self.posted.push((to.node, transfer));
                    posted.add(to.node, party, 1);
                    is_busy = true;
                }
                _ => self.letters.push_back((to, bytes)),
            }
        }
        // Channels are few, so the pipes take turns in being the first.
        let (before, from) = (..self.first, self.first..);
        let order: Vec<u64> =
            self.ends.range(from).chain(self.ends.range(before)).map(|(key, _)| *key).collect();
        self.first = order.get(1).copied().unwrap_or(0);
        for key in order {
            let Some(end) = self.ends.get_mut(&key).filter(|end| !end.has_ended) else { continue };
            let begun = end.go_on(&self.domain, posted.room(end.peer.node, end.party));
            posted.add(end.peer.node, end.party, begun);
            is_busy |= begun > 0;
        }
        is_busy
    }

    fn letter(&mut self, from: Target, bytes: &[u8], came: &mut Vec<u64>) {
        let Some(letter) = Letter::from_bytes(bytes) else { return };
        let session = match letter {
            Letter::Hello { version, session, ring } => {
                let party = (self.party_of)(from.node);
                let of_party = self.hellos.iter().filter(|other| **other == party).count();
                if self.hellos.len() >= HELLOS_MAX || of_party >= HELLOS_OF_PARTY_MAX || !self.is_owner {
                    return;
                }
                self.hellos.push(party);
                self.news.push(News::Hello { from, session, ring, version });
                return;
            }
            Letter::Welcome { .. } | Letter::Refused { .. }
                if self.is_owner || self.news.len() >= WAITING_MAX =>
            {
                return;
            }
            Letter::Welcome { session, ring } => {
                self.news.push(News::Welcome { session, ring });
                return;
            }
            Letter::Refused { session, reason } => {
                self.news.push(News::Refused { session, reason: reason.to_owned() });
                return;
            }
            Letter::Batch { session, .. } | Letter::Credit { session, .. } | Letter::Bye { session } => {
                session
            }
        };
        let Some(&key) = self.keys.get(&(from.node, from.domain, session)) else {
            // The other side, a port or the owner, does not know yet that the session has ended.
            if matches!(letter, Letter::Batch { .. } | Letter::Credit { .. }) {
                self.post(from, Letter::Bye { session });
            }
            return;
        };
        let Some(end) = self.ends.get_mut(&key).filter(|end| !end.has_ended) else { return };
        let heard = match letter {
            Letter::Batch { from, start, length, credit, inline, .. } => {
                let batch = Batch { from, start, length };
                let is_whole = inline.is_none_or(|bytes| bytes.len() == length as usize);
                came.push(key);
                let taken = if is_whole {
                    end.inlet.came(batch, inline.map(<[u8]>::to_vec))
                } else {
                    Err(Broken::RECORD)
                };
                taken.and_then(|()| end.outlet.credit(credit)).map_err(|broken| broken.to_string())
            }
            Letter::Credit { head, .. } => end.outlet.credit(head).map_err(|broken| broken.to_string()),
            _ => Err("the other side has ended it".into()),
        };
        if let Err(reason) = heard {
            end.has_ended = true;
            self.news.push(News::Ended { key, reason });
        }
    }

    /// The news since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// The longest sleep, after [`Station::arm`] and another turn, with which nothing is sent late: until a coalescer's delay is
    /// over, or until there may be a free channel for a letter that waits.
    pub fn longest_sleep(&self, now_ns: u64) -> Option<Duration> {
        let coalescers = self.ends.values().filter(|end| !end.has_ended).map(|end| &end.coalescer);
        let deadline = coalescers.filter_map(Coalescer::next_deadline).min();
        let until_deadline = deadline.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let until_room = (!self.letters.is_empty()).then_some(POST_WAIT);
        until_deadline.into_iter().chain(until_room).min()
    }

    /// Records that the oldest [`News::Hello`] that waits was handled.
    pub fn greeted(&mut self) {
        if !self.hellos.is_empty() {
            self.hellos.remove(0);
        }
    }

    /// Whether letters wait to be sent or are being sent.
    pub fn is_waiting_for_end(&self) -> bool {
        !self.letters.is_empty() || !self.posted.is_empty()
    }

    /// Makes the descriptor become readable when there may be something to do. Call [`Station::turn`] once more before sleeping.
    pub fn arm(&self) {
        self.domain.arm();
    }

    /// Makes the descriptor unreadable again.
    pub fn drain(&self) {
        // This cannot fail: the node in this process does not end before its domain.
        let _ = self.domain.drain();
    }
}

impl AsFd for Station {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.domain.as_fd()
    }
}
