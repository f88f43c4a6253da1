//! `tombolo net set`.

use std::net::IpAddr;

use clap::Args;
use tombolo_core::nic::Mac;
use tombolo_net::bits::BitRate;
use tombolo_net::protocol::{Answer, Ask, Changes, UPLINK, Vlans};

use super::{From, ask, unexpected};
use crate::failure::Failure;

/// Arguments of `tombolo net set`.
#[derive(Args)]
pub struct Arguments {
    /// Which port, as `ls` shows it; `uplink`: what all share.
    #[arg(value_name = "PORT|uplink")]
    port: String,
    /// Bits a second that the port, or the uplink, sends at most; 0: no limit.
    #[arg(long)]
    rate: Option<BitRate>,
    /// The port's part of the uplink, beside the weights of the others.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    weight: Option<u32>,
    /// Bits a second of the uplink that the port gets before others get any; 0: none.
    #[arg(long, value_name = "RATE")]
    guarantee: Option<BitRate>,
    /// The virtual network of the port; 0: the untagged one.
    #[arg(long, value_name = "ID", conflicts_with = "trunk")]
    vlan: Option<u16>,
    /// The virtual networks of which the port sends and gets tagged frames; 0: untagged ones, too.
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    trunk: Option<Vec<u16>>,
    /// The network addresses that the port may have.
    #[arg(long, value_name = "IP,...", value_delimiter = ',', conflicts_with = "any_address")]
    address: Option<Vec<IpAddr>>,
    /// The port may have any address.
    #[arg(long)]
    any_address: bool,
    /// Whether the port gets frames for others, too.
    #[arg(long, value_name = "BOOL")]
    promiscuous: Option<bool>,
    /// The groups whose multicasts the port gets, by hardware address.
    #[arg(long, value_name = "MAC,...", value_delimiter = ',', conflicts_with = "all_groups")]
    groups: Option<Vec<Mac>>,
    /// The port gets the multicasts of all groups.
    #[arg(long)]
    all_groups: bool,
    #[command(flatten)]
    from: From,
}

/// Changes a port or the uplink.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let changes = Changes {
        weight: arguments.weight,
        rate_bits: arguments.rate.map(|rate| rate.0),
        guaranteed_bits: arguments.guarantee.map(|rate| rate.0),
        vlans: match (&arguments.trunk, arguments.vlan) {
            (Some(all), _) => Some(Vlans::Trunk(all.iter().copied().collect())),
            (None, Some(0)) => Some(Vlans::Untagged),
            (None, vlan) => vlan.map(Vlans::Access),
        },
        addresses: match &arguments.address {
            Some(all) => Some(Some(all.iter().copied().collect())),
            None => arguments.any_address.then_some(None),
        },
        is_promiscuous: arguments.promiscuous,
        groups: match &arguments.groups {
            Some(all) => Some(Some(all.iter().map(Mac::to_string).collect())),
            None => arguments.all_groups.then_some(None),
        },
    };
    let is_nothing = changes == Changes::default();
    let question = if arguments.port != UPLINK {
        Ask::Set { port: arguments.port.clone(), changes }
    } else if changes == (Changes { rate_bits: changes.rate_bits, ..Changes::default() }) {
        Ask::SetUplink { rate_bits: arguments.rate.map(|rate| rate.0) }
    } else {
        return Err(Failure::new("of the uplink, --rate can be set; what else was given is a port's"));
    };
    if is_nothing {
        return Err(Failure::new("nothing is to be set: say what, for instance --rate 250M"));
    }
    match ask(&arguments.from.connect()?, question)? {
        Answer::Done => Ok(0),
        answer => Err(unexpected(&answer)),
    }
}
