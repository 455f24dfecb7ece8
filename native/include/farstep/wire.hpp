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

#include "farstep/crc32.hpp"

namespace farstep::wire {

// ---- constants ------------------------------------------------------------------------------------------------------

inline constexpr uint16_t kUdpPort = 4791;           // RoCEv2 port, sent
inline constexpr uint16_t kUdpPortAlternate = 4971;  // accepted: readers of the specification report this spelling
inline constexpr uint32_t kPsnMask = 0xFFFFFF;
inline constexpr uint32_t kQpnMask = 0xFFFFFF;
inline constexpr uint32_t kEndpointQpn = 0x000002;  // destination of endpoint requests
inline constexpr uint32_t kTimestampTick_ns = 128;  // one unit of every 16-bit timestamp; wraps after 8.39 ms

inline constexpr size_t kBthBytes = 12, kMethBytes = 4, kTsethBytes = 4, kRethBytes = 16, kImmBytes = 4;
inline constexpr size_t kSethBytes = 28, kCcStateBytes = 8, kNethBytes = 20, kAethBytes = 4, kPethBytes = 16;
inline constexpr size_t kErthBytes = 16, kEethBytes = 36, kIcrcBytes = 4;
inline constexpr size_t kDataHeaderBytes = kBthBytes + kMethBytes + kTsethBytes + kRethBytes;
inline constexpr size_t kMaxHeaderBytes = 64;  // the longest is 48 (SACK, endpoint response); rounded to a cache line
inline constexpr size_t kMinPacketBytes = kBthBytes + kIcrcBytes;
inline constexpr size_t kMinTrimmedBytes = kBthBytes + kMethBytes + kRethBytes;

enum class Opcode : uint8_t {
    WriteFirst = 0xC6,
    WriteMiddle = 0xC7,
    WriteLast = 0xC8,
    WriteLastImm = 0xC9,
    WriteOnly = 0xCA,
    WriteOnlyImm = 0xCB,
    Ack = 0xD1,
    EndpointRequest = 0xD8,
    EndpointResponse = 0xD9,
    Sack = 0xDC,
    Nack = 0xDD,
    Probe = 0xDE,
};
enum class NackReason : uint8_t {
    Trimmed = 0x01,
    TrimmedLastHop = 0x02,
    NoBitmap = 0x06,
    NoPacketBuffer = 0x07,
    NoResource = 0x0A,
    PsnOutOfWindow = 0x0B,
    UnexpectedEvent = 0x19,  // fatal to the connection
};
enum class SackMark : uint8_t { None = 0, SkipOnce = 1, AlwaysSkip = 2 };  // 3 is reserved and refused
enum class EndpointOp : uint8_t { PortStatusUpdate = 0, EvProbe = 1 };

constexpr bool is_known(Opcode op) noexcept {
    const uint8_t v = static_cast<uint8_t>(op);
    return (v >= 0xC6 && v <= 0xCB) || v == 0xD1 || v == 0xD8 || v == 0xD9 || (v >= 0xDC && v <= 0xDE);
}
constexpr bool is_data(Opcode op) noexcept { return op >= Opcode::WriteFirst && op <= Opcode::WriteOnlyImm; }
constexpr bool has_immediate(Opcode op) noexcept { return op == Opcode::WriteLastImm || op == Opcode::WriteOnlyImm; }
constexpr bool is_only(Opcode op) noexcept { return op == Opcode::WriteOnly || op == Opcode::WriteOnlyImm; }
constexpr bool starts_message(Opcode op) noexcept { return op == Opcode::WriteFirst || is_only(op); }
constexpr bool ends_message(Opcode op) noexcept {
    return op == Opcode::WriteLast || op == Opcode::WriteLastImm || is_only(op);
}
constexpr bool is_known(NackReason r) noexcept {
    switch (r) {
        case NackReason::Trimmed:
        case NackReason::TrimmedLastHop:
        case NackReason::NoBitmap:
        case NackReason::NoPacketBuffer:
        case NackReason::NoResource:
        case NackReason::PsnOutOfWindow:
        case NackReason::UnexpectedEvent: return true;
    }
    return false;
}

// ---- fields ---------------------------------------------------------------------------------------------------------

struct Bth {
    Opcode opcode{};
    bool solicited{}, migrated{};
    uint8_t pad_bytes{};  // 0..3, data packets only
    uint16_t pkey = 0xFFFF;
    uint32_t dest_qpn{};  // 24 bits
    bool ack_request{}, rtx{}, has_timestamp{};  // has_timestamp: a TSETH follows; data packets only
    uint32_t psn{};  // 24 bits; in endpoint operations its low 16 bits are the probe id
};
struct Meth {
    uint16_t rqmsn{}, msn{};
};
struct Tseth {
    uint16_t timestamp{};
};
struct Reth {
    uint64_t va{};
    uint32_t rkey{}, dma_length_bytes{};  // length of the whole message, in every packet of it
};
struct Seth {
    SackMark mark{};
    bool probe_reply{};
    int16_t ack_psn_offset{};  // PSN that triggered this SACK, minus cack_psn; the probe's id when probe_reply
    uint32_t entropy{};
    uint32_t cack_psn{};  // 24 bits
    uint8_t cc_type{}, cc_flags{};  // 4 bits each; type 0: NSCC state follows
    uint8_t mpr{};  // in units of 128 PSNs
    int16_t sack_offset{};
    uint64_t bitmap{};  // bit i: cack_psn + sack_offset + i was received
};
struct CcState {
    uint16_t timestamp{};  // echo
    uint16_t ooo_count{};  // 15 bits
    bool restore_cwnd{};
    uint8_t rcv_cwnd_pen{};  // 7 bits
    uint32_t rcvd_units{};  // 24 bits, 256 B each, counting up modulo 2^24
};
struct Neth {
    NackReason reason{};
    uint8_t vendor{};
    uint32_t entropy{};
    uint32_t nack_psn{};  // 24 bits
    uint8_t cc_type = 2, cc_flags{};
    uint16_t timestamp{};  // echo
};
struct Aeth {
    uint8_t syndrome{};
    uint32_t msn{};  // 24 bits
};
struct Peth {
    uint8_t vendor{};
    uint16_t probe_id{};
    uint16_t timestamp{};
};
struct Erth {
    EndpointOp op{};
    uint8_t vendor{};
    uint32_t port_status_mask{};  // bit n set: port n is usable
    uint32_t context{};  // a queue pair number of the receiver that is live with us; 0 none (MRC leaves these bytes 0)
    uint16_t timestamp{};
};
struct Eeth {
    EndpointOp op{};  // informative and not range-checked: readers disagree on its position; replies match by probe id
    uint8_t vendor{};
    uint32_t context{};    // as in the request, for the other side
    uint16_t timestamp{};  // echo
};

/// One packet, parsed or to be written. Only the headers that go with `bth.opcode` mean anything.
struct Packet {
    Bth bth{};
    Meth meth{};
    Tseth tseth{};
    Reth reth{};
    uint32_t immediate{};
    Seth seth{};
    CcState cc{};
    Neth neth{};
    Aeth aeth{};
    Peth peth{};
    Erth erth{};
    Eeth eeth{};
    const uint8_t* payload{};  // borrowed from the decoded datagram
    uint32_t payload_bytes{};  // without padding
    uint32_t header_bytes{};
    uint32_t icrc{};
};

enum class DecodeResult : uint8_t {
    Ok,
    TooShort,       // fewer bytes than the opcode's headers and iCRC need
    UnknownOpcode,
    BadVersion,     // transport version is not 0
    BadPadding,     // pad bytes on a control packet, more padding than body, or a body that is no multiple of 4
    BadLength,      // trailing bytes on a control packet, or a datagram above 64 KiB
    BadField,       // a value outside its range or contradicting another field
    BadIcrc,        // never from decode(): for the caller that compares the checksum
    NotTrimmable,   // decode_trimmed() met a packet that carries no payload to cut
    Count,
};
constexpr const char* name(DecodeResult r) noexcept {
    switch (r) {
        case DecodeResult::Ok: return "ok";
        case DecodeResult::TooShort: return "too_short";
        case DecodeResult::UnknownOpcode: return "unknown_opcode";
        case DecodeResult::BadVersion: return "bad_version";
        case DecodeResult::BadPadding: return "bad_padding";
        case DecodeResult::BadLength: return "bad_length";
        case DecodeResult::BadField: return "bad_field";
        case DecodeResult::BadIcrc: return "bad_icrc";
        case DecodeResult::NotTrimmable: return "not_trimmable";
        case DecodeResult::Count: break;
    }
    return "?";
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

namespace detail {
template <class T>
inline T load(const uint8_t* p) noexcept {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
inline void store(uint8_t* p, T v) noexcept {
    std::memcpy(p, &v, sizeof v);
}
inline constexpr bool kLittle = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
}  // namespace detail

inline uint16_t load_be16(const uint8_t* p) noexcept {
    const uint16_t v = detail::load<uint16_t>(p);
    return detail::kLittle ? __builtin_bswap16(v) : v;
}
inline uint32_t load_be24(const uint8_t* p) noexcept {
    return static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 8 | p[2];
}
inline uint32_t load_be32(const uint8_t* p) noexcept {
    const uint32_t v = detail::load<uint32_t>(p);
    return detail::kLittle ? __builtin_bswap32(v) : v;
}
inline uint64_t load_be64(const uint8_t* p) noexcept {
    const uint64_t v = detail::load<uint64_t>(p);
    return detail::kLittle ? __builtin_bswap64(v) : v;
}
inline uint32_t load_le32(const uint8_t* p) noexcept {
    const uint32_t v = detail::load<uint32_t>(p);
    return detail::kLittle ? v : __builtin_bswap32(v);
}
inline void store_be16(uint8_t* p, uint16_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap16(v) : v); }
inline void store_be24(uint8_t* p, uint32_t v) noexcept {
    p[0] = static_cast<uint8_t>(v >> 16);
    p[1] = static_cast<uint8_t>(v >> 8);
    p[2] = static_cast<uint8_t>(v);
}
inline void store_be32(uint8_t* p, uint32_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap32(v) : v); }
inline void store_be64(uint8_t* p, uint64_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap64(v) : v); }
inline void store_le32(uint8_t* p, uint32_t v) noexcept { detail::store(p, detail::kLittle ? v : __builtin_bswap32(v)); }

