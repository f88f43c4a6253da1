//! Which programs can take a preloaded library, by their files.
//!
//! Both ends look: `tombolo run` before it starts a program, and the library before a program that has it executes another
//! one. So nothing here allocates or makes a system call; the caller reads the file.

/// Why a program's memory cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Reason {
    /// It has no dynamic linker.
    Static = 1,
    /// It is no 64-bit x86 program.
    OtherMachine = 2,
    /// Its C library is musl, or another one than glibc.
    Musl = 3,
    /// A sanitizer has taken over its memory.
    Sanitizer = 4,
    /// It is one of valgrind's, which runs programs in a machine of its own.
    Valgrind = 5,
    /// The kernel gives it another user's rights, or more, so its dynamic linker ignores what is preloaded.
    Privileged = 6,
    /// The library's file cannot be read from where it runs: another root, or another user.
    Unreachable = 7,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::Static,
        Self::OtherMachine,
        Self::Musl,
        Self::Sanitizer,
        Self::Valgrind,
        Self::Privileged,
        Self::Unreachable,
    ];

    /// The reason of this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| u64::from(*reason as u32) == number)
    }

    /// Whether the library must be kept from the program: it would not run, or its dynamic linker would complain.
    pub fn is_kept_from_it(self) -> bool {
        !matches!(self, Self::Static | Self::Privileged)
    }

    /// In a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::OtherMachine => "other_machine",
            Self::Musl => "musl",
            Self::Sanitizer => "sanitizer",
            Self::Valgrind => "valgrind",
            Self::Privileged => "privileged",
            Self::Unreachable => "unreachable",
        }
    }

    /// Behind "it" or a program's name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Static => "is statically linked, so no library can be preloaded",
            Self::OtherMachine => "is no 64-bit x86 program, and the preloaded library is",
            Self::Musl => "has musl or another C library than glibc, which the preloaded library needs",
            Self::Sanitizer => {
                "was built with a sanitizer, which wants to be the only one to manage its memory"
            }
            Self::Valgrind => "is valgrind, which runs programs in a machine of its own",
            Self::Privileged => {
                "gets privileges when it is executed, and the dynamic linker ignores preloaded libraries then"
            }
            Self::Unreachable => {
                "cannot read the file of the preloaded library (another root directory, or another user)"
            }
        }
    }
}

/// What a file is.
#[expect(clippy::large_enum_variant, reason = "nothing here allocates")]
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A script, for which its interpreter counts.
    Script(Interpreter),
    /// It can take the library, or nothing speaks against it.
    Fit,
    /// It cannot.
    Unfit(Reason),
}

/// The path of a script's interpreter.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// Ends in a zero.
    text: [u8; INTERPRETER_MAX],
    length: usize,
}

/// As Linux has it.
const INTERPRETER_MAX: usize = 256;

impl Interpreter {
    /// The path.
    pub fn path(&self) -> &[u8] {
        self.text.get(..self.length).unwrap_or(&[])
    }

    /// The path, with a zero behind it.
    pub fn path_with_zero(&self) -> &[u8] {
        self.text.get(..=self.length).unwrap_or(&[0])
    }

    /// Of the first line of a script, behind `#!`. `is_all`: the script ends there, if the line does not.
    fn of(line: &[u8], is_all: bool) -> Option<Self> {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
        let start = line.iter().position(|byte| !is_space(byte))?;
        let rest = line.get(start..)?;
        let end = rest.iter().position(|byte| is_space(byte) || matches!(byte, b'\n' | 0));
        let length = end.or(is_all.then_some(rest.len()))?;
        let mut text = [0; INTERPRETER_MAX];
        text.get_mut(..length)?.copy_from_slice(rest.get(..length)?);
        (length > 0 && length < INTERPRETER_MAX).then_some(Self { text, length })
    }
}

/// Reads the file: fills as much of the buffer as there is from an offset on, and says how much.
pub trait Read: FnMut(u64, &mut [u8]) -> usize {}
impl<F: FnMut(u64, &mut [u8]) -> usize> Read for F {}

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Programs have some 14.
const SEGMENTS_MAX: usize = 24;
const DYNAMIC_BYTES_MAX: u64 = 8192;
const NEEDED_MAX: usize = 64;
const SYMBOL_BYTES: u64 = 24;
/// Symbols of one chain that are looked at: chains have two or three.
const CHAIN_MAX: usize = 4096;

/// How dynamic linkers of glibc are called.
const GLIBC: [&[u8]; 2] = [b"/ld-linux", b"/ld-lsb"];

