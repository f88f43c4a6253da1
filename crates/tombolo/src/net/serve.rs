//! `tombolo net serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tombolo_control::Trust;
use tombolo_control::place::{self, Kind};
use tombolo_core::nic::{Mode, Turns};
use tombolo_host::service;
use tombolo_host::stops::stop_on_signals;
use tombolo_link::Address;
use tombolo_net::bits::BitRate;
use tombolo_net::client::Client;
use tombolo_net::serve::{Options, Owner};
use tracing::warn;

use super::coalesce::CoalesceArguments;
use super::{STOP, is_over, path_of, show};
use crate::failure::Failure;
use crate::log::LogArguments;
use crate::security::SecurityArguments;
use crate::{metrics, output};

/// Arguments of `tombolo net serve`.
#[derive(Args)]
pub struct Arguments {
    /// Where to listen for ports: shm:PATH for those of this machine, where processes of this user and root
    /// may attach, and with --ports other users, too; udp:HOST:PORT for those of other machines, whose keys must be on the
    /// list. May be given for each.
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true)]
    listen: Vec<Address>,
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
    /// What ports have, and who attaches them: a file with a line for each port, its name and any of
    /// from=user:UID, from=KEY, mac=, weight=, rate=, guarantee=, vlan=, trunk=, address=, groups= and promiscuous=. It is read
    /// when a port is attached, and goes before what is said then. Processes of other users, and other machines, attach
    /// the ports that have a `from` for them, and no others; such a line needs `mac=`, which the port then has.
    #[arg(long, value_name = "FILE")]
    ports: Option<PathBuf>,
    /// Serve metrics for Prometheus by HTTP at this address; with port 0, at any free port. Whoever reaches the address
    /// reads them: no client has to say who it is.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    coalesce: CoalesceArguments,
    #[command(flatten)]
    security: SecurityArguments,
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
    let (far, near): (Vec<_>, Vec<_>) =
        arguments.listen.iter().cloned().partition(|address| matches!(address, Address::Udp(_)));
    if far.len() > 1 {
        return Err(Failure::new(
            "one udp: address can be listened at, on all addresses of this machine as udp:0.0.0.0:PORT",
        ));
    }
    let security = arguments.security.of(&far)?;
    let near = near.iter().map(path_of).collect::<Result<Vec<_>, _>>()?;
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
        far: far.into_iter().next().map(|address| (address, security)),
        coalescing: arguments.coalesce.get(),
        allowances: arguments.ports.clone(),
    };
    let own = place::listen(&std::process::id().to_string(), |stem| place::bind(Kind::UPLINK, stem));
    let own =
        own.inspect_err(|reason| warn!("commands without --from do not find this uplink: {reason}")).ok();
    let near: Vec<&Path> = near.iter().map(PathBuf::as_path).collect();
    // Nobody else fills the queue of the one that is its own.
    let asked_at = own.as_ref().map(|own| own.path().to_path_buf());
    let asked_at = asked_at.or_else(|| near.first().map(|path| path.to_path_buf()));
    let mut owner = Owner::open(&options, &near, own)?;
    if let Some(address) = arguments.metrics {
        let path = asked_at.ok_or_else(|| Failure::new("metrics need a socket: --listen shm:PATH, too"))?;
        let at = metrics::serve(address, move || {
            // While the owner ends, there is nothing to tell.
            let found = Client::connect(&path, Trust::Own).ok().and_then(|client| show::all(&client).ok());
            found.map(|(uplink, ports)| metrics::of_net(&uplink, &ports)).unwrap_or_default()
        })?;
        tracing::info!("metrics are at http://{at}/metrics");
    }
    let near = arguments.listen.iter().filter(|address| !matches!(address, Address::Udp(_)));
    let all: Vec<_> = near.chain(owner.far_address()).map(ToString::to_string).collect();
    output::line(&format!("serving {} at {}", arguments.uplink, all.join(" and ")));
    output::flush();
    service::ready();
    owner.serve(is_over)?;
    Ok(0)
}
