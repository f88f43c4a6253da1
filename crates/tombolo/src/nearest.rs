//! The name that was meant by one that does not exist.

/// The name that is most like the one that was written, if one is like it.
pub fn nearest<'a>(meant: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = meant.chars().count().div_ceil(3);
    let distances = names.map(|name| (distance(meant, name), name));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// The edit distance of two names: letters to change, add or leave out, and neighbours to swap.
fn distance(one: &str, other: &str) -> usize {
    let letters = |name: &str| -> Vec<char> { name.chars().flat_map(char::to_lowercase).collect() };
    let (one, other) = (letters(one), letters(other));
    // The distances of the beginnings of `one` to all beginnings of `other`: of the last two, and of the present one.
    let (mut before, mut last) = (Vec::new(), (0..=other.len()).collect::<Vec<usize>>());
    for (row, letter) in one.iter().enumerate() {
        let mut present = vec![row + 1];
        for (column, wanted) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(wanted != letter);
            let mut least = replaced.min(last[column + 1] + 1).min(present[column] + 1);
            let is_swapped = row > 0 && column > 0 && one[row - 1] == *wanted && other[column - 1] == *letter;
            if is_swapped {
                least = least.min(before[column - 1] + 1);
            }
            present.push(least);
        }
        before = std::mem::replace(&mut last, present);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_changed_added_left_out_and_swapped() {
        for (one, other, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("data", "data", 0),
            ("data", "DATA", 0),
            ("dtaa", "data", 1),
            ("daat", "data", 1),
            ("dat", "data", 1),
            ("dataa", "data", 1),
            ("dota", "data", 1),
            ("run", "top", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), wanted, "{one} {other}");
            assert_eq!(distance(other, one), wanted, "{other} {one}");
        }
        let near = |meant| nearest(meant, ["results.csv", "result", "picture.png"].into_iter());
        assert_eq!([near("results.csv~"), near("Results.CSV")], [Some("results.csv"); 2]);
        assert_eq!(near("reslut"), Some("result"));
        assert_eq!(near("entirely else"), None);
    }
}
