//! redis under load: random GETs of values that are checked, some of them under way at once.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use tombolo_app::redis::{self, Client};
use tombolo_app::scratch::Scratch;
use tombolo_random::Random;

use super::children::{self, Child};
use super::compare::{Place, Workload};
use super::{Demo, STOP};
use crate::Failure;
use tombolo_host::timing::command::DEMO_SERVER_END;

/// About 130 MB with what redis needs beside the values.
const KEYS: u64 = 110_000;
const WARM_UP: u64 = 20_000;
const GETS: u64 = 80_000;

/// The workload.
pub struct Redis {
    socket: PathBuf,
}

impl Redis {
    /// `None` if redis-server is not installed.
    pub fn find(directory: &Scratch) -> Option<Self> {
        redis::is_installed().then(|| Self { socket: directory.file("redis.sock") })
    }
}

impl Workload for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure> {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = demo.command(place, "redis-server".as_ref())?;
        redis::add_options(&mut command, &self.socket, demo.directory.path());
        let server = RefCell::new(Child::start(&mut command, "redis-server", demo.directory)?);
        let tick = || {
            demo.bar.tick();
            if STOP.load(Ordering::Acquire) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        };
        let ended = || server.borrow_mut().ended();
        let work = || -> io::Result<f64> {
            let mut client = Client::connect(&self.socket, || {
                tick()?;
                ended().map_or(Ok(()), |failure| Err(io::Error::other(failure.text)))
            })?;
            client.load(KEYS, tick)?;
            let mut random = Random::new(99);
            client.get(KEYS, WARM_UP, &mut random, tick)?;
            let since = Instant::now();
            client.get(KEYS, GETS, &mut random, tick)?;
            let elapsed = since.elapsed();
            client.shut_down()?;
            Ok(elapsed.as_secs_f64())
        };
        let elapsed_s = work().map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return children::interrupted();
            }
            // If the server has ended, the reason of its end says more than the client's error.
            thread::sleep(DEMO_SERVER_END);
            ended().unwrap_or_else(|| Failure::new(format!("redis: {error}")))
        })?;
        server.into_inner().finish(&STOP, || demo.bar.tick())?;
        Ok(elapsed_s)
    }
}
