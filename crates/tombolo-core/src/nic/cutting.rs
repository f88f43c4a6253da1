//! What is done to a frame here because its offload header asks for what the kernel at the other end would do to other bytes than
//! those that it names, or would not do: sums, and the cutting of segments.
//!
//! A port could otherwise have the kernel write a "checksum" over an address after the switch has looked at it. So only the
//! checksum of the frame's own TCP or UDP is left to the kernel; any other is written by [`settle`], before anybody looks. Segments within
//! a tunnel (VXLAN, Geneve, IP in IP, GRE), and those of frames so short that a kernel refuses them, are cut
//! by a [`Cut`], and each piece is an ordinary frame.

use etherparse::checksum::Sum16BitWords;

use super::frame::ETHERNET_TYPES;
use super::offload::{
    Asked, GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CHECKSUM, OFFLOAD_BYTES, OffloadHeader,
    SEGMENT_BYTES_MIN, TCP, Transport, UDP, WireError, network,
};
