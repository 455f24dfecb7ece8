// Collectives inside the event loop, for Python: plans and links are set up once, a run takes one call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "bind.hpp"
#include "farstep/collective_run.hpp"
#include "farstep/event_loop.hpp"

namespace nb = nanobind;
using namespace farstep;

namespace {

// chunk, turn, offset_bytes, length_bytes, entry, entry_offset_bytes, action, is_fresh, is_placed, completes
using AccessRow =
    std::tuple<uint32_t, uint32_t, uint64_t, uint64_t, uint32_t, uint64_t, uint32_t, bool, bool, bool>;
using LinkRows = std::tuple<std::vector<AccessRow>, std::vector<AccessRow>, std::vector<uint64_t>, uint32_t>;
using PartRow = std::tuple<uint64_t, uint64_t, uint64_t>;       // start_bytes, address, key
using CopyRow = std::tuple<uint64_t, uint64_t, uint64_t>;       // target address, source address, bytes

std::vector<ChunkAccess> accesses(const std::vector<AccessRow>& rows) {
    std::vector<ChunkAccess> out;
    out.reserve(rows.size());
    for (const auto& [chunk, turn, offset, length, entry, entry_offset, action, fresh, placed, completes] : rows)
        out.push_back({chunk, turn, offset, length, entry_offset, entry, static_cast<uint8_t>(action), fresh, placed,
                       completes});
    return out;
}

class PyPlan {
public:
    PyPlan(bool is_eager, const std::vector<LinkRows>& links, std::vector<uint32_t> first,
           std::vector<uint32_t> order) {
        plan_.is_eager = is_eager;
        for (const auto& [sends, receives, placed, num_placed_sends] : links) {
            if (placed.size() > kMaxPlaces) throw nb::value_error("too many placed transfers on one link");
            plan_.links.push_back({accesses(sends), accesses(receives), placed, num_placed_sends});
        }
        plan_.first = std::move(first);
        plan_.order = std::move(order);
    }
    const CollectivePlan& plan() const { return plan_; }

private:
    CollectivePlan plan_;
};

MemorySpace space_of(const std::vector<PartRow>& rows) {
    if (rows.empty()) throw nb::value_error("a space needs at least one part");
    std::vector<MemorySpace::Part> parts;
    for (const auto& [start, address, key] : rows) parts.push_back({start, reinterpret_cast<uint8_t*>(address), key});
    return MemorySpace(std::move(parts));
}

/// One run. The plan and the links are kept alive by Python while it lasts.
class PyRun {
public:
    PyRun(uint64_t loop_address, const PyPlan& plan, std::vector<CollectiveLink*> links, uint32_t operation,
          uint32_t check, uint32_t element_type, uint32_t reduction, uint32_t divisor,
          const std::vector<PartRow>& source, const std::vector<PartRow>& work, std::vector<CopyRow> copies)
        : loop_(*reinterpret_cast<EventLoop*>(loop_address)), copies_(std::move(copies)) {
        if (element_type >= num_element_types || reduction >= num_reductions)
            throw nb::value_error("element type or reduction is out of range");
        if (links.size() != plan.plan().links.size()) throw nb::value_error("one link per peer of the plan is needed");
        const CollectiveTask task{operation & 0xFF, check & ((1u << kCheckBits) - 1), static_cast<ElementType>(element_type),
                                  static_cast<Reduction>(reduction), divisor};
        if (!combine_kernel(task.element_type, task.reduction))
            throw nb::value_error("this reduction has no meaning for this element type");
        run_ = std::make_unique<CollectiveRun>(plan.plan(), std::move(links), task, space_of(source), space_of(work));
    }
    ~PyRun() { drop(); }

    /// Runs or goes on running: 0 through (see status), 1 time is up, 3 the endpoint is closed.
    int run(uint64_t timeout_ns) {
        nb::gil_scoped_release r;
        WaitResult result = WaitResult::TimedOut;
        if (!copies_.empty()) {
            result = loop_.run_task(*run_, 0);  // what goes out first need not wait for our own copies
            for (const auto& [target, source, bytes] : copies_)
                if (bytes) std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
            copies_.clear();
        }
        if (result == WaitResult::TimedOut) result = loop_.run_task(*run_, timeout_ns);
        is_through_ = result == WaitResult::Ready;
        return static_cast<int>(result);
    }
    void drop() {
        if (is_through_) return;
        nb::gil_scoped_release r;
        loop_.drop_task(*run_);
        is_through_ = true;
    }
    /// The loop may be at work on the run: read under its lock.
    std::tuple<size_t, size_t, bool> progress(uint32_t link) const {
        nb::gil_scoped_release r;
        return loop_.with_core([&](EndpointCore&, uint64_t) {
            return std::tuple(run_->sent(link), run_->received(link), run_->is_awaited(link));
        });
    }
    const CollectiveRun& get() const { return *run_; }

private:
    EventLoop& loop_;
    std::vector<CopyRow> copies_;
    std::unique_ptr<CollectiveRun> run_;
    bool is_through_ = false;
};

}  // namespace

void bind_collective(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<CollectiveLink>(m, "CollectiveLink", "Slots and credits of one peer.")
        .def(
            "__init__",
            [](CollectiveLink* self, uint32_t connection, uint64_t inbox, uint64_t outbox, uint64_t outbox_key,
               uint64_t peer_inbox_key, uint64_t slot_bytes, uint32_t num_slots) {
                if (num_slots > kMaxSlots) throw nb::value_error("num_slots is too large");
                new (self) CollectiveLink(connection,
                                          {reinterpret_cast<uint8_t*>(inbox), reinterpret_cast<uint8_t*>(outbox),
                                           outbox_key, peer_inbox_key, slot_bytes, num_slots});
            },
            "connection"_a, "inbox_address"_a, "outbox_address"_a, "outbox_key"_a, "peer_inbox_key"_a, "slot_bytes"_a,
            "num_slots"_a)
        .def_prop_ro("last_posted", [](const CollectiveLink& l) -> int64_t {
            return l.has_posted() ? static_cast<int64_t>(l.last_posted()) : -1;
        });
    nb::class_<PyPlan>(m, "CollectivePlan", "What one rank does in a collective.")
        .def(nb::init<bool, const std::vector<LinkRows>&, std::vector<uint32_t>, std::vector<uint32_t>>(),
             "is_eager"_a, "links"_a, "first"_a, "order"_a);
    nb::class_<PyRun>(m, "CollectiveRun", "One run of a plan inside the event loop.")
        .def(nb::init<uint64_t, const PyPlan&, std::vector<CollectiveLink*>, uint32_t, uint32_t, uint32_t, uint32_t,
                      uint32_t, const std::vector<PartRow>&, const std::vector<PartRow>&, std::vector<CopyRow>>(),
             "loop_address"_a, "plan"_a, "links"_a, "operation"_a, "check"_a, "element_type"_a, "reduction"_a,
             "divisor"_a, "source"_a, "work"_a, "copies"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def("run", &PyRun::run, "timeout_ns"_a)
        .def("drop", &PyRun::drop)
        .def_prop_ro("status", [](const PyRun& r) { return static_cast<int>(r.get().status()); })
        .def_prop_ro("failed_link", [](const PyRun& r) { return r.get().failed_link(); })
        .def_prop_ro("foreign_tag", [](const PyRun& r) { return r.get().foreign_tag(); })
        .def("progress", [](const PyRun& r, uint32_t link) {
            return r.progress(link);
        }, "link"_a, "Chunks sent and received on a link, and whether it is waited for.");
}