// ---- entropy value on the wire ----------------------------------------------------------------------------------------
// One placement for plain ECMP and for STEV: EV[15:0] is the UDP source port, EV[31:16] the low 16 bits of the flow label.

constexpr uint16_t ev_source_port(uint32_t ev) noexcept { return static_cast<uint16_t>(ev); }
constexpr uint32_t ev_flow_label(uint32_t ev) noexcept { return ev >> 16; }
constexpr uint32_t ev_from(uint32_t flow_label, uint16_t source_port) noexcept {
    return (flow_label & 0xFFFF) << 16 | source_port;
}

inline constexpr size_t kIpv6UdpBytes = 48;
struct Ipv6Udp {
    uint8_t source[16]{}, destination[16]{};
    uint8_t traffic_class{}, hop_limit = 64;
    uint32_t flow_label{};  // 20 bits
    uint16_t source_port{}, destination_port = kUdpPort;
};
/// Writes the 48 bytes in front of `packet_bytes` of MRC; the UDP checksum is zero (the invariant CRC guards the packet).
inline void encode_ipv6_udp(const Ipv6Udp& h, size_t packet_bytes, uint8_t* out) noexcept {
    const uint16_t udp_bytes = static_cast<uint16_t>(8 + packet_bytes);
    store_be32(out, 6u << 28 | static_cast<uint32_t>(h.traffic_class) << 20 | (h.flow_label & 0xFFFFF));
    store_be16(out + 4, udp_bytes);
    out[6] = 17;
    out[7] = h.hop_limit;
    std::memcpy(out + 8, h.source, 16);
    std::memcpy(out + 24, h.destination, 16);
    store_be16(out + 40, h.source_port);
    store_be16(out + 42, h.destination_port);
    store_be16(out + 44, udp_bytes);
    store_be16(out + 46, 0);
}

