// The products of attention.h in tiles: queries by keys, and weights by values, as both lie in the pool.
//
// The rows of a key head fill one, two or three tiles. All have the same number of rows: of more than sixteen the last tile
// overlaps the one before, and what both compute is the same, bit for bit, since sums are loaded by both before either
// stores. So shapes change only with the number of a tile's queries, not between scores and values: four registers are
// sums, two take queries and keys, two weights and values, where blocks of sixteen tokens fill only half of a tile.

#pragma once

#include <algorithm>

#include "attention.h"
#include "tiles.h"

#if HAVE_TILES

class AttentionTiles {
    using Number = Bfloat16::Number;

public:
    static constexpr int SCORED_TOGETHER = 4;

    explicit AttentionTiles(const Heads<Bfloat16>& heads)
        : heads_(heads), key_pairs_(pairs_of(heads.dim)), value_pairs_(pairs_of(heads.block_size)) {}

    // Up to the end of a tile of values: what it has beyond lies in the same block, and its weights are zero.
    int vectors_for(int64_t positions) const {
        const int64_t whole = 2 * value_pairs_;
        return (positions + whole - 1) / whole * whole / LANES;
    }

    void begin(const Number* const* queries, int64_t num_rows, int64_t rows_per_head) {
        for (int64_t row = 0; row < num_rows; row++) std::copy_n(queries[row], heads_.dim, queries_ + row * heads_.dim);
        tile_rows_ = std::min<int64_t>(rows_per_head, tiles::ROWS);
        held_.shape(tiles::Shapes()
                        .set(0, SUMS - 1, tile_rows_, tiles::ROW_BYTES)
                        .set(QUERIES, QUERIES, tile_rows_, key_pairs_ * PAIR_BYTES)
                        .set(KEYS, KEYS, key_pairs_, tiles::ROW_BYTES)
                        .set(WEIGHTS, WEIGHTS, tile_rows_, value_pairs_ * PAIR_BYTES)
                        .set(VALUES, VALUES, value_pairs_, tiles::ROW_BYTES));
    }

    void score(const Strip<Number>& strip, int64_t begin, int64_t end, float* scores) {
        by_row_tiles(end - begin, [&](auto row_tiles) {
            constexpr int COLUMNS = SUMS / row_tiles();
            int column = 0;
            for (; column + COLUMNS <= strip.vectors; column += COLUMNS)
                score_keys<row_tiles(), COLUMNS>(strip, column, begin, end, scores);
            for (; column < strip.vectors; column++) score_keys<row_tiles(), 1>(strip, column, begin, end, scores);
        });
    }

    void add_values(const Strip<Number>& strip, int64_t begin, int64_t end, const Number* weights, float* sums) {
        by_row_tiles(end - begin, [&](auto row_tiles) {
            constexpr int COLUMNS = SUMS / row_tiles();
            int64_t at = 0;
            for (; at + COLUMNS * LANES <= heads_.dim; at += COLUMNS * LANES)
                add_dimensions<row_tiles(), COLUMNS>(strip, at, begin, end, weights, sums);
            for (; at < heads_.dim; at += LANES) add_dimensions<row_tiles(), 1>(strip, at, begin, end, weights, sums);
        });
    }

private:
    static constexpr int SUMS = 4, QUERIES = 4, KEYS = 5, WEIGHTS = 6, VALUES = 7;
    static constexpr int64_t PAIR_BYTES = 2 * sizeof(Number);

    static int pairs_of(int64_t numbers) { return numbers % (2 * tiles::ROWS) == 0 ? tiles::ROWS : tiles::ROWS / 2; }

    template <class Act>
    static void by_row_tiles(int64_t rows, Act act) {
        static_assert(MOST_ROWS == 3 * tiles::ROWS);
        if (rows <= tiles::ROWS)
            act(std::integral_constant<int, 1>{});
        else if (rows <= 2 * tiles::ROWS)
            act(std::integral_constant<int, 2>{});
        else
            act(std::integral_constant<int, 3>{});
    }

