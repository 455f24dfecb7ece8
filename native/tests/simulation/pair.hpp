// Two endpoints over a few lines with stated rate and delay: what the scenario tests set up, and how they measure.
#pragma once

#include "world.hpp"

namespace farstep::sim {

inline constexpr uint64_t kMs = 1'000'000, kSecond = 1'000'000'000;
inline constexpr double kMbit = 125'000;  // bytes per second

/// One plane between the two, the same in both directions.
struct Line {
    double rate_bytes_per_s = 0;
    uint64_t one_way_ns = 10'000;
    double loss = 0;
};

struct PairOptions {
    std::vector<Line> lines{Line{}};
    bool knows_rate = false;  // the window and the ports are told the rate of the lines
    ShareMode share = ShareMode::Equal;
    uint32_t slice_bytes = 8 << 20;
    ConnectionConfig config;
    uint64_t seed = 1;

    PairOptions() {
        config.mpr = config.peer_mpr = 64;
        config.paths.active_per_plane = 16, config.paths.backup_per_plane = 8;
    }
};

/// Bytes placed at the receiver over time.
class Meter {
public:
    void note(uint64_t now, uint32_t bytes) { samples_.push_back({now, bytes}); }
    double bytes_per_s(uint64_t from, uint64_t to) const {
        uint64_t sum = 0;
        for (const Sample& s : samples_) sum += s.at_ns >= from && s.at_ns < to ? s.bytes : 0;
        return static_cast<double>(sum) * 1e9 / static_cast<double>(to - from);
    }
    uint64_t longest_gap_ns(uint64_t from, uint64_t to) const {
        uint64_t last = from, gap = 0;
        for (const Sample& s : samples_) {
            if (s.at_ns < from || s.at_ns >= to) continue;
            gap = std::max(gap, s.at_ns - last);
            last = s.at_ns;
        }
        return std::max(gap, to - last);
    }

private:
    struct Sample {
        uint64_t at_ns;
        uint32_t bytes;
    };
    std::vector<Sample> samples_;
};

class Pair {
public:
    explicit Pair(const PairOptions& o) : world(o.seed, 2), options_(o) {
        const auto planes = static_cast<uint32_t>(o.lines.size());
        ConnectOptions c;
        c.config = o.config;
        c.config.num_ports = c.config.peer_num_ports = planes;
        c.config.paths.num_planes = planes;
        c.config.paths.share = o.share;
        c.peer_config = c.config;
        c.config.seed = c.config.paths.seed = 11 * o.seed;
        c.peer_config.seed = c.peer_config.paths.seed = 13 * o.seed;
        c.cc.mtu_bytes = o.config.mtu_bytes;
        c.slice_bytes = o.slice_bytes;
        for (uint32_t e = 0; e < 2; ++e) {
            EndpointConfig ec;
            ec.num_ports = planes, ec.max_connections = 8, ec.max_regions = 16, ec.seed = 17 * o.seed + e;
            for (uint32_t p = 0; p < planes && o.knows_rate; ++p) ec.port_rate_bytes_per_s[p] = o.lines[p].rate_bytes_per_s;
            world.add_endpoint(e, ec, size_t{4} * (o.slice_bytes + Arena::kGap_bytes) + (1 << 18));
        }
        for (uint32_t p = 0; p < planes; ++p) {
            c.links.push_back({static_cast<uint8_t>(p), static_cast<uint8_t>(p)});
            if (o.knows_rate) c.cc.rate_bytes_per_s += o.lines[p].rate_bytes_per_s;
            for (uint32_t e = 0; e < 2; ++e) set_line(world.network.link(e, 1 - e, p, p), o.lines[p]);
        }
        connect_ = c;
        there = &world.flow(world.connect(0, 1, c));
        back = &world.flow(there->reverse);
        world.on_placed = [this](Flow& f, uint32_t bytes) {
            if (f.id == there->id) meter.note(world.now(), bytes);
        };
    }
    Connection& sender() { return *world.connection(*there); }
    Connection& receiver() { return *world.connection(*back); }
    const SenderCounters& counters() { return sender().sender().counters(); }

    /// Plans `count` messages from the first endpoint to the second and starts sending.
    void send(uint32_t count, uint32_t bytes, bool immediate = false, Flow* flow = nullptr) {
        Flow& f = flow ? *flow : *there;
        for (uint32_t k = 0; k < count; ++k) f.plan.push_back({bytes, immediate});
        world.after(f.from);
    }
    /// More than can be sent within any test.
    void send_without_end() { send(4096, 1 << 20); }
    void silence(uint32_t plane, bool dead, bool forward = true, bool reverse = true) {
        if (forward) world.network.link(0, 1, plane, plane).silent = dead;
        if (reverse) world.network.link(1, 0, plane, plane).silent = dead;
    }
    bool finish(uint64_t within_ns) {
        return world.run(world.now() + within_ns, [this] { return world.is_done(); });
    }
    const ConnectOptions& connect_options() const { return connect_; }

    World world;
    Meter meter;
    Flow *there = nullptr, *back = nullptr;

private:
    // As the path emulator queues by default: 50 ms at the rate in force, at least 256 kB, marks from a quarter on.
    static void set_line(Link& l, const Line& line) {
        l.delay_ns = line.one_way_ns;
        l.loss = line.loss;
        l.rate_bytes_per_s = line.rate_bytes_per_s;
        if (line.rate_bytes_per_s <= 0) return;
        l.queue_bytes = std::max(256'000.0, 0.05 * line.rate_bytes_per_s);
        l.ecn_bytes = l.queue_bytes / 4;
    }

    PairOptions options_;
    ConnectOptions connect_;
};

inline void figure(const char* name, double value) { std::printf("  %-40s %12.3f\n", name, value); }
inline std::vector<Line> lines(uint32_t count, double rate_bytes_per_s, uint64_t rtt_ns) {
    return std::vector<Line>(count, Line{rate_bytes_per_s, rtt_ns / 2, 0});
}
inline wire::Opcode opcode(const Datagram& d) { return static_cast<wire::Opcode>(d.bytes[0]); }

}  // namespace farstep::sim
