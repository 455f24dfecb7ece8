// The requester of one connection: cuts messages into packets, remembers each until the peer has it, decides what is
// lost, and sends that again on another entropy value.
//
// Split by what changes together: sender_state.hpp remembers packets and deadlines, sender_losses.hpp judges what is missing.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>

#include "farstep/sender_losses.hpp"

namespace farstep {

class Sender : public SenderLosses {
public:
    Sender(const ConnectionConfig& c, Nscc& cc, PathSet& paths) : SenderLosses(c, cc, paths, std::make_unique<Arena>()) {}
    Sender(const ConnectionConfig& c, Nscc& cc, PathSet& paths, Arena* arena, const ReliabilityConfig* shared = nullptr)
        : SenderLosses(c, cc, paths, arena, shared) {}

    SendQueue& queue() noexcept { return queue_; }
    const SendQueue& queue() const noexcept { return queue_; }

    // ---- output ----------------------------------------------------------------------------------------------------

    bool has_data() const noexcept { return has_retransmission() || has_new(); }

    /// Congestion window or receive window holds this connection back although it has something to send.
    bool is_window_limited() const noexcept { return has_data() && !cc_->can_send(mtu_bytes_); }

    /// Fills `psns` with packets for one burst on one entropy value and returns how many; 0 when nothing may go now.
    /// All but the last have the same size, as segmentation offload wants it.
    uint32_t poll_burst(uint64_t now, uint64_t free_planes, uint32_t max_packets, EvIndex& ev, uint64_t* psns) noexcept {
        if (has_retransmission()) return burst_of_lost(now, free_planes, max_packets, ev, psns);
        if (!has_new()) return 0;
        return burst_of_new(now, free_planes, max_packets, ev, psns);
    }
    void describe(uint64_t psn, wire::Packet& p) const noexcept {
        const PacketRecord& r = record(psn);
        queue_.describe(r.message, psn, p);
        p.bth.psn = static_cast<uint32_t>(psn) & wire::kPsnMask;
        p.bth.rtx = r.transmissions > 1;
        p.bth.has_timestamp = true;
        p.tseth.timestamp = timestamp_of(r.tx_ns);
        p.bth.ack_request = psn + 1 == next_psn_ && asks_;
    }

    /// What a simulated network has to know of a packet just polled; a real one is described in full.
    struct Outline {
        uint32_t payload_bytes;
        uint16_t timestamp;
        uint8_t plane;
        bool ends_message, is_again, asks;
    };
    Outline outline(uint64_t psn) const noexcept {
        const PacketRecord& r = record(psn);
        const auto [payload, last] = queue_.extent(r.message, psn);
        return {payload, timestamp_of(r.tx_ns), static_cast<uint8_t>(r.plane), last, r.transmissions > 1, psn + 1 == next_psn_ && asks_};
    }

    // ---- input -----------------------------------------------------------------------------------------------------

    void on_sack(uint64_t now, const wire::Packet& p) noexcept {
        ++counters_.sacks;
        shown_end_psn_ = 0;
        const uint64_t cack = expand24(p.seth.cack_psn, una_);
        if (cack >= next_psn_) {
            ++counters_.invalid_sacks;
            return;
        }
        // What had arrived when this was sent. A SACK overtaken by a newer one still acknowledges, but what it lacks may
        // have come since.
        const uint64_t received = cack + p.cc.ooo_count;
        if (received >= next_psn_) {
            ++counters_.invalid_sacks;
            return;
        }
        Batch batch;
        batch.is_newest = received >= newest_received_;
        if (batch.is_newest) newest_received_ = received;
        last_trigger_ev_ = kNoEv;
        if (!p.seth.probe_reply) read_trigger(now, p, cack, batch);
        for (uint64_t psn = una_; psn <= cack; ++psn) acknowledge(now, psn, batch);
        acknowledge_bitmap(now, p, cack, batch);
        const bool shows_all = static_cast<uint32_t>(__builtin_popcountll(p.seth.bitmap)) >= p.cc.ooo_count;
        shown_end_psn_ = shows_all ? next_psn_ : batch.shown_high;
        finish(now, p, batch);
    }

