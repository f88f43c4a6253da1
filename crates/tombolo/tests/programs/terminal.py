"""A terminal, and whoever runs in it."""

import os
import pty
import re
import select
import sys
import time

PATIENCE = 60


def state_of(number):
    """As the kernel shows it; None when the process has ended."""
    try:
        with open(f"/proc/{number}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else state


def wait_until(is_so, what):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"not so: {what}")
        time.sleep(0.01)


def becomes(number, states, what):
    """Says what has come about when the process is in one of these states."""
    wait_until(lambda: (state_of(number) or " ") in states, f"{what}, but {state_of(number)}")
    print(what)


class Terminal:
    """In which a command leads a session."""

    def __init__(self, *words):
        self.seen, self.asked = "", 0
        self.leader, self.file = pty.fork()
        if self.leader == 0:
            os.environ["PS1"] = "prompt> "
            os.execvp(words[0], words)

    def until(self, pattern):
        """Reads until the pattern comes, and returns what it has found."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            if not select.select([self.file], [], [], max(0, deadline - time.monotonic()))[0]:
                sys.exit(f"no {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.file, 4096).decode(errors="replace")
            except OSError:
                sys.exit(f"the terminal is closed; no {pattern!r} in {self.seen!r}")
        self.seen = self.seen[found.end():]
        return found

    def write(self, text):
        os.write(self.file, text.encode())

    def job_becomes(self, state):
        """Asks the shell in it until it says so of its job: it is told a moment after the program."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.asked += 1
            # What is typed does not have the number in it.
            self.write(f"jobs; echo asked-$(({self.asked}))\n")
            text = self.until(rf"(?s).*?asked-{self.asked}\r\n.*?prompt> ").group(0)
            if f"[1]+  {state}" in text:
                print(f"[1]+  {state}")
                return
            if time.monotonic() > deadline:
                sys.exit(f"not {state}: {text!r}")
            time.sleep(0.1)

    def status(self):
        """How the command has ended."""
        return os.waitpid(self.leader, 0)[1]


def shell():
    """A terminal with an interactive bash that waits for a command."""
    terminal = Terminal("bash", "--norc", "--noprofile", "-i")
    terminal.until("prompt> ")
    terminal.write("bind 'set enable-bracketed-paste off' 2> /dev/null\n")
    terminal.until("prompt> ")
    return terminal
