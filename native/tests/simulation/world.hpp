// Endpoints, connections and an application on a simulated network. The shipped core is stepped event by event and
// judged after each: see flow.hpp for packets and memory, World::check_* for windows, accounting and timers.
#pragma once

#include <functional>
#include <memory>

#include "farstep/endpoint.hpp"
#include "flow.hpp"

namespace farstep::sim {

struct Host {
    std::unique_ptr<EndpointCore> core;
    std::unique_ptr<Arena> arena;
    std::vector<uint32_t> flows;  // that start here
    struct Key {
        uint32_t key;
        uint8_t* base;
        uint64_t bytes;
    };
    std::vector<Key> keys;
    uint64_t wake_ns = kNever, stalled_until_ns = 0;
    bool vanished = false;
    uint32_t spins = 0;
    uint64_t spin_ns = 0;
};

struct ConnectOptions {
    ConnectionConfig config;
    ConnectionConfig peer_config;  // of the second endpoint
    NsccConfig cc;
    std::vector<PlaneLink> links;  // seen from the first endpoint
    uint32_t slice_bytes = 1 << 20;
};

class World {
public:
    World(uint64_t seed, uint32_t num_endpoints) : network(seed, num_endpoints), rng_(seed ^ 0xA5A5), hosts_(num_endpoints) {}

    Network network;
    uint64_t stall_bound_ns = kNever;   // no progress for this long while the network is healthy
    uint64_t healthy_since_ns = 0;
    bool expect_equal_planes = false;   // nothing in the plan takes paths away
    std::function<void(Flow&, uint32_t)> on_placed;  // (flow, bytes)

    uint64_t now() const { return network.now(); }
    Host& host(uint32_t e) { return hosts_[e]; }
    EndpointCore& core(uint32_t e) { return *hosts_[e].core; }
    Flow& flow(uint32_t f) { return flows_[f]; }
    std::deque<Flow>& flows() { return flows_; }
    Connection* connection(const Flow& f) { return f.closed ? nullptr : core(f.from).connection(f.from_slot); }
    Connection* receiver(const Flow& f) { return connection(flows_[f.reverse]); }

    void add_endpoint(uint32_t e, const EndpointConfig& c, size_t arena_bytes) {
        hosts_[e].core = std::make_unique<EndpointCore>(c);
        hosts_[e].arena = std::make_unique<Arena>(arena_bytes, c.seed);
    }

    /// Returns the flow from `a` to `b`; the one back is the next.
    uint32_t connect(uint32_t a, uint32_t b, const ConnectOptions& o) {
        const uint32_t id = static_cast<uint32_t>(flows_.size());
        ConnectionConfig ca = o.config, cb = o.peer_config;
        const uint32_t forced_a = ca.start_psn, forced_b = cb.start_psn;
        const uint32_t sa = core(a).reserve_connection(ca.qpn, ca.start_psn);
        const uint32_t sb = core(b).reserve_connection(cb.qpn, cb.start_psn);
        SIM_CHECK(sa != EndpointCore::kNoConnection && sb != EndpointCore::kNoConnection, "no connection slot");
        if (forced_a) ca.start_psn = forced_a;
        if (forced_b) cb.start_psn = forced_b;
        ca.peer_qpn = cb.qpn, ca.peer_start_psn = cb.start_psn;
        cb.peer_qpn = ca.qpn, cb.peer_start_psn = ca.start_psn;
        make_flow(id, a, b, sa, sb, ca, o.slice_bytes);
        make_flow(id + 1, b, a, sb, sa, cb, o.slice_bytes);
        std::vector<PlaneLink> back = o.links;
        for (PlaneLink& l : back) std::swap(l.local_port, l.remote_port);
        open(a, sa, b, ca, o.cc, o.links);
        open(b, sb, a, cb, o.cc, back);
        return id;
    }

    void at(uint64_t when_ns, std::function<void()> action) {
        actions_.push_back(std::move(action));
        network.schedule(when_ns, EventKind::Act, static_cast<uint32_t>(actions_.size() - 1));
    }

