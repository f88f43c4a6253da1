//! The floor with unsafe code: memory mappings, rings, userfaultfd and sockets of the Linux host.
