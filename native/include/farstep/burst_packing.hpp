// Packets into bursts: addresses, headers, padding and iCRC.
#pragma once

#include <cstdint>

#include "farstep/connection.hpp"
#include "farstep/wire.hpp"

namespace farstep {

class BurstPacker {
public:
    explicit BurstPacker(bool icrc) noexcept : icrc_(icrc) {}

    void pack_control(uint32_t connection, const Connection& c, wire::Packet& p, EvIndex ev, TxBurst& b) const noexcept {
        address(connection, c, ev, b);
        b.is_control = true;
        b.count = 1;
        p.payload_bytes = 0;
        seal(p, b.segments[0], icrc_ && !c.config().is_protected);
    }
    void pack_data(uint32_t connection, const Connection& c, EvIndex ev, const uint64_t* psns, uint32_t n,
                   TxBurst& b) noexcept {
        address(connection, c, ev, b);
        b.is_control = false;
        b.count = n;
        for (uint32_t k = 0; k < n; ++k) {
            packet_.bth = {};
            c.sender().describe(psns[k], packet_);
            packet_.bth.dest_qpn = c.config().peer_qpn;
            seal(packet_, b.segments[k], icrc_ && !c.config().is_protected);
        }
    }

private:
    static void address(uint32_t connection, const Connection& c, EvIndex ev, TxBurst& b) noexcept {
        const EvValue& v = c.paths().value(ev);
        b.connection = connection;
        b.local_port = v.local_port;
        b.remote_port = v.remote_port;
        b.source = v.source;
        b.ev_value = v.value;
    }
    static void seal(wire::Packet& p, TxBurst::Segment& s, bool icrc) noexcept {
        const uint32_t pad = static_cast<uint32_t>(wire::pad_bytes_for(p.payload_bytes));
        p.bth.pad_bytes = static_cast<uint8_t>(pad);
        s.header_bytes = static_cast<uint32_t>(wire::encode_header(p, s.header));
        s.payload = p.payload;
        s.payload_bytes = p.payload_bytes;
        for (uint32_t k = 0; k < pad; ++k) s.trailer[k] = 0;
        const uint32_t crc = icrc ? wire::icrc(wire::icrc_seed_plain(), s.header, s.header_bytes, s.payload,
                                               s.payload_bytes, s.trailer, pad)
                                  : 0;
        wire::store_le32(s.trailer + pad, crc);
        s.trailer_bytes = pad + static_cast<uint32_t>(wire::kIcrcBytes);
    }

    bool icrc_;
    wire::Packet packet_;
};

}  // namespace farstep
