//! A node of SDP: connections of Sockets Direct over a bridge between two machines' memories, each run by a process on a processor of its
//! own. The connections are the core's; loads over the bridge, copies, sleep and wake, and the DMA engine have their prices here.

use tombolo_core::sdp::{Action, Config, Connection, FREE, Method, Received, Wake};

use crate::kernel::{PartId, Rate, Span, Time};
use crate::parts::{DmaRequest, Here, Input, Message, Part, Work};

/// Bytes of a load over the bridge.
const WORD_BYTES: u64 = 4;
/// The fields before the data of a buffer.
const FIELDS: u64 = 2;

/// What things take.
#[derive(Clone, Copy, Debug)]
pub struct SdpPrices {
    /// A call of a program.
    pub call: Span,
    /// Copying between a program and a buffer.
    pub copy: Rate,
    /// From an interrupt to the process that slept.
    pub wake: Span,
    /// A load over the bridge, there and back.
    pub load: Span,
    /// A write over the bridge, or an interrupt, one way.
    pub post: Span,
}

/// What a program does with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdpProgram {
    /// Sends messages of so many bytes for ever.
    Sends(u32),
    /// Receives for ever, into a buffer of so many bytes.
    Receives(u32),
    /// Sends a message of so many bytes, waits for one, and so on; the one that leads begins.
    Bounces {
        /// Bytes of a message.
        bytes: u32,
        /// Whether it begins.
        leads: bool,
    },
}

/// What a program does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Send { left: u32 },
    Receive { left: u32 },
}

/// What crosses the bridge, as the operation of a piece of work that comes at the input of the connection's number. The tag of
/// [`Crossing::Fields`] has both fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    Signal,
    Release,
    Look,
    Fields,
    Finish,
    /// Not over the bridge: the process has loaded what it was to load.
    Loaded,
}

impl Crossing {
    const ALL: [Self; 6] =
        [Self::Signal, Self::Release, Self::Look, Self::Fields, Self::Finish, Self::Loaded];
}

/// A process with its connection.
#[derive(Debug)]
struct Process {
    connection: Connection,
    program: SdpProgram,
    call: Call,
    /// It waits to be woken: for room, or for data.
    sleeps: bool,
    /// It waits for the bridge or the DMA engine.
    waits: bool,
    free_at: Time,
    /// An interrupt has woken it, and it does not run yet.
    is_waking: bool,
    /// The fields of its send buffer, which the other side reads.
    sequence: u32,
    size: u32,
    sent: u64,
    received: u64,
    /// Messages that came whole.
    messages: u64,
    /// Calls that were refused: there are none.
    errors: u64,
    busy: Span,
}

/// A node.
#[derive(Debug)]
pub struct SdpNode {
    prices: SdpPrices,
    processes: Vec<Process>,
    peer: Option<PartId>,
    dma: Option<Input>,
}

impl SdpNode {
    /// A node with a process for each of these programs: 256 at most.
    pub fn new(prices: SdpPrices, connection: Config, programs: &[SdpProgram]) -> Self {
        let process = |program: &SdpProgram| Process {
            connection: Connection::new(connection),
            program: *program,
            call: match *program {
                SdpProgram::Sends(bytes) | SdpProgram::Bounces { bytes, leads: true } => {
                    Call::Send { left: bytes }
                }
                SdpProgram::Receives(bytes) | SdpProgram::Bounces { bytes, leads: false } => {
                    Call::Receive { left: bytes }
                }
            },
            sleeps: false,
            waits: false,
            free_at: Time::ZERO,
            is_waking: false,
            sequence: FREE,
            size: 0,
            sent: 0,
            received: 0,
            messages: 0,
            errors: 0,
            busy: Span::ZERO,
        };
        Self { prices, processes: programs.iter().take(1 << 8).map(process).collect(), peer: None, dma: None }
    }

    /// The node at the other end of the bridge, whose connections have the same numbers, and the engine that reads its buffers.
    pub fn connect(&mut self, peer: PartId, dma: Input) {
        (self.peer, self.dma) = (Some(peer), Some(dma));
    }

