//! What `tombolo node` says while it runs, on standard error: when, how important it is, and about whom. And
//! what `tombolo run` tells its user meanwhile.

mod lines;

use std::io::Write;

use clap::Args;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;

/// How much is logged, and in which form.
#[derive(Args)]
pub struct LogArguments {
    /// How much to say while running.
    #[arg(
        long = "log",
        value_name = "LEVEL",
        env = "TOMBOLO_LOG", hide_env_values = true,
        default_value = "info",
        value_parser = ["off", "error", "warn", "info", "debug", "trace"]
    )]
    level: String,
    /// Say it in JSON, an object a line.
    #[arg(long = "log-json")]
    json: bool,
}

/// A way to tell the user something that never waits and never fails, for threads that others wait for; and
/// what writes the rest in the end.
pub fn notices() -> Result<(impl Fn(&str) + Clone + Send + Sync + 'static, Log), Failure> {
    let (lines, ending) = lines::to_standard_error(lines::Form::Text)?;
    let notify = move |text: &str| {
        // It takes or leaves each line as a whole.
        let _ = lines.clone().write_all(format!("tombolo: {text}\n").as_bytes());
    };
    Ok((notify, Log(ending)))
}

/// Dropping this writes the lines that are still in the queue, for `LOG_END_TIMEOUT` at most.
pub struct Log(#[expect(dead_code, reason = "it does its work when it is dropped")] lines::Ending);

impl LogArguments {
    /// Sends what is logged from now on to standard error.
    pub fn begin(&self) -> Result<Log, Failure> {
        let level: LevelFilter = self.level.parse()?;
        let form = if self.json { lines::Form::Json } else { lines::Form::Text };
        let (lines, ending) = lines::to_standard_error(form)?;
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_target(false)
            .with_writer(move || lines.clone());
        match form {
            lines::Form::Json => {
                tracing::subscriber::set_global_default(subscriber.json().flatten_event(true).finish())
            }
            lines::Form::Text => tracing::subscriber::set_global_default(subscriber.finish()),
        }?;
        Ok(Log(ending))
    }
}
