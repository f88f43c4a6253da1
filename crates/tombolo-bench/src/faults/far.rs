//! The other program: memory of its own, whose pages it gives back, pins or touches when it is told.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use tombolo_client::{Domain, Grant, Memory, OwnMemory, Registered, Who};
use tombolo_host::process;
use tombolo_host::uffd::{Event, Userfaultfd};

use super::{AREA, SLOW_BYTES, WINDOW_END, Way};
use crate::Failure;

/// Arguments of the hidden `tombolo-bench faults-far`.
#[derive(Args)]
pub struct Arguments {
    /// Its node.
    #[arg(long)]
    programs: PathBuf,
}

/// How long a page of the slow memory takes.
const SLOW_PAGE: Duration = Duration::from_millis(100);

/// Memory whose pages come late, one after the other.
fn slow_memory() -> Result<OwnMemory, Failure> {
    let memory = OwnMemory::map(SLOW_BYTES)?;
    let faults = Userfaultfd::for_this_process()?;
    faults.enable(0)?;
    faults.register_missing(memory.address(), SLOW_BYTES as u64)?;
    let server = move || {
        let Ok(zeros) = OwnMemory::map(4096) else { return };
        let _ = zeros.write(0, &[1; 4096]);
        loop {
            if let Ok(Some(Event::Fault { address, .. })) = faults.read_event() {
                std::thread::sleep(SLOW_PAGE);
                let _ = faults.copy(address & !4095, zeros.address(), 4096, false);
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    std::thread::spawn(server);
    Ok(memory)
}

/// On the last processor: what is stored in the first word of the window comes back, until it is its end.
fn echo(window: &Memory) -> Result<(), Failure> {
    let word = window.word(0)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = process::pin_thread(*process::processors().last().unwrap_or(&0));
            loop {
                match word.load(Ordering::Acquire) {
                    WINDOW_END => return,
                    odd if odd % 2 == 1 => word.store(odd + 1, Ordering::Release),
                    _ => {}
                }
            }
        });
    });
    word.store(0, Ordering::Release);
    Ok(())
}

/// Runs it until the bench closes the pipe.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let domain = Domain::open(&arguments.programs, Some(2))?;
    let slow_domain = Domain::open(&arguments.programs, Some(3))?;
    let anyone = [Grant::all(Who::Anyone)];
    let node_memory = domain.allocate(AREA, &anyone)?;
    super::touch(|offset, bytes| Ok(node_memory.write(offset, bytes)?))?;
    let areas = super::areas(&domain, &anyone)?;
    let slow = slow_domain.register_with(slow_memory()?, &anyone, Way::Page.policy())?;
    let window = domain.allocate_window(4096, &anyone)?;
    let mut said = vec![u64::from(domain.number()), node_memory.address()];
    said.extend(areas.iter().map(|(_, area)| area.address()));
    said.extend([u64::from(slow_domain.number()), slow.address(), window.address()]);
    println!("{}", said.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [verb, way, length] = words[..] else { return Err(Failure::new("the bench said nonsense")) };
        let (way, length): (usize, usize) = (way.parse()?, length.parse()?);
        let (_, area): &(Way, Registered) = areas.get(way).ok_or_else(|| Failure::new("no such area"))?;
        let since = Instant::now();
        match verb {
            "give" => area.give_back(0, length)?,
            "lock" => area.lock(0, length)?,
            "unlock" => area.unlock(0, length)?,
            "window" => echo(&window)?,
            "touch" => super::touch_pages(area, length)?,
            _ => return Err(Failure::new("the bench said nonsense")),
        }
        println!("{}", since.elapsed().as_nanos());
    }
    Ok(())
}
