// Attention over paged keys and values, read where they lie.
//
// Of one block and one key head the pool holds `block_size` keys as [dim / GROUP, block_size, GROUP] and as many values as
// [block_size / GROUP, dim, GROUP]: sixteen keys at a time are multiplied by a query without a sum across a vector, and
// sixteen dimensions of the values by the weights. `block_size` and `dim` are multiples of sixteen.
//
// A tile is some queries of one sequence, one after the other, with all query heads that share a key head: one for a
// decode, several for a chunk of a prompt, so that keys are read once for all of them. Keys come in strips that begin at
// multiples of STRIP, and the softmax is carried from strip to strip: a query's result depends on its own sequence alone.

#pragma once

#include <limits>
#include <vector>

#include "vectors.h"

constexpr int STRIP = 128;
constexpr int STRIP_VECTORS = STRIP / LANES;
constexpr int MOST_ROWS = 48;  // of a tile: its scores and weights stay within the first-level cache
constexpr int MOST_DIM = 256;
constexpr int ROWS_TOGETHER = 6;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Mirrored by TILE_FIELDS in step.py. `count` queries from row `row` of the step on; the first stands at `position`.
struct Tile {
    int64_t row, count, position, slot;
};

template <class Numbers>
struct Heads {
    using Number = typename Numbers::Number;
    const Number* queries;  // [rows, stride], head by head from the start of a row
    Number* results;        // [rows, heads * dim]
    const Number *keys, *values;
    const int64_t* tables;  // [slots, table_width]
    int64_t stride, table_width, block_size, heads, kv_heads, dim, window;
    float scale;
};

template <class Numbers>
class TileAttention {
    using Number = typename Numbers::Number;
    static constexpr int GROUP = Numbers::GROUP;

public:
    TileAttention(const Heads<Numbers>& heads, const Tile& tile, int64_t kv_head)
        : heads_(heads), tile_(tile), kv_head_(kv_head), folded_(heads.heads / heads.kv_heads),
          num_rows_(tile.count * folded_) {
        for (int64_t row = 0; row < num_rows_; row++) {
            const int64_t head = kv_head * folded_ + row % folded_;
            queries_[row] = heads.queries + (tile.row + row / folded_) * heads.stride + head * heads.dim;
            most_[row] = NOTHING;
            total_[row] = 0;
        }
        std::fill(sums_, sums_ + num_rows_ * heads.dim, 0.0f);
    }

    void run() {
        const int64_t end = tile_.position + tile_.count;
        const int64_t seen_from = std::max<int64_t>(0, tile_.position - heads_.window + 1);
        for (int64_t begin = seen_from / STRIP * STRIP; begin < end; begin += STRIP)
            take_strip(begin, std::min<int64_t>(STRIP, end - begin));
        for (int64_t row = 0; row < num_rows_; row++) {
            const int64_t head = kv_head_ * folded_ + row % folded_;
            Number* result = heads_.results + ((tile_.row + row / folded_) * heads_.heads + head) * heads_.dim;
            const float factor = 1 / total_[row];
            for (int64_t at = 0; at < heads_.dim; at += LANES)
                Numbers::store(result + at, read<Floats>(sums_ + row * heads_.dim + at) * factor);
        }
    }

private:
    void take_strip(int64_t begin, int64_t length) {
        const int vectors = (length + LANES - 1) / LANES;
        for (int vector = 0; vector < vectors; vector++) find(vector, begin + vector * LANES);
        for_rows([&](auto some, int64_t row) {
            int vector = 0;
            for (; vector + 1 < vectors; vector += 2) score<some(), 2>(row, vector);
            if (vector < vectors) score<some(), 1>(row, vector);
        });
        for (int64_t row = 0; row < num_rows_; row++) weigh(row, begin, vectors);
        for_rows([&](auto some, int64_t row) { add_values<some()>(row, vectors); });
    }

    // Where the sixteen keys from `position` on lie, and their values.
    void find(int vector, int64_t position) {
        const int64_t block = heads_.tables[tile_.slot * heads_.table_width + position / heads_.block_size];
        const int64_t base = (block * heads_.kv_heads + kv_head_) * heads_.block_size * heads_.dim;
        const int64_t within = position % heads_.block_size;
        keys_[vector] = heads_.keys + base + within * GROUP;
        values_[vector] = heads_.values + base + within * heads_.dim;
    }