    /// Posts the next planned message. False when the queue or the slices are full, or the connection is over.
    bool post_next(Flow& f) {
        Connection* c = connection(f);
        if (f.plan.empty() || !c || !c->is_open() || f.failed) return false;
        const PlannedMessage planned = f.plan.front();
        uint32_t at = 0;
        if (c->sender().queue().is_full()) {
            SIM_CHECK(!core(f.from).post(now(), f.from_slot, WriteRequest{}), "a full queue took a message");
            return false;
        }
        if (!f.reserve(planned.bytes, at)) return false;
        f.plan.pop_front();
        PostedMessage m;
        m.at = at, m.bytes = planned.bytes, m.has_immediate = planned.has_immediate;
        m.immediate = static_cast<uint32_t>(rng_.next());
        m.first_psn = f.next_psn;
        m.packets = planned.bytes ? (planned.bytes - 1) / f.config.mtu_bytes + 1 : 1;
        f.tail = at + planned.bytes;
        f.next_psn += m.packets;
        f.placed.resize(f.placed.size() + m.packets);
        if (m.has_immediate) f.immediate_messages.push_back(static_cast<uint32_t>(f.messages.size()));
        f.messages.push_back(m);
        write_content(f, m);
        WriteRequest w;
        w.data = core(f.from).regions().pin(f.source_key, at, planned.bytes);
        SIM_CHECK(w.data == f.source + at, "pin");
        w.length_bytes = planned.bytes, w.local_key = f.source_key;
        w.remote_offset = at, w.remote_key = f.target_key;
        w.has_immediate = m.has_immediate, w.immediate = m.immediate;
        SIM_CHECK(core(f.from).post(now(), f.from_slot, w), "post refused although the queue has room");
        return true;
    }

    void abort(Flow& f) {
        f.may_fail = flows_[f.reverse].may_fail = true;
        core(f.from).abort_connection(now(), f.from_slot, ConnectionError::LocalAborted);
        after(f.from);
    }
    void close(Flow& f) {
        f.may_fail = flows_[f.reverse].may_fail = true;
        core(f.from).say_closed(now(), f.from_slot);
        after(f.from);
        core(f.from).close_connection(now(), f.from_slot);
        f.closed = true;
        give_up(f, ConnectionError::LocalAborted);
        after(f.from);
    }
    void vanish(uint32_t e) {
        hosts_[e].vanished = true;
        for (Flow& f : flows_)
            if (f.from == e || f.to == e) f.may_fail = true;
        for (uint32_t id : hosts_[e].flows) give_up(flows_[id], ConnectionError::LocalAborted);
    }
    void set_port(uint32_t e, uint32_t port, bool up) {
        core(e).set_local_port(now(), port, up);
        after(e);
    }
    void stall(uint32_t e, uint64_t ns) { hosts_[e].stalled_until_ns = now() + ns; }

    /// Runs until `done()` or until nothing at or before `until_ns` is left. True if done.
    template <class Done>
    bool run(uint64_t until_ns, Done&& done) {
        while (!done()) {
            if (network.next_ns() > until_ns) return false;
            Event e;
            network.next(e);
            step(e);
            if ((network.counters().events & 0x3FF) == 0) check_memory();
        }
        return true;
    }
    void run(uint64_t until_ns) {
        run(until_ns, [] { return false; });
    }
    /// Everything that can still be delivered has been, completed and consumed.
    bool is_done() {
        for (const Flow& f : flows_) {
            const Flow& r = flows_[f.reverse];
            if (f.may_fail || r.may_fail) {
                // Every part of a broken connection learns of it, unless it waits for a peer that never showed up.
                const Connection* c = connection(f);
                if (!f.failed && (c->has_heard_peer() || c->sender().queue().outstanding() || !f.plan.empty())) return false;
                continue;
            }
            if (!f.is_done()) return false;
        }
        return true;
    }
    void check_memory() {
        for (Host& h : hosts_) SIM_CHECK(h.arena->intact(), "memory outside every expected write changed");
    }
    /// After everything is done and quiet: nothing may be left in any account.
    void check_idle() {
        for (Flow& f : flows_) {
            Connection* c = connection(f);
            if (!c || hosts_[f.from].vanished) continue;
            SIM_CHECK(c->sender().inflight_bytes() == 0, "flow %u: %lld bytes in flight at idle", f.id,
                      static_cast<long long>(c->sender().inflight_bytes()));
            SIM_CHECK(c->sender().queue().outstanding() == 0, "flow %u: messages outstanding at idle", f.id);
            SIM_CHECK(core(f.from).destination(f.from_slot)->cc.inflight_bytes() == 0, "flow %u: congestion context at idle", f.id);
            for (uint32_t p = 0; p < c->num_planes() && c->is_open(); ++p)
                SIM_CHECK(c->paths().plane_inflight(static_cast<uint8_t>(p)) == 0, "flow %u: plane %u in flight at idle", f.id, p);
            SIM_CHECK(!core(f.from).regions().is_busy(f.source_key), "flow %u: region still pinned at idle", f.id);
        }
        check_memory();
    }

