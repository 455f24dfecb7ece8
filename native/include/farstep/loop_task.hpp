// Work that runs inside the event loop: it is called when an immediate has come or a write has completed, posts further
// writes, and never waits. A collective run this way costs no thread switch per chunk.
#pragma once

#include <cstdint>

namespace farstep {

/// What a task may do. Valid only during the call it is passed to; the loop's lock is held.
class LoopAccess {
public:
    static constexpr uint64_t kRejected = UINT64_MAX;

    struct Write {
        uint32_t connection;
        uint64_t local_key;  // 0 if length_bytes is 0
        uint64_t local_offset;
        uint64_t length_bytes;
        uint64_t remote_key;
        uint64_t remote_offset;
        uint32_t immediate;
    };

    virtual ~LoopAccess() = default;
    /// Posts a write with an immediate; its number on the connection, or kRejected when the connection has ended.
    virtual uint64_t post(const Write& w) noexcept = 0;
    /// Takes the next immediate of a connection.
    virtual bool pop_immediate(uint32_t connection, uint32_t& value) noexcept = 0;
    /// Number of writes of a connection that are acknowledged.
    virtual uint64_t completed(uint32_t connection) noexcept = 0;
    virtual bool is_open(uint32_t connection) noexcept = 0;
    /// Number of writes of a connection that have not wholly left yet.
    virtual uint64_t waiting(uint32_t connection) noexcept = 0;
};

class LoopTask {
public:
    virtual ~LoopTask() = default;
    /// Goes on as far as it can. True when there is nothing left to do, for better or worse.
    virtual bool advance(LoopAccess& loop) noexcept = 0;
    /// Whether advance() would post what it has held back because enough was waiting to leave.
    virtual bool is_hungry(LoopAccess& loop) noexcept = 0;
};

}  // namespace farstep
