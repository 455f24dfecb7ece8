// What reaches NICs within some slots, put in order by groups of 64 NICs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace farstep::sim {

class NicInbox {
public:
    struct Item {
        uint64_t what;     // packet, or event of the calendar
        uint32_t nic;
        uint16_t offset;   // slots after the first
        bool is_event;
    };

    void clear() noexcept { items_.clear(); }
    void add(const Item& i) { items_.push_back(i); }
    size_t size() const noexcept { return items_.size(); }
    const Item* added() const noexcept { return items_.data(); }
    /// Puts groups in the order in which they are visited: from `first` on, upward or downward, all around. Items of a
    /// group keep the order in which they were added.
    void sort(uint32_t num_groups, uint32_t first, bool forward) {
        const auto rank = [&](uint32_t group) {
            const uint32_t steps = forward ? group - first : first - group;
            return steps < num_groups ? steps : steps + num_groups;
        };
        begin_.assign(num_groups + 2, 0);
        for (const Item& i : items_) ++begin_[rank(i.nic >> 6) + 2];
        for (size_t n = 2; n < begin_.size(); ++n) begin_[n] += begin_[n - 1];
        sorted_.resize(items_.size());
        for (const Item& i : items_) sorted_[begin_[rank(i.nic >> 6) + 1]++] = i;
    }
    const Item* items() const noexcept { return sorted_.data(); }
    /// End of the items of the first `visits` groups.
    const Item* end(uint32_t visits) const noexcept { return sorted_.data() + begin_[visits]; }

private:
    std::vector<Item> items_, sorted_;
    std::vector<uint32_t> begin_;
};

}  // namespace farstep::sim
