//! Start-up: what this process is told, and the number that it gives itself.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tombolo_interpose::fork_word::ForkWord;
use tombolo_interpose::switch::Switch;
use tombolo_interpose::sys::call;
use tombolo_interpose::variables;
use tombolo_sockets_protocol::rules::{self, RULES_MAX, Role, Use};
use tombolo_sockets_protocol::{Address, Setting, VARIABLE};

/// On: there is a node to ask.
static SWITCH: Switch = Switch::new();
static WORD: ForkWord = ForkWord::new();
/// Of its own words: the number of this process, by which it knows its ends from those that it has inherited.
const TOKEN: usize = 0;
/// And its process number: a child of `vfork` shares the page, and is another process.
const PROCESS: usize = 1;

const SETTING_MAX: usize = 256;
/// Bytes of the program's name that are compared.
const PROGRAM_MAX: usize = 64;

struct Told {
    text: [u8; SETTING_MAX],
    length: usize,
    address: libc::sockaddr_un,
    rules: [u8; RULES_MAX],
    program: [u8; PROGRAM_MAX],
    program_length: usize,
}
struct Shared(UnsafeCell<Told>);
// SAFETY: written by the one call of `start` alone, before anyone reads it.
unsafe impl Sync for Shared {}
static TOLD: Shared = Shared(UnsafeCell::new(Told {
    text: [0; SETTING_MAX],
    length: 0,
    address: libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] },
    rules: [0; RULES_MAX],
    program: [0; PROGRAM_MAX],
    program_length: 0,
}));
static RULES_LENGTH: AtomicUsize = AtomicUsize::new(0);

fn told() -> &'static Told {
    // SAFETY: read only after start-up has filled it, never written again.
    unsafe { &*TOLD.0.get() }
}

/// Whether anything is to be done in this process; starts it up at the first call.
pub fn is_on() -> bool {
    SWITCH.is_on(start)
}

/// The value of the environment variable.
pub fn variable_value() -> &'static [u8] {
    let told = told();
    told.text.get(..told.length).unwrap_or(&[])
}

/// Where the node listens.
pub fn node_address() -> &'static libc::sockaddr_un {
    &told().address
}

fn start() -> bool {
    // SAFETY: the switch calls this once, and nobody reads it before that.
    let told = unsafe { &mut *TOLD.0.get() };
    let Some(length) = variables::copy(VARIABLE, &mut told.text).filter(|length| *length > 0) else {
        return false;
    };
    told.length = length;
    let text = told.text;
    let setting = text.get(..length).and_then(Setting::parse);
    let Some(setting) = setting.filter(|setting| setting.socket.len() < told.address.sun_path.len()) else {
        const TEXT: &[u8] = b"tombolo: this program's connections stay TCP: its library is of another build than its node (start it again)\n";
        // SAFETY: writes constant bytes to standard error.
        let _ = unsafe { call(libc::SYS_write, [2, TEXT.as_ptr() as usize, TEXT.len(), 0, 0, 0]) };
        return false;
    };
    for (target, byte) in told.address.sun_path.iter_mut().zip(setting.socket) {
        *target = *byte as libc::c_char;
    }
    if !setting.rules.is_empty() {
        // What the rules would leave to TCP must not be handed over because they cannot be read here.
        let Some(length) = read_file(setting.rules, &mut told.rules) else { return false };
        RULES_LENGTH.store(length, Ordering::Relaxed);
    }
    // SAFETY: glibc sets it before the first constructor, to a string that the program may overwrite later.
    let name = unsafe {
        if program_invocation_short_name.is_null() {
            b""
        } else {
            CStr::from_ptr(program_invocation_short_name).to_bytes()
        }
    };
    let length = name.len().min(told.program.len());
    for (target, byte) in told.program.iter_mut().zip(name) {
        *target = *byte;
    }
    told.program_length = length;
    WORD.establish().is_ok()
}

/// Reads a file; how much there is. `None`: it cannot be read, or is longer than `target`.
fn read_file(path: &[u8], target: &mut [u8]) -> Option<usize> {
    let mut name = [0; SETTING_MAX];
    if path.len() >= name.len() {
        return None;
    }
    for (target, byte) in name.iter_mut().zip(path) {
        *target = *byte;
    }
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) as usize;
    let mut length = 0;
    // SAFETY: a path with a zero behind it, and a buffer of the length passed.
    unsafe {
        let opened =
            call(libc::SYS_openat, [libc::AT_FDCWD as usize, name.as_ptr() as usize, flags, 0, 0, 0]);
        let file = opened.ok()?;
        let read = loop {
            let Some(rest) = target.get_mut(length..).filter(|rest| !rest.is_empty()) else { break None };
            match call(libc::SYS_read, [file, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) {
                Ok(0) => break Some(length),
                Ok(count) => length += count,
                Err(libc::EINTR) => {}
                Err(_) => break None,
            }
        };
        let _ = call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        read
    }
}

// SAFETY: declared as glibc has it.
unsafe extern "C" {
    static program_invocation_short_name: *const core::ffi::c_char;
}

/// What the rules say of a socket.
pub fn decide(role: Role, address: &Address) -> Use {
    let length = RULES_LENGTH.load(Ordering::Relaxed);
    if length == 0 {
        return Use::Both;
    }
    let program = told().program.get(..told().program_length).unwrap_or(&[]);
    rules::decide(told().rules.get(..length).unwrap_or(&[]), role, program, address)
}

/// The number of this process. A child of `fork` has another one; one of `vfork` has its parent's. 0: there is none.
pub fn token() -> u64 {
    let Some(word) = WORD.own_word(TOKEN) else { return 0 };
    let known = word.load(Ordering::Relaxed);
    if known != 0 {
        return known as u64;
    }
    let mut random = [0u8; 8];
    // SAFETY: it fills so many bytes.
    let filled =
        unsafe { call(libc::SYS_getrandom, [random.as_mut_ptr() as usize, random.len(), 0, 0, 0, 0]) };
    if filled != Ok(random.len()) {
        return 0;
    }
    let fresh = (u64::from_ne_bytes(random) | 1) as usize;
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            if let Some(process) = WORD.own_word(PROCESS) {
                process.store(process_id(), Ordering::Relaxed);
            }
            fresh as u64
        }
        Err(other) => other as u64,
    }
}

fn process_id() -> usize {
    // SAFETY: getpid(2) takes nothing.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0)
}

/// Whether this is the process that has that number, and not a child of its `vfork`.
pub fn is_its_own() -> bool {
    WORD.own_word(PROCESS).is_some_and(|word| word.load(Ordering::Relaxed) == process_id())
}

/// Until then nothing is asked: the node has not answered.
static PAUSED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Asks nothing for a while.
pub fn pause() {
    let until = crate::sys::now_ns() + tombolo_sockets_protocol::PAUSE_MS * 1_000_000;
    PAUSED_UNTIL_NS.store(until, Ordering::Relaxed);
}

/// Whether nothing is asked now.
pub fn is_paused() -> bool {
    let until = PAUSED_UNTIL_NS.load(Ordering::Relaxed);
    until != 0 && crate::sys::now_ns() < until
}
