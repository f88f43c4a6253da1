//! Start-up: find the supervisor, make the control area, start the agent.
//!
//! It runs inside the first `malloc` or `mmap` of the process, possibly before
//! libc has set `environ`; so it reads the environment from the kernel if need be.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys::{self, call};
use crate::{agent, control, forking};
use tombolo_interpose::switch::Switch;
use tombolo_interpose::variables;
use tombolo_pager_protocol::{ABSTRACT_NAME, VARIABLE};

/// On: far memory is served.
static SWITCH: Switch = Switch::new();
/// Mappings of at least this many bytes are far.
static MINIMUM_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

const SETTING_MAX: usize = 256;

struct Setting {
    text: [u8; SETTING_MAX],
    length: usize,
    address: libc::sockaddr_un,
    /// Address of the supervisor's abstract socket.
    abstract_address: libc::sockaddr_un,
    /// Bytes of that address.
    abstract_length: usize,
}
struct Shared(UnsafeCell<Setting>);
// SAFETY: written once, by the one call of `start`, before anyone reads it.
unsafe impl Sync for Shared {}
static SETTING: Shared = Shared(UnsafeCell::new(Setting {
    text: [0; SETTING_MAX],
    length: 0,
    address: NO_ADDRESS,
    abstract_address: NO_ADDRESS,
    abstract_length: 0,
}));
const NO_ADDRESS: libc::sockaddr_un =
    libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };

fn setting() -> &'static Setting {
    // SAFETY: read only after start-up has filled it, never written again.
    unsafe { &*SETTING.0.get() }
}

/// The supervisor's socket by its path, then without one, and the bytes of each address.
pub fn socket_addresses() -> [(&'static libc::sockaddr_un, usize); 2] {
    let setting = setting();
    [(&setting.address, size_of::<libc::sockaddr_un>()), (&setting.abstract_address, setting.abstract_length)]
}

/// The value of the environment variable that named the supervisor.
pub fn variable_value() -> &'static [u8] {
    let setting = setting();
    setting.text.get(..setting.length).unwrap_or(&[])
}

/// Whether far memory is served in this process; starts it up at the first call.
pub fn far() -> bool {
    SWITCH.is_on(start)
}

/// Whether a mapping of this size should be far.
pub fn wants(length: usize) -> bool {
    far() && length >= MINIMUM_BYTES.load(Ordering::Relaxed)
}

fn start() -> bool {
    set_up().is_some()
}

fn set_up() -> Option<()> {
    // SAFETY: SWITCH calls it once, when there is no other thread.
    let setting = unsafe { &mut *SETTING.0.get() };
    setting.length = variables::copy(VARIABLE, &mut setting.text)?;
    // Empty, it is as if it were not there.
    let text = setting.text.get(..setting.length).filter(|text| !text.is_empty())?;
    let told = tombolo_pager_protocol::Setting::parse(text);
    let Some(told) = told.filter(|told| told.socket.len() < setting.address.sun_path.len()) else {
        complain(libc::EPROTO);
        return None;
    };
    let (path, name) = (told.socket, told.number);
    for (target, &byte) in setting.address.sun_path.iter_mut().zip(path) {
        *target = byte as libc::c_char;
    }
    // Behind a zero, which makes it abstract.
    let abstract_path = setting.abstract_address.sun_path.iter_mut().skip(1);
    for (target, &byte) in abstract_path.zip(ABSTRACT_NAME.iter().chain(name)) {
        *target = byte as libc::c_char;
    }
    setting.abstract_length =
        core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + ABSTRACT_NAME.len() + name.len();
    MINIMUM_BYTES.store(told.minimum_bytes, Ordering::Relaxed);

    if let Err(error) = establish() {
        complain(error);
        return None;
    }
    // The program that has executed this one may have asked for it.
    sys::merge_no_memory();
    Some(())
}

fn establish() -> Result<(), i32> {
    if children_get_another_pid_namespace() {
        // The agent would be the first process of that namespace, and the program's own child the second.
        return Err(libc::ECHILD);
    }
    forking::WORD.establish()?;
    control::establish().and_then(|()| agent::start(0)).inspect_err(|_| {
        control::abandon();
        forking::WORD.abandon();
    })
}

/// Whether the next process made here begins a pid namespace, as after `unshare(CLONE_NEWPID)`.
fn children_get_another_pid_namespace() -> bool {
    let [mut own, mut childrens] = [[0u8; 64]; 2];
    let length = |path: &core::ffi::CStr, target: &mut [u8; 64]| {
        let arguments = [
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            target.as_mut_ptr() as usize,
            target.len(),
            0,
            0,
        ];
        // SAFETY: a constant path, and a buffer of the length passed.
        unsafe { call(libc::SYS_readlinkat, arguments) }
    };
    let lengths = (
        length(c"/proc/thread-self/ns/pid", &mut own),
        length(c"/proc/thread-self/ns/pid_for_children", &mut childrens),
    );
    match lengths {
        (Ok(first), Ok(second)) => own.get(..first) != childrens.get(..second),
        // The namespace for children exists, and has no first process yet: its link cannot be read.
        (Ok(_), Err(libc::ENOENT)) => true,
        _ => false,
    }
}

/// Says on standard error why this program gets no far memory.
fn complain(error: i32) {
    let text: &[u8] = match error {
        libc::ENOMEM => b"tombolo: this program runs in local memory only: no address space for far memory (see `ulimit -v`)\n",
        libc::EPERM => b"tombolo: this program runs in local memory only: it may not use userfaultfd (see `tombolo doctor`)\n",
        libc::EMFILE | libc::ENFILE => b"tombolo: this program runs in local memory only: no file descriptors are left (see `ulimit -n`)\n",
        libc::EAGAIN => b"tombolo: this program runs in local memory only: no process can be made (see `ulimit -u`)\n",
        libc::EPROTO => b"tombolo: this program runs in local memory only: its library is of another build than its supervisor (start the run again)\n",
        libc::ECHILD => b"tombolo: this program runs in local memory only: its children are to be in another pid namespace\n",
        _ => b"tombolo: this program runs in local memory only: its supervisor cannot be reached\n",
    };
    // SAFETY: writes constant bytes to standard error.
    let _ = unsafe { call(libc::SYS_write, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}
