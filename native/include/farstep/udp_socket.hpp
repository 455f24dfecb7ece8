// UDP sockets with what the transport needs from the kernel: segmentation and receive offload, ECN in and out, the
// count of datagrams the kernel dropped, page-aligned receive buffers.
#pragma once

#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <system_error>
#include <utility>
#include <unistd.h>

#include "farstep/connection.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace farstep {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;

    /// Numeric IPv4 or IPv6 only: names are resolved by the caller. Throws std::invalid_argument.
    static SocketAddress parse(const std::string& host, uint16_t port) {
        SocketAddress a;
        auto* v4 = reinterpret_cast<sockaddr_in*>(&a.storage);
        auto* v6 = reinterpret_cast<sockaddr_in6*>(&a.storage);
        if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(port);
            a.bytes = sizeof(sockaddr_in);
        } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(port);
            a.bytes = sizeof(sockaddr_in6);
        } else {
            throw std::invalid_argument("not a numeric IP address: " + host);
        }
        return a;
    }
    uint16_t port() const noexcept {
        return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
    }
    SocketAddress with_port(uint16_t port) const noexcept {
        SocketAddress a = *this;
        if (storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(a.storage).sin6_port = htons(port);
        else reinterpret_cast<sockaddr_in&>(a.storage).sin_port = htons(port);
        return a;
    }
    bool is_v6() const noexcept { return storage.ss_family == AF_INET6; }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

enum class SendResult : uint8_t { Sent, WouldBlock, NoOffload, Failed };

class UdpSocket {
public:
    UdpSocket() = default;
    UdpSocket(UdpSocket&& o) noexcept : fd_(o.fd_), gso_(o.gso_) { o.fd_ = -1; }
    UdpSocket& operator=(UdpSocket&& o) noexcept {
        std::swap(fd_, o.fd_);
        gso_ = o.gso_;
        return *this;
    }
    ~UdpSocket() { close(); }
    void close() noexcept {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }

    /// Throws std::system_error naming the step that failed.
    static UdpSocket open(const SocketAddress& bind_to, int receive_buffer_bytes, int send_buffer_bytes, bool receives) {
        UdpSocket s;
        s.fd_ = ::socket(bind_to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s.fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot open a UDP socket");
        s.set_buffer(SO_RCVBUF, SO_RCVBUFFORCE, receive_buffer_bytes);
        s.set_buffer(SO_SNDBUF, SO_SNDBUFFORCE, send_buffer_bytes);
        const bool v6 = bind_to.is_v6();
        const int ect0 = 2;  // ECN-capable transport, code point ECT(0)
        s.set(v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? static_cast<int>(IPV6_TCLASS) : static_cast<int>(IP_TOS), ect0);
        if (receives) {
            s.set(v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? static_cast<int>(IPV6_RECVTCLASS) : static_cast<int>(IP_RECVTOS), 1);
            s.set(SOL_SOCKET, SO_RXQ_OVFL, 1);
            s.set(IPPROTO_UDP, UDP_GRO, 1);  // a kernel without it delivers datagrams one by one, which works too
        }
        if (::bind(s.fd_, bind_to.get(), bind_to.bytes) < 0)
            throw std::system_error(errno, std::generic_category(), "cannot bind a UDP socket");
        return s;
    }

    int fd() const noexcept { return fd_; }
    SocketAddress local() const {
        SocketAddress a;
        a.bytes = sizeof a.storage;
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&a.storage), &a.bytes);
        return a;
    }
    int receive_buffer_bytes() const noexcept {
        int v = 0;
        socklen_t n = sizeof v;
        ::getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &v, &n);
        return v;
    }

    /// Sends a burst with one call where the kernel segments, else one call a packet.
    SendResult send(const TxBurst& b, const SocketAddress& to) noexcept {
        if (b.count > 1 && gso_) {
            const SendResult r = send_range(b, to, 0, b.count);
            if (r != SendResult::NoOffload) return r;
            gso_ = false;
        }
        SendResult worst = SendResult::Sent;
        for (uint32_t i = 0; i < b.count; ++i) {
            const SendResult r = send_range(b, to, i, i + 1);
            if (r == SendResult::WouldBlock && i == 0) return r;
            if (r != SendResult::Sent) worst = SendResult::Failed;
        }
        return worst;
    }

