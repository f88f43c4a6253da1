//! What the fuzzers do, in an ordinary test run: every sample of a corpus, every prefix of it and every
//! byte of it changed, so that what a fuzzer once found stays found without one; and random bytes.
//! `TOMBOLO_BLESS=1` writes the samples that a test makes anew.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

/// What takes any bytes and must not panic.
pub type Target = fn(&[u8]);

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target)
}

/// A sample of the format as it is. Where it has changed, versions must.
pub fn sample(target: &str, name: &str, bytes: &[u8]) {
    let path = folder(target).join(name);
    if std::env::var("TOMBOLO_BLESS").is_ok_and(|value| value == "1") {
        fs::create_dir_all(folder(target)).expect("the corpus can be written");
        fs::write(&path, bytes).expect("the corpus can be written");
    }
    let kept = fs::read(&path).expect("the corpus holds a sample of every kind");
    assert_eq!(kept, bytes, "the format of {target}/{name} changed: raise the version");
}

/// Replays a corpus.
pub fn corpus(name: &str, target: Target) {
    let mut count = 0;
    for entry in fs::read_dir(folder(name)).expect("the corpus is there") {
        let bytes = fs::read(entry.expect("an entry").path()).expect("a file");
        count += 1;
        for end in 0..=bytes.len() {
            target(&bytes[..end]);
        }
        let mut damaged = bytes;
        for at in 0..damaged.len() {
            let was = damaged[at];
            for change in [0xFF, 0x01, 0x80, was, was ^ 0x7F] {
                damaged[at] = was ^ change;
                target(&damaged);
            }
            damaged[at] = was;
        }
        damaged.push(0);
        target(&damaged);
    }
    assert!(count > 0, "no samples of {name}");
}

/// Random bytes, and random bytes after those with which the samples begin.
pub fn random(name: &str, target: Target) {
    let entries = fs::read_dir(folder(name)).expect("the corpus is there");
    let samples: Vec<Vec<u8>> = entries
        .map(|entry| fs::read(entry.expect("an entry").path()).expect("a file"))
        .chain([Vec::new()])
        .collect();
    let cases = (
        prop::sample::select(samples),
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<u8>(), 0..300),
    );
    proptest!(|((sample, cut, bytes) in cases)| {
        let begin = &sample[..cut.index(sample.len() + 1)];
        target(&[begin, &bytes].concat());
    });
}
