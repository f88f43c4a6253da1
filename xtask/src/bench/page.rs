//! `bench/RESULTS.md`: a part for each bench, between two comments. A bench
//! rewrites its own part, and leaves everything else as it is.

use std::fs;
use std::path::Path;

const FILE: &str = "RESULTS.md";

const HEADING: &str = "# Results\n\nWhat `cargo xtask bench` found on one machine; see [README.md](README.md) for how to \
                       repeat it. Ratios travel to\nother machines, absolute figures do not.\n";

/// The whole page with this part in its place; a part that is not there yet comes at the end.
fn replace(page: &str, name: &str, part: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- begin {name} -->"), format!("<!-- end {name} -->"));
    let text = format!("{begin}\n\n{}\n\n{end}", part.trim());
    let page = if page.trim().is_empty() { HEADING } else { page };
    match (page.split_once(&begin), page.split_once(&end)) {
        (Some((before, from)), Some((_, after))) if from.contains(&end) => {
            Ok(format!("{before}{text}{after}"))
        }
        (None, None) => Ok(format!("{}\n\n{text}\n", page.trim_end())),
        _ => Err(format!(
            "bench/{FILE}: one of \"{begin}\" and \"{end}\" is missing; the part is between both"
        )),
    }
}

/// Writes a file of `bench/` in one step: never half of it.
pub fn keep(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("bench/{name}: {error}");
    fs::create_dir_all(folder).map_err(failed)?;
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, text).map_err(failed)?;
    fs::rename(&new, folder.join(name)).map_err(failed)
}

/// Writes a bench's part.
pub fn write(folder: &Path, name: &str, part: &str) -> Result<(), String> {
    let page = match fs::read_to_string(folder.join(FILE)) {
        Ok(page) => page,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("bench/{FILE}: {error}")),
    };
    keep(folder, FILE, &replace(&page, name, part)?)?;
    eprintln!("bench: bench/{FILE} is written");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_added_and_rewritten_and_the_others_stay() {
        let first = replace("", "paging", "## Paging\n\nfirst\n").unwrap();
        assert!(first.starts_with("# Results\n"));
        let both = replace(&first, "rdma", "## Transfers\n\ntwo").unwrap();
        assert!(both.starts_with(first.trim_end()));
        let again = replace(&both, "paging", "## Paging\n\nthree").unwrap();
        assert_eq!(again, both.replace("first", "three"));
        assert_eq!(replace(&again, "rdma", "## Transfers\n\ntwo").unwrap(), again);
    }

    #[test]
    fn what_is_written_by_hand_stays() {
        let page = "# Mine\n\n<!-- begin rdma -->\nold\n<!-- end rdma -->\n\nthe end\n";
        let new = replace(page, "rdma", "new").unwrap();
        assert_eq!(new, "# Mine\n\n<!-- begin rdma -->\n\nnew\n\n<!-- end rdma -->\n\nthe end\n");
    }

    #[test]
    fn a_page_without_one_of_the_marks_is_refused() {
        for page in
            ["a <!-- begin rdma --> b", "a <!-- end rdma --> b", "<!-- end rdma --><!-- begin rdma -->"]
        {
            assert!(replace(page, "rdma", "part").unwrap_err().contains("is missing"), "{page}");
        }
    }

    #[test]
    fn the_page_in_the_repository_has_its_parts() {
        let page = fs::read_to_string(super::super::folder().join(FILE)).unwrap();
        let new = replace(&page, "paging", "PART").unwrap();
        assert!(new.contains("PART") && !new.contains("Faults and random reads"));
        assert!(new.starts_with("# Results\n"));
    }
}
