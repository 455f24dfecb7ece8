// Two endpoints under a script of hostile datagrams, writes and time: decode, receiver, SACK handling, probes, endpoint
// operations. The input is the script. It may ask that a datagram gets right what an attacker can know, the queue pair number,
// a position near the present one, a key; the rest is as it stands.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../tests/endpoint_rig.hpp"
#include "seeded_main.hpp"

namespace {

class Script {
public:
    Script(const uint8_t* data, size_t bytes) : at_(data), end_(data + bytes) {}
    bool is_over() const noexcept { return at_ == end_; }
    uint8_t byte() noexcept { return at_ == end_ ? 0 : *at_++; }
    uint16_t pair() noexcept { return static_cast<uint16_t>(byte() << 8 | byte()); }
    Bytes bytes(size_t n) {
        const size_t most = std::min(n, static_cast<size_t>(end_ - at_));
        Bytes out(at_, at_ + most);
        at_ += most;
        return out;
    }

private:
    const uint8_t *at_, *end_;
};

enum Help : uint8_t { kQueuePair = 1, kPosition = 2, kKey = 4, kChecksum = 8, kTime = 16, kTrimmed = 32, kMarked = 64 };
constexpr size_t kPsnAt = 9, kReportAt = 12 + 13, kContextAt = 20;

void put24(Bytes& d, size_t at, uint32_t value) {
    if (d.size() >= at + 3) wire::store_be24(d.data() + at, value & wire::kPsnMask);
}

/// Makes right what the script asks for.
void help(Rig& rig, Side& s, Connection& c, Bytes& d, uint8_t how) {
    if (d.size() < wire::kMinPacketBytes) return;
    d[1] &= 0xF0;
    const auto op = static_cast<wire::Opcode>(d[0]);
    const bool is_operation = op == wire::Opcode::EndpointRequest || op == wire::Opcode::EndpointResponse;
    if (how & kQueuePair) put24(d, is_operation ? kContextAt + 1 : 5, c.config().qpn);
    if (is_operation && how & kKey && d.size() > kContextAt) {
        const uint32_t psn = c.config().peer_start_psn;
        d[kContextAt] = static_cast<uint8_t>(psn >> 16), d[15] = static_cast<uint8_t>(psn >> 8), d[9] = static_cast<uint8_t>(psn);
    }
    if (how & kPosition) {
        const auto near = static_cast<int8_t>(d[11]);
        if (wire::is_data(op)) put24(d, kPsnAt, static_cast<uint32_t>(c.receiver().expected_psn() + near));
        else if (op == wire::Opcode::Sack || op == wire::Opcode::Nack) put24(d, kReportAt, static_cast<uint32_t>(c.sender().una() + near));
        else if (op == wire::Opcode::Ack) put24(d, 13, static_cast<uint32_t>(c.sender().queue().completed() + near));
    }
    const size_t reth = wire::kBthBytes + wire::kMethBytes + (d[8] & 0x10 ? wire::kTsethBytes : 0);
    if (how & kKey && wire::is_data(op) && d.size() >= reth + wire::kRethBytes) wire::store_be32(d.data() + reth + 8, s.key);
    if (how & kTime && wire::is_data(op) && d[8] & 0x10 && d.size() >= 20) wire::store_be16(d.data() + 18, 1);
    if (how & kTime && op == wire::Opcode::Sack && d.size() >= 42) wire::store_be16(d.data() + 40, timestamp_of(rig.now - d[40]));
    if (how & kTime && op == wire::Opcode::Nack && d.size() >= 32) wire::store_be16(d.data() + 30, timestamp_of(rig.now - d[30]));
    if (how & kChecksum) {
        const size_t body = d.size() - wire::kIcrcBytes, head = std::min(body, wire::kMaxHeaderBytes);
        wire::store_le32(d.data() + body, wire::icrc(wire::icrc_seed_plain(), d.data(), head, d.data() + head, body - head));
    }
}

void deliver(Rig& rig, Side& s, Script& script) {
    const uint8_t how = script.byte();
    const size_t length = script.byte() * (how & 0x80 ? 4 : 1);
    Bytes d = script.bytes(length);
    Connection& c = *s.core.connection(s.slots[0]);
    help(rig, s, c, d, how);
    Arrival at;
    at.local_port = how >> 7;
    at.entropy = how;
    at.ecn_ce = how & kMarked;
    at.trimmed = how & kTrimmed ? 1 + (length & 1) : 0;
    const Bytes exact(d);
    s.core.on_datagram(rig.now, at, exact.data(), exact.size());
}

void step(Rig& rig, Script& script) {
    const uint8_t op = script.byte();
    Side& s = op & 0x80 ? rig.a : rig.b;
    uint32_t value = 0;
    bool must_transmit = false;
    switch (op & 7) {
        case 0:
        case 1:
        case 2: deliver(rig, s, script); break;
        case 3: {
            const uint8_t keep = script.byte();  // which of eight datagrams in a row arrive
            uint32_t n = 0;
            for (Side* from : {&rig.a, &rig.b}) rig.pump(*from, [&](const Bytes&) { return keep >> (n++ & 7) & 1; });
            break;
        }
        case 4:
            rig.now += 1000ull * script.pair();
            for (Side* side : {&rig.a, &rig.b}) rig.let_time_act(*side);
            break;
        case 5: rig.post(s, 0, script.pair() % 9000, op & 0x40); break;
        case 6: (void)s.core.pop_immediate(rig.now, s.slots[0], value, must_transmit); break;
        default:
            if (op & 0x40) s.core.set_local_port(rig.now, op >> 5 & 1, op & 0x10);
            else if (op & 0x20) s.core.regions().remove(s.key);
            else rig.now += 30'000'000;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes > 4096) return 0;
    Script script(data, bytes);
    RigOptions options;
    options.max_connections = 2;
    Rig rig(options);
    rig.connect();
    rig.settle(3);
    const Bytes readable = rig.b.memory;
    while (!script.is_over()) {
        for (Side* s : {&rig.a, &rig.b})
            if (!s->core.connection(s->slots[0])->is_open()) return 0;
        step(rig, script);
    }
    for (Side* s : {&rig.a, &rig.b}) rig.let_time_act(*s);
    return 0;
}
