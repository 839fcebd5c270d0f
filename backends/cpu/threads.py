"""One pool of native threads for every kernel of the CPU device.

A linear layer of a small model takes some tens of microseconds, so a fork and join may cost about one: helpers spin
for a moment on an atomic word, then sleep on a condition variable, and the caller always works too. No helper is ever
waited for unless it has joined, so a helper that sleeps or was not scheduled costs parallelism, never progress.

The pool is a few lines of LLVM IR, compiled in milliseconds. Its state word is ``generation << 32 | open << 31 |
active``: a helper joins by a compare-and-swap that raises ``active`` while the job is open, and the caller closes the
job and waits for ``active == 0`` before it changes the job's fields.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from functools import cache

from . import jit

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""A task's C type: ``void task(void *args, int64 start, int64 end)`` does items ``start`` to ``end - 1``."""

RUN_SYMBOL = "bireme_parallel_for"
"""Name under which JIT code finds ``void (task *, void *args, int64 items, int64 grain)``."""

_IR = """
%Pool = type { i64, [56 x i8], i64, [56 x i8], ptr, ptr, i64, i64, i64, i64, i64, i64, [128 x i8], [128 x i8] }

@pool = internal global %Pool zeroinitializer, align 64
@state = internal alias i64, ptr @pool
@next = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 2)
@task = internal alias ptr, getelementptr (%Pool, ptr @pool, i32 0, i32 4)
@args = internal alias ptr, getelementptr (%Pool, ptr @pool, i32 0, i32 5)
@items = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 6)
@grain = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 7)
@busy = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 8)
@sleepers = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 9)
@stop = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 10)
@helpers = internal alias i64, getelementptr (%Pool, ptr @pool, i32 0, i32 11)
@mutex = internal alias [128 x i8], getelementptr (%Pool, ptr @pool, i32 0, i32 12)
@condition = internal alias [128 x i8], getelementptr (%Pool, ptr @pool, i32 0, i32 13)

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()

define void @pool_init() {
  call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  call i32 @pthread_cond_init(ptr @condition, ptr null)
  ret void
}

define void @pool_set(i64 %helpers, i64 %stop) {
  store atomic i64 %helpers, ptr @helpers seq_cst, align 8
  store atomic i64 %stop, ptr @stop seq_cst, align 8
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_broadcast(ptr @condition)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

; Take chunks of the open job until none is left.
define internal void @work() {
entry:
  %task = load ptr, ptr @task
  %args = load ptr, ptr @args
  %items = load i64, ptr @items
  %grain = load i64, ptr @grain
  br label %take
take:
  %start = atomicrmw add ptr @next, i64 %grain seq_cst
  %more = icmp slt i64 %start, %items
  br i1 %more, label %chunk, label %done
chunk:
  %full = add i64 %start, %grain
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %items)
  call void %task(ptr %args, i64 %start, i64 %end)
  br label %take
done:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)

; One turn of a waiting loop: a pause, and every 64th time the core is offered to whoever wants it.
define internal void @relax(i64 %turn) alwaysinline {
  call void PAUSE
  %low = and i64 %turn, 63
  %yield = icmp eq i64 %low, 63
  br i1 %yield, label %offer, label %done
offer:
  call i32 @sched_yield()
  br label %done
done:
  ret void
}

define void @parallel_for(ptr %task, ptr %args, i64 %items, i64 %grain) {
entry:
  %helpers = load atomic i64, ptr @helpers monotonic, align 8
  %alone = icmp eq i64 %helpers, 0
  %small = icmp sle i64 %items, %grain
  %serial = or i1 %alone, %small
  br i1 %serial, label %inline, label %acquire
acquire:
  ; Another thread's job, or a task that itself calls this: do without helpers.
  %try = cmpxchg ptr @busy, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue { i64, i1 } %try, 1
  br i1 %free, label %publish, label %inline
inline:
  call void %task(ptr %args, i64 0, i64 %items)
  ret void
publish:
  store ptr %task, ptr @task
  store ptr %args, ptr @args
  store i64 %items, ptr @items
  store i64 %grain, ptr @grain
  store atomic i64 0, ptr @next monotonic, align 8
  %old = load atomic i64, ptr @state monotonic, align 8
  %old.generation = lshr i64 %old, 32
  %generation = add i64 %old.generation, 1
  %shifted = shl i64 %generation, 32
  %open = or i64 %shifted, 2147483648
  store atomic i64 %open, ptr @state seq_cst, align 8
  %sleeping = load atomic i64, ptr @sleepers seq_cst, align 8
  %wake = icmp ne i64 %sleeping, 0
  br i1 %wake, label %signal, label %share
signal:
  call i32 @pthread_mutex_lock(ptr @mutex)
  call i32 @pthread_cond_broadcast(ptr @condition)
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %share
share:
  call void @work()
  atomicrmw and ptr @state, i64 -2147483649 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %share ], [ %turn.next, %again ]
  %now = load atomic i64, ptr @state seq_cst, align 8
  %active = and i64 %now, 2147483647
  %idle = icmp eq i64 %active, 0
  br i1 %idle, label %done, label %again
again:
  %turn.next = add i64 %turn, 1
  call void @relax(i64 %turn)
  br label %wait
done:
  store atomic i64 0, ptr @busy seq_cst, align 8
  ret void
}

; A helper's whole life; returns once @stop is set. %spin: turns to wait for work before sleeping.
define void @pool_worker(i64 %spin) {
entry:
  br label %watch
watch:
  %last = phi i64 [ 0, %entry ], [ %last, %again ], [ %last, %woken ], [ %generation, %finished ], [ %last, %join ]
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %again ], [ 0, %woken ], [ 0, %finished ], [ 0, %join ]
  %s = load atomic i64, ptr @state seq_cst, align 8
  %generation = lshr i64 %s, 32
  %bit = and i64 %s, 2147483648
  %isopen = icmp ne i64 %bit, 0
  %isnew = icmp ne i64 %generation, %last
  %ready = and i1 %isopen, %isnew
  br i1 %ready, label %join, label %idle
idle:
  %turn.next = add i64 %turn, 1
  %patient = icmp slt i64 %turn, %spin
  br i1 %patient, label %again, label %sleep
again:
  call void @relax(i64 %turn)
  br label %watch
join:
  %joined = add i64 %s, 1
  %try = cmpxchg ptr @state, i64 %s, i64 %joined seq_cst seq_cst
  %ok = extractvalue { i64, i1 } %try, 1
  br i1 %ok, label %help, label %watch
help:
  call void @work()
  br label %finished
finished:
  atomicrmw sub ptr @state, i64 1 seq_cst
  br label %watch
sleep:
  call i32 @pthread_mutex_lock(ptr @mutex)
  atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %check
check:
  %stop = load atomic i64, ptr @stop seq_cst, align 8
  %stopping = icmp ne i64 %stop, 0
  %s2 = load atomic i64, ptr @state seq_cst, align 8
  %generation2 = lshr i64 %s2, 32
  %bit2 = and i64 %s2, 2147483648
  %isopen2 = icmp ne i64 %bit2, 0
  %isnew2 = icmp ne i64 %generation2, %last
  %ready2 = and i1 %isopen2, %isnew2
  %leave = or i1 %stopping, %ready2
  br i1 %leave, label %rise, label %doze
doze:
  call i32 @pthread_cond_wait(ptr @condition, ptr @mutex)
  br label %check
rise:
  atomicrmw sub ptr @sleepers, i64 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr @mutex)
  br i1 %stopping, label %leaving, label %woken
woken:
  br label %watch
leaving:
  ret void
}
"""

