"""The ranks of a group, as one of them sees it: three collective operations over torch.distributed.

Every rank calls them in the same order with tensors of the same shapes. NCCL's can be part of a captured graph.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: All ranks are on this machine: nothing needs to leave it.
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, slots=True)
class Ranks:
    """``size`` processes, of which this one is number ``rank``."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, rank: int, size: int, device: torch.device, store: str, timeout: float) -> Ranks:
        """Meet the others at the file ``store``, which all can see and which is not there yet; waits for all of them.

        Raises:
            RuntimeError: this process is in another group already, or somebody hasn't come after ``timeout`` seconds.
        """
        if dist.is_initialized():
            raise RuntimeError("this process is part of a torch.distributed group already; use a process of its own")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
        options: dict[str, Any] = {"backend": "gloo", "rank": rank, "world_size": size}
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options |= {"backend": "nccl", "device_id": device}
            timeout *= 2  # NCCL's own watchdog ends the process without a word; ours speaks first
        dist.init_process_group(init_method=f"file://{store}", timeout=timedelta(seconds=timeout), **options)
        return cls(rank, size, device)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` becomes the sum of all ranks' ``x``, and is returned."""
        dist.all_reduce(x)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' ``x``: [size, *x.shape]."""
        found = x.new_empty((self.size, *x.shape))
        dist.all_gather(list(found.unbind()), x.contiguous())
        return found

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` becomes rank 0's, and is returned."""
        dist.broadcast(x, 0)
        return x

    def leave(self) -> None:
        """Take the group apart, together with the other ranks."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def abort(self) -> None:
        """Take the group apart without the others, of whom one is gone: what waits for them on a GPU ends."""
        if not dist.is_initialized():
            return
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if self.device.type == "cuda" and abort is not None:
            abort()
        else:
            dist.destroy_process_group()
