// The endpoint for Python: numbers and plain structures in, numbers out. Calls that may wait release the GIL.
#include <atomic>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "bind.hpp"
#include "connection_parameters.hpp"
#include "farstep/event_loop.hpp"

namespace nb = nanobind;
using namespace farstep;

namespace {

// Counters are copied under the loop's lock and turned into Python objects after it: making those may run the garbage
// collector, which may close regions and endpoints, which take that lock.

struct PlaneRow {
    PlaneLink link;
    bool usable = false, down = false;
    uint32_t active = 0, good = 0, bad = 0;
    uint64_t tx_bytes = 0, acked_bytes = 0, lost = 0, inflight_bytes = 0, rtt_ns = 0;
    double weight = 0;
};
struct PathRow {
    EvValue value;
    uint8_t plane = 0;
    uint32_t state = 0;
    bool active = false;
    EvCounters counters;
    uint64_t rtt_ns = 0;
};
struct CongestionRow {
    uint64_t cwnd_bytes = 0, max_cwnd_bytes = 0;
    int64_t inflight_bytes = 0;
    uint64_t base_rtt_ns = 0, avg_delay_ns = 0, quick_adapts = 0;
    double rate_bytes_per_s = 0;
    uint64_t remote_ports = 0;
};
struct ConnectionSnapshot {
    bool exists = false;
    SenderCounters sender;
    ReceiverCounters receiver;
    ProbeCounters probes;
    uint64_t inflight_bytes = 0, srtt_ns = 0, rttvar_ns = 0, retries = 0, posted = 0, completed = 0, inferred_down = 0;
    CongestionRow congestion;
    std::vector<PlaneRow> planes;
    std::vector<PathRow> paths;
};

CongestionRow congestion_row(const Destination& t) {
    return {t.cc.cwnd_bytes(),   t.cc.max_cwnd_bytes(), t.cc.inflight_bytes(),   t.cc.base_rtt_ns(),
            t.cc.avg_delay_ns(), t.cc.quick_adapts(),   t.cc.rate_bytes_per_s(), t.remote_ports};
}
std::vector<PathRow> path_rows(const PathSet& p) {
    std::vector<PathRow> out(p.size());
    for (uint32_t i = 0; i < p.size(); ++i) {
        const EvIndex ev = static_cast<EvIndex>(i);
        out[i] = {p.value(ev),     p.plane(ev),    static_cast<uint32_t>(p.state(ev)),
                  p.is_active(ev), p.counters(ev), p.ev_rtt_ns(ev)};
    }
    return out;
}
std::vector<PlaneRow> plane_rows(const Connection& c) {
    const PathSet& p = c.paths();
    std::vector<PlaneRow> out(c.num_planes());
    for (uint32_t k = 0; k < c.num_planes(); ++k) {
        const uint8_t plane = static_cast<uint8_t>(k);
        PlaneRow& r = out[k];
        r.link = c.link(plane);
        r.usable = (p.plane_mask() >> k & 1) != 0;
        r.down = p.plane_down(plane);
        r.active = p.active_count(plane);
        r.good = p.good_count(plane);
        r.inflight_bytes = p.plane_inflight(plane);
        r.weight = p.plane_weight(plane);
        r.rtt_ns = p.plane_rtt_ns(plane);
    }
    for (uint32_t i = 0; i < p.size(); ++i) {
        const EvIndex ev = static_cast<EvIndex>(i);
        PlaneRow& r = out[p.plane(ev)];
        r.tx_bytes += p.counters(ev).sent_bytes;
        r.acked_bytes += p.counters(ev).acked_bytes;
        r.lost += p.counters(ev).lost;
        r.bad += p.state(ev) == EvState::AssumedBad;
    }
    return out;
}
ConnectionSnapshot snapshot(const Connection& c, const Destination& d, bool with_paths) {
    ConnectionSnapshot s;
    s.exists = true;
    s.sender = c.sender().counters();
    s.receiver = c.receiver().counters();
    s.probes = c.probes();
    s.inflight_bytes = c.sender().inflight_bytes();
    s.srtt_ns = c.sender().round_trip().srtt_ns;
    s.rttvar_ns = c.sender().round_trip().var_ns;
    s.retries = c.sender().retries();
    s.posted = c.sender().queue().posted();
    s.completed = c.completed_messages();
    s.inferred_down = c.planes_inferred_down();
    s.congestion = congestion_row(d);
    s.planes = plane_rows(c);
    if (with_paths) s.paths = path_rows(c.paths());
    return s;
}

nb::dict sender_dict(const ConnectionSnapshot& c) {
    const SenderCounters& s = c.sender;
    nb::dict d;
    d["tx_packets"] = s.packets;
    d["tx_bytes"] = s.bytes;
    d["retransmitted_packets"] = s.retransmitted;
    d["lost_order"] = s.lost_order;
    d["lost_late"] = s.lost_late;
    d["lost_timeout"] = s.lost_timeout;
    d["trimmed"] = s.trimmed;
    d["spurious_losses"] = s.spurious;
    d["soft_timeouts"] = s.soft_timeouts;
    d["timeouts"] = s.timeouts;
    d["sacks_received"] = s.sacks;
    d["nacks_received"] = s.nacks;
    d["acks_received"] = s.acks;
    d["invalid_sacks"] = s.invalid_sacks;
    d["inflight_bytes"] = c.inflight_bytes;
    d["srtt_ns"] = c.srtt_ns;
    d["rttvar_ns"] = c.rttvar_ns;
    d["retries"] = c.retries;
    d["posted"] = c.posted;
    d["completed"] = c.completed;
    d["probes_sent"] = c.probes.sent;
    d["probes_answered"] = c.probes.answered;
    d["probes_lost"] = c.probes.lost;
    d["planes_inferred_down"] = c.inferred_down;
    return d;
}
void add_receiver(const ReceiverCounters& r, nb::dict& d) {
    d["rx_packets"] = r.packets;
    d["rx_bytes"] = r.bytes;
    d["duplicates"] = r.duplicates;
    d["out_of_order"] = r.out_of_order;
    d["out_of_window"] = r.out_of_window;
    d["ecn_marked"] = r.ecn_ce;
    d["refused"] = r.refused;
    d["messages_received"] = r.messages;
    d["immediates_received"] = r.immediates;
    d["sacks_sent"] = r.sacks_sent;
    d["nacks_sent"] = r.nacks_sent;
    d["acks_sent"] = r.acks_sent;
}
nb::dict congestion_dict(const CongestionRow& c) {
    nb::dict d;
    d["cwnd_bytes"] = c.cwnd_bytes;
    d["max_cwnd_bytes"] = c.max_cwnd_bytes;
    d["inflight_bytes"] = c.inflight_bytes;
    d["base_rtt_ns"] = c.base_rtt_ns;
    d["avg_delay_ns"] = c.avg_delay_ns;
    d["quick_adapts"] = c.quick_adapts;
    d["rate_bytes_per_s"] = c.rate_bytes_per_s;
    d["remote_ports"] = c.remote_ports;
    return d;
}
nb::list path_list(const std::vector<PathRow>& rows) {
    nb::list out;
    for (size_t i = 0; i < rows.size(); ++i) {
        const PathRow& r = rows[i];
        nb::dict d;
        d["ev"] = i;
        d["plane"] = r.plane;
        d["local_port"] = r.value.local_port;
        d["remote_port"] = r.value.remote_port;
        d["source"] = r.value.source;
        d["value"] = r.value.value;
        d["state"] = r.state;
        d["active"] = r.active;
        d["tx_packets"] = r.counters.sent_packets;
        d["tx_bytes"] = r.counters.sent_bytes;
        d["acked_bytes"] = r.counters.acked_bytes;
        d["lost"] = r.counters.lost;
        d["ecn"] = r.counters.ecn;
        d["trims"] = r.counters.trims;
        d["condemned"] = r.counters.condemned;
        d["restores"] = r.counters.restores;
        d["rtt_ns"] = r.rtt_ns;
        out.append(d);
    }
    return out;
}
nb::list plane_list(const std::vector<PlaneRow>& rows) {
    nb::list out;
    for (size_t k = 0; k < rows.size(); ++k) {
        const PlaneRow& r = rows[k];
        nb::dict d;
        d["plane"] = k;
        d["local_port"] = r.link.local_port;
        d["remote_port"] = r.link.remote_port;
        d["usable"] = r.usable;
        d["down"] = r.down;
        d["active_evs"] = r.active;
        d["good_evs"] = r.good;
        d["bad_evs"] = r.bad;
        d["tx_bytes"] = r.tx_bytes;
        d["acked_bytes"] = r.acked_bytes;
        d["lost"] = r.lost;
        d["inflight_bytes"] = r.inflight_bytes;
        d["weight"] = r.weight;
        d["rtt_ns"] = r.rtt_ns;
        out.append(d);
    }
    return out;
}

/// Counts the Python threads inside a call that waits. Its end comes after the thread holds the GIL again.
class Inside {
public:
    explicit Inside(std::atomic<int>& n) : n_(n) { ++n_; }
    ~Inside() { --n_; }
    Inside(const Inside&) = delete;

private:
    std::atomic<int>& n_;
};

class PyEndpoint {
public:
    PyEndpoint(const std::vector<Address>& ports, uint32_t sources_per_port, int receive_buffer_bytes,
               int send_buffer_bytes, bool icrc, uint64_t seed, uint32_t max_connections, uint32_t max_regions,
               const std::vector<double>& port_rate_bytes_per_s, bool is_srv6, size_t datagram_bytes) {
        LoopConfig c;
        c.path_mode = is_srv6 ? PathMode::Srv6 : PathMode::Udp;
        c.datagram_bytes = datagram_bytes;
        if (ports.empty() || ports.size() > kMaxPorts) throw std::invalid_argument("between 1 and 32 ports are needed");
        for (const Address& a : ports) c.ports.push_back(to_socket(a));
        c.sources_per_port = sources_per_port;
        c.receive_buffer_bytes = receive_buffer_bytes;
        c.send_buffer_bytes = send_buffer_bytes;
        c.core.num_ports = static_cast<uint32_t>(ports.size());
        c.core.max_connections = max_connections;
        c.core.max_regions = max_regions;
        c.core.icrc = icrc;
        c.core.seed = seed;
        for (size_t i = 0; i < port_rate_bytes_per_s.size() && i < kMaxPorts; ++i)
            c.core.port_rate_bytes_per_s[i] = port_rate_bytes_per_s[i];
        loop_ = std::make_unique<EventLoop>(c);
    }

