//! Sizes on the command line: `4096`, `512K`, `256M`, `2G`.

/// The bytes that a text names.
pub fn parse(text: &str) -> Result<usize, String> {
    let refused = || format!("`{text}` is not a size: expected a whole number with K, M or G, as in 512M");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(refused()),
    };
    let number: usize = digits.parse().map_err(|_| refused())?;
    number.checked_mul(1 << shift).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_parsed_or_refused() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64k", 64 << 10), ("256M", 256 << 20), ("2G", 2 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "12X", "1MB", "99999999999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
