// The responder of one connection: places packets in any order, remembers which came, says so in SACKs, raises
// immediates and message completions in the order they were posted.
//
// Invariant: memory of a packet is written once. A PSN below `expected_` or already marked is never placed again, so a
// buffer handed to the application after completion stays as it is.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

#include "farstep/config.hpp"
#include "farstep/regions.hpp"
#include "farstep/storage.hpp"
#include "farstep/wire.hpp"

namespace farstep {

/// What the socket saw around a datagram.
struct Arrival {
    uint8_t local_port = 0;
    bool ecn_ce = false;
    uint8_t trimmed = 0;  // 0 whole, 1 trimmed on the way, 2 trimmed at the last hop (told by DSCP)
    uint32_t entropy = 0;  // what can be seen of the entropy value: the UDP source port, or what the flow label holds
    bool is_authentic = false;  // opened by packet_protection.hpp: there is no iCRC to check
};

inline constexpr uint8_t kAnyPort = 0xFF;

enum class Placement : uint8_t { Placed, Duplicate, OutOfWindow, NoImmediateSlot, Refused };

struct ReceiverCounters {
    uint64_t packets = 0, bytes = 0, duplicates = 0, out_of_window = 0, out_of_order = 0, ecn_ce = 0, trimmed = 0;
    uint64_t messages = 0, immediates = 0, sacks_sent = 0, nacks_sent = 0, acks_sent = 0, refused = 0;
};

class Receiver {
public:
    Receiver(const ConnectionConfig& c, Arena* arena)
        : flags_(round_up_power_of_two(window_of(c)), arena), window_(window_of(c)),
          ring_(round_up_power_of_two(window_)), mask_(ring_ - 1), mtu_bytes_(c.mtu_bytes),
          sack_threshold_(c.sack_threshold_bytes), max_triggers_(c.max_sack_triggers), triggers_(c.max_sack_triggers, arena),
          imm_mask_(c.immediate_queue - 1), imm_ring_mask_(imm_mask_ ? mask_ : 0), max_nacks_(c.max_nacks),
          max_probes_(c.max_probe_replies), imm_(c.immediate_queue > 1 ? ring_ : 1, arena), imm_queue_(c.immediate_queue, arena),
          nacks_(c.max_nacks, arena), probes_(c.max_probe_replies, arena), qpn_(c.qpn), mpr_(static_cast<uint8_t>(c.mpr)) {
        assert((c.immediate_queue & imm_mask_) == 0);
        // One lap ahead of zero, so that sequence arithmetic never goes below it.
        expected_ = (1ull << 24) + c.peer_start_psn;
        max_received_ = expected_ - 1;
        unreported_low_ = expected_;
    }

    // ---- input ---------------------------------------------------------------------------------------------------

    Placement on_data(const wire::Packet& p, const Arrival& a, const RegionTable& regions) noexcept {
        const uint64_t psn = expand24(p.bth.psn, expected_);
        if (a.ecn_ce) ++counters_.ecn_ce;
        if (psn < expected_ || (psn < expected_ + window_ && (flag(psn) & kReceived))) {
            ++counters_.duplicates;
            trigger_sack(psn, p, a, /*forced=*/true);
            ack_pending_ = true;  // the peer missed our answer, perhaps the completion too
            return Placement::Duplicate;
        }
        if (psn >= expected_ + window_) {
            ++counters_.out_of_window;
            push_nack(p, a, wire::NackReason::PsnOutOfWindow, FatalCode::Refused);
            return Placement::OutOfWindow;
        }
        const bool imm = wire::has_immediate(p.bth.opcode);
        if (imm && !has_immediate_slot(p.meth.rqmsn)) {
            push_nack(p, a, wire::NackReason::NoResource, FatalCode::Refused);
            if (p.bth.ack_request) trigger_sack(psn, p, a, /*forced=*/true);
            return Placement::NoImmediateSlot;
        }
        if (!place(p, regions)) {
            ++counters_.refused;
            push_nack(p, a, wire::NackReason::UnexpectedEvent, FatalCode::Refused);
            return Placement::Refused;
        }
        accept(psn, p, imm);
        const bool forced = answers_request(psn, p.bth.ack_request) || p.bth.ack_request || p.bth.rtx || a.ecn_ce;
        bytes_since_sack_ += p.payload_bytes > kMinSackCharge_bytes ? p.payload_bytes : kMinSackCharge_bytes;
        trigger_sack(psn, p, a, forced);
        return Placement::Placed;
    }

