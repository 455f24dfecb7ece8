// MRC in simulated time: the shipped connections, stepped with packets instead of datagrams.
//
// Each end is a farstep::Connection of its own, laid out with its routes in one block of memory. The source's holds the
// entropy values of the data; the target's a few for answers. Nothing of the protocol is modelled here.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "farstep/connection.hpp"
#include "farstep/counter_rng.hpp"
#include "farstep/regions.hpp"
#include "farstep/sim/block_pool.hpp"
#include "farstep/sim/dead_ports.hpp"
#include "farstep/sim/hot_lines.hpp"
#include "farstep/sim/mrc_config.hpp"
#include "farstep/sim/mrc_control.hpp"
#include "farstep/sim/mrc_ends.hpp"
#include "farstep/sim/mrc_ways.hpp"
#include "farstep/sim/network.hpp"
#include "farstep/sim/transport.hpp"
#include "farstep/sim/virtual_array.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

class MrcTransport {
public:
    using Settings = MrcSettings;
    struct Policy {
        static constexpr bool kLossless = false, kAdaptive = false;
    };
    static constexpr uint64_t kMaxMessage_bytes = uint64_t{1} << 29;

    MrcTransport(const Settings& s, Network<Policy>& net, const ConnectionsAhead& ahead)
        : settings_(s), net_(&net), configs_(settings_, net.fabric(), ahead), rows_(ahead.count), regions_(1),
          shared_window_(NsccConfig{}) {
        region_key_ = regions_.add(&region_byte_, 1ull << 62, true, 1);
        source_blocks_ = measure(true);
        target_blocks_ = measure(false);
        data_.bth.has_timestamp = true;
        data_.reth.rkey = region_key_;
        data_.payload = &region_byte_;
    }
    ~MrcTransport() {
        for (Row& r : rows_) destroy(r);
    }
    MrcTransport(const MrcTransport&) = delete;

    // ---- life of a connection ----------------------------------------------------------------------------------------

    template <class Host>
    bool open(Host&, uint32_t c, uint32_t source, uint32_t target) {
        Row& r = rows_[c];
        assert(!r.source);
        r.source_nic = source;
        r.target_nic = target;
        CounterRng rng(settings_.seed * 0x9E3779B97F4A7C15ull + c);
        r.source = static_cast<SourceEnd*>(source_blocks_->take());
        r.target = static_cast<TargetEnd*>(target_blocks_->take());
        build_target(r, rng);
        const bool is_built = build_source(c, r, rng);
        dead_ports_.leave(source, target, *r.source, *r.target);
        return is_built;
    }
    void close(uint32_t c) {
        collect_events(c);
        destroy(rows_[c]);
    }
    bool can_post(uint32_t c) const noexcept { return !rows_[c].source->connection.sender().queue().is_full(); }
    template <class Host>
    void post(Host& host, uint32_t c, uint64_t bytes) {
        WriteRequest w;
        w.length_bytes = static_cast<uint32_t>(bytes);
        w.remote_key = region_key_;
        w.data = &region_byte_;
        Row& r = rows_[c];
        r.source->connection.sender().queue().post(w);
        // Many packets take most routes: made together they cost less.
        if (bytes / net_->fabric().settings().mtu_bytes > r.source->num_ways / kFewShare) make_routes(r);
        host.wake(c);
    }

    // ---- sending -----------------------------------------------------------------------------------------------------

    template <class Host>
    bool poll(Host& host, uint32_t c, uint64_t now, uint32_t free_ports, Departure& out) {
        Row& r = rows_[c];
        if (!r.source) return false;
        SourceEnd& s = *r.source;
        now = s.later(now);
        EvIndex ev = kNoEv;
        uint64_t psn = 0;
        if (!s.connection.sender().poll_burst(now, free_ports, 1, ev, &psn)) return false;
        const Sender::Outline o = s.connection.sender().outline(psn);
        out.packet = net_->new_packet();
        out.port = o.plane;
        net_->cargo(out.packet) = {c, static_cast<uint32_t>(psn) & wire::kPsnMask, o.timestamp,
                                   static_cast<uint16_t>(ev | out.port << kPlaneShift)};
        Packet& k = net_->packet(out.packet);
        k.route = route_of(r, ev);
        k.bytes = static_cast<uint16_t>(o.payload_bytes + net_->fabric().settings().overhead_bytes);
        k.flags = static_cast<uint8_t>((o.ends_message ? kLast : 0) | (o.asks ? kAsks : 0) | (o.is_again ? kAgain : 0));
        if (o.is_again) host.note_retransmitted();
        // A deadline is nearer than before only if nothing was in flight.
        if (s.connection.sender().una() == psn || !host.is_timer_set(2 * c)) rearm(host, 2 * c, s.connection);
        return true;
    }

