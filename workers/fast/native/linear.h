// Matrix products with packed weights: `inputs` [rows, width] times the transpose of a weight [outputs, width].
//
// A weight is packed into panels of PANEL outputs, and within a panel group by group: [outputs / PANEL, width / GROUP,
// PANEL, GROUP]. So a panel is read once, from its start to its end, and every load brings the weights of sixteen outputs.
// A block of rows and a panel give a tile of sums that stays in registers; the sums of an output run over the width in
// order, whatever rows are computed beside it, so a row's result never depends on the batch.
//
// Weights of eight bits are made bfloat16 panel by panel, in the processor's cache, and their sums scaled by output.

#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "team.h"
#include "vectors.h"

constexpr int PANEL_VECTORS = 3;
constexpr int PANEL = PANEL_VECTORS * LANES;
#ifdef __AVX512F__
constexpr int ROWS_AT_ONCE = 8;  // with three vectors each: 24 of the 32 registers
#else
constexpr int ROWS_AT_ONCE = 2;
#endif
constexpr int64_t ROWS_PER_ITEM = 64;
constexpr int64_t GROUPS_AHEAD = 8;
constexpr int64_t LINE = 64;  // bytes

enum Kind : int64_t { FLOAT32, BFLOAT16, INT8 };

// Mirrored by `Linear` in structures.py.
struct Linear {
    const void* weight;
    const float* bias;    // [outputs], or null
    const float* scales;  // [padded outputs] for INT8, else null
    int64_t outputs, width, kind;
};

// What to ask for while one panel is multiplied: the one that this thread is likely to take next, into the second-level
// cache, which takes more requests at a time. PANEL_VECTORS lines at `line` and on, once in `every` groups of the width.
struct Ahead {
    const char* line;
    int64_t every;
};

template <class Numbers, int ROWS>
void multiply(const typename Numbers::Number* input, int64_t width, const typename Numbers::Number* panel,
              float (*tile)[PANEL]) {
    Floats sums[ROWS][PANEL_VECTORS] = {};
    constexpr int GROUP = Numbers::GROUP, STRIDE = PANEL * GROUP;
    for (int64_t at = 0; at < width; at += GROUP, panel += STRIDE) {
        for (int vector = 0; vector < PANEL_VECTORS; vector++)
            __builtin_prefetch(panel + GROUPS_AHEAD * STRIDE + vector * LANES * GROUP);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 3
            for (int vector = 0; vector < PANEL_VECTORS; vector++)
                sums[row][vector] =
                    Numbers::dot(sums[row][vector], panel + vector * LANES * GROUP, input + row * width + at);
    }
    for (int row = 0; row < ROWS; row++)
        for (int vector = 0; vector < PANEL_VECTORS; vector++) write(tile[row] + vector * LANES, sums[row][vector]);
}

template <class Numbers, int ROWS = ROWS_AT_ONCE>
void multiply_some(int64_t rows, const typename Numbers::Number* input, int64_t width,
                   const typename Numbers::Number* panel, float (*tile)[PANEL]) {
    if (rows == ROWS)
        multiply<Numbers, ROWS>(input, width, panel, tile);
    else if constexpr (ROWS > 1)
        multiply_some<Numbers, ROWS - 1>(rows, input, width, panel, tile);
}

// What multiplies: up to ROWS rows by a panel, on one thread. In vectors here; linear_tiles.h has another.
template <class Numbers>
struct LinearVectors {
    static constexpr int64_t ROWS = ROWS_AT_ONCE;

    // `sums` [rows] of the `rows` of `input`.
    void multiply(int64_t rows, const typename Numbers::Number* input, int64_t width,
                  const typename Numbers::Number* panel, Ahead, float (*sums)[PANEL]) {
        multiply_some<Numbers>(rows, input, width, panel, sums);
    }
};

// The panel of `linear` that starts at output `first`, as Numbers; `scratch` has room for one.
template <class Numbers>
const typename Numbers::Number* panel_of(const Linear& linear, int64_t first, typename Numbers::Number* scratch) {
    if constexpr (std::is_same_v<Numbers, Bfloat16>) {
        if (linear.kind == INT8) {
            const auto* bytes = static_cast<const int8_t*>(linear.weight) + first * linear.width;
            for (int64_t at = 0; at < PANEL * linear.width; at += LANES) {
                const auto shorts = __builtin_convertvector(read<Bytes>(bytes + at), Shorts);  // g++ makes no step of four
                const auto values = __builtin_convertvector(__builtin_convertvector(shorts, Ints), Floats);
                Bfloat16::store(scratch + at, values);  // exact
                if (at % 64 == 0) __builtin_prefetch(bytes + at + 2048);
            }
            return scratch;
        }
    }
    return static_cast<const typename Numbers::Number*>(linear.weight) + first * linear.width;
}

// Scales and biases, where there are some.
inline void finish(const Linear& linear, int64_t first, int64_t count, float* sums) {
    if (linear.scales != nullptr)
        for (int at = 0; at < PANEL; at++) sums[at] *= linear.scales[first + at];
    if (linear.bias != nullptr)
        for (int64_t at = 0; at < count; at++) sums[at] += linear.bias[first + at];
}

// Calls `take(row, first, count, sums)` with `count` finished sums of a row, the outputs from `first` on.
template <class Numbers, class Products, class Take>
void apply_by(const Linear& linear, const typename Numbers::Number* input, int64_t rows, int threads, Take take) {
    using Number = typename Numbers::Number;
    const int64_t panels = (linear.outputs + PANEL - 1) / PANEL, blocks = (rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
    const int64_t panel_bytes = PANEL * linear.width * (linear.kind == INT8 ? 1 : sizeof(Number));
    const auto multiply_item = [&](Products& products, int64_t item) {
        static thread_local std::vector<Number> scratch;
        if (linear.kind == INT8) scratch.resize(PANEL * linear.width);
        alignas(64) float tile[Products::ROWS][PANEL];
        const int64_t first = item / blocks * PANEL, count = std::min<int64_t>(PANEL, linear.outputs - first);
        const int64_t begin = item % blocks * ROWS_PER_ITEM, end = std::min(begin + ROWS_PER_ITEM, rows);
        const int64_t passes = (end - begin + Products::ROWS - 1) / Products::ROWS;
        const auto* panel = panel_of<Numbers>(linear, first, scratch.data());
        const char* next = static_cast<const char*>(linear.weight) + (item + threads) / blocks * panel_bytes;
        for (int64_t row = begin; row < end; row += Products::ROWS, next += panel_bytes / passes) {
            const int64_t some = std::min<int64_t>(Products::ROWS, end - row);
            const Ahead ahead{next, linear.kind == INT8 ? 2 * passes : passes};
            products.multiply(some, input + row * linear.width, linear.width, panel, ahead, tile);
            for (int64_t one = 0; one < some; one++) {
                finish(linear, first, count, tile[one]);
                take(row + one, first, count, tile[one]);
            }
        }
    };
    team().share_joined(panels * blocks, threads, [&] {
        return [&, products = Products()](int64_t item) mutable { multiply_item(products, item); };
    });
}
