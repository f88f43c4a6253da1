//! The board of QOS and FAULT: nodes with an engine each, as constants of the platform `exanest-qfdb` have it.

use crate::hosts::{
    Carried, Ended, EngineHost, EngineHostConfig, FaultConfig, Hypotheses, Prices, Program, Requests,
};
use crate::kernel::{PartId, Rate, Span};
use crate::parts::{Here, Input, Link, LinkConfig, SmmuConfig, World};
use crate::platform::{Platform, PlatformError};
use tombolo_core::iommu::{self, FaultMode, FaultPolicy, RememberedRecords, TouchPolicy};
use tombolo_core::rdma::{Config, PathId, PeerId, Retransmission};

/// The node at the other end; in loop-back the node itself.
pub const PEER: PeerId = PeerId(0);

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// A node to itself, through its logic.
    LoopBack,
    /// Two nodes, next to each other.
    OneHop,
}

/// What QOS §3.3 made quicker, each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimisations {
    /// The processor sees a ring in its scratchpad.
    pub fast_path: bool,
    /// A small transfer passes the scheduler by.
    pub bypass: bool,
    /// Transaction ids are tickets.
    pub tickets: bool,
}

impl Optimisations {
    /// All of them.
    pub const ALL: Self = Self { fast_path: true, bypass: true, tickets: true };
    /// None of them.
    pub const NONE: Self = Self { fast_path: false, bypass: false, tickets: false };
}

/// Who starts transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// A program, by itself.
    User,
    /// The kernel, for a program (QOS §5.3).
    Kernel,
}

/// How a board is put together.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Who talks to whom.
    pub wiring: Wiring,
    /// What is made quicker.
    pub optimisations: Optimisations,
    /// Who starts transfers.
    pub starter: Starter,
    /// Links each way; a block goes by one of them.
    pub links: u8,
    /// What becomes of read requests for which there is no channel.
    pub requests: Requests,
    /// Whether such requests wait in the engine's buffer first.
    pub has_buffer: bool,
    /// Whether transfers have classes.
    pub has_classes: bool,
    /// Whether pages may be absent, and how they are brought in.
    pub faults: Option<FaultSetup>,
    /// In how many ticks of a clock the timeout is counted; `None`: to the cycle (QOS §4.2, 4.3).
    pub ticks: Option<u32>,
    /// For random numbers.
    pub seed: u64,
}

/// How absent pages are dealt with (FAULT ch. 3).
#[derive(Clone, Copy, Debug)]
pub struct FaultSetup {
    /// Touch-a-page, or touch-ahead.
    pub touch: TouchPolicy,
    /// The timeout after which a block goes again.
    pub timeout: Span,
    /// Whether a context goes on where its pages are present, while a fault of it has not been handled.
    pub hits_under_fault: bool,
    /// What the document leaves open.
    pub hypotheses: Hypotheses,
}

/// What a run may take at most, in virtual time: longer than anything here.
const LONGEST: Span = Span::from_ns(1_000_000_000_000);

impl Board {
    /// A program of the first node begins; its number.
    pub fn program(&mut self, program: Program) -> usize {
        let act = |host: &mut EngineHost, here: &mut Here<'_>| host.run(here, program);
        self.world.with(self.nodes[0], act).expect("a node")
    }

    /// Runs until nothing moves; how the transfers of a program of the first node ended.
    ///
    /// # Errors
    /// [`PlatformError::Endless`], if one fails, or does not end in a thousand seconds of virtual time.
    pub fn run(&mut self, platform: &Platform, program: usize) -> Result<Vec<Ended>, PlatformError> {
        let is_over = self.world.run_within(LONGEST);
        let host = self.world.part::<EngineHost>(self.nodes[0]).expect("a node");
        let ended = host.ended(program);
        let is_whole = is_over && !host.is_open(program) && ended.iter().all(|ended| ended.status == Ok(()));
        is_whole
            .then(|| ended.to_vec())
            .ok_or_else(|| PlatformError::Endless { platform: platform.name().into() })
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            wiring: Wiring::OneHop,
            optimisations: Optimisations::ALL,
            starter: Starter::User,
            links: 1,
            requests: Requests::Taken,
            has_buffer: true,
            has_classes: true,
            faults: None,
            ticks: None,
            seed: 1,
        }
    }
}

