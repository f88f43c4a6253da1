"""The package as an operator uses it, in a root of its own: `operator.py PACKAGE SCRATCH`, in new mount, network and pid namespaces.

  install      dpkg, in an overlay over this machine's root: nothing is started, files lie where they belong
  lend         by the unit's ExecStart, with the options of /etc/default, heard as a service manager hears it
  borrow       from another network namespace, by key, with the installed library
  status       names the borrower, the neighbour that is not there, and the named segment
  alert        Prometheus reads the node's metrics, and the installed rules fire for the absent neighbour
  library      removed while a program runs, altered: the program goes on with the copy
  remove       dpkg --purge leaves nothing but what the operator wrote
"""

import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

PACKAGE, SCRATCH = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
ROOT, LAYER = SCRATCH / "root", SCRATCH / "layer"
LENDER, BORROWER, ABSENT = "192.0.2.1", "192.0.2.2", "udp:192.0.2.9:7000"
PATIENCE = 60
# An operator has no settings of the tests.
for name in [name for name in os.environ if name.startswith("TOMBOLO_")]:
    del os.environ[name]


def run(*words, **options):
    """Runs a command to its end and gives what it printed; it must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def in_root(*words):
    return ["chroot", str(ROOT), *words]


def wait_for(what, found):
    since = time.monotonic()
    while not (value := found()):
        assert time.monotonic() - since < PATIENCE, f"not within {PATIENCE} s: {what() if callable(what) else what}"
        time.sleep(0.1)
    return value


def write(path, text):
    (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / path).write_text(text)


def upper():
    """What lies in the overlay, as paths from the root."""
    top = LAYER / "upper"
    return {str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir()}


def make_root():
    run("mount", "--make-rprivate", "/")
    for folder in (ROOT, LAYER):
        folder.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", LAYER)
    for folder in ("upper", "work"):
        (LAYER / folder).mkdir()
    layers = f"lowerdir=/,upperdir={LAYER}/upper,workdir={LAYER}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, ROOT)
    for folder in ("dev", "proc", "sys"):
        run("mount", "--rbind", f"/{folder}", ROOT / folder)
    for folder in ("run", "tmp"):
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", ROOT / folder)


def make_network():
    """Another namespace, joined to this one; the process that keeps it."""
    other = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    here = os.readlink("/proc/self/ns/net")
    wait_for("another namespace", lambda: os.readlink(f"/proc/{other.pid}/ns/net") != here)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "lend", "type", "veth", "peer", "borrow", "netns", other.pid)
    run("ip", "address", "add", f"{LENDER}/24", "dev", "lend")
    run("ip", "link", "set", "lend", "up")
    there = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
    run(*there, "ip", "address", "add", f"{BORROWER}/24", "dev", "borrow")
    run(*there, "ip", "link", "set", "borrow", "up")
    return there


def install():
    (ROOT / "tmp/tombolo.deb").write_bytes(PACKAGE.read_bytes())
    run(*in_root("dpkg", "--install", "/tmp/tombolo.deb"))
    listed = run(*in_root("dpkg", "--listfiles", "tombolo")).split()
    for wanted in (
        "/usr/bin/tombolo",
        "/lib/systemd/system/tombolo-node.service",
        "/lib/systemd/system/tombolo-net@.service",
        "/lib/systemd/system/tombolo-port@.service",
        "/etc/default/tombolo-node",
        "/lib/udev/rules.d/60-tombolo.rules",
        "/usr/share/man/man1/tombolo-run.1.gz",
        "/usr/share/bash-completion/completions/tombolo",
        "/usr/share/zsh/vendor-completions/_tombolo",
        "/usr/share/fish/vendor_completions.d/tombolo.fish",
        "/usr/share/tombolo/prometheus/tombolo.rules.yml",
        "/usr/share/tombolo/grafana/tombolo.json",
    ):
        assert wanted in listed, f"{wanted} is not in the package:\n" + "\n".join(listed)
    assert "tombolo" in (ROOT / "etc/group").read_text(), "there is no group"
    assert not list((ROOT / "run").glob("tombolo*")), "something was started"
    libraries = [path for path in listed if re.fullmatch(r"/usr/lib/tombolo/libtombolo-[0-9a-f]{16}\.so", path)]
    assert len(libraries) == 1, libraries
    of_sockets = [path for path in listed if re.fullmatch(r"/usr/lib/tombolo/libtombolo-sockets-[0-9a-f]{16}\.so", path)]
    assert len(of_sockets) == 1, of_sockets
    assert run(*in_root("sh", "-c", "man --where tombolo-run 2>/dev/null || echo /usr/share/man/man1/tombolo-run.1.gz"))
    return libraries[0]


def key(name):
    run(*in_root("tombolo", "keygen", "--out", f"/etc/tombolo/{name}"))
    return run(*in_root("tombolo", "keygen", "--show", "--out", f"/etc/tombolo/{name}")).strip()


def listen_as_manager():
    """What services say to their manager, as it comes: nobody waits for a manager that does not read."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind("\0operator")
    heard = []

    def listen():
        while True:
            heard.append(manager.recv(256))

    threading.Thread(target=listen, daemon=True).start()
    return heard


