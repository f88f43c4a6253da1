"""What a user of an interactive shell sees of a job: job_control.py COMMAND, to which a program is added.

Prints what happens; the same for any command that is as if it were not there.
"""

import fcntl
import os
import shlex
import struct
import sys
import termios
import time

from terminal import becomes, shell

PROGRAM = "trap 'echo resized' WINCH; echo at work $$; while :; do sleep 1 & wait $!; done"

command = " ".join(shlex.quote(word) for word in sys.argv[1:])


terminal = shell()
terminal.write(f"{command} bash -c {shlex.quote(PROGRAM)}\n")
program = int(terminal.until(r"at work (\d+)").group(1))
fcntl.ioctl(terminal.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
terminal.until(r"(?m)^resized")
print("resized")

terminal.write("\x1a")
print(terminal.until(r"Stopped").group(0))
terminal.until("prompt> ")
becomes(program, "T", "stopped by the terminal")
terminal.job_becomes("Stopped")
terminal.write("fg\n")
becomes(program, "SR", "in the foreground")
terminal.write("\x1a")
terminal.until(r"Stopped")
terminal.until("prompt> ")
becomes(program, "T", "stopped again")
terminal.write("bg\n")
becomes(program, "SR", "in the background")
terminal.until("prompt> ")
terminal.job_becomes("Running")
# The number that the shell knows, alone.
terminal.write("kill -TSTP $(jobs -p)\n")
becomes(program, "T", "stopped by its number")
terminal.until("prompt> ")
terminal.job_becomes("Stopped")
terminal.write("kill -CONT $(jobs -p)\n")
becomes(program, "SR", "continued by its number")
terminal.until("prompt> ")
terminal.job_becomes("Running")
# The program itself, by whoever knows its number.
os.kill(program, 19)
becomes(program, "T", "stopped itself")
terminal.job_becomes("Stopped")
os.kill(program, 18)
becomes(program, "SR", "continued itself")
terminal.job_becomes("Running")
terminal.write("fg\n")
# The shell says what it continues, and gives it the terminal then; the program answers in a line of its own.
terminal.until(r"bash -c .*\r\n")
while os.tcgetpgrp(terminal.file) == terminal.leader:
    time.sleep(0.01)
fcntl.ioctl(terminal.file, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 101, 0, 0))
terminal.until(r"(?m)^resized")
print("resized")
terminal.write("\x03")
terminal.until("prompt> ")
terminal.write("echo code $?\n")
print(terminal.until(r"code \d+").group(0))
terminal.write("exit\n")
terminal.status()
