// Which packets the receiving end has, in any order.
#pragma once

#include <cassert>
#include <cstdint>

#include "farstep/storage.hpp"

namespace farstep::sim {

class ReceiveWindow {
public:
    /// `span`, a power of two of at least 64: how far packets may be ahead of the first that is missing.
    ReceiveWindow(uint32_t span, Arena* arena) : words_(span / 64, arena), mask_(span - 1) {
        assert((span & mask_) == 0 && span >= 64);
    }

    uint32_t expected() const noexcept { return expected_; }  // the first that is missing
    uint32_t num_early() const noexcept { return num_early_; }  // received beyond it
    bool has(uint32_t sequence) const noexcept {
        return sequence < expected_ || (sequence - expected_ <= mask_ && bit(sequence));
    }
    /// True when it is new.
    bool receive(uint32_t sequence) noexcept {
        if (has(sequence)) return false;
        assert(sequence - expected_ <= mask_);
        if (sequence != expected_) {
            words_[(sequence & mask_) >> 6] |= 1ull << (sequence & 63);
            ++num_early_;
            return true;
        }
        for (++expected_; num_early_ && bit(expected_); ++expected_) {
            words_[(expected_ & mask_) >> 6] &= ~(1ull << (expected_ & 63));
            --num_early_;
        }
        return true;
    }
    /// Bit i: base + i was received. Only for base >= expected().
    uint64_t bitmap(uint32_t base) const noexcept {
        if (num_early_ == 0) return 0;
        const uint32_t word = (base & mask_) >> 6, shift = base & 63;
        const uint64_t low = words_[word] >> shift;
        const uint64_t high = shift ? words_[(word + 1) & (mask_ >> 6)] << (64 - shift) : 0;
        uint64_t bits = low | high;
        // The ring may already hold the other side of the first missing packet where the bitmap reaches around.
        const uint32_t valid = mask_ + 1 - (base - expected_);
        return valid < 64 ? bits & ((1ull << valid) - 1) : bits;
    }

private:
    bool bit(uint32_t sequence) const noexcept { return words_[(sequence & mask_) >> 6] >> (sequence & 63) & 1; }

    Table<uint64_t> words_;
    uint32_t mask_;
    uint32_t expected_ = 0, num_early_ = 0;
};

}  // namespace farstep::sim
