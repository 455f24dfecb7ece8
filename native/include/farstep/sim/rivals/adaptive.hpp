// A NIC for fabrics with adaptive routing, in the manner of Spectrum-X: switches choose ports packet by packet, the sending
// NIC chooses a plane packet by packet, the receiving NIC takes packets in any order.
//
// Each plane has a window of its own that its round trips steer (delay against a target, as in Swift, Kumar et al. 2020);
// a packet goes to the plane with the most room. A plane that falls silent is left after the failover time. What the
// vendor's control loops do exactly is not public; this keeps their shape and their published timescales.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>

#include "farstep/sim/rivals/message_queue.hpp"
#include "farstep/sim/rivals/receive_window.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/sim/rivals/scoreboard.hpp"

namespace farstep::sim {

struct AdaptiveConfig {
    RivalWire wire;
    RivalPaths paths;                  // one per plane: the rest is for switches to choose
    uint64_t target_delay_ns = 0;      // queueing that is put up with; 0: three quarters of the round trip
    double additive_packets = 1;       // gained per round trip below it
    double decrease = 0.8, max_decrease = 0.5;
    uint32_t ack_packets = 4;          // received before an acknowledgement is due
    uint64_t failover_ns = 3'000'000;  // silence of a plane until it is left: in hardware; in software 1.08 s
    uint64_t retry_ns = 100'000'000;   // until a plane that was left is tried again
    uint64_t rto_ns = 1'000'000;       // of one packet, on a plane that is not silent
    uint32_t span_packets = 0;         // 0: eight windows
};

class AdaptiveRival {
public:
    using Config = AdaptiveConfig;
    AdaptiveRival(const AdaptiveConfig& c, Arena* arena)
        : config_(c), messages_(c.wire.mtu_bytes, c.wire.max_messages, arena), board_(span_packets(c), arena),
          window_(span_packets(c), arena), planes_(c.paths.num_planes, arena) {
        assert(c.paths.per_plane == 1);
        target_ns_ = static_cast<double>(c.target_delay_ns ? c.target_delay_ns : c.wire.base_rtt_ns - c.wire.base_rtt_ns / 4);
        base_rtt_ns_ = static_cast<double>(c.wire.base_rtt_ns);
        max_window_ = std::max(2.0, kMostBdp * c.wire.bdp_bytes() / c.wire.full_bytes() / c.paths.num_planes);
        for (uint32_t p = 0; p < c.paths.num_planes; ++p) planes_[p].window = std::max(2.0, max_window_ * kFirstShare);
    }
    AdaptiveRival(const AdaptiveRival&) = delete;
    /// Between the oldest packet without an answer and the newest, at most; what a connection takes in memory.
    static uint32_t span_packets(const AdaptiveConfig& c) noexcept {
        const double window = kMostBdp * c.wire.bdp_bytes() / c.wire.full_bytes();
        return rival_power_of_two(std::max<uint64_t>(c.span_packets ? c.span_packets : static_cast<uint64_t>(8 * window), 64));
    }

    bool can_post() const noexcept { return messages_.can_post(); }
    void post(uint64_t bytes) noexcept { messages_.post(bytes); }
    uint32_t messages_delivered() const noexcept { return messages_.delivered(); }
    uint32_t messages_acked() const noexcept { return messages_.acked(); }
    void set_usable_planes(uint64_t planes) noexcept { usable_ = planes; }
    FlowCounters counters() const noexcept { return counters_; }
    RivalSpan span() const noexcept { return {board_.una(), board_.next(), messages_.end()}; }
    uint64_t planes_left() const noexcept { return silent_; }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        const bool again = board_.num_lost() > 0;
        if (!again && (board_.next() == messages_.end() || !board_.has_room())) return false;
        const uint32_t plane = emptiest(now, free_planes);
        if (plane == PlaneTurn::kNone) return false;
        const uint32_t sequence = again ? board_.oldest_lost() : board_.next();
        Plane& p = planes_[plane];
        if (p.in_flight++ == 0) p.heard_ns = now;
        board_.send(now, sequence, static_cast<uint16_t>(plane));
        timer_.on_send(now, std::min(config_.rto_ns, config_.failover_ns));
        ++counters_.packets;
        counters_.retransmitted += again;
        out.sequence = sequence;
        out.path = static_cast<uint16_t>(plane);
        out.bytes = static_cast<uint16_t>(messages_.payload_bytes(sequence) + config_.wire.overhead_bytes);
        out.stamp = 0;
        const bool closing = board_.next() == messages_.end() || p.in_flight + 1 > p.window;
        out.flags = static_cast<uint8_t>((again || closing ? RivalData::kAsksAnswer : 0) | (again ? RivalData::kAgain : 0));
        return true;
    }