    /// The application and the timers of endpoint `e` get their turn, then everything is checked.
    void after(uint32_t e) {
        Host& h = hosts_[e];
        if (h.vanished) return;
        for (uint32_t id : h.flows) consume(flows_[flows_[id].reverse]);
        for (uint32_t id : h.flows) feed(flows_[id]);
        pump(e);
        for (uint32_t id : h.flows) {
            check_connection(flows_[id]);
            feed(flows_[id]);
        }
        pump(e);
        check_accounts(e);
        wake_later(e);
    }

private:
    void make_flow(uint32_t id, uint32_t from, uint32_t to, uint32_t from_slot, uint32_t to_slot, const ConnectionConfig& c,
                   uint32_t slice_bytes) {
        Flow& f = flows_.emplace_back();
        f.id = id, f.reverse = id ^ 1, f.from = from, f.to = to, f.from_slot = from_slot, f.to_slot = to_slot;
        f.config = c, f.slice_bytes = slice_bytes;
        f.start_psn = f.next_psn = (1ull << 24) + c.start_psn;
        f.source = hosts_[from].arena->slice(slice_bytes);
        f.target = hosts_[to].arena->slice(slice_bytes);
        f.source_key = add_region(from, f.source, slice_bytes, /*writable=*/false);
        f.target_key = add_region(to, f.target, slice_bytes, true);
        for (uint32_t k = 0; k < c.num_ports; ++k)
            if (core(from).config().port_rate_bytes_per_s[k] > 0) f.has_port_pace = true;
        hosts_[from].flows.push_back(id);
    }
    uint32_t add_region(uint32_t e, uint8_t* base, uint64_t bytes, bool writable) {
        const uint32_t key = core(e).regions().add(base, bytes, writable, static_cast<uint16_t>(rng_.next()));
        SIM_CHECK(key != 0, "no region slot");
        hosts_[e].keys.push_back({key, base, bytes});
        return key;
    }
    void open(uint32_t e, uint32_t slot, uint32_t peer, const ConnectionConfig& c, const NsccConfig& cc,
              const std::vector<PlaneLink>& links) {
        Connection& made = core(e).open_connection(slot, peer + 1, c, cc, links.data(), static_cast<uint32_t>(links.size()));
        for (uint8_t p = 0; p < links.size(); ++p)
            for (uint32_t s = 0; s < c.paths.active_per_plane + c.paths.backup_per_plane; ++s)
                made.paths().add(p, {links[p].local_port, links[p].remote_port, static_cast<uint16_t>(s), made.paths().size()},
                                 s < c.paths.active_per_plane);
        core(e).start(now(), slot);
    }
    // The target starts out with every byte wrong, so that a write always shows.
    void write_content(Flow& f, const PostedMessage& m) {
        Arena& from = *hosts_[f.from].arena;
        Arena& to = *hosts_[f.to].arena;
        const uint64_t key = rng_.next();
        const CounterRng content(key);
        uint64_t word = 0;
        from.fill(f.source + m.at, m.bytes, [&](size_t i) {
            if (i % 8 == 0) word = content.at(i);
            return word >> (i % 8 * 8);
        });
        const uint8_t* source = f.source + m.at;
        to.fill(f.target + m.at, m.bytes, [source](size_t i) { return ~source[i]; });
    }

