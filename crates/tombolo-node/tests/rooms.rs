//! A room calls only rooms below it: no circle of files between rooms.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms that it may call.
const ROOMS: [(&str, &[&str]); 6] = [
    ("memory", &[]),
    ("fabric", &[]),
    ("lending", &["fabric", "memory"]),
    ("programs", &["fabric", "memory"]),
    ("driver", &["fabric", "lending", "memory", "programs"]),
    ("far", &["driver", "fabric", "lending", "memory", "programs"]),
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

/// The rooms that a text names, apart from its tests and comments.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let rest = lines.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect::<String>()
    });
    rest.filter(|name| ROOMS.iter().any(|(room, _)| room == name)).collect()
}

#[test]
fn the_rooms_that_a_text_names_are_found() {
    let text = "use crate::fabric::table;\n// crate::far\nfn f() { crate::driver::serve::serve(crate::x()) }\n\
                #[cfg(test)]\nmod tests {\n    use crate::lending;\n}\n";
    assert_eq!(named(text), BTreeSet::from(["driver".to_owned(), "fabric".to_owned()]));
}

#[test]
fn rooms_call_only_rooms_below_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for (place, (room, below)) in ROOMS.iter().enumerate() {
        assert!(below.iter().all(|below| ROOMS[..place].iter().any(|(earlier, _)| earlier == below)));
        let files = files(&source.join(room));
        assert!(files.iter().any(|file| file.ends_with("mod.rs")), "{room} does not say what it is");
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            for called in named(&fs::read_to_string(file).unwrap()) {
                if called != *room && !below.contains(&called.as_str()) {
                    wrong.push(format!("{} calls {called}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let roots = files(&source).into_iter().filter(|file| file.parent() == Some(&source));
    let roots: BTreeSet<_> = roots.filter_map(|file| Some(file.file_name()?.to_owned())).collect();
    assert_eq!(roots, BTreeSet::from(["lib.rs".into(), "fuzzing.rs".into()]), "each file has its room");
}

/// The files that a text names by `crate::` or `super::`, as their paths below `src` without `.rs` and `/mod`.
fn called(file: &str, text: &str, files: &BTreeSet<String>) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let room: Vec<&str> = file.split('/').collect();
    let mut called = BTreeSet::new();
    for (root, base) in [("crate::", &[][..]), ("super::", &room[..room.len() - 1])] {
        for rest in code.split(root).skip(1) {
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
            let (path, behind) = rest.split_at(end.unwrap_or(rest.len()));
            // A list of names: `path::{a, b::c}`.
            let list = behind.strip_prefix('{').and_then(|list| list.split('}').next());
            for name in list.unwrap_or_default().split(',').map(str::trim) {
                let mut whole: Vec<&str> = base.to_vec();
                whole.extend(path.split("::").chain(name.split("::")).filter(|part| !part.is_empty()));
                let longest = (1..=whole.len()).rev().map(|length| whole[..length].join("/"));
                called.extend(longest.filter(|path| path != file).find(|path| files.contains(path)));
            }
        }
    }
    called
}

/// Files that reach each other, in both directions.
fn circles(calls: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for called in &calls[file] {
                if reached.insert(called.clone()) {
                    next.push(called);
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = calls.keys().map(|file| (file, reached(file))).collect();
    let circle = |file: &String| -> BTreeSet<String> {
        reach[file].iter().filter(|other| reach[other].contains(file)).cloned().collect()
    };
    calls.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// Circles of files that there are; there are to be fewer, and no others.
const CIRCLES: [&[&str]; 3] = [
    &[
        "fabric/answered",
        "fabric/arrangements",
        "fabric/carriers",
        "fabric/connection",
        "fabric/joining",
        "fabric/label",
        "fabric/link_driver",
        "fabric/neighbour",
        "fabric/neighbourhood",
        "fabric/paths",
        "fabric/stirred",
        "fabric/table",
        "fabric/third_party",
        "fabric/wanted",
    ],
    &[
        "programs/access",
        "programs/awake",
        "programs/domain",
        "programs/domains",
        "programs/own",
        "programs/requests",
        "programs/windows",
    ],
    &["driver/loopback", "driver/own_accesses", "driver/own_moves", "driver/pump"],
];

#[test]
fn files_that_call_each_other_are_known() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_read = |file: &PathBuf| {
        let path = file.to_string_lossy();
        path.ends_with(".rs") && !path.ends_with("tests.rs") && !path.contains("fuzzing")
    };
    let named = |file: &Path| {
        let path = file.strip_prefix(&source).unwrap().with_extension("").to_string_lossy().into_owned();
        path.trim_end_matches("/mod").to_owned()
    };
    let texts: BTreeMap<String, String> = files(&source)
        .into_iter()
        .filter(is_read)
        .map(|file| (named(&file), fs::read_to_string(&file).unwrap()))
        .collect();
    let all: BTreeSet<String> = texts.keys().cloned().collect();
    let calls = texts.iter().map(|(file, text)| (file.clone(), called(file, text, &all))).collect();
    let known = CIRCLES.map(|circle| circle.iter().map(|file| (*file).to_owned()).collect());
    assert_eq!(circles(&calls), BTreeSet::from(known));
}

#[test]
fn circles_of_files_are_found() {
    let files = ["a/one", "a/two", "b/three", "b"].map(str::to_owned).into();
    let texts = [
        ("a/one", "use super::two::X;"),
        ("a/two", "use crate::b::{Y, three::Z};"),
        ("b/three", "fn f() { crate::a::one::g() }\n// super::nothing"),
        ("b", ""),
    ];
    let calls = texts.map(|(file, text)| (file.to_owned(), called(file, text, &files))).into();
    let circle = ["a/one", "a/two", "b/three"].map(str::to_owned);
    assert_eq!(circles(&calls), BTreeSet::from([BTreeSet::from(circle)]));
}
