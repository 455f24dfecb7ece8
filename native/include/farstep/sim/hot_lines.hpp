// Which cache lines of a block a call is going to touch, so that they can be asked for ahead of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace farstep::sim {

/// Cache lines of a block that one kind of call touches, the same in every block.
class HotLines {
public:
    void add(const void* block, const void* address, size_t bytes) {
        if (bytes == 0) return;
        const auto at = static_cast<size_t>(static_cast<const std::byte*>(address) - static_cast<const std::byte*>(block));
        for (size_t line = at / 64; line <= (at + bytes - 1) / 64; ++line)
            if (!has(line * 64)) lines_.push_back(static_cast<uint32_t>(line * 64));
    }
    void prefetch(const void* block) const noexcept {
        if (!block) return;
        for (const uint32_t at : lines_) __builtin_prefetch(static_cast<const char*>(block) + at, 1);
    }
    void remove(const HotLines& others) {
        std::erase_if(lines_, [&](uint32_t at) { return others.has(at); });
    }
    size_t size() const noexcept { return lines_.size(); }

private:
    bool has(size_t at) const noexcept { return std::find(lines_.begin(), lines_.end(), at) != lines_.end(); }

    std::vector<uint32_t> lines_;
};

}  // namespace farstep::sim
