//! Libraries that a program loads while it runs.

use core::arch::naked_asm;

use crate::real::Real;

pub static LOAD: Real = Real::new(c"dlopen");

/// The address of libc's `dlopen`; 0: it has none.
extern "C" fn real_address() -> usize {
    LOAD.address()
}

/// libc's `dlopen`, without `RTLD_DEEPBIND`: with that, the library would have libc's own `malloc`, and what it allocates could not be
/// freed outside of it, nor the other way round.
///
/// It jumps, because libc looks whose code the call comes from: that one's paths of libraries count.
///
/// # Safety
///
/// As POSIX says: `rdi` is null or a path, `esi` the flags.
// SAFETY: no other symbol of this library has the name; it keeps the arguments, the stack and the return address as libc expects them.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {real_address}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {kept}",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        real_address = sym real_address,
        kept = const !libc::RTLD_DEEPBIND,
    )
}
