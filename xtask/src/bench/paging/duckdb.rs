//! A table in DuckDB: grouped sums, a join and an ordering of all rows, in memory, by two threads.

use std::path::PathBuf;
use std::process::Command;

use super::surroundings::{Place, Surroundings};
use super::workload::{Cost, Timed, Unit, Workload};
use crate::command::{root, run};

/// The version from PyPI: another one takes other times.
const VERSION: &str = "1.4.5";

/// Six million rows. It prints what it has found, which is the same whatever memory it ran in.
const SCRIPT: &str = "\
import duckdb
db = duckdb.connect(':memory:', config={'threads': 2})
db.execute('SET memory_limit=\"4GB\"')
db.execute('SET enable_progress_bar=false')
db.execute('''CREATE TABLE t AS SELECT i, hash(i) % 1000003 AS k, hash(i + 7) % 997 AS g,
    (hash(i + 13) % 100000) / 7.0 AS x FROM range(6000000) r(i)''')
found = [
    db.execute('SELECT count(*), sum(s) FROM (SELECT k, sum(x)::BIGINT s FROM t GROUP BY k)').fetchone(),
    db.execute('SELECT sum(c) FROM (SELECT g, count(DISTINCT k) c FROM t GROUP BY g)').fetchone(),
    db.execute('SELECT count(*) FROM t a JOIN t b ON a.k = b.i').fetchone(),
    db.execute('SELECT sum(n * (i % 1000)) FROM (SELECT i, row_number() OVER (ORDER BY x, i) n FROM t)').fetchone(),
]
print(found)
";

/// The workload.
pub struct DuckDb {
    python: PathBuf,
    timed: Timed,
    found: PathBuf,
}

impl DuckDb {
    /// In an environment of its own, below `target`, which is made where there is none.
    pub fn new(surroundings: &Surroundings) -> Result<Self, String> {
        let folder = root().join("target").join(format!("duckdb-{VERSION}"));
        let python = folder.join("bin/python");
        let works = || {
            let mut command = Command::new(&python);
            command.args(["-c", &format!("import duckdb; assert duckdb.__version__ == '{VERSION}'")]);
            command.output().is_ok_and(|output| output.status.success())
        };
        if !works() {
            let _ = std::fs::remove_dir_all(&folder);
            run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).map_err(|error| {
                format!("no environment for Python packages: is python3-venv installed? ({error})")
            })?;
            let package = format!("duckdb=={VERSION}");
            run(Command::new(&python).args(["-m", "pip", "install", "--quiet", &package]))
                .map_err(|error| format!("pip cannot install it ({error})"))?;
            if !works() {
                return Err("it was installed and cannot be imported".into());
            }
        }
        Ok(Self { python, timed: Timed::new(surroundings), found: surroundings.file("duckdb.txt") })
    }
}

impl Workload for DuckDb {
    fn name(&self) -> &'static str {
        "duckdb"
    }

    fn title(&self) -> &'static str {
        "DuckDB, sums, a join and an ordering of 6 million rows, two threads"
    }

    fn unit(&self) -> Unit {
        Unit::Seconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        let python = self.python.to_string_lossy();
        let (cost, found) = self.timed.run(place, &[&python, "-c", SCRIPT], &[])?;
        // The first run's answer is every run's.
        match std::fs::read(&self.found) {
            Ok(known) if known != found => {
                let [known, found] =
                    [&known, &found].map(|answer| String::from_utf8_lossy(answer).into_owned());
                Err(format!("the answers of two runs differ: {} and {}", known.trim(), found.trim()))
            }
            Ok(_) => Ok(cost),
            Err(_) => {
                std::fs::write(&self.found, found).map_err(|error| error.to_string())?;
                Ok(cost)
            }
        }
    }
}
