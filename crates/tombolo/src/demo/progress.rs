//! What the demo is doing: a bar where standard error is a terminal that can show one, a line for each step elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// The progress of a demo.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts at the first of `steps` steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:20}] {pos}/{len} {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// A step begins.
    pub fn step(&self, program: &'static str, text: &str) {
        if self.bar.is_hidden() {
            output::say(&format!("demo: {program}, {text} ..."));
        }
        self.bar.inc(u64::from(!self.bar.message().is_empty()));
        self.bar.set_message(format!("{program}, {text}"));
        self.bar.tick();
    }

    /// Shows that it goes on.
    pub fn tick(&self) {
        self.bar.tick();
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
