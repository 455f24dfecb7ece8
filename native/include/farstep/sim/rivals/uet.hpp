// Ultra Ethernet transport: any order, selective repeat, spraying; a window of the sender (NSCC), credit of the receiver
// (RCCC), or both.
//
// Follows UET 1.0 (3.6) and, where that leaves a choice, its reference simulator. The window is the shipped Nscc.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>

#include "farstep/nscc.hpp"
#include "farstep/sim/rivals/message_queue.hpp"
#include "farstep/sim/rivals/path_choice.hpp"
#include "farstep/sim/rivals/receive_window.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/sim/rivals/scoreboard.hpp"

namespace farstep::sim {

struct UetConfig {
    RivalWire wire;
    RivalPaths paths;
    PathChoiceConfig choice;          // num_paths and seed come from `paths`
    bool sender_window = true;        // NSCC
    bool receiver_credit = false;     // RCCC
    NsccConfig nscc;                  // rate, RTT and MTU come from `wire`
    uint32_t ack_bytes = 16'384;      // received before an acknowledgement is due (UET 3.6.10)
    uint32_t max_window_bytes = 0;    // RCCC: most credit asked for, and what is sent before any comes; 0: 1.5 BDP
    uint32_t credit_packets = 4;      // RCCC: granted at a time (UET default)
    bool idle_credit = true;          // RCCC: a receiver whose line is idle grants unasked, up to one window
    uint64_t rto_ns = 0;              // 0: 15 us and the time six queues of one BDP take to drain
    uint32_t span_packets = 0;        // between the oldest without an answer and the newest; 0: four windows
};

class UetRival {
public:
    using Config = UetConfig;
    UetRival(const UetConfig& c, Arena* arena)
        : config_(c), messages_(c.wire.mtu_bytes, c.wire.max_messages, arena), board_(span_packets(c), arena),
          window_(span_packets(c), arena), nscc_(nscc_config(c)), planes_(c.paths.num_planes), choice_(choice_config(c), c.paths.num_planes, arena) {
        const double bdp = c.wire.bdp_bytes();
        const double most = c.max_window_bytes ? c.max_window_bytes : 1.5 * bdp;
        max_credit_ = static_cast<uint32_t>(std::max(1.0, std::ceil(most / c.wire.full_bytes())));
        credit_ = static_cast<int32_t>(max_credit_);
        rto_ns_ = c.rto_ns ? c.rto_ns : 15'000 + static_cast<uint64_t>(6 * bdp / c.wire.rate_bytes_per_s * 1e9);
    }
    UetRival(const UetRival&) = delete;
    /// Between the oldest packet without an answer and the newest, at most; what a connection takes in memory.
    static uint32_t span_packets(const UetConfig& c) noexcept {
        if (c.span_packets) return rival_power_of_two(std::max(c.span_packets, 64u));
        const double window = std::max<double>({1.5 * c.wire.bdp_bytes(), double(c.max_window_bytes), double(c.nscc.max_cwnd_bytes)});
        return rival_power_of_two(std::max<uint64_t>(64, static_cast<uint64_t>(4 * window / c.wire.full_bytes())));
    }

    bool can_post() const noexcept { return messages_.can_post(); }
    void post(uint64_t bytes) noexcept {
        // Where everything was sent the receiver does not know of more: one window goes unasked, as at the start.
        if (board_.next() == messages_.end() && board_.num_lost() == 0 && credit_ <= 0 && board_.num_in_flight() < max_credit_) {
            credit_ = static_cast<int32_t>(max_credit_ - board_.num_in_flight());
            heard_ = board_.num_in_flight() > 0;
        }
        messages_.post(bytes);
    }
    uint32_t messages_delivered() const noexcept { return messages_.delivered(); }
    uint32_t messages_acked() const noexcept { return messages_.acked(); }
    /// Connections of this NIC that have something to send: together they ask for no more credit than one would.
    void set_active_connections(uint32_t count) noexcept { num_active_ = std::max(count, 1u); }
    void set_usable_planes(uint64_t planes) noexcept { planes_.set_usable(planes); }
    FlowCounters counters() const noexcept { return counters_; }
    RivalSpan span() const noexcept { return {board_.una(), board_.next(), messages_.end()}; }
    const Nscc& nscc() const noexcept { return nscc_; }
    const Scoreboard& board() const noexcept { return board_; }
    uint64_t number(uint16_t path) const noexcept { return config_.paths.number(path); }