    void step(const Event& e) {
        if (e.kind == EventKind::Act) return actions_[e.index]();
        if (e.kind == EventKind::Wake) {
            Host& h = hosts_[e.index];
            if (h.wake_ns != e.at_ns || h.vanished) return;
            h.wake_ns = kNever;
            if (h.stalled_until_ns > now()) return wake_at(e.index, h.stalled_until_ns);
            count_spin(h);
            h.core->on_timeout(now());
            return after(e.index);
        }
        const Datagram& d = network.datagram(e.index);
        Host& h = hosts_[d.to];
        if (h.vanished) return network.release(e.index);
        if (h.stalled_until_ns > now()) return network.schedule(h.stalled_until_ns, EventKind::Deliver, e.index);
        deliver(e.index);
    }
    void count_spin(Host& h) {
        h.spins = h.spin_ns == now() ? h.spins + 1 : 0;
        h.spin_ns = now();
        SIM_CHECK(h.spins < 64, "timers fire without end at %llu ns", static_cast<unsigned long long>(now()));
    }

    void deliver(uint32_t index) {
        network.on_delivered(network.datagram(index));
        const uint32_t e = network.datagram(index).to;
        {
            const Datagram& d = network.datagram(index);
            Host& h = hosts_[e];
            Flow* f = d.flow == kNoFlow ? nullptr : &flows_[d.flow];
            wire::Packet p;
            const bool data = wire::decode(d.bytes.data(), d.bytes.size(), p) == wire::DecodeResult::Ok &&
                              wire::is_data(p.bth.opcode);
            const uint64_t before = f && !d.damaged ? received_packets(*f) : all_received(e);
            h.core->on_datagram(now(), d.arrival, d.bytes.data(), d.bytes.size());
            const bool accepted = (f && !d.damaged ? received_packets(*f) : all_received(e)) != before;
            SIM_CHECK(data || !accepted, "something that is no data was accepted");
            if (data) judge(h, f, d, p, accepted);
        }
        network.release(index);
        after(e);
    }
    void judge(Host& h, Flow* f, const Datagram& d, const wire::Packet& p, bool accepted) {
        for (const Host::Key& k : h.keys) {
            if (k.key != p.reth.rkey || p.reth.va > k.bytes || p.payload_bytes > k.bytes - p.reth.va) continue;
            const uint32_t bytes = check_placement(f, *h.arena, d, p, k.base + p.reth.va, accepted);
            if (!accepted) return;
            f->placed_bytes += bytes;
            f->last_placed_ns = last_progress_ns_ = now();
            if (on_placed) on_placed(*f, bytes);
            return;
        }
        SIM_CHECK(!accepted, "a packet for no region was accepted");
    }
    uint64_t received_packets(const Flow& f) {
        Connection* c = receiver(f);
        return c ? c->receiver().counters().packets : 0;
    }
    uint64_t all_received(uint32_t e) {
        uint64_t n = 0;
        for (uint32_t id : hosts_[e].flows) n += received_packets(flows_[flows_[id].reverse]);
        return n;
    }

    void pump(uint32_t e) {
        EndpointCore& c = core(e);
        uint32_t bursts = 0;
        while (c.poll_transmit(now(), burst_)) {
            SIM_CHECK(++bursts < 200000, "endpoint %u transmits without end: control %d, opcode %02x", e, burst_.is_control, burst_.segments[0].header[0]);
            send(e, burst_);
        }
    }
    void send(uint32_t e, const TxBurst& b) {
        Flow* f = nullptr;
        for (uint32_t id : hosts_[e].flows)
            if (flows_[id].from_slot == b.connection && !flows_[id].closed) f = &flows_[id];
        SIM_CHECK(f, "a burst of a connection that does not exist");
        const Connection& c = *connection(*f);
        SIM_CHECK(c.paths().state(static_cast<EvIndex>(b.ev_value)) != EvState::Denied, "flow %u: a denied entropy value is used", f->id);
        if (!b.is_control) {
            check_burst(*f, b, c, receiver(*f));
            const auto& cc = core(e).destination(f->from_slot)->cc;
            SIM_CHECK(b.count == 1 || cc.inflight_bytes() <= static_cast<int64_t>(cc.cwnd_bytes()), "flow %u: window exceeded", f->id);
        }
        for (uint32_t k = 0; k < b.count; ++k) {
            const uint32_t i = network.make();
            Datagram& d = network.datagram(i);
            const TxBurst::Segment& s = b.segments[k];
            d.bytes.resize(s.bytes());
            std::memcpy(d.bytes.data(), s.header, s.header_bytes);
            if (s.payload_bytes) std::memcpy(d.bytes.data() + s.header_bytes, s.payload, s.payload_bytes);
            std::memcpy(d.bytes.data() + s.header_bytes + s.payload_bytes, s.trailer, s.trailer_bytes);
            d.arrival = {b.remote_port, false, 0, b.source};
            d.from = e, d.to = f->to;
            d.flow = b.is_control ? kNoFlow : f->id;
            if (!b.is_control) d.psn = expand24(wire::load_be24(s.header + 9), c.sender().next_psn());
            network.carry(i, b.local_port);
        }
    }