    /// Answers the probe sent on `plane` at `sent_ns`, right after the SACK that came with it: whatever was sent before it
    /// and is still missing is late now. `asks`: it was sent for this answer, and not to try a path. Returns false when
    /// the peer lacks what it had acknowledged before we asked.
    bool on_probe_answered(uint64_t now, uint64_t sent_ns, uint64_t rtt_ns, uint8_t plane, bool asks, uint32_t cack24) noexcept {
        patience_.on_sample(plane, rtt_ns);
        // The patience of the moment when the packet left may be that of a host that had just slept.
        const uint64_t soft = last_tx_ns_ + soft_timeout_ns();
        if (!soft_fired_ && soft < soft_deadline_ns_) soft_deadline_ns_ = soft > now ? soft : now;
        const uint64_t due = last_tx_ns_ + patience_.due_after_ns();
        if (early_asks_ == 0 && due < ask_deadline_ns_) ask_deadline_ns_ = due > now ? due : now;
        if (una_ == next_psn_) {
            if (sent_ns > una_moved_ns_ && expand24(cack24, una_) + 1 < una_) return false;
            retries_ = 0;  // the peer lives and has everything: it holds completions back for a slow application
        }
        // Between two hard timeouts only a few answers make us send again: where probes get through and data does not, the
        // back-off must hold, and where a cut has healed the first of them suffices.
        if (backoff_ && rescues_left_-- == 0) {
            rescues_left_ = 0;
            return true;
        }
        if (sent_ns > newest_acked_tx_ns_) newest_acked_tx_ns_ = sent_ns;
        if (asks) give_up_overtaken(now, sent_ns);
        detect_losses(now);
        return true;
    }

    /// Returns false when the shared retry budget is spent.
    bool on_nack(uint64_t now, const wire::Packet& p) noexcept {
        ++counters_.nacks;
        const uint64_t psn = expand24(p.neth.nack_psn, una_);
        if (psn < una_ || psn >= next_psn_) return true;
        PacketRecord& r = record(psn);
        // A NACK about an earlier transmission must not remove the present one.
        if (r.state != RecordState::InFlight || p.neth.timestamp != timestamp_of(r.tx_ns)) return true;
        const bool trim = p.neth.reason == wire::NackReason::Trimmed || p.neth.reason == wire::NackReason::TrimmedLastHop;
        if (trim) ++counters_.trimmed;
        // Where the peer lacked room, no path is to blame, and no queue: the window stays as it is.
        const bool is_refused = p.neth.reason == wire::NackReason::NoResource;
        const bool blameless = p.neth.reason != wire::NackReason::Trimmed;
        if (is_refused) cc_->on_forget(r.size_bytes);
        else cc_->on_trim(now, r.size_bytes, blameless);
        paths_->on_trimmed(now, r.ev, blameless, r.size_bytes);
        if (is_refused) {
            hold(now, r);
            return true;
        }
        put_lost(psn, r, LossRule::None);
        return trim || ++retries_ <= retry_budget();
    }
    /// A fatal NACK speaks of something we did: of a packet we sent and the peer refused, or, when the peer ended the
    /// connection, of a position it can be at. Anything else is forged or ages old.
    bool is_credible_refusal(const wire::Packet& p) const noexcept {
        const uint64_t psn = expand24(p.neth.nack_psn, una_);
        if (psn < una_ || psn >= next_psn_) return false;
        const PacketRecord& r = record(psn);
        if (r.state == RecordState::Acked) return false;
        return p.neth.timestamp == timestamp_of(r.tx_ns) || (r.transmissions > 1 && p.neth.timestamp == r.previous_timestamp);
    }
    bool is_credible_position(uint32_t psn24) const noexcept {
        const uint64_t psn = expand24(psn24, una_);
        return psn >= una_ && psn <= next_psn_;
    }

