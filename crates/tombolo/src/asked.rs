//! Arguments of the commands that ask a node something and print the answer.

use clap::Args;
use tombolo_node::Security;

use crate::failure::Failure;
use crate::local;
use crate::security::SecurityArguments;
use crate::ways::Ways;
use crate::which::Which;

/// How to ask, and how to print what comes of it.
#[derive(Args)]
pub struct AskArguments {
    /// Print JSON, and nothing else.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    security: SecurityArguments,
}

/// Which node is asked, and how.
#[derive(Args)]
pub struct NodeArguments {
    /// Where the node listens: shm:PATH or udp:HOST:PORT; or the name of one that this user runs on this machine. Not
    /// needed where only one runs. Several addresses of a node are joined by +.
    #[arg(value_name = "NAME|ADDR[+ADDR...]")]
    node: Option<Which>,
    #[command(flatten)]
    pub ask: AskArguments,
}

impl NodeArguments {
    /// The node, if it is one that this user runs on this machine and is not named by an address. The command is named in messages.
    pub fn here(&self, command: &str) -> Result<Option<local::Found>, Failure> {
        match &self.node {
            Some(Which::At(_)) => Ok(None),
            Some(Which::Named(name)) => local::node_named(name).map(Some),
            None => local::only_node(command).map(Some),
        }
    }

    /// Where that node listens. The command is named in messages.
    pub fn ways(&self, command: &str) -> Result<Ways, Failure> {
        match &self.node {
            Some(node) => node.ways(),
            None => Ok(local::only_node(command)?.address().into()),
        }
    }
}

impl AskArguments {
    /// What links to that node need.
    pub fn security(&self, ways: &Ways) -> Result<Security, Failure> {
        self.security.of(&ways.to_vec())
    }
}
