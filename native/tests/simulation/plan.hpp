// From a seed to a whole run: endpoints, planes, settings, messages, and what goes wrong when.
#pragma once

#include "forgery.hpp"
#include "world.hpp"

namespace farstep::sim {

class Plan {
public:
    Plan(uint64_t seed, uint32_t size_factor) : rng_(seed), seed_(seed), size_factor_(size_factor) {
        draw_topology();
        draw_settings();
    }
    uint32_t num_endpoints() const { return num_endpoints_; }
    std::string describe() const {
        static constexpr const char* kKinds[] = {"clean", "faulty", "broken"};
        char text[512];
        const ReliabilityConfig& r = config_.reliability;
        std::snprintf(text, sizeof text,
                      "%s: %u endpoints, ports %u/%u, one way %llu ns, rated %d, mtu %u, mpr %u, wimm %u, queue %u, immediates %u, "
                      "sack %u, burst %u, rto %llu..%llu ns, slack %llu ns, keepalive %llu ns, evs %u+%u, %s, rate %.0f, heal %llu ns",
                      kKinds[static_cast<int>(kind_)], num_endpoints_, ports_[0], ports_[1],
                      static_cast<unsigned long long>(delay_ns_), rated_, config_.mtu_bytes, config_.mpr, config_.wimm,
                      config_.send_queue, config_.immediate_queue, config_.sack_threshold_bytes, config_.burst_packets,
                      static_cast<unsigned long long>(r.rto_base_ns), static_cast<unsigned long long>(r.rto_max_ns),
                      static_cast<unsigned long long>(r.loss_slack_min_ns), static_cast<unsigned long long>(r.keepalive_ns),
                      config_.paths.active_per_plane, config_.paths.backup_per_plane,
                      config_.paths.share == ShareMode::Equal ? "equal" : "capacity", cc_.rate_bytes_per_s,
                      static_cast<unsigned long long>(heal_ns_));
        return text;
    }

    /// Builds the world of this plan and runs it to its end; throws Violation.
    void run(World& w) {
        build(w);
        draw_workload(w);
        if (kind_ != Kind::Clean) draw_faults(w);
        if (kind_ == Kind::Broken) draw_breakage(w);
        for (uint32_t e = 0; e < num_endpoints_; ++e) w.at(0, [&w, e] { w.after(e); });
        const uint64_t horizon = 3600ull * 1'000'000'000;
        if (!w.run(horizon, [&w] { return w.is_done(); })) throw Violation{"the run never ends: " + w.describe_stall()};
        settle(w);
    }

private:
    enum class Kind : uint8_t { Clean, Faulty, Broken };

    uint32_t pick(std::initializer_list<uint32_t> of) { return of.begin()[rng_.below(static_cast<uint32_t>(of.size()))]; }
    bool one_in(uint32_t n) { return rng_.below(n) == 0; }
    uint64_t between(uint64_t low, uint64_t high) { return low + rng_.next() % (high - low + 1); }

