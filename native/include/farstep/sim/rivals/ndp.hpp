// NDP (Handley et al. 2017): the first window blind, everything after it pulled by the receiver, one packet for each that
// came. Queues are short and trim; what was trimmed is pulled again.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "farstep/sim/rivals/message_queue.hpp"
#include "farstep/sim/rivals/path_choice.hpp"
#include "farstep/sim/rivals/receive_window.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/sim/rivals/scoreboard.hpp"

namespace farstep::sim {

struct NdpConfig {
    RivalWire wire;
    RivalPaths paths;                 // NDP enumerates paths: is_hashed = false
    PathChoiceConfig choice{.spread = Spread::Permutation, .ecn_penalty = 0, .nack_penalty = 0};  // num_paths and seed come from `paths`
    uint32_t initial_packets = 0;     // sent blind; 0: one BDP
    uint64_t rto_ns = 1'000'000;
    uint32_t span_packets = 0;        // 0: eight first windows
};

class NdpRival {
public:
    using Config = NdpConfig;
    NdpRival(const NdpConfig& c, Arena* arena)
        : config_(resolved(c)), messages_(c.wire.mtu_bytes, c.wire.max_messages, arena), board_(span_packets(c), arena),
          window_(span_packets(c), arena), planes_(c.paths.num_planes), choice_(choice_config(c), c.paths.num_planes, arena) {}
    NdpRival(const NdpRival&) = delete;
    /// Between the oldest packet without an answer and the newest, at most; what a connection takes in memory.
    static uint32_t span_packets(const NdpConfig& c) noexcept {
        return rival_power_of_two(std::max(c.span_packets ? c.span_packets : 8 * blind_packets(c), 64u));
    }

    bool can_post() const noexcept { return messages_.can_post(); }
    void post(uint64_t bytes) noexcept {
        // Where everything was sent the receiver does not know of more: it goes blind, as at the start.
        const bool goes_blind = board_.next() == messages_.end() && board_.num_lost() == 0;
        messages_.post(bytes);
        if (goes_blind) send_blind();
    }
    uint32_t messages_delivered() const noexcept { return messages_.delivered(); }
    uint32_t messages_acked() const noexcept { return messages_.acked(); }
    void set_usable_planes(uint64_t planes) noexcept { planes_.set_usable(planes); }
    FlowCounters counters() const noexcept { return counters_; }
    RivalSpan span() const noexcept { return {board_.una(), board_.next(), messages_.end()}; }
    const Scoreboard& board() const noexcept { return board_; }
    uint64_t number(uint16_t path) const noexcept { return config_.paths.number(path); }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        if (budget_ == 0) return false;
        const bool again = board_.num_lost() > 0;
        if (!again && (board_.next() == messages_.end() || !board_.has_room())) return false;
        const uint32_t plane = planes_.next(free_planes);
        if (plane == PlaneTurn::kNone) return false;
        const uint32_t sequence = again ? board_.oldest_lost() : board_.next();
        --budget_;
        out.path = config_.paths.path(plane, choice_.pick(plane, board_.next(), config_.initial_packets));
        board_.send(now, sequence, out.path);
        timer_.on_send(now, config_.rto_ns);
        ++counters_.packets;
        counters_.retransmitted += again;
        out.sequence = sequence;
        out.bytes = static_cast<uint16_t>(messages_.payload_bytes(sequence) + config_.wire.overhead_bytes);
        out.stamp = static_cast<uint16_t>(std::min(messages_.end() - sequence, 65'535u));
        out.flags = again ? RivalData::kAgain : 0;
        return true;
    }

    uint64_t next_timeout_ns() const noexcept { return timer_.at_ns(); }
    void on_timeout(uint64_t now) noexcept {
        if (now < timer_.at_ns()) return;
        const uint64_t oldest = board_.oldest_sent_ns();
        if (oldest == UINT64_MAX) {
            const bool waits = board_.next() != messages_.end() || board_.num_lost() > 0;
            if (waits && budget_ == 0) budget_ = 1;  // a pull got lost
            timer_.set(waits ? now + config_.rto_ns : UINT64_MAX);
            return;
        }
        if (now < oldest + config_.rto_ns) return timer_.set(oldest + config_.rto_ns);
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record& r) {
            const uint16_t path = r.path;
            if (now < r.sent_ns + config_.rto_ns || !board_.lose(s)) return;
            news(now, path, PathNews::Silent);
            ++counters_.declared_lost;
            ++arrived_;  // it never will, and has to be sent once more: both ends take it so
            ++refused_;
            ++blind_;
            ++budget_;
        });
        timer_.set(now + config_.rto_ns);
    }

