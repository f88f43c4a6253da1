//! Sets of pages that lie in few ranges.

use std::collections::BTreeMap;

use super::page::Page;

/// Ranges that do not overlap: start and end.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<Page, Page>);

impl Ranges {
    /// Inserts a range of its own, in place of whatever the set had there.
    pub(super) fn insert(&mut self, first: Page, end: Page) {
        self.cut(first, end);
        if first < end {
            self.0.insert(first, end);
        }
    }

    /// Adds pages. They are joined with the ranges directly before and behind them, if there are any.
    pub(super) fn add(&mut self, first: Page, end: Page) {
        if first >= end {
            return;
        }
        let (mut from, mut to) = (first, end);
        if let Some((&start, &stop)) = self.0.range(..=first).next_back()
            && stop >= first
        {
            if stop >= end {
                return;
            }
            from = start;
        }
        if let Some((_, end)) = self.around(end) {
            to = end;
        }
        self.insert(from, to);
    }

    /// Takes pages out.
    pub(super) fn cut(&mut self, first: Page, end: Page) {
        if first >= end {
            return;
        }
        let before = self.0.range(..end).rev().map(|(&from, &to)| (from, to));
        let overlapping: Vec<(Page, Page)> = before.take_while(|&(_, to)| to > first).collect();
        for (from, to) in overlapping {
            self.0.remove(&from);
            if from < first {
                self.0.insert(from, first);
            }
            if to > end {
                self.0.insert(end, to);
            }
        }
    }

    /// The range that a page is in, if any.
    pub(super) fn around(&self, page: Page) -> Option<(Page, Page)> {
        let (&first, &end) = self.0.range(..=page).next_back()?;
        (page < end).then_some((first, end))
    }

    /// The first page of `[first, end)` that is in the set.
    pub(super) fn first_of(&self, first: Page, end: Page) -> Option<Page> {
        let next = || self.0.range(first..end).next().map(|(&from, _)| from);
        if self.around(first).is_some() { Some(first).filter(|first| *first < end) } else { next() }
    }

    /// The parts of `[first, end)` that are in the set.
    pub(super) fn within(&self, first: Page, end: Page) -> Vec<(Page, Page)> {
        let around = self.around(first).map_or(first, |(from, _)| from);
        let within = self.0.range(around.min(end)..end);
        within.map(|(&from, &to)| (from.max(first), to.min(end))).collect()
    }

    /// The first range of all.
    pub(super) fn first(&self) -> Option<(Page, Page)> {
        self.0.first_key_value().map(|(&first, &end)| (first, end))
    }

    /// Number of ranges.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of pages.
    pub(super) fn pages(&self) -> u64 {
        self.0.iter().map(|(first, end)| end - first).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_added_and_taken_out() {
        let mut ranges = Ranges::default();
        ranges.add(10, 20);
        ranges.add(20, 25);
        ranges.add(12, 14);
        assert_eq!(ranges.within(0, 100), [(10, 25)]);
        ranges.add(30, 40);
        ranges.add(8, 32);
        assert_eq!((ranges.within(0, 100), ranges.pages()), (vec![(8, 40)], 32));
        ranges.cut(9, 33);
        assert_eq!(ranges.within(0, 35), [(8, 9), (33, 35)]);
        assert_eq!((ranges.around(8), ranges.around(9)), (Some((8, 9)), None));
        ranges.add(5, 8);
        assert_eq!(ranges.within(0, 35), [(5, 9), (33, 35)]);
        ranges.insert(0, 100);
        assert_eq!(ranges.within(0, 200), [(0, 100)]);
    }

    /// A caller that asks again from the end of what it got comes from one range to the next.
    #[test]
    fn the_first_page_of_a_range_is_found() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        let found = [(0, 10), (0, 11), (15, 16), (19, 50), (20, 30), (20, 31), (40, 99), (15, 15)];
        let found = found.map(|(first, end)| ranges.first_of(first, end));
        assert_eq!(found, [None, Some(10), Some(15), Some(19), None, Some(30), None, None]);
    }
}