    /// Where the payload may be copied while its checksum is still being computed; null if it must wait. Only for a packet
    /// from the middle of a message that carries on exactly where the last one ended: its headers then say nothing we did
    /// not know, the bytes belong to a message that cannot be complete, and if the checksum fails they are sent again
    /// anyway. The last packet of a message waits: damaged padding bits could make it longer than the message.
    uint8_t* landing(const wire::Packet& p, const RegionTable& regions) const noexcept {
        const Stream& s = stream_;
        const bool carries_on = p.bth.psn == ((s.psn + 1) & wire::kPsnMask) && p.reth.va == s.next_va &&
                                p.reth.rkey == s.rkey && p.reth.dma_length_bytes == s.length_bytes && p.meth.msn == s.msn;
        if (!carries_on || p.bth.opcode != wire::Opcode::WriteMiddle || p.payload_bytes != mtu_bytes_) return nullptr;
        const uint64_t psn = expand24(p.bth.psn, expected_);
        if (psn < expected_ || psn >= expected_ + window_ || (flags_[psn & mask_] & kReceived)) return nullptr;
        uint8_t* target = nullptr;
        return regions.check(qpn_, p.reth.rkey, p.reth.va, p.payload_bytes, target) == RegionCheck::Ok ? target : nullptr;
    }

    void on_trimmed(const wire::Packet& p, const Arrival& a) noexcept {
        ++counters_.trimmed;
        const uint64_t psn = expand24(p.bth.psn, expected_);
        if (psn < expected_ || psn >= expected_ + window_ || (flag(psn) & kReceived)) return;
        push_nack(p, a, a.trimmed == 2 ? wire::NackReason::TrimmedLastHop : wire::NackReason::Trimmed,
                  FatalCode::Refused);
    }

    /// A probe asks for everything we know: the SACK state from the lowest hole on, and the completion. `answer_twice`: it
    /// came over a port whose way back is in doubt.
    void on_probe(const wire::Packet& p, const Arrival& a, bool answer_twice) noexcept {
        if (num_probes_ < max_probes_)
            probes_[num_probes_++] = {p.peth.probe_id, p.peth.timestamp, a.entropy, a.local_port, a.ecn_ce, answer_twice};
        ack_pending_ = true;
        reset_reported();
    }

    /// The socket dropped datagrams: ask the sender to slow down for a while (NSCC receiver window penalty, §6.5).
    void penalise(uint8_t penalty, uint64_t until_ns) noexcept {
        penalty_ = penalty;
        penalty_until_ = until_ns;
    }

    // ---- output --------------------------------------------------------------------------------------------------

    bool has_control() const noexcept { return ack_pending_ || num_nacks_ || num_probes_ || sack_due_; }

    /// Next NACK, SACK or ACK to send, headers without addresses. False when there is none.
    bool poll_control(uint64_t now, wire::Packet& out) noexcept {
        return_port_ = kAnyPort;
        if (num_nacks_) return emit_nack(out);
        if (num_probes_) return emit_probe_reply(now, out);
        if (sack_due_) {
            emit_sack(now, out);
            return true;
        }
        if (ack_pending_) {
            ack_pending_ = false;
            ++counters_.acks_sent;
            out.bth.opcode = wire::Opcode::Ack;
            acknowledged_ = acknowledgeable();
            out.aeth = {0, static_cast<uint32_t>(acknowledged_) & wire::kPsnMask};
            return true;
        }
        return false;
    }

