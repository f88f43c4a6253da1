//! Spans: bytes of a mapping that another process may write at any time.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::copying::{self, Words};

/// Read-only bytes that someone else may write at any time. Never a `&[u8]`.
#[derive(Clone, Copy)]
pub struct SharedSpan<'a> {
    pub(super) pointer: NonNull<u8>,
    pub(super) length_bytes: usize,
    pub(super) memory: PhantomData<&'a ()>,
}

// SAFETY: a span is an address that stays mapped and readable for 'a; reading it from another
// thread is no different from reading it from this one.
unsafe impl Send for SharedSpan<'_> {}
// SAFETY: as for Send; a span has no state of its own.
unsafe impl Sync for SharedSpan<'_> {}

impl<'a> SharedSpan<'a> {
    /// No bytes.
    pub const fn empty() -> Self {
        Self { pointer: NonNull::dangling(), length_bytes: 0, memory: PhantomData }
    }

    /// Bytes at an address of this process.
    ///
    /// # Safety
    ///
    /// `pointer .. pointer + length_bytes` must stay mapped and readable during `'a`. The bytes
    /// may change at any time, but only through another process, another thread's span, or the
    /// kernel.
    pub unsafe fn from_raw(pointer: *const u8, length_bytes: usize) -> Self {
        match NonNull::new(pointer.cast_mut()) {
            Some(pointer) => Self { pointer, length_bytes, memory: PhantomData },
            None => Self::empty(),
        }
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.length_bytes
    }

    /// True when there are none.
    pub const fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// Where the bytes are; valid during `'a`.
    pub const fn as_ptr(&self) -> *const u8 {
        self.pointer.as_ptr()
    }

    /// A part of the span; `None` if out of range.
    pub fn part(&self, offset_bytes: usize, length_bytes: usize) -> Option<SharedSpan<'a>> {
        let end = offset_bytes.checked_add(length_bytes)?;
        if end > self.length_bytes {
            return None;
        }
        // SAFETY: offset ≤ end ≤ length, so the address stays inside the span's one mapping.
        let pointer = unsafe { self.pointer.add(offset_bytes) };
        Some(Self { pointer, length_bytes, memory: PhantomData })
    }

    /// Copies the first bytes out; returns how many (the shorter of the two lengths).
    pub fn copy_to(&self, destination: &mut [u8]) -> usize {
        let count = self.length_bytes.min(destination.len());
        // SAFETY: `count` is within both; the destination is ours alone (&mut), so they do not
        // overlap.
        unsafe { copy_once(self.pointer.as_ptr(), destination.as_mut_ptr(), count) };
        count
    }

    /// Appends all bytes to a vector.
    pub fn append_to(&self, destination: &mut Vec<u8>) {
        destination.reserve(self.length_bytes);
        let spare = destination.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `reserve` made room for `length_bytes` past the vector's length, and the copy
        // has initialised them when the length is raised.
        unsafe {
            copy_once(self.pointer.as_ptr(), spare, self.length_bytes);
            destination.set_len(destination.len() + self.length_bytes);
        }
    }

    /// A private copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }
}

impl<'a> From<&'a [u8]> for SharedSpan<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { pointer: NonNull::from(bytes).cast(), length_bytes: bytes.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a Vec<u8>> for SharedSpan<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl fmt::Debug for SharedSpan<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address: logs should not teach an address space layout.
        write!(formatter, "SharedSpan({} bytes)", self.length_bytes)
    }
}

/// Writable bytes that someone else may read and write at any time. Never a `&mut [u8]`.
pub struct SharedSpanMut<'a> {
    pub(super) span: SharedSpan<'a>,
}

impl<'a> SharedSpanMut<'a> {
    /// Bytes at an address of this process.
    ///
    /// # Safety
    ///
    /// As [`SharedSpan::from_raw`], and the bytes must be writable.
    pub unsafe fn from_raw(pointer: *mut u8, length_bytes: usize) -> Self {
        // SAFETY: passed on to our caller.
        let span = unsafe { SharedSpan::from_raw(pointer, length_bytes) };
        Self { span }
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.span.length_bytes
    }

    /// True when there are none.
    pub const fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Where the bytes are; valid and writable during `'a`.
    pub const fn as_mut_ptr(&self) -> *mut u8 {
        self.span.pointer.as_ptr()
    }

    /// A part of the span; `None` if out of range.
    pub fn part(&self, offset_bytes: usize, length_bytes: usize) -> Option<SharedSpanMut<'a>> {
        let span = self.span.part(offset_bytes, length_bytes)?;
        Some(Self { span })
    }

    /// Copies from another span, which may overlap; returns how many bytes (the shorter length). Aligned words of 8 bytes are
    /// written as such, unless this span overlaps with a lower one.
    pub fn copy_from(&self, source: SharedSpan<'_>) -> usize {
        self.copy_words_from(source, Words::OfDestination)
    }

    /// The same, for a source that its owner changes meanwhile and a span that no other process reads yet: aligned words of the
    /// source, not of this span, are moved as such.
    pub fn take_from(&self, source: SharedSpan<'_>) -> usize {
        self.copy_words_from(source, Words::OfSource)
    }

    fn copy_words_from(&self, source: SharedSpan<'_>, words: Words) -> usize {
        let count = self.len().min(source.len());
        // SAFETY: `count` is within both spans, which stay mapped, and this one is writable. One that overlaps with a lower one is
        // copied from its end.
        unsafe {
            let (to, from) = (self.as_mut_ptr(), source.as_ptr());
            if (to.addr().wrapping_sub(from.addr())) < count {
                std::ptr::copy(from, to, count);
            } else {
                copying::copy(to, from, count, words);
            }
        }
        compiler_fence(Ordering::SeqCst);
        count
    }

    /// Fills the span with one value.
    pub fn fill(&self, value: u8) {
        // SAFETY: the span stays mapped and writable.
        unsafe { std::ptr::write_bytes(self.as_mut_ptr(), value, self.len()) };
        compiler_fence(Ordering::SeqCst);
    }
}

/// Copies bytes and forbids the compiler to look at the source a second time.
///
/// # Safety
///
/// `count` bytes must be readable at `source` and writable at `destination`, not overlapping.
unsafe fn copy_once(source: *const u8, destination: *mut u8, count: usize) {
    // SAFETY: passed on to our caller.
    unsafe { copying::copy(destination, source, count, Words::OfSource) };
    // Without this the compiler might read the source again in place of the copy, and find what a
    // peer has written since the check.
    compiler_fence(Ordering::SeqCst);
}
