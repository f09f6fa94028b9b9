// The products of attention.h in vectors: a query's group at a time against sixteen keys, a weight's against sixteen
// dimensions, some rows together.

#pragma once

#include <type_traits>

#include "attention.h"

template <class Numbers>
class AttentionVectors {
    using Number = typename Numbers::Number;
    static constexpr int GROUP = Numbers::GROUP, ROWS_TOGETHER = 6;

public:
    static constexpr int SCORED_TOGETHER = 2;

    explicit AttentionVectors(const Heads<Numbers>& heads) : heads_(heads) {}

    int vectors_for(int64_t positions) const { return (positions + LANES - 1) / LANES; }

    void begin(const Number* const* queries, int64_t, int64_t) { queries_ = queries; }

    void score(const Strip<Number>& strip, int64_t begin, int64_t end, float* scores) {
        for_rows(begin, end, [&](auto some, int64_t row) {
            if (strip.vectors == 2)
                score_rows<some(), 2>(strip, row, scores + row * STRIP);
            else
                score_rows<some(), 1>(strip, row, scores + row * STRIP);
        });
    }

    void add_values(const Strip<Number>& strip, int64_t begin, int64_t end, const Number* weights, float* sums) {
        for_rows(begin, end, [&](auto some, int64_t row) {
            int64_t at = 0;
            for (; at + 4 * LANES <= heads_.dim; at += 4 * LANES) add_dimensions<some(), 4>(strip, row, at, weights, sums);
            for (; at < heads_.dim; at += LANES) add_dimensions<some(), 1>(strip, row, at, weights, sums);
        });
    }

private:
    template <int ROWS, int VECTORS>
    void score_rows(const Strip<Number>& strip, int64_t row, float* scores) {
        Floats sums[VECTORS][ROWS] = {};
        const int64_t stride = heads_.block_size * GROUP;
        for (int64_t at = 0, offset = strip.head; at < heads_.dim; at += GROUP, offset += stride)
#pragma GCC unroll 2
            for (int one = 0; one < VECTORS; one++) {
                __builtin_prefetch(strip.ahead[one].keys + offset, 0, 2);
                const auto keys = Numbers::groups(strip.here[one].keys + offset);
#pragma GCC unroll 6
                for (int some = 0; some < ROWS; some++)
                    sums[one][some] = Numbers::dot(sums[one][some], keys, queries_[row + some] + at);
            }
        for (int one = 0; one < VECTORS; one++)
            for (int some = 0; some < ROWS; some++) write(scores + some * STRIP + one * LANES, sums[one][some]);
    }

    template <int ROWS, int WIDTH>
    void add_dimensions(const Strip<Number>& strip, int64_t row, int64_t at, const Number* weights, float* to) {
        Floats sums[ROWS][WIDTH];
        for (int some = 0; some < ROWS; some++)
            for (int one = 0; one < WIDTH; one++)
                sums[some][one] = read<Floats>(to + (row + some) * heads_.dim + at + one * LANES);
        for (int vector = 0; vector < strip.vectors; vector++)
            for (int key = 0; key < LANES; key += GROUP) {
                const int64_t offset = strip.head + at * GROUP + key * heads_.dim;
                const Number *values = strip.here[vector].values + offset, *ahead = strip.ahead[vector].values + offset;
                for (int one = 0; one < WIDTH; one++) __builtin_prefetch(ahead + one * LANES * GROUP, 0, 2);
#pragma GCC unroll 6
                for (int some = 0; some < ROWS; some++)
#pragma GCC unroll 4
                    for (int one = 0; one < WIDTH; one++)
                        sums[some][one] = Numbers::dot(sums[some][one], Numbers::groups(values + one * LANES * GROUP),
                                                       weights + (row + some) * STRIP + vector * LANES + key);
            }
        for (int some = 0; some < ROWS; some++)
            for (int one = 0; one < WIDTH; one++)
                write(to + (row + some) * heads_.dim + at + one * LANES, sums[some][one]);
    }

    // Calls `act(integral constant, first row)` until all rows had their turn, as many together as registers hold.
    template <class Act>
    void for_rows(int64_t row, int64_t end, Act act) {
        for (; row + ROWS_TOGETHER <= end; row += ROWS_TOGETHER) act(std::integral_constant<int, ROWS_TOGETHER>{}, row);
        for (; row + 3 <= end; row += 3) act(std::integral_constant<int, 3>{}, row);
        for (; row < end; row++) act(std::integral_constant<int, 1>{}, row);
    }

    const Heads<Numbers>& heads_;
    const Number* const* queries_ = nullptr;
};
