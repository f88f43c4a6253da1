//! A peer's server and client, each on a processor of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use super::figures::What;
use super::network::{Network, is_listening};
use crate::bench::interrupted;
use crate::command::installed;
use tombolo_app::child::{Running, Trouble};

/// The longest that a client may take for its work.
const CLIENT_LIMIT: Duration = Duration::from_secs(30);
/// The longest that a server may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// For a server to tidy up when its client has ended.
const FAREWELL: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// What a program is to do.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    pub role: Role,
    pub size_bytes: u64,
    pub port: u16,
    /// The congestion control, for programs that choose it themselves.
    pub control: Option<&'a str>,
}

/// Somebody to race against: a program that is both server and client.
pub trait Peer {
    /// Its name in tables.
    fn who(&self) -> String;
    /// Whether it runs over TCP, so that the congestion control matters.
    fn over_tcp(&self) -> bool;
    /// The program and its arguments.
    fn words(&self, task: Task<'_>) -> Vec<String>;
    /// Variables that it needs.
    fn variables(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// What the client's output says.
    fn read(&self, output: &str, size_bytes: u64, control: Option<&str>) -> Result<Vec<(What, f64)>, String>;
}

/// Where they run.
pub struct Pair<'a> {
    pub network: &'a Network,
    /// The client's processor.
    pub first: usize,
    /// The server's.
    pub last: usize,
}

impl Pair<'_> {
    fn start(&self, peer: &dyn Peer, task: Task<'_>) -> Result<Running, Trouble> {
        let processor = if task.role == Role::Client { self.first } else { self.last };
        let mut command = Command::new("taskset");
        command.args(["-c", &processor.to_string()]).args(peer.words(task)).envs(peer.variables());
        Running::start(&mut command)
    }

    fn once(&self, peer: &dyn Peer, control: Option<&str>, size_bytes: u64) -> Result<String, Trouble> {
        let port = self.network.port()?;
        let server = self.start(peer, Task { role: Role::Server, size_bytes, port, control })?;
        let since = Instant::now();
        while !is_listening(port) {
            if interrupted() {
                return Err(Trouble::Interrupted);
            }
            if server.has_ended() {
                let said = server
                    .finish(START_TIMEOUT)
                    .err()
                    .map_or_else(String::new, |trouble| trouble.to_string());
                return Err(Trouble::Failed(format!("the server does not listen: {said}")));
            }
            if since.elapsed() > START_TIMEOUT {
                return Err(Trouble::TimedOut(START_TIMEOUT));
            }
            std::thread::sleep(POLL);
        }
        let client = self.start(peer, Task { role: Role::Client, size_bytes, port, control })?;
        let output = client.finish(CLIENT_LIMIT)?;
        // Servers that stay are ended; what they say does not matter any more.
        match server.finish(FAREWELL) {
            Err(Trouble::Interrupted) => Err(Trouble::Interrupted),
            _ => Ok(output),
        }
    }

    /// Runs both to their end. A run that fails or hangs is made again once: some libraries stall when a
    /// datagram is lost.
    pub fn race(
        &self,
        peer: &dyn Peer,
        control: Option<&str>,
        size_bytes: u64,
    ) -> Result<Vec<(What, f64)>, Trouble> {
        let words = peer.words(Task { role: Role::Client, size_bytes, port: 0, control });
        if let Some(missing) = words.iter().take(1).find(|program| !installed(program)) {
            return Err(Trouble::Failed(format!("{missing} is not installed")));
        }
        let try_it = || -> Result<_, Trouble> {
            Ok(peer.read(&self.once(peer, control, size_bytes)?, size_bytes, control)?)
        };
        match try_it() {
            Err(trouble @ (Trouble::Failed(_) | Trouble::TimedOut(_))) => {
                eprintln!("  {size_bytes} bytes, again: {trouble}");
                try_it()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a peer may do wrong; a shell plays both roles.
    struct Script {
        server: &'static str,
        client: &'static str,
    }

    const LISTENER: &str = "exec python3 -c 'import socket,sys
s=socket.socket(); s.bind((\"127.0.0.1\",int(sys.argv[1]))); s.listen(); s.accept()' $0";
    const CALLER: &str = "exec python3 -c 'import socket,sys
socket.create_connection((\"127.0.0.1\",int(sys.argv[1])))
print(17)' $0";

    impl Peer for Script {
        fn who(&self) -> String {
            "script".into()
        }
        fn over_tcp(&self) -> bool {
            false
        }
        fn words(&self, task: Task<'_>) -> Vec<String> {
            let script = if task.role == Role::Server { self.server } else { self.client };
            ["sh", "-c", script, &task.port.to_string()].map(str::to_owned).to_vec()
        }
        fn read(&self, output: &str, _: u64, _: Option<&str>) -> Result<Vec<(What, f64)>, String> {
            let value = output.trim().parse().map_err(|_| format!("no number: {output}"))?;
            Ok(vec![(What::MeanNs, value)])
        }
    }

    fn race(server: &'static str, client: &'static str) -> Result<Vec<(What, f64)>, Trouble> {
        let network = Network::new(false).unwrap();
        let processors = tombolo_host::process::processors();
        let (first, last) = (processors[0], processors[processors.len() - 1]);
        Pair { network: &network, first, last }.race(&Script { server, client }, None, 64)
    }

    #[test]
    fn a_client_is_started_when_its_server_listens() {
        assert_eq!(race(LISTENER, CALLER), Ok(vec![(What::MeanNs, 17.0)]));
    }

    #[test]
    fn a_server_that_stays_is_ended() {
        const PATIENT: &str = "exec python3 -c 'import socket,sys
s=socket.socket(); s.bind((\"127.0.0.1\",int(sys.argv[1]))); s.listen()
while True: s.accept()' $0";
        assert_eq!(race(PATIENT, CALLER), Ok(vec![(What::MeanNs, 17.0)]));
    }

    #[test]
    fn failures_are_told_with_the_last_words() {
        let failed = race("echo no such device >&2; exit 2", CALLER).unwrap_err().to_string();
        assert_eq!(failed, "the server does not listen: exit status: 2: no such device");
        let failed = race(LISTENER, "echo wrong provider; exit 61").unwrap_err().to_string();
        assert_eq!(failed, "exit status: 61: wrong provider");
        let failed = race(LISTENER, "echo nonsense").unwrap_err().to_string();
        assert_eq!(failed, "no number: nonsense\n");
    }
}
