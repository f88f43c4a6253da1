//! `tombolo sim`, as researchers use it.

use std::process::Command;

use serde_json::Value;

use crate::common::{TOMBOLO, product, tombolo};

fn fuzz(binary: &str, more: &[&str]) -> Value {
    let words = ["sim", "fuzz", "--world", "engine", "--json"];
    let output = Command::new(binary).args(words).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn seeds_repeat_themselves_in_every_build() {
    let found = fuzz(TOMBOLO, &["--seeds", "10"]);
    assert_eq!((&found["seeds"], &found["failed"]), (&10.into(), &Value::Null), "{found:#}");
    let hash = |found: &Value| found["trace_hash"].as_str().map(str::to_owned);
    assert_eq!(hash(&found).map(|hash| hash.len()), Some(16));
    assert_eq!(hash(&fuzz(TOMBOLO, &["--seeds", "10"])), hash(&found));
    assert_ne!(hash(&fuzz(TOMBOLO, &["--seeds", "10", "--seed", "2"])), hash(&found));
    // Without assertions of debug builds, and optimised.
    if let Some(product) = product() {
        assert_eq!(hash(&fuzz(&product, &["--seeds", "10"])), hash(&found));
    }
}

#[test]
fn seeds_go_on_for_as_long_as_is_wanted() {
    let found = fuzz(TOMBOLO, &["--for", "1s"]);
    assert!(found["seeds"].as_u64() > Some(1) && found["failed"].is_null(), "{found:#}");
    let said = tombolo(&["sim", "fuzz", "--seeds", "2", "--seed", "18446744073709551615"]);
    assert_eq!(said.code(), 0, "{}", said.stderr);
    assert!(
        said.text().starts_with("2 seeds of engine, from 18446744073709551615 on: nothing is wrong"),
        "{}",
        said.text()
    );
    for wrong in [&["--seeds", "0"][..], &["--for", "soon"], &["--world", "moon"]] {
        assert_eq!(tombolo(&[&["sim", "fuzz"], wrong].concat()).code(), 2);
    }
}

#[test]
fn platforms_say_where_their_constants_are_from_and_are_fitted() {
    let said = tombolo(&["sim", "platforms"]);
    assert_eq!((said.code(), said.text().lines().next()), (0, Some("exanest-qfdb")), "{}", said.stderr);
    let said = tombolo(&["sim", "platforms", "exanest-qfdb"]);
    let hop = said.text().lines().find(|line| line.starts_with("hop ")).map(str::to_owned);
    let words = hop.as_deref().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        words.as_deref(),
        Some(&["hop", "100", "ns", "stated", "FAULT", "ch.", "4"][..]),
        "{}",
        said.text()
    );

    let json = tombolo(&["sim", "fit", "exanest-qfdb", "--check", "--json"]);
    let found: Value = serde_json::from_str(&json.text()).expect("JSON");
    assert_eq!((json.code(), &found["fits"][0]["target"]), (0, &"Q-16B".into()), "{found:#}");

    // A file of one's own, whose fitted constant is off.
    let file = std::env::temp_dir().join(format!("tombolo-platform-{}.toml", std::process::id()));
    let text = include_str!("../../../tombolo-sim/src/platform/exanest-qfdb.toml");
    std::fs::write(&file, text.replace("value = 1717", "value = 3000")).unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(tombolo(&["sim", "fit", path, "--check"]).code(), 1);
    // To find the value again takes the product's speed.
    let binary = product().unwrap_or_else(|| TOMBOLO.to_owned());
    let found = Command::new(binary).args(["sim", "fit", path]).output().unwrap();
    let said = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success() && said.contains("logic = 1717."), "{said}");
    std::fs::write(&file, text.replacen("kind = \"stated\"", "kind = \"guessed\"", 1)).unwrap();
    let said = tombolo(&["sim", "platforms", path]);
    assert!(said.code() == 125 && said.stderr.contains("unknown variant `guessed`"), "{}", said.stderr);
    std::fs::remove_file(&file).unwrap();
    let said = tombolo(&["sim", "fit", "moon"]);
    assert!(
        said.code() == 125
            && said
                .stderr
                .contains("moon is no platform (exanest-qfdb, microzed-gen2, pcie-ntb, remap-zcu102,"),
        "{}",
        said.stderr
    );
}

/// What a run of an example with these arguments writes as CSV.
fn table(name: &str, more: &[&str], file: &std::path::Path) -> String {
    let csv = file.to_str().unwrap();
    let said = tombolo(&[&["sim", "run", name, "--csv", csv], more].concat());
    assert_eq!(said.code(), 0, "{name}: {}", said.stderr);
    std::fs::read_to_string(file).unwrap()
}

