// CRC-32 (Ethernet polynomial, reflected, as in the RoCEv2 invariant CRC), one byte-exact answer from three speeds.
//
// All functions work on the raw, uninverted register: start from 0xFFFFFFFF (or a seed), feed bytes, invert at the end.
// A checksum sits on the per-byte path of the transport, so the widest carry-less multiplier of the machine is chosen
// once at the first call. Folding constants are computed here rather than quoted; static_asserts tie them to the
// values published for the 128-bit method (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel 2009).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

// -DFARSTEP_CRC32_PORTABLE leaves the table variant alone, as on other processors.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(FARSTEP_CRC32_PORTABLE)
#define FARSTEP_CRC32_X86 1
// GCC 12 takes the deliberately undefined operand inside its own AVX-512 wrappers for a bug of the caller.
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

namespace crc32_detail {

inline constexpr uint32_t kPolynomial = 0x04C11DB7u;           // normal order, x^32 implied
inline constexpr uint32_t kPolynomialReflected = 0xEDB88320u;  // the same, least significant bit first

using SlicingTable = std::array<std::array<uint32_t, 256>, 8>;

constexpr SlicingTable make_slicing_table() {
    SlicingTable t{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1u) ? kPolynomialReflected : 0u);
        t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
        for (size_t s = 1; s < 8; ++s) t[s][i] = (t[s - 1][i] >> 8) ^ t[0][t[s - 1][i] & 0xFFu];
    return t;
}
inline constexpr SlicingTable kTable = make_slicing_table();

constexpr uint32_t reflect32(uint32_t v) {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) r |= ((v >> i) & 1u) << (31 - i);
    return r;
}

// x^n modulo the polynomial, in the shifted reflected form that the folding multiply expects.
constexpr uint64_t fold_constant(unsigned n) {
    uint32_t r = 1;
    for (unsigned i = 0; i < n; ++i) r = (r << 1) ^ ((r & 0x80000000u) ? kPolynomial : 0u);
    return static_cast<uint64_t>(reflect32(r)) << 1;
}

// Multipliers for the two halves of a 128-bit lane.
struct Pair {
    int64_t low, high;
};
// They move a lane `bits` further along the message.
constexpr Pair fold_by(unsigned bits) {
    return {static_cast<int64_t>(fold_constant(bits + 32)), static_cast<int64_t>(fold_constant(bits - 32))};
}
inline constexpr Pair kFold128 = fold_by(128), kFold256 = fold_by(256), kFold384 = fold_by(384),
                      kFold512 = fold_by(512), kFold2048 = fold_by(2048);
inline constexpr Pair kFold64 = {static_cast<int64_t>(fold_constant(64)), 0};
// The reflected polynomial with its leading one, and floor(x^64 / polynomial), reflected.
inline constexpr Pair kBarrett = {0x1db710641, 0x1f7011641};

static_assert(kFold512.low == 0x154442bd4 && kFold512.high == 0x1c6e41596);
static_assert(kFold128.low == 0x1751997d0 && kFold128.high == 0x0ccaa009e);
static_assert(kFold64.low == 0x163cd6124);

inline uint32_t load_le32(const uint8_t* p) noexcept {
    return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
           static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace crc32_detail

/// Portable variant: eight table look-ups per eight bytes.
inline uint32_t crc32_update_table(uint32_t crc, const uint8_t* data, size_t bytes) noexcept {
    using namespace crc32_detail;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        const uint32_t a = crc ^ load_le32(data), b = load_le32(data + 4);
        crc = kTable[7][a & 0xFF] ^ kTable[6][(a >> 8) & 0xFF] ^ kTable[5][(a >> 16) & 0xFF] ^ kTable[4][a >> 24] ^
              kTable[3][b & 0xFF] ^ kTable[2][(b >> 8) & 0xFF] ^ kTable[1][(b >> 16) & 0xFF] ^ kTable[0][b >> 24];
    }
    for (; bytes; --bytes) crc = (crc >> 8) ^ kTable[0][(crc ^ *data++) & 0xFF];
    return crc;
}

inline uint32_t crc32_copy_table(uint32_t crc, uint8_t* dst, const uint8_t* src, size_t bytes) noexcept {
    if (bytes) std::memcpy(dst, src, bytes);
    return crc32_update_table(crc, src, bytes);
}

#ifdef FARSTEP_CRC32_X86
namespace crc32_detail {

#define FARSTEP_TARGET_CLMUL __attribute__((target("sse4.1,pclmul")))
#define FARSTEP_TARGET_VCLMUL __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.1")))

FARSTEP_TARGET_CLMUL inline __m128i load128(const uint8_t* p) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

FARSTEP_TARGET_CLMUL inline __m128i pair128(const Pair& k) noexcept { return _mm_set_epi64x(k.high, k.low); }

FARSTEP_TARGET_CLMUL inline __m128i fold128(__m128i lane, __m128i k, __m128i next) noexcept {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, k, 0x00), _mm_clmulepi64_si128(lane, k, 0x11)), next);
}