/// Runtimes of sanitizers, as libraries, and what each exports where it is part of the program.
const SANITIZERS: [&[u8]; 5] =
    [b"libasan.so", b"libtsan.so", b"liblsan.so", b"libhwasan.so", b"libclang_rt."];
const SANITIZER_SYMBOLS: [&[u8]; 4] = [b"__asan_init", b"__tsan_init", b"__msan_init", b"__hwasan_init"];

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn read_exactly<const BYTES: usize>(read: &mut impl Read, at: u64) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    (read(at, &mut bytes) == BYTES).then_some(bytes)
}

/// Looks at a file.
pub fn examine(read: &mut impl Read) -> Kind {
    let mut start = [0u8; INTERPRETER_MAX];
    let length = read(0, &mut start);
    let start = start.get(..length).unwrap_or(&[]);
    if let Some(line) = start.strip_prefix(b"#!") {
        return Interpreter::of(line, length < INTERPRETER_MAX).map_or(Kind::Fit, Kind::Script);
    }
    if !start.starts_with(b"\x7fELF") {
        return Kind::Fit;
    }
    // What cannot be read is left to the kernel.
    reason_of(read, start).map_or(Kind::Fit, Kind::Unfit)
}

fn reason_of(read: &mut impl Read, start: &[u8]) -> Option<Reason> {
    const CLASS_64: u8 = 2;
    const X86_64: u16 = 62;
    const SHARED_OBJECT: u16 = 3;
    if *start.get(4)? != CLASS_64 || half(start, 18)? != X86_64 {
        return Some(Reason::OtherMachine);
    }
    start.get(..HEADER_BYTES)?;
    let segments = Segments::read(read, long(start, 32)?, half(start, 56)?);
    let dynamic = segments.find(Segments::DYNAMIC).map(|found| Dynamic::read(read, &found));
    let Some(interpreter) = segments.find(Segments::INTERPRETER) else {
        return match dynamic {
            // The dynamic linker itself, and other libraries that can be executed.
            Some(dynamic) if half(start, 16)? == SHARED_OBJECT && !dynamic.is_program => {
                dynamic.is_musl(read, &segments).then_some(Reason::Musl)
            }
            _ => Some(Reason::Static),
        };
    };
    let mut path = [0u8; INTERPRETER_MAX];
    let length = path.len().min(usize::try_from(interpreter.bytes).ok()?);
    let length = read(interpreter.offset, path.get_mut(..length)?);
    let path = path.get(..length)?;
    if !GLIBC.iter().any(|name| contains(path, name)) {
        return Some(Reason::Musl);
    }
    dynamic?.has_sanitizer(read, &segments).then_some(Reason::Sanitizer)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The program headers of a file.
struct Segments {
    bytes: [u8; SEGMENT_BYTES * SEGMENTS_MAX],
    count: usize,
}

/// A part of a file that is loaded, or otherwise of use.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segments {
    const LOADED: u32 = 1;
    const DYNAMIC: u32 = 2;
    const INTERPRETER: u32 = 3;

    fn read(read: &mut impl Read, at: u64, count: u16) -> Self {
        let mut bytes = [0; SEGMENT_BYTES * SEGMENTS_MAX];
        let wanted = usize::from(count).min(SEGMENTS_MAX) * SEGMENT_BYTES;
        let length = bytes.get_mut(..wanted).map_or(0, |bytes| read(at, bytes));
        Self { bytes, count: length / SEGMENT_BYTES }
    }

    fn all(&self) -> impl Iterator<Item = Segment> {
        self.bytes.chunks_exact(SEGMENT_BYTES).take(self.count).filter_map(|bytes| {
            Some(Segment {
                kind: word(bytes, 0)?,
                offset: long(bytes, 8)?,
                address: long(bytes, 16)?,
                bytes: long(bytes, 32)?,
            })
        })
    }

    fn find(&self, kind: u32) -> Option<Segment> {
        self.all().find(|segment| segment.kind == kind)
    }

    /// Where in the file an address is.
    fn offset(&self, address: u64) -> Option<u64> {
        self.all().filter(|segment| segment.kind == Self::LOADED).find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            (within < segment.bytes).then(|| segment.offset.checked_add(within))?
        })
    }
}

/// What the dynamic linker reads.
struct Dynamic {
    /// Where the names of libraries are among the strings.
    needed: [u64; NEEDED_MAX],
    needed_count: usize,
    own_name: Option<u64>,
    strings: Option<u64>,
    symbols: Option<u64>,
    hash: Option<u64>,
    /// It says of itself that it is a program.
    is_program: bool,
}

