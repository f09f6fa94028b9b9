// The tile instructions in plain C++, with the processor's own rounding: for machines that do not have them.
//
// Intel's manual gives TDPBF16PS as: of each pair the even and the odd products go to a float32 sum each, fused, in order;
// both sums are added, then added to the destination; denormals are zeros, coming in and going out. An operand of a shape
// that the processor would refuse ends the process, as there.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace tiles {

struct Register {
    alignas(64) unsigned char bytes[ROWS][ROW_BYTES];
};

struct State {
    Shapes shapes{.palette = 0};
    Register registers[REGISTERS];

    void configure(const Shapes& wanted) {
        bool fine = wanted.palette == 1 && wanted.start_row == 0;
        for (int tile = 0; tile < 16; tile++) {
            const int most_rows = tile < REGISTERS ? ROWS : 0, most_bytes = tile < REGISTERS ? ROW_BYTES : 0;
            fine = fine && wanted.rows[tile] <= most_rows && wanted.row_bytes[tile] <= most_bytes;
            fine = fine && (wanted.rows[tile] == 0) == (wanted.row_bytes[tile] == 0);
        }
        demand(fine, "this configuration");
        shapes = wanted;
        std::memset(registers, 0, sizeof registers);
    }

    void release() {
        shapes = Shapes{.palette = 0};
        std::memset(registers, 0, sizeof registers);
    }

    void zero(int tile) {
        demand(shapes.rows[tile] != 0, "a tile without a shape");
        std::memset(&registers[tile], 0, sizeof(Register));
    }

    void load(int tile, const void* from, int64_t stride) {
        zero(tile);
        for (int row = 0; row < shapes.rows[tile]; row++)
            std::memcpy(registers[tile].bytes[row], static_cast<const char*>(from) + row * stride, shapes.row_bytes[tile]);
    }

    void store(int tile, void* to, int64_t stride) const {
        demand(shapes.rows[tile] != 0, "a tile without a shape");
        for (int row = 0; row < shapes.rows[tile]; row++)
            std::memcpy(static_cast<char*>(to) + row * stride, registers[tile].bytes[row], shapes.row_bytes[tile]);
    }

    void dot(int sums, int a, int b) {
        const int rows = shapes.rows[sums], columns = shapes.row_bytes[sums] / 4, pairs = shapes.row_bytes[a] / 4;
        demand(sums != a && sums != b && a != b && rows != 0 && columns != 0 && pairs != 0 && rows == shapes.rows[a] &&
                   pairs == shapes.rows[b] && shapes.row_bytes[sums] == shapes.row_bytes[b] &&
                   shapes.row_bytes[sums] % 4 == 0 && shapes.row_bytes[a] % 4 == 0,
               "operands of these shapes");
        for (int row = 0; row < rows; row++) {
            float even[COLUMNS] = {}, odd[COLUMNS] = {}, total[COLUMNS];
            for (int pair = 0; pair < pairs; pair++) {
                uint32_t inputs, weights[COLUMNS];
                std::memcpy(&inputs, registers[a].bytes[row] + 4 * pair, sizeof inputs);
                std::memcpy(weights, registers[b].bytes[pair], sizeof weights);
                for (int column = 0; column < COLUMNS; column++) {
                    even[column] = flush(std::fma(number(inputs << 16), number(weights[column] << 16), even[column]));
                    odd[column] =
                        flush(std::fma(number(inputs & 0xffff0000u), number(weights[column] & 0xffff0000u), odd[column]));
                }
            }
            std::memcpy(total, registers[sums].bytes[row], sizeof total);
            for (int column = 0; column < columns; column++)
                total[column] = flush(flush(total[column]) + flush(even[column] + odd[column]));
#ifdef EMULATE_A_FAULT
            total[rows - 1] += 0.25f;
#endif
            std::memcpy(registers[sums].bytes[row], total, sizeof total);
        }
    }

    static void demand(bool fine, const char* what) {
        if (fine) return;
        std::fprintf(stderr, "tiles: a processor would refuse %s\n", what);
        std::abort();
    }

    static float flush(float value) {
        return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
    }

    static float number(uint32_t bits) {
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return flush(value);
    }
};

inline State& state() {
    static thread_local State one;
    return one;
}

inline bool granted() {
#ifdef EMULATE_A_REFUSAL
    return false;
#else
    return true;
#endif
}

inline void configure(const Shapes& shapes) { state().configure(shapes); }

inline void release() { state().release(); }

template <int TILE>
inline void zero() {
    state().zero(TILE);
}

template <int TILE>
inline void load(const void* from, int64_t stride) {
    state().load(TILE, from, stride);
}

template <int TILE>
inline void store(void* to, int64_t stride) {
    state().store(TILE, to, stride);
}

template <int SUMS, int A, int B>
inline void dot() {
    state().dot(SUMS, A, B);
}

}  // namespace tiles