    std::vector<uint16_t> port_numbers() const {
        std::vector<uint16_t> out;
        for (uint32_t p = 0; p < loop_->num_ports(); ++p) out.push_back(loop_->port_address(p).port());
        return out;
    }
    std::vector<int> receive_buffer_bytes() const {
        std::vector<int> out;
        for (uint32_t p = 0; p < loop_->num_ports(); ++p) out.push_back(loop_->receive_buffer_bytes(p));
        return out;
    }
    uint16_t source_port(uint32_t port, uint32_t source) const { return loop_->source_port(port, source); }

    std::tuple<uint32_t, uint32_t, uint32_t> reserve_connection() {
        nb::gil_scoped_release r;
        return loop_->with_core([](EndpointCore& core, uint64_t) {
            uint32_t qpn = 0, psn = 0;
            const uint32_t i = core.reserve_connection(qpn, psn);
            return std::tuple(i, qpn, psn);
        });
    }
    void open_connection(uint32_t index, const ConnectionParameters& p) {
        PeerAddresses addresses = addresses_of(p);
        std::vector<PlaneLink> links;
        for (const auto& [local, remote] : p.links) links.push_back({local, remote});
        if (p.entropy_values.size() > kMaxEvs) throw std::invalid_argument("too many entropy values");
        std::unique_ptr<PacketProtection> keys = protection_of(p);
        const bool is_protected = keys != nullptr;
        nb::gil_scoped_release r;
        loop_->set_peer(index, std::move(addresses));
        if (is_protected) loop_->protect_connection(index, p.connection, std::move(keys));
        loop_->with_core([&](EndpointCore& core, uint64_t) {
            if (!core.is_reserved(index)) throw std::runtime_error("the connection is not reserved, or open already");
            ConnectionConfig c = p.connection;
            c.qpn = core.reserved_qpn(index);
            c.start_psn = core.reserved_start_psn(index);
            c.is_protected = is_protected;
            Connection& conn = core.open_connection(index, p.peer_id, c, p.congestion, links.data(),
                                                    static_cast<uint32_t>(links.size()));
            for (const auto& [plane, source, value, active] : p.entropy_values) {
                const PlaneLink& l = links.at(plane);
                conn.paths().add(plane, EvValue{l.local_port, l.remote_port, source, value}, active);
            }
            return 0;
        });
        loop_->start_connection(index);
    }