// 128 folded bits -> the 32-bit register (64-bit step, 32-bit step, Barrett).
FARSTEP_TARGET_CLMUL inline uint32_t reduce128(__m128i x) noexcept {
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i k128 = pair128(kFold128);
    const __m128i k64 = pair128(kFold64);
    const __m128i barrett = pair128(kBarrett);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, k128, 0x10));
    x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low32), k64, 0x00));
    __m128i q = _mm_clmulepi64_si128(_mm_and_si128(x, low32), barrett, 0x10);
    q = _mm_clmulepi64_si128(_mm_and_si128(q, low32), barrett, 0x00);
    return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(x, q), 1));
}

template <bool kCopy>
FARSTEP_TARGET_CLMUL inline uint32_t run_clmul(uint32_t crc, uint8_t* dst, const uint8_t* src, size_t bytes) noexcept {
    if (bytes < 16) {
        if (kCopy && bytes) std::memcpy(dst, src, bytes);
        return crc32_update_table(crc, src, bytes);
    }
    const auto next = [&]() FARSTEP_TARGET_CLMUL {
        const __m128i v = load128(src);
        if (kCopy) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), v);
            dst += 16;
        }
        src += 16;
        bytes -= 16;
        return v;
    };
    const __m128i k128 = pair128(kFold128);
    __m128i x0 = _mm_xor_si128(next(), _mm_cvtsi32_si128(static_cast<int>(crc)));
    if (bytes >= 112) {
        const __m128i k512 = pair128(kFold512);
        __m128i x1 = next(), x2 = next(), x3 = next();
        while (bytes >= 64) {
            x0 = fold128(x0, k512, next());
            x1 = fold128(x1, k512, next());
            x2 = fold128(x2, k512, next());
            x3 = fold128(x3, k512, next());
        }
        x0 = fold128(fold128(fold128(x0, k128, x1), k128, x2), k128, x3);
    }
    while (bytes >= 16) x0 = fold128(x0, k128, next());
    crc = reduce128(x0);
    if (bytes) {
        if (kCopy) std::memcpy(dst, src, bytes);
        crc = crc32_update_table(crc, src, bytes);
    }
    return crc;
}

FARSTEP_TARGET_VCLMUL inline __m512i fold512(__m512i lane, __m512i k, __m512i next) noexcept {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lane, k, 0x00), _mm512_clmulepi64_epi128(lane, k, 0x11),
                                     next, 0x96);
}

template <bool kCopy>
FARSTEP_TARGET_VCLMUL inline uint32_t run_vclmul(uint32_t crc, uint8_t* dst, const uint8_t* src,
                                                 size_t bytes) noexcept {
    if (bytes < 256) return run_clmul<kCopy>(crc, dst, src, bytes);
    const auto next = [&](size_t lane) FARSTEP_TARGET_VCLMUL {
        const __m512i v = _mm512_loadu_si512(src + 64 * lane);
        if (kCopy) _mm512_storeu_si512(dst + 64 * lane, v);
        return v;
    };
    const auto advance = [&](size_t lanes) {
        src += 64 * lanes;
        if (kCopy) dst += 64 * lanes;
        bytes -= 64 * lanes;
    };
    const __m512i k2048 = _mm512_broadcast_i32x4(pair128(kFold2048));
    const __m512i k512 = _mm512_broadcast_i32x4(pair128(kFold512));
    const __m512i seed = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
    __m512i x0 = _mm512_xor_si512(next(0), seed), x1 = next(1), x2 = next(2), x3 = next(3);
    advance(4);
    while (bytes >= 256) {
        x0 = fold512(x0, k2048, next(0));
        x1 = fold512(x1, k2048, next(1));
        x2 = fold512(x2, k2048, next(2));
        x3 = fold512(x3, k2048, next(3));
        advance(4);
    }
    x0 = fold512(fold512(fold512(x0, k512, x1), k512, x2), k512, x3);
    while (bytes >= 64) {
        x0 = fold512(x0, k512, next(0));
        advance(1);
    }
    // The four 128-bit lanes are 384, 256, 128 and 0 bits from the end: one multiply moves three of them at once.
    const __m512i to_end = _mm512_set_epi64(0, 0, kFold128.high, kFold128.low, kFold256.high, kFold256.low,
                                            kFold384.high, kFold384.low);
    const __m512i moved = _mm512_xor_si512(_mm512_clmulepi64_epi128(x0, to_end, 0x00),
                                           _mm512_clmulepi64_epi128(x0, to_end, 0x11));
    __m128i x = _mm_xor_si128(_mm_xor_si128(_mm512_castsi512_si128(moved), _mm512_extracti32x4_epi32(moved, 1)),
                              _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2), _mm512_extracti32x4_epi32(x0, 3)));
    const __m128i k128 = pair128(kFold128);
    for (; bytes >= 16; src += 16, bytes -= 16) {
        const __m128i v = load128(src);
        if (kCopy) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), v);
            dst += 16;
        }
        x = fold128(x, k128, v);
    }
    crc = reduce128(x);
    if (bytes) {
        if (kCopy) std::memcpy(dst, src, bytes);
        crc = crc32_update_table(crc, src, bytes);
    }
    return crc;
}

}  // namespace crc32_detail

