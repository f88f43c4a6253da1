//! One suite for every link, and for every link made faulty; then what is particular to each.

mod harness;

mod control;
mod crowds;
mod liveness;
mod packets;
mod relay;
mod secure;
mod shm;
mod udp;

use harness::Kind;

/// One test for each check and each kind of link.
macro_rules! conformance {
    ($($kind:ident: $value:expr => [$($module:ident::$check:ident),* $(,)?];)*) => {
        $(mod $kind {
            use super::*;
            $(#[test]
            fn $check() {
                $module::$check(&$value.pair());
            })*
        })*
    };
}

/// The checks that every link passes.
macro_rules! every_link {
    ($($kind:ident: $value:expr;)*) => {
        conformance! {
            $($kind: $value => [
                packets::every_size_arrives_whole_or_not_at_all,
                packets::too_large_is_an_error,
                packets::both_directions_at_once,
                packets::a_sink_may_send,
                packets::a_budget_is_kept,
                packets::many_threads_send,
                control::messages_arrive_once_and_in_order,
                control::both_ways_under_load,
                control::large_and_impossible_sizes,
                control::descriptors_pass_where_supported,
                liveness::a_packet_wakes_a_sleeper,
                liveness::a_control_message_wakes_a_sleeper,
                liveness::a_dropped_peer_is_noticed,
                liveness::what_came_before_the_end_is_received,
                liveness::an_idle_link_uses_no_cpu,
            ];)*
        }
    };
}

every_link! {
    memory: Kind::Memory;
    memory_faulty: Kind::Memory.faulty();
    shared_memory: Kind::Shm;
    shared_memory_faulty: Kind::Shm.faulty();
    datagrams: Kind::Udp;
    datagrams_faulty: Kind::Udp.faulty();
    datagrams_one_by_one: Kind::UdpWithoutSegmentation;
    secure_datagrams: Kind::SecureUdp;
    secure_datagrams_faulty: Kind::SecureUdp.faulty();
    secure_datagrams_one_by_one: Kind::SecureUdpWithoutSegmentation;
}

// What is sent arrives.
conformance! {
    memory_timers: Kind::Memory => [liveness::timers_take_no_wake];
    shared_memory_timers: Kind::Shm => [liveness::timers_take_no_wake];
    datagrams_timers: Kind::Udp => [liveness::timers_take_no_wake];
}

conformance! {
    memory_back_pressure: Kind::Memory => [
        packets::a_full_link_loses_nothing,
        liveness::room_wakes_a_sleeper,
    ];
    shared_memory_back_pressure: Kind::Shm => [
        packets::a_full_link_loses_nothing,
        liveness::room_wakes_a_sleeper,
    ];
}