# Per machine: the instruction of a waiting loop, and how many such turns are about 0.1 ms.
_PAUSES = {
    "x86_64": ("@llvm.x86.sse2.pause()", 4096),
    "amd64": ("@llvm.x86.sse2.pause()", 4096),
    "aarch64": ("@llvm.aarch64.hint(i32 1)", 65536),
    "arm64": ("@llvm.aarch64.hint(i32 1)", 65536),
}


def default_threads() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ThreadPool:
    """The calling thread and ``threads - 1`` helpers. One per process: ``pool()``."""

    def __init__(self) -> None:
        machine = platform.machine().lower()
        pause, self._spin = _PAUSES.get(machine, ("@llvm.donothing()", 65536))
        declared = f"declare void {pause.replace('i32 1', 'i32')}"
        self._module = jit.compile_ir(_IR.replace("PAUSE", pause) + declared)
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._module.address("pool_worker"))
        self._set = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(self._module.address("pool_set"))
        self._module.call("pool_init")
        self._helpers: list[threading.Thread] = []
        self.threads = 1  # that share a job, the caller included
        self.run_address = self._module.address("parallel_for")
        jit.add_symbol(RUN_SYMBOL, self.run_address)

    def resize(self, threads: int | None = None) -> None:
        """Share jobs among ``threads`` threads (None: one per usable CPU). Not while a job runs."""
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: at least 1 is needed")
        wanted = threads or default_threads()
        if wanted == self.threads:
            return
        self._set(0, 1)
        for helper in self._helpers:
            helper.join()
        self._helpers = [
            threading.Thread(target=self._worker, args=(self._spin,), name=f"bireme-cpu-{i}", daemon=True)
            for i in range(1, wanted)
        ]
        self.threads = wanted
        self._set(len(self._helpers), 0)
        for helper in self._helpers:
            helper.start()

    def run(self, task: int, args: int, items: int, grain: int) -> None:
        """Call the native ``TASK`` at ``task`` over ``range(items)`` in chunks of ``grain``, from any thread."""
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self.run_address)
        run(task, args, items, grain)


@cache
def pool() -> ThreadPool:
    """The process's pool, made at first use with one thread per usable CPU. It needs pthreads."""
    made = ThreadPool()
    made.resize()
    return made
