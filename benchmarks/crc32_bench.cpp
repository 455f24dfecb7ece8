// Throughput of the invariant CRC: g++ -std=c++20 -O3 -Inative/include benchmarks/crc32_bench.cpp -o crc32_bench && ./crc32_bench
//
// Per size: checksum alone, checksum followed by memcpy, and the combined crc32_copy, for every variant of this machine.
// The working set cycles through `kSpan_bytes` so that the source is in L2 rather than L1, as behind a recvmmsg batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "farstep/wire.hpp"

namespace {

constexpr size_t kSpan_bytes = 256 * 1024;
uint32_t sink;

template <class F>
double best_gb_per_s(size_t bytes, size_t span_bytes, F&& f) {
    double best_ns = 1e18;
    for (int repeat = 0; repeat < 7; ++repeat) {
        const size_t slots = span_bytes / bytes, rounds = std::max<size_t>(1, (8u << 20) / (slots * bytes));
        const auto start = std::chrono::steady_clock::now();
        for (size_t r = 0; r < rounds; ++r)
            for (size_t i = 0; i < slots; ++i) sink ^= f(i * bytes);
        const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
        best_ns = std::min(best_ns, spent.count() / static_cast<double>(rounds * slots));
    }
    return static_cast<double>(bytes) / best_ns;
}

using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t) noexcept;
using Copy = uint32_t (*)(uint32_t, uint8_t*, const uint8_t*, size_t) noexcept;

void row(const char* variant, Update update, Copy copy, size_t bytes, size_t span, const uint8_t* src, uint8_t* dst) {
    const double alone = best_gb_per_s(bytes, span, [&](size_t at) { return update(~0u, src + at, bytes); });
    const double then_copy = best_gb_per_s(bytes, span, [&](size_t at) {
        const uint32_t crc = update(~0u, src + at, bytes);
        std::memcpy(dst + at, src + at, bytes);
        return crc + dst[at];
    });
    const double combined = best_gb_per_s(bytes, span, [&](size_t at) { return copy(~0u, dst + at, src + at, bytes); });
    const double plain_copy = best_gb_per_s(bytes, span, [&](size_t at) {
        std::memcpy(dst + at, src + at, bytes);
        return dst[at];
    });
    std::printf("%-8s %6zu B in %4zu KiB  crc %6.1f  crc+memcpy %6.1f  crc32_copy %6.1f  memcpy %6.1f GB/s\n", variant, bytes,
                span / 1024, alone, then_copy, combined, plain_copy);
}

}  // namespace

int main() {
    std::vector<uint8_t> source(64u << 20, 0x5A), target(64u << 20, 1);
    uint8_t* src = source.data() + (4096 - reinterpret_cast<uintptr_t>(source.data()) % 4096);
    uint8_t* dst = target.data() + (4096 - reinterpret_cast<uintptr_t>(target.data()) % 4096);
    for (const size_t span : {size_t{16 * 1024}, kSpan_bytes, size_t{32u << 20}})
        for (const size_t bytes : {36, 256, 1024, 4096, 8192}) {
            if (bytes < 1024 && span != 16 * 1024) continue;
            row("table", farstep::crc32_update_table, farstep::crc32_copy_table, bytes, span, src, dst);
#ifdef FARSTEP_CRC32_X86
            if (farstep::crc32_has_clmul())
                row("clmul", farstep::crc32_update_clmul, farstep::crc32_copy_clmul, bytes, span, src, dst);
            if (farstep::crc32_has_vclmul())
                row("vclmul", farstep::crc32_update_vclmul, farstep::crc32_copy_vclmul, bytes, span, src, dst);
#endif
        }
    return sink == 0x12345678;
}
