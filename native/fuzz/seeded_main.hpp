// Runs a fuzz target without a fuzzer: inputs are drawn from a seed, most of them changed copies of files in a corpus.
//
//   TARGET SEED ITERATIONS [FILE...]      exit 0: nothing found
//   TARGET replay FILE...                 each file once, as it is
//
// With a coverage-guided fuzzer (clang's libFuzzer, -DFARSTEP_LIBFUZZER) there is no main here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

#ifndef FARSTEP_LIBFUZZER

#include "farstep/counter_rng.hpp"

namespace fuzz {

using Bytes = std::vector<uint8_t>;

inline Bytes read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}
inline void change(farstep::CounterRng& rng, Bytes& d) {
    for (uint32_t n = 1 + rng.below(8); n; --n) {
        const uint32_t at = d.empty() ? 0 : rng.below(static_cast<uint32_t>(d.size()));
        switch (rng.below(6)) {
            case 0: if (!d.empty()) d[at] ^= static_cast<uint8_t>(1u << rng.below(8)); break;
            case 1: if (!d.empty()) d[at] = static_cast<uint8_t>(rng.next()); break;
            case 2: d.insert(d.begin() + at, static_cast<uint8_t>(rng.next())); break;
            case 3: if (!d.empty()) d.erase(d.begin() + at, d.begin() + at + 1 + rng.below(static_cast<uint32_t>(d.size()) - at)); break;
            case 4: for (uint32_t k = rng.below(40); k; --k) d.push_back(static_cast<uint8_t>(rng.next())); break;
            default: {  // a piece of it once more, somewhere else
                const Bytes piece(d.begin() + at, d.begin() + at + (d.empty() ? 0 : rng.below(static_cast<uint32_t>(d.size()) - at + 1)));
                d.insert(d.begin() + (d.empty() ? 0 : rng.below(static_cast<uint32_t>(d.size()))), piece.begin(), piece.end());
            }
        }
        if (d.size() > 4096) d.resize(4096);
    }
}
inline void once(const Bytes& input) {
    // In a block of exactly its size, so that a byte read too far is found.
    const std::vector<uint8_t> exact(input);
    (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace fuzz

int main(int argc, char** argv) {
    if (argc > 2 && std::strcmp(argv[1], "replay") == 0) {
        for (int k = 2; k < argc; ++k) fuzz::once(fuzz::read(argv[k]));
        return 0;
    }
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
    const uint64_t iterations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000;
    std::vector<fuzz::Bytes> corpus{{}};
    for (int k = 3; k < argc; ++k) corpus.push_back(fuzz::read(argv[k]));
    for (uint64_t n = 0; n < iterations; ++n) {
        farstep::CounterRng rng(seed * 1'000'003 + n);
        fuzz::Bytes input = corpus[rng.below(static_cast<uint32_t>(corpus.size()))];
        if (input.empty())
            for (uint32_t k = rng.below(600); k; --k) input.push_back(static_cast<uint8_t>(rng.next()));
        fuzz::change(rng, input);
        // What an abort leaves behind is enough to do it again.
        std::FILE* last = std::getenv("FARSTEP_FUZZ_LAST") ? std::fopen(std::getenv("FARSTEP_FUZZ_LAST"), "wb") : nullptr;
        if (last) {
            if (!input.empty()) std::fwrite(input.data(), 1, input.size(), last);
            std::fclose(last);
        }
        fuzz::once(input);
    }
    return 0;
}

#endif
