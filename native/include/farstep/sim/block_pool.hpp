// Blocks of one size, for the state of connections: a connection that is over leaves its block to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "farstep/sim/virtual_array.hpp"

namespace farstep::sim {

class BlockPool {
public:
    explicit BlockPool(size_t bytes) : bytes_((bytes + 63) & ~size_t{63}) {}
    size_t bytes() const noexcept { return bytes_; }
    void* take() {
        if (!free_.empty()) {
            void* p = free_.back();
            free_.pop_back();
            return p;
        }
        if (left_ == 0) {
            const size_t blocks = std::max<size_t>(1, Reservation::kHugePage_bytes * 4 / bytes_);
            chunks_.push_back(std::make_unique<Reservation>(blocks * bytes_));
            next_ = static_cast<std::byte*>(chunks_.back()->data());
            left_ = blocks;
        }
        void* p = next_;
        next_ += bytes_;
        --left_;
        return p;
    }
    void give(void* p) { free_.push_back(p); }

private:
    size_t bytes_, left_ = 0;
    std::byte* next_ = nullptr;
    std::vector<std::unique_ptr<Reservation>> chunks_;
    std::vector<void*> free_;
};

}  // namespace farstep::sim
