// One receiving NIC asks its senders for packets, in turn and no faster than they can arrive.
//
// UET's receiver credit and NDP's pull queue are this, with different amounts asked for at a time.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

namespace farstep::sim {

inline constexpr uint32_t kNobody = UINT32_MAX;

/// For every connection: its places in the circles of those that want more, and of those that would take more.
struct PacerLink {
    uint32_t next = kNobody, next_idle = kNobody;
    bool waits = false, idles = false;
};

class ReceiverPacer {
public:
    /// `rate_bytes_per_s` of the NIC, of which `share` is asked for. `step_ns`: it is looked at that late.
    ReceiverPacer(double rate_bytes_per_s, double share, double step_ns) noexcept
        : ns_per_byte_(1e9 / (rate_bytes_per_s * share)), step_ns_(step_ns) {
        assert(rate_bytes_per_s > 0 && share > 0);
    }

    /// `link(i)` is the PacerLink of connection i.
    template <class Links>
    void request(uint32_t connection, Links&& link) noexcept {
        if (link(connection).waits) return;
        link(connection).waits = true;
        append(waiting_, connection, [&](uint32_t c) -> uint32_t& { return link(c).next; });
    }
    /// Served when nobody waits.
    template <class Links>
    void offer(uint32_t connection, Links&& link) noexcept {
        if (link(connection).idles) return;
        link(connection).idles = true;
        append(idle_, connection, [&](uint32_t c) -> uint32_t& { return link(c).next_idle; });
    }

    uint64_t next_timeout_ns() const noexcept {
        return waiting_.first == kNobody && idle_.first == kNobody ? UINT64_MAX : static_cast<uint64_t>(free_ns_);
    }

    /// The connection to grant to now, out of its circle; kNobody when it is too early. Follow with granted().
    template <class Links>
    uint32_t poll(uint64_t now, Links&& link, bool& is_idle) noexcept {
        is_idle = waiting_.first == kNobody;
        if (now < static_cast<uint64_t>(free_ns_)) return kNobody;
        if (!is_idle) {
            const uint32_t connection = pop(waiting_, [&](uint32_t c) -> uint32_t& { return link(c).next; });
            link(connection).waits = false;
            return connection;
        }
        if (idle_.first == kNobody) return kNobody;
        const uint32_t connection = pop(idle_, [&](uint32_t c) -> uint32_t& { return link(c).next_idle; });
        link(connection).idles = false;
        return connection;
    }
    /// Bytes on the wire that were asked for. A pacer that was looked at a step late does not lose that time: the clock of
    /// a simulation has steps, in which all ports of a NIC together take several packets, and they must not lower its rate.
    void granted(uint64_t now, uint64_t bytes) noexcept {
        free_ns_ = std::max(free_ns_, static_cast<double>(now) - step_ns_) + static_cast<double>(bytes) * ns_per_byte_;
    }

private:
    struct Circle {
        uint32_t first = kNobody, last = kNobody;
    };
    template <class Next>
    static void append(Circle& of, uint32_t connection, Next&& next) noexcept {
        next(connection) = kNobody;
        if (of.last == kNobody) of.first = connection;
        else next(of.last) = connection;
        of.last = connection;
    }
    template <class Next>
    static uint32_t pop(Circle& of, Next&& next) noexcept {
        const uint32_t connection = of.first;
        of.first = next(connection);
        if (of.first == kNobody) of.last = kNobody;
        return connection;
    }

    double ns_per_byte_, step_ns_;
    double free_ns_ = 0;
    Circle waiting_, idle_;
};

}  // namespace farstep::sim
