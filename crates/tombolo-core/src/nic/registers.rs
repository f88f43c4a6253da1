//! The configuration words of the shared MAC (MICRO Table 6.2), computed from the uplink's present state. The positions of
//! the bits are those of the prototype's 10-gigabit MAC (Xilinx PG072, "Configuration Registers").
//!
//! The words are not virtualised (MICRO §6.1.9): all ports share them, and only the uplink's owner changes them.

use super::Mac;

/// The state that the words show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacState {
    /// The uplink's hardware address.
    pub address: Mac,
    /// Most bytes after an Ethernet header.
    pub mtu: u32,
    /// Whether the uplink has a carrier.
    pub has_carrier: bool,
    /// Version of the uplink's owner: major, minor, patch.
    pub version: [u8; 3],
}

/// A configuration word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name in Table 6.2.
    pub name: &'static str,
    /// Its value.
    pub value: u32,
    /// The value in words.
    pub meaning: String,
}

const VLAN: u32 = 1 << 27;
const ENABLE: u32 = 1 << 28;
const JUMBO: u32 = 1 << 30;
const REMOTE_FAULT: u32 = 1 << 29;
const MTU_ENABLE: u32 = 1 << 16;
const SPEED_10G: u32 = 1 << 3;
const STATISTICS: u32 = 1 << 8;
/// Bytes of a frame's addresses, type and checksum.
const FRAME_EXTRA: u32 = 18;
/// The longest frame that is not a jumbo.
const FRAME_BYTES_MAX: u32 = 1518;

impl MacState {
    /// All nine configuration words.
    pub fn registers(&self) -> [Register; 9] {
        let [a, b, c, d, e, f] = self.address.0;
        let frame = self.mtu.saturating_add(FRAME_EXTRA).min(0x7fff);
        let jumbo = if frame > FRAME_BYTES_MAX { JUMBO } else { 0 };
        let frames = if jumbo != 0 { "VLANs, jumbo frames" } else { "VLANs" };
        let [major, minor, patch] = self.version;
        let register = |name, value, meaning: &str| Register { name, value, meaning: meaning.to_owned() };
        let longest = format!("frames of up to {frame} bytes");
        [
            register(
                "RCW0",
                u32::from_le_bytes([a, b, c, d]),
                "source address of pause frames, bytes 0 to 3",
            ),
            register(
                "RCW1",
                u32::from(u16::from_le_bytes([e, f])) | VLAN | ENABLE | jumbo,
                &format!("its bytes 4 and 5; receives: {frames}"),
            ),
            register("TCW", VLAN | ENABLE | jumbo, &format!("sends: {frames}")),
            register("FCC", 0, "no pause frames: floods stay at their ports"),
            register(
                "RSC",
                if self.has_carrier { 0 } else { REMOTE_FAULT },
                if self.has_carrier { "no fault" } else { "fault: no carrier" },
            ),
            register("RXMTU", MTU_ENABLE | frame, &longest),
            register("TXMTU", MTU_ENABLE | frame, &longest),
            register(
                "VR",
                u32::from_be_bytes([major, minor, patch, 0]),
                &format!("version {major}.{minor}.{patch} (read only)"),
            ),
            register("CR", SPEED_10G | STATISTICS, "10 Gb/s, statistics (read only)"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_how_the_uplink_is() {
        let address = Mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        let mut state = MacState { address, mtu: 1500, has_carrier: true, version: [1, 2, 3] };
        let words = |state: &MacState| state.registers().map(|register| register.value);
        let usual = words(&state);
        assert_eq!(usual[0], 0x3322_1102);
        assert_eq!(usual[1] & 0xffff, 0x5544);
        assert_eq!((usual[4], usual[5], usual[7]), (0, 0x1_05ee, 0x0102_0300));
        (state.mtu, state.has_carrier) = (9000, false);
        let other = words(&state);
        assert_eq!(other[2], usual[2] | JUMBO);
        assert_eq!((other[4], other[6]), (REMOTE_FAULT, MTU_ENABLE | 9018));
        state.mtu = u32::MAX;
        assert_eq!(words(&state)[5], MTU_ENABLE | 0x7fff);
    }
}
