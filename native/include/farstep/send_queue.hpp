// Messages posted to one connection, in order: waiting, being cut into packets, or waiting for the peer's completion.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "farstep/config.hpp"
#include "farstep/storage.hpp"
#include "farstep/wire.hpp"

namespace farstep {

struct WriteRequest {
    const uint8_t* data = nullptr;
    uint32_t length_bytes = 0;
    uint32_t local_key = 0;  // region pinned while the message is in the queue; 0 for none
    uint64_t remote_offset = 0;
    uint32_t remote_key = 0;
    bool has_immediate = false;
    uint32_t immediate = 0;
};

struct Message {
    WriteRequest request;
    uint64_t first_psn = 0;  // set when its first packet is cut
    uint32_t num_packets = 0;
    uint16_t rqmsn = 0;
};

class SendQueue {
public:
    explicit SendQueue(const ConnectionConfig& c) : SendQueue(c, std::make_unique<Arena>()) {}
    SendQueue(const ConnectionConfig& c, Arena* arena)
        : mtu_bytes_(c.mtu_bytes), wimm_(c.wimm), mask_(c.send_queue - 1), ring_(c.send_queue, arena) {
        assert((c.send_queue & mask_) == 0 && c.send_queue <= (1u << 15));  // METH.MSN has 16 bits
    }

    bool is_full() const noexcept { return tail_ - head_ > mask_; }
    uint64_t posted() const noexcept { return tail_; }
    uint64_t completed() const noexcept { return head_; }
    uint64_t outstanding() const noexcept { return tail_ - head_; }

    void post(const WriteRequest& r) noexcept {
        assert(!is_full());
        Message& m = ring_[tail_++ & mask_];
        m.request = r;
        m.num_packets = r.length_bytes ? (r.length_bytes - 1) / mtu_bytes_ + 1 : 1;
    }

    /// A packet can be cut now: something is posted, and the bound on write-immediates in flight allows it.
    bool has_packet() const noexcept {
        if (next_ == tail_) return false;
        const Message& m = ring_[next_ & mask_];
        return offset_ > 0 || !m.request.has_immediate || immediates_sent_ - immediates_done_ < wimm_;
    }
    uint32_t next_payload_bytes() const noexcept {
        const Message& m = ring_[next_ & mask_];
        const uint64_t left = m.request.length_bytes - static_cast<uint64_t>(offset_) * mtu_bytes_;
        return left < mtu_bytes_ ? static_cast<uint32_t>(left) : mtu_bytes_;
    }
    bool next_has_immediate() const noexcept {
        const Message& m = ring_[next_ & mask_];
        return m.request.has_immediate && offset_ + 1 == m.num_packets;
    }
    /// Number of the message the next packet belongs to.
    uint64_t next_message() const noexcept { return next_; }
    /// Takes the next packet; `psn` becomes the message's first when it is.
    void cut(uint64_t psn) noexcept {
        Message& m = ring_[next_ & mask_];
        if (offset_ == 0) {
            m.first_psn = psn;
            if (next_ == head_) front_end_psn_ = psn + m.num_packets;
            m.rqmsn = static_cast<uint16_t>(immediates_sent_);
            if (m.request.has_immediate) ++immediates_sent_;
        }
        if (++offset_ == m.num_packets) {
            offset_ = 0;
            ++next_;
        }
    }
    bool is_drained() const noexcept { return next_ == tail_; }

    /// Payload bytes of the packet `psn` of message number `number`, and whether it is its last.
    std::pair<uint32_t, bool> extent(uint32_t number, uint64_t psn) const noexcept {
        const Message& m = ring_[number & mask_];
        const uint32_t i = static_cast<uint32_t>(psn - m.first_psn);
        if (i + 1 < m.num_packets) return {mtu_bytes_, false};
        return {static_cast<uint32_t>(m.request.length_bytes - static_cast<uint64_t>(i) * mtu_bytes_), true};
    }
    /// Headers and payload of the packet `psn` of message number `number`, of which the low 16 bits suffice.
    void describe(uint32_t number, uint64_t psn, wire::Packet& p) const noexcept {
        const Message& m = ring_[number & mask_];
        const uint32_t i = static_cast<uint32_t>(psn - m.first_psn);
        const bool first = i == 0, last = i + 1 == m.num_packets, imm = m.request.has_immediate;
        const uint64_t at = static_cast<uint64_t>(i) * mtu_bytes_;
        const uint64_t left = m.request.length_bytes - at;
        using wire::Opcode;
        if (first && last) p.bth.opcode = imm ? Opcode::WriteOnlyImm : Opcode::WriteOnly;
        else if (last) p.bth.opcode = imm ? Opcode::WriteLastImm : Opcode::WriteLast;
        else p.bth.opcode = first ? Opcode::WriteFirst : Opcode::WriteMiddle;
        p.meth = {m.rqmsn, static_cast<uint16_t>(number)};
        p.reth = {m.request.remote_offset + at, m.request.remote_key, m.request.length_bytes};
        p.immediate = m.request.immediate;
        p.payload = m.request.data + at;
        p.payload_bytes = left < mtu_bytes_ ? static_cast<uint32_t>(left) : mtu_bytes_;
    }

    /// The peer says it has `msn24` messages (modulo 2^24). What is old or was never sent is ignored: false.
    bool claim(uint32_t msn24) noexcept {
        const uint64_t claimed = expand24(msn24, head_);
        if (claimed <= claimed_ || claimed > next_) return false;
        claimed_ = claimed;
        return true;
    }
    /// Claimed messages whose packets were all acknowledged (`una` = lowest unacknowledged PSN). The claim may come
    /// first: acknowledgements of both kinds travel on different paths.
    uint64_t completions(uint64_t una) const noexcept {
        uint64_t n = head_;
        for (; n < claimed_; ++n) {
            const Message& m = ring_[n & mask_];
            if (m.first_psn + m.num_packets > una) break;
        }
        return n - head_;
    }
    const Message& front() const noexcept { return ring_[head_ & mask_]; }
    void pop_front() noexcept {
        if (front().request.has_immediate && head_ < next_) ++immediates_done_;
        ++head_;
        const bool is_cut = head_ < next_ || (head_ == next_ && offset_ > 0);
        front_end_psn_ = is_cut ? front().first_psn + front().num_packets : UINT64_MAX;
    }
    /// Behind the last packet of the oldest message; none is that high before its first packet is cut.
    uint64_t front_end_psn() const noexcept { return front_end_psn_; }

    template <class F>
    void each_hot(F&& f) const noexcept {
        f(ring_.get(), (mask_ + 1 < 2 ? mask_ + 1 : 2) * sizeof(Message));
    }

private:
    SendQueue(const ConnectionConfig& c, std::unique_ptr<Arena> own) : SendQueue(c, own.get()) { own_ = std::move(own); }

    uint32_t mtu_bytes_, wimm_;
    uint64_t mask_;
    Table<Message> ring_;
    uint64_t head_ = 0, next_ = 0, tail_ = 0;  // completed | being cut | posted
    uint64_t front_end_psn_ = UINT64_MAX;
    uint64_t claimed_ = 0;                     // messages the peer says it has
    uint32_t offset_ = 0;                      // packets of message `next_` already cut
    uint64_t immediates_sent_ = 0, immediates_done_ = 0;
    std::unique_ptr<Arena> own_;
};

}  // namespace farstep
