//! `tombolo demo`.
use clap::Args;
use crate::Failure;
/// Arguments of `tombolo demo`.
#[derive(Args)]
pub struct Arguments {}
/// Runs the demonstration.
pub fn main(_: &Arguments) -> Result<u8, Failure> { Ok(0) }