    /// `only_index`: the connection whose peer alone may write; UINT32_MAX for all.
    uint64_t add_region(uint64_t address, uint64_t length_bytes, bool writable, uint64_t secret, uint32_t only_index) {
        nb::gil_scoped_release r;
        return loop_->with_core([&](EndpointCore& core, uint64_t) {
            const uint32_t qpn = only_index == UINT32_MAX ? RegionTable::kAnyPeer : core.reserved_qpn(only_index);
            return core.regions().add(reinterpret_cast<uint8_t*>(address), length_bytes, writable, secret, qpn);
        });
    }
    bool remove_region(uint64_t key) {
        nb::gil_scoped_release r;
        return loop_->with_core([&](EndpointCore& core, uint64_t) { return core.regions().remove(static_cast<uint32_t>(key)); });
    }
    bool is_region_busy(uint64_t key) {
        nb::gil_scoped_release r;
        return loop_->with_core([&](EndpointCore& core, uint64_t) { return core.regions().is_busy(static_cast<uint32_t>(key)); });
    }

    uint64_t write(uint32_t i, uint64_t local_key, uint64_t local_offset, uint64_t length, uint64_t remote_key,
                   uint64_t remote_offset, int64_t immediate) {
        nb::gil_scoped_release r;
        return loop_->post(i, local_key, local_offset, length, remote_key, remote_offset, immediate >= 0,
                           static_cast<uint32_t>(immediate));
    }
    int wait_completion(uint32_t i, uint64_t number, uint64_t timeout_ns) {
        Inside in(inside_);
        nb::gil_scoped_release r;
        return static_cast<int>(loop_->wait_completion(i, number, timeout_ns));
    }
    std::pair<int, uint32_t> wait_immediate(uint32_t i, uint64_t timeout_ns) {
        Inside in(inside_);
        nb::gil_scoped_release r;
        uint32_t value = 0;
        const int result = static_cast<int>(loop_->wait_immediate(i, value, timeout_ns));
        return {result, value};
    }
    uint64_t wait_change(uint64_t seen, uint64_t timeout_ns) {
        Inside in(inside_);
        nb::gil_scoped_release r;
        return loop_->wait_change(seen, timeout_ns);
    }
    void abort_connection(uint32_t i) {
        nb::gil_scoped_release r;
        loop_->abort_connection(i);
    }
    uint64_t close_connection(uint32_t i) {
        nb::gil_scoped_release r;
        return loop_->close_connection(i);
    }
    std::string connection_error(uint32_t i) {
        nb::gil_scoped_release r;
        return loop_->with_core([&](EndpointCore& core, uint64_t) {
            Connection* c = core.connection(i);
            return std::string(c ? name(c->error()) : "closed");
        });
    }
    void set_local_port(uint32_t port, bool up) {
        nb::gil_scoped_release r;
        loop_->with_core([&](EndpointCore& core, uint64_t now) {
            core.set_local_port(now, port, up);
            return 0;
        });
        loop_->kick();
    }
    uint32_t connection_path_count(uint32_t i) {
        nb::gil_scoped_release r;
        return loop_->with_core([&](EndpointCore& core, uint64_t) {
            Connection* c = core.connection(i);
            return c ? c->paths().size() : 0u;
        });
    }
    void set_ev_denied(uint32_t i, uint16_t ev, bool denied) {
        nb::gil_scoped_release r;
        loop_->with_core([&](EndpointCore& core, uint64_t now) {
            core.set_ev_denied(now, i, ev, denied);
            return 0;
        });
        loop_->kick();
    }

