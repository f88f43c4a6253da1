//! What programs do with memory, by programs written for it: they check every
//! word themselves, and run plainly first.

use crate::common::{Lender, Link, Outcome, Program, Scratch, compiled, needs, once_more_if_exceeded, sized};

/// Runs a test program that uses `megabytes`, with a quarter of that local.
fn far(name: &str, link: Link, lenders: usize, megabytes: u32, more: &[&str]) -> Outcome {
    run(|program| program, name, link, lenders, megabytes, more)
}

/// The same for one that forks.
fn forking(name: &str, link: Link, lenders: usize, megabytes: u32, more: &[&str]) -> Outcome {
    run(Program::forking, name, link, lenders, megabytes, more)
}

fn run(
    prepare: impl Fn(Program) -> Program,
    name: &str,
    link: Link,
    lenders: usize,
    megabytes: u32,
    more: &[&str],
) -> Outcome {
    let lenders: Vec<_> = (0..lenders).map(|_| Lender::start(link, "2G")).collect();
    let mut words = vec![compiled(name, &[]), megabytes.to_string()];
    words.extend(more.iter().map(|&word| word.to_owned()));
    let lenders: Vec<_> = lenders.iter().collect();
    let program = Program::new(&words).remote(&format!("{}M", megabytes * 8));
    prepare(program).same_on(&lenders, &format!("{}M", megabytes / 4))
}

/// The same with small mappings far, too.
fn every_mapping_far(name: &str, link: Link) {
    let lender = Lender::start(link, "1G");
    let program = Program::new(&[compiled(name, &[]), "24".into()]).remote("256M").minimum("4K");
    program.forking().same_on(&[&lender], "6M");
}

/// Memory of a test program, in MiB.
fn ordinary() -> u32 {
    sized(32, 128)
}

/// The same where each page takes several times as long.
fn over_udp() -> u32 {
    sized(16, 64)
}

