// Delivered rate of one congestion context, measured over packet-timed rounds.
//
// A round starts at a send and ends once everything in flight at that moment (and whatever else leaves before the next
// news comes back) has been acknowledged or given up. What was delivered in it, divided by the longest of {this round,
// the round before, base RTT}, never exceeds what the network carried: bytes in flight at the start of a round were all
// sent during the round before, so that round is the send-side duration of the same bytes. Acknowledgements that were
// held up by a descheduled thread therefore do not inflate the estimate.
#pragma once

#include <algorithm>
#include <cstdint>

namespace farstep {

// Largest sample of the last `kSlots` to `kSlots - 1` slots; a slot closes when enough busy rounds and enough
// busy time have gone into it, so idle time ages nothing.
class WindowedMax {
public:
    static constexpr uint32_t kSlots = 4;
    static constexpr uint32_t kRoundsPerSlot = 4;          // 12..16 rounds of memory
    static constexpr uint64_t kSlotNs = 50'000'000;        // and at least 150..200 ms: longer than a scheduling hiccup

    void add(double sample, uint64_t busy_ns, bool counts) noexcept {
        slots_[current_] = std::max(slots_[current_], sample);
        if (!counts) return;
        ++rounds_;
        busy_ns_ += busy_ns;
        if (rounds_ < kRoundsPerSlot || busy_ns_ < kSlotNs) return;
        rounds_ = 0;
        busy_ns_ = 0;
        current_ = (current_ + 1) % kSlots;
        slots_[current_] = sample;
    }
    double value() const noexcept { return *std::max_element(slots_, slots_ + kSlots); }

private:
    double slots_[kSlots] = {};
    uint32_t current_ = 0;
    uint32_t rounds_ = 0;
    uint64_t busy_ns_ = 0;
};

struct RateRound {
    double bytes_per_s = 0;      // delivered rate of the round
    uint64_t elapsed_ns = 0;
    uint64_t delivered_bytes = 0;
    uint64_t lost_bytes = 0;
    uint64_t marked_bytes = 0;   // delivered with an ECN mark
    bool window_limited = false; // the window, not the application, bounded this round
};

class RateEstimator {
public:
    // `inflight_bytes` includes this packet.
    void on_send(uint64_t now, int64_t inflight_bytes) noexcept {
        if (open_) {
            // A window that leaves in one go is one round, not its first packet.
            if (!heard_) to_resolve_ = inflight_bytes;
            return;
        }
        if (now > last_event_ns_ + previous_ns_) previous_ns_ = 0;   // the pipe ran empty in between
        open_ = true;
        heard_ = false;
        start_ns_ = now;
        to_resolve_ = inflight_bytes;
        first_rtt_ns_ = last_rtt_ns_;
        round_ = RateRound{};
    }
    void on_window_full() noexcept { round_.window_limited = true; }
    void on_loss(uint64_t now, uint32_t bytes) noexcept {
        round_.lost_bytes += bytes;
        to_resolve_ -= bytes;
        heard_ = true;
        last_event_ns_ = now;
    }
    // A loss that was none: the same bytes will be reported as delivered.
    void on_loss_undone(uint32_t bytes) noexcept {
        if (round_.lost_bytes < bytes) return;   // declared in an earlier round
        round_.lost_bytes -= bytes;
        to_resolve_ += bytes;
    }
    void on_rtt(uint64_t rtt_ns) noexcept { last_rtt_ns_ = rtt_ns; }
    void abandon_round() noexcept { open_ = false; }

    // True when this acknowledgement closes a round; `out` then describes it.
    bool on_delivered(uint64_t now, uint32_t bytes, bool marked, uint64_t base_rtt_ns, RateRound& out) noexcept {
        round_.delivered_bytes += bytes;
        if (marked) round_.marked_bytes += bytes;
        to_resolve_ -= bytes;
        heard_ = true;
        last_event_ns_ = now;
        if (!open_ || to_resolve_ > 0) return false;
        open_ = false;
        round_.elapsed_ns = now > start_ns_ ? now - start_ns_ : 0;
        // Answers that wait less and less in the queue of the other direction come faster than what they answer was sent.
        const uint64_t hastened_ns = first_rtt_ns_ > last_rtt_ns_ ? first_rtt_ns_ - last_rtt_ns_ : 0;
        const uint64_t divisor = std::max<uint64_t>({round_.elapsed_ns + hastened_ns, previous_ns_, base_rtt_ns, 1});
        round_.bytes_per_s = static_cast<double>(round_.delivered_bytes) * 1e9 / static_cast<double>(divisor);
        previous_ns_ = round_.elapsed_ns;
        best_.add(round_.bytes_per_s, round_.elapsed_ns, round_.window_limited);
        out = round_;
        return true;
    }

    double bytes_per_s() const noexcept { return best_.value(); }

private:
    WindowedMax best_;
    RateRound round_;
    int64_t to_resolve_ = 0;   // bytes in flight when the round began and not yet accounted for
    uint64_t start_ns_ = 0, previous_ns_ = 0, last_event_ns_ = 0;
    uint64_t first_rtt_ns_ = 0, last_rtt_ns_ = 0;
    bool open_ = false;
    bool heard_ = false;        // of any packet since the round began
};

}  // namespace farstep