    // ---- sender ------------------------------------------------------------------------------------------------------

    bool poll_data(uint64_t now, uint64_t free_planes, RivalData& out) noexcept {
        const bool again = board_.num_lost() > 0;
        if (!again && (board_.next() == messages_.end() || !board_.has_room())) return false;
        const uint32_t sequence = again ? board_.oldest_lost() : board_.next();
        const uint32_t bytes = messages_.payload_bytes(sequence) + config_.wire.overhead_bytes;
        const bool is_free = unpaid_ > 0;  // after a timeout one packet needs no credit, or nobody would ever ask again
        if (config_.receiver_credit && credit_ <= 0 && !is_free) return false;
        if (config_.sender_window && !nscc_.can_send(bytes)) return false;
        const uint32_t plane = planes_.next(free_planes);
        if (plane == PlaneTurn::kNone) return false;

        if (config_.receiver_credit) {
            if (credit_ > 0) --credit_;
            else --unpaid_;
        }
        const uint32_t window_packets = static_cast<uint32_t>(nscc_.cwnd_bytes() / config_.wire.mtu_bytes);
        const uint16_t place = choice_.pick(plane, board_.next(), window_packets);
        board_.send(now, sequence, config_.paths.path(plane, place));
        nscc_.on_send(now, bytes);
        timer_.on_send(now, rto_ns_);
        ++counters_.packets;
        counters_.retransmitted += again;

        out.sequence = sequence;
        out.path = config_.paths.path(plane, place);
        out.bytes = static_cast<uint16_t>(bytes);
        out.stamp = static_cast<uint16_t>(credit_wanted());
        const bool ends = board_.next() == messages_.end();
        const bool closing = (config_.sender_window && nscc_.wants_ack()) || (config_.receiver_credit && credit_ <= 0);
        out.flags = static_cast<uint8_t>((again || ends || closing ? RivalData::kAsksAnswer : 0) | (again ? RivalData::kAgain : 0));
        return true;
    }

    uint64_t next_timeout_ns() const noexcept { return timer_.at_ns(); }
    void on_timeout(uint64_t now) noexcept {
        if (now < timer_.at_ns()) return;
        const uint64_t oldest = board_.oldest_sent_ns();
        const bool waits_for_credit = board_.next() != messages_.end() || board_.num_lost() > 0;
        if (oldest == UINT64_MAX) {
            if (waits_for_credit) unpaid_ = 1;
            timer_.set(waits_for_credit ? now + rto_ns_ : UINT64_MAX);
            return;
        }
        if (now < oldest + rto_ns_) return timer_.set(oldest + rto_ns_);
        board_.for_each_in_flight([&](uint32_t s, const Scoreboard::Record& r) {
            if (now < r.sent_ns + rto_ns_) return;
            const uint16_t path = r.path;
            if (!board_.lose(s)) return;
            ++counters_.declared_lost;
            nscc_.on_loss(now, wire_bytes(s));
            news(now, path, PathNews::Silent);
            if (config_.receiver_credit) ++unpaid_;
        });
        timer_.set(now + rto_ns_);
    }

    void on_answer(uint64_t now, const RivalAnswer& a) noexcept {
        take_grant(a.granted);
        if (a.kind == RivalAnswer::kPull) return;
        lapse();
        if (a.kind == RivalAnswer::kNack) return on_nack(now, a);
        bool rtt_valid = false;
        uint64_t rtt_ns = 0;
        if (board_.is_known(a.reference)) {
            const Scoreboard::Record& r = board_.record(a.reference);
            const bool again = a.has(RivalAnswer::kAgain);
            rtt_valid = r.transmissions == (again ? 2 : 1) && r.state != Scoreboard::kFree;
            rtt_ns = now - r.sent_ns;
        }
        // What came is counted by the receiver: the bitmap may not reach all that lies beyond a gap.
        const uint32_t newly = precedes(heard_bytes_, a.received) ? a.received - heard_bytes_ : 0;
        heard_bytes_ += newly;
        auto gain = [&](uint32_t s, const Scoreboard::Record&, bool was_lost) {
            if (was_lost) nscc_.on_spurious(wire_bytes(s));  // given up, yet it came: back into flight, and out once
        };
        board_.acknowledge_bitmap(a.base, a.bitmap, gain);
        board_.acknowledge(a.reference, gain);
        board_.acknowledge_below(a.cumulative, gain);
        messages_.on_acked(board_.una());
        const bool marked = a.has(RivalAnswer::kMarked);
        news(now, a.path, marked ? PathNews::Marked : PathNews::Good);
        nscc_.on_sack(now, newly, marked, rtt_valid, rtt_ns);
        if (board_.num_in_flight() == 0 && board_.num_lost() == 0 && board_.next() == messages_.end()) timer_.stop();
    }