    /// Programs begin.
    pub fn start(&mut self, here: &mut Here<'_>) {
        self.run(here);
    }

    /// Bytes that programs have received.
    pub fn received(&self) -> u64 {
        self.processes.iter().map(|process| process.received).sum()
    }

    /// Bytes that programs have given to their connections.
    pub fn sent(&self) -> u64 {
        self.processes.iter().map(|process| process.sent).sum()
    }

    /// Messages that came whole.
    pub fn messages(&self) -> u64 {
        self.processes.iter().map(|process| process.messages).sum()
    }

    /// Calls of programs that were refused.
    pub fn errors(&self) -> u64 {
        self.processes.iter().map(|process| process.errors).sum()
    }

    /// How long processors were busy, all together; while they load over the bridge they are.
    pub fn busy(&self) -> Span {
        self.processes.iter().fold(Span::ZERO, |sum, process| sum.plus(process.busy))
    }

    /// Something reaches the other side's process of this number at this time.
    fn cross(&self, here: &mut Here<'_>, number: usize, time: Time, crossing: Crossing, tag: u64) {
        let Some(part) = self.peer else { return };
        let (operation, port) = (crossing as u16, number as u8);
        let work = Work { operation, tag, reply_to: Input { part: here.part(), port } };
        here.send(Input { part, port }, time, Message::Work(work));
    }

    /// Each process does what it can do now.
    fn run(&mut self, here: &mut Here<'_>) {
        for number in 0..self.processes.len() {
            while self.step(here, number) {}
        }
        let now = here.now();
        let alarms = self.processes.iter().map(|process| process.free_at).filter(|free_at| *free_at > now);
        here.set_alarm(alarms.min());
    }

    /// A process does one thing. `false`: it can do nothing now.
    fn step(&mut self, here: &mut Here<'_>, number: usize) -> bool {
        let process = &mut self.processes[number];
        if process.waits || process.free_at > here.now() {
            return false;
        }
        process.is_waking = false;
        match process.connection.poll() {
            Some(action) => self.act(here, number, action),
            None if process.sleeps => return false,
            None => self.call(here, number),
        }
        true
    }

    fn act(&mut self, here: &mut Here<'_>, number: usize, action: Action) {
        let (now, prices, reply_to) =
            (here.now(), self.prices, Input { part: here.part(), port: number as u8 });
        let process = &mut self.processes[number];
        match action {
            Action::Publish { sequence, size } => (process.sequence, process.size) = (sequence, size),
            Action::Signal => self.cross(here, number, now.after(prices.post), Crossing::Signal, 0),
            Action::Release => self.cross(here, number, now.after(prices.post), Crossing::Release, 0),
            Action::Finish => self.cross(here, number, now.after(prices.post), Crossing::Finish, 0),
            Action::Look => {
                process.waits = true;
                // The second load is on its way back when this one arrives.
                let there = prices.load.times(FIELDS).picos() - prices.load.picos() / 2;
                process.busy = process.busy.plus(prices.load.times(FIELDS));
                self.cross(here, number, now.after(Span::from_picos(there)), Crossing::Look, 0);
            }
            Action::Fetch { bytes, by: Method::Loads } => {
                process.waits = true;
                let loads = prices.load.times(u64::from(bytes).div_ceil(WORD_BYTES));
                process.busy = process.busy.plus(loads);
                let work = Work { operation: Crossing::Loaded as u16, tag: 0, reply_to };
                here.send(reply_to, now.after(loads), Message::Work(work));
            }
            Action::Fetch { bytes, by: Method::Dma } => {
                process.waits = true;
                let Some(dma) = self.dma else { return };
                let request =
                    DmaRequest { path: 0, source: 0, destination: 0, length_bytes: bytes, tag: 0, reply_to };
                here.send(dma, now, Message::Copy(request));
            }
            Action::Wake(wake) => {
                let is_for_it = match process.call {
                    Call::Send { .. } => wake == Wake::Sender,
                    Call::Receive { .. } => wake == Wake::Receiver,
                };
                process.sleeps &= !is_for_it;
            }
        }
    }

