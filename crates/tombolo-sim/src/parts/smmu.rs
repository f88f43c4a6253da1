//! A system memory management unit, as far as it takes time: a buffer of translations, walks of the page tables, and what a context does
//! after a fault. What becomes of a fault is the business of [`tombolo_core::iommu`].

use super::{AccessKind, Cache, CacheConfig};
use crate::kernel::{Span, Time};
use std::collections::BTreeMap;

/// The constants of a unit.
#[derive(Clone, Copy, Debug)]
pub struct SmmuConfig {
    /// Translations that the buffer holds.
    pub buffer_pages: usize,
    /// What a translation from the buffer takes.
    pub hit: Span,
    /// Walks that go on at once; at least one.
    pub walks: usize,
    /// What one takes.
    pub walk: Span,
    /// Whether a context goes on where its pages are present, while a fault of it has not been cleared (HUPCF, FAULT §3.2.1).
    pub hits_under_fault: bool,
}

/// How a translation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The page is present.
    Present,
    /// It is not: the access is terminated, and its fault noted.
    Fault,
    /// A fault of the context has not been cleared: the access is terminated, whatever its page.
    AfterFault,
}

/// Whose translation it is: a context bank. The document's unit has 16 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Translator(pub u16);

/// A unit.
#[derive(Debug)]
pub struct Smmu {
    config: SmmuConfig,
    /// Pages, each with its context in the upper bits, as lines of one byte.
    buffer: Cache,
    /// When each walk has ended.
    walks: Vec<Time>,
    /// Pages for which the tables are being walked: when that ends, and whether they have them.
    walking: BTreeMap<u64, (Time, bool)>,
    /// Contexts with a fault that was not cleared, and since when.
    faulted: BTreeMap<Translator, Time>,
    walked: u64,
}

/// Pages that a context can have: 48 bits of address.
const CONTEXT_SHIFT: u32 = 36;

impl Smmu {
    /// A unit without translations.
    pub fn new(config: SmmuConfig) -> Self {
        let buffer = Cache::new(CacheConfig { line_bytes: 1, ways: config.buffer_pages, sets: 1 });
        let walks = vec![Time::ZERO; config.walks.max(1)];
        Self { config, buffer, walks, walking: BTreeMap::new(), faulted: BTreeMap::new(), walked: 0 }
    }

    /// Walks so far.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    fn key(of: Translator, page: u64) -> u64 {
        u64::from(of.0) << CONTEXT_SHIFT | (page & ((1 << CONTEXT_SHIFT) - 1))
    }

    /// Translates a page, which the page tables have or not. When that is known, and how it went.
    pub fn translate(
        &mut self,
        now: Time,
        of: Translator,
        page: u64,
        is_present: bool,
    ) -> (Time, Translation) {
        self.walking.retain(|key, (ends_at, is_present)| {
            if *ends_at <= now && *is_present {
                let _ = self.buffer.access(*key, AccessKind::Read);
            }
            *ends_at > now
        });
        let has_faulted = self.faulted.get(&of).is_some_and(|since| *since <= now);
        if has_faulted && !self.config.hits_under_fault {
            return (now.after(self.config.hit), Translation::AfterFault);
        }
        let key = Self::key(of, page);
        // A page that has gone is no longer in the buffer: whoever takes it away says so.
        if self.buffer.has(key) {
            let _ = self.buffer.access(key, AccessKind::Read);
            return (now.after(self.config.hit), Translation::Present);
        }
        let how = |is_present| if is_present { Translation::Present } else { Translation::Fault };
        if let Some((ends_at, is_present)) = self.walking.get(&key) {
            return (*ends_at, how(*is_present));
        }
        let walk = self.walks.iter_mut().min().expect("a walk at least");
        *walk = (*walk).max(now).after(self.config.walk);
        let ends_at = *walk;
        self.walked += 1;
        self.walking.insert(key, (ends_at, is_present));
        if !is_present {
            let since = self.faulted.entry(of).or_insert(ends_at);
            *since = ends_at.min(*since);
        }
        (ends_at, how(is_present))
    }

    /// A page is taken away.
    pub fn forget(&mut self, of: Translator, page: u64) {
        let key = Self::key(of, page);
        self.buffer.invalidate(key);
        self.walking.remove(&key);
    }

    /// Software has read the fault registers of a context and cleared them.
    pub fn clear_fault(&mut self, of: Translator) {
        self.faulted.remove(&of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANK: Translator = Translator(3);

    fn smmu(hits_under_fault: bool) -> Smmu {
        let (hit, walk) = (Span::from_ns(5), Span::from_ns(100));
        Smmu::new(SmmuConfig { buffer_pages: 32, hit, walks: 8, walk, hits_under_fault })
    }

    #[test]
    fn page_n_waits_for_the_walks_before_it_and_is_found_at_once_later() {
        let mut smmu = smmu(true);
        let now = Time::ZERO;
        for page in 0..20 {
            let (at, how) = smmu.translate(now, BANK, page, true);
            assert_eq!((at.picos() / 1_000, how), ((page / 8 + 1) * 100, Translation::Present));
        }
        assert_eq!(smmu.walked(), 20);
        // Who asks meanwhile waits for the same walk.
        assert_eq!(smmu.translate(now, BANK, 19, true).0.picos() / 1_000, 300);
        let now = now.after(Span::from_ns(10_000));
        assert_eq!(smmu.translate(now, BANK, 7, true), (now.after(Span::from_ns(5)), Translation::Present));
        // The same page of another context is another one.
        smmu.translate(now, Translator(4), 7, true);
        smmu.forget(BANK, 7);
        smmu.translate(now, BANK, 7, true);
        assert_eq!(smmu.walked(), 22);
        // One more than there is room for: the one that was used longest ago is gone.
        for page in 20..32 {
            smmu.translate(now, BANK, page, true);
        }
        assert_eq!(smmu.walked(), 34);
        let now = now.after(Span::from_ns(10_000));
        smmu.translate(now, BANK, 31, true);
        assert_eq!(smmu.walked(), 34);
        smmu.translate(now, BANK, 0, true);
        assert_eq!(smmu.walked(), 35);
    }

    #[test]
    fn after_a_fault_a_context_goes_on_only_where_the_unit_lets_it() {
        for (hits_under_fault, then) in [(true, Translation::Present), (false, Translation::AfterFault)] {
            let mut smmu = smmu(hits_under_fault);
            let later = Time::ZERO.after(Span::from_ns(1_000));
            assert_eq!(smmu.translate(Time::ZERO, BANK, 1, true).1, Translation::Present);
            assert_eq!(smmu.translate(Time::ZERO, BANK, 2, false).1, Translation::Fault);
            // Nobody knows of the fault before the walk has ended.
            assert_eq!(smmu.translate(Time::ZERO, BANK, 3, true).1, Translation::Present);
            let mut how = |of, page, is_present| smmu.translate(later, of, page, is_present).1;
            assert_eq!(how(BANK, 1, true), then);
            assert_eq!(how(Translator(4), 1, true), Translation::Present);
            smmu.clear_fault(BANK);
            assert_eq!(smmu.translate(later, BANK, 1, true).1, Translation::Present);
        }
    }
}