    // ---- arrivals ----------------------------------------------------------------------------------------------------

    template <class Host>
    void on_data(Host& host, uint32_t number) {
        const Packet& k = net_->packet(number);
        const Cargo& g = net_->cargo(number);
        Row& r = rows_[g.connection];
        if (!r.target) return host.note_duplicate(g.connection);  // of a connection that is over
        TargetEnd& t = *r.target;
        const uint64_t now = t.later(host.now_ns());
        data_.bth.opcode = k.flags & kLast ? wire::Opcode::WriteLast : wire::Opcode::WriteMiddle;
        data_.bth.psn = g.sequence;
        data_.bth.ack_request = k.flags & kAsks;
        data_.bth.rtx = k.flags & kAgain;
        data_.tseth.timestamp = g.stamp;
        data_.payload_bytes = k.bytes - net_->fabric().settings().overhead_bytes;
        const Arrival a{t.arrival_port[g.path >> kPlaneShift], (k.flags & Packet::kMarked) != 0, 0, g.path};
        const ReceiverCounters& counted = t.connection.receiver().counters();
        const uint64_t placed = counted.packets, duplicates = counted.duplicates;
        const uint64_t done = t.connection.receiver().messages_done();
        t.connection.on_data(now, data_, a, regions_);
        if (counted.packets != placed) host.note_placed(data_.payload_bytes);
        else if (counted.duplicates != duplicates) host.note_duplicate(g.connection);
        answer(host, g.connection, r, now);
        for (uint64_t n = t.connection.receiver().messages_done() - done; n; --n) host.on_received(g.connection);
    }
    template <class Host>
    void on_control(Host& host, const Control& c) {
        Row& r = rows_[c.connection];
        if (!r.source) return;
        if (c.to_source) to_source(host, c, r);
        else to_target(host, c, r);
    }

    /// Routing is about to change, which static routes do not follow: those not made yet are made now.
    void before_reroute() {
        for (const Row& r : rows_)
            if (r.source) make_routes(r);
    }

    // ---- time --------------------------------------------------------------------------------------------------------

    template <class Host>
    void on_timer(Host& host, uint32_t timer) {
        const uint32_t c = timer / 2;
        Row& r = rows_[c];
        if (!r.source) return;
        const bool is_source = timer % 2 == 0;
        MrcEnd& e = is_source ? static_cast<MrcEnd&>(*r.source) : static_cast<MrcEnd&>(*r.target);
        const uint64_t now = e.later(host.now_ns());
        if (e.connection.next_timeout_ns() <= now) e.connection.on_timeout(now);
        if (!is_source) {
            answer(host, c, r, now, /*is_timer=*/true);
            return rearm(host, timer, r.target->connection);
        }
        collect_events(c);
        after_source(host, c, r, now);
    }
    template <class Host>
    void on_nic_port(Host& host, uint32_t nic, uint32_t ordinal, bool up, bool own) {
        dead_ports_.note(nic, ordinal, up, own);
        for (uint32_t c = 0; c < rows_.size(); ++c) {
            Row& r = rows_[c];
            if (!r.source) continue;
            for (const bool at_source : {true, false}) {
                MrcEnd& e = at_source ? static_cast<MrcEnd&>(*r.source) : static_cast<MrcEnd&>(*r.target);
                const bool touches = r.source_nic == nic || r.target_nic == nic;
                const bool concerns = touches && ((at_source ? r.source_nic : r.target_nic) == nic) == own;
                if (!concerns) continue;
                uint32_t& ports = own ? e.local_ports : e.remote_ports;
                ports = up ? ports | 1u << ordinal : ports & ~(1u << ordinal);
                const uint64_t now = e.later(host.now_ns());
                e.connection.set_usable_planes(now, e.connection.planes_of_ports(e.local_ports, e.remote_ports));
                if (at_source) after_source(host, c, r, now);
            }
        }
    }

    // ---- cache -------------------------------------------------------------------------------------------------------

