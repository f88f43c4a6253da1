"""What a user of an interactive shell sees of a job: job_control.py COMMAND, to which a program is added.

Prints what happens; the same for any command that is as if it were not there.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import sys
import termios
import time

PATIENCE = 60
PROGRAM = "trap 'echo resized' WINCH; echo at work $$; while :; do sleep 1 & wait $!; done"

command = " ".join(shlex.quote(word) for word in sys.argv[1:])
pid, terminal = pty.fork()
if pid == 0:
    os.environ["PS1"] = "prompt> "
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])

seen = ""


def until(pattern):
    """Reads until the pattern comes, and returns what it has found."""
    global seen
    deadline = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, seen)):
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"no {pattern!r} in {seen!r}")
        seen += os.read(terminal, 4096).decode(errors="replace")
    seen = seen[found.end():]
    return found


def write(text):
    os.write(terminal, text.encode())


def state_of(number):
    with open(f"/proc/{number}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def becomes(number, states, what):
    deadline = time.monotonic() + PATIENCE
    while state_of(number) not in states:
        if time.monotonic() > deadline:
            sys.exit(f"{what}: it is {state_of(number)}")
        time.sleep(0.01)
    print(what)


def jobs_show(state):
    """Asks the shell until it says so: it is told a moment after the program."""
    deadline = time.monotonic() + PATIENCE
    while True:
        write("jobs\n")
        text = ""
        # What was typed, and the answer.
        while not text.endswith("prompt> ") or "[1]" not in text:
            text += until(r"(?s).*?prompt> ").group(0)
        if f"[1]+  {state}" in text:
            print(f"[1]+  {state}")
            return
        if time.monotonic() > deadline:
            sys.exit(f"not {state}: {text!r}")
        time.sleep(0.1)


until("prompt> ")
write("bind 'set enable-bracketed-paste off' 2> /dev/null\n")
until("prompt> ")
write(f"{command} bash -c {shlex.quote(PROGRAM)}\n")
program = int(until(r"at work (\d+)").group(1))
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
until(r"(?m)^resized")
print("resized")

write("\x1a")
print(until(r"Stopped").group(0))
until("prompt> ")
becomes(program, "T", "stopped by the terminal")
jobs_show("Stopped")
write("fg\n")
becomes(program, "SR", "in the foreground")
write("\x1a")
until(r"Stopped")
until("prompt> ")
becomes(program, "T", "stopped again")
write("bg\n")
becomes(program, "SR", "in the background")
until("prompt> ")
jobs_show("Running")
# The number that the shell knows, alone.
write("kill -TSTP $(jobs -p)\n")
becomes(program, "T", "stopped by its number")
until("prompt> ")
jobs_show("Stopped")
write("kill -CONT $(jobs -p)\n")
becomes(program, "SR", "continued by its number")
until("prompt> ")
jobs_show("Running")
# The program itself, by whoever knows its number.
os.kill(program, 19)
becomes(program, "T", "stopped itself")
jobs_show("Stopped")
os.kill(program, 18)
becomes(program, "SR", "continued itself")
jobs_show("Running")
write("fg\n")
# The shell says what it continues, and gives it the terminal then; the program answers in a line of its own.
until(r"bash -c .*\r\n")
while os.tcgetpgrp(terminal) == pid:
    time.sleep(0.01)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 101, 0, 0))
until(r"(?m)^resized")
print("resized")
write("\x03")
until("prompt> ")
write("echo code $?\n")
print(until(r"code \d+").group(0))
write("exit\n")
os.waitpid(pid, 0)
