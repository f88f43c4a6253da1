//! Databases: SQLite in memory, Redis with a dump under writes, memcached under load.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Lender, Link, Outcome, PATIENCE, Program, Resp, Running, Scratch, needs, once_more_if_exceeded, path_of,
    sized,
};
use rustix::process::Signal;

#[test]
fn a_sqlite_database_in_memory() {
    needs!("sqlite3");
    let lender = Lender::start(Link::Shm, "4G");
    let script = script(sized(150_000, 800_000));
    let words = [&path_of("sqlite3"), "-batch", ":memory:"];
    let outcome = Program::new(&words)
        .input(script)
        .remote(sized("256M", "3G"))
        .same_on(&[&lender], sized("16M", "64M"));
    assert!(outcome.text().trim_end().ends_with("ok"), "the integrity check");
}

/// Makes a table of so many rows, changes and queries it.
pub fn script(rows: u64) -> String {
    format!(
        "pragma temp_store = memory;
         create table t (id integer primary key, name text, body blob);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
           insert into t select i, printf('%08x', (i * 2654435761) & 4294967295), printf('%0300d', i * 7919) from n;
         create index by_name on t (name);
         update t set body = printf('%0250d', id) where id % 3 = 0;
         delete from t where id % 11 = 5;
         select count(*), sum(id), sum(length(body)), min(name), max(name) from t;
         select id, name, body from t order by name limit 2000;
         select count(*) from t a join t b on b.id = a.id + 1 where a.name < b.name;
         pragma integrity_check;"
    )
}

const VALUE_BYTES: usize = 4096;

/// The value of a key after so many changes; incompressible, so that the dump is honest.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; VALUE_BYTES];
    tombolo_random::Random::new(key << 8 | version).fill(&mut bytes);
    bytes
}

fn name(key: u64) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

/// Sends many commands at once, so that the round trips do not count.
fn set(redis: &mut Resp, keys: impl Iterator<Item = u64>, version: u64) {
    let keys: Vec<_> = keys.collect();
    for some in keys.chunks(64) {
        for &key in some {
            redis.send(&[b"SET", &name(key), &value(key, version)]).unwrap();
        }
        for _ in some {
            assert_eq!(redis.answer().unwrap(), b"OK");
        }
    }
}

fn compare(redis: &mut Resp, what: &str, keys: u64, version: impl Fn(u64) -> u64) {
    let all: Vec<_> = (0..keys).collect();
    for some in all.chunks(64) {
        for &key in some {
            redis.send(&[b"GET", &name(key)]).unwrap();
        }
        for &key in some {
            let found = redis.answer().unwrap_or_else(|error| panic!("{what}: key {key}: {error}"));
            assert!(found == value(key, version(key)), "{what}: key {key} is wrong");
        }
    }
    assert_eq!(redis.call(&[b"DBSIZE"]).unwrap(), keys.to_string().into_bytes(), "{what}");
}

fn information(redis: &mut Resp, field: &str) -> String {
    let text = String::from_utf8(redis.call(&[b"INFO", b"persistence"]).unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).trim().to_owned()
}

fn server(scratch: &Scratch) -> Vec<String> {
    let path = scratch.path().display().to_string();
    let words = [
        &path_of("redis-server"),
        "--port",
        "0",
        "--unixsocket",
        &format!("{path}/socket"),
        "--dir",
        &path,
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--rdbcompression",
        "no",
    ];
    words.map(str::to_owned).to_vec()
}

fn stop(redis: &mut Resp, process: Running) -> Outcome {
    process.signal(Signal::TERM);
    let _ = redis.call(&[b"PING"]);
    process.wait(Duration::from_secs(60))
}

fn redis_test(link: Link) {
    let lender = Lender::start(link, "2G");
    let run = || fill_and_dump(lender.address(), &[], |_| {});
    once_more_if_exceeded(run).assert_within_limit(110);
}

