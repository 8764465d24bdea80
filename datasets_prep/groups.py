"""Groups of records that share a medium, and their division into parts: arrays, not objects."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def group_of_record(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The group of each record. Records with a key in common, also through others, share one.

    Args:
        keys: The keys of all records, one record after the other.
        counts: ``[records]``, how many keys each has; at least one.

    Returns:
        ``[records]``, numbered in the order in which the groups first appear.
    """
    distinct, key = np.unique(keys, return_inverse=True)
    ends = np.cumsum(counts)
    group = key[ends - counts]  # of the first key of each record
    if len(keys) > len(counts):
        record_of_key = np.repeat(np.arange(len(counts)), counts)
        edges = coo_array(
            (np.ones(len(keys), bool), (group[record_of_key], key)), (len(distinct),) * 2
        )
        component = connected_components(edges, directed=False)[1]
        group = component[group]
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[group]


def parts(groups: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """The part of each record: whole groups, in random order, to the part that lacks most.

    Args:
        groups: ``[records]``, the group of each record, numbered from 0.
        shares: Share of each part; they add up to 1.
        seed: Of the order.
    """
    sizes = np.bincount(groups).tolist()
    order = array("q", range(len(sizes)))
    random.Random(seed).shuffle(order)
    part_of_group = np.empty(len(sizes), np.int16)
    filled, total = [0] * len(shares), 0
    for group in order:
        total += sizes[group]
        lacks = [share * total - have for share, have in zip(shares, filled, strict=True)]
        part = lacks.index(max(lacks))
        filled[part] += sizes[group]
        part_of_group[group] = part
    return part_of_group[groups]
