// Where packets go: addresses as the kernel takes them, and those of one peer.
#pragma once

#include <arpa/inet.h>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "farstep/connection.hpp"
#include "farstep/invariant_crc.hpp"

namespace farstep {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;

    /// Numeric IPv4 or IPv6 only: names are resolved by the caller. Throws std::invalid_argument.
    static SocketAddress parse(const std::string& host, uint16_t port) {
        SocketAddress a;
        auto* v4 = reinterpret_cast<sockaddr_in*>(&a.storage);
        auto* v6 = reinterpret_cast<sockaddr_in6*>(&a.storage);
        if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(port);
            a.bytes = sizeof(sockaddr_in);
        } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(port);
            a.bytes = sizeof(sockaddr_in6);
        } else {
            throw std::invalid_argument("not a numeric IP address: " + host);
        }
        return a;
    }
    uint16_t port() const noexcept {
        return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
    }
    SocketAddress with_port(uint16_t port) const noexcept {
        SocketAddress a = *this;
        if (storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(a.storage).sin6_port = htons(port);
        else reinterpret_cast<sockaddr_in&>(a.storage).sin_port = htons(port);
        return a;
    }
    bool is_v6() const noexcept { return storage.ss_family == AF_INET6; }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Mode `srv6`: the destination address says the path, and the flow label the entropy value, for the receiver to echo.
//
// The label holds EV[31:16], where MRC puts them. The other half would be the source port, and stays zero: an EV that stands
// for a path has its bits on top, and a port per EV would be a socket per EV. The mark tells our labels from none, which
// networks and kernels may fill with a hash.
inline constexpr uint32_t kLabelMark = 1u << 19;
constexpr uint32_t label_of_path(uint32_t ev) noexcept { return kLabelMark | wire::ev_flow_label(ev); }
constexpr bool is_label_of_path(uint32_t label) noexcept { return label & kLabelMark; }
constexpr uint32_t path_of_label(uint32_t label) noexcept { return wire::ev_from(label, 0); }

inline constexpr size_t kAddressBytes = 16;
inline sockaddr_in6 path_address(const uint8_t address[kAddressBytes], uint16_t port, uint32_t ev) noexcept {
    sockaddr_in6 a{};
    a.sin6_family = AF_INET6;
    a.sin6_port = htons(port);
    a.sin6_flowinfo = htonl(label_of_path(ev));
    std::memcpy(&a.sin6_addr, address, kAddressBytes);
    return a;
}

struct Target {
    const sockaddr* address = nullptr;
    socklen_t bytes = 0;
};

/// Where the packets of one connection go: to a port of the peer, or, where there are paths, along one of them.
struct PeerAddresses {
    std::vector<SocketAddress> by_port;  // by EvValue::remote_port
    std::vector<sockaddr_in6> by_path;   // by EvValue::source

    Target of(const TxBurst& b) const noexcept {
        if (b.source < by_path.size()) return {reinterpret_cast<const sockaddr*>(&by_path[b.source]), sizeof(sockaddr_in6)};
        if (by_path.empty() && b.remote_port < by_port.size()) return {by_port[b.remote_port].get(), by_port[b.remote_port].bytes};
        return {};
    }
};

}  // namespace farstep
