//! Swap on a compressed RAM disk (zram), for a comparison: set up, and taken away again.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::timing::host::{
    ZRAM_DEVICE_INTERVAL, ZRAM_DEVICE_TIMEOUT, ZRAM_END_INTERVAL, ZRAM_END_TIMEOUT, ZRAM_TURN_INTERVAL,
};

const PAGE_BYTES: u64 = 4096;
/// The kernel prefers our device to any other swap.
const PRIORITY: i32 = 32_000;
const SWAP_FLAG_PREFER: i32 = 0x8000;

/// Swap space on a zram device of its own; dropping it undoes everything. On one machine there is one at a time.
#[derive(Debug)]
pub struct ZramSwap {
    /// Locked until this is dropped.
    turn: fs::File,
    device: PathBuf,
    system: PathBuf,
    number: u32,
    /// Whether the device was made for us, and has to go again.
    added: bool,
    on: bool,
}

fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Waits until no other process has such a swap space.
fn take_turn(patience: Duration) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).truncate(false).read(true).write(true).open("/run/lock/tombolo-zram")?;
    let since = Instant::now();
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < patience => {
                std::thread::sleep(ZRAM_TURN_INTERVAL);
            }
            Err(error) => return Err(told("another comparison swaps on zram", error.into())),
        }
    }
}

/// Takes away what a process left behind that was killed while it had its turn: the file has the number of its device, and
/// whether that was made for it.
fn sweep(turn: &fs::File) -> io::Result<()> {
    let text = io::read_to_string(turn)?;
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [number, added] = words[..]
        && let Ok(number) = number.parse::<u32>()
    {
        let device = format!("/dev/zram{number}");
        let swaps = fs::read_to_string("/proc/swaps")?;
        let is_ours = |line: &str| line.starts_with(&device) && line.ends_with(&format!("\t{PRIORITY}"));
        if swaps.lines().any(is_ours) {
            let system = PathBuf::from(format!("/sys/block/zram{number}"));
            let added = added == "added";
            drop(ZramSwap {
                turn: turn.try_clone()?,
                device: device.into(),
                system,
                number,
                added,
                on: true,
            });
        }
    }
    Ok(())
}

/// A fresh device, or else one that nobody uses.
fn find_device() -> io::Result<(u32, bool)> {
    if let Ok(text) = fs::read_to_string("/sys/class/zram-control/hot_add")
        && let Ok(number) = text.trim().parse()
    {
        return Ok((number, true));
    }
    for number in 0..16 {
        let size = fs::read_to_string(format!("/sys/block/zram{number}/disksize"));
        if size.is_ok_and(|size| size.trim() == "0") {
            return Ok((number, false));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no free zram device (is the kernel's zram module there?)"))
}

/// The first page of a swap area, as mkswap(8) writes it.
fn header(bytes: u64) -> [u8; PAGE_BYTES as usize] {
    let mut page = [0; PAGE_BYTES as usize];
    let last_page = u32::try_from(bytes / PAGE_BYTES - 1).unwrap_or(u32::MAX);
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

impl ZramSwap {
    /// Swap space of this many bytes (before compression), preferred to all other swap. Needs root. Where another process
    /// has such a swap space, waits so long for its end.
    pub fn new(bytes: u64, patience: Duration) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "swap on zram needs root"));
        }
        let bytes = bytes.next_multiple_of(PAGE_BYTES).max(16 * PAGE_BYTES);
        let turn = take_turn(patience).map_err(|error| told("cannot lock /run/lock/tombolo-zram", error))?;
        sweep(&turn)?;
        let (number, added) = find_device()?;
        let system = PathBuf::from(format!("/sys/block/zram{number}"));
        let device = format!("/dev/zram{number}").into();
        let mut swap = Self { turn, device, system, number, added, on: false };
        let note = format!("{number} {}", if added { "added" } else { "found" });
        swap.note(&note)?;
        fs::write(swap.system.join("disksize"), bytes.to_string())
            .map_err(|error| told("cannot size zram", error))?;
        swap.wait_for_device()?;
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&swap.device)
            .map_err(|error| told("cannot open zram", error))?;
        file.write_all_at(&header(bytes), 0).map_err(|error| told("cannot format zram", error))?;
        file.sync_all()?;
        drop(file);
        let path = swap.path()?;
        // SAFETY: swapon(2) takes a terminated path and flags.
        let result = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) };
        if result < 0 {
            return Err(told("cannot swap on zram", io::Error::last_os_error()));
        }
        swap.on = true;
        Ok(swap)
    }

    /// The compression algorithm: the kernel marks it in a list with brackets.
    pub fn algorithm(&self) -> String {
        let text = fs::read_to_string(self.system.join("comp_algorithm")).unwrap_or_default();
        let chosen = text.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'));
        chosen.unwrap_or("unknown").to_owned()
    }

    /// Says in the file of the lock what is to be taken away where this process is killed.
    fn note(&self, text: &str) -> io::Result<()> {
        self.turn.set_len(0)?;
        self.turn.write_all_at(text.as_bytes(), 0)
    }

    fn wait_for_device(&self) -> io::Result<()> {
        let since = Instant::now();
        while !Path::new(&self.device).exists() {
            if since.elapsed() > ZRAM_DEVICE_TIMEOUT {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{} does not appear", self.device.display()),
                ));
            }
            std::thread::sleep(ZRAM_DEVICE_INTERVAL);
        }
        Ok(())
    }

    fn path(&self) -> io::Result<CString> {
        CString::new(self.device.as_os_str().as_encoded_bytes())
            .map_err(|_| io::ErrorKind::InvalidInput.into())
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        if self.on
            && let Ok(path) = self.path()
        {
            let since = Instant::now();
            // SAFETY: swapoff(2) takes a terminated path.
            while unsafe { libc::swapoff(path.as_ptr()) } < 0 {
                let error = io::Error::last_os_error();
                if since.elapsed() > ZRAM_END_TIMEOUT {
                    eprintln!("cannot end swapping on {}: {error}", self.device.display());
                    return;
                }
                std::thread::sleep(ZRAM_END_INTERVAL);
            }
        }
        // udev may have the device open at this moment.
        let since = Instant::now();
        while fs::write(self.system.join("reset"), "1").is_err() && since.elapsed() < ZRAM_DEVICE_TIMEOUT {
            std::thread::sleep(ZRAM_DEVICE_INTERVAL);
        }
        let since = Instant::now();
        while self.added
            && fs::write("/sys/class/zram-control/hot_remove", self.number.to_string()).is_err()
            && since.elapsed() < ZRAM_DEVICE_TIMEOUT
        {
            std::thread::sleep(ZRAM_DEVICE_INTERVAL);
        }
        let _ = self.note("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(1 << 20);
        assert_eq!(page[1024], 1);
        assert_eq!(page[1028..1032], 255u32.to_ne_bytes());
        assert_eq!(&page[4086..], b"SWAPSPACE2");
    }
}
