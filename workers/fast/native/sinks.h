// What is done with the sums of a product, as linear.h finishes them: a *sink* takes `count` of a row, the outputs from
// `first` on. And it says where it will put them, so that those lines can be asked for in time.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"
#include "vectors.h"

// Calls act(0), act(1) and so on for `count` outputs. Mostly they are a whole panel, which makes vectors of the loop.
template <class Act>
inline void each(int64_t count, Act act) {
    if (count == PANEL)
        for (int64_t at = 0; at < PANEL; at++) act(at);
    else
        for (int64_t at = 0; at < count; at++) act(at);
}

// To `out` [rows, outputs], as Numbers.
template <class Numbers>
struct Stored {
    typename Numbers::Number* out;
    int64_t outputs;

    auto* place(int64_t row, int64_t first) const { return out + row * outputs + first; }

    void take(int64_t row, int64_t first, int64_t count, const float* sums) const {
        auto* to = place(row, first);
        each(count, [&](int64_t at) { to[at] = Numbers::store_one(sums[at]); });
    }
};

// To what is in `out` [rows, outputs] already.
struct Added {
    float* out;
    int64_t outputs;

    float* place(int64_t row, int64_t first) const { return out + row * outputs + first; }

    void take(int64_t row, int64_t first, int64_t count, const float* sums) const {
        float* to = place(row, first);
        each(count, [&](int64_t at) { to[at] += sums[at]; });
    }
};

// Half of each panel's outputs are gates, the other half what their SiLU lets through: `out` is [rows, outputs / 2].
template <class Numbers>
struct Gated {
    using Number = typename Numbers::Number;
    static constexpr int HALF = PANEL / 2, LAST = HALF - LANES;  // two vectors, which overlap
    static_assert(LAST > 0 && LAST <= LANES);

    Number* out;
    int64_t width;

    Number* place(int64_t row, int64_t first) const { return out + row * width + first / 2; }

    void take(int64_t row, int64_t first, int64_t, const float* sums) const {
        Number* const to = place(row, first);
        const int64_t count = std::min<int64_t>(HALF, width - first / 2);
        if (count == HALF) return gate(sums, to);
        Number padded[HALF];
        gate(sums, padded);
        std::copy(padded, padded + count, to);
    }

    static void gate(const float* sums, Number* to) {
        for (const int at : {0, LAST}) {
            const Floats gates = read<Floats>(sums + at), through = read<Floats>(sums + HALF + at);
            Numbers::store(to + at, gates / (Numbers::exponential(-gates) + 1.0f) * through);
        }
    }
};

// The largest of some outputs, and where the first of those is. NaN if there is one among them.
struct Best {
    float value = NOTHING;
    int64_t index = -1;

    void offer(const Best& later) {
        if (later.value > value || later.value != later.value) *this = later;
    }
};

// The best of each panel, for all rows.
class BestOfPanels {
public:
    BestOfPanels(int64_t rows, int64_t outputs) : panels_((outputs + PANEL - 1) / PANEL), found_(rows * panels_) {}

    Best* place(int64_t row, int64_t first) { return &found_[row * panels_ + first / PANEL]; }

    void take(int64_t row, int64_t first, int64_t count, float* sums) {
        constexpr Ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        constexpr int32_t NONE = -1;
        std::fill(sums + count, sums + PANEL, NOTHING);
        Floats high = all(NOTHING);
        for (int at = 0; at < PANEL; at += LANES) high = larger(read<Floats>(sums + at), high);
        const float most = largest(high);
        Ints where = Ints{} + PANEL;
        for (int at = PANEL - LANES; at >= 0; at -= LANES) where = read<Floats>(sums + at) == most ? LANE + at : where;
        for (int at = 0; at < PANEL; at += LANES) {
            const Floats these = read<Floats>(sums + at);
            where = these != these ? Ints{} + NONE : where;
        }
        const int32_t found = smallest(where);
        *place(row, first) = found == NONE ? Best{NAN, NONE} : Best{most, first + found};
    }

    // Of all a row's outputs the first of the largest; -1 where there is a NaN or no finite maximum.
    int64_t of(int64_t row) const {
        Best best;
        for (int64_t panel = 0; panel < panels_; panel++) best.offer(found_[row * panels_ + panel]);
        return std::isfinite(best.value) ? best.index : -1;
    }

private:
    int64_t panels_;
    std::vector<Best> found_;
};
