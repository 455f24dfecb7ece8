// Reduction kernels: out[i] = left[i] (op) right[i] for the element types training uses.
//
// Rules:
//  * One rounding per operation: half precision is widened to float32, combined, rounded to nearest even.
//  * minimum and maximum return NaN if either operand is NaN, as torch.minimum and torch.maximum do.
//  * Integers wrap. Every instruction set gives the same bits, so ranks on unlike CPUs agree.
//  * out may be left or right itself, but must not overlap them otherwise.
//
// Kernels are compiled for several instruction sets and chosen when the module is loaded, so that one wheel
// serves every x86-64 CPU and still uses the wide registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// Clones need ifunc support in the C library, and the sanitizers run before ifuncs are resolved.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define FARSTEP_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FARSTEP_CLONES
#endif
#define FARSTEP_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FARSTEP_HALF_X86 1
// GCC 12 warns of the undefined operands inside its own AVX-512 wrappers; see crc32.hpp.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

namespace farstep {

/// Element types, numbered as in farstep.collectives.reduction.ElementType.
enum class ElementType : std::uint8_t {
    float32 = 0,
    float64 = 1,
    float16 = 2,
    bfloat16 = 3,
    int8 = 4,
    int16 = 5,
    int32 = 6,
    int64 = 7,
    uint8 = 8,
    boolean = 9,
};
inline constexpr int num_element_types = 10;

/// Reductions, numbered as in farstep.collectives.reduction.Reduction.
enum class Reduction : std::uint8_t {
    sum = 0,
    product = 1,
    minimum = 2,
    maximum = 3,
    bit_and = 4,
    bit_or = 5,
    bit_xor = 6,
};
inline constexpr int num_reductions = 7;

namespace reduction {

FARSTEP_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

FARSTEP_INLINE float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/// Chooses by mask: a branch would let the compiler move the conversions into it and give up vectorising.
FARSTEP_INLINE std::uint32_t pick(bool condition, std::uint32_t yes, std::uint32_t no) {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (yes & mask) | (no & ~mask);
}

/// bfloat16 is the upper half of a float32.
struct BFloat16 {
    std::uint16_t bits;

    static FARSTEP_INLINE float widen(BFloat16 x) { return float_of(std::uint32_t{x.bits} << 16); }

    static FARSTEP_INLINE BFloat16 narrow(float value) {
        const std::uint32_t bits = bits_of(value);
        const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        // Rounding could carry a NaN's payload into infinity.
        const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        return {static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded)};
    }
};

/// IEEE binary16, converted with integer arithmetic only: vectorises everywhere, ignores the FPU's mode bits.
struct Float16 {
    std::uint16_t bits;

    static FARSTEP_INLINE float widen(Float16 x) {
        const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
        const std::uint32_t magnitude = x.bits & 0x7fffu;
        const std::uint32_t shifted = magnitude << 13;
        const std::uint32_t normal = shifted + ((127u - 15u) << 23);
        const std::uint32_t special = shifted + ((255u - 31u) << 23);
        // Subnormals count units of 2^-24; a signed conversion because that is one instruction.
        const std::uint32_t subnormal =
            bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 5.9604644775390625e-8f);
        return float_of(sign | pick(magnitude >= 0x7c00u, special, pick(magnitude >= 0x0400u, normal, subnormal)));
    }

    static FARSTEP_INLINE Float16 narrow(float value) {
        const std::uint32_t bits = bits_of(value);
        const std::uint32_t sign = (bits >> 16) & 0x8000u;
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        // Adding 0.5 aligns the last bit of a half-precision subnormal with that of the float32 sum.
        const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
        const std::uint32_t odd = (magnitude >> 13) & 1u;
        const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
        const std::uint32_t chosen =
            sign | pick(magnitude >= 0x47800000u, 0x7c00u, pick(magnitude < 0x38800000u, subnormal, normal));
        // One NaN for all: which operand's sign and payload an addition keeps is up to the compiler.
        return {static_cast<std::uint16_t>(pick(magnitude > 0x7f800000u, 0x7e00u, chosen))};
    }
};

/// Maps an element type to the type it is computed in.
template <class T>
struct Compute {
    using type = T;
    static FARSTEP_INLINE T widen(T x) { return x; }
    static FARSTEP_INLINE T narrow(T x) { return x; }
};
template <>
struct Compute<BFloat16> : BFloat16 {
    using type = float;
};
template <>
struct Compute<Float16> : Float16 {
    using type = float;
};

template <class T>
FARSTEP_INLINE T wrap_add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
        return a + b;
    }
}

template <class T>
FARSTEP_INLINE T wrap_multiply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        // 64 bits wide, because two 16-bit factors promote to int and may overflow it.
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
        return a * b;
    }
}

