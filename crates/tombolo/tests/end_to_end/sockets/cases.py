"""What sockets of TCP do, case by case, between two processes. Each side notes what its calls return; the notes of several transports are compared.

    cases.py TRANSPORT [CASE]...      TRANSPORT: tcp4, tcp6 or mapped (IPv4 by a socket of IPv6)

Prints one JSON object: each case's notes, and the modes of the sockets as the kernel has them (not compared with others).
"""

import array
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 20
LIBC = ctypes.CDLL(None, use_errno=True)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Side:
    """One of the two processes of a case."""

    def __init__(self, name, transport, mine, theirs):
        self.name, self.transport = name, transport
        self.mine, self.theirs = mine, theirs
        self.notes, self.modes = [], []

    @property
    def is_server(self):
        return self.name == "server"

    def note(self, what, *values):
        self.notes.append(" ".join([what, *map(str, values)]))

    def meet(self):
        """Waits until the other side has come as far."""
        os.write(self.theirs, b"m")
        assert os.read(self.mine, 1) == b"m", "the other side has ended"

    def tell(self, number):
        os.write(self.theirs, struct.pack("=I", number))

    def hear(self):
        return struct.unpack("=I", os.read(self.mine, 4))[0]

    def socket(self):
        return socket.socket(socket.AF_INET if self.transport == "tcp4" else socket.AF_INET6)

    @property
    def host(self):
        return {"tcp4": "127.0.0.1", "tcp6": "::1", "mapped": "::ffff:127.0.0.1"}[self.transport]

    def listen(self, backlog=16):
        listener = self.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, 0))
        listener.listen(backlog)
        self.tell(listener.getsockname()[1])
        return listener

    def pair(self):
        """A connected socket, on both sides."""
        if self.is_server:
            listener = self.listen()
            connection = listener.accept()[0]
            listener.close()
        else:
            connection = self.socket()
            connection.connect((self.host, self.hear()))
        self.mode(connection)
        connection.settimeout(PATIENCE)
        # For calls that wait by themselves.
        connection.setblocking(True)
        return connection

    def mode(self, connection):
        """What the kernel has: the library's own calls do not say."""
        name, length = ctypes.create_string_buffer(128), ctypes.c_uint(128)
        LIBC.syscall(51, connection.fileno(), name, ctypes.byref(length))
        family = struct.unpack("=H", name.raw[:2])[0]
        self.modes.append("handed-over" if family == socket.AF_UNIX else "tcp")

    def call(self, what, function, *arguments):
        """Notes what a call returns, or its error."""
        try:
            result = function(*arguments)
        except OSError as error:
            result = errno.errorcode.get(error.errno, error)
        self.note(what, result)
        return result


def mask(events):
    names = ["IN", "OUT", "PRI", "ERR", "HUP", "RDHUP"]
    return "|".join(name for name in names if events & getattr(select, "EPOLL" + name)) or "0"


def events_of(connection, wanted=select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLPRI):
    poll = select.epoll()
    poll.register(connection, wanted)
    found = dict(poll.poll(0.2))
    poll.close()
    return mask(found.get(connection.fileno(), 0))


def settle():
    """What was sent arrives, and what comes of it comes back."""
    time.sleep(0.1)


def read_all(connection):
    parts = []
    while True:
        part = connection.recv(1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


@case
def echo(side):
    connection = side.pair()
    if side.is_server:
        side.note("read", read_all(connection))
        connection.sendall(b"answer")
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        side.note("read", read_all(connection))
    connection.close()


@case
def names(side):
    connection = side.pair()
    own, peer = connection.getsockname(), connection.getpeername()
    side.tell(own[1])
    side.tell(peer[1])
    side.note("names fit", side.hear() == peer[1], side.hear() == own[1])
    side.note("addresses", own[0], peer[0], connection.family.name, len(own))
    for name in ("SO_DOMAIN", "SO_TYPE", "SO_PROTOCOL", "SO_ERROR", "SO_ACCEPTCONN"):
        side.note(name, connection.getsockopt(socket.SOL_SOCKET, getattr(socket, name, {"SO_DOMAIN": 39, "SO_PROTOCOL": 38}.get(name))))
    side.note("SO_PEERCRED", struct.unpack("=iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
    side.meet()


@case
def options(side):
    connection = side.pair()
    for level, name, value in [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_CORK, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, -1),
        (socket.IPPROTO_TCP, 9999, 1),
    ]:
        side.call(f"set {level} {name} {value}", connection.setsockopt, level, name, value)
        settle()
        side.call(f"get {level} {name}", connection.getsockopt, level, name)
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    side.note("state", information[0], len(information))
    side.call("ulp", connection.setsockopt, socket.IPPROTO_TCP, 31, b"no such")
    side.note("buffers", connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 10000)
    side.call("too short", connection.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, b"x")
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 50000))
    side.call("recv with a timeout", connection.recv, 1)
    side.meet()