    void on_ack(uint64_t now, uint32_t msn24) noexcept {
        ++counters_.acks;
        if (queue_.claim(msn24)) await_completion(now);  // of the next one
    }
    /// How many messages at the front of the queue are complete now. Asked after every SACK and ACK.
    uint64_t take_completions() noexcept {
        const uint64_t n = queue_.completions(una_);
        if (n) {
            retries_ = 0;
            backoff_ = 0;
        }
        return n;
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    uint64_t next_timeout_ns() const noexcept {
        if (una_ == next_psn_) return queue_.completed() < queue_.next_message() ? completion_deadline_ns_ : kNever;
        if (is_only_held()) return room_.until_ns();
        uint64_t t = rto_deadline_ns_;
        if (soft_deadline_ns_ < t) t = soft_deadline_ns_;
        if (late_deadline_ns_ < t) t = late_deadline_ns_;
        if (ask_deadline_ns_ < t) t = ask_deadline_ns_;
        if (room_.until_ns() < t) t = room_.until_ns();
        if (is_completion_owed() && completion_deadline_ns_ < t) t = completion_deadline_ns_;
        return t;
    }
    /// Returns false when the retry budget is spent. `wants_probe` asks for a reliability probe.
    bool on_timeout(uint64_t now, bool& wants_probe) noexcept {
        wants_probe = false;
        if (una_ == next_psn_) {
            if (now < completion_deadline_ns_ || queue_.completed() == queue_.next_message()) return true;
            const bool is_free = ask_for_completion(wants_probe);
            if (!is_free) ++backoff_;
            completion_deadline_ns_ = now + completion_wait_ns();
            return is_free || ++retries_ <= retry_budget();
        }
        if (now >= room_.until_ns()) release_held(now);
        if (is_only_held()) return true;
        if (is_completion_owed() && now >= completion_deadline_ns_) {
            ask_for_completion(wants_probe);  // of the timeouts, those of the packets under way count
            completion_deadline_ns_ = now + completion_wait_ns();
        }
        if (now >= late_deadline_ns_) detect_losses(now);
        if (now >= rto_deadline_ns_) return hard_timeout(now, wants_probe);
        if (now >= soft_deadline_ns_) soft_timeout(now, wants_probe);
        else if (now >= ask_deadline_ns_) ask_early(now, wants_probe);
        return true;
    }

    /// Entropy value of the packet the last SACK answered, kNoEv if that is not known.
    EvIndex last_trigger_ev() const noexcept { return last_trigger_ev_; }
    /// Calls f(address, bytes) for what sending touches, and for what acknowledging touches besides; see PathSet.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(this, static_cast<size_t>(reinterpret_cast<const char*>(&newest_acked_tx_ns_) - reinterpret_cast<const char*>(this)));
        f(plane_asked_ns_.get(), num_planes_ * sizeof(uint64_t));
        queue_.each_hot(f);
    }
    template <class F>
    void each_hot_on_ack(F&& f) const noexcept {
        f(&newest_acked_tx_ns_, static_cast<size_t>(reinterpret_cast<const char*>(this + 1) - reinterpret_cast<const char*>(&newest_acked_tx_ns_)));
        patience_.each_hot(f);
    }
    void prefetch_next() const noexcept { __builtin_prefetch(&records_[next_psn_ & mask_], 1); }
    /// Asks the cache for the records of packets that a SACK tells of, and for the oldest.
    void prefetch_shown(uint32_t cack_psn, uint32_t base_psn, uint64_t bitmap) const noexcept {
        const auto oldest = static_cast<uint32_t>(una_);
        uint32_t end = cack_psn + 1;
        if (bitmap) end = base_psn + 64 - static_cast<uint32_t>(__builtin_clzll(bitmap));
        const uint32_t count = (end - oldest) & wire::kPsnMask;
        for (uint32_t i = 0; i < (count < kMostShown ? count : kMostShown); i += kPerLine) prefetch(oldest + i);
    }
    void prefetch_oldest() const noexcept {
        for (uint32_t i = 0; i < 4; ++i) __builtin_prefetch(&records_[(una_ + 2 * i) & mask_], 1);
    }

private:
    static constexpr uint32_t kMostShown = 64, kPerLine = 64 / sizeof(PacketRecord);
    /// What one SACK changed, applied once at its end.
    struct Batch {
        uint32_t newly_bytes = 0;
        bool rtt_valid = false, progress = false, is_newest = false;
        uint64_t rtt_ns = 0;
        uint8_t run_plane = 0;  // consecutive packets of one plane are reported together
        uint32_t run_bytes = 0;
        EvIndex trigger_ev = kNoEv;
        uint64_t trigger_psn = 0;
        uint64_t shown_low = 0, shown_high = 0;  // between these, a packet the bitmap lacks had not arrived
    };

