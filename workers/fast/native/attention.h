// Attention over paged keys and values, read where they lie.
//
// Of one block and one key head the pool holds `block_size` keys as [dim / GROUP, block_size, GROUP] and as many values as
// [block_size / GROUP, dim, GROUP]: sixteen keys at a time are multiplied by a query without a sum across a vector, and
// sixteen dimensions of the values by the weights. `block_size` and `dim` are multiples of sixteen.
//
// A tile is some queries of one sequence, one after the other: one for a decode, several for a chunk of a prompt, so that
// keys are read once for all of them. Its rows are the query heads of some key heads, as many as fit. Keys come in strips
// that begin at multiples of STRIP, and the softmax is carried from strip to strip: a query's result depends on its own
// sequence alone, not on the tile.
//
// Which rows, where their keys lie and the softmax is here; the products are those of a `Products` of the thread, in vectors
// (attention_vectors.h) or in the tiles of a processor (attention_tiles.h). Queries come multiplied by the scale of scores.
//
// Blocks lie anywhere, which no prefetcher of a processor foresees. So the next strip is asked for while this one is
// computed, line by line between the products, and into the second-level cache, which takes more requests at a time.

#pragma once

#include <algorithm>

#include "vectors.h"

constexpr int STRIP = 128;
constexpr int STRIP_VECTORS = STRIP / LANES;
constexpr int MOST_ROWS = 48;  // of a tile: its scores and weights stay within the first-level cache
constexpr int MOST_DIM = 256;

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
};

// Sixteen keys of a tile's first key head, and their values.
template <class Number>
struct Place {
    const Number *keys, *values;
};

// Some sixteens, the numbers from the first key head to the one in question, and what to ask for meanwhile.
template <class Number>
struct Strip {
    const Place<Number>*here, *ahead;
    int64_t head;
    int vectors;
};

template <class Numbers, class Products>
class TileAttention {
    using Number = typename Numbers::Number;
    using Place = ::Place<Number>;
    static constexpr int GROUP = Numbers::GROUP;

public:
    TileAttention(const Heads<Numbers>& heads, const Tile& tile, const Tile& next, int64_t first_head, int64_t num_heads,
                  Products& products)
        : heads_(heads), tile_(tile), next_(next), first_head_(first_head), num_heads_(num_heads), products_(products),
          folded_(heads.heads / heads.kv_heads), rows_per_head_(tile.count * folded_),
          num_rows_(rows_per_head_ * num_heads) {
        for (int64_t row = 0; row < num_rows_; row++) {
            queries_[row] = heads.queries + (tile.row + query_of(row)) * heads.stride + head_of(row) * heads.dim;
            most_[row] = NOTHING;
            total_[row] = 0;
        }
        std::fill(sums_, sums_ + num_rows_ * heads.dim, 0.0f);
        products.begin(queries_, num_rows_, rows_per_head_);
    }

    void run() {
        const int64_t end = tile_.position + tile_.count;
        for (int64_t begin = first_strip(tile_); begin < end; begin += STRIP) take_strip(begin, std::min<int64_t>(STRIP, end - begin));
        for (int64_t row = 0; row < num_rows_; row++) {
            Number* result = heads_.results + ((tile_.row + query_of(row)) * heads_.heads + head_of(row)) * heads_.dim;
            const float factor = 1 / total_[row];
            for (int64_t at = 0; at < heads_.dim; at += LANES)
                Numbers::store(result + at, read<Floats>(sums_ + row * heads_.dim + at) * factor);
        }
    }

private:
    int64_t query_of(int64_t row) const { return row % rows_per_head_ / folded_; }

    int64_t head_of(int64_t row) const { return (first_head_ + row / rows_per_head_) * folded_ + row % folded_; }

    int64_t first_strip(const Tile& tile) const {
        return std::max<int64_t>(0, tile.position - heads_.window + 1) / STRIP * STRIP;
    }

