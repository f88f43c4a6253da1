//! `tombolo net attach`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use tombolo_core::nic::Mac;
use tombolo_host::net::path_of_namespace;
use tombolo_host::service;
use tombolo_host::stops::stop_on_signals;
use tombolo_link::Address;
use tombolo_net::attach::{AttachError, Attached, Place};
use tombolo_net::bits::BitRate;
use tombolo_net::client::AskError;
use tombolo_net::device::{DeviceName, QUEUES_MAX};
use tombolo_net::protocol::{Port, Vlans};

use super::coalesce::CoalesceArguments;
use super::{From, STOP, is_over, path_of};
use crate::failure::Failure;
use crate::log::LogArguments;
use crate::output;
use crate::security::SecurityArguments;

/// Arguments of `tombolo net attach`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    device: DeviceArguments,
    /// What commands call the port; as the device, with its namespace, unless given.
    #[arg(long)]
    name: Option<String>,
    /// The network namespace of the device: a name (`ip netns`), the number of a process in it, or a path.
    #[arg(long, value_name = "NS", conflicts_with = "stream")]
    netns: Option<String>,
    /// The port's hardware address. Without it the owner gives one to a TAP device. With --interface and --stream it is that of
    /// what is behind the port. Other users and machines may name the address only that the owner's file of ports gives them.
    #[arg(long, required_unless_present = "tap")]
    mac: Option<Mac>,
    /// The most bytes behind an Ethernet header.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=9000))]
    mtu: u32,
    /// The port's part of the uplink, beside the weights of the others.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    weight: u32,
    /// Bits a second that the port sends at most, such as 250M.
    #[arg(long, default_value = "0", hide_default_value = true)]
    rate: BitRate,
    /// Bits a second of the uplink that the port gets before others get any: of a shaped uplink (`serve --rate`), or
    /// one that is full.
    #[arg(long, value_name = "RATE", default_value = "0", hide_default_value = true)]
    guarantee: BitRate,
    /// Queues of the TAP device.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["interface", "stream"], value_parser = clap::value_parser!(u8).range(1..=QUEUES_MAX as i64))]
    queues: u8,
    #[command(flatten)]
    rules: RuleArguments,
    #[command(flatten)]
    coalesce: CoalesceArguments,
    #[command(flatten)]
    security: SecurityArguments,
    #[command(flatten)]
    log: LogArguments,
}

/// What a port is made of.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct DeviceArguments {
    /// A network device, which is made, is called so, and goes with this command.
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// An interface that exists, and is the outer end of something: the veth pair of a container, the TAP of a virtual
    /// machine (QEMU's `-netdev tap`). It needs no address; one that it has stays this machine's.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Listen at this path for a virtual machine: QEMU's `-netdev stream,server=off,addr.type=unix,addr.path=PATH`.
    #[arg(long, value_name = "PATH")]
    stream: Option<PathBuf>,
}

impl DeviceArguments {
    fn name(&self, queues: u8) -> Result<DeviceName, Failure> {
        match (&self.tap, &self.interface, &self.stream) {
            (Some(name), _, _) => Ok(DeviceName::Tap(name.clone(), queues.into())),
            (None, Some(name), _) => Ok(DeviceName::Interface(name.clone())),
            (None, None, Some(path)) => Ok(DeviceName::Machine(path.clone())),
            (None, None, None) => Err(Failure::new("what is attached? --tap, --interface or --stream")),
        }
    }
}

/// What a port may do.
#[derive(Args)]
pub struct RuleArguments {
    /// The virtual network of the port, which sees no tags; 0: the untagged one.
    #[arg(long, value_name = "ID", conflicts_with = "trunk")]
    vlan: Option<u16>,
    /// The virtual networks of which the port sends and gets tagged frames; 0: untagged ones, too.
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    trunk: Option<Vec<u16>>,
    /// The network addresses that the port may have: it can send from no others, nor claim them (ARP, neighbour
    /// discovery), and hands out no addresses and routes (DHCP, router advertisements). Of IPv6's
    /// link-local addresses it has the one that follows from its hardware address.
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    address: Option<Vec<IpAddr>>,
    /// The port gets frames for others, too.
    #[arg(long)]
    promiscuous: bool,
    /// The groups whose multicasts the port gets, by hardware address; all, unless given. IPv6 needs
    /// 33:33:00:00:00:01 and those of its solicited nodes.
    #[arg(long, value_name = "MAC,...", value_delimiter = ',')]
    groups: Option<Vec<Mac>>,
}

impl RuleArguments {
    fn vlans(&self) -> Vlans {
        match (&self.trunk, self.vlan) {
            (Some(all), _) => Vlans::Trunk(all.iter().copied().collect()),
            (None, None | Some(0)) => Vlans::Untagged,
            (None, Some(vlan)) => Vlans::Access(vlan),
        }
    }

    fn addresses(&self) -> Option<BTreeSet<IpAddr>> {
        self.address.as_ref().map(|all| all.iter().copied().collect())
    }
}

/// Attaches until interrupted.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let from = arguments.from.address()?;
    let place = match &from {
        address @ Address::Udp(_) => {
            let security = arguments.security.of(std::slice::from_ref(address))?;
            Place::There(address.clone(), security, arguments.coalesce.get())
        }
        address => Place::Here(path_of(address)?),
    };
    stop_on_signals(&STOP);
    let _log = arguments.log.begin()?;
    let device = arguments.device.name(arguments.queues)?;
    let called = match &device {
        DeviceName::Machine(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        device => device.text(),
    };
    let namespace: Option<PathBuf> = arguments.netns.as_deref().map(path_of_namespace);
    let of_namespace = match &arguments.netns {
        Some(namespace) => {
            // /proc/123/ns/net is known by the number.
            let place = namespace.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
            let place = place.unwrap_or_else(|| namespace.rsplit('/').next().unwrap_or_default());
            format!("{called}@{place}")
        }
        None => called,
    };
    let port = Port {
        name: arguments.name.clone().unwrap_or(of_namespace),
        tap: device.text(),
        namespace: arguments.netns.clone(),
        mac: arguments.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: arguments.mtu,
        weight: arguments.weight,
        rate_bits: arguments.rate.0,
        guaranteed_bits: arguments.guarantee.0,
        vlans: arguments.rules.vlans(),
        addresses: arguments.rules.addresses(),
        is_promiscuous: arguments.rules.promiscuous,
        groups: arguments.rules.groups.as_ref().map(|all| all.iter().map(Mac::to_string).collect()),
    };
    let attached = Attached::new(port, &device, namespace.as_deref(), place);
    let mut attached = attached.map_err(|error| match error {
        AttachError::Ask(error @ AskError::Socket(_)) => {
            Failure::new(format!("no owner of an uplink answers at {from}: {error}"))
        }
        error => Failure::new(error.to_string()),
    })?;
    let port = attached.port();
    output::line(&format!("attached {} ({}) to {from}", port.name, port.mac));
    output::flush();
    service::ready();
    attached.keep(is_over, output::say)?;
    Ok(0)
}
