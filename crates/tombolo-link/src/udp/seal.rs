//! Sealing and opening the datagrams of a secure session: AES-256-GCM, each direction with its own
//! keys.
//!
//! ```text
//!  0                16        24                        len - 16
//!  │ header (clear)  │ counter │ body (encrypted)          │ tag │
//!  └──────── authenticated ────┘
//! ```
//!
//! The counter numbers the datagrams of one direction and never starts again; with the epoch it is
//! the nonce. After [`EPOCH_DATAGRAMS`] or [`SEAL_EPOCH`] the sender moves on to the next epoch, whose
//! key comes from a chain of secrets (HKDF) that only runs forward: who steals the present one
//! cannot read the past. The header names the epoch; the receiver follows when a datagram of the
//! next one proves genuine, and keeps the previous key for those that were overtaken.
//!
//! Each header also names the receiver's epoch in the other direction (its [`Echo`]). A sender moves on only when it has heard of its present
//! epoch: so a receiver is one epoch behind at most, however long the network was cut.
//!
//! ```text
//! secret 0 ──► secret 1 ──► secret 2 ──►
//!    └► key 0     └► key 1     └► key 2
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use zeroize::Zeroizing;

use super::replay::ReplayWindow;
use super::wire::{ECHO_AT, EPOCH_AT, HEADER_BYTES};
use tombolo_host::timing::link::SEAL_EPOCH;

/// The counter, between header and body.
pub(super) const COUNTER_BYTES: usize = 8;
/// The proof, after the body.
pub(super) const TAG_BYTES: usize = 16;
/// What comes before a sealed body.
pub(super) const SEALED_HEAD_BYTES: usize = HEADER_BYTES + COUNTER_BYTES;
/// How much longer a datagram becomes.
pub(super) const SEAL_BYTES: usize = COUNTER_BYTES + TAG_BYTES;

/// Datagrams of one epoch: GCM's bounds are far away.
const EPOCH_DATAGRAMS: u64 = 1 << 24;
/// Most datagrams of an epoch that the peer has not acknowledged; after that nothing is sent. It takes hours in which nothing is heard.
const UNHEARD_DATAGRAMS: u64 = 1 << 32;

pub(super) type Secret = Zeroizing<[u8; 32]>;

/// The secrets of one direction, of which only the next is known.
struct Chain(Secret);

impl Chain {
    /// The key of the next epoch.
    fn advance(&mut self) -> LessSafeKey {
        // HKDF fails only for outputs longer than 8160 bytes.
        const FITS: &str = "32 bytes are within HKDF's bounds";
        let present = Prk::new_less_safe(HKDF_SHA256, self.0.as_slice());
        let key: UnboundKey = present.expand(&[b"tombolo link key"], &AES_256_GCM).expect(FITS).into();
        let next = present.expand(&[b"tombolo link epoch"], HKDF_SHA256).expect(FITS);
        next.fill(self.0.as_mut_slice()).expect(FITS);
        LessSafeKey::new(key)
    }
}

/// Puts a key of zeroes in the place of one that is not needed any more: ring erases nothing.
fn erase(key: &mut LessSafeKey) {
    if let Ok(zeroes) = UnboundKey::new(&AES_256_GCM, &[0; 32]) {
        *key = LessSafeKey::new(zeroes);
        // Otherwise the compiler may leave the write out, because nothing reads the key afterwards.
        std::hint::black_box(key);
    }
}

fn nonce(epoch: u32, counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&epoch.to_le_bytes());
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// What the two directions of a session know of each other's epochs, the low bytes of their numbers.
#[derive(Debug, Default)]
pub(super) struct Echo {
    /// The newest epoch that has come.
    came: AtomicU8,
    /// The newest one of ours that has come to the other side, as that says.
    heard_of: AtomicU8,
}

/// Seals the datagrams of one direction.
pub(super) struct Sealer {
    echo: Arc<Echo>,
    chain: Chain,
    key: LessSafeKey,
    epoch: u32,
    counter: u64,
    /// The counter and the time at which the epoch began.
    began: (u64, Instant),
}

impl Sealer {
    pub(super) fn new(secret: Secret, echo: &Arc<Echo>, now: Instant) -> Self {
        let mut chain = Chain(secret);
        let key = chain.advance();
        Self { echo: echo.clone(), chain, key, epoch: 0, counter: 0, began: (0, now) }
    }

