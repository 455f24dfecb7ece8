// farstep._native.wire: the packet codec as dictionaries, for tests and tools. The data path never comes through here.
// A class of static functions rather than a submodule, because a stub generator describes it in the module's own stub.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "farstep/wire.hpp"

namespace nb = nanobind;
namespace w = farstep::wire;

namespace {

struct Wire {};

using Fields = nb::typed<nb::dict, nb::str, nb::any>;
using Decoded = nb::typed<nb::tuple, nb::str, nb::typed<nb::object, std::optional<Fields>>>;
using Names = nb::typed<nb::list, nb::str>;

const uint8_t* bytes_of(const nb::bytes& b) { return static_cast<const uint8_t*>(b.data()); }

// One list of fields per header serves both directions, so reading and writing cannot drift apart.
template <class V>
void visit_bth(V& v, w::Bth& b) {
    v("opcode", b.opcode), v("solicited", b.solicited), v("migrated", b.migrated), v("pad_bytes", b.pad_bytes);
    v("pkey", b.pkey), v("dest_qpn", b.dest_qpn), v("ack_request", b.ack_request), v("rtx", b.rtx);
    v("has_timestamp", b.has_timestamp), v("psn", b.psn);
}
template <class V>
void visit_seth(V& v, w::Seth& s) {
    v("mark", s.mark), v("probe_reply", s.probe_reply), v("ack_psn_offset", s.ack_psn_offset);
    v("entropy", s.entropy), v("cack_psn", s.cack_psn), v("cc_type", s.cc_type), v("cc_flags", s.cc_flags);
    v("mpr", s.mpr), v("sack_offset", s.sack_offset), v("bitmap", s.bitmap);
}
template <class V>
void visit_cc(V& v, w::CcState& c) {
    v("timestamp", c.timestamp), v("ooo_count", c.ooo_count), v("restore_cwnd", c.restore_cwnd);
    v("rcv_cwnd_pen", c.rcv_cwnd_pen), v("rcvd_units", c.rcvd_units);
}
template <class V>
void visit_neth(V& v, w::Neth& n) {
    v("reason", n.reason), v("vendor", n.vendor), v("entropy", n.entropy), v("nack_psn", n.nack_psn);
    v("cc_type", n.cc_type), v("cc_flags", n.cc_flags), v("timestamp", n.timestamp);
}

struct Reader {  // struct -> dict
    nb::dict fields;
    void operator()(const char* key, const bool& value) { fields[key] = nb::bool_(value); }
    template <class T>
    void operator()(const char* key, const T& value) {
        if constexpr (std::is_enum_v<T>) fields[key] = nb::int_(static_cast<int>(value));
        else if constexpr (std::is_signed_v<T>) fields[key] = nb::int_(static_cast<long>(value));
        else fields[key] = nb::int_(static_cast<unsigned long>(value));
    }
};
struct Writer {  // dict -> struct; absent keys keep their defaults
    nb::dict fields;
    template <class T>
    void operator()(const char* key, T& value) {
        if (!fields.contains(key)) return;
        if constexpr (std::is_enum_v<T>) value = static_cast<T>(nb::cast<uint8_t>(nb::int_(fields[key])));
        else value = nb::cast<T>(fields[key]);
    }
};

// Calls `part(key, visitor function)` for each header of the packet's opcode.
template <class V, class Part>
void visit_packet(w::Packet& p, Part&& part) {
    switch (p.bth.opcode) {
        case w::Opcode::Sack:
            part("seth", [&](V& v) { visit_seth(v, p.seth); });
            part("cc", [&](V& v) { visit_cc(v, p.cc); });
            return;
        case w::Opcode::Nack: part("neth", [&](V& v) { visit_neth(v, p.neth); }); return;
        case w::Opcode::Ack:
            part("aeth", [&](V& v) { v("syndrome", p.aeth.syndrome), v("msn", p.aeth.msn); });
            return;
        case w::Opcode::Probe:
            part("peth", [&](V& v) {
                v("vendor", p.peth.vendor), v("probe_id", p.peth.probe_id), v("timestamp", p.peth.timestamp);
            });
            return;
        case w::Opcode::EndpointRequest:
            part("erth", [&](V& v) {
                v("op", p.erth.op), v("vendor", p.erth.vendor), v("port_status_mask", p.erth.port_status_mask);
                v("context", p.erth.context), v("timestamp", p.erth.timestamp);
            });
            return;
        case w::Opcode::EndpointResponse:
            part("eeth", [&](V& v) {
                v("op", p.eeth.op), v("vendor", p.eeth.vendor), v("context", p.eeth.context);
                v("timestamp", p.eeth.timestamp);
            });
            return;
        default: break;
    }
    part("meth", [&](V& v) { v("rqmsn", p.meth.rqmsn), v("msn", p.meth.msn); });
    if (p.bth.has_timestamp) part("tseth", [&](V& v) { v("timestamp", p.tseth.timestamp); });
    part("reth", [&](V& v) {
        v("va", p.reth.va), v("rkey", p.reth.rkey), v("dma_length_bytes", p.reth.dma_length_bytes);
    });
}

nb::dict to_dict(w::Packet& p, bool trimmed) {
    nb::dict result;
    Reader bth;
    visit_bth(bth, p.bth);
    result["bth"] = bth.fields;
    visit_packet<Reader>(p, [&](const char* key, auto&& fill) {
        Reader header;
        fill(header);
        result[key] = header.fields;
    });
    if (w::is_data(p.bth.opcode) && !trimmed) {
        if (w::has_immediate(p.bth.opcode)) result["immediate"] = p.immediate;
        result["payload"] = nb::bytes(reinterpret_cast<const char*>(p.payload), p.payload_bytes);
    }
    result["header_bytes"] = p.header_bytes;
    if (!trimmed) result["icrc"] = p.icrc;
    return result;
}

using Decode = w::DecodeResult (*)(const uint8_t*, size_t, w::Packet&) noexcept;

Decoded decode_with(Decode decode, bool trimmed, const nb::bytes& data) {
    w::Packet p;
    const w::DecodeResult r = decode(bytes_of(data), data.size(), p);
    if (r != w::DecodeResult::Ok) return nb::make_tuple(nb::str(w::name(r)), nb::none());
    return nb::make_tuple(nb::str(w::name(r)), to_dict(p, trimmed));
}

bool has(const nb::dict& packet, const char* key) { return packet.contains(key) && !packet[key].is_none(); }

nb::bytes encode_header(const Fields& packet) {
    if (!has(packet, "bth")) throw nb::value_error("bth: missing");
    w::Packet p;
    Writer bth{nb::cast<nb::dict>(packet["bth"])};
    visit_bth(bth, p.bth);
    visit_packet<Writer>(p, [&](const char* key, auto&& fill) {
        if (!has(packet, key)) return;
        Writer header{nb::cast<nb::dict>(packet[key])};
        fill(header);
    });
    if (has(packet, "immediate")) p.immediate = nb::cast<uint32_t>(packet["immediate"]);
    uint8_t out[w::kMaxHeaderBytes];
    const size_t bytes = w::encode_header(p, out);
    if (bytes == 0) throw nb::value_error("opcode: not one of the MRC opcodes");
    return nb::bytes(reinterpret_cast<const char*>(out), bytes);
}

using Update = uint32_t (*)(uint32_t, const uint8_t*, size_t) noexcept;
using Copy = uint32_t (*)(uint32_t, uint8_t*, const uint8_t*, size_t) noexcept;
struct Variant {
    const char* name;
    Update update;
    Copy copy;
    bool available;
};

const Variant& variant(const std::string& wanted) {
    static const Variant all[] = {
        {"auto", farstep::crc32_update, farstep::crc32_copy, true},
        {"table", farstep::crc32_update_table, farstep::crc32_copy_table, true},
#ifdef FARSTEP_CRC32_X86
        {"clmul", farstep::crc32_update_clmul, farstep::crc32_copy_clmul, farstep::crc32_has_clmul()},
        {"vclmul", farstep::crc32_update_vclmul, farstep::crc32_copy_vclmul, farstep::crc32_has_vclmul()},
#endif
    };
    for (const Variant& v : all)
        if (wanted == v.name && v.available) return v;
    throw std::invalid_argument("variant: \"" + wanted + "\" is not one of crc32_variants()");
}

Names crc32_variants() {
    Names names;
    for (const char* n : {"auto", "table"}) names.append(n);
    if (farstep::crc32_has_clmul()) names.append("clmul");
    if (farstep::crc32_has_vclmul()) names.append("vclmul");
    return names;
}

// `offset` skips bytes of the argument, so that tests can vary the alignment.
nb::typed<nb::tuple, uint32_t, nb::bytes> crc32_copy(uint32_t crc, const nb::bytes& data, size_t offset, const std::string& which) {
    if (offset > data.size()) throw std::invalid_argument("offset: beyond the end of data");
    std::string out(data.size() - offset, '\0');
    crc = variant(which).copy(crc, reinterpret_cast<uint8_t*>(out.data()), bytes_of(data) + offset, out.size());
    return nb::make_tuple(crc, nb::bytes(out.data(), out.size()));
}

uint32_t crc32_update(uint32_t crc, const nb::bytes& data, size_t offset, const std::string& which) {
    if (offset > data.size()) throw std::invalid_argument("offset: beyond the end of data");
    return variant(which).update(crc, bytes_of(data) + offset, data.size() - offset);
}

void fill_address(uint8_t out[16], const nb::bytes& address, const char* field) {
    if (address.size() != 16) throw std::invalid_argument(std::string(field) + ": an IPv6 address has 16 bytes");
    std::memcpy(out, address.data(), 16);
}

nb::bytes encode_ipv6_udp(const nb::bytes& source, const nb::bytes& destination, uint32_t entropy, size_t packet_bytes,
                          uint8_t traffic_class, uint8_t hop_limit, uint16_t destination_port) {
    w::Ipv6Udp h;
    fill_address(h.source, source, "source");
    fill_address(h.destination, destination, "destination");
    h.traffic_class = traffic_class;
    h.hop_limit = hop_limit;
    h.flow_label = w::ev_flow_label(entropy);
    h.source_port = w::ev_source_port(entropy);
    h.destination_port = destination_port;
    uint8_t out[w::kIpv6UdpBytes];
    w::encode_ipv6_udp(h, packet_bytes, out);
    return nb::bytes(reinterpret_cast<const char*>(out), sizeof out);
}

}  // namespace