    // Ends touched before in a stretch of slots are still at hand.
    void begin_stretch() noexcept { ++stretch_; }
    void prefetch_poll(uint32_t c) const noexcept { rows_.prefetch(c); }
    void prefetch_state(uint32_t c) noexcept {
        Row& r = rows_[c];
        if (r.source_touched == stretch_) return;
        r.source_touched = stretch_;
        poll_lines_.prefetch(r.source);
    }
    void prefetch_last(uint32_t c) const noexcept {
        if (rows_[c].source) rows_[c].source->connection.sender().prefetch_next();
    }
    void prefetch_data(const Cargo& g) noexcept {
        Row& r = rows_[g.connection];
        if (r.target_touched == stretch_) return;
        r.target_touched = stretch_;
        data_lines_.prefetch(r.target);
    }
    void prefetch_data_last(uint32_t number) const noexcept {
        const TargetEnd* const t = rows_[net_->cargo(number).connection].target;
        if (!t) return;
        const bool is_answered = net_->packet(number).flags & (Packet::kMarked | kAsks | kAgain | kLast);
        const bool is_near = t->connection.receiver().is_near_answer(net_->fabric().settings().mtu_bytes);
        if (is_answered || is_near) answer_lines_.prefetch(t);
    }
    void prefetch_control(const Control& c) noexcept {
        if (c.to_source) {
            prefetch_state(c.connection);
            ack_lines_.prefetch(rows_[c.connection].source);
        } else {
            data_lines_.prefetch(rows_[c.connection].target);
        }
    }
    void prefetch_control_last(const Control& c) const noexcept {
        if (!c.to_source || !rows_[c.connection].source) return;
        const Sender& s = rows_[c.connection].source->connection.sender();
        if (c.kind != mrc::kSack) return s.prefetch_oldest();
        const auto b = c.get<mrc::SackBody>();
        s.prefetch_shown(b.cack_psn, b.cack_psn + static_cast<uint32_t>(int32_t{b.sack_offset}), b.bitmap);
        s.prefetch(b.cack_psn + static_cast<uint32_t>(int32_t{b.ack_psn_offset}));
        rows_[c.connection].source->connection.paths().prefetch(b.entropy & ((1u << kPlaneShift) - 1));
    }

    // ---- figures -----------------------------------------------------------------------------------------------------

    FlowCounters counters(uint32_t c) const noexcept {
        const Row& r = rows_[c];
        if (!r.source) return {};
        const SenderCounters& k = r.source->connection.sender().counters();
        const uint64_t duplicates = r.target->connection.receiver().counters().duplicates;
        return {k.packets, k.retransmitted, k.trimmed, k.lost_order + k.lost_late + k.lost_timeout, duplicates};
    }
    static uint16_t entropy_value(uint16_t path) noexcept { return path & ((1u << kPlaneShift) - 1); }
    uint64_t window_bytes(uint32_t c) const noexcept { return rows_[c].source ? rows_[c].source->cwnd_bytes() : 0; }
    std::string waits_for(uint32_t c, uint64_t now_ns) const {
        const Row& r = rows_[c];
        if (!r.source) return "its connection to be opened";
        const Connection& k = r.source->connection;
        if (!k.is_open()) return std::string("nothing: its connection failed (") + name(k.error()) + ")";
        const Sender& s = k.sender();
        const uint64_t due = k.next_timeout_ns();
        const uint64_t left_us = due > now_ns ? (due - now_ns) / 1000 : 0;
        const std::string timer = due == kNever ? std::string("no timer runs") : "timer in " + std::to_string(left_us) + " us";
        const auto since_start = [](uint64_t psn) { return std::to_string(psn - kFirstPsn); };
        const std::string span = "packets " + since_start(s.una()) + " to " + since_start(s.next_psn());
        if (s.has_retransmission()) return "room to send lost packets again (" + span + ", " + timer + ")";
        if (s.una() != s.next_psn()) return "an acknowledgement of " + span + " (" + timer + ")";
        if (s.has_new()) return "its window or a usable plane (" + timer + ")";
        return "the completion of a message whose packets all arrived (" + timer + ")";
    }
    template <class F>
    void take_events(F&& f) {
        for (uint32_t c = 0; c < rows_.size(); ++c)
            if (rows_[c].source) collect_events(c);
        for (const PathEvent& e : events_) f(e);
        events_.clear();
    }
    size_t bytes_per_connection() const noexcept { return source_blocks_->bytes() + target_blocks_->bytes(); }

private:
    static constexpr uint64_t kFirstPsn = 1ull << 24;  // of a connection whose start_psn is 0
    static constexpr uint32_t kPlaneShift = 11;  // Packet::path: entropy value, and above it its plane
    static constexpr uint8_t kLast = Packet::kOwn, kAsks = Packet::kOwn << 1, kAgain = Packet::kOwn << 2;
    static constexpr uint32_t kFewShare = 4;     // of the routes: a message of fewer packets takes few
    static constexpr size_t kScratch_bytes = size_t{256} << 20;  // reserved, not resident

