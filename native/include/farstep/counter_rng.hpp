// Counter-based random numbers: the n-th draw is a pure function of (seed, n).
//
// A scenario replays from its seed alone and two streams never share state. The mixing function is the
// finaliser of splitmix64 (Steele, Lea, Flood 2014) over a Weyl sequence of the counter.
#pragma once

#include <cstdint>

namespace farstep {

class CounterRng {
public:
    explicit constexpr CounterRng(uint64_t seed = 0) noexcept : seed_(mix(seed ^ 0x6A09E667F3BCC909ull)) {}

    // The draw at `counter`, whatever was drawn before.
    constexpr uint64_t at(uint64_t counter) const noexcept {
        return mix(seed_ + counter * 0x9E3779B97F4A7C15ull);
    }
    constexpr uint64_t next() noexcept { return at(counter_++); }

    // Uniform in [0, bound) by multiply-shift; the bias is below bound / 2^32 and irrelevant for path choice.
    constexpr uint32_t below(uint32_t bound) noexcept {
        return static_cast<uint32_t>(((next() >> 32) * bound) >> 32);
    }
    // Uniform in [0, 1).
    constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

    constexpr uint64_t counter() const noexcept { return counter_; }

private:
    static constexpr uint64_t mix(uint64_t z) noexcept {
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }

    uint64_t seed_;
    uint64_t counter_ = 0;
};

}  // namespace farstep
