// The packet engine for Python: columns in, one call to run it, columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "farstep/sim/any_engine.hpp"
#include "farstep/sim/mrc_transport.hpp"
#include "sim_settings.hpp"

namespace nb = nanobind;
using namespace farstep;
using namespace farstep::sim;

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Columns of a dictionary by name, checked for type and length; they stay alive while this does.
class Columns {
public:
    Columns(nb::dict values, const char* what) : values_(std::move(values)), what_(what) {}
    template <class T>
    const T* read(const char* name, uint64_t least, uint64_t* length = nullptr) {
        if (!values_.contains(name)) throw nb::value_error((std::string(what_) + " has no column " + name).c_str());
        Column<T> column;
        try {
            column = nb::cast<Column<T>>(values_[name], false);
        } catch (const nb::cast_error&) {
            throw nb::value_error((std::string(what_) + "." + name + " is not a contiguous column of the right type").c_str());
        }
        if (column.shape(0) < least)
            throw nb::value_error((std::string(what_) + "." + name + " has " + std::to_string(column.shape(0)) +
                                   " values; it needs " + std::to_string(least)).c_str());
        if (length) *length = column.shape(0);
        return column.data();
    }

private:
    nb::dict values_;
    std::string what_;
};

FabricColumns fabric_columns(nb::dict values) {
    Columns in(std::move(values), "fabric");
    FabricColumns c;
    uint64_t nodes = 0, links = 0, blocks = 0, sets = 0, via = 0;
    c.num_nics = static_cast<uint32_t>(*in.read<int64_t>("num_nics", 1));
    c.num_planes = static_cast<uint32_t>(*in.read<int64_t>("num_planes", 1));
    c.node_tier = in.read<int8_t>("node_tier", 1, &nodes);
    c.link_source = in.read<int32_t>("link_source", 1, &links);
    c.num_nodes = static_cast<uint32_t>(nodes);
    c.num_links = static_cast<uint32_t>(links);
    c.switch_latency_ns = in.read<double>("switch_latency_ns", nodes);
    c.out_offset = in.read<int64_t>("out_offset", nodes + 1);
    c.out_links = in.read<int32_t>("out_links", links);
    c.link_target = in.read<int32_t>("link_target", links);
    c.link_rate_gbps = in.read<double>("link_rate_gbps", links);
    c.link_latency_ns = in.read<double>("link_latency_ns", links);
    c.link_plane = in.read<int16_t>("link_plane", links);
    c.link_port = in.read<int32_t>("link_port", links);
    c.node_block = in.read<int16_t>("node_block", nodes);
    c.node_row = in.read<int32_t>("node_row", nodes);
    c.node_column = in.read<int32_t>("node_column", nodes);
    c.block_next = in.read<int64_t>("block_next", 1, &blocks);
    c.num_blocks = blocks;
    c.block_columns = in.read<int32_t>("block_columns", blocks);
    c.block_set = in.read<int64_t>("block_set", blocks);
    c.next_set = in.read<int32_t>("next_set", 1, &c.next_set_size);
    c.set_offset = in.read<int64_t>("set_offset", 1, &sets);
    c.num_sets = sets - 1;
    c.set_links = in.read<int32_t>("set_links", 0, &c.num_set_links);
    c.via_switch = in.read<int32_t>("via_switch", 0, &via);
    c.num_via = static_cast<uint32_t>(via);
    return c;
}

EngineSettings engine_settings(Knobs& k) {
    EngineSettings s;
    FabricSettings& f = s.fabric;
    k.read("mtu_bytes", f.mtu_bytes);
    k.read("overhead_bytes", f.overhead_bytes);
    k.read("control_bytes", f.control_bytes);
    k.read("trimmed_bytes", f.trimmed_bytes);
    k.read("queue_limit_bytes", f.queue_limit_bytes);
    k.read("last_hop_limit_bytes", f.last_hop_limit_bytes);
    k.read("ecn_min_bytes", f.ecn_min_bytes);
    k.read("ecn_max_bytes", f.ecn_max_bytes);
    k.read("ecn_max_share", f.ecn_max_share);
    k.read("trimming", f.trimming);
    k.read("last_hop_ecn", f.last_hop_ecn);
    k.read("host_latency_ns", f.host_latency_ns);
    k.read("base_rtt_ns", f.base_rtt_ns);
    k.read("seed", f.seed);
    k.read("sample_interval_ns", s.series.interval_ns);
    k.read("sample_links", s.series.per_link);
    k.read("remap_delay_ns", s.remap_delay_ns);
    k.read("completes_at_source", s.completes_at_source);
    return s;
}

