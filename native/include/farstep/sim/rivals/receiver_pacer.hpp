// One receiving NIC asks its senders for packets, in turn and no faster than they can arrive.
//
// UET's receiver credit and NDP's pull queue are this, with different amounts asked for at a time.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

namespace farstep::sim {

inline constexpr uint32_t kNobody = UINT32_MAX;

/// For every connection: its place in the circle of those that want more.
struct PacerLink {
    uint32_t next = kNobody;
    bool waits = false;
};

class ReceiverPacer {
public:
    /// `rate_bytes_per_s` of the NIC, of which `share` is asked for.
    ReceiverPacer(double rate_bytes_per_s, double share) noexcept : ns_per_byte_(1e9 / (rate_bytes_per_s * share)) {
        assert(rate_bytes_per_s > 0 && share > 0);
    }

    /// `link(i)` is the PacerLink of connection i.
    template <class Links>
    void request(uint32_t connection, Links&& link) noexcept {
        PacerLink& l = link(connection);
        if (l.waits) return;
        l.waits = true;
        l.next = kNobody;
        if (last_ == kNobody) first_ = connection;
        else link(last_).next = connection;
        last_ = connection;
    }

    uint64_t next_timeout_ns() const noexcept { return first_ == kNobody ? UINT64_MAX : static_cast<uint64_t>(free_ns_); }

    /// The connection to grant to now, out of the circle; kNobody when it is too early. Follow with granted().
    template <class Links>
    uint32_t poll(uint64_t now, Links&& link) noexcept {
        if (first_ == kNobody || now < static_cast<uint64_t>(free_ns_)) return kNobody;
        const uint32_t connection = first_;
        PacerLink& l = link(connection);
        first_ = l.next;
        if (first_ == kNobody) last_ = kNobody;
        l.waits = false;
        return connection;
    }
    /// Bytes on the wire that were asked for. A pacer that was looked at a little late does not lose that time: the clock
    /// of a simulation has steps, and they must not lower its rate.
    void granted(uint64_t now, uint64_t bytes) noexcept {
        const double cost_ns = static_cast<double>(bytes) * ns_per_byte_;
        free_ns_ = std::max(free_ns_ + cost_ns, static_cast<double>(now));
    }

private:
    double ns_per_byte_;
    double free_ns_ = 0;
    uint32_t first_ = kNobody, last_ = kNobody;
};

}  // namespace farstep::sim
