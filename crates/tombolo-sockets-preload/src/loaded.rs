//! What happens when the library is loaded, and how programs that this one executes have it.

use tombolo_interpose::fitness::Reason;
use tombolo_interpose::library::{Library, Policy};
use tombolo_interpose::{executions, loading};
use tombolo_sockets_protocol::VARIABLE;

use crate::{accepting, closing, connecting, descriptors, ends, names, options, start};

/// Programs that this one executes get this library again; those that it would keep from running do not, and their connections are TCP.
static LIBRARY: Library = Library::new(
    VARIABLE,
    Policy { is_on: is_on_for_another, is_kept_from: Reason::is_kept_from_it, unserved: |_, _| {} },
);

tombolo_interpose::define_executions!(LIBRARY);
tombolo_interpose::define_dlopen!();

/// What is executed inherits what stays open.
fn is_on_for_another() -> bool {
    let is_on = start::is_on();
    if is_on {
        ends::all_are_shared();
    }
    is_on
}

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // Looked up now: dlsym may lock and allocate, which a vfork child and a signal handler must not.
    for real in [&loading::NEXT, &connecting::SOCKET, &connecting::CONNECT, &connecting::CONTROL_EVENTS] {
        real.address();
    }
    for real in [&accepting::LISTEN, &accepting::ACCEPT, &accepting::ACCEPT_WITH, &closing::CLOSE] {
        real.address();
    }
    for real in [&names::LOCAL, &names::REMOTE, &options::GET, &options::SET] {
        real.address();
    }
    descriptors::look_up();
    executions::look_up();
    start::is_on();
    LIBRARY.loaded(start::variable_value());
    if start::is_on() {
        // SAFETY: the handler obeys the rules for fork handlers; libc copies the pointer.
        unsafe { libc::pthread_atfork(Some(around_fork), Some(around_fork), Some(around_fork)) };
    }
}

/// From now on others may have what this process has, in the parent and in the child. Another thread may have taken an end since it was said
/// before the fork.
extern "C" fn around_fork() {
    ends::all_are_shared();
    crate::unconnected::forget_all();
}

/// Run when the program ends by `exit`, or returns from `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static ENDED: extern "C" fn() = ended;

extern "C" fn ended() {
    closing::close_all();
}