MrcSettings mrc_settings(Knobs& k, const EngineSettings& e) {
    MrcSettings m;
    m.seed = e.fabric.seed;
    k.read("active_evs_per_plane", m.active_evs_per_plane);
    k.read("backup_evs_per_plane", m.backup_evs_per_plane);
    k.read("answer_evs_per_plane", m.answer_evs_per_plane);
    k.read("mpr", m.mpr);
    k.read("sack_threshold_bytes", m.sack_threshold_bytes);
    k.read("send_queue", m.send_queue);
    k.read("max_events", m.max_events);
    k.read("counts_per_ev", m.counts_per_ev);
    k.read("rto_base_ns", m.reliability.rto_base_ns);
    k.read("rto_max_ns", m.reliability.rto_max_ns);
    k.read("rto_linear_count", m.reliability.linear_count);
    k.read("rto_exponential_count", m.reliability.exponential_count);
    k.read("loss_slack_min_ns", m.reliability.loss_slack_min_ns);
    k.read("initial_rtt_ns", m.reliability.initial_rtt_ns);
    k.read("keepalive_ns", m.reliability.keepalive_ns);
    k.read("first_timeout_ns", m.reliability.first_timeout_ns);
    m.paths.first_answer_ns = m.reliability.first_timeout_ns;
    k.read("host_delay_ns", m.reliability.host_delay_ns);
    k.read("plane_news_ns", m.reliability.plane_news_ns);
    k.read("probe_interval_ns", m.paths.probe_interval_ns);
    k.read("probe_spacing_ns", m.paths.probe_spacing_ns);
    k.read("restore_successes", m.paths.restore_successes);
    k.read("restore_max", m.paths.restore_max);
    k.read("min_active", m.paths.min_active);
    k.read("down_losses", m.paths.down_losses);
    k.read("settle_ns", m.paths.settle_ns);
    k.read("skip_passes", m.paths.skip_passes);
    k.read("watches_skips", m.watches_skips);
    bool by_capacity = false;
    k.read("capacity_share", by_capacity);
    if (by_capacity) m.paths.share = ShareMode::Capacity;
    NsccConfig& n = m.congestion;
    k.read("rate_bytes_per_s", n.rate_bytes_per_s);
    read_congestion(k, n);
    return m;
}

/// A numpy array that owns `values`.
template <class T>
nb::object array_of(std::vector<T> values, size_t columns = 0) {
    auto* data = new std::vector<T>(std::move(values));
    nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    if (columns == 0) return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data->data(), {data->size()}, owner));
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data->data(), {data->size() / columns, columns}, owner));
}
template <class T, class Source, class F>
nb::object gathered(const Source& source, F&& of) {
    std::vector<T> values;
    values.reserve(source.size());
    for (const auto& item : source) values.push_back(static_cast<T>(of(item)));
    return array_of(std::move(values));
}

class PyPacketEngine {
public:
    PyPacketEngine(const std::string& transport, nb::dict fabric, nb::dict settings) {
        const FabricColumns columns = fabric_columns(std::move(fabric));
        Knobs knobs(std::move(settings));
        const EngineSettings s = engine_settings(knobs);
        if (transport == "mrc") {
            const MrcSettings m = mrc_settings(knobs, s);
            knobs.finish();
            engine_ = std::make_unique<EngineOf<MrcTransport>>(columns, s, m);
        } else {
            engine_ = make_rival_engine(transport, columns, s, knobs);
            if (!engine_) throw nb::value_error(("the packet engine has no transport " + transport).c_str());
            knobs.finish();
        }
    }