    void take_strip(int64_t begin, int64_t length) {
        const int vectors = products_.vectors_for(length);
        for (int vector = 0; vector < vectors; vector++) {
            here_[vector] = find(tile_, begin + vector * LANES);
            ahead_[vector] = find_ahead(begin, vector);
        }
        constexpr int TOGETHER = Products::SCORED_TOGETHER;
        for (int vector = 0; vector < vectors; vector += TOGETHER)
            for_heads([&](int64_t head, int64_t first, int64_t end) {
                products_.score({here_ + vector, ahead_ + vector, head, std::min(TOGETHER, vectors - vector)}, first, end,
                                scores_[0] + vector * LANES);
            });
        for (int64_t row = 0; row < num_rows_; row++) weigh(row, begin, vectors);
        for_heads([&](int64_t head, int64_t first, int64_t end) {
            products_.add_values({here_, ahead_, head, vectors}, first, end, weights_[0], sums_);
        });
    }

    // Calls act(numbers from the first key head to this one, its first row, the end of its rows).
    template <class Act>
    void for_heads(Act act) {
        for (int64_t head = 0; head < num_heads_; head++)
            act(head * heads_.block_size * heads_.dim, head * rows_per_head_, (head + 1) * rows_per_head_);
    }

    Place find(const Tile& tile, int64_t position) const {
        const int64_t block = heads_.tables[tile.slot * heads_.table_width + position / heads_.block_size];
        const int64_t base = (block * heads_.kv_heads + first_head_) * heads_.block_size * heads_.dim;
        const int64_t within = position % heads_.block_size;
        return {heads_.keys + base + within * GROUP, heads_.values + base + within * heads_.dim};
    }

    // What comes in the place of this vector in the next strip, or in the next tile's first; itself if nothing does.
    Place find_ahead(int64_t begin, int vector) const {
        const bool stays = begin + STRIP < tile_.position + tile_.count;
        const Tile& tile = stays ? tile_ : next_;
        const int64_t position = (stays ? begin + STRIP : first_strip(next_)) + vector * LANES;
        return position < tile.position + tile.count ? find(tile, position) : here_[vector];
    }

    // Scores to weights, and what was summed before brought to the new scale.
    void weigh(int64_t row, int64_t begin, int vectors) {
        const int64_t position = tile_.position + query_of(row);
        const int64_t first = position - heads_.window + 1 - begin, last = position - begin;
        float* scores = scores_[row];
        for (int64_t at = 0; at < std::min<int64_t>(first, vectors * LANES); at++) scores[at] = NOTHING;
        for (int64_t at = std::max<int64_t>(last + 1, 0); at < vectors * LANES; at++) scores[at] = NOTHING;
        Floats high = all(NOTHING);
        for (int vector = 0; vector < vectors; vector++) {
            const Floats these = read<Floats>(scores + vector * LANES);
            high = larger(these, high);
        }
        const float most = std::max(most_[row], largest(high));
        if (most == NOTHING) {  // nothing that this query may see has come yet
            std::fill(weights_[row], weights_[row] + vectors * LANES, Number{});
            return;
        }
        const float shrink = Numbers::exponential(all(most_[row] - most))[0];
        most_[row] = most;
        Floats total{};
        for (int vector = 0; vector < vectors; vector++) {
            const Floats weights = Numbers::exponential(read<Floats>(scores + vector * LANES) - most);
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

    const Heads<Numbers>& heads_;
    const Tile &tile_, &next_;
    const int64_t first_head_, num_heads_;
    Products& products_;
    const int64_t folded_, rows_per_head_, num_rows_;
    const Number* queries_[MOST_ROWS];
    Place here_[STRIP_VECTORS], ahead_[STRIP_VECTORS];
    alignas(64) float scores_[MOST_ROWS][STRIP];
    alignas(64) Number weights_[MOST_ROWS][STRIP];
    alignas(64) float sums_[MOST_ROWS * MOST_DIM];
    float most_[MOST_ROWS], total_[MOST_ROWS];
};