    using SourceEnd = MrcSource;
    using TargetEnd = MrcTarget;
    struct Row {
        SourceEnd* source;
        TargetEnd* target;
        uint32_t source_nic, target_nic;
        uint32_t source_touched, target_touched;  // last stretch in which it was asked for
    };

    template <class Host>
    void rearm(Host& host, uint32_t timer, const Connection& c) {
        host.set_timer(timer, c.next_timeout_ns());
    }

    // ---- what reaches the source ---------------------------------------------------------------------------------------

    template <class Host>
    void to_source(Host& host, const Control& c, Row& r) {
        Connection& k = r.source->connection;
        const uint64_t now = r.source->later(host.now_ns());
        switch (c.kind) {
            case mrc::kSack: {
                mrc::read_sack(c.get<mrc::SackBody>(), control_);
                k.on_sack(now, control_);
                break;
            }
            case mrc::kNack: {
                mrc::read_nack(c.get<mrc::NackBody>(), control_);
                k.on_nack(now, control_);
                break;
            }
            case mrc::kAck: k.on_ack(now, c.get<uint32_t>()); break;
            case mrc::kProbe: {
                const auto b = c.get<mrc::ProbeBody>();
                control_.bth.opcode = wire::Opcode::Probe;
                control_.peth = {0, b.id, b.timestamp};
                k.on_probe(now, control_, Arrival{0, false, 0, c.path});
                break;
            }
            default: return;
        }
        const bool may_be_news = k.sender().has_retransmission() || control_.seth.probe_reply || settings_.watches_skips;
        if (may_be_news) collect_events(c.connection);  // few are kept, so they are fetched as soon as there are any
        after_source(host, c.connection, r, now);
    }
    template <class Host>
    void after_source(Host& host, uint32_t c, Row& r, uint64_t now) {
        Connection& k = r.source->connection;
        const uint64_t before = k.completed_messages();
        k.complete_messages([](uint32_t) {});
        const uint64_t completed = k.completed_messages() - before;
        const uint32_t first = net_->fabric().first_nic_port(r.source_nic);
        while (k.has_control(now)) {
            wire::Packet& p = control_;
            EvIndex ev = kNoEv;
            p.bth = {};
            if (!k.poll_control(now, p, ev)) break;
            Control out = mrc::make_control(c, p, ev, k.paths().plane(ev), /*to_source=*/false);
            net_->send_control(way_of_data(*net_, route_of(r, ev), first + k.paths().plane(ev)), host.now(), out);
        }
        if (r.source->has_siblings) windows_.wake(*r.source, host);
        if (!k.is_open()) {
            host.on_failed(c, name(k.error()));
            return;
        }
        if (k.sender().has_data() && !k.sender().is_window_limited()) host.wake(c);
        rearm(host, 2 * c, k);
        for (uint64_t n = completed; n; --n) host.on_completed(c);  // the last one may close the connection
    }
    // ---- what reaches the target ---------------------------------------------------------------------------------------

