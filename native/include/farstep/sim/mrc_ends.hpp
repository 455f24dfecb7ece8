// The two ends of a simulated MRC connection, each laid out in one block of memory.
#pragma once

#include <cstdint>

#include "farstep/connection.hpp"
#include "farstep/sim/packet.hpp"
#include "farstep/sim/router.hpp"
#include "farstep/sim/shared_windows.hpp"
#include "farstep/storage.hpp"

namespace farstep::sim {

struct MrcEnd {
    MrcEnd(const ConnectionConfig& c, Nscc& cc, const PlaneLink* links, uint32_t planes, Arena* arena, const ConnectionConfig& shared)
        : connection(c, cc, links, planes, arena, &shared) {}
    // Handling at one end never goes back in time, whatever the phases within a slot.
    uint64_t later(uint64_t now) noexcept { return last_ns = now > last_ns ? now : last_ns; }
    uint64_t last_ns = 0;
    uint32_t local_ports = ~0u, remote_ports = ~0u;
    uint64_t* routes = nullptr;             // of the source's entropy values
    uint16_t num_ways = 0;                  // entropy values with a route
    bool has_siblings = false;              // of the source: others share its window
    uint8_t arrival_port[kMaxPlanes] = {};  // of the target: where packets of each of the source's planes arrive
    Connection connection;
};

struct MrcSource : MrcEnd {
    MrcSource(const ConnectionConfig& c, const NsccConfig& n, const PlaneLink* links, uint32_t planes, Arena* arena,
              const ConnectionConfig& shared, MrcSource* owner = nullptr)
        : MrcEnd(c, owner ? owner->window : window, links, planes, arena, shared), window(&n), own_routes(c.paths.max_evs, arena),
          walks(planes, arena) {
        routes = own_routes.get();
    }
    /// Stands for a route that nothing has taken yet: most of a short flow's are never made.
    static constexpr uint64_t kUnmade = UINT64_MAX;
    /// Paths of one plane, taken by its entropy values in turn.
    struct Walk : PathWalk {
        uint32_t first_ev = 0;
    };
    alignas(64) Nscc window;  // of the first connection between two NICs, for all of them
    Table<uint64_t> own_routes;
    Table<Walk> walks;
    SharedWindows<MrcSource>::Siblings* siblings = nullptr;
    void* cold = nullptr;  // block of its cold tables
    uint64_t cwnd_bytes() const noexcept { return siblings->owner->window.cwnd_bytes(); }
};

struct MrcTarget : MrcEnd {
    MrcTarget(const ConnectionConfig& c, Nscc& window, const PlaneLink* links, uint32_t planes, Arena* arena,
              const ConnectionConfig& shared)
        : MrcEnd(c, window, links, planes, arena, shared), ways(c.paths.max_evs, arena) {}
    Table<ControlPath> ways;
    void* cold = nullptr;
};

}  // namespace farstep::sim