    /// The port over which the packet just polled goes back, kAnyPort where the choice is free.
    uint8_t return_port() const noexcept { return return_port_; }

    bool pop_immediate(uint32_t& value) noexcept {
        if (imm_head_ == imm_tail_) return false;
        value = imm_queue_[imm_head_++ & imm_mask_].value;
        --imm_held_;
        if (acknowledgeable() > acknowledged_) ack_pending_ = true;
        return true;
    }
    uint64_t immediates_ready() const noexcept { return imm_tail_ - imm_head_; }
    uint64_t immediates_raised() const noexcept { return imm_tail_; }
    uint64_t messages_done() const noexcept { return messages_done_; }
    uint64_t expected_psn() const noexcept { return expected_; }
    uint32_t out_of_order_held() const noexcept { return ooo_; }
    const ReceiverCounters& counters() const noexcept { return counters_; }

    /// Calls f(address, bytes) for what a packet touches; see PathSet.
    template <class F>
    void each_hot(F&& f) const noexcept {
        f(this, static_cast<size_t>(reinterpret_cast<const char*>(&counters_.messages) - reinterpret_cast<const char*>(this)));
        f(flags_.get(), ring_ < 2 * Arena::kLine_bytes ? ring_ : 2 * Arena::kLine_bytes);
    }
    template <class F>
    void each_hot_on_answer(F&& f) const noexcept {
        f(&counters_, static_cast<size_t>(reinterpret_cast<const char*>(&imm_) - reinterpret_cast<const char*>(&counters_)));
        f(&penalty_until_, sizeof penalty_until_ + 2);
        f(triggers_.get(), sizeof(Trigger));
    }
    /// One more packet of `bytes` is likely to make an answer due.
    bool is_near_answer(uint32_t bytes) const noexcept { return bytes_since_sack_ + bytes >= sack_threshold_ || !first_seen_; }

private:
    static constexpr uint8_t kReceived = 1, kLast = 2, kImm = 4, kReported = 8;
    static constexpr uint32_t kMinSackCharge_bytes = 1024;  // UET: small packets count at least this much

    struct Stream {  // the packet accepted last
        uint32_t psn = 0, rkey = 0, length_bytes = 0;
        uint16_t msn = 0;
        uint64_t next_va = 0;
    };
    struct Immediate {
        uint32_t value = 0;
        uint64_t message = 0;  // complete messages before the one it belongs to
    };
    struct Trigger {
        uint64_t psn;
        uint32_t entropy;
        uint16_t timestamp;
        bool ecn, rtx;
    };
    struct PendingNack {
        uint32_t psn, entropy;
        uint16_t timestamp;
        wire::NackReason reason;
        FatalCode code;
    };
    struct PendingProbe {
        uint16_t id, timestamp;
        uint32_t entropy;
        uint8_t port;
        bool ecn, twice;
        bool is_second = false;  // the first answer has left
    };

    static uint32_t window_of(const ConnectionConfig& c) noexcept {
        const uint32_t window = c.mpr * kMprUnit_packets;
        return c.receive_records != 0 && c.receive_records < window ? c.receive_records : window;
    }
    uint8_t& flag(uint64_t psn) noexcept { return flags_[psn & mask_]; }

    // Slots go to immediates by their number, not by arrival: later ones never take the place of one that is missing,
    // and it could not be raised without it. The count held guards the queue against a peer that numbers wrongly.
    bool has_immediate_slot(uint16_t rqmsn) const noexcept {
        const uint16_t ahead = static_cast<uint16_t>(rqmsn - static_cast<uint16_t>(imm_tail_));
        return imm_held_ <= imm_mask_ && imm_tail_ - imm_head_ + ahead <= imm_mask_;
    }
    // A sender counts a write-immediate as in flight until we acknowledge its message, so messages whose immediates fill
    // more than half of the queue wait for the application. A peer that keeps to that half is never refused.
    uint64_t acknowledgeable() const noexcept {
        const uint64_t room = (imm_mask_ + 1) / 2;
        if (imm_tail_ - imm_head_ <= room) return messages_done_;
        return imm_queue_[(imm_head_ + room) & imm_mask_].message;
    }

