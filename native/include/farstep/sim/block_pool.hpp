// Blocks of one size, for the state of connections: a connection that is over leaves its block to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "farstep/sim/virtual_array.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

class BlockPool {
public:
    /// `huge`: in huge pages, as suits what is walked at random; else resident in small ones, where it is touched.
    explicit BlockPool(size_t bytes, bool huge = true) : bytes_((bytes + 63) & ~size_t{63}), is_huge_(huge) {}
    size_t bytes() const noexcept { return bytes_; }
    void* take() {
        if (!free_.empty()) {
            void* p = free_.back();
            free_.pop_back();
            return p;
        }
        if (left_ == 0) {
            const size_t blocks = std::max<size_t>(1, Reservation::kHugePage_bytes * 4 / bytes_);
            chunks_.push_back(std::make_unique<Reservation>(blocks * bytes_, is_huge_));
            next_ = static_cast<std::byte*>(chunks_.back()->data());
            left_ = blocks;
        }
        void* p = next_;
        next_ += bytes_;
        --left_;
        return p;
    }
    /// A block that is zero all over. One that was used and never written is not written now either.
    void* take_zeroed() {
        const bool is_new = free_.empty();  // not even read: some systems make memory resident for that
        auto* const p = static_cast<std::byte*>(take());
        if (is_new) return p;
        if (std::any_of(p, p + bytes_, [](std::byte b) { return b != std::byte{0}; })) std::fill(p, p + bytes_, std::byte{0});
        return p;
    }
    void give(void* p) { free_.push_back(p); }

private:
    size_t bytes_, left_ = 0;
    bool is_huge_;
    std::byte* next_ = nullptr;
    std::vector<std::unique_ptr<Reservation>> chunks_;
    std::vector<void*> free_;
};

/// Where ends of connections of one kind are laid out: a block each for what is walked, and one for cold tables.
class EndBlocks {
public:
    EndBlocks(size_t bytes, size_t cold_bytes) : hot_(bytes), cold_(cold_bytes, /*huge=*/false) {}
    size_t bytes() const noexcept { return hot_.bytes(); }
    void* take() { return hot_.take(); }
    /// A block for the cold tables of an end that is about to be laid out by this arena.
    void* take_cold(Arena& arena) {
        void* const p = cold_.take_zeroed();
        arena.use_cold(p, cold_.bytes());
        return p;
    }
    void give(void* end, void* cold) {
        hot_.give(end);
        cold_.give(cold);
    }

private:
    BlockPool hot_, cold_;
};

}  // namespace farstep::sim
