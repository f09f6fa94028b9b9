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
#include <limits>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

constexpr int LANES = 16;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

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

// `act` of all lanes in a tree: (0 with 8), then with 4, 2 and 1.
template <class Vector, class Act>
inline auto folded(Vector vector, Act act) {
    vector = act(vector, __builtin_shufflevector(vector, vector, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    vector = act(vector, __builtin_shufflevector(vector, vector, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    vector = act(vector, __builtin_shufflevector(vector, vector, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    vector = act(vector, __builtin_shufflevector(vector, vector, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return vector[0];
}

template <class Vector>
inline Vector larger(Vector one, Vector other) {
    return one > other ? one : other;
}

inline float largest(Floats vector) { return folded(vector, larger<Floats>); }

inline int32_t smallest(Ints vector) {
    return folded(vector, [](Ints one, Ints other) { return one < other ? one : other; });
}

inline float sum(Floats vector) {
    return folded(vector, [](Floats one, Floats other) { return one + other; });
}

// 2 to the power of a whole number between -127 (for which it gives 0) and 127. Adding ROUNDS_OFF to a small number leaves
// that number, rounded to an integer, in the last bits.
constexpr float ROUNDS_OFF = 12582912.0f;  // 1.5 * 2^23
constexpr float LOG2_E = 1.44269504088896341f;

inline Floats power_of_two(Floats rounded_off) { return (Floats)(((Ints)rounded_off << 23) + 0x3f800000); }

inline Floats clamped(Floats x, float low, float high) {
    x = all(low) > x ? all(low) : x;
    return all(high) < x ? all(high) : x;
}

// The highest power's factor first.
inline Floats polynomial(Floats x, float highest, std::initializer_list<float> factors) {
    Floats value = all(highest);
    for (const float factor : factors) value = value * x + factor;
    return value;
}

// --- kinds of numbers --------------------------------------------------------------------------------------------------

struct Float32 {
    using Number = float;
    static constexpr int GROUP = 1;

    static Floats load(const float* from) { return read<Floats>(from); }
    static void store(float* to, Floats vector) { write(to, vector); }
    static float load_one(float number) { return number; }
    static float store_one(float number) { return number; }

    // e to the power of x within 2 units of the last place; exactly 0 below -87.7, and NaN for NaN.
    static Floats exponential(Floats x) {
        const Floats clipped = clamped(x, -88.0f, 88.0f);
        const Floats rounded_off = clipped * LOG2_E + ROUNDS_OFF, whole = rounded_off - ROUNDS_OFF;
        const Floats rest = clipped - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln 2 in two parts
        return polynomial(rest, 1.0f / 5040, {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) *
               power_of_two(rounded_off);
    }

    // Of sixteen outputs one group each.
    using Groups = Floats;

    static Groups groups(const float* weights) { return load(weights); }

    // Adds the product of each with the one group at `input`.
    static Floats dot(Floats sums, Groups weights, const float* input) { return sums + weights * *input; }
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

    // e to the power of x within 6e-5 of it, a thirtieth of what rounding to bfloat16 may add; 0 and NaN as above.
    static Floats exponential(Floats x) {
        const Floats power = clamped(x * LOG2_E, -127.0f, 127.0f);
        const Floats rounded_off = power + ROUNDS_OFF, rest = power - (rounded_off - ROUNDS_OFF);
        return polynomial(rest, 9.618129e-3f, {5.550411e-2f, 2.402265e-1f, 6.931472e-1f, 1.0f}) * power_of_two(rounded_off);
    }

#ifdef __AVX512BF16__
    static void store(uint16_t* to, Floats vector) { write(to, _mm512_cvtneps_pbh((__m512)vector)); }

    using Groups = __m512bh;

    static Groups groups(const uint16_t* weights) { return (__m512bh)_mm512_loadu_si512(weights); }

    static Groups groups(const int8_t* weights) { return _mm512_cvtne2ps_pbh(floats(weights + LANES), floats(weights)); }

    static __m512 floats(const int8_t* weights) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights))));
    }

    static Floats dot(Floats sums, Groups weights, const uint16_t* input) {
        return (Floats)_mm512_dpbf16_ps((__m512)sums, weights, (__m512bh)_mm512_set1_epi32(read<int32_t>(input)));
    }
#else
    static void store(uint16_t* to, Floats vector) {
        const Bits bits = (Bits)vector;
        const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
        write(to, __builtin_convertvector(vector != vector ? Bits{} + 0x7fc0 : rounded, Halves));
    }

    using Groups = Bits;

    static Groups groups(const uint16_t* weights) { return read<Bits>(weights); }

    static Groups groups(const int8_t* weights) {
        uint16_t numbers[2 * LANES];
        for (int at = 0; at < 2 * LANES; at += LANES) {
            const auto shorts = __builtin_convertvector(read<Bytes>(weights + at), Shorts);  // g++ makes no step of four
            store(numbers + at, __builtin_convertvector(__builtin_convertvector(shorts, Ints), Floats));
        }
        return groups(numbers);
    }

    static Floats dot(Floats sums, Groups weights, const uint16_t* input) {
        const Floats first = (Floats)(weights << 16), second = (Floats)(weights & 0xffff0000u);
        return sums + first * load_one(input[0]) + second * load_one(input[1]);
    }
#endif
};