    fn next_epoch(&mut self, now: Instant) {
        self.key = self.chain.advance();
        self.epoch = self.epoch.wrapping_add(1);
        self.began = (self.counter, now);
    }

    /// Seals a datagram where it lies: header, room for the counter, body, room for the tag. Returns false if
    /// the datagram must not be sent: the peer has not acknowledged this epoch for too long.
    #[must_use]
    pub(super) fn seal(&mut self, datagram: &mut [u8], now: Instant) -> bool {
        let (counted, since) = (self.counter - self.began.0, now.saturating_duration_since(self.began.1));
        if counted >= EPOCH_DATAGRAMS || since >= SEAL_EPOCH {
            if self.echo.heard_of.load(Ordering::Relaxed) == self.epoch as u8 {
                self.next_epoch(now);
            } else if counted >= UNHEARD_DATAGRAMS {
                return false;
            }
        }
        assert!(datagram.len() >= SEALED_HEAD_BYTES + TAG_BYTES, "no room for the seal");
        let (rest, tag) = datagram.split_at_mut(datagram.len() - TAG_BYTES);
        let (head, body) = rest.split_at_mut(SEALED_HEAD_BYTES);
        head[EPOCH_AT] = self.epoch as u8;
        head[ECHO_AT] = self.echo.came.load(Ordering::Relaxed);
        head[HEADER_BYTES..].copy_from_slice(&self.counter.to_le_bytes());
        let nonce = nonce(self.epoch, self.counter);
        self.counter += 1;
        // GCM fails only for 64 GiB and more.
        let proof = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body);
        tag.copy_from_slice(proof.expect("a datagram is within GCM's bounds").as_ref());
        true
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sealer(epoch {}, counter {})", self.epoch, self.counter)
    }
}

/// Why a datagram was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unopened {
    /// It was not sealed by the peer, or has been changed since.
    Forged,
    /// It came before, or so late that nobody can tell.
    Replayed,
}

impl Drop for Sealer {
    fn drop(&mut self) {
        erase(&mut self.key);
    }
}

/// Opens the datagrams of one direction, each once.
pub(super) struct Opener {
    echo: Arc<Echo>,
    chain: Chain,
    epoch: u32,
    previous: Option<LessSafeKey>,
    current: LessSafeKey,
    next: LessSafeKey,
    window: ReplayWindow,
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.previous.as_mut().into_iter().chain([&mut self.current, &mut self.next]).for_each(erase);
    }
}

impl Opener {
    pub(super) fn new(secret: Secret, echo: &Arc<Echo>) -> Self {
        let mut chain = Chain(secret);
        let current = chain.advance();
        let next = chain.advance();
        Self {
            echo: echo.clone(),
            chain,
            epoch: 0,
            previous: None,
            current,
            next,
            window: ReplayWindow::new(),
        }
    }

