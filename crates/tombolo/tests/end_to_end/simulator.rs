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
            && said.stderr.contains("moon is no platform (exanest-qfdb, remap-zcu102, zedboard-gen1)"),
        "{}",
        said.stderr
    );
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