// ---- invariant CRC ----------------------------------------------------------------------------------------------------

inline constexpr uint32_t kIcrcSeedOnes = 0xDEBB20E3u;  // register after the eight leading bytes of 0xFF

/// Seed in `udp` path mode. Addresses and ports change under NAT and the receiver does not see the IP header, so the
/// checksum starts at the BTH there.
inline uint32_t icrc_seed_plain() noexcept { return kIcrcSeedOnes; }

/// Seed that covers the IPv6 and UDP headers, with what routers may change (class, label, hop limit, checksum) as ones.
inline uint32_t icrc_seed_ipv6(const uint8_t ip6_and_udp[kIpv6UdpBytes]) noexcept {
    uint8_t masked[kIpv6UdpBytes];
    std::memcpy(masked, ip6_and_udp, sizeof masked);
    masked[0] |= 0x0F;
    masked[1] = masked[2] = masked[3] = 0xFF;
    masked[7] = 0xFF;
    masked[46] = masked[47] = 0xFF;
    return crc32_update(kIcrcSeedOnes, masked, sizeof masked);
}

/// Register after the headers (BTH byte 4 counted as ones). Continue with crc32_update or crc32_copy over the payload,
/// then icrc_end. `header_bytes` is between kBthBytes and kMaxHeaderBytes.
inline uint32_t icrc_begin(uint32_t seed, const uint8_t* header, size_t header_bytes) noexcept {
    uint8_t masked[kMaxHeaderBytes];
    if (header_bytes > kMaxHeaderBytes) {  // not one of our headers: no copy, three calls
        const uint8_t ones = 0xFF;
        uint32_t crc = crc32_update(crc32_update(seed, header, 4), &ones, 1);
        return crc32_update(crc, header + 5, header_bytes - 5);
    }
    std::memcpy(masked, header, header_bytes);
    if (header_bytes > 4) masked[4] = 0xFF;
    return crc32_update(seed, masked, header_bytes);
}
inline uint32_t icrc_end(uint32_t crc, const uint8_t* pad = nullptr, size_t pad_bytes = 0) noexcept {
    return ~(pad_bytes ? crc32_update(crc, pad, pad_bytes) : crc);
}
/// The 32-bit value that store_le32 puts behind the packet.
inline uint32_t icrc(uint32_t seed, const uint8_t* header, size_t header_bytes, const uint8_t* payload,
                     size_t payload_bytes, const uint8_t* pad = nullptr, size_t pad_bytes = 0) noexcept {
    uint32_t crc = icrc_begin(seed, header, header_bytes);
    if (payload_bytes) crc = crc32_update(crc, payload, payload_bytes);
    return icrc_end(crc, pad, pad_bytes);
}
/// iCRC of a whole datagram as received (BTH .. iCRC) equals the one it carries. `bytes` >= kMinPacketBytes.
inline bool icrc_matches(uint32_t seed, const uint8_t* data, size_t bytes) noexcept {
    const size_t body = bytes - kIcrcBytes, head = body < kMaxHeaderBytes ? body : kMaxHeaderBytes;
    return icrc(seed, data, head, data + head, body - head) == load_le32(data + body);
}

constexpr size_t pad_bytes_for(size_t payload_bytes) noexcept { return (0 - payload_bytes) & 3; }

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
