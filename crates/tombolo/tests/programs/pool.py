"""Large lists, which forked workers read and change in their own copies."""

import hashlib
import multiprocessing

COUNT = 150_000
WORKERS = 3

rows = [[number, f"row {number}", number * 3.5] for number in range(COUNT)]


def check(worker):
    digest = hashlib.sha256()
    for number in range(worker, COUNT, WORKERS):
        row = rows[number]
        assert row == [number, f"row {number}", number * 3.5], row
        digest.update(row[1].encode())
        # This worker's copy only.
        rows[number] = [worker]
    own = [[index] * 20 for index in range(COUNT // 10)]
    assert all(row == [index] * 20 for index, row in enumerate(own))
    assert sum(len(row) == 1 for row in rows) == len(range(worker, COUNT, WORKERS))
    return digest.hexdigest()


context = multiprocessing.get_context("fork")
with context.Pool(WORKERS) as pool:
    digests = pool.map(check, range(WORKERS), chunksize=1)
assert all(row == [number, f"row {number}", number * 3.5] for number, row in enumerate(rows))
print(*digests)
