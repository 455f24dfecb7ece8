// All CRC-32 variants against a bit-by-bit reference: every length up to 300 at every alignment to 64, then every length up
// to 600 and random longer ones at random alignments, in one piece and in two.
//
//   crc32_test SEED ITERATIONS      exit 0: nothing found
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "farstep/crc32.hpp"

namespace {

uint32_t bit_by_bit(uint32_t crc, const uint8_t* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0u);
    }
    return crc;
}

struct Variant {
    const char* name;
    uint32_t (*update)(uint32_t, const uint8_t*, size_t) noexcept;
    uint32_t (*copy)(uint32_t, uint8_t*, const uint8_t*, size_t) noexcept;
};

std::vector<Variant> variants() {
    std::vector<Variant> all = {{"chosen", farstep::crc32_update, farstep::crc32_copy},
                                {"table", farstep::crc32_update_table, farstep::crc32_copy_table}};
#ifdef FARSTEP_CRC32_X86
    if (farstep::crc32_has_clmul())
        all.push_back({"clmul", farstep::crc32_update_clmul, farstep::crc32_copy_clmul});
    if (farstep::crc32_has_vclmul())
        all.push_back({"vclmul", farstep::crc32_update_vclmul, farstep::crc32_copy_vclmul});
#endif
    return all;
}

uint64_t state;
uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int fail(const char* what, const char* variant, size_t bytes, size_t offset, unsigned long long seed,
         unsigned long long iterations) {
    std::printf("%s of %s differs: %zu bytes at offset %zu\nseed %llu\nreproduce: crc32_test %llu %llu\n", what, variant,
                bytes, offset, seed, seed, iterations);
    return 1;
}

constexpr size_t kEveryLength = 300, kAlignments = 64;
bool agree_at_every_alignment(const std::vector<Variant>& all) {
    const std::unique_ptr<uint8_t[]> content(new uint8_t[kEveryLength]);
    for (size_t j = 0; j < kEveryLength; ++j) content[j] = static_cast<uint8_t>(next());
    uint32_t expected = ~0u;
    for (size_t bytes = 0; bytes < kEveryLength; ++bytes) {
        if (bytes) expected = bit_by_bit(expected, content.get() + bytes - 1, 1);
        for (size_t offset = 0; offset < kAlignments; ++offset) {
            const std::unique_ptr<uint8_t[], void (*)(void*)> source(
                static_cast<uint8_t*>(std::aligned_alloc(kAlignments, (offset + bytes + kAlignments) / kAlignments * kAlignments)),
                std::free);
            uint8_t target[kEveryLength];
            std::memcpy(source.get() + offset, content.get(), bytes);
            for (const Variant& v : all) {
                const bool same = v.update(~0u, source.get() + offset, bytes) == expected &&
                                  v.copy(~0u, target, source.get() + offset, bytes) == expected &&
                                  std::memcmp(target, content.get(), bytes) == 0;
                if (same) continue;
                std::printf("%s differs: %zu bytes at alignment %zu\n", v.name, bytes, offset);
                return false;
            }
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned long long seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const unsigned long long iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000;
    state = seed * 0x9E3779B97F4A7C15u + 1;
    const std::vector<Variant> all = variants();
    if (!agree_at_every_alignment(all)) return 1;
    for (unsigned long long i = 0; i < iterations; ++i) {
        const size_t bytes = i < 600 ? i : next() % 9000, offset = next() % 64;
        // Exactly sized on both sides: an over-read or over-write ends the run under AddressSanitizer.
        const std::unique_ptr<uint8_t[]> source(new uint8_t[offset + bytes]), target(new uint8_t[offset + bytes]);
        for (size_t j = 0; j < offset + bytes; ++j) source[j] = static_cast<uint8_t>(next());
        const uint32_t crc = static_cast<uint32_t>(next()), expected = bit_by_bit(crc, source.get() + offset, bytes);
        for (const Variant& v : all) {
            if (v.update(crc, source.get() + offset, bytes) != expected)
                return fail("checksum", v.name, bytes, offset, seed, i + 1);
            std::memset(target.get(), 0, offset + bytes);
            if (v.copy(crc, target.get() + offset, source.get() + offset, bytes) != expected ||
                (bytes && std::memcmp(target.get() + offset, source.get() + offset, bytes) != 0))
                return fail("copy", v.name, bytes, offset, seed, i + 1);
            const size_t split = bytes ? next() % bytes : 0;
            if (v.update(v.update(crc, source.get() + offset, split), source.get() + offset + split, bytes - split) != expected)
                return fail("split checksum", v.name, bytes, offset, seed, i + 1);
        }
    }
    return 0;
}
