// Which packets of a sender are lost, which are only held back, and what it does when time runs out.
//
// Three rules find losses, quickest first (MRC §5.2): a packet overtaken on its own entropy value (paths are FIFO), told
// by a SACK that shows both, for what lies outside a bitmap is unknown and not missing; a packet later than its plane's
// round trip allows while news of later packets arrives; the retransmission timeout. A soft timeout sends the newest
// packet and a probe, so that the end of a message does not wait for the hard one.
#pragma once

#include <cstdint>

#include "farstep/sender_state.hpp"

namespace farstep {

class SenderLosses : public SenderState {
public:
    /// Takes everything out of the congestion context: the connection has ended.
    void release_inflight() noexcept {
        for (uint64_t psn = una_; psn < next_psn_; ++psn) {
            PacketRecord& r = record(psn);
            if (r.state == RecordState::InFlight) cc_->on_forget(r.size_bytes);
            r.state = RecordState::Free;
        }
        una_ = next_psn_;
        num_lost_ = 0;
        room_.clear();
        inflight_bytes_ = 0;
    }

protected:
    using SenderState::SenderState;

    void detect_losses(uint64_t now, uint64_t shown_low = 0, uint64_t shown_high = 0) noexcept {
        late_deadline_ns_ = kNever;
        if (is_nothing_lost(now)) return;
        may_be_overtaken_ = false;
        const uint64_t settle_ns = cc_->base_rtt_ns() / 2;
        const bool trusts_order = patience_.trusts_order(now);
        for (uint64_t psn = una_; psn < next_psn_; ++psn) {
            PacketRecord& r = record(psn);
            if (r.state != RecordState::InFlight) continue;
            // First transmissions leave in PSN order: nothing from here on was sent before the newest news.
            if (psn >= max_acked_ && r.transmissions == 1 && r.tx_ns >= newest_acked_tx_ns_) break;
            const uint64_t age = now - r.tx_ns;
            const bool overtaken = static_cast<int16_t>(static_cast<uint16_t>(order_[r.ev].acked - r.ev_index)) > 0;
            may_be_overtaken_ = may_be_overtaken_ || overtaken;
            if (overtaken && psn >= shown_low && psn < shown_high && age >= settle_ns && trusts_order) {
                ++counters_.lost_order;
                give_up(now, psn, r, LossRule::Order);
            } else if (r.tx_ns < newest_acked_tx_ns_) {
                const uint64_t late = late_after_ns(r);
                if (age >= late) {
                    ++counters_.lost_late;
                    give_up(now, psn, r, LossRule::Late);
                } else if (r.tx_ns + late < late_deadline_ns_) {
                    late_deadline_ns_ = r.tx_ns + late;
                }
            }
        }
    }

    // Usually a look at the oldest packet tells that there is nothing to find: no position on any entropy value was
    // skipped, and the oldest is not late yet, so none is, since first transmissions leave in order.
    bool is_nothing_lost(uint64_t now) noexcept {
        if (may_be_overtaken_ || una_ == next_psn_) return una_ == next_psn_;
        const PacketRecord& oldest = record(una_);
        const uint64_t late = patience_.least_late_ns();
        if (late == 0 || oldest.state != RecordState::InFlight || oldest.transmissions != 1 || now >= oldest.tx_ns + late) return false;
        if (oldest.tx_ns < newest_acked_tx_ns_) late_deadline_ns_ = oldest.tx_ns + late;
        return true;
    }
    // Missing from an answer that was asked for so much later that neither the length nor the present queue of its plane
    // explains it. Does without the variation of the round trip, which lasts long after a host has slept.
    void give_up_overtaken(uint64_t now, uint64_t asked_ns) noexcept {
        const uint64_t end = shown_end_psn_ < next_psn_ ? shown_end_psn_ : next_psn_;
        for (uint64_t psn = una_; psn < end; ++psn) {
            PacketRecord& r = record(psn);
            if (r.state != RecordState::InFlight || r.tx_ns + patience_.lag_ns(r.plane, cc_->base_rtt_ns()) > asked_ns) continue;
            ++counters_.lost_late;
            give_up(now, psn, r, LossRule::Late);
        }
    }
    void give_up(uint64_t now, uint64_t psn, PacketRecord& r, LossRule rule) noexcept {
        cc_->on_loss(now, r.size_bytes);
        paths_->on_lost(now, r.ev, r.size_bytes, rule == LossRule::Timer);
        put_lost(psn, r, rule);
    }
    void put_lost(uint64_t psn, PacketRecord& r, LossRule rule) noexcept {
        inflight_bytes_ -= r.size_bytes;
        r.state = RecordState::Lost;
        r.given_up_by = rule;
        ++num_lost_;
        if (psn < rtx_cursor_) rtx_cursor_ = psn;
    }

