//! `tombolo-bench faults`: transfers between programs' own memory whose pages are absent, beside pages that are present,
//! that are pinned for each transfer, or touched before it.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_app::child::Guard;
use tombolo_app::scratch::Scratch;
use tombolo_app::size::Size;
use tombolo_client::{Domain, Faults, Grant, Memory, OwnMemory, Registered, Spec, Target, Touch};
use tombolo_host::process;

use crate::rdma::Route;
use crate::rdma::floor::serve_ball;
use crate::rdma::pair::{FarProgram, await_neighbour, number, start_node};
use crate::summary::{Samples, Summary};
use crate::{Failure, name, print_json};
use floor::{Floor, LARGE};

pub mod far;
mod floor;

/// Arguments of `tombolo-bench faults`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` whose nodes are measured.
    #[arg(long)]
    binary: PathBuf,
    /// Between programs of one node (loopback), or of two; loopback, shm and udp unless given.
    #[arg(long, value_delimiter = ',')]
    link: Vec<Route>,
    /// Sizes of the transfers, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "16,256,4K,16K,64K,1M,16M")]
    sizes: Vec<Size>,
    /// What is measured; everything unless given.
    #[arg(long, value_delimiter = ',')]
    way: Vec<Way>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How pages are there when a transfer needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Memory of the node.
    Node,
    /// Own memory, all of it present.
    Present,
    /// Absent; pinned before each transfer, and unpinned after it.
    Pinned,
    /// Absent; touched by the program before each transfer.
    Touched,
    /// Absent; touch-a-page.
    Page,
    /// Absent; touch-ahead of four pages.
    Ahead,
    /// Absent; the library's own choice.
    Adaptive,
}

impl Way {
    const ALL: [Self; 7] =
        [Self::Node, Self::Present, Self::Pinned, Self::Touched, Self::Page, Self::Ahead, Self::Adaptive];
    /// Those with memory of the program's own.
    const OWN: [Self; 6] =
        [Self::Present, Self::Pinned, Self::Touched, Self::Page, Self::Ahead, Self::Adaptive];

    fn policy(self) -> Faults {
        let touch = match self {
            Self::Page => Touch::Page,
            Self::Ahead => Touch::Ahead(4),
            _ => Touch::Adaptive,
        };
        Faults { touch, terminates: false }
    }
}

/// Where pages are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    None,
    Source,
    Destination,
    Both,
}

impl Ends {
    fn of(way: Way) -> &'static [Self] {
        match way {
            Way::Node | Way::Present => &[Self::None],
            _ => &[Self::Source, Self::Destination, Self::Both],
        }
    }

    fn has_source(self) -> bool {
        matches!(self, Self::Source | Self::Both)
    }

    fn has_destination(self) -> bool {
        matches!(self, Self::Destination | Self::Both)
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Both => "both",
        }
    }
}