    nb::dict connection_stats(uint32_t i, bool with_paths) {
        ConnectionSnapshot s;
        {
            nb::gil_scoped_release r;
            loop_->with_core([&](EndpointCore& core, uint64_t) {
                if (Connection* c = core.connection(i)) s = snapshot(*c, *core.destination(i), with_paths);
                return 0;
            });
        }
        if (!s.exists) return {};
        nb::dict out = sender_dict(s);
        add_receiver(s.receiver, out);
        out["congestion"] = congestion_dict(s.congestion);
        out["planes"] = plane_list(s.planes);
        if (with_paths) out["paths"] = path_list(s.paths);
        return out;
    }
    nb::dict stats() {
        EventLoop::LoopCounters l;
        EndpointCounters k;
        ProtectionCounters s;
        uint64_t cpu_ns = 0, local_ports = 0;
        uint32_t num_ports = 0;
        {
            nb::gil_scoped_release r;
            l = loop_->loop_counters();
            s = loop_->protection_counters();
            cpu_ns = loop_->thread_cpu_ns();
            loop_->with_core([&](EndpointCore& core, uint64_t) {
                k = core.counters();
                local_ports = core.local_ports();
                num_ports = core.config().num_ports;
                return 0;
            });
        }
        nb::dict out;
        out["thread_cpu_ns"] = cpu_ns;
        out["rx_datagrams"] = k.rx_datagrams + s.forged + s.replayed + s.unprotected + s.unknown;
        out["rx_bytes"] = k.rx_bytes;
        out["tx_packets"] = k.tx_packets;
        out["tx_bytes"] = k.tx_bytes;
        out["tx_bursts"] = k.tx_bursts;
        out["unknown_qpn"] = k.unknown_qpn + s.unknown;
        out["port_updates"] = k.port_updates;
        out["receive_overflow"] = k.receive_overflow;
        nb::dict rejected;
        for (uint32_t r = 1; r < static_cast<uint32_t>(wire::DecodeResult::Count); ++r)
            rejected[wire::name(static_cast<wire::DecodeResult>(r))] = k.rejected[r];
        rejected["forged"] = s.forged;
        rejected["replayed"] = s.replayed;
        rejected["unprotected"] = s.unprotected;
        out["rejected"] = rejected;
        out["sealed"] = s.sealed;
        out["opened"] = s.opened;
        out["key_updates"] = s.key_updates;
        nb::list ports;
        for (uint32_t p = 0; p < num_ports; ++p) {
            nb::dict d;
            d["tx_bytes"] = k.port_tx_bytes[p];
            d["rx_bytes"] = k.port_rx_bytes[p];
            d["up"] = (local_ports >> p & 1) != 0;
            ports.append(d);
        }
        out["ports"] = ports;
        out["loop_iterations"] = l.iterations;
        out["loop_sleeps"] = l.sleeps;
        out["send_blocked"] = l.send_blocked;
        out["send_failed"] = l.send_failed;
        out["receive_calls"] = l.receive_calls;
        out["messages"] = l.messages;
        return out;
    }
    std::vector<std::tuple<uint32_t, uint64_t, uint16_t, uint8_t, uint8_t, uint64_t>> take_path_events() {
        std::vector<PathEvent> events;
        {
            nb::gil_scoped_release r;
            events = loop_->take_path_events();
        }
        std::vector<std::tuple<uint32_t, uint64_t, uint16_t, uint8_t, uint8_t, uint64_t>> out;
        for (const PathEvent& e : events)
            out.emplace_back(e.connection, e.event.now_ns, e.event.ev, e.event.plane,
                             static_cast<uint8_t>(e.event.state), e.event.drop_count);
        return out;
    }
    /// Returns once no thread is inside a wait any more: an interpreter that ends would kill it there, in C++ frames.
    void close() {
        nb::gil_scoped_release r;
        loop_->close();
        for (int n = 0; inside_ && n < kLeaveTries; ++n) ::usleep(kLeaveInterval_us);
    }
    bool is_closed() const { return loop_->is_closed(); }
    /// For other compiled parts of the module that run tasks in the loop; valid as long as this object.
    uint64_t loop_address() const { return reinterpret_cast<uint64_t>(loop_.get()); }
    /// In a forked child: lets go of the parent's sockets. Everything else of the loop stays as the fork found it.
    void abandon() { loop_->close_descriptors(); }
    ~PyEndpoint() {
        if (!loop_->owns_process()) (void)loop_.release();  // its lock may be held by a thread that does not exist here
    }
    PyEndpoint(const PyEndpoint&) = delete;

private:
    static constexpr int kLeaveTries = 10'000, kLeaveInterval_us = 200;  // two seconds at most

