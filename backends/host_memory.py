"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

#: Without a given size, the KV pool takes this share of the free memory, and no more than so many bytes.
KV_SHARE = 0.25
KV_MOST = 4 << 30


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that is free, or could be freed, within the machine's and the container's limits."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free  # no container, or an older kind
    if limit == "max":
        return free
    return max(0, min(free, int(limit) - used + int(stat.get("inactive_file", 0))))


def kv_allowance() -> int:
    """Bytes for a KV pool in main memory when nobody named a size."""
    return min(int(free_bytes() * KV_SHARE), KV_MOST)
