// State changes of EVs on their way to the controller. Never overruns: what finds no room is counted.
#pragma once

#include <cstdint>

#include "farstep/ev_types.hpp"
#include "farstep/storage.hpp"

namespace farstep {

class EvEvents {
public:
    EvEvents(uint32_t capacity, Arena* arena) : capacity_(capacity), ring_(capacity, arena) {}

    void push(const EvEvent& event) noexcept {
        if (count_ == capacity_) {
            ++dropped_;
            return;
        }
        ring_[(head_ + count_++) % capacity_] = event;
    }
    bool poll(EvEvent& out) noexcept {
        if (count_ == 0) return false;
        out = ring_[head_];
        head_ = (head_ + 1) % capacity_;
        --count_;
        return true;
    }
    uint64_t dropped() const noexcept { return dropped_; }

private:
    uint32_t capacity_;
    Table<EvEvent> ring_;
    uint32_t head_ = 0, count_ = 0;
    uint64_t dropped_ = 0;
};

}  // namespace farstep
