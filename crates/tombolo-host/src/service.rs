//! What the service manager hears that has started this process: sd_notify(3), over `NOTIFY_SOCKET`.
//!
//! Without a manager nothing is sent. What its socket has no room for is sent later: a manager that hears nothing ends the process.

use std::env;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a message waits for room in the manager's socket, and how long it looks again after.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_PAUSE: Duration = Duration::from_millis(5);

/// The manager's end, and how often it wants to hear that this process is alive.
#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
    /// Held while a message is sent: no other thread says "alive" after "stopping".
    said: Mutex<Said>,
}

#[derive(Debug)]
enum Said {
    /// The manager is to hear again, at that time, that this process is alive.
    Alive {
        again: Instant,
    },
    Stopping,
}

static MANAGER: OnceLock<Option<Manager>> = OnceLock::new();

impl Manager {
    fn from_environment() -> Option<Self> {
        let text = |name: &str| env::var(name).ok();
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        Self::connect(&env::var_os("NOTIFY_SOCKET")?, watchdog).ok()
    }

    fn connect(place: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        Ok(Self { socket, watchdog, said: Mutex::new(Said::Alive { again: Instant::now() }) })
    }

    /// False: there is no room for it now.
    fn say(&self, text: &str) -> bool {
        !matches!(self.socket.send(text.as_bytes()), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits a moment for room. The manager reads all the time, unless the machine is busy.
    fn say_surely(&self, text: &str) {
        let since = Instant::now();
        while !self.say(text) && since.elapsed() < NOTIFY_TIMEOUT {
            thread::sleep(NOTIFY_PAUSE);
        }
    }

    fn alive(&self) {
        let Some(watchdog) = self.watchdog else { return };
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Said::Alive { again } = &mut *said
            && now >= *again
        {
            // Twice as often as the manager wants it.
            if self.say("WATCHDOG=1") {
                *again = now + watchdog / 2;
            }
        }
    }

    fn stopping(&self) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        *said = Said::Stopping;
        self.say_surely("STOPPING=1");
    }
}

/// The manager's interval, if it is for this process.
fn watchdog(microseconds: Option<String>, process: Option<String>, own: u32) -> Option<Duration> {
    if process.is_some_and(|process| process.parse() != Ok(own)) {
        return None;
    }
    let microseconds = microseconds?.parse().ok().filter(|microseconds| *microseconds > 0)?;
    Some(Duration::from_micros(microseconds))
}

fn manager() -> Option<&'static Manager> {
    MANAGER.get_or_init(Manager::from_environment).as_ref()
}

/// The service does what it is for from now on.
pub fn ready() {
    if let Some(manager) = manager() {
        manager.say_surely("READY=1");
    }
}

/// It is about to end. The manager hears nothing after that.
pub fn stopping() {
    if let Some(manager) = manager() {
        manager.stopping();
    }
}

/// It is alive. To be called whenever something has been done that shows it; the manager hears it now and then.
pub fn alive() {
    if let Some(manager) = manager() {
        manager.alive();
    }
}

/// How often [`alive`] is to be called. `None`: the service manager has set no watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    manager()?.watchdog.map(|watchdog| watchdog / 4)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_manager_hears_by_a_path_and_by_a_name() {
        let path = env::temp_dir().join(format!("tombolo-service-{}", std::process::id()));
        let name = format!("tombolo-service-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let abstract_place = OsString::from(format!("@{name}"));
        for (place, socket) in [(path.as_os_str(), &by_path), (&*abstract_place, &by_name)] {
            let manager = Manager::connect(place, Some(Duration::from_secs(3600))).unwrap();
            manager.say("READY=1");
            // Once in half an hour.
            manager.alive();
            manager.alive();
            manager.stopping();
            let mut heard = Vec::new();
            socket.set_nonblocking(true).unwrap();
            let mut buffer = [0; 64];
            while let Ok(length) = socket.recv(&mut buffer) {
                heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            assert_eq!(heard, ["READY=1", "WATCHDOG=1", "STOPPING=1"]);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Manager::connect(path.as_os_str(), None).is_err());
        assert!(Manager::connect(OsStr::new(""), None).is_err());
    }

    #[test]
    fn what_a_manager_has_no_room_for_is_said_again() {
        let name = format!("tombolo-service-{}-full", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let manager =
            Manager::connect(&OsString::from(format!("@{name}")), Some(Duration::from_secs(3600))).unwrap();
        while manager.say("FILLS=1") {}
        manager.alive();
        let mut buffer = [0; 64];
        let mut hear = || {
            let length = socket.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert_eq!(hear(), "FILLS=1");
        manager.alive();
        thread::scope(|scope| {
            // It waits for room.
            scope.spawn(|| manager.stopping());
            assert_eq!(
                std::iter::repeat_with(&mut hear).find(|text| text != "FILLS=1").unwrap(),
                "WATCHDOG=1"
            );
            assert_eq!(hear(), "STOPPING=1");
        });
    }

    #[test]
    fn stopping_is_the_last_that_a_manager_hears() {
        for round in 0..2000 {
            let name = format!("tombolo-service-{}-last-{round}", std::process::id());
            let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
            let socket = UnixDatagram::bind_addr(&address).unwrap();
            socket.set_nonblocking(true).unwrap();
            let place = OsString::from(format!("@{name}"));
            let manager = Manager::connect(&place, Some(Duration::from_nanos(2))).unwrap();
            thread::scope(|scope| {
                // A socket takes ten messages.
                let alive = scope.spawn(|| (0..5).for_each(|_| manager.alive()));
                manager.stopping();
                alive.join().unwrap();
            });
            let mut last = String::new();
            let mut buffer = [0; 64];
            while let Ok(length) = socket.recv(&mut buffer) {
                last = String::from_utf8_lossy(&buffer[..length]).into_owned();
            }
            assert_eq!(last, "STOPPING=1");
        }
    }

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let of = |microseconds: &str, process: Option<&str>| {
            watchdog(Some(microseconds.to_owned()), process.map(str::to_owned), 7)
        };
        assert_eq!(of("2000000", None), Some(Duration::from_secs(2)));
        assert_eq!(of("2000000", Some("7")), Some(Duration::from_secs(2)));
        assert_eq!(of("2000000", Some("8")), None);
        assert_eq!([of("0", None), of("x", None), of("1", Some("x"))], [None; 3]);
        assert_eq!(watchdog(None, None, 7), None);
    }
}
