//! What is lost, late, refused or gone, case by case.

mod answers;
mod by_hand;
mod closing;
mod full_links;
mod hostile;
mod overtaken;
mod peers;
mod placement;
mod stops;
mod tail;