def lend(heard):
    """Starts the node as its unit does; the process."""
    unit = (ROOT / "lib/systemd/system/tombolo-node.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1]
    write(
        "etc/default/tombolo-node",
        f'TOMBOLO_NODE_OPTIONS="--name lender --listen shm:/run/tombolo/lender.shm,udp:{LENDER}:7000 --lend 256M'
        f' --peer {ABSENT} --metrics {LENDER}:9464"\nTOMBOLO_KEY=/etc/tombolo/lender.key\nTOMBOLO_ALLOW=/etc/tombolo/allow\n',
    )
    # As systemd does it.
    environment = dict(re.findall(r'^Environment=(\w+)="?(.*?)"?$', unit, re.M))
    for line in (ROOT / "etc/default/tombolo-node").read_text().splitlines():
        name, value = line.split("=", 1)
        environment[name] = shlex.split(value)[0]
    directory = ROOT / "run" / re.search(r"^RuntimeDirectory=(.*)$", unit, re.M)[1]
    directory.mkdir(mode=int(re.search(r"^RuntimeDirectoryMode=(.*)$", unit, re.M)[1], 8))
    environment |= {"NOTIFY_SOCKET": "@operator", "WATCHDOG_USEC": "1000000", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    words = [part for word in command.split() for part in (environment[word[1:]].split() if word[0] == "$" else [word])]
    node = subprocess.Popen(in_root(*words), env=environment)
    wait_for("READY and WATCHDOG", lambda: len(heard) >= 2)
    assert heard[:2] == [b"READY=1", b"WATCHDOG=1"], heard
    return node


def maps_of_a_program(there, borrower, script):
    """What a program prints that runs on far memory."""
    words = ["tombolo", "run", "--quiet", "--from", f"udp:{LENDER}:7000", "--local", "16M", "--remote", "200M", "--"]
    return [*there, "env", *borrower, *in_root(*words, "sh", "-c", script)]


def main():
    make_root()
    there = make_network()
    before = upper()
    library = install()
    heard = listen_as_manager()
    lender_key, borrower_key = key("lender.key"), key("borrower.key")
    write("etc/tombolo/allow", f"{borrower_key} borrower\n")
    write("etc/tombolo/known", f"{lender_key} lender\n")
    node = lend(heard)

    # Borrow, with the installed library.
    borrower = ["TOMBOLO_KEY=/etc/tombolo/borrower.key", "TOMBOLO_ALLOW=/etc/tombolo/known"]
    show = "grep -o '/[^ ]*libtombolo[^ ]*' /proc/self/maps | sort -u"
    used = run(*maps_of_a_program(there, borrower, show)).split()
    assert used == [library], used

    # A program that stays, a named segment, and what the status says of them.
    stays = subprocess.Popen(
        maps_of_a_program(there, borrower, f"text=$(head -c 24000000 /dev/zero | tr '\\0' x); read go; {show}"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    write("tmp/file", "bytes\n")
    run(*in_root("tombolo", "cp", "/tmp/file", "lender:file"))

    def status():
        text = run(*in_root("tombolo", "status", "lender"))
        lines = text.splitlines()
        has = lambda *words: any(all(word in line for word in words) for line in lines)
        # What does not fit behind its row stands in the next line.
        is_whole = has("node lender") and has("of 256 MiB", "free") and has("run ", "MiB") and has(BORROWER)
        return text if is_whole and has("absent") and has(ABSENT) and has("file", "6 B") else None

    wait_for(lambda: run(*in_root("tombolo", "status", "lender")), status)
    described = json.loads(run(*in_root("tombolo", "status", "--json")))
    assert described["neighbours"][0]["state"] == "absent" and described["neighbours"][0]["addresses"] == [ABSENT]
    assert described["borrowers"][0]["links"][0]["received_bytes"] > 0, described
    assert described["listens"] == ["shm:/run/tombolo/lender.shm", f"udp:{LENDER}:7000"]

    # The rules fire; sooner than an operator wants it.
    rules = (ROOT / "usr/share/tombolo/prometheus/tombolo.rules.yml").read_text()
    (SCRATCH / "rules.yml").write_text(re.sub(r"for: \d+m", "for: 1s", rules))
    (SCRATCH / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: tombolo, static_configs: [{{targets: ['{LENDER}:9464']}}]}}]\n"
    )
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={SCRATCH}/prometheus.yml", f"--storage.tsdb.path={SCRATCH}/data",
         "--web.listen-address=127.0.0.1:9090"],
        stderr=subprocess.DEVNULL,
    )

    def asked(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def fires():
        alerts = (asked("alerts") or {}).get("alerts", [])
        firing = {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}
        return firing if "TomboloNeighbourDown" in firing else None

    firing = wait_for("an alert", fires)
    assert firing["TomboloNeighbourDown"]["address"] == ABSENT, firing
    assert "TomboloIllegalTransitions" not in firing and "TomboloLenderNearlyFull" not in firing, firing
    described = asked("metadata?metric=tombolo_node_lent_bytes")["tombolo_node_lent_bytes"][0]
    assert described["type"] == "gauge" and described["help"].startswith("Memory lent"), described
    prometheus.terminate()
    prometheus.wait(PATIENCE)

    # The library is removed while a program runs: what that executes next has the copy.
    installed = ROOT / library[1:]
    content = installed.read_bytes()
    installed.unlink()
    time.sleep(3)
    stays.stdin.write("go\n")
    stays.stdin.close()
    copy = stays.stdout.read().split()
    assert stays.wait(PATIENCE) == 0
    assert len(copy) == 1 and re.fullmatch(r"/tmp/tombolo-pager-[^/]*/libtombolo\.so", copy[0]), copy
    # One that is not the same is not used; nor is one that others can change.
    for altered, mode in ((content[:-1] + bytes([content[-1] ^ 1]), 0o644), (content, 0o666)):
        installed.write_bytes(altered)
        installed.chmod(mode)
        used = run(*maps_of_a_program(there, borrower, show)).split()
        assert len(used) == 1 and used[0].startswith("/tmp/tombolo-pager-"), used
        installed.unlink()
    installed.write_bytes(content)
    installed.chmod(0o644)

    node.send_signal(signal.SIGTERM)
    assert node.wait(PATIENCE) == 0
    wait_for("STOPPING", lambda: b"STOPPING=1" in heard)
    assert heard[-1] == b"STOPPING=1" and set(heard[1:-1]) == {b"WATCHDOG=1"}, heard

    run(*in_root("dpkg", "--purge", "tombolo"))
    own = {"etc/tombolo/" + name for name in ("allow", "known", "lender.key", "borrower.key")}
    left = {path for path in upper() - before - own if "tombolo" in path and not path.startswith("var/lib/dpkg/")}
    assert not left, f"the package has left {left}"
    print("all steps done")


main()
