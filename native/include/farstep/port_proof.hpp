// How endpoint operations show that they come from the other end of a connection.
//
// They have no queue pair of their own; `context` names one of ours that is live, so that the answer can take that
// connection's paths. One forged packet could take every port from a peer, and a queue pair number alone is soon guessed. So
// the sender also proves that it is the other end: by the PSN it began with, in the bits that MRC leaves free: the upper
// eight of the context, the vendor byte, the upper eight of the PSN. Where packets are protected this adds nothing.
#pragma once

#include <cstdint>

#include "farstep/config.hpp"
#include "farstep/packet.hpp"

namespace farstep::port_proof {

inline constexpr uint32_t kProbeIdBits = 16;

inline uint32_t context_of(const ConnectionConfig& c) noexcept {
    return (c.start_psn >> 16 & 0xFF) << 24 | (c.peer_qpn & wire::kQpnMask);
}
inline uint8_t vendor_of(const ConnectionConfig& c) noexcept { return static_cast<uint8_t>(c.start_psn >> 8); }
inline uint32_t psn_of(const ConnectionConfig& c, uint16_t id) noexcept {
    return (c.start_psn & 0xFF) << kProbeIdBits | id;
}
inline bool is_proof(const ConnectionConfig& c, uint32_t context, uint8_t vendor, uint32_t psn) noexcept {
    const uint32_t shown = (context >> 24) << 16 | uint32_t{vendor} << 8 | psn >> kProbeIdBits;
    return shown == (c.peer_start_psn & wire::kPsnMask);
}

}  // namespace farstep::port_proof
