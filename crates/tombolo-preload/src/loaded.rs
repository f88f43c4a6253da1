//! What happens when the library is loaded, and how programs that this one executes have it.

use tombolo_interpose::fitness::Reason;
use tombolo_interpose::library::{Library, Policy};
use tombolo_interpose::{executions, loading};
use tombolo_pager_protocol::VARIABLE;

use crate::{control, forking, memory, start, unwaited};

/// Programs that this one executes get this library again, even where the environment was replaced; and those that it would
/// keep from running do not get it. The supervisor is told of every program whose memory is not served.
static LIBRARY: Library = Library::new(
    VARIABLE,
    Policy { is_on: start::far, is_kept_from: Reason::is_kept_from_it, unserved: tell_unserved },
);

tombolo_interpose::define_executions!(LIBRARY);
tombolo_interpose::define_dlopen!();

fn tell_unserved(reason: Reason, path: &[u8]) {
    if start::far() {
        forking::attach_if_forked();
        control::tell_unserved(reason as usize, path);
    }
}

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // Looked up now: dlsym may lock and allocate, which a vfork child must not. A program in local memory
    // needs the next functions, too.
    for real in [&loading::NEXT, &memory::CONTROL] {
        real.address();
    }
    executions::look_up();
    unwaited::find_real_functions();
    start::far();
    LIBRARY.loaded(start::variable_value());
    // In local memory, too: the allocator has none of its own.
    forking::install_handlers();
}