    template <class Host>
    void to_target(Host& host, const Control& c, Row& r) {
        TargetEnd& t = *r.target;
        Connection& k = t.connection;
        const uint64_t now = t.later(host.now_ns());
        if (c.kind == Control::kTrimmed) {
            const auto b = c.get<Trimmed>();
            data_.bth.psn = b.sequence;
            data_.bth.rtx = b.flags & kAgain;
            data_.tseth.timestamp = b.stamp;
            k.on_trimmed(data_, Arrival{0, false, static_cast<uint8_t>(b.last_hop ? 2 : 1), b.path});
        } else if (c.kind == mrc::kProbe) {
            const auto b = c.get<mrc::ProbeBody>();
            control_.bth.opcode = wire::Opcode::Probe;
            control_.peth = {0, b.id, b.timestamp};
            k.on_probe(now, control_, Arrival{t.arrival_port[c.port], false, 0, c.path});
        } else if (c.kind == mrc::kSack) {  // an answer to a probe of ours
            mrc::read_sack(c.get<mrc::SackBody>(), control_);
            k.on_sack(now, control_);
        } else if (c.kind == mrc::kAck) {
            k.on_ack(now, c.get<uint32_t>());
        }
        answer(host, c.connection, r, now);
    }
    template <class Host>
    void answer(Host& host, uint32_t c, Row& r, uint64_t now, bool is_timer = false) {
        Connection& k = r.target->connection;
        // Only time makes probes of bad paths due; an answer may make one of a way back due.
        while (k.receiver().has_control() || k.owes_probe() || (is_timer && k.has_control(now))) {
            EvIndex ev = kNoEv;
            control_.bth = {};
            if (!k.poll_control(now, control_, ev)) break;
            Control out = mrc::make_control(c, control_, ev, k.paths().plane(ev), /*to_source=*/true);
            net_->send_control(r.target->ways[ev], host.now(), out);
            if (out.kind == mrc::kProbe) rearm(host, 2 * c + 1, k);  // nothing else it sends is waited for
        }
        if (settings_.reliability.keepalive_ns) rearm(host, 2 * c + 1, k);
    }

    uint64_t route_of(const Row& r, EvIndex ev) {
        const uint64_t route = r.source->routes[ev];
        return route != MrcSource::kUnmade ? route : first_route(r, ev);
    }
    void make_routes(const Row& r) {
        for (uint32_t ev = 0; ev < r.source->num_ways; ++ev) route_of(r, static_cast<EvIndex>(ev));
    }
    [[gnu::noinline]] uint64_t first_route(const Row& r, EvIndex ev) {
        MrcSource& s = *r.source;
        const uint8_t plane = s.connection.paths().plane(ev);
        const uint32_t uplink = net_->fabric().first_port(r.source_nic) + plane;
        s.routes[ev] = make_route(uplink, r.target_nic, s.walks[plane].at(ev - s.walks[plane].first_ev));
        assert(s.routes[ev] != MrcSource::kUnmade);
        return s.routes[ev];
    }
    // kUnmade where there is no such path.
    uint64_t make_route(uint32_t uplink, uint32_t target_nic, uint64_t number) {
        uint32_t ports[Router::kMaxHops];
        const uint32_t n = net_->router().ports(uplink, target_nic, number, ports);
        return n ? net_->router().encode(ports, n) : MrcSource::kUnmade;
    }

    // ---- construction --------------------------------------------------------------------------------------------------

