use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;

use super::*;

#[test]
fn two_mappings_see_each_other() {
    let ours = SharedMemory::create("test", 8192).unwrap();
    let descriptor = ours.as_fd().try_clone_to_owned().unwrap();
    let theirs = SharedMemory::open(descriptor, 8192).unwrap();
    ours.span_mut(100, 5).unwrap().copy_from(b"hello".as_slice().into());
    assert_eq!(theirs.span(100, 5).unwrap().to_vec(), b"hello");
    theirs.atomic_u32(8).unwrap().store(7, Ordering::Release);
    assert_eq!(ours.atomic_u32(8).unwrap().load(Ordering::Acquire), 7);
}

/// How much of a mapping is mapped as huge pages.
fn huge_kib(memory: &SharedMemory) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let begin = format!("{:x}-", memory.as_mut_ptr().addr());
    let ours = maps.lines().skip_while(|line| !line.starts_with(&begin));
    let line = ours.into_iter().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn what_becomes_huge_keeps_its_bytes() {
    const LENGTH: usize = 2 * HUGE_PAGE_BYTES + 4096;
    let memory = SharedMemory::create("test", LENGTH).unwrap();
    let other = SharedMemory::open(memory.as_fd().try_clone_to_owned().unwrap(), LENGTH).unwrap();
    for mapping in [&memory, &other] {
        assert!(mapping.as_mut_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
    }
    memory.span_mut(HUGE_PAGE_BYTES + 5000, 5).unwrap().copy_from(b"hello".as_slice().into());
    assert!(
        !memory.make_huge(4096)
            && !memory.make_huge(2 * HUGE_PAGE_BYTES)
            && !memory.make_huge(usize::MAX - (HUGE_PAGE_BYTES - 1))
    );
    let made = [0, HUGE_PAGE_BYTES].map(|offset| memory.make_huge(offset));
    if made != [true; 2] {
        // Where it is not to be had, memory works as ordinary; where all has to be had, it must be.
        crate::testing::left_out(&format!("the kernel made {made:?} of two huge pages"));
    } else {
        assert_eq!(huge_kib(&memory), (2 * HUGE_PAGE_BYTES / 1024) as u64);
    }
    memory.populate_huge(4096, usize::MAX);
    assert_eq!(other.span(HUGE_PAGE_BYTES + 5000, 5).unwrap().to_vec(), b"hello");
    assert_eq!(other.span(0, 4096).unwrap().to_vec(), [0; 4096]);
    other.span_mut(LENGTH - 5, 5).unwrap().copy_from(b"ahead".as_slice().into());
    assert_eq!(memory.span(LENGTH - 5, 5).unwrap().to_vec(), b"ahead");
}

#[test]
fn ranges_are_checked() {
    let memory = SharedMemory::create("test", 4096).unwrap();
    assert!(memory.span(4096, 0).is_ok());
    assert!(memory.span(4096, 1).is_err());
    assert!(memory.span(usize::MAX, 2).is_err());
    assert!(memory.atomic_u64(4).is_err());
    assert!(memory.atomic_u32(4094).is_err());
    let span = memory.span(0, 10).unwrap();
    assert!(span.part(5, 5).is_some());
    assert!(span.part(5, 6).is_none());
    assert!(span.part(usize::MAX, 1).is_none());
}

#[test]
fn unsealed_and_mis_sized_memory_is_refused() {
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert_eq!(SharedMemory::open(unsealed, 4096).unwrap_err(), SharedMemoryError::NotSealed);
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(SharedMemory::open(OwnedFd::from(file), 4096).unwrap_err(), SharedMemoryError::NotSealed);
    // Sealed against us, too; as large as memory that is mapped with care.
    for bytes in [4096, 2 * HUGE_PAGE_BYTES] {
        let read_only =
            rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&read_only, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&read_only, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
        let refused = SharedMemory::open(read_only, bytes).unwrap_err();
        assert_eq!(refused, SharedMemoryError::System { operation: "mapping", errno: Errno::PERM });
    }
    let sealed = SharedMemory::create("test", 4096).unwrap();
    let descriptor = sealed.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(SharedMemory::open(descriptor, 8192), Err(SharedMemoryError::WrongSize { .. })));
}
