// What became of packets: counted for every connection, and told packet by packet for the few that are followed.
//
// The network calls this where a packet is lost or trimmed, which is rare, and, only while somebody is followed, where one
// leaves its NIC and where it arrives.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace farstep::sim {

/// Packets of one connection that did not arrive whole.
struct ConnectionFate {
    uint32_t dropped = 0, trimmed = 0;
    uint32_t duplicates = 0;  // arrived whole though they had before
};

/// How a packet ended.
enum class Fate : uint8_t { InFlight = 0, Delivered = 1, Trimmed = 2, DroppedFull = 3, DroppedDown = 4, DroppedLoss = 5 };

/// One packet of a connection that is followed.
struct TraceRow {
    uint64_t sent_ns = 0;       // its first bit leaves the NIC
    int64_t ended_ns = -1;      // it is whole at the other NIC, or the port below took it from the wire
    uint32_t connection = 0, sequence = 0;
    uint32_t first_hop = 0;     // where its ports begin among all
    uint32_t where = UINT32_MAX;  // port at which it was lost or trimmed
    uint16_t path = 0, bytes = 0;
    uint8_t hops = 0;
    Fate fate = Fate::InFlight;
    bool is_marked = false;
};

class PacketTrace {
public:
    static constexpr size_t kMaxRows = size_t{1} << 20;  // what comes after is counted, not kept

    void follow(uint32_t connection) {
        if (connection >= is_followed_.size()) is_followed_.resize(connection + 1, 0);
        is_followed_[connection] = 1;
    }
    bool follows(uint32_t connection) const noexcept {
        return connection < is_followed_.size() && is_followed_[connection];
    }
    /// A packet leaves its NIC; its ports are added afterwards. False: it is one too many.
    bool begin(uint32_t number, const TraceRow& row) {
        if (rows_.size() == kMaxRows) {
            ++num_left_out_;
            return false;
        }
        row_of_[number] = static_cast<uint32_t>(rows_.size());
        rows_.push_back(row);
        rows_.back().first_hop = static_cast<uint32_t>(ports_.size());
        return true;
    }
    /// A port of its way. Where switches choose, ways of several packets grow side by side: they are kept apart by number.
    void cross(uint32_t number, uint32_t port) {
        const auto found = row_of_.find(number);
        if (found == row_of_.end()) return;
        TraceRow& r = rows_[found->second];
        if (r.first_hop + r.hops != ports_.size()) {  // another packet's ports came between: move on behind them
            const uint32_t first = static_cast<uint32_t>(ports_.size());
            for (uint32_t i = 0; i < r.hops; ++i) ports_.push_back(ports_[r.first_hop + i]);
            r.first_hop = first;
        }
        ports_.push_back(port);
        ++r.hops;
    }
    void end(uint32_t number, Fate fate, uint64_t now_ns, uint32_t port, bool is_marked) {
        const auto found = row_of_.find(number);
        if (found == row_of_.end()) return;
        TraceRow& r = rows_[found->second];
        r.ended_ns = static_cast<int64_t>(now_ns);
        r.fate = fate;
        r.where = port;
        r.is_marked = is_marked;
        row_of_.erase(found);
    }
    const std::vector<TraceRow>& rows() const noexcept { return rows_; }
    uint32_t port(const TraceRow& r, uint32_t hop) const noexcept { return ports_[r.first_hop + hop]; }
    uint64_t num_left_out() const noexcept { return num_left_out_; }

private:
    std::vector<uint8_t> is_followed_;
    std::vector<TraceRow> rows_;
    std::vector<uint32_t> ports_;
    std::unordered_map<uint32_t, uint32_t> row_of_;  // packets on their way, by number
    uint64_t num_left_out_ = 0;
};

}  // namespace farstep::sim
