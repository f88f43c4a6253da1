//! `tombolo net serve`.

use std::path::Path;

use clap::{Args, ValueEnum};
use tombolo_core::nic::{Mode, Turns};
use tombolo_host::process::stop_on_signals;
use tombolo_link::Address;
use tombolo_net::serve::{Options, Owner};
use tracing::warn;

use super::bits::BitRate;
use super::{STOP, SUFFIX, is_over, path_of};
use crate::log::LogArguments;
use crate::{Failure, local, output};

/// Arguments of `tombolo net serve`.
#[derive(Args)]
pub struct Arguments {
    /// Where to listen for ports: shm:PATH. Processes of this user may attach.
    #[arg(long, value_name = "ADDR")]
    listen: Address,
    /// The interface that ports share: one that exists, or tap:NAME, a new one into this machine.
    #[arg(long, value_name = "IFACE|tap:NAME")]
    uplink: String,
    /// Bits a second that are sent to the uplink at most, with preambles and gaps, such as 10G. What
    /// ports are guaranteed, and their shares, are of that.
    #[arg(long, default_value = "0", hide_default_value = true)]
    rate: BitRate,
    /// What ports take turns by.
    #[arg(long, value_enum, default_value_t = Scheduler::Drr)]
    scheduler: Scheduler,
    /// Whether ports reach each other.
    #[arg(long, value_enum, default_value_t = PortMode::Bridge)]
    mode: PortMode,
    /// The uplink's MTU; as it is, unless given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(68..=9000))]
    mtu: Option<u32>,
    #[command(flatten)]
    log: LogArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scheduler {
    /// As many frames each.
    Rr,
    /// As many bytes each, by weight.
    Drr,
}

#[derive(Clone, Copy, ValueEnum)]
enum PortMode {
    /// They do, and their traffic does not touch the uplink.
    Bridge,
    /// They reach the uplink only.
    Private,
}

/// Serves until interrupted.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let path = path_of(&arguments.listen)?;
    stop_on_signals(&STOP);
    let _log = arguments.log.begin()?;
    let options = Options {
        uplink: arguments.uplink.parse().unwrap_or_else(|never| match never {}),
        rate_bits: arguments.rate.0,
        turns: match arguments.scheduler {
            Scheduler::Rr => Turns::Frames,
            Scheduler::Drr => Turns::Bytes,
        },
        mode: match arguments.mode {
            PortMode::Bridge => Mode::Bridge,
            PortMode::Private => Mode::Private,
        },
        mtu: arguments.mtu,
    };
    let own =
        local::usable_directory().map(|directory| directory.join(format!("{}{SUFFIX}", std::process::id())));
    let mut paths: Vec<&Path> = vec![&path];
    match &own {
        Ok(own) => paths.push(own),
        Err(reason) => warn!("commands without --from do not find this uplink: {reason}"),
    }
    let mut owner = Owner::open(&options, &paths)?;
    output::line(&format!("serving {} at {}", arguments.uplink, arguments.listen));
    output::flush();
    owner.serve(is_over)?;
    Ok(0)
}