    void add_tasks(nb::dict columns) {
        Columns in(std::move(columns), "tasks");
        TaskColumns c;
        c.kind = in.read<uint8_t>("kind", 0, &c.count);
        c.source = in.read<int32_t>("source", c.count);
        c.target = in.read<int32_t>("target", c.count);
        c.size_bytes = in.read<int64_t>("size_bytes", c.count);
        c.start_ns = in.read<int64_t>("start_ns", c.count);
        c.delay_ns = in.read<int64_t>("delay_ns", c.count);
        c.connection_key = in.read<int64_t>("connection_key", c.count);
        c.job = in.read<int32_t>("job", c.count);
        c.dep_offset = in.read<int64_t>("dep_offset", c.count + 1);
        c.dep_index = in.read<int32_t>("dep_index", static_cast<uint64_t>(c.dep_offset[c.count]));
        engine_->add_tasks(c);
    }
    void add_faults(const Column<int64_t>& time_ns, const Column<uint8_t>& kind, const Column<int32_t>& link,
                    const Column<double>& value) {
        const size_t n = time_ns.shape(0);
        if (kind.shape(0) != n || link.shape(0) != n || value.shape(0) != n)
            throw nb::value_error("columns of faults differ in length");
        for (size_t i = 0; i < n; ++i) {
            const auto of = static_cast<FaultKind>(kind.data()[i]);
            if (of > FaultKind::SwitchKnowsUp || of == FaultKind::NoticeOwn || of == FaultKind::NoticePeers)
                throw nb::value_error("kind of a fault is out of range");
            engine_->add_fault({static_cast<uint64_t>(time_ns.data()[i]), static_cast<FaultKind>(kind.data()[i]),
                                static_cast<uint32_t>(link.data()[i]), value.data()[i]});
        }
    }
    void add_reroute(uint64_t time_ns, nb::dict routes) {
        Columns in(std::move(routes), "routes");
        FabricColumns c;
        uint64_t sets = 0;
        c.num_nodes = engine_->fabric().num_nodes();
        c.node_block = in.read<int16_t>("node_block", c.num_nodes);
        c.node_row = in.read<int32_t>("node_row", c.num_nodes);
        c.node_column = in.read<int32_t>("node_column", c.num_nodes);
        c.block_next = in.read<int64_t>("block_next", 0, &c.num_blocks);
        c.block_columns = in.read<int32_t>("block_columns", c.num_blocks);
        c.block_set = in.read<int64_t>("block_set", c.num_blocks);
        c.next_set = in.read<int32_t>("next_set", 0, &c.next_set_size);
        c.set_offset = in.read<int64_t>("set_offset", 1, &sets);
        c.num_sets = sets - 1;
        c.set_links = in.read<int32_t>("set_links", 0, &c.num_set_links);
        engine_->add_reroute(time_ns, c);
    }
    int run(uint64_t until_ns, double max_wall_s, uint64_t stall_ns) {
        RunLimits limits{until_ns, max_wall_s, stall_ns};
        bool interrupted = false;
        RunStatus status;
        {
            nb::gil_scoped_release unlocked;
            status = engine_->run(limits, [&] {
                nb::gil_scoped_acquire locked;
                interrupted = PyErr_CheckSignals() != 0;
                return !interrupted;
            });
        }
        if (interrupted) throw nb::python_error();
        return static_cast<int>(status);
    }
    void settle() { engine_->settle(); }

