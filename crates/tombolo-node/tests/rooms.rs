//! A room calls only rooms below it: no circle of files between rooms.

use std::collections::BTreeSet;
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
