//! Copying bytes that others look at and change meanwhile: aligned words of 8 bytes as such, and each byte once. Who looks
//! at a word finds what was there before or what comes.
//!
//! The C library's `memcpy` promises neither. Where a processor says that `rep movsb` is fast, it uses that from some
//! 2 KiB on, and it moves single bytes where it is not fast after all: beside a page that faults, and (Zen 3) where
//! source and destination lie a little apart in their pages, there at 2.5 GB/s in place of 35. Two such copies
//! of the same words leave words that nobody has written.

/// Whose aligned words are moved as such, where those of source and destination lie differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    OfSource,
    OfDestination,
}

impl Words {
    /// How many bytes come before the first aligned word.
    #[inline]
    pub(crate) fn head(self, to: *mut u8, from: *const u8, bytes: usize) -> usize {
        let address = match self {
            Self::OfSource => from as usize,
            Self::OfDestination => to as usize,
        };
        (address.wrapping_neg() % 8).min(bytes)
    }
}

/// The instructions of a copy, as a function of that name. `rdi`: to, `rsi`: from, `rdx`: bytes, `rcx`: how many of them
/// come before the first aligned word. Returns in `rax` how many are left: none.
///
/// `rdi`, `rsi` and `rax` are right at each instruction that may fault, so that a thread can go on in smaller steps behind a
/// fault: at `_bytes` behind one before `_main`, at `_words` behind one before that, at `_again` behind one before that,
/// which copies a word's bytes one by one and goes on as before if they come after all, and at `_end`, with what is left,
/// behind one among those. (A half of a vector at a multiple of 8 is stored as one by the processors that there are.)
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_instructions {
    ($name:literal) => {
        concat!(
            ".hidden ",
            $name,
            "\n.globl ",
            $name,
            "\n",
            $name,
            ":\n",
            "mov rax, rdx\n",
            "test rcx, rcx\n",
            "jz 3f\n",
            "2:\n",
            "mov r8b, [rsi]\n",
            "mov [rdi], r8b\n",
            "inc rsi\ninc rdi\ndec rax\ndec rcx\n",
            "jnz 2b\n",
            ".hidden ",
            $name,
            "_main\n.globl ",
            $name,
            "_main\n",
            $name,
            "_main:\n",
            "3:\n",
            "cmp rax, 64\n",
            "jb 5f\n",
            "4:\n",
            "movups xmm0, [rsi]\nmovups xmm1, [rsi + 16]\nmovups xmm2, [rsi + 32]\nmovups xmm3, [rsi + 48]\n",
            "movups [rdi], xmm0\nadd rsi, 16\nadd rdi, 16\nsub rax, 16\n",
            "movups [rdi], xmm1\nadd rsi, 16\nadd rdi, 16\nsub rax, 16\n",
            "movups [rdi], xmm2\nadd rsi, 16\nadd rdi, 16\nsub rax, 16\n",
            "movups [rdi], xmm3\nadd rsi, 16\nadd rdi, 16\nsub rax, 16\n",
            "cmp rax, 64\n",
            "jae 4b\n",
            ".hidden ",
            $name,
            "_words\n.globl ",
            $name,
            "_words\n",
            $name,
            "_words:\n",
            "5:\n",
            "cmp rax, 8\n",
            "jb 7f\n",
            "6:\n",
            "mov r8, [rsi]\n",
            "mov [rdi], r8\n",
            "add rsi, 8\nadd rdi, 8\nsub rax, 8\n",
            "cmp rax, 8\n",
            "jae 6b\n",
            "7:\n",
            "test rax, rax\n",
            "jz 9f\n",
            "8:\n",
            "mov r8b, [rsi]\n",
            "mov [rdi], r8b\n",
            "inc rsi\ninc rdi\ndec rax\n",
            "jnz 8b\n",
            "9:\n",
            "ret\n",
            ".hidden ",
            $name,
            "_again\n.globl ",
            $name,
            "_again\n",
            $name,
            "_again:\n",
            "mov ecx, 8\n",
            "cmp rax, rcx\n",
            "cmovb rcx, rax\n",
            ".hidden ",
            $name,
            "_bytes\n.globl ",
            $name,
            "_bytes\n",
            $name,
            "_bytes:\n",
            "mov r8b, [rsi]\n",
            "mov [rdi], r8b\n",
            "inc rsi\ninc rdi\ndec rax\ndec rcx\n",
            "jnz ",
            $name,
            "_bytes\n",
            "jmp 3b\n",
            ".hidden ",
            $name,
            "_end\n.globl ",
            $name,
            "_end\n",
            $name,
            "_end:\n",
            "ret\n",
        )
    };
}
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use copy_instructions;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod instructions {
    std::arch::global_asm!(
        ".pushsection .text.tombolo_copy,\"ax\",@progbits",
        super::copy_instructions!("tombolo_copy"),
        ".popsection",
    );

    // SAFETY: the function above, with its arguments in the registers in which C passes them.
    unsafe extern "C" {
        pub(super) fn tombolo_copy(to: *mut u8, from: *const u8, bytes: usize, head: usize) -> usize;
    }
}

