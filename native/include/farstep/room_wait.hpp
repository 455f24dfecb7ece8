// When to try packets again that the peer refused for lack of room.
//
// Longer from refusal to refusal, and one packet at a time, since the oldest goes first and the others cannot fit before
// it does; twice as many from one success to the next.
#pragma once

#include <cstdint>

#include "farstep/config.hpp"

namespace farstep {

class RoomWait {
public:
    bool is_waiting() const noexcept { return until_ns_ != kNever; }
    uint64_t until_ns() const noexcept { return until_ns_; }

    /// `again`: it had been refused before.
    void on_refused(uint64_t now, bool again, uint64_t rtt_ns) noexcept {
        batch_ = 1;
        if (is_waiting() && !again) return;
        interval_ns_ = interval_ns_ ? 2 * interval_ns_ : 2 * rtt_ns;
        if (interval_ns_ < kMin_ns) interval_ns_ = kMin_ns;
        if (interval_ns_ > kMax_ns) interval_ns_ = kMax_ns;
        until_ns_ = now + interval_ns_;
    }
    /// The peer accepted something. True if more may be tried at once.
    bool on_progress() noexcept {
        if (!is_waiting()) {
            interval_ns_ = 0;
            return false;
        }
        if (batch_ < kMaxBatch_packets) batch_ *= 2;
        return true;
    }
    /// How many to try now; what is left over waits on.
    uint32_t take_batch() noexcept {
        until_ns_ = kNever;
        return batch_;
    }
    void wait_on(uint64_t now) noexcept { until_ns_ = now + interval_ns_; }
    void clear() noexcept { until_ns_ = kNever; }

private:
    static constexpr uint64_t kMin_ns = 1'000'000, kMax_ns = 100'000'000;
    static constexpr uint32_t kMaxBatch_packets = kMaxMpr * kMprUnit_packets;  // all there can be

    uint64_t until_ns_ = kNever, interval_ns_ = 0;
    uint32_t batch_ = 1;
};

}  // namespace farstep
