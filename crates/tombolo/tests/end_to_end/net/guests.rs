//! Virtual machines: QEMU boots a kernel whose network card is a port.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_host::testing::left_out;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room, TOMBOLO, run};
use crate::common::{PATIENCE, Running, needs, path_of};

/// A kernel without acceleration takes seconds to boot, on a busy machine many.
const BOOT: Duration = Duration::from_secs(180);

/// The first process of each guest: it serves random bytes by HTTP, and fetches the URL that the kernel's command line names.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /www
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in failover net_failover virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_net; do
    insmod /modules/$module.ko
done
for word in $(cat /proc/cmdline); do
    case $word in address=*|fetch=*|spoof=*) eval "$word";; esac
done
ip link set lo up; ip address add $address/24 dev eth0; ip link set eth0 up
dd if=/dev/urandom of=/www/data bs=1M count=4
httpd -p 80 -h /www
echo "SERVES $(md5sum < /www/data)"
if [ -n "$fetch" ]; then
    until wget -q -O /tmp/data "$fetch"; do sleep 1; done
    echo "FETCHED $(md5sum < /tmp/data)"
fi
if [ -n "$spoof" ]; then
    ip link set eth0 down; ip link set eth0 address $spoof; ip link set eth0 up
    ping -c 2 -W 1 10.80.0.100 && echo "IS BELIEVED"
    echo "IS SOMEBODY ELSE"
fi
sleep 1000
"#;

/// The kernel and its modules, which `cargo xtask test` brings; says so if they are not there.
fn kernel() -> Option<PathBuf> {
    let target = Path::new(TOMBOLO).parent().and_then(Path::parent);
    let found = target.map(|target| target.join("guest")).filter(|guest| guest.join("vmlinuz").exists());
    if found.is_none() {
        left_out("there is no kernel for virtual machines (`cargo xtask test` brings one)");
    }
    found
}

/// Packs what a guest has: busybox, the modules, and what it runs.
fn pack(kernel: &Path, room: &Room) -> String {
    let root = PathBuf::from(room.scratch.file("root"));
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::create_dir_all(root.join("modules")).unwrap();
    let busybox = path_of("busybox");
    fs::copy(&busybox, root.join("bin/busybox")).unwrap();
    // One that is linked dynamically needs its libraries, at the places that it has them from.
    let needed = run("ldd", &[&busybox]);
    for library in
        String::from_utf8_lossy(&needed.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let place = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(library, place).unwrap();
    }
    for file in fs::read_dir(kernel).unwrap().flatten() {
        if file.path().extension().is_some_and(|extension| extension == "ko") {
            fs::copy(file.path(), root.join("modules").join(file.file_name())).unwrap();
        }
    }
    fs::write(root.join("init"), INIT).unwrap();
    let packed = room.scratch.file("initrd");
    let script =
        format!("cd {} && chmod +x init && find . | {busybox} cpio -o -H newc > {packed}", root.display());
    let output = run("sh", &["-c", &script]);
    assert!(output.status.success(), "{output:?}");
    packed
}

/// A guest that was started, with its console as its output.
fn boot(
    room: &Room,
    at: &str,
    (kernel, packed): (&Path, &str),
    mac: &str,
    netdev: &str,
    words: &str,
) -> Running {
    let image = kernel.join("vmlinuz").display().to_string();
    let (card, line) =
        (format!("virtio-net-pci,netdev=n,mac={mac},romfile="), format!("console=ttyS0 quiet {words}"));
    let mut command = room.command(at, &["qemu-system-x86_64", "-m", "256", "-nographic", "-no-reboot"]);
    command.args(["-kernel", &image, "-initrd", packed, "-append", &line]);
    command.args(["-netdev", netdev, "-device", &card]).stdin(Stdio::null());
    Running::start(command, Vec::new())
}

/// The word after another one on a console, when there is one.
fn said(guest: &Running, word: &str) -> String {
    let mut text = guest.output_with(&format!("{word} "), BOOT);
    let since = Instant::now();
    loop {
        let rest = text.split(&format!("{word} ")).nth(1).unwrap_or_default();
        // The line is whole.
        if let Some((line, _)) = rest.split_once('\n') {
            return line.split_whitespace().next().unwrap_or_default().to_owned();
        }
        assert!(since.elapsed() < PATIENCE, "{text}");
        std::thread::sleep(Duration::from_millis(20));
        text = guest.output();
    }
}