    static uint32_t nominal_bytes(uint32_t payload, bool imm) noexcept {
        return static_cast<uint32_t>(wire::kDataHeaderBytes + wire::kIcrcBytes + kNominalOverhead_bytes) + payload +
               (imm ? static_cast<uint32_t>(wire::kImmBytes) : 0u);
    }

    // ---- sending ---------------------------------------------------------------------------------------------------

    uint32_t burst_of_new(uint64_t now, uint64_t free_planes, uint32_t max_packets, EvIndex& ev, uint64_t* psns) noexcept {
        if (!can_send_next()) return 0;
        uint8_t plane = 0;
        ev = paths_->pick(now, free_planes, kNoEv, max_packets * mtu_bytes_, plane);
        if (ev == kNoEv) return 0;
        uint32_t n = 0, first_size = 0;
        while (n < max_packets && has_new()) {
            const uint32_t size = nominal_bytes(queue_.next_payload_bytes(), queue_.next_has_immediate());
            if (n && size > first_size) break;
            if (!cc_->can_send(size)) break;
            if (n == 0) first_size = size;
            PacketRecord& r = record(next_psn_);
            r = PacketRecord{};
            r.message = static_cast<uint16_t>(queue_.next_message());
            r.size_bytes = size;
            queue_.cut(next_psn_);
            stamp(now, next_psn_, r, ev, plane);
            psns[n++] = next_psn_++;
            if (size < first_size) break;
        }
        // Whatever stops us after this packet, the peer must not wait for more before it answers; and on a slow line its
        // threshold takes longer to fill than a packet may be late.
        asks_ = !has_new() || cc_->wants_ack() || !can_send_next() || now - newest_ask_.at_ns >= patience_.slack_ns() / 2 || misses_news(now);
        if (asks_) note_asked(now);
        return n;
    }
    // The peer answers every so many packets, and in step with our round over the planes that may be the same plane each
    // time. Every plane's round trip must be known, so every plane is asked in its turn.
    bool misses_news(uint64_t now) noexcept {
        const uint8_t plane = record(next_psn_ - 1).plane;
        const uint64_t interval = std::max(srtt_ns(), reliability_->plane_news_ns);
        if (now - plane_asked_ns_[plane] < interval) return false;
        plane_asked_ns_[plane] = now;
        return true;
    }
    bool can_send_next() const noexcept { return cc_->can_send(nominal_bytes(queue_.next_payload_bytes(), queue_.next_has_immediate())); }

    uint32_t burst_of_lost(uint64_t now, uint64_t free_planes, uint32_t max_packets, EvIndex& ev, uint64_t* psns) noexcept {
        uint32_t n = 0, first_size = 0;
        uint8_t plane = 0;
        while (n < max_packets && num_lost_) {
            while (rtx_cursor_ < next_psn_ && record(rtx_cursor_).state != RecordState::Lost) ++rtx_cursor_;
            assert(rtx_cursor_ < next_psn_);
            PacketRecord& r = record(rtx_cursor_);
            if (!cc_->can_send(r.size_bytes)) break;
            if (n == 0) {
                ev = paths_->pick(now, free_planes, r.ev, r.size_bytes, plane);
                if (ev == kNoEv) return 0;
                first_size = r.size_bytes;
            } else if (r.ev == ev || r.size_bytes > first_size) {
                break;  // never on the entropy value that lost it
            }
            r.previous_ev = r.ev;
            r.previous_timestamp = timestamp_of(r.tx_ns);
            --num_lost_;
            ++counters_.retransmitted;
            stamp(now, rtx_cursor_, r, ev, plane);
            psns[n++] = rtx_cursor_++;
            if (r.size_bytes < first_size) break;
        }
        return n;
    }

