//! Environments with a library in them, or without it.

use core::ffi::c_char;

use crate::library::Library;
use crate::variables::{Variables, entries};

pub(crate) const PRELOAD: &[u8] = b"LD_PRELOAD=";

// Rooms for environments, in entries and bytes of the entry of libraries: they lie on the stack of whoever executes, who may
// have little. What is larger than the larger is passed on as it is.
pub(crate) const FEW: usize = 200;
pub(crate) const SHORT: usize = 1024;
pub(crate) const MANY: usize = 2048;
pub(crate) const LONG: usize = 4096;
/// Of those, what stands behind the program's entries: the two of the library's, and the null pointer.
const LAST: usize = 3;

/// Whether the smaller room is enough.
///
/// # Safety
///
/// As [`entries`].
pub(crate) unsafe fn is_small(library: &Library, variables: Variables) -> bool {
    let (mut count, mut bytes) = (0, 0);
    // SAFETY: the caller's promise.
    for (_, text) in unsafe { entries(variables) } {
        count += 1;
        if text.starts_with(PRELOAD) {
            bytes = text.len();
        }
    }
    count <= FEW - LAST && bytes + library.preload().len() + 2 <= SHORT
}

/// What the dynamic linker separates libraries by.
fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// Whether an environment has the library and its variable.
///
/// # Safety
///
/// As [`entries`].
pub(crate) unsafe fn is_complete(library: &Library, variables: Variables) -> bool {
    let (mut complete, mut named) = (false, false);
    // SAFETY: the caller's promise.
    for (_, text) in unsafe { entries(variables) } {
        // Of several, the dynamic linker takes the last.
        if let Some(value) = text.strip_prefix(PRELOAD) {
            complete = value.split(is_separator).any(|part| part == library.path());
        }
        named |= library.is_variable(text);
    }
    complete && named
}

/// Room for an environment.
pub(crate) struct Room<const VARIABLES: usize, const BYTES: usize> {
    entries: [*const c_char; VARIABLES],
    count: usize,
    preload: [u8; BYTES],
    length: usize,
}

impl<const VARIABLES: usize, const BYTES: usize> Room<VARIABLES, BYTES> {
    pub(crate) fn new() -> Self {
        Self { entries: [core::ptr::null(); VARIABLES], count: 0, preload: [0; BYTES], length: 0 }
    }

    /// The environment with what it lacks of the library's two entries; or as it is, if it is too large.
    ///
    /// # Safety
    ///
    /// As [`entries`].
    pub(crate) unsafe fn with(&mut self, library: &Library, original: Variables) -> Variables {
        // SAFETY: the caller's promise.
        unsafe { self.fill_with(library, original) }.unwrap_or(original)
    }

    unsafe fn fill_with(&mut self, library: &Library, original: Variables) -> Option<Variables> {
        let (mut complete, mut named) = (false, false);
        let mut theirs: &[u8] = &[];
        let mut own: *const c_char = core::ptr::null();
        // SAFETY: the caller's promise.
        for (pointer, text) in unsafe { entries(original) } {
            // Of several, the dynamic linker takes the last.
            if let Some(value) = text.strip_prefix(PRELOAD) {
                complete = value.split(is_separator).any(|part| part == library.path());
                (theirs, own) = (value, pointer);
                continue;
            }
            named |= library.is_variable(text);
            self.push(pointer)?;
        }
        if complete {
            self.push_last(own)?;
        } else {
            self.append(library.preload())?;
            if !theirs.is_empty() {
                self.append(b":")?;
                self.append(theirs)?;
            }
            self.push_preload()?;
        }
        if !named {
            self.push_last(library.variable_entry().as_ptr().cast())?;
        }
        self.finish()
    }

    /// The environment without the library's two entries; or as it is, if it is too large.
    ///
    /// # Safety
    ///
    /// As [`entries`].
    pub(crate) unsafe fn without(&mut self, library: &Library, original: Variables) -> Variables {
        // SAFETY: the caller's promise.
        unsafe { self.fill_without(library, original) }.unwrap_or(original)
    }

    unsafe fn fill_without(&mut self, library: &Library, original: Variables) -> Option<Variables> {
        let mut theirs: &[u8] = &[];
        // SAFETY: the caller's promise.
        for (pointer, text) in unsafe { entries(original) } {
            if library.is_variable(text) {
                continue;
            }
            if let Some(value) = text.strip_prefix(PRELOAD) {
                theirs = value;
                continue;
            }
            self.push(pointer)?;
        }
        for other in theirs.split(is_separator).filter(|part| !part.is_empty() && *part != library.path()) {
            self.append(if self.length == 0 { PRELOAD } else { b":" })?;
            self.append(other)?;
        }
        if self.length > 0 {
            self.push_preload()?;
        }
        self.finish()
    }

    fn push(&mut self, entry: *const c_char) -> Option<()> {
        (self.count < VARIABLES - LAST).then(|| self.push_last(entry))?
    }

    fn push_last(&mut self, entry: *const c_char) -> Option<()> {
        *self.entries.get_mut(self.count)? = entry;
        self.count += 1;
        Some(())
    }

    /// One byte is left for the zero behind.
    fn append(&mut self, text: &[u8]) -> Option<()> {
        let end = self.length.checked_add(text.len()).filter(|end| *end < self.preload.len())?;
        self.preload.get_mut(self.length..end)?.copy_from_slice(text);
        self.length = end;
        Some(())
    }

    fn push_preload(&mut self) -> Option<()> {
        *self.preload.get_mut(self.length)? = 0;
        self.push_last(self.preload.as_ptr().cast())
    }