    // ---- receiver ----------------------------------------------------------------------------------------------------

    bool on_data(uint64_t now, const RivalData& d, Arrived how) noexcept {
        (void)now;
        hear_wanted(d.stamp);
        if (how.trimmed) {
            const bool is_here = window_.has(d.sequence);
            if (!is_here && config_.receiver_credit) ++rtx_wanted_;
            owe(d, how, is_here ? RivalAnswer::kAck : RivalAnswer::kNack);
            return false;
        }
        const bool is_first = received_bytes_ == 0;
        unanswered_bytes_ += d.bytes;
        if (!window_.receive(d.sequence)) {
            ++counters_.duplicates;
            owe(d, how, RivalAnswer::kAck);
            return false;
        }
        received_bytes_ += d.bytes;
        messages_.on_delivered(window_.expected());
        bool is_due = is_first || how.marked || unanswered_bytes_ >= config_.ack_bytes;
        if (d.flags & RivalData::kAsksAnswer) is_due = asked_ = true;
        if (window_.num_early() == 0 && asked_) {  // the holes there were when it was asked for have closed
            is_due = true;
            asked_ = false;
        }
        if (is_due) owe(d, how, RivalAnswer::kAck);
        return true;
    }
    bool poll_answer(RivalAnswer& out) noexcept {
        if (!owed_.pop(out)) return false;
        fill(out);
        return true;
    }

    bool wants_grant() const noexcept { return config_.receiver_credit && demand() > 0; }
    /// Nothing is wanted, but the line is idle: credit in advance, up to one window.
    bool takes_idle_grant() const noexcept {
        return config_.receiver_credit && config_.idle_credit && !precedes(wanted_ + max_credit_, granted_ + config_.credit_packets);
    }
    /// The pacer's turn came: what to send, and for how many bytes. 0: nothing is wanted any more.
    uint64_t grant(RivalAnswer& out, bool is_idle = false) noexcept {
        const uint32_t packets = is_idle && takes_idle_grant() ? config_.credit_packets : std::min(config_.credit_packets, demand());
        if (packets == 0) return 0;
        granted_ += packets;
        rtx_wanted_ -= std::min(rtx_wanted_, packets);
        out = RivalAnswer{};
        out.kind = RivalAnswer::kPull;
        fill(out);
        return uint64_t{packets} * config_.wire.full_bytes();
    }

private:
    static PathChoiceConfig choice_config(const UetConfig& c) noexcept {
        PathChoiceConfig choice = c.choice;
        choice.num_paths = c.paths.per_plane;
        choice.seed = c.paths.seed;
        return choice;
    }
    static NsccConfig nscc_config(const UetConfig& c) noexcept {
        NsccConfig n = c.nscc;
        n.rate_bytes_per_s = c.wire.rate_bytes_per_s;
        n.base_rtt_ns = c.wire.base_rtt_ns;
        n.mtu_bytes = c.wire.mtu_bytes;
        return n;
    }

    uint32_t wire_bytes(uint32_t sequence) const noexcept { return messages_.payload_bytes(sequence) + config_.wire.overhead_bytes; }
    void news(uint64_t now, uint16_t path, PathNews n) noexcept {
        choice_.on_news(now, config_.paths.plane(path), static_cast<uint16_t>(path % config_.paths.per_plane), n);
    }

