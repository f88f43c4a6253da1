//! A hash table whose order never shows.
//!
//! The standard library's table is walked in another order in each run. A state machine that acts in that order does
//! not repeat a run with the same seed. This table is walked in the order of its keys, or for results that do not
//! depend on the order.

#![expect(clippy::disallowed_types, reason = "the one place that uses it")]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by key.
#[derive(Clone, Debug)]
pub(crate) struct Lookup<K, V>(HashMap<K, V>);

impl<K, V> Default for Lookup<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V> Lookup<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn contains_key<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    pub(crate) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key)
    }

    /// Sets the value of a key, and returns the value that it had.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key)
    }

    /// The value of a key. If it has none, it gets `value`.
    pub(crate) fn get_or_insert(&mut self, key: K, value: V) -> &mut V {
        self.0.entry(key).or_insert(value)
    }

    /// Keeps the entries for which `is_kept` returns true. What it returns for an entry must not depend on other
    /// entries.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain(is_kept);
    }

    /// Whether `is_so` returns true for any entry.
    pub(crate) fn any(&self, mut is_so: impl FnMut(&K, &V) -> bool) -> bool {
        self.0.iter().any(|(key, value)| is_so(key, value))
    }

    /// Number of entries for which `is_so` returns true.
    pub(crate) fn count(&self, mut is_so: impl FnMut(&K, &V) -> bool) -> usize {
        self.0.iter().filter(|(key, value)| is_so(key, value)).count()
    }
}

impl<K: Copy + Ord + Hash, V> Lookup<K, V> {
    /// The keys of the entries for which `is_so` returns true, in their order.
    pub(crate) fn keys_of(&self, mut is_so: impl FnMut(&K, &V) -> bool) -> Vec<K> {
        let mut keys: Vec<K> =
            self.0.iter().filter(|(key, value)| is_so(key, value)).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_their_order_however_they_were_put_in() {
        let mut lookup = Lookup::default();
        for key in [7_u32, 1, 9, 4, 0, 8] {
            assert_eq!(lookup.insert(key, key * 2), None);
        }
        assert_eq!(lookup.insert(9, 3), Some(18));
        *lookup.get_or_insert(4, 100) += 1;
        *lookup.get_or_insert(5, 100) += 1;
        assert_eq!(lookup.keys_of(|key, _| *key > 3), [4, 5, 7, 8, 9]);
        assert_eq!((lookup.get(&4), lookup.get(&5)), (Some(&9), Some(&101)));
        lookup.retain(|_, value| *value > 10);
        assert_eq!(lookup.keys_of(|_, _| true), [5, 7, 8]);
        assert_eq!(lookup.count(|key, _| *key > 5), 2);
        assert!(lookup.any(|key, _| *key == 8) && !lookup.any(|key, _| *key == 9));
        assert_eq!((lookup.len(), lookup.remove(&5), lookup.contains_key(&5)), (3, Some(101), false));
        lookup.clear();
        assert!(lookup.is_empty());
    }
}