private:
    void set(int level, int option, int value) noexcept { ::setsockopt(fd_, level, option, &value, sizeof value); }
    void set_buffer(int option, int force, int bytes) noexcept {
        if (::setsockopt(fd_, SOL_SOCKET, force, &bytes, sizeof bytes) < 0) set(SOL_SOCKET, option, bytes);
    }

    SendResult send_range(const TxBurst& b, const SocketAddress& to, uint32_t begin, uint32_t end) noexcept {
        iovec iov[3 * kMaxBurst_packets];
        size_t n = 0;
        for (uint32_t i = begin; i < end; ++i) {
            const TxBurst::Segment& s = b.segments[i];
            iov[n++] = {const_cast<uint8_t*>(s.header), s.header_bytes};
            if (s.payload_bytes) iov[n++] = {const_cast<uint8_t*>(s.payload), s.payload_bytes};
            iov[n++] = {const_cast<uint8_t*>(s.trailer), s.trailer_bytes};
        }
        msghdr m{};
        m.msg_name = const_cast<sockaddr*>(to.get());
        m.msg_namelen = to.bytes;
        m.msg_iov = iov;
        m.msg_iovlen = n;
        alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {};
        if (end - begin > 1) {
            m.msg_control = control;
            m.msg_controllen = sizeof control;
            cmsghdr* c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = IPPROTO_UDP;
            c->cmsg_type = UDP_SEGMENT;
            c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
            const uint16_t bytes = static_cast<uint16_t>(b.segments[begin].bytes());
            std::memcpy(CMSG_DATA(c), &bytes, sizeof bytes);
        }
        for (;;) {
            if (::sendmsg(fd_, &m, MSG_DONTWAIT) >= 0) return SendResult::Sent;
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return SendResult::WouldBlock;
            // EIO, EINVAL, EMSGSIZE: the device or its MTU does not take segmented sends.
            if (end - begin > 1 && (errno == EIO || errno == EINVAL || errno == EMSGSIZE || errno == ENOPROTOOPT))
                return SendResult::NoOffload;
            return SendResult::Failed;
        }
    }

    int fd_ = -1;
    bool gso_ = true;
};

/// Buffers the kernel copies received datagrams into. Page-aligned: at other offsets that copy can be five times slower.
class ReceiveBatch {
public:
    static constexpr uint32_t kMessages = 4;          // 256 KiB: stays in the second-level cache
    static constexpr size_t kBufferBytes = 1u << 16;  // the largest UDP payload, and so the largest merged one

    ReceiveBatch() {
        void* p = ::mmap(nullptr, kMessages * kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<uint8_t*>(p);
    }
    ReceiveBatch(const ReceiveBatch&) = delete;
    ~ReceiveBatch() { ::munmap(base_, kMessages * kBufferBytes); }

    /// Fills the batch; returns the number of messages, 0 when the socket is empty.
    uint32_t receive(int fd) noexcept {
        for (uint32_t i = 0; i < kMessages; ++i) {
            iov_[i] = {base_ + i * kBufferBytes, kBufferBytes};
            msghdr& m = messages_[i].msg_hdr;
            m = {};
            m.msg_name = &names_[i];
            m.msg_namelen = sizeof names_[i];
            m.msg_iov = &iov_[i];
            m.msg_iovlen = 1;
            m.msg_control = control_[i];
            m.msg_controllen = sizeof control_[i];
        }
        const int n = ::recvmmsg(fd, messages_, kMessages, MSG_DONTWAIT, nullptr);
        return n > 0 ? static_cast<uint32_t>(n) : 0;
    }

    /// Calls `each(arrival, data, bytes)` for every datagram of message `i`; `dropped` is the socket's drop counter.
    template <class Each>
    void split(uint32_t i, uint8_t port, uint32_t& dropped, Each&& each) noexcept {
        const mmsghdr& m = messages_[i];
        Arrival a;
        a.local_port = port;
        const auto& name = names_[i];
        a.entropy = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                                     : reinterpret_cast<const sockaddr_in&>(name).sin_port);
        size_t segment = m.msg_len;
        for (cmsghdr* c = CMSG_FIRSTHDR(&m.msg_hdr); c; c = CMSG_NXTHDR(const_cast<msghdr*>(&m.msg_hdr), c)) {
            if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
                int bytes = 0;
                std::memcpy(&bytes, CMSG_DATA(c), sizeof bytes);
                if (bytes > 0) segment = static_cast<size_t>(bytes);
            } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
                std::memcpy(&dropped, CMSG_DATA(c), sizeof dropped);
            } else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) ||
                       (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)) {
                read_class(*CMSG_DATA(c), a);
            }
        }
        const uint8_t* data = base_ + i * kBufferBytes;
        for (size_t at = 0; at < m.msg_len; at += segment)
            each(a, data + at, m.msg_len - at < segment ? m.msg_len - at : segment);
    }

private:
    // DSCP code points of trimmed packets, one reading of MRC §3.5; operators may choose others.
    static constexpr uint8_t kDscpTrimmed = 12, kDscpTrimmedLastHop = 16;
    static void read_class(uint8_t tos, Arrival& a) noexcept {
        a.ecn_ce = (tos & 3) == 3;
        const uint8_t dscp = tos >> 2;
        a.trimmed = dscp == kDscpTrimmed ? 1 : dscp == kDscpTrimmedLastHop ? 2 : 0;
    }

    uint8_t* base_;
    mmsghdr messages_[kMessages]{};
    iovec iov_[kMessages]{};
    sockaddr_storage names_[kMessages]{};
    alignas(cmsghdr) uint8_t control_[kMessages][128]{};
};

}  // namespace farstep
