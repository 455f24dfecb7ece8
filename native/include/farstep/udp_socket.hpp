// UDP sockets with what the transport needs from the kernel: segmentation and receive offload, ECN in and out, the
// count of datagrams the kernel dropped, page-aligned receive buffers.
#pragma once

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
#include "farstep/socket_address.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef UDP_NO_CHECK6_TX
#define UDP_NO_CHECK6_TX 101
#define UDP_NO_CHECK6_RX 102
#endif
// <linux/in6.h>, which does not go together with <netinet/in.h>.
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#define IPV6_FLOWINFO_SEND 33
#endif
#ifndef IPV6_AUTOFLOWLABEL
#define IPV6_AUTOFLOWLABEL 70
#endif

namespace farstep {

/// Who chooses the way of a packet: routers, by its ports, or the sender, by its destination address.
enum class PathMode : uint8_t { Udp, Srv6 };

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
    static UdpSocket open(const SocketAddress& bind_to, int receive_buffer_bytes, int send_buffer_bytes, bool receives,
                          PathMode mode = PathMode::Udp) {
        UdpSocket s;
        s.fd_ = ::socket(bind_to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s.fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot open a UDP socket");
        s.set_buffer(SO_RCVBUF, SO_RCVBUFFORCE, receive_buffer_bytes);
        s.set_buffer(SO_SNDBUF, SO_SNDBUFFORCE, send_buffer_bytes);
        const bool v6 = bind_to.is_v6();
        const int ect0 = 2;  // ECN-capable transport, code point ECT(0)
        s.set(v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? static_cast<int>(IPV6_TCLASS) : static_cast<int>(IP_TOS), ect0);
        if (mode == PathMode::Srv6) s.prepare_for_paths();
        if (receives) {
            s.set(v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? static_cast<int>(IPV6_RECVTCLASS) : static_cast<int>(IP_RECVTOS), 1);
            s.set(SOL_SOCKET, SO_RXQ_OVFL, 1);
            // A kernel without it delivers datagrams one by one, which works too.
            if (mode == PathMode::Udp) s.set(IPPROTO_UDP, UDP_GRO, 1);
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

    /// Sends a burst with one call, which the kernel cuts into packets where it can. `sent` packets of it have left; call
    /// again with the same after WouldBlock.
    SendResult send(const TxBurst& b, Target to, uint32_t& sent) noexcept {
        if (!to.address) return SendResult::Failed;
        if (b.count - sent > 1 && gso_) {
            const SendResult r = send_segmented(b, to, sent);
            if (r != SendResult::NoOffload) return r;
            gso_ = false;
        }
        return send_each(b, to, sent);
    }

private:
    void set(int level, int option, int value) noexcept { ::setsockopt(fd_, level, option, &value, sizeof value); }
    void set_buffer(int option, int force, int bytes) noexcept {
        if (::setsockopt(fd_, SOL_SOCKET, force, &bytes, sizeof bytes) < 0) set(SOL_SOCKET, option, bytes);
    }

    // The checksum of UDP covers the destination address, which changes on the way in mode Srv6. The kernel cuts no
    // packets without one, nor does it merge them.
    void prepare_for_paths() {
        require(IPPROTO_UDP, UDP_NO_CHECK6_TX, 1, "the kernel does not leave out UDP checksums (UDP_NO_CHECK6_TX)");
        require(IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "the kernel takes no packets without UDP checksum (UDP_NO_CHECK6_RX)");
        require(IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1, "the kernel sends no flow labels of ours (IPV6_FLOWINFO_SEND)");
        require(IPPROTO_IPV6, IPV6_FLOWINFO, 1, "the kernel does not tell flow labels (IPV6_FLOWINFO)");
        set(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);
        gso_ = false;
    }
    void require(int level, int option, int value, const char* otherwise) {
        if (::setsockopt(fd_, level, option, &value, sizeof value) < 0)
            throw std::system_error(errno, std::generic_category(), otherwise);
    }

    static constexpr size_t kPartsPerPacket = 3;  // header, payload, trailer
    /// Appends the parts of packet `i` to `iov`; returns how many.
    static size_t gather(const TxBurst& b, uint32_t i, iovec* iov) noexcept {
        const TxBurst::Segment& s = b.segments[i];
        size_t n = 0;
        iov[n++] = {const_cast<uint8_t*>(s.header), s.header_bytes};
        if (s.payload_bytes) iov[n++] = {const_cast<uint8_t*>(s.payload), s.payload_bytes};
        iov[n++] = {const_cast<uint8_t*>(s.trailer), s.trailer_bytes};
        return n;
    }
    static void address(msghdr& m, Target to, iovec* iov, size_t parts) noexcept {
        m.msg_name = const_cast<sockaddr*>(to.address);
        m.msg_namelen = to.bytes;
        m.msg_iov = iov;
        m.msg_iovlen = parts;
    }
    static bool is_full(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

    SendResult send_segmented(const TxBurst& b, Target to, uint32_t& sent) noexcept {
        iovec iov[kPartsPerPacket * kMaxBurst_packets];
        size_t n = 0;
        for (uint32_t i = sent; i < b.count; ++i) n += gather(b, i, iov + n);
        msghdr m{};
        address(m, to, iov, n);
        alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {};
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        cmsghdr* c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        const uint16_t bytes = static_cast<uint16_t>(b.segments[sent].bytes());
        std::memcpy(CMSG_DATA(c), &bytes, sizeof bytes);
        for (;;) {
            if (::sendmsg(fd_, &m, MSG_DONTWAIT) >= 0) {
                sent = b.count;
                return SendResult::Sent;
            }
            if (errno == EINTR) continue;
            if (is_full(errno)) return SendResult::WouldBlock;
            // EIO, EINVAL, EMSGSIZE: the device or its MTU does not take segmented sends.
            if (errno == EIO || errno == EINVAL || errno == EMSGSIZE || errno == ENOPROTOOPT) return SendResult::NoOffload;
            return SendResult::Failed;
        }
    }
    // One that the kernel refuses counts as sent, and is lost like one that got lost on the way.
    SendResult send_each(const TxBurst& b, Target to, uint32_t& sent) noexcept {
        iovec iov[kPartsPerPacket * kMaxBurst_packets];
        mmsghdr messages[kMaxBurst_packets];
        size_t n = 0;
        for (uint32_t i = sent; i < b.count; ++i) {
            const size_t parts = gather(b, i, iov + n);
            messages[i] = {};
            address(messages[i].msg_hdr, to, iov + n, parts);
            n += parts;
        }
        SendResult worst = SendResult::Sent;
        while (sent < b.count) {
            const int done = ::sendmmsg(fd_, messages + sent, b.count - sent, MSG_DONTWAIT);
            if (done > 0) {
                sent += static_cast<uint32_t>(done);
            } else if (errno != EINTR) {
                if (is_full(errno)) return SendResult::WouldBlock;
                worst = SendResult::Failed;
                ++sent;
            }
        }
        return worst;
    }

    int fd_ = -1;
    bool gso_ = true;
};

/// Buffers the kernel copies received datagrams into. Page-aligned: at other offsets that copy can be five times slower.
class ReceiveBatch {
public:
    static constexpr size_t kBytes = 4u << 16;        // stays in the second-level cache
    static constexpr size_t kMaxBuffer_bytes = 1u << 16;  // the largest UDP payload, and so the largest merged one
    static constexpr size_t kMinBuffer_bytes = 1u << 12;  // a page
    static constexpr uint32_t kMaxMessages = kBytes / kMinBuffer_bytes;

    /// `datagram_bytes`: longest message that comes; 0: any, merged ones too.
    explicit ReceiveBatch(size_t datagram_bytes = 0) {
        while (buffer_bytes_ / 2 >= kMinBuffer_bytes && datagram_bytes && datagram_bytes <= buffer_bytes_ / 2) buffer_bytes_ /= 2;
        num_messages_ = static_cast<uint32_t>(kBytes / buffer_bytes_);
        void* p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<uint8_t*>(p);
    }
    ReceiveBatch(const ReceiveBatch&) = delete;
    ~ReceiveBatch() { ::munmap(base_, kBytes); }

    uint32_t num_messages() const noexcept { return num_messages_; }

    /// Fills the batch; returns the number of messages, 0 when the socket is empty.
    uint32_t receive(int fd) noexcept {
        for (uint32_t i = 0; i < num_messages_; ++i) {
            iov_[i] = {base_ + i * buffer_bytes_, buffer_bytes_};
            msghdr& m = messages_[i].msg_hdr;
            m = {};
            m.msg_name = &names_[i];
            m.msg_namelen = sizeof names_[i];
            m.msg_iov = &iov_[i];
            m.msg_iovlen = 1;
            m.msg_control = control_[i];
            m.msg_controllen = sizeof control_[i];
        }
        const int n = ::recvmmsg(fd, messages_, num_messages_, MSG_DONTWAIT, nullptr);
        return n > 0 ? static_cast<uint32_t>(n) : 0;
    }

    /// Calls `each(arrival, data, bytes)` for every datagram of message `i`, which may be changed in place; `dropped` is the
    /// socket's drop counter.
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
            } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_FLOWINFO) {
                uint32_t label = 0;
                std::memcpy(&label, CMSG_DATA(c), sizeof label);
                if (is_label_of_path(ntohl(label))) a.entropy = path_of_label(ntohl(label));
            }
        }
        uint8_t* data = base_ + i * buffer_bytes_;
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
    size_t buffer_bytes_ = kMaxBuffer_bytes;
    uint32_t num_messages_ = 0;
    mmsghdr messages_[kMaxMessages]{};
    iovec iov_[kMaxMessages]{};
    sockaddr_storage names_[kMaxMessages]{};
    alignas(cmsghdr) uint8_t control_[kMaxMessages][128]{};
};

}  // namespace farstep
