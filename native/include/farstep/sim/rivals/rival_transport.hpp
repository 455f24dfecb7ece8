// A rival transport as the engine wants it: every connection of a run, their routes, and the pacers of the NICs.
//
// `P` is the protocol (see rival_packets.hpp), which knows nothing of networks. Routes are made when a connection opens,
// and again when routing has changed since; answers go back over a few paths of their own, the planes in turn.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "farstep/counter_rng.hpp"
#include "farstep/sim/block_pool.hpp"
#include "farstep/sim/network.hpp"
#include "farstep/sim/rivals/receiver_pacer.hpp"
#include "farstep/sim/rivals/rival_packets.hpp"
#include "farstep/sim/transport.hpp"
#include "farstep/sim/virtual_array.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

template <class P>
struct RivalSettings {
    typename P::Config protocol;        // its wire, and the planes and seed of its paths, are set for each connection
    uint64_t base_rtt_ns = 0;           // 0: of each connection's own path
    uint32_t answer_paths = 4;          // per plane; one for transports that keep to one path
    double pacer_share = 1.0;           // of a receiver's line, for those that are paced by it
    uint32_t xoff_packets = 15, xon_packets = 12;  // lossless: buffered packets of one feeding port
    uint64_t seed = 1;
};

template <class P>
concept ReceiverPaced = requires(P p, RivalAnswer a) { p.grant(a); };

/// Wants to know how many connections of its NIC have something to send.
template <class P>
concept SharesCredit = requires(P p) { p.set_active_connections(1u); };

template <class P, bool Lossless = false, bool Adaptive = false>
class RivalTransport {
public:
    using Settings = RivalSettings<P>;
    struct Policy {
        static constexpr bool kLossless = Lossless, kAdaptive = Adaptive;
    };
    static constexpr uint64_t kMaxMessage_bytes = uint64_t{1} << 29;

    RivalTransport(const Settings& s, Network<Policy>& net, const ConnectionsAhead& ahead)
        : settings_(s), net_(&net), rows_(ahead.count), num_connections_(ahead.count) {
        if constexpr (Lossless) net.set_pause_thresholds(s.xoff_packets, s.xon_packets);
        if constexpr (ReceiverPaced<P>)
            for (uint32_t n = 0; n < net.fabric().num_nics(); ++n)
                pacers_.emplace_back(nic_bytes_per_s(n), s.pacer_share, net.fabric().clock().slot_ns());
        if constexpr (SharesCredit<P>) num_active_.resize(net.fabric().num_nics());
    }
    ~RivalTransport() {
        for (Row& r : rows_) destroy(r);
    }
    RivalTransport(const RivalTransport&) = delete;

    // ---- life of a connection ----------------------------------------------------------------------------------------

    template <class Host>
    bool open(Host&, uint32_t c, uint32_t source, uint32_t target) {
        Row& r = rows_[c];
        assert(!r.state);
        r.source_nic = source;
        r.target_nic = target;
        CounterRng rng(settings_.seed * 0x9E3779B97F4A7C15ull + c);
        const uint32_t planes = net_->fabric().num_nic_ports(source);
        typename P::Config config = settings_.protocol;
        config.paths.num_planes = planes;
        config.paths.seed = rng.next();
        config.wire.seed = rng.next();
        config.wire.mtu_bytes = net_->fabric().settings().mtu_bytes;
        config.wire.overhead_bytes = net_->fabric().settings().overhead_bytes;
        config.wire.rate_bytes_per_s = nic_bytes_per_s(source);
        if (!config.paths.is_hashed) config.paths.per_plane = fewest_paths(source, target, config.paths.per_plane);
        if (config.paths.per_plane == 0) return false;
        config.wire.base_rtt_ns = settings_.base_rtt_ns ? settings_.base_rtt_ns : own_rtt_ns(source, target);
        if (config.wire.base_rtt_ns == 0) return false;
        BlockPool& pool = pool_for(config);
        Arena arena(pool.take(), pool.bytes());
        r.state = lay_out(config, arena);
        r.state->pool = &pool;
        r.state->walk_seed = rng.next();
        make_routes(r);
        return r.state->routed != 0;
    }
    void close(uint32_t c) { destroy(rows_[c]); }
    bool can_post(uint32_t c) const noexcept { return rows_[c].state->protocol.can_post(); }
    template <class Host>
    void post(Host& host, uint32_t c, uint64_t bytes) {
        State& s = *rows_[c].state;
        s.protocol.post(bytes);
        count_active(rows_[c], s.protocol.span().next != s.protocol.span().end);
        host.wake(c);
        host.set_timer(2 * c, s.protocol.next_timeout_ns());
    }

