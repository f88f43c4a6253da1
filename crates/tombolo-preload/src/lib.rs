//! The library preloaded into programs under the pager: malloc and large anonymous mmap from far ranges.
