// Datagrams no correct peer sends: noise, and well-formed packets with values that are wrong in one way each.
#pragma once

#include "world.hpp"

namespace farstep::sim {

class Forger {
public:
    Forger(World& world, uint64_t seed) : world_(world), rng_(seed) {}

    /// One datagram that reaches the sending end of a random flow now.
    void strike() {
        Flow& f = world_.flow(rng_.below(static_cast<uint32_t>(world_.flows().size())));
        const uint32_t i = world_.network.make();
        Datagram& d = world_.network.datagram(i);
        d.from = f.to, d.to = f.from;
        d.arrival = {};
        d.arrival.local_port = static_cast<uint8_t>(rng_.below(f.config.num_ports));
        d.arrival.entropy = rng_.below(1u << 16);
        d.arrival.ecn_ce = rng_.below(2);
        if (rng_.below(8) == 0) d.arrival.trimmed = static_cast<uint8_t>(1 + rng_.below(2));
        Connection* c = world_.connection(f);
        // What misses the window now may fit when a stalled host looks at it.
        const bool stalled = world_.host(f.from).stalled_until_ns > world_.now();
        if (!c || stalled || rng_.below(4) == 0) noise(d);
        else packet(d, f, *c);
        world_.network.inject(i, world_.now());
    }

private:
    void noise(Datagram& d) {
        d.bytes.resize(rng_.below(rng_.below(4) ? 80 : 2000));
        for (uint8_t& b : d.bytes) b = static_cast<uint8_t>(rng_.next());
        static constexpr uint8_t kOpcodes[] = {0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE};
        if (!d.bytes.empty() && rng_.below(2)) d.bytes[0] = kOpcodes[rng_.below(12)];
    }