template <Reduction Op, class T>
FARSTEP_INLINE T apply(T a, T b) {
    if constexpr (Op == Reduction::sum) {
        return wrap_add(a, b);
    } else if constexpr (Op == Reduction::product) {
        return wrap_multiply(a, b);
    } else if constexpr (Op == Reduction::minimum) {
        // A NaN on the left is kept by the second test, one on the right because no comparison holds.
        return (static_cast<int>(a < b) | static_cast<int>(a != a)) ? a : b;
    } else if constexpr (Op == Reduction::maximum) {
        return (static_cast<int>(a > b) | static_cast<int>(a != a)) ? a : b;
    } else if constexpr (Op == Reduction::bit_and) {
        return static_cast<T>(a & b);
    } else if constexpr (Op == Reduction::bit_or) {
        return static_cast<T>(a | b);
    } else {
        return static_cast<T>(a ^ b);
    }
}

template <Reduction Op, class T>
FARSTEP_INLINE void combine_loop(T* out, const T* left, const T* right, std::size_t count) {
    using C = Compute<T>;
    // ivdep: out is one of the operands or apart from both, so that iterations are independent.
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = C::narrow(apply<Op>(C::widen(left[i]), C::widen(right[i])));
    }
}

template <class T>
FARSTEP_INLINE void divide_loop(T* values, std::size_t count, std::uint32_t divisor) {
    using C = Compute<T>;
    const auto by = static_cast<typename C::type>(divisor);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = C::narrow(C::widen(values[i]) / by);
    }
}

// target_clones does not apply to templates, hence one plain function per type and reduction.
#define FARSTEP_COMBINE(NAME, OP, TYPE)                                                                     \
    FARSTEP_CLONES inline void NAME##_##OP(void* out, const void* left, const void* right, std::size_t n) { \
        combine_loop<Reduction::OP>(static_cast<TYPE*>(out), static_cast<const TYPE*>(left),                \
                                    static_cast<const TYPE*>(right), n);                                    \
    }
#define FARSTEP_ARITHMETIC(NAME, TYPE)    \
    FARSTEP_COMBINE(NAME, sum, TYPE)      \
    FARSTEP_COMBINE(NAME, product, TYPE)  \
    FARSTEP_COMBINE(NAME, minimum, TYPE)  \
    FARSTEP_COMBINE(NAME, maximum, TYPE)
#define FARSTEP_BITWISE(NAME, TYPE)       \
    FARSTEP_COMBINE(NAME, bit_and, TYPE)  \
    FARSTEP_COMBINE(NAME, bit_or, TYPE)   \
    FARSTEP_COMBINE(NAME, bit_xor, TYPE)
#define FARSTEP_DIVIDE(NAME, TYPE)                                                                    \
    FARSTEP_CLONES inline void NAME##_divide(void* values, std::size_t n, std::uint32_t divisor) {    \
        divide_loop(static_cast<TYPE*>(values), n, divisor);                                          \
    }

FARSTEP_ARITHMETIC(float32, float)
FARSTEP_ARITHMETIC(float64, double)
FARSTEP_ARITHMETIC(float16, Float16)
FARSTEP_ARITHMETIC(bfloat16, BFloat16)
FARSTEP_ARITHMETIC(int8, std::int8_t)
FARSTEP_ARITHMETIC(int16, std::int16_t)
FARSTEP_ARITHMETIC(int32, std::int32_t)
FARSTEP_ARITHMETIC(int64, std::int64_t)
FARSTEP_ARITHMETIC(uint8, std::uint8_t)
FARSTEP_BITWISE(int8, std::int8_t)
FARSTEP_BITWISE(int16, std::int16_t)
FARSTEP_BITWISE(int32, std::int32_t)
FARSTEP_BITWISE(int64, std::int64_t)
FARSTEP_BITWISE(uint8, std::uint8_t)
FARSTEP_DIVIDE(float32, float)
FARSTEP_DIVIDE(float64, double)
FARSTEP_DIVIDE(float16, Float16)
FARSTEP_DIVIDE(bfloat16, BFloat16)

#undef FARSTEP_COMBINE
#undef FARSTEP_ARITHMETIC
#undef FARSTEP_BITWISE
#undef FARSTEP_DIVIDE

using Combine = void (*)(void*, const void*, const void*, std::size_t);

#ifdef FARSTEP_HALF_X86
// Where the processor converts halves itself: the same bits as the integer arithmetic above, in a fifth of the time.

inline bool has_half_conversion() noexcept { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }

#define FARSTEP_TARGET_HALF __attribute__((target("avx2,f16c")))

template <Reduction Op>
FARSTEP_TARGET_HALF inline __m256 apply_eight(__m256 a, __m256 b) {
    if constexpr (Op == Reduction::sum) return _mm256_add_ps(a, b);
    else if constexpr (Op == Reduction::product) return _mm256_mul_ps(a, b);
    const __m256 first = Op == Reduction::minimum ? _mm256_cmp_ps(a, b, _CMP_LT_OQ) : _mm256_cmp_ps(a, b, _CMP_GT_OQ);
    return _mm256_blendv_ps(b, a, _mm256_or_ps(first, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}

FARSTEP_TARGET_HALF inline __m128i narrow_eight(__m256 value) {
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    const __m128i is_nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), is_nan);
}

