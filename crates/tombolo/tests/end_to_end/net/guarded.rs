//! Ports that may have some addresses only, and what programs of routers and hosts do there: DHCP, SLAAC, VRRP, WireGuard. (VXLAN is
//! among the tunnels of `traffic`.)

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use super::{OUTSIDE, Room};
use crate::common::{PATIENCE, Running, needs};

/// Waits until something is so.
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn stop(running: Running) {
    running.signal(Signal::TERM);
    running.wait(PATIENCE);
}

#[test]
fn dhcp_and_slaac_give_a_guarded_port_its_addresses() {
    needs!("ip", "ping", "dnsmasq", "busybox", "radvd");
    let Some(mut room) = Room::prepare(1) else { return };
    room.serve(&[]);
    // What the servers will give it: SLAAC makes the second half of the address of the hardware's.
    let (mac, v4, v6) = ("02:00:00:00:00:07", "10.80.0.207", "fd81::ff:fe00:7");
    room.attach(1, &["--mac", mac, "--address", &format!("{v4},{v6}")]);
    room.ip("1", "-4 address flush dev eth0").unwrap();
    let (host, leases) = (format!("--dhcp-host={mac},{v4}"), room.scratch.file("leases"));
    let (range, leases) = ("--dhcp-range=10.80.0.200,10.80.0.220,1h", format!("--dhcp-leasefile={leases}"));
    let words =
        ["dnsmasq", "--no-daemon", "--port=0", "--interface=cable", "--user=root", range, &host, &leases];
    let serving = room.start(OUTSIDE, &words);
    let said = room
        .ok("1", &["busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-t", "20", "-T", "1", "-s", "/bin/true"]);
    assert!(said.contains(&format!("lease of {v4}")), "{said}");
    stop(serving);
    room.ip("1", &format!("address add {v4}/24 dev eth0")).unwrap();
    room.reaches(1, super::OUTSIDE_ADDRESS);

    let configuration = room.scratch.file("radvd");
    let text = "interface cable { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; prefix fd81::/64 { }; };\n";
    fs::write(&configuration, text).unwrap();
    room.ip(OUTSIDE, "address add fd81::1/64 dev cable nodad").unwrap();
    room.ok(OUTSIDE, &["sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1"]);
    let pid_file = room.scratch.file("radvd.pid");
    let words = ["radvd", "--nodaemon", "--logmethod", "stderr", "-C", &configuration, "-p", &pid_file];
    let advertising = room.start(OUTSIDE, &words);
    await_that("an address by SLAAC", || {
        let shown = room.ok("1", &["ip", "-6", "address", "show", "dev", "eth0"]);
        shown.lines().any(|line| line.contains(v6) && !line.contains("tentative"))
    });
    await_that("the router is reached", || room.pings(1, "fd81::1", &["-I", v6]));
    stop(advertising);
}

/// Two routers share an address; the second one has it when the first has gone.
#[test]
fn vrrp_moves_an_address_between_guarded_ports() {
    needs!("ip", "ping", "keepalived");
    const SHARED: &str = "10.80.0.50";
    let Some(mut room) = Room::prepare(3) else { return };
    room.serve(&[]);
    for port in 1..=2 {
        room.attach(port, &["--address", &format!("10.80.0.{port},fd80::{port},{SHARED}")]);
    }
    room.attach(3, &["--address", "10.80.0.3,fd80::3"]);
    let router = |port: usize, priority: u32| {
        let file = room.scratch.file(&format!("keepalived{port}"));
        let text = format!(
            "global_defs {{\n vrrp_version 3\n}}\n\
             vrrp_instance one {{\n state BACKUP\n interface eth0\n virtual_router_id 7\n\
             priority {priority}\n advert_int 0.1\n\
             virtual_ipaddress {{\n {SHARED}/24 dev eth0\n}}\n}}\n"
        );
        fs::write(&file, text).unwrap();
        let pids = ["pid", "vrrp"].map(|name| room.scratch.file(&format!("{name}{port}")));
        let words = ["keepalived", "-n", "-l", "-P", "-f", &file, "-p", &pids[0], "-r", &pids[1]];
        room.start(&port.to_string(), &words)
    };
    let has_it = |port: usize| {
        room.ok(&port.to_string(), &["ip", "-4", "address", "show", "dev", "eth0"]).contains(SHARED)
    };
    let first = router(1, 200);
    await_that("the first has the address", || has_it(1));
    let second = router(2, 100);
    room.reaches(3, SHARED);
    assert!(!has_it(2), "two have it");
    stop(first);
    await_that("the second has the address", || has_it(2));
    room.reaches(3, SHARED);
    stop(second);
    // Another one cannot have it.
    room.ip("3", &format!("address add {SHARED}/24 dev eth0")).unwrap();
    assert!(!room.pings(2, SHARED, &[]), "a port that may not have the address answers for it");
}

#[test]
fn wireguard_works_between_guarded_ports() {
    needs!("ip", "ping", "wireguard-go", "wg");
    let Some(mut room) = Room::prepare(2) else { return };
    room.serve(&[]);
    for port in 1..=2 {
        room.attach(port, &["--address", &format!("10.80.0.{port},fd80::{port}")]);
    }
    let devices = ["1", "2"].map(|port| format!("wg{}{port}", std::process::id()));
    let tunnels = [0, 1].map(|index| {
        let running = room.start(&(index + 1).to_string(), &["wireguard-go", "-f", &devices[index]]);
        let (port, device) = ((index + 1).to_string(), &devices[index]);
        await_that("a tunnel's device", || room.at(&port, &["wg", "show", device]).status.success());
        running
    });
    let key = |words: &[&str], file: &str| {
        let said = room.ok("1", words).trim().to_owned();
        fs::write(room.scratch.file(file), &said).unwrap();
        said
    };
    let secrets = ["one", "two"].map(|file| key(&["wg", "genkey"], file));
    let publics = secrets
        .each_ref()
        .map(|secret| room.ok("1", &["sh", "-c", &format!("echo {secret} | wg pubkey")]).trim().to_owned());
    for (index, (port, file)) in [("1", "one"), ("2", "two")].into_iter().enumerate() {
        let other = 1 - index;
        let endpoint = format!("10.80.0.{}:51820", other + 1);
        let allowed = format!("10.90.0.{}/32", other + 1);
        let file = room.scratch.file(file);
        let device = &devices[index];
        let words =
            ["wg", "set", device, "listen-port", "51820", "private-key", &file, "peer", &publics[other]];
        room.ok(port, &[&words[..], &["endpoint", &endpoint, "allowed-ips", &allowed]].concat());
        room.ip(port, &format!("address add 10.90.0.{}/24 dev {device}", index + 1)).unwrap();
        room.ip(port, &format!("link set {device} up")).unwrap();
    }
    room.reaches(1, "10.90.0.2");
    assert!(room.pings(2, "10.90.0.1", &["-s", "1300"]), "long datagrams");
    tunnels.into_iter().for_each(stop);
}
