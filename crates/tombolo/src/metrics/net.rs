//! What `tombolo net serve` tells: the uplink and its ports.

use tombolo_net::control::PORTS_MAX;
use tombolo_net::protocol::{PortStatus, UPLINK, UplinkStatus};

use super::Metrics;

/// Metrics of `tombolo net serve`.
pub fn of_net(uplink: &UplinkStatus, ports: &[PortStatus]) -> String {
    let mut metrics = Metrics::default();
    let interface = [("uplink", uplink.interface.as_str())];
    for (name, help, value) in [
        (
            "tombolo_net_carrier",
            "1 if the uplink has a carrier, else 0",
            f64::from(u8::from(uplink.has_carrier)),
        ),
        ("tombolo_net_mtu_bytes", "Largest payload of a frame of the uplink", f64::from(uplink.mtu)),
        (
            "tombolo_net_rate_bits_per_second",
            "Rate to which the uplink is shaped; 0 if it is not",
            uplink.rate_bits as f64,
        ),
        ("tombolo_net_ports", "Ports attached", ports.len() as f64),
        ("tombolo_net_ports_max", "Ports that may be attached at once", PORTS_MAX as f64),
        (
            "tombolo_net_guaranteed_bits_per_second",
            "Sum of the rates that are guaranteed to ports",
            ports.iter().map(|status| status.port.guaranteed_bits as f64).sum(),
        ),
    ] {
        metrics.gauge(name, help, &interface, value);
    }
    for status in ports {
        let of = [interface[0], ("port", status.port.name.as_str())];
        for (name, help, value) in [
            ("tombolo_net_port_weight", "Weight of the port among all ports", u64::from(status.port.weight)),
            (
                "tombolo_net_port_rate_bits_per_second",
                "Most that the port may send; 0 if there is no limit",
                status.port.rate_bits,
            ),
            (
                "tombolo_net_port_guarantee_bits_per_second",
                "Rate of the uplink that the port gets before others",
                status.port.guaranteed_bits,
            ),
            (
                "tombolo_net_port_waiting",
                "1 while a frame of the port waits for the uplink, else 0",
                u64::from(status.is_waiting),
            ),
            (
                "tombolo_net_port_written_aside",
                "1 if a thread of its own writes to the port, since it is slow or of another user, else 0",
                u64::from(status.is_written_aside),
            ),
        ] {
            metrics.gauge(name, help, &of, value as f64);
        }
    }
    let all = ports.iter().map(|status| (status.port.name.as_str(), &status.counters));
    for (port, counters) in all.chain([(UPLINK, &uplink.counters)]) {
        for (direction, traffic) in [("sent", &counters.sent), ("received", &counters.received)] {
            let of = [interface[0], ("port", port), ("direction", direction)];
            for (name, help, value) in [
                ("tombolo_net_frames", "Frames on the wire", traffic.frames),
                ("tombolo_net_bytes", "Bytes of frames on the wire, with checksums", traffic.bytes),
                ("tombolo_net_segments", "Segments and single frames", traffic.segments),
                ("tombolo_net_broadcasts", "Broadcast frames", traffic.broadcasts),
                ("tombolo_net_multicasts", "Multicast frames", traffic.multicasts),
            ] {
                metrics.counter(name, help, &of, value);
            }
        }
        for (reason, count) in &counters.refused {
            let of = [interface[0], ("port", port), ("reason", reason.as_str())];
            metrics.counter(
                "tombolo_net_refused",
                "Frames from the port that its rules forbid, by reason",
                &of,
                *count,
            );
        }
        let of = [interface[0], ("port", port)];
        metrics.counter(
            "tombolo_net_undelivered",
            "Frames for the port that it could not take",
            &of,
            counters.undelivered,
        );
        let help = "Frames from the port that were dropped before they were read";
        metrics.counter("tombolo_net_overflowed", help, &of, counters.overflowed);
    }
    metrics.text()
}