    // The end itself comes first in its block, then its small tables, then the others.
    template <class E>
    void* place(Arena& arena) const {
        void* const p = arena.take(sizeof(E), 64);
        arena.gather_small(std::is_same_v<E, SourceEnd> ? source_small_ : target_small_);
        return p;
    }
    // Lays one end out in scratch memory to see how much it takes: once for its small tables, once for all.
    std::unique_ptr<EndBlocks> measure(bool is_source) { return lay_out(is_source), lay_out(is_source); }
    std::unique_ptr<EndBlocks> lay_out(bool is_source) {
        poll_lines_ = is_source ? HotLines{} : poll_lines_;
        ack_lines_ = is_source ? HotLines{} : ack_lines_;
        if (!is_source) data_lines_ = answer_lines_ = HotLines{};
        const Reservation scratch_memory(kScratch_bytes);
        std::byte* const scratch = static_cast<std::byte*>(scratch_memory.data());
        Arena arena(scratch, kScratch_bytes / 2);
        arena.use_cold(scratch + kScratch_bytes / 2, kScratch_bytes / 2);
        const ConnectionConfig c = configs_.config(is_source, configs_.most_ports(), 1);
        const uint32_t planes = configs_.most_ports();
        std::vector<PlaneLink> links(planes);
        for (uint32_t k = 0; k < planes; ++k) links[k].local_port = static_cast<uint8_t>(k);
        if (is_source) {
            auto* end = new (place<SourceEnd>(arena)) SourceEnd(c, settings_.congestion, links.data(), planes, &arena, c);
            const auto on_poll = [&](const void* p, size_t bytes) { poll_lines_.add(scratch, p, bytes); };
            const auto on_ack = [&](const void* p, size_t bytes) { ack_lines_.add(scratch, p, bytes); };
            on_poll(end, head_bytes(*end));
            each_hot(*end, on_poll);
            on_poll(end->own_routes.get(), configs_.source_evs() * sizeof(uint64_t));
            end->connection.paths().each_hot_on_ack(on_ack);
            end->connection.sender().each_hot_on_ack(on_ack);
            end->window.each_hot_on_ack(on_ack);
            ack_lines_.remove(poll_lines_);
            end->~SourceEnd();
        } else {
            auto* end = new (place<TargetEnd>(arena)) TargetEnd(c, shared_window_, links.data(), planes, &arena, c);
            const auto on_data = [&](const void* p, size_t bytes) { data_lines_.add(scratch, p, bytes); };
            on_data(end, head_bytes(*end));
            end->connection.each_hot(on_data);
            end->connection.receiver().each_hot(on_data);
            const auto on_answer = [&](const void* p, size_t bytes) { answer_lines_.add(scratch, p, bytes); };
            end->connection.receiver().each_hot_on_answer(on_answer);
            end->connection.each_hot_on_answer(on_answer);
            end->connection.paths().each_hot_record(on_answer);
            on_answer(&end->ways, sizeof end->ways);
            on_answer(end->ways.get(), std::min<size_t>(configs_.target_evs() * sizeof(ControlPath), 128));
            answer_lines_.remove(data_lines_);
            end->~TargetEnd();
        }
        (is_source ? source_small_ : target_small_) = arena.small_bytes();
        return std::make_unique<EndBlocks>(arena.used_bytes(), arena.cold_used_bytes());
    }
    static size_t head_bytes(const MrcEnd& end) noexcept {
        const auto at = [](const void* p) { return static_cast<const std::byte*>(p); };
        return static_cast<size_t>(at(&end.connection) - at(&end));
    }
    template <class F>
    static void each_hot(const SourceEnd& end, F&& f) {
        end.connection.each_hot(f);
        end.connection.paths().each_hot(f);
        end.connection.sender().each_hot(f);
        end.connection.sender().each_hot_of_order(end.connection.config().paths.max_evs, f);
        end.window.each_hot(f);
    }
    void fill_links(uint32_t nic, uint32_t peer, PlaneLink* links) const noexcept {
        const FabricState& f = net_->fabric();
        for (uint32_t k = 0; k < f.num_nic_ports(nic); ++k) {
            uint32_t down[Router::kMaxHops];
            const uint32_t n = net_->router().downlinks(f.first_port(nic) + k, peer, down);
            links[k] = {static_cast<uint8_t>(k), static_cast<uint8_t>(n ? f.reverse(down[0]) - f.first_port(peer) : 0)};
        }
    }

