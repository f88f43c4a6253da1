//! What a node shows to all programs, in memory that they map and cannot write: which ports are worth a question.
//!
//! So a connection to anywhere else costs a look at a bit, and an accepted one too, while nothing is offered.

/// Bytes of the table.
pub const BYTES: usize = 16384;
/// What its first word is.
pub const MAGIC: u64 = 0x746f_6d62_6f6c_6f01;
/// Index of the word with the number of the last connection. It is written before anybody can have an end of that number.
pub const LAST_ID: usize = 1;
/// Index of the word with the number of all connections that a server may ask for.
pub const OPEN: usize = 2;
/// Index of the word that tells nodes apart: another one has noted no listeners yet. 0: there is none.
pub const NODE: usize = 3;
/// Index of the first word of bits, one a port: a listener there gets offers, in whatever namespace.
pub const PORTS: usize = 16;
/// Index of the first word of counts, by [`bucket`]: connections that a server may ask for.
pub const COUNTS: usize = PORTS + 1024;
/// Number of counts.
pub const BUCKETS: usize = 512;

const _: () = assert!((COUNTS + BUCKETS) * 8 <= BYTES);

/// Word and bit of a port.
pub const fn port(port: u16) -> (usize, u64) {
    (PORTS + port as usize / 64, 1 << (port % 64))
}

/// Word of the count of a port.
pub const fn bucket(port: u16) -> usize {
    COUNTS + port as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_bit_of_its_own() {
        assert_eq!(port(0), (PORTS, 1));
        assert_eq!(port(65535), (PORTS + 1023, 1 << 63));
        assert_eq!((bucket(65535), bucket(511)), (COUNTS + 511, COUNTS + 511));
    }
}