    bool place(const wire::Packet& p, const RegionTable& regions) const noexcept {
        if (p.payload_bytes > mtu_bytes_) return false;
        // Only the last packet of a message may be short: a hole would otherwise hide between two of them.
        if (!wire::ends_message(p.bth.opcode) && p.payload_bytes != mtu_bytes_) return false;
        if (p.payload_bytes == 0) return true;
        uint8_t* target = nullptr;
        if (regions.check(qpn_, p.reth.rkey, p.reth.va, p.payload_bytes, target) != RegionCheck::Ok) return false;
        if (target != p.payload) std::memcpy(target, p.payload, p.payload_bytes);
        return true;
    }

    void accept(uint64_t psn, const wire::Packet& p, bool imm) noexcept {
        ++counters_.packets;
        counters_.bytes += p.payload_bytes;
        rcvd_bytes_ += p.payload_bytes;
        uint8_t f = kReceived;
        if (wire::ends_message(p.bth.opcode)) f |= kLast;
        if (imm) {
            f |= kImm;
            imm_[psn & imm_ring_mask_] = p.immediate;
            ++imm_held_;
        }
        flag(psn) = f;
        stream_ = {p.bth.psn, p.reth.rkey, p.reth.dma_length_bytes, p.meth.msn, p.reth.va + p.payload_bytes};
        if (psn > max_received_) max_received_ = psn;
        if (psn != expected_) {
            ++ooo_;
            ++counters_.out_of_order;
            if (psn < unreported_low_) unreported_low_ = psn;
            return;
        }
        ++ooo_;
        while (flag(expected_) & kReceived) {
            const uint8_t g = flag(expected_);
            if (g & kLast) complete_message(g, imm_[expected_ & imm_ring_mask_]);
            flag(expected_) = 0;
            ++expected_;
            --ooo_;
        }
        if (unreported_low_ < expected_) unreported_low_ = expected_;
    }

    void complete_message(uint8_t flags, uint32_t immediate) noexcept {
        if (flags & kImm) {
            imm_queue_[imm_tail_++ & imm_mask_] = {immediate, messages_done_};
            ++counters_.immediates;
        }
        ++messages_done_;
        ++counters_.messages;
        ack_pending_ = true;
    }

    // A request is answered at once, and again when the holes that were open then have been filled.
    bool answers_request(uint64_t psn, bool requested) noexcept {
        if (requested && psn >= expected_ && psn >= requested_until_) requested_until_ = psn + 1;
        if (requested_until_ == 0 || expected_ < requested_until_) return false;
        requested_until_ = 0;
        return true;
    }
    void trigger_sack(uint64_t psn, const wire::Packet& p, const Arrival& a, bool forced) noexcept {
        last_ = {psn, a.entropy, p.tseth.timestamp, a.ecn_ce, p.bth.rtx};
        if (!first_seen_) {
            first_seen_ = true;
            forced = true;  // the first packet of all gives the sender its first round trip
        }
        if (forced || bytes_since_sack_ >= sack_threshold_) {
            sack_due_ = true;
            if (a.ecn_ce || p.bth.rtx || p.bth.ack_request) remember(last_);  // these SACKs must describe this very packet
        }
    }
    void remember(const Trigger& t) noexcept {
        for (uint32_t i = 0; i < num_triggers_; ++i)
            if (triggers_[i].entropy == t.entropy && triggers_[i].ecn == t.ecn && triggers_[i].rtx == t.rtx) {
                triggers_[i] = t;
                return;
            }
        if (num_triggers_ < max_triggers_) triggers_[num_triggers_++] = t;
    }