    // ---- sending -----------------------------------------------------------------------------------------------------

    template <class Host>
    bool poll(Host& host, uint32_t c, uint64_t now, uint32_t free_ports, Departure& out) {
        Row& r = rows_[c];
        if (!r.state) return false;
        State& s = *r.state;
        if (s.epoch != net_->router().epoch()) [[unlikely]] make_routes(r);
        if constexpr (SharesCredit<P>) s.protocol.set_active_connections(num_active_[r.source_nic]);
        RivalData d;
        const bool any = s.protocol.poll_data(s.later(now), free_ports, d);
        host.set_timer(2 * c, s.protocol.next_timeout_ns());
        if (!any) return false;
        count_active(r, s.protocol.span().next != s.protocol.span().end);
        if (d.flags & RivalData::kAgain) host.note_retransmitted();
        out.port = s.paths.plane(d.path);
        out.packet = net_->new_packet();
        net_->cargo(out.packet) = {c, d.sequence, d.stamp, d.path};
        Packet& k = net_->packet(out.packet);
        k.route = s.routes[Adaptive ? out.port : d.path];
        k.bytes = d.bytes;
        k.flags = static_cast<uint8_t>((Adaptive ? Packet::kAdaptive : 0) | d.flags * Packet::kOwn);
        return true;
    }

    // ---- arrivals ----------------------------------------------------------------------------------------------------

    template <class Host>
    void on_data(Host& host, uint32_t number) {
        const Packet& k = net_->packet(number);
        const Cargo& g = net_->cargo(number);
        const RivalData d{g.sequence, g.stamp, g.path, k.bytes, static_cast<uint8_t>(k.flags / Packet::kOwn)};
        arrive(host, g.connection, d, {(k.flags & Packet::kMarked) != 0, false, false});
    }
    template <class Host>
    void on_control(Host& host, const Control& c) {
        if (c.kind == Control::kTrimmed) {
            const auto t = c.get<Trimmed>();
            const RivalData d{t.sequence, t.stamp, t.path, t.bytes, static_cast<uint8_t>(t.flags / Packet::kOwn)};
            return arrive(host, c.connection, d, {(t.flags & Packet::kMarked) != 0, true, t.last_hop});
        }
        Row& r = rows_[c.connection];
        if (!r.state) return;
        State& s = *r.state;
        const uint32_t done = s.protocol.messages_acked();
        s.protocol.on_answer(s.later(host.now_ns()), c.get<RivalAnswer>());
        host.set_timer(2 * c.connection, s.protocol.next_timeout_ns());
        host.wake(c.connection);
        for (uint32_t n = s.protocol.messages_acked() - done; n; --n) host.on_completed(c.connection);
    }

    // ---- time --------------------------------------------------------------------------------------------------------