#[test]
fn eight_threads_find_their_patterns_shm() {
    needs!("cc");
    far("threads", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn eight_threads_find_their_patterns_udp() {
    needs!("cc");
    far("threads", Link::Udp, 1, over_udp(), &[]);
}

#[test]
fn eight_threads_find_their_patterns_on_two_lenders() {
    needs!("cc");
    far("threads", Link::Shm, 2, ordinary(), &[]);
}

#[test]
fn eight_threads_find_their_patterns_on_two_lenders_udp() {
    needs!("cc");
    far("threads", Link::Udp, 2, over_udp(), &[]);
}

#[test]
fn a_sixteenth_local_is_slow_but_right() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    Program::new(&[compiled("threads", &[]), "64".into()]).remote("256M").same_on(&[&lender], "4M");
}

/// The kernel moves pages only to where they have the same rights.
#[test]
fn executable_memory_leaves_too() {
    needs!("cc");
    far("executable", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn no_increment_is_lost_where_threads_share_pages() {
    needs!("cc");
    far("false_sharing", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn a_forked_child_keeps_its_snapshot_shm() {
    needs!("cc");
    let outcome = forking("snapshot", Link::Shm, 1, ordinary(), &[]);
    assert_eq!(outcome.counter("forks"), 6, "three children with a child each");
}

#[test]
fn a_forked_child_keeps_its_snapshot_udp() {
    needs!("cc");
    forking("snapshot", Link::Udp, 1, over_udp(), &[]);
}

#[test]
fn a_forked_child_keeps_its_snapshot_on_two_lenders() {
    needs!("cc");
    forking("snapshot", Link::Udp, 2, over_udp(), &[]);
}

/// What a fork shares counts once: where there is room for the parent, there is for both.
#[test]
fn a_sleeping_child_moves_no_page() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let program = Program::new(&[compiled("sleeping_child", &[]), "48".into()]).remote("256M");
    let outcome = program.run_on(&[&lender], "64M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!((outcome.counter("forks"), outcome.counter("pages_out")), (1, 0), "{:#}", outcome.report());
    assert_eq!(outcome.counter("batches"), 0, "{:#}", outcome.report());
}

/// And once in far memory, also where one of them has moved it.
#[test]
fn what_a_sleeping_child_shares_is_stored_once() {
    needs!("cc");
    for (link, more) in [(Link::Shm, None), (Link::Udp, None), (Link::Shm, Some("move"))] {
        let lender = Lender::start(link, "1G");
        let mut words = vec![compiled("sleeping_child", &[]), "48".into()];
        words.extend(more.map(str::to_owned));
        let program = Program::new(&words).remote("52M");
        let outcome = once_more_if_exceeded(|| program.run_on(&[&lender], "16M"));
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        // 12,288 pages; some that were mapped writable when they came back are saved once more.
        let (out, dropped) = (outcome.counter("pages_out"), outcome.counter("shared_drops"));
        assert!(out < 16_000 && dropped > 500, "{more:?}: {out} {dropped}");
        outcome.assert_within_limit(110);
    }
}

/// A page that is there needs only room for its copy: nobody waits for ever, and nothing is lost.
#[test]
fn a_write_to_shared_memory_goes_on_where_all_memory_is_full() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let program = Program::new(&[compiled("sleeping_child", &[]), "3".into(), "28".into()]).remote("16M");
    let outcome = program.run_on(&[&lender], "16M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("local and far memory are both full"), "{}", outcome.stderr);
}

/// Far copies of pages that are here are given up for others, also of pages that a child keeps here.
#[test]
fn far_copies_of_shared_memory_are_given_up_where_far_memory_is_full() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let program = Program::new(&[compiled("stuck_child", &[]), "6".into(), "16".into()]).remote("16M");
    let outcome = program.forking().run_on(&[&lender], "16M");
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "shared\n"), "{}", outcome.stderr);
}

#[test]
fn what_the_kernel_writes_to_pinned_memory_beside_a_fork_is_found_by_its_process_alone() {
    needs!("cc");
    let (lender, scratch) = (Lender::start(Link::Shm, "1G"), Scratch::new("pinned"));
    let program = Program::new(&[compiled("pinned_fork", &[]), "16".into(), scratch.file("read")]);
    program.remote("256M").forking().same_on(&[&lender], "6M");
}

/// The kernel would forget the write protection of what it merges, by which it is known what has changed.
#[test]
fn no_far_memory_is_merged_with_equal_pages() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "64M");
    for more in [None, Some("executed".to_owned())] {
        let mut words = vec![compiled("merging", &[]), "2".into()];
        words.extend(more);
        let plain = Program::new(&words).plain();
        let far = Program::new(&words).run_on(&[&lender], "4M");
        assert_eq!((plain.code(), far.code()), (0, 0), "{}", far.stderr);
        assert!(far.text().ends_with("mergeable: no\n"), "{}", far.text());
    }
}

#[test]
fn forks_while_threads_write_lose_nothing() {
    needs!("cc");
    forking("forking", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn forks_while_another_thread_unmaps_and_moves_lose_nothing() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        every_mapping_far("unmapping", link);
    }
}

#[test]
fn signal_handlers_change_memory_in_the_middle_of_changes() {
    needs!("cc");
    every_mapping_far("interrupted", Link::Shm);
}

#[test]
fn children_return_from_signal_handlers_into_requests() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "64M");
    let outcome = Program::new(&[compiled("returning", &[])]).minimum("4K").run_on(&[&lender], "6M");
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "returned and right\n"), "{}", outcome.stderr);
    assert!(outcome.counter("forks") >= 400, "{:#}", outcome.report());
}

#[test]
fn children_that_change_memory_before_their_fork_handlers_run_are_begun_once() {
    needs!("cc");
    for way in ["early-handler", "small-mapping", "two-threads"] {
        forking("begun", Link::Shm, 1, 32, &[way]);
    }
}

#[test]
fn a_library_may_wait_for_its_threads_before_a_fork() {
    needs!("cc");
    let library = compiled("joining_library", &["-shared", "-fPIC"]);
    let lender = Lender::start(Link::Shm, "1G");
    let program = Program::new(&[compiled("joining", &[&library]), "32".into()]).remote("512M").forking();
    // The allocator takes each segment from the kernel, as where it cannot reserve more at once.
    program.variable("MIMALLOC_DISALLOW_ARENA_ALLOC", "1").same_on(&[&lender], "8M");
}

#[test]
fn five_hundred_children_and_storms_of_vfork_find_their_memory() {
    needs!("cc");
    forking("storms", Link::Shm, 1, sized(16, 64), &[]);
}

#[test]
fn executed_programs_are_under_the_pager_too() {
    needs!("cc");
    let outcome = forking("spawning", Link::Shm, 1, ordinary(), &[]);
    // The program, what fork, vfork, posix_spawn and system executed, and what it became itself.
    assert!(outcome.counter("spaces") >= 6, "{:#}", outcome.report());
}