    fn finish(&mut self) -> Option<Variables> {
        self.push_last(core::ptr::null())?;
        Some(self.entries.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::ToOwned;
    use std::ffi::CString;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::library::testing::library;

    /// What the dynamic linker loads, and the other variables, of an environment.
    fn read(variables: &[String]) -> (Vec<String>, Vec<String>) {
        let is_preload = |text: &&String| text.starts_with("LD_PRELOAD=");
        let last = variables.iter().rfind(is_preload).map_or("", |text| &text["LD_PRELOAD=".len()..]);
        let libraries = last.split([':', ' ']).filter(|part| !part.is_empty()).map(str::to_owned).collect();
        (libraries, variables.iter().filter(|text| !is_preload(text)).cloned().collect())
    }

    fn changed(variables: &[String], is_with: bool, is_small_room: bool) -> Vec<String> {
        let library = library(b"/own.so", b"v");
        let texts: Vec<CString> = variables.iter().map(|text| CString::new(text.as_str()).unwrap()).collect();
        let mut array: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        array.push(core::ptr::null());
        let collect = |variables| {
            // SAFETY: an array of this test's, or of the room's.
            let texts = unsafe { entries(variables) };
            texts.map(|(_, text)| String::from_utf8(text.to_vec()).unwrap()).collect()
        };
        macro_rules! in_room {
            ($few:ident, $short:ident) => {{
                let mut room = Room::<$few, $short>::new();
                // SAFETY: an array of this test's.
                collect(unsafe {
                    if is_with {
                        room.with(&library, array.as_ptr())
                    } else {
                        room.without(&library, array.as_ptr())
                    }
                })
            }};
        }
        if is_small_room { in_room!(FEW, SHORT) } else { in_room!(MANY, LONG) }
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Whatever an environment has: with the library its own libraries follow, and nothing else changes; without it the others stay.
    #[test]
    fn environments_gain_and_lose_the_library_alone() {
        let mut random = 1u32;
        let mut draw = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % below
        };
        for _ in 0..5000 {
            let mut variables = Vec::new();
            for number in 0..draw(5) {
                variables.push(match draw(6) {
                    0 => format!(
                        "LD_PRELOAD={}",
                        ["", "/own.so", "/x.so:/y.so", "/x.so /own.so", ":/x.so"][draw(5) as usize]
                    ),
                    1 => "TEST=v".to_owned(),
                    2 => "TEST=w".to_owned(),
                    3 => format!("V{number}"),
                    _ => format!("V{number}={}", draw(9)),
                });
            }
            let (libraries, others) = read(&variables);
            for is_small_room in [false, true] {
                let (found, rest) = read(&changed(&variables, true, is_small_room));
                let mut wanted = libraries.clone();
                if !wanted.iter().any(|library| library == "/own.so") {
                    wanted.insert(0, "/own.so".to_owned());
                }
                assert_eq!(found, wanted, "{variables:?}");
                let mut wanted = others.clone();
                if !others.iter().any(|text| text.starts_with("TEST=")) {
                    wanted.push("TEST=v".to_owned());
                }
                assert_eq!(rest, wanted, "{variables:?}");
                let (found, rest) = read(&changed(&variables, false, is_small_room));
                let wanted: Vec<String> =
                    libraries.iter().filter(|library| *library != "/own.so").cloned().collect();
                assert_eq!(found, wanted, "{variables:?}");
                let wanted: Vec<String> =
                    others.iter().filter(|text| !text.starts_with("TEST=")).cloned().collect();
                assert_eq!(rest, wanted, "{variables:?}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_as_it_was() {
        for count in 0..FEW + 5 {
            let variables: Vec<String> = (0..count).map(|number| format!("V{number}=")).collect();
            let found = changed(&variables, true, true);
            let has_room = count <= FEW - LAST;
            assert_eq!(found.len(), if has_room { count + 2 } else { count }, "{count}");
        }
        for length in SHORT - 60..SHORT + 10 {
            let variables = texts(&[&format!("LD_PRELOAD={}", "x".repeat(length))]);
            let found = changed(&variables, true, true);
            assert!(
                found == variables || found[0].len() == PRELOAD.len() + "/own.so:".len() + length,
                "{length}"
            );
            assert_eq!(found == variables, PRELOAD.len() + "/own.so:".len() + length >= SHORT, "{length}");
        }
    }

    #[test]
    fn the_room_is_chosen_by_what_there_is() {
        let library = library(b"/own.so", b"v");
        let check = |variables: &[String]| {
            let texts: Vec<CString> =
                variables.iter().map(|text| CString::new(text.as_str()).unwrap()).collect();
            let mut array: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
            array.push(core::ptr::null());
            // SAFETY: an array of this test's.
            unsafe { (is_small(&library, array.as_ptr()), is_complete(&library, array.as_ptr())) }
        };
        assert_eq!(check(&texts(&["LD_PRELOAD=/x.so:/own.so", "TEST=w"])), (true, true));
        assert_eq!(check(&texts(&["LD_PRELOAD=/own.so", "LD_PRELOAD=/x.so", "TEST="])), (true, false));
        assert_eq!(check(&texts(&["LD_PRELOAD=/own.so"])), (true, false));
        assert_eq!(check(&texts(&[&format!("LD_PRELOAD={}", "x".repeat(SHORT))])), (false, false));
        let many: Vec<String> = (0..=FEW - LAST).map(|number| format!("V{number}=")).collect();
        assert_eq!(check(&many), (false, false));
    }
}
