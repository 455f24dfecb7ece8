// What Python says of a connection that is to be opened.
#pragma once

#include <cstdint>
#include <memory>
#include <nanobind/nanobind.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "farstep/event_loop.hpp"

namespace nb = nanobind;
using namespace farstep;

using Address = std::pair<std::string, uint16_t>;

inline SocketAddress to_socket(const Address& a) { return SocketAddress::parse(a.first, a.second); }

/// Everything one connection is opened with; attributes are set one by one from Python.
struct ConnectionParameters {
    ConnectionConfig connection;
    NsccConfig congestion;
    uint64_t peer_id = 0;
    std::string protection;                                                // "", "authenticate" or "encrypt"
    nb::bytes tx_secret, rx_secret;                                        // of 32 bytes
    uint32_t key_bytes = 16, epoch_bits = ProtectionConfig{}.epoch_bits;
    std::vector<std::pair<uint8_t, uint8_t>> links;                        // (local port, remote port) of each plane
    std::vector<std::tuple<uint8_t, uint16_t, uint32_t, bool>> entropy_values;  // plane, source, wire value, active
    std::vector<Address> peer_addresses;                                   // by remote port
    std::vector<nb::bytes> path_addresses;                                 // mode Srv6: 16 bytes each, by source
};

/// Where the entropy values lead. The GIL is held. Throws std::invalid_argument.
PeerAddresses addresses_of(const ConnectionParameters& p);

/// Null where packets go in the clear. The GIL is held. Throws std::invalid_argument, std::runtime_error without libcrypto.
std::unique_ptr<PacketProtection> protection_of(const ConnectionParameters& p);
void bind_parameters(nb::module_& m);