    nb::dict task_columns() const {
        const auto& o = engine_->outcomes();
        nb::dict d;
        d["start_ns"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.start_ns; });
        d["finish_ns"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.finish_ns; });
        d["packets"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.packets; });
        d["retransmitted"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.retransmitted; });
        d["trims"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.trims; });
        d["dropped"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.dropped; });
        d["declared_lost"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.declared_lost; });
        d["spurious"] = gathered<int64_t>(o, [](const TaskOutcome& t) { return t.duplicates; });
        return d;
    }
    nb::dict link_columns() {
        const FabricState& f = engine_->fabric();
        const Series& series = engine_->series();
        const uint32_t n = f.num_ports();
        std::vector<int64_t> bytes(n), drops(n), trims(n), marks(n), queue(n);
        for (uint32_t l = 0; l < n; ++l) {
            const uint32_t p = f.port_of_link(l);
            bytes[l] = static_cast<int64_t>(f.bytes_carried(p));
            drops[l] = f.tally(p).drops;
            trims[l] = f.tally(p).trims;
            marks[l] = f.tally(p).marks;
            queue[l] = int64_t{series.deepest(p, f)} * f.full_bytes();
        }
        nb::dict d;
        d["bytes"] = array_of(std::move(bytes));
        d["drops"] = array_of(std::move(drops));
        d["trims"] = array_of(std::move(trims));
        d["marks"] = array_of(std::move(marks));
        d["max_queue_bytes"] = array_of(std::move(queue));
        return d;
    }
    nb::dict series_columns() {
        Series& s = engine_->series();
        nb::dict d;
        if (s.time_ns.empty()) return d;
        const size_t rows = s.time_ns.size();
        d["time_ns"] = array_of(s.time_ns);
        d["goodput_bytes"] = array_of(s.goodput_bytes);
        d["dropped"] = array_of(s.dropped);
        d["trims"] = array_of(s.trims);
        d["retransmitted"] = array_of(s.retransmitted);
        d["marked"] = array_of(s.marked);
        d["plane_bytes"] = array_of(s.plane_bytes, s.plane_bytes.size() / rows);
        d["group_bytes"] = array_of(s.group_bytes, s.group_bytes.size() / rows);
        d["queue_max_bytes"] = array_of(s.queue_max_bytes, s.queue_max_bytes.size() / rows);
        if (!s.link_bytes.empty()) d["link_bytes"] = array_of(by_link(s.link_bytes, rows), s.link_bytes.size() / rows);
        return d;
    }
    std::vector<std::pair<int, int>> series_groups() {
        std::vector<std::pair<int, int>> out;
        for (const LinkGroup& g : engine_->series().groups()) out.emplace_back(g.from, g.to);
        return out;
    }
    nb::dict event_columns() {
        const auto& e = engine_->path_events();
        nb::dict d;
        d["time_ns"] = gathered<int64_t>(e, [](const PathEvent& x) { return x.time_ns; });
        d["source"] = gathered<int32_t>(e, [&](const PathEvent& x) { return engine_->ends(x.connection).first; });
        d["target"] = gathered<int32_t>(e, [&](const PathEvent& x) { return engine_->ends(x.connection).second; });
        d["connection"] = gathered<int32_t>(e, [](const PathEvent& x) { return x.connection; });
        d["ev"] = gathered<int32_t>(e, [](const PathEvent& x) { return x.path; });
        d["plane"] = gathered<int16_t>(e, [](const PathEvent& x) { return x.port; });
        d["state"] = gathered<uint8_t>(e, [](const PathEvent& x) { return x.state; });
        return d;
    }
    void trace(const Column<int32_t>& tasks) {
        const auto n = static_cast<int64_t>(engine_->outcomes().size());
        for (size_t i = 0; i < tasks.shape(0); ++i) {
            const int32_t task = tasks.data()[i];
            if (task < 0 || task >= n || engine_->connection_of(static_cast<uint32_t>(task)) == TaskGraph::kNoTask)
                throw nb::value_error(("task " + std::to_string(task) + " is no flow").c_str());
            engine_->trace(static_cast<uint32_t>(task));
        }
    }
    nb::dict trace_columns() const {
        const PacketTrace& t = engine_->trace();
        const auto& rows = t.rows();
        size_t width = 1;
        for (const TraceRow& r : rows) width = std::max<size_t>(width, r.hops);
        const auto link = [&](uint32_t p) { return p == UINT32_MAX ? -1 : static_cast<int32_t>(engine_->fabric().link_of_port(p)); };
        std::vector<int32_t> links(width * rows.size(), -1);
        for (size_t i = 0; i < rows.size(); ++i)
            for (uint32_t h = 0; h < rows[i].hops; ++h) links[i * width + h] = link(t.port(rows[i], h));
        nb::dict d;
        d["connection"] = gathered<int32_t>(rows, [](const TraceRow& r) { return r.connection; });
        d["sequence"] = gathered<int64_t>(rows, [](const TraceRow& r) { return r.sequence; });
        d["ev"] = gathered<int32_t>(rows, [&](const TraceRow& r) { return engine_->entropy_value(r.path); });
        d["sent_ns"] = gathered<int64_t>(rows, [](const TraceRow& r) { return r.sent_ns; });
        d["ended_ns"] = gathered<int64_t>(rows, [](const TraceRow& r) { return r.ended_ns; });
        d["bytes"] = gathered<int32_t>(rows, [](const TraceRow& r) { return r.bytes; });
        d["fate"] = gathered<uint8_t>(rows, [](const TraceRow& r) { return static_cast<uint8_t>(r.fate); });
        d["marked"] = gathered<uint8_t>(rows, [](const TraceRow& r) { return r.is_marked; });
        d["where"] = gathered<int32_t>(rows, [&](const TraceRow& r) { return link(r.where); });
        d["links"] = array_of(std::move(links), width);
        return d;
    }
    nb::dict counters() const {
        const TrafficCounters& k = engine_->counters();
        nb::dict d;
        d["sent"] = k.sent;
        d["delivered"] = k.delivered;
        d["trimmed"] = k.trimmed;
        d["dropped"] = k.dropped();
        d["dropped_full"] = k.dropped_full;
        d["dropped_down"] = k.dropped_down;
        d["dropped_loss"] = k.dropped_loss;
        d["in_flight"] = engine_->in_flight();
        d["marked"] = k.marked;
        d["data_hops"] = k.hops + k.sent;  // of a NIC's own port, too
        d["control_sent"] = k.control_sent;
        d["control_lost"] = k.control_lost;
        d["control_hops"] = k.control_hops;
        d["pauses"] = k.pauses;
        d["slots"] = engine_->slots_stepped();
        d["trace_left_out"] = engine_->trace().num_left_out();
        return d;
    }
    double slot_ns() const { return engine_->fabric().clock().slot_ns(); }
    double worst_rate_error() const {
        double worst = 0;
        for (uint32_t p = 0; p < engine_->fabric().num_ports(); ++p)
            worst = std::max(worst, std::abs(engine_->fabric().rate_error(p)));
        return worst;
    }
    uint64_t now_ns() const { return engine_->now_ns(); }
    uint32_t connection_of(uint32_t task) const {
        if (task >= engine_->outcomes().size()) throw nb::index_error("there is no such task");
        return engine_->connection_of(task);
    }
    uint64_t tasks_left() const { return engine_->tasks_left(); }
    std::vector<std::string> failures() const { return engine_->failures(); }
    std::vector<std::string> unfinished(size_t most) const { return engine_->unfinished(most); }

