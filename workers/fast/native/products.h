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

// A chunk of a prompt of some hundred tokens, in blocks that lie anywhere; and one token.
inline bool attentions_agree() {
    constexpr int64_t BLOCKS = 16, BLOCK_SIZE = 16, QUERIES = 7, FOLDED = 3, DIM = 64, CHUNK = 200;
    Some some;
    const auto queries = some.numbers(QUERIES * FOLDED * DIM);
    const auto keys = some.numbers(BLOCKS * BLOCK_SIZE * DIM), values = some.numbers(BLOCKS * BLOCK_SIZE * DIM);
    int64_t table[BLOCKS];
    for (int64_t block = 0; block < BLOCKS; block++) table[block] = block * 7 % BLOCKS;
    std::vector<uint16_t> expected(queries.size()), results(queries.size());
    Heads<Bfloat16> heads{queries.data(), expected.data(), keys.data(), values.data(), table, FOLDED * DIM,
                          BLOCKS,         BLOCK_SIZE,      FOLDED,      1,             DIM,   CHUNK};
    for (const int64_t count : {QUERIES, INT64_C(1)}) {
        const Tile tile{0, count, CHUNK, 0};
        AttentionVectors<Bfloat16> vectors(heads);
        heads.results = expected.data();
        TileAttention(heads, tile, tile, 0, 1, vectors).run();
        AttentionTiles tiles(heads);
        heads.results = results.data();
        TileAttention(heads, tile, tile, 0, 1, tiles).run();
        for (int64_t at = 0; at < count * FOLDED * DIM; at++)
            if (!close(Bfloat16::load_one(results[at]), Bfloat16::load_one(expected[at]), ATTENTIONS_AGREE)) return false;
    }
    return true;
}

inline Products choose_products() {
    if (!tiles::granted()) return TILES_NOT_GRANTED;
    return linears_agree() && attentions_agree() ? TILES : TILES_NOT_TRUE;
}

#else

inline Products choose_products() { return NO_TILES; }

#endif
