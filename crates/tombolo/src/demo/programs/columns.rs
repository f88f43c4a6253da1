//! Sums by group over the columns of a table, as an analysis has them: `SELECT shop, sum(price * pieces) GROUP BY shop`.

use std::collections::HashMap;
use std::time::Instant;

use tombolo_random::{Random, mix};

use super::{Ran, Workload, run_own};
use crate::demo::compare::{Demo, Place};
use crate::failure::Failure;
use crate::output;

const ROWS: usize = 4_000_000;
const SHOPS: u64 = 5_000;
/// As many questions are asked of the table.
const PASSES: usize = 4;

/// The workload: this binary once more.
pub struct Columns;

impl Workload for Columns {
    fn name(&self) -> &'static str {
        "columns"
    }

    fn about(&self) -> &'static str {
        "sums by group over the columns of a table"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<Ran, Failure> {
        run_own(demo, place, "demo-columns")
    }
}

/// A table of sales, a column in one piece of memory.
struct Sales {
    shops: Vec<u32>,
    prices: Vec<u64>,
    pieces: Vec<u32>,
}

impl Sales {
    fn new(rows: usize) -> Self {
        let mut random = Random::new(3);
        let mut sales = Self { shops: Vec::new(), prices: Vec::new(), pieces: Vec::new() };
        sales.shops.extend((0..rows).map(|_| random.below(SHOPS) as u32));
        sales.prices.extend((0..rows).map(|_| 99 + random.below(10_000)));
        sales.pieces.extend((0..rows).map(|_| 1 + random.below(9) as u32));
        sales
    }

    /// The turnover of each shop, counting only sales of at least `least_pieces` pieces.
    fn sums(&self, least_pieces: u32) -> HashMap<u32, u64> {
        let mut sums = HashMap::new();
        for ((shop, price), pieces) in self.shops.iter().zip(&self.prices).zip(&self.pieces) {
            if *pieces >= least_pieces {
                *sums.entry(*shop).or_default() += price * u64::from(*pieces);
            }
        }
        sums
    }
}

/// The program: fills the table, asks it several times, and prints how long that took and a sum of the answers.
pub fn columns() -> Result<u8, Failure> {
    let sales = Sales::new(ROWS);
    let since = Instant::now();
    let mut found = 0u64;
    for pass in 0..PASSES {
        let sums = sales.sums(1 + pass as u32);
        // In no order: a sum of what each is.
        let all = sums.iter().map(|(shop, sum)| mix(u64::from(*shop) << 40 ^ sum));
        found = mix(found ^ all.fold(0, u64::wrapping_add));
    }
    output::line(&format!("{} {found:016x}", since.elapsed().as_secs_f64()));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_each_row() {
        let sales = Sales::new(2000);
        let all: u64 =
            sales.prices.iter().zip(&sales.pieces).map(|(price, pieces)| price * u64::from(*pieces)).sum();
        assert_eq!(sales.sums(1).values().sum::<u64>(), all);
        assert!(sales.sums(9).values().sum::<u64>() < all / 3);
    }
}
