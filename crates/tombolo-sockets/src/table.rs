//! What is shown to all programs, in a file that they map and cannot write.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tombolo_core::sdp::handover::Handover;
use tombolo_sockets_protocol::table::{BYTES, LAST_ID, MAGIC, NODE, OPEN, PORTS, bucket, port};

/// The table. Words are written whole, by one call each: nobody sees a part of one.
#[derive(Debug)]
pub struct Table {
    file: OwnedFd,
    /// For programs, which cannot write by it.
    shown: OwnedFd,
    words: BTreeMap<usize, u64>,
    /// Open offers that are shown, by port.
    open: BTreeMap<u16, u64>,
}

impl Table {
    /// Makes it anew at a path. Programs that have mapped one that was there see this one from then on.
    pub fn new(path: &Path) -> Result<Self, Errno> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, mode)?;
        rustix::fs::ftruncate(&file, BYTES as u64)?;
        let shown =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        // Programs that have it mapped go on with the number of the last connection.
        let mut last_id = [0; 8];
        rustix::io::pread(&file, &mut last_id, (LAST_ID * 8) as u64)?;
        for index in (0..BYTES / 8).filter(|index| *index != LAST_ID) {
            rustix::io::pwrite(&file, &[0; 8], (index * 8) as u64)?;
        }
        let mut table = Self { file, shown, words: BTreeMap::new(), open: BTreeMap::new() };
        table.words.insert(LAST_ID, u64::from_ne_bytes(last_id));
        table.set(0, MAGIC);
        Ok(table)
    }

    /// The number of the last connection.
    pub fn last_id(&self) -> u64 {
        self.word(LAST_ID)
    }

    /// The node begins, whose first connection has that number: it knows no listeners yet.
    pub fn begin(&mut self, first: u64) {
        self.note_id(first - 1);
        self.set(NODE, first);
    }

    /// What programs get.
    pub fn shown(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
    }

    fn set(&mut self, index: usize, word: u64) {
        if self.words.insert(index, word) != Some(word) {
            // A file of memory that has its length takes it.
            let _ = rustix::io::pwrite(&self.file, &word.to_ne_bytes(), (index * 8) as u64);
        }
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(&index).copied().unwrap_or(0)
    }

    /// There are connections up to this number.
    pub fn note_id(&mut self, id: u64) {
        self.set(LAST_ID, self.word(LAST_ID).max(id));
    }

    /// Shows what has changed.
    pub fn show(&mut self, handover: &mut Handover) {
        for number in handover.take_changed() {
            let (index, bit) = port(number);
            let bits = self.word(index);
            self.set(index, if handover.is_offered(number) { bits | bit } else { bits & !bit });
            let now = u64::from(handover.open_at(number));
            let before = self.open.insert(number, now).unwrap_or(0);
            if now == 0 {
                self.open.remove(&number);
            }
            for index in [bucket(number), OPEN] {
                self.set(index, self.word(index) + now - before);
            }
        }
    }
}

impl Drop for Table {
    /// Programs ask nothing any more.
    fn drop(&mut self) {
        for index in (PORTS..PORTS + 1024).filter(|index| self.word(*index) != 0).collect::<Vec<_>>() {
            self.set(index, 0);
        }
        self.set(OPEN, 0);
    }
}
