"""What becomes of a program whose group or session is out of the ordinary: sessions.py SCENARIO COMMAND, to which a program is added.

Prints what happens; the same for any command that is as if it were not there.
"""

import os
import shlex
import signal
import sys
import tempfile
import time

from terminal import Terminal, becomes, shell, state_of, wait_until

command = sys.argv[2:]


def typed(*program):
    return " ".join(shlex.quote(word) for word in [*command, *program]) + "\n"


def in_a_group_of_its_own():
    """Such a program is still the job that its shell has started."""
    program = """
import os, signal, sys
os.setpgrp()
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
print("at work", os.getpid(), flush=True)
for line in iter(sys.stdin.readline, ""):
    print("read", line, end="", flush=True)
"""
    terminal = shell()
    terminal.write(typed("python3", "-c", program))
    pid = int(terminal.until(r"at work (\d+)").group(1))
    for number in range(2):
        terminal.write(f"line {number}\n")
        print(terminal.until(rf"read line {number}").group(0))
        terminal.write("\x03")
        print(terminal.until("interrupted").group(0))
        terminal.write("\x1a")
        print(terminal.until("Stopped").group(0))
        terminal.until("prompt> ")
        becomes(pid, "T", "stopped by the terminal")
        terminal.write("bg\n")
        terminal.until("prompt> ")
        # It reads.
        becomes(pid, "T", "stopped for the terminal")
        terminal.job_becomes("Stopped")
        terminal.write("kill -INT %1\n")
        terminal.until("prompt> ")
        terminal.write("fg\n")
        print(terminal.until("interrupted").group(0))
        becomes(pid, "SR", "in the foreground")
    terminal.write("\x04")
    terminal.until("prompt> ")
    terminal.write("echo code $?\n")
    print(terminal.until(r"code \d+").group(0))
    terminal.write("exit\n")
    terminal.status()


def leads_the_session():
    """Nobody could continue it: the terminal cannot stop it."""
    program = "echo at work; while read line; do echo \"read $line\"; done; exit 3"
    terminal = Terminal(*command, "bash", "-c", program)
    terminal.until("at work")
    for number in range(3):
        terminal.write(f"\x1aline {number}\n")
        print(terminal.until(rf"read line {number}").group(0))
    terminal.write("\x04")
    print("code", os.waitstatus_to_exitcode(terminal.status()))


def shell_is_killed():
    """A job that is stopped is told, and goes on."""
    told = tempfile.mktemp()
    program = f"trap 'echo told > {told}; exit' HUP; echo at work $$; while :; do sleep 1 & wait $!; done"
    terminal = shell()
    terminal.write(typed("bash", "-c", program))
    pid = int(terminal.until(r"at work (\d+)").group(1))
    terminal.write("\x1a")
    terminal.until("Stopped")
    terminal.until("prompt> ")
    becomes(pid, "T", "stopped by the terminal")
    os.kill(terminal.leader, signal.SIGKILL)
    terminal.status()
    wait_until(lambda: state_of(pid) is None, "the program has ended")
    wait_until(lambda: os.path.exists(told), "it was told")
    print("told")
    os.unlink(told)


def orphan():
    """Whoever has started it has ended, and nobody could continue it: what stops others does not stop it for long."""
    program = "trap 'echo told' USR1; echo at work $$; while :; do sleep 0.1 & wait $!; done"
    read, write = os.pipe()
    leader = os.fork()
    if leader == 0:
        # Whoever adopts the job is in another session.
        os.setsid()
        starter = os.fork()
        if starter != 0:
            os.waitpid(starter, 0)
            os._exit(0)
        os.setpgid(0, 0)
        started = os.fork()
        if started == 0:
            os.dup2(write, 1)
            os.execvp(command[0], [*command, "bash", "-c", program])
        os.write(write, f"started {started}\n".encode())
        os._exit(0)
    os.waitpid(leader, 0)
    os.close(write)
    lines = os.fdopen(read)
    numbers = {}
    while len(numbers) < 2:
        *what, number = lines.readline().split()
        numbers[" ".join(what)] = int(number)
    for _ in range(3):
        os.kill(numbers["started"], signal.SIGTSTP)
        # A program that stays stopped is to be stopped when it is told.
        time.sleep(0.2)
        os.kill(numbers["started"], signal.SIGUSR1)
        print(lines.readline(), end="")
    os.kill(numbers["started"], signal.SIGTERM)
    wait_until(lambda: state_of(numbers["at work"]) is None, "the program has ended")


globals()[sys.argv[1]]()
