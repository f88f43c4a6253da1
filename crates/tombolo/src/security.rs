//! Keys and lists of keys, as given on the command line.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use tombolo_node::identity::{AllowList, read_key_file};
use tombolo_node::{Address, Security};

use crate::failure::Failure;

/// How UDP links are protected; shared memory needs none of it.
#[derive(Args)]
pub struct SecurityArguments {
    /// This node's secret key, made by `tombolo keygen`; ~/.config/tombolo/key unless given.
    #[arg(long, value_name = "FILE", env = "TOMBOLO_KEY", hide_env_values = true)]
    key: Option<PathBuf>,
    /// The public keys of the nodes to talk to, one a line, and what each may do where that is not all, as in
    /// may=borrow,status; ~/.config/tombolo/allow unless given.
    #[arg(long, value_name = "FILE", env = "TOMBOLO_ALLOW", hide_env_values = true)]
    allow: Option<PathBuf>,
    /// Use UDP without keys, whatever the other options say: on loopback addresses only, where every
    /// user of this machine can join in.
    #[arg(long)]
    insecure: bool,
}

/// A file of Tombolo's in the user's directory of configuration.
fn default_file(name: &str) -> Option<PathBuf> {
    let of = |variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?;
    Some(directory.join("tombolo").join(name))
}

/// Where this user's key is unless another is named.
pub fn default_key() -> Option<PathBuf> {
    default_file("key")
}

impl SecurityArguments {
    /// The protection that links at these addresses need.
    pub fn of(&self, addresses: &[Address]) -> Result<Security, Failure> {
        let Some(address) = addresses.iter().find(|address| matches!(address, Address::Udp(_))) else {
            return Ok(Security::Insecure);
        };
        if self.insecure {
            return Ok(Security::Insecure);
        }
        let key = self.key.clone().or_else(|| default_key().filter(|path| path.exists()));
        let Some(key) = key else {
            return Err(Failure::new(format!(
                "{address} needs a key: make one with `tombolo keygen`, and name the file with the other nodes' public keys with --allow; or, on loopback addresses, use --insecure"
            )));
        };
        let keys = read_key_file(&key)?;
        let Some(allow) = self.allow.clone().or_else(|| default_file("allow")) else {
            return Err(Failure::new(
                "no list of nodes to talk to: name the file with their public keys with --allow",
            ));
        };
        Ok(Security::secure(keys, read_list(&allow)?))
    }
}

fn read_list(path: &Path) -> Result<AllowList, Failure> {
    AllowList::from_file(path).map_err(|error| {
        let hint = if path.exists() {
            ""
        } else {
            ": put the public keys of the nodes to talk to there, one a line, or name another file with --allow"
        };
        Failure::new(format!("{error}{hint}"))
    })
}