    // The peer has no room for this packet now. It waits and costs no retry: the peer is alive, its application is slow.
    void hold(uint64_t now, PacketRecord& r) noexcept {
        inflight_bytes_ -= r.size_bytes;
        r.state = RecordState::Held;
        room_.on_refused(now, r.transmissions > 1, first_rtt_ns());
        // Puts off no verdict on the packets under way: room may come only with one of those that got lost.
        if (is_only_held()) rto_deadline_ns_ = room_.until_ns() + rto_ns();
        retries_ = 0;
    }
    bool is_only_held() const noexcept { return inflight_bytes_ == 0 && num_lost_ == 0 && una_ != next_psn_; }
    void release_held(uint64_t now) noexcept {
        uint32_t left = room_.take_batch();
        for (uint64_t psn = una_; psn < next_psn_; ++psn) {
            PacketRecord& r = record(psn);
            if (r.state != RecordState::Held) continue;
            if (left-- == 0) return room_.wait_on(now);
            r.state = RecordState::Lost;
            r.given_up_by = LossRule::None;
            ++num_lost_;
            if (psn < rtx_cursor_) rtx_cursor_ = psn;
        }
    }

    // Every packet of a message arrived, what says so got lost. False where the wait was that of a hard timeout; asking
    // earlier costs nothing.
    bool ask_for_completion(bool& wants_probe) noexcept {
        wants_probe = true;
        const bool is_free = completion_asks_ == 0 || completion_wait_ns() < rto_ns();
        completion_asks_ += completion_asks_ < kMostAsks;
        return is_free;
    }

    // An answer is a quarter round trip late. Asking costs nothing; the soft timeout, which gives a packet up, waits for
    // as long as the round trip varies.
    void ask_early(uint64_t now, bool& wants_probe) noexcept {
        ask_deadline_ns_ = kNever;
        if (early_asks_ == kEarlyAsks || (!asks_ && has_new())) return;
        ++early_asks_;
        wants_probe = true;
        note_asked(now);
        ask_deadline_ns_ = now + (patience_.near_ns() / 2 << early_asks_);
    }
    // The newest packet goes again on another path: it is the one whose request for an answer got lost, and the answer to
    // it tells of those before, most of which usually arrived. The retry budget is untouched.
    void soft_timeout(uint64_t now, bool& wants_probe) noexcept {
        if (!asks_ && has_new()) {  // held up by a port's pace: nobody was asked for an answer yet
            soft_deadline_ns_ = now + soft_timeout_ns();
            return;
        }
        soft_fired_ = true;
        soft_deadline_ns_ = kNever;
        ++counters_.soft_timeouts;
        wants_probe = true;
        note_asked(now);
        for (uint64_t psn = next_psn_; psn-- > una_;) {
            PacketRecord& r = record(psn);
            if (r.state != RecordState::InFlight) continue;
            if (now - r.tx_ns >= soft_timeout_ns()) give_up(now, psn, r, LossRule::Timer);
            return;
        }
    }

    bool hard_timeout(uint64_t now, bool& wants_probe) noexcept {
        // Silence means something only where an answer is owed. A port's pace may hold up the packet that was to ask.
        if (oldest_ask_.end_psn <= una_) {
            wants_probe = true;
            note_asked(now);
        }
        if (now < oldest_ask_.at_ns + rto_ns()) {
            rto_deadline_ns_ = oldest_ask_.at_ns + rto_ns();
            return true;
        }
        ++counters_.timeouts;
        timed_out_ns_ = now;
        ++backoff_;
        rescues_left_ = kRescues;
        wants_probe = true;
        for (uint64_t psn = una_; psn < next_psn_; ++psn) {
            PacketRecord& r = record(psn);
            if (r.state != RecordState::InFlight || now - r.tx_ns < late_after_ns(r)) continue;
            if (psn >= newest_ask_.end_psn && r.transmissions == 1) continue;  // nobody asked for it yet
            ++counters_.lost_timeout;
            give_up(now, psn, r, LossRule::Timer);
        }
        note_asked(now);
        rto_deadline_ns_ = now + rto_ns();
        soft_fired_ = true;
        soft_deadline_ns_ = kNever;
        return ++retries_ <= retry_budget();
    }
};

}  // namespace farstep
