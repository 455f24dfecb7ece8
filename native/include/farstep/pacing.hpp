// When the next burst may leave: port by port at line rate, and to a peer at the pace learned, or spread over a long round trip.
#pragma once

#include <cstdint>

#include "farstep/connection.hpp"
#include "farstep/destination.hpp"
#include "farstep/endpoint_config.hpp"

namespace farstep {

class Pacer {
public:
    explicit Pacer(const EndpointConfig& c) noexcept : config_(c) {}

    /// Forgets what held packets back; call before asking anew.
    void begin() noexcept { next_ns_ = kNever; }
    /// Earliest time at which something held back since begin() may go; kNever if pacing held nothing back.
    uint64_t next_ns() const noexcept { return next_ns_; }

    /// Rate in bytes per second: what was learned of the line, or else at which a window is spread over its round trip; 0
    /// for round trips too short for timers.
    double rate(const Destination& d, const Connection& c) const noexcept {
        const uint64_t srtt = c.sender().round_trip().srtt_ns;
        const double learned = d.cc.pace_bytes_per_s();
        if (learned > 0 || srtt < kFromRtt_ns) return learned;
        // A quarter above the window's own rate: pacing spreads the window, it does not limit it.
        return 1.25e9 * static_cast<double>(d.cc.cwnd_bytes()) / static_cast<double>(srtt);
    }
    bool may_send(uint64_t now, const Destination& d, double rate) noexcept {
        if (rate <= 0 || d.pace_free_ns <= now) return true;
        hold(d.pace_free_ns);
        return false;
    }
    /// Planes whose local port can take a burst now.
    uint64_t free_planes(uint64_t now, const Connection& c) noexcept {
        uint64_t planes = 0;
        for (uint32_t k = 0; k < c.num_planes(); ++k) {
            const uint8_t port = c.link(static_cast<uint8_t>(k)).local_port;
            if (port_free_ns_[port] > now) hold(port_free_ns_[port]);
            else planes |= 1ull << k;
        }
        return planes;
    }
    /// Packets of one burst: on a slow line as many as pass it in a quarter of a millisecond.
    uint32_t burst_limit(double rate, uint32_t burst_packets, uint32_t mtu_bytes) const noexcept {
        double slowest = rate;
        for (uint32_t k = 0; k < config_.num_ports; ++k) {
            const double r = config_.port_rate_bytes_per_s[k];
            if (r > 0 && (slowest <= 0 || r < slowest)) slowest = r;
        }
        if (slowest <= 0) return burst_packets;
        const double n = slowest * static_cast<double>(kBurstTime_ns) * 1e-9 / mtu_bytes;
        return n >= burst_packets ? burst_packets : n < 1 ? 1 : static_cast<uint32_t>(n);
    }
    void charge(uint64_t now, Destination& d, double rate, const TxBurst& b) noexcept {
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < b.count; ++k) bytes += b.segments[k].bytes() + kNominalOverhead_bytes;
        advance(now, d.pace_free_ns, bytes, rate);
        advance(now, port_free_ns_[b.local_port], bytes, config_.port_rate_bytes_per_s[b.local_port]);
    }

private:
    static constexpr uint64_t kFromRtt_ns = 1'000'000;  // shorter round trips are left to the window alone
    static constexpr uint64_t kBurstTime_ns = 250'000;

    void hold(uint64_t until_ns) noexcept {
        if (until_ns < next_ns_) next_ns_ = until_ns;
    }
    void advance(uint64_t now, uint64_t& free_ns, uint64_t bytes, double rate) const noexcept {
        if (rate <= 0) return;
        const uint64_t earliest = now > config_.pacing_catch_up_ns ? now - config_.pacing_catch_up_ns : 0;
        if (free_ns < earliest) free_ns = earliest;
        free_ns += static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 / rate);
    }

    EndpointConfig config_;
    uint64_t port_free_ns_[kMaxPorts] = {}, next_ns_ = kNever;
};

}  // namespace farstep
