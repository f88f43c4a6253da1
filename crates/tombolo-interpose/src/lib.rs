//! What a library needs that is preloaded into programs: raw system calls, libc's functions behind its own of the same name, and
//! which programs can take a library at all.
//!
//! Such a library is one of several in a program, perhaps: those of this project, and others. So it calls the *next* function of a name
//! ([`real::Real`]), which may be another library's, and which finds the same in its turn.
//!
//! Rules for such a library and all in here: nothing allocates, nothing panics, no thread is started, no signal handler is installed, no
//! descriptor stays in the program's table, and `errno` is set as the replaced function would. Each function works before the
//! library's constructor has run.
//!
//! No function in here has the bare name of one of libc's: a debugger that is told to call that would take it for that, and write its
//! result into the program's memory. This crate exports nothing: the names that a library replaces are its own.
#![no_std]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("preloaded libraries speak x86-64 Linux only, so far");

#[cfg(test)]
extern crate std;

mod environment;
pub mod errno;
pub mod executable;
pub mod executions;
pub mod fitness;
pub mod fork_word;
pub mod library;
pub mod loading;
pub mod real;
pub mod switch;
pub mod sys;
pub mod thread;
pub mod variables;
