// Which plane carries the next burst.
//
// Equal: the plane that has been given the fewest bytes, so healthy planes carry exactly the same load.
// Capacity: the plane with the least (in flight + burst / 2) / weight; half, because what counts is the mean between
// bursts, and the whole would starve light planes of their share by rounding. Weights follow delivered bytes x (smallest
// round trip + what every plane waits at present), among planes that were busy throughout a window: a saturated plane
// delivers its capacity however much is queued on it, one that is not delivers what it was given, so the weights settle
// where planes differ in what they carry and not in what they queue. Without the common wait, a light plane whose
// answers stand behind traffic of the other direction would be told by its round trip, not by its rate, and given less
// and less. As long as no plane shows a queue or drops, nothing is learned and the weights stay; where one does, a plane
// too lightly used to say anything drifts back to an equal share.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>

#include "farstep/ev_types.hpp"
#include "farstep/storage.hpp"

namespace farstep {

class PlaneShare {
public:
    static constexpr uint64_t kWindowMinNs = 10'000'000;    // shorter windows measure scheduling, not capacity
    static constexpr uint64_t kWindowMinBytes = 131'072;    // fewer bytes are too grainy a sample
    static constexpr uint64_t kNoiseNs = 200'000;           // round trips differ by this much for no reason
    static constexpr double kLossShare = 0.03;              // of a window's bytes: the plane's buffer overflows
    static constexpr double kIdleDrift = 1.0 / 32;          // per window, toward the equal share
    static constexpr int64_t kMaxCreditBytes = 1 << 20;     // how far a plane held back by its port may lag behind

    PlaneShare(const PathSetConfig& c, Arena* arena)
        : lanes_(c.num_planes, arena), num_planes_(c.num_planes), mode_(c.share),
          floor_(std::min(c.capacity_floor, 0.5 / c.num_planes)), gain_(c.capacity_gain) {
        assert(num_planes_ >= 1 && num_planes_ <= kMaxPlanes);
        last_ = static_cast<uint8_t>(c.seed % num_planes_);
        for (uint32_t p = 0; p < num_planes_; ++p) set_weight(p, 1.0 / num_planes_);
        start_window(0);
        window_clean_ = false;
    }

    // The best of `candidates` (not empty).
    uint8_t choose(uint64_t candidates, uint32_t burst_bytes) const noexcept {
        assert(candidates != 0);
        if ((candidates & (candidates - 1)) == 0) return static_cast<uint8_t>(std::countr_zero(candidates));
        // Ties go to the plane after the last one used.
        const uint64_t after = candidates & ~((2ull << last_) - 1);
        uint8_t best = static_cast<uint8_t>(std::countr_zero(after != 0 ? after : candidates));
        if (mode_ == ShareMode::Equal) {
            for (uint64_t rest = candidates; rest != 0; rest &= rest - 1) {
                const auto p = static_cast<uint8_t>(std::countr_zero(rest));
                if (lanes_[p].given_bytes < lanes_[best].given_bytes) best = p;
            }
            return best;
        }
        double least = load(best, burst_bytes);
        for (uint64_t rest = candidates; rest != 0; rest &= rest - 1) {
            const auto p = static_cast<uint8_t>(std::countr_zero(rest));
            const double l = load(p, burst_bytes);
            if (l < least) least = l, best = p;
        }
        return best;
    }

    void on_sent(uint8_t plane, uint32_t bytes) noexcept {
        last_ = plane;
        lanes_[plane].inflight_bytes += bytes;
        lanes_[plane].given_bytes += bytes;
        if (lanes_[plane].given_bytes <= most_given_) return;
        most_given_ = lanes_[plane].given_bytes;
        if (most_given_ < next_bound_) return;
        // Lag is bounded, so a plane whose port was held up is not flooded afterwards.
        next_bound_ = most_given_ + kMaxCreditBytes / 4;
        for (uint32_t p = 0; p < num_planes_; ++p) lanes_[p].given_bytes = std::max(lanes_[p].given_bytes, most_given_ - kMaxCreditBytes);
    }

    // Bytes leave the plane undelivered: lost or trimmed.
    void on_lost(uint8_t plane, uint32_t bytes) noexcept {
        lanes_[plane].lost_bytes += bytes;
        leave(plane, bytes);
    }
    void on_delivered(uint64_t now, uint8_t plane, uint32_t bytes) noexcept {
        leave(plane, bytes);
        lanes_[plane].delivered_bytes += bytes;
        window_bytes_ += bytes;
        if (mode_ != ShareMode::Capacity || window_bytes_ < kWindowMinBytes) return;
        if (now - window_start_ns_ >= window_ns_) close_window(now);
    }
    void on_rtt(uint8_t plane, uint64_t rtt_ns) noexcept {
        if (lanes_[plane].min_rtt_ns == 0 || rtt_ns < lanes_[plane].min_rtt_ns) lanes_[plane].min_rtt_ns = rtt_ns;
        lanes_[plane].window_rtt_ns = std::min(lanes_[plane].window_rtt_ns, rtt_ns);
    }
    uint64_t min_rtt_ns(uint8_t plane) const noexcept { return lanes_[plane].min_rtt_ns; }   // 0 = none yet
    void set_rtt(uint64_t rtt_ns) noexcept { window_ns_ = std::max(rtt_ns, kWindowMinNs); }

    // Planes that carry traffic at present. One that returns starts level with the others.
    void set_usable(uint64_t planes) noexcept {
        const uint64_t returned = planes & all() & ~usable_;
        usable_ = planes & all();
        for (uint64_t rest = returned; rest != 0; rest &= rest - 1) lanes_[std::countr_zero(rest)].given_bytes = most_given_;
    }
    uint64_t usable() const noexcept { return usable_; }