impl Dynamic {
    const END: u64 = 0;
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    const SYMBOLS: u64 = 6;
    const OWN_NAME: u64 = 14;
    const FLAGS_1: u64 = 0x6fff_fffb;
    const HASH: u64 = 0x6fff_fef5;

    fn read(read: &mut impl Read, segment: &Segment) -> Self {
        let mut found = Self {
            needed: [0; NEEDED_MAX],
            needed_count: 0,
            own_name: None,
            strings: None,
            symbols: None,
            hash: None,
            is_program: false,
        };
        let mut bytes = [0u8; 1024];
        for at in (0..segment.bytes.min(DYNAMIC_BYTES_MAX)).step_by(bytes.len()) {
            let Some(at) = segment.offset.checked_add(at) else { break };
            let length = read(at, &mut bytes);
            for entry in bytes.chunks_exact(16).take(length / 16) {
                let (Some(tag), Some(value)) = (long(entry, 0), long(entry, 8)) else { return found };
                if tag == Self::END {
                    return found;
                }
                found.note(tag, value);
            }
            if length < bytes.len() {
                break;
            }
        }
        found
    }

    fn note(&mut self, tag: u64, value: u64) {
        const PROGRAM: u64 = 0x0800_0000;
        match tag {
            Self::NEEDED => {
                if let Some(place) = self.needed.get_mut(self.needed_count) {
                    *place = value;
                    self.needed_count += 1;
                }
            }
            Self::OWN_NAME => self.own_name = Some(value),
            Self::STRINGS => self.strings = Some(value),
            Self::SYMBOLS => self.symbols = Some(value),
            Self::HASH => self.hash = Some(value),
            Self::FLAGS_1 => self.is_program = value & PROGRAM != 0,
            _ => {}
        }
    }

    /// Whether one of these strings begins the string there.
    fn begins(read: &mut impl Read, strings: u64, at: u64, with: &[&[u8]]) -> bool {
        let mut text = [0u8; 32];
        let length = strings.checked_add(at).map_or(0, |at| read(at, &mut text));
        let text = text.get(..length).unwrap_or(&[]);
        with.iter().any(|with| text.starts_with(with))
    }

    /// Whether it is musl itself, which is its own dynamic linker.
    fn is_musl(&self, read: &mut impl Read, segments: &Segments) -> bool {
        let strings = self.strings.and_then(|address| segments.offset(address));
        let (Some(strings), Some(name)) = (strings, self.own_name) else { return false };
        Self::begins(read, strings, name, &[b"libc.musl"])
    }

    fn has_sanitizer(&self, read: &mut impl Read, segments: &Segments) -> bool {
        let Some(strings) = self.strings.and_then(|address| segments.offset(address)) else {
            return false;
        };
        let mut needed = self.needed.iter().take(self.needed_count);
        needed.any(|&name| Self::begins(read, strings, name, &SANITIZERS))
            || SANITIZER_SYMBOLS
                .iter()
                .any(|name| self.exports(read, segments, strings, name).unwrap_or(false))
    }

    /// Whether the file has a symbol of this name for others, by its hash table.
    fn exports(&self, read: &mut impl Read, segments: &Segments, strings: u64, name: &[u8]) -> Option<bool> {
        let hash =
            name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let table = segments.offset(self.hash?)?;
        let symbols = segments.offset(self.symbols?)?;
        let header: [u8; 16] = read_exactly(read, table)?;
        let buckets = u64::from(word(&header, 0)?);
        let first_symbol = u64::from(word(&header, 4)?);
        let bloom_words = u64::from(word(&header, 8)?);
        let bucket_at = table.checked_add(16)?.checked_add(bloom_words.checked_mul(8)?)?;
        let bucket = 4 * u64::from(hash).checked_rem(buckets)?;
        let bucket: [u8; 4] = read_exactly(read, bucket_at.checked_add(bucket)?)?;
        let first = u64::from(word(&bucket, 0)?);
        let chains = bucket_at.checked_add(4 * buckets)?;
        for index in (first..).take(CHAIN_MAX) {
            let place = index.checked_sub(first_symbol)?;
            let found: [u8; 4] = read_exactly(read, chains.checked_add(4 * place)?)?;
            let found = word(&found, 0)?;
            if found | 1 == hash | 1 {
                let symbol: [u8; 4] = read_exactly(read, symbols.checked_add(index * SYMBOL_BYTES)?)?;
                let mut text = [0u8; 16];
                let length = read(strings.checked_add(u64::from(word(&symbol, 0)?))?, &mut text);
                let text = text.get(..length)?;
                if text.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0)) {
                    return Some(true);
                }
            }
            if found & 1 != 0 {
                break;
            }
        }
        Some(false)
    }
}
