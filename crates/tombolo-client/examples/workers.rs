//! Several processes are one domain: workers in processes of their own join the domain of their parent, which gathers
//! what they have made from their own memory, and tells them by a word there that it has it. Nothing is granted to anybody.
//!
//! `cargo run --release -p tombolo-client --example workers -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Invitation, OwnMemory, Spec, Target};

const WORKERS: u64 = 3;
const NUMBERS: u64 = 4_000;
const BYTES: usize = NUMBERS as usize * 8;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A worker: makes its numbers in memory of its own, says where they are, and waits until they have been taken.
fn work(socket: &Path, which: u64) -> Result<(), Box<dyn Error>> {
    let mut invitation = [0; Invitation::BYTES];
    std::io::stdin().read_exact(&mut invitation)?;
    let domain = Domain::join(socket, &Invitation::from_bytes(&invitation)?)?;
    let memory = domain.register(OwnMemory::map(BYTES + 8)?, &[])?;
    for number in 0..NUMBERS {
        memory.word(number as usize * 8)?.store(which * NUMBERS + number, Ordering::Relaxed);
    }
    let taken = memory.word(BYTES)?;
    std::io::stdout().write_all(&memory.address().to_le_bytes())?;
    std::io::stdout().flush()?;
    let since = Instant::now();
    while taken.load(Ordering::Acquire) == 0 {
        if since.elapsed() > TIMEOUT {
            return Err("nobody takes the numbers".into());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    domain.deregister(memory)?;
    Ok(())
}

fn start(socket: &Path, which: u64, invitation: &Invitation) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(socket).arg(which.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    // Any process that knows the invitation can join the domain. This pipe is read by the worker alone.
    child.stdin.take().ok_or("no pipe")?.write_all(&invitation.to_bytes())?;
    Ok(child)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = PathBuf::from(arguments.next().ok_or("usage: workers SOCKET")?);
    if let Some(which) = arguments.next() {
        return work(&socket, which.parse()?);
    }
    let domain = Domain::open(&socket, None)?;
    let invitation = domain.invite()?;
    let itself = Target { node: 0, domain: domain.number() };
    let memory = domain.register(OwnMemory::map(BYTES + 8)?, &[])?;
    let one = memory.address() + BYTES as u64;
    memory.word(BYTES)?.store(1, Ordering::Relaxed);
    let mut sum = 0;
    let workers: Vec<Child> =
        (0..WORKERS).map(|which| start(&socket, which, &invitation)).collect::<Result<_, _>>()?;
    for mut worker in workers {
        let mut address = [0; 8];
        worker.stdout.take().ok_or("no pipe")?.read_exact(&mut address)?;
        let there = u64::from_le_bytes(address);
        domain.read(itself, Spec::new(there, memory.address(), BYTES as u32))?.wait(TIMEOUT)?;
        for number in 0..NUMBERS {
            sum += memory.word(number as usize * 8)?.load(Ordering::Relaxed);
        }
        domain.write(itself, Spec::new(one, there + BYTES as u64, 8))?.wait(TIMEOUT)?;
        if !worker.wait()?.success() {
            return Err("a worker has failed".into());
        }
    }
    println!("numbers of {WORKERS} processes in one domain: their sum is {sum}");
    Ok(())
}
