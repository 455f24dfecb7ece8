// A TCP-like transport: one path by ECMP, a congestion window (Reno, CUBIC or DCTCP), selective acknowledgements, fast
// retransmit after three of them, a retransmission timeout with a floor.
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

enum class TcpGrowth : uint8_t { Reno, Cubic, Dctcp };

struct TcpConfig {
    RivalWire wire;
    RivalPaths paths;                 // one per plane, hashed; a connection stays on the plane of its hash
    TcpGrowth growth = TcpGrowth::Cubic;
    uint32_t initial_packets = 10;    // RFC 6928
    uint32_t max_packets = 0;         // 0: eight BDP
    uint32_t duplicate_threshold = 3;
    uint64_t min_rto_ns = 1'000'000;  // 200 ms is what hosts come with, 1 ms what datacentres set
    uint64_t max_rto_ns = 4'000'000'000;
    uint32_t ack_packets = 2;         // received in order before an acknowledgement is due (RFC 5681)
    uint64_t ack_delay_ns = 40'000;   // at the latest
    bool ecn = false;                 // Reno and CUBIC: a mark halves like a loss; DCTCP always listens
    double cubic_c = 0.4, cubic_beta = 0.7;  // RFC 9438
    double dctcp_g = 1.0 / 16;        // RFC 8257
};

class TcpRival {
public:
    using Config = TcpConfig;
    TcpRival(const TcpConfig& c, Arena* arena)
        : config_(c), max_packets_(max_packets(c)), messages_(c.wire.mtu_bytes, c.wire.max_messages, arena),
          board_(span_packets(c), arena), window_(span_packets(c), arena), cwnd_(c.initial_packets), threshold_(max_packets_),
          planes_(c.paths.num_planes) {}
    TcpRival(const TcpRival&) = delete;
    /// Between the oldest packet without an answer and the newest, at most; what a connection takes in memory.
    static uint32_t span_packets(const TcpConfig& c) noexcept { return rival_power_of_two(std::max<uint64_t>(64, static_cast<uint64_t>(2 * max_packets(c)))); }