    void push_nack(const wire::Packet& p, const Arrival& a, wire::NackReason reason, FatalCode code) noexcept {
        if (num_nacks_ < max_nacks_) nacks_[num_nacks_++] = {p.bth.psn, a.entropy, p.tseth.timestamp, reason, code};
    }
    bool emit_nack(wire::Packet& out) noexcept {
        const PendingNack n = nacks_[--num_nacks_];
        ++counters_.nacks_sent;
        out.bth.opcode = wire::Opcode::Nack;
        out.neth = {};
        out.neth.reason = n.reason;
        out.neth.vendor = static_cast<uint8_t>(n.code);
        out.neth.entropy = n.entropy;
        out.neth.nack_psn = n.psn;
        out.neth.timestamp = n.timestamp;
        return true;
    }

    // As many replies as it takes to report everything. Ordinary SACKs could not: they would echo the timestamp of some
    // packet that came long ago.
    bool emit_probe_reply(uint64_t now, wire::Packet& out) noexcept {
        PendingProbe& q = probes_[num_probes_ - 1];
        if (q.is_second) {
            q.is_second = false;
            return_port_ = q.port;
            reset_reported();  // this copy may be the one that arrives
        }
        Trigger t{expected_, q.entropy, q.timestamp, q.ecn, false};
        fill_sack(now, t, unreported_low_, out);
        out.seth.probe_reply = true;
        out.seth.ack_psn_offset = static_cast<int16_t>(q.id);
        if (q.twice) {
            q.twice = false;
            q.is_second = true;
            return true;
        }
        if (num_probes_ > 1 || unreported_low_ > max_received_) --num_probes_;
        return true;
    }

    void emit_sack(uint64_t now, wire::Packet& out) noexcept {
        Trigger t = last_;
        if (num_triggers_) t = triggers_[--num_triggers_];
        if (refresh_due_ && unreported_low_ > max_received_) return emit_refresh(now, t, out);
        const uint64_t newest_base = t.psn >= expected_ + 63 ? t.psn - 63 : expected_;
        // Everything that came gets reported at least once: an unreported packet would be taken for lost.
        while (unreported_low_ <= max_received_ && (flag(unreported_low_) & (kReceived | kReported)) != kReceived)
            ++unreported_low_;
        uint64_t base = unreported_low_ < newest_base ? unreported_low_ : newest_base;
        if (unreported_low_ <= max_received_ && unreported_low_ - base > 63) base = unreported_low_;
        fill_sack(now, t, base, out);
        bytes_since_sack_ = 0;
        // 64 bits do not show all that is held behind a hole: one more SACK walks over the rest, so that a SACK that got
        // lost is made good within a few packets.
        refresh_due_ = num_triggers_ == 0 && max_received_ >= expected_ + 64;
        sack_due_ = num_triggers_ > 0 || unreported_low_ <= max_received_ || refresh_due_;
    }
    void emit_refresh(uint64_t now, const Trigger& t, wire::Packet& out) noexcept {
        refresh_due_ = sack_due_ = false;
        if (refresh_cursor_ < expected_ || refresh_cursor_ > max_received_) refresh_cursor_ = expected_;
        fill_sack(now, t, refresh_cursor_, out);
        refresh_cursor_ += 64;
    }