/// Fills a server, has it dump under writes, and compares all of it. `started` gets the run's process.
pub fn fill_and_dump(from: &str, options: &[&str], started: impl FnOnce(u32)) -> Outcome {
    let scratch = Scratch::new("redis");
    let socket = scratch.file("socket");
    let program =
        Program::new(&server(&scratch)).remote(sized("512M", "1500M")).outage("6s").options(options);
    let keys: u64 = sized(48, 150) * 1024 * 1024 / VALUE_BYTES as u64;
    let process = program.start_from(from, sized("12M", "38M"));
    started(process.pid());
    let mut redis = Resp::connect(&socket, PATIENCE);
    set(&mut redis, 0..keys, 0);
    compare(&mut redis, "after filling", keys, |_| 0);
    set(&mut redis, (0..keys).filter(|key| key.is_multiple_of(5)), 1);
    let then = |key: u64| u64::from(key.is_multiple_of(5));

    // The dump holds what was there when the command came, whatever is written meanwhile.
    // It may be over before this test goes on: then there is another one.
    let mut next = 0;
    for _ in 0..5 {
        redis.call(&[b"BGSAVE"]).unwrap();
        while information(&mut redis, "rdb_bgsave_in_progress") == "1" {
            if next < keys {
                set(&mut redis, next..(next + 256).min(keys), 2);
                next = (next + 256).min(keys);
            } else {
                thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(information(&mut redis, "rdb_last_bgsave_status"), "ok");
        if next > 0 {
            break;
        }
    }
    assert!(next > 0, "each dump was over before anything was written");
    compare(&mut redis, "after the dump", keys, |key| if key < next { 2 } else { then(key) });
    let outcome = stop(&mut redis, process);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.counter("forks") >= 1 && outcome.counter("pages_in") > 0, "{:#}", outcome.report());

    let mut command = std::process::Command::new(path_of("redis-server"));
    command.args(&server(&scratch)[1..]);
    let plain = Running::start(command, Vec::new());
    let mut redis = Resp::connect(&socket, PATIENCE);
    compare(&mut redis, "the dump in a plain server", keys, then);
    stop(&mut redis, plain);
    outcome
}

#[test]
fn redis_keeps_every_value_and_dumps_under_writes_shm() {
    needs!("redis-server");
    redis_test(Link::Shm);
}

#[test]
fn redis_keeps_every_value_and_dumps_under_writes_udp() {
    needs!("redis-server");
    redis_test(Link::Udp);
}

/// A connection to memcached, in its text protocol.
struct Cache(BufReader<UnixStream>);

impl Cache {
    fn connect(path: &str) -> Self {
        let since = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
                return Self(BufReader::new(stream));
            }
            assert!(since.elapsed() < PATIENCE, "no memcached at {path}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("memcached reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("memcached answers");
        line.trim_end().to_owned()
    }

    fn set(&mut self, keys: impl Iterator<Item = u64>, version: u64) {
        let keys: Vec<_> = keys.collect();
        for some in keys.chunks(64) {
            let mut request = Vec::new();
            for &key in some {
                request.extend_from_slice(format!("set key:{key} 0 0 {VALUE_BYTES}\r\n").as_bytes());
                request.extend_from_slice(&value(key, version));
                request.extend_from_slice(b"\r\n");
            }
            self.send(&request);
            for key in some {
                assert_eq!(self.line(), "STORED", "key {key}");
            }
        }
    }

    fn compare(&mut self, keys: impl Iterator<Item = u64>, version: impl Fn(u64) -> Option<u64>) {
        let keys: Vec<_> = keys.collect();
        for some in keys.chunks(64) {
            for &key in some {
                self.send(format!("get key:{key}\r\n").as_bytes());
                if let Some(version) = version(key) {
                    assert_eq!(self.line(), format!("VALUE key:{key} 0 {VALUE_BYTES}"));
                    let mut found = vec![0; VALUE_BYTES + 2];
                    self.0.read_exact(&mut found).expect("memcached answers");
                    assert!(found[..VALUE_BYTES] == value(key, version), "key {key} is wrong");
                }
                assert_eq!(self.line(), "END", "key {key}");
            }
        }
    }
}

#[test]
fn memcached_keeps_every_value_under_load() {
    needs!("memcached");
    once_more_if_exceeded(load_memcached).assert_within_limit(100);
}

fn load_memcached() -> Outcome {
    const CLIENTS: u64 = 4;
    let lender = Lender::start(Link::Shm, "2G");
    let scratch = Scratch::new("cache");
    let socket = scratch.file("socket");
    let program = path_of("memcached");
    let megabytes = sized("256", "2048");
    let words = [&program, "-s", &socket, "-m", megabytes, "-M", "-t", "2", "-u", "root"];
    let keys: u64 = sized(64, 150) * 1024 * 1024 / VALUE_BYTES as u64;
    let process =
        Program::new(&words).remote(sized("512M", "1500M")).start_on(&[&lender], sized("16M", "38M"));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let socket = &socket;
            // Each has keys of its own, and changes, deletes and reads them while the others do.
            let own = move || (0..keys).filter(move |key| key % CLIENTS == client);
            scope.spawn(move || {
                let mut cache = Cache::connect(socket);
                cache.set(own(), 0);
                cache.compare(own(), |_| Some(0));
                cache.set(own().filter(|key| key % 5 < 2), 1);
                for key in own().filter(|key| key % 7 == 3) {
                    cache.send(format!("delete key:{key}\r\n").as_bytes());
                    assert_eq!(cache.line(), "DELETED");
                }
                cache.compare(own(), |key| (key % 7 != 3).then_some(u64::from(key % 5 < 2)));
            });
        }
    });
    process.signal(Signal::TERM);
    let outcome = process.wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.counter("pages_in") > 0 && outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    outcome
}
