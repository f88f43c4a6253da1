//! The threads that carry out orders.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_host::life::ProcessLife;
use tombolo_host::own::{self, ProcessMemory, Right};
use tombolo_host::timing::client as timing;

use super::area::AccessArea;
use super::server::AccessServer;

thread_local! {
    /// Whether this is one of the threads, which must not wait for itself.
    static IS_ACCESS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The threads for one area. Dropped, they end, but for one that waits for a page; no access is made after that, but one that
/// does not end. In a child made by fork they are not, and nothing is done.
pub struct AccessThreads {
    server: Arc<AccessServer>,
    /// The process that they are in.
    process: ProcessLife,
}

impl std::fmt::Debug for AccessThreads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AccessThreads")
    }
}

impl AccessThreads {
    /// Starts them. `notify` is called after each answer.
    pub fn start(
        area: AccessArea,
        memory: Box<dyn ProcessMemory>,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<Self> {
        let process = ProcessLife::now();
        let server = Arc::new(AccessServer::new(area, memory, notify));
        start_thread(&server)?;
        Ok(Self { server, process })
    }

    /// Whether the threads are in this process.
    pub fn are_here(&self) -> bool {
        self.process.is_now()
    }

    /// Carries out orders on this thread, which waits for something else, and has begun to poll. Returns how many.
    pub fn serve(&self) -> usize {
        let count = self.server.serve(false).map_or(0, |served| served.count);
        if count > 0 {
            recruit(&self.server);
        }
        count
    }

    /// Brings pages in that nobody has asked for yet, in the background. False: too many ranges wait for that already, and no page
    /// of this one is brought in.
    pub fn prefetch(&self, address: u64, length_bytes: usize, right: Right) -> bool {
        let is_queued = self.are_here() && self.server.queue_ahead(address, length_bytes as u64, right);
        if is_queued {
            recruit(&self.server);
        }
        is_queued
    }

    /// This thread calls [`Self::serve`] again and again from now on, so no other needs to be woken for an order.
    pub fn begin_to_poll(&self) {
        self.server.pollers.fetch_add(1, Ordering::SeqCst);
        self.server.area.stay_awake();
    }

    /// This thread calls it no more.
    pub fn end_to_poll(&self) {
        if self.server.pollers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.server.area.fall_asleep();
            if self.server.has_orders() {
                self.server.area.wake();
            }
        }
    }

    /// No access is made any more: there is no node that wants one. False: one is being made, and does not end in time.
    pub fn close(&self, timeout: Duration) -> bool {
        if !self.are_here() {
            return true;
        }
        self.server.close();
        IS_ACCESS_THREAD.get() || self.server.await_end(timeout)
    }
}

impl Drop for AccessThreads {
    fn drop(&mut self) {
        let _hangs = !self.close(timing::ACCESS_CLOSE_WAIT);
    }
}

/// Starts one more thread, if a touch waits for it.
fn recruit(server: &Arc<AccessServer>) {
    let is_needed = server.crew.lock().recruits();
    if is_needed && start_thread(server).is_err() {
        server.not_started();
    }
}

