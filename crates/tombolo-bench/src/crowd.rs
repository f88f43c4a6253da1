//! Small writes to a node while something large or hostile goes on beside them: what others notice of it.
//!
//! `tombolo-bench hellos`: a stranger floods the node's UDP port with hellos; the same flood goes to a port that
//! nobody reads. `tombolo-bench freeing`: a borrower of gigabytes ends, and the node frees them.
//!
//! What is measured is `tombolo ping`, in a process of its own.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tombolo_host::stops;

use tombolo_app::child::{self, Guard};
use tombolo_app::scratch::Scratch;
use tombolo_app::{median, size};

use crate::Failure;

/// The longest that one run of `tombolo ping` or `tombolo status` may take.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// The longest that borrowing may take: a page that leaves takes 6 to 12 µs, so 12 GiB half a minute.
const BORROW_LIMIT: Duration = Duration::from_secs(300);
/// How long a borrower stays, if nobody ends it.
const BORROWER_STAYS: Duration = Duration::from_secs(600);
/// After this long the flood sends what is due by then.
const FLOOD_PAUSE: Duration = Duration::from_micros(500);
/// Newcomers that are let in during each flood.
const NEWCOMERS: usize = 5;

/// Arguments of `tombolo-bench hellos`.
#[derive(Args)]
pub struct HelloArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// Hellos a second.
    #[arg(long, default_value_t = 50_000)]
    rate: u32,
}

/// Arguments of `tombolo-bench freeing`.
#[derive(Args)]
pub struct FreeingArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// How much memory a program fills, and how much of it is freed but for 64 MiB, once a round. That takes 2 to 3 s for each gigabyte.
    #[arg(long, value_parser = size::bytes, default_value = "4G")]
    size: usize,
}

#[derive(Args)]
struct CommonArguments {
    /// The `tombolo` to measure.
    #[arg(long)]
    binary: PathBuf,
    /// How often each way is measured; the medians are compared.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Writes in each measurement.
    #[arg(long, default_value_t = 20_000)]
    count: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl CommonArguments {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words);
        command
    }

    fn node(&self, listen: &str, lend_bytes: usize) -> Result<(Guard, String), Failure> {
        let lend = lend_bytes.to_string();
        let words = ["node", "--insecure", "--name", "bench", "--listen", listen, "--lend", &lend];
        Ok(child::serve_node(&mut self.command(&words))?)
    }

    /// Prints which part of the bench runs, for the user who waits.
    fn report(&self, text: &str) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    /// Writes 64 bytes so often, one after the other.
    fn ping(&self, address: &str, count: u32) -> Result<Latency, Failure> {
        let count = count.to_string();
        let words = ["ping", "--insecure", address, "--count", &count, "--interval", "0", "--json"];
        crate::result(&mut self.command(&words), RUN_LIMIT)
    }

    /// Bytes that the node is freeing.
    fn being_freed_bytes(&self, address: &str) -> Result<u64, Failure> {
        let words = ["status", "--insecure", "--json", address];
        let status: Value = crate::result(&mut self.command(&words), RUN_LIMIT)?;
        let bytes = status["being_freed_bytes"].as_u64();
        bytes.ok_or_else(|| Failure::new("the status does not say how much is being freed"))
    }
}

/// What `tombolo ping` says.
#[derive(Deserialize)]
struct Latency {
    sent: u64,
    answered: u64,
    median_us: f64,
    p99_us: f64,
}

/// The runs of one way.
#[derive(Default)]
struct Runs(Vec<Latency>);

/// What they come to.
#[derive(Serialize)]
struct Summary {
    median_us: f64,
    p99_us: f64,
    unanswered: u64,
}

impl Runs {
    fn summary(&self) -> Summary {
        let median = |value: fn(&Latency) -> f64| {
            median(&self.0.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        Summary {
            median_us: median(|run| run.median_us),
            p99_us: median(|run| run.p99_us),
            unanswered: self.0.iter().map(|run| run.sent - run.answered).sum(),
        }
    }
}

/// The first thing that a stranger says to a node: what `tombolo ping` says to a port that never answers.
fn hello(arguments: &CommonArguments) -> Result<Vec<u8>, Failure> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(RUN_LIMIT))?;
    let address = format!("udp:{}", socket.local_addr()?);
    let mut command = arguments.command(&["ping", "--insecure", &address, "--count", "1"]);
    let _stranger = child::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let mut hello = vec![0; 65536];
    let length = socket.recv(&mut hello)?;
    hello.truncate(length);
    Ok(hello)
}