    /// Opens a datagram where it lies; its body is then between [`SEALED_HEAD_BYTES`] and the tag.
    /// What fails to open is left as rubbish.
    pub(super) fn open(&mut self, datagram: &mut [u8]) -> Result<(), Unopened> {
        if datagram.len() < SEALED_HEAD_BYTES + TAG_BYTES {
            return Err(Unopened::Forged);
        }
        let (head, body) = datagram.split_at_mut(SEALED_HEAD_BYTES);
        let counter = head.last_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        let ahead = head[EPOCH_AT].wrapping_sub(self.epoch as u8);
        let (key, epoch) = match ahead {
            0 => (&self.current, self.epoch),
            1 => (&self.next, self.epoch.wrapping_add(1)),
            u8::MAX => (self.previous.as_ref().ok_or(Unopened::Forged)?, self.epoch.wrapping_sub(1)),
            _ => return Err(Unopened::Forged),
        };
        if !self.window.is_fresh(counter) {
            return Err(Unopened::Replayed);
        }
        key.open_in_place(nonce(epoch, counter), Aad::from(&*head), body).map_err(|_| Unopened::Forged)?;
        self.window.note(counter);
        // A late datagram may carry an older echo; the next one corrects it.
        self.echo.heard_of.store(head[ECHO_AT], Ordering::Relaxed);
        if ahead == 1 {
            self.epoch = epoch;
            let next = std::mem::replace(&mut self.next, self.chain.advance());
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.echo.came.store(epoch as u8, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Opener(epoch {})", self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Header, Kind};
    use std::time::Duration;

    use super::*;

    fn pair() -> (Sealer, Opener) {
        let secret = Zeroizing::new([9; 32]);
        (Sealer::new(secret.clone(), &Arc::default(), Instant::now()), Opener::new(secret, &Arc::default()))
    }

    /// Both directions of one side.
    struct Side {
        sealer: Sealer,
        opener: Opener,
    }

    fn sides(now: Instant) -> [Side; 2] {
        let secrets = [1, 2].map(|byte| Zeroizing::new([byte; 32]));
        [[0, 1], [1, 0]].map(|[out, back]| {
            let echo = Arc::default();
            let sealer = Sealer::new(secrets[out].clone(), &echo, now);
            Side { sealer, opener: Opener::new(secrets[back].clone(), &echo) }
        })
    }

    fn sealed_at(side: &mut Side, now: Instant) -> Vec<u8> {
        let mut bytes = datagram(b"text");
        assert!(side.sealer.seal(&mut bytes, now));
        bytes
    }

    /// A cut of any length, of one direction or both, at any time.
    #[test]
    fn a_session_goes_on_after_any_outage() {
        const SECOND: Duration = Duration::from_secs(1);
        for cut in [[true, true], [true, false], [false, true]] {
            for outage_s in [100, 119, 121, 239, 241, 300, 3600, 86_400] {
                let mut now = Instant::now();
                let mut sides = sides(now);
                let mut exchange = |now: Instant, passes: [bool; 2], step: Duration| {
                    for from in [0, 1] {
                        let bytes = sealed_at(&mut sides[from], now + step * from as u32 / 2);
                        if passes[from] {
                            let to = &mut sides[1 - from];
                            assert_eq!(to.opener.open(&mut bytes.clone()), Ok(()), "{cut:?} {outage_s}");
                        }
                    }
                    sides.each_ref().map(|side| side.sealer.epoch)
                };
                for _ in 0..200 {
                    now += SECOND;
                    exchange(now, [true; 2], SECOND);
                }
                let step = Duration::from_secs(outage_s) / 100;
                for _ in 0..100 {
                    now += step;
                    exchange(now, cut.map(|is_cut| !is_cut), step);
                }
                let before = exchange(now, [true; 2], SECOND);
                for _ in 0..400 {
                    now += SECOND;
                    exchange(now, [true; 2], SECOND);
                }
                let after = exchange(now, [true; 2], SECOND);
                assert!(before.iter().zip(after).all(|(before, after)| after >= before + 3), "epochs go on");
            }
        }
    }

    #[test]
    fn an_epoch_that_nobody_hears_of_ends_the_sending_at_last() {
        let now = Instant::now();
        let [mut ours, mut theirs] = sides(now);
        ours.sealer.counter = EPOCH_DATAGRAMS;
        let first = sealed_at(&mut ours, now);
        assert_eq!(ours.sealer.epoch, 1, "the other side knows the first epoch from the beginning");
        ours.sealer.counter += UNHEARD_DATAGRAMS - 2;
        sealed_at(&mut ours, now);
        assert_eq!(ours.sealer.epoch, 1);
        assert!(!ours.sealer.seal(&mut datagram(b"text"), now));
        assert_eq!(theirs.opener.open(&mut first.clone()), Ok(()));
        assert_eq!(ours.opener.open(&mut sealed_at(&mut theirs, now)), Ok(()));
        let next = sealed_at(&mut ours, now);
        assert_eq!((ours.sealer.epoch, theirs.opener.open(&mut next.clone())), (2, Ok(())));
    }

    fn datagram(body: &[u8]) -> Vec<u8> {
        let mut bytes = Header::new(Kind::Packets, 7).encode().to_vec();
        bytes.extend_from_slice(&[0; COUNTER_BYTES]);
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&[0; TAG_BYTES]);
        bytes
    }

    fn sealed(sealer: &mut Sealer, body: &[u8]) -> Vec<u8> {
        let mut bytes = datagram(body);
        assert!(sealer.seal(&mut bytes, Instant::now()));
        bytes
    }

    fn open(opener: &mut Opener, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let mut bytes = sealed.to_vec();
        opener.open(&mut bytes)?;
        Ok(bytes[SEALED_HEAD_BYTES..bytes.len() - TAG_BYTES].to_vec())
    }

    #[test]
    fn what_is_sealed_opens_once() {
        let (mut sealer, mut opener) = pair();
        for body in [b"".as_slice(), b"x", &[5; 4000]] {
            let bytes = sealed(&mut sealer, body);
            assert!(body.len() < 16 || !bytes.windows(body.len()).any(|part| part == body));
            assert_eq!(open(&mut opener, &bytes).as_deref(), Ok(body));
            assert_eq!(open(&mut opener, &bytes), Err(Unopened::Replayed));
        }
    }

    #[test]
    fn every_bit_counts() {
        let (mut sealer, mut opener) = pair();
        let bytes = sealed(&mut sealer, b"whole");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&mut opener, &damaged), Err(Unopened::Forged), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(open(&mut opener, &bytes[..cut]), Err(Unopened::Forged));
        }
        assert_eq!(open(&mut opener, &bytes).as_deref(), Ok(b"whole".as_slice()));
    }

