//! When the other machine is told of frames, as on the command line, in ethtool's words.

use clap::Args;
use tombolo_core::nic::Coalescing;

/// When the other machine is told of frames (MICRO §6.1.7); of ports of this machine the kernel is told at once.
#[derive(Args)]
pub struct CoalesceArguments {
    /// To ports of other machines: tell of frames after this many, or after the time of --coalesce-usecs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    coalesce_frames: u32,
    /// The longest that a frame waits for more, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    coalesce_usecs: u32,
    /// Tell of frames that come seldom at once.
    #[arg(long)]
    coalesce_adaptive: bool,
}

impl CoalesceArguments {
    /// As it was given.
    pub fn get(&self) -> Coalescing {
        Coalescing {
            frames: self.coalesce_frames,
            after_ns: u64::from(self.coalesce_usecs) * 1000,
            is_adaptive: self.coalesce_adaptive,
        }
    }
}
