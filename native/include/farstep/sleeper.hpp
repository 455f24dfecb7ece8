// Where the event loop sleeps: until a socket has something, a deadline comes, or somebody wakes it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <system_error>
#include <unistd.h>

#include "farstep/config.hpp"

namespace farstep {

class Sleeper {
public:
    Sleeper() {
        epoll_.fd = ::epoll_create1(EPOLL_CLOEXEC);
        wake_.fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        timer_.fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (epoll_.fd < 0 || wake_.fd < 0 || timer_.fd < 0)
            throw std::system_error(errno, std::generic_category(), "cannot create the event loop's descriptors");
        watch(wake_.fd);
        watch(timer_.fd);
    }
    Sleeper(const Sleeper&) = delete;

    void watch(int fd) {
        epoll_event e{};
        e.events = EPOLLIN;
        e.data.fd = fd;
        if (::epoll_ctl(epoll_.fd, EPOLL_CTL_ADD, fd, &e) < 0)
            throw std::system_error(errno, std::generic_category(), "cannot watch a socket");
    }
    void wake() noexcept {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t n = ::write(wake_.fd, &one, sizeof one);
    }
    /// Sets the deadline. Deadlines mostly move later: a timer that is set earlier than needed only costs one idle turn, so
    /// it stays.
    void arm(uint64_t now, uint64_t at_ns) noexcept {
        if (at_ns == kNever || (armed_ns_ > now && armed_ns_ <= at_ns)) return;
        armed_ns_ = at_ns;
        itimerspec spec{};
        spec.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000ull);
        spec.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000ull);
        ::timerfd_settime(timer_.fd, TFD_TIMER_ABSTIME, &spec, nullptr);
    }
    void sleep() noexcept {
        epoll_event events[8];
        const int n = ::epoll_wait(epoll_.fd, events, 8, -1);
        for (int k = 0; k < n; ++k) {
            const int fd = events[k].data.fd;
            uint64_t ignored;
            if (fd != wake_.fd && fd != timer_.fd) continue;
            [[maybe_unused]] const ssize_t r = ::read(fd, &ignored, sizeof ignored);
        }
    }
    /// Ends watching. wake() stays harmless: a caller that has just left the lock may still call it.
    void stop() noexcept {
        epoll_.close();
        timer_.close();
    }
    void close() noexcept {
        stop();
        wake_.close();
    }

private:
    struct Descriptor {
        int fd = -1;
        Descriptor() = default;
        Descriptor(const Descriptor&) = delete;
        ~Descriptor() { close(); }
        void close() noexcept {
            if (fd >= 0) ::close(fd);
            fd = -1;
        }
    };
    Descriptor epoll_, wake_, timer_;
    uint64_t armed_ns_ = 0;
};

}  // namespace farstep
