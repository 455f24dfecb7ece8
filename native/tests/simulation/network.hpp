// The network of the simulation tests: virtual time, one ordered event queue, links that delay, queue, mark, trim,
// drop, duplicate, reorder, corrupt and fall silent. Every decision comes from one seed.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "farstep/connection.hpp"
#include "farstep/counter_rng.hpp"

namespace farstep::sim {

/// An invariant that does not hold. Carried up to the driver, which prints the seed.
struct Violation {
    std::string what;
};
[[noreturn, gnu::format(printf, 1, 2)]] inline void violate(const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw Violation{text};
}
#define SIM_CHECK(condition, ...)                                   \
    do {                                                            \
        if (!(condition)) [[unlikely]] ::farstep::sim::violate(__VA_ARGS__); \
    } while (false)

inline constexpr uint32_t kNoFlow = UINT32_MAX;

struct Datagram {
    std::vector<uint8_t> bytes;
    Arrival arrival;
    uint32_t from = 0, to = 0;
    uint32_t flow = kNoFlow;  // a data packet of this flow; kNoFlow: control or forged
    bool damaged = false;
    uint64_t psn = 0;
    uint64_t sent_ns = 0;
};

/// One direction of one plane between two endpoints.
struct Link {
    uint64_t delay_ns = 10'000;
    uint64_t jitter_ns = 0;       // uniform extra delay per packet: reorders
    uint64_t spread_ns = 0;       // constant extra delay, another for every entropy value
    double rate_bytes_per_s = 0;  // 0: no queue
    double queue_bytes = 0;       // 0: without end
    double ecn_bytes = 0;         // standing queue from which packets are marked; 0: never
    bool trims = false;           // a full queue trims instead of dropping
    double loss = 0, duplicate = 0, corrupt = 0, trim = 0, ecn = 0;  // probabilities per packet
    double remark = 0;  // a whole packet gets the mark of a trimmed one
    bool silent = false;                 // drops everything, tells nobody
    std::vector<uint16_t> silent_sources;  // entropy values that are dead
    uint64_t free_ns = 0;
};

struct NetworkCounters {
    uint64_t sent = 0, delivered = 0, lost = 0, silenced = 0, overflowed = 0, duplicated = 0, corrupted = 0;
    uint64_t trimmed = 0, marked = 0, forged = 0, events = 0;
};

enum class EventKind : uint8_t { Deliver, Wake, Act };
struct Event {
    uint64_t at_ns = 0, order = 0;
    EventKind kind = EventKind::Act;
    uint32_t index = 0;  // datagram, endpoint or action
};

class Network {
public:
    static constexpr uint32_t kPorts = 8;
    static constexpr uint64_t kWireOverhead_bytes = 48;  // IPv6 and UDP headers, as congestion control counts

    Network(uint64_t seed, uint32_t num_endpoints)
        : rng_(seed), n_(num_endpoints), links_(size_t{num_endpoints} * num_endpoints * kPorts * kPorts),
          transit_(size_t{num_endpoints} * num_endpoints) {}

    Link& link(uint32_t from, uint32_t to, uint32_t local_port, uint32_t remote_port) {
        return links_[((size_t{from} * n_ + to) * kPorts + local_port) * kPorts + remote_port];
    }
    std::vector<Link>& links() { return links_; }

    std::function<uint64_t(const Datagram&)> on_carry;  // extra delay of this one; kNever: it is lost

    uint64_t now() const { return now_; }
    const NetworkCounters& counters() const { return counters_; }
    uint64_t trace() const { return trace_; }
    void note(uint64_t value) { trace_ = (trace_ ^ value) * 0x9E3779B97F4A7C15ull + (trace_ >> 29); }
    CounterRng& rng() { return rng_; }
    bool chance(double p) { return p > 0 && rng_.unit() < p; }
    uint64_t min_transit(uint32_t from, uint32_t to) const { return transit_[from * n_ + to].least; }
    uint64_t max_transit(uint32_t from, uint32_t to) const { return transit_[from * n_ + to].most; }

    void schedule(uint64_t at_ns, EventKind kind, uint32_t index) {
        events_.push_back({at_ns < now_ ? now_ : at_ns, order_++, kind, index});
        std::push_heap(events_.begin(), events_.end(), later);
    }
    bool next(Event& out) {
        if (events_.empty()) return false;
        std::pop_heap(events_.begin(), events_.end(), later);
        out = events_.back();
        events_.pop_back();
        now_ = out.at_ns;
        ++counters_.events;
        note(now_);
        note(static_cast<uint64_t>(out.kind) << 32 | out.index);
        return true;
    }
    uint64_t next_ns() const { return events_.empty() ? kNever : events_.front().at_ns; }

    uint32_t make() {
        if (free_.empty()) {
            pool_.emplace_back();
            return static_cast<uint32_t>(pool_.size() - 1);
        }
        const uint32_t i = free_.back();
        free_.pop_back();
        return i;
    }
    Datagram& datagram(uint32_t i) { return pool_[i]; }
    void release(uint32_t i) { free_.push_back(i); }