    void on_nack(uint64_t now, const RivalAnswer& a) noexcept {
        // At the last hop all paths are one: none is to blame.
        const PathNews at_last_hop = a.has(RivalAnswer::kMarked) ? PathNews::Marked : PathNews::Good;
        news(now, a.path, a.has(RivalAnswer::kLastHop) ? at_last_hop : PathNews::Refused);
        // An old refusal may speak of a packet that went again since: it is that one's path that counts.
        if (!board_.is_known(a.reference) || board_.record(a.reference).path != a.path || !board_.lose(a.reference)) return;
        ++counters_.trims;
        nscc_.on_trim(now, wire_bytes(a.reference), a.has(RivalAnswer::kLastHop));
    }

    // ---- credit: counted in packets, both ends modulo 2^16 ----

    void take_grant(uint32_t granted) noexcept {
        if (!config_.receiver_credit || !precedes(taken_, granted)) return;
        const auto more = static_cast<int32_t>(granted - taken_);
        taken_ = granted;
        lapse();
        credit_ += more;
    }
    // Once the receiver has spoken, what is left of the unasked window is void.
    void lapse() noexcept {
        if (!heard_ && credit_ > 0) credit_ = 0;
        heard_ = true;
    }
    /// Up to which count of grants this sender has use for them.
    uint32_t credit_wanted() const noexcept {
        const uint32_t backlog = messages_.end() - board_.next() + board_.num_lost();
        const int32_t more = static_cast<int32_t>(std::min(backlog, max_credit_)) - credit_;
        if (more > 0) return taken_ + (static_cast<uint32_t>(more) + num_active_ - 1) / num_active_;
        // The unasked window may lapse before it is used up, so one packet is asked for all the while.
        return taken_ + (backlog > 0 && !heard_);
    }
    void hear_wanted(uint16_t stamp) noexcept {
        if (!config_.receiver_credit) return;
        const auto ahead = static_cast<int16_t>(stamp - static_cast<uint16_t>(wanted_));
        if (ahead > 0) wanted_ += static_cast<uint32_t>(ahead);
    }
    uint32_t demand() const noexcept {
        const uint32_t asked = precedes(granted_, wanted_) ? wanted_ - granted_ : 0;
        return std::max(asked, rtx_wanted_);
    }

    // ---- answers ----

    void owe(const RivalData& d, Arrived how, RivalAnswer::Kind kind) noexcept {
        unanswered_bytes_ = 0;
        RivalAnswer a;
        a.kind = kind;
        a.reference = d.sequence;
        a.path = d.path;
        a.flags = static_cast<uint8_t>((how.marked ? RivalAnswer::kMarked : 0) | (d.flags & RivalData::kAgain ? RivalAnswer::kAgain : 0) |
                                       (how.last_hop ? RivalAnswer::kLastHop : 0));
        a.base = how.marked || (d.flags & RivalData::kAsksAnswer) ? d.sequence : bitmap_base(d.sequence);
        owed_.push(a);
    }
    uint32_t bitmap_base(uint32_t sequence) const noexcept { return sequence > 63 ? sequence - 63 : 0; }
    void fill(RivalAnswer& a) const noexcept {
        a.cumulative = window_.expected();
        a.base = std::max(a.base, window_.expected() + 1);
        a.bitmap = window_.bitmap(a.base);
        a.received = static_cast<uint32_t>(received_bytes_);
        a.granted = granted_;
    }

    UetConfig config_;
    MessageQueue messages_;
    // Sender.
    Scoreboard board_;
    ReceiveWindow window_;
    Nscc nscc_;
    PlaneTurn planes_;
    PathChoice choice_;
    LazyTimer timer_;
    uint64_t rto_ns_ = 0;
    FlowCounters counters_;
    uint32_t heard_bytes_ = 0, num_active_ = 1, max_credit_ = 0, taken_ = 0, unpaid_ = 0;
    int32_t credit_ = 0;
    bool heard_ = false;
    // Receiver.
    AnswerQueue owed_;
    bool asked_ = false;
    uint32_t unanswered_bytes_ = 0, granted_ = 0, wanted_ = 0, rtx_wanted_ = 0;
    uint64_t received_bytes_ = 0;
};

}  // namespace farstep::sim
