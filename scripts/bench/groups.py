"""Memory of what ``mmr1-data split`` holds of many records: hashes, groups and parts.

    python scripts/bench/groups.py --records 10000000

The records are not made; every four of them share one medium.
"""

from __future__ import annotations

import argparse
import resource
import time
from array import array

import numpy as np

from datasets_prep.outputs import joined
from datasets_prep.split import group_of_record, parts
from mmr1.data.ids import repeated

PIECE = 3_000
"""Records whose hashes come together, as from a piece of a file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    count = parser.parse_args().records
    begin, rng = time.process_time(), np.random.default_rng(0)
    of_media = rng.integers(0, 2**63, -(-count // 4), np.uint64)
    ids, media, counts = [], [], []
    for start in range(0, count, PIECE):
        records = np.arange(start, min(count, start + PIECE))
        ids.append(array("Q", rng.integers(0, 2**63, len(records), np.uint64).tobytes()))
        media.append(array("Q", of_media[records // 4].tobytes()))
        counts.append(array("I", np.ones(len(records), np.uint32).tobytes()))
    repeated(joined(ids))
    groups = group_of_record(joined(media), joined(counts))
    sizes = np.bincount(parts(groups, [0.9, 0.1], 0)).tolist()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.process_time() - begin
    print(f"{count:,} records, parts of {sizes}: {peak:,.0f} MiB, {seconds:.0f} CPU s")


if __name__ == "__main__":
    main()
