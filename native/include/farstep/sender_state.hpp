// What a sender remembers of its packets, and when it stops waiting: deadlines, requests for an answer, back-off.
//
// Invariant: the bytes this connection holds in the congestion context are the sizes of its InFlight records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "farstep/config.hpp"
#include "farstep/entropy.hpp"
#include "farstep/loss_patience.hpp"
#include "farstep/nscc.hpp"
#include "farstep/packet_record.hpp"
#include "farstep/room_wait.hpp"
#include "farstep/send_queue.hpp"
#include "farstep/storage.hpp"
#include "farstep/wire.hpp"

namespace farstep {

class SenderState {
public:
    uint64_t una() const noexcept { return una_; }
    uint64_t next_psn() const noexcept { return next_psn_; }
    int64_t inflight_bytes() const noexcept { return inflight_bytes_; }
    uint32_t retries() const noexcept { return retries_; }
    /// Calls f(address, bytes) for what choosing an answer's path reads.
    template <class F>
    void each_hot_of_answers(F&& f) const noexcept {
        f(&inflight_bytes_, sizeof inflight_bytes_);
    }
    /// Asks the cache for the record of a packet, by its low bits.
    void prefetch(uint32_t psn) const noexcept { __builtin_prefetch(&records_[psn & mask_], 1); }
    /// And for the positions of packets on so many entropy values.
    template <class F>
    void each_hot_of_order(uint32_t num_evs, F&& f) const noexcept {
        f(order_.get(), num_evs * sizeof(EvOrder));
    }
    const RoundTrip& round_trip() const noexcept { return patience_.round_trip(); }
    uint64_t first_rtt_ns() const noexcept { return srtt_ns() ? srtt_ns() : reliability_->initial_rtt_ns; }
    uint64_t rto_ns() const noexcept {
        const RoundTrip& rtt = patience_.round_trip();
        uint64_t base = rtt.srtt_ns ? rtt.srtt_ns + 4 * rtt.var_ns + rtt.srtt_ns / 2 : reliability_->first_timeout_ns;
        if (base < reliability_->rto_base_ns) base = reliability_->rto_base_ns;
        const uint32_t linear = reliability_->linear_count;
        const uint32_t doublings = backoff_ > linear ? backoff_ - linear : 0;
        const uint64_t cap = base > reliability_->rto_max_ns ? base : reliability_->rto_max_ns;
        if (doublings >= 20 || base << doublings > cap) return cap;
        return base << doublings;
    }
    const SenderCounters& counters() const noexcept { return counters_; }
    bool has_retransmission() const noexcept { return num_lost_ > 0; }
    bool has_new() const noexcept { return next_psn_ < una_ + window_ && queue_.has_packet(); }

protected:
    SenderState(const ConnectionConfig& c, Nscc& cc, PathSet& paths, Arena* arena, const ReliabilityConfig* shared = nullptr)
        : cc_(&cc), paths_(&paths), window_(window_of(c)), queue_(c, arena), ring_(round_up_power_of_two(window_)),
          mask_(ring_ - 1), records_(ring_, arena), order_(c.paths.max_evs, arena),
          patience_(c.reliability.loss_slack_min_ns, c.paths.num_planes, arena), plane_asked_ns_(c.paths.num_planes, arena),
          mtu_bytes_(c.mtu_bytes), num_planes_(c.paths.num_planes), reliability_(arena->keep(c.reliability, shared)) {
        next_psn_ = una_ = max_acked_ = rtx_cursor_ = (1ull << 24) + c.start_psn;
    }
    SenderState(const ConnectionConfig& c, Nscc& cc, PathSet& paths, std::unique_ptr<Arena> own) : SenderState(c, cc, paths, own.get()) {
        own_ = std::move(own);
    }

    /// A request for an answer about every packet below `end_psn`.
    struct Ask {
        uint64_t end_psn = 0, at_ns = 0;
    };

    /// Positions on one entropy value: of the packet sent last, and of the last one known to have arrived.
    struct EvOrder {
        uint16_t sent = 0, acked = 0;  // modulo 2^16: fewer are ever on the way
    };
    static_assert(kMaxMpr * kMprUnit_packets < 1u << 15);

    static constexpr uint32_t kRescues = 3;
    static constexpr uint32_t kEarlyAsks = 4;  // without progress in between
    static constexpr uint8_t kMostAsks = 20;   // counted