inline bool crc32_has_clmul() noexcept { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
inline bool crc32_has_vclmul() noexcept {
    return crc32_has_clmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq");
}

FARSTEP_TARGET_CLMUL inline uint32_t crc32_update_clmul(uint32_t crc, const uint8_t* data, size_t bytes) noexcept {
    return crc32_detail::run_clmul<false>(crc, nullptr, data, bytes);
}
FARSTEP_TARGET_CLMUL inline uint32_t crc32_copy_clmul(uint32_t crc, uint8_t* dst, const uint8_t* src,
                                                      size_t bytes) noexcept {
    return crc32_detail::run_clmul<true>(crc, dst, src, bytes);
}
FARSTEP_TARGET_VCLMUL inline uint32_t crc32_update_vclmul(uint32_t crc, const uint8_t* data, size_t bytes) noexcept {
    return crc32_detail::run_vclmul<false>(crc, nullptr, data, bytes);
}
FARSTEP_TARGET_VCLMUL inline uint32_t crc32_copy_vclmul(uint32_t crc, uint8_t* dst, const uint8_t* src,
                                                        size_t bytes) noexcept {
    return crc32_detail::run_vclmul<true>(crc, dst, src, bytes);
}
#else
inline bool crc32_has_clmul() noexcept { return false; }
inline bool crc32_has_vclmul() noexcept { return false; }
#endif

namespace crc32_detail {

using UpdateFn = uint32_t (*)(uint32_t, const uint8_t*, size_t) noexcept;
using CopyFn = uint32_t (*)(uint32_t, uint8_t*, const uint8_t*, size_t) noexcept;

uint32_t resolve_update(uint32_t crc, const uint8_t* data, size_t bytes) noexcept;
uint32_t resolve_copy(uint32_t crc, uint8_t* dst, const uint8_t* src, size_t bytes) noexcept;

// Constant-initialised to a resolver that replaces itself, so a call from another static initialiser works too.
// Every thread would store the same value; relaxed order is enough.
inline std::atomic<UpdateFn> active_update{&resolve_update};
inline std::atomic<CopyFn> active_copy{&resolve_copy};

inline uint32_t resolve_update(uint32_t crc, const uint8_t* data, size_t bytes) noexcept {
    UpdateFn best = &crc32_update_table;
#ifdef FARSTEP_CRC32_X86
    if (crc32_has_vclmul()) best = &crc32_update_vclmul;
    else if (crc32_has_clmul()) best = &crc32_update_clmul;
#endif
    active_update.store(best, std::memory_order_relaxed);
    return best(crc, data, bytes);
}

inline uint32_t resolve_copy(uint32_t crc, uint8_t* dst, const uint8_t* src, size_t bytes) noexcept {
    CopyFn best = &crc32_copy_table;
#ifdef FARSTEP_CRC32_X86
    if (crc32_has_vclmul()) best = &crc32_copy_vclmul;
    else if (crc32_has_clmul()) best = &crc32_copy_clmul;
#endif
    active_copy.store(best, std::memory_order_relaxed);
    return best(crc, dst, src, bytes);
}

}  // namespace crc32_detail

/// Feeds `bytes` bytes to the raw (uninverted) register and returns the new register.
inline uint32_t crc32_update(uint32_t crc, const uint8_t* data, size_t bytes) noexcept {
    return crc32_detail::active_update.load(std::memory_order_relaxed)(crc, data, bytes);
}

/// crc32_update over `src` that also copies it to `dst` (no overlap), reading every byte once.
inline uint32_t crc32_copy(uint32_t crc, uint8_t* dst, const uint8_t* src, size_t bytes) noexcept {
    return crc32_detail::active_copy.load(std::memory_order_relaxed)(crc, dst, src, bytes);
}

}  // namespace farstep
