//! Memory of a program that its node reads and writes, where the program has it ([`OwnMemory`]).
//!
//! Two can make the copies, behind one trait ([`ProcessMemory`]): a thread of the program itself
//! ([`ThisProcess`]), or, where the program cannot have one, a thread of the node ([`ProgramMemory`]), by descriptors that
//! the program passes ([`descriptors`]).

mod guarded;
mod memory;
mod pages;
mod process_memory;
mod program;
mod signals;
mod this_process;

pub use memory::OwnMemory;
pub use pages::{Absence, Absent, MAX_ACCESS_BYTES, MAX_ACCESS_PAGES, MAX_LOOK_BYTES, PAGE_BYTES, pages_of};
pub use process_memory::{Denied, ProcessMemory, Reason, Right, WordChange};
pub use program::{DescriptorError, ProgramMemory, descriptors};
pub use signals::{serving_faults_alone, takes_faults};
pub use this_process::{Permit, ThisProcess};
