// NDP (Handley et al. 2017): the first window blind, everything after it pulled by the receiver, one packet for each that
// came. Queues are short and trim; what was trimmed is pulled again.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>

#include "farstep/sim/rivals/message_queue.hpp"
#include "farstep/sim/rivals/path_choice.hpp"
#include "farstep/sim/rivals/receive_window.hpp"
#include "farstep/sim/rivals/receiver_pacer.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/sim/rivals/scoreboard.hpp"

namespace farstep::sim {

struct NdpConfig {
    RivalWire wire;
    RivalPaths paths;                 // NDP enumerates paths: is_hashed = false
    PathChoiceConfig choice;          // num_paths and seed come from `paths`
    uint32_t initial_packets = 50;    // sent blind
    uint64_t rto_ns = 1'000'000;
    uint32_t span_packets = 0;        // 0: eight first windows
};

class NdpRival {
public:
    NdpRival(const NdpConfig& c, Arena* arena)
        : config_(c), messages_(c.wire.mtu_bytes, c.wire.max_messages, arena), board_(span(c), arena),
          window_(span(c), arena), choice_(choice_config(c), c.paths.num_planes, arena) {}
    NdpRival(const NdpRival&) = delete;

    bool can_post() const noexcept { return messages_.can_post(); }
    bool post(uint64_t bytes) noexcept {
        if (!can_post()) return false;
        // Where everything was sent the receiver does not know of more: it goes blind, as at the start.
        if (board_.next() == messages_.end() && board_.num_lost() == 0) send_blind();
        messages_.post(bytes);
        return true;
    }
    uint32_t messages_delivered() const noexcept { return messages_.delivered(); }
    uint32_t messages_acked() const noexcept { return messages_.acked(); }
    uint64_t retransmitted() const noexcept { return retransmitted_; }
    uint64_t spurious() const noexcept { return duplicates_; }
    uint64_t timeouts() const noexcept { return timeouts_; }
    const Scoreboard& board() const noexcept { return board_; }
    uint64_t number(uint16_t path) const noexcept { return config_.paths.number(path); }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        if (budget_ == 0) return false;
        const bool again = board_.num_lost() > 0;
        if (!again && (board_.next() == messages_.end() || !board_.has_room())) return false;
        const uint32_t plane = next_plane(free_planes);
        if (plane == kNobody) return false;
        const uint32_t sequence = again ? board_.oldest_lost() : board_.next();
        --budget_;
        out.path = config_.paths.path(plane, choice_.pick(plane, board_.next(), config_.initial_packets));
        board_.send(now, sequence, out.path);
        timer_.on_send(now, config_.rto_ns);
        retransmitted_ += again;
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
            if (waits && budget_ == 0) {  // the pull got lost
                ++blind_;
                ++budget_;
            }
            timer_.set(waits ? now + config_.rto_ns : UINT64_MAX);
            return;
        }
        if (now < oldest + config_.rto_ns) return timer_.set(oldest + config_.rto_ns);
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record& r) {
            if (now < r.sent_ns + config_.rto_ns || !board_.lose(s)) return;
            ++timeouts_;
            ++arrived_;  // never will; both ends take it so
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
        const PathNews n = a.kind == RivalAnswer::kNack ? PathNews::Refused : PathNews::Good;
        choice_.on_news(now, config_.paths.plane(a.path), static_cast<uint16_t>(a.path % config_.paths.per_plane), n);
        if (a.kind == RivalAnswer::kNack) {
            if (board_.is_known(a.reference) && board_.record(a.reference).path == a.path) board_.lose(a.reference);
            return;
        }
        auto gain = [](uint32_t, const Scoreboard::Record&, bool) {};
        board_.acknowledge(a.reference, gain);
        board_.acknowledge_below(a.cumulative, gain);
        messages_.on_acked(board_.una());
        if (board_.una() == messages_.end()) timer_.stop();
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    void on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        (void)now;
        if (precedes(end_, d.sequence + d.stamp)) end_ = d.sequence + d.stamp;
        ++arrived_;
        if (how.trimmed && !window_.has(d.sequence)) {
            ++refused_;
            return owe(d, RivalAnswer::kNack);
        }
        if (!how.trimmed && !window_.receive(d.sequence)) ++duplicates_;
        messages_.on_delivered(window_.expected());
        owe(d, RivalAnswer::kAck);
    }
    bool poll_answer(uint64_t now, RivalAnswer& out) noexcept {
        (void)now;
        if (num_owed_ == 0) return false;
        out = owed_[first_owed_];
        first_owed_ = static_cast<uint8_t>((first_owed_ + 1) % kMaxOwed);
        --num_owed_;
        out.cumulative = window_.expected();
        out.granted = granted_;
        return true;
    }

    PacerLink& pacer_link() noexcept { return link_; }
    /// One pull for every packet that came, as long as something is left that was neither sent blind nor pulled.
    bool wants_grant() const noexcept {
        const uint32_t fetched = blind_ + granted_;
        return precedes(fetched, arrived_ + config_.initial_packets) && precedes(fetched, end_ + refused_);
    }
    uint64_t grant(RivalAnswer& out) noexcept {
        if (!wants_grant()) return 0;
        ++granted_;
        out = RivalAnswer{};
        out.kind = RivalAnswer::kPull;
        out.cumulative = window_.expected();
        out.granted = granted_;
        return config_.wire.full_bytes();
    }

private:
    static constexpr uint8_t kMaxOwed = 8;

    static uint32_t span(const NdpConfig& c) noexcept {
        return rival_power_of_two(std::max(c.span_packets ? c.span_packets : 8 * c.initial_packets, 64u));
    }
    static PathChoiceConfig choice_config(const NdpConfig& c) noexcept {
        PathChoiceConfig choice = c.choice;
        choice.num_paths = c.paths.per_plane;
        choice.seed = c.paths.seed;
        return choice;
    }
    uint32_t next_plane(uint64_t free_planes) noexcept {
        for (uint32_t i = 0; i < config_.paths.num_planes; ++i) {
            const uint32_t p = (plane_cursor_ + i) % config_.paths.num_planes;
            if (!(free_planes >> p & 1)) continue;
            plane_cursor_ = (p + 1) % config_.paths.num_planes;
            return p;
        }
        return kNobody;
    }
    void send_blind() noexcept {
        const uint32_t under_way = board_.num_in_flight() + budget_;
        const uint32_t more = config_.initial_packets - std::min(config_.initial_packets, under_way);
        budget_ += more;
        blind_ += more;
    }
    void owe(const RivalData& d, RivalAnswer::Kind kind) noexcept {
        assert(num_owed_ < kMaxOwed);
        RivalAnswer& a = owed_[(first_owed_ + num_owed_++) % kMaxOwed];
        a = RivalAnswer{};
        a.kind = kind;
        a.reference = d.sequence;
        a.path = d.path;
    }

    NdpConfig config_;
    MessageQueue messages_;
    Scoreboard board_;
    ReceiveWindow window_;
    PathChoice choice_;
    LazyTimer timer_;
    uint64_t retransmitted_ = 0, timeouts_ = 0, duplicates_ = 0;
    uint32_t budget_ = 0, taken_ = 0, plane_cursor_ = 0;
    // Receiver.
    std::array<RivalAnswer, kMaxOwed> owed_;
    uint8_t first_owed_ = 0, num_owed_ = 0;
    uint32_t granted_ = 0, arrived_ = 0, refused_ = 0, end_ = 0, blind_ = 0;
    PacerLink link_;
};

}  // namespace farstep::sim