    uint64_t srtt_ns() const noexcept { return patience_.round_trip().srtt_ns; }
    static uint32_t window_of(const ConnectionConfig& c) noexcept {
        const uint32_t window = c.peer_mpr * kMprUnit_packets;
        return c.send_records != 0 && c.send_records < window ? c.send_records : window;
    }
    PacketRecord& record(uint64_t psn) noexcept { return records_[psn & mask_]; }
    const PacketRecord& record(uint64_t psn) const noexcept { return records_[psn & mask_]; }
    uint32_t retry_budget() const noexcept {
        const ReliabilityConfig& r = *reliability_;
        return r.exponential_count >= 25 ? UINT32_MAX - 1 : r.linear_count + r.exponential_count;
    }

    // ---- deadlines ---------------------------------------------------------------------------------------------------

    uint64_t late_after_ns(const PacketRecord& r) const noexcept {
        const uint64_t late = patience_.late_after_ns(r.plane);
        return late ? late : rto_ns();
    }
    uint64_t soft_timeout_ns() const noexcept {
        return srtt_ns() ? srtt_ns() + patience_.slack_ns() : rto_ns();
    }

    void arm(uint64_t now) noexcept {
        rto_deadline_ns_ = now + rto_ns();
        soft_fired_ = false;
        // Counted from the last packet sent: news of those before it does not put off the end of a message.
        const uint64_t settled = now + patience_.slack_ns();
        soft_deadline_ns_ = last_tx_ns_ + soft_timeout_ns();
        if (soft_deadline_ns_ < settled) soft_deadline_ns_ = settled;
        early_asks_ = 0;
        wait_for_answer(now);
    }
    /// The peer has acknowledged every packet of the oldest message, and has yet to say that it is complete.
    bool is_completion_owed() const noexcept { return queue_.front_end_psn() <= una_; }
    void await_completion(uint64_t now) noexcept {
        completion_asks_ = 0;
        completion_deadline_ns_ = now + completion_wait_ns();
    }
    /// The soft timeout at first, twice as long each time it was asked for, up to the hard one.
    uint64_t completion_wait_ns() const noexcept {
        const uint64_t soft = soft_timeout_ns(), rto = rto_ns();
        return soft >= rto >> completion_asks_ ? rto : soft << completion_asks_;
    }
    void wait_for_answer(uint64_t now) noexcept {
        const uint64_t wait = patience_.due_after_ns();
        if (!wait) return;
        // Counted from the last packet sent, as with the soft timeout.
        const uint64_t due = last_tx_ns_ + wait, settled = now + wait - patience_.near_ns();
        ask_deadline_ns_ = due > settled ? due : settled;
    }
    void note_asked(uint64_t now) noexcept {
        newest_ask_ = {next_psn_, now};
        if (oldest_ask_.end_psn <= una_) oldest_ask_ = newest_ask_;
    }

    // What every packet touches comes first, so that it lies together.
    Nscc* cc_;
    PathSet* paths_;
    uint64_t next_psn_, una_, max_acked_;
    uint32_t num_lost_ = 0, window_;
    bool soft_fired_ = false, asks_ = false;
    uint8_t completion_asks_ = 0;    // in a row, for the same one
    bool may_be_overtaken_ = false;  // some position on some entropy value was skipped when later ones arrived
    uint32_t early_asks_ = 0;
    uint64_t last_tx_ns_ = 0, soft_deadline_ns_ = 0, ask_deadline_ns_ = kNever, late_deadline_ns_ = kNever;
    uint64_t rto_deadline_ns_ = kNever;
    int64_t inflight_bytes_ = 0;
    SendQueue queue_;
    uint32_t ring_, mask_;
    Table<PacketRecord> records_;
    Table<EvOrder> order_;
    LossPatience patience_;
    Ask oldest_ask_, newest_ask_;  // still unanswered while una_ is below their end
    Table<uint64_t> plane_asked_ns_;
    SenderCounters counters_;
    uint32_t mtu_bytes_, num_planes_;
    const ReliabilityConfig* reliability_;
    uint64_t newest_acked_tx_ns_ = 0, una_moved_ns_ = 0, timed_out_ns_ = 0, rtx_cursor_;
    uint64_t shown_end_psn_ = 0;  // what the last SACK does not name below this had not arrived
    uint64_t newest_received_ = 0;  // packets the peer had, by position, at its newest SACK
    uint64_t completion_deadline_ns_ = 0;
    RoomWait room_;
    uint32_t retries_ = 0, backoff_ = 0, rescues_left_ = 0;
    EvIndex last_trigger_ev_ = kNoEv;
    std::unique_ptr<Arena> own_;
};

}  // namespace farstep