    uint64_t next_timeout_ns() const noexcept { return timer_.at_ns(); }
    void on_timeout(uint64_t now) noexcept {
        if (now < timer_.at_ns()) return;
        for (uint32_t i = 0; i < config_.paths.num_planes; ++i) {
            Plane& p = planes_[i];
            if (p.in_flight == 0 || now < p.heard_ns + config_.failover_ns) continue;
            silent_ |= 1ull << i;
            p.retry_ns = now + config_.retry_ns;
            p.window = 1;  // when it is tried again
            give_up(i, now);
            p.heard_ns = now;
        }
        give_up_late(now);
        uint64_t next = UINT64_MAX;
        for (uint32_t i = 0; i < config_.paths.num_planes; ++i)
            if (planes_[i].in_flight) next = std::min(next, planes_[i].heard_ns + config_.failover_ns);
        if (const uint64_t oldest = board_.oldest_sent_ns(); oldest != UINT64_MAX) next = std::min(next, std::max(oldest + config_.rto_ns, now + 1));
        // A plane that is due for another try may be the only one.
        if (silent_ && (board_.num_lost() || board_.next() != messages_.end())) next = std::min(next, now + config_.failover_ns);
        timer_.set(next);
    }

    void on_answer(uint64_t now, const RivalAnswer& a) noexcept {
        bool rtt_valid = false;
        double rtt_ns = 0;
        uint16_t plane = 0;
        if (board_.is_known(a.reference)) {
            const Scoreboard::Record& r = board_.record(a.reference);
            plane = r.path;
            rtt_valid = r.transmissions == (a.has(RivalAnswer::kAgain) ? 2 : 1) && plane == a.path;
            rtt_ns = static_cast<double>(now - r.sent_ns);
        }
        auto gain = [&](uint32_t, const Scoreboard::Record& r, bool was_lost) {
            Plane& p = planes_[r.path];
            if (!was_lost) --p.in_flight;
            ++p.newly;
        };
        board_.acknowledge_bitmap(a.base, a.bitmap, gain);
        board_.acknowledge(a.reference, gain);
        board_.acknowledge_below(a.cumulative, gain);
        messages_.on_acked(board_.una());
        silent_ &= ~(1ull << a.path);
        planes_[a.path].heard_ns = now;
        for (uint32_t i = 0; i < config_.paths.num_planes; ++i) {
            Plane& p = planes_[i];
            if (p.newly) steer(now, p, rtt_valid && i == plane, rtt_ns);
            p.newly = 0;
        }
        if (board_.una() == messages_.end()) timer_.stop();
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    bool on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        (void)now;
        if (how.trimmed) return false;
        ++unanswered_;
        const bool is_new = window_.receive(d.sequence);
        counters_.duplicates += !is_new;
        messages_.on_delivered(window_.expected());
        if (d.flags & RivalData::kAsksAnswer) asked_ = true;
        const bool closed = asked_ && window_.num_early() == 0;
        if (closed) asked_ = false;
        if (!is_new || closed || (d.flags & RivalData::kAsksAnswer) || unanswered_ >= config_.ack_packets) {
            unanswered_ = 0;
            RivalAnswer a;
            a.reference = d.sequence;
            a.path = d.path;
            a.base = d.sequence > 63 ? d.sequence - 63 : 0;
            if (d.flags & RivalData::kAgain) a.flags = RivalAnswer::kAgain;
            owed_.push(a);
        }
        return is_new;
    }
    bool poll_answer(RivalAnswer& out) noexcept {
        if (!owed_.pop(out)) return false;
        out.cumulative = window_.expected();
        out.base = std::max(out.base, window_.expected() + 1);
        out.bitmap = window_.bitmap(out.base);
        return true;
    }

private:
    static constexpr double kMostBdp = 2, kFirstShare = 0.5;  // largest window of all planes; what they start with of it
    struct Plane {
        double window = 0;         // packets
        uint32_t in_flight = 0, newly = 0;
        uint64_t heard_ns = 0, decreased_ns = 0, retry_ns = 0;
        double delay_ns = 0;       // of the newest sample
    };

