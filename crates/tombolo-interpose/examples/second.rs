//! A second preloaded library, for tests: it is in all programs that its program executes, and notes each execution in the file that
//! `TOMBOLO_SECOND` names.

use std::fs::OpenOptions;
use std::io::Write;

use tombolo_interpose::fitness::Reason;
use tombolo_interpose::library::{Library, Policy};
use tombolo_interpose::{executions, loading, variables};

const VARIABLE: &str = "TOMBOLO_SECOND";

static LIBRARY: Library = Library::new(
    VARIABLE,
    Policy { is_on: note, is_kept_from: Reason::is_kept_from_it, unserved: |_, _| {} },
);

tombolo_interpose::define_executions!(LIBRARY);
tombolo_interpose::define_dlopen!();

/// As [`Policy::is_on`]. The tests' programs are small: what allocates here does no harm.
fn note() -> bool {
    let name = LIBRARY.value();
    let file =
        std::str::from_utf8(name).ok().and_then(|name| OpenOptions::new().append(true).open(name).ok());
    file.is_some_and(|mut file| file.write_all(b"execution\n").is_ok())
}

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    loading::NEXT.address();
    executions::look_up();
    let mut value = [0; 256];
    if let Some(length) = variables::copy(VARIABLE, &mut value) {
        LIBRARY.loaded(&value[..length]);
    }
}
