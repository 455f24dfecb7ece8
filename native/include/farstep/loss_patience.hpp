// How late a packet may be before it counts as lost.
//
// A quarter of a round trip beyond the smoothed one, or four deviations, whichever is more (RACK, RFC 8985, starts from
// the same quarter): a window that grows adds a queue faster than the deviation can follow. Every loss that turns out
// to be none adds another quarter, up to a whole round trip, and long peace takes it back. A path that delivered out of
// order loses the trust that what was overtaken is lost.
#pragma once

#include <cstdint>

#include "farstep/config.hpp"
#include "farstep/storage.hpp"

namespace farstep {

/// Smoothed round trip and its variation (RFC 6298 weights).
struct RoundTrip {
    uint64_t srtt_ns = 0, var_ns = 0;
    uint64_t near_ns = 0;  // what the quicker packets take at present: falls at once, a host that slept raises it slowly
    void sample(uint64_t rtt) noexcept {
        near_ns = near_ns == 0 || rtt < near_ns ? rtt : near_ns + (rtt - near_ns) / 8;
        if (srtt_ns == 0) {
            srtt_ns = rtt;
            var_ns = rtt / 2;
            return;
        }
        const uint64_t d = rtt > srtt_ns ? rtt - srtt_ns : srtt_ns - rtt;
        var_ns += (static_cast<int64_t>(d) - static_cast<int64_t>(var_ns)) / 4;
        srtt_ns += (static_cast<int64_t>(rtt) - static_cast<int64_t>(srtt_ns)) / 8;
    }
};

class LossPatience {
public:
    LossPatience(uint64_t slack_min_ns, uint32_t num_planes, Arena* arena)
        : slack_min_ns_(slack_min_ns), num_planes_(num_planes), plane_rtt_(num_planes, arena) {}

    void on_sample(uint8_t plane, uint64_t rtt_ns) noexcept {
        rtt_.sample(rtt_ns);
        if (plane < num_planes_) plane_rtt_[plane].sample(rtt_ns);
        note_least(plane);
    }
    /// A packet given up arrived after all; `by_order` if another on its path had overtaken it.
    void on_spurious(uint64_t now, bool by_order) noexcept {
        if (by_order) {
            order_distrusted_until_ns_ = now + kPeaceRtts * rtt_.srtt_ns;
            return;
        }
        if (now - changed_ns_ < rtt_.srtt_ns && quarters_ > 1) return;  // one mistake, seen in many packets
        if (quarters_ < kMaxQuarters) ++quarters_;
        changed_ns_ = now;
        find_least();
    }
    void on_progress(uint64_t now) noexcept {
        if (quarters_ == 1 || now - changed_ns_ < kPeaceRtts * rtt_.srtt_ns) return;
        --quarters_;
        changed_ns_ = now;
        find_least();
    }

    const RoundTrip& round_trip() const noexcept { return rtt_; }
    bool trusts_order(uint64_t now) const noexcept { return now >= order_distrusted_until_ns_; }
    uint64_t slack_ns() const noexcept { return slack_ns(rtt_); }
    /// A packet on this plane is late after this long; 0 while nothing was measured.
    uint64_t late_after_ns(uint8_t plane) const noexcept {
        const RoundTrip& r = plane < num_planes_ && plane_rtt_[plane].srtt_ns ? plane_rtt_[plane] : rtt_;
        return r.srtt_ns ? r.srtt_ns + slack_ns(r) : 0;
    }

    /// No packet on any plane is late before this; 0 while nothing was measured.
    uint64_t least_late_ns() const noexcept { return least_late_ns_; }

    /// An answer is due after this long, as far as anyone knows at present; 0 while nothing was measured.
    uint64_t due_after_ns() const noexcept { return rtt_.near_ns ? rtt_.near_ns + quarters_ns(rtt_.near_ns) : 0; }
    uint64_t near_ns() const noexcept { return rtt_.near_ns; }
    /// How much earlier than something on the shortest plane, empty, a packet of this plane may have left and arrive later.
    uint64_t lag_ns(uint8_t plane, uint64_t shortest_rtt_ns) const noexcept {
        const uint64_t near = of(plane).near_ns;
        return (near > shortest_rtt_ns ? near - shortest_rtt_ns : 0) + quarters_ns(near);
    }

    template <class F>
    void each_hot(F&& f) const noexcept {
        f(plane_rtt_.get(), num_planes_ * sizeof(RoundTrip));
    }

private:
    static constexpr uint32_t kMaxQuarters = 4;
    static constexpr uint64_t kPeaceRtts = 64;

    void note_least(uint8_t plane) noexcept {
        const uint64_t late = late_after_ns(plane);
        if (plane == least_plane_ && late > least_late_ns_) return find_least();
        if (least_late_ns_ && late > least_late_ns_) return;
        least_late_ns_ = late;
        least_plane_ = plane;
    }
    void find_least() noexcept {
        least_late_ns_ = 0;
        for (uint32_t p = 0; p < num_planes_; ++p) {
            const uint64_t late = late_after_ns(static_cast<uint8_t>(p));
            if (least_late_ns_ && late >= least_late_ns_) continue;
            least_late_ns_ = late;
            least_plane_ = static_cast<uint8_t>(p);
        }
    }
    const RoundTrip& of(uint8_t plane) const noexcept {
        return plane < num_planes_ && plane_rtt_[plane].srtt_ns ? plane_rtt_[plane] : rtt_;
    }
    uint64_t quarters_ns(uint64_t rtt_ns) const noexcept {
        const uint64_t quarters = quarters_ * (rtt_ns / 4);
        return quarters < slack_min_ns_ ? slack_min_ns_ : quarters;
    }
    uint64_t slack_ns(const RoundTrip& r) const noexcept {
        const uint64_t quarters = quarters_ns(r.srtt_ns);
        return quarters < 4 * r.var_ns ? 4 * r.var_ns : quarters;
    }

    RoundTrip rtt_;
    uint64_t least_late_ns_ = 0;
    uint64_t slack_min_ns_;
    uint32_t quarters_ = 1;
    uint8_t least_plane_ = 0;
    uint32_t num_planes_;
    Table<RoundTrip> plane_rtt_;
    uint64_t changed_ns_ = 0, order_distrusted_until_ns_ = 0;
};

}  // namespace farstep
