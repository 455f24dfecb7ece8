// Connections from one NIC to another share a congestion window, as they do on hosts: one context for each destination.
//
// The first of them to open owns it, since most have no sibling and find it in their own memory; an owner that is over
// before its siblings leaves it behind until the last of them is.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace farstep::sim {

/// `End` is the sending end of a connection. Its `siblings` and `has_siblings` are set here.
template <class End>
class SharedWindows {
public:
    struct Siblings {
        End* owner = nullptr;
        struct Member {
            End* end;
            uint32_t connection;
        };
        std::vector<Member> members;  // open ones
    };

    /// Siblings of a connection to be opened; the caller builds its end with the owner's window, or as owner of a new one.
    Siblings& of(uint32_t source, uint32_t target) { return groups_[key(source, target)]; }
    void join(Siblings& s, End* end, uint32_t connection) {
        if (!s.owner) s.owner = end;
        end->siblings = &s;
        s.members.push_back({end, connection});
        for (auto& member : s.members) member.end->has_siblings = s.members.size() > 1;
    }
    /// The window may have room now: the others that have something to send are polled.
    template <class Host>
    static void wake(const End& end, Host& host) {
        for (const auto& member : end.siblings->members) {
            const auto& sender = member.end->connection.sender();
            if (member.end != &end && sender.has_data() && !sender.is_window_limited()) host.wake(member.connection);
        }
    }
    /// A connection is over. Calls give_back(end) for each end that nobody needs any more.
    template <class F>
    void leave(uint32_t source, uint32_t target, End* end, F&& give_back) {
        Siblings& s = *end->siblings;
        std::erase_if(s.members, [end](const auto& member) { return member.end == end; });
        End* const owner = s.owner;
        if (end != owner) give_back(end);
        if (!s.members.empty()) return;
        groups_.erase(key(source, target));
        give_back(owner);
    }

private:
    static constexpr uint64_t key(uint32_t source, uint32_t target) noexcept { return uint64_t{source} << 32 | target; }
    std::unordered_map<uint64_t, Siblings> groups_;
};

}  // namespace farstep::sim