    // The first row of each row tile: the last one ends with the rows.
    template <int ROW_TILES>
    int64_t first_of(int row_tile, int64_t begin, int64_t end) const {
        return row_tile + 1 < ROW_TILES ? begin + row_tile * tiles::ROWS : end - tile_rows_;
    }

    static void ask(const Number* line, int64_t numbers, int lines) {
        for (int one = 0; one < lines; one++) __builtin_prefetch(line + one * numbers, 0, 2);
    }

    template <int ROW_TILES, int COLUMNS>
    void score_keys(const Strip<Number>& strip, int first, int64_t begin, int64_t end, float* scores) {
        const int64_t dim = heads_.dim, numbers = heads_.block_size * 2;  // from one pair of the keys' to the next
        const int pairs = key_pairs_;
        const Place<Number>*const here = strip.here + first, *const ahead = strip.ahead + first;
        tiles::each<ROW_TILES * COLUMNS>([](auto sums) { tiles::zero<sums()>(); });
        for (int64_t pair = 0, offset = strip.head; pair < dim / 2; pair += pairs, offset += pairs * numbers)
            tiles::each<COLUMNS>([=, this](auto column) {
                ask(ahead[column()].keys + offset, numbers, pairs);
                tiles::load<KEYS>(here[column()].keys + offset, numbers * sizeof(Number));
                tiles::each<ROW_TILES>([=, this](auto tile) {
                    const Number* queries = queries_ + first_of<ROW_TILES>(tile(), begin, end) * dim;
                    if constexpr (ROW_TILES > 1 || column() == 0)
                        tiles::load<QUERIES>(queries + 2 * pair, dim * sizeof(Number));
                    tiles::dot<tile() * COLUMNS + column(), QUERIES, KEYS>();
                });
            });
        tiles::each<ROW_TILES * COLUMNS>([=, this](auto sums) {
            const int64_t row = first_of<ROW_TILES>(sums() / COLUMNS, begin, end);
            tiles::store<sums()>(scores + row * STRIP + (first + sums() % COLUMNS) * LANES, STRIP * sizeof(float));
        });
    }

    template <int ROW_TILES, int COLUMNS>
    void add_dimensions(const Strip<Number>& strip, int64_t at, int64_t begin, int64_t end, const Number* weights,
                        float* to) {
        const int64_t dim = heads_.dim, numbers = dim * 2, stride = dim * sizeof(float);
        const int pairs = value_pairs_, vectors = strip.vectors;
        const auto place = [=, this](int sums) {
            return to + first_of<ROW_TILES>(sums / COLUMNS, begin, end) * dim + at + sums % COLUMNS * LANES;
        };
        const int64_t first = strip.head + 2 * at;
        const Place<Number>*const here = strip.here, *const ahead = strip.ahead;
        tiles::each<ROW_TILES * COLUMNS>([=](auto sums) { tiles::load<sums()>(place(sums()), stride); });
        for (int vector = 0; vector < vectors; vector += 2 * pairs / LANES)
            tiles::each<COLUMNS>([=, this](auto column) {
                const int64_t offset = first + column() * 2 * LANES;
                ask(ahead[vector].values + offset, numbers, pairs);
                tiles::load<VALUES>(here[vector].values + offset, numbers * sizeof(Number));
                tiles::each<ROW_TILES>([=, this](auto tile) {
                    const int64_t row = first_of<ROW_TILES>(tile(), begin, end);
                    if constexpr (ROW_TILES > 1 || column() == 0)
                        tiles::load<WEIGHTS>(weights + row * STRIP + vector * LANES, STRIP * sizeof(Number));
                    tiles::dot<tile() * COLUMNS + column(), WEIGHTS, VALUES>();
                });
            });
        tiles::each<ROW_TILES * COLUMNS>([=](auto sums) { tiles::store<sums()>(place(sums()), stride); });
    }

    const Heads<Bfloat16>& heads_;
    const int key_pairs_, value_pairs_;
    int64_t tile_rows_ = 0;
    tiles::Held held_;
    alignas(64) Number queries_[MOST_ROWS * MOST_DIM];
};

#endif
