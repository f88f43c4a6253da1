//! The pager: serves page faults of unmodified programs from far memory.
