// What the rival transports send: the part of a packet that is theirs, and their answers.
//
// A rival is a pair of state machines in one object, one for each end of a connection. The fabric carries a RivalData from
// its sending to its receiving half (whole, or trimmed to its header) and RivalAnswers either way, and it asks:
//   bool can_post(), void post(uint64_t bytes)   one more message behind those there are
//   bool poll_data(now, free_planes, RivalData&) the next packet, on one of these planes; false: nothing to send now
//   bool on_data(now, RivalData, Arrived)        at the receiving end; true: a packet that was not there before
//   bool poll_answer(RivalAnswer&)               what the receiving end has to say; asked after every on_data
//   void on_answer(now, RivalAnswer)             at the sending end
//   uint64_t next_timeout_ns(), void on_timeout(now)   of either end; polling again may be worth while then, too
//   void set_usable_planes(mask)                 planes that both NICs can use, as far as the sender was told
//   uint32_t messages_delivered(), messages_acked()    at the receiving and at the sending end, in order
//   FlowCounters counters(), RivalSpan span()    for people
// Receiver-paced ones also have wants_grant() and grant(RivalAnswer&), see ReceiverPacer.
// Time is nanoseconds, nothing allocates after construction, and there is no chance but that of the seed.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>

#include "farstep/sim/transport.hpp"

namespace farstep::sim {

struct RivalData {
    enum Flag : uint8_t { kAsksAnswer = 1, kAgain = 2, kAdaptive = 4 };  // kAdaptive: switches choose the ports
    uint32_t sequence = 0;
    uint16_t stamp = 0;   // of the transport, for its other end
    uint16_t path = 0;    // plane and place among the paths there; see RivalPaths
    uint16_t bytes = 0;   // on the wire
    uint8_t flags = 0;
};

struct Arrived {
    bool marked = false;    // ECN
    bool trimmed = false;   // only the header came
    bool last_hop = false;  // trimmed by the port that faces the NIC
};

struct RivalAnswer {
    enum Kind : uint8_t { kAck, kNack, kPull, kCongestion };
    enum Flag : uint8_t { kMarked = 1, kAgain = 2, kLastHop = 4 };  // of the packet answered
    uint64_t bitmap = 0;      // bit i: base + i is there
    uint32_t base = 0;
    uint32_t cumulative = 0;  // the first that is not
    uint32_t reference = 0;   // the packet answered
    uint32_t received = 0;    // bytes on the wire so far, modulo 2^32, every packet once
    uint32_t granted = 0;     // packets the receiver has asked for so far
    uint16_t path = 0;        // of the packet answered
    uint8_t kind = kAck;
    uint8_t flags = 0;
    uint8_t queue_pair = 0;
    bool has(Flag f) const noexcept { return flags & f; }
};
static_assert(sizeof(RivalAnswer) <= 48);

/// Paths of a connection: each plane has the same number of them, and a path is plane * per_plane + place.
struct RivalPaths {
    uint32_t num_planes = 1;
    uint32_t per_plane = 64;
    uint64_t seed = 0;
    bool is_hashed = true;  // by ECMP: places may share links by chance; else place n is the n-th of the paths there are

    uint8_t plane(uint16_t path) const noexcept { return static_cast<uint8_t>(path / per_plane); }
    uint16_t path(uint32_t plane, uint32_t place) const noexcept { return static_cast<uint16_t>(plane * per_plane + place); }
    /// Number of a path among the shortest ones of its plane, to be taken modulo how many there are at each hop.
    uint64_t number(uint16_t path) const noexcept {
        const uint64_t place = path % per_plane;
        return is_hashed ? mix(seed ^ mix(path + 1)) : place;
    }
    /// What a bond's hash of the n-th queue pair comes to, whose remainder is the port it takes.
    uint64_t bond(uint32_t n) const noexcept { return mix(seed ^ mix(~uint64_t{n})); }

private:
    static constexpr uint64_t mix(uint64_t z) noexcept {
        z += 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
};

/// What every rival has to know of its connection.
struct RivalWire {
    uint32_t mtu_bytes = 4096;       // payload of a full packet
    uint32_t overhead_bytes = 64;    // around it on the wire
    double rate_bytes_per_s = 12.5e9;  // of the NIC, all planes together
    uint64_t base_rtt_ns = 12'000;
    uint32_t max_messages = 16;      // posted and not done; a power of two
    uint64_t seed = 0;
    uint32_t full_bytes() const noexcept { return mtu_bytes + overhead_bytes; }
    double bdp_bytes() const noexcept { return rate_bytes_per_s * static_cast<double>(base_rtt_ns) * 1e-9; }
};

/// Packets of a connection: below `una` all is known to be there, from `next` on nothing was sent.
struct RivalSpan {
    uint32_t una = 0, next = 0, end = 0;
};

/// What the receiving end has to say next. It is asked after every packet, so this holds what one packet may cause.
class AnswerQueue {
public:
    void push(const RivalAnswer& a) noexcept {
        assert(count_ < answers_.size());
        answers_[count_++] = a;
    }
    bool pop(RivalAnswer& out) noexcept {
        if (count_ == 0) return false;
        out = answers_[0];
        for (uint8_t i = 1; i < count_; ++i) answers_[i - 1] = answers_[i];
        --count_;
        return true;
    }

private:
    std::array<RivalAnswer, 3> answers_;
    uint8_t count_ = 0;
};

/// Planes in turn, as far as they are free and usable.
class PlaneTurn {
public:
    static constexpr uint32_t kNone = UINT32_MAX;
    explicit PlaneTurn(uint32_t num_planes) noexcept : num_planes_(num_planes) { assert(num_planes >= 1 && num_planes <= 64); }
    void set_usable(uint64_t planes) noexcept { usable_ = planes; }
    uint64_t usable() const noexcept { return usable_; }
    uint32_t next(uint64_t free_planes) noexcept {
        for (uint32_t i = 0; i < num_planes_; ++i) {
            const uint32_t p = (cursor_ + i) % num_planes_;
            if (!(free_planes & usable_) || !((free_planes & usable_) >> p & 1)) continue;
            cursor_ = (p + 1) % num_planes_;
            return p;
        }
        return kNone;
    }
    /// The plane something is bound to that has number `n`, among the usable ones; kNone when there are none.
    uint32_t bound(uint64_t n) const noexcept {
        const uint64_t mask = num_planes_ == 64 ? usable_ : usable_ & ((1ull << num_planes_) - 1);
        if (mask >> (n % num_planes_) & 1) return static_cast<uint32_t>(n % num_planes_);
        uint64_t rest = mask;
        if (rest == 0) return kNone;
        for (uint64_t skip = n % static_cast<uint64_t>(__builtin_popcountll(rest)); skip; --skip) rest &= rest - 1;
        return static_cast<uint32_t>(__builtin_ctzll(rest));
    }

private:
    uint32_t num_planes_, cursor_ = 0;
    uint64_t usable_ = ~0ull;
};

constexpr uint32_t rival_power_of_two(uint64_t least) noexcept {
    uint32_t p = 1;
    while (p < least) p <<= 1;
    return p;
}
constexpr bool precedes(uint32_t a, uint32_t b) noexcept { return static_cast<int32_t>(a - b) < 0; }

}  // namespace farstep::sim
