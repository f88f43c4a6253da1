//! What is lost, late, refused or gone, case by case.

mod answers;
#[path = "../bench/mod.rs"]
mod bench;
mod by_hand;
mod closing;
mod full_links;
mod hostile;
mod overtaken;
mod peers;
mod placement;
mod stops;
