//! A link that loses some of what is sent, and nothing else: cheap enough to measure over it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Random;
use super::altered::{Admission, Alteration, Altered};
use crate::Link;

/// A share of packets is lost.
#[derive(Debug)]
pub struct Loss {
    per_mille: u32,
    random: Mutex<Random>,
}

impl Alteration for Loss {
    fn admit(&self) -> Admission {
        if self.random.lock().per_mille(self.per_mille) { Admission::Lose } else { Admission::Send }
    }
}

/// A link that loses packets.
pub type LossyLink = Altered<Loss>;

impl LossyLink {
    /// Makes a link lose `loss_per_mille` packets in a thousand.
    pub fn new(link: Arc<dyn Link>, loss_per_mille: u32, seed: u64) -> Self {
        Self::with(link, Loss { per_mille: loss_per_mille, random: Mutex::new(Random::new(seed)) })
    }
}
