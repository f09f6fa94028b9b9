// What multiplies bfloat16 in this process: tiles where the processor and Linux grant them, and where they compute in fact
// what vectors do.

#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_tiles.h"
#include "attention_vectors.h"
#include "linear_tiles.h"

// Mirrored by `Products` in structures.py.
enum Products : int64_t { TILES, NO_TILES, TILES_NOT_GRANTED, TILES_NOT_TRUE };

#if HAVE_TILES

// Small numbers that follow from a seed, both signs.
class Some {
public:
    float next() {
        state_ = state_ * 1664525 + 1013904223;
        return (state_ >> 8) / 8388608.0f - 1;
    }

    std::vector<uint16_t> numbers(int64_t count) {
        std::vector<uint16_t> numbers(count);
        for (uint16_t& number : numbers) number = Bfloat16::store_one(next());
        return numbers;
    }

private:
    uint32_t state_ = 1;
};

// Sums of 70 products of numbers up to one differ by float32's rounding alone, results of attention by that of weights and of
// themselves to bfloat16, 1e-3 of them; one product that is missing or misplaced makes tenths in the one, hundredths in the other.
constexpr float LINEARS_AGREE = 1e-4, ATTENTIONS_AGREE = 4e-3;

inline bool close(float one, float other, float tolerance) { return std::abs(one - other) <= tolerance; }  // not if NaN

// Of every size that a tile can have: part of one, one, and two, over a width with a tail.
inline bool linears_agree() {
    constexpr int64_t ROWS = 32, WIDTH = 70;
    constexpr Ahead NOTHING_AHEAD{nullptr, WIDTH};
    Some some;
    const auto input = some.numbers(ROWS * WIDTH), panel = some.numbers(PANEL * WIDTH);
    for (const int64_t rows : {1, 16, 21, 32}) {
        float expected[ROWS][PANEL], sums[ROWS][PANEL];
        for (int64_t row = 0; row < rows; row++)
            LinearVectors<Bfloat16>().multiply(1, input.data() + row * WIDTH, WIDTH, panel.data(), NOTHING_AHEAD, expected + row);
        LinearTiles().multiply(rows, input.data(), WIDTH, panel.data(), NOTHING_AHEAD, sums);
        for (int64_t row = 0; row < rows; row++)
            for (int at = 0; at < PANEL; at++)
                if (!close(sums[row][at], expected[row][at], LINEARS_AGREE)) return false;
    }
    return true;
}

// `count` queries behind 200 tokens in blocks that lie anywhere, of as many of two key heads as fit.
inline bool attention_agrees(int64_t count, int64_t block_size, int64_t dim) {
    constexpr int64_t POSITION = 200, BLOCKS = 16, FOLDED = 3, KV_HEADS = 2, HEADS = FOLDED * KV_HEADS;
    Some some;
    const auto queries = some.numbers(count * HEADS * dim);
    const auto keys = some.numbers(BLOCKS * KV_HEADS * block_size * dim), values = some.numbers(keys.size());
    int64_t table[BLOCKS];
    for (int64_t block = 0; block < BLOCKS; block++) table[block] = block * 7 % BLOCKS;
    std::vector<uint16_t> expected(queries.size()), results(queries.size());
    Heads<Bfloat16> heads{queries.data(), expected.data(), keys.data(), values.data(), table, HEADS * dim,
                          BLOCKS,         block_size,      HEADS,       KV_HEADS,      dim,   POSITION + count};
    const Tile tile{0, count, POSITION, 0};
    const int64_t num_heads = std::min(KV_HEADS, MOST_ROWS / (count * FOLDED));
    AttentionVectors<Bfloat16> vectors(heads);
    TileAttention(heads, tile, tile, 0, num_heads, vectors).run();
    AttentionTiles tiles(heads);
    heads.results = results.data();
    TileAttention(heads, tile, tile, 0, num_heads, tiles).run();
    for (size_t at = 0; at < results.size(); at++)
        if (!close(Bfloat16::load_one(results[at]), Bfloat16::load_one(expected[at]), ATTENTIONS_AGREE)) return false;
    return true;
}

// Of every shape that a tile can have: a head's rows make part of one, two and three, values half of one and one, pairs of a
// head halves and whole ones.
inline bool attentions_agree() {
    for (const int64_t count : {1, 7, 15})
        for (const int64_t block_size : {16, 32})
            for (const int64_t dim : {48, 64})
                if (!attention_agrees(count, block_size, dim)) return false;
    return true;
}

inline Products choose_products() {
    if (!tiles::granted()) return TILES_NOT_GRANTED;
    return linears_agree() && attentions_agree() ? TILES : TILES_NOT_TRUE;
}

#else

inline Products choose_products() { return NO_TILES; }

#endif
