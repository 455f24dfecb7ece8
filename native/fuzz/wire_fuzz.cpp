// Throws bytes at the packet decoders. Every input sits in a heap buffer of exactly its size, so that under
// AddressSanitizer a single byte read too far ends the run.
//
//   wire_fuzz SEED ITERATIONS      exit 0: nothing found
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "farstep/wire.hpp"

namespace w = farstep::wire;

namespace {

uint64_t seed = 1, iterations = 1000, iteration = 0;

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            std::printf("%s:%d: %s does not hold in iteration %llu\nseed %llu\nreproduce: wire_fuzz %llu %llu\n", \
                        __FILE__, __LINE__, #condition, static_cast<unsigned long long>(iteration),  \
                        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed), \
                        static_cast<unsigned long long>(iteration + 1));                             \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (false)

struct SplitMix {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n) { return next() % n; }
    bool coin() { return next() & 1; }
};

constexpr w::Opcode kOpcodes[] = {
    w::Opcode::WriteFirst, w::Opcode::WriteMiddle,     w::Opcode::WriteLast,        w::Opcode::WriteLastImm,
    w::Opcode::WriteOnly,  w::Opcode::WriteOnlyImm,    w::Opcode::Ack,              w::Opcode::EndpointRequest,
    w::Opcode::EndpointResponse, w::Opcode::Sack,      w::Opcode::Nack,             w::Opcode::Probe,
};

std::vector<uint8_t> random_bytes(SplitMix& rng, size_t bytes) {
    std::vector<uint8_t> out(bytes);
    for (uint8_t& b : out) b = static_cast<uint8_t>(rng.next());
    return out;
}

// A packet that decode accepts, most of the time: random header bytes made consistent.
[[maybe_unused]] std::vector<uint8_t> plausible(SplitMix& rng) {
    const w::Opcode op = kOpcodes[rng.below(std::size(kOpcodes))];
    w::Packet p;
    p.bth.opcode = op;
    p.bth.psn = static_cast<uint32_t>(rng.next());
    p.bth.dest_qpn = static_cast<uint32_t>(rng.next());
    p.bth.has_timestamp = w::is_data(op) && rng.coin();
    size_t payload_bytes = 0;
    if (w::is_data(op)) {
        payload_bytes = w::is_only(op) ? rng.below(300) : 1 + rng.below(300);
        p.bth.pad_bytes = static_cast<uint8_t>(w::pad_bytes_for(payload_bytes));
        p.reth = {rng.next(), static_cast<uint32_t>(rng.next()), static_cast<uint32_t>(payload_bytes)};
        if (!w::is_only(op)) p.reth.dma_length_bytes += static_cast<uint32_t>(rng.below(1u << 30));
        if (!w::is_only(op) && rng.coin()) p.reth.dma_length_bytes = 0xFFFFFFFFu;
    }
    p.seth.bitmap = rng.next();
    p.seth.cack_psn = static_cast<uint32_t>(rng.next());
    p.seth.mark = static_cast<w::SackMark>(rng.below(3));
    p.neth.reason = w::NackReason::Trimmed;
    p.erth.op = static_cast<w::EndpointOp>(rng.below(2));
    std::vector<uint8_t> out(w::kMaxHeaderBytes);
    out.resize(w::encode_header(p, out.data()));
    const size_t header_bytes = out.size();
    CHECK(header_bytes == w::header_bytes_of(op, p.bth.has_timestamp));
    const std::vector<uint8_t> payload = random_bytes(rng, payload_bytes);
    out.insert(out.end(), payload.begin(), payload.end());
    out.resize(out.size() + p.bth.pad_bytes);
    uint8_t icrc[4];
    w::store_le32(icrc, w::icrc(w::icrc_seed_plain(), out.data(), header_bytes, payload.data(), payload.size(),
                                out.data() + header_bytes + payload_bytes, p.bth.pad_bytes));
    out.insert(out.end(), icrc, icrc + 4);
    w::Packet again;
    CHECK(w::decode(out.data(), out.size(), again) == w::DecodeResult::Ok);
    CHECK(w::icrc_matches(w::icrc_seed_plain(), out.data(), out.size()));
    CHECK(again.payload_bytes == payload_bytes);
    CHECK(payload_bytes == 0 || std::memcmp(again.payload, payload.data(), payload_bytes) == 0);
    return out;
}