    // Free, usable, not silent or due for another try, and of those the one whose window is used least. When all are
    // silent there is nothing to lose.
    uint32_t emptiest(uint64_t now, uint64_t free_planes) noexcept {
        uint64_t silent = silent_;
        for (uint64_t rest = silent; rest; rest &= rest - 1) {
            const auto i = static_cast<uint32_t>(__builtin_ctzll(rest));
            if (now >= planes_[i].retry_ns) silent &= ~(1ull << i);
        }
        const uint64_t all = config_.paths.num_planes == 64 ? ~0ull : (1ull << config_.paths.num_planes) - 1;
        const uint64_t alive = usable_ & ~silent & all;
        uint64_t choice = (alive ? alive : usable_ & all) & free_planes;
        uint32_t best = PlaneTurn::kNone;
        double least = 0;
        for (uint32_t n = 0; choice && n < config_.paths.num_planes; ++n) {
            const uint32_t i = (turn_ + n) % config_.paths.num_planes;
            const Plane& p = planes_[i];
            if (!(choice >> i & 1) || p.in_flight >= p.window) continue;
            const double used = p.in_flight / p.window;
            if (best != PlaneTurn::kNone && used >= least) continue;
            best = i;
            least = used;
        }
        if (best != PlaneTurn::kNone) turn_ = (best + 1) % config_.paths.num_planes;
        return best;
    }

    void steer(uint64_t now, Plane& p, bool rtt_valid, double rtt_ns) noexcept {
        if (rtt_valid) {
            base_rtt_ns_ = std::min(base_rtt_ns_, rtt_ns);
            p.delay_ns = rtt_ns - base_rtt_ns_;
        }
        if (p.delay_ns < target_ns_) {
            p.window += config_.additive_packets * p.newly / p.window;
        } else if (static_cast<double>(now - p.decreased_ns) > base_rtt_ns_ + p.delay_ns) {
            p.window *= std::max(1 - config_.decrease * (p.delay_ns - target_ns_) / p.delay_ns, 1 - config_.max_decrease);
            p.decreased_ns = now;
        }
        p.window = std::clamp(p.window, 1.0, max_window_);
    }

    void give_up(uint32_t plane, uint64_t now) noexcept {
        (void)now;
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record& r) {
            if (r.path == plane) lose(s, r.path);
        });
    }
    void give_up_late(uint64_t now) noexcept {
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record& r) {
            // On a plane that was not heard of since, it is the plane's silence that counts.
            if (now >= r.sent_ns + config_.rto_ns && planes_[r.path].heard_ns > r.sent_ns) lose(s, r.path);
        });
    }
    void lose(uint32_t sequence, uint16_t plane) noexcept {
        if (!board_.lose(sequence)) return;
        --planes_[plane].in_flight;
        ++counters_.declared_lost;
    }

    AdaptiveConfig config_;
    MessageQueue messages_;
    Scoreboard board_;
    ReceiveWindow window_;
    Table<Plane> planes_;
    LazyTimer timer_;
    FlowCounters counters_;
    double target_ns_ = 0, base_rtt_ns_ = 0, max_window_ = 0;
    uint64_t usable_ = ~0ull, silent_ = 0;
    uint32_t turn_ = 0;
    // Receiver.
    AnswerQueue owed_;
    uint32_t unanswered_ = 0;
    bool asked_ = false;
};

}  // namespace farstep::sim
