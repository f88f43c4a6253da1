//! Random GETs at a redis server.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tombolo_app::child;
use tombolo_app::redis::{self, Client};
use tombolo_host::cpu::Stopwatch;
use tombolo_random::Random;

use super::super::interrupted;
use super::surroundings::{Place, Surroundings};
use super::workload::{Cost, Unit, Workload};

/// About 150 MB with what redis needs beside the values.
const KEYS: u64 = 130_000;
const WARM_UP: u64 = 30_000;
const GETS: u64 = 100_000;
/// The longest that a server may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at a server that is to end.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The workload.
pub struct Redis {
    socket: PathBuf,
    folder: PathBuf,
}

impl Redis {
    /// `None` without a server to run.
    pub fn new(surroundings: &Surroundings) -> Option<Self> {
        redis::is_installed()
            .then(|| Self { socket: surroundings.file("redis.sock"), folder: surroundings.file("") })
    }
}

impl Workload for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn title(&self) -> &'static str {
        "redis, uniformly random GETs of 1000-byte values, 16 under way"
    }

    fn unit(&self) -> Unit {
        Unit::Nanoseconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = place.command("redis-server");
        redis::add_options(&mut command, &self.socket, &self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = child::spawn(&mut command).map_err(|trouble| trouble.to_string())?;
        let check = || if interrupted() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) };
        let mut work = || -> io::Result<Cost> {
            let mut client = Client::connect(&self.socket, || match server.0.try_wait() {
                Ok(Some(status)) => Err(io::Error::other(format!("it ended: {status}"))),
                _ => check(),
            })?;
            client.load(KEYS, check)?;
            let mut random = Random::new(99);
            client.get(KEYS, WARM_UP, &mut random, check)?;
            let watch = Stopwatch::start()?;
            client.get(KEYS, GETS, &mut random, check)?;
            let (wall_s, cpu_s) = watch.elapsed()?;
            client.shut_down()?;
            let each_ns = |seconds: f64| seconds * 1e9 / GETS as f64;
            Ok(Cost { wall: each_ns(wall_s), cpu: each_ns(cpu_s) })
        };
        let cost = work().map_err(|error| format!("redis: {error}"))?;
        let since = Instant::now();
        while server.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            if since.elapsed() > END_TIMEOUT {
                return Err("redis does not end".into());
            }
            std::thread::sleep(END_CHECK_INTERVAL);
        }
        Ok(cost)
    }
}
