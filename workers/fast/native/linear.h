// Matrix products with packed weights: `inputs` [rows, width] times the transpose of a weight [outputs, width].
//
// A weight is packed into panels of PANEL outputs, and within a panel group by group: [outputs / PANEL, width / GROUP,
// PANEL, GROUP]. So a panel is read once, from its start to its end, and every load brings the weights of sixteen outputs.
// A block of rows and a panel give a tile of sums that stays in registers; the sums of an output run over the width in
// order, whatever rows are computed beside it, so a row's result never depends on the batch.
//
// Weights of eight bits become bfloat16 in registers, or for many rows panel by panel in the processor's cache; their sums
// are scaled by output.

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
constexpr int64_t FEW_PASSES = 2;

enum Kind : int64_t { FLOAT32, BFLOAT16, INT8 };

// Mirrored by `Linear` in structures.py.
struct Linear {
    const void* weight;
    const float* bias;    // [outputs], or null
    const float* scales;  // [padded outputs] for INT8, else null
    int64_t outputs, width, kind;
};

// Where rows are many the arithmetic takes longer than the memory, which goes idle. So while a thread multiplies rows by one
// panel it asks for the panel that it is likely to take next: PANEL_VECTORS lines at `line` and on, once in `every` groups of
// the width. The second-level cache takes more requests at a time, which is what counts with few passes over a panel, when
// memory is what is waited for; with more, lines on their way into the first level were measured to hold up less.
struct Ahead {
    const char* line;
    int64_t every;
};

enum Cache { SECOND_LEVEL = 2, FIRST_LEVEL };  // as __builtin_prefetch numbers them

