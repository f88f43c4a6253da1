//! Programs at nodes: transfers between domains of one node and of two, over shared memory and
//! UDP; what is refused; and programs that do their worst.

mod carried;
mod embedded;
mod examples;
mod faults;
mod harness;
mod hostile;
mod impostor;
mod joined;
mod late;
mod mail;
mod many;
mod own_memory;
mod queue;
mod refused;
mod transfers;
mod waiting;
mod windows;
mod withdrawn;
mod words;
