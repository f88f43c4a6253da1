//! How long each stage of a run took, and how long all processors together were busy meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

use tombolo_host::cpu::Stopwatch;

/// The stages so far, in order.
#[derive(Default)]
pub struct Stages(Vec<Stage>);

struct Stage {
    name: &'static str,
    wall: Duration,
    /// Of all processors, by whatever process: tests start some that are not their children.
    busy_seconds: Option<f64>,
}

impl Stages {
    /// Runs a stage, and notes how long it took.
    pub fn run<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let (since, watch) = (Instant::now(), Stopwatch::start());
        let done = work();
        let busy_seconds = watch.and_then(|watch| watch.elapsed()).ok().map(|(_, busy)| busy);
        self.0.push(Stage { name, wall: since.elapsed(), busy_seconds });
        done
    }

    /// All of them together.
    pub fn total(&self) -> Duration {
        self.0.iter().map(|stage| stage.wall).sum()
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:32}{:>14}{:>18}", "stage", "time", "processors busy")?;
        for stage in &self.0 {
            let busy =
                stage.busy_seconds.map_or("-".into(), |busy| minutes(Duration::from_secs_f64(busy.max(0.0))));
            writeln!(f, "{:32}{:>14}{busy:>18}", stage.name, minutes(stage.wall))?;
        }
        Ok(())
    }
}

/// As `12 min 05 s`.
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    format!("{} min {:02} s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_fails_is_listed_too() {
        let mut stages = Stages::default();
        assert_eq!(stages.run("one", || Ok(7)), Ok(7));
        assert_eq!(stages.run("other", || Err::<(), _>("no".to_owned())), Err("no".into()));
        let text = stages.to_string();
        assert!(text.contains("one ") && text.contains("other "), "{text}");
        assert_eq!(minutes(Duration::from_secs(725)), "12 min 05 s");
    }
}