    int64_t inflight(uint8_t plane) const noexcept { return lanes_[plane].inflight_bytes; }
    // Share of the load, 0..1 over the usable planes.
    double weight(uint8_t plane) const noexcept {
        if (!(usable_ >> plane & 1)) return 0;
        if (mode_ == ShareMode::Equal) return 1.0 / std::popcount(usable_);
        double sum = 0;
        for (uint64_t rest = usable_; rest != 0; rest &= rest - 1) sum += lanes_[std::countr_zero(rest)].weight;
        return lanes_[plane].weight / sum;
    }

    /// Calls f(address, bytes) for what every packet touches.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(this, static_cast<size_t>(reinterpret_cast<const char*>(&floor_) - reinterpret_cast<const char*>(this)));
        f(lanes_.get(), num_planes_ * sizeof(Lane));
    }

private:
    // Of one plane; fills a cache line.
    struct Lane {
        int64_t given_bytes = 0, inflight_bytes = 0;
        uint64_t delivered_bytes = 0, lost_bytes = 0;   // in this window
        uint64_t min_rtt_ns = 0, window_rtt_ns = 0;
        double weight = 0, inverse_weight = 0;
    };
    uint64_t all() const noexcept { return (1ull << num_planes_) - 1; }
    double load(uint8_t p, uint32_t burst_bytes) const noexcept {
        return static_cast<double>(lanes_[p].inflight_bytes + burst_bytes / 2) * lanes_[p].inverse_weight;
    }
    void set_weight(uint32_t p, double weight) noexcept {
        lanes_[p].weight = weight;
        lanes_[p].inverse_weight = 1.0 / weight;
    }

    void leave(uint8_t plane, uint32_t bytes) noexcept {
        lanes_[plane].inflight_bytes -= bytes;
        if (lanes_[plane].inflight_bytes <= 0) idle_ |= 1ull << plane;
    }
    // Even the quickest packet of the window waited, or more was dropped than a bad line drops.
    bool saturated(int p) const noexcept {
        const uint64_t least = lanes_[p].min_rtt_ns;
        if (lanes_[p].window_rtt_ns != UINT64_MAX && lanes_[p].window_rtt_ns > least + least / 10 + kNoiseNs) return true;
        return static_cast<double>(lanes_[p].lost_bytes) > kLossShare * static_cast<double>(lanes_[p].lost_bytes + lanes_[p].delivered_bytes);
    }
    // What the plane would hold without a queue of its own, in bytes x ns, if it is saturated; else what it was given.
    double carried(int p) const noexcept {
        return static_cast<double>(lanes_[p].delivered_bytes) * static_cast<double>(lanes_[p].min_rtt_ns + common_wait_ns_ + kNoiseNs);
    }

    // What even the quickest packets of every plane waited: in the queue of the way back, or for a busy host.
    uint64_t common_wait_ns(uint64_t planes) const noexcept {
        uint64_t least = UINT64_MAX;
        for (uint64_t rest = planes; rest != 0; rest &= rest - 1) {
            const Lane& l = lanes_[std::countr_zero(rest)];
            if (l.window_rtt_ns != UINT64_MAX) least = std::min(least, l.window_rtt_ns - l.min_rtt_ns);
        }
        return least == UINT64_MAX ? 0 : least;
    }

    void close_window(uint64_t now) noexcept {
        const uint64_t busy = usable_ & ~idle_;
        double busy_weight = 0, busy_carried = 0;
        bool learn = false;
        common_wait_ns_ = common_wait_ns(busy);
        for (uint64_t rest = busy; rest != 0; rest &= rest - 1) {
            const int p = std::countr_zero(rest);
            busy_weight += lanes_[p].weight;
            busy_carried += carried(p);
            learn |= saturated(p);
        }
        learn = learn && window_clean_ && busy_carried > 0;
        double sum = 0;
        for (uint64_t rest = usable_; rest != 0; rest &= rest - 1) {
            const int p = std::countr_zero(rest);
            double w = lanes_[p].weight;
            if (busy >> p & 1) {
                if (learn) w += gain_ * (busy_weight * carried(p) / busy_carried - w);
            } else if (learn) {
                w += kIdleDrift * (1.0 / std::popcount(usable_) - w);
            }
            lanes_[p].weight = std::max(w, floor_);
            sum += lanes_[p].weight;
        }
        for (uint64_t rest = usable_; rest != 0; rest &= rest - 1) {
            const int p = std::countr_zero(rest);
            set_weight(static_cast<uint32_t>(p), lanes_[p].weight / sum);
        }
        start_window(now);
    }

    void start_window(uint64_t now) noexcept {
        window_start_ns_ = now;
        window_bytes_ = 0;
        window_clean_ = true;
        idle_ = 0;
        for (uint32_t p = 0; p < num_planes_; ++p) {
            lanes_[p].delivered_bytes = lanes_[p].lost_bytes = 0;
            lanes_[p].window_rtt_ns = UINT64_MAX;
            if (lanes_[p].inflight_bytes <= 0) idle_ |= 1ull << p;
        }
    }

    // What every packet touches comes first.
    Table<Lane> lanes_;
    uint64_t usable_ = 0;
    uint64_t idle_ = ~0ull;          // planes that were empty at some moment of this window
    int64_t most_given_ = 0, next_bound_ = 0;
    uint64_t window_bytes_ = 0;
    uint32_t num_planes_;
    ShareMode mode_;
    uint8_t last_ = 0;
    bool window_clean_ = false;      // the very first window begins in mid-air
    double floor_, gain_;
    uint64_t window_start_ns_ = 0, window_ns_ = kWindowMinNs, common_wait_ns_ = 0;
};

}  // namespace farstep
