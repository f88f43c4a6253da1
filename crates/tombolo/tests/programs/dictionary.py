"""A large dict: filled, changed, partly deleted, and summed up."""

import hashlib
import sys

count = int(sys.argv[1])
table = {f"key {number}": f"value {number} " * 8 for number in range(count)}
for number in range(0, count, 3):
    table[f"key {number}"] = ("changed", number)
for number in range(1, count, 5):
    table.pop(f"key {number}")
lists = [[number] * 50 for number in range(count // 10)]
digest = hashlib.sha256()
for key, value in table.items():
    digest.update(key.encode())
    digest.update(repr(value).encode())
for number in range(count):
    value = table.get(f"key {number}")
    if number % 5 == 1:
        assert value is None, number
    elif number % 3 == 0:
        assert value == ("changed", number), number
    else:
        assert value == f"value {number} " * 8, number
assert all(row == [number] * 50 for number, row in enumerate(lists))
print(len(table), digest.hexdigest())