    void stamp(uint64_t now, uint64_t psn, PacketRecord& r, EvIndex ev, uint8_t plane) noexcept {
        // Only a first packet starts the clock: one sent again must not, or nobody would ever run out of retries.
        const bool starts = psn == una_ && r.transmissions == 0;
        r.tx_ns = now;
        r.ev = ev & 0x7FF;
        r.plane = plane & 0x1F;
        r.ev_index = ++order_[ev].sent;
        if (r.transmissions < 255) ++r.transmissions;
        r.state = RecordState::InFlight;
        inflight_bytes_ += r.size_bytes;
        cc_->on_send(now, r.size_bytes);
        paths_->on_sent(ev, plane, r.size_bytes);
        ++counters_.packets;
        counters_.bytes += r.size_bytes;
        last_tx_ns_ = now;
        if (starts) arm(now);
        if (early_asks_ == 0) wait_for_answer(now);
        const uint64_t soft = now + soft_timeout_ns();
        if (soft > soft_deadline_ns_ && !soft_fired_) soft_deadline_ns_ = soft;
    }

    // ---- acknowledgement ---------------------------------------------------------------------------------------------

    // The packet that made the peer answer: its round trip, its mark, and whether a loss was declared wrongly.
    void read_trigger(uint64_t now, const wire::Packet& p, uint64_t cack, Batch& b) noexcept {
        const uint64_t psn = cack + static_cast<int64_t>(p.seth.ack_psn_offset);
        if (psn + ring_ < next_psn_ || psn >= next_psn_) return;
        PacketRecord& r = record(psn);
        if (r.transmissions == 0) return;
        // The echoed timestamp says which transmission arrived; Karn's rule with an echo (UET) is implied by it.
        if (p.cc.timestamp == timestamp_of(r.tx_ns) && p.bth.rtx == (r.transmissions > 1)) {
            b.trigger_ev = r.ev;
            b.trigger_psn = psn;
            // What was on the way when the timer ran out measures the outage, not the path.
            b.rtt_valid = r.transmissions <= 2 && r.tx_ns >= timed_out_ns_;
            b.rtt_ns = now - r.tx_ns;
            note_order(r);
        } else if (r.previous_ev != kNoEv && p.cc.timestamp == r.previous_timestamp) {
            note_spurious(now, r);
            paths_->on_spurious_loss(now, r.previous_ev, r.size_bytes);
            b.trigger_ev = r.previous_ev;
            r.previous_ev = kNoEv;
        }
        last_trigger_ev_ = b.trigger_ev;
        if (p.seth.mark == wire::SackMark::SkipOnce && b.trigger_ev != kNoEv) paths_->on_ecn(now, b.trigger_ev);
        if (p.seth.mark == wire::SackMark::AlwaysSkip && b.trigger_ev != kNoEv) paths_->on_always_skip(now, b.trigger_ev);
    }

    void note_spurious(uint64_t now, const PacketRecord& r) noexcept {
        ++counters_.spurious;
        if (r.given_up_by != LossRule::None) patience_.on_spurious(now, r.given_up_by == LossRule::Order);
    }
    void note_order(const PacketRecord& r) noexcept {
        EvOrder& o = order_[r.ev];
        const auto ahead = static_cast<int16_t>(static_cast<uint16_t>(r.ev_index - o.acked));
        if (ahead > 0) o.acked = r.ev_index;
        if (ahead > 1) may_be_overtaken_ = true;
        if (r.tx_ns > newest_acked_tx_ns_) newest_acked_tx_ns_ = r.tx_ns;
    }