    void draw_topology() {
        kind_ = one_in(6) ? Kind::Clean : one_in(5) ? Kind::Broken : Kind::Faulty;
        num_endpoints_ = one_in(4) ? 3 + rng_.below(3) : 2;
        for (uint32_t e = 0; e < num_endpoints_; ++e) ports_[e] = pick({1, 2, 2, 4, 8});
        if (!one_in(4))
            for (uint32_t e = 1; e < num_endpoints_; ++e) ports_[e] = ports_[0];
        delay_ns_ = pick({2'000, 20'000, 200'000, 2'000'000, 25'000'000});
        delay_ns_ = between(delay_ns_ / 2, 2 * delay_ns_);
        rated_ = one_in(4);
    }
    void draw_settings() {
        config_.mtu_bytes = pick({64, 256, 512, 1024, 1024, 1500, 4096, 4096, 9000});
        config_.mpr = config_.peer_mpr = one_in(3) ? 1 : pick({1, 2, 16, 255});
        config_.wimm = pick({1, 2, 8, 128});
        config_.send_queue = pick({2, 8, 64, 1024});
        config_.immediate_queue = pick({1, 2, 8, 1024});
        config_.sack_threshold_bytes = pick({1024, 4096, 16'384});
        config_.burst_packets = 1 + rng_.below(15);
        config_.reliability.rto_base_ns = pick({200'000, 2'000'000, 16'777'216});
        config_.reliability.rto_max_ns = pick({100'000'000, 500'000'000, 2'000'000'000});
        config_.reliability.loss_slack_min_ns = pick({10'000, 200'000, 2'000'000});
        config_.reliability.keepalive_ns = std::max<uint64_t>(pick({20'000'000, 200'000'000, 1'000'000'000}), 4 * delay_ns_);
        config_.paths.active_per_plane = pick({1, 2, 4, 16});
        config_.paths.backup_per_plane = pick({0, 1, 4});
        config_.paths.share = one_in(3) ? ShareMode::Capacity : ShareMode::Equal;
        cc_.mtu_bytes = config_.mtu_bytes;
        cc_.trimming = one_in(3);
        if (one_in(3)) {
            cc_.rate_bytes_per_s = 1e6 * static_cast<double>(between(1, 2000));
            cc_.base_rtt_ns = one_in(2) ? 0 : 2 * delay_ns_;
        }
    }
    // Nothing is lost, nothing waits in a growing queue, and no receiver runs out of room: there is nothing to repair.
    bool loses_nothing() const {
        return kind_ == Kind::Clean && !rated_ && config_.wimm <= config_.immediate_queue / 2;
    }
    uint64_t rtt_ns() const { return 2 * delay_ns_; }
    uint64_t rto_cap_ns() const {
        return std::max({config_.reliability.rto_max_ns, config_.reliability.rto_base_ns, 8 * rtt_ns()});
    }

    void build(World& w) {
        slice_bytes_ = std::max<uint32_t>(16 * 1024, 24 * config_.mtu_bytes) * (size_factor_ > 1 ? 4 : 1);
        if (one_in(12)) slice_bytes_ *= 8;  // long messages, up to several megabytes
        struct Pair {
            uint32_t a, b, connections;
        };
        std::vector<Pair> pairs;
        for (uint32_t a = 0; a < num_endpoints_; ++a)
            for (uint32_t b = a + 1; b < num_endpoints_; ++b)
                if (num_endpoints_ == 2 || rng_.below(3)) pairs.push_back({a, b, one_in(3) ? 2 + rng_.below(3) : 1});
        if (pairs.empty()) pairs.push_back({0, 1, 1});
        for (uint32_t e = 0; e < num_endpoints_; ++e) {
            EndpointConfig c;
            c.num_ports = ports_[e];
            c.max_connections = 16;
            c.max_regions = 64;
            c.seed = rng_.next();
            if (one_in(5))
                for (uint32_t p = 0; p < c.num_ports; ++p) c.port_rate_bytes_per_s[p] = 1e6 * static_cast<double>(between(1, 200));
            uint32_t slices = 1;
            for (const Pair& p : pairs) slices += p.a == e || p.b == e ? 2 * p.connections : 0;
            w.add_endpoint(e, c, size_t{slices} * (slice_bytes_ + Arena::kGap_bytes));
        }
        draw_links(w);
        for (const Pair& p : pairs)
            for (uint32_t k = 0; k < p.connections; ++k) connect(w, p.a, p.b);
        w.stall_bound_ns = 4 * rto_cap_ns() + 100 * rtt_ns() + 100'000'000;
        w.expect_equal_planes = loses_nothing();
    }
    void draw_links(World& w) {
        const bool even = one_in(2);  // otherwise every plane has its own delay
        for (uint32_t a = 0; a < num_endpoints_; ++a)
            for (uint32_t b = 0; b < num_endpoints_; ++b)
                for (uint32_t p = 0; p < ports_[a]; ++p)
                    for (uint32_t q = 0; q < ports_[b]; ++q) {
                        Link& l = w.network.link(a, b, p, q);
                        l.delay_ns = even ? delay_ns_ : between(delay_ns_, delay_ns_ + delay_ns_ / 8);
                        if (rated_) {
                            l.rate_bytes_per_s = 1e6 * static_cast<double>(between(1, 500));
                            l.ecn_bytes = l.rate_bytes_per_s * static_cast<double>(rtt_ns()) * 0.2e-9 + 20'000;
                            if (kind_ != Kind::Clean) l.queue_bytes = 4 * l.ecn_bytes + 40'000;
                            l.trims = cc_.trimming;
                        }
                        if (kind_ == Kind::Clean && one_in(2)) l.ecn = 0.05;
                    }
    }
    void connect(World& w, uint32_t a, uint32_t b) {
        ConnectOptions o;
        o.config = config_;
        o.config.num_ports = ports_[a], o.config.peer_num_ports = ports_[b];
        o.config.paths.num_planes = std::max(ports_[a], ports_[b]);
        for (uint32_t p = 0; p < o.config.paths.num_planes; ++p)
            o.links.push_back({static_cast<uint8_t>(p % ports_[a]), static_cast<uint8_t>(p % ports_[b])});
        o.peer_config = o.config;
        std::swap(o.peer_config.num_ports, o.peer_config.peer_num_ports);
        o.config.seed = o.config.paths.seed = rng_.next();
        o.peer_config.seed = o.peer_config.paths.seed = rng_.next();
        if (one_in(3)) o.config.start_psn = wire::kPsnMask - rng_.below(40);  // wraps soon
        if (one_in(3)) o.peer_config.start_psn = wire::kPsnMask - rng_.below(40);
        o.cc = cc_;
        o.slice_bytes = slice_bytes_;
        w.connect(a, b, o);
    }

    // ---- workload --------------------------------------------------------------------------------------------------------

    void draw_workload(World& w) {
        uint32_t budget = (one_in(8) ? 1500 : 60 + rng_.below(300)) * size_factor_;  // packets of all flows together
        for (Flow& f : w.flows()) {
            if (one_in(5)) continue;  // this direction stays quiet
            f.feeds = !one_in(3);
            if (one_in(3)) f.consume_every_ns = between(1'000, 4 * rtt_ns());
            const uint32_t messages = (1 + rng_.below(one_in(3) ? 60 : 8)) * size_factor_;
            for (uint32_t k = 0; k < messages && budget; ++k) {
                const uint32_t bytes = std::min(message_bytes(budget), slice_bytes_);
                budget -= std::min(budget, bytes / config_.mtu_bytes + 1);
                f.plan.push_back({bytes, one_in(2)});
                if (!f.feeds) post_later(w, f.id, between(0, 4 * rtt_ns() + 100'000));
            }
        }
    }
    uint32_t message_bytes(uint32_t budget) {
        const uint32_t mtu = config_.mtu_bytes;
        switch (rng_.below(7)) {
            case 0: return 0;
            case 1: return 1 + rng_.below(mtu);
            case 2: return mtu;
            case 3: return mtu + 1;
            case 4: return mtu * (1 + rng_.below(16));
            case 5: return rng_.below(mtu * 8);
            default: return mtu * rng_.below(1 + budget / 3) + rng_.below(mtu);
        }
    }
    // Tries again while the queue or the slices are full.
    void post_later(World& w, uint32_t id, uint64_t at_ns, uint64_t retry_ns = 50'000) {
        w.at(at_ns, [this, &w, id, retry_ns] {
            Flow& f = w.flow(id);
            Connection* c = w.connection(f);
            if (!c || !c->is_open() || w.host(f.from).vanished) return f.plan.clear();
            if (!f.plan.empty() && !w.post_next(f)) post_later(w, id, w.now() + retry_ns, std::min<uint64_t>(2 * retry_ns, 20'000'000));
            w.after(f.from);
        });
    }

    // ---- faults --------------------------------------------------------------------------------------------------------

    // All faults lie in [0, heal_ns_]; from then on the network is healthy.
    void draw_faults(World& w) {
        heal_ns_ = between(rtt_ns(), 20 * rtt_ns() + 20'000'000);
        if (one_in(2)) draw_noise(w);
        for (uint32_t n = rng_.below(4); n; --n) draw_outage(w);
        if (one_in(4)) draw_port_events(w);
        if (one_in(4)) draw_stalls(w);
        if (one_in(5)) draw_overflows(w);
        if (one_in(6)) draw_denials(w);
        if (one_in(3)) draw_forgery(w);
        w.healthy_since_ns = heal_ns_;
        w.at(heal_ns_, [&w] {
            for (Link& l : w.network.links()) {
                l.loss = l.duplicate = l.corrupt = l.trim = l.ecn = l.remark = 0;
                l.jitter_ns = 0;
                l.silent = false;
                l.silent_sources.clear();
            }
        });
    }
    double probability() {
        static constexpr double kScale[] = {0.001, 0.01, 0.05, 0.3};
        return kScale[rng_.below(4)];
    }
    void draw_noise(World& w) {
        Link noise;
        if (one_in(2)) noise.loss = probability();
        if (one_in(3)) noise.duplicate = probability();
        if (one_in(3)) noise.corrupt = probability();
        if (one_in(3)) noise.trim = probability();
        if (one_in(3)) noise.ecn = probability();
        if (one_in(6)) noise.remark = probability();
        if (one_in(3)) noise.jitter_ns = between(1, 2 * delay_ns_);
        const bool everywhere = one_in(2);
        for (Link& l : w.network.links()) {
            if (!everywhere && one_in(2)) continue;
            l.loss = noise.loss, l.duplicate = noise.duplicate, l.corrupt = noise.corrupt;
            l.trim = noise.trim, l.ecn = noise.ecn, l.remark = noise.remark, l.jitter_ns = noise.jitter_ns;
        }
        if (one_in(2)) {
            const uint64_t spread = between(1, delay_ns_);
            for (Link& l : w.network.links()) l.spread_ns = spread;
        }
    }
    // Single entropy values, one plane or everything falls silent, in one direction or both, and comes back.
    void draw_outage(World& w) {
        const uint64_t from = between(0, heal_ns_), until = between(from, heal_ns_);
        const uint32_t what = rng_.below(3), a = rng_.below(num_endpoints_), plane = rng_.below(ports_[a]);
        const bool both = one_in(2);
        const uint16_t source = static_cast<uint16_t>(rng_.below(config_.paths.active_per_plane + config_.paths.backup_per_plane));
        auto affected = [this, &w, what, a, plane, both, source](bool dead) {
            for (uint32_t b = 0; b < num_endpoints_; ++b)
                for (uint32_t p = 0; p < ports_[a]; ++p)
                    for (uint32_t q = 0; q < ports_[b]; ++q) {
                        if (what < 2 && p != plane) continue;
                        set_dead(w.network.link(a, b, p, q), what, source, dead);
                        if (both) set_dead(w.network.link(b, a, q, p), what, source, dead);
                    }
        };
        w.at(from, [affected] { affected(true); });
        w.at(until, [affected] { affected(false); });
    }
    static void set_dead(Link& l, uint32_t what, uint16_t source, bool dead) {
        if (what != 0) l.silent = dead;
        else if (dead) l.silent_sources.push_back(source);
        else l.silent_sources.clear();
    }
    // The first port of every endpoint stays up, so that some plane always remains.
    void draw_port_events(World& w) {
        const uint32_t e = rng_.below(num_endpoints_);
        if (ports_[e] < 2) return;
        const uint32_t port = 1 + rng_.below(ports_[e] - 1);
        const bool link_dies = one_in(2);
        uint64_t t = between(0, heal_ns_);
        for (uint32_t n = 1 + rng_.below(3); n && t < heal_ns_; --n) {
            const uint64_t back = between(t, heal_ns_);
            for (const bool up : {false, true})
                w.at(up ? back : t, [this, &w, e, port, up, link_dies] {
                    for (uint32_t b = 0; b < num_endpoints_ && link_dies; ++b)
                        for (uint32_t q = 0; q < ports_[b]; ++q)
                            w.network.link(e, b, port, q).silent = w.network.link(b, e, q, port).silent = !up;
                    if (!w.host(e).vanished) w.set_port(e, port, up);
                });
            t = between(back, heal_ns_);
        }
    }
    void draw_stalls(World& w) {
        for (uint32_t n = 1 + rng_.below(3); n; --n) {
            const uint32_t e = rng_.below(num_endpoints_);
            const uint64_t ns = between(1'000, 20 * rtt_ns());
            w.at(between(0, heal_ns_), [&w, e, ns] { w.stall(e, ns); });
        }
    }
    void draw_overflows(World& w) {
        for (uint32_t n = 1 + rng_.below(3); n; --n) {
            const uint32_t e = rng_.below(num_endpoints_);
            w.at(between(0, heal_ns_), [&w, e] { w.core(e).on_receive_overflow(w.now(), 7); });
        }
    }
    // The controller takes one path per plane out of service and gives it back; another always remains.
    void draw_denials(World& w) {
        if (config_.paths.active_per_plane + config_.paths.backup_per_plane < 2) return;
        for (Flow& f : w.flows()) {
            if (one_in(2)) continue;
            const uint64_t from = between(0, heal_ns_);
            for (const bool denied : {true, false})
                w.at(denied ? from : between(from, heal_ns_), [&w, &f, denied] {
                    Connection* c = w.connection(f);
                    if (!c || w.host(f.from).vanished) return;
                    if (denied) c->paths().deny(w.now(), 0);
                    else c->paths().allow(w.now(), 0);
                    w.after(f.from);
                });
        }
    }
    void draw_forgery(World& w) {
        forger_ = std::make_unique<Forger>(w, rng_.next());
        for (uint32_t n = 1 + rng_.below(60); n; --n)
            w.at(between(0, heal_ns_), [this] { forger_->strike(); });
    }
    // A connection is aborted or closed, or a peer vanishes for good.
    void draw_breakage(World& w) {
        const uint64_t when = between(0, 8 * rtt_ns());
        const uint32_t flow = rng_.below(static_cast<uint32_t>(w.flows().size()));
        switch (rng_.below(3)) {
            case 0: w.at(when, [&w, flow] { w.abort(w.flow(flow)); }); break;
            case 1: w.at(when, [&w, flow] { w.close(w.flow(flow)); }); break;
            default: w.at(when, [&w, flow] { w.vanish(w.flow(flow).from); });
        }
        // The whole retry budget at the longest interval, for sends and for the watch over an idle peer.
        const ReliabilityConfig& r = config_.reliability;
        const uint64_t tries = r.linear_count + r.exponential_count + 4;
        w.stall_bound_ns += tries * (rto_cap_ns() + rtt_ns()) + tries * std::max(r.keepalive_ns, rto_cap_ns());
    }

    // Quiet time: what is left over must come to rest, and little may still be sent.
    void settle(World& w) {
        const uint64_t quiet_ns = 4 * rtt_ns() + 50'000'000;
        w.stall_bound_ns = kNever;
        const auto planes_are_back = [this, &w] { return uses_all_planes(w); };
        SIM_CHECK(w.run(std::max(w.now(), heal_ns_) + 2'000'000'000 + 400 * rtt_ns(), planes_are_back),
                  "a port is up again and its planes stay unused");
        w.run(std::max(w.now(), heal_ns_) + quiet_ns);
        w.check_idle();
        const uint64_t before = w.network.counters().sent;
        w.run(w.now() + quiet_ns);
        w.check_idle();
        const uint64_t sent = w.network.counters().sent - before;
        // A bad path is probed, and a probe answered, twice where the way back is in doubt.
        const uint64_t allowed = w.flows().size() * (20 + 4 * (quiet_ns / config_.reliability.keepalive_ns + 1) + 6 * quiet_ns / 1'000'000);
        SIM_CHECK(sent <= allowed, "%llu packets sent while idle, %llu would do", static_cast<unsigned long long>(sent),
                  static_cast<unsigned long long>(allowed));
        if (!loses_nothing()) return;
        for (Flow& f : w.flows()) {
            const SenderCounters& c = w.connection(f)->sender().counters();
            SIM_CHECK(c.retransmitted == 0 && c.nacks == 0,
                      "flow %u: %llu retransmissions on a network that loses nothing (order %llu, late %llu, soft %llu, timeout %llu)",
                      f.id, static_cast<unsigned long long>(c.retransmitted), static_cast<unsigned long long>(c.lost_order), static_cast<unsigned long long>(c.lost_late),
                      static_cast<unsigned long long>(c.soft_timeouts), static_cast<unsigned long long>(c.timeouts));
        }
    }

    // Every port is up in the end, and both sides have heard of it.
    bool uses_all_planes(World& w) {
        for (Flow& f : w.flows()) {
            const Connection* c = w.connection(f);
            if (f.may_fail || !c) continue;
            if (c->paths().plane_mask() != (1ull << f.config.paths.num_planes) - 1) return false;
        }
        return true;
    }

    CounterRng rng_;
    uint64_t seed_;
    uint32_t size_factor_;
    Kind kind_ = Kind::Faulty;
    uint32_t num_endpoints_ = 2, ports_[8] = {};
    uint64_t delay_ns_ = 0, heal_ns_ = 0;
    bool rated_ = false;
    uint32_t slice_bytes_ = 0;
    ConnectionConfig config_;
    NsccConfig cc_;
    std::unique_ptr<Forger> forger_;
};

}  // namespace farstep::sim