    template <int ROWS, int VECTORS>
    void score(int64_t row, int vector) {
        Floats sums[VECTORS][ROWS] = {};
        const int64_t stride = heads_.block_size * GROUP;
        for (int64_t at = 0, offset = 0; at < heads_.dim; at += GROUP, offset += stride)
#pragma GCC unroll 2
            for (int one = 0; one < VECTORS; one++)
#pragma GCC unroll 6
                for (int some = 0; some < ROWS; some++)
                    sums[one][some] =
                        Numbers::dot(sums[one][some], keys_[vector + one] + offset, queries_[row + some] + at);
        for (int one = 0; one < VECTORS; one++)
            for (int some = 0; some < ROWS; some++)
                write(scores_[row + some] + (vector + one) * LANES, sums[one][some] * heads_.scale);
    }

    // Scores to weights, and what was summed before brought to the new scale.
    void weigh(int64_t row, int64_t begin, int vectors) {
        const int64_t position = tile_.position + row / folded_;
        const int64_t first = position - heads_.window + 1 - begin, last = position - begin;
        float* scores = scores_[row];
        for (int64_t at = 0; at < std::min<int64_t>(first, vectors * LANES); at++) scores[at] = NOTHING;
        for (int64_t at = std::max<int64_t>(last + 1, 0); at < vectors * LANES; at++) scores[at] = NOTHING;
        Floats high = all(NOTHING);
        for (int vector = 0; vector < vectors; vector++) {
            const Floats these = read<Floats>(scores + vector * LANES);
            high = these > high ? these : high;
        }
        const float most = std::max(most_[row], largest(high));
        if (most == NOTHING) {  // nothing that this query may see has come yet
            std::fill(weights_[row], weights_[row] + vectors * LANES, Number{});
            return;
        }
        const float shrink = exponential(all(most_[row] - most))[0];
        most_[row] = most;
        Floats total{};
        for (int vector = 0; vector < vectors; vector++) {
            const Floats weights = exponential(read<Floats>(scores + vector * LANES) - most);
            Numbers::store(weights_[row] + vector * LANES, weights);
            total += weights;
        }
        total_[row] = total_[row] * shrink + sum(total);
        if (shrink != 1.0f)
            for (int64_t at = 0; at < heads_.dim; at += LANES) {
                float* sums = sums_ + row * heads_.dim + at;
                write(sums, read<Floats>(sums) * shrink);
            }
    }

    template <int ROWS>
    void add_values(int64_t row, int vectors) {
        int64_t at = 0;
        for (; at + 4 * LANES <= heads_.dim; at += 4 * LANES) add_dimensions<ROWS, 4>(row, vectors, at);
        for (; at < heads_.dim; at += LANES) add_dimensions<ROWS, 1>(row, vectors, at);
    }

    template <int ROWS, int WIDTH>
    void add_dimensions(int64_t row, int vectors, int64_t at) {
        Floats sums[ROWS][WIDTH];
        for (int some = 0; some < ROWS; some++)
            for (int one = 0; one < WIDTH; one++)
                sums[some][one] = read<Floats>(sums_ + (row + some) * heads_.dim + at + one * LANES);
        for (int vector = 0; vector < vectors; vector++)
            for (int key = 0; key < LANES; key += GROUP) {
                const Number* values = values_[vector] + key * heads_.dim + at * GROUP;
#pragma GCC unroll 6
                for (int some = 0; some < ROWS; some++)
#pragma GCC unroll 4
                    for (int one = 0; one < WIDTH; one++)
                        sums[some][one] = Numbers::dot(sums[some][one], values + one * LANES * GROUP,
                                                       weights_[row + some] + vector * LANES + key);
            }
        for (int some = 0; some < ROWS; some++)
            for (int one = 0; one < WIDTH; one++)
                write(sums_ + (row + some) * heads_.dim + at + one * LANES, sums[some][one]);
    }

    // Calls `act(integral constant, first row)` until all rows had their turn, as many together as registers hold.
    template <class Act>
    void for_rows(Act act) {
        int64_t row = 0;
        for (; row + ROWS_TOGETHER <= num_rows_; row += ROWS_TOGETHER)
            act(std::integral_constant<int, ROWS_TOGETHER>{}, row);
        for (; row + 3 <= num_rows_; row += 3) act(std::integral_constant<int, 3>{}, row);
        for (; row < num_rows_; row++) act(std::integral_constant<int, 1>{}, row);
    }

    const Heads<Numbers>& heads_;
    const Tile& tile_;
    const int64_t kv_head_, folded_, num_rows_;
    const Number *queries_[MOST_ROWS], *keys_[STRIP_VECTORS], *values_[STRIP_VECTORS];
    alignas(64) float scores_[MOST_ROWS][STRIP];
    alignas(64) Number weights_[MOST_ROWS][STRIP];
    alignas(64) float sums_[MOST_ROWS * MOST_DIM];
    float most_[MOST_ROWS], total_[MOST_ROWS];
};