    void fill_sack(uint64_t now, const Trigger& t, uint64_t base, wire::Packet& out) noexcept {
        ++counters_.sacks_sent;
        const uint64_t cack = expected_ - 1;
        uint64_t bitmap = 0;
        for (uint32_t i = 0; i < 64 && base + i <= max_received_; ++i) {
            uint8_t& f = flag(base + i);
            if (base + i >= expected_ && (f & kReceived)) {
                bitmap |= 1ull << i;
                f |= kReported;
            }
        }
        advance_unreported(base);
        out.bth.opcode = wire::Opcode::Sack;
        out.bth.rtx = t.rtx;  // tells the sender which transmission the timestamp belongs to
        out.seth = {};
        out.seth.mark = t.ecn ? wire::SackMark::SkipOnce : wire::SackMark::None;
        const int64_t offset = static_cast<int64_t>(t.psn - cack);
        out.seth.ack_psn_offset = static_cast<int16_t>(offset < -32768 ? -32768 : offset);
        out.seth.entropy = t.entropy;
        out.seth.cack_psn = static_cast<uint32_t>(cack) & wire::kPsnMask;
        out.seth.mpr = mpr_;
        out.seth.sack_offset = static_cast<int16_t>(base - cack);
        out.seth.bitmap = bitmap;
        out.cc = {};
        out.cc.timestamp = t.timestamp;
        out.cc.ooo_count = static_cast<uint16_t>(ooo_ < 0x7FFF ? ooo_ : 0x7FFF);
        out.cc.rcvd_units = static_cast<uint32_t>((rcvd_bytes_ + 255) >> 8) & 0xFFFFFF;
        if (penalty_ && now < penalty_until_) out.cc.rcv_cwnd_pen = penalty_;
        else if (penalty_) {
            penalty_ = 0;
            out.cc.restore_cwnd = true;
        }
    }

    // After [base, base+64) was reported: the next received packet that no SACK has named yet, if any.
    void advance_unreported(uint64_t base) noexcept {
        if (unreported_low_ < base) return;  // cannot be: base is never above it
        uint64_t p = base + 64 > unreported_low_ ? base + 64 : unreported_low_;
        if (p < expected_) p = expected_;
        while (p <= max_received_ && (flag(p) & (kReceived | kReported)) != kReceived) ++p;
        unreported_low_ = p;
    }
    void reset_reported() noexcept {
        unreported_low_ = expected_;
        while (unreported_low_ <= max_received_ && !(flag(unreported_low_) & kReceived)) ++unreported_low_;
        for (uint64_t p = unreported_low_; p <= max_received_; ++p) flag(p) &= static_cast<uint8_t>(~kReported);
    }

    // What every packet touches comes first, so that it lies together; then what an answer touches.
    Table<uint8_t> flags_;
    uint32_t window_, ring_, mask_, mtu_bytes_;
    uint64_t expected_, max_received_, unreported_low_;
    uint64_t requested_until_ = 0;  // a SACK is owed when everything below has come; 0 none
    uint64_t rcvd_bytes_ = 0;
    uint32_t ooo_ = 0, bytes_since_sack_ = 0, sack_threshold_;
    bool first_seen_ = false, refresh_due_ = false, sack_due_ = false, ack_pending_ = false;
    uint32_t num_triggers_ = 0, num_nacks_ = 0, num_probes_ = 0;
    uint32_t max_triggers_;
    Trigger last_{};
    Stream stream_;
    ReceiverCounters counters_;
    uint64_t messages_done_ = 0;
    Table<Trigger> triggers_;
    uint64_t refresh_cursor_ = 0, acknowledged_ = 0;
    uint64_t imm_head_ = 0, imm_tail_ = 0;
    uint32_t imm_mask_, imm_ring_mask_;  // where only one may be held, one place suffices
    uint32_t imm_held_ = 0;  // received and not consumed, raised or still waiting for earlier packets
    uint32_t max_nacks_, max_probes_;
    Table<uint32_t> imm_;
    Table<Immediate> imm_queue_;
    Table<PendingNack> nacks_;
    Table<PendingProbe> probes_;
    uint64_t penalty_until_ = 0;
    uint32_t qpn_;  // of this end: which regions are its peer's to write
    uint8_t mpr_, penalty_ = 0, return_port_ = kAnyPort;
};

}  // namespace farstep
