//! Libraries that a program loads while it runs.

use crate::real::Real;

/// The next `dlopen`.
pub static NEXT: Real = Real::new(c"dlopen");

/// Its address; 0: there is none.
pub extern "C" fn next_address() -> usize {
    NEXT.address()
}

/// Defines `dlopen`: the next one, without `RTLD_DEEPBIND`. With that flag a library would have libc's own functions where this one replaces them:
/// what its `malloc` gives could not be freed outside of it, for instance.
///
/// It jumps, because libc looks whose code the call comes from: that one's paths of libraries count.
#[macro_export]
macro_rules! define_dlopen {
    () => {
        const _: () = {
            /// # Safety
            ///
            /// As POSIX says: `rdi` is null or a path, `esi` the flags.
            // SAFETY: no other symbol of this library has the name; it keeps the arguments, the stack and the return address as libc
            // expects them.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn dlopen() {
                ::core::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "sub rsp, 8",
                    "call {next_address}",
                    "add rsp, 8",
                    "pop rsi",
                    "pop rdi",
                    "and esi, {kept}",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    "2:",
                    "ret",
                    next_address = sym $crate::loading::next_address,
                    kept = const !$crate::loading::RTLD_DEEPBIND,
                )
            }
        };
    };
}

/// As libc has it.
pub const RTLD_DEEPBIND: i32 = libc::RTLD_DEEPBIND;
