// Asks the cache for what NICs are going to be handed, in the order in which they are.
//
// A large network does not fit into any cache. What is to be handled within some slots is known, so memory can be asked for
// what it touches well ahead, over the borders of groups of NICs and of slots, in steps that depend on each other: the
// packet tells the connection, the connection where its state is, the state which records.
#pragma once

#include <cstddef>
#include <cstdint>

#include "farstep/sim/network.hpp"
#include "farstep/sim/nic.hpp"
#include "farstep/sim/nic_inbox.hpp"

namespace farstep::sim {

template <class Net, class Transport>
class FetchAhead {
public:
    FetchAhead(Net& net, Transport& transport, const NicRings& rings) noexcept
        : net_(&net), transport_(&transport), rings_(&rings) {}

    /// These items are going to be handled, from the first to the last.
    void begin(const NicInbox::Item* items, size_t count) noexcept {
        items_ = items;
        count_ = count < kFew ? 0 : count;
        at_ = 0;
        if (count_ > 0)
            for (at_ -= kFar; at_ != 0;) step();
    }
    /// One item more is about to be handled.
    void step() noexcept {
        if (at_ + kFar < count_) ask_item(items_[at_ + kFar]);
        if (at_ + kMiddle < count_) ask_row(items_[at_ + kMiddle]);
        if (at_ + kNear < count_) ask_state(items_[at_ + kNear]);
        if (at_ + kLast < count_) ask_records(items_[at_ + kLast]);
        ++at_;
    }

private:
    // Items ahead. Unsigned, so that what lies before the first one is beyond the last one, too.
    static constexpr size_t kFar = 96, kMiddle = 56, kNear = 24, kLast = 9;
    static constexpr size_t kFew = 4;

    static uint32_t packet_of(const NicInbox::Item& i) noexcept { return static_cast<uint32_t>(i.what); }
    static bool is_control(const NicInbox::Item& i) noexcept { return what_of(i.what) == Happening::Control; }
    const Control& control_of(const NicInbox::Item& i) const noexcept {
        return net_->control(static_cast<uint32_t>(number_of(i.what)));
    }
    void ask_item(const NicInbox::Item& i) noexcept {
        if (!i.is_event) net_->prefetch_arrival(packet_of(i));
        else if (is_control(i)) net_->prefetch_control(static_cast<uint32_t>(number_of(i.what)));
    }
    void ask_row(const NicInbox::Item& i) noexcept {
        if (!i.is_event) transport_->prefetch_poll(net_->cargo(packet_of(i)).connection);
        else if (is_control(i)) transport_->prefetch_poll(control_of(i).connection);
    }
    void ask_state(const NicInbox::Item& i) noexcept {
        if (i.is_event) {
            if (is_control(i)) transport_->prefetch_control(control_of(i));
            return;
        }
        transport_->prefetch_data(net_->cargo(packet_of(i)));
        // A NIC that receives mostly sends, too.
        if (i.offset == 0 && !rings_->is_empty(i.nic)) transport_->prefetch_state(rings_->first(i.nic));
    }
    void ask_records(const NicInbox::Item& i) noexcept {
        if (i.is_event) {
            if constexpr (requires(const Control& c) { transport_->prefetch_control_last(c); })
                if (is_control(i)) transport_->prefetch_control_last(control_of(i));
        } else {
            if constexpr (requires { transport_->prefetch_data_last(0u); }) transport_->prefetch_data_last(packet_of(i));
        }
    }

    Net* net_;
    Transport* transport_;
    const NicRings* rings_;
    const NicInbox::Item* items_ = nullptr;
    size_t count_ = 0, at_ = 0;
};

}  // namespace farstep::sim
