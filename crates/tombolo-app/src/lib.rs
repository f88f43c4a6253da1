//! What the `tombolo` command, the benches (`tombolo-bench`) and the developers' tasks (`xtask`) share.

#![forbid(unsafe_code)]

pub mod child;
pub mod redis;
pub mod scratch;
pub mod size;
pub mod swap;

/// The middle one of these values, or the mean of the two in the middle. `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { high } else { (values[middle - 1] + high) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
