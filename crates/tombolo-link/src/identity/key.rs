//! X25519 keys and how people write them.

use std::fmt;
use std::str::FromStr;

use snow::params::{DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::Zeroizing;

/// The prefix of a public key's text.
pub const PUBLIC_PREFIX: &str = "tombolo-public:";
/// The prefix of a secret key's text.
pub const SECRET_PREFIX: &str = "tombolo-secret:";
/// The length of an X25519 key.
pub(crate) const KEY_BYTES: usize = 32;

/// Why parsing a key failed. The message does not repeat the text, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text does not begin with the prefix.
    #[error("a key begins with `{expected}`")]
    Prefix {
        /// The prefix.
        expected: &'static str,
    },
    /// A secret where a public key belongs.
    #[error("this is a secret key: only public keys (`{PUBLIC_PREFIX}`) belong here")]
    Secret,
    /// What follows the prefix is not 64 hexadecimal digits.
    #[error("a key has {} hexadecimal digits after its prefix", 2 * KEY_BYTES)]
    Digits,
    /// The key is one of those that give the same shared secret with any secret.
    #[error("this key is one of a few that protect nothing")]
    Weak,
    /// The system gives no random numbers.
    #[error("cannot make a key: the system gives no random numbers")]
    NoRandomness,
}

/// The half of a key pair that others know a node by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }
}

impl PublicKey {
    /// Enough of it to tell one from the other, for people.
    pub fn short(&self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(PUBLIC_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.starts_with(SECRET_PREFIX) {
            return Err(KeyError::Secret);
        }
        let digits = text.strip_prefix(PUBLIC_PREFIX).ok_or(KeyError::Prefix { expected: PUBLIC_PREFIX })?;
        let bytes = *from_hex(digits)?;
        // With any secret, the zero key gives the same shared secret.
        if bytes == [0; KEY_BYTES] { Err(KeyError::Weak) } else { Ok(Self(bytes)) }
    }
}

/// A node's secret key and the public key that belongs to it.
#[derive(Clone)]
pub struct KeyPair {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl KeyPair {
    /// A new pair, from the system's randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(secret.as_mut_slice(), flags) {
            Ok(KEY_BYTES) => Self::from_secret(secret),
            _ => Err(KeyError::NoRandomness),
        }
    }

    fn from_secret(secret: Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, KeyError> {
        let mut curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519).ok_or(KeyError::NoRandomness)?;
        curve.set(secret.as_slice());
        let public = curve.pubkey().first_chunk().map(|bytes| PublicKey(*bytes)).ok_or(KeyError::Digits)?;
        Ok(Self { secret, public })
    }

    /// Reads a secret key's text.
    pub fn parse_secret(text: &str) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(SECRET_PREFIX).ok_or(KeyError::Prefix { expected: SECRET_PREFIX })?;
        Self::from_secret(from_hex(digits)?)
    }

    /// The secret key's text, which only its owner may see.
    pub fn secret_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(SECRET_PREFIX.len() + 2 * KEY_BYTES));
        text.push_str(SECRET_PREFIX);
        for byte in self.secret.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text
    }

    /// The public half, which others need.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// A number that depends on the secret key and on some bytes, the same each time. Only the holder of the secret key can compute it.
    #[must_use]
    pub fn number_of(&self, bytes: &[u8]) -> u64 {
        let Some(mut hash) = DefaultResolver.resolve_hash(&HashChoice::SHA256) else { return 0 };
        let mut digest = [0; 32];
        hash.reset();
        hash.input(b"tombolo number\0");
        hash.input(&*self.secret);
        hash.input(bytes);
        hash.result(&mut digest);
        digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub(crate) fn secret_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }
}

impl fmt::Debug for KeyPair {
    /// The public half alone.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyPair({})", self.public)
    }
}

fn from_hex(text: &str) -> Result<Zeroizing<[u8; KEY_BYTES]>, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    if text.len() != 2 * KEY_BYTES {
        return Err(KeyError::Digits);
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(KeyError::Digits);
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_secret_and_the_bytes() {
        let [one, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let again = KeyPair::parse_secret(&one.secret_text()).unwrap();
        assert_eq!(one.number_of(b"a port"), again.number_of(b"a port"));
        assert_ne!(one.number_of(b"a port"), one.number_of(b"a fort"));
        assert_ne!(one.number_of(b"a port"), other.number_of(b"a port"));
    }

    #[test]
    fn keys_read_back_as_written() {
        let pair = KeyPair::generate().unwrap();
        assert_eq!(pair.public().to_string().parse(), Ok(pair.public()));
        let again = KeyPair::parse_secret(&pair.secret_text()).unwrap();
        assert_eq!((again.public(), again.secret), (pair.public(), pair.secret.clone()));
        assert_ne!(KeyPair::generate().unwrap().public(), pair.public());
        let shown = format!("{pair:?}");
        assert!(!shown.contains(&pair.secret_text()[SECRET_PREFIX.len()..]), "{shown}");
    }

    /// RFC 7748 §6.1: Alice's keys.
    #[test]
    fn the_public_key_is_that_of_the_standard() {
        let secret = "tombolo-secret:77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
        let public = "tombolo-public:8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        assert_eq!(KeyPair::parse_secret(secret).unwrap().public().to_string(), public);
    }

    #[test]
    fn mistakes_are_named() {
        let pair = KeyPair::generate().unwrap();
        let public = pair.public().to_string();
        assert_eq!(pair.secret_text().parse::<PublicKey>(), Err(KeyError::Secret));
        assert_eq!(public[1..].parse::<PublicKey>(), Err(KeyError::Prefix { expected: PUBLIC_PREFIX }));
        assert_eq!(public[..40].parse::<PublicKey>(), Err(KeyError::Digits));
        assert_eq!(format!("{}xy", &public[..77]).parse::<PublicKey>(), Err(KeyError::Digits));
        assert_eq!(format!("{PUBLIC_PREFIX}{}", "0".repeat(64)).parse::<PublicKey>(), Err(KeyError::Weak));
        let error = KeyPair::parse_secret(&public).unwrap_err();
        assert_eq!(error, KeyError::Prefix { expected: SECRET_PREFIX });
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_key_or_an_error(text in ".{0,100}", bytes: [u8; KEY_BYTES]) {
            let _ = text.parse::<PublicKey>();
            let _ = KeyPair::parse_secret(&text);
            let _ = format!("{PUBLIC_PREFIX}{text}").parse::<PublicKey>();
            let key = PublicKey::from_bytes(bytes);
            proptest::prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}