/// Memory of each program, for each way.
const AREA: usize = 16 << 20;
/// Memory whose pages come late.
const SLOW_BYTES: usize = 4 << 20;
const WARM_UP: usize = 20;
/// How long one figure is measured, at most.
const LONG: std::time::Duration = std::time::Duration::from_millis(400);
const SAMPLES: usize = 2000;
const LEAST_SAMPLES: usize = 12;
/// What the word of a window is when it is echoed no more.
const WINDOW_END: u64 = u64::MAX;
/// Registered memory of which a part is used, and how many transfers of which size use it.
const SPARSE_BYTES: usize = 256 << 20;
const SPARSE_TRANSFERS: u64 = 256;
const SPARSE_SIZE: u64 = 16 << 10;
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Writes all of an area, so that its pages are there.
fn touch(mut write: impl FnMut(usize, &[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let bytes = vec![7; 1 << 20];
    (0..AREA).step_by(bytes.len()).try_for_each(|offset| write(offset, &bytes))
}

/// A program touches the pages of the first bytes of its memory: a word of each is written.
fn touch_pages(area: &OwnMemory, length: usize) -> Result<(), Failure> {
    for offset in (0..length).step_by(4096) {
        area.word(offset)?.store(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Own memory, one for each way.
fn areas(domain: &Domain, grants: &[Grant]) -> Result<Vec<(Way, Registered)>, Failure> {
    let mut areas = Vec::new();
    for way in Way::OWN {
        let memory = OwnMemory::map(AREA)?;
        touch(|offset, bytes| Ok(memory.write(offset, bytes)?))?;
        areas.push((way, domain.register_with(memory, grants, way.policy())?));
    }
    Ok(areas)
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    link: Route,
    way: Way,
    absent: Ends,
    size_bytes: u64,
    /// From posting to done, with what the program does before and after for this way.
    latency: Summary,
}

/// Small writes while a page of somebody else's transfer takes 100 ms, and without.
#[derive(Debug, Serialize)]
struct Beside {
    link: Route,
    alone: Summary,
    beside: Summary,
}

/// A word of a window that is polled at both ends.
#[derive(Debug, Serialize)]
struct Window {
    link: Route,
    round_trip_ns: f64,
}

/// Memory that is there for transfers to a few places of a large registered area.
#[derive(Debug, Serialize)]
struct Sparse {
    registered_bytes: u64,
    /// That the transfers wrote.
    used_bytes: u64,
    /// That is there after them, brought in when it was needed.
    brought_in_bytes: u64,
    /// That has to be there where all of it is pinned.
    pinned_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    floor: Floor,
    rows: Vec<Row>,
    beside: Vec<Beside>,
    windows: Vec<Window>,
    sparse: Option<Sparse>,
    ratios: Vec<(String, f64, f64)>,
}

struct Pair {
    domain: Domain,
    node_memory: Memory,
    areas: Vec<(Way, Registered)>,
    there: Target,
    slow: Target,
    far_node_memory: u64,
    far_areas: Vec<u64>,
    far_slow: u64,
    far_window: u64,
    far: FarProgram,
    _nodes: Vec<Guard>,
}

impl Pair {
    fn start(arguments: &Arguments, scratch: &Scratch, route: Route) -> Result<Self, Failure> {
        let shm = |name: &str| {
            format!("shm:{}", scratch.file(&format!("{name}-{}", crate::name(&route))).display())
        };
        let binary = &arguments.binary;
        let (nodes, near, far, node) = match route {
            Route::Loopback => {
                let (node, _, programs) = start_node(binary, scratch, "only", &shm("only"), None)?;
                (vec![node], programs.clone(), programs, 0)
            }
            Route::Shm | Route::Udp => {
                let listen = if route == Route::Shm { shm("far") } else { "udp:127.0.0.1:0".to_owned() };
                let (far, address, far_programs) = start_node(binary, scratch, "far", &listen, None)?;
                let (near, _, programs) = start_node(binary, scratch, "near", &shm("near"), Some(&address))?;
                (vec![near, far], programs, far_programs, 1)
            }
            Route::UdpSealed | Route::UdpLoss => return Err(Failure::new("links: loopback, shm, udp")),
        };
        let mut far =
            FarProgram::start(&["faults-far".into(), "--programs".into(), far.display().to_string()])?;
        let domain = Domain::open(&near, Some(1))?;
        await_neighbour(&domain, node)?;
        let node_memory = domain.allocate(AREA, &[])?;
        touch(|offset, bytes| Ok(node_memory.write(offset, bytes)?))?;
        let areas = areas(&domain, &[])?;
        let said = far.line()?;
        let far_areas =
            (0..Way::OWN.len()).map(|index| number(&said, 2 + index)).collect::<Result<_, _>>()?;
        let after = 2 + Way::OWN.len();
        Ok(Self {
            domain,
            node_memory,
            areas,
            there: Target { node, domain: number(&said, 0)? },
            slow: Target { node, domain: number(&said, after)? },
            far_node_memory: number(&said, 1)?,
            far_areas,
            far_slow: number(&said, after + 1)?,
            far_window: number(&said, after + 2)?,
            far,
            _nodes: nodes,
        })
    }

    /// The other program does something; how long that took.
    fn far(&mut self, verb: &str, area: usize, size: usize) -> Result<u64, Failure> {
        number(&self.far.command(&format!("{verb} {area} {size}"))?, 0)
    }

    fn sample(&mut self, way: Way, absent: Ends, size: usize) -> Result<u64, Failure> {
        let Some(index) = Way::OWN.iter().position(|own| *own == way) else {
            let spec = Spec::new(self.node_memory.address(), self.far_node_memory, size as u32);
            let since = Instant::now();
            self.domain.write(self.there, spec)?.wait(ANSWER_TIMEOUT)?;
            return Ok(since.elapsed().as_nanos() as u64);
        };
        if absent.has_source() {
            self.areas[index].1.give_back(0, size)?;
        }
        if absent.has_destination() {
            self.far("give", index, size)?;
        }
        let mut far_ns = 0;
        let before = match way {
            Way::Pinned => Some("lock"),
            Way::Touched => Some("touch"),
            _ => None,
        };
        if let Some(verb) = before.filter(|_| absent.has_destination()) {
            far_ns += self.far(verb, index, size)?;
        }
        let since = Instant::now();
        let mine = &self.areas[index].1;
        if absent.has_source() {
            match way {
                Way::Pinned => mine.lock(0, size)?,
                Way::Touched => touch_pages(mine, size)?,
                _ => {}
            }
        }
        let spec = Spec::new(mine.address(), self.far_areas[index], size as u32);
        self.domain.write(self.there, spec)?.wait(ANSWER_TIMEOUT)?;
        if absent.has_source() && way == Way::Pinned {
            mine.unlock(0, size)?;
        }
        let near_ns = since.elapsed().as_nanos() as u64;
        if absent.has_destination() && way == Way::Pinned {
            far_ns += self.far("unlock", index, size)?;
        }
        Ok(near_ns + far_ns)
    }

    fn latency(&mut self, way: Way, absent: Ends, size: usize) -> Result<Summary, Failure> {
        let mut samples = Samples::new(SAMPLES)?;
        let warm_up = if size > 1 << 20 { 2 } else { WARM_UP };
        let mut since = Instant::now();
        for number in 0..warm_up + SAMPLES {
            if number == warm_up {
                since = Instant::now();
            }
            let sample = self.sample(way, absent, size)?;
            if number >= warm_up {
                samples.note(sample);
            }
            if number > warm_up + LEAST_SAMPLES && since.elapsed() > LONG {
                break;
            }
        }
        samples.summary()
    }

    /// Small writes to memory that is present, alone, and while others wait for pages that take 100 ms.
    fn beside(&mut self, link: Route) -> Result<Beside, Failure> {
        let small = |pair: &Self| -> Result<Summary, Failure> {
            let mut samples = Samples::new(20_000)?;
            let since = Instant::now();
            let spec = Spec::new(pair.areas[0].1.address(), pair.far_areas[0], 64);
            // The eight pages that are late take longer.
            while since.elapsed() < LONG * 7 / 4 {
                let one = Instant::now();
                pair.domain.write(pair.there, spec)?.wait(ANSWER_TIMEOUT)?;
                samples.note(one.elapsed().as_nanos() as u64);
            }
            samples.summary()
        };
        let mut passes = (Vec::new(), Vec::new());
        for pass in 0..3 {
            passes.0.push(small(self)?);
            let late: Vec<_> = (0..8)
                .map(|page| {
                    let to = self.far_slow + (pass * 8 + page) * 40 * 4096;
                    self.domain.write(self.slow, Spec::new(self.node_memory.address(), to, 64))
                })
                .collect::<Result<_, _>>()?;
            passes.1.push(small(self)?);
            for transfer in late {
                transfer.wait(ANSWER_TIMEOUT)?;
            }
        }
        let of = |passes: &[Summary]| Summary::of_passes(passes).ok_or_else(|| Failure::new("no passes"));
        Ok(Beside { link, alone: of(&passes.0)?, beside: of(&passes.1)? })
    }
}

impl Pair {
    /// A word is stored, and seen by the other program, and back.
    fn window(&mut self, link: Route, first: usize) -> Result<Window, Failure> {
        let window = self.domain.map_window(self.there, self.far_window)?;
        self.far.send("window 0 0")?;
        let played = std::thread::scope(|scope| {
            let ours = scope.spawn(|| {
                process::pin_thread(first)?;
                let word = window.word(0)?;
                serve_ball(word, word)
            });
            ours.join().map_err(|_| Failure::new("a thread failed"))?
        });
        window.store(0, WINDOW_END)?;
        self.far.line()?;
        Ok(Window { link, round_trip_ns: played? })
    }

    /// Transfers to a few places of a large area, which is then pinned.
    fn sparse(&self) -> Result<Sparse, Failure> {
        let memory = self.domain.register(OwnMemory::map(SPARSE_BYTES)?, &[])?;
        let mut random = tombolo_random::Random::new(1);
        let before = resident_bytes()?;
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..SPARSE_TRANSFERS {
            let offset = random.below(SPARSE_BYTES as u64 / SPARSE_SIZE) * SPARSE_SIZE;
            places.insert(offset);
            let spec = Spec::new(self.far_node_memory, memory.address() + offset, SPARSE_SIZE as u32);
            self.domain.read(self.there, spec)?.wait(ANSWER_TIMEOUT)?;
        }
        let brought_in_bytes = resident_bytes()?.saturating_sub(before);
        memory.lock(0, SPARSE_BYTES)?;
        let pinned_bytes = resident_bytes()?.saturating_sub(before);
        memory.unlock(0, SPARSE_BYTES)?;
        self.domain.deregister(memory)?;
        let used_bytes = places.len() as u64 * SPARSE_SIZE;
        Ok(Sparse { registered_bytes: SPARSE_BYTES as u64, used_bytes, brought_in_bytes, pinned_bytes })
    }
}

/// What this process has in memory.
fn resident_bytes() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| Failure::new("/proc/self/statm says something else"))
}

fn is_wanted<T: PartialEq>(wanted: &[T], one: &T) -> bool {
    wanted.is_empty() || wanted.contains(one)
}

fn measure(arguments: &Arguments) -> Result<Outcome, Failure> {
    const LINKS: [Route; 3] = [Route::Loopback, Route::Shm, Route::Udp];
    if arguments.link.iter().any(|link| !LINKS.contains(link)) {
        return Err(Failure::new("links: loopback, shm, udp"));
    }
    if let Some(Size(wrong)) = arguments.sizes.iter().find(|size| size.0 > AREA as u64 || size.0 == 0) {
        return Err(Failure::new(format!(
            "sizes go up to {} from 1, and {wrong} is not between",
            Size(AREA as u64)
        )));
    }
    let processors = process::processors();
    let ends = [processors.first(), processors.last()].map(|end| end.copied().unwrap_or(0));
    let floor = Floor::measure(&arguments.sizes, ends)?;
    let scratch = Scratch::new("bench-faults")?;
    let (mut rows, mut beside, mut windows, mut sparse) = (Vec::new(), Vec::new(), Vec::new(), None);
    for link in LINKS {
        if !is_wanted(&arguments.link, &link) {
            continue;
        }
        let mut pair = Pair::start(arguments, &scratch, link)?;
        for &Size(size_bytes) in &arguments.sizes {
            for way in Way::ALL.into_iter().filter(|way| is_wanted(&arguments.way, way)) {
                for &absent in Ends::of(way) {
                    let latency = pair.latency(way, absent, size_bytes as usize)?;
                    rows.push(Row { link, way, absent, size_bytes, latency });
                }
            }
        }
        if arguments.way.is_empty() {
            beside.push(pair.beside(link)?);
            if link != Route::Udp {
                windows.push(pair.window(link, ends[0])?);
            }
            if sparse.is_none() {
                sparse = Some(pair.sparse()?);
            }
        }
    }
    let mut ratios = ratios(&floor, &rows, &beside);
    for window in &windows {
        let title = format!("{}: a window's word there and back / a cache line's", name(&window.link));
        ratios.push((title, window.round_trip_ns / floor.cache_line_round_trip_ns, 1.5));
    }
    Ok(Outcome { floor, rows, beside, windows, sparse, ratios })
}

/// What is to be reached: its name, the ratio, and its bound.
fn ratios(floor: &Floor, rows: &[Row], beside: &[Beside]) -> Vec<(String, f64, f64)> {
    let mut ratios = Vec::new();
    let median = |link, way, absent, size| {
        let row = rows
            .iter()
            .find(|row| (row.link, row.way, row.absent, row.size_bytes) == (link, way, absent, size));
        row.map(|row| row.latency.median_ns)
    };
    for link in [Route::Loopback, Route::Shm, Route::Udp] {
        for &(size, touch_ns) in &floor.first_touch {
            let present = median(link, Way::Present, Ends::None, size);
            let node = median(link, Way::Node, Ends::None, size);
            if let Some((present, node)) = present.zip(node).filter(|_| size >= LARGE) {
                ratios.push((
                    format!("{}, {}: own memory / the node's", name(&link), Size(size)),
                    present / node,
                    2.0,
                ));
            }
            if size != 16 << 10 {
                continue;
            }
            for absent in [Ends::Source, Ends::Destination, Ends::Both] {
                let times = if absent == Ends::Both { 2.0 } else { 1.0 };
                if let Some((absent_ns, present)) = median(link, Way::Adaptive, absent, size).zip(present) {
                    let best = present + times * (touch_ns + floor.wake_ns);
                    let title = format!(
                        "{}, {}, absent at {}: / present, first touch and a wake",
                        name(&link),
                        Size(size),
                        absent.name()
                    );
                    ratios.push((title, absent_ns / best, 1.25));
                }
            }
        }
    }
    for Beside { link, alone, beside } in beside {
        let title =
            |what| format!("{}: small writes beside pages that take 100 ms / alone, {what}", name(link));
        ratios.push((title("median"), beside.median_ns / alone.median_ns, 1.05));
        ratios.push((title("99 %"), beside.p99_ns / alone.p99_ns, 1.5));
    }
    ratios
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let outcome = measure(arguments)?;
    if arguments.json {
        return print_json(&outcome);
    }
    println!("a cache line there and back: {:.0} ns", outcome.floor.cache_line_round_trip_ns);
    println!("a wake of a thread: {:.1} µs", outcome.floor.wake_ns / 1000.0);
    for (size, touch_ns) in &outcome.floor.first_touch {
        println!("first touch of {:>6}: {:.1} µs", Size(*size).to_string(), touch_ns / 1000.0);
    }
    for (size, ns) in &outcome.floor.two_copies {
        println!("two copies of {:>6}: {:.1} µs", Size(*size).to_string(), ns / 1000.0);
    }
    println!();
    println!("link        way       absent at        size      median         99 %");
    for row in &outcome.rows {
        println!(
            "{:10}  {:8}  {:11} {:>9} {:>9.1} µs {:>9.1} µs",
            name(&row.link),
            name(&row.way),
            row.absent.name(),
            Size(row.size_bytes).to_string(),
            row.latency.median_ns / 1000.0,
            row.latency.p99_ns / 1000.0,
        );
    }
    println!();
    if let Some(Sparse { registered_bytes, used_bytes, brought_in_bytes, pinned_bytes }) = outcome.sparse {
        println!(
            "of {} registered, transfers wrote {}: {} there, and {} where all of it is pinned",
            Size(registered_bytes),
            Size(used_bytes),
            Size(brought_in_bytes),
            Size(pinned_bytes),
        );
    }
    for (title, ratio, bound) in &outcome.ratios {
        let verdict = if ratio <= bound { "reached" } else { "NOT reached" };
        println!("{title}: {ratio:.2} (to be ≤ {bound}): {verdict}");
    }
    Ok(())
}
