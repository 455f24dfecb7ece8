// Connections with something to do, served round-robin.
#pragma once

#include <cstdint>
#include <memory>

namespace farstep {

/// The caller keeps each number in it at most once, so that it never overflows. `capacity` is a power of two.
class ReadyRing {
public:
    explicit ReadyRing(uint32_t capacity) : mask_(capacity - 1), ring_(new uint32_t[capacity]) {}
    void push(uint32_t i) noexcept { ring_[tail_++ & mask_] = i; }
    bool pop(uint32_t& i) noexcept {
        if (head_ == tail_) return false;
        i = ring_[head_++ & mask_];
        return true;
    }
    uint32_t size() const noexcept { return tail_ - head_; }

private:
    uint32_t mask_, head_ = 0, tail_ = 0;
    std::unique_ptr<uint32_t[]> ring_;
};

}  // namespace farstep