    /// The program calls.
    fn call(&mut self, here: &mut Here<'_>, number: usize) {
        let SdpPrices { call, copy, .. } = self.prices;
        let process = &mut self.processes[number];
        let own = process.sequence;
        let copied = match process.call {
            Call::Send { left } => {
                let place = process.connection.send(own, left);
                process.errors += u64::from(place.is_err());
                let place = place.unwrap_or_default();
                let bytes = place.end - place.start;
                process.sleeps = bytes == 0 && left > 0;
                process.sent += u64::from(bytes);
                process.call = match (left - bytes, process.program) {
                    (0, SdpProgram::Bounces { bytes, .. }) => Call::Receive { left: bytes },
                    (0, SdpProgram::Sends(bytes)) => Call::Send { left: bytes },
                    (left, _) => Call::Send { left },
                };
                bytes
            }
            Call::Receive { left } => match process.connection.receive(own, left) {
                Ok(Received::Bytes(place)) => {
                    let bytes = place.end - place.start;
                    process.received += u64::from(bytes);
                    process.messages += u64::from(bytes == left);
                    process.call = match (left - bytes, process.program) {
                        (0, SdpProgram::Bounces { bytes, .. }) => Call::Send { left: bytes },
                        (_, SdpProgram::Receives(bytes)) => Call::Receive { left: bytes },
                        (left, _) => Call::Receive { left },
                    };
                    bytes
                }
                other => {
                    process.errors += u64::from(other != Ok(Received::Later));
                    process.sleeps = true;
                    0
                }
            },
        };
        let took = call.plus(copy.span_of(copied.into()));
        process.busy = process.busy.plus(took);
        process.free_at = here.now().after(took);
    }

    /// Something interrupts: a process that sleeps needs a while.
    fn interrupt(&mut self, here: &Here<'_>, number: usize) {
        let wake = self.prices.wake;
        let process = &mut self.processes[number];
        // One that is being woken already is there as soon.
        if (process.sleeps || process.waits) && !std::mem::replace(&mut process.is_waking, true) {
            process.free_at = process.free_at.max(here.now().after(wake));
        }
    }

    fn crossed(&mut self, here: &mut Here<'_>, number: usize, work: Work) {
        let Some(crossing) = Crossing::ALL.get(usize::from(work.operation)) else { return };
        let half = Span::from_picos(self.prices.load.picos() / 2);
        let Some(process) = self.processes.get_mut(number) else { return };
        match crossing {
            Crossing::Signal => {
                let own = process.sequence;
                process.connection.signalled(own);
                if process.sleeps && !process.waits {
                    self.interrupt(here, number);
                }
            }
            Crossing::Release => process.sequence = FREE,
            Crossing::Look => {
                let fields = u64::from(process.sequence) << 32 | u64::from(process.size);
                self.cross(here, number, here.now().after(half), Crossing::Fields, fields);
            }
            Crossing::Fields => {
                process.waits = false;
                process.connection.looked((work.tag >> 32) as u32, work.tag as u32);
            }
            Crossing::Finish => {
                process.connection.closed_by_peer();
                self.interrupt(here, number);
            }
            Crossing::Loaded => {
                process.waits = false;
                process.connection.fetched();
            }
        }
    }
}

impl Part for SdpNode {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        let number = usize::from(port);
        match message {
            Message::Work(work) => self.crossed(here, number, work),
            Message::Copied(_) => {
                if number < self.processes.len() {
                    self.interrupt(here, number);
                    let process = &mut self.processes[number];
                    process.waits = false;
                    process.connection.fetched();
                }
            }
            Message::Traveller(traveller) => here.discard(traveller.cargo),
            Message::Done(_) | Message::Copy(_) => {}
        }
        self.run(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.run(here);
    }

    /// Programs go on for ever.
    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}
