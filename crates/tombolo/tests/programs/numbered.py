"""Has a child of a given number, which maps memory: numbered.py FILE. The number stands in the file, once that is there, in a line."""
import mmap
import os
import sys
import time

line = ""
while not line.endswith("\n"):
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        line = open(sys.argv[1]).read()
wanted = int(line)
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(wanted - 1))
child = os.fork()
if child == 0:
    if os.getpid() != wanted:
        os._exit(8)
    for _ in range(50):
        memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[0] = 1
        memory.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
