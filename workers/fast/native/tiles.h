// The tile registers of Intel's AMX: eight of up to sixteen rows of 64 bytes, and one instruction that multiplies two.
//
// `dot` adds to a tile of float32 [rows, 16] the product of A [rows, pairs, 2] and B [pairs, 16, 2], both bfloat16: B is
// sixteen outputs of a packed weight as they lie (see linear.h), or sixteen keys, or dimensions of values (attention.h). Of
// each pair the even and the odd products are summed apart, in float32 from the first pair to the last, then both sums are
// added to each other and to the tile. A row's result depends on that row of A alone, so the bits of a token are the same
// whichever rows share its tile.
//
// Linux grants the registers to a process that asks, and each thread says for itself which shapes its tiles have. Who has
// said so drags 8 KiB more through every change of threads: `Held` lets go when a thread has no more items of a loop.
//
// The instructions are written out, since the compilers' own intrinsics take register numbers as text of macros only, and
// g++'s do not say that they read and write memory. Tests put a stand-in in the place of the processor.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tiles {

constexpr int ROWS = 16;
constexpr int COLUMNS = 16;  // of float32, or of pairs of bfloat16
constexpr int ROW_BYTES = 64;
constexpr int REGISTERS = 8;

// What LDTILECFG reads: the shape of each register.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    // Registers `first` to `last` get this shape.
    Shapes& set(int first, int last, int64_t num_rows, int64_t num_bytes) {
        for (int tile = first; tile <= last; tile++) {
            rows[tile] = num_rows;
            row_bytes[tile] = num_bytes;
        }
        return *this;
    }
};

}  // namespace tiles

#if defined(TILES_STAND_IN)
#define HAVE_TILES 1
#include TILES_STAND_IN
#elif defined(__linux__) && (defined(__AMX_BF16__) || defined(__AMXBF16__))  // as g++ and as some clang++ call it
#define HAVE_TILES 1
#include <sys/syscall.h>
#include <unistd.h>

namespace tiles {

// Whether this process, with all its threads, may use tiles: not before it has asked, as often as it likes.
inline bool granted() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux 5.16
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

inline void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

inline void release() { asm volatile("tilerelease"); }

template <int TILE>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
inline void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}

template <int SUMS, int A, int B>
inline void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
}

}  // namespace tiles
#else
#define HAVE_TILES 0
#endif

#if HAVE_TILES
namespace tiles {

// act(0), act(1) and so on to `NUM` of them, as constants: the number of a register is part of an instruction.
template <class Act, int... NUMBERS>
[[gnu::always_inline]] inline void each_of(Act act, std::integer_sequence<int, NUMBERS...>) {
    (act(std::integral_constant<int, NUMBERS>{}), ...);
}

template <int NUM, class Act>
[[gnu::always_inline]] inline void each(Act act) {
    each_of(act, std::make_integer_sequence<int, NUM>{});
}

// The tiles of a thread, from the first shapes that it wants on.
class Held {
public:
    Held() = default;
    Held(const Held&) = delete;
    ~Held() {
        if (shapes_.palette != 0) release();
    }

    // Other shapes than before cost a configuration, some hundred cycles, and what was in the tiles.
    void shape(const Shapes& shapes) {
        if (std::memcmp(&shapes, &shapes_, sizeof shapes) == 0) return;
        configure(shapes);
        shapes_ = shapes;
    }

private:
    Shapes shapes_{.palette = 0};
};

}  // namespace tiles
#endif
