//! Two programs with a domain each, at one node, at two, or with nodes of their own inside.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_app::child::{self, Guard};
use tombolo_app::scratch::Scratch;
use tombolo_client::{Domain, Embedded, Embedding, Grant, Mailbox, Memory, Target, Who};
use tombolo_host::process;
use tombolo_link::Security;
use tombolo_link::testing::LossyLink;
use tombolo_node::identity::{AllowList, KeyPair, write_key_file};

use super::{ANSWER_TIMEOUT, AREA, Engine, Route};
use crate::{Failure, this_binary};

/// The other program, in a process of its own.
pub struct FarProgram {
    _child: Guard,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl FarProgram {
    /// Starts this binary with these arguments.
    pub fn start(arguments: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(this_binary()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child::spawn(&mut command)?;
        let (commands, answers) = child
            .0
            .stdin
            .take()
            .zip(child.0.stdout.take())
            .ok_or_else(|| Failure::new("the other program has no pipes"))?;
        Ok(Self { _child: child, commands, answers: BufReader::new(answers) })
    }

    /// The words of the next line that it says.
    pub fn line(&mut self) -> Result<Vec<String>, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            return Err(Failure::new("the other program has ended"));
        }
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }

    /// Tells it to do something, of which it says later that it is done.
    pub fn send(&mut self, words: &str) -> Result<(), Failure> {
        Ok(writeln!(self.commands, "{words}")?)
    }

    /// Tells it to do something, and waits until it has.
    pub fn command(&mut self, words: &str) -> Result<Vec<String>, Failure> {
        writeln!(self.commands, "{words}")?;
        self.line()
    }
}

/// Both programs and their nodes, as the program that measures has them.
pub struct Pair {
    // In this order they are dropped: domains before their nodes.
    pub domain: Domain,
    pub memory: Memory,
    pub mailbox: Mailbox,
    pub there: Target,
    /// Where the other's memory begins.
    pub far_address: u64,
    far: FarProgram,
    embedded: Option<Embedded>,
    _nodes: Vec<Guard>,
}

/// A number that the other program has said.
pub fn number<T: std::str::FromStr>(words: &[String], index: usize) -> Result<T, Failure> {
    let word = words.get(index).and_then(|word| word.parse().ok());
    word.ok_or_else(|| Failure::new(format!("the other program said `{}`", words.join(" "))))
}

/// A node in a process of its own; where it listens, and where programs find it.
pub fn start_node(
    binary: &Path,
    scratch: &Scratch,
    name: &str,
    listen: &str,
    peer: Option<&str>,
) -> Result<(Guard, String, PathBuf), Failure> {
    let programs = scratch.file(&format!("programs-{name}"));
    let mut command = Command::new(binary);
    command.args(["node", "--name", name, "--lend", "0", "--insecure", "--listen", listen, "--programs"]);
    command.arg(&programs);
    if let Some(peer) = peer {
        command.args(["--peer", peer]);
    }
    let (node, address) = child::serve_node(&mut command)?;
    Ok((node, address, programs))
}

/// Keys for both ends of a sealed link, in files, for the other program.
struct Keys {
    security: Security,
    far_arguments: Vec<String>,
}

impl Keys {
    fn new(scratch: &Scratch) -> Result<Self, Failure> {
        let (near, far) = (KeyPair::generate()?, KeyPair::generate()?);
        let [key, far_allows, near_allows] =
            ["far.key", "far.allow", "near.allow"].map(|name| scratch.file(name));
        write_key_file(&key, &far)?;
        std::fs::write(&far_allows, format!("{}\n", near.public()))?;
        std::fs::write(&near_allows, format!("{}\n", far.public()))?;
        let text = |path: PathBuf| path.display().to_string();
        Ok(Self {
            security: Security::secure(near, AllowList::from_file(&near_allows)?),
            far_arguments: vec!["--key".into(), text(key), "--allow".into(), text(far_allows)],
        })
    }
}

