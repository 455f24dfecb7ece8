// The packet engine without its transport's type: what a caller needs to set a run up, carry it out and read it off.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "farstep/sim/packet_engine.hpp"

namespace farstep::sim {

class AnyEngine {
public:
    virtual ~AnyEngine() = default;
    virtual void add_tasks(const TaskColumns& c) = 0;
    virtual void add_fault(const FaultAction& a) = 0;
    virtual void add_reroute(uint64_t time_ns, const FabricColumns& routes) = 0;
    virtual void trace(uint32_t task) = 0;
    virtual RunStatus run(const RunLimits& limits, const std::function<bool()>& keep_going) = 0;
    virtual void settle() = 0;
    virtual const FabricState& fabric() const = 0;
    virtual Series& series() = 0;
    virtual const TrafficCounters& counters() const = 0;
    virtual const std::vector<TaskOutcome>& outcomes() const = 0;
    virtual const std::vector<PathEvent>& path_events() = 0;
    virtual std::pair<uint32_t, uint32_t> ends(uint32_t connection) const = 0;
    virtual std::vector<std::string> failures() const = 0;
    virtual std::vector<std::string> unfinished(size_t most) const = 0;
    virtual uint64_t in_flight() const = 0;
    virtual const PacketTrace& trace() const = 0;
    virtual uint32_t connection_of(uint32_t task) const = 0;
    virtual uint16_t entropy_value(uint16_t path) const = 0;
    virtual uint64_t tasks_left() const = 0;
    virtual uint64_t now_ns() const = 0;
    virtual uint64_t slots_stepped() const = 0;
};

template <class T>
class EngineOf final : public AnyEngine {
public:
    EngineOf(const FabricColumns& c, const EngineSettings& s, const typename T::Settings& t) : engine_(c, s, t) {}
    void add_tasks(const TaskColumns& c) override { engine_.add_tasks(c); }
    void add_fault(const FaultAction& a) override { engine_.add_fault(a); }
    void add_reroute(uint64_t time_ns, const FabricColumns& routes) override { engine_.add_reroute(time_ns, routes); }
    void trace(uint32_t task) override { engine_.network().follow(engine_.connection_of(task)); }
    RunStatus run(const RunLimits& limits, const std::function<bool()>& keep_going) override {
        return engine_.run(limits, keep_going);
    }
    void settle() override { engine_.settle(); }
    const FabricState& fabric() const override { return engine_.network().fabric(); }
    Series& series() override { return engine_.series(); }
    const TrafficCounters& counters() const override { return engine_.network().counters(); }
    const std::vector<TaskOutcome>& outcomes() const override { return engine_.outcomes(); }
    const std::vector<PathEvent>& path_events() override { return engine_.path_events(); }
    std::pair<uint32_t, uint32_t> ends(uint32_t c) const override {
        return {engine_.connection_source(c), engine_.connection_target(c)};
    }
    std::vector<std::string> failures() const override {
        std::vector<std::string> lines;
        for (const auto& f : engine_.failures())
            lines.push_back("NIC " + std::to_string(engine_.connection_source(f.connection)) + " to NIC " +
                            std::to_string(engine_.connection_target(f.connection)) + " at " +
                            std::to_string(f.time_ns) + " ns: " + f.why);
        return lines;
    }
    std::vector<std::string> unfinished(size_t most) const override { return engine_.unfinished(most); }
    const PacketTrace& trace() const override { return engine_.network().trace(); }
    uint32_t connection_of(uint32_t task) const override { return engine_.connection_of(task); }
    uint16_t entropy_value(uint16_t path) const override {
        if constexpr (requires { T::entropy_value(path); }) return T::entropy_value(path);
        else return path;
    }
    uint64_t in_flight() const override { return engine_.network().in_flight(); }
    uint64_t tasks_left() const override { return engine_.tasks_left(); }
    uint64_t now_ns() const override { return engine_.now_ns(); }
    uint64_t slots_stepped() const override { return engine_.slots_stepped(); }

private:
    PacketEngine<T> engine_;
};

}  // namespace farstep::sim
