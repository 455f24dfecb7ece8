// The way into a protected connection, with an oracle: whatever the input does to packets, only those pass that the peer
// sealed, each once, as they were.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "farstep/protection_table.hpp"
#include "seeded_main.hpp"

using namespace farstep;

namespace {

using Packet = std::vector<uint8_t>;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "FAILED: %s\n", what);
    std::abort();
}

constexpr uint32_t kQpn = 0xABCD00 | 5, kEpochBits = 4;

ProtectionConfig config(bool is_peer, bool hides) {
    ProtectionConfig c;
    c.mode = hides ? ProtectionMode::Encrypt : ProtectionMode::Authenticate;
    c.epoch_bits = kEpochBits;
    for (size_t i = 0; i < kSecretBytes; ++i) {
        c.tx_secret[i] = static_cast<uint8_t>(i + is_peer);
        c.rx_secret[i] = static_cast<uint8_t>(i + !is_peer);
    }
    return c;
}

struct Sealed {
    Packet plain, sealed;
    bool has_passed = false;
};

Sealed seal(PacketProtection& peer, uint8_t kind, size_t number) {
    static constexpr wire::Opcode kOpcodes[] = {wire::Opcode::WriteMiddle, wire::Opcode::WriteOnly, wire::Opcode::Sack, wire::Opcode::Nack,
                                                wire::Opcode::Probe,       wire::Opcode::Ack,       wire::Opcode::EndpointRequest};
    wire::Packet p;
    p.bth.opcode = kOpcodes[kind % 7];
    p.bth.dest_qpn = kQpn;
    p.bth.psn = static_cast<uint32_t>(number);  // no two are the same
    p.bth.has_timestamp = wire::is_data(p.bth.opcode);
    p.erth.context = kQpn;
    p.neth.reason = wire::NackReason::Trimmed;
    const Packet body(wire::is_data(p.bth.opcode) ? kind : 0, kind);
    Sealed s;
    s.plain.resize(wire::kMaxHeaderBytes);
    const size_t header = wire::encode_header(p, s.plain.data());
    s.plain.resize(header);
    s.sealed = s.plain;
    s.sealed.resize(header + body.size() + kProtectionBytes);
    const uint8_t* const parts[] = {body.data()};
    const size_t sizes[] = {body.size()};
    require(peer.seal(s.sealed.data(), header, parts, sizes, 1, body.size(), s.sealed.data() + header), "nothing is sealed");
    s.plain.insert(s.plain.end(), body.begin(), body.end());
    return s;
}

bool is_same(const Sealed& s, const Packet& d, size_t bytes) {
    if (bytes != s.plain.size() + wire::kIcrcBytes) return false;
    for (size_t i = 0; i < s.plain.size(); ++i)
        if (i != 4 && s.plain[i] != d[i]) return false;  // BTH byte 4 is the switches'
    return true;
}

void offer(ProtectionTable& table, std::vector<Sealed>& sent, Packet d) {
    Arrival a;
    size_t bytes = d.size();
    const bool is_short = bytes < wire::kMinPacketBytes;
    if (!table.admit(a, d.data(), bytes) || !a.is_authentic) {
        require(is_short || !a.is_authentic, "marked as authentic and not admitted");
        return;
    }
    for (Sealed& s : sent)
        if (!s.has_passed && is_same(s, d, bytes)) {
            s.has_passed = true;
            return;
        }
    require(false, "a packet passed that the peer has not sealed, or has sealed once");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes == 0 || bytes > 2048) return 0;
    const bool hides = data[0] & 1;
    ProtectionTable table(8);
    ConnectionConfig c;
    c.mtu_bytes = 256;
    table.add(5, kQpn, c, std::make_unique<PacketProtection>(config(false, hides)));
    PacketProtection peer(config(true, hides));
    std::vector<Sealed> sent;
    for (size_t i = 1; i + 3 < bytes;) {
        const uint8_t op = data[i++], which = data[i++], at = data[i++], value = data[i++];
        if (sent.size() > 100) break;
        if (sent.empty() || (op & 7) == 0) sent.push_back(seal(peer, which, sent.size()));
        const Sealed& s = sent[which % sent.size()];
        Packet d = s.sealed;
        switch (op & 7) {
            case 1: d[at % d.size()] ^= value; break;
            case 2: d.resize(d.size() * value / 256); break;
            case 3: d.insert(d.begin() + at % static_cast<int>(d.size()), value, 7); break;
            case 4: d[d.size() - kProtectionBytes + at % kPacketNumberBytes] ^= value; break;
            case 5: {  // bytes of the input itself, to our queue pair
                d.assign(data + i, data + std::min(bytes, i + at));
                if (d.size() > 8) wire::store_be24(d.data() + 5, kQpn);
                break;
            }
            case 6: {  // the end of one behind the beginning of another
                const Packet& o = sent[at % sent.size()].sealed;
                const size_t cut = std::min<size_t>(value, std::min(d.size(), o.size()));
                d.erase(d.begin() + static_cast<std::ptrdiff_t>(cut), d.end());
                d.insert(d.end(), o.begin() + static_cast<std::ptrdiff_t>(cut), o.end());
                break;
            }
            default: break;
        }
        offer(table, sent, d);
    }
    // None has been harmed: what did not pass yet passes now, in order, but for keys that are too old.
    for (size_t k = 0; k < sent.size(); ++k) {
        if (!sent[k].has_passed) offer(table, sent, sent[k].sealed);
        require(sent[k].has_passed || k + (1u << kEpochBits) < sent.size(), "a genuine packet was refused");
    }
    return 0;
}
