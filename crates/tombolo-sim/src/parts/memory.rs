//! What is read and written: a memory with one queue before it.

use super::{Access, AccessKind, Cargo, Here, Message, Part};
use crate::kernel::{Rate, Span, Time};

/// The constants of a memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryConfig {
    /// What each access takes of the memory's time, whatever its length.
    pub service: Span,
    /// By how much that varies, up or down, each value as likely as another.
    pub spread: Span,
    /// How fast bytes are read, beside that.
    pub read: Option<Rate>,
    /// How fast they are written.
    pub write: Option<Rate>,
    /// From the end of that to the answer: others are served meanwhile.
    pub latency: Span,
}

/// A memory. Accesses are served one after the other, and answered on the way that they name.
#[derive(Debug, Default)]
pub struct Memory {
    config: MemoryConfig,
    free_at: Time,
    busy: Span,
    accesses: u64,
    bytes: u64,
}

impl Memory {
    /// An idle memory.
    pub fn new(config: MemoryConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// How long it was busy.
    pub fn busy(&self) -> Span {
        self.busy
    }

    /// How many accesses it has served.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn service(&self, here: &mut Here<'_>, access: &Access) -> Span {
        let MemoryConfig { service, spread, read, write, .. } = self.config;
        let rate = match access.kind {
            AccessKind::Read => read,
            AccessKind::Write => write,
        };
        let drawn = match spread.picos().min(service.picos()) {
            0 => service.picos(),
            spread => service.picos() - spread + here.random().below(2 * spread + 1),
        };
        let bytes = rate.map_or(Span::ZERO, |rate| rate.span_of(access.length_bytes.into()));
        Span::from_picos(drawn).plus(bytes)
    }
}

impl Part for Memory {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        let Cargo::Access(access) = traveller.cargo else { return here.discard(traveller.cargo) };
        let service = self.service(here, &access);
        self.free_at = self.free_at.max(here.now()).after(service);
        self.busy = self.busy.plus(service);
        self.accesses += 1;
        self.bytes += u64::from(access.length_bytes);
        let answered_at = self.free_at.after(self.config.latency);
        here.start(answered_at, access.back, Cargo::Access(access), access.answer_bytes());
    }

    /// Each access is answered in its time.
    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}
