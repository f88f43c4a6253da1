//! Session numbers that prove where a stranger is, without anything being kept for it.
//!
//! The number is a MAC over the stranger's address, the nonce of its hello and the time. Who can
//! say it again has received it there; who made up its address has not.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use ring::hmac::{HMAC_SHA256, Key, sign};
use rustix::io::Errno;
use tombolo_host::timing::link::COOKIE_PERIOD;
use zeroize::Zeroizing;

/// Makes and checks the cookies of one listener.
pub(super) struct Cookies {
    key: Key,
    began: Instant,
}

impl Cookies {
    pub(super) fn new(now: Instant) -> Result<Self, Errno> {
        let mut secret = Zeroizing::new([0_u8; 32]);
        rustix::rand::getrandom(secret.as_mut_slice(), rustix::rand::GetRandomFlags::empty())?;
        Ok(Self { key: Key::new(HMAC_SHA256, secret.as_slice()), began: now })
    }

    fn period(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / COOKIE_PERIOD.as_secs()
    }

    fn cookie(&self, period: u64, from: SocketAddr, nonce: u64) -> u64 {
        let mut text = [0; 34];
        let ip = match from.ip() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        text[..16].copy_from_slice(&ip.octets());
        text[16..18].copy_from_slice(&from.port().to_le_bytes());
        text[18..26].copy_from_slice(&nonce.to_le_bytes());
        text[26..].copy_from_slice(&period.to_le_bytes());
        let tag = sign(&self.key, &text);
        tag.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The session number to welcome that stranger with.
    pub(super) fn bake(&self, from: SocketAddr, nonce: u64, now: Instant) -> u64 {
        self.cookie(self.period(now), from, nonce)
    }

    /// Whether that stranger was welcomed with this number, not long ago.
    pub(super) fn fits(&self, session: u64, from: SocketAddr, nonce: u64, now: Instant) -> bool {
        let period = self.period(now);
        [period, period.saturating_sub(1)].iter().any(|period| self.cookie(*period, from, nonce) == session)
    }
}

impl fmt::Debug for Cookies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cookies")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cookie_fits_its_stranger_for_a_while() {
        let start = Instant::now();
        let cookies = Cookies::new(start).unwrap();
        let after = |seconds| start + Duration::from_secs(seconds);
        let from: SocketAddr = "192.0.2.1:700".parse().unwrap();
        let cookie = cookies.bake(from, 5, after(29));
        for (seconds, fits) in [(29, true), (31, true), (59, true), (61, false)] {
            assert_eq!(cookies.fits(cookie, from, 5, after(seconds)), fits, "{seconds}");
        }
        let now = after(29);
        assert!(!cookies.fits(cookie, from, 6, now));
        assert!(!cookies.fits(cookie ^ 1, from, 5, now));
        for other in ["192.0.2.1:701", "192.0.2.2:700", "[2001:db8::1]:700"] {
            assert!(!cookies.fits(cookie, other.parse().unwrap(), 5, now));
        }
        assert!(!Cookies::new(start).unwrap().fits(cookie, from, 5, now));
    }
}