#[test]
fn mremap_keeps_contents() {
    needs!("cc");
    far("remapping", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn what_was_given_up_reads_as_zero() {
    needs!("cc");
    far("discarding", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn protection_holds_under_eviction() {
    needs!("cc");
    far("protecting", Link::Shm, 1, ordinary(), &[]);
}

/// Pages of read-only mappings leave by being dropped, and libc's calls wait for that. Those of a program that moves
/// memory behind libc stay, and the limit gives way.
#[test]
fn read_only_memory_that_moves_keeps_its_contents() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    for how in ["libc", "raw"] {
        let words = [compiled("raw_moves", &["-pthread"]), "24".into(), how.into()];
        let far = Program::new(&words).remote("256M").run_on(&[&lender], "8M");
        assert_eq!((far.code(), far.text().as_str()), (0, "all of it is there\n"), "{how}: {}", far.stderr);
        assert!(far.counter("pages_out") > 0, "{how}: {:#}", far.report());
        let gave_way = far.stderr.contains("exceeds --local");
        assert_eq!(gave_way, how == "raw", "{how}: {}\n{:#}", far.stderr, far.report());
    }
}

#[test]
fn system_calls_reach_far_memory() {
    needs!("cc");
    let scratch = Scratch::new("calls");
    far("kernel_accesses", Link::Shm, 1, ordinary(), &[&scratch.file("data")]);
}

#[test]
fn direct_input_and_output_reach_far_memory() {
    needs!("cc");
    let scratch = Scratch::new("direct");
    far("direct_access", Link::Shm, 1, ordinary(), &[&scratch.file("data")]);
}

#[test]
fn the_heap_keeps_contents_shm() {
    needs!("cc");
    far("heap", Link::Shm, 1, ordinary(), &[]);
}

#[test]
fn the_heap_keeps_contents_udp() {
    needs!("cc");
    far("heap", Link::Udp, 1, over_udp(), &[]);
}

#[test]
fn closing_what_a_program_does_not_know_changes_nothing() {
    needs!("cc");
    for habit in ["close-each", "close-all", "few-descriptors"] {
        far("habits", Link::Shm, 1, ordinary(), &[habit]);
    }
}

#[test]
fn giving_up_privileges_changes_nothing() {
    needs!("cc");
    far("habits", Link::Shm, 1, ordinary(), &["undumpable"]);
    if rustix::process::geteuid().is_root() {
        far("habits", Link::Shm, 1, ordinary(), &["drop-privileges"]);
    }
}

#[test]
fn mappings_of_other_kinds_are_right() {
    needs!("cc");
    for habit in ["populate", "zero-device"] {
        far("habits", Link::Shm, 1, ordinary(), &[habit]);
    }
}

#[test]
fn locked_memory_stays_and_is_said_to_exceed_the_limit() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "2G");
    let program = Program::new(&[compiled("habits", &[]), "64".into(), "lock".into()]).remote("512M");
    let (plain, far) = (program.plain(), program.run_on(&[&lender], "16M"));
    assert_eq!((far.code(), &far.stdout), (plain.code(), &plain.stdout), "{}", far.stderr);
    assert!(far.counter("overdraft_pages") > 0, "{:#}", far.report());
    assert_eq!(far.stderr.matches("exceeds --local").count(), 1, "{}", far.stderr);
}

#[test]
fn memory_outlives_its_program_while_another_process_has_it() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "2G");
    for how in ["exits", "executes"] {
        let program = Program::new(&[compiled("outliving", &[]), "64".into(), how.into()]).remote("512M");
        let (plain, far) = (program.plain(), program.run_on(&[&lender], "16M"));
        assert_eq!((far.code(), &far.stdout), (plain.code(), &plain.stdout), "{}", far.stderr);
        assert!(plain.stdout.ends_with(b"all of it was there\n"), "{}", far.stderr);
    }
}

#[test]
fn a_program_that_locks_all_its_memory_goes_on() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "2G");
    for habit in ["lock-all", "lock-all-and-future", "lock-all-on-fault"] {
        let program = Program::new(&[compiled("habits", &[]), "16".into(), habit.into()]).remote("512M");
        let (plain, far) = (program.plain(), program.run_on(&[&lender], "4M"));
        assert_eq!((far.code(), &far.stdout), (plain.code(), &plain.stdout), "{habit}: {}", far.stderr);
        // What was locked leaves once it is locked no longer.
        assert!(far.counter("pages_out") > 0, "{habit}: {:#}", far.report());
    }
}

#[test]
fn the_main_thread_may_go_first() {
    needs!("cc");
    far("habits", Link::Shm, 1, ordinary(), &["main-thread-exits"]);
}

#[test]
fn a_thread_may_execute_another_program() {
    needs!("cc");
    let outcome = far("habits", Link::Shm, 1, ordinary(), &["thread-executes"]);
    assert_eq!(outcome.counter("spaces"), 2);
}