/// Copies bytes.
///
/// # Safety
///
/// They can be read at `from` and written at `to`, and no Rust reference is used for them meanwhile. The ranges do not overlap, or
/// `to` is the lower.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, words: Words) {
    // SAFETY: as the caller promises. A word of a length that is known here is one instruction.
    unsafe {
        match bytes {
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            _ => {
                instructions::tombolo_copy(to, from, bytes, words.head(to, from, bytes));
            }
        }
    }
}

/// The same in plain Rust, a word at a time: for processors other than x86-64, and for Miri.
///
/// # Safety
///
/// As above.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, words: Words) {
    let head = words.head(to, from, bytes);
    let end = head + (bytes - head) / 8 * 8;
    // SAFETY: as the caller promises; all are inside.
    unsafe {
        let byte = |at| to.add(at).write_volatile(from.add(at).read_volatile());
        (0..head).for_each(byte);
        for at in (head..end).step_by(8) {
            let (to, from) = (to.add(at).cast::<u64>(), from.add(at).cast::<u64>());
            match (to.is_aligned(), from.is_aligned()) {
                (true, true) => to.write_volatile(from.read_volatile()),
                (true, false) => to.write_volatile(from.read_unaligned()),
                (false, _) => to.write_unaligned(from.read_volatile()),
            }
        }
        (end..bytes).for_each(byte);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn all_lengths_are_copied_from_and_to_everywhere() {
        let source: Vec<u8> = (0..400_u32).map(|byte| (byte * 7 % 251) as u8).collect();
        for words in [Words::OfSource, Words::OfDestination] {
            for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
                for bytes in (0..150).chain([200, 300]) {
                    let mut target = vec![0xEE; 420];
                    // SAFETY: both vectors are longer, and nobody else has them.
                    unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes, words) };
                    assert_eq!(target[to..to + bytes], source[from..from + bytes]);
                    assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0xEE));
                }
            }
        }
    }

    #[test]
    fn a_lower_destination_may_overlap() {
        for apart in [1, 7, 8, 30, 64, 65] {
            let mut bytes: Vec<u8> = (0..200).collect();
            let expected = bytes[apart..].to_vec();
            let start = bytes.as_mut_ptr();
            // SAFETY: inside the vector, which nobody else has.
            unsafe { copy(start, start.add(apart), 200 - apart, Words::OfDestination) };
            assert_eq!(bytes[..200 - apart], expected, "{apart}");
        }
    }

    /// Two threads copy other words to the same place, and a third looks: no word is a mixture. Where source and destination
    /// lie like this in their pages, `rep movsb` leaves some.
    #[test]
    #[cfg_attr(miri, ignore = "it copies without end")]
    fn no_word_is_torn() {
        const WORDS: usize = 25;
        fn from_a_page<T>(words: &[T]) -> &[T] {
            &words[words.as_ptr().addr().wrapping_neg() % 4096 / 8..]
        }
        let shared: Vec<AtomicU64> = (0..1024).map(|_| AtomicU64::new(0)).collect();
        let shared = &from_a_page(&shared)[1..=WORDS];
        let sources = [vec![0_u64; 1024], vec![u64::MAX; 1024]];
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(move || {
                    let (to, from) = (shared.as_ptr().cast_mut().cast::<u8>(), from_a_page(source).as_ptr());
                    while !over.load(Ordering::Relaxed) {
                        // SAFETY: both are as long; the words are looked at as atomics only.
                        unsafe { copy(to, from.cast(), WORDS * 8, Words::OfDestination) };
                    }
                });
            }
            let mut looks = (0..1_000_000).flat_map(|_| shared).map(|word| word.load(Ordering::Relaxed));
            let torn = looks.find(|word| !matches!(*word, 0 | u64::MAX));
            over.store(true, Ordering::Relaxed);
            assert_eq!(torn, None);
        });
    }
}
