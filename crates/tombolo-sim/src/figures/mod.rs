//! The documents' figures: what each states, and what the model gives.

pub mod fault;
pub mod fit;
pub mod handling;
pub mod micro;
pub mod nic;
pub mod notices;
pub mod peers;
pub mod qos;
pub mod remap;
mod report;
pub mod sdp;
pub mod service;
pub mod sharing;
pub mod sockets;
pub mod swap;

pub use fit::{Fit, FitError, check, fit};
use report::Kind;
pub use report::{Claim, Class, Curve, Document, Number, Plot, Report, Role, Score};

use crate::platform::{Platform, PlatformError};

/// A point of a document that a constant is fitted to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its figure.
    pub id: &'static str,
    /// Where the document states it.
    pub section: &'static str,
    /// What it states.
    pub stated: f64,
    /// In what.
    pub unit: &'static str,
    /// What the model gives.
    pub measure: fn(&Platform) -> Result<f64, PlatformError>,
}

/// All targets.
pub fn targets() -> impl Iterator<Item = Target> {
    micro::TARGETS
        .into_iter()
        .chain([swap::TARGET])
        .chain([qos::SMALL_WRITE])
        .chain(peers::TARGETS)
        .chain(fault::TARGETS)
        .chain(remap::TARGETS)
        .chain(nic::TARGETS)
        .chain(sdp::TARGETS)
}

/// A figure that the simulator reproduces.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its id.
    pub id: &'static str,
    /// Its document.
    pub document: Document,
    /// Runs the model.
    pub run: fn() -> Result<Report, PlatformError>,
}

/// All figures, in the order of the documents.
pub fn figures() -> impl Iterator<Item = Figure> {
    micro::FIGURES
        .into_iter()
        .chain(swap::FIGURES)
        .chain(sharing::FIGURES)
        .chain(nic::FIGURES)
        .chain(qos::FIGURES)
        .chain(peers::FIGURES)
        .chain(service::FIGURES)
        .chain(notices::FIGURES)
        .chain(fault::FIGURES)
        .chain(handling::FIGURES)
        .chain(remap::FIGURES)
        .chain(sdp::FIGURES)
        .chain(sockets::FIGURES)
}

/// The platform of that name, which comes with the simulator.
fn named(name: &str) -> Platform {
    Platform::named(name).expect("it comes with the simulator")
}