    void packet(Datagram& d, const Flow& f, Connection& c) {
        wire::Packet p;
        p.bth.dest_qpn = rng_.below(5) ? f.config.qpn : rng_.below(1u << 24);
        uint8_t body[256] = {};
        const Flow& in = world_.flow(f.reverse);  // what the attacked connection receives
        switch (rng_.below(7)) {
            case 0: data(p, in, c, body); break;
            case 1: sack(p, c); break;
            case 2:
                p.bth.opcode = wire::Opcode::Ack;
                p.aeth.msn = rng_.below(2) ? rng_.below(1u << 24) : static_cast<uint32_t>(f.messages.size());
                break;
            case 3: nack(p, c); break;
            case 4:
                p.bth.opcode = wire::Opcode::Probe;
                p.peth.probe_id = static_cast<uint16_t>(rng_.next());
                p.peth.timestamp = static_cast<uint16_t>(rng_.next());
                break;
            case 5:
                p.bth.opcode = wire::Opcode::EndpointRequest;
                p.bth.dest_qpn = wire::kEndpointQpn;
                p.bth.psn = rng_.below(1u << 16);
                p.erth.op = static_cast<wire::EndpointOp>(rng_.below(2));
                p.erth.port_status_mask = static_cast<uint32_t>(rng_.next());
                p.erth.context = wrong_context();
                break;
            default:
                p.bth.opcode = wire::Opcode::EndpointResponse;
                p.bth.dest_qpn = wire::kEndpointQpn;
                p.bth.psn = rng_.below(1u << 16);
                p.eeth.context = wrong_context();
        }
        seal(d, p);
    }
    uint32_t wrong_context() {
        for (;;) {
            const uint32_t context = static_cast<uint32_t>(rng_.next());
            bool taken = false;
            for (const Flow& f : world_.flows()) taken = taken || f.config.qpn == context;
            if (!taken) return context;
        }
    }
    // Never a packet that would fit: that one could not be told from a true one.
    void data(wire::Packet& p, const Flow& in, Connection& c, const uint8_t* body) {
        p.bth.opcode = rng_.below(2) ? wire::Opcode::WriteMiddle : wire::Opcode::WriteOnlyImm;
        p.bth.has_timestamp = true;
        p.tseth.timestamp = static_cast<uint16_t>(rng_.next());
        const bool full = p.bth.opcode == wire::Opcode::WriteMiddle && in.config.mtu_bytes <= 256;
        p.payload = body;
        p.payload_bytes = full ? in.config.mtu_bytes : 1 + rng_.below(200);
        p.reth = {rng_.below(2) ? rng_.next() : rng_.below(in.slice_bytes), in.target_key, p.payload_bytes};
        const uint64_t expected = c.receiver().expected_psn();
        const uint32_t window = in.config.peer_mpr * kMprUnit_packets;
        const uint32_t reserve = std::max(window, 1u << 20);
        switch (rng_.below(4)) {
            case 0:  // already had
                p.bth.psn = static_cast<uint32_t>(expected - 1 - rng_.below(reserve)) & wire::kPsnMask;
                break;
            case 1:  // just beyond the window, or far
                p.bth.psn = static_cast<uint32_t>(expected + window + rng_.below(2) * rng_.below(reserve)) & wire::kPsnMask;
                break;
            case 2:  // in the window, for memory it may not write
                p.bth.psn = static_cast<uint32_t>(expected + rng_.below(window)) & wire::kPsnMask;
                p.reth.rkey = rng_.below(2) ? world_.flow(in.reverse).source_key : static_cast<uint32_t>(rng_.next()) | 0xFFF00000u;
                break;
            default:  // in the window, over the end of the region
                p.bth.psn = static_cast<uint32_t>(expected + rng_.below(window)) & wire::kPsnMask;
                p.reth.va = rng_.below(2) ? in.slice_bytes - p.payload_bytes + 1 : rng_.next() | 1ull << 63;
        }
    }
    // Says nothing new: acknowledges what was acknowledged, or what was never sent.
    void sack(wire::Packet& p, const Connection& c) {
        p.bth.opcode = wire::Opcode::Sack;
        p.bth.rtx = rng_.below(2);
        p.seth.mark = static_cast<wire::SackMark>(rng_.below(2));
        p.seth.probe_reply = rng_.below(2);
        p.seth.ack_psn_offset = static_cast<int16_t>(rng_.next());
        p.seth.entropy = static_cast<uint32_t>(rng_.next());
        p.cc.timestamp = static_cast<uint16_t>(rng_.next());
        p.cc.ooo_count = rng_.below(1u << 15);
        p.cc.rcvd_units = rng_.below(1u << 24);
        p.seth.mpr = static_cast<uint8_t>(rng_.next());
        if (rng_.below(2)) {
            const uint32_t back = 1 + rng_.below(5000);
            p.seth.cack_psn = static_cast<uint32_t>(c.sender().una() - back) & wire::kPsnMask;
            p.seth.sack_offset = static_cast<int16_t>(rng_.next());
            if (p.seth.sack_offset > static_cast<int32_t>(back) - 64) p.seth.sack_offset = -1000;
            p.seth.bitmap = rng_.next();
        } else {
            p.seth.cack_psn = static_cast<uint32_t>(c.sender().next_psn() + rng_.below(1u << 22)) & wire::kPsnMask;
            p.seth.sack_offset = static_cast<int16_t>(rng_.next());
            p.seth.bitmap = rng_.next();
        }
    }
    void nack(wire::Packet& p, const Connection& c) {
        static constexpr wire::NackReason kReasons[] = {
            wire::NackReason::Trimmed,    wire::NackReason::TrimmedLastHop, wire::NackReason::NoBitmap,
            wire::NackReason::NoResource, wire::NackReason::PsnOutOfWindow, wire::NackReason::UnexpectedEvent,
        };
        p.bth.opcode = wire::Opcode::Nack;
        p.neth.reason = kReasons[rng_.below(6)];
        p.neth.vendor = static_cast<uint8_t>(rng_.below(4));
        p.neth.entropy = static_cast<uint32_t>(rng_.next());
        p.neth.timestamp = static_cast<uint16_t>(rng_.next());
        // One in a window cannot be told from a true one only if the 16-bit timestamp fits too.
        p.neth.nack_psn = static_cast<uint32_t>(c.sender().una() - 1 - rng_.below(1u << 22)) & wire::kPsnMask;
        if (p.neth.reason != wire::NackReason::UnexpectedEvent && rng_.below(2))
            p.neth.nack_psn = static_cast<uint32_t>(c.sender().una() + rng_.below(64)) & wire::kPsnMask;
    }
    void seal(Datagram& d, wire::Packet& p) {
        const size_t pad = wire::pad_bytes_for(p.payload_bytes);
        p.bth.pad_bytes = static_cast<uint8_t>(pad);
        uint8_t header[wire::kMaxHeaderBytes];
        const size_t n = wire::encode_header(p, header);
        d.bytes.assign(header, header + n);
        d.bytes.insert(d.bytes.end(), p.payload, p.payload + p.payload_bytes);
        d.bytes.resize(d.bytes.size() + pad);
        const uint8_t zeros[4] = {};
        uint8_t crc[4];
        wire::store_le32(crc, wire::icrc(wire::icrc_seed_plain(), header, n, p.payload, p.payload_bytes, zeros, pad));
        d.bytes.insert(d.bytes.end(), crc, crc + 4);
        if (rng_.below(16) == 0) d.bytes.resize(rng_.below(static_cast<uint32_t>(d.bytes.size()) + 1));
    }

    World& world_;
    CounterRng rng_;
};

}  // namespace farstep::sim