    template <class Host>
    void on_timer(Host& host, uint32_t timer) {
        if (timer >= 2 * num_connections_) return run_pacer(host, timer - 2 * num_connections_);
        const uint32_t c = timer / 2;
        Row& r = rows_[c];
        if (!r.state) return;
        State& s = *r.state;
        const uint64_t now = s.later(host.now_ns());
        if (s.protocol.next_timeout_ns() <= now) {
            s.protocol.on_timeout(now);
            send_answers(host, c, r);
            host.wake(c);
        }
        host.set_timer(timer, s.protocol.next_timeout_ns());
    }
    template <class Host>
    void on_nic_port(Host& host, uint32_t nic, uint32_t ordinal, bool up, bool own) {
        for (uint32_t c = 0; c < rows_.size(); ++c) {
            Row& r = rows_[c];
            if (!r.state || (own ? r.source_nic : r.target_nic) != nic) continue;
            State& s = *r.state;
            for (uint32_t k = 0; k < s.paths.num_planes; ++k) {
                const uint32_t of = own ? k : s.remote_port[k];
                if (of != ordinal) continue;
                uint64_t& usable = own ? s.usable_here : s.usable_there;
                usable = up ? usable | 1ull << k : usable & ~(1ull << k);
            }
            s.protocol.set_usable_planes(s.usable());
            host.wake(c);
        }
    }

    // ---- cache -------------------------------------------------------------------------------------------------------

    void prefetch_poll(uint32_t c) const noexcept { rows_.prefetch(c); }
    void prefetch_state(uint32_t c) const noexcept { prefetch_lines(rows_[c].state); }
    void prefetch_last(uint32_t) const noexcept {}
    void prefetch_control_last(const Control&) const noexcept {}
    void prefetch_data(const Cargo& g) const noexcept { prefetch_lines(rows_[g.connection].state); }
    void prefetch_control(const Control& c) const noexcept { prefetch_lines(rows_[c.connection].state); }

    // ---- figures -----------------------------------------------------------------------------------------------------

    FlowCounters counters(uint32_t c) const noexcept { return rows_[c].state ? rows_[c].state->protocol.counters() : FlowCounters{}; }
    std::string waits_for(uint32_t c, uint64_t now_ns) const {
        if (!rows_[c].state) return "its connection to be opened";
        const P& p = rows_[c].state->protocol;
        const RivalSpan s = p.span();
        const uint64_t due = p.next_timeout_ns();
        const std::string timer = due == UINT64_MAX ? std::string("no timer runs") : "timer in " + std::to_string(due > now_ns ? (due - now_ns) / 1000 : 0) + " us";
        if (s.una != s.next) return "an acknowledgement of packets " + std::to_string(s.una) + " to " + std::to_string(s.next) + " (" + timer + ")";
        if (s.next != s.end) return "leave to send packet " + std::to_string(s.next) + " of " + std::to_string(s.end) + " (" + timer + ")";
        return "the completion of a message whose packets all arrived (" + timer + ")";
    }
    template <class F>
    void take_events(F&&) {}
    const P* protocol(uint32_t c) const noexcept { return rows_[c].state ? &rows_[c].state->protocol : nullptr; }

private:
    static constexpr uint32_t kStateLines = 10;
    static constexpr uint8_t kAnswer = 1;

    struct State {
        State(const typename P::Config& c, Arena* arena) : protocol(c, arena), paths(c.paths) {}
        // Handling never goes back in time, whatever the phases within a slot.
        uint64_t later(uint64_t now) noexcept { return last_ns = now > last_ns ? now : last_ns; }
        uint64_t last_ns = 0;
        P protocol;
        RivalPaths paths;
        uint64_t usable() const noexcept { return usable_here & usable_there & routed; }
        uint64_t usable_here = ~0ull, usable_there = ~0ull;  // planes, as far as the NICs' ports are concerned
        uint64_t routed = 0;                                 // planes in which there is a way
        uint64_t walk_seed = 0;
        BlockPool* pool = nullptr;
        uint64_t* routes = nullptr;      // by path; of adaptive packets by plane
        ControlPath* ways = nullptr;     // answers: as many for each plane
        uint32_t num_routes = 0, num_ways = 0, way_cursor = 0, epoch = 0;
        uint8_t* remote_port = nullptr;  // where packets of a plane arrive
    };
    struct Row {
        State* state;
        uint32_t source_nic, target_nic;
        bool is_active;
        PacerLink link;
    };