    void wake_later(uint32_t e) {
        const uint64_t t = core(e).poll_timeout(now());
        if (t != kNever && t < hosts_[e].wake_ns) wake_at(e, t);
    }
    void wake_at(uint32_t e, uint64_t t) {
        hosts_[e].wake_ns = t;
        network.schedule(t, EventKind::Wake, e);
    }

    // ---- application -------------------------------------------------------------------------------------------------

    void feed(Flow& f) {
        while (f.feeds && post_next(f)) {}
    }
    /// Takes immediates of `f` at its receiving end.
    void consume(Flow& f) {
        Connection* c = receiver(f);
        if (!c) return;
        check_received(f, *c);
        if (f.consume_every_ns) {
            if (!f.consume_scheduled && c->receiver().immediates_ready()) schedule_consume(f);
            return;
        }
        while (pop(f)) {}
    }
    bool pop(Flow& f) {
        uint32_t value = 0;
        bool must_transmit = false;
        if (!core(f.to).pop_immediate(now(), f.to_slot, value, must_transmit)) return false;
        check_immediate(f, value);
        last_progress_ns_ = now();
        return true;
    }
    void schedule_consume(Flow& f) {
        f.consume_scheduled = true;
        at(now() + f.consume_every_ns, [this, &f] {
            f.consume_scheduled = false;
            if (!receiver(f) || hosts_[f.to].vanished) return;
            pop(f);
            after(f.to);
        });
    }
    void give_up(Flow& f, ConnectionError why) {
        if (f.failed) return;
        f.failed = true;
        f.error = why;
        f.failed_ns = now();
        last_progress_ns_ = now();
        // Memory of what will never complete belongs to the application again: the core must not read it any more.
        for (uint64_t k = f.completed; k < f.messages.size(); ++k)
            hosts_[f.from].arena->invert(f.source + f.messages[k].at, f.messages[k].bytes);
    }

    // ---- checks --------------------------------------------------------------------------------------------------------

