// State changes of EVs on their way to the controller. Never overruns: what finds no room is counted.
#pragma once

#include <cstdint>

#include "farstep/ev_types.hpp"

namespace farstep {

class EvEvents {
public:
    void push(const EvEvent& event) noexcept {
        if (count_ == kMaxEvEvents) {
            ++dropped_;
            return;
        }
        ring_[(head_ + count_++) % kMaxEvEvents] = event;
    }
    bool poll(EvEvent& out) noexcept {
        if (count_ == 0) return false;
        out = ring_[head_];
        head_ = (head_ + 1) % kMaxEvEvents;
        --count_;
        return true;
    }
    uint64_t dropped() const noexcept { return dropped_; }

private:
    EvEvent ring_[kMaxEvEvents];
    uint32_t head_ = 0, count_ = 0;
    uint64_t dropped_ = 0;
};

}  // namespace farstep