/// Each example, with what its file says is to be swept: the same rows whatever the number of threads.
#[test]
fn examples_give_the_same_table_with_any_number_of_threads() {
    let file = std::env::temp_dir().join(format!("tombolo-sweep-{}.csv", std::process::id()));
    for (name, text) in tombolo_sim::study::EXAMPLES {
        let line = text.lines().find_map(|line| line.strip_prefix("# tombolo sim run ")).expect(name);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.first(), Some(&name));
        let one = table(name, &[&words[1..], &["--jobs", "1"]].concat(), &file);
        assert_eq!(one, table(name, &[&words[1..], &["--jobs", "2"]].concat(), &file), "{name}");
        assert!(one.lines().count() > 2, "{name}: {one}");
    }
    // A point that cannot be run costs no other one its row.
    let size = ["--set", "workload.bytes=65536", "--set", "workload.count=1500"];
    let points = ["--sweep", "workload.outstanding=1,2000,2", "--csv", file.to_str().unwrap()];
    let said = tombolo(&[&["sim", "run", "window"][..], &size, &points].concat());
    let is_said = |what: &str| assert!(said.stderr.contains(what), "{what} is missing in {}", said.stderr);
    is_said("workload.outstanding=2000: node 1: the transfer table is full (constants.transactions is 1024)");
    is_said("1 of 3 runs could not be made");
    assert_eq!(said.code(), 125);
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 3);
    // Seeds that follow each other give runs that differ, where chance has a part.
    let repeated = table("livelock", &["--repeat", "3", "--seed", "5"], &file);
    let rows: Vec<Vec<&str>> = repeated.lines().skip(1).map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), ["5", "6", "7"]);
    assert_ne!(rows[0][1..], rows[1][1..]);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_scenario_of_ones_own_is_run_and_what_is_wrong_with_it_is_said() {
    let folder = std::env::temp_dir().join(format!("tombolo-scenario-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, trace) = (folder.join("mine.toml"), folder.join("mine.pftrace"));
    let (path, trace_path) = (file.to_str().unwrap(), trace.to_str().unwrap());
    let shown = tombolo(&["sim", "run", "window", "--set", "workload.bytes=65536", "--show"]);
    assert_eq!(shown.code(), 0, "{}", shown.stderr);
    std::fs::write(&file, shown.text()).unwrap();
    let said = tombolo(&["sim", "run", path, "--json", "--trace", trace_path]);
    let found: Value = serde_json::from_str(&said.text()).expect("JSON");
    let run = &found["runs"][0];
    assert_eq!((said.code(), &run["values"]["transfers"]), (0, &1.0.into()), "{found:#}");
    // All that it was made with and all that it counted.
    assert_eq!(run["scenario"]["workload"]["bytes"], 65_536);
    assert_eq!(run["constants"]["hop"]["unit"], "ns");
    assert_eq!(run["parts"]["node 1"]["blocks_sent"], 4.0);
    assert!(run["parts"]["link 1 to 0"]["busy_percent"].as_f64() > Some(10.0), "{found:#}");
    assert!(std::fs::metadata(&trace).unwrap().len() > 10_000);
    for (arguments, code, error) in [
        (&["moon"][..], 125, "moon is no example (checksum, classes,"),
        (&["window", "--set", "workload.byte=1"], 2, "unknown field `byte`"),
        (&["window", "--set", "workload.bytes"], 2, "KEY=VALUE is wanted"),
        (&["window", "--set", "constants.hops=1"], 2, "has no constant hops"),
        (
            &["window", "--sweep", "topology.nodes=2,1"],
            2,
            "topology.nodes=1: a topology needs two nodes, not 1: say nodes",
        ),
        (&["window", "--sweep", "seed=1,2"], 2, "use --seed and --repeat"),
        (&["window", "--sweep", "workload.bytes=,"], 2, "has no values"),
        (&["window", "--csv", "/proc/nothing"], 125, "/proc/nothing"),
        (&["checksum", "--trace", trace_path], 125, "a timeline is kept of scenarios with [topology] only"),
        (&["window", "--repeat", "2", "--trace", trace_path], 2, "--trace is for one run, not 2"),
        (
            &["classes", "--set", "topology.nodes=2", "--set", "workload.transfers=[[0,2,1,0]]"],
            2,
            "from node 0 to 2, of 2",
        ),
        (
            &["checksum", "--set", "workload.kind=incast"],
            2,
            "either [topology] and [workload], or [interface]",
        ),
    ] {
        let said = tombolo(&[&["sim", "run"], arguments].concat());
        assert!(
            said.code() == code && said.stderr.contains(error),
            "{arguments:?}: {} {}",
            said.code(),
            said.stderr
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn figures_come_as_a_page_with_pictures_and_tables() {
    let folder = std::env::temp_dir().join(format!("tombolo-reproduce-{}", std::process::id()));
    let path = folder.to_str().unwrap();
    let binary = product().unwrap_or_else(|| TOMBOLO.to_owned());
    let output = Command::new(&binary).args(["reproduce", "all", "--out", path]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Q-16B") && text.contains("M-DMA") && text.contains("claims hold"), "{text}");
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let page = read("index.html");
    assert!(page.contains("<svg") && !page.contains("<script") && page.contains("id=\"Q-16B\""));
    assert!(read("M-DMASIZE-1.csv").starts_with("series,bytes,MB/s\ncopy,4,"));
    assert!(read("Q-READ-1.svg").contains("<svg"));
    let results: Value = serde_json::from_str(&read("results.json")).expect("JSON");
    let figures = results["figures"].as_array().expect("a list");
    // Every run is the same: what is printed is what is written.
    let again = tombolo(&["reproduce", "M-DMA", "--json"]);
    let found: Value = serde_json::from_str(&again.text()).expect("JSON");
    assert_eq!(Some(&found["figures"][0]), figures.iter().find(|figure| figure["id"] == "M-DMA"));
    std::fs::remove_dir_all(&folder).unwrap();

    let said = tombolo(&["reproduce", "micro"]);
    assert!(said.code() == 0 && !said.text().contains("Q-16B"), "{}{}", said.text(), said.stderr);
    let said = tombolo(&["reproduce", "X-1"]);
    assert!(
        said.code() == 2 && said.stderr.contains("there is no figure X-1: there are M-LAT,"),
        "{}",
        said.stderr
    );
    let said = tombolo(&["reproduce", "M-LAT", "--out", "/proc/nothing"]);
    assert!(said.code() == 125 && said.stderr.contains("/proc/nothing"), "{}", said.stderr);
}
