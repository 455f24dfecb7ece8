// Answers and probes of MRC as the simulated fabric carries them: the fields of their headers, without the bytes.
#pragma once

#include <cstdint>

#include "farstep/entropy.hpp"
#include "farstep/packet.hpp"
#include "farstep/sim/packet.hpp"

namespace farstep::sim::mrc {

enum Kind : uint8_t { kSack, kNack, kAck, kProbe };

struct SackBody {
    uint64_t bitmap;
    uint32_t cack_psn, rcvd_units;
    int16_t ack_psn_offset, sack_offset;
    uint16_t timestamp, ooo_count, entropy;
    uint8_t mpr, mark, penalty;
    bool probe_reply, rtx, restore;
};
struct NackBody {
    uint32_t psn;
    uint16_t timestamp, entropy;
    uint8_t reason, vendor;
};
struct ProbeBody {
    uint16_t id, timestamp;
};

inline Control make_control(uint32_t c, const wire::Packet& p, EvIndex ev, uint8_t plane, bool to_source) noexcept {
    Control out;
    out.port = plane;
    out.connection = c;
    out.to_source = to_source;
    out.path = ev;
    switch (p.bth.opcode) {
        case wire::Opcode::Sack:
            out.kind = kSack;
            out.put(SackBody{p.seth.bitmap, p.seth.cack_psn, p.cc.rcvd_units, p.seth.ack_psn_offset, p.seth.sack_offset,
                             p.cc.timestamp, p.cc.ooo_count, static_cast<uint16_t>(p.seth.entropy), p.seth.mpr,
                             static_cast<uint8_t>(p.seth.mark), p.cc.rcv_cwnd_pen, p.seth.probe_reply, p.bth.rtx,
                             p.cc.restore_cwnd});
            break;
        case wire::Opcode::Nack:
            out.kind = kNack;
            out.put(NackBody{p.neth.nack_psn, p.neth.timestamp, static_cast<uint16_t>(p.neth.entropy),
                             static_cast<uint8_t>(p.neth.reason), p.neth.vendor});
            break;
        case wire::Opcode::Ack:
            out.kind = kAck;
            out.put(p.aeth.msn);
            break;
        default:
            out.kind = kProbe;
            out.put(ProbeBody{p.peth.probe_id, p.peth.timestamp});
            break;
    }
    return out;
}
inline void read_sack(const SackBody& b, wire::Packet& p) noexcept {
    p.bth.opcode = wire::Opcode::Sack;
    p.bth.rtx = b.rtx;
    p.seth = {static_cast<wire::SackMark>(b.mark), b.probe_reply, b.ack_psn_offset, b.entropy, b.cack_psn, 0, 0, b.mpr,
              b.sack_offset, b.bitmap};
    p.cc = {b.timestamp, b.ooo_count, b.restore, b.penalty, b.rcvd_units};
}
inline void read_nack(const NackBody& b, wire::Packet& p) noexcept {
    p.bth.opcode = wire::Opcode::Nack;
    p.neth = {};
    p.neth.reason = static_cast<wire::NackReason>(b.reason);
    p.neth.vendor = b.vendor;
    p.neth.entropy = b.entropy;
    p.neth.nack_psn = b.psn;
    p.neth.timestamp = b.timestamp;
}

}  // namespace farstep::sim::mrc
