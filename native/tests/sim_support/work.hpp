// Tasks for the drivers of the packet engine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "farstep/sim/task_graph.hpp"

namespace fabric_kit {

/// Tasks by hand.
struct Work {
    std::vector<uint8_t> kind;
    std::vector<int32_t> source, target, job, dep;
    std::vector<int64_t> size, start, delay, key, offset{0};
    int32_t flow(uint32_t from, uint32_t to, int64_t bytes, std::vector<int32_t> after = {}, int64_t start_ns = 0, int64_t delay_ns = 0,
                 int64_t connection = -1) {
        return add(0, from, to, bytes, std::move(after), start_ns, delay_ns, connection);
    }
    int32_t pause(uint32_t nic, int64_t ns, std::vector<int32_t> after = {}) { return add(1, nic, nic, 0, std::move(after), 0, ns, -1); }
    farstep::sim::TaskColumns columns() const {
        farstep::sim::TaskColumns c;
        c.count = kind.size();
        c.kind = kind.data();
        c.source = source.data();
        c.target = target.data();
        c.size_bytes = size.data();
        c.start_ns = start.data();
        c.delay_ns = delay.data();
        c.connection_key = key.data();
        c.job = job.data();
        c.dep_offset = offset.data();
        c.dep_index = dep.data();
        return c;
    }

private:
    int32_t add(uint8_t k, uint32_t from, uint32_t to, int64_t bytes, std::vector<int32_t> after, int64_t start_ns, int64_t delay_ns, int64_t connection) {
        kind.push_back(k);
        source.push_back(static_cast<int32_t>(from));
        target.push_back(static_cast<int32_t>(to));
        size.push_back(bytes);
        start.push_back(start_ns);
        delay.push_back(delay_ns);
        key.push_back(connection);
        job.push_back(0);
        dep.insert(dep.end(), after.begin(), after.end());
        offset.push_back(static_cast<int64_t>(dep.size()));
        return static_cast<int32_t>(kind.size() - 1);
    }
};

}  // namespace fabric_kit