/// One or two nodes.
#[derive(Debug)]
pub struct Board {
    /// The world that they are in.
    pub world: World,
    /// The nodes: two with [`Wiring::OneHop`].
    pub nodes: Vec<PartId>,
    /// The lines, in the order of the nodes that send by them.
    pub links: Vec<PartId>,
}

/// The engine with the documents' constants: a fixed timeout, two blocks without an answer, strict classes, nothing given up.
fn engine(platform: &Platform, setup: &Setup) -> Result<Config, PlatformError> {
    let usual = Config::default();
    let outstanding = platform.number("outstanding")?;
    let transactions: u16 = platform.number("transactions")?;
    let timeout = setup.faults.map_or_else(|| platform.span("timeout"), |faults| Ok(faults.timeout))?;
    let timeout_ns = timeout.picos() / 1_000;
    Ok(Config {
        transactions,
        peer_transactions: transactions,
        transfers: transactions.into(),
        block_bytes: platform.number("block")?,
        outstanding_blocks: outstanding,
        turn_blocks: outstanding,
        small_transfer_memory_ns: 0,
        starvation_blocks: u32::MAX,
        bypass: setup.optimisations.bypass,
        // Without classes all transfers are of one, which is that of small ones.
        high_max_bytes: if setup.has_classes { usual.high_max_bytes } else { u32::MAX },
        read_channels: platform.number("read_channels")?,
        served_reads: platform.number("served_reads")?,
        pending_reads: if setup.has_buffer { platform.number("pending_reads")? } else { 0 },
        early_notification: false,
        retransmission: match setup.ticks {
            Some(ticks) => Retransmission::Ticks { tick_ns: timeout_ns / u64::from(ticks.max(1)), ticks },
            None => Retransmission::Fixed { timeout_ns },
        },
        fast_retransmit: false,
        fault_pause_ns: timeout_ns,
        // What bounds a path is what spreads blocks over several.
        congestion: if setup.links > 1 { usual.congestion } else { None },
        give_up_ns: u64::MAX,
        max_attempts: u32::MAX,
        refused_give_up_ns: u64::MAX,
        ..usual
    })
}

fn prices(platform: &Platform, setup: &Setup) -> Result<Prices, PlatformError> {
    let optimisations = setup.optimisations;
    let kernel = match setup.starter {
        Starter::User => Span::ZERO,
        Starter::Kernel => platform.span("kernel_start")?,
    };
    let if_not = |is_there: bool, name| if is_there { Ok(Span::ZERO) } else { platform.span(name) };
    let list = platform.span("timeout_list")?;
    let block = platform.span("table")?.plus(list).plus(platform.span("start")?);
    let word = platform.span("mailbox_word")?;
    Ok(Prices {
        seen: platform.span("seen")?.plus(if_not(optimisations.fast_path, "seen_by_mailbox")?).plus(kernel),
        queue: platform.span("queue")?,
        block: block.plus(if_not(optimisations.tickets, "search")?),
        message: platform.span("control")?,
        answer: word.plus(list),
        request: word.times(platform.count("request_words")?),
        timeout: list,
        completion: Span::ZERO,
    })
}

