// The products of linear.h in tiles: up to 32 rows by a whole panel.
//
// Two rows of three tiles of sums leave two registers, for one tile of inputs and one of weights. The three tiles of weights
// of a step lie one after the other, so a panel is still read once from its start to its end; seven loads feed six
// products. Squares of two by two would want six loads for six, but of a panel of 48 they would leave a third over.
//
// Both row tiles have the same number of rows. With 17 to 31 rows the second overlaps the first: what both compute is the
// same, bit for bit.

#pragma once

#include <algorithm>

#include "linear.h"
#include "tiles.h"

#if HAVE_TILES

class LinearTiles {
public:
    static constexpr int64_t ROWS = 2 * tiles::ROWS;
    static constexpr int64_t ROWS_OF_BYTES = 0;

    void multiply(int64_t rows, const uint16_t* input, int64_t width, const uint16_t* panel, Ahead ahead,
                  float (*sums)[PANEL]) {
        const int64_t tile_rows = std::min<int64_t>(rows, tiles::ROWS);
        held_.shape(tiles::Shapes()
                        .set(0, INPUTS, tile_rows, tiles::ROW_BYTES)
                        .set(WEIGHTS, WEIGHTS, tiles::ROWS, tiles::ROW_BYTES)
                        .set(WEIGHTS_OF_ONE, WEIGHTS_OF_ONE + PANEL_VECTORS - 1,
                             rows > tiles::ROWS ? tile_rows : tiles::ROWS, tiles::ROW_BYTES));
        if (rows > tiles::ROWS)
            multiply_rows<2>(rows, input, width, panel, ahead, sums);
        else
            multiply_rows<1>(rows, input, width, panel, ahead, sums);
    }

private:
    static constexpr int INPUTS = 6, WEIGHTS = 7;
    static constexpr int WEIGHTS_OF_ONE = 3;  // of one row tile: three registers from here on instead
    static constexpr int64_t STEP = 2 * tiles::ROWS;  // of the width
    static constexpr int64_t PAIRS_BYTES = PANEL * 2 * sizeof(uint16_t);

    template <int ROW_TILES>
    void multiply_rows(int64_t rows, const uint16_t* input, int64_t width, const uint16_t* panel, Ahead ahead,
                       float (*sums)[PANEL]) {
        const int64_t last = rows - std::min<int64_t>(rows, tiles::ROWS), whole = width / STEP * STEP;
        const Asked asked{ahead.line, tiles::ROWS / ahead.every};
        zero<ROW_TILES>();
        for (int64_t at = 0; at < whole; at += STEP)
            step<ROW_TILES>(input + at, last * width, width * sizeof *input, panel + at * PANEL, asked.at(at / STEP));
        if (whole < width) {
            keep_tail(rows, input + whole, width, panel + whole * PANEL, width - whole);
            step<ROW_TILES>(inputs_, last * STEP, STEP * sizeof *inputs_, weights_, asked.at(whole / STEP));
        }
        store<ROW_TILES>(sums, last);
    }

    template <int ROW_TILES>
    static void zero() {
        tiles::zero<0>(), tiles::zero<1>(), tiles::zero<2>();
        if constexpr (ROW_TILES == 2) tiles::zero<3>(), tiles::zero<4>(), tiles::zero<5>();
    }

    // Of the panel ahead so many lines with each product of the first row tile.
    struct Asked {
        const char* line;
        int64_t lines;

        Asked at(int64_t step) const { return {line + step * PANEL_VECTORS * lines * LINE, lines}; }

        void ask(int vector) const {
            for (int64_t one = vector * lines; one < (vector + 1) * lines; one++) __builtin_prefetch(line + one * LINE, 0, 2);
        }
    };

    // 32 of the width. The second row tile begins `last` numbers after the first.
    template <int ROW_TILES>
    static void step(const uint16_t* input, int64_t last, int64_t stride, const uint16_t* panel, Asked asked) {
        const uint16_t *second = panel + 2 * LANES, *third = panel + 4 * LANES;
        tiles::load<INPUTS>(input, stride);
        if constexpr (ROW_TILES == 1) {
            asked.ask(0), tiles::load<3>(panel, PAIRS_BYTES), tiles::dot<0, INPUTS, 3>();
            asked.ask(1), tiles::load<4>(second, PAIRS_BYTES), tiles::dot<1, INPUTS, 4>();
            asked.ask(2), tiles::load<5>(third, PAIRS_BYTES), tiles::dot<2, INPUTS, 5>();
        } else {
            asked.ask(0), tiles::load<WEIGHTS>(panel, PAIRS_BYTES), tiles::dot<0, INPUTS, WEIGHTS>();
            asked.ask(1), tiles::load<WEIGHTS>(second, PAIRS_BYTES), tiles::dot<1, INPUTS, WEIGHTS>();
            asked.ask(2), tiles::load<WEIGHTS>(third, PAIRS_BYTES), tiles::dot<2, INPUTS, WEIGHTS>();
            tiles::load<INPUTS>(input + last, stride), tiles::dot<5, INPUTS, WEIGHTS>();
            tiles::load<WEIGHTS>(second, PAIRS_BYTES), tiles::dot<4, INPUTS, WEIGHTS>();
            tiles::load<WEIGHTS>(panel, PAIRS_BYTES), tiles::dot<3, INPUTS, WEIGHTS>();
        }
    }

    template <int ROW_TILES>
    static void store(float (*sums)[PANEL], int64_t last) {
        constexpr int64_t STRIDE = sizeof *sums;
        tiles::store<0>(sums[0], STRIDE);
        tiles::store<1>(sums[0] + LANES, STRIDE);
        tiles::store<2>(sums[0] + 2 * LANES, STRIDE);
        if constexpr (ROW_TILES == 2) {
            tiles::store<3>(sums[last], STRIDE);
            tiles::store<4>(sums[last] + LANES, STRIDE);
            tiles::store<5>(sums[last] + 2 * LANES, STRIDE);
        }
    }

    // What is left of a width that is no multiple of a step, `left` numbers, beside zeros.
    void keep_tail(int64_t rows, const uint16_t* input, int64_t width, const uint16_t* panel, int64_t left) {
        std::fill(std::begin(inputs_), std::end(inputs_), 0);
        for (int64_t row = 0; row < rows; row++) std::copy_n(input + row * width, left, inputs_ + row * STEP);
        std::fill(std::copy_n(panel, left * PANEL, weights_), std::end(weights_), 0);
    }

    tiles::Held held_;
    alignas(64) uint16_t inputs_[ROWS * STEP];
    alignas(64) uint16_t weights_[STEP * PANEL];
};

#endif