    bool can_post() const noexcept { return messages_.can_post(); }
    void post(uint64_t bytes) noexcept {
        messages_.post(bytes);
    }
    uint32_t messages_delivered() const noexcept { return messages_.delivered(); }
    uint32_t messages_acked() const noexcept { return messages_.acked(); }
    void set_usable_planes(uint64_t planes) noexcept { planes_.set_usable(planes); }
    FlowCounters counters() const noexcept { return counters_; }
    RivalSpan span() const noexcept { return {board_.una(), board_.next(), messages_.end()}; }
    double cwnd_packets() const noexcept { return cwnd_; }
    const Scoreboard& board() const noexcept { return board_; }
    uint64_t number(uint16_t path) const noexcept { return config_.paths.number(path); }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        const bool again = board_.num_lost() > 0;
        if (!again && (board_.next() == messages_.end() || !board_.has_room())) return false;
        const uint32_t plane = planes_.bound(config_.paths.number(0));
        if (plane == PlaneTurn::kNone || !(free_planes >> plane & 1)) return false;
        if (board_.num_in_flight() >= std::max(1.0, std::floor(cwnd_))) return false;
        const uint32_t sequence = again ? board_.oldest_lost() : board_.next();
        out.path = config_.paths.path(plane, 0);
        board_.send(now, sequence, out.path);
        if (rto_at_ns_ == UINT64_MAX) rto_at_ns_ = now + rto_ns();
        ++counters_.packets;
        counters_.retransmitted += again;
        out.sequence = sequence;
        out.bytes = static_cast<uint16_t>(messages_.payload_bytes(sequence) + config_.wire.overhead_bytes);
        out.stamp = 0;
        out.flags = static_cast<uint8_t>((messages_.is_last(sequence) ? RivalData::kAsksAnswer : 0) | (again ? RivalData::kAgain : 0));
        return true;
    }

    uint64_t next_timeout_ns() const noexcept { return std::min(rto_at_ns_, ack_at_ns_); }
    void on_timeout(uint64_t now) noexcept {
        if (now >= ack_at_ns_) owe_ack(last_reference_, last_path_, false, false);
        if (now < rto_at_ns_) return;
        // Everything unacknowledged is taken for lost, and the window starts anew.
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record&) { counters_.declared_lost += board_.lose(s); });
        threshold_ = std::max(cwnd_ / 2, 2.0);
        remember_peak();
        cwnd_ = 1;
        recovery_end_ = board_.next();
        backoff_ = std::min(backoff_ + 1, 20u);
        rto_at_ns_ = now + rto_ns();
    }

    void on_answer(uint64_t now, const RivalAnswer& a) noexcept {
        if (board_.is_known(a.reference)) {
            const Scoreboard::Record& r = board_.record(a.reference);
            if (r.transmissions == 1 && !a.has(RivalAnswer::kAgain)) measure(now - r.sent_ns);
        }
        uint32_t newly = 0;
        auto gain = [&](uint32_t s, const Scoreboard::Record&, bool) {
            ++newly;
            if (s >= highest_) highest_ = s + 1;
        };
        board_.acknowledge_bitmap(a.base, a.bitmap, gain);
        board_.acknowledge_below(a.cumulative, gain);
        messages_.on_acked(board_.una());
        if (newly == 0) return;
        backoff_ = 0;
        find_losses(now);
        const bool in_recovery = board_.una() < recovery_end_ && recovering_;
        if (!in_recovery) recovering_ = false;
        on_mark(now, newly, a.has(RivalAnswer::kMarked));
        if (!in_recovery) grow(now, newly);
        rto_at_ns_ = board_.una() == messages_.end() || (board_.num_in_flight() == 0 && board_.num_lost() == 0) ? UINT64_MAX : now + rto_ns();
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    bool on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        if (how.trimmed) return false;  // a header without its payload is nothing to TCP
        const bool in_order = d.sequence == window_.expected() && window_.num_early() == 0;
        const bool is_new = window_.receive(d.sequence);
        counters_.duplicates += !is_new;
        messages_.on_delivered(window_.expected());
        last_reference_ = d.sequence;
        last_path_ = d.path;
        ++unanswered_;
        // DCTCP wants each change of the mark told (RFC 8257, 3.2).
        const bool changed = how.marked != was_marked_;
        was_marked_ = how.marked;
        if (!in_order || changed || how.marked || unanswered_ >= config_.ack_packets || (d.flags & RivalData::kAsksAnswer))
            owe_ack(d.sequence, d.path, how.marked, d.flags & RivalData::kAgain);
        else if (ack_at_ns_ == UINT64_MAX) ack_at_ns_ = now + config_.ack_delay_ns;
        return is_new;
    }
    bool poll_answer(RivalAnswer& out) noexcept {
        if (!owed_.pop(out)) return false;
        out.cumulative = window_.expected();
        // Around the packet that asked: everything else was told by the answers before.
        out.base = std::max(window_.expected() + 1, out.reference > 32 ? out.reference - 32 : 0);
        out.bitmap = window_.bitmap(out.base);
        return true;
    }

