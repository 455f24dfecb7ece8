// Two endpoints in memory with connections between them, for drivers that play network, clock and attacker.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "farstep/endpoint.hpp"

using namespace farstep;

inline uint64_t seed = 1;

inline void require(bool holds, const char* what, unsigned long long detail = 0) {
    if (holds) return;
    std::printf("FAILED: %s (%llu), seed %llu\n", what, detail, static_cast<unsigned long long>(seed));
    std::exit(1);
}

using Bytes = std::vector<uint8_t>;

inline Bytes seal(wire::Packet& p) {
    const size_t pad = wire::pad_bytes_for(p.payload_bytes);
    p.bth.pad_bytes = static_cast<uint8_t>(pad);
    uint8_t header[wire::kMaxHeaderBytes];
    const size_t n = wire::encode_header(p, header);
    Bytes out(header, header + n);
    if (p.payload_bytes) out.insert(out.end(), p.payload, p.payload + p.payload_bytes);
    out.resize(out.size() + pad + 4);
    const uint8_t zeros[4] = {};
    wire::store_le32(out.data() + out.size() - 4,
                     wire::icrc(wire::icrc_seed_plain(), header, n, p.payload, p.payload_bytes, zeros, pad));
    return out;
}

inline constexpr uint32_t kRegion_bytes = 1 << 18;

/// One endpoint with memory and its connections to the other.
struct Side {
    explicit Side(const EndpointConfig& c) : core(c), memory(kRegion_bytes, 7) {
        key = core.regions().add(memory.data(), memory.size(), true, 77);
        readable_key = core.regions().add(memory.data(), memory.size(), false, 78);
    }
    EndpointCore core;
    Bytes memory;
    uint32_t key = 0, readable_key = 0;
    std::vector<uint32_t> slots;
};

struct RigOptions {
    uint32_t max_connections = 8;
    uint32_t ports = 2;
    ConnectionConfig config;
    NsccConfig cc;
    RigOptions() {
        config.mtu_bytes = 256;
        config.mpr = config.peer_mpr = 1;
        config.send_queue = 64;
        config.immediate_queue = 16, config.wimm = 8;
        config.paths.active_per_plane = 4, config.paths.backup_per_plane = 2;
        cc.mtu_bytes = 256;
    }
};

/// Two endpoints whose datagrams reach each other as soon as pump() is called.
class Rig {
public:
    explicit Rig(const RigOptions& o) : options(o), a(endpoint(o, 0)), b(endpoint(o, 1)) {}

    void connect(uint64_t peer_id = 1) {
        ConnectionConfig ca = options.config, cb = options.config;
        const uint32_t i = a.core.reserve_connection(ca.qpn, ca.start_psn);
        const uint32_t k = b.core.reserve_connection(cb.qpn, cb.start_psn);
        require(i != EndpointCore::kNoConnection && k != EndpointCore::kNoConnection, "no room for a connection");
        ca.peer_qpn = cb.qpn, ca.peer_start_psn = cb.start_psn;
        cb.peer_qpn = ca.qpn, cb.peer_start_psn = ca.start_psn;
        open(a, i, ca, peer_id);
        open(b, k, cb, peer_id);
    }
    void restart() {
        for (Side* s : {&a, &b}) {
            for (uint32_t i : s->slots) s->core.close_connection(now, i);
            s->slots.clear();
        }
    }
    void open(Side& s, uint32_t slot, ConnectionConfig c, uint64_t peer_id) {
        c.num_ports = c.peer_num_ports = c.paths.num_planes = options.ports;
        PlaneLink links[kMaxPlanes];
        for (uint8_t p = 0; p < options.ports; ++p) links[p] = {p, p};
        Connection& made = s.core.open_connection(slot, peer_id, c, options.cc, links, options.ports);
        for (uint8_t p = 0; p < options.ports; ++p)
            for (uint16_t n = 0; n < c.paths.active_per_plane + c.paths.backup_per_plane; ++n)
                made.paths().add(p, {p, p, n, n}, n < c.paths.active_per_plane);
        s.core.start(now, slot);
        s.slots.push_back(slot);
    }
    bool post(Side& s, size_t n, uint32_t bytes, bool immediate) {
        Side& other = &s == &a ? b : a;
        WriteRequest w;
        if (bytes) {
            w.data = s.core.regions().pin(s.key, 0, bytes);
            if (!w.data) return false;
            w.local_key = s.key;
        }
        w.length_bytes = bytes, w.remote_key = other.key, w.has_immediate = immediate, w.immediate = 5;
        if (s.core.post(now, s.slots[n], w)) return true;
        if (bytes) s.core.regions().unpin(s.key);
        return false;
    }
    /// Datagrams `from` sends now; each is given to `keep` and delivered if that says so.
    template <class Keep>
    uint32_t pump(Side& from, Keep&& keep) {
        Side& to = &from == &a ? b : a;
        uint32_t bursts = 0;
        TxBurst burst;
        while (from.core.poll_transmit(now, burst)) {
            require(++bursts < 5000, "transmits without end", burst.segments[0].header[0]);
            for (uint32_t k = 0; k < burst.count; ++k) {
                const TxBurst::Segment& s = burst.segments[k];
                Bytes d(s.header, s.header + s.header_bytes);
                if (s.payload_bytes) d.insert(d.end(), s.payload, s.payload + s.payload_bytes);
                d.insert(d.end(), s.trailer, s.trailer + s.trailer_bytes);
                Arrival at;
                at.local_port = burst.remote_port;
                at.entropy = burst.ev_value;
                if (keep(d)) to.core.on_datagram(now, at, d.data(), d.size());
            }
        }
        return bursts;
    }
    void settle(uint32_t rounds = 50) {
        for (uint32_t n = 0; n < rounds; ++n) {
            now += 20'000;
            pump(a, [](const Bytes&) { return true; });
            pump(b, [](const Bytes&) { return true; });
        }
    }
    void let_time_act(Side& s) {
        for (uint32_t n = 0; s.core.poll_timeout(now) <= now; ++n) {
            require(n < 100, "timers fire without end");
            s.core.on_timeout(now);
            pump(s, [](const Bytes&) { return true; });
        }
    }

    RigOptions options;
    uint64_t now = 1'000'000'000;
    Side a, b;

private:
    static EndpointConfig endpoint(const RigOptions& o, uint64_t which) {
        EndpointConfig c;
        c.num_ports = o.ports, c.max_connections = o.max_connections, c.max_regions = 8, c.seed = 2 * seed + which;
        return c;
    }
};