/// Sends hellos at a rate until told to stop; how many a second were sent.
fn flood(
    to: SocketAddr,
    hello: &[u8],
    rate: u32,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> Result<f64, Failure> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    // Answers are dropped by the kernel once the socket is full of them.
    let (since, mut count) = (Instant::now(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (since.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        while count < due {
            match socket.send_to(hello, to) {
                Ok(_) => count += 1,
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
        }
        sent.store(count, Ordering::Relaxed);
        std::thread::sleep(FLOOD_PAUSE);
    }
    Ok(count as f64 / since.elapsed().as_secs_f64())
}

/// Does something beside a flood; returns the hellos a second as well.
fn beside_flood<T>(
    to: SocketAddr,
    hello: &[u8],
    rate: u32,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, f64), Failure> {
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let flooder = scope.spawn(|| flood(to, hello, rate, &stop, &sent));
        let since = Instant::now();
        while sent.load(Ordering::Relaxed) == 0 && !flooder.is_finished() && since.elapsed() < RUN_LIMIT {
            std::thread::sleep(FLOOD_PAUSE);
        }
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let rate = flooder.join().map_err(|_| Failure::new("the flood failed"))??;
        Ok((done?, rate))
    })
}

/// Measures others' writes beside a flood of hellos.
pub fn hellos(arguments: &HelloArguments) -> Result<(), Failure> {
    let common = &arguments.common;
    stops::stop_on_signals(&child::STOP);
    let hello = hello(common)?;
    let (_node, address) = common.node("udp:127.0.0.1:0", 16 << 20)?;
    let node: SocketAddr = address
        .strip_prefix("udp:")
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| Failure::new(format!("{address} is not where a node listens")))?;
    // Bound, so that the kernel answers nothing, and never read.
    let unread = UdpSocket::bind("127.0.0.1:0")?;
    let (mut quiet, mut discarded, mut flooded) = (Runs::default(), Runs::default(), Runs::default());
    let (mut newcomers_ms, mut rates) = (Vec::new(), Vec::new());
    for round in 1..=common.rounds {
        common.report(&format!("round {round} of {}", common.rounds));
        quiet.0.push(common.ping(&address, common.count)?);
        let unread = unread.local_addr()?;
        let ping = || common.ping(&address, common.count);
        let (latency, rate) = beside_flood(unread, &hello, arguments.rate, ping)
            .map_err(|failure| failure.during("the flood that is discarded"))?;
        discarded.0.push(latency);
        rates.push(rate);
        let (latency, rate) = beside_flood(node, &hello, arguments.rate, ping)
            .map_err(|failure| failure.during("the flood"))?;
        flooded.0.push(latency);
        rates.push(rate);
        let come = || -> Result<(), Failure> {
            for _ in 0..NEWCOMERS {
                let since = Instant::now();
                common.ping(&address, 1)?;
                newcomers_ms.push(since.elapsed().as_secs_f64() * 1000.0);
            }
            Ok(())
        };
        beside_flood(node, &hello, arguments.rate, come)
            .map_err(|failure| failure.during("newcomers beside the flood"))?;
    }
    let (discarded, flooded) = (discarded.summary(), flooded.summary());
    print(
        common,
        &json!({
            "hellos_per_s": median(&rates),
            "quiet": quiet.summary(),
            "discarded": discarded,
            "flooded": flooded,
            "p99_ratio": flooded.p99_us / discarded.p99_us,
            "newcomers": newcomers_ms.len(),
            "newcomer_median_ms": median(&newcomers_ms),
            "newcomer_max_ms": newcomers_ms.iter().copied().fold(0.0, f64::max),
        }),
    )
}

/// Arguments of `tombolo-bench borrower`.
#[derive(Args)]
pub struct BorrowerArguments {
    /// How much memory it fills.
    size: usize,
    /// A file that it makes then.
    began: PathBuf,
}