    void check_connection(Flow& f) {
        Connection* c = connection(f);
        if (!c) return;
        const uint64_t before = f.completed;
        if (c->is_open()) check_completions(f, *c);
        if (f.completed != before) {
            last_progress_ns_ = now();
            for (uint64_t k = before; k < f.completed; ++k)
                hosts_[f.from].arena->invert(f.source + f.messages[k].at, f.messages[k].bytes);
        }
        if (!c->is_open()) {
            SIM_CHECK(f.may_fail, "flow %u: connection failed: %s", f.id, name(c->error()));
            give_up(f, c->error());
            return;
        }
        check_round_trip(f, *c);
        int64_t in_planes = 0;
        for (uint32_t p = 0; p < c->num_planes(); ++p) {
            in_planes += c->paths().plane_inflight(static_cast<uint8_t>(p));
            if (expect_equal_planes)
                SIM_CHECK(c->paths().active_count(static_cast<uint8_t>(p)) == f.config.paths.active_per_plane,
                          "flow %u: plane %u has %u active entropy values on a healthy network", f.id, p,
                          c->paths().active_count(static_cast<uint8_t>(p)));
        }
        SIM_CHECK(in_planes == c->sender().inflight_bytes(), "flow %u: planes hold %lld bytes, the sender %lld", f.id,
                  static_cast<long long>(in_planes), static_cast<long long>(c->sender().inflight_bytes()));
    }
    // A sample taken from the wrong transmission, or from an answer to an older packet, is longer or shorter than
    // anything this network did.
    void check_round_trip(const Flow& f, const Connection& c) {
        const uint64_t srtt = c.sender().round_trip().srtt_ns;
        if (srtt == 0) return;
        const uint64_t most = network.max_transit(f.from, f.to) + network.max_transit(f.to, f.from);
        const uint64_t least = network.min_transit(f.from, f.to) + network.min_transit(f.to, f.from);
        SIM_CHECK(srtt <= most + 8, "flow %u: smoothed round trip %llu ns, the longest possible one took %llu", f.id,
                  static_cast<unsigned long long>(srtt), static_cast<unsigned long long>(most));
        SIM_CHECK(srtt + 8 >= least, "flow %u: smoothed round trip %llu ns, the shortest possible one took %llu", f.id,
                  static_cast<unsigned long long>(srtt), static_cast<unsigned long long>(least));
    }
    void check_accounts(uint32_t e) {
        const std::vector<uint32_t>& ids = hosts_[e].flows;
        for (size_t k = 0; k < ids.size(); ++k) {
            const Flow& f = flows_[ids[k]];
            if (f.closed) continue;
            const Destination* d = core(e).destination(f.from_slot);
            const Nscc& cc = d->cc;
            SIM_CHECK(cc.cwnd_bytes() >= cc.min_cwnd_bytes() && cc.cwnd_bytes() <= cc.max_cwnd_bytes(),
                      "flow %u: window %llu outside [%llu, %llu]", f.id, static_cast<unsigned long long>(cc.cwnd_bytes()),
                      static_cast<unsigned long long>(cc.min_cwnd_bytes()), static_cast<unsigned long long>(cc.max_cwnd_bytes()));
            int64_t sum = 0;
            for (uint32_t id : ids)
                if (!flows_[id].closed && core(e).destination(flows_[id].from_slot) == d)
                    sum += connection(flows_[id])->sender().inflight_bytes();
            SIM_CHECK(sum == cc.inflight_bytes(), "flow %u: connections hold %lld bytes, the congestion context %lld", f.id,
                      static_cast<long long>(sum), static_cast<long long>(cc.inflight_bytes()));
        }
        check_stall();
    }
    void check_stall() {
        const uint64_t since = std::max(last_progress_ns_, healthy_since_ns);
        if (stall_bound_ns == kNever || now() < since || now() - since <= stall_bound_ns || is_done()) return;
        throw Violation{describe_stall()};
    }

public:
    std::string describe_stall() {
        std::string text = "no progress since " + std::to_string(last_progress_ns_) + " ns, now " + std::to_string(now());
        for (Flow& f : flows_) {
            Connection* c = connection(f);
            if (!c || f.is_done()) continue;
            const Sender& s = c->sender();
            const Nscc& cc = core(f.from).destination(f.from_slot)->cc;
            text += "\n  flow " + std::to_string(f.id) + ": posted " + std::to_string(f.messages.size()) + " planned " +
                    std::to_string(f.plan.size()) + " completed " + std::to_string(f.completed) + " immediates " +
                    std::to_string(f.popped) + "/" + std::to_string(f.immediate_messages.size()) + " una " +
                    std::to_string(s.una() - f.start_psn) + " next " + std::to_string(s.next_psn() - f.start_psn) +
                    " inflight " + std::to_string(s.inflight_bytes()) + " cwnd " + std::to_string(cc.cwnd_bytes()) +
                    " retries " + std::to_string(s.retries()) + " rto " + std::to_string(s.rto_ns()) + " deadline " +
                    std::to_string(c->next_timeout_ns()) + " error " + name(c->error());
        }
        return text;
    }
    uint64_t last_progress_ns() const { return last_progress_ns_; }

private:
    CounterRng rng_;
    std::vector<Host> hosts_;
    std::deque<Flow> flows_;
    std::deque<std::function<void()>> actions_;
    TxBurst burst_;
    uint64_t last_progress_ns_ = 0;
};

}  // namespace farstep::sim