template <Reduction Op>
FARSTEP_TARGET_HALF inline void float16_combine_f16c(void* out, const void* left, const void* right, std::size_t n) {
    auto* o = static_cast<Float16*>(out);
    const auto *a = static_cast<const Float16*>(left), *b = static_cast<const Float16*>(right);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i)));
        const __m256 y = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(o + i), narrow_eight(apply_eight<Op>(x, y)));
    }
    for (; i < n; ++i) o[i] = Float16::narrow(apply<Op>(Float16::widen(a[i]), Float16::widen(b[i])));
}

FARSTEP_TARGET_HALF inline void float16_divide_f16c(void* values, std::size_t n, std::uint32_t divisor) {
    auto* v = static_cast<Float16*>(values);
    const __m256 by = _mm256_set1_ps(static_cast<float>(divisor));
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        auto* at = reinterpret_cast<__m128i*>(v + i);
        _mm_storeu_si128(at, narrow_eight(_mm256_div_ps(_mm256_cvtph_ps(_mm_loadu_si128(at)), by)));
    }
    divide_loop(v + i, n - i, divisor);
}
#undef FARSTEP_TARGET_HALF
#endif

/// The kernel of a reduction over halves; null if there is none.
inline Combine float16_kernel(Reduction op) {
    static const Combine portable[] = {float16_sum, float16_product, float16_minimum, float16_maximum};
    if (op > Reduction::maximum) return nullptr;
#ifdef FARSTEP_HALF_X86
    static const Combine native[] = {float16_combine_f16c<Reduction::sum>, float16_combine_f16c<Reduction::product>,
                                     float16_combine_f16c<Reduction::minimum>,
                                     float16_combine_f16c<Reduction::maximum>};
    if (has_half_conversion()) return native[static_cast<int>(op)];
#endif
    return portable[static_cast<int>(op)];
}

inline void float16_divide_best(void* values, std::size_t n, std::uint32_t divisor) {
#ifdef FARSTEP_HALF_X86
    if (has_half_conversion()) return float16_divide_f16c(values, n, divisor);
#endif
    float16_divide(values, n, divisor);
}

}  // namespace reduction

/// Bytes per element.
constexpr std::size_t element_bytes(ElementType type) {
    switch (type) {
        case ElementType::float64:
        case ElementType::int64:
            return 8;
        case ElementType::float32:
        case ElementType::int32:
            return 4;
        case ElementType::float16:
        case ElementType::bfloat16:
        case ElementType::int16:
            return 2;
        default:
            return 1;
    }
}

/// The kernel of a reduction over a type, or null where it has no meaning (bitwise on floating point).
inline reduction::Combine combine_kernel(ElementType type, Reduction op) {
    using namespace reduction;
#define FARSTEP_FLOAT_ROW(NAME) {NAME##_sum, NAME##_product, NAME##_minimum, NAME##_maximum, nullptr, nullptr, nullptr}
#define FARSTEP_INT_ROW(NAME)                                                                                  \
    {NAME##_sum, NAME##_product, NAME##_minimum, NAME##_maximum, NAME##_bit_and, NAME##_bit_or, NAME##_bit_xor}
    static const Combine table[num_element_types][num_reductions] = {
        FARSTEP_FLOAT_ROW(float32), FARSTEP_FLOAT_ROW(float64), FARSTEP_FLOAT_ROW(float16),
        FARSTEP_FLOAT_ROW(bfloat16), FARSTEP_INT_ROW(int8), FARSTEP_INT_ROW(int16), FARSTEP_INT_ROW(int32),
        FARSTEP_INT_ROW(int64), FARSTEP_INT_ROW(uint8),
        // Booleans are bytes of 0 or 1: a sum is true if any is, a product if all are.
        {uint8_bit_or, uint8_bit_and, uint8_bit_and, uint8_bit_or, uint8_bit_and, uint8_bit_or, uint8_bit_xor},
    };
#undef FARSTEP_FLOAT_ROW
#undef FARSTEP_INT_ROW
    if (type == ElementType::float16) return float16_kernel(op);
    return table[static_cast<int>(type)][static_cast<int>(op)];
}

/// Divides in place, rounding once; false for types without fractions.
inline bool divide_in_place(ElementType type, void* values, std::size_t count, std::uint32_t divisor) {
    switch (type) {
        case ElementType::float32:
            reduction::float32_divide(values, count, divisor);
            return true;
        case ElementType::float64:
            reduction::float64_divide(values, count, divisor);
            return true;
        case ElementType::float16:
            reduction::float16_divide_best(values, count, divisor);
            return true;
        case ElementType::bfloat16:
            reduction::bfloat16_divide(values, count, divisor);
            return true;
        default:
            return false;
    }
}

}  // namespace farstep
