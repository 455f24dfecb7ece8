// The invariant CRC that guards a packet, the network headers it may cover, and the entropy value they carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "farstep/byte_order.hpp"
#include "farstep/crc32.hpp"
#include "farstep/packet.hpp"

namespace farstep::wire {

// One placement for plain ECMP and for STEV: EV[15:0] is the UDP source port, EV[31:16] the low 16 bits of the
// flow label.

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

}  // namespace farstep::wire