[[maybe_unused]] void damage(SplitMix& rng, std::vector<uint8_t>& data) {
    for (uint64_t n = rng.below(4); n && !data.empty(); --n) {
        const size_t at = rng.below(data.size());
        switch (rng.below(6)) {
            case 0: data[at] ^= static_cast<uint8_t>(1u << rng.below(8)); break;
            case 1: data[at] = static_cast<uint8_t>(rng.next()); break;
            case 2: data.resize(at); break;
            case 4:  // headers and checksum with nothing between them, whatever the padding bits say
                if (data.size() > 8 && w::is_known(static_cast<w::Opcode>(data[0])))
                    data.resize(w::header_bytes_of(static_cast<w::Opcode>(data[0]), data[8] & 0x10) + w::kIcrcBytes);
                break;
            case 3: data.insert(data.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(rng.next())); break;
            default: data[0] = static_cast<uint8_t>(kOpcodes[rng.below(std::size(kOpcodes))]); break;
        }
    }
}

// What decode accepted lies inside the datagram and survives another trip.
void check_accepted(const uint8_t* data, size_t bytes, const w::Packet& p, bool trimmed) {
    CHECK(w::is_known(p.bth.opcode));
    CHECK(p.bth.psn <= w::kPsnMask && p.bth.dest_qpn <= w::kQpnMask);
    CHECK(p.header_bytes <= bytes && p.header_bytes <= w::kMaxHeaderBytes);
    if (p.payload) {
        CHECK(w::is_data(p.bth.opcode) && !trimmed);
        CHECK(p.payload == data + p.header_bytes);
        CHECK(p.payload_bytes <= bytes);  // before the sum below can wrap
        CHECK(p.header_bytes + p.payload_bytes + p.bth.pad_bytes + w::kIcrcBytes == bytes);
        CHECK(p.payload_bytes <= p.reth.dma_length_bytes);
    } else {
        CHECK(p.payload_bytes == 0);
    }
    if (trimmed) return;
    uint8_t header[w::kMaxHeaderBytes];
    const size_t header_bytes = w::encode_header(p, header);
    CHECK(header_bytes == p.header_bytes);
    std::vector<uint8_t> rewritten(data, data + bytes);
    std::memcpy(rewritten.data(), header, header_bytes);
    w::Packet again;
    CHECK(w::decode(rewritten.data(), bytes, again) == w::DecodeResult::Ok);
    uint8_t second[w::kMaxHeaderBytes];
    CHECK(w::encode_header(again, second) == header_bytes);
    CHECK(std::memcmp(header, second, header_bytes) == 0);
}

void feed(const std::vector<uint8_t>& input) {
    const size_t bytes = input.size();
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes]);
    if (bytes) std::memcpy(exact.get(), input.data(), bytes);
    w::Packet p;
    const w::DecodeResult whole = w::decode(exact.get(), bytes, p);
    CHECK(whole < w::DecodeResult::Count && std::strcmp(w::name(whole), "?") != 0);
    if (whole == w::DecodeResult::Ok) check_accepted(exact.get(), bytes, p, false);
    w::Packet cut;
    const w::DecodeResult trimmed = w::decode_trimmed(exact.get(), bytes, cut);
    CHECK(trimmed < w::DecodeResult::Count);
    if (trimmed == w::DecodeResult::Ok) check_accepted(exact.get(), bytes, cut, true);
    if (bytes >= w::kMinPacketBytes) (void)w::icrc_matches(w::icrc_seed_plain(), exact.get(), bytes);
}

}  // namespace

#ifdef FARSTEP_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    feed(std::vector<uint8_t>(data, data + bytes));
    return 0;
}

#else

int main(int argc, char** argv) {
    if (argc > 1) seed = std::strtoull(argv[1], nullptr, 10);
    if (argc > 2) iterations = std::strtoull(argv[2], nullptr, 10);
    SplitMix rng{seed};
    for (iteration = 0; iteration < iterations; ++iteration) {
        switch (rng.below(3)) {
            case 0: feed(random_bytes(rng, rng.below(120))); break;
            case 1: {
                std::vector<uint8_t> data = random_bytes(rng, 1 + rng.below(120));
                data[0] = static_cast<uint8_t>(kOpcodes[rng.below(std::size(kOpcodes))]);
                if (data.size() > 1 && rng.coin()) data[1] &= 0xC0;
                feed(data);
                break;
            }
            default: {
                std::vector<uint8_t> data = plausible(rng);
                damage(rng, data);
                feed(data);
                break;
            }
        }
    }
    return 0;
}

#endif