fn start_thread(server: &Arc<AccessServer>) -> std::io::Result<()> {
    let server = server.clone();
    let work = move || {
        IS_ACCESS_THREAD.set(true);
        server.work(&|| recruit(&server));
    };
    // The signals of the program are not for it, from its first moment on.
    own::serving_faults_alone(|| std::thread::Builder::new().name("access".into()).spawn(work).map(drop))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::time::{Duration, Instant};

    use parking_lot::Mutex;
    use tombolo_host::own::{Absence, Absent, Denied, OwnMemory, Reason, ThisProcess, WordChange};
    use tombolo_host::shared::{SharedSpan, SharedSpanMut};

    use super::*;
    use crate::access::{Order, OrderKind, Outcome};

    struct Node {
        area: AccessArea,
        brings: bool,
        posted: u64,
        taken: u64,
    }

    impl Node {
        fn order(&mut self, address: u64, length_bytes: u32, kind: OrderKind) -> Outcome {
            let (look, is_forced) = ((address, length_bytes.min(1 << 16)), false);
            let (id, brings) = (self.posted + 7, self.brings);
            let order = Order { id, address, length_bytes, is_forced, brings, look, kind };
            self.area.post(self.posted, &order);
            self.posted += 1;
            let since = Instant::now();
            while self.area.answered() == self.taken {
                assert!(since.elapsed() < Duration::from_secs(60), "no answer to {order:?}");
                std::thread::yield_now();
            }
            let (id, outcome) = self.area.outcome(self.taken).unwrap();
            self.taken += 1;
            assert_eq!(id, order.id);
            outcome
        }
    }

    /// Orders that bring their pages in, and the answers as they come.
    impl Node {
        fn post(&mut self, id: u64, address: u64, kind: OrderKind) {
            self.post_forced(id, address, kind, false);
        }

        fn post_forced(&mut self, id: u64, address: u64, kind: OrderKind, is_forced: bool) {
            let look = (address / 4096 * 4096, 4096);
            let order = Order { id, address, length_bytes: 8, is_forced, brings: !is_forced, look, kind };
            self.area.post(self.posted, &order);
            self.posted += 1;
        }

        fn answer(&mut self, threads: &AccessThreads) -> (u64, Outcome) {
            let since = Instant::now();
            while self.area.answered() == self.taken {
                assert!(since.elapsed() < Duration::from_secs(60), "no answer");
                threads.serve();
                std::thread::yield_now();
            }
            self.taken += 1;
            self.area.outcome(self.taken - 1).unwrap()
        }
    }

    fn node_sees(process: &ThisProcess, address: u64) -> Outcome {
        Outcome::Absent(process.absent(address, 1, Right::Write))
    }

    #[test]
    fn orders_are_carried_out_and_absent_pages_are_brought_in() {
        let area = AccessArea::create().unwrap();
        let theirs = AccessArea::open(area.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (process, memory) = (ThisProcess::new().unwrap(), OwnMemory::map(3 * 4096).unwrap());
        let ahead = OwnMemory::map(5 << 20).unwrap();
        let _permits = (process.permit(&memory), process.permit(&ahead));
        let process_twin = process.clone();
        let threads = AccessThreads::start(theirs, Box::new(process), Box::new(|| {})).unwrap();
        let (mut node, at) = (Node { area, brings: false, posted: 0, taken: 0 }, memory.address());
        node.area.span_mut(512, 9000).unwrap().copy_from(SharedSpan::from([3; 9000].as_slice()));
        let missing = |pages| Outcome::Absent(Absent { pages, kind: Some(Absence::Missing) });
        assert_eq!(node.order(at + 10, 9000, OrderKind::Write(512)), missing(0b111));
        assert_eq!(node.order(at + 10, 5000, OrderKind::Touch(Right::Write)), Outcome::Done(0));
        assert_eq!(node.order(at + 10, 9000, OrderKind::Write(512)), missing(0b100));
        assert_eq!(node.order(at, 3 * 4096, OrderKind::Touch(Right::Write)), Outcome::Done(0));
        // Also while a thread that waits for something carries orders out.
        threads.begin_to_poll();
        let done = AtomicBool::new(false);
        let polled = std::thread::scope(|scope| {
            let polling = scope.spawn(|| {
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    count += threads.serve();
                }
                count
            });
            for _ in 0..100 {
                assert_eq!(node.order(at + 10, 9000, OrderKind::Write(512)), Outcome::Done(0));
            }
            done.store(true, Ordering::Relaxed);
            polling.join().unwrap()
        });
        assert!(polled > 0);
        threads.end_to_poll();
        assert_eq!(node.order(at + 10, 9000, OrderKind::Read(20_000)), Outcome::Done(0));
        let mut found = [0; 9000];
        node.area.span(20_000, 9000).unwrap().copy_to(&mut found);
        assert_eq!(found, [3; 9000]);
        assert_eq!(node.order(at + 16, 16, OrderKind::Words([5, 6])), Outcome::Done(0));
        let add = OrderKind::Change(WordChange::Add(1));
        assert_eq!(node.order(at + 24, 8, add), Outcome::Done(6));
        assert_eq!(node.order(at + 25, 8, add), Outcome::Impossible);
        let denied = |address| Outcome::Denied(Denied { address, reason: Reason::NotMapped });
        assert_eq!(node.order(at + 3 * 4096 - 8, 16, OrderKind::Words([5, 6])), denied(at + 3 * 4096 - 8));
        // The program itself wants pages.
        let page = |address| missing(1) == node_sees(&process_twin, address);
        assert!(page(ahead.address()));
        assert!(threads.prefetch(ahead.address(), ahead.len(), Right::Write));
        let since = Instant::now();
        while page(ahead.address() + ahead.len() as u64 - 4096) {
            assert!(since.elapsed() < Duration::from_secs(60), "not brought in");
            std::thread::yield_now();
        }
        // A node that asks for nonsense.
        assert_eq!(node.order(at, 100, OrderKind::Read(u64::MAX)), denied(at));
        assert_eq!(node.order(at, 1 << 30, OrderKind::Read(0)), Outcome::Impossible);
        drop(threads);
    }

    /// Memory whose first page comes when it is told to, and of which it is known what was written.
    #[derive(Clone, Debug, Default)]
    struct Late(Arc<State>);

    #[derive(Debug, Default)]
    struct State {
        has_come: AtomicBool,
        /// A fork shares the page when it has come.
        is_shared: AtomicBool,
        /// It is away again as soon as it has been touched.
        is_fickle: AtomicBool,
        /// A touch that is under way ends without the page.
        is_denied: AtomicBool,
        touches: AtomicU32,
        written: Mutex<Vec<u64>>,
    }

    impl Late {
        fn await_touches(&self, count: u32) {
            let since = Instant::now();
            while self.0.touches.load(Ordering::SeqCst) < count {
                assert!(since.elapsed() < Duration::from_secs(60), "it is not touched");
                std::thread::yield_now();
            }
        }
    }

    impl ProcessMemory for Late {
        fn absent(&self, address: u64, _: u32, _: Right) -> Absent {
            let kind = match self.0.has_come.load(Ordering::SeqCst) {
                false => Some(Absence::Missing),
                true if self.0.is_shared.load(Ordering::SeqCst) => Some(Absence::CopyOnWrite),
                true => None,
            };
            let kind = kind.or(self.0.is_fickle.load(Ordering::SeqCst).then_some(Absence::Missing));
            let kind = kind.filter(|_| address < 4096);
            Absent { pages: kind.is_some().into(), kind }
        }

        fn is_there(&self, address: u64, length_bytes: u32, right: Right) -> bool {
            self.absent(address, length_bytes, right).pages == 0
        }

        fn check(&self, _: u64, _: u32, _: Right) -> Result<(), Denied> {
            Ok(())
        }

        fn read(&self, _: u64, _: SharedSpanMut<'_>) -> Result<(), u64> {
            Ok(())
        }

        fn write(&self, address: u64, _: SharedSpan<'_>) -> Result<(), u64> {
            self.0.written.lock().push(address);
            Ok(())
        }

        fn write_words(&self, _: u64, _: [u64; 2]) -> Result<(), u64> {
            Ok(())
        }

        fn change_word(&self, _: u64, _: WordChange) -> Result<u64, Option<u64>> {
            Err(None)
        }

        fn touch(&self, _: u64, _: u32, _: Right) -> Result<(), Denied> {
            // Read before the touch is counted: what a test changes when it has seen that is for the next one.
            let has_come = self.0.has_come.load(Ordering::SeqCst);
            self.0.touches.fetch_add(1, Ordering::SeqCst);
            if has_come {
                self.0.is_shared.store(false, Ordering::SeqCst);
            }
            while !self.0.has_come.load(Ordering::SeqCst) {
                if self.0.is_denied.swap(false, Ordering::SeqCst) {
                    return Err(Denied { address: 0, reason: Reason::Protected });
                }
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    /// A page that does not come holds up nobody; what waits for it is made when it comes, unless it was withdrawn. It
    /// is brought in once for all that look at it.
    #[test]
    fn accesses_wait_for_their_page_alone_and_can_be_withdrawn() {
        for leads in [true, false] {
            let area = AccessArea::create().unwrap();
            let theirs = AccessArea::open(area.as_fd().try_clone_to_owned().unwrap()).unwrap();
            let memory = Late::default();
            let threads = AccessThreads::start(theirs, Box::new(memory.clone()), Box::new(|| {})).unwrap();
            if !leads {
                threads.begin_to_poll();
            }
            let mut node = Node { area, brings: true, posted: 0, taken: 0 };
            for (id, address) in [(1, 0), (2, 8), (3, 16), (4, 8192)] {
                node.post(id, address, OrderKind::Write(0));
            }
            assert_eq!(node.answer(&threads), (4, Outcome::Done(0)));
            for (id, is_withdrawn) in [(2, 1), (2, 0), (4, 0), (9, 0)] {
                let order = OrderKind::Withdraw(id);
                let withdraw = Order {
                    id: 100 + id,
                    address: 0,
                    length_bytes: 0,
                    is_forced: false,
                    brings: false,
                    look: (0, 0),
                    kind: order,
                };
                node.area.post(node.posted, &withdraw);
                node.posted += 1;
                assert_eq!(node.answer(&threads), (100 + id, Outcome::Done(is_withdrawn)));
                if is_withdrawn == 1 {
                    // It has no place in the ring any more, however long its page takes.
                    assert_eq!(node.answer(&threads), (id, Outcome::Impossible));
                }
            }
            // What overlaps with one that waits comes after it, though its own page is there.
            node.post(5, 4090, OrderKind::Write(0));
            node.post(6, 4096, OrderKind::Write(0));
            node.post(7, 8200, OrderKind::Write(0));
            assert_eq!(node.answer(&threads), (7, Outcome::Done(0)));
            memory.0.has_come.store(true, Ordering::SeqCst);
            let absent = Absent { pages: 1, kind: Some(Absence::Missing) };
            assert_eq!(node.answer(&threads), (1, Outcome::Brought(0, absent)));
            for id in [3, 5, 6] {
                assert_eq!(node.answer(&threads), (id, Outcome::Done(0)));
            }
            assert_eq!(
                (&*memory.0.written.lock(), memory.0.touches.load(Ordering::SeqCst)),
                (&vec![8192, 8200, 0, 16, 4090, 4096], 1)
            );
            if !leads {
                threads.end_to_poll();
            }
        }
    }

    /// An access was ordered, and its page is being touched.
    fn touching() -> (Late, AccessThreads, Node) {
        let area = AccessArea::create().unwrap();
        let theirs = AccessArea::open(area.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let memory = Late::default();
        let threads = AccessThreads::start(theirs, Box::new(memory.clone()), Box::new(|| {})).unwrap();
        let mut node = Node { area, brings: true, posted: 0, taken: 0 };
        node.post(1, 0, OrderKind::Write(0));
        memory.await_touches(1);
        (memory, threads, node)
    }

    /// What could not be had when an access came is no reason to refuse a later one, for which it can.
    #[test]
    fn a_refusal_is_for_those_that_were_there_when_the_page_was_asked_for() {
        let (memory, threads, mut node) = touching();
        for (id, address) in [(2, 8), (3, 4096)] {
            node.post(id, address, OrderKind::Write(0));
        }
        // The second waits for the same page.
        assert_eq!(node.answer(&threads), (3, Outcome::Done(0)));
        memory.0.is_denied.store(true, Ordering::SeqCst);
        let denied = Outcome::Denied(Denied { address: 0, reason: Reason::Protected });
        assert_eq!(node.answer(&threads), (1, denied));
        // Not before the page has been asked for again: else the second finds it there.
        memory.await_touches(2);
        memory.0.has_come.store(true, Ordering::SeqCst);
        let absent = Absent { pages: 1, kind: Some(Absence::Missing) };
        assert_eq!(node.answer(&threads), (2, Outcome::Brought(0, absent)));
        assert_eq!(memory.0.touches.load(Ordering::SeqCst), 2);
    }

    /// A page that was missing is told as that, also when a fork shares it before it is used.
    #[test]
    fn what_was_met_first_is_told() {
        let (memory, threads, mut node) = touching();
        memory.0.is_shared.store(true, Ordering::SeqCst);
        memory.0.has_come.store(true, Ordering::SeqCst);
        let absent = Absent { pages: 1, kind: Some(Absence::Missing) };
        assert_eq!(node.answer(&threads), (1, Outcome::Brought(0, absent)));
        assert_eq!(memory.0.touches.load(Ordering::SeqCst), 2);
    }

    /// A page that goes as fast as it comes is brought in by the copying itself.
    #[test]
    fn an_access_whose_page_goes_again_is_made_all_the_same() {
        let (memory, threads, mut node) = touching();
        memory.0.is_fickle.store(true, Ordering::SeqCst);
        memory.0.has_come.store(true, Ordering::SeqCst);
        let absent = Absent { pages: 1, kind: Some(Absence::Missing) };
        assert_eq!(node.answer(&threads), (1, Outcome::Brought(0, absent)));
        let touches = memory.0.touches.load(Ordering::SeqCst);
        assert_eq!((&*memory.0.written.lock(), touches), (&vec![0], crate::access::server::MAX_BRINGS));
    }

    /// An access that is forced looks for no pages, also where it waits for an earlier one.
    #[test]
    fn a_forced_access_comes_after_what_it_overlaps() {
        let (memory, threads, mut node) = touching();
        node.post_forced(2, 4, OrderKind::Write(0), true);
        // The order behind it is carried out, so that one was taken.
        node.post(3, 8192, OrderKind::Write(0));
        assert_eq!(node.answer(&threads), (3, Outcome::Done(0)));
        memory.0.is_fickle.store(true, Ordering::SeqCst);
        memory.0.has_come.store(true, Ordering::SeqCst);
        let absent = Absent { pages: 1, kind: Some(Absence::Missing) };
        assert_eq!(node.answer(&threads), (1, Outcome::Brought(0, absent)));
        assert_eq!(node.answer(&threads), (2, Outcome::Done(0)));
        assert_eq!(&*memory.0.written.lock(), &vec![8192, 0, 4]);
    }
}