@case
def timeouts_set_before(side):
    if side.is_server:
        listener = side.listen()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 50000))
        side.meet()
        connection = listener.accept()[0]
    else:
        port = side.hear()
        connection = side.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 50000))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        side.meet()
        connection.connect((side.host, port))
        side.note("kept", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    side.mode(connection)
    side.call("recv", connection.recv, 1)
    side.meet()


def connect_in_set(side, extra):
    if side.is_server:
        connection = side.listen().accept()[0]
        side.mode(connection)
        connection.sendall(b"hello")
        side.meet()
        side.note("read", connection.recv(10))
    else:
        port = side.hear()
        connection = side.socket()
        connection.setblocking(False)
        poll = select.epoll()
        poll.register(connection, select.EPOLLOUT | select.EPOLLIN | select.EPOLLRDHUP | extra)
        if not extra:
            # The kernel says of a fresh socket of TCP that it is hung up.
            side.note("before", mask(dict(poll.poll(0.1)).get(connection.fileno(), 0)))
        side.note("connect", errno.errorcode.get(connection.connect_ex((side.host, port)), 0))
        side.mode(connection)
        seen = 0
        deadline = time.time() + PATIENCE
        while not seen & select.EPOLLOUT and time.time() < deadline:
            for _, events in poll.poll(1):
                seen |= events
        side.note("out", bool(seen & select.EPOLLOUT), "hup", bool(seen & select.EPOLLHUP))
        side.note("error", connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        if extra & select.EPOLLONESHOT:
            settle()
            side.note("once", poll.poll(0.1))
            poll.modify(connection, select.EPOLLIN | extra)
        deadline = time.time() + PATIENCE
        while not seen & select.EPOLLIN and time.time() < deadline:
            for _, events in poll.poll(1):
                seen |= events
        side.note("in", bool(seen & select.EPOLLIN), connection.recv(10))
        if extra & select.EPOLLET:
            side.note("edges", poll.poll(0.1))
        side.note("again", errno.errorcode.get(connection.connect_ex((side.host, port)), 0) in ("EISCONN", 0))
        connection.sendall(b"bye")
        poll.unregister(connection)
        side.meet()


@case
def connect_in_set_level(side):
    connect_in_set(side, 0)


@case
def connect_in_set_edge(side):
    connect_in_set(side, select.EPOLLET)


@case
def connect_in_set_oneshot(side):
    connect_in_set(side, select.EPOLLONESHOT)


@case
def connect_to_oneself_before_accept(side):
    if not side.is_server:
        return
    listener = side.socket()
    listener.bind((side.host, 0))
    listener.listen(4)
    connections = []
    for number in range(3):
        connection = side.socket()
        connection.connect(listener.getsockname())
        connection.sendall(b"%d" % number)
        side.mode(connection)
        connections.append(connection)
    for connection in connections:
        accepted, address = listener.accept()
        side.mode(accepted)
        side.note("read", accepted.recv(10), address == connection.getsockname())
        accepted.sendall(b"answer")
        side.note("answer", connection.recv(10))
        accepted.close()
        side.note("end", connection.recv(10))


@case
def client_closes_before_accept(side):
    if side.is_server:
        listener = side.listen()
        side.meet()
        connection = listener.accept()[0]
        side.mode(connection)
        side.note("read", connection.recv(100), connection.recv(100))
        side.note("events", events_of(connection))
    else:
        connection = side.socket()
        connection.connect((side.host, side.hear()))
        side.mode(connection)
        connection.sendall(b"last words")
        connection.close()
        settle()
        side.meet()


@case
def listener_closed_with_connections_waiting(side):
    if side.is_server:
        listener = side.listen()
        side.meet()
        listener.close()
        side.meet()
    else:
        port = side.hear()
        quiet, wrote = side.socket(), side.socket()
        for connection in (quiet, wrote):
            connection.connect((side.host, port))
            side.mode(connection)
        wrote.sendall(b"x")
        side.meet()
        side.meet()
        settle()
        for connection in (quiet, wrote):
            connection.settimeout(PATIENCE)
            side.call("recv", connection.recv, 10)
            side.call("recv again", connection.recv, 10)


@case
def closed_with_bytes_unread(side):
    connection = side.pair()
    if side.is_server:
        side.meet()
        settle()
        connection.close()
        side.meet()
    else:
        connection.sendall(b"never read")
        side.meet()
        side.meet()
        settle()
        side.call("recv", connection.recv, 10)
        side.call("recv again", connection.recv, 10)


@case
def close_looks_like_the_end_of_the_stream(side):
    connection = side.pair()
    if side.is_server:
        connection.sendall(b"last")
        connection.close()
        side.meet()
        side.meet()
    else:
        side.meet()
        settle()
        side.note("events", events_of(connection))
        side.note("read", connection.recv(10), connection.recv(10))
        side.note("events", events_of(connection))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        side.call("first send", connection.send, b"x")
        settle()
        side.call("next send", connection.send, b"x")
        side.call("next but one", connection.send, b"x")
        side.meet()


@case
def exit_looks_like_the_end_of_the_stream(side):
    if side.is_server:
        listener = side.listen()
        child = subprocess.Popen(
            [sys.executable, "-c", "import socket, sys\nc = socket.socket(fileno=int(sys.argv[1])).accept()[0]\nc.sendall(b'bye')", str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )
        side.note("exit", child.wait())
        side.meet()
    else:
        connection = side.socket()
        connection.connect((side.host, side.hear()))
        side.mode(connection)
        side.meet()
        settle()
        side.note("events", events_of(connection))
        side.note("read", connection.recv(10), connection.recv(10))


@case
def killed_peer(side):
    connection = side.pair()
    if side.is_server:
        child = os.fork()
        if child == 0:
            signal.pause()
        connection.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        side.meet()
    else:
        side.meet()
        settle()
        side.note("events", events_of(connection))
        side.call("recv", connection.recv, 10)


@case
def half_close(side):
    connection = side.pair()
    if side.is_server:
        side.note("read", read_all(connection))
        side.note("events", events_of(connection))
        connection.sendall(b"after the end")
        side.meet()
        connection.close()
    else:
        connection.sendall(b"all")
        connection.shutdown(socket.SHUT_WR)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        side.call("send", connection.send, b"x")
        side.note("read", connection.recv(20))
        side.note("events", events_of(connection))
        side.meet()
        side.note("end", connection.recv(20))
        side.note("events", events_of(connection))


@case
def shut_both(side):
    connection = side.pair()
    if side.is_server:
        results = []
        waiting = threading.Thread(target=lambda: results.append(connection.recv(10)))
        waiting.start()
        settle()
        connection.shutdown(socket.SHUT_RDWR)
        waiting.join(PATIENCE)
        side.note("woken with", results)
        side.meet()
    else:
        side.note("end", connection.recv(10))
        side.meet()


@case
def shut_reading(side):
    connection = side.pair()
    if side.is_server:
        connection.shutdown(socket.SHUT_RD)
        side.meet()
        side.meet()
        side.note("read", connection.recv(10))
    else:
        side.meet()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        side.call("send", connection.send, b"x")
        side.meet()


@case
def linger_for_nothing(side):
    connection = side.pair()
    if side.is_server:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
        connection.close()
        side.meet()
    else:
        side.meet()
        settle()
        side.call("recv", connection.recv, 10)


@case
def out_of_band(side):
    connection = side.pair()
    if side.is_server:
        side.meet()
        settle()
        side.note("events", events_of(connection))
        side.call("out of band", connection.recv, 1, socket.MSG_OOB)
        side.note("before the mark", connection.recv(10))
        mark = fcntl.ioctl(connection, 0x8905, struct.pack("=i", 0))
        side.note("at the mark", struct.unpack("=i", mark)[0])
        side.note("behind", connection.recv(10))
    else:
        connection.sendall(b"abc")
        connection.send(b"!", socket.MSG_OOB)
        connection.sendall(b"def")
        side.meet()


@case
def flags(side):
    connection = side.pair()
    if side.is_server:
        side.call("nothing", connection.recv, 10, socket.MSG_DONTWAIT)
        side.meet()
        side.note("peek", connection.recv(2, socket.MSG_PEEK))
        side.note("all", connection.recv(10, socket.MSG_WAITALL))
        buffers = [bytearray(2), bytearray(3)]
        side.note("scattered", connection.recvmsg_into(buffers)[0], buffers)
        count = fcntl.ioctl(connection, 0x541B, struct.pack("=i", 0))
        side.note("unread", struct.unpack("=i", count)[0])
    else:
        side.meet()
        connection.sendall(b"01234")
        settle()
        connection.sendmsg([b"56", b"789abcdefghi"])


@case
def small_messages_until_full(side):
    connection = side.pair()
    if side.is_server:
        side.meet()
        total = 0
        while part := connection.recv(1 << 20):
            total += len(part)
        side.note("read as much as was sent", total == side.hear())
    else:
        connection.setblocking(False)
        total = 0
        try:
            while total < 64 << 20:
                total += connection.send(b"x" * 64)
        except BlockingIOError:
            pass
        side.note("at least half a MiB", total >= 512 << 10)
        side.note("events", events_of(connection))
        side.meet()
        connection.close()
        side.tell(total)


@case
def many_bytes(side):
    connection = side.pair()
    size = 8 << 20
    if side.is_server:
        block = bytes(range(256)) * 4096
        for _ in range(size // len(block)):
            connection.sendall(block)
        connection.close()
    else:
        data = read_all(connection)
        side.note("right", data == bytes(range(256)) * (size // 256))


@case
def files(side):
    connection = side.pair()
    with tempfile.TemporaryFile() as file:
        if side.is_server:
            file.write(b"0123456789" * 50000)
            file.flush()
            sent = 0
            while sent < 500000:
                sent += os.sendfile(connection.fileno(), file.fileno(), sent, 500000 - sent)
            side.note("sent", sent)
            connection.close()
        else:
            out = os.pipe()
            total = b""
            while True:
                count = os.splice(connection.fileno(), out[1], 65536)
                if count == 0:
                    break
                total += os.read(out[0], count)
            side.note("right", total == b"0123456789" * 50000)


@case
def poll_and_select(side):
    connection = side.pair()
    if side.is_server:
        side.note("quiet", select.select([connection], [connection], [connection], 0.1)[1] == [connection])
        side.meet()
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
        side.note("poll", [mask(events) for _, events in poll.poll(5000)])
        side.note("select", select.select([connection], [], [], 5)[0] == [connection])
        connection.recv(10)
        side.note("quiet again", select.select([connection], [], [], 0.1)[0])
    else:
        connection.sendall(b"x")
        side.meet()
        for _ in range(4):
            settle()


@case
def refused(side):
    if side.is_server:
        listener = side.socket()
        listener.bind((side.host, 0))
        side.tell(listener.getsockname()[1])
        side.meet()
    else:
        port = side.hear()
        connection = side.socket()
        side.call("connect", connection.connect, (side.host, port))
        side.call("once more", connection.connect, (side.host, port))
        waits = side.socket()
        waits.setblocking(False)
        poll = select.epoll()
        poll.register(waits, select.EPOLLOUT)
        side.note("connect", errno.errorcode.get(waits.connect_ex((side.host, port))))
        side.note("events", [mask(events) for _, events in poll.poll(5)])
        side.note("error", errno.errorcode[waits.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
        side.meet()


@case
def full_backlog(side):
    if side.is_server:
        listener = side.listen(0)
        side.meet()
        answers = []
        for _ in range(3):
            connection = listener.accept()[0]
            side.mode(connection)
            answers.append(connection.recv(10))
            connection.sendall(b"done")
            connection.close()
        side.note("read", sorted(answers))
    else:
        port = side.hear()
        connections = []
        for _ in range(3):
            connection = side.socket()
            connection.setblocking(False)
            side.note("connect", errno.errorcode.get(connection.connect_ex((side.host, port)), 0))
            connections.append(connection)
        settle()
        side.note("at once", [bool(select.select([], [connection], [], 0)[1]) for connection in connections])
        side.meet()
        for number, connection in enumerate(connections):
            select.select([], [connection], [], PATIENCE)
            side.mode(connection)
            connection.setblocking(True)
            connection.sendall(b"%d" % number)
        side.note("answers", [connection.recv(10) for connection in connections])


@case
def connect_twice(side):
    if side.is_server:
        connection = side.listen().accept()[0]
        side.mode(connection)
        side.note("read", connection.recv(10))
    else:
        port = side.hear()
        connection = side.socket()
        connection.connect((side.host, port))
        side.mode(connection)
        side.call("again", connection.connect, (side.host, port))
        side.call("listen", connection.listen, 1)
        connection.sendall(b"still")


@case
def no_descriptors_left(side):
    if side.is_server:
        listener = side.listen()
        side.meet()
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        side.call("accept", listener.accept)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        connection = listener.accept()[0]
        side.mode(connection)
        side.note("read", connection.recv(10))
        connection.sendall(b"answer")
        side.meet()
    else:
        port = side.hear()
        connection = side.socket()
        lowest = os.dup(0)
        os.close(lowest)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        side.call("connect", connection.connect, (side.host, port))
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        side.mode(connection)
        connection.sendall(b"x")
        side.meet()
        side.note("read", connection.recv(10))
        side.meet()


@case
def forked_worker(side):
    connection = side.pair()
    if side.is_server:
        child = os.fork()
        if child == 0:
            data = connection.recv(10)
            connection.sendall(data.upper())
            os.close(connection.fileno())
            os._exit(0)
        connection.close()
        os.waitpid(child, 0)
        side.meet()
    else:
        connection.sendall(b"work")
        side.note("read", connection.recv(10), connection.recv(10))
        side.meet()


@case
def prefork(side):
    if side.is_server:
        listener = side.listen()
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                for _ in range(2):
                    connection = listener.accept()[0]
                    connection.sendall(connection.recv(10).upper())
                    connection.close()
                os._exit(0)
            children.append(child)
        for child in children:
            side.note("child", os.waitpid(child, 0)[1])
    else:
        port = side.hear()
        for _ in range(4):
            connection = side.socket()
            connection.connect((side.host, port))
            side.mode(connection)
            connection.sendall(b"work")
            side.note("read", connection.recv(10), connection.recv(10))
            connection.close()


@case
def reuse_port(side):
    if side.is_server:
        listeners = []
        for number in range(2):
            listener = side.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((side.host, listeners[0].getsockname()[1] if number else 0))
            listener.listen(16)
            listeners.append(listener)
        side.tell(listeners[0].getsockname()[1])
        for _ in range(8):
            ready = select.select(listeners, [], [], PATIENCE)[0]
            connection = ready[0].accept()[0]
            side.mode(connection)
            connection.sendall(connection.recv(10).upper())
            connection.close()
    else:
        port = side.hear()
        for _ in range(8):
            connection = side.socket()
            connection.connect((side.host, port))
            connection.sendall(b"work")
            side.note("read", connection.recv(10), connection.recv(10))
            connection.close()


@case
def passed_on(side):
    connection = side.pair()
    if side.is_server:
        here, there = socket.socketpair()
        child = os.fork()
        if child == 0:
            connection.close()
            got = socket.recv_fds(there, 10, 1)[1][0]
            passed = socket.socket(fileno=got)
            side.note("names", passed.getpeername()[0], passed.family.name)
            passed.sendall(passed.recv(10).upper() + passed.getpeername()[0].encode())
            passed.close()
            os._exit(0)
        socket.send_fds(here, [b"x"], [connection.fileno()])
        connection.close()
        os.waitpid(child, 0)
        side.meet()
    else:
        connection.sendall(b"passed")
        side.note("read", connection.recv(60), connection.recv(10))
        side.meet()


@case
def duplicated_before_connect(side):
    if side.is_server:
        connection = side.listen().accept()[0]
        side.mode(connection)
        side.note("read", connection.recv(10), connection.recv(10))
    else:
        port = side.hear()
        connection = side.socket()
        twin = connection.dup()
        connection.connect((side.host, port))
        side.mode(connection)
        connection.sendall(b"one")
        settle()
        twin.sendall(b"two")
        connection.close()
        settle()
        twin.close()


@case
def duplicated_after_connect(side):
    connection = side.pair()
    if side.is_server:
        side.note("read", connection.recv(10))
        side.meet()
        side.note("read", connection.recv(10), connection.recv(10))
    else:
        twin = connection.dup()
        connection.sendall(b"one")
        connection.close()
        side.meet()
        twin.sendall(b"two")
        twin.close()


@case
def inherited_before_connect(side):
    if side.is_server:
        connection = side.listen().accept()[0]
        side.mode(connection)
        side.note("read", connection.recv(10), connection.recv(10))
    else:
        port = side.hear()
        connection = side.socket()
        child = os.fork()
        if child == 0:
            settle()
            settle()
            connection.sendall(b"child")
            os._exit(0)
        connection.connect((side.host, port))
        side.mode(connection)
        os.waitpid(child, 0)
        connection.close()


@case
def standard_input_of_a_program(side):
    connection = side.pair()
    if side.is_server:
        ran = subprocess.run(["tr", "a-z", "A-Z"], stdin=connection.fileno(), stdout=connection.fileno())
        side.note("exit", ran.returncode)
        connection.close()
    else:
        connection.sendall(b"by a program")
        connection.shutdown(socket.SHUT_WR)
        side.note("read", read_all(connection))


@case
def closed_while_another_reads(side):
    connection = side.pair()
    if side.is_server:
        results = []
        descriptor = connection.fileno()

        def read():
            try:
                results.append(os.read(descriptor, 10))
            except OSError as error:
                results.append(errno.errorcode[error.errno])

        waiting = threading.Thread(target=read)
        waiting.start()
        settle()
        connection.close()
        side.meet()
        waiting.join(PATIENCE)
        side.note("read", results)
        side.meet()
    else:
        side.meet()
        connection.sendall(b"late")
        side.meet()


@case
def another_user(side):
    connection = None
    if side.is_server:
        listener = side.listen()
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            connection = listener.accept()[0]
            connection.sendall(connection.recv(10).upper())
            connection.close()
            os._exit(0)
        side.note("child", os.waitpid(child, 0)[1])
    else:
        connection = side.socket()
        connection.connect((side.host, side.hear()))
        side.mode(connection)
        connection.sendall(b"work")
        side.note("read", connection.recv(10), connection.recv(10))


@case
def interrupted(side):
    connection = side.pair()
    if side.is_server:
        side.meet()
        connection.sendall(b"x")
    else:
        caught = []
        signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        buffer = ctypes.create_string_buffer(10)
        result = LIBC.recv(connection.fileno(), buffer, 10, 0)
        side.note("recv", result, errno.errorcode.get(ctypes.get_errno()))
        side.meet()
        side.note("read", connection.recv(10))


@case
def wild_pointers(side):
    connection = side.pair()
    for name, arguments in {
        "getsockname": (connection.fileno(), 8, 8),
        "getpeername": (connection.fileno(), 8, 8),
        "getsockopt": (connection.fileno(), 6, 1, 8, 8),
        "setsockopt": (connection.fileno(), 6, 1, 8, 4),
        "connect": (side.socket().detach(), 8, 16),
    }.items():
        result = getattr(LIBC, name)(*map(ctypes.c_void_p, arguments))
        side.note(name, result, errno.errorcode[ctypes.get_errno()])
    side.meet()


def run(name, transport):
    to_server, to_client = os.pipe(), os.pipe()
    results = os.pipe()
    children = []
    for is_server in (True, False):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            mine, theirs = (to_server[0], to_client[1]) if is_server else (to_client[0], to_server[1])
            for other in (to_server + to_client + results):
                if other not in (mine, theirs, results[1]):
                    os.close(other)
            side = Side("server" if is_server else "client", transport, mine, theirs)
            error = None
            try:
                CASES[name](side)
            except BaseException as raised:  # It is a note, too.
                error = f"{type(raised).__name__}: {raised} (line {raised.__traceback__.tb_next.tb_lineno})"
            notes = side.notes + ([error] if error else [])
            os.write(results[1], json.dumps({side.name: notes, side.name + " modes": side.modes}).encode() + b"\n")
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    for descriptor in to_server + to_client + results[1:]:
        os.close(descriptor)
    with os.fdopen(results[0]) as stream:
        lines = stream.read().splitlines()
    for child in children:
        os.waitpid(child, 0)
    merged = {}
    for line in lines:
        merged.update(json.loads(line))
    return merged


def main():
    transport, *wanted = sys.argv[1:]
    print(json.dumps({name: run(name, transport) for name in wanted or CASES}))


main()