#[test]
fn virtual_machines_are_ports_like_others() {
    needs!("ip", "ping", "wget", "md5sum", "qemu-system-x86_64", "busybox");
    let Some(kernel) = kernel() else { return };
    let Some(mut room) = Room::prepare(2) else { return };
    room.serve(&[]);
    room.attach(1, &[]);
    let packed = pack(&kernel, &room);
    let parts = (kernel.as_path(), packed.as_str());
    let address = room.address();

    // One by a stream.
    let (socket, mac) = (room.scratch.file("machine"), "52:54:00:00:00:31");
    let words =
        ["net", "attach", "--from", &address, "--stream", &socket, "--mac", mac, "--name", "streamed"];
    let mut attach = std::process::Command::new(TOMBOLO);
    attach.args(words);
    let mut streamed = Running::start(attach, Vec::new());
    streamed.output_with("attached", PATIENCE);
    // Who is no virtual machine is hung up on, whatever it says.
    let is_hung_up_on = |rubbish: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(rubbish).unwrap();
        stream.read_to_end(&mut Vec::new()).is_ok()
    };
    for rubbish in [&[0u8; 4][..], &[0xff; 64], b"GET / HTTP/1.1\r\n\r\n"] {
        assert!(is_hung_up_on(rubbish), "{rubbish:?}");
    }
    let netdev = format!("stream,id=n,server=off,addr.type=unix,addr.path={socket}");
    let first = boot(&room, "1", parts, mac, &netdev, "address=10.80.0.31");

    // One by a TAP device that is its own.
    room.ok("2", &["ip", "tuntap", "add", "vnet0", "mode", "tap", "vnet_hdr"]);
    let other = "52:54:00:00:00:32";
    let namespace = room.namespace("2");
    let words =
        ["net", "attach", "--from", &address, "--interface", "vnet0", "--netns", &namespace, "--mac", other];
    let mut attach = std::process::Command::new(TOMBOLO);
    attach.args(words).args(["--name", "tapped"]);
    let tapped = Running::start(attach, Vec::new());
    tapped.output_with("attached", PATIENCE);
    let netdev = "tap,id=n,ifname=vnet0,script=no,downscript=no";
    let line = "address=10.80.0.32 fetch=http://10.80.0.31/data spoof=52:54:00:00:00:99";
    let second = boot(&room, "2", parts, other, netdev, line);

    // Each reaches each other.
    let sum = said(&first, "SERVES");
    room.reaches(1, "10.80.0.31");
    for (at, to) in [(OUTSIDE, "outside"), ("1", "inside")] {
        let file = room.scratch.file(to);
        room.ok(at, &["wget", "-q", "-O", &file, "http://10.80.0.31/data"]);
        assert!(room.ok(at, &["md5sum", &file]).starts_with(&sum), "{to}: other bytes than {sum}");
    }
    assert_eq!(said(&second, "FETCHED"), sum, "from guest to guest");
    assert!(!said(&second, "SERVES").is_empty());
    let text = second.output_with("IS SOMEBODY ELSE", BOOT);
    assert!(!text.contains("IS BELIEVED"), "{text}");
    let status = room.json(&["show", "tapped", "--json"]);
    let refused = status["counters"]["refused"]["wrong_source"].as_u64();
    assert!(refused.is_some_and(|refused| refused > 0), "{status:#}");

    // An owner that restarts gets them again.
    room.owner().signal(Signal::KILL);
    room.owner.take().unwrap().wait(PATIENCE);
    room.serve(&[]);
    room.reaches(1, "10.80.0.31");
    room.ok(OUTSIDE, &["ping", "-q", "-c", "3", "-i", "0.2", "-W", "2", "10.80.0.31"]);

    // When its device goes, the port does; the other one stays.
    second.signal(Signal::KILL);
    second.wait(PATIENCE);
    room.ok("2", &["ip", "link", "delete", "vnet0"]);
    let ended = tapped.wait(PATIENCE);
    assert!(ended.code() != 0 && ended.stderr.contains("the device vnet0 is gone"), "{}", ended.stderr);
    room.reaches(1, "10.80.0.31");
    // A guest that has gone makes room for the next one.
    first.signal(Signal::KILL);
    first.wait(PATIENCE);
    assert!(!room.pings(1, "10.80.0.31", &[]));
    assert!(is_hung_up_on(&[0; 4]), "nobody is served at the socket any more");
    assert!(room.pings(1, OUTSIDE_ADDRESS, &[]));
    streamed.signal(Signal::TERM);
    assert_eq!(streamed.await_end(PATIENCE).code(), Some(0));
    assert!(!Path::new(&socket).exists(), "the socket is removed");
}
