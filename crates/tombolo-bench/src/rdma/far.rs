//! The other program: it lends its memory to transfers, and answers while it is told to poll.

use std::collections::VecDeque;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use tombolo_client::{
    Domain, Embedded, Embedding, Grant, Mailbox, Memory, Notification, Spec, Target, Transfer, Who,
};
use tombolo_node::identity::{AllowList, read_key_file};
use tombolo_node::{Address, Security};

use super::{ANSWER_TIMEOUT, AREA, ECHO, WORDS};
use crate::Failure;

/// Arguments of the hidden `tombolo-bench rdma-far`.
#[derive(Args)]
pub struct Arguments {
    /// At this node.
    #[arg(long, required_unless_present = "listen")]
    programs: Option<PathBuf>,
    /// With a node of its own that listens there.
    #[arg(long)]
    listen: Option<Address>,
    /// Its secret key; without one, links are not protected.
    #[arg(long, requires = "allow")]
    key: Option<PathBuf>,
    /// The public keys of the nodes that it talks to.
    #[arg(long, requires = "key")]
    allow: Option<PathBuf>,
}

/// Whom to answer.
struct Near {
    target: Target,
    address: u64,
}

static POLL: AtomicBool = AtomicBool::new(false);
static OVER: AtomicBool = AtomicBool::new(false);

struct Far {
    embedded: Option<Embedded>,
    domain: Domain,
    memory: Memory,
    mailbox: Mailbox,
    near: Near,
    seen: u64,
    under_way: VecDeque<Transfer>,
}

impl Far {
    /// One look, and the answer to what was found.
    fn look(&mut self) -> Result<(), Failure> {
        match &self.embedded {
            Some(embedded) => {
                embedded.progress();
            }
            // Its node may need this processor.
            None => std::thread::yield_now(),
        }
        let turn = self.memory.word(WORDS + 8)?.load(Ordering::Acquire);
        if turn != self.seen {
            self.seen = turn;
            let size = self.memory.word(WORDS)?.load(Ordering::Relaxed);
            let words = Notification { address: self.near.address + WORDS as u64, first: size, last: turn };
            let spec = Spec::new(self.memory.address(), self.near.address, size as u32).notify(words);
            self.under_way.push_back(self.domain.write(self.near.target, spec)?);
        }
        if let Some(mail) = self.mailbox.try_receive()?
            && mail.bytes.first() == Some(&ECHO)
        {
            self.under_way.push_back(self.domain.send(self.near.target, &mail.bytes)?);
        }
        if self.under_way.len() > 8
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.wait(ANSWER_TIMEOUT)?;
        }
        Ok(())
    }
}

/// Runs it until the bench closes the pipe.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let embedded = match &arguments.listen {
        Some(listen) => {
            let security = match (&arguments.key, &arguments.allow) {
                (Some(key), Some(allow)) => {
                    Security::secure(read_key_file(key)?, AllowList::from_file(allow)?)
                }
                _ => Security::Insecure,
            };
            let embedding = Embedding { name: "far".into(), listen: listen.clone(), security };
            let embedded = Embedded::start(&embedding)?;
            println!("{}", embedded.address());
            Some(embedded)
        }
        None => None,
    };
    let domain = match (&embedded, &arguments.programs) {
        (Some(embedded), _) => embedded.open(Some(2))?,
        (None, Some(path)) => Domain::open(path, Some(2))?,
        (None, None) => return Err(Failure::new("neither a node nor where to listen")),
    };
    let memory = domain.allocate(AREA, &[Grant::all(Who::Anyone)])?;
    super::touch(&memory)?;
    let mailbox = domain.open_mailbox(64, &[Who::Anyone])?;
    println!("{} {}", domain.number(), memory.address());
    let mut lines = std::io::stdin().lock().lines();
    let line = lines.next().transpose()?.unwrap_or_default();
    let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [node, number, address] = words[..] else { return Ok(()) };
    println!("ok");
    let near = Near { target: Target { node: node as u32, domain: number as u16 }, address };
    drop(lines);
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            POLL.store(line == "poll", Ordering::Relaxed);
            println!("ok");
        }
        OVER.store(true, Ordering::Relaxed);
    });
    let mut far = Far { embedded, domain, memory, mailbox, near, seen: 0, under_way: VecDeque::new() };
    while !OVER.load(Ordering::Relaxed) {
        if POLL.load(Ordering::Relaxed) {
            for _ in 0..64 {
                far.look()?;
            }
        } else {
            // Its answers may still be on their way.
            while let Some(oldest) = far.under_way.pop_front() {
                oldest.wait(ANSWER_TIMEOUT)?;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    Ok(())
}
