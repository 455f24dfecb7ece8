// How fast to send where nobody said how fast the way to the destination is.
//
// A window alone lets a queue stand. Acknowledgements wait in the queue of the other direction, so two windows that face
// each other divide the line in proportion to their sizes, and the one that is ahead for a moment starves the other. At
// the line's own pace there is no queue, and how wide a window is matters little. The pace is the largest rate delivered
// in the last few intervals, each long enough for a late host not to matter; now and then one interval goes faster to see
// whether more arrives, and the next lets drain what that left in the queues. After BBR (Cardwell et al., 2016), with
// intervals of time instead of rounds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace farstep {

class PaceLearner {
public:
    static constexpr uint64_t kIntervalNs = 40'000'000;     // a host that sleeps for 4 ms shifts the rate by a tenth
    static constexpr uint64_t kIntervalRtts = 2;
    static constexpr uint32_t kMemory = 10;                 // intervals whose largest rate counts: more than between two probes
    static constexpr uint32_t kProbeEvery = 8;              // intervals
    static constexpr double kProbeGain = 1.2, kProbeGrowth = 1.25, kProbeGainMax = 2;
    static constexpr double kDrainGain = 0.8;               // after a probe that found nothing
    static constexpr double kSettleGain = 0.9;              // after an interval with a full window or a standing queue
    static constexpr double kPacedShare = 0.93;             // of the pace was sent: the application kept up with it
    static constexpr uint64_t kLeastBytes = 32'768;         // per interval: never so slow that nothing more is learned
    static constexpr double kFastestBytes_per_s = 125e6;    // beyond, the host is the limit and its timers too coarse
    // Even the quickest answer of an interval waited this long, or a 16th of the round trip: it met a queue. Four times as
    // long: more than a probe leaves, so something should be done about it.
    static constexpr uint64_t kQueueMinNs = 1'000'000;

    // `full`: so is the window, with this packet. `alone`: nothing else is in flight.
    void on_send(uint64_t now, uint32_t bytes, bool full, bool alone) noexcept {
        // Longer than the pace held it back: the application had nothing to send.
        if (alone && now - last_send_ns_ > kIntervalNs / 8 + held_ns_) start(now);
        last_send_ns_ = now;
        held_ns_ = pace_ > 0 ? static_cast<uint64_t>(bytes * 1e9 / pace_) : 0;
        sent_bytes_ += bytes;
        if (full) full_bytes_ += bytes;
    }
    void on_loss(uint32_t bytes) noexcept { lost_bytes_ += bytes; }
    void on_rtt(uint64_t rtt_ns) noexcept {
        least_rtt_ns_ = std::min(least_rtt_ns_, rtt_ns);
        last_rtt_ns_ = rtt_ns;
    }
    void on_delivered(uint64_t now, uint32_t bytes, uint64_t base_rtt_ns) noexcept {
        delivered_bytes_ += bytes;
        if (now - start_ns_ < interval_ns(base_rtt_ns)) return;
        judge(now, base_rtt_ns);
        start(now);
    }

    double bytes_per_s() const noexcept { return pace_; }   // 0 = as fast as the window allows
    // The pace, and not the application, bounded the last interval.
    bool is_limiting() const noexcept { return is_limiting_; }

private:
    void start(uint64_t now) noexcept {
        start_ns_ = now;
        sent_bytes_ = full_bytes_ = lost_bytes_ = delivered_bytes_ = 0;
        first_rtt_ns_ = last_rtt_ns_;
        least_rtt_ns_ = UINT64_MAX;
    }
    static uint64_t interval_ns(uint64_t base_rtt_ns) noexcept { return std::max(kIntervalNs, kIntervalRtts * base_rtt_ns); }
    static uint64_t least_queue_ns(uint64_t base_rtt_ns) noexcept { return std::max(base_rtt_ns / 16, kQueueMinNs); }
    double delivered_rate(uint64_t now, uint64_t base_rtt_ns) const noexcept {
        // What a bad line loses went through it; what a full buffer drops did not.
        const bool is_queued = least_rtt_ns_ > base_rtt_ns + least_queue_ns(base_rtt_ns);
        // Answers that wait less and less come faster than what they answer was sent.
        const uint64_t hastened_ns = first_rtt_ns_ > last_rtt_ns_ ? first_rtt_ns_ - last_rtt_ns_ : 0;
        return static_cast<double>(delivered_bytes_ + (is_queued ? 0 : lost_bytes_)) * 1e9 /
               static_cast<double>(now - start_ns_ + hastened_ns);
    }
    void judge(uint64_t now, uint64_t base_rtt_ns) noexcept {
        const double rate = delivered_rate(now, base_rtt_ns);
        const double elapsed_s = static_cast<double>(now - start_ns_) * 1e-9;
        const double before = *std::max_element(recent_, recent_ + kMemory);
        is_limiting_ = pace_ > 0 && static_cast<double>(sent_bytes_) >= kPacedShare * pace_ * elapsed_s;
        const bool filled = 2 * full_bytes_ >= sent_bytes_;
        const bool stands = least_rtt_ns_ != UINT64_MAX && least_rtt_ns_ > base_rtt_ns + 4 * least_queue_ns(base_rtt_ns);
        // A slow application says nothing about the line, and neither does an outage.
        if (rate > before || ((is_limiting_ || filled) && lost_bytes_ <= delivered_bytes_)) {
            recent_[at_] = rate;
            at_ = (at_ + 1) % kMemory;
        }
        ++intervals_;
        if (gain_ > 1) {
            // Half of what was added arrives: there is more, and the next step may be larger.
            gain_ = rate >= (1 + gain_) / 2 * before ? std::min(kProbeGrowth * gain_, kProbeGainMax) : kDrainGain;
        } else if (gain_ < 1) {
            gain_ = 1;
        } else if (is_limiting_ && intervals_ >= kProbeEvery) {
            gain_ = kProbeGain;
            intervals_ = 0;
        } else if (filled || stands) {
            gain_ = kSettleGain;
        }
        const double best = *std::max_element(recent_, recent_ + kMemory);
        // Of an interval as it should be: one that an outage drew out says nothing about how much is needed to learn.
        const double least = static_cast<double>(kLeastBytes) * 1e9 / static_cast<double>(interval_ns(base_rtt_ns));
        pace_ = best > kFastestBytes_per_s ? 0 : std::max(gain_ * best, least);
    }

    double pace_ = 0, gain_ = 1;
    uint64_t last_send_ns_ = 0, held_ns_ = 0, start_ns_ = 0;
    uint64_t sent_bytes_ = 0, full_bytes_ = 0, lost_bytes_ = 0, delivered_bytes_ = 0;
    uint64_t first_rtt_ns_ = 0, last_rtt_ns_ = 0, least_rtt_ns_ = UINT64_MAX;
    double recent_[kMemory] = {};
    uint32_t at_ = 0, intervals_ = 0;
    bool is_limiting_ = false;
};

}  // namespace farstep