    std::unique_ptr<EventLoop> loop_;
    std::atomic<int> inside_{0};
};

}  // namespace

void bind_endpoint(nb::module_& m) {
    // Objects may outlive the interpreter by right: those of threads that a fork or an exit has cut short.
    nb::set_leak_warnings(false);
    m.attr("REJECTED") = EventLoop::kRejected;
    m.attr("MAX_PORTS") = kMaxPorts;
    m.attr("MAX_ENTROPY_VALUES") = kMaxEvs;
    m.attr("MAX_BURST_PACKETS") = kMaxBurst_packets;
    m.attr("PROTECTION_BYTES") = kProtectionBytes;
    m.def("why_no_libcrypto", [] { return LibCrypto::get() ? std::string() : LibCrypto::why_not(); },
          "Why packets cannot be protected; empty where they can.");
    bind_parameters(m);
    nb::class_<PyEndpoint>(m, "NativeEndpoint", "Sockets, event loop and protocol state of one endpoint.")
        .def(nb::init<const std::vector<Address>&, uint32_t, int, int, bool, uint64_t, uint32_t, uint32_t,
                      const std::vector<double>&, bool, size_t>(),
             nb::arg("ports"), nb::arg("sources_per_port"), nb::arg("receive_buffer_bytes"),
             nb::arg("send_buffer_bytes"), nb::arg("icrc"), nb::arg("seed"), nb::arg("max_connections"),
             nb::arg("max_regions"), nb::arg("port_rate_bytes_per_s"), nb::arg("is_srv6") = false,
             nb::arg("datagram_bytes") = 0)
        .def("port_numbers", &PyEndpoint::port_numbers)
        .def("receive_buffer_bytes", &PyEndpoint::receive_buffer_bytes)
        .def("source_port", &PyEndpoint::source_port, nb::arg("port"), nb::arg("source"))
        .def("reserve_connection", &PyEndpoint::reserve_connection)
        .def("open_connection", &PyEndpoint::open_connection, nb::arg("index"), nb::arg("parameters"))
        .def("add_region", &PyEndpoint::add_region, nb::arg("address"), nb::arg("length_bytes"), nb::arg("writable"),
             nb::arg("secret"), nb::arg("only_index"))
        .def("remove_region", &PyEndpoint::remove_region, nb::arg("key"))
        .def("is_region_busy", &PyEndpoint::is_region_busy, nb::arg("key"))
        .def("write", &PyEndpoint::write, nb::arg("index"), nb::arg("local_key"), nb::arg("local_offset"),
             nb::arg("length"), nb::arg("remote_key"), nb::arg("remote_offset"), nb::arg("immediate"))
        .def("wait_completion", &PyEndpoint::wait_completion, nb::arg("index"), nb::arg("number"), nb::arg("timeout_ns"))
        .def("wait_immediate", &PyEndpoint::wait_immediate, nb::arg("index"), nb::arg("timeout_ns"))
        .def("wait_change", &PyEndpoint::wait_change, nb::arg("seen"), nb::arg("timeout_ns"))
        .def("abort_connection", &PyEndpoint::abort_connection, nb::arg("index"))
        .def("close_connection", &PyEndpoint::close_connection, nb::arg("index"))
        .def("connection_error", &PyEndpoint::connection_error, nb::arg("index"))
        .def("set_local_port", &PyEndpoint::set_local_port, nb::arg("port"), nb::arg("up"))
        .def("connection_path_count", &PyEndpoint::connection_path_count, nb::arg("index"))
        .def("set_ev_denied", &PyEndpoint::set_ev_denied, nb::arg("index"), nb::arg("ev"), nb::arg("denied"))
        .def("connection_stats", &PyEndpoint::connection_stats, nb::arg("index"), nb::arg("with_paths"))
        .def("stats", &PyEndpoint::stats)
        .def("take_path_events", &PyEndpoint::take_path_events)
        .def("close", &PyEndpoint::close)
        .def("abandon", &PyEndpoint::abandon)
        .def_prop_ro("loop_address", &PyEndpoint::loop_address)
        .def_prop_ro("is_closed", &PyEndpoint::is_closed);
}
