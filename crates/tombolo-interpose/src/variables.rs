//! Environments: arrays of C strings, `NAME=value`, that end in a null pointer.

use core::ffi::{CStr, c_char};

use crate::sys::call;

/// An environment; null is an empty one.
pub type Variables = *const *const c_char;

// SAFETY: declared as POSIX has it.
unsafe extern "C" {
    /// The program's own. Null before libc has set it.
    pub static environ: Variables;
}

/// The strings of an environment.
///
/// # Safety
///
/// `variables` is null, or a null-terminated array of C strings that stays as it is meanwhile.
pub unsafe fn entries<'a>(variables: Variables) -> impl Iterator<Item = (*const c_char, &'a [u8])> {
    let mut entry = variables;
    core::iter::from_fn(move || {
        // SAFETY: the caller's promise; the iteration ends at the null pointer.
        unsafe {
            if entry.is_null() || (*entry).is_null() {
                return None;
            }
            let text = *entry;
            entry = entry.add(1);
            Some((text, CStr::from_ptr(text).to_bytes()))
        }
    })
}

/// The value, where `entry` is the variable of that name.
pub fn value_of<'a>(name: &str, entry: &'a [u8]) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Copies the value of the program's variable of that name; its length. `None`: there is none, or it is longer than `value`. To be called
/// before the program's first thread starts; it may be before libc has set [`environ`].
pub fn copy(name: &str, value: &mut [u8]) -> Option<usize> {
    // SAFETY: libc's environment; no other thread changes it yet.
    unsafe {
        if environ.is_null() {
            return copy_from_kernel(name, value);
        }
        let found = entries(environ).find_map(|(_, entry)| value_of(name, entry))?;
        value.get_mut(..found.len())?.copy_from_slice(found);
        Some(found.len())
    }
}

/// The longest name and value, with what stands between, that are found in the kernel's copy.
const ENTRY_MAX: usize = 512;

fn copy_from_kernel(name: &str, value: &mut [u8]) -> Option<usize> {
    let mut entry = [0u8; ENTRY_MAX];
    let mut length = 0;
    let mut buffer = [0u8; 4096];
    // SAFETY: a constant path, and buffers of this function.
    unsafe {
        let path = c"/proc/self/environ".as_ptr() as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let file = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]).ok()?;
        let mut found = None;
        'reading: while let Ok(count @ 1..) =
            call(libc::SYS_read, [file, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
        {
            for &byte in buffer.iter().take(count) {
                if byte != 0 {
                    if let Some(target) = entry.get_mut(length) {
                        *target = byte;
                    }
                    length += 1;
                    continue;
                }
                if let Some(text) = entry.get(..length).and_then(|entry| value_of(name, entry)) {
                    if let Some(target) = value.get_mut(..text.len()) {
                        target.copy_from_slice(text);
                        found = Some(text.len());
                    }
                    break 'reading;
                }
                length = 0;
            }
        }
        let _ = call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_variable_is_the_same_in_libc_and_in_the_kernel() {
        // Cargo sets it for each test.
        let name = "CARGO_MANIFEST_DIR";
        let (mut by_libc, mut by_kernel) = ([0; 300], [0; 300]);
        let length = copy(name, &mut by_libc).unwrap();
        assert_eq!(&by_libc[..length], std::env::var(name).unwrap().as_bytes());
        assert_eq!(copy_from_kernel(name, &mut by_kernel), Some(length));
        assert_eq!(by_libc, by_kernel);
        assert_eq!(copy(name, &mut by_libc[..length - 1]), None, "no room");
        assert_eq!(copy_from_kernel(name, &mut by_kernel[..length - 1]), None, "no room");
        assert_eq!(
            (copy("CARGO_MANIFEST", &mut by_libc), copy_from_kernel("NO_SUCH", &mut by_kernel)),
            (None, None)
        );
    }

    #[test]
    fn null_is_an_empty_environment() {
        let text = CString::new("A=1").unwrap();
        let array = [text.as_ptr(), core::ptr::null()];
        // SAFETY: null, and an array of this test's.
        let (none, one): (Vec<_>, Vec<_>) = unsafe {
            (entries(core::ptr::null()).collect(), entries(array.as_ptr()).map(|(_, text)| text).collect())
        };
        assert_eq!((none.len(), one), (0, std::vec![&b"A=1"[..]]));
        assert_eq!(
            (value_of("A", b"A=1"), value_of("A", b"AB=1"), value_of("A", b"A")),
            (Some(&b"1"[..]), None, None)
        );
    }
}