    static void prefetch_lines(const State* s) noexcept {
        if (!s) return;
        for (uint32_t i = 0; i < kStateLines; ++i) __builtin_prefetch(reinterpret_cast<const char*>(s) + 64 * i, 1);
    }

    template <class Host>
    void arrive(Host& host, uint32_t c, const RivalData& d, Arrived how) {
        Row& r = rows_[c];
        if (!r.state) return how.trimmed ? void() : host.note_duplicate(c);  // of a connection that is over
        State& s = *r.state;
        const uint64_t now = s.later(host.now_ns());
        const uint32_t done = s.protocol.messages_delivered();
        const uint64_t duplicates = s.protocol.counters().duplicates;
        if (s.protocol.on_data(now, d, how)) host.note_placed(d.bytes - net_->fabric().settings().overhead_bytes);
        if (s.protocol.counters().duplicates != duplicates) host.note_duplicate(c);
        send_answers(host, c, r);
        host.set_timer(2 * c, s.protocol.next_timeout_ns());
        if constexpr (ReceiverPaced<P>) {
            if (s.protocol.wants_grant()) {
                ReceiverPacer& pacer = pacers_[r.target_nic];
                pacer.request(c, links());
                run_pacer(host, r.target_nic);
            }
        }
        for (uint32_t n = s.protocol.messages_delivered() - done; n; --n) host.on_received(c);
    }
    void count_active(Row& r, bool is_active) noexcept {
        if constexpr (SharesCredit<P>) {
            if (r.is_active == is_active) return;
            r.is_active = is_active;
            num_active_[r.source_nic] += is_active ? 1 : -1;
        }
    }
    template <class Host>
    void send_answers(Host& host, uint32_t c, Row& r) {
        RivalAnswer a;
        while (r.state->protocol.poll_answer(a)) send(host, c, r, a);
    }
    template <class Host>
    void send(Host& host, uint32_t c, Row& r, const RivalAnswer& a) {
        State& s = *r.state;
        if (s.epoch != net_->router().epoch()) [[unlikely]] make_routes(r);
        const uint64_t usable = s.usable();
        const uint32_t each = settings_.answer_paths, ports = net_->fabric().num_nic_ports(r.target_nic);
        // By the port the packet came in, if that still works.
        uint32_t plane = s.paths.plane(a.path);
        for (uint32_t i = 0; i < s.paths.num_planes && !(usable >> plane & 1); ++i) plane = (plane + 1) % s.paths.num_planes;
        const uint32_t port = s.remote_port[plane] % ports;
        const ControlPath& way = s.ways[port * each + s.way_cursor++ % each];
        if (way.hops == 0) return;  // cut off: as good as lost
        Control k{};
        k.connection = c;
        k.kind = kAnswer;
        k.to_source = 1;
        k.put(a);
        net_->send_control(way, host.now(), k);
    }

    // ---- pacers --------------------------------------------------------------------------------------------------------

    auto links() noexcept {
        return [this](uint32_t c) -> PacerLink& { return rows_[c].link; };
    }
    template <class Host>
    void run_pacer(Host& host, uint32_t nic) {
        if constexpr (ReceiverPaced<P>) {
            ReceiverPacer& pacer = pacers_[nic];
            const uint64_t now = host.now_ns();
            bool is_idle = false;
            for (uint32_t c; (c = pacer.poll(now, links(), is_idle)) != kNobody;) {
                Row& r = rows_[c];
                if (!r.state) continue;
                RivalAnswer a;
                const uint64_t bytes = r.state->protocol.grant(a, is_idle);
                if (bytes == 0) continue;
                pacer.granted(now, bytes);
                a.path = r.state->paths.path(r.state->way_cursor / settings_.answer_paths % r.state->paths.num_planes, 0);
                send(host, c, r, a);
                if (r.state->protocol.wants_grant()) pacer.request(c, links());
                else if (r.state->protocol.takes_idle_grant()) pacer.offer(c, links());
            }
            host.set_timer(2 * num_connections_ + nic, pacer.next_timeout_ns());
        }
    }

