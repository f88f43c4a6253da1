//! What orders look at before they are carried out.

use tombolo_host::own::{MAX_LOOK_BYTES, ProcessMemory, Right};

use super::order::{Order, OrderKind};

/// What an access looks at, and to do what.
pub(super) type Look = ((u64, u32), Right);

/// The look of an order, if it has one.
fn look_of(order: &Result<Order, u64>) -> Option<Look> {
    let order = order.as_ref().ok().filter(|order| !order.is_forced)?;
    let has_one = !matches!(order.kind, OrderKind::Touch(_) | OrderKind::Withdraw(_));
    has_one.then(|| (order.look, order.right()))
}

/// Pages that were just found to be there. Kept while orders are carried out that came together, and no longer.
#[derive(Debug, Default)]
pub(super) struct Present(Option<(u64, u64, Right)>);

impl Present {
    /// Whether all that this looks at was there.
    pub(super) fn covers(&self, ((address, length_bytes), right): Look) -> bool {
        self.0.is_some_and(|(start, end, found)| {
            found == right && start <= address && address.saturating_add(length_bytes.into()) <= end
        })
    }

    /// It is all there.
    pub(super) fn note(&mut self, ((address, length_bytes), right): Look) {
        self.0 = Some((address, address.saturating_add(length_bytes.into()), right));
    }

    /// Looks at what the first of these orders and those behind it need, as far as that lies side by side: the blocks of a transfer do,
    /// and the packets of a block. Returns for how many orders nothing more is to be tried so.
    pub(super) fn look_ahead(&mut self, orders: &[Result<Order, u64>], memory: &dyn ProcessMemory) -> usize {
        let Some(((start, bytes), right)) = orders.first().and_then(look_of) else { return 1 };
        let (mut end, mut count) = (start.saturating_add(bytes.into()), 1);
        for ((address, bytes), _) in orders[1..].iter().map_while(look_of).take_while(|look| look.1 == right)
        {
            let reaches = address.saturating_add(bytes.into());
            let is_beside = start <= address && address <= end;
            if !is_beside || reaches - start > MAX_LOOK_BYTES.into() {
                break;
            }
            (end, count) = (end.max(reaches), count + 1);
        }
        // One alone is looked at when its turn comes.
        if end - start > bytes.into() && memory.is_there(start, (end - start) as u32, right) {
            self.0 = Some((start, end, right));
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tombolo_host::own::{Absent, Denied, WordChange};
    use tombolo_host::shared::{SharedSpan, SharedSpanMut};

    use super::*;

    /// Memory of which the page at 40960 is absent; what was looked at.
    #[derive(Default)]
    struct Looked(Mutex<Vec<(u64, u32)>>);

    impl ProcessMemory for Looked {
        fn absent(&self, _: u64, _: u32, _: Right) -> Absent {
            Absent::default()
        }

        fn is_there(&self, address: u64, length_bytes: u32, _: Right) -> bool {
            self.0.lock().push((address, length_bytes));
            !(address..address + u64::from(length_bytes)).contains(&40_960)
        }

        fn check(&self, _: u64, _: u32, _: Right) -> Result<(), Denied> {
            Ok(())
        }

        fn read(&self, address: u64, _: SharedSpanMut<'_>) -> Result<(), u64> {
            Err(address)
        }

        fn write(&self, address: u64, _: SharedSpan<'_>) -> Result<(), u64> {
            Err(address)
        }

        fn write_words(&self, address: u64, _: [u64; 2]) -> Result<(), u64> {
            Err(address)
        }

        fn change_word(&self, _: u64, _: WordChange) -> Result<u64, Option<u64>> {
            Err(None)
        }

        fn touch(&self, _: u64, _: u32, _: Right) -> Result<(), Denied> {
            Ok(())
        }
    }

    fn order(look: (u64, u32), kind: OrderKind) -> Result<Order, u64> {
        let (address, length_bytes) = look;
        Ok(Order { id: 1, address, length_bytes, is_forced: false, brings: true, look, kind })
    }

    fn reads(looks: &[(u64, u32)]) -> Vec<Result<Order, u64>> {
        looks.iter().map(|look| order(*look, OrderKind::Read(0))).collect()
    }

    /// Looks ahead: for how many orders that counts, and what was looked at and found.
    fn ahead(orders: &[Result<Order, u64>]) -> (usize, Vec<(u64, u32)>, Present) {
        let (memory, mut present) = (Looked::default(), Present::default());
        let count = present.look_ahead(orders, &memory);
        (count, memory.0.into_inner(), present)
    }

    #[test]
    fn what_lies_side_by_side_is_looked_at_once() {
        let (count, looks, present) = ahead(&reads(&[(0, 4096), (4096, 8192), (4096, 8192), (12_288, 100)]));
        assert_eq!((count, looks), (4, vec![(0, 12_388)]));
        assert!(present.covers(((4096, 8192), Right::Read)));
        assert!(!present.covers(((4096, 8192), Right::Write)));
        assert!(!present.covers(((4096, 8293), Right::Read)));
        assert!(!present.covers(((u64::MAX - 1, 8), Right::Read)));
    }

    #[test]
    fn one_alone_is_not_looked_at_ahead() {
        let backwards = reads(&[(8192, 4096), (4096, 4096)]);
        let apart = reads(&[(0, 4096), (8192, 4096)]);
        let mut others = reads(&[(0, 4096), (4096, 4096)]);
        others[1] = order((4096, 4096), OrderKind::Write(0));
        let mut nonsense = others.clone();
        nonsense[1] = Err(7);
        let mut forced = reads(&[(0, 4096), (4096, 4096)]);
        if let Ok(order) = &mut forced[1] {
            order.is_forced = true;
        }
        let same = reads(&[(0, 4096)]);
        for orders in [backwards, apart, others, nonsense, forced, same] {
            let (count, looks, present) = ahead(&orders);
            assert_eq!((count, looks), (1, vec![]), "{orders:?}");
            assert!(!present.covers(((0, 1), Right::Read)));
        }
    }

    #[test]
    fn where_a_page_is_absent_each_is_looked_at_for_itself() {
        let (count, looks, present) = ahead(&reads(&[(32_768, 4096), (36_864, 4096), (40_960, 4096)]));
        assert_eq!((count, looks), (3, vec![(32_768, 12_288)]));
        assert!(!present.covers(((32_768, 4096), Right::Read)));
    }

    #[test]
    fn no_more_is_looked_at_than_the_kernel_is_asked_for() {
        let blocks: Vec<_> = (0..16).map(|block| (1 << 20 | block << 16, 1 << 16)).collect();
        let (count, looks, _) = ahead(&reads(&blocks));
        assert_eq!((count, looks), (4, vec![(1 << 20, MAX_LOOK_BYTES)]));
        let (count, looks, _) = ahead(&reads(&[(u64::MAX - 4096, 4096), (u64::MAX, 0)]));
        assert_eq!((count, looks), (2, vec![]));
    }
}
