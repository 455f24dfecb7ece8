// Protection of packets: what is sealed comes out once and only as it was, keys follow each other without a word, numbers
// never repeat, and the table lets nothing unprotected through.
// Usage: packet_protection_test [seed [iterations]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "farstep/counter_rng.hpp"
#include "farstep/protection_table.hpp"

using namespace farstep;

namespace {

uint64_t seed = 1, iterations = 2000;

void require(bool holds, const char* what, unsigned long long detail = 0) {
    if (holds) return;
    std::printf("FAILED: %s (%llu), seed %llu\n", what, detail, static_cast<unsigned long long>(seed));
    std::exit(1);
}

using Bytes = std::vector<uint8_t>;

ProtectionConfig config(bool is_a, ProtectionMode mode, uint32_t key_bytes, uint32_t epoch_bits = 22) {
    ProtectionConfig c;
    c.mode = mode;
    c.key_bytes = key_bytes;
    c.epoch_bits = epoch_bits;
    for (size_t i = 0; i < kSecretBytes; ++i) {
        c.tx_secret[i] = static_cast<uint8_t>(i * 7 + is_a);
        c.rx_secret[i] = static_cast<uint8_t>(i * 7 + !is_a);
    }
    return c;
}

constexpr size_t kHeader = wire::kDataHeaderBytes;

Bytes seal(PacketProtection& p, const Bytes& payload, uint8_t stamp = 0) {
    Bytes out(kHeader);
    for (size_t i = 0; i < kHeader; ++i) out[i] = static_cast<uint8_t>(i + stamp);
    out.resize(kHeader + payload.size() + kProtectionBytes);
    const uint8_t* const parts[] = {payload.data()};
    const size_t sizes[] = {payload.size()};
    require(p.seal(out.data(), kHeader, parts, sizes, 1, payload.size(), out.data() + kHeader), "nothing is sealed");
    require((out[1] & 0x0F) == kProtectedVersion, "not marked as protected");
    return out;
}
Opened open(PacketProtection& p, Bytes& d) { return p.open(d.data(), kHeader, d.size()); }
Bytes payload_of(const Bytes& d) { return Bytes(d.begin() + kHeader, d.end() - kProtectionBytes); }
uint64_t number_of(const Bytes& d) { return wire::load_be64(d.data() + d.size() - kProtectionBytes); }

Bytes random_bytes(CounterRng& rng, size_t n) {
    Bytes out(n);
    for (uint8_t& b : out) b = static_cast<uint8_t>(rng.next());
    return out;
}

void what_is_sealed_comes_out_once_and_only_as_it_was() {
    CounterRng rng(seed);
    for (const ProtectionMode mode : {ProtectionMode::Encrypt, ProtectionMode::Authenticate})
        for (const uint32_t key_bytes : {16u, 32u}) {
            PacketProtection a(config(true, mode, key_bytes)), b(config(false, mode, key_bytes));
            for (uint64_t n = 0; n < iterations / 8; ++n) {
                const Bytes payload = random_bytes(rng, rng.below(300));
                const Bytes sealed = seal(a, payload);
                const bool hides = mode == ProtectionMode::Encrypt;
                if (payload.size() > 16) require((payload_of(sealed) != payload) == hides, "encrypted or not");
                Bytes damaged = sealed;
                const size_t at = rng.below(static_cast<uint32_t>(damaged.size()));
                damaged[at] ^= static_cast<uint8_t>(1u << rng.below(8));
                require((open(b, damaged) != Opened::Ok) == (at != 4), "a changed packet, by byte", at);
                if (at == 4) continue;  // what switches may change; it has been opened
                Bytes cut(sealed.begin(), sealed.end() - 1 - rng.below(static_cast<uint32_t>(payload.size() + 1)));
                require(open(b, cut) != Opened::Ok, "a packet cut short was taken");
                Bytes first = sealed, again = sealed;
                require(open(b, first) == Opened::Ok && payload_of(first) == payload, "a genuine packet was refused");
                require(open(b, again) == Opened::Replayed, "a packet was taken twice");
                Bytes reflected = seal(a, payload);
                require(open(a, reflected) == Opened::Forged, "our own packet was taken for the peer's");
            }
        }
}

void packets_out_of_order_come_through_within_the_window() {
    CounterRng rng(seed + 1);
    PacketProtection a(config(true, ProtectionMode::Encrypt, 16)), b(config(false, ProtectionMode::Encrypt, 16));
    std::vector<Bytes> kept;
    for (uint64_t n = 0; n < 3000; ++n) kept.push_back(seal(a, Bytes(4)));
    for (size_t i = kept.size(); i > 1; --i) std::swap(kept[i - 1], kept[rng.below(static_cast<uint32_t>(i))]);
    std::vector<Bytes> copies = kept;
    for (Bytes& d : kept) require(open(b, d) == Opened::Ok, "a packet that others overtook was refused", number_of(d));
    for (Bytes& d : copies) require(open(b, d) == Opened::Replayed, "a packet was taken twice", number_of(d));
}

void the_window_agrees_with_a_set_of_all_numbers() {
    CounterRng rng(seed + 2);
    ReplayWindow w;
    std::vector<bool> seen(1 << 22);
    uint64_t highest = 0;
    bool any = false;
    for (uint64_t n = 0; n < 200'000; ++n) {
        const uint32_t kind = rng.below(1000);
        uint64_t number = highest + rng.below(4);
        if (kind < 500) number = highest - std::min<uint64_t>(highest, rng.below(ReplayWindow::kPackets + 100));
        else if (kind == 999) number = highest + rng.below(ReplayWindow::kPackets * 2);
        if (number >= seen.size()) break;
        const bool is_new = !seen[number] && (!any || number + ReplayWindow::kPackets > highest);
        require(w.admits(number) == is_new, "the window errs about", number);
        if (!is_new) continue;
        w.mark(number);
        seen[number] = any = true;
        highest = std::max(highest, number);
    }
}

void keys_follow_each_other_and_numbers_never_repeat() {
    PacketProtection a(config(true, ProtectionMode::Encrypt, 16, 4)), b(config(false, ProtectionMode::Encrypt, 16, 4));
    std::vector<Bytes> kept;
    for (uint64_t n = 0; n < 160; ++n) {
        kept.push_back(seal(a, Bytes(20, 9)));
        require(number_of(kept.back()) == n, "a number is not the next", n);
        for (size_t k = 0; k + 1 < kept.size(); ++k)
            require(payload_of(kept[k]) != payload_of(kept.back()), "two packets have the same key stream", n);
    }
    require(a.key_updates() == 9, "keys were not replaced", a.key_updates());
    // The last of an epoch comes after the first of the next: both can be read.
    std::swap(kept[15], kept[17]);
    for (size_t n = 0; n < kept.size(); ++n) require(open(b, kept[n]) == Opened::Ok, "lost at a change of keys", n);
    require(b.key_updates() == 9, "the receiver did not follow", b.key_updates());
    Bytes ahead = seal(a, Bytes(20));
    wire::store_be64(ahead.data() + ahead.size() - kProtectionBytes, 1ull << 40);
    require(open(b, ahead) == Opened::Forged, "a number far ahead was believed");
    Bytes next = seal(a, Bytes(20));
    require(open(b, next) == Opened::Ok, "a forged number has moved the keys");
}

// ---- the table ------------------------------------------------------------------------------------------------------

ConnectionConfig connection() {
    ConnectionConfig c;
    c.mtu_bytes = 256;
    c.burst_packets = 4;
    return c;
}
Bytes plain(uint32_t qpn, wire::Opcode op, const Bytes& payload) {
    wire::Packet p;
    p.bth.opcode = op;
    p.bth.dest_qpn = qpn;
    p.erth.context = qpn;
    p.bth.has_timestamp = wire::is_data(op);
    p.reth.dma_length_bytes = static_cast<uint32_t>(payload.size());
    p.neth.reason = wire::NackReason::UnexpectedEvent;
    Bytes out(wire::kMaxHeaderBytes);
    out.resize(wire::encode_header(p, out.data()));
    out.insert(out.end(), payload.begin(), payload.end());
    out.resize(out.size() + wire::kIcrcBytes);
    return out;
}
/// What leaves of a plain packet through a table.
Bytes through(ProtectionTable& t, uint32_t i, const Bytes& packet) {
    TxBurst b;
    b.connection = i;
    b.count = 1;
    TxBurst::Segment& s = b.segments[0];
    const auto op = static_cast<wire::Opcode>(packet[0]);
    s.header_bytes = static_cast<uint32_t>(wire::header_bytes_of(op, packet[8] & 0x10));
    std::copy_n(packet.begin(), s.header_bytes, s.header);
    s.payload = packet.data() + s.header_bytes;
    s.payload_bytes = static_cast<uint32_t>(packet.size() - s.header_bytes - wire::kIcrcBytes);
    s.trailer_bytes = wire::kIcrcBytes;
    std::fill_n(s.trailer, sizeof s.trailer, 0);
    require(t.seal(b), "nothing is sealed");
    Bytes out(s.header, s.header + s.header_bytes);
    out.insert(out.end(), s.payload, s.payload + s.payload_bytes);
    out.insert(out.end(), s.trailer, s.trailer + s.trailer_bytes);
    return out;
}
bool admits(ProtectionTable& t, Bytes d, const Bytes* as = nullptr) {
    Arrival a;
    a.trimmed = 1;
    size_t bytes = d.size();
    const bool is_admitted = t.admit(a, d.data(), bytes);
    if (is_admitted && as) {
        require(a.is_authentic && a.trimmed == 0, "not marked as authentic");
        require(bytes == as->size() && std::equal(as->begin(), as->end() - wire::kIcrcBytes, d.begin()), "not the packet that was sent");
    }
    return is_admitted;
}

void the_table_lets_only_the_peer_through() {
    constexpr uint32_t kOther = 6, kOurs = 5, kQpnA = 0x123400 | kOther, kQpnB = 0x567800 | kOurs;
    ProtectionTable a(8), b(8);
    for (const wire::Opcode op : {wire::Opcode::WriteOnly, wire::Opcode::Sack, wire::Opcode::Probe, wire::Opcode::EndpointRequest})
        require(admits(b, plain(kQpnB, op, {})), "without protection everything passes");
    const auto keys = [](bool is_a) { return std::make_unique<PacketProtection>(config(is_a, ProtectionMode::Encrypt, 16)); };
    a.add(kOther, kQpnA, connection(), keys(true));
    b.add(kOurs, kQpnB, connection(), keys(false));
    for (const wire::Opcode op : {wire::Opcode::WriteOnly, wire::Opcode::WriteMiddle, wire::Opcode::Sack, wire::Opcode::Nack, wire::Opcode::Probe,
                                  wire::Opcode::Ack, wire::Opcode::EndpointRequest, wire::Opcode::EndpointResponse}) {
        const Bytes packet = plain(kQpnB, op, wire::is_data(op) ? Bytes(200, 7) : Bytes{});
        if (op != wire::Opcode::EndpointResponse) require(!admits(b, packet), "an unprotected packet passed", static_cast<uint8_t>(op));
        if (op == wire::Opcode::EndpointResponse) continue;  // plain() does not give it a context
        const Bytes sealed = through(a, kOther, packet);
        for (size_t n = 0; n < sealed.size(); ++n) (void)admits(b, Bytes(sealed.begin(), sealed.begin() + static_cast<std::ptrdiff_t>(n)));
        require(admits(b, sealed, &packet), "a genuine packet was stopped", static_cast<uint8_t>(op));
        require(!admits(b, sealed), "a packet passed twice", static_cast<uint8_t>(op));
    }
    require(b.counters().replayed == 7 && b.counters().opened == 7, "counted", b.counters().replayed);
    require(admits(b, plain(kQpnB ^ 8, wire::Opcode::Sack, {})), "a packet to another connection is the protocol's affair");
    b.remove(kOurs);
    require(admits(b, plain(kQpnB, wire::Opcode::Sack, {})), "protection outlives its connection");
}

void a_farewell_that_comes_before_the_keys_is_kept() {
    constexpr uint32_t kQpn = 0x432100 | 3;
    ProtectionTable a(8), b(8);
    a.add(1, 0x77770001, connection(), std::make_unique<PacketProtection>(config(true, ProtectionMode::Authenticate, 32)));
    const Bytes packet = plain(kQpn, wire::Opcode::Nack, {});
    const Bytes sealed = through(a, 1, packet);
    require(!admits(b, sealed) && b.counters().unknown == 1, "nobody can have opened it");
    b.add(3, kQpn, connection(), std::make_unique<PacketProtection>(config(false, ProtectionMode::Authenticate, 32)));
    uint8_t* data = nullptr;
    size_t bytes = 0;
    require(b.take_early(3, data, bytes) && bytes == sealed.size(), "it was not kept");
    require(admits(b, Bytes(data, data + bytes), &packet), "it is not what was sent");
    require(!b.take_early(3, data, bytes), "it is there twice");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) seed = std::strtoull(argv[1], nullptr, 10);
    if (argc > 2) iterations = std::strtoull(argv[2], nullptr, 10);
    if (!LibCrypto::get()) {
        std::printf("FAILED: %s\n", LibCrypto::why_not().c_str());
        return 1;
    }
    what_is_sealed_comes_out_once_and_only_as_it_was();
    packets_out_of_order_come_through_within_the_window();
    the_window_agrees_with_a_set_of_all_numbers();
    keys_follow_each_other_and_numbers_never_repeat();
    the_table_lets_only_the_peer_through();
    a_farewell_that_comes_before_the_keys_is_kept();
    return 0;
}
