//! Tables that fit a terminal.

use std::iter;

/// A column, and how it is made to fit.
#[derive(Clone, Copy)]
pub struct Column {
    title: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Names: shortened in the middle where the table is too wide.
    Name,
    /// Figures: on the right, never shortened.
    Figure,
    /// Never shortened. Where it does not fit it goes to the next line. The last column only.
    Rest,
}

/// No terminal is taken to be narrower.
const WIDTH_MIN: usize = 80;
/// Names are not shortened below this.
const NAME_MIN: usize = 8;
/// Before what does not fit behind its row.
const INDENT: &str = "    ";

impl Column {
    pub const fn name(title: &'static str) -> Self {
        Self { title, kind: Kind::Name }
    }

    pub const fn figure(title: &'static str) -> Self {
        Self { title, kind: Kind::Figure }
    }

    pub const fn rest(title: &'static str) -> Self {
        Self { title, kind: Kind::Rest }
    }
}

/// How many columns the terminal has. What goes to a file or another program is not made to fit.
pub fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(usize::MAX, |size| usize::from(size.ws_col).max(WIDTH_MIN))
}

/// The lines of a table that is `width` wide. Each row has a cell for each column.
pub fn lines(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<String> {
    // Names come from other processes, which may be another user's.
    let shown =
        |row: &Vec<String>| row.iter().map(|cell| cell.replace(char::is_control, "\u{FFFD}")).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let all = || iter::once(&titles).chain(&rows);
    let longest = |index: usize| all().filter_map(|row| row.get(index)).map(|cell| letters(cell)).max();
    let mut widths: Vec<usize> = (0..columns.len()).map(|index| longest(index).unwrap_or(0)).collect();
    let is_rest = |index: usize| columns[index].kind == Kind::Rest;
    let sum = |widths: &[usize]| -> usize {
        let fixed = (0..widths.len()).filter(|index| !is_rest(*index));
        fixed.map(|index| widths[index] + 1).sum::<usize>().saturating_sub(1)
    };
    // The longest name gives way first.
    while sum(&widths) > width {
        let names = (0..columns.len()).filter(|index| columns[*index].kind == Kind::Name);
        let Some(index) = names.filter(|index| widths[*index] > NAME_MIN).max_by_key(|index| widths[*index])
        else {
            break;
        };
        widths[index] -= 1;
    }
    // The last cells of all rows are behind them, or none.
    let rest_width = (0..columns.len()).filter(|index| is_rest(*index)).map(|index| widths[index] + 1).sum();
    let has_room = width.saturating_sub(sum(&widths)) >= rest_width;
    let mut lines = Vec::new();
    for row in all() {
        let (mut line, mut rest) = (String::new(), "");
        for (index, (column, cell)) in columns.iter().zip(row).enumerate() {
            match column.kind {
                Kind::Rest => {
                    rest = cell;
                    continue;
                }
                _ if index > 0 => line.push(' '),
                _ => {}
            }
            let cell = shortened(cell, widths[index]);
            let space = " ".repeat(widths[index] - letters(&cell));
            match column.kind {
                Kind::Figure => line.extend([space.as_str(), cell.as_str()]),
                _ => line.extend([cell.as_str(), space.as_str()]),
            }
        }
        if !rest.is_empty() && has_room {
            line.extend([" ", rest]);
            rest = "";
        }
        lines.push(line.trim_end().to_owned());
        if !rest.is_empty() {
            lines.push(format!("{INDENT}{rest}"));
        }
    }
    lines
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// The beginning and the end of a text that is too long.
fn shortened(text: &str, width: usize) -> String {
    let count = letters(text);
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (front, back) = (kept.div_ceil(2), kept / 2);
    text.chars().take(front).chain(iter::once('…')).chain(text.chars().skip(count - back)).collect()
}

/// Several tables below each other, without those that have no rows.
pub fn sections(sections: &[(&[Column], Vec<Vec<String>>)], width: usize) -> Vec<String> {
    let mut all = Vec::new();
    for (columns, rows) in sections.iter().filter(|(_, rows)| !rows.is_empty()) {
        if !all.is_empty() {
            all.push(String::new());
        }
        all.extend(lines(columns, rows, width));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [Column::name("NAME"), Column::figure("PID"), Column::figure("FAR"), Column::rest("LENDERS")];

    fn row(cells: [&str; 4]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [row(["sort", "7", "4 MiB", "one"]), row(["é", "12345", "16 MiB", ""])];
        assert_eq!(
            lines(&COLUMNS, &rows, 80),
            ["NAME   PID    FAR LENDERS", "sort     7  4 MiB one", "é    12345 16 MiB"]
        );
    }

    #[test]
    fn no_cell_does_anything_to_a_terminal() {
        let rows = [row(["\u{1b}[2Jsort\n", "7", "4 MiB", "one\r"])];
        assert_eq!(lines(&COLUMNS, &rows, 80)[1], "\u{FFFD}[2Jsort\u{FFFD}   7 4 MiB one\u{FFFD}");
    }

    #[test]
    fn what_does_not_fit_is_shortened_or_goes_to_the_next_line() {
        let rows = [row(["a-name-that-is-long", "7", "4 MiB", "shm:/run/tombolo/lender"])];
        assert_eq!(
            lines(&COLUMNS, &rows, 24),
            [
                "NAME           PID   FAR",
                "    LENDERS",
                "a-name-…s-long   7 4 MiB",
                "    shm:/run/tombolo/lender"
            ]
        );
        // Figures are right or not there: they are never cut.
        let narrow = lines(&COLUMNS, &rows, 3);
        assert!(narrow[2].ends_with("7 4 MiB") && narrow[2].starts_with("a-na…ong"), "{narrow:?}");
    }
}