    // ---- construction --------------------------------------------------------------------------------------------------

    double nic_bytes_per_s(uint32_t nic) const noexcept {
        const FabricState& f = net_->fabric();
        double gbps = 0;
        for (uint32_t p = f.first_port(nic); p < f.end_port(nic); ++p) gbps += f.gbps(p);
        return gbps * 1e9 / 8;
    }
    // Every plane has the same number of paths, so it is that of the one with the fewest.
    uint32_t fewest_paths(uint32_t source, uint32_t target, uint32_t most) const noexcept {
        const FabricState& f = net_->fabric();
        uint64_t fewest = most;
        CounterRng rng(1);
        for (uint32_t p = f.first_port(source); p < f.end_port(source); ++p)
            if (const uint64_t n = net_->router().walk(p, target, rng).count) fewest = std::min(fewest, n);
        return static_cast<uint32_t>(fewest);
    }
    // Out with a full packet, back with an answer, nobody else on the way; of the longest plane.
    uint64_t own_rtt_ns(uint32_t source, uint32_t target) const noexcept {
        const FabricState& f = net_->fabric();
        Tick longest = 0;
        for (uint32_t k = 0; k < f.num_nic_ports(source); ++k) {
            uint32_t ports[Router::kMaxHops];
            const uint32_t uplink = f.first_port(source) + k, n = net_->router().ports(uplink, target, 0, ports);
            if (n == 0) continue;
            Tick there = f.port(uplink).delay, back = 0;
            for (uint32_t i = 0; i < n; ++i) there += f.port(ports[i]).delay;
            back += f.control_ticks(f.reverse(uplink), f.settings().control_bytes);
            for (uint32_t i = 0; i < n; ++i) back += f.control_ticks(f.reverse(ports[i]), f.settings().control_bytes);
            longest = std::max(longest, there + back);
        }
        return f.clock().ns(longest);
    }

    uint32_t num_routes(const RivalPaths& p) const noexcept { return Adaptive ? p.num_planes : p.num_planes * p.per_plane; }

    State* lay_out(const typename P::Config& c, Arena& arena) {
        State* s = new (arena.take(sizeof(State), 64)) State(c, &arena);
        s->num_routes = num_routes(c.paths);
        s->routes = static_cast<uint64_t*>(arena.take(s->num_routes * sizeof(uint64_t), 64));
        std::fill_n(s->routes, s->num_routes, 0);
        s->num_ways = max_ports() * settings_.answer_paths;
        s->ways = static_cast<ControlPath*>(arena.take(s->num_ways * sizeof(ControlPath), 64));
        for (uint32_t i = 0; i < s->num_ways; ++i) new (s->ways + i) ControlPath;
        s->remote_port = static_cast<uint8_t*>(arena.take(c.paths.num_planes, 1));
        std::fill_n(s->remote_port, c.paths.num_planes, 0);
        return s;
    }
    uint32_t max_ports() noexcept {
        if (max_ports_ == 0)
            for (uint32_t n = 0; n < net_->fabric().num_nics(); ++n) max_ports_ = std::max(max_ports_, net_->fabric().num_nic_ports(n));
        return max_ports_;
    }
    // Connections of equal window and paths take equal room; how much is found out by laying one out.
    BlockPool& pool_for(const typename P::Config& c) {
        const uint64_t key = uint64_t{P::span_packets(c)} << 32 | uint64_t{c.paths.per_plane} << 6 | c.paths.num_planes;
        std::unique_ptr<BlockPool>& pool = pools_[key];
        if (!pool) {
            if (!scratch_) scratch_ = std::make_unique<Reservation>(size_t{1} << 32);
            Arena arena(scratch_->data(), scratch_->bytes());
            State* s = lay_out(c, arena);
            s->~State();
            pool = std::make_unique<BlockPool>(arena.used_bytes());
        }
        return *pool;
    }