    /// Puts datagram `i` on its link. `port` is the sender's, the receiver's is in its arrival.
    void carry(uint32_t i, uint32_t port) {
        Datagram& d = pool_[i];
        d.sent_ns = now_;
        d.damaged = false;
        ++counters_.sent;
        note_packet(d);
        Link& l = link(d.from, d.to, port, d.arrival.local_port);
        const uint64_t extra_ns = on_carry ? on_carry(d) : 0;
        if (extra_ns == kNever) return drop(i, counters_.lost);
        if (is_silent(l, d)) return drop(i, counters_.silenced);
        if (chance(l.loss)) return drop(i, counters_.lost);
        if (!queue(l, d)) return drop(i, counters_.overflowed);
        damage(l, d);
        if (chance(l.duplicate)) {
            const uint32_t copy = make();
            pool_[copy] = pool_[i];
            ++counters_.duplicated;
            launch(l, copy, extra_ns);
        }
        launch(l, i, extra_ns);
    }
    /// Something no endpoint sent arrives at `at_ns`.
    void inject(uint32_t i, uint64_t at_ns) {
        pool_[i].flow = kNoFlow;
        pool_[i].damaged = false;
        pool_[i].sent_ns = kNever;
        ++counters_.forged;
        schedule(at_ns, EventKind::Deliver, i);
    }
    void on_delivered(const Datagram& d) {
        ++counters_.delivered;
        if (d.sent_ns == kNever) return;
        Transit& t = transit_[d.from * n_ + d.to];
        const uint64_t took = now_ - d.sent_ns;
        t.least = std::min(t.least, took);
        t.most = std::max(t.most, took);
    }

private:
    struct Transit {
        uint64_t least = kNever, most = 0;
    };
    static bool later(const Event& a, const Event& b) {
        return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.order > b.order;
    }
    static bool is_silent(const Link& l, const Datagram& d) {
        return l.silent || std::find(l.silent_sources.begin(), l.silent_sources.end(),
                                     static_cast<uint16_t>(d.arrival.entropy)) != l.silent_sources.end();
    }
    void drop(uint32_t i, uint64_t& counter) {
        ++counter;
        release(i);
    }
    void note_packet(const Datagram& d) {
        uint64_t head = 0, tail = 0;
        std::memcpy(&head, d.bytes.data(), std::min<size_t>(8, d.bytes.size()));
        if (d.bytes.size() >= 8) std::memcpy(&tail, d.bytes.data() + d.bytes.size() - 8, 8);
        note(head);
        note(tail ^ uint64_t{d.from} << 48 ^ uint64_t{d.to} << 40 ^ d.bytes.size());
    }
    // A first-in first-out queue in front of a line of fixed rate. False when there is no room.
    bool queue(Link& l, Datagram& d) {
        if (l.rate_bytes_per_s <= 0) return true;
        const double size = static_cast<double>(d.bytes.size() + kWireOverhead_bytes);
        const uint64_t wait = l.free_ns > now_ ? l.free_ns - now_ : 0;
        const double backlog = static_cast<double>(wait) * l.rate_bytes_per_s * 1e-9;
        if (l.queue_bytes > 0 && backlog + size > l.queue_bytes && !(l.trims && cut_payload(d))) return false;
        if (l.ecn_bytes > 0 && backlog > l.ecn_bytes) mark(d);
        const double wire = static_cast<double>(d.bytes.size() + kWireOverhead_bytes);
        l.free_ns = now_ + wait + static_cast<uint64_t>(wire * 1e9 / l.rate_bytes_per_s);
        return true;
    }
    void mark(Datagram& d) {
        if (!d.arrival.ecn_ce) ++counters_.marked;
        d.arrival.ecn_ce = true;
    }
    bool cut_payload(Datagram& d) {
        if (d.arrival.trimmed || d.bytes.size() < 48 || !wire::is_data(static_cast<wire::Opcode>(d.bytes[0]))) return false;
        d.arrival.trimmed = chance(0.3) ? 2 : 1;
        d.bytes.resize(40);
        d.damaged = true;
        ++counters_.trimmed;
        return true;
    }
    void damage(const Link& l, Datagram& d) {
        if (chance(l.ecn)) mark(d);
        if (chance(l.trim)) cut_payload(d);
        else if (chance(l.remark)) d.arrival.trimmed = 1;
        if (!chance(l.corrupt) || d.bytes.size() < 16) return;
        ++counters_.corrupted;
        const std::vector<uint8_t> whole = d.bytes;
        for (uint32_t flips = 1 + rng_.below(4); flips; --flips) {
            uint32_t at = rng_.below(static_cast<uint32_t>(d.bytes.size()));
            if (at == 4) at = 5;  // the one byte the invariant CRC does not cover; it is reserved
            d.bytes[at] ^= static_cast<uint8_t>(1u << rng_.below(8));
        }
        if (chance(0.2)) d.bytes.resize(rng_.below(static_cast<uint32_t>(d.bytes.size())));
        d.damaged = d.damaged || d.bytes != whole;  // two flips may cancel out
    }
    void launch(Link& l, uint32_t i, uint64_t extra_ns) {
        const Datagram& d = pool_[i];
        uint64_t at = std::max(l.free_ns, now_) + l.delay_ns;
        if (l.rate_bytes_per_s <= 0) at = now_ + l.delay_ns;
        if (l.spread_ns) at += CounterRng(d.arrival.entropy).at(7) % l.spread_ns;
        if (l.jitter_ns) at += rng_.next() % l.jitter_ns;
        schedule(at + extra_ns, EventKind::Deliver, i);
    }

    CounterRng rng_;
    uint32_t n_;
    std::vector<Link> links_;
    std::vector<Transit> transit_;
    std::vector<Event> events_;
    std::vector<Datagram> pool_;
    std::vector<uint32_t> free_;
    uint64_t now_ = 0, order_ = 0, trace_ = 0x6A09E667F3BCC909ull;
    NetworkCounters counters_;
};

}  // namespace farstep::sim