    #[test]
    fn the_receiver_follows_into_the_next_epoch_and_opens_stragglers() {
        let (mut sealer, mut opener) = pair();
        for epoch in 1..600_u32 {
            let straggler = sealed(&mut sealer, b"before");
            let lost = sealed(&mut sealer, b"lost");
            sealer.next_epoch(Instant::now());
            // A forgery in the next epoch's name moves nobody.
            let mut forged = sealed(&mut sealer, b"forged");
            forged[SEALED_HEAD_BYTES] ^= 1;
            assert_eq!(open(&mut opener, &forged), Err(Unopened::Forged));
            assert_eq!(opener.epoch, epoch - 1);
            let first = sealed(&mut sealer, b"after");
            assert_eq!(open(&mut opener, &first).as_deref(), Ok(b"after".as_slice()));
            assert_eq!(opener.epoch, epoch);
            assert_eq!(open(&mut opener, &straggler).as_deref(), Ok(b"before".as_slice()));
            assert_eq!(open(&mut opener, &first), Err(Unopened::Replayed));
            if epoch % 2 == 0 {
                assert_eq!(open(&mut opener, &lost).as_deref(), Ok(b"lost".as_slice()));
            }
        }
    }

    #[test]
    fn two_epochs_old_is_too_old() {
        let (mut sealer, mut opener) = pair();
        let old = sealed(&mut sealer, b"old");
        for _ in 0..2 {
            sealer.next_epoch(Instant::now());
            let bytes = sealed(&mut sealer, b"new");
            assert!(open(&mut opener, &bytes).is_ok());
        }
        assert_eq!(open(&mut opener, &old), Err(Unopened::Forged));
    }

    #[test]
    fn epochs_end_by_count_and_by_time() {
        let start = Instant::now();
        let (mut sealer, mut opener) = pair();
        sealer.counter = EPOCH_DATAGRAMS - 1;
        for (after, epoch) in [(0, 0), (0, 1), (119, 1), (122, 2), (240, 2), (245, 3)] {
            let mut bytes = datagram(b"text");
            sealer.echo.heard_of.store(sealer.epoch as u8, Ordering::Relaxed);
            assert!(sealer.seal(&mut bytes, start + Duration::from_secs(after)));
            assert_eq!((sealer.epoch, bytes[EPOCH_AT]), (epoch, epoch as u8));
            assert_eq!(opener.open(&mut bytes), Ok(()));
        }
    }

    #[test]
    fn the_past_does_not_follow_from_the_present() {
        let mut chain = Chain(Zeroizing::new([1; 32]));
        let mut secrets = vec![*chain.0];
        for _ in 0..3 {
            chain.advance();
            assert!(!secrets.contains(&*chain.0));
            secrets.push(*chain.0);
        }
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_open(bytes in proptest::collection::vec(0..=255_u8, 0..200)) {
            let (_, mut opener) = pair();
            proptest::prop_assert!(opener.open(&mut bytes.clone()).is_err());
        }
    }
}