/// Fills memory, which is far but for what is local, and stays.
pub fn borrow(arguments: &BorrowerArguments) -> Result<(), Failure> {
    const PAGE_WORDS: usize = 512;
    let mut memory = vec![0_u64; arguments.size / 8];
    for (number, page) in (1..).zip(memory.chunks_mut(PAGE_WORDS)) {
        // Pages of zeros are not kept anywhere.
        page[0] = number;
    }
    std::hint::black_box(&mut memory);
    std::fs::write(&arguments.began, "")?;
    std::thread::sleep(BORROWER_STAYS);
    Ok(())
}

/// Starts a program that has filled `--size` bytes of far memory when this returns: it makes a file then. Dropping the guard
/// ends it.
fn borrower(arguments: &FreeingArguments, address: &str, began: &Path) -> Result<Guard, Failure> {
    let (common, size) = (&arguments.common, arguments.size.to_string());
    let words =
        ["run", "--quiet", "--insecure", "--from", address, "--local", "64M", "--remote", &size, "--"];
    let mut command = common.command(&words);
    command.arg(crate::this_binary()?).args(["borrower", &size]).arg(began);
    let group = child::spawn(command.stdout(Stdio::null()))?;
    let since = Instant::now();
    while !began.exists() {
        if since.elapsed() > BORROW_LIMIT {
            return Err(Failure::new("the memory was not borrowed"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::remove_file(began)?;
    Ok(group)
}

/// Measures others' writes while memory is freed.
pub fn freeing(arguments: &FreeingArguments) -> Result<(), Failure> {
    let common = &arguments.common;
    stops::stop_on_signals(&child::STOP);
    let scratch = Scratch::new("freeing")?;
    let listen = format!("shm:{}", scratch.file("lender").display());
    // More than the borrower may have: the small writes need a page, too.
    let (_node, address) = common.node(&listen, arguments.size + (1 << 30))?;
    let (mut quiet, mut freeing) = (Runs::default(), Runs::default());
    let (mut left_bytes, mut freed_ms) = (Vec::new(), Vec::new());
    for round in 1..=common.rounds {
        let since = Instant::now();
        let borrower = borrower(arguments, &address, &scratch.file("began"))?;
        let rounds = common.rounds;
        common.report(&format!(
            "round {round} of {rounds}: borrowed after {:.1} s",
            since.elapsed().as_secs_f64()
        ));
        quiet.0.push(common.ping(&address, common.count)?);
        drop(borrower);
        let since = Instant::now();
        while common.being_freed_bytes(&address)? == 0 {
            if since.elapsed() > RUN_LIMIT {
                return Err(Failure::new("nothing was seen to be freed: is `--size` too small?"));
            }
        }
        freeing.0.push(common.ping(&address, common.count)?);
        // If nothing is left, a part of the writes were made when all was freed.
        left_bytes.push(common.being_freed_bytes(&address)?);
        while common.being_freed_bytes(&address)? > 0 && since.elapsed() < RUN_LIMIT {}
        freed_ms.push(since.elapsed().as_secs_f64() * 1000.0);
        common.report(&format!(
            "round {round} of {rounds}: freed after {:.1} s",
            since.elapsed().as_secs_f64()
        ));
    }
    let (quiet, freeing) = (quiet.summary(), freeing.summary());
    print(
        common,
        &json!({
            "filled_bytes": arguments.size,
            "freed_median_ms": median(&freed_ms),
            "left_after_the_writes_bytes": left_bytes,
            "quiet": quiet,
            "freeing": freeing,
            "p99_ratio": freeing.p99_us / quiet.p99_us,
        }),
    )
}

fn print(arguments: &CommonArguments, found: &Value) -> Result<(), Failure> {
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(found)?);
        return Ok(());
    }
    for (name, value) in found.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(summary) => println!(
                "{name}: median {:.1} µs, 99 % {:.1} µs, {} unanswered",
                summary["median_us"].as_f64().unwrap_or(f64::NAN),
                summary["p99_us"].as_f64().unwrap_or(f64::NAN),
                summary["unanswered"],
            ),
            None => println!("{name}: {value}"),
        }
    }
    Ok(())
}
