// Parameters of a connection for Python, one attribute each.
#include "connection_parameters.hpp"

#include <cstring>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <stdexcept>

std::unique_ptr<PacketProtection> protection_of(const ConnectionParameters& p) {
    if (p.protection.empty()) return nullptr;
    ProtectionConfig c;
    c.mode = p.protection == "encrypt" ? ProtectionMode::Encrypt : ProtectionMode::Authenticate;
    if (c.mode == ProtectionMode::Authenticate && p.protection != "authenticate")
        throw std::invalid_argument("protection is encrypt or authenticate");
    if (p.tx_secret.size() != kSecretBytes || p.rx_secret.size() != kSecretBytes)
        throw std::invalid_argument("a secret has 32 bytes");
    if ((p.key_bytes != 16 && p.key_bytes != 32) || p.epoch_bits < 4 || p.epoch_bits > 22)
        throw std::invalid_argument("a key has 16 or 32 bytes and is used for 2^4 to 2^22 packets");
    c.key_bytes = p.key_bytes;
    c.epoch_bits = p.epoch_bits;
    std::memcpy(c.tx_secret, p.tx_secret.data(), kSecretBytes);
    std::memcpy(c.rx_secret, p.rx_secret.data(), kSecretBytes);
    auto keys = std::make_unique<PacketProtection>(c);
    LibCrypto::get()->cleanse(&c, sizeof c);
    return keys;
}

PeerAddresses addresses_of(const ConnectionParameters& p) {
    PeerAddresses out;
    for (const Address& a : p.peer_addresses) out.by_port.push_back(to_socket(a));
    if (p.path_addresses.empty()) return out;
    out.by_path.resize(p.path_addresses.size());
    for (const auto& [plane, source, value, active] : p.entropy_values) {
        const nb::bytes& address = p.path_addresses.at(source);
        if (address.size() != kAddressBytes) throw std::invalid_argument("an address has 16 bytes");
        const uint16_t port = out.by_port.at(p.links.at(plane).second).port();
        out.by_path[source] = path_address(reinterpret_cast<const uint8_t*>(address.c_str()), port, value);
    }
    return out;
}

void bind_parameters(nb::module_& m) {
    using P = ConnectionParameters;
    auto c = nb::class_<P>(m, "ConnectionParameters", "What one connection is opened with.");
    c.def(nb::init<>());
    c.def_rw("peer_id", &P::peer_id).def_rw("links", &P::links);
    c.def_rw("protection", &P::protection).def_rw("tx_secret", &P::tx_secret).def_rw("rx_secret", &P::rx_secret);
    c.def_rw("key_bytes", &P::key_bytes).def_rw("epoch_bits", &P::epoch_bits);
    c.def_rw("entropy_values", &P::entropy_values).def_rw("peer_addresses", &P::peer_addresses);
    c.def_rw("path_addresses", &P::path_addresses);
#define FIELD(NAME, PATH)                                                                     \
    c.def_prop_rw(                                                                            \
        NAME, [](const P& p) { return p.PATH; },                                              \
        [](P& p, decltype(std::declval<P>().PATH) v) { p.PATH = v; })
    FIELD("peer_qpn", connection.peer_qpn);
    FIELD("peer_start_psn", connection.peer_start_psn);
    FIELD("mtu_bytes", connection.mtu_bytes);
    FIELD("mpr", connection.mpr);
    FIELD("peer_mpr", connection.peer_mpr);
    FIELD("wimm", connection.wimm);
    FIELD("send_queue", connection.send_queue);
    FIELD("immediate_queue", connection.immediate_queue);
    FIELD("sack_threshold_bytes", connection.sack_threshold_bytes);
    FIELD("burst_packets", connection.burst_packets);
    FIELD("seed", connection.seed);
    FIELD("rto_base_ns", connection.reliability.rto_base_ns);
    FIELD("rto_max_ns", connection.reliability.rto_max_ns);
    FIELD("linear_count", connection.reliability.linear_count);
    FIELD("exponential_count", connection.reliability.exponential_count);
    FIELD("loss_slack_min_ns", connection.reliability.loss_slack_min_ns);
    FIELD("initial_rtt_ns", connection.reliability.initial_rtt_ns);
    FIELD("num_planes", connection.paths.num_planes);
    FIELD("active_per_plane", connection.paths.active_per_plane);
    FIELD("backup_per_plane", connection.paths.backup_per_plane);
    FIELD("min_active", connection.paths.min_active);
    FIELD("skip_passes", connection.paths.skip_passes);
    FIELD("paths_seed", connection.paths.seed);
    FIELD("probe_interval_ns", connection.paths.probe_interval_ns);
    FIELD("restore_successes", connection.paths.restore_successes);
    FIELD("restore_max", connection.paths.restore_max);
    FIELD("damping_window_ns", connection.paths.damping_window_ns);
    FIELD("damping_reset_ns", connection.paths.damping_reset_ns);
    FIELD("rate_bytes_per_s", congestion.rate_bytes_per_s);
    FIELD("base_rtt_ns", congestion.base_rtt_ns);
    FIELD("cc_mtu_bytes", congestion.mtu_bytes);
    FIELD("trimming", congestion.trimming);
    FIELD("quick_adapt", congestion.quick_adapt);
    FIELD("max_cwnd_bytes", congestion.max_cwnd_bytes);
    FIELD("initial_cwnd_bytes", congestion.initial_cwnd_bytes);
    FIELD("target_delay_ns", congestion.target_delay_ns);
    FIELD("adjust_bytes", congestion.adjust_bytes);
    FIELD("adjust_period_ns", congestion.adjust_period_ns);
    FIELD("fi_bytes", congestion.fi_bytes);
    FIELD("eta_bytes", congestion.eta_bytes);
    FIELD("fi_scale", congestion.fi_scale);
    FIELD("gamma", congestion.gamma);
    FIELD("max_md_jump", congestion.max_md_jump);
    FIELD("qa_gate", congestion.qa_gate);
    FIELD("qa_threshold_ns", congestion.qa_threshold_ns);
    FIELD("host_noise_ns", congestion.host_noise_ns);
#undef FIELD
    c.def_prop_rw(
        "capacity_share", [](const P& p) { return p.connection.paths.share == ShareMode::Capacity; },
        [](P& p, bool v) { p.connection.paths.share = v ? ShareMode::Capacity : ShareMode::Equal; });
}
