//! `cargo xtask recording`: runs the first commands of README and draws what they print, as `docs/recording.svg`.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::root;

/// Lines of a command's output that are shown, half of them from its beginning.
const MAX_LINES: usize = 36;
/// The longest pause that the picture shows; a build takes minutes.
const MAX_PAUSE: Duration = Duration::from_millis(700);
/// How long the typing of a command takes.
const TYPING: Duration = Duration::from_millis(900);

const CHARACTER_WIDTH: f64 = 7.8;
const LINE_HEIGHT: usize = 18;
const COLUMNS: usize = 92;
const MARGIN: usize = 14;

/// A line of the picture, and when it appears.
#[derive(Debug, PartialEq)]
struct Line {
    at: Duration,
    text: String,
    is_command: bool,
}

/// The commands of the first block of a page.
fn commands(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != "```sh").skip(1);
    lines.take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Runs a command; each line that it prints, and when.
fn run(command: &str) -> Result<Vec<(Duration, String)>, String> {
    let since = Instant::now();
    // One stream, in the order in which it was written.
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(root()).env("COLUMNS", "80");
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}/bin:{path}", home.unwrap_or_default()));
    let mut child = shell.stdout(Stdio::piped()).spawn().map_err(|error| format!("sh: {error}"))?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        println!("{line}");
        lines.push((since.elapsed(), without_paths(&line)));
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    status.success().then_some(lines).ok_or_else(|| format!("{command}: {status}"))
}

/// Replaces the paths of this clone and of the home directory by `~/tombolo` and `~`.
fn without_paths(line: &str) -> String {
    let line = line.replace(&root().display().to_string(), "~/tombolo");
    match std::env::var("HOME") {
        Ok(home) if home.len() > 1 => line.replace(&home, "~"),
        _ => line,
    }
}

/// Puts a command and its output behind what there is, with pauses cut short.
fn add(lines: &mut Vec<Line>, command: &str, output: &[(Duration, String)]) {
    let begin = lines.last().map_or(Duration::ZERO, |line| line.at + MAX_PAUSE);
    lines.push(Line { at: begin, text: format!("$ {command}"), is_command: true });
    let (mut at, mut before) = (begin + TYPING, Duration::ZERO);
    let dropped = output.len().saturating_sub(MAX_LINES);
    for (index, (time, text)) in output.iter().enumerate() {
        let begins = MAX_LINES / 2;
        if dropped > 0 && (begins..begins + dropped).contains(&index) {
            if index == begins {
                at += MAX_PAUSE;
                lines.push(Line { at, text: "...".into(), is_command: false });
            }
            before = *time;
            continue;
        }
        at += time.saturating_sub(before).min(MAX_PAUSE);
        before = *time;
        lines.push(Line { at, text: text.chars().take(COLUMNS).collect(), is_command: false });
    }
}

/// A picture in which the lines appear one after the other. Where motion is not wanted, all of them are there.
fn draw(lines: &[Line]) -> String {
    let width = COLUMNS as f64 * CHARACTER_WIDTH + 2.0 * MARGIN as f64;
    let height = lines.len() * LINE_HEIGHT + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" width=\"{width:.0}\" \
         font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"13\">\n\
         <title>A terminal: the first commands of README, and what they print</title>\n\
         <style>\n\
         text {{ fill: #d7dde3; white-space: pre }} .command {{ fill: #8fd18f; font-weight: bold }}\n\
         @keyframes appear {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}\n\
         @media (prefers-reduced-motion: no-preference) {{ text {{ opacity: 0; animation: appear 0.1s forwards }} }}\n\
         </style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b2127\"/>\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let y = MARGIN + index * LINE_HEIGHT + 13;
        let class = if line.is_command { " class=\"command\"" } else { "" };
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{y}\"{class} style=\"animation-delay: {:.2}s\">{}</text>",
            line.at.as_secs_f64(),
            escape(&line.text)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Runs the commands and writes the picture.
pub fn main() -> Result<(), String> {
    let read = |name: &str| fs::read_to_string(root().join(name)).map_err(|error| format!("{name}: {error}"));
    let mut lines = Vec::new();
    for command in commands(&read("README.md")?) {
        println!("$ {command}");
        let output = run(&command)?;
        add(&mut lines, &command, &output);
    }
    let picture = root().join("docs/recording.svg");
    fs::write(&picture, draw(&lines)).map_err(|error| format!("{}: {error}", picture.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_outputs_and_long_pauses_are_cut() {
        let page = "# T\n```sh\none\ntwo\n```\n```sh\nthree\n```\n";
        assert_eq!(commands(page), ["one", "two"]);
        let output: Vec<_> =
            (0..100).map(|number| (Duration::from_secs(number), format!("line {number}"))).collect();
        let mut lines = Vec::new();
        add(&mut lines, "one", &output);
        assert_eq!(lines.len(), 1 + MAX_LINES + 1);
        assert_eq!(lines[MAX_LINES + 1].text, "line 99");
        assert!(lines[MAX_LINES + 1].at < Duration::from_secs(40), "{:?}", lines.last());
        add(&mut lines, "echo '<&>'", &[]);
        let svg = draw(&lines);
        assert!(svg.contains("$ echo '&lt;&amp;&gt;'</text>"), "{svg}");
        assert!(roxmltree::Document::parse(&svg).is_ok(), "{svg}");
    }
}