    bool build_source(uint32_t c, Row& r, CounterRng& rng) {
        const FabricState& f = net_->fabric();
        const uint32_t planes = f.num_nic_ports(r.source_nic);
        Arena arena(r.source, source_blocks_->bytes());
        void* const cold = source_blocks_->take_cold(arena);
        PlaneLink links[kMaxPlanes];
        fill_links(r.source_nic, r.target_nic, links);
        const ConnectionConfig config_of = configs_.config(true, planes, rng.next());
        auto& siblings = windows_.of(r.source_nic, r.target_nic);
        new (place<SourceEnd>(arena)) SourceEnd(config_of, configs_.shared(congestion(r)), links, planes, &arena,
                                                configs_.shared(true, planes), siblings.owner);
        SourceEnd& s = *r.source;
        s.cold = cold;
        windows_.join(siblings, &s, c);
        const uint32_t each = settings_.active_evs_per_plane + settings_.backup_evs_per_plane;
        for (uint32_t k = 0; k < planes; ++k) {
            r.target->arrival_port[k] = links[k].remote_port;
            const uint32_t uplink = f.first_port(r.source_nic) + k;
            const PathWalk walk = net_->router().walk(uplink, r.target_nic, rng);
            if (walk.count == 0) continue;
            s.walks[k] = {walk, s.num_ways};
            // Where one shortest way leads to the NIC all do; else what leads nowhere is left out now.
            const bool is_later = net_->router().is_uniform(uplink, r.target_nic);
            for (uint32_t i = 0; i < each; ++i) {
                const auto ev = static_cast<uint16_t>(s.num_ways);
                s.routes[ev] = is_later ? MrcSource::kUnmade : make_route(uplink, r.target_nic, walk.at(i));
                if (s.routes[ev] == MrcSource::kUnmade && !is_later) continue;
                ++s.num_ways;
                s.connection.paths().add(static_cast<uint8_t>(k), {static_cast<uint8_t>(k), links[k].remote_port, ev, ev},
                                         i < settings_.active_evs_per_plane);
            }
        }
        return s.num_ways > 0;
    }
    void build_target(Row& r, CounterRng& rng) {
        const FabricState& f = net_->fabric();
        const uint32_t planes = f.num_nic_ports(r.target_nic);
        Arena arena(r.target, target_blocks_->bytes());
        void* const cold = target_blocks_->take_cold(arena);
        PlaneLink links[kMaxPlanes];
        fill_links(r.target_nic, r.source_nic, links);
        const ConnectionConfig config_of = configs_.config(false, planes, rng.next());
        new (place<TargetEnd>(arena)) TargetEnd(config_of, shared_window_, links, planes, &arena, configs_.shared(false, planes));
        TargetEnd& t = *r.target;
        t.cold = cold;
        for (uint32_t k = 0; k < planes; ++k) {
            const uint32_t nic_port = f.first_nic_port(r.target_nic) + k, uplink = f.nic_port(nic_port).port;
            const PathWalk walk = net_->router().walk(uplink, r.source_nic, rng);
            if (walk.count == 0) continue;
            for (uint32_t i = 0; i < settings_.answer_evs_per_plane; ++i) {
                uint32_t ports[Router::kMaxHops];
                const uint32_t n = net_->router().ports(uplink, r.source_nic, walk.at(i), ports);
                if (n == 0) continue;
                const auto ev = static_cast<uint16_t>(t.num_ways);
                t.ways[t.num_ways++] = net_->control_path(nic_port, ports, n);
                const auto plane = static_cast<uint8_t>(k);
                t.connection.paths().add(plane, {plane, links[k].remote_port, ev, ev}, true);
            }
        }
    }
    NsccConfig congestion(const Row& r) {
        NsccConfig n = settings_.congestion;
        const FabricState& f = net_->fabric();
        n.mtu_bytes = f.settings().mtu_bytes;
        n.trimming = f.settings().trimming;
        const uint32_t around = wire::kDataHeaderBytes + wire::kIcrcBytes + kNominalOverhead_bytes;
        const double nominal = n.mtu_bytes + around;
        if (n.rate_bytes_per_s <= 0)
            n.rate_bytes_per_s = configs_.nic_gbps(r.source_nic) * 1e9 / 8 * nominal / f.full_bytes();
        if (n.base_rtt_ns == 0) n.base_rtt_ns = static_cast<uint64_t>(f.settings().base_rtt_ns);
        if (n.base_rtt_ns == 0) n.base_rtt_ns = longest_rtt_ns(*net_, r.target->ways.get(), r.target->num_ways);
        return n;
    }
    void collect_events(uint32_t c) {
        EvEvent e;
        while (rows_[c].source->connection.paths().poll_event(e))
            events_.push_back({e.now_ns, c, e.ev, e.plane, static_cast<uint8_t>(e.state)});
    }
    void destroy(Row& r) {
        if (!r.source) return;
        for (uint32_t i = 0; i < r.source->num_ways; ++i)
            if (r.source->routes[i] != MrcSource::kUnmade) net_->router().release(r.source->routes[i]);
        for (uint32_t i = 0; i < r.target->num_ways; ++i) net_->router().release(r.target->ways[i].route);
        windows_.leave(r.source_nic, r.target_nic, r.source, [this](SourceEnd* end) {
            source_blocks_->give(end, end->cold);
            end->~SourceEnd();
        });
        target_blocks_->give(r.target, r.target->cold);
        r.target->~TargetEnd();
        r.source = nullptr;
        r.target = nullptr;
    }

    Settings settings_;
    Network<Policy>* net_;
    MrcConfigs configs_;
    VirtualArray<Row> rows_;
    size_t source_small_ = 0, target_small_ = 0;
    HotLines poll_lines_, ack_lines_, data_lines_, answer_lines_;
    std::unique_ptr<EndBlocks> source_blocks_, target_blocks_;
    SharedWindows<SourceEnd> windows_;
    RegionTable regions_;
    uint8_t region_byte_ = 0;
    uint32_t region_key_ = 0;
    Nscc shared_window_;  // of the targets, which send nothing
    wire::Packet data_, control_;
    std::vector<PathEvent> events_;
    uint32_t stretch_ = 0;
    DeadPorts dead_ports_;
};

}  // namespace farstep::sim
