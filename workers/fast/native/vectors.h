// Sixteen numbers at a time, in the compiler's own vectors: AVX-512, AVX2 or less, whichever the machine has.
//
// Two kinds of numbers are computed with. A *group* is what one step of a dot product takes of each operand: one float32,
// or two neighbouring bfloat16, for which recent processors have one instruction. Weights, keys and values are stored so
// that the groups of sixteen outputs lie side by side. Sums are float32 always.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

inline Floats all(float value) { return Floats{} + value; }

template <class Vector, class Pointer>
inline Vector read(const Pointer* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <class Vector, class Pointer>
inline void write(Pointer* to, Vector vector) {
    std::memcpy(to, &vector, sizeof vector);
}

inline float largest(Floats vector) {
    float most = vector[0];
    for (int lane = 1; lane < LANES; lane++) most = vector[lane] > most ? vector[lane] : most;
    return most;
}

inline float sum(Floats vector) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += vector[lane];
    return total;
}

// e to the power of x within 2 units of the last place; exactly 0 below -87, and NaN for NaN.
inline Floats exponential(Floats x) {
    const Floats clipped = x > 88.0f ? all(88.0f) : (x < -87.0f ? all(-87.0f) : x);
    const Floats shifter = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Floats shifted = clipped * 1.44269504088896341f + shifter;
    const Floats whole = shifted - shifter;
    const Floats rest = clipped - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts
    Floats power = all(1.0f / 5040);
    for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) power = power * rest + factor;
    const Floats scaled = (Floats)((Ints)power + ((Ints)shifted << 23));
    return x < -87.0f ? Floats{} : (x != x ? x : scaled);
}

// --- kinds of numbers --------------------------------------------------------------------------------------------------

struct Float32 {
    using Number = float;
    static constexpr int GROUP = 1;

    static Floats load(const float* from) { return read<Floats>(from); }
    static void store(float* to, Floats vector) { write(to, vector); }
    static float load_one(float number) { return number; }
    static float store_one(float number) { return number; }

    // One group of sixteen outputs at `weights`, times the one at `input`.
    static Floats dot(Floats sums, const float* weights, const float* input) { return sums + load(weights) * *input; }
};

struct Bfloat16 {
    using Number = uint16_t;
    static constexpr int GROUP = 2;

    static Floats load(const uint16_t* from) {
        return (Floats)(__builtin_convertvector(read<Halves>(from), Bits) << 16);
    }

    static float load_one(uint16_t number) {
        const uint32_t bits = (uint32_t)number << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }

    static uint16_t store_one(float number) {
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        return number != number ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    }

#ifdef __AVX512BF16__
    static void store(uint16_t* to, Floats vector) { write(to, _mm512_cvtneps_pbh((__m512)vector)); }

    static Floats dot(Floats sums, const uint16_t* weights, const uint16_t* input) {
        const auto pair = (__m512bh)_mm512_set1_epi32(read<int32_t>(input));
        return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_loadu_si512(weights), pair);
    }
#else
    static void store(uint16_t* to, Floats vector) {
        const Bits bits = (Bits)vector;
        const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
        write(to, __builtin_convertvector(vector != vector ? Bits{} + 0x7fc0 : rounded, Halves));
    }

    static Floats dot(Floats sums, const uint16_t* weights, const uint16_t* input) {
        const Bits pairs = read<Bits>(weights);
        const Floats first = (Floats)(pairs << 16), second = (Floats)(pairs & 0xffff0000u);
        return sums + first * load_one(input[0]) + second * load_one(input[1]);
    }
#endif
};