fn faults(platform: &Platform, setup: &FaultSetup) -> Result<FaultConfig, PlatformError> {
    // A page is touched by a thread of the program; several are pinned by the driver itself. Either way the thread asks for blocks again (FAULT
    // §3.2.2, 3.2.3.2).
    let (is_by_thread, call) = match setup.touch {
        TouchPolicy::Page => (true, "touch"),
        TouchPolicy::Ahead(_) | TouchPolicy::Adaptive => (false, "pin"),
    };
    Ok(FaultConfig {
        policy: FaultPolicy { touch: setup.touch, mode: FaultMode::Terminate },
        iommu: iommu::Config { remembered_records: RememberedRecords::LastTwo, ..iommu::Config::default() },
        smmu: SmmuConfig {
            buffer_pages: platform.number("smmu_buffer")?,
            hit: Span::ZERO,
            walks: platform.number("smmu_walks")?,
            walk: Span::ZERO,
            hits_under_fault: setup.hits_under_fault,
        },
        notice: platform.span("interrupt")?.plus(platform.span("tasklet")?),
        message: platform.span("netlink")?,
        wake: platform.span("wake")?,
        is_by_thread,
        record: platform.span("record_read")?.times(platform.count("record_reads")?),
        touch: platform.span(&format!("{call}_fixed"))?,
        touch_page: platform.span(&format!("{call}_page"))?,
        resume: platform.span("packetizer")?,
        hypotheses: setup.hypotheses,
    })
}

/// How fast a line is, and how many bytes go beside a packet.
pub(crate) fn line(platform: &Platform, wiring: Wiring) -> Result<(Rate, u32), PlatformError> {
    let rate = platform.rate("link")?;
    match wiring {
        // In logic: no code, and nothing beside.
        Wiring::LoopBack => Ok((rate, 0)),
        Wiring::OneHop => {
            let rate = platform.coded(rate, "coding_data", platform.number("coding_line")?)?;
            Ok((rate, platform.number("beside")?))
        }
    }
}

/// What a node is.
pub(crate) fn host(
    platform: &Platform,
    setup: &Setup,
    rate: Rate,
    beside_bytes: u32,
) -> Result<EngineHostConfig, PlatformError> {
    Ok(EngineHostConfig {
        engine: engine(platform, setup)?,
        prices: prices(platform, setup)?,
        packet_bytes: platform.number("packet")?,
        beside_bytes,
        send: match setup.starter {
            // The links set the pace.
            Starter::User if setup.links > 1 => None,
            Starter::User => Some(rate),
            Starter::Kernel => Some(platform.rate("kernel_rate")?),
        },
        interleaved: platform.number("interleaved")?,
        mailbox: platform.number("mailbox")?,
        requests: setup.requests,
        faults: setup.faults.map(|setup| faults(platform, &setup)).transpose()?,
        carried: Carried::Names,
        memory_bytes: 0,
    })
}

/// Puts a board together.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn board(platform: &Platform, setup: &Setup) -> Result<Board, PlatformError> {
    let (rate, beside_bytes) = line(platform, setup.wiring)?;
    let hop = match setup.wiring {
        Wiring::LoopBack => Span::ZERO,
        Wiring::OneHop => platform.span("hop")?,
    };
    // Out and in, of a packet and of its acknowledgement: two of four each way.
    let logic = Span::from_picos(platform.span("logic")?.picos() / 2);
    let config = host(platform, setup, rate, beside_bytes)?;
    let link = LinkConfig {
        line: Some(rate),
        overhead_bytes: beside_bytes,
        latency: logic.plus(hop),
        ..LinkConfig::default()
    };
    let mut world = World::new(setup.seed);
    let count = match setup.wiring {
        Wiring::LoopBack => 1,
        Wiring::OneHop => 2,
    };
    let nodes: Vec<_> = (0..count).map(|_| world.add(EngineHost::new(config))).collect();
    let mut links = Vec::new();
    for path in 0..setup.links.max(1) {
        let of_path: Vec<_> = (0..count).map(|_| world.add(Link::new(link))).collect();
        let way = |world: &mut World, from: usize| {
            let to = nodes[(from + 1) % count];
            world.add_route(&[Input::of(of_path[from]), Input::of(to)]).expect("a link and a node")
        };
        let ways: Vec<_> = (0..count).map(|from| way(&mut world, from)).collect();
        for (number, node) in nodes.iter().enumerate() {
            let (there, back) = (ways[number], ways[(number + 1) % count]);
            world.with(*node, |host: &mut EngineHost, here| {
                host.add_way(here.now(), PEER, PathId(path), there, back);
            });
        }
        links.extend(of_path);
    }
    Ok(Board { world, nodes, links })
}
