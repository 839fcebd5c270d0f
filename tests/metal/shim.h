// The part of Metal that the kernels use, as C++ for one CPU thread, so that their sources run unchanged in tests.
//
// Modelled: threads of a threadgroup as fibers, switched only at barriers and simd operations, in an order the test
// chooses (first to last, last to first: a kernel whose result depends on it lacks a barrier); simdgroups of 32;
// operations of a simdgroup that not all its lanes reach, and barriers that not all threads reach, are errors;
// threadgroup memory (garbage at the start of each threadgroup, at most 32 KiB); buffers with unmapped memory on both
// sides and garbage in what outputs hold at first; half and bfloat with correct rounding, which must be converted
// explicitly (arithmetic in them does not compile).
//
// Not modelled: address spaces (a pointer to the wrong one compiles here), coalescing, occupancy, register pressure,
// caches, memory order between threadgroups, real concurrency within a simdgroup (races between two barriers show only
// where one of the two orders exposes them), fast math and fused multiply-add, Metal's own rounding of exp2, log2, tanh.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
struct uint3 {
    uint x, y, z;
};

template <class To, class From> inline To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To out;
    memcpy(&out, &value, sizeof out);
    return out;
}

struct half {
    uint16_t bits;
    half() = default;
    explicit half(float value) {
        const uint32_t word = as_type<uint32_t>(value), sign = (word >> 16) & 0x8000u;
        const float size = fabsf(value);
        if (size != size) {
            bits = uint16_t(sign | 0x7e00u);
        } else if (size >= 65520.0f) {
            bits = uint16_t(sign | 0x7c00u);
        } else if (size < 6.103515625e-05f) {
            bits = uint16_t(sign | uint32_t(nearbyintf(size * 16777216.0f)));
        } else {
            const uint32_t rest = word & 0x7fffffffu;
            bits = uint16_t(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
        }
    }
    explicit operator float() const {
        const uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, rest = bits & 1023u;
        if (exponent == 31u) {
            return as_type<float>(sign | 0x7f800000u | (rest << 13));
        }
        if (exponent == 0u) {
            return (sign ? -1.0f : 1.0f) * float(rest) * 5.9604644775390625e-08f;
        }
        return as_type<float>(sign | ((exponent + 112u) << 23) | (rest << 13));
    }
};
typedef half float16_t;

struct bfloat {
    uint16_t bits;
    bfloat() = default;
    explicit bfloat(float value) {
        const uint32_t word = as_type<uint32_t>(value);
        bits = value != value ? 0x7fc0u : uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
    explicit operator float() const { return as_type<float>(uint32_t(bits) << 16); }
};
typedef bfloat bfloat16_t;

#define device
#define constant
#define thread
#define threadgroup static __attribute__((section("metal_threadgroup"), aligned(16)))
extern "C" char __start_metal_threadgroup[] __attribute__((weak)), __stop_metal_threadgroup[] __attribute__((weak));

namespace metal {
inline float exp2(float x) { return ::exp2f(x); }
inline float log2(float x) { return ::log2f(x); }
inline float rint(float x) { return ::rintf(x); }
inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
template <class N> inline N max(N a, N b) { return a > b ? a : b; }
template <class N> inline N min(N a, N b) { return a < b ? a : b; }
namespace precise {
inline float tanh(float x) { return ::tanhf(x); }
} // namespace precise
} // namespace metal

namespace shim {

enum State { READY, AT_SIMD, AT_BARRIER, DONE };
enum Failure { NONE, BAD_ACCESS, DIVERGENT_SIMD, DIVERGENT_BARRIER, TOO_MUCH_THREADGROUP_MEMORY };

const int MOST = 1024;
const size_t STACK = 1 << 16;

struct Fiber {
    jmp_buf point;
    bool started;
    State state;
    int line; // of the operation it waits at
};

struct Simdgroup {
    uint32_t values[2][32];
    int turn[32]; // operations each lane has taken part in
};

static Fiber fibers[MOST];
static Simdgroup simdgroups[MOST / 32];
static char *stacks;
static int current, count, failed_line;
static jmp_buf scheduler;
static sigjmp_buf escape;
static ucontext_t entry, unused;
static void (*body)();

static uint3 position, size, groups;

[[noreturn]] inline void fail(Failure failure, int line) {
    failed_line = line;
    siglongjmp(escape, failure);
}

__attribute__((noinline)) static void wait(State state, int line) {
    Fiber &fiber = fibers[current];
    fiber.state = state;
    fiber.line = line;
    if (!_setjmp(fiber.point)) {
        _longjmp(scheduler, 1);
    }
}

static void start() {
    body();
    fibers[current].state = DONE;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void resume(int index) {
    if (_setjmp(scheduler)) {
        return;
    }
    current = index;
    Fiber &fiber = fibers[index];
    if (fiber.started) {
        _longjmp(fiber.point, 1);
    }
    fiber.started = true;
    getcontext(&entry);
    entry.uc_stack.ss_sp = stacks + index * STACK;
    entry.uc_stack.ss_size = STACK;
    entry.uc_link = &unused;
    makecontext(&entry, start, 0);
    setcontext(&entry);
}

// Exchanges a value between the lanes of a simdgroup: everyone's values, once all lanes are here.
inline const uint32_t *exchange(uint32_t value, int line) {
    const int lane = current % 32;
    Simdgroup &group = simdgroups[current / 32];
    const int side = group.turn[lane]++ & 1;
    group.values[side][lane] = value;
    wait(AT_SIMD, line);
    return group.values[side];
}

// Runs one simdgroup until each of its threads is done or waits at a barrier.
inline void run_simdgroup(int first, bool backwards) {
    const int lanes = count - first < 32 ? count - first : 32;
    for (;;) {
        for (int n = 0; n < lanes; n++) {
            const int index = first + (backwards ? lanes - 1 - n : n);
            if (fibers[index].state == READY) {
                resume(index);
            }
        }
        int waiting = 0;
        for (int n = 0; n < lanes; n++) {
            waiting += fibers[first + n].state == AT_SIMD;
        }
        if (waiting == 0) {
            return;
        }
        for (int n = 0; n < lanes; n++) {
            if (waiting != lanes || fibers[first + n].line != fibers[first].line) {
                fail(DIVERGENT_SIMD, fibers[first + n].line);
            }
            fibers[first + n].state = READY;
        }
    }
}

inline void run_threadgroup(bool backwards) {
    const size_t shared = __stop_metal_threadgroup - __start_metal_threadgroup;
    if (shared > 32768) {
        fail(TOO_MUCH_THREADGROUP_MEMORY, 0);
    }
    memset(__start_metal_threadgroup, 0xff, shared);
    memset(simdgroups, 0, sizeof simdgroups);
    for (int n = 0; n < count; n++) {
        fibers[n].started = false;
        fibers[n].state = READY;
    }
    const int simds = (count + 31) / 32;
    for (;;) {
        for (int n = 0; n < simds; n++) {
            run_simdgroup(32 * (backwards ? simds - 1 - n : n), backwards);
        }
        int waiting = 0;
        for (int n = 0; n < count; n++) {
            waiting += fibers[n].state == AT_BARRIER;
        }
        if (waiting == 0) {
            return;
        }
        for (int n = 0; n < count; n++) {
            if (waiting != count || fibers[n].line != fibers[0].line) {
                fail(DIVERGENT_BARRIER, fibers[n].line);
            }
            fibers[n].state = READY;
        }
    }
}

// A buffer that ends where unmapped memory starts (but for its alignment), with as much unmapped before it.
struct Guarded {
    static const size_t GUARD = size_t(1) << 28;
    char *base, *data;
    size_t all;
    explicit Guarded(size_t bytes) {
        const size_t room = (bytes + 4095) / 4096 * 4096 + 4096;
        all = room + 2 * GUARD;
        base = (char *)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        mprotect(base + GUARD, room, PROT_READ | PROT_WRITE);
        memset(base + GUARD, 0xff, room);
        data = base + GUARD + room - (bytes + 15) / 16 * 16;
    }
    ~Guarded() { munmap(base, all); }
    Guarded(const Guarded &) = delete;
};

static void on_fault(int) { siglongjmp(escape, BAD_ACCESS); }

// Runs every threadgroup of the grid; 0, or what went wrong.
inline int run_grid(void (*call)(), const uint *grid, const uint *group, bool backwards) {
    body = call;
    size = {group[0], group[1], group[2]};
    groups = {grid[0] / group[0], grid[1] / group[1], grid[2] / group[2]};
    count = int(size.x * size.y * size.z);
    struct sigaction mine = {}, segv, bus;
    mine.sa_handler = on_fault;
    mine.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &mine, &segv);
    sigaction(SIGBUS, &mine, &bus);
    stacks = new char[STACK * count];
    const int failure = sigsetjmp(escape, 1);
    if (!failure) {
        const uint all = groups.x * groups.y * groups.z;
        for (uint n = 0; n < all; n++) {
            const uint index = backwards ? all - 1 - n : n;
            position = {index % groups.x, index / groups.x % groups.y, index / groups.x / groups.y};
            run_threadgroup(backwards);
        }
    }
    delete[] stacks;
    sigaction(SIGSEGV, &segv, nullptr);
    sigaction(SIGBUS, &bus, nullptr);
    return failure;
}

inline uint3 within() { return {current % size.x, current / size.x % size.y, current / size.x / size.y}; }
inline uint3 in_grid() {
    const uint3 at = within();
    return {position.x * size.x + at.x, position.y * size.y + at.y, position.z * size.z + at.z};
}

} // namespace shim

#define SHIM_thread_position_in_grid shim::in_grid()
#define SHIM_thread_position_in_threadgroup shim::within()
#define SHIM_threadgroup_position_in_grid shim::position
#define SHIM_thread_index_in_threadgroup uint(shim::current)
#define SHIM_thread_index_in_simdgroup uint(shim::current % 32)
#define SHIM_simdgroup_index_in_threadgroup uint(shim::current / 32)

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { shim::wait(shim::AT_BARRIER, line); }

inline uint simd_shuffle_xor(uint value, ushort mask, int line = __builtin_LINE()) {
    const uint32_t *values = shim::exchange(value, line);
    return values[(shim::current % 32) ^ mask];
}
inline float simd_shuffle_xor(float value, ushort mask, int line = __builtin_LINE()) {
    return as_type<float>(simd_shuffle_xor(as_type<uint>(value), mask, line));
}
inline float simd_sum(float value, int line = __builtin_LINE()) {
    const uint32_t *values = shim::exchange(as_type<uint32_t>(value), line);
    float sum = 0;
    for (int lane = 0; lane < 32; lane++) {
        sum += as_type<float>(values[lane]);
    }
    return sum;
}