/// A node joins others when it has started.
pub fn await_neighbour(domain: &Domain, node: u32) -> Result<(), Failure> {
    let since = Instant::now();
    while !domain.peers()?.iter().any(|peer| peer.node == node) {
        if since.elapsed() > ANSWER_TIMEOUT {
            return Err(Failure::new("the nodes do not join each other"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Pair {
    /// Starts everything for a route: nodes on the last processor, this program on the first.
    pub fn start(
        binary: &Path,
        scratch: &Scratch,
        route: Route,
        engine: Engine,
        [first, last]: [usize; 2],
    ) -> Result<Self, Failure> {
        // Children inherit the pin.
        process::pin_thread(last)?;
        let started = match engine {
            Engine::Node => Self::at_nodes(binary, scratch, route),
            Engine::Embedded => Self::embedded(scratch, route, first),
        };
        process::pin_thread(first)?;
        started
    }

    fn at_nodes(binary: &Path, scratch: &Scratch, route: Route) -> Result<Self, Failure> {
        let shm = |name: &str| format!("shm:{}", scratch.file(name).display());
        let (nodes, near, far, node) = match route {
            Route::Loopback => {
                let (node, _, programs) = start_node(binary, scratch, "only", &shm("only"), None)?;
                (vec![node], programs.clone(), programs, 0)
            }
            Route::Shm | Route::Udp => {
                let listen = if route == Route::Shm { shm("far") } else { "udp:127.0.0.1:0".to_owned() };
                let (far, address, far_programs) = start_node(binary, scratch, "far", &listen, None)?;
                let (near, _, programs) = start_node(binary, scratch, "near", &shm("near"), Some(&address))?;
                (vec![near, far], programs, far_programs, 1)
            }
            Route::UdpSealed | Route::UdpLoss => {
                return Err(Failure::new("only embedded nodes are measured over this link"));
            }
        };
        let far = FarProgram::start(&["rdma-far".into(), "--programs".into(), far.display().to_string()])?;
        let domain = Domain::open(&near, Some(1))?;
        await_neighbour(&domain, node)?;
        Self::meet(domain, node, far, None, nodes)
    }

    fn embedded(scratch: &Scratch, route: Route, first: usize) -> Result<Self, Failure> {
        let shm = |name: &str| format!("shm:{}", scratch.file(name).display());
        let listen = if route == Route::Shm { shm("embedded-far") } else { "udp:127.0.0.1:0".to_owned() };
        let keys = if route == Route::UdpSealed { Some(Keys::new(scratch)?) } else { None };
        let mut arguments = vec!["rdma-far".to_owned(), "--listen".to_owned(), listen];
        if let Some(keys) = &keys {
            arguments.extend(keys.far_arguments.clone());
        }
        let mut far = FarProgram::start(&arguments)?;
        let address = far.line()?.concat().parse()?;
        let security = keys.map_or(Security::Insecure, |keys| keys.security);
        // Its threads begin where this one is.
        process::pin_thread(first)?;
        let embedded = Embedded::start(&Embedding {
            name: "near".into(),
            listen: shm("embedded-near").parse()?,
            security: Security::Insecure,
        })?;
        let node = if route == Route::UdpLoss {
            let link = tombolo_link::connect(&address, &security, ANSWER_TIMEOUT)?;
            let lossy = Arc::new(LossyLink::new(link, 10, 1));
            embedded.node().join_over(lossy, &address, ANSWER_TIMEOUT)?.id.0
        } else {
            embedded.join(&address, &security, ANSWER_TIMEOUT)?
        };
        Self::meet(embedded.open(Some(1))?, node, far, Some(embedded), Vec::new())
    }

    fn meet(
        domain: Domain,
        node: u32,
        mut far: FarProgram,
        embedded: Option<Embedded>,
        nodes: Vec<Guard>,
    ) -> Result<Self, Failure> {
        let memory = domain.allocate(AREA, &[Grant::all(Who::Anyone)])?;
        super::touch(&memory)?;
        let mailbox = domain.open_mailbox(64, &[Who::Anyone])?;
        let said = far.line()?;
        let there = Target { node, domain: number(&said, 0)? };
        let far_address = number(&said, 1)?;
        // The other node, if there is one, knows this one as its first.
        let here = format!("{} {} {}", node.min(1), domain.number(), memory.address());
        far.command(&here)?;
        Ok(Self { domain, memory, mailbox, there, far_address, far, embedded, _nodes: nodes })
    }

    /// The other program polls, and answers what comes.
    pub fn far_polls(&mut self, polls: bool) -> Result<(), Failure> {
        self.far.command(if polls { "poll" } else { "rest" }).map(|_| ())
    }

    /// A node inside this program goes on; another may need the processor.
    pub fn progress(&self) {
        match &self.embedded {
            Some(embedded) => {
                embedded.progress();
            }
            None => std::thread::yield_now(),
        }
    }
}
