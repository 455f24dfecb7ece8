// MRC packets between the UDP header and the end of the invariant CRC.
//
// decode() judges length and opcode before it reads anything else, never reads outside [data, data + bytes), never
// allocates, and answers with a reason instead of an exception. What it accepts is self-consistent (field ranges,
// padding, payload inside the message length); whether it fits a connection is the receiver's question.
// Reserved bits are sent as zero and ignored on receipt. All integers are big-endian except the invariant CRC.
// The readable twin of this file is src/farstep/mrc/codec.py; tests hold the two against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "farstep/byte_order.hpp"
#include "farstep/invariant_crc.hpp"
#include "farstep/packet.hpp"

namespace farstep::wire {

// ---- decode -------------------------------------------------------------------------------------------------------------

/// Bytes between the start of the BTH and the payload (data) or the iCRC (control). The opcode must be known.
constexpr size_t header_bytes_of(Opcode op, bool has_timestamp) noexcept {
    switch (op) {
        case Opcode::Ack: return kBthBytes + kAethBytes;
        case Opcode::EndpointRequest: return kBthBytes + kErthBytes;
        case Opcode::EndpointResponse: return kBthBytes + kEethBytes;
        case Opcode::Sack: return kBthBytes + kSethBytes + kCcStateBytes;
        case Opcode::Nack: return kBthBytes + kNethBytes;
        case Opcode::Probe: return kBthBytes + kPethBytes;
        default: break;
    }
    return kBthBytes + kMethBytes + (has_timestamp ? kTsethBytes : 0) + kRethBytes +
           (has_immediate(op) ? kImmBytes : 0);
}

namespace detail {

inline constexpr size_t kMaxPacketBytes = 65535;  // what a UDP length can say
// Where the operation sits in byte 1 of an endpoint response. Readers of the specification disagree (3:2 or 5:4).
inline constexpr unsigned kEethOpShift = 4;
inline constexpr uint16_t kTsethType = 1;  // low 4 bits of the second half; bit 15 (vendor tick) is echoed by nobody

inline bool tseth_ok(const uint8_t* p) noexcept { return (p[3] & 0x0F) == kTsethType; }
inline void put_tseth(uint8_t* p, uint16_t timestamp) noexcept {
    store_be16(p, timestamp);
    store_be16(p + 2, kTsethType);
}

inline void read_bth(const uint8_t* d, Bth& b) noexcept {
    b.opcode = static_cast<Opcode>(d[0]);
    b.solicited = d[1] & 0x80;
    b.migrated = d[1] & 0x40;
    b.pad_bytes = (d[1] >> 4) & 3;
    b.pkey = load_be16(d + 2);
    b.dest_qpn = load_be24(d + 5);
    b.ack_request = d[8] & 0x80;
    b.rtx = d[8] & 0x20;
    b.has_timestamp = d[8] & 0x10;
    b.psn = load_be24(d + 9);
}
inline void write_bth(const Bth& b, uint8_t* d) noexcept {
    d[0] = static_cast<uint8_t>(b.opcode);
    d[1] = static_cast<uint8_t>(b.solicited << 7 | b.migrated << 6 | (b.pad_bytes & 3) << 4);
    store_be16(d + 2, b.pkey);
    store_be32(d + 4, b.dest_qpn & kQpnMask);
    d[8] = static_cast<uint8_t>(b.ack_request << 7 | b.rtx << 5 | b.has_timestamp << 4);
    store_be24(d + 9, b.psn);
}

// METH, [TSETH], RETH: what a data packet has before its immediate and what survives a trim.
inline bool read_write_headers(const uint8_t* p, Packet& out) noexcept {
    out.meth.rqmsn = load_be16(p);
    out.meth.msn = load_be16(p + 2);
    p += kMethBytes;
    if (out.bth.has_timestamp) {
        if (!tseth_ok(p)) return false;
        out.tseth.timestamp = load_be16(p);
        p += kTsethBytes;
    }
    out.reth.va = load_be64(p);
    out.reth.rkey = load_be32(p + 8);
    out.reth.dma_length_bytes = load_be32(p + 12);
    return true;
}

// A one-packet message carries its whole length; a longer one has bytes in every packet and never more than its length.
inline bool payload_fits(Opcode op, uint32_t payload_bytes, uint32_t dma_length_bytes) noexcept {
    if (is_only(op)) return payload_bytes == dma_length_bytes;
    return payload_bytes > 0 && payload_bytes <= dma_length_bytes;
}

inline DecodeResult read_data(const uint8_t* d, size_t bytes, Packet& out) noexcept {
    const size_t body = bytes - out.header_bytes - kIcrcBytes;
    if (body % 4 != 0 || body < out.bth.pad_bytes) return DecodeResult::BadPadding;
    if (!read_write_headers(d + kBthBytes, out)) return DecodeResult::BadField;
    if (has_immediate(out.bth.opcode)) out.immediate = load_be32(d + out.header_bytes - kImmBytes);
    out.payload = d + out.header_bytes;
    out.payload_bytes = static_cast<uint32_t>(body - out.bth.pad_bytes);
    return payload_fits(out.bth.opcode, out.payload_bytes, out.reth.dma_length_bytes) ? DecodeResult::Ok
                                                                                     : DecodeResult::BadField;
}

inline DecodeResult read_sack(const uint8_t* p, Packet& out) noexcept {
    const uint8_t mark = (p[1] >> 5) & 3;
    if (mark > static_cast<uint8_t>(SackMark::AlwaysSkip)) return DecodeResult::BadField;
    Seth& s = out.seth;
    s.mark = static_cast<SackMark>(mark);
    s.probe_reply = p[1] & 0x02;
    s.ack_psn_offset = static_cast<int16_t>(load_be16(p + 2));
    s.entropy = load_be32(p + 4);
    s.cack_psn = load_be24(p + 13);
    s.cc_type = p[16] >> 4;
    s.cc_flags = p[16] & 0x0F;
    s.mpr = p[17];
    s.sack_offset = static_cast<int16_t>(load_be16(p + 18));
    s.bitmap = load_be64(p + 20);
    p += kSethBytes;
    out.cc.timestamp = load_be16(p);
    out.cc.ooo_count = load_be16(p + 2) & 0x7FFF;
    out.cc.restore_cwnd = p[4] & 0x80;
    out.cc.rcv_cwnd_pen = p[4] & 0x7F;
    out.cc.rcvd_units = load_be24(p + 5);
    return DecodeResult::Ok;
}

inline DecodeResult read_nack(const uint8_t* p, Packet& out) noexcept {
    Neth& n = out.neth;
    n.reason = static_cast<NackReason>(p[2]);
    if (!is_known(n.reason)) return DecodeResult::BadField;
    n.vendor = p[3];
    n.entropy = load_be32(p + 4);
    n.nack_psn = load_be24(p + 13);
    n.cc_type = p[16] >> 4;
    n.cc_flags = p[16] & 0x0F;
    n.timestamp = load_be16(p + 18);
    return DecodeResult::Ok;
}

inline DecodeResult read_probe(const uint8_t* p, Packet& out) noexcept {
    if (!tseth_ok(p + 12)) return DecodeResult::BadField;
    out.peth.vendor = p[3];
    out.peth.probe_id = load_be16(p + 4);
    out.peth.timestamp = load_be16(p + 12);
    return DecodeResult::Ok;
}

inline DecodeResult read_endpoint_request(const uint8_t* p, Packet& out) noexcept {
    const uint8_t op = p[1] & 3;
    if (op > static_cast<uint8_t>(EndpointOp::EvProbe) || !tseth_ok(p + 12)) return DecodeResult::BadField;
    out.erth.op = static_cast<EndpointOp>(op);
    out.erth.vendor = p[3];
    out.erth.port_status_mask = load_be32(p + 4);
    out.erth.context = load_be32(p + 8);
    out.erth.timestamp = load_be16(p + 12);
    return DecodeResult::Ok;
}

inline DecodeResult read_control(const uint8_t* p, Packet& out) noexcept {
    switch (out.bth.opcode) {
        case Opcode::Sack: return read_sack(p, out);
        case Opcode::Nack: return read_nack(p, out);
        case Opcode::Probe: return read_probe(p, out);
        case Opcode::EndpointRequest: return read_endpoint_request(p, out);
        case Opcode::EndpointResponse:
            out.eeth.op = static_cast<EndpointOp>((p[1] >> kEethOpShift) & 3);
            out.eeth.vendor = p[3];
            out.eeth.context = load_be32(p + 8);
            out.eeth.timestamp = load_be16(p + 28);
            return DecodeResult::Ok;
        case Opcode::Ack:
            out.aeth.syndrome = p[0];
            out.aeth.msn = load_be24(p + 1);
            return DecodeResult::Ok;
        default: return DecodeResult::UnknownOpcode;
    }
}

}  // namespace detail

/// Parses one datagram (BTH .. iCRC). The value of the iCRC is reported, not verified: icrc_matches() does that.
/// `out` is meaningful only when the answer is Ok, and only in the headers of its opcode; the rest is untouched.
inline DecodeResult decode(const uint8_t* data, size_t bytes, Packet& out) noexcept {
    if (bytes < kMinPacketBytes) return DecodeResult::TooShort;
    if (!is_known(static_cast<Opcode>(data[0]))) return DecodeResult::UnknownOpcode;
    if (bytes > detail::kMaxPacketBytes) return DecodeResult::BadLength;
    if (data[1] & 0x0F) return DecodeResult::BadVersion;
    detail::read_bth(data, out.bth);
    const bool data_packet = is_data(out.bth.opcode);
    if (!data_packet && out.bth.pad_bytes) return DecodeResult::BadPadding;
    if (!data_packet && out.bth.has_timestamp) return DecodeResult::BadField;
    out.header_bytes = static_cast<uint32_t>(header_bytes_of(out.bth.opcode, out.bth.has_timestamp));
    if (bytes < out.header_bytes + kIcrcBytes) return DecodeResult::TooShort;
    out.payload = nullptr;
    out.payload_bytes = 0;
    out.icrc = load_le32(data + bytes - kIcrcBytes);
    if (data_packet) return detail::read_data(data, bytes, out);
    if (bytes != out.header_bytes + kIcrcBytes) return DecodeResult::BadLength;
    return detail::read_control(data + kBthBytes, out);
}

/// Parses what a trimming switch left of a data packet: BTH, METH, [TSETH], RETH; bytes after those are ignored.
/// Nothing vouches for the content, so no payload is reported and only QPN, PSN, EV and timestamp may be acted on.
inline DecodeResult decode_trimmed(const uint8_t* data, size_t bytes, Packet& out) noexcept {
    if (bytes < kMinTrimmedBytes) return DecodeResult::TooShort;
    if (!is_known(static_cast<Opcode>(data[0]))) return DecodeResult::UnknownOpcode;
    if (bytes > detail::kMaxPacketBytes) return DecodeResult::BadLength;
    if (data[1] & 0x0F) return DecodeResult::BadVersion;
    detail::read_bth(data, out.bth);
    if (!is_data(out.bth.opcode)) return DecodeResult::NotTrimmable;
    out.header_bytes =
        static_cast<uint32_t>(kMinTrimmedBytes + (out.bth.has_timestamp ? kTsethBytes : 0));
    if (bytes < out.header_bytes) return DecodeResult::TooShort;
    out.payload = nullptr;
    out.payload_bytes = 0;
    out.icrc = 0;
    return detail::read_write_headers(data + kBthBytes, out) ? DecodeResult::Ok : DecodeResult::BadField;
}

// ---- encode -------------------------------------------------------------------------------------------------------------

namespace detail {

inline void write_data(const Packet& p, uint8_t* d) noexcept {
    store_be16(d, p.meth.rqmsn);
    store_be16(d + 2, p.meth.msn);
    d += kMethBytes;
    if (p.bth.has_timestamp) {
        put_tseth(d, p.tseth.timestamp);
        d += kTsethBytes;
    }
    store_be64(d, p.reth.va);
    store_be32(d + 8, p.reth.rkey);
    store_be32(d + 12, p.reth.dma_length_bytes);
    if (has_immediate(p.bth.opcode)) store_be32(d + kRethBytes, p.immediate);
}

inline void write_sack(const Seth& s, const CcState& cc, uint8_t* d) noexcept {
    d[1] = static_cast<uint8_t>((static_cast<uint8_t>(s.mark) & 3) << 5 | s.probe_reply << 1);
    store_be16(d + 2, static_cast<uint16_t>(s.ack_psn_offset));
    store_be32(d + 4, s.entropy);
    store_be24(d + 13, s.cack_psn);
    d[16] = static_cast<uint8_t>(s.cc_type << 4 | (s.cc_flags & 0x0F));
    d[17] = s.mpr;
    store_be16(d + 18, static_cast<uint16_t>(s.sack_offset));
    store_be64(d + 20, s.bitmap);
    d += kSethBytes;
    store_be16(d, cc.timestamp);
    store_be16(d + 2, cc.ooo_count & 0x7FFF);
    d[4] = static_cast<uint8_t>(cc.restore_cwnd << 7 | (cc.rcv_cwnd_pen & 0x7F));
    store_be24(d + 5, cc.rcvd_units);
}

inline void write_nack(const Neth& n, uint8_t* d) noexcept {
    d[2] = static_cast<uint8_t>(n.reason);
    d[3] = n.vendor;
    store_be32(d + 4, n.entropy);
    store_be24(d + 13, n.nack_psn);
    d[16] = static_cast<uint8_t>(n.cc_type << 4 | (n.cc_flags & 0x0F));
    store_be16(d + 18, n.timestamp);
}

}  // namespace detail

/// Writes BTH and the headers of `p.bth.opcode` to `out` (at least kMaxHeaderBytes) and returns how many bytes.
/// The caller appends payload, padding and iCRC. Values wider than their field lose their upper bits.
/// An unknown opcode writes nothing and returns 0.
inline size_t encode_header(const Packet& p, uint8_t* out) noexcept {
    const Opcode op = p.bth.opcode;
    if (!is_known(op)) return 0;
    const size_t bytes = header_bytes_of(op, p.bth.has_timestamp);
    detail::write_bth(p.bth, out);
    uint8_t* d = out + kBthBytes;
    if (is_data(op)) {
        detail::write_data(p, d);
        return bytes;
    }
    std::memset(d, 0, bytes - kBthBytes);
    switch (op) {
        case Opcode::Sack: detail::write_sack(p.seth, p.cc, d); break;
        case Opcode::Nack: detail::write_nack(p.neth, d); break;
        case Opcode::Probe:
            d[3] = p.peth.vendor;
            store_be16(d + 4, p.peth.probe_id);
            detail::put_tseth(d + 12, p.peth.timestamp);
            break;
        case Opcode::EndpointRequest:
            d[1] = static_cast<uint8_t>(p.erth.op) & 3;
            d[3] = p.erth.vendor;
            store_be32(d + 4, p.erth.port_status_mask);
            store_be32(d + 8, p.erth.context);
            detail::put_tseth(d + 12, p.erth.timestamp);
            break;
        case Opcode::EndpointResponse:
            d[1] = static_cast<uint8_t>((static_cast<uint8_t>(p.eeth.op) & 3) << detail::kEethOpShift);
            d[3] = p.eeth.vendor;
            store_be32(d + 8, p.eeth.context);
            store_be16(d + 28, p.eeth.timestamp);
            break;
        default:  // Ack
            d[0] = p.aeth.syndrome;
            store_be24(d + 1, p.aeth.msn);
            break;
    }
    return bytes;
}

}  // namespace farstep::wire