void bind_wire(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Wire> wire(m, "wire", "The compiled packet codec, as dictionaries. For tests and tools.");
    wire.attr("ICRC_SEED_ONES") = w::kIcrcSeedOnes;
    wire.attr("UDP_PORT") = w::kUdpPort;
    wire.def_static("decode", [](const nb::bytes& data) { return decode_with(w::decode, false, data); }, "data"_a,
             "Return (\"ok\", fields) or (reason, None) for one datagram, BTH to iCRC. Never raises.");
    wire.def_static("decode_trimmed", [](const nb::bytes& data) { return decode_with(w::decode_trimmed, true, data); },
             "data"_a, "Like decode, for a data packet whose payload a switch has cut.");
    wire.def_static("encode_header", &encode_header, "packet"_a, "Return BTH and the headers of the opcode as bytes.");
    wire.def_static("decode_reasons", [] {
        Names names;
        for (uint8_t i = 0; i < static_cast<uint8_t>(w::DecodeResult::Count); ++i)
            names.append(w::name(static_cast<w::DecodeResult>(i)));
        return names;
    }, "Every answer that decode and decode_trimmed know.");
    wire.def_static("icrc", [](uint32_t seed, const nb::bytes& header, const nb::bytes& payload, const nb::bytes& pad) {
        return w::icrc(seed, bytes_of(header), header.size(), bytes_of(payload), payload.size(), bytes_of(pad), pad.size());
    }, "seed"_a, "header"_a, "payload"_a = nb::bytes("", 0), "pad"_a = nb::bytes("", 0),
             "Return the invariant CRC, to be stored little-endian.");
    wire.def_static("icrc_seed_ipv6", [](const nb::bytes& headers) {
        if (headers.size() != w::kIpv6UdpBytes) throw std::invalid_argument("headers: 48 bytes of IPv6 and UDP");
        return w::icrc_seed_ipv6(bytes_of(headers));
    }, "headers"_a, "Seed that covers the 48 bytes of IPv6 and UDP header.");
    wire.def_static("icrc_seed_plain", &w::icrc_seed_plain, "Seed when the checksum starts at the BTH.");
    wire.def_static("icrc_matches", [](uint32_t seed, const nb::bytes& data) {
        return data.size() >= w::kMinPacketBytes && w::icrc_matches(seed, bytes_of(data), data.size());
    }, "seed"_a, "data"_a, "True when a datagram carries the checksum of its content.");
    wire.def_static("encode_ipv6_udp", &encode_ipv6_udp, "source"_a, "destination"_a, "entropy"_a, "packet_bytes"_a,
             "traffic_class"_a = 0, "hop_limit"_a = 64, "destination_port"_a = w::kUdpPort,
             "Return the 48 bytes in front of a packet; the entropy value sits in flow label and source port.");
    wire.def_static("ev_from", &w::ev_from, "flow_label"_a, "source_port"_a, "Entropy value as a receiver sees it.");
    wire.def_static("crc32_variants", &crc32_variants, "Names of the CRC-32 implementations this machine can run.");
    wire.def_static("crc32_update", &crc32_update, "crc"_a, "data"_a, "offset"_a = 0, "variant"_a = "auto",
             "Feed data[offset:] to the raw register.");
    wire.def_static("crc32_copy", &crc32_copy, "crc"_a, "data"_a, "offset"_a = 0, "variant"_a = "auto",
             "crc32_update that also copies; returns (register, copy).");
}