    // Where routing knows no way any more the old route stays, but the plane is not used until there is one again.
    void make_routes(Row& r) {
        State& s = *r.state;
        const FabricState& f = net_->fabric();
        s.epoch = net_->router().epoch();
        s.routed = 0;
        CounterRng rng(s.walk_seed);
        for (uint32_t k = 0; k < s.paths.num_planes; ++k) {
            const uint32_t uplink = f.first_port(r.source_nic) + k;
            const PathWalk walk = net_->router().walk(uplink, r.target_nic, rng);
            if (walk.count == 0) continue;
            s.routed |= 1ull << k;
            uint32_t ports[Router::kMaxHops];
            uint32_t n = net_->router().ports(uplink, r.target_nic, 0, ports);
            s.remote_port[k] = static_cast<uint8_t>(f.reverse(ports[n - 1]) - f.first_port(r.target_nic));
            if (Adaptive) {
                s.routes[k] = f.source_node(ports[n - 1]) | uint64_t{ports[n - 1]} << 32;
                continue;
            }
            for (uint32_t i = 0; i < s.paths.per_plane; ++i) {
                const uint16_t path = s.paths.path(k, i);
                n = net_->router().ports(uplink, r.target_nic, s.paths.is_hashed ? s.paths.number(path) : walk.at(i), ports);
                if (n == 0) continue;
                net_->router().release(s.routes[path]);
                s.routes[path] = net_->router().encode(ports, n);
            }
        }
        make_ways(r, rng);
        s.protocol.set_usable_planes(s.usable());
    }
    void make_ways(Row& r, CounterRng& rng) {
        State& s = *r.state;
        const FabricState& f = net_->fabric();
        const uint32_t each = settings_.answer_paths;
        for (uint32_t k = 0; k < f.num_nic_ports(r.target_nic); ++k) {
            const uint32_t nic_port = f.first_nic_port(r.target_nic) + k, uplink = f.nic_port(nic_port).port;
            const PathWalk walk = net_->router().walk(uplink, r.source_nic, rng);
            for (uint32_t i = 0; i < each && walk.count; ++i) {
                uint32_t ports[Router::kMaxHops];
                const uint32_t n = net_->router().ports(uplink, r.source_nic, walk.at(i), ports);
                ControlPath& way = s.ways[k * each + i];
                if (way.hops) net_->router().release(way.route);
                way = net_->control_path(nic_port, ports, n);
            }
        }
    }
    void release_routes(State& s) {
        if (!Adaptive)
            for (uint32_t i = 0; i < s.num_routes; ++i) net_->router().release(s.routes[i]);
        for (uint32_t i = 0; i < s.num_ways; ++i)
            if (s.ways[i].hops) net_->router().release(s.ways[i].route);
    }
    void destroy(Row& r) {
        if (!r.state) return;
        release_routes(*r.state);
        count_active(r, false);
        BlockPool* pool = r.state->pool;
        r.state->~State();
        pool->give(r.state);
        r.state = nullptr;
    }

    Settings settings_;
    Network<Policy>* net_;
    VirtualArray<Row> rows_;
    uint32_t num_connections_, max_ports_ = 0;
    std::vector<ReceiverPacer> pacers_;
    std::vector<uint32_t> num_active_;  // connections of each NIC that have something to send
    std::map<uint64_t, std::unique_ptr<BlockPool>> pools_;
    std::unique_ptr<Reservation> scratch_;
};

}  // namespace farstep::sim