    void acknowledge_bitmap(uint64_t now, const wire::Packet& p, uint64_t cack, Batch& b) noexcept {
        const uint64_t base = cack + static_cast<int64_t>(p.seth.sack_offset);
        uint64_t bits = p.seth.bitmap;
        b.shown_low = base;
        if (bits) b.shown_high = base + 63 - static_cast<uint64_t>(__builtin_clzll(bits));
        while (bits) {
            const int i = __builtin_ctzll(bits);
            bits &= bits - 1;
            const uint64_t psn = base + static_cast<uint64_t>(i);
            if (psn >= una_ && psn > cack && psn < next_psn_) acknowledge(now, psn, b);
        }
    }

    void acknowledge(uint64_t now, uint64_t psn, Batch& b) noexcept {
        PacketRecord& r = record(psn);
        if (r.state == RecordState::Acked) return;
        b.progress = true;
        if (psn >= max_acked_) max_acked_ = psn + 1;
        if (r.state == RecordState::InFlight) {
            b.newly_bytes += r.size_bytes;
            inflight_bytes_ -= r.size_bytes;
            if (r.plane != b.run_plane) flush_run(now, b);
            b.run_plane = r.plane;
            b.run_bytes += r.size_bytes;
            paths_->count_acked(r.ev, r.size_bytes);
            // With several transmissions it is unknown which arrived, so it says nothing about order.
            if (r.transmissions == 1) note_order(r);
        } else if (r.state == RecordState::Held) {
            cc_->on_spurious(r.size_bytes);  // refused, and yet another copy of it found room
            b.newly_bytes += r.size_bytes;
        } else if (r.state == RecordState::Lost) {
            // Given up, not yet sent again, and here it is after all: put it back before NSCC takes it out (§6.4).
            --num_lost_;
            note_spurious(now, r);
            cc_->on_spurious(r.size_bytes);
            b.newly_bytes += r.size_bytes;
            paths_->on_spurious_loss(now, r.ev, r.size_bytes);
        }
        r.state = RecordState::Acked;
    }
    void flush_run(uint64_t now, Batch& b) noexcept {
        if (b.run_bytes) paths_->on_delivered(now, b.run_plane, b.run_bytes);
        b.run_bytes = 0;
    }

    void finish(uint64_t now, const wire::Packet& p, Batch& b) noexcept {
        flush_run(now, b);
        if (b.rtt_valid) {
            patience_.on_sample(paths_->plane(b.trigger_ev), b.rtt_ns);
            // Apart from its bytes: an answer by a longer way may find them acknowledged already.
            paths_->on_acked(now, b.trigger_ev, 0, true, b.rtt_ns);
        }
        if (p.cc.rcv_cwnd_pen || p.cc.restore_cwnd)
            cc_->on_receiver_penalty(now, b.newly_bytes, p.cc.rcv_cwnd_pen, p.cc.restore_cwnd);
        const bool ecn = p.seth.mark == wire::SackMark::SkipOnce;
        if (b.newly_bytes || ecn) {
            // Planes differ in length: what the longest needs to be filled, and no distance taken for a queue.
            cc_->set_longest_rtt(paths_->longest_rtt_ns());
            const uint64_t detour = b.rtt_valid ? paths_->detour_ns(b.trigger_ev) : 0;
            cc_->on_sack(now, b.newly_bytes, ecn, b.rtt_valid, b.rtt_ns > detour ? b.rtt_ns - detour : b.rtt_ns);
        }
        const uint64_t una = una_;
        while (una_ < next_psn_ && record(una_).state == RecordState::Acked) ++una_;
        if (una_ != una) {
            una_moved_ns_ = now;
            if (is_completion_owed() && una < queue_.front_end_psn()) await_completion(now);
        }
        if (oldest_ask_.end_psn <= una_) oldest_ask_ = newest_ask_;
        if (rtx_cursor_ < una_) rtx_cursor_ = una_;
        if (b.progress) {
            retries_ = 0;
            backoff_ = 0;
            arm(now);
            patience_.on_progress(now);
            if (room_.on_progress()) release_held(now);
        }
        detect_losses(now, b.shown_low, b.is_newest ? b.shown_high : b.shown_low);
    }

};

}  // namespace farstep
