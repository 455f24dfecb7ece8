// The fields of an MRC packet, as a sender fills them in and a receiver finds them. No bytes here: wire.hpp has those.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farstep::wire {

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

}  // namespace farstep::wire
