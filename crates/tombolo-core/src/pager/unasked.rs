//! Pages that are mapped *unasked*, without a thread that waits for them: the rest of a block of which a thread has
//! touched one page. Also ranges in which none may be mapped so.

use std::collections::VecDeque;

use super::page::Page;
use super::ranges::Ranges;

/// Most ranges that are remembered as given up by the program. Few are enough: the kernel has dropped the pages of such
/// a range microseconds after it has reported it.
const GIVEN_UP_MOST: usize = 64;

/// Pages whose mapping is put off, and ranges that the program has given up.
#[derive(Debug, Default)]
pub struct Unasked {
    /// Pages that are to be mapped when no fault waits.
    later: Ranges,
    /// Where the range begins that was put off last: it is mapped first.
    latest: Page,
    /// Ranges that the program has given up lately, and of which it has asked for no page since. The kernel reports
    /// such a range before it drops the pages. So a page that the pager maps in between is dropped, too, without a
    /// report.
    given_up: Ranges,
    /// These ranges in the order in which they were given up.
    order: VecDeque<(Page, Page)>,
}

impl Unasked {
    /// The kernel is about to drop a range that the program gives up. Until a thread asks for a page there, none is
    /// mapped unasked.
    pub fn give_up(&mut self, first: Page, end: Page) {
        if first >= end {
            return;
        }
        self.given_up.insert(first, end);
        self.order.push_back((first, end));
        if self.order.len() > GIVEN_UP_MOST
            && let Some((first, end)) = self.order.pop_front()
        {
            self.given_up.cut(first, end);
        }
    }

    /// A thread of the program has asked for a page: if the program had given up a range around it, the kernel has
    /// dropped that by now.
    pub fn asked_for(&mut self, page: Page) {
        if let Some((first, end)) = self.given_up.around(page) {
            self.given_up.cut(first, end);
        }
    }

    /// Whether a page is in a range that the kernel may be about to drop.
    pub fn is_given_up(&self, page: Page) -> bool {
        self.given_up.around(page).is_some()
    }

    /// Something else is mapped in this range from now on: the kernel has dropped whatever was given up there.
    pub fn replaced(&mut self, first: Page, end: Page) {
        self.given_up.cut(first, end);
    }

    /// Puts pages off: a handler is to map them when it finds no fault.
    pub fn put_off(&mut self, first: Page, end: Page) {
        if first < end {
            self.latest = first;
            self.later.add(first, end);
        }
    }

    /// These pages are not put off any more.
    pub fn cut(&mut self, first: Page, end: Page) {
        self.later.cut(first, end);
    }

    /// Takes the next run of pages that were put off and that may be mapped, `most` at most: its first page and its
    /// length. The pages that were put off last, and those behind them, come first. Pages that may not be mapped are
    /// passed over, and are not put off any more, either.
    pub fn next(&mut self, most: u32, may_come: impl Fn(&Self, Page) -> bool) -> Option<(Page, u32)> {
        loop {
            let latest =
                self.later.first_of(self.latest, Page::MAX).and_then(|first| self.later.around(first));
            let (first, end) =
                latest.map(|(first, end)| (first.max(self.latest), end)).or_else(|| self.later.first())?;
            let from = (first..end).find(|&page| may_come(self, page)).unwrap_or(end);
            let run = (from..end).take(most as usize).take_while(|&page| may_come(self, page)).count();
            self.later.cut(first, from + run as u64);
            if run > 0 {
                return Some((from, run as u32));
            }
        }
    }

    /// Whether pages are put off.
    pub fn is_any_put_off(&self) -> bool {
        self.later.count() > 0
    }

    /// Forgets all pages that were put off.
    pub fn forget_put_off(&mut self) {
        self.later = Ranges::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_off_last_comes_first_and_only_where_it_may() {
        let mut unasked = Unasked::default();
        unasked.put_off(0, 4);
        unasked.put_off(10, 14);
        unasked.put_off(7, 7);
        unasked.cut(12, 13);
        let next = |unasked: &mut Unasked| unasked.next(2, |_, page| page != 1);
        assert_eq!(next(&mut unasked), Some((10, 2)));
        assert_eq!(next(&mut unasked), Some((13, 1)));
        assert_eq!(next(&mut unasked), Some((0, 1)));
        assert_eq!(next(&mut unasked), Some((2, 2)));
        assert!(!unasked.is_any_put_off());
        assert_eq!(next(&mut unasked), None);
    }

    #[test]
    fn what_was_given_up_is_remembered_until_it_is_used_or_old() {
        let mut unasked = Unasked::default();
        unasked.give_up(5, 5);
        unasked.give_up(8, 12);
        assert!(unasked.is_given_up(11) && !unasked.is_given_up(12) && !unasked.is_given_up(5));
        unasked.asked_for(9);
        assert!(!unasked.is_given_up(11));
        unasked = Unasked::default();
        unasked.give_up(8, 12);
        unasked.replaced(8, 10);
        assert!(!unasked.is_given_up(9) && unasked.is_given_up(10));
        let most = GIVEN_UP_MOST as u64;
        (1..most).for_each(|number| unasked.give_up(number * 100, number * 100 + 1));
        assert!(unasked.is_given_up(10) && unasked.is_given_up(100), "as many as are remembered");
        unasked.give_up(most * 100, most * 100 + 1);
        assert!(!unasked.is_given_up(10) && unasked.is_given_up(100), "the oldest is forgotten");
        assert!(unasked.is_given_up(most * 100));
    }
}