private:
    std::vector<uint64_t> by_link(const std::vector<uint64_t>& by_port, size_t rows) const {
        const FabricState& f = engine_->fabric();
        std::vector<uint64_t> out(by_port.size());
        const size_t n = by_port.size() / rows;
        for (size_t r = 0; r < rows; ++r)
            for (uint32_t p = 0; p < n; ++p) out[r * n + f.link_of_port(p)] = by_port[r * n + p];
        return out;
    }
    std::unique_ptr<AnyEngine> engine_;
};

}  // namespace

void bind_sim(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PyPacketEngine>(m, "PacketEngine",
                               "A simulated fabric at packet level with one transport; see farstep.sim.packet.")
        .def(nb::init<const std::string&, nb::dict, nb::dict>(), "transport"_a, "fabric"_a, "settings"_a,
             "Columns of `engine_columns`, and settings by name; unknown names are refused.")
        .def("add_tasks", &PyPacketEngine::add_tasks, "columns"_a, "Once, before the run.")
        .def("add_faults", &PyPacketEngine::add_faults, "time_ns"_a, "kind"_a, "link"_a, "value"_a)
        .def("add_reroute", &PyPacketEngine::add_reroute, "time_ns"_a, "routes"_a,
             "Columns of routes that take effect then, for transports that depend on routing.")
        .def("run", &PyPacketEngine::run, "until_ns"_a, "max_wall_s"_a, "stall_ns"_a,
             "Goes on until a limit is met. 0 finished, 1 until_ns, 2 max_wall_s, 3 cancelled, 4 stalled. "
             "Without the interpreter lock. May be called again to go on.")
        .def("settle", &PyPacketEngine::settle,
             "Closes the books: counters of flows that are not done, and the last interval of the series. Once, before "
             "results are read: how often a run was looked at in between must not show in them.")
        .def("trace", &PyPacketEngine::trace, "tasks"_a, "Tells of every packet of these flows' connections; before the run.")
        .def("trace_columns", &PyPacketEngine::trace_columns, "A row for each packet that was followed.")
        .def("connection_of", [](const PyPacketEngine& e, uint32_t task) { return e.connection_of(task); }, "task"_a)
        .def("task_columns", &PyPacketEngine::task_columns)
        .def("link_columns", &PyPacketEngine::link_columns)
        .def("series_columns", &PyPacketEngine::series_columns)
        .def("series_groups", &PyPacketEngine::series_groups, "Tiers of both ends of each group of links.")
        .def("event_columns", &PyPacketEngine::event_columns)
        .def("counters", &PyPacketEngine::counters)
        .def("failures", &PyPacketEngine::failures)
        .def("unfinished", &PyPacketEngine::unfinished, "most"_a, "What is not done and what each waits for.")
        .def_prop_ro("slot_ns", &PyPacketEngine::slot_ns, "Time of a full packet on the fastest link.")
        .def_prop_ro("worst_rate_error", &PyPacketEngine::worst_rate_error, "By how much a link's rate had to be rounded.")
        .def_prop_ro("now_ns", &PyPacketEngine::now_ns)
        .def_prop_ro("tasks_left", &PyPacketEngine::tasks_left);
}
