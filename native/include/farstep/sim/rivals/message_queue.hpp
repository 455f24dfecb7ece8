// Messages of one connection as ranges of packet numbers.
#pragma once

#include <cassert>
#include <cstdint>

#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

class MessageQueue {
public:
    /// `max_messages` is a power of two.
    MessageQueue(uint32_t mtu_bytes, uint32_t max_messages, Arena* arena)
        : ends_(max_messages, arena), mask_(max_messages - 1), mtu_bytes_(mtu_bytes) {
        assert((max_messages & mask_) == 0 && mtu_bytes > 0);
    }

    bool can_post() const noexcept { return posted_ - acked_ <= mask_; }
    /// A message of no bytes is one packet without payload; `packets` overrides the count where a message is shared out.
    void post(uint64_t bytes) noexcept { post_part(bytes, bytes == 0 ? 1 : static_cast<uint32_t>((bytes + mtu_bytes_ - 1) / mtu_bytes_)); }
    void post_part(uint64_t bytes, uint32_t packets) noexcept {
        assert(can_post());
        assert(end_ + uint64_t{packets} <= UINT32_MAX / 2);
        end_ += packets;
        const uint64_t whole = packets ? uint64_t{packets - 1} * mtu_bytes_ : 0;
        ends_[posted_++ & mask_] = {end_, static_cast<uint32_t>(bytes - whole)};
    }

    uint32_t end() const noexcept { return end_; }  // the first number that no message has yet
    /// Payload of a packet that is not acknowledged.
    uint32_t payload_bytes(uint32_t sequence) const noexcept {
        for (uint32_t i = acked_; i != posted_; ++i) {
            const Message& m = ends_[i & mask_];
            if (sequence < m.end) return sequence + 1 == m.end ? m.last_bytes : mtu_bytes_;
        }
        return mtu_bytes_;
    }
    bool is_last(uint32_t sequence) const noexcept {
        for (uint32_t i = acked_; i != posted_; ++i)
            if (sequence < ends_[i & mask_].end) return sequence + 1 == ends_[i & mask_].end;
        return false;
    }

    /// Everything below `cumulative` is with the receiver, or known at the sender to be.
    void on_delivered(uint32_t cumulative) noexcept {
        while (delivered_ != posted_ && ends_[delivered_ & mask_].end <= cumulative) ++delivered_;
    }
    void on_acked(uint32_t cumulative) noexcept {
        while (acked_ != delivered_ && ends_[acked_ & mask_].end <= cumulative) ++acked_;
    }
    uint32_t delivered() const noexcept { return delivered_; }
    uint32_t acked() const noexcept { return acked_; }
    uint32_t posted() const noexcept { return posted_; }

private:
    struct Message {
        uint32_t end = 0, last_bytes = 0;
    };
    Table<Message> ends_;
    uint32_t mask_, mtu_bytes_;
    uint32_t posted_ = 0, delivered_ = 0, acked_ = 0, end_ = 0;
};

}  // namespace farstep::sim
