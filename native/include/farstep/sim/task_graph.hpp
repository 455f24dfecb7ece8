// What is to be done: flows and delays, and which of them wait for which.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace farstep::sim {

enum class TaskKind : uint8_t { Flow = 0, Delay = 1 };

/// Columns as they come in, one entry a task; borrowed during add().
struct TaskColumns {
    uint64_t count = 0;
    const uint8_t* kind = nullptr;
    const int32_t *source = nullptr, *target = nullptr;
    const int64_t *size_bytes = nullptr, *start_ns = nullptr, *delay_ns = nullptr, *connection_key = nullptr;
    const int32_t* job = nullptr;
    const int64_t* dep_offset = nullptr;  // [count + 1]
    const int32_t* dep_index = nullptr;
};

/// What the rest of the engine needs of one flow or delay.
struct Task {
    uint64_t size_bytes;
    uint64_t start_ns;         // not before
    uint64_t delay_ns;         // after its predecessors
    uint32_t connection;       // of a delay: UINT32_MAX
    uint32_t next_of_connection = UINT32_MAX;
    uint32_t waits_for;        // predecessors that are not done
    uint32_t pieces = 0;       // messages it was cut into and that are not done
};

struct ConnectionEnds {
    uint32_t source, target;
    uint32_t flows = 0;
};

class TaskGraph {
public:
    static constexpr uint32_t kNoTask = UINT32_MAX;

    void add(const TaskColumns& c, uint32_t num_nics) {
        if (!tasks_.empty()) throw std::logic_error("tasks were added already");
        if (c.count >= kNoTask) throw std::invalid_argument("more tasks than the engine can number");
        tasks_.resize(c.count);
        Known known(c.count);
        for (uint64_t i = 0; i < c.count; ++i) {
            Task& t = tasks_[i];
            t.size_bytes = static_cast<uint64_t>(c.size_bytes[i]);
            t.start_ns = static_cast<uint64_t>(c.start_ns[i]);
            t.delay_ns = static_cast<uint64_t>(c.delay_ns[i]);
            t.waits_for = static_cast<uint32_t>(c.dep_offset[i + 1] - c.dep_offset[i]);
            t.connection = kNoTask;
            if (static_cast<TaskKind>(c.kind[i]) == TaskKind::Flow) t.connection = connection_of(c, i, num_nics, known);
        }
        link_successors(c);
    }

    size_t size() const noexcept { return tasks_.size(); }
    bool has_dependencies() const noexcept { return !successors_.empty(); }
    Task& at(uint32_t i) noexcept { return tasks_[i]; }
    const Task& at(uint32_t i) const noexcept { return tasks_[i]; }
    bool is_flow(uint32_t i) const noexcept { return tasks_[i].connection != kNoTask; }
    /// Connections of the tasks that were added, given away.
    std::vector<ConnectionEnds> take_connections() noexcept { return std::exchange(connections_, {}); }

    /// Calls f(task) for every successor that waited for this task last.
    template <class F>
    void finish(uint32_t task, F&& f) {
        if (!has_dependencies()) return;
        for (uint64_t k = successor_offset_[task]; k < successor_offset_[task + 1]; ++k) {
            const uint32_t s = successors_[k];
            if (--tasks_[s].waits_for == 0) f(s);
        }
    }

private:
    struct Key {
        uint32_t source, target;
        int64_t key;
        bool operator==(const Key&) const = default;
        size_t hash() const noexcept {
            uint64_t z = (uint64_t{source} << 32 | target) ^ (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull);
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
            return static_cast<size_t>(z ^ (z >> 31));
        }
    };
    // Connections by key while tasks are added: two arrays that are given back whole, where nodes of a map would stay.
    struct Known {
        explicit Known(uint64_t tasks) : slots(std::bit_ceil(2 * tasks + 1), kNoTask) {}
        uint32_t& find(const Key& k) noexcept {
            size_t at = k.hash() & (slots.size() - 1);
            while (slots[at] != kNoTask && !(keys[slots[at]] == k)) at = (at + 1) & (slots.size() - 1);
            return slots[at];
        }
        std::vector<uint32_t> slots;
        std::vector<Key> keys;  // by connection
    };

    uint32_t connection_of(const TaskColumns& c, uint64_t i, uint32_t num_nics, Known& known) {
        const int32_t from = c.source[i], to = c.target[i];
        const auto is_nic = [&](int32_t n) { return n >= 0 && static_cast<uint32_t>(n) < num_nics; };
        if (!is_nic(from) || !is_nic(to))
            throw std::invalid_argument("task " + std::to_string(i) + ": from NIC " + std::to_string(from) + " to NIC " +
                                        std::to_string(to) + "; valid: 0 to " + std::to_string(num_nics - 1));
        if (from == to)
            throw std::invalid_argument("task " + std::to_string(i) + ": NIC " + std::to_string(from) + " sends to itself");
        // Without a key of its own, a job has one connection for every pair of NICs.
        const int64_t key = c.connection_key[i] >= 0 ? c.connection_key[i] : -1 - int64_t{c.job[i]};
        const Key k{static_cast<uint32_t>(from), static_cast<uint32_t>(to), key};
        uint32_t& connection = known.find(k);
        if (connection == kNoTask) {
            connection = static_cast<uint32_t>(connections_.size());
            connections_.push_back({k.source, k.target});
            known.keys.push_back(k);
        }
        ++connections_[connection].flows;
        return connection;
    }
    void link_successors(const TaskColumns& c) {
        const auto deps = static_cast<uint64_t>(c.dep_offset[c.count]);
        if (deps == 0) return;
        successor_offset_.assign(c.count + 1, 0);
        for (uint64_t k = 0; k < deps; ++k) {
            if (c.dep_index[k] < 0 || static_cast<uint64_t>(c.dep_index[k]) >= c.count)
                throw std::invalid_argument("a task waits for task " + std::to_string(c.dep_index[k]) +
                                            ", which does not exist");
            ++successor_offset_[static_cast<size_t>(c.dep_index[k]) + 1];
        }
        for (uint64_t i = 0; i < c.count; ++i) successor_offset_[i + 1] += successor_offset_[i];
        successors_.resize(deps);
        std::vector<uint64_t> at(successor_offset_.begin(), successor_offset_.end() - 1);
        for (uint64_t i = 0; i < c.count; ++i)
            for (int64_t k = c.dep_offset[i]; k < c.dep_offset[i + 1]; ++k)
                successors_[at[static_cast<size_t>(c.dep_index[k])]++] = static_cast<uint32_t>(i);
    }

    std::vector<Task> tasks_;
    std::vector<ConnectionEnds> connections_;
    std::vector<uint64_t> successor_offset_;
    std::vector<uint32_t> successors_;
};

}  // namespace farstep::sim