private:
    static constexpr double kBdpWindows = 8;

    static double max_packets(const TcpConfig& c) noexcept {
        return c.max_packets ? c.max_packets : std::max(16.0, std::ceil(kBdpWindows * c.wire.bdp_bytes() / c.wire.full_bytes()));
    }

    void measure(uint64_t rtt_ns) noexcept {  // RFC 6298
        const double sample = static_cast<double>(rtt_ns);
        if (srtt_ns_ == 0) {
            srtt_ns_ = sample;
            rttvar_ns_ = sample / 2;
            return;
        }
        rttvar_ns_ += 0.25 * (std::fabs(srtt_ns_ - sample) - rttvar_ns_);
        srtt_ns_ += 0.125 * (sample - srtt_ns_);
    }
    uint64_t rto_ns() const noexcept {
        const double base = std::max(srtt_ns_ + 4 * rttvar_ns_, static_cast<double>(config_.min_rto_ns));
        return static_cast<uint64_t>(std::min(base * std::exp2(backoff_), static_cast<double>(config_.max_rto_ns)));
    }

    // One path keeps order, so what three later packets overtook is lost. One sent again counts from its own time.
    void find_losses(uint64_t now) noexcept {
        if (highest_ < config_.duplicate_threshold) return;
        const uint32_t below = highest_ - config_.duplicate_threshold;
        bool any = false;
        for (uint32_t s = board_.una(); s < below; ++s) {
            const Scoreboard::Record& r = board_.record(s);
            if (r.state != Scoreboard::kInFlight || (r.transmissions > 1 && now < r.sent_ns + static_cast<uint64_t>(1.5 * srtt_ns_))) continue;
            any = true;
            counters_.declared_lost += board_.lose(s);
        }
        if (any && board_.una() >= recovery_end_) reduce(now, config_.growth == TcpGrowth::Cubic ? config_.cubic_beta : 0.5);
    }
    void reduce(uint64_t now, double factor) noexcept {
        (void)now;
        remember_peak();
        cwnd_ = std::max(cwnd_ * factor, 2.0);
        threshold_ = cwnd_;
        recovery_end_ = board_.next();
        recovering_ = true;
    }
    void remember_peak() noexcept {
        peak_ = cwnd_ < peak_ ? cwnd_ * (1 + config_.cubic_beta) / 2 : cwnd_;  // fast convergence
        epoch_ns_ = 0;
    }
    void on_mark(uint64_t now, uint32_t newly, bool marked) noexcept {
        if (config_.growth == TcpGrowth::Dctcp) {
            acked_packets_ += newly;
            if (marked) marked_packets_ += newly;
            if (board_.una() >= alpha_end_) {
                const double share = acked_packets_ ? static_cast<double>(marked_packets_) / static_cast<double>(acked_packets_) : 0;
                alpha_ += config_.dctcp_g * (share - alpha_);
                acked_packets_ = marked_packets_ = 0;
                alpha_end_ = board_.next();
            }
            if (marked && board_.una() >= recovery_end_) reduce(now, 1 - alpha_ / 2);
        } else if (config_.ecn && marked && board_.una() >= recovery_end_) {
            reduce(now, config_.growth == TcpGrowth::Cubic ? config_.cubic_beta : 0.5);
        }
    }
    void grow(uint64_t now, uint32_t newly) noexcept {
        if (cwnd_ < threshold_) {
            cwnd_ = std::min(cwnd_ + newly, max_packets_);
        } else if (config_.growth == TcpGrowth::Cubic) {
            cubic(now, newly);
        } else {
            cwnd_ += newly / cwnd_;
        }
        cwnd_ = std::min(cwnd_, max_packets_);
    }
    void cubic(uint64_t now, uint32_t newly) noexcept {
        if (epoch_ns_ == 0) {
            epoch_ns_ = std::max<uint64_t>(now, 1);
            peak_ = std::max(peak_, cwnd_);
            k_s_ = std::cbrt((peak_ - cwnd_) / config_.cubic_c);
            friendly_ = cwnd_;
        }
        const double t = static_cast<double>(now - epoch_ns_) * 1e-9 + srtt_ns_ * 1e-9 - k_s_;
        const double target = std::clamp(config_.cubic_c * t * t * t + peak_, cwnd_, 1.5 * cwnd_);
        cwnd_ += (target - cwnd_) / cwnd_ * newly;
        // Where Reno would be faster, as it is at the round trips of a datacentre, follow it (RFC 9438, 4.3).
        const double a = friendly_ >= peak_ ? 1 : 3 * (1 - config_.cubic_beta) / (1 + config_.cubic_beta);
        friendly_ += a * newly / cwnd_;
        cwnd_ = std::max(cwnd_, friendly_);
    }

    void owe_ack(uint32_t reference, uint16_t path, bool marked, bool again) noexcept {
        unanswered_ = 0;
        ack_at_ns_ = UINT64_MAX;
        RivalAnswer a;
        a.reference = reference;
        a.path = path;
        a.flags = static_cast<uint8_t>((marked ? RivalAnswer::kMarked : 0) | (again ? RivalAnswer::kAgain : 0));
        owed_.push(a);
    }

    TcpConfig config_;
    double max_packets_;
    MessageQueue messages_;
    Scoreboard board_;
    ReceiveWindow window_;
    double cwnd_, threshold_, peak_ = 0, k_s_ = 0, friendly_ = 0, alpha_ = 1;
    double srtt_ns_ = 0, rttvar_ns_ = 0;
    uint64_t rto_at_ns_ = UINT64_MAX, epoch_ns_ = 0, acked_packets_ = 0, marked_packets_ = 0;
    FlowCounters counters_;
    PlaneTurn planes_;
    uint32_t backoff_ = 0, highest_ = 0, recovery_end_ = 0, alpha_end_ = 0;
    bool recovering_ = false;
    // Receiver.
    uint64_t ack_at_ns_ = UINT64_MAX;
    uint32_t unanswered_ = 0, last_reference_ = 0;
    uint16_t last_path_ = 0;
    bool was_marked_ = false;
    AnswerQueue owed_;
};

}  // namespace farstep::sim