    void on_answer(uint64_t now, const RivalAnswer& a) noexcept {
        if (precedes(taken_, a.granted)) {
            budget_ += a.granted - taken_;
            taken_ = a.granted;
        }
        // Pulls for packets that there are not lapse.
        const uint32_t unsent = messages_.end() - board_.next() + board_.num_lost() + board_.num_in_flight();
        budget_ = std::min(budget_, unsent);
        if (a.kind == RivalAnswer::kPull) return;
        news(now, a.path, a.kind == RivalAnswer::kNack ? PathNews::Refused : PathNews::Good);
        if (a.kind == RivalAnswer::kNack) {
            if (board_.is_known(a.reference) && board_.record(a.reference).path == a.path)
                counters_.trims += board_.lose(a.reference);
            return;
        }
        auto gain = [](uint32_t, const Scoreboard::Record&, bool) {};
        board_.acknowledge(a.reference, gain);
        board_.acknowledge_below(a.cumulative, gain);
        messages_.on_acked(board_.una());
        if (board_.una() == messages_.end()) timer_.stop();
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    bool on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        (void)now;
        if (precedes(end_, d.sequence + d.stamp)) end_ = d.sequence + d.stamp;
        ++arrived_;
        if (how.trimmed && !window_.has(d.sequence)) {
            ++refused_;
            owe(d, RivalAnswer::kNack);
            return false;
        }
        const bool is_new = !how.trimmed && window_.receive(d.sequence);
        if (!is_new && !how.trimmed) ++counters_.duplicates;
        messages_.on_delivered(window_.expected());
        owe(d, RivalAnswer::kAck);
        return is_new;
    }
    bool poll_answer(RivalAnswer& out) noexcept {
        if (!owed_.pop(out)) return false;
        out.cumulative = window_.expected();
        out.granted = granted_;
        return true;
    }

    /// One pull for every packet that came, as long as something is left that was neither sent blind nor pulled.
    bool wants_grant() const noexcept {
        const uint32_t fetched = blind_ + granted_;
        return precedes(fetched, arrived_ + config_.initial_packets) && precedes(fetched, end_ + refused_);
    }
    bool takes_idle_grant() const noexcept { return false; }
    uint64_t grant(RivalAnswer& out, bool is_idle = false) noexcept {
        (void)is_idle;
        if (!wants_grant()) return 0;
        ++granted_;
        out = RivalAnswer{};
        out.kind = RivalAnswer::kPull;
        out.cumulative = window_.expected();
        out.granted = granted_;
        return config_.wire.full_bytes();
    }

private:
    static uint32_t blind_packets(const NdpConfig& c) noexcept {
        const double bdp = c.wire.bdp_bytes() / c.wire.full_bytes();
        return c.initial_packets ? c.initial_packets : static_cast<uint32_t>(std::clamp(bdp + 0.999, 1.0, 65'536.0));
    }
    static NdpConfig resolved(NdpConfig c) noexcept {
        c.initial_packets = blind_packets(c);
        return c;
    }
    static PathChoiceConfig choice_config(const NdpConfig& c) noexcept {
        PathChoiceConfig choice = c.choice;
        choice.num_paths = c.paths.per_plane;
        choice.seed = c.paths.seed;
        return choice;
    }
    void news(uint64_t now, uint16_t path, PathNews n) noexcept {
        choice_.on_news(now, config_.paths.plane(path), static_cast<uint16_t>(path % config_.paths.per_plane), n);
    }
    void send_blind() noexcept {
        const uint32_t under_way = std::min(config_.initial_packets, board_.num_in_flight() + budget_);
        const uint32_t more = std::min(config_.initial_packets - under_way, messages_.end() - board_.next());
        budget_ += more;
        blind_ += more;
    }
    void owe(const RivalData& d, RivalAnswer::Kind kind) noexcept {
        RivalAnswer a;
        a.kind = kind;
        a.reference = d.sequence;
        a.path = d.path;
        owed_.push(a);
    }

    NdpConfig config_;
    MessageQueue messages_;
    Scoreboard board_;
    ReceiveWindow window_;
    PlaneTurn planes_;
    PathChoice choice_;
    LazyTimer timer_;
    FlowCounters counters_;
    uint32_t budget_ = 0, taken_ = 0;
    // Receiver.
    AnswerQueue owed_;
    uint32_t granted_ = 0, arrived_ = 0, refused_ = 0, end_ = 0, blind_ = 0;
};

}  // namespace farstep::sim