template <class Numbers, int ROWS, Cache INTO, class Weight>
void multiply(const typename Numbers::Number* input, int64_t width, const Weight* panel, Ahead ahead,
              float (*tile)[PANEL]) {
    Floats sums[ROWS][PANEL_VECTORS] = {};
    constexpr int GROUP = Numbers::GROUP, STRIDE = PANEL * GROUP;
    for (int64_t begin = 0; begin < width; begin += ahead.every * GROUP) {
        for (int vector = 0; vector < PANEL_VECTORS; vector++) __builtin_prefetch(ahead.line + vector * LINE, 0, INTO);
        ahead.line += PANEL_VECTORS * LINE;
        const int64_t end = std::min(width, begin + ahead.every * GROUP);
        for (int64_t at = begin; at < end; at += GROUP, panel += STRIDE) {
            for (int vector = 0; vector < PANEL_VECTORS; vector++)
                __builtin_prefetch(panel + GROUPS_AHEAD * STRIDE + vector * LANES * GROUP);
            typename Numbers::Groups weights[PANEL_VECTORS];
#pragma GCC unroll 3
            for (int vector = 0; vector < PANEL_VECTORS; vector++)
                weights[vector] = Numbers::groups(panel + vector * LANES * GROUP);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 3
                for (int vector = 0; vector < PANEL_VECTORS; vector++)
                    sums[row][vector] = Numbers::dot(sums[row][vector], weights[vector], input + row * width + at);
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int vector = 0; vector < PANEL_VECTORS; vector++) write(tile[row] + vector * LANES, sums[row][vector]);
}

template <class Numbers, class Weight, int ROWS = ROWS_AT_ONCE>
void multiply_some(int64_t rows, const typename Numbers::Number* input, int64_t width, const Weight* panel, Ahead ahead,
                   float (*tile)[PANEL]) {
    if (rows == ROWS) {
        if constexpr (ROWS == ROWS_AT_ONCE)
            if (ahead.every > FEW_PASSES) return multiply<Numbers, ROWS, FIRST_LEVEL>(input, width, panel, ahead, tile);
        return multiply<Numbers, ROWS, SECOND_LEVEL>(input, width, panel, ahead, tile);
    }
    if constexpr (ROWS > 1) multiply_some<Numbers, Weight, ROWS - 1>(rows, input, width, panel, ahead, tile);
}

// What multiplies, on one thread: in vectors here, in tiles in linear_tiles.h.
template <class Numbers>
struct LinearVectors {
    static constexpr int64_t ROWS = ROWS_AT_ONCE;  // at most
    static constexpr int64_t ROWS_OF_BYTES = ROWS_AT_ONCE;  // so many rows are multiplied by eight bits as they are

    // The sums of `rows` rows.
    template <class Weight>
    void multiply(int64_t rows, const typename Numbers::Number* input, int64_t width, const Weight* panel, Ahead ahead,
                  float (*sums)[PANEL]) {
        multiply_some<Numbers>(rows, input, width, panel, ahead, sums);
    }
};

// The panel of `linear` that starts at output `first`, in the numbers that it is kept in.
template <class Weight>
const Weight* panel_of(const Linear& linear, int64_t first) {
    return static_cast<const Weight*>(linear.weight) + first * linear.width;
}

// Eight bits as bfloat16.
inline void widen(const int8_t* panel, int64_t numbers, uint16_t* wide) {
    for (int64_t at = 0; at < numbers; at += 2 * LANES) {
        write(wide + at, Bfloat16::groups(panel + at));
        if (at % 64 == 0) __builtin_prefetch(panel + at + 2048);
    }
}

// What the pass `pass` of `passes` over the rows asks for of the panel `next`: its share of it, spread over its groups.
template <class Numbers>
Ahead ahead_of(const Linear& linear, int64_t next, int64_t pass, int64_t passes) {
    const int64_t size = linear.kind == INT8 ? sizeof(int8_t) : sizeof(typename Numbers::Number);
    const int64_t bytes = PANEL * linear.width * size;
    const int64_t groups_of_lines = sizeof(typename Numbers::Number) / size;  // PANEL_VECTORS lines are so many groups
    return {static_cast<const char*>(linear.weight) + next * bytes + pass * bytes / passes, passes * groups_of_lines};
}

// Scales and biases, where there are some.
inline void finish(const Linear& linear, int64_t first, int64_t count, float* sums) {
    if (linear.scales != nullptr)
        for (int at = 0; at < PANEL; at++) sums[at] *= linear.scales[first + at];
    if (linear.bias != nullptr)
        for (int64_t at = 0; at < count; at++) sums[at] += linear.bias[first + at];
}

// Asks for the lines of a panel's outputs before they are written.
template <class Out>
void will_write(const Out* to) {
    const char* line = reinterpret_cast<const char*>(to);
    for (int64_t at = 0; at < static_cast<int64_t>(PANEL * sizeof(Out)); at += LINE) __builtin_prefetch(line + at, 1, 2);
}

// What one thread takes at a time: some rows by one panel.
struct Item {
    int64_t first, count;  // outputs
    int64_t begin, end;    // rows
    int64_t next;          // the panel that this thread is likely to take after this one
};

template <class Numbers, class Products, class Weight, class Sink>
void multiply_item(Products& products, const Linear& linear, const typename Numbers::Number* input, const Item& item,
                   const Weight* panel, Sink& sink) {
    constexpr int64_t ROWS = Products::ROWS;
    alignas(64) float tile[ROWS][PANEL];
    const int64_t passes = (item.end - item.begin + ROWS - 1) / ROWS;
    for (int64_t pass = 0; pass < passes; pass++) {
        const int64_t row = item.begin + pass * ROWS, some = std::min<int64_t>(ROWS, item.end - row);
        const Ahead ahead = ahead_of<Numbers>(linear, item.next, pass, passes);
        for (int64_t one = 0; one < some; one++) will_write(sink.place(row + one, item.first));
        products.multiply(some, input + row * linear.width, linear.width, panel, ahead, tile);
        for (int64_t one = 0; one < some; one++) {
            finish(linear, item.first, item.count, tile[one]);
            sink.take(row + one, item.first, item.count, tile[one]);
        }
    }
}

template <class Numbers, class Products, class Sink>
void multiply_bytes(Products& products, const Linear& linear, const typename Numbers::Number* input, const Item& item,
                    Sink& sink) {
    const auto* panel = panel_of<int8_t>(linear, item.first);
    if constexpr (Products::ROWS_OF_BYTES > 0)
        if (item.end - item.begin <= Products::ROWS_OF_BYTES)
            return multiply_item<Numbers>(products, linear, input, item, panel, sink);
    static thread_local std::vector<uint16_t> scratch;
    scratch.resize(PANEL * linear.width);
    widen(panel, PANEL * linear.width, scratch.data());
    multiply_item<Numbers>(products, linear, input, item, scratch.data(), sink);
}

// All products of `inputs` [rows, width], by the Products of each thread, given to the sink (see sinks.h).
template <class Numbers, class Products, class Sink>
void apply_by(const Linear& linear, const void* inputs, int64_t rows, int threads, Sink& sink) {
    using Number = typename Numbers::Number;
    const auto* input = static_cast<const Number*>(inputs);
    const int64_t panels = (linear.outputs + PANEL - 1) / PANEL, blocks = (rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
    const auto take_item = [&](Products& products, int64_t number) {
        const int64_t first = number / blocks * PANEL, begin = number % blocks * ROWS_PER_ITEM;
        const Item item{first, std::min<int64_t>(PANEL, linear.outputs - first), begin,
                        std::min(begin + ROWS_PER_ITEM, rows), (number + threads) / blocks};
        if constexpr (std::is_same_v<Numbers, Bfloat16>)
            if (linear.kind == INT8) return multiply_bytes<Numbers>(products, linear, input, item, sink);
        multiply_item<Numbers>(products, linear, input, item, panel_of<Number>(linear, first), sink);
    };
    team().share_joined(panels * blocks, threads, [&] {
        return [&, products = Products()](int64_t number) mutable { take_item(products, number); };
    });
}
